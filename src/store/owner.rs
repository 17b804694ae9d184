//! The owner task: one thread owns all sessions. It takes batches, folds them, commits, and publishes only what is
//! committed.
//!
//! The commit loop has no timer: while one transaction is written, the next one collects; it starts when the last
//! returns. What a snapshot shows is frozen when a commit starts and published when that commit has succeeded, at
//! most every [`PUBLISH_EVERY`]. After a failed commit the same work is tried again until it succeeds; meanwhile
//! pushes are refused and file sources wait in their channel.

mod tick;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::db::{self, Checkpoint, CommitFailed, Db, Opened, Work};
use super::dedup::Known;
use super::journal;
use super::sessions::{Sessions, of_row_key, row_key};
use super::spool::{self, Spool, SpoolReader};
use crate::clock::Clock;
use crate::event::{
    Batch, Capabilities, Cursor, Event, Fact, Name, Receipt, Reducer, Refused, Reply, SourceHealth, SourceId,
    Timestamp,
};
use crate::session::orchestration;
use crate::session::snapshot::Snapshot;
use crate::session::{Aggregates, Thresholds};
use crate::spans::{Outgoing, Tracer};
use crate::telemetry::{Counter, OWN_TRACES, Telemetry};

/// Shortest time between two publications.
pub const PUBLISH_EVERY: Duration = Duration::from_millis(20);
/// Time between checkpoints of session rows, unless they are so large that writing them takes a good part of it.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(1);
/// The pause after a checkpoint is as many times the time its commit took, up to [`CHECKPOINT_AT_LEAST_EVERY`].
const CHECKPOINT_PAUSE: u32 = 20;
/// The journal never holds more than this.
const CHECKPOINT_AT_LEAST_EVERY: Duration = Duration::from_secs(10);
/// Bytes of uncommitted events at which no further batch is taken.
const MAX_PENDING: usize = 8 * 1024 * 1024;
/// Batches taken between two looks at the commit.
const TAKE: usize = 8;
/// Wait before a failed commit is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// A record dated further ahead than this has no usable time.
const MAX_AHEAD_MS: i64 = 5 * 60_000;
/// Sessions beyond the bound that are kept until the next tick.
const MAX_OVER: usize = 1_024;

/// What the owner is set up with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sessions held in memory at most.
    pub max_tracked: usize,
    /// How long a session is kept after its last event.
    pub retention: Duration,
    /// Defaults of derived states.
    pub thresholds: Thresholds,
    /// What each built-in source can see by default.
    pub capabilities: HashMap<SourceId, Capabilities>,
    /// What a source that pushes can see.
    pub pushed: Capabilities,
    /// Built-in sources that can tell of requests to stop.
    pub see_stops: HashSet<SourceId>,
    /// Sources that tell of sessions by the ids under which these others see them themselves.
    pub retell: HashMap<SourceId, Vec<SourceId>>,
    /// Sources that will report a first scan; ready only after all did.
    pub expected_scans: Vec<SourceId>,
    /// Sources that read files, of whose sessions a trace is kept when they leave memory.
    pub file_sources: Vec<SourceId>,
    /// Agents that are not expected to change anything, where their source does not say.
    pub read_only_agents: Vec<Name>,
    /// What is kept until it was sent; nothing unless somebody sends it.
    pub spool: Option<spool::Keep>,
    /// The state folder, for its size; none with a backend of a test.
    pub folder: Option<PathBuf>,
    /// Whether spans are made.
    pub traced: bool,
}

/// The running store.
#[derive(Debug)]
pub struct Store {
    /// Where live sources send: taken first.
    pub live: mpsc::Sender<Batch>,
    /// Where servers that are followed send: before files, and waiting like them while nothing can be written.
    pub streams: mpsc::Sender<Batch>,
    /// Where files send.
    pub files: mpsc::Sender<Batch>,
    /// The latest published snapshot.
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    /// Reading positions as of the last run.
    pub cursors: HashMap<u64, Vec<u8>>,
    /// What waits to be sent. The owner does not end before it is dropped.
    pub spool: SpoolReader,
    /// Ends after all channels are closed and everything is committed.
    pub thread: std::thread::JoinHandle<()>,
}

