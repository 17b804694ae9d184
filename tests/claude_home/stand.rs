//! A `.claude` folder, the real runner over it with a `/proc` of the test's own, and the store behind.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{Reducer, SourceId, Timestamp};
use agent_session_exporter::session::counts::TokenKind;
use agent_session_exporter::session::{Count, Facts, Snapshot};
use agent_session_exporter::sources::Context;
use agent_session_exporter::sources::claude_code::{DEF, Existence, FILES, Probe, Registry};
use agent_session_exporter::sources::files::{FileSource, Live, Surroundings, start_in};
use agent_session_exporter::store::{Options, db};
use agent_session_exporter::telemetry::Telemetry;
use agent_session_exporter::views::prometheus::{Format, Renderer};
use tokio::sync::watch;

use crate::common::disk::Disk;
use crate::common::owner::{self, KEY, LONG, Life, all_facts, options, sums};
use crate::exposition::{Dialect, Family, parse};

/// A day after the newest recording was made.
pub(crate) const LATER: Timestamp = Timestamp::from_millis(1_796_060_000_000);
const YEARS: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Facts of all sessions without the moments of reading, and all sums.
pub(crate) type Known = (BTreeMap<(String, String), Facts>, BTreeMap<String, i64>);

/// What survives a run.
pub(crate) struct Home {
    folder: tempfile::TempDir,
    disk: Disk,
    pub(crate) clock: Clock,
    /// When the store is created.
    pub(crate) created: Timestamp,
}

/// A run: source and store.
pub(crate) struct Running<'a> {
    pub(crate) home: &'a Home,
    pub(crate) life: Life,
    stop: watch::Sender<bool>,
    runtime: Background,
    task: tokio::task::JoinHandle<()>,
}

/// A runtime that a failing test does not wait for.
struct Background(Option<tokio::runtime::Runtime>);

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The source as it is, but for the processes it asks about.
const HERE: FileSource = FileSource { live: Some(look_here), ..FILES };

fn look_here(folder: &Path, source: SourceId, reducer: Arc<Reducer>, kept: Option<&[u8]>) -> Box<dyn Live> {
    let proc = folder.parent().unwrap().join("proc");
    let probe = Probe { proc, exists: |_| Existence::Absent };
    Box::new(Registry::new(folder, source, reducer, kept).with_probe(probe))
}

pub(crate) fn source() -> SourceId {
    SourceId::from(DEF.name)
}

pub(crate) fn reducer() -> Arc<Reducer> {
    Arc::new(Reducer::new([7; 16], Runners::default()))
}

/// A clock that now shows this moment.
pub(crate) fn clock_at(moment: Timestamp) -> Clock {
    Clock::shifted(moment.since(Clock::system().now()))
}

/// A file of the fixtures.
pub(crate) fn fixture(path: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path);
    fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A transcript of the recordings.
pub(crate) fn recording(name: &str) -> Vec<u8> {
    fixture(&format!("claude_code/{name}.jsonl"))
}

// === impl Home ===

impl Home {
    /// The store exists since long ago: all that is recorded counts.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let home = Self {
            folder,
            disk: Disk::default(),
            clock: clock_at(LATER),
            created: Timestamp::from_millis(0),
        };
        fs::create_dir_all(home.path("projects")).unwrap();
        fs::create_dir_all(home.path("sessions")).unwrap();
        home
    }

    /// Below the agent's folder.
    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join("home/.claude").join(relative)
    }

    /// The kernel's folder of processes.
    pub(crate) fn proc(&self) -> PathBuf {
        self.folder.path().join("home/proc")
    }

    /// A transcript's place below the project folders.
    pub(crate) fn place(&self, relative: &str) -> PathBuf {
        self.path("projects").join(relative)
    }

    /// Writes behind what is there.
    pub(crate) fn append(&self, relative: &str, bytes: &[u8]) {
        append(&self.place(relative), bytes);
    }

    /// Makes a file look as if it had last been written so many minutes before the clock's now.
    pub(crate) fn age(&self, relative: &str, minutes: i64) {
        let ms = u64::try_from(self.clock.now().as_millis() - minutes * 60_000).unwrap();
        let file = File::options().append(true).open(self.place(relative)).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_millis(ms)).unwrap();
    }

    pub(crate) fn start(&self) -> Running<'_> {
        let opened = db::open(&self.disk.backend(), KEY, self.created).unwrap().unwrap();
        let options = Options {
            capabilities: [(source(), DEF.capabilities)].into(),
            expected_scans: vec![source()],
            file_sources: vec![source()],
            retention: YEARS,
            ..options()
        };
        let life = Life::at(opened, options, self.clock);
        let (stop, stopped) = watch::channel(false);
        let context = Context {
            homes: vec![self.folder.path().join("home")],
            roots: Vec::new(),
            live: Default::default(),
            machine: String::new(),
            max_age: YEARS,
            reducer: reducer(),
            out: life.store.files.clone(),
            cursors: life.store.cursors.clone(),
            telemetry: life.telemetry.clone(),
            clock: self.clock,
            stop: stopped,
        };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let entered = runtime.enter();
        let task = start_in(HERE, context, Surroundings::default());
        drop(entered);
        Running { home: self, life, runtime: Background(Some(runtime)), task, stop }
    }

    /// One run: until everything there is has been read.
    pub(crate) fn once(&self) -> Arc<Snapshot> {
        let running = self.start();
        running.settle();
        running.end()
    }
}

