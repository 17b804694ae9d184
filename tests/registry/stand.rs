//! An agent folder, a `/proc` and a clock of the test's own; what the registry says is folded as the owner task would.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{
    ActionKind, Event, Fact, Id, Reducer, SessionId, SourceId, Timestamp, Trigger, TurnOutcome, Writer,
};
use agent_session_exporter::session::snapshot::Tree;
use agent_session_exporter::session::{Aggregates, Facts, Session, Snapshot};
use agent_session_exporter::sources::claude_code::{Existence, Probe, Registry};
use agent_session_exporter::sources::files::Live as _;
use tempfile::TempDir;

pub(crate) const NAMESPACE: &str = "pid:[4026531836]";
pub(crate) const BOOT_ID: &str = "31b3f95d-9e5e-4bf4-9caa-366a99cd4274";
/// The machine of the recordings was started then, by `startedAt` and `procStart`.
pub(crate) const BOOT_MS: i64 = 1_795_964_420_000;
/// A moment like those of the recordings.
pub(crate) const T: i64 = 1_795_966_000_000;

pub(crate) struct Stand {
    pub(crate) agent: TempDir,
    pub(crate) proc: TempDir,
    pub(crate) exists: fn(i32) -> Existence,
    /// When the machine was started.
    pub(crate) booted: i64,
    registry: Option<Registry>,
    kept: Option<Vec<u8>>,
    sessions: BTreeMap<SessionId, Session>,
    /// The turn that was begun last.
    request: Option<Id>,
    ids: std::collections::HashSet<u64>,
    /// Everything that was said, each once.
    pub(crate) events: Vec<Event>,
    pub(crate) now: Timestamp,
}

pub(crate) fn source() -> SourceId {
    SourceId::from("claude_code")
}

pub(crate) fn ms(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

pub(crate) fn reducer() -> Arc<Reducer> {
    Arc::new(Reducer::new([7; 16], Runners::default()))
}

/// A file's content as the agent writes it, with a status that stands since `at`.
pub(crate) fn content(pid: i32, session: &str, status: &str, at: i64) -> String {
    let waiting = if status == "waiting" { r#","waitingFor":"permission prompt""# } else { "" };
    format!(
        r#"{{"pid":{pid},"sessionId":"{session}","cwd":"/home/dev/project","startedAt":{T},"procStart":"{}",
        "version":"2.1.332","entrypoint":"cli","pidDomain":"linux:{BOOT_ID}:{NAMESPACE}","status":"{status}",
        "updatedAt":{at},"statusUpdatedAt":{at}{waiting}}}"#,
        start_of(pid),
    )
}

/// Start time of every process of these tests, in ticks.
pub(crate) fn start_of(pid: i32) -> u64 {
    150_000 + u64::from(pid.unsigned_abs())
}

impl Stand {
    pub(crate) fn new() -> Self {
        let stand = Self {
            agent: tempfile::tempdir().unwrap(),
            proc: tempfile::tempdir().unwrap(),
            exists: |_| Existence::Absent,
            booted: BOOT_MS,
            registry: None,
            kept: None,
            sessions: BTreeMap::new(),
            request: None,
            ids: std::collections::HashSet::new(),
            events: Vec::new(),
            now: ms(T),
        };
        fs::create_dir(stand.folder()).unwrap();
        fs::create_dir_all(stand.proc.path().join("self/ns")).unwrap();
        symlink(NAMESPACE, stand.proc.path().join("self/ns/pid")).unwrap();
        fs::create_dir_all(stand.proc.path().join("sys/kernel/random")).unwrap();
        stand.boot(BOOT_ID);
        stand
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.agent.path().join("sessions")
    }

    pub(crate) fn path(&self, pid: i32) -> PathBuf {
        self.folder().join(format!("{pid}.json"))
    }

    pub(crate) fn boot(&self, id: &str) {
        fs::write(self.proc.path().join("sys/kernel/random/boot_id"), format!("{id}\n")).unwrap();
    }

    pub(crate) fn write(&self, pid: i32, content: &str) {
        fs::write(self.path(pid), content).unwrap();
    }

    pub(crate) fn status(&self, pid: i32, session: &str, status: &str) {
        self.write(pid, &content(pid, session, status, self.now.as_millis()));
    }

    pub(crate) fn remove(&self, pid: i32) {
        fs::remove_file(self.path(pid)).unwrap();
    }

    /// A process that lives, with a name that is no help.
    pub(crate) fn live(&self, pid: i32, start: u64) {
        self.process(pid, 'S', start);
    }

    pub(crate) fn process(&self, pid: i32, state: char, start: u64) {
        let folder = self.proc.path().join(pid.to_string());
        fs::create_dir_all(&folder).unwrap();
        let zeros = "0 ".repeat(18);
        fs::write(folder.join("stat"), format!("{pid} (cl) a ) 7 (ude) {state} {zeros}{start} 1 2\n"))
            .unwrap();
    }

    pub(crate) fn kill(&self, pid: i32) {
        fs::remove_dir_all(self.proc.path().join(pid.to_string())).unwrap();
    }

    /// The exporter ends; the next look is a new one's.
    pub(crate) fn restart(&mut self) {
        self.registry = None;
    }

