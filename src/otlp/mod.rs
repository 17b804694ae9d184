//! What leaves by OTLP: from an item that waits in the spool to the collector's word that it has it.
//!
//! [`settings`] says where to, [`encode`] makes the form of OTLP, [`send`] carries it and understands the answer, [`task`]
//! keeps the order and the patience. `opentelemetry-otlp` is not used for this: it knows neither partial success nor
//! what a refusal was, and an item must leave the spool exactly when the collector has it.

pub mod answer;
pub mod encode;
mod grpc;
mod http;
pub mod metrics;
pub mod own;
pub mod send;
pub mod settings;
pub mod task;
mod tls;
mod variables;

pub use self::answer::{Answer, Why};
pub use self::encode::Encoder;
pub use self::metrics::Metrics;
pub use self::own::OwnTraces;
pub use self::send::{SetupError, Transport};
pub use self::settings::{Batching, Headers, Protocol, Settings, Target, Wrong};
pub use self::task::{Backoff, Senders};
