//! `notify` as Alertmanager and a desktop meet it: the real program, bodies recorded from Alertmanager, a real bus, and a
//! desktop of the test that listens on it.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails says where")]

mod bus;
#[path = "../common/running.rs"]
mod common;
mod limits;
mod losses;
mod requests;
mod told;
mod trial;

use std::process::{Child, Stdio};

use serde_json::Value;

use bus::Bus;

/// The running receiver.
struct Receiver {
    child: common::Ending,
    address: String,
    folder: tempfile::TempDir,
}

impl Receiver {
    fn start(bus: &Bus, extra: &[&str]) -> Self {
        Self::start_at(&bus.address(), extra)
    }

    /// With the bus at an address where there may be none.
    fn start_at(bus: &str, extra: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("127.0.0.1:{}", common::free_port());
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut command = command(&folder, bus);
        command.args(["--notify.listen-address", &address]).args(extra);
        let child = common::Ending(spawn(&mut command, log.into()));
        common::wait_until("the receiver listens", || std::net::TcpStream::connect(&address).is_ok());
        Self { child, address, folder }
    }

    fn post(&self, body: &[u8]) -> common::Answer {
        common::request(&self.address, "POST", "/", &[("content-type", "application/json")], body).unwrap()
    }

    /// Posts a recording; gives what became of its alerts: raised, held, ended, known.
    fn take(&self, body: &[u8]) -> [u64; 4] {
        let answer = self.post(body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let done = answer.json();
        ["raised", "held", "ended", "known"].map(|what| done[what].as_u64().unwrap())
    }

    /// Lines of the log at this level.
    fn logged(&self, level: &str) -> usize {
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap();
        log.lines().filter(|l| l.contains(level)).count()
    }

    /// SIGTERM; whether it ended well.
    #[expect(clippy::disallowed_methods, reason = "std has no other way to send a signal")]
    fn terminate(&mut self) -> bool {
        std::process::Command::new("kill").arg(self.child.0.id().to_string()).status().unwrap();
        self.child.0.wait().unwrap().success()
    }
}

fn command(folder: &tempfile::TempDir, bus: &str) -> std::process::Command {
    let mut command = common::command(folder.path(), &folder.path().join("state"));
    command.env("DBUS_SESSION_BUS_ADDRESS", bus).arg("notify");
    command
}

fn spawn(command: &mut std::process::Command, log: Stdio) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

fn recording(name: &str) -> Vec<u8> {
    common::fixture(&format!("alertmanager/{name}.json"))
}

/// A recording with changes.
fn changed(name: &str, change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut body: Value = serde_json::from_slice(&recording(name)).unwrap();
    change(&mut body);
    body.to_string().into_bytes()
}
