//! What travels from sources to the owner task: events with the cursors that say how far they were read, and the
//! way back for an acknowledgement. Everything in one batch becomes durable in one transaction.

use super::{Event, Name, SourceId, Timestamp};

/// Called once, after the batch is durable or was refused.
pub type Reply = Box<dyn FnOnce(Result<Receipt, Refused>) + Send>;

/// Events that become durable together.
#[derive(Default)]
pub struct Batch {
    /// The events, in the order they were read.
    pub events: Vec<Event>,
    /// Reading positions that are true once the events are durable.
    pub cursors: Vec<Cursor>,
    /// News about the source itself; not durable.
    pub health: Option<SourceHealth>,
    /// Whom to tell.
    pub reply: Option<Reply>,
}

/// A reading position; the store keeps it without knowing what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Keyed hash of what is read (a path never goes to disk).
    pub key: u64,
    /// Position and decoder checkpoint, at most 64 KiB; `None` forgets it.
    pub value: Option<Vec<u8>>,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Events that were new.
    pub accepted: u64,
    /// Events that had been counted before.
    pub duplicate: u64,
}

/// Why a batch was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The store cannot commit; its ids stay pending, a retry is safe.
    #[error("the store cannot commit")]
    Unavailable,
}

/// Whether a source's endpoint or root can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceHealth {
    /// The source.
    pub source: SourceId,
    /// Endpoint or root, in a form that may be shown (`default`, `127.0.0.1:4096`).
    pub endpoint: Name,
    /// Whether it could be read at the last try.
    pub up: bool,
    /// Since when this holds.
    pub since: Timestamp,
    /// Whether the first scan or connection is behind us.
    pub scanned: bool,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("events", &self.events.len())
            .field("cursors", &self.cursors.len())
            .field("health", &self.health)
            .field("reply", &self.reply.is_some())
            .finish()
    }
}
