//! Prometheus exporter for background coding-agent sessions.
//!
//! One direction: `ingest` (bytes to records) → `sources` (record to [`event::Event`]) → `store` (one owner task:
//! fold, commit, publish) → `session::Snapshot` → `views` (read only). A bounded channel carries events and slows
//! the readers down instead of dropping; a watch channel carries the latest snapshot. Nothing flows back.

pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
pub mod docs;
pub mod event;
pub mod ingest;
pub mod notify;
pub mod otlp;
pub mod session;
pub mod sources;
pub mod spans;
pub mod store;
pub mod telemetry;
pub mod views;

// Events are allocated by the threads that decode them and freed by the owner, in bursts: the system's allocator
// neither likes that nor gives the pages back.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
