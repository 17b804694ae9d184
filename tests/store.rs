//! The store under crashes, a full disk, damaged files, duplicates, load and time.

#![allow(clippy::unwrap_used, reason = "what is asked of a test's own set-up holds or the test fails")]

mod common;

#[path = "store/commit.rs"]
mod commit;
#[path = "store/crash.rs"]
mod crash;
#[path = "store/damage.rs"]
mod damage;
#[path = "store/full.rs"]
mod full;
#[path = "store/once.rs"]
mod once;
#[path = "store/ticks.rs"]
mod ticks;
