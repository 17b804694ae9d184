//! What several test binaries share. Each uses a part of it.
#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod disk;
pub mod follow;
pub mod owner;
pub mod peer;
pub mod tape;
pub mod ticked;
pub mod traffic;
