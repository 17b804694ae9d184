//! The owner without its task, for recordings: events and moments come from whoever holds it, the moments only forward,
//! and nothing is kept but where that is asked for. What is folded, counted, forgotten and concluded is what the owner does.

use std::sync::{Arc, PoisonError};

use super::db::{self, Backend, Opened, Work};
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
        Self::open(&db::memory_backend(), options, clock, reducer, telemetry, start)
    }

    /// Goes on with what was kept in a store at some moment of an earlier life.
    ///
    /// # Errors
    /// When the store cannot be opened, or is none.
    pub fn open(
        backend: &Backend,
        options: Options,
        clock: Clock,
        reducer: Arc<Reducer>,
        telemetry: Arc<Telemetry>,
        start: Timestamp,
    ) -> Result<Self, db::OpenError> {
        let opened = db::open(backend, 0, start)?;
        let opened: Opened = opened.map_err(|_| std::io::Error::other("the store cannot be read"))?;
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

    /// Keeps what is known by now, as the running owner does about once a second; what became due to be told has to be taken
    /// before.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&mut self) -> Result<(), db::CommitFailed> {
        let owner = &mut self.0;
        let checkpoint = Some(owner.checkpoint());
        let (seq, spool) = (owner.next_seq, owner.spool.take());
        let work = Work { seq, checkpoint, spool, ..Work::default() };
        owner.next_seq += 1;
        owner.db.lock().unwrap_or_else(PoisonError::into_inner).commit(&work).map(drop)
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
