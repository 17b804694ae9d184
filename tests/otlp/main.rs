//! What leaves by OTLP: settings, the form of OTLP, the spool, and the senders against a collector that can answer anything.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/running.rs"]
mod running;
#[path = "../common/tree.rs"]
#[allow(dead_code, unreachable_pub)]
mod tree;

mod answers;
mod collector;
mod encoded;
mod exemplars;
mod made;
mod own;
mod program;
mod replayed;
mod restarts;
mod settings;
mod spool;
mod stand;
mod tls;
