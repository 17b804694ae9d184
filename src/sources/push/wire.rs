//! The wire format as it is read: the envelope and the known fields of `data`, borrowed from the line. What the
//! fields mean is decided in `facts`; here a value of the wrong kind is only noted, so that a field that the
//! event's type does not use can never spoil the event.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::refuse::Reason;
use crate::event::Timestamp;

/// Numbers above this are no counts: sums of them must not overflow, and JSON cannot carry them exactly.
pub(super) const MAX_NUMBER: f64 = 9_007_199_254_740_992.0;
/// More fields than there are known ones are repetitions.
const MAX_FIELDS: usize = 64;

/// The envelope of one event.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Envelope<'a> {
    #[serde(borrow)]
    pub(super) schema_version: Scalar<'a>,
    #[serde(borrow)]
    pub(super) id: Scalar<'a>,
    #[serde(borrow)]
    pub(super) time: Scalar<'a>,
    #[serde(borrow)]
    pub(super) source: Scalar<'a>,
    #[serde(borrow)]
    pub(super) session_id: Scalar<'a>,
    #[serde(borrow)]
    pub(super) parent_session_id: Scalar<'a>,
    #[serde(borrow)]
    pub(super) project_id: Scalar<'a>,
    #[serde(borrow)]
    pub(super) request_id: Scalar<'a>,
    #[serde(borrow, rename = "traceparent")]
    pub(super) trace_parent: Scalar<'a>,
    #[serde(borrow, rename = "type")]
    pub(super) kind: Scalar<'a>,
    #[serde(borrow)]
    pub(super) data: Option<Data<'a>>,
}

/// A value that is no list or object, of whatever kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Scalar<'a> {
    /// Absent or null.
    #[default]
    Absent,
    /// Text.
    Text(Cow<'a, str>),
    /// A number.
    Number(f64),
    /// True or false.
    Flag(bool),
    /// A list or an object.
    Nested,
}

/// The known fields of `data` that are present, in the order they were written: a handful of some eighty, so
/// that looking one up by walking the list is cheaper than a struct of all.
#[derive(Debug, Default)]
pub(super) struct Data<'a> {
    fields: Vec<(Field, Scalar<'a>)>,
    /// `args`, unparsed.
    pub(super) args: Option<&'a RawValue>,
    /// `readRange`, unparsed.
    pub(super) read_range: Option<&'a RawValue>,
    /// `event` of an orchestrator's or an agent's own record, unparsed.
    pub(super) event: Option<&'a RawValue>,
    /// `data` of such a record, unparsed.
    pub(super) inner: Option<&'a RawValue>,
}

/// The known fields of `data`; the schema documents them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
pub(super) enum Field {
    CallId,
    Tool,
    Outcome,
    Args,
    Target,
    ToolClass,
    ExitCode,
    DiffLines,
    OutputDigest,
    Error,
    ReadRange,
    Background,
    Asks,
    Nested,
    Kind,
    Evidence,
    Class,
    Message,
    Model,
    Provider,
    Input,
    Output,
    CacheRead,
    CacheWrite,
    CostUsd,
    ResponseId,
    ContextUsed,
    Trigger,
    ErrorClass,
    ResetAt,
    Denied,
    StepId,
    Name,
    Index,
    Total,
    Entry,
    Agent,
    AgentVersion,
    Originator,
    Mode,
    Phase,
    ReadOnly,
    Interactive,
    Url,
    ForkedFrom,
    Workflow,
    Pending,
    InProgress,
    Completed,
    Passed,
    Failed,
    TaskId,
    Subject,
    ActionId,
    Certainty,
    Resolution,
    Queued,
    Reason,
    Attempt,
    DelayMs,
    Until,
    Recoverable,
    Requester,
    Detector,
    Layer,
    State,
    StartedAt,
    EndedAt,
    Batch,
    Batches,
    Spec,
    Status,
    RetryCount,
    LaunchHoldMs,
    BudgetPerMinute,
    WindowMs,
    Used,
    HoldMs,
    Adaptive,
    Max,
    Effective,
    Floor,
    At,
    SpecName,
    Event,
    Data,
    #[serde(other)]
    Unknown,
}

// === impl Scalar ===

impl<'a> Scalar<'a> {
    /// Text that is there and not empty.
    pub(super) fn text(&self) -> Result<Option<&str>, Reason> {
        match self {
            Self::Absent => Ok(None),
            Self::Text(text) => Ok(Some(&**text).filter(|t| !t.is_empty())),
            _ => Err(Reason::BadValue),
        }
    }

