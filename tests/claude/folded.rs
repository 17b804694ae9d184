//! Recordings decoded and folded in memory, at a clock of the test's own. Files of one home share whose records are
//! whose, as in the runner.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{Event, Reducer, SessionId, SourceId, Timestamp};
use agent_session_exporter::session::snapshot::Tree;
use agent_session_exporter::session::{Derived, Facts, Session, Snapshot};
use agent_session_exporter::sources::claude_code::{Claude, DEF};
use agent_session_exporter::sources::files::{Opening, Owners, PEEK};
use agent_session_exporter::sources::{Decode, Record};
use serde_json::Value;
use serde_json::value::RawValue;

/// When everything was read.
pub(crate) const OBSERVED: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// A file as it lies in a home.
#[derive(Clone, Debug)]
pub(crate) struct File {
    /// The id in its name.
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// Sessions being folded.
#[derive(Default)]
pub(crate) struct Folded {
    sessions: BTreeMap<SessionId, Session>,
    epoch: Timestamp,
}

pub(crate) fn source() -> SourceId {
    SourceId::from("claude_code")
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

pub(crate) fn text(name: &str) -> String {
    String::from_utf8(read(name)).unwrap()
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

/// Every transcript there is.
pub(crate) fn all_files() -> Vec<File> {
    let mut names = files("claude_code", ".jsonl");
    names.extend(files("public/claude-code", ".jsonl"));
    names.extend(files("public/derived", ".jsonl"));
    assert!(names.len() > 65, "{}", names.len());
    names.iter().map(|name| file(name)).collect()
}

/// A recording under the name its agent gave it, as far as its records tell that.
pub(crate) fn file(fixture: &str) -> File {
    let bytes = read(fixture);
    let stem = fixture.rsplit('/').next().unwrap().strip_suffix(".jsonl").unwrap();
    let said = |field: &str| {
        let found = lines(&bytes).into_iter().rev().find_map(|line| {
            Some(serde_json::from_slice::<Value>(line).ok()?.get(field)?.as_str()?.to_owned())
        });
        found.unwrap_or_else(|| panic!("{fixture} names no {field}"))
    };
    let name = if stem.contains(".subagent-") {
        format!("agent-{}", said("agentId"))
    } else if stem.contains(".transcript") {
        said("sessionId")
    } else {
        stem.to_owned()
    };
    File { name, bytes }
}

/// The records of a file: a mark of the encoding is none of them, nor is a last line that is not yet whole, and a
/// line may hold several.
pub(crate) fn lines(bytes: &[u8]) -> Vec<&[u8]> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut found = Vec::new();
    let mut at = bytes.split(|b| *b == b'\n').filter(|l| !l.trim_ascii().is_empty()).peekable();
    while let Some(line) = at.next() {
        let values = serde_json::Deserializer::from_slice(line).into_iter::<&RawValue>();
        let values: Result<Vec<_>, _> = values.collect();
        match values {
            Ok(values) => found.extend(values.into_iter().map(|raw| raw.get().as_bytes())),
            Err(_) if at.peek().is_none() && !bytes.ends_with(b"\n") => {}
            Err(_) => found.push(line),
        }
    }
    found
}

pub(crate) fn opening<'a>(file: &'a File, owners: &Arc<Owners>) -> Opening<'a> {
    Opening {
        source: source(),
        reducer: reducer(),
        name: Some(&file.name),
        owners: owners.clone(),
        head: &file.bytes[..file.bytes.len().min(PEEK)],
    }
}

/// The events of files of one home that are read one after the other. Every record is one.
pub(crate) fn decode(files: &[File]) -> Vec<Event> {
    let owners = Arc::new(Owners::default());
    let mut events = Vec::new();
    for file in files {
        let mut decoder = Claude::new(&opening(file, &owners));
        for line in lines(&file.bytes) {
            decoder.decode(&Record { bytes: line, observed: OBSERVED }, &mut events).unwrap();
        }
        assert_eq!(decoder.unknown_kinds(), [""; 0], "{}", file.name);
    }
    events
}

// === impl Folded ===

impl Folded {
    pub(crate) fn of(events: impl IntoIterator<Item = Event>) -> Self {
        let mut folded = Self::default();
        folded.take(events);
        folded
    }

    pub(crate) fn take(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            let session = event.session.clone();
            let new = || Session::new(Facts::new(source(), session.clone(), event.observed));
            self.sessions.entry(session.clone()).or_insert_with(new).apply(event, self.epoch);
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let sessions: Vec<_> = self.sessions.values().map(|s| Some(s.facts().clone())).collect();
        Snapshot {
            tree: Arc::new(Tree::of(&sessions)),
            sessions,
            capabilities: Arc::new([(source(), DEF.capabilities)].into()),
            scanned: true,
            ..Snapshot::default()
        }
    }

    /// Facts of all sessions, children too.
    pub(crate) fn all(&self) -> Vec<Arc<Facts>> {
        self.sessions.values().map(|s| s.facts().clone()).collect()
    }

    /// The facts of the only session nobody started.
    pub(crate) fn root(&self) -> Arc<Facts> {
        let snapshot = self.snapshot();
        let roots: Vec<_> = snapshot.roots().collect();
        assert_eq!(roots.len(), 1);
        snapshot.facts(roots[0]).unwrap().clone()
    }

    /// When the newest record was written.
    pub(crate) fn last(&self) -> Timestamp {
        self.sessions.values().map(|s| s.facts().last_heard()).max().unwrap()
    }

    /// The states of all roots at a moment.
    pub(crate) fn derived(&self, now: Timestamp) -> Vec<Derived> {
        let snapshot = self.snapshot();
        snapshot.roots().map(|slot| snapshot.derive(&snapshot.rollup(slot, now).unwrap())).collect()
    }

    /// The state of the only root as `state/reason`.
    pub(crate) fn state(&self, now: Timestamp) -> String {
        let all = self.derived(now);
        assert_eq!(all.len(), 1);
        words(all[0])
    }
}

pub(crate) fn words(derived: Derived) -> String {
    format!("{}/{}", derived.state.as_str(), derived.reason.as_str())
}