pub(super) struct Owner {
    options: Options,
    clock: Clock,
    reducer: Arc<Reducer>,
    telemetry: Arc<Telemetry>,
    /// Folded label values of the sums that the self metrics know of.
    overflows_told: HashMap<String, u64>,
    pub(super) db: Arc<Mutex<Db>>,
    sessions: Sessions,
    /// What becomes spans, where they are wanted.
    pub(super) tracer: Option<Tracer>,
    known: Known,
    capabilities: Arc<HashMap<SourceId, Capabilities>>,
    see_stops: Arc<HashSet<SourceId>>,
    retell: Arc<HashMap<SourceId, Vec<SourceId>>>,
    events: EventCounters,
    aggregates: Arc<Aggregates>,
    health: Arc<Vec<SourceHealth>>,
    suspended: Arc<Vec<(Timestamp, Timestamp)>>,
    created: Timestamp,
    process_start: Timestamp,
    pub(super) next_seq: u64,
    pub(super) spool: Spool,
    pub(super) pending: Pending,
    in_flight: Option<InFlight>,
    failed: Option<Arc<Work>>,
    pub(super) frozen: Option<Arc<Snapshot>>,
    unpublished: bool,
    checkpoint_due: bool,
    last_checkpoint: Instant,
    checkpoint_every: Duration,
    last_publish: Option<Instant>,
    last_tick: (Instant, Timestamp),
    publish: watch::Sender<Arc<Snapshot>>,
}