    pub(crate) fn kept_bytes(&self) -> usize {
        self.kept.as_ref().map_or(0, Vec::len)
    }

    pub(crate) fn lose_what_was_kept(&mut self) {
        (self.registry, self.kept) = (None, None);
    }

    /// Looks at a moment.
    pub(crate) fn look_at(&mut self, at: i64) -> Vec<Event> {
        self.now = ms(at);
        let uptime = (at - self.booted) as f64 / 1000.0;
        fs::write(self.proc.path().join("uptime"), format!("{uptime:.2} 0.00\n")).unwrap();
        self.look()
    }

    /// Looks a second later.
    pub(crate) fn next(&mut self) -> Vec<Event> {
        self.look_at(self.now.as_millis() + 1000)
    }

    fn look(&mut self) -> Vec<Event> {
        let registry = self.registry.get_or_insert_with(|| {
            Registry::new(self.agent.path(), source(), reducer(), self.kept.as_deref())
                .with_probe(Probe { proc: self.proc.path().to_owned(), exists: self.exists })
        });
        let mut out = Vec::new();
        registry.look(self.now, &mut out);
        if let Some(kept) = registry.changed() {
            self.kept = Some(kept);
        }
        self.take(out.clone());
        out
    }

    pub(crate) fn take(&mut self, events: Vec<Event>) {
        for event in events {
            if event.id.is_some_and(|id| !self.ids.insert(id)) {
                continue;
            }
            self.events.push(event.clone());
            let session = event.session.clone();
            let new = || Session::new(Facts::new(source(), session.clone(), event.observed));
            self.sessions.entry(session.clone()).or_insert_with(new).apply(event, Timestamp::default());
        }
    }

    /// What the transcript tells of turns.
    pub(crate) fn turn(&mut self, session: &str, at: i64, begins: bool) {
        let fact = if begins {
            Fact::TurnStarted { trigger: Trigger::Person }
        } else {
            let (outcome, result_known) = (TurnOutcome::Completed, true);
            Fact::TurnEnded { outcome, error: None, reset: None, denied: false, result_known }
        };
        let mut event = Event::new(&source(), &SessionId::from(session), ms(at), fact);
        event.time = Some(ms(at));
        if begins {
            self.request = Some(Id::from(format!("turn-{at}").as_str()));
        }
        event.request.clone_from(&self.request);
        self.take(vec![event]);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let sessions: Vec<_> = self.sessions.values().map(|s| Some(s.facts().clone())).collect();
        Snapshot {
            tree: Arc::new(Tree::of(&sessions)),
            sessions,
            aggregates: Arc::new(Aggregates::default()),
            scanned: true,
            ..Snapshot::default()
        }
    }

    pub(crate) fn facts(&self, session: &str) -> Arc<Facts> {
        self.sessions.get(&SessionId::from(session)).expect("the session is known").facts().clone()
    }

    pub(crate) fn knows(&self, session: &str) -> bool {
        self.sessions.contains_key(&SessionId::from(session))
    }

    /// `state/reason` now.
    pub(crate) fn state(&self, session: &str) -> String {
        let derived = self.derived(session);
        format!("{}/{}", derived.state.as_str(), derived.reason.as_str())
    }

    pub(crate) fn derived(&self, session: &str) -> agent_session_exporter::session::Derived {
        let snapshot = self.snapshot();
        let found = snapshot.roots().find(|slot| {
            snapshot.rollup(*slot, self.now).is_some_and(|r| r.root.session.as_str() == session)
        });
        snapshot.derive(&snapshot.rollup(found.expect("the session is a root"), self.now).unwrap())
    }

    /// What was said of a session's writers, in order.
    pub(crate) fn writers(&self, session: &str) -> Vec<Writer> {
        let of = |e: &Event| match e.fact {
            Fact::Writer(writer) if e.session.as_str() == session => Some(writer),
            _ => None,
        };
        self.events.iter().filter_map(of).collect()
    }

    /// Kinds and beginnings of the requests that were made.
    pub(crate) fn asked(&self, session: &str) -> Vec<(ActionKind, i64)> {
        let of = |e: &Event| match e.fact {
            Fact::Dialog { kind, .. } if e.session.as_str() == session => {
                Some((kind, e.time.unwrap().as_millis()))
            }
            _ => None,
        };
        self.events.iter().filter_map(of).collect()
    }
}

/// A recording: moments, with the file that changed and its content or that it was removed.
pub(crate) fn recording(name: &str) -> Vec<(i64, i32, Option<String>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/claude_code");
    let text = fs::read_to_string(folder.join(format!("{name}.sessions.ndjson"))).unwrap();
    let line = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let pid = value["file"].as_str().unwrap().strip_suffix(".json").unwrap().parse().unwrap();
        let content = &value["content"];
        (value["t"].as_i64().unwrap(), pid, (!content.is_null()).then(|| content.to_string()))
    };
    text.lines().map(line).collect()
}

/// Names of all recordings.
pub(crate) fn recordings() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/claude_code");
    let names = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> =
        names.filter_map(|n| n.strip_suffix(".sessions.ndjson").map(str::to_owned)).collect();
    names.sort();
    names
}
