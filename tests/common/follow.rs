//! A source that follows servers, running in front of a store, with a clock that is moved by hand.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    reason = "each test binary uses its part"
)]

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{
    Capabilities, Event, Reducer, SessionId, SourceHealth, SourceId, Timestamp,
};
use agent_session_exporter::session::snapshot::Tree;
use agent_session_exporter::session::{Facts, Session, Snapshot};
use agent_session_exporter::sources::Context;
use agent_session_exporter::sources::live::{Configured, LiveSource, Place, Surroundings, start_in};
use agent_session_exporter::store::{Options, db};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::disk::Disk;
use super::owner::{KEY, LONG, Life, options};
use super::peer::Server;
use super::ticked::{Ticks, watched};

/// Time between ticks: a second of the recording.
pub const TICK: Duration = Duration::from_millis(5);

/// What outlives a run: the disk and the clock.
pub struct Stand {
    pub source: &'static LiveSource,
    pub capabilities: Capabilities,
    pub configured: Configured,
    pub disk: Disk,
    /// How long events are gathered.
    pub gather: Duration,
    /// Time between ticks.
    pub tick: Duration,
    /// Longest pause between two tries.
    pub longest_pause: Duration,
    hand: &'static AtomicI64,
    /// Creation of the store: what is older does not count.
    pub created: Timestamp,
}

/// Events folded as the store folds them, each once: what a run is compared with on the way.
pub struct Fold {
    source: SourceId,
    capabilities: Capabilities,
    sessions: BTreeMap<SessionId, Session>,
    seen: HashSet<(SessionId, u64)>,
}

/// One run.
pub struct Following {
    pub life: Life,
    hand: &'static AtomicI64,
    source: &'static str,
    ticks: Ticks,
    runtime: Option<tokio::runtime::Runtime>,
    task: JoinHandle<()>,
    stop: watch::Sender<bool>,
}

/// Of each session that does something or has done something: its state, who waits for what since when, what was
/// asked of it, and what the agent's own guard said.
pub fn standing(snapshot: &Snapshot, now: Timestamp) -> Vec<String> {
    let one = |(slot, facts): (usize, &Option<Arc<Facts>>)| {
        let facts = facts.as_ref()?;
        let derived = snapshot.derive(&snapshot.rollup(slot, now)?);
        let mut text =
            format!("{} {}/{}", facts.session.as_str(), derived.state.as_str(), derived.reason.as_str());
        for action in &facts.actions {
            text.push_str(&format!(
                ", asks {} {} since {}",
                action.kind.as_str(),
                action.certainty.as_str(),
                action.since
            ));
        }
        if let Some(stop) = &facts.stop {
            text.push_str(&format!(", stop at {} pending {}", stop.requested_at, stop.pending));
        }
        if let Some(stuck) = &facts.native_stuck {
            let (detector, layer) = (stuck.detector.as_str(), stuck.layer.as_str());
            text.push_str(&format!(", guard {detector} of {layer} at {}", stuck.time));
        }
        Some(text)
    };
    let mut all: Vec<String> = snapshot.sessions.iter().enumerate().filter_map(one).collect();
    all.sort();
    all
}

impl Fold {
    pub fn new(source: &str, capabilities: Capabilities) -> Self {
        let source = SourceId::from(source);
        Self { source, capabilities, sessions: BTreeMap::new(), seen: HashSet::new() }
    }

    pub fn take(&mut self, event: &Event) {
        if event.id.is_some_and(|id| !self.seen.insert((event.session.clone(), id))) {
            return;
        }
        let new = || Session::new(Facts::new(event.source.clone(), event.session.clone(), event.observed));
        let session = self.sessions.entry(event.session.clone()).or_insert_with(new);
        session.apply(event.clone(), Timestamp::from_millis(0));
    }

    pub fn snapshot(&self) -> Snapshot {
        let sessions: Vec<_> = self.sessions.values().map(|s| Some(s.facts().clone())).collect();
        Snapshot {
            tree: Arc::new(Tree::of(&sessions)),
            sessions,
            capabilities: Arc::new([(self.source.clone(), self.capabilities)].into()),
            scanned: true,
            ..Snapshot::default()
        }
    }
}

impl Stand {
    pub fn new(source: &'static LiveSource, capabilities: Capabilities, now: Timestamp) -> Self {
        Self {
            source,
            capabilities,
            configured: Configured::default(),
            disk: Disk::default(),
            gather: Duration::ZERO,
            tick: TICK,
            longest_pause: Duration::from_millis(200),
            hand: Box::leak(Box::new(AtomicI64::new(now.as_millis()))),
            created: Timestamp::from_millis(0),
        }
    }

