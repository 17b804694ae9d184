//! The live registry of Claude Code, from its files to states: recordings replayed through a folder with processes of the
//! test's own, and real processes.

#![allow(clippy::unwrap_used, reason = "a test may stop where its own story is wrong")]

mod hostile;
mod processes;
mod replay;
mod restart;
mod stand;
