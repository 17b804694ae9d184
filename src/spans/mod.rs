//! Spans as data: what is over in a session becomes a [`Span`] with ids that follow from source, session and run, so that a
//! restart makes the same span again and nothing else. What is sent, and how, is said elsewhere: here is neither clock
//! nor network.

mod build;
mod events;
mod exemplars;
mod names;
mod parts;
mod run;
mod signal;
mod text;
mod told;
mod tracer;

use serde::{Deserialize, Serialize};

pub use self::names::{Key, SCHEMA_URL, SEMCONV_VERSION};
pub use self::signal::Signal;
pub use self::text::Text;
pub use self::tracer::Tracer;
use crate::event::reduce::{StablePrefix, stable_hash};
use crate::event::{Id, SessionId, SourceId, Step, Timestamp};

/// Events of one span; more are counted as dropped.
pub const MAX_EVENTS: usize = 128;
/// Links of one span.
pub const MAX_LINKS: usize = 16;

/// Names a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TraceId(pub [u8; 16]);

/// Names a span within its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SpanId(pub [u8; 8]);

/// Names the spans of one session.
#[derive(Clone, Copy, Debug)]
struct SpanIds(StablePrefix);

/// A span, wherever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Context {
    /// Its trace.
    pub trace: TraceId,
    /// Itself.
    pub span: SpanId,
}

/// One finished span. All are of kind INTERNAL.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Its ids.
    pub context: Context,
    /// The span it belongs to.
    pub parent: Option<SpanId>,
    /// What it is called.
    pub name: String,
    /// When it began.
    pub start: Timestamp,
    /// When it ended.
    pub end: Timestamp,
    /// What is known of it, by the names of [`Key`].
    pub attributes: Vec<(Key, Value)>,
    /// What happened in it, in order; at most [`MAX_EVENTS`].
    pub events: Vec<SpanEvent>,
    /// Events that were left out.
    pub dropped_events: u32,
    /// Spans elsewhere that it has to do with.
    pub links: Vec<Link>,
    /// Whether it failed.
    pub failed: bool,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Value {
    /// Text that may be shown.
    Text(Text),
    /// A number of things.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// Yes or no.
    Bool(bool),
    /// Words.
    Texts(Vec<String>),
}

/// Something that happened at a moment of a span.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpanEvent {
    /// When.
    pub time: Timestamp,
    /// What.
    pub name: Text,
    /// What is known of it.
    pub attributes: Vec<(Key, Value)>,
}

/// A span elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Which.
    pub to: Context,
    /// What it has to do with this one: `previous_run`, `forked_from`, `caller`.
    pub relation: Text,
}

/// A log record: a step that began, or an event of high level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogRecord {
    /// The event's name.
    pub name: String,
    /// When it happened.
    pub time: Timestamp,
    /// When it was seen.
    pub observed: Timestamp,
    /// The span it belongs to, which may be still to come.
    pub context: Option<Context>,
    /// What is known of it.
    pub attributes: Vec<(Key, Value)>,
    /// Tells it from all others, however often it is sent.
    pub id: u64,
    /// Whether somebody should look.
    pub warning: bool,
}

/// What waits to be sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outgoing {
    /// A finished span.
    Span(Span),
    /// A log record.
    Log(LogRecord),
}

// === impl TraceId ===

impl TraceId {
    /// From what names the run; never all zeroes, which would be no id.
    pub fn of(what: impl std::hash::Hash) -> Self {
        let high = stable_hash(("trace", &what)).to_be_bytes();
        let low = stable_hash(("trace, low", &what)).max(1).to_be_bytes();
        let mut id = [0; 16];
        id[..8].copy_from_slice(&high);
        id[8..].copy_from_slice(&low);
        Self(id)
    }
}

impl std::fmt::Display for TraceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

// === impl SpanId ===

impl SpanId {
    /// From what names the span; never all zeroes, which would be no id.
    pub fn of(what: impl std::hash::Hash) -> Self {
        Self::from_hash(stable_hash(("span", what)))
    }

    const fn from_hash(hash: u64) -> Self {
        Self(if hash == 0 { 1u64 } else { hash }.to_be_bytes())
    }
}

impl std::fmt::Display for SpanId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

// === impl SpanIds ===

impl SpanIds {
    /// Those of a session, each as [`SpanId::of`] has it of source, session and what follows.
    fn of(source: &SourceId, session: &SessionId) -> Self {
        Self(StablePrefix::of(("span", source.as_str(), session.as_str())))
    }

    fn id(self, what: impl std::hash::Hash) -> SpanId {
        SpanId::from_hash(self.0.and(what))
    }

    fn step(self, step: &Step, since: Timestamp) -> SpanId {
        self.id(("step", &step.id, step.entry.map_or(since.as_millis(), i64::from)))
    }

    /// A step in a run that it was not entered in.
    fn step_on(self, step: &Step, since: Timestamp) -> SpanId {
        self.id(("step goes on", &step.id, since.as_millis()))
    }

    fn call(self, call: &Id) -> SpanId {
        self.id(("call", call))
    }

    fn wait(self, action: &Id) -> SpanId {
        self.id(("wait", action))
    }

    fn hold(self, since: Timestamp) -> SpanId {
        self.id(("hold", since.as_millis()))
    }
}

// === impl Value ===

impl<T: Into<Text>> From<T> for Value {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
}

impl From<i64> for Value {
    fn from(n: i64) -> Self {
        Self::Int(n)
    }
}

impl From<u64> for Value {
    fn from(n: u64) -> Self {
        Self::Int(i64::try_from(n).unwrap_or(i64::MAX))
    }
}

impl From<u32> for Value {
    fn from(n: u32) -> Self {
        Self::Int(i64::from(n))
    }
}

impl From<bool> for Value {
    fn from(yes: bool) -> Self {
        Self::Bool(yes)
    }
}
