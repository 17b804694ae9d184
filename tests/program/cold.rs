//! The first start on a home with years of history: answers at once, live sessions first, bounded memory.
//!
//! The suite makes as much history as a debug build reads in some seconds. The whole of it:
//! `AGENT_SESSION_EXPORTER_COLD_MB=4096 cargo test --release --test program cold -- --nocapture`

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{self, command, free_port, now_ms, sample};
use crate::transcripts::{Agent, Made, Plan, make};

const FILES: usize = 4_000;
/// History to make unless the environment says otherwise, in megabytes.
const DEFAULT_MB: u64 = if cfg!(debug_assertions) { 32 } else { 400 };
/// Sessions that somebody works on right now, of each agent.
const LIVE: usize = 3;
const MAX_MEMORY: u64 = 256 << 20;
const FIRST_ANSWER: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// Sources this build has, of those whose files can be made.
fn agents() -> Vec<Agent> {
    let known =
        |agent: &Agent| agent_session_exporter::sources::LIST.iter().any(|def| def.name == agent.source());
    Agent::ALL.into_iter().filter(known).collect()
}

fn history(home: &Path, megabytes: u64) -> (Vec<Made>, Vec<Made>) {
    let (mut old, mut live) = (Vec::new(), Vec::new());
    let agents = agents();
    for agent in &agents {
        let plan = Plan {
            home,
            agent: *agent,
            files: FILES / agents.len(),
            bytes: (megabytes << 20) / agents.len() as u64,
            folders: 100,
            now_ms: now_ms(),
            ages: (DAY / 24, DAY * 6),
            seed: 1,
        };
        old.extend(make(&plan));
        let now = Plan { files: LIVE, bytes: 300 << 10, ages: (Duration::ZERO, DAY / 1440), seed: 2, ..plan };
        live.extend(make(&now));
    }
    (old, live)
}

/// The most memory a process ever had, in bytes.
fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Sessions that have series.
fn shown(metrics: &str) -> BTreeSet<&str> {
    let info = metrics.lines().filter_map(|l| l.strip_prefix("agent_session_info{"));
    info.filter_map(|l| l.split_once("session=\"")?.1.split_once('"')).map(|(id, _)| id).collect()
}

fn records(metrics: &str) -> f64 {
    let of = |agent: &Agent| {
        let series = format!("agent_session_exporter_records_total{{source=\"{}\"}}", agent.source());
        sample(metrics, &series).unwrap_or(0.0)
    };
    agents().iter().map(of).sum()
}