// === impl Running ===

impl Running<'_> {
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
        self.life.until(what, wanted)
    }

    /// Records read so far, again those that were read anew.
    pub(crate) fn records(&self) -> u64 {
        self.life.telemetry.records.with_label_values(&[DEF.name]).get()
    }

    /// Waits until so many more records were read than `before`.
    pub(crate) fn read_since(&self, before: u64, more: usize) -> Arc<Snapshot> {
        self.until("records", |_| self.records() >= before + more as u64);
        self.settle()
    }

    /// Waits until the first scan is over and nothing more is read.
    pub(crate) fn settle(&self) -> Arc<Snapshot> {
        self.until("scanned", |s| s.scanned);
        let started = Instant::now();
        let mut last = (self.records(), Instant::now());
        while last.1.elapsed() < Duration::from_millis(120) {
            std::thread::sleep(Duration::from_millis(10));
            if self.records() != last.0 {
                last = (self.records(), Instant::now());
            }
            assert!(started.elapsed() < LONG, "it never ceases to read");
        }
        self.life.snapshot()
    }

    /// Waits until a session is in a state.
    pub(crate) fn until_state(&self, session: &str, wanted: &str) -> Arc<Snapshot> {
        let started = Instant::now();
        loop {
            let snapshot = self.life.snapshot();
            let state = state(&snapshot, session, self.home.clock.now());
            if state.as_deref() == Some(wanted) {
                return snapshot;
            }
            assert!(started.elapsed() < LONG, "{session} is {state:?}, never {wanted}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends in order: the source, then the store.
    pub(crate) fn end(self) -> Arc<Snapshot> {
        self.stop.send(true).unwrap();
        let task = self.task;
        let ends = async { tokio::time::timeout(LONG, task).await.unwrap().unwrap() };
        self.runtime.0.as_ref().unwrap().block_on(ends);
        self.life.end()
    }

    pub(crate) fn errors(&self, reason: &str) -> u64 {
        self.life.telemetry.decode_errors.with_label_values(&[DEF.name, reason]).get()
    }
}

pub(crate) fn append(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    OpenOptions::new().append(true).create(true).open(path).unwrap().write_all(bytes).unwrap();
}

pub(crate) fn known(snapshot: &Snapshot) -> Known {
    let mut all = all_facts(snapshot);
    for facts in all.values_mut() {
        facts.first_seen = LATER;
        facts.writer = None;
    }
    (all, sums(snapshot))
}

/// Compares piece by piece, so that a difference can be read.
pub(crate) fn assert_same(how: &str, got: &Known, wanted: &Known) {
    let names = |known: &Known| known.0.keys().map(|(_, s)| s.clone()).collect::<Vec<_>>();
    assert_eq!(names(got), names(wanted), "{how}");
    for (key, facts) in &wanted.0 {
        assert_eq!(got.0.get(key), Some(facts), "{how}: {}", key.1);
    }
    assert_eq!(got.1, wanted.1, "{how}");
}

pub(crate) fn facts(snapshot: &Snapshot, session: &str) -> Option<Arc<Facts>> {
    owner::facts(snapshot, DEF.name, session)
}

/// `state/reason` of a session's tree at a moment.
pub(crate) fn state(snapshot: &Snapshot, session: &str, now: Timestamp) -> Option<String> {
    let slot = snapshot.find(&source(), &session.into())?;
    let derived = snapshot.derive(&snapshot.rollup(slot, now)?);
    Some(format!("{}/{}", derived.state.as_str(), derived.reason.as_str()))
}

/// Tokens of one kind over all models.
pub(crate) fn tokens(snapshot: &Snapshot, kind: TokenKind) -> i64 {
    count(snapshot, |c| matches!(c, Count::Tokens(_, _, k) if *k == kind))
}

/// The sum of all counts of a kind.
pub(crate) fn count(snapshot: &Snapshot, wanted: impl Fn(&Count) -> bool) -> i64 {
    let sums = snapshot.aggregates.sums.iter();
    sums.filter(|((_, _, c), _)| wanted(c)).map(|(_, sum)| sum.exact()).sum()
}

/// Calls of a tool.
pub(crate) fn calls(snapshot: &Snapshot, tool: &str) -> i64 {
    count(snapshot, |c| matches!(c, Count::ToolCall(name, _) if name.as_str() == tool))
}

/// Sessions that are no sub-agents.
pub(crate) fn roots(snapshot: &Snapshot) -> usize {
    snapshot.roots().count()
}

/// What a scrape gives, checked strictly.
pub(crate) fn scrape(snapshot: &Snapshot, now: Timestamp) -> Vec<Family> {
    let renderer = Renderer::new(Default::default(), Arc::new(Telemetry::new()));
    let body = renderer.render(snapshot, now, Format::Text);
    parse(&body, Dialect::Text).unwrap_or_else(|e| panic!("{e}\n{}", String::from_utf8_lossy(&body)))
}

/// The sessions that have series.
pub(crate) fn shown(families: &[Family]) -> Vec<String> {
    let info = families.iter().find(|f| f.name == "agent_session_info");
    info.into_iter().flat_map(|f| &f.samples).map(|s| s.label("session").to_owned()).collect()
}
