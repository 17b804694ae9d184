//! The only place that knows metric names. A [`Family`] is one record: name, help, type, labels, stability, and a
//! pure function from what is known to samples. The exposition, METRICS.md, tests and later OTLP walk [`all`].
//!
//! [`session`], with `signals`, [`aggregate`] and [`orchestration`] hold the tables. Metrics about the exporter itself live in the registry of
//! [`crate::telemetry`]; here they are only listed. How a sample looks on the wire is none of this room's business.

pub mod aggregate;
pub mod orchestration;
pub mod session;
mod signals;

use prometheus::proto::MetricType;

pub use self::aggregate::Totals;
pub use self::orchestration::OrchestrationView;
pub use self::session::SessionView;
use crate::event::Timestamp;
use crate::session::counts::Histogram;
use crate::session::exemplars::Newest;

/// Labels of every per-session series; families list only what they add.
pub const IDENTITY: [&str; 3] = ["source", "project", "session"];

/// One metric.
#[derive(Debug)]
pub struct Family {
    /// Full name, as it is queried.
    pub name: &'static str,
    /// How its values behave.
    pub kind: Kind,
    /// One sentence: what is counted, and from which fact.
    pub help: &'static str,
    /// Labels, those of [`IDENTITY`] left out where it is about a session.
    pub labels: &'static [&'static str],
    /// Whether its name can be relied on.
    pub stability: Stability,
    /// From what is known to samples.
    pub rows: Rows,
}

/// How the values of a family behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only rises; its name ends in `_total`.
    Counter,
    /// Counts durations by bucket.
    Histogram,
}

/// Whether a name can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// May be renamed until it is declared stable.
    Experimental,
    /// Is not renamed; removed only after two minor releases of deprecation.
    Stable,
}

/// What a family is computed from.
#[derive(Clone, Copy, Debug)]
pub enum Rows {
    /// From one session, for each that has series and is in this part of its life.
    Session(Life, fn(&SessionView<'_>, &mut dyn SessionSink)),
    /// From the sums over all sessions.
    Totals(fn(&Totals<'_>, &mut dyn Sink)),
    /// From one orchestration, for each that has series.
    Orchestration(fn(&OrchestrationView<'_>, &mut dyn Sink)),
}

/// The part of a session's life in which a family has series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// As long as the session has series at all.
    Always,
    /// Until it ended.
    Live,
    /// Until it ended, and only where every signal is asked for.
    LiveInAll,
    /// Since it ended.
    Over,
}

/// A value in its own unit, so that integers and times are written without rounding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A number of things.
    Count(u64),
    /// Milliseconds, shown in seconds.
    Millis(i64),
    /// Anything else.
    Float(f64),
}

/// Takes the samples of one family about one session; the identity labels are the sink's business.
pub trait SessionSink {
    /// One sample.
    fn sample(&mut self, labels: &[(&str, &str)], value: Value);
    /// One sample for each word, 1 for the one that holds and 0 for the others. A family has one such set of words.
    fn one_hot(&mut self, label: &'static str, words: &[&'static str], holds: usize);
}

/// Takes the samples of one family over all sessions.
pub trait Sink {
    /// One sample.
    fn sample(&mut self, labels: &[(&str, &str)], value: Value);
    /// The buckets, sum and count of one histogram, with examples where there are any.
    fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram, newest: Option<&Newest>);
}

// === impl Kind ===

impl Kind {
    /// The word of the exposition formats.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }

    /// The kind of a family of the registry, which holds no other.
    pub fn of_registry(kind: MetricType) -> Self {
        match kind {
            MetricType::COUNTER => Self::Counter,
            MetricType::HISTOGRAM => Self::Histogram,
            _ => Self::Gauge,
        }
    }
}

// === impl Stability ===

impl Stability {
    /// The word of the documentation.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Experimental => "experimental",
            Self::Stable => "stable",
        }
    }
}

// === impl Life ===

impl Life {
    /// Whether a session belongs to it that is over or not; `all`: every signal is asked for.
    pub const fn includes(self, over: bool, all: bool) -> bool {
        match self {
            Self::Always => true,
            Self::Live => !over,
            Self::LiveInAll => !over && all,
            Self::Over => over,
        }
    }
}

// === impl Value ===

impl Value {
    /// Yes or no.
    pub const fn flag(yes: bool) -> Self {
        Self::Count(yes as u64)
    }

    /// A moment, as Unix time.
    pub const fn moment(time: Timestamp) -> Self {
        Self::Millis(time.as_millis())
    }
}

/// Every family that is written from a snapshot, in the order of the exposition.
pub fn all() -> impl Iterator<Item = &'static Family> {
    session::FAMILIES.iter().chain(aggregate::FAMILIES).chain(orchestration::FAMILIES)
}
