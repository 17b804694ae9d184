//! One way to a collector, over either protocol. A request is made into bytes once, however often it is tried.

use bytes::Bytes;

use super::answer::Answer;
use super::grpc::Grpc;
use super::http::Http;
use super::settings::{Protocol, Target};
use super::tls::TlsError;
use crate::clock::Clock;
use crate::spans::Signal;

/// How this program calls itself.
pub(super) const AGENT: &str = concat!("agent-session-exporter/", env!("CARGO_PKG_VERSION"));

/// A way to a collector.
#[derive(Debug)]
pub struct Transport(Way);

#[derive(Debug)]
enum Way {
    Http(Http),
    Grpc(Grpc),
}

/// Why there is no way.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A certificate or a key.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The name or the value of a header; neither is shown.
    #[error("a header of OTEL_EXPORTER_OTLP_HEADERS cannot be sent")]
    Header,
    /// An address that can be written but not asked.
    #[error("the address cannot be used")]
    Address,
}

// === impl Transport ===

impl Transport {
    /// The way to a target; nothing is sent yet.
    ///
    /// # Errors
    /// The settings name something that cannot be used.
    pub fn new(target: &Target, clock: Clock) -> Result<Self, SetupError> {
        Ok(Self(match target.protocol {
            Protocol::Http => Way::Http(Http::new(target, clock)?),
            Protocol::Grpc => Way::Grpc(Grpc::new(target, clock)?),
        }))
    }

    /// Sends one request of a signal, already encoded.
    pub async fn send(&self, signal: Signal, body: Bytes) -> Answer {
        match &self.0 {
            Way::Http(http) => http.send(signal, body).await,
            Way::Grpc(grpc) => grpc.send(signal, body).await,
        }
    }
}
