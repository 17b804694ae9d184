//! Spec orchestrators, from their files and events to states, metrics and reports. Recordings lie in
//! `tests/fixtures/spec`; goldens in `tests/golden/spec`, which `BLESS=1` renews.

#![allow(clippy::unwrap_used, reason = "a test may stop where its own story is wrong")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/exposition.rs"]
mod exposition;

mod agents;
mod files;
mod folds;
mod hostile;
mod pushed;
mod recordings;
mod restart;
mod spans;
mod stand;
#[path = "../common/tree.rs"]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "each binary of tests uses its part")]
mod tree;
mod views;
