//! A home folder, a running source over it, and what came out.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::{
    ActivityClass, Batch, Event, Fact, Id, Reducer, SessionId, SourceHealth, SourceId, reduce::Runners,
};
use agent_session_exporter::ingest::locks::Probe;
use agent_session_exporter::sources::files::{FileSource, Surroundings, start_in};
use agent_session_exporter::sources::{Context, Decode, DecodeError, Record};
use agent_session_exporter::telemetry::Telemetry;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// Long enough for a loaded machine; nothing waits that long unless it fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// The source under test.
pub(crate) const COUNTING: FileSource = FileSource {
    stream: agent_session_exporter::ingest::file_name,
    name: "counting",
    folder: ".counting",
    roots: &["sessions", "archived"],
    accepts: |name| {
        let name = name.to_string_lossy();
        name.starts_with("r-") && (name.ends_with(".jsonl") || name.ends_with(".jsonl.zst"))
    },
    stream_id: |name: &OsStr| Some(name.to_str()?.strip_prefix("r-")?.strip_suffix(".jsonl")?.to_owned()),
    lock_dir: Some("locks"),
    peeks: false,
    live: None,
    new: |opening| {
        let (source, reducer) = (opening.source.clone(), opening.reducer.clone());
        Box::new(Counting { source, reducer, session: None, count: 0, unknown: 0 })
    },
    restore: |opening, bytes| {
        let (source, reducer) = (opening.source.clone(), opening.reducer.clone());
        let (session, count): (Option<SessionId>, u64) = postcard::from_bytes(bytes).ok()?;
        Some(Box::new(Counting { source, reducer, session, count, unknown: 0 }))
    },
};

/// Makes `<count>:<text>` of each line; the first one names the session. `bad` is none, `?` an unknown kind. What
/// begins like an object has to be one.
struct Counting {
    source: SourceId,
    reducer: Arc<Reducer>,
    session: Option<SessionId>,
    count: u64,
    unknown: usize,
}

impl Decode for Counting {
    fn decode(&mut self, record: &Record<'_>, out: &mut Vec<Event>) -> Result<(), DecodeError> {
        let text = std::str::from_utf8(record.bytes).map_err(|_| DecodeError::Json)?;
        if text == "bad" || (text.starts_with('{') && serde_json::from_str::<Value>(text).is_err()) {
            return Err(DecodeError::Json);
        }
        self.unknown += usize::from(text == "?");
        self.count += 1;
        let session = self.session.get_or_insert_with(|| SessionId::from(text)).clone();
        let fact = Fact::Activity { class: ActivityClass::Work, message: false };
        let mut event = Event::new(&self.source, &session, record.observed, fact);
        event.id = Some(self.reducer.event_id(&self.source, session.as_str(), text));
        let short: String = text.chars().take(40).collect();
        event.request = Some(Id::from(format!("{}:{short}", self.count).as_str()));
        out.push(event);
        Ok(())
    }

    fn checkpoint(&self) -> Vec<u8> {
        postcard::to_allocvec(&(&self.session, self.count)).unwrap()
    }

    fn session(&self) -> Option<&SessionId> {
        self.session.as_ref()
    }

    fn unknown_kinds(&mut self) -> Vec<String> {
        vec!["question".to_owned(); std::mem::take(&mut self.unknown)]
    }
}

/// A home folder and everything that survives a run over it.
pub(crate) struct Home {
    folder: tempfile::TempDir,
    pub(crate) cursors: HashMap<u64, Vec<u8>>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) surroundings: Surroundings,
    pub(crate) clock: Clock,
}

/// A source that runs, and what it has sent.
pub(crate) struct Running<'a> {
    home: &'a mut Home,
    task: JoinHandle<()>,
    stop: watch::Sender<bool>,
    batches: mpsc::Receiver<Batch>,
    pub(crate) events: Vec<Event>,
    pub(crate) health: Vec<SourceHealth>,
}

impl Home {
    /// A home without any agent.
    pub(crate) fn empty() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            cursors: HashMap::new(),
            telemetry: Arc::new(Telemetry::new()),
            surroundings: Surroundings::default(),
            clock: Clock::system(),
        }
    }

    /// A home with the agent's folders.
    pub(crate) fn new() -> Self {
        let home = Self::empty();
        for folder in ["sessions/2026/08/01", "archived", "locks"] {
            fs::create_dir_all(home.path(folder)).unwrap();
        }
        home
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join(".counting").join(relative)
    }

    /// Path of a session's file.
    pub(crate) fn session(&self, id: &str) -> PathBuf {
        self.path(&format!("sessions/2026/08/01/r-{id}.jsonl"))
    }

    pub(crate) fn probe_at(&mut self, locks: &str, namespace: &str) {
        let link = self.folder.path().join("namespace");
        std::os::unix::fs::symlink(namespace, &link).unwrap();
        self.surroundings.probe = Probe { locks: locks.into(), namespace: link };
    }

    pub(crate) fn start(&mut self) -> Running<'_> {
        self.start_with(COUNTING, 64)
    }

    pub(crate) fn start_with(&mut self, source: FileSource, room: usize) -> Running<'_> {
        let (out, batches) = mpsc::channel(room);
        let (stop, stopped) = watch::channel(false);
        let context = Context {
            homes: vec![self.folder.path().to_owned()],
            roots: Vec::new(),
            live: Default::default(),
            machine: String::new(),
            max_age: Duration::from_secs(7 * 24 * 3600),
            reducer: Arc::new(Reducer::new([3; 16], Runners::default())),
            out,
            cursors: self.cursors.clone(),
            telemetry: self.telemetry.clone(),
            clock: self.clock,
            stop: stopped,
        };
        let task = start_in(source, context, self.surroundings.clone());
        Running { home: self, task, stop, batches, events: Vec::new(), health: Vec::new() }
    }

    /// One run: until everything there is has been read.
    pub(crate) async fn once(&mut self) -> Vec<Event> {
        let mut running = self.start();
        running.until(|r| r.health.iter().any(|h| h.scanned)).await;
        running.end().await
    }

    /// Roots that are watched, and roots that are polled.
    pub(crate) fn watched(&self) -> (i64, i64) {
        let roots = |mode| self.telemetry.watched_roots.with_label_values(&[mode]).get();
        (roots("inotify"), roots("polling"))
    }

    /// Counts of `decode_errors_total` by reason.
    pub(crate) fn errors(&self, reason: &str) -> u64 {
        self.telemetry.decode_errors.with_label_values(&["counting", reason]).get()
    }
}

