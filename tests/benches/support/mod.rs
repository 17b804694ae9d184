//! Shared by the benches: a whole exporter in this process on loopback, a client that keeps its connection, made-up
//! events, and tables of ratios. Nothing here asserts a time: a number stands beside its baseline of the same run.

#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used, reason = "each bench uses its part")]

pub mod work;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{Capabilities, Capability, Reducer, SourceId};
use agent_session_exporter::session::{Snapshot, Thresholds};
use agent_session_exporter::sources::{self, LIST, push};
use agent_session_exporter::store;
use agent_session_exporter::store::spool::Keep;
use agent_session_exporter::telemetry::Telemetry;
use agent_session_exporter::views::prometheus::{self, Renderer};
use agent_session_exporter::views::selection;

/// A running exporter.
pub struct Running {
    pub address: String,
    /// Ends the sources; the rest ends with the runtime.
    pub stop: tokio::sync::watch::Sender<bool>,
    pub snapshots: tokio::sync::watch::Receiver<Arc<Snapshot>>,
    pub runtime: tokio::runtime::Runtime,
    pub folder: tempfile::TempDir,
}

/// Starts store, push route and metrics route on loopback, without sources that read.
pub fn start(max_sessions: usize) -> Running {
    start_reading(max_sessions, None, &[])
}

/// The same, which builds spans and keeps them for a collector that never comes.
pub fn start_traced(max_sessions: usize) -> Running {
    let keep = Keep { spans: true, logs: true, max_items: 1_000_000, max_bytes: 1 << 30 };
    start_all(max_sessions, None, &[], Some(keep))
}

/// The same with these sources over a home folder.
pub fn start_reading(max_sessions: usize, home: Option<&Path>, names: &[&str]) -> Running {
    start_all(max_sessions, home, names, None)
}

fn start_all(max_sessions: usize, home: Option<&Path>, names: &[&str], spool: Option<Keep>) -> Running {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::system();
    let telemetry = Arc::new(Telemetry::new());
    let reducer = Arc::new(Reducer::new([3; 16], Runners::default()));
    store::db::prepare_folder(folder.path()).unwrap();
    let opened = store::db::open_folder(folder.path(), 1, clock.now()).unwrap();
    let reading: Vec<_> = LIST.iter().filter(|def| names.contains(&def.name)).collect();
    let ids = || reading.iter().map(|def| SourceId::from(def.name)).collect::<Vec<_>>();
    let options = store::Options {
        max_tracked: 50_000,
        retention: Duration::from_secs(7 * 86_400),
        thresholds: Thresholds::default(),
        capabilities: reading.iter().map(|def| (SourceId::from(def.name), def.capabilities)).collect(),
        pushed: Capabilities::of(Capability::ALL).without(Capability::Liveness),
        expected_scans: ids(),
        see_stops: Default::default(),
        retell: Default::default(),
        file_sources: ids(),
        read_only_agents: Vec::new(),
        spool,
        folder: Some(folder.path().to_owned()),
        traced: spool.is_some(),
    };
    let store = store::spawn(opened, options, clock, reducer.clone(), telemetry.clone()).unwrap();
    let stop = tokio::sync::watch::Sender::new(false);
    let entered = runtime.enter();
    for start in reading.iter().filter_map(|def| def.start) {
        drop(start(sources::Context {
            homes: home.into_iter().map(Path::to_owned).collect(),
            roots: Vec::new(),
            live: Default::default(),
            machine: String::new(),
            max_age: Duration::from_secs(7 * 86_400),
            reducer: reducer.clone(),
            out: store.files.clone(),
            cursors: store.cursors.clone(),
            telemetry: telemetry.clone(),
            clock,
            stop: stop.subscribe(),
        }));
    }
    drop(entered);
    let renderer =
        Arc::new(Renderer::new(selection::Options { max_sessions, ..Default::default() }, telemetry.clone()));
    let push = push::Push::new(store.live.clone(), reducer, telemetry, clock, push::Options::default());
    let snapshots = store.snapshots.clone();
    let seen = snapshots.clone();
    let metrics = axum::routing::get(move || {
        let (renderer, seen) = (renderer.clone(), seen.clone());
        async move {
            let snapshot = seen.borrow().clone();
            axum::body::Bytes::from_owner(renderer.body(&snapshot, clock.now(), prometheus::Format::Text))
        }
    });
    let router = push::router(push).route("/metrics", metrics);
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    runtime.spawn(async move { axum::serve(listener, router).await });
    Running { address, stop, snapshots, runtime, folder }
}

impl Running {
    /// Waits until everything the sources found at first has been read and kept.
    pub fn scanned(&self) {
        let mut seen = self.snapshots.clone();
        self.runtime.block_on(async { seen.wait_for(|s| s.scanned).await.map(drop) }).unwrap();
    }
}

