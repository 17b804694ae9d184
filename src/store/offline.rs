//! The owner without its task, for recordings: events and moments come from whoever holds it, the moments only forward,
//! and nothing is kept. What is folded, counted, forgotten and concluded is what the owner does.

use std::sync::Arc;

use super::db::{self, Opened};
use super::owner::{Options, Owner, Pending};
use crate::clock::Clock;
use crate::event::{Event, Reducer, Timestamp};
use crate::session::Snapshot;
use crate::spans::Outgoing;
use crate::telemetry::Telemetry;

/// The sessions of a recording at some moment of it.
pub struct Offline(Owner);

// === impl Offline ===

impl Offline {
    /// Begins to count at `start`. Of `options` the state folder is of no use.
    ///
    /// # Errors
    /// When no database can be made in memory.
    pub fn begin(
        options: Options,
        clock: Clock,
        reducer: Arc<Reducer>,
        telemetry: Arc<Telemetry>,
        start: Timestamp,
    ) -> Result<Self, db::OpenError> {
        let opened = db::open(&db::memory_backend(), 0, start)?;
        let opened: Opened = opened.map_err(|_| std::io::Error::other("an empty store cannot be read"))?;
        let (publish, _) = tokio::sync::watch::channel(Arc::default());
        Ok(Self(Owner::new(opened, options, clock, reducer, telemetry, publish, start)))
    }

    /// Takes in what became known by now.
    pub fn take(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            self.0.take_in(event, true);
        }
        self.0.fold_taken();
        self.0.pending = Pending::default();
    }

    /// What time alone changes by now, as once a second of the running owner.
    pub fn pass(&mut self) {
        self.0.conclude();
        self.0.pending = Pending::default();
    }

    /// What became due to be told of traces by now, where they are wanted.
    pub fn outgoing(&mut self, now: Timestamp) -> Vec<Outgoing> {
        self.0.tracer.as_mut().map(|tracer| tracer.drain(now)).unwrap_or_default()
    }

    /// Everything as of now.
    pub fn snapshot(&mut self) -> Arc<Snapshot> {
        self.0.freeze();
        self.0.frozen.take().unwrap_or_default()
    }
}
