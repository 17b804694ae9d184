//! Servers that are busy: five of opencode and one of OpenFox with fifty sessions, which play the recordings over and
//! over. At the speed of the recordings the share of a core is measured; then an hour and a half of them is played
//! faster, and the memory is looked at on the way, with the ids of events that are known by then: their windows are
//! bounded, and memory is to be flat from where they are full. What was sent is counted and compared with the metrics.
//!
//! `AGENT_SESSION_EXPORTER_BENCH_SECONDS` sets how long the first part is watched (60).

#![allow(clippy::unwrap_used, reason = "a bench that fails says where")]

#[path = "../common/peer.rs"]
mod peer;
mod support;
#[path = "../common/traffic.rs"]
mod traffic;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::store::dedup::WINDOW;
use peer::{Kind, Rules, Server};
use serde_json::Value;
use support::work::{setting, spent_by_threads};
use support::{Client, row, table};
use traffic::{Known, Track};

const OPENCODE_SERVERS: usize = 5;
/// Sessions that are busy at each opencode server.
const OPENCODE_SESSIONS: usize = 4;
const OPENFOX_SESSIONS: usize = 50;
/// Sessions in memory.
const MAX_TRACKED: usize = 400;
/// Recorded time of the second part, and how much faster it is played.
const REPLAYED: Duration = Duration::from_secs(5400);
const FASTER: f64 = 20.0;
/// Looks at the memory meanwhile.
const LOOKS: u32 = 18;

/// The program, which ends with the bench.
struct Program {
    child: Child,
    address: String,
}

/// What plays at one server.
struct Player {
    agent: Agent,
    server: Arc<Server>,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    calls: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Agent {
    Opencode,
    Openfox,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "it is the program that is measured")]
