//! The gobby source: recorded frames and answers of both daemons through its peer and the fold, with cuts, restarts
//! and hostile frames, and once more through a server that speaks the daemon's protocol.

#![allow(clippy::unwrap_used, reason = "a test may stop where its own story is wrong")]

#[path = "../common/mod.rs"]
mod common;
mod cuts;
mod daemon;
mod hostile;
mod late;
mod made;
mod recordings;
mod replay;
mod said;
mod server;
mod spans;
#[path = "../common/tree.rs"]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "each binary of tests uses its part")]
mod tree;