/// Handles of `events_total`, found by a short search instead of by hashing labels under a lock for each event.
#[derive(Default)]
struct EventCounters(Vec<(&'static str, SourceId, Counter)>);

/// What the next commit will write.
#[derive(Default)]
pub(super) struct Pending {
    journal: journal::Writer,
    /// The newest position of each thing that is read.
    cursors: HashMap<u64, Option<Vec<u8>>>,
    replies: Vec<(Reply, Receipt)>,
    oldest: Option<Timestamp>,
}

/// What a commit came to, and how long it took.
type Committed = (Result<Option<spool::Written>, CommitFailed>, Duration);

struct InFlight {
    work: Arc<Work>,
    task: JoinHandle<Committed>,
    replies: Vec<(Reply, Receipt)>,
    oldest: Option<Timestamp>,
}

/// Starts the owner on a thread of its own.
///
/// # Errors
/// When the thread or its runtime cannot be started.
pub fn spawn(
    opened: Opened,
    options: Options,
    clock: Clock,
    reducer: Arc<Reducer>,
    telemetry: Arc<Telemetry>,
) -> std::io::Result<Store> {
    let (live, live_in) = mpsc::channel(64);
    // History waits here for the store: a batch of it holds hundreds of events.
    let (files, files_in) = mpsc::channel(16);
    let (streams, streams_in) = mpsc::channel(64);
    let now = clock.now();
    let cursors = opened.contents.cursors.iter().cloned().collect();
    let (publish, snapshots) = watch::channel(Arc::new(Snapshot::default()));
    let mut owner = Owner::new(opened, options, clock, reducer, telemetry, publish, now);
    let (spool, left) = owner.spool.reader(owner.db.clone());
    // What the last run knew is shown before the first scan: never an empty page.
    owner.freeze();
    owner.publish_frozen();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().max_blocking_threads(2).build()?;
    let thread = std::thread::Builder::new()
        .name("owner".to_owned())
        .spawn(move || runtime.block_on(owner.run(live_in, streams_in, files_in, left)))?;
    Ok(Store { live, streams, files, snapshots, cursors, spool, thread })
}

// === impl EventCounters ===

impl EventCounters {
    fn inc(&mut self, telemetry: &Telemetry, event: &Event) {
        let kind = event.fact.type_name();
        match self.0.iter().find(|(k, source, _)| *k == kind && *source == event.source) {
            Some((_, _, counter)) => counter.inc(),
            None => {
                let counter = telemetry.events.with_label_values(&[event.source.as_str(), kind]);
                counter.inc();
                self.0.push((kind, event.source.clone(), counter));
            }
        }
    }
}

// === impl Pending ===

impl Pending {
    /// Bytes it holds.
    fn bytes(&self) -> usize {
        self.journal.bytes() + self.cursors.values().flatten().map(Vec::len).sum::<usize>()
    }
}

// === impl Owner ===

impl Owner {
    pub(super) fn new(
        opened: Opened,
        options: Options,
        clock: Clock,
        reducer: Arc<Reducer>,
        telemetry: Arc<Telemetry>,
        publish: watch::Sender<Arc<Snapshot>>,
        now: Timestamp,
    ) -> Self {
        let contents = opened.contents;
        let mut damaged = 0u32;
        let sums = contents.aggregates.as_deref().map(postcard::from_bytes::<Aggregates>);
        let aggregates = sums.and_then(|read| read.inspect_err(|_| damaged += 1).ok()).unwrap_or_default();
        let capabilities = Arc::new(options.capabilities.clone());
        let see_stops = Arc::new(options.see_stops.clone());
        let retell = Arc::new(options.retell.clone());
        telemetry.counting_since.set(contents.created.as_seconds());
        let spool = Spool::new(options.spool, contents.spool, &telemetry);
        let mut owner = Self {
            options,
            clock,
            reducer,
            telemetry,
            overflows_told: HashMap::new(),
            db: Arc::new(Mutex::new(opened.db)),
            sessions: Sessions::default(),
            tracer: None,
            known: Known::default(),
            capabilities,
            see_stops,
            retell,
            events: EventCounters::default(),
            aggregates: Arc::new(aggregates),
            health: Arc::default(),
            suspended: Arc::default(),
            created: contents.created,
            process_start: now,
            next_seq: contents.next,
            spool,
            pending: Pending::default(),
            in_flight: None,
            failed: None,
            frozen: None,
            unpublished: false,
            checkpoint_due: false,
            last_checkpoint: Instant::now(),
            checkpoint_every: CHECKPOINT_EVERY,
            last_publish: None,
            last_tick: (Instant::now(), now),
            publish,
        };
        if owner.options.traced {
            owner.sessions.take_notes();
            let sent = owner.options.spool.as_ref().filter(|keep| keep.spans);
            let mut tracer = Tracer::new(sent.map(|_| owner.created));
            for (key, row) in &contents.traces {
                let read = of_row_key(key).is_some_and(|key| tracer.restore(key, row));
                damaged += u32::from(!read);
            }
            owner.tracer = Some(tracer);
        }
        for (key, row) in contents.tombstones {
            damaged += u32::from(!owner.sessions.restore_tombstone(key, &row));
        }
        for row in &contents.sessions {
            damaged += u32::from(!owner.sessions.restore(row, owner.created));
        }
        for (key, row) in &contents.known_ids {
            damaged += u32::from(!owner.known.restore(key, row));
        }
        for blob in &contents.journal {
            match journal::read(blob) {
                Ok(events) => {
                    for event in events {
                        owner.take_in(event, false);
                    }
                    owner.fold_taken();
                }
                Err(_) => damaged += 1,
            }
        }
        if damaged > 0 {
            tracing::error!(rows = damaged, "parts of the state file could not be read and are left out");
        }
        owner
    }

    async fn run(
        mut self,
        mut live: mpsc::Receiver<Batch>,
        mut streams: mpsc::Receiver<Batch>,
        mut files: mpsc::Receiver<Batch>,
        mut left: mpsc::UnboundedReceiver<spool::Message>,
    ) {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let (mut live_open, mut streams_open, mut files_open) = (true, true, true);
        let mut spool_open = true;
        let mut batches = Vec::with_capacity(TAKE);
        let mut read = Vec::with_capacity(TAKE);
        let mut streamed = Vec::with_capacity(TAKE);
        let mut retry_at = Instant::now();
        while live_open
            || streams_open
            || files_open
            || spool_open
            || self.in_flight.is_some()
            || self.failed.is_some()
            || self.has_work()
        {
            let room = self.pending.bytes() + self.spool.pending_bytes() < MAX_PENDING;
            let failing = self.failed.is_some();
            let ending = live.is_closed() && streams.is_closed() && files.is_closed();
            // At the end there is one more try, at once.
            let again_at = if ending { Instant::now() } else { retry_at };
            let publish_at = self.last_publish.map_or_else(Instant::now, |t| t + PUBLISH_EVERY);
            let may_publish = self.unpublished && self.in_flight.is_none() && !failing && !self.has_work();
            tokio::select! {
                biased;
                done = finished(&mut self.in_flight), if self.in_flight.is_some() => {
                    if !self.commit_returned(done) {
                        retry_at = Instant::now() + RETRY_AFTER;
                        // Files wait in their channel meanwhile, so that nobody notices its end by receiving.
                        if live.is_closed() && streams.is_closed() && files.is_closed() {
                            tracing::error!("the store could not be written at shutdown");
                            break;
                        }
                    }
                }
                _ = tick.tick() => {
                    self.tick();
                    let waiting = i64::try_from(live.len() + streams.len() + files.len()).unwrap_or(i64::MAX);
                    self.telemetry.queue_length.set(waiting);
                }
                message = left.recv(), if spool_open => match message {
                    Some(mut message) => {
                        self.spool(std::mem::take(&mut message.put));
                        self.spool.hear(message);
                    }
                    None => spool_open = false,
                },
                () = tokio::time::sleep_until(again_at), if failing && self.in_flight.is_none() => self.retry(),
                () = tokio::time::sleep_until(publish_at), if may_publish => {
                    self.freeze();
                    self.publish_frozen();
                }
                n = live.recv_many(&mut batches, TAKE), if live_open && (room || failing) => live_open = n > 0,
                n = streams.recv_many(&mut streamed, TAKE), if streams_open && room && !failing => streams_open = n > 0,
                n = files.recv_many(&mut read, TAKE), if files_open && room && !failing => files_open = n > 0,
                // Only a commit or a retry is left to wait for; both wake by themselves.
                () = tokio::time::sleep(RETRY_AFTER), if !live_open && !streams_open && !files_open => {}
            }
            for batch in batches.drain(..).chain(streamed.drain(..)).chain(read.drain(..)) {
                self.fold(batch);
            }
            if self.failed.is_none() && self.sessions.len() > self.options.max_tracked + MAX_OVER {
                self.expire(self.clock.now());
            }
            if !live_open && !streams_open && !files_open {
                self.checkpoint_due = self.sessions.is_dirty();
            }
            if self.in_flight.is_none() && self.failed.is_none() && self.has_work() {
                self.start_commit();
            }
            if !live_open && !streams_open && !files_open && self.in_flight.is_none() && self.failed.is_none()
            {
                self.spool.say_last();
            }
        }
        if self.failed.is_none() && self.unpublished {
            self.freeze();
            self.publish_frozen();
        }
        while let Ok(batch) = live.try_recv() {
            if let Some(reply) = batch.reply {
                reply(Err(Refused::Unavailable));
            }
        }
    }

    fn has_work(&self) -> bool {
        !self.pending.journal.is_empty()
            || !self.pending.cursors.is_empty()
            || !self.pending.replies.is_empty()
            || self.spool.has_work()
            || self.checkpoint_due
    }

    /// Keeps what is over until it was sent; it becomes durable with the next commit.
    pub(super) fn spool(&mut self, items: impl IntoIterator<Item = Outgoing>) {
        self.spool.add(items);
    }

    /// Folds a batch into memory; it becomes visible and acknowledged with its commit.
    fn fold(&mut self, batch: Batch) {
        if let Some(health) = batch.health {
            self.learn_health(health);
        }
        if self.failed.is_some() && batch.reply.is_some() {
            if let Some(reply) = batch.reply {
                reply(Err(Refused::Unavailable));
            }
            return;
        }
        let _own =
            tracing::info_span!(target: OWN_TRACES, "fold", events = batch.events.len() as i64).entered();
        let mut receipt = Receipt::default();
        for event in batch.events {
            if self.take_in(event, true) {
                receipt.accepted += 1;
            } else {
                receipt.duplicate += 1;
            }
        }
        self.fold_taken();
        self.telemetry.duplicates.inc_by(receipt.duplicate);
        for cursor in batch.cursors {
            self.pending.cursors.insert(cursor.key, cursor.value);
        }
        let Some(reply) = batch.reply else { return };
        // A duplicate's first copy may still be on its way to disk: the answer waits for it.
        let nothing_new = self.pending.journal.is_empty() && self.pending.cursors.is_empty();
        match &mut self.in_flight {
            Some(commit) if nothing_new => commit.replies.push((reply, receipt)),
            None if nothing_new => reply(Ok(receipt)),
            _ => self.pending.replies.push((reply, receipt)),
        }
    }

    /// Agents that only plan or explore are not expected to land anything, whether their source says so or not.
    fn add_read_only(&self, fact: &mut Fact) {
        let (Fact::SessionQueued(info)
        | Fact::SessionStarted(info)
        | Fact::SessionResumed(info)
        | Fact::SessionUpdated(info)) = fact
        else {
            return;
        };
        if info.read_only.is_none()
            && info.agent.as_ref().is_some_and(|a| self.options.read_only_agents.contains(a))
        {
            info.read_only = Some(true);
        }
    }

    /// Takes one event in; false if it was known. [`Self::fold_taken`] has to follow. `fresh`: it still has to be
    /// written to the journal.
    pub(super) fn take_in(&mut self, mut event: Event, fresh: bool) -> bool {
        if event.time.is_some_and(|t| t.since(event.observed) > MAX_AHEAD_MS) {
            event.time = None;
            self.telemetry.clock_skew.inc();
        }
        if let Some(id) = event.id
            && !self.known.insert(&event.source, id, event.time)
        {
            return false;
        }
        let position = self.known.position(&event.source);
        let Some(slot) = self.sessions.slot_for(&event, position) else { return false };
        // What is in the journal was taken in once, and is again.
        if fresh
            && event.id.is_some()
            && self.known.may_have_forgotten(&event.source, event.time, self.sessions.since(slot))
        {
            self.fold_taken();
            if self.sessions.facts(slot).is_some_and(|f| event.time.is_some_and(|t| t <= f.last_heard())) {
                return false;
            }
        }
        if fresh {
            self.add_read_only(&mut event.fact);
            self.pending.journal.push(slot, &event);
            let observed = event.observed;
            self.pending.oldest = Some(self.pending.oldest.map_or(observed, |o| o.min(observed)));
            self.events.inc(&self.telemetry, &event);
        }
        if matches!(event.fact, Fact::SessionReset) {
            self.fold_taken();
            self.sessions.reset(slot);
            self.unpublished = true;
            return true;
        }
        let of_specs = orchestration::of_specs(&event);
        let mut many = self.sessions.put(slot, event);
        for event in of_specs {
            if let Some(slot) = self.sessions.slot_for(&event, position) {
                many |= self.sessions.put(slot, event);
            }
        }
        if many {
            self.fold_taken();
        }
        true
    }

    /// Makes facts and sums of the events that were taken in.
    pub(super) fn fold_taken(&mut self) {
        if !self.sessions.is_unfolded() {
            return;
        }
        let (aggregates, tracer) = (&mut self.aggregates, &mut self.tracer);
        let now = self.clock.now();
        self.sessions.fold(self.created, |facts, change, named| {
            if let Some(tracer) = tracer {
                let (noted, taken_back) = change.notes();
                tracer.take(facts, noted, taken_back, now);
            }
            if !change.is_empty() {
                Arc::make_mut(aggregates).take(&facts.source, change);
            }
            if !named {
                return;
            }
            for name in facts.info.model.iter().chain(&facts.info.provider) {
                if aggregates.shown_model(Some(name)) != name.as_str() {
                    Arc::make_mut(aggregates).admit_model(name);
                }
            }
        });
        self.unpublished = true;
    }

    fn learn_health(&mut self, news: SourceHealth) {
        let list = Arc::make_mut(&mut self.health);
        match list.iter_mut().find(|h| h.source == news.source && h.endpoint == news.endpoint) {
            Some(known) => *known = news,
            None => list.push(news),
        }
        self.unpublished = true;
    }

    fn start_commit(&mut self) {
        let due = self.checkpoint_due || self.last_checkpoint.elapsed() >= self.checkpoint_every;
        let traced =
            self.tracer.as_ref().is_some_and(|tracer| tracer.is_dirty() || tracer.is_due(self.clock.now()));
        let checkpoint = (due && (traced || self.sessions.is_dirty())).then(|| self.checkpoint());
        self.checkpoint_due = false;
        let pending = std::mem::take(&mut self.pending);
        let mut writer = pending.journal;
        let work = Arc::new(Work {
            seq: self.next_seq,
            // A checkpoint says all the blob would say.
            journal: if checkpoint.is_some() || writer.is_empty() { Vec::new() } else { writer.take() },
            cursors: pending.cursors.into_iter().map(|(key, value)| Cursor { key, value }).collect(),
            checkpoint,
            spool: self.spool.take(),
        });
        self.next_seq += 1;
        if self.last_publish.is_none_or(|t| t.elapsed() >= PUBLISH_EVERY) {
            self.freeze();
        }
        self.write(work, pending.replies, pending.oldest);
    }

    pub(super) fn checkpoint(&mut self) -> Checkpoint {
        self.last_checkpoint = Instant::now();
        let (sessions, tombstones) = self.sessions.changes();
        // What is due leaves with the row that no longer holds it: a crash repeats nothing and loses nothing.
        let now = self.clock.now();
        let due = self.tracer.as_mut().map(|tracer| tracer.drain(now)).unwrap_or_default();
        self.spool(due);
        let traces = self.tracer.as_mut().map(Tracer::changes).unwrap_or_default();
        Checkpoint {
            traces: traces
                .into_iter()
                .map(|((source, session), row)| (row_key(&source, &session), row))
                .collect(),
            sessions,
            tombstones,
            aggregates: postcard::to_allocvec(&*self.aggregates)
                .expect("sums are made of types that always serialise"),
            known_ids: self.known.changes(),
        }
    }

    fn write(&mut self, work: Arc<Work>, replies: Vec<(Reply, Receipt)>, oldest: Option<Timestamp>) {
        let db = self.db.clone();
        let job = work.clone();
        let task = tokio::task::spawn_blocking(move || {
            let started = Instant::now();
            // A commit that panicked left a database that is opened anew.
            let result = db.lock().unwrap_or_else(PoisonError::into_inner).commit(&job);
            (result, started.elapsed())
        });
        self.in_flight = Some(InFlight { work, task, replies, oldest });
    }

    /// What follows a commit; false if it failed.
    fn commit_returned(&mut self, done: Result<Committed, tokio::task::JoinError>) -> bool {
        let Some(commit) = self.in_flight.take() else { return true };
        let error = match done {
            Ok((Ok(spooled), took)) => {
                let lost = self.spool.committed(spooled, &self.telemetry);
                self.forget_examples(&lost);
                self.telemetry.store_commits.inc();
                self.telemetry.store_commit_seconds.observe(took.as_secs_f64());
                if commit.work.checkpoint.is_some() {
                    self.checkpoint_every =
                        (took * CHECKPOINT_PAUSE).clamp(CHECKPOINT_EVERY, CHECKPOINT_AT_LEAST_EVERY);
                }
                if self.failed.take().is_some() {
                    tracing::warn!("the store can be written again");
                }
                self.publish_frozen();
                for (reply, receipt) in commit.replies {
                    reply(Ok(receipt));
                }
                if let Some(oldest) = commit.oldest {
                    self.telemetry.ingest_lag.set(self.clock.now().since(oldest) as f64 / 1000.0);
                }
                return true;
            }
            Ok((Err(e), _)) => e.to_string(),
            Err(_) => "commit panicked".to_owned(),
        };
        self.telemetry.store_commit_failures.inc();
        if self.failed.is_none() {
            tracing::error!(error, "the store cannot be written; pushes are refused until it can");
        }
        for (reply, _) in commit.replies.into_iter().chain(std::mem::take(&mut self.pending.replies)) {
            reply(Err(Refused::Unavailable));
        }
        self.failed = Some(commit.work);
        false
    }

    fn retry(&mut self) {
        if let Some(work) = self.failed.clone() {
            self.write(work, Vec::new(), None);
        }
    }

    /// Takes the picture that will be published when the commit that now starts has succeeded.
    pub(super) fn freeze(&mut self) {
        let sessions = self.sessions.vector();
        let tree = self.sessions.tree(&sessions);
        let scanned = self
            .options
            .expected_scans
            .iter()
            .all(|s| self.health.iter().any(|h| h.source == *s && h.scanned));
        self.frozen = Some(Arc::new(Snapshot {
            sessions,
            tree,
            aggregates: self.aggregates.clone(),
            exemplars: self.tracer.as_ref().map(Tracer::exemplars).unwrap_or_default(),
            thresholds: self.options.thresholds,
            capabilities: self.capabilities.clone(),
            pushed: self.options.pushed,
            see_stops: self.see_stops.clone(),
            retell: self.retell.clone(),
            health: self.health.clone(),
            suspended: self.suspended.clone(),
            process_start: self.process_start,
            counting_since: self.created,
            scanned,
        }));
        self.unpublished = false;
    }

    fn publish_frozen(&mut self) {
        if let Some(snapshot) = self.frozen.take() {
            self.publish.send_replace(snapshot);
            self.last_publish = Some(Instant::now());
        }
    }
}

/// Waits for the commit in flight.
async fn finished(commit: &mut Option<InFlight>) -> Result<Committed, tokio::task::JoinError> {
    match commit {
        Some(commit) => (&mut commit.task).await,
        None => std::future::pending().await,
    }
}
