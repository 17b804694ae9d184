//! Following servers, whatever they do: with a small source whose only fact is that something happened.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "../common/mod.rs"]
mod common;

mod found;
mod hostile;
mod log;
mod logins;
mod losses;
mod raw;
mod toy;