    /// A moment: RFC 3339 or epoch milliseconds.
    pub(super) fn moment(&self) -> Result<Option<Timestamp>, Reason> {
        match self {
            Self::Absent => Ok(None),
            Self::Text(text) => Ok(Some(Timestamp::parse(text)?)),
            Self::Number(n) => Ok(Some(Timestamp::from_number(*n)?)),
            _ => Err(Reason::BadTime),
        }
    }

    fn number(&self) -> Result<Option<f64>, Reason> {
        match self {
            Self::Absent => Ok(None),
            Self::Number(n) => Ok(Some(*n).filter(|n| n.is_finite() && n.abs() <= MAX_NUMBER)),
            _ => Err(Reason::BadValue),
        }
    }

    fn flag(&self) -> Result<Option<bool>, Reason> {
        match self {
            Self::Absent => Ok(None),
            Self::Flag(flag) => Ok(Some(*flag)),
            _ => Err(Reason::BadValue),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Scalar<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_borrowed_str<E>(self, v: &'de str) -> Result<Self::Value, E> {
        Ok(Scalar::Text(Cow::Borrowed(v)))
    }

    fn visit_str<E>(self, v: &str) -> Result<Self::Value, E> {
        Ok(Scalar::Text(Cow::Owned(v.to_owned())))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Self::Value, E> {
        Ok(Scalar::Number(v as f64))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Self::Value, E> {
        Ok(Scalar::Number(v as f64))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Self::Value, E> {
        Ok(Scalar::Number(v))
    }

    fn visit_bool<E>(self, v: bool) -> Result<Self::Value, E> {
        Ok(Scalar::Flag(v))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Scalar::Absent)
    }

    // Ignoring is done by serde_json without recursion, so depth costs no stack here.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Nested)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::Nested)
    }
}

// === impl Data ===

impl<'a> Data<'a> {
    /// Without fields, but with room for some.
    pub(super) fn new() -> Self {
        Data { fields: Vec::with_capacity(8), ..Data::default() }
    }

    /// Adds a field that was read.
    pub(super) fn push(&mut self, field: Field, value: Scalar<'a>) {
        if self.fields.len() < MAX_FIELDS {
            self.fields.push((field, value));
        }
    }

    fn get(&self, field: Field) -> Option<&Scalar<'_>> {
        self.fields.iter().find(|(f, _)| *f == field).map(|(_, value)| value)
    }

    /// Whether it is there and not null.
    pub(super) fn is_there(&self, field: Field) -> bool {
        self.get(field).is_some_and(|value| *value != Scalar::Absent)
    }

    /// Text, where it is there and not empty.
    pub(super) fn text(&self, field: Field) -> Result<Option<&str>, Reason> {
        self.get(field).map_or(Ok(None), Scalar::text)
    }

    /// A number that is not negative; others are dropped.
    pub(super) fn number(&self, field: Field) -> Result<Option<f64>, Reason> {
        Ok(self.signed(field)?.filter(|n| *n >= 0.0))
    }

    /// A number of either sign.
    pub(super) fn signed(&self, field: Field) -> Result<Option<f64>, Reason> {
        self.get(field).map_or(Ok(None), Scalar::number)
    }

    /// A count of 64 bits.
    pub(super) fn count(&self, field: Field) -> Result<Option<u64>, Reason> {
        Ok(self.number(field)?.map(|n| n as u64))
    }

    /// A count of 32 bits; larger ones are its maximum.
    pub(super) fn small(&self, field: Field) -> Result<Option<u32>, Reason> {
        Ok(self.number(field)?.map(|n| n as u32))
    }

    /// True or false.
    pub(super) fn flag(&self, field: Field) -> Result<Option<bool>, Reason> {
        self.get(field).map_or(Ok(None), Scalar::flag)
    }

    /// A moment.
    pub(super) fn moment(&self, field: Field) -> Result<Option<Timestamp>, Reason> {
        self.get(field).map_or(Ok(None), Scalar::moment)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Data<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct DataVisitor;

        impl<'de> Visitor<'de> for DataVisitor {
            type Value = Data<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut data = Data::new();
                while let Some(field) = map.next_key::<Field>()? {
                    match field {
                        Field::Args => data.args = map.next_value()?,
                        Field::ReadRange => data.read_range = map.next_value()?,
                        Field::Event => data.event = map.next_value()?,
                        Field::Data => data.inner = map.next_value()?,
                        Field::Unknown => {
                            map.next_value::<IgnoredAny>()?;
                        }
                        _ => data.push(field, map.next_value()?),
                    }
                }
                Ok(data)
            }
        }

        d.deserialize_map(DataVisitor)
    }
}