fn start(home: &Path, opencode: &[Arc<Server>], openfox: &Server) -> Program {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let config = home.join("config.toml");
    let urls: Vec<String> = opencode.iter().map(|s| format!("{:?}", s.url())).collect();
    // Sessions that ended leave early, so that their number does not grow with the time that is played.
    let text = format!(
        "max_sessions = 200\nmax_tracked = {MAX_TRACKED}\n[sources.opencode]\nservers = [{}]\n[sources.openfox]\nservers = [{:?}]\n",
        urls.join(", "),
        openfox.url()
    );
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_agent-session-exporter"));
    command.env_clear().env("HOME", home).arg("--home").arg(home).arg("--state-dir").arg(home.join("state"));
    command.arg("--config.file").arg(config).args(["--web.listen-address", &address]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut program = Program { child, address };
    let started = Instant::now();
    while std::net::TcpStream::connect(&program.address).is_err()
        || Client::connect(&program.address).get("/-/ready").0 != 200
    {
        assert!(started.elapsed() < Duration::from_secs(60), "never ready");
        assert!(program.child.try_wait().unwrap().is_none(), "it ended");
        std::thread::sleep(Duration::from_millis(50));
    }
    program
}

/// Plays recordings at a server, so many at once, until it is stopped.
fn play(agent: Agent, server: Arc<Server>, known: Known, at_once: usize, speed: f64, first: usize) -> Player {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let tracks = match agent {
        Agent::Opencode => traffic::opencode(&folder.join("opencode")),
        Agent::Openfox => traffic::openfox(&folder.join("openfox")),
    };
    // Deleted sessions and a server's own end are no work, long hangs are little, and a fork's copied history counts
    // nothing.
    let left_out = [
        "deleted",
        "restart",
        "dispose",
        "model_hang",
        "model_no_reply",
        "v2",
        "two_servers",
        "queued_prompt",
    ];
    let tracks: Vec<Track> =
        tracks.into_iter().filter(|t| !left_out.iter().any(|name| t.name.contains(name))).collect();
    let (stop, sent, calls) = (Arc::new(AtomicBool::new(false)), Arc::default(), Arc::default());
    let shared = (server.clone(), stop.clone(), Arc::clone(&sent), Arc::clone(&calls));
    let thread = std::thread::spawn(move || {
        let (server, stop, sent, calls): (Arc<Server>, Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>) =
            shared;
        let mut due = BinaryHeap::new();
        let mut next = first;
        let mut seen = HashSet::new();
        let began = Instant::now();
        loop {
            while due.len() < at_once {
                let now = Clock::system().now().as_millis();
                let track = tracks[next % tracks.len()].copy(next, now);
                next += 1;
                due.push(Reverse((began.elapsed().as_micros() as u64, next, 0usize, track.steps)));
            }
            let Some(Reverse((at, n, step, steps))) = due.pop() else { continue };
            let wait = Duration::from_micros(at).saturating_sub(began.elapsed());
            std::thread::sleep(wait);
            if stop.load(Ordering::SeqCst) {
                return;
            }
            let (time, record) = &steps[step];
            match agent {
                Agent::Opencode => known.opencode_sent(record),
                Agent::Openfox => known.openfox_sent(record),
            }
            if let Some(call) = call(agent, record)
                && seen.insert(call)
            {
                calls.fetch_add(1, Ordering::SeqCst);
            }
            server.send(record);
            sent.fetch_add(1, Ordering::SeqCst);
            if let Some((later, _)) = steps.get(step + 1) {
                let pause = ((later - time).max(0) as f64 * 1000.0 / speed) as u64;
                due.push(Reverse((at + pause, n, step + 1, steps)));
            }
        }
    });
    Player { agent, server, stop, sent, calls, thread: Some(thread) }
}

/// The call a record is the beginning of.
fn call(agent: Agent, record: &str) -> Option<String> {
    let frame: Value = serde_json::from_str(record).ok()?;
    match agent {
        Agent::Openfox => (frame["type"] == "chat.tool_call").then(|| {
            let payload = &frame["payload"];
            format!("{}{}{}", frame["sessionId"], payload["messageId"], payload["callId"])
        }),
        Agent::Opencode => {
            let part = &frame["payload"]["properties"]["part"];
            let begun = part["state"]["status"].as_str().is_some_and(|s| s != "pending");
            (part["type"] == "tool" && begun).then(|| part["id"].to_string())
        }
    }
}

fn resident(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

/// The sum of a family over the series with this label.
fn sum(text: &str, family: &str, label: &str) -> u64 {
    let of_family =
        |l: &&str| l.starts_with(family) && l[family.len()..].starts_with('{') && l.contains(label);
    text.lines().filter(of_family).map(|l| l.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum()
}

/// One part: everything started, watched by `look`, ended, and counted.
fn run(speed: f64, look: impl FnOnce(&Program)) {
    let home = tempfile::tempdir().unwrap();
    let server = |agent| {
        let known = Known::default();
        let answers = known.clone();
        let rules = match agent {
            Agent::Opencode => {
                Rules::new(Kind::Events("/global/event")).answer(move |a| answers.opencode_answers(a))
            }
            Agent::Openfox => {
                Rules::new(Kind::Socket("/ws", &[])).answer(move |a| answers.openfox_answers(a))
            }
        };
        (Arc::new(Server::start(rules)), known)
    };
    let opencode: Vec<_> = (0..OPENCODE_SERVERS).map(|_| server(Agent::Opencode)).collect();
    let openfox = server(Agent::Openfox);
    let servers: Vec<_> = opencode.iter().map(|(server, _)| server.clone()).collect();
    let program = start(home.path(), &servers, &openfox.0);
    for server in servers.iter().chain([&openfox.0]) {
        server.until_streams(1);
    }
    let mut players = Vec::new();
    for (n, (server, known)) in opencode.into_iter().enumerate() {
        players.push(play(Agent::Opencode, server, known, OPENCODE_SESSIONS, speed, n * 1000));
    }
    players.push(play(Agent::Openfox, openfox.0, openfox.1, OPENFOX_SESSIONS, speed, 9000));
    look(&program);
    for player in &players {
        player.stop.store(true, Ordering::SeqCst);
    }
    for player in &mut players {
        player.thread.take().unwrap().join().unwrap();
    }
    for agent in [Agent::Opencode, Agent::Openfox] {
        let own = || players.iter().filter(|p| p.agent == agent);
        let (name, sent) = match agent {
            Agent::Opencode => {
                ("source=\"opencode\"", own().map(|p| p.sent.load(Ordering::SeqCst)).sum::<u64>())
            }
            Agent::Openfox => {
                ("source=\"openfox\"", own().map(|p| p.sent.load(Ordering::SeqCst)).sum::<u64>())
            }
        };
        let calls: u64 = own().map(|p| p.calls.load(Ordering::SeqCst)).sum();
        std::thread::sleep(Duration::from_secs(2));
        let (status, text) = Client::connect(&program.address).get("/metrics");
        assert_eq!(status, 200);
        let text = String::from_utf8(text).unwrap();
        let heard = sum(&text, "agent_session_exporter_records_total", name);
        let started = format!("{name},type=\"tool.started\"");
        let counted = sum(&text, "agent_session_exporter_events_total", &started);
        row(&format!("{name}: records sent, read"), &format!("{sent}, {heard}"), "");
        row(&format!("{name}: calls sent, counted"), &format!("{calls}, {counted}"), "");
        assert_eq!((heard, counted), (sent, calls), "{name}: something was lost");
    }
    for player in players {
        drop(player.server);
    }
}

fn main() {
    let seconds = setting("AGENT_SESSION_EXPORTER_BENCH_SECONDS", 60);
    table(&format!(
        "Busy servers: {OPENCODE_SERVERS} of opencode with {OPENCODE_SESSIONS} sessions each, one of OpenFox with {OPENFOX_SESSIONS}; {seconds} s at the recordings' speed"
    ));
    run(1.0, |program| {
        std::thread::sleep(Duration::from_secs(5));
        let (before, started) = (spent_by_threads(program.child.id()), Instant::now());
        std::thread::sleep(Duration::from_secs(seconds));
        let spent = spent_by_threads(program.child.id()).saturating_sub(before);
        let share = spent.as_secs_f64() / started.elapsed().as_secs_f64() * 100.0;
        row("share of a core", &format!("{share:.2} %"), "target 10 %");
        row("… beside a tenth of a core", &format!("{:.2} of it", share / 10.0), "1");
    });
    table(&format!(
        "The same {FASTER} times as fast, for {} minutes of the recordings",
        REPLAYED.as_secs() / 60
    ));
    run(FASTER, |program| {
        let mut full = None;
        for n in 1..=LOOKS {
            std::thread::sleep(REPLAYED.div_f64(FASTER * f64::from(LOOKS)));
            let (_, text) = Client::connect(&program.address).get("/metrics");
            let text = String::from_utf8(text).unwrap();
            let events = |source: &str| sum(&text, "agent_session_exporter_events_total", source);
            let known =
                ["source=\"opencode\"", "source=\"openfox\""].map(|source| events(source).min(WINDOW as u64));
            let mib = resident(program.child.id());
            if known == [WINDOW as u64; 2] {
                full.get_or_insert(mib);
            }
            let minutes = f64::from(n) * REPLAYED.as_secs_f64() / 60.0 / f64::from(LOOKS);
            row(
                &format!("resident after {minutes} minutes"),
                &format!("{mib:.1} MiB; known ids {} and {} of {WINDOW}", known[0], known[1]),
                &full.map_or(String::new(), |full| format!("{:.2} of when both were full", mib / full)),
            );
        }
    });
}