/// A client that keeps its connection.
pub struct Client {
    reader: BufReader<TcpStream>,
    address: String,
}

impl Client {
    pub fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { reader: BufReader::with_capacity(1 << 20, stream), address: address.to_owned() }
    }

    pub fn push(&mut self, body: &[u8]) -> u16 {
        let head = format!(
            "POST /api/v1/events HTTP/1.1\r\nhost: {}\r\ncontent-type: application/x-ndjson\r\ncontent-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        self.exchange(&head, body).0
    }

    pub fn get(&mut self, path: &str) -> (u16, Vec<u8>) {
        let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", self.address);
        self.exchange(&head, b"")
    }

    fn exchange(&mut self, head: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let stream = self.reader.get_mut();
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        let mut length = 0;
        loop {
            line.clear();
            self.reader.read_line(&mut line).unwrap();
            if line.trim_end().is_empty() {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut answer = vec![0; length];
        self.reader.read_exact(&mut answer).unwrap();
        (status, answer)
    }
}

/// One line of about 250 bytes: a call begins or ends, tokens are used, an edit lands.
pub fn line(host: usize, n: usize, sessions: usize, time_ms: i64) -> String {
    let session = host * sessions + n % sessions;
    let step = n / sessions;
    let (kind, data) = match step % 4 {
        0 => (
            "tool.started",
            format!(
                r#"{{"callId":"call_{}","tool":"read","toolClass":"read","target":"src/module_{}.rs"}}"#,
                step / 4,
                step % 37
            ),
        ),
        1 => (
            "tool.ended",
            format!(r#"{{"callId":"call_{}","outcome":"ok","outputDigest":"{:08x}"}}"#, step / 4, n),
        ),
        2 => (
            "usage",
            format!(
                r#"{{"model":"model-a","provider":"lab","input":{},"cacheRead":900,"output":40}}"#,
                step % 1000
            ),
        ),
        _ => ("activity", r#"{"class":"work"}"#.to_owned()),
    };
    let mut line = format!(
        r#"{{"schemaVersion":"1","id":"event-{host}-{n:012}","time":{time_ms},"source":"bench","sessionId":"01a227f1-9958-7663-8864-{session:012}","projectId":"project-{}","type":"{kind}","data":{data}}}"#,
        session % 20
    );
    while line.len() < 249 {
        line.push(' ');
    }
    line.push('\n');
    line
}

/// A batch of lines.
pub fn batch(from: usize, len: usize, sessions: usize, time_ms: i64) -> Vec<u8> {
    batch_of(0, from, len, sessions, time_ms)
}

/// A batch of lines of one host, which has sessions of its own.
pub fn batch_of(host: usize, from: usize, len: usize, sessions: usize, time_ms: i64) -> Vec<u8> {
    (from..from + len).flat_map(|n| line(host, n, sessions, time_ms).into_bytes()).collect()
}

/// Shortest of several runs of `work`, after one to warm up.
pub fn best(runs: usize, mut work: impl FnMut()) -> Duration {
    work();
    (0..runs)
        .map(|_| {
            let started = Instant::now();
            work();
            started.elapsed()
        })
        .min()
        .unwrap_or_default()
}

/// CPU time of this thread that one run of `work` takes in the mean, after one to warm up. Unlike [`best`] it does not
/// depend on what else the machine does; where the kernel does not tell, it is the shortest run.
pub fn cpu(runs: u32, mut work: impl FnMut()) -> Duration {
    work();
    let before = thread_cpu();
    let shortest = best(runs as usize - 1, &mut work);
    match (before, thread_cpu()) {
        (Some(before), Some(after)) => (after - before) / runs,
        _ => shortest,
    }
}

/// CPU time of this thread that `work` takes; where the kernel does not tell, how long it takes.
pub fn thread_time(work: impl FnOnce()) -> Duration {
    let (started, before) = (Instant::now(), thread_cpu());
    work();
    match (before, thread_cpu()) {
        (Some(before), Some(after)) => after - before,
        _ => started.elapsed(),
    }
}

fn thread_cpu() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

/// The value below which `share` of the list lies.
pub fn percentile(list: &mut [Duration], share: f64) -> Duration {
    list.sort_unstable();
    list[((list.len() - 1) as f64 * share).round() as usize]
}

/// Resident memory of this process in bytes.
pub fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// One row of a table: what, measured, and its ratio to a baseline.
pub fn row(what: &str, value: &str, ratio: &str) {
    println!("| {what} | {value} | {ratio} |");
}

/// The head of a table.
pub fn table(title: &str) {
    println!("\n### {title}\n\n| what | measured | ratio |\n|---|---|---|");
}

/// Milliseconds with two digits.
pub fn ms(d: Duration) -> String {
    format!("{:.2} ms", d.as_secs_f64() * 1000.0)
}
