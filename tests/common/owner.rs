//! One life of the store: started on a disk, fed, asked, ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{
    Batch, Cursor, Event, Fact, Receipt, Reducer, Refused, SessionId, SourceHealth, SourceId, Timestamp,
};
use agent_session_exporter::session::{Count, Facts, Snapshot, Thresholds};
use agent_session_exporter::store::{Opened, Options, Store, db, spawn};
use agent_session_exporter::telemetry::Telemetry;

use super::disk::Disk;

/// Stands for the hash of the key.
pub const KEY: u64 = 7;
/// Patience of a test.
pub const LONG: Duration = Duration::from_secs(20);

pub type Answer = Receiver<Result<Receipt, Refused>>;

pub struct Life {
    pub store: Store,
    pub telemetry: Arc<Telemetry>,
}

pub fn now() -> Timestamp {
    Clock::system().now()
}

pub fn options() -> Options {
    Options {
        max_tracked: 50_000,
        retention: Duration::from_secs(7 * 86_400),
        thresholds: Thresholds::default(),
        capabilities: Default::default(),
        pushed: Default::default(),
        see_stops: Default::default(),
        retell: Default::default(),
        expected_scans: Vec::new(),
        file_sources: vec![SourceId::from("files")],
        read_only_agents: Vec::new(),
        spool: None,
        folder: None,
        traced: false,
    }
}

/// Opens a disk that must be readable.
pub fn open(disk: &Disk) -> Opened {
    db::open(&disk.backend(), KEY, now()).expect("opens").expect("is readable")
}

pub fn event(source: &str, session: &str, time: Timestamp, fact: Fact) -> Event {
    let mut event = Event::new(&SourceId::from(source), &SessionId::from(session), time, fact);
    event.time = Some(time);
    event
}

pub fn with_id(id: u64, mut event: Event) -> Event {
    // Spread like the keyed hashes of real ids.
    event.id = Some(id.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x55);
    event
}

/// A batch with a way back.
pub fn asking(events: Vec<Event>) -> (Batch, Answer) {
    let (tell, answer) = channel();
    let reply = Box::new(move |result| tell.send(result).unwrap_or_default());
    (Batch { events, reply: Some(reply), ..Batch::default() }, answer)
}

pub fn counter(telemetry: &Telemetry, name: &str) -> f64 {
    let families = telemetry.registry().gather();
    let family = families.iter().find(|f| f.name() == format!("agent_session_exporter_{name}"));
    family.map_or(0.0, |f| {
        f.get_metric().iter().map(|m| m.get_counter().get_value() + m.get_gauge().get_value()).sum()
    })
}

impl Life {
    pub fn start(disk: &Disk) -> Self {
        Self::with(open(disk), options())
    }

    pub fn with(opened: Opened, options: Options) -> Self {
        Self::at(opened, options, Clock::system())
    }

    pub fn at(opened: Opened, options: Options, clock: Clock) -> Self {
        let telemetry = Arc::new(Telemetry::new());
        let reducer = Arc::new(Reducer::new([7; 16], Runners::default()));
        let store = spawn(opened, options, clock, reducer, telemetry.clone()).unwrap();
        Self { store, telemetry }
    }

    /// Pushes on the live lane without waiting for the answer.
    pub fn push(&self, events: Vec<Event>) -> Answer {
        let (batch, answer) = asking(events);
        self.store.live.blocking_send(batch).unwrap();
        answer
    }

    /// Pushes and waits.
    pub fn pushed(&self, events: Vec<Event>) -> Result<Receipt, Refused> {
        self.push(events).recv_timeout(LONG).expect("an answer")
    }

    /// What a reader of files sends.
    pub fn read(&self, events: Vec<Event>, key: u64, position: u64) {
        let cursors = vec![Cursor { key, value: Some(position.to_le_bytes().to_vec()) }];
        self.store.files.blocking_send(Batch { events, cursors, ..Batch::default() }).unwrap();
    }

    pub fn scanned(&self, source: &str) {
        let health = SourceHealth {
            source: SourceId::from(source),
            endpoint: "default".into(),
            up: true,
            since: now(),
            scanned: true,
        };
        self.store.files.blocking_send(Batch { health: Some(health), ..Batch::default() }).unwrap();
    }

    pub fn cursor(&self, key: u64) -> u64 {
        self.store.cursors.get(&key).map_or(0, |v| u64::from_le_bytes(v.as_slice().try_into().unwrap()))
    }

    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.store.snapshots.borrow().clone()
    }

    /// Waits until the published snapshot is as wanted.
    pub fn until(&self, what: &str, wanted: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
        let started = Instant::now();
        loop {
            let snapshot = self.snapshot();
            if wanted(&snapshot) {
                return snapshot;
            }
            assert!(started.elapsed() < LONG, "never seen: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn counter(&self, name: &str) -> f64 {
        counter(&self.telemetry, name)
    }

    /// Closes both lanes and waits for the end; returns the last snapshot.
    pub fn end(self) -> Arc<Snapshot> {
        let Store { live, streams, files, snapshots, spool, thread, .. } = self.store;
        drop((live, streams, files, spool));
        let started = Instant::now();
        while !thread.is_finished() {
            assert!(started.elapsed() < Duration::from_secs(5), "the store does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        thread.join().unwrap();
        snapshots.borrow().clone()
    }
}

/// The facts of a session.
pub fn facts(snapshot: &Snapshot, source: &str, session: &str) -> Option<Arc<Facts>> {
    let slot = snapshot.find(&SourceId::from(source), &SessionId::from(session))?;
    snapshot.facts(slot).cloned()
}

/// All facts, by name.
pub fn all_facts(snapshot: &Snapshot) -> BTreeMap<(String, String), Facts> {
    let facts = snapshot.sessions.iter().flatten();
    facts.map(|f| ((f.source.as_str().to_owned(), f.session.as_str().to_owned()), (**f).clone())).collect()
}

/// All exact sums that are not zero.
pub fn sums(snapshot: &Snapshot) -> BTreeMap<String, i64> {
    let sums = snapshot.aggregates.sums.iter().filter(|(_, sum)| sum.exact() != 0);
    sums.map(|(key, sum)| (format!("{key:?}"), sum.exact())).collect()
}

/// The sum of one count over all projects.
pub fn sum(snapshot: &Snapshot, source: &str, count: &Count) -> i64 {
    let sums = snapshot.aggregates.sums.iter();
    sums.filter(|((s, _, c), _)| s.as_str() == source && c == count).map(|(_, sum)| sum.exact()).sum()
}