#[test]
fn a_cold_start_answers_at_once_shows_what_is_live_and_stays_small() {
    let set = std::env::var("AGENT_SESSION_EXPORTER_COLD_MB").ok();
    let megabytes = set.map_or(DEFAULT_MB, |mb| mb.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let made_in = Instant::now();
    let (old, live) = history(folder.path(), megabytes);
    let bytes: u64 = old.iter().map(|m| m.bytes).sum();
    let lines: u64 = old.iter().chain(&live).map(|m| m.lines).sum();
    println!("{} files of {} MB made in {:?}", old.len(), bytes >> 20, made_in.elapsed());
    // Years of history are on the disk by now; what this test has just written would make the first commit wait.
    rustix::fs::syncfs(fs::File::open(folder.path()).unwrap()).unwrap();

    let address = format!("127.0.0.1:{}", free_port());
    let mut command = command(folder.path(), &folder.path().join("state"));
    command.args(["--web.listen-address", &address]);
    let quiet = std::process::Stdio::null;
    let started = Instant::now();
    let child = common::Ending(command.stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn().unwrap());
    let get = |path: &str| common::request(&address, "GET", path, &[], b"");

    // Refused until it listens.
    let (first, took) = loop {
        let asked = Instant::now();
        if let Some(answer) = get("/metrics") {
            break (answer, asked.elapsed());
        }
        assert!(started.elapsed() < Duration::from_secs(20), "never answered");
        std::thread::sleep(Duration::from_millis(2));
    };
    println!("first scrape {:?} after the start, answered in {took:?}", started.elapsed());
    assert_eq!(first.status, 200);
    assert!(first.text().contains("agent_session_exporter_build_info"));
    assert!(took < FIRST_ANSWER, "the first answer took {took:?}");

    let wanted: BTreeSet<&str> = live.iter().filter(|m| !m.child).map(|m| m.session.as_str()).collect();
    let metrics = loop {
        let metrics = get("/metrics").unwrap().text();
        if wanted.is_subset(&shown(&metrics)) {
            break metrics;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "live sessions were never shown");
        std::thread::sleep(Duration::from_millis(5));
    };
    let read = records(&metrics) / lines as f64;
    println!("live sessions shown after {:?}, with {:.0} % read", started.elapsed(), read * 100.0);
    assert!(read < 0.5, "old files came first: {read}");
    assert_eq!(get("/-/ready").unwrap().status, 503, "not everything has been read");

    let mut slowest = Duration::ZERO;
    while get("/-/ready").unwrap().status != 200 {
        let asked = Instant::now();
        assert_eq!(get("/metrics").unwrap().status, 200);
        slowest = slowest.max(asked.elapsed());
        assert!(started.elapsed() < Duration::from_secs(30 + megabytes / 2), "the first scan never ended");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (end, peak) = (started.elapsed(), peak(child.0.id()));
    println!("all read after {end:?}, slowest scrape meanwhile {slowest:?}, at most {} MiB", peak >> 20);
    let metrics = get("/metrics").unwrap().text();
    assert!(records(&metrics) >= lines as f64, "{} of {lines} lines", records(&metrics));
    assert!(peak < MAX_MEMORY, "{} MiB", peak >> 20);
    assert!(slowest < FIRST_ANSWER, "a scrape took {slowest:?} while history was read");
}

#[test]
fn made_history_is_the_same_each_time_and_each_file_a_session_of_its_own() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let now_ms = now_ms();
    for agent in Agent::ALL {
        let of = |home: &Path| {
            let ages = (Duration::ZERO, DAY);
            make(&Plan { home, agent, files: 80, bytes: 4 << 20, folders: 7, now_ms, ages, seed: 5 })
        };
        let [one, other] = folders.each_ref().map(|f| of(f.path()));
        assert_eq!(one.len(), 80);
        let bytes: u64 = one.iter().map(|m| m.bytes).sum();
        assert!((3 << 20..5 << 20).contains(&bytes), "{bytes}");
        let sessions: BTreeSet<_> = one.iter().filter(|m| !m.child).map(|m| &m.session).collect();
        assert_eq!(sessions.len(), one.iter().filter(|m| !m.child).count());
        let mut seen: BTreeSet<String> = BTreeSet::new();
        let mut damaged = 0;
        for (a, b) in one.iter().zip(&other) {
            let bytes = fs::read(&a.path).unwrap();
            assert!(bytes == fs::read(&b.path).unwrap(), "{}", a.path.display());
            let mut own = BTreeSet::new();
            for line in bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
                // One recording has two objects on a line.
                let Ok(record) = serde_json::from_slice::<serde_json::Value>(line) else {
                    damaged += 1;
                    continue;
                };
                let moment = record["timestamp"].as_str().map(|t| t.parse::<jiff::Timestamp>().unwrap());
                assert!(moment.is_none_or(|t| t.as_millisecond() <= now_ms), "{moment:?}");
                let turn = &record["payload"]["turn_id"];
                for id in [&record["uuid"], &record["requestId"], &record["message"]["id"], turn] {
                    own.extend(id.as_str().map(str::to_owned));
                }
                let id = record["sessionId"].as_str().or_else(|| record["session_id"].as_str());
                assert!(id.is_none_or(|id| id == a.session), "{id:?} in {}", a.path.display());
            }
            // A sub-agent's file may name a record of its parent's.
            let foreign: Vec<_> = own.iter().filter(|id| !a.child && seen.contains(*id)).collect();
            assert!(foreign.is_empty(), "{foreign:?} of {} in another session", a.path.display());
            seen.append(&mut own);
        }
        assert!(damaged < 100, "{damaged}");
    }
}
