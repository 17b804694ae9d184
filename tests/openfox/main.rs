//! OpenFox: every recorded scenario through its peer, with recorded times and what the server would have answered by
//! then; cut, restarted and maltreated; and through a server that speaks the real protocol.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "../common/mod.rs"]
mod common;

mod cut;
mod hostile;
mod late;
mod named;
mod play;
mod recorded;
mod restart;
mod scenarios;
mod socket;
mod spans;
#[path = "../common/tree.rs"]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "each binary of tests uses its part")]
mod tree;
