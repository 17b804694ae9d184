//! The program at rest: it watches 2,000 files of which some changed in the last hour, and five servers with sessions
//! that are idle, and nothing happens but heartbeats and the questions that are asked now and then. Beside it the same
//! program without anything.
//!
//! `AGENT_SESSION_EXPORTER_BENCH_SECONDS` sets how long it is watched (30).

#![allow(clippy::unwrap_used, reason = "a bench that fails says where")]

#[path = "../common/peer.rs"]
mod peer;
mod support;
#[path = "../common/traffic.rs"]
mod traffic;
#[path = "../common/transcripts/mod.rs"]
mod transcripts;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::sources::LIST;
use peer::{Kind, Rules, Server};
use support::work::{setting, spent_by_threads};
use support::{Client, row, table};
use traffic::Known;
use transcripts::{Agent, Plan, make};

const FILES: usize = 2_000;
const FOLDERS: usize = 200;
/// After the first scan sessions come to rest and their rows are written for the last time.
const SETTLE: Duration = Duration::from_secs(15);

/// Servers of opencode; one of OpenFox comes beside them.
const OPENCODE_SERVERS: usize = 4;
/// Pause between heartbeats of opencode.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The program, which ends with the bench.
struct Program(Child);

/// Servers whose sessions are idle.
struct Idle {
    servers: Vec<Arc<Server>>,
    opencode: Vec<(Arc<Server>, Known)>,
    openfox: (Arc<Server>, Known),
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Idle {
    fn start() -> Self {
        let opencode: Vec<_> = (0..OPENCODE_SERVERS)
            .map(|_| {
                let known = Known::default();
                let answers = known.clone();
                let rules = Rules::new(Kind::Events("/global/event"));
                (Arc::new(Server::start(rules.answer(move |a| answers.opencode_answers(a)))), known)
            })
            .collect();
        let known = Known::default();
        let answers = known.clone();
        let rules = Rules::new(Kind::Socket("/ws", &[])).answer(move |a| answers.openfox_answers(a));
        let openfox = (Arc::new(Server::start(rules)), known);
        let servers = opencode.iter().map(|(s, _)| s.clone()).chain([openfox.0.clone()]).collect();
        Self { servers, opencode, openfox }
    }

    /// What the configuration says of them.
    fn config(&self) -> String {
        let urls: Vec<String> = self.opencode.iter().map(|(s, _)| format!("{:?}", s.url())).collect();
        let (urls, fox) = (urls.join(", "), self.openfox.0.url());
        format!("[sources.opencode]\nservers = [{urls}]\n[sources.openfox]\nservers = [{fox:?}]\n")
    }

    /// Whole recordings are played at each, at once, so that there are sessions that have ended.
    fn play(&self) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let now = Clock::system().now().as_millis();
        for (n, (server, known)) in self.opencode.iter().enumerate() {
            for track in traffic::opencode(&folder.join("opencode")).into_iter().take(10) {
                for (_, record) in track.copy(n, now).steps {
                    known.opencode_sent(&record);
                    server.send(&record);
                }
            }
        }
        let (server, known) = &self.openfox;
        for track in traffic::openfox(&folder.join("openfox")).into_iter().take(20) {
            for (_, record) in track.copy(1, now).steps {
                known.openfox_sent(&record);
                server.send(&record);
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "it is the program that is measured")]
fn start(home: &Path, config: &str) -> Program {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_agent-session-exporter"));
    command.env_clear().env("HOME", home).arg("--home").arg(home).arg("--state-dir").arg(home.join("state"));
    std::fs::write(home.join("config.toml"), config).unwrap();
    command.arg("--config.file").arg(home.join("config.toml")).args(["--web.listen-address", &address]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let program = Program(child);
    let started = Instant::now();
    while std::net::TcpStream::connect(&address).is_err()
        || Client::connect(&address).get("/-/ready").0 != 200
    {
        assert!(started.elapsed() < Duration::from_secs(300), "never ready");
        std::thread::sleep(Duration::from_millis(50));
    }
    program
}

/// Its share of a core, in percent.
fn share(home: &Path, seconds: u64, servers: Option<&Idle>) -> f64 {
    let program = start(home, &servers.map(Idle::config).unwrap_or_default());
    let stop = Arc::new(AtomicBool::new(false));
    if let Some(idle) = servers {
        for server in &idle.servers {
            server.until_streams(1);
        }
        idle.play();
        let (stopped, servers) = (stop.clone(), idle.servers.clone());
        std::thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                for server in &servers[..OPENCODE_SERVERS] {
                    server.send(r#"{"payload":{"id":"evt_0","type":"server.heartbeat","properties":{}}}"#);
                }
                std::thread::sleep(HEARTBEAT);
            }
        });
    }
    std::thread::sleep(SETTLE);
    let (before, started) = (spent_by_threads(program.0.id()), Instant::now());
    std::thread::sleep(Duration::from_secs(seconds));
    let spent = spent_by_threads(program.0.id()).saturating_sub(before);
    stop.store(true, Ordering::SeqCst);
    spent.as_secs_f64() / started.elapsed().as_secs_f64() * 100.0
}

fn main() {
    let seconds = setting("AGENT_SESSION_EXPORTER_BENCH_SECONDS", 30);
    let known = |agent: &Agent| LIST.iter().any(|def| def.name == agent.source());
    let agents: Vec<Agent> = Agent::ALL.into_iter().filter(known).collect();
    let (empty, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let minute = Duration::from_secs(60);
    let mut files = 0;
    for agent in &agents {
        let made = make(&Plan {
            home: home.path(),
            agent: *agent,
            files: FILES / agents.len(),
            bytes: (FILES / agents.len()) as u64 * (20 << 10),
            folders: FOLDERS / agents.len(),
            now_ms: Clock::system().now().as_millis(),
            ages: (minute, minute * 60),
            seed: 1,
        });
        files += made.len();
    }
    let names: Vec<&str> = agents.iter().map(|a| a.source()).collect();
    table(&format!(
        "At rest: {files} files of {} in {FOLDERS} folders, 1 to 60 minutes old, and 5 servers; {seconds} s",
        names.join(" and ")
    ));
    let base = share(empty.path(), seconds, None);
    row("the same program without anything", &format!("{base:.3} % of a core"), "baseline");
    let idle = Idle::start();
    let own = share(home.path(), seconds, Some(&idle));
    row("watching", &format!("{own:.3} % of a core"), &format!("{:.1}; target 0.5 %", own / base.max(0.001)));
}
