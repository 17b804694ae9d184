//! Claude Code: lines of its transcripts become events, its live registry tells who works and who waits. Finding and
//! following files is not done here, and no state is decided here.

mod registry;

pub use self::registry::{Existence, Probe, Registry};