impl Running<'_> {
    /// Takes one batch, if one comes in time.
    pub(crate) async fn take(&mut self, within: Duration) -> bool {
        let Ok(Some(batch)) = tokio::time::timeout(within, self.batches.recv()).await else { return false };
        self.events.extend(batch.events);
        for cursor in batch.cursors {
            match cursor.value {
                Some(value) => self.home.cursors.insert(cursor.key, value),
                None => self.home.cursors.remove(&cursor.key),
            };
        }
        self.health.extend(batch.health);
        true
    }

    /// Takes batches until something holds.
    pub(crate) async fn until(&mut self, holds: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            let left = PATIENCE.saturating_sub(began.elapsed());
            assert!(self.take(left).await, "waited in vain; saw {:?}", self.texts());
        }
    }

    pub(crate) async fn scanned(&mut self) {
        self.until(|r| r.health.iter().any(|h| h.scanned)).await;
    }

    /// Takes batches until this many events came.
    pub(crate) async fn events(&mut self, n: usize) {
        self.until(|r| r.events.len() >= n).await;
    }

    /// Takes what comes for a while in which nothing is expected.
    pub(crate) async fn rest(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while self.take(until.saturating_duration_since(Instant::now())).await {}
    }

    pub(crate) fn texts(&self) -> Vec<String> {
        texts(&self.events)
    }

    pub(crate) fn home(&self) -> &Home {
        self.home
    }

    /// Stops the source in order and takes the rest.
    pub(crate) async fn end(mut self) -> Vec<Event> {
        self.stop.send(true).unwrap();
        while self.take(PATIENCE).await {}
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap();
        self.events
    }
}

/// Whether this is a process for this test alone, whose memory and time are the test's. If not, runs it in one.
pub(crate) fn alone(test: &str) -> bool {
    const IN_CHILD: &str = "EXPORTER_TEST_ALONE";
    if std::env::var_os(IN_CHILD).is_some() {
        return true;
    }
    #[expect(clippy::disallowed_methods, reason = "memory and time are counted for a process")]
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let status = child.args(["--exact", test, "--nocapture"]).env(IN_CHILD, "1").status().unwrap();
    assert!(status.success(), "{test}, alone");
    false
}

/// A runtime for a test that is not made by the macro.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// What the events say: the decoder's word, or the type of a fact of the runner's own.
pub(crate) fn texts(events: &[Event]) -> Vec<String> {
    let text = |e: &Event| match (&e.request, &e.fact) {
        (Some(text), _) => text.as_str().to_owned(),
        (None, Fact::Writer(writer)) => format!("writer {}", writer.as_str()),
        (None, fact) => fact.type_name().to_owned(),
    };
    events.iter().map(text).collect()
}

pub(crate) fn append(path: &Path, bytes: impl AsRef<[u8]>) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(bytes.as_ref()).unwrap();
}

/// Makes a file look as if it had last been written then.
pub(crate) fn age(path: &Path, days: i64) {
    let now = u64::try_from(Clock::system().now().as_millis() - days * 24 * 3600 * 1000).unwrap();
    let file = File::options().append(true).open(path).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + Duration::from_millis(now)).unwrap();
}

pub(crate) fn compress(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

/// Texts without their counts, sorted: what was read, in whatever order.
pub(crate) fn bare(events: &[Event]) -> Vec<String> {
    let mut all: Vec<_> =
        texts(events).iter().map(|t| t.split_once(':').map_or(t.as_str(), |(_, t)| t).to_owned()).collect();
    all.sort();
    all
}

/// Lines `<from>` to `<to>` as text.
pub(crate) fn lines(from: usize, to: usize) -> String {
    (from..=to).map(|i| format!("line {i}\n")).collect()
}

/// What the counting decoder makes of [`lines`].
pub(crate) fn counted(from: usize, to: usize) -> Vec<String> {
    (from..=to).map(|i| format!("{i}:line {i}")).collect()
}
