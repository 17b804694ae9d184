//! From a line appended to one of many followed files to `/metrics`. Beside it the floors: writing the line and reading
//! it back, and the kernel's word that the file changed.
//!
//! `AGENT_SESSION_EXPORTER_BENCH_FILES` sets how many files are followed (2000).

#![allow(clippy::unwrap_used, reason = "a bench that fails says where")]

mod support;
#[path = "../common/transcripts/mod.rs"]
mod transcripts;

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::sources::LIST;
use notify::Watcher as _;
use support::work::setting;
use support::{Client, ms, percentile, row, table};
use transcripts::{Agent, Made, Plan, make};

const APPENDS: usize = 400;
/// What an appended line, which begins a turn, moves.
const FAMILY: &str = "agent_session_turn_start_timestamp_seconds{";
const DAY: Duration = Duration::from_secs(86_400);
const PATIENCE: Duration = Duration::from_secs(10);

fn append(path: &Path, line: &str) {
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(line.as_bytes()).unwrap();
}

/// Whether the session's open turn began at this moment.
fn shows(body: &str, session: &str, moment_ms: i64) -> bool {
    let from = body.find(FAMILY).unwrap_or(body.len());
    let own = body[from..].lines().take_while(|l| l.starts_with(FAMILY)).find(|l| l.contains(session));
    let value = own.and_then(|l| l.rsplit_once(' ')?.1.parse::<f64>().ok());
    value.is_some_and(|v| (v * 1000.0 - moment_ms as f64).abs() < 1.0)
}

/// Appends a line as the agent would, and asks until it shows.
fn until_shown(client: &mut Client, agent: Agent, file: &Made, n: usize) -> Duration {
    let now_ms = Clock::system().now().as_millis();
    let line = agent.line(&file.session, now_ms, n as u64) + "\n";
    let started = Instant::now();
    append(&file.path, &line);
    loop {
        let (_, body) = client.get("/metrics");
        if shows(std::str::from_utf8(&body).unwrap(), &file.session, now_ms) {
            return started.elapsed();
        }
        if started.elapsed() > PATIENCE {
            let body = String::from_utf8_lossy(&body).into_owned();
            let own: Vec<&str> = body.lines().filter(|l| l.contains(&file.session)).collect();
            panic!("{now_ms} never shown of {}:\n{}", file.path.display(), own.join("\n"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The line written and read back.
fn read_back(file: &Path, line: &str) -> Duration {
    let started = Instant::now();
    append(file, line);
    let mut back = String::new();
    let mut open = File::open(file).unwrap();
    open.seek(SeekFrom::End(-(line.len() as i64))).unwrap();
    open.read_to_string(&mut back).unwrap();
    assert_eq!(back, line);
    started.elapsed()
}

/// The kernel's word about a change, through the crate that we use.
fn told(folder: &Path, file: &Path, line: &str) -> Vec<Duration> {
    let (tell, hear) = std::sync::mpsc::channel();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|e| e.kind.is_modify()) {
            let _ = tell.send(());
        }
    })
    .unwrap();
    watcher.watch(folder, notify::RecursiveMode::NonRecursive).unwrap();
    let once = |_| {
        std::thread::sleep(Duration::from_millis(5));
        while hear.try_recv().is_ok() {}
        let started = Instant::now();
        append(file, line);
        hear.recv_timeout(PATIENCE).unwrap();
        started.elapsed()
    };
    (0..APPENDS).map(once).collect()
}

fn main() {
    let files = setting("AGENT_SESSION_EXPORTER_BENCH_FILES", 2000) as usize;
    let known = |agent: &Agent| LIST.iter().any(|def| def.name == agent.source());
    let agents: Vec<Agent> = Agent::ALL.into_iter().filter(known).collect();
    let home = tempfile::tempdir().unwrap();
    let mut made: Vec<(Agent, Made)> = Vec::new();
    for agent in &agents {
        let plan = Plan {
            home: home.path(),
            agent: *agent,
            files: files / agents.len(),
            bytes: (files / agents.len()) as u64 * (20 << 10),
            folders: 100,
            now_ms: Clock::system().now().as_millis(),
            ages: (Duration::from_secs(60), DAY * 6),
            seed: 1,
        };
        made.extend(make(&plan).into_iter().map(|m| (*agent, m)));
    }
    let names: Vec<&str> = agents.iter().map(|a| a.source()).collect();
    let running = support::start_reading(1000, Some(home.path()), &names);
    running.scanned();
    // The first two sweeps are over, and what they found is at rest.
    std::thread::sleep(Duration::from_secs(3));

    table(&format!("A line appended to one of {} files, until `/metrics` shows it", made.len()));
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("floor.jsonl");
    File::create(&file).unwrap();
    let line = Agent::Codex.line("", 0, 0) + "\n";
    let mut floor: Vec<Duration> = (0..APPENDS).map(|_| read_back(&file, &line)).collect();
    row("floor: written and read back, p99", &ms(percentile(&mut floor, 0.99)), "baseline");
    let mut word = told(scratch.path(), &file, &line);
    row("floor: told by the kernel, p99", &ms(percentile(&mut word, 0.99)), "baseline");

    let mut client = Client::connect(&running.address);
    for agent in &agents {
        let own: Vec<&Made> = made.iter().filter(|(a, m)| a == agent && !m.child).map(|(_, m)| m).collect();
        let mut shown: Vec<Duration> = (0..APPENDS)
            .map(|n| {
                // Not in step with anything that comes at intervals.
                std::thread::sleep(Duration::from_millis(5 + n as u64 * 7 % 23));
                // Files of every age, each several hundred files apart from the one before.
                until_shown(&mut client, *agent, own[n * 389 % own.len()], n)
            })
            .collect();
        let name = agent.source();
        row(&format!("{name}, median of {APPENDS}"), &ms(percentile(&mut shown, 0.5)), "");
        let floor = percentile(&mut word, 0.99).as_secs_f64();
        let p99 = percentile(&mut shown, 0.99);
        let ratio = format!("{:.0}x the kernel's word; target 250 ms", p99.as_secs_f64() / floor);
        row(&format!("{name}, p99"), &ms(p99), &ratio);
    }
}
