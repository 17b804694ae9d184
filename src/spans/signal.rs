//! The kinds of things that are sent, as OTLP divides them.

use super::Outgoing;

/// One of the three streams of OTLP, each with an address of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Spans.
    Traces,
    /// Log records.
    Logs,
    /// Metrics, which do not wait: the next ones replace them.
    Metrics,
}

// === impl Signal ===

impl Signal {
    /// Every signal.
    pub const ALL: [Self; 3] = [Self::Traces, Self::Logs, Self::Metrics];

    /// Its word in labels, and in the paths of OTLP over HTTP.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Logs => "logs",
            Self::Metrics => "metrics",
        }
    }
}

// === impl Outgoing ===

impl Outgoing {
    /// With what it is sent.
    pub const fn signal(&self) -> Signal {
        match self {
            Self::Span(_) => Signal::Traces,
            Self::Log(_) => Signal::Logs,
        }
    }
}