    /// With this server configured.
    #[must_use]
    pub fn server(mut self, server: &Server) -> Self {
        self.configured.servers.push(Place::parse(&server.url()).unwrap());
        self
    }

    pub fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.hand.load(Ordering::SeqCst))
    }

    pub fn start(&self) -> Following {
        let clock = Clock::held(self.hand);
        let source = SourceId::from(self.source.name);
        let opened = db::open(&self.disk.backend(), KEY, self.created).unwrap().unwrap();
        let options = Options {
            capabilities: [(source.clone(), self.capabilities)].into(),
            expected_scans: vec![source],
            file_sources: Vec::new(),
            retention: Duration::from_secs(20 * 365 * 86_400),
            ..options()
        };
        let life = Life::at(opened, options, clock);
        let (stop, stopped) = watch::channel(false);
        let reducer = Arc::new(Reducer::new([7; 16], Runners::default()));
        let (watched, ticks) = watched(self.source, &reducer);
        let context = Context {
            homes: Vec::new(),
            roots: Vec::new(),
            live: self.configured.clone(),
            machine: "test".to_owned(),
            max_age: Duration::ZERO,
            reducer,
            out: life.store.streams.clone(),
            cursors: life.store.cursors.clone(),
            telemetry: life.telemetry.clone(),
            clock,
            stop: stopped,
        };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let entered = runtime.enter();
        let surroundings = Surroundings {
            tick: self.tick,
            gather: self.gather,
            pause: Duration::from_millis(10),
            longest_pause: self.longest_pause,
        };
        let task = start_in(watched, context, surroundings);
        drop(entered);
        Following {
            life,
            hand: self.hand,
            source: self.source.name,
            ticks,
            runtime: Some(runtime),
            task,
            stop,
        }
    }
}

impl Following {
    pub fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.hand.load(Ordering::SeqCst))
    }

    /// Moves the clock to this moment, second by second, so that the source notices each.
    pub fn move_to(&self, moment: Timestamp) {
        while self.now() < moment {
            let next = moment.min(self.now().plus(1000));
            let whole = next.since(self.now()) >= 1000;
            self.hand.store(next.as_millis(), Ordering::SeqCst);
            if whole && !self.ticks.until(next) {
                std::thread::sleep(TICK + TICK / 2);
            }
        }
    }

    /// Moves it at once.
    pub fn jump_to(&self, moment: Timestamp) {
        self.hand.store(moment.as_millis(), Ordering::SeqCst);
    }

    /// Records that were taken so far.
    pub fn records(&self) -> u64 {
        self.life.telemetry.records.with_label_values(&[self.source]).get()
    }

    /// Waits until so many records were taken and everything asked was answered.
    pub fn until_records(&self, wanted: u64, server: &Server) {
        let began = Instant::now();
        while self.records() < wanted || server.answering() > 0 {
            assert!(began.elapsed() < LONG, "{} of {wanted} records", self.records());
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Waits until the server is followed (or not).
    pub fn until_up(&self, server: &Server, up: bool) {
        let endpoint = server.endpoint();
        self.life.until("health", |s| {
            let said = |h: &SourceHealth| h.endpoint.as_str() == endpoint && h.up == up && h.scanned;
            self.ticks.follows(&endpoint) == up && s.health.iter().any(said)
        });
        // The other end has a stream only a moment after it said so.
        if up {
            server.until_any_stream();
        }
    }

    /// Cuts the stream and waits until it was opened again and everything first asked was answered.
    pub fn cut(&self, server: &Server) {
        let again = || self.life.counter("source_reconnects_total");
        let (before, began) = (again(), Instant::now());
        server.cut();
        while again() <= before {
            assert!(began.elapsed() < LONG, "never followed again");
            std::thread::sleep(Duration::from_millis(1));
        }
        server.until_streams(1);
    }

    /// Waits until things stand like this at the moment of the clock.
    pub fn until_stands(&self, wanted: &[String], what: &str) {
        let (now, began) = (self.now(), Instant::now());
        loop {
            let got = standing(&self.life.snapshot(), now);
            if got == wanted {
                return;
            }
            assert!(began.elapsed() < LONG, "{what} at {now}:\n{got:#?}\nnot\n{wanted:#?}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    pub fn errors(&self, reason: &str) -> u64 {
        self.life.telemetry.decode_errors.with_label_values(&[self.source, reason]).get()
    }

    /// Ends in order: the source, then the store.
    pub fn end(mut self) -> Arc<Snapshot> {
        self.stop.send(true).unwrap();
        let task = self.task;
        let ends = async { tokio::time::timeout(LONG, task).await.unwrap().unwrap() };
        let runtime = self.runtime.take().unwrap();
        runtime.block_on(ends);
        runtime.shutdown_background();
        self.life.end()
    }
}
