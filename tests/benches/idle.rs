//! The program at rest: it watches 2,000 files of which some changed in the last hour, and nothing happens. Beside it
//! the same program without a file. Servers are not among it: no source of this build asks one.
//!
//! `AGENT_SESSION_EXPORTER_BENCH_SECONDS` sets how long it is watched (30).

#![allow(clippy::unwrap_used, reason = "a bench that fails says where")]

mod support;
#[path = "../common/transcripts/mod.rs"]
mod transcripts;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::sources::LIST;
use support::work::{setting, spent_by_threads};
use support::{Client, row, table};
use transcripts::{Agent, Plan, make};

const FILES: usize = 2_000;
const FOLDERS: usize = 200;
/// After the first scan sessions come to rest and their rows are written for the last time.
const SETTLE: Duration = Duration::from_secs(15);

/// The program, which ends with the bench.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "it is the program that is measured")]
fn start(home: &Path) -> Program {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_agent-session-exporter"));
    command.env_clear().env("HOME", home).arg("--home").arg(home).arg("--state-dir").arg(home.join("state"));
    command.args(["--web.listen-address", &address]);
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
fn share(home: &Path, seconds: u64) -> f64 {
    let program = start(home);
    std::thread::sleep(SETTLE);
    let (before, started) = (spent_by_threads(program.0.id()), Instant::now());
    std::thread::sleep(Duration::from_secs(seconds));
    let spent = spent_by_threads(program.0.id()).saturating_sub(before);
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
        "At rest: {files} files of {} in {FOLDERS} folders, 1 to 60 minutes old; {seconds} s; no servers yet",
        names.join(" and ")
    ));
    let base = share(empty.path(), seconds);
    row("the same program without a file", &format!("{base:.3} % of a core"), "baseline");
    let own = share(home.path(), seconds);
    row("watching", &format!("{own:.3} % of a core"), &format!("{:.1}; target 0.5 %", own / base.max(0.001)));
}
