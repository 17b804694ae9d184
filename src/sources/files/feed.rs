//! Gathers events and cursors into batches and sends them. Events and the cursor that says they were read always
//! travel together.

use std::collections::HashMap;

use tokio::sync::mpsc;

use crate::event::{Batch, Cursor, Event, SourceHealth};

/// Events of a batch, about: a batch ends behind the record that reaches it.
const MAX_EVENTS: usize = 512;
/// Input of a batch, about, in bytes.
pub(super) const MAX_INPUT: u64 = 1 << 20;

/// Batches on their way out.
pub(super) struct Feed {
    out: mpsc::Sender<Batch>,
    pub(super) events: Vec<Event>,
    cursors: HashMap<u64, Option<Vec<u8>>>,
    input: u64,
    closed: bool,
}

// === impl Feed ===

impl Feed {
    pub(super) fn new(out: mpsc::Sender<Batch>) -> Self {
        Self { out, events: Vec::new(), cursors: HashMap::new(), input: 0, closed: false }
    }

    /// Nobody takes batches any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Counts input of the batch being gathered.
    pub(super) fn read(&mut self, bytes: u64) {
        self.input += bytes;
    }

    pub(super) fn is_full(&self) -> bool {
        self.events.len() >= MAX_EVENTS || self.input >= MAX_INPUT
    }

    /// A position that is true after the events gathered so far.
    pub(super) fn cursor(&mut self, key: u64, value: Option<Vec<u8>>) {
        self.cursors.insert(key, value);
    }

    /// Sends what was gathered; waits for room.
    pub(super) fn flush(&mut self) {
        self.input = 0;
        if self.events.is_empty() && self.cursors.is_empty() {
            return;
        }
        let cursors = self.cursors.drain().map(|(key, value)| Cursor { key, value }).collect();
        let events = std::mem::take(&mut self.events);
        self.send(Batch { events, cursors, ..Batch::default() });
    }

    /// Sends news about the source, behind everything gathered so far.
    pub(super) fn health(&mut self, health: SourceHealth) {
        self.flush();
        self.send(Batch { health: Some(health), ..Batch::default() });
    }

    fn send(&mut self, batch: Batch) {
        self.closed |= self.out.blocking_send(batch).is_err();
    }
}
