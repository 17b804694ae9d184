//! One pushed item becomes one [`Event`]. No clock: `observed` is given. No allocation that grows with the item
//! but for texts with escapes, so that a line costs about a microsecond.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::Options;
use super::cloudevents::CloudEnvelope;
use super::facts::Notes;
use super::facts::Reading;
use super::names::Admission;
use super::names::Admitted;
use super::names::Interner;
use super::refuse::Reason;
use super::scan;
use super::wire::Data;
use super::wire::Envelope;
use super::wire::Field;
use super::wire::Scalar;
use crate::event::Counting;
use crate::event::Event;
use crate::event::Fact;
use crate::event::Id;
use crate::event::Name;
use crate::event::Reducer;
use crate::event::SCHEMA_VERSION;
use crate::event::SessionId;
use crate::event::SourceId;
use crate::event::Timestamp;
use crate::event::TraceContext;
use crate::sources::arguments::Memory;
use crate::telemetry::Telemetry;

/// Sources remembered by one decoder before it asks again.
const MAX_KNOWN: usize = 32;

/// Decodes the items of one request or stream.
pub struct Decoder {
    reducer: Arc<Reducer>,
    telemetry: Arc<Telemetry>,
    admission: Arc<Admission>,
    allow_built_in: bool,
    max_line: usize,
    names: Interner,
    memory: Memory,
    known: Vec<(Box<str>, Admitted)>,
    /// The trace of who sends, for items that announce a run and name none themselves.
    pub caller: Option<TraceContext>,
    /// Items that had no `id`, so that a repetition of them counts again.
    pub without_id: u64,
}

// === impl Decoder ===

impl Decoder {
    /// A decoder that shares `admission` with others.
    pub fn new(
        reducer: Arc<Reducer>,
        telemetry: Arc<Telemetry>,
        admission: Arc<Admission>,
        options: &Options,
    ) -> Self {
        Self {
            reducer,
            telemetry,
            admission,
            allow_built_in: options.allow_builtin,
            max_line: options.max_line,
            names: Interner::new(),
            memory: Memory::default(),
            known: Vec::new(),
            caller: None,
            without_id: 0,
        }
    }

    /// Decodes one item in the schema's own form.
    ///
    /// # Errors
    /// The item's [`Reason`]; the items after it are not affected.
    pub fn item(&mut self, item: &[u8], observed: Timestamp) -> Result<Event, Reason> {
        let text = self.object(item)?;
        let envelope = match scan::envelope(text) {
            Some(plain) => plain,
            None => serde_json::from_str(text).map_err(why)?,
        };
        if envelope.schema_version.text()?.is_some_and(|version| version != SCHEMA_VERSION) {
            return Err(Reason::BadSchemaVersion);
        }
        self.event(&envelope, observed)
    }

    /// Decodes one structured CloudEvent.
    ///
    /// # Errors
    /// As [`Self::item`].
    pub fn cloud_event(&mut self, item: &[u8], observed: Timestamp) -> Result<Event, Reason> {
        let cloud: CloudEnvelope<'_> = serde_json::from_str(self.object(item)?).map_err(why)?;
        self.event(&cloud.into_envelope()?, observed)
    }

    /// Decodes a CloudEvent whose envelope came in headers.
    pub(super) fn binary(
        &mut self,
        cloud: CloudEnvelope<'_>,
        data: &[u8],
        observed: Timestamp,
    ) -> Result<Event, Reason> {
        let mut envelope = cloud.into_envelope()?;
        if !data.is_empty() {
            envelope.data = Some(serde_json::from_str(self.object(data)?).map_err(why)?);
        }
        self.event(&envelope, observed)
    }

