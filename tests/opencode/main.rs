//! The opencode source: recordings of real servers, told whole, cut, restarted and damaged.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod cuts;
mod folded;
mod followed;
mod hostile;
mod late;
mod play;
mod recorded;
mod reports;
mod scenarios;
mod spans;
mod told;
#[path = "../common/tree.rs"]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "each binary of tests uses its part")]
mod tree;
mod world;
