//! A home folder, the real runner over it, and the store behind: from bytes on disk to a published snapshot.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::{SourceId, Timestamp};
use agent_session_exporter::ingest::locks::Probe;
use agent_session_exporter::session::{Facts, Snapshot};
use agent_session_exporter::sources::Context;
use agent_session_exporter::sources::codex::{DEF, FILES};
use agent_session_exporter::sources::files::{Surroundings, start_in};
use agent_session_exporter::store::{Options, db};
use agent_session_exporter::telemetry::Telemetry;
use agent_session_exporter::views::prometheus::{Format, Renderer};
use tokio::sync::watch;

use super::folded::{reducer, source, words};
use crate::common::disk::Disk;
use crate::common::owner::{KEY, LONG, Life, options};
use crate::exposition::{Dialect, Family, parse};

/// The day after the recordings were made.
pub(crate) const NEXT_DAY: Timestamp = Timestamp::from_millis(1_796_040_000_000);
const YEARS: Duration = Duration::from_secs(100 * 365 * 86_400);

/// What survives a run.
pub(crate) struct Home {
    folder: tempfile::TempDir,
    disk: Disk,
    pub(crate) clock: Clock,
    /// When the store is created.
    pub(crate) created: Timestamp,
    /// Homes below the folder that are searched.
    pub(crate) homes: Vec<&'static str>,
    /// Agent folders below it that are named by the configuration.
    pub(crate) roots: Vec<&'static str>,
    pub(crate) max_age: Duration,
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

/// A clock that now shows this moment.
pub(crate) fn clock_at(moment: Timestamp) -> Clock {
    Clock::shifted(moment.since(Clock::system().now()))
}

impl Home {
    /// The store exists since long ago: all that is recorded counts.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("pid:[4026531836]", folder.path().join("namespace")).unwrap();
        let home = Self {
            folder,
            disk: Disk::default(),
            clock: clock_at(NEXT_DAY),
            created: Timestamp::from_millis(0),
            homes: vec!["home"],
            roots: Vec::new(),
            max_age: YEARS,
        };
        fs::create_dir_all(home.path("home/.codex/archived_sessions")).unwrap();
        fs::create_dir_all(home.path("home/.codex/thread-writer-locks")).unwrap();
        fs::create_dir_all(home.rollout("x").parent().unwrap()).unwrap();
        home
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join(relative)
    }

    /// Where the file of a thread lies.
    pub(crate) fn rollout(&self, thread: &str) -> PathBuf {
        self.path(&format!("home/.codex/sessions/2026/11/29/rollout-2026-11-29T15-00-00-{thread}.jsonl"))
    }

    pub(crate) fn archived(&self, thread: &str) -> PathBuf {
        self.path(&format!("home/.codex/archived_sessions/rollout-2026-11-29T15-00-00-{thread}.jsonl"))
    }

    pub(crate) fn lock(&self, thread: &str) -> PathBuf {
        self.path(&format!("home/.codex/thread-writer-locks/{thread}.lock"))
    }

    /// Puts a recording where its thread's file lies; returns the thread.
    pub(crate) fn put(&self, bytes: &[u8]) -> String {
        let thread = thread(bytes);
        append(&self.rollout(&thread), bytes);
        thread
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
            homes: self.homes.iter().map(|h| self.path(h)).collect(),
            roots: self.roots.iter().map(|r| self.path(r)).collect(),
            live: Default::default(),
            machine: String::new(),
            max_age: self.max_age,
            reducer: reducer(),
            out: life.store.files.clone(),
            cursors: life.store.cursors.clone(),
            telemetry: life.telemetry.clone(),
            clock: self.clock,
            stop: stopped,
        };
        let probe = Probe { namespace: self.path("namespace"), ..Probe::default() };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let entered = runtime.enter();
        let task = start_in(FILES, context, Surroundings { probe, ..Surroundings::default() });
        drop(entered);
        Running { home: self, life, runtime: Background(Some(runtime)), task, stop }
    }

    /// One run: until everything there is has been read.
    pub(crate) fn once(&self) -> Arc<Snapshot> {
        let running = self.start();
        running.until("scanned", |s| s.scanned);
        running.end()
    }
}

impl Running<'_> {
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
        self.life.until(what, wanted)
    }

    /// Waits until a session is in a state.
    pub(crate) fn until_state(&self, thread: &str, wanted: &str) -> Arc<Snapshot> {
        let started = Instant::now();
        loop {
            let snapshot = self.life.snapshot();
            let state = state(&snapshot, thread, self.home.clock.now());
            if state.as_deref() == Some(wanted) {
                return snapshot;
            }
            assert!(started.elapsed() < LONG, "{thread} is {state:?}, never {wanted}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Time in which nothing is expected.
    pub(crate) fn rest(&self, millis: u64) -> Arc<Snapshot> {
        std::thread::sleep(Duration::from_millis(millis));
        self.life.snapshot()
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
        self.life.telemetry.decode_errors.with_label_values(&["codex", reason]).get()
    }
}

/// The thread a recording is about.
pub(crate) fn thread(bytes: &[u8]) -> String {
    let head = bytes.split(|b| *b == b'\n').next().unwrap();
    let head: serde_json::Value = serde_json::from_slice(head).unwrap();
    let id = head["payload"]["id"].as_str().or(head["id"].as_str());
    id.unwrap().to_owned()
}

pub(crate) fn facts(snapshot: &Snapshot, thread: &str) -> Option<Arc<Facts>> {
    crate::common::owner::facts(snapshot, "codex", thread)
}

pub(crate) fn state(snapshot: &Snapshot, thread: &str, now: Timestamp) -> Option<String> {
    let slot = snapshot.find(&SourceId::from("codex"), &thread.into())?;
    Some(words(snapshot.derive(&snapshot.rollup(slot, now)?)))
}

pub(crate) fn append(path: &Path, bytes: impl AsRef<[u8]>) {
    OpenOptions::new().append(true).create(true).open(path).unwrap().write_all(bytes.as_ref()).unwrap();
}

/// Makes a file look as if it had last been written so many days before the clock's now.
pub(crate) fn age(path: &Path, clock: Clock, days: i64) {
    let ms = u64::try_from(clock.now().as_millis() - days * 86_400_000).unwrap();
    let file = File::options().append(true).open(path).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + Duration::from_millis(ms)).unwrap();
}

/// Index of the line behind the first one that holds this text.
pub(crate) fn behind(bytes: &[u8], text: &str) -> usize {
    let at = bytes.windows(text.len()).position(|w| w == text.as_bytes()).unwrap();
    at + bytes[at..].iter().position(|b| *b == b'\n').unwrap() + 1
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