    /// The item as text, if it can be an object at all: serde would also take a list for one.
    fn object<'a>(&self, item: &'a [u8]) -> Result<&'a str, Reason> {
        if item.len() > self.max_line {
            return Err(Reason::LineTooLong);
        }
        let text = std::str::from_utf8(item).map_err(|_| Reason::MalformedJson)?;
        match text.trim_ascii_start().as_bytes().first() {
            Some(b'{') => Ok(text),
            _ if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => Err(Reason::BadShape),
            _ => Err(Reason::MalformedJson),
        }
    }

    fn event(&mut self, envelope: &Envelope<'_>, observed: Timestamp) -> Result<Event, Reason> {
        let given_source = envelope.source.text()?.ok_or(Reason::BadSource)?;
        let (source, folded) = self.source(given_source)?;
        let session = envelope.session_id.text()?.ok_or(Reason::MissingSession)?;
        let kind = envelope.kind.text()?.ok_or(Reason::MissingType)?;
        let mut time = envelope.time.moment()?;
        let id = envelope.id.text()?;
        let project = envelope.project_id.text()?;
        let (parent, request) = (envelope.parent_session_id.text()?, envelope.request_id.text()?);

        let given = self.trace_of(&source, &envelope.trace_parent);

        let reducer = &*self.reducer;
        let notes = Notes::default();
        let mut reading = Reading { reducer, names: &mut self.names, memory: &mut self.memory, notes };
        let none = Data::default();
        let data = envelope.data.as_ref().unwrap_or(&none);
        let mut fact = reading.fact(kind, data)?;
        let notes = reading.notes;
        // The records of orchestrators say themselves when they were written, which makes each of them one of a kind.
        let recorded_at = if data.event.is_some() { data.moment(Field::At)? } else { None };
        time = time.or(recorded_at);
        if time.is_none() {
            match &mut fact {
                Some(Fact::Spec(update)) => update.received = true,
                Some(Fact::AgentWork(work)) => work.received = true,
                _ => {}
            }
        }

        // Two sources that share `other` keep their ids apart, so the given name goes into the key.
        let key = id.map(|id| {
            let parts = [given_source.as_bytes(), session.as_bytes(), id.as_bytes()];
            reducer.hash_all(&parts)
        });
        let key = key.or_else(|| {
            let at = recorded_at?.as_millis().to_le_bytes();
            let spec = data.text(Field::SpecName).ok().flatten().unwrap_or_default();
            let (event, inner) = (data.event.map_or("", RawValue::get), data.inner.map_or("", RawValue::get));
            let record = [kind, spec, event, inner].map(str::as_bytes);
            let whose = [given_source.as_bytes(), session.as_bytes(), &at];
            Some(reducer.hash_all(&[&whose[..], &record[..]].concat()))
        });
        let project = match project {
            // A path is cut to its last component before anything is remembered of it.
            Some(path) if path.contains(['/', '\\']) => reducer.project_of(path).map(|n| Name::from(&*n)),
            Some(name) => Some(Name(self.names.get(name, reducer))),
            None => None,
        };
        let event = Event {
            id: key,
            time: Some(time.unwrap_or(observed)),
            observed,
            session: SessionId(self.names.get(session, reducer)),
            parent: parent.map(|text| SessionId(self.names.get(text, reducer))),
            project,
            request: request.map(|text| Id(self.names.get(text, reducer))),
            trace: given.or_else(|| self.caller.filter(|_| fact.as_ref().is_some_and(is_asked_for))),
            counting: Counting::Always,
            fact: fact.unwrap_or(Fact::Unknown),
            source,
        };
        if matches!(event.fact, Fact::Unknown) {
            self.telemetry.unknown_record(event.source.as_str(), kind);
        }
        if let Some(word) = notes.unknown {
            self.telemetry.unknown_record(event.source.as_str(), word);
        }
        if notes.dropped > 0 {
            let labels = [event.source.as_str(), "number"];
            self.telemetry.decode_errors.with_label_values(&labels).inc_by(notes.dropped);
        }
        if folded {
            self.telemetry.label_overflow.with_label_values(&["source"]).inc();
        }
        self.without_id += u64::from(key.is_none());
        Ok(event)
    }

    /// The item's own trace. One that is none is counted, and the item is taken without it.
    fn trace_of(&self, source: &SourceId, given: &Scalar<'_>) -> Option<TraceContext> {
        let context = match given {
            Scalar::Absent => return None,
            Scalar::Text(text) => TraceContext::parse(text),
            _ => None,
        };
        if context.is_none() {
            self.bad_trace(source.as_str());
        }
        context
    }

    /// Counts a `traceparent` that is none.
    pub(super) fn bad_trace(&self, source: &str) {
        self.telemetry.decode_errors.with_label_values(&[source, "traceparent"]).inc();
    }

    fn source(&mut self, name: &str) -> Result<(SourceId, bool), Reason> {
        if let Some((_, known)) = self.known.iter().find(|(known, _)| **known == *name) {
            return Ok((known.source.clone(), known.folded));
        }
        let admitted = self.admission.admit(name, self.allow_built_in)?;
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.push((Box::from(name), admitted.clone()));
        Ok((admitted.source, admitted.folded))
    }
}

/// Whether who sends it may be who asked for what it tells of: anything later is sent by whoever reports.
fn is_asked_for(fact: &Fact) -> bool {
    match fact {
        Fact::SessionQueued(_)
        | Fact::SessionStarted(_)
        | Fact::SessionResumed(_)
        | Fact::TurnStarted { .. }
        | Fact::Prompt { .. } => true,
        Fact::Orchestration(update) => update.begins || update.started.is_some(),
        _ => false,
    }
}

/// Tells text that is not JSON from JSON of another shape.
fn why(error: serde_json::Error) -> Reason {
    match error.classify() {
        serde_json::error::Category::Data => Reason::BadShape,
        _ => Reason::MalformedJson,
    }
}
