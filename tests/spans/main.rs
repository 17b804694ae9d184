//! Spans of every recording of files that agents write, as trees in `tests/golden/spans`.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails says where")]

#[path = "../common/tree.rs"]
#[allow(dead_code, unreachable_pub)]
mod tree;

#[path = "../common/mod.rs"]
mod common;

mod callers;
mod ends;
mod events;
mod made;
mod random;
mod recordings;
