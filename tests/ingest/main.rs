//! Files in, batches out: the runner of file sources over real folders, real inotify and real locks, with a decoder
//! that only counts.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod clocks;
mod damage;
mod files;
mod harness;
mod locks;
mod odd;
mod polling;
mod random;
mod restart;
mod scale;
