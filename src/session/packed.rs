//! An event of a known session in few bytes, for holding many of them.

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::facts::Facts;
use crate::event::{Counting, Event, Fact, Id, Name, SessionId, Timestamp, TraceContext};

/// The bytes of an event, without the names of its source and session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packed(Box<[u8]>);

#[derive(Serialize)]
struct PartsRef<'a>(
    Option<u64>,
    Option<Timestamp>,
    Timestamp,
    &'a Option<SessionId>,
    &'a Option<Name>,
    &'a Option<Id>,
    Option<TraceContext>,
    Counting,
    &'a Fact,
);

#[derive(Deserialize)]
struct Parts(
    Option<u64>,
    Option<Timestamp>,
    Timestamp,
    Option<SessionId>,
    Option<Name>,
    Option<Id>,
    Option<TraceContext>,
    Counting,
    Fact,
);

// === impl Packed ===

impl Packed {
    /// Packs an event.
    pub(super) fn of(event: &Event) -> Self {
        let parts = PartsRef(
            event.id,
            event.time,
            event.observed,
            &event.parent,
            &event.project,
            &event.request,
            event.trace,
            event.counting,
            &event.fact,
        );
        let bytes = postcard::to_allocvec(&parts).expect("events are made of types that always serialise");
        Self(bytes.into_boxed_slice())
    }

    /// The event again; the session it belongs to lends its names. `None` if the bytes are damaged.
    pub(super) fn unpack(&self, session: &Facts) -> Option<Event> {
        let Parts(id, time, observed, parent, project, request, trace, counting, fact) =
            postcard::from_bytes(&self.0).ok()?;
        let (source, session) = (session.source.clone(), session.session.clone());
        Some(Event { id, time, observed, source, session, parent, project, request, trace, counting, fact })
    }
}

impl Serialize for Packed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Packed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl<'de> Visitor<'de> for Bytes {
            type Value = Packed;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes of an event")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Packed, E> {
                Ok(Packed(bytes.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Packed, A::Error> {
                Err(A::Error::custom("bytes of an event are one value"))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{ActivityClass, SourceId};

    #[test]
    fn what_is_packed_unpacks() {
        let (source, session) = (SourceId::from("push"), SessionId::from("s"));
        let fact = Fact::Activity { class: ActivityClass::Work, message: true };
        let mut event = Event::new(&source, &session, Timestamp::from_millis(7), fact);
        event.project = Some(Name::from("shop"));
        event.id = Some(3);
        event.trace = TraceContext::of_trace("4bf92f3577b34da6a3ce929d0e0e4736");
        let facts = Facts::new(source, session, Timestamp::from_millis(1));
        let packed = Packed::of(&event);
        assert_eq!(packed.unpack(&facts), Some(event));
        let stored = postcard::to_allocvec(&packed).unwrap();
        assert_eq!(postcard::from_bytes::<Packed>(&stored), Ok(packed));
    }

    #[test]
    fn damage_is_noticed() {
        let facts = Facts::new(SourceId::from("push"), SessionId::from("s"), Timestamp::from_millis(1));
        assert_eq!(Packed(Box::from([255u8; 3])).unpack(&facts), None);
    }
}
