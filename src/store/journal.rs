//! The events of one commit as bytes: reduced, content-free, with session names written once per blob.

use serde::{Deserialize, Serialize};

use crate::event::{Counting, Event, Fact, Id, Name, SessionId, SourceId, Timestamp, TraceContext};

/// Collects the events of one commit.
#[derive(Debug, Default)]
pub struct Writer {
    names: Vec<(SourceId, SessionId)>,
    /// Where a slot's name stands in `names`, by slot.
    places: hashbrown::HashMap<usize, u32>,
    body: Vec<u8>,
    events: u32,
}

/// A blob cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("journal blob is damaged")]
pub struct Damaged;

#[derive(Serialize)]
struct EntryRef<'a> {
    name: u32,
    id: Option<u64>,
    time: Option<Timestamp>,
    observed: Timestamp,
    parent: &'a Option<SessionId>,
    project: &'a Option<Name>,
    request: &'a Option<Id>,
    trace: Option<TraceContext>,
    counting: Counting,
    fact: &'a Fact,
}

#[derive(Deserialize)]
struct Entry {
    name: u32,
    id: Option<u64>,
    time: Option<Timestamp>,
    observed: Timestamp,
    parent: Option<SessionId>,
    project: Option<Name>,
    request: Option<Id>,
    trace: Option<TraceContext>,
    counting: Counting,
    fact: Fact,
}

// === impl Writer ===

impl Writer {
    /// Appends an event of the session in this slot.
    pub fn push(&mut self, slot: usize, event: &Event) {
        let next = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        let name = *self.places.entry(slot).or_insert_with(|| {
            self.names.push((event.source.clone(), event.session.clone()));
            next
        });
        let entry = EntryRef {
            name,
            id: event.id,
            time: event.time,
            observed: event.observed,
            parent: &event.parent,
            project: &event.project,
            request: &event.request,
            trace: event.trace,
            counting: event.counting,
            fact: &event.fact,
        };
        self.body = postcard::to_extend(&entry, std::mem::take(&mut self.body))
            .expect("events are made of types that always serialise, and a vector takes any length");
        self.events += 1;
    }

    /// Forgets whose slot this is: its session has left, another one may get the number.
    pub fn forget(&mut self, slot: usize) {
        self.places.remove(&slot);
    }

    /// Number of events so far.
    pub const fn len(&self) -> usize {
        self.events as usize
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.events == 0
    }

    /// Bytes so far.
    pub fn bytes(&self) -> usize {
        self.body.len()
    }

    /// The blob; the writer is empty afterwards.
    pub fn take(&mut self) -> Vec<u8> {
        let head = postcard::to_allocvec(&(self.events, &self.names)).expect("names always serialise");
        let mut blob = head;
        blob.append(&mut self.body);
        self.names.clear();
        self.places.clear();
        self.events = 0;
        blob
    }
}

/// Reads a blob back.
///
/// # Errors
/// The blob is not one of ours.
pub fn read(blob: &[u8]) -> Result<Vec<Event>, Damaged> {
    type Head = (u32, Vec<(SourceId, SessionId)>);
    let ((count, names), mut rest) = postcard::take_from_bytes::<Head>(blob).map_err(|_| Damaged)?;
    let mut events = Vec::new();
    for _ in 0..count {
        let (entry, after) = postcard::take_from_bytes::<Entry>(rest).map_err(|_| Damaged)?;
        rest = after;
        let (source, session) = names.get(entry.name as usize).ok_or(Damaged)?;
        events.push(Event {
            id: entry.id,
            time: entry.time,
            observed: entry.observed,
            source: source.clone(),
            session: session.clone(),
            parent: entry.parent,
            project: entry.project,
            request: entry.request,
            trace: entry.trace,
            counting: entry.counting,
            fact: entry.fact,
        });
    }
    if rest.is_empty() { Ok(events) } else { Err(Damaged) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{ActivityClass, SessionInfo};

    #[test]
    fn a_blob_reads_back() {
        let mut writer = Writer::default();
        let mut events = Vec::new();
        for i in 0..100u64 {
            let session = SessionId::from(format!("s{}", i % 7).as_str());
            let fact = if i % 3 == 0 {
                Fact::SessionStarted(SessionInfo { agent: Some(Name::from("a")), ..SessionInfo::default() })
            } else {
                Fact::Activity { class: ActivityClass::Work, message: i % 2 == 0 }
            };
            let mut event = Event::new(&SourceId::from("push"), &session, Timestamp::from_millis(5), fact);
            event.id = Some(i);
            event.time = (i % 4 != 0).then(|| Timestamp::from_millis(i as i64));
            event.trace = TraceContext::of_trace(&format!("{i:032x}"));
            writer.push((i % 7) as usize, &event);
            events.push(event);
        }
        let blob = writer.take();
        assert_eq!(read(&blob), Ok(events));
        assert!(writer.is_empty());
        assert_eq!(read(&blob[..blob.len() - 1]), Err(Damaged));
    }

    #[test]
    fn a_slot_that_got_another_session_is_named_anew() {
        let mut writer = Writer::default();
        let of = |name| {
            Event::new(
                &SourceId::from("push"),
                &SessionId::from(name),
                Timestamp::from_millis(5),
                Fact::Unknown,
            )
        };
        writer.push(3, &of("first"));
        writer.forget(3);
        writer.push(3, &of("second"));
        assert_eq!(read(&writer.take()), Ok(vec![of("first"), of("second")]));
    }
}
