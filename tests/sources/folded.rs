//! Recordings decoded and folded in memory, as the owner task folds them, at a clock of the test's own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{Event, Fact, Reducer, SessionId, SourceId, Timestamp, Writer};
use agent_session_exporter::session::snapshot::Tree;
use agent_session_exporter::session::{Aggregates, Derived, Facts, Session, Snapshot};
use agent_session_exporter::sources::codex::{Codex, DEF};
use agent_session_exporter::sources::{Decode, Record};

/// When files without times were read.
pub(crate) const OBSERVED: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// Sessions being folded.
#[derive(Default)]
pub(crate) struct Folded {
    sessions: BTreeMap<SessionId, Session>,
    pub(crate) aggregates: Aggregates,
    epoch: Timestamp,
}

pub(crate) fn source() -> SourceId {
    SourceId::from("codex")
}

pub(crate) fn reducer() -> Arc<Reducer> {
    Arc::new(Reducer::new([7; 16], Runners::default()))
}

pub(crate) fn fixtures(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(folder)
}

pub(crate) fn read(name: &str) -> Vec<u8> {
    let path = fixtures(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Names of all files of a folder of fixtures, below it, that end so.
pub(crate) fn files(folder: &str, end: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(fixtures(folder)).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{folder}/{}", entry.file_name().to_str().unwrap());
        if entry.path().is_dir() {
            found.extend(files(&name, end));
        } else if name.ends_with(end) {
            found.push(name);
        }
    }
    found.sort();
    found
}

/// The events of a file; malformed lines give none.
pub(crate) fn decode(bytes: &[u8], named: &str) -> Vec<Event> {
    let mut decoder = Codex::new(source(), reducer()).named(named);
    let mut events = Vec::new();
    for line in bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
        let _ = decoder.decode(&Record { bytes: line, observed: OBSERVED }, &mut events);
    }
    events
}

impl Folded {
    /// One file from its head to its end.
    pub(crate) fn of(name: &str) -> Self {
        let mut folded = Self::default();
        folded.take(decode(&read(name), "named-by-file"));
        folded
    }

    pub(crate) fn take(&mut self, events: Vec<Event>) {
        for event in events {
            let session = event.session.clone();
            let new = || Session::new(Facts::new(source(), session.clone(), event.observed));
            let mut change =
                self.sessions.entry(session.clone()).or_insert_with(new).apply(event, self.epoch);
            self.aggregates.take(&source(), &mut change);
        }
    }

    /// What a probe of the lock says at a moment.
    pub(crate) fn writer(&mut self, writer: Writer, at: Timestamp) {
        let sessions: Vec<_> = self.sessions.keys().cloned().collect();
        for session in sessions {
            let mut event = Event::new(&source(), &session, at, Fact::Writer(writer));
            event.time = Some(at);
            self.take(vec![event]);
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let sessions: Vec<_> = self.sessions.values().map(|s| Some(s.facts().clone())).collect();
        Snapshot {
            tree: Arc::new(Tree::of(&sessions)),
            sessions,
            aggregates: Arc::new(self.aggregates.clone()),
            capabilities: Arc::new([(source(), DEF.capabilities)].into()),
            scanned: true,
            ..Snapshot::default()
        }
    }

    /// The facts of the only session.
    pub(crate) fn facts(&self) -> Arc<Facts> {
        assert_eq!(self.sessions.len(), 1);
        self.sessions.values().next().unwrap().facts().clone()
    }

    /// When the newest record was written.
    pub(crate) fn last(&self) -> Timestamp {
        self.sessions.values().map(|s| s.facts().last_heard()).max().unwrap()
    }

    /// The state of the only root so many seconds after the last record.
    pub(crate) fn derived(&self, seconds: i64) -> Derived {
        derived(&self.snapshot(), self.last().plus(seconds * 1000))
    }

    /// The same as `state/reason`.
    pub(crate) fn state(&self, seconds: i64) -> String {
        words(self.derived(seconds))
    }
}

/// The state of the only root.
pub(crate) fn derived(snapshot: &Snapshot, now: Timestamp) -> Derived {
    let roots: Vec<_> = snapshot.roots().collect();
    assert_eq!(roots.len(), 1);
    snapshot.derive(&snapshot.rollup(roots[0], now).unwrap())
}

pub(crate) fn words(derived: Derived) -> String {
    format!("{}/{}", derived.state.as_str(), derived.reason.as_str())
}
