//! Claude Code's folder from files to published facts, through the real runner: transcripts in every order, copied
//! history, sub-agents in all their layouts, folders that move, the registry beside them. What single lines mean is
//! tested elsewhere, what the registry alone says in `registry`.

#![allow(clippy::unwrap_used, reason = "a test may stop where its own story is wrong")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/exposition.rs"]
mod exposition;

mod layouts;
mod lines;
mod moves;
mod orders;
mod processes;
mod reports;
mod stand;
mod whole;
