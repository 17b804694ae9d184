//! Metrics over OTLP: the same samples as the exposition under every translation of names, since when they count, how their
//! series end, how they are cut into requests, and what the task does with a collector's answers.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/exposition.rs"]
#[allow(dead_code)]
mod exposition;

mod compared;
mod cut;
mod ended;
mod sent;
mod stand;
