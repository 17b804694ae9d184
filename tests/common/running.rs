//! Shared by the tests that run the real binary: start it on loopback with folders of its own, talk HTTP to it,
//! end it politely or not.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    reason = "each test binary uses its part"
)]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running exporter.
pub struct Exporter {
    child: Child,
    /// Where it listens.
    pub address: String,
}

/// A process of a test that ends with it, also where the test fails.
pub struct Ending(pub Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }
}

/// A port nobody listens on at the moment.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The binary under test with folders of its own and nothing of this machine's environment.
#[expect(clippy::disallowed_methods, reason = "tests run the program; the program runs nothing")]
pub fn command(home: &Path, state: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_agent-session-exporter"));
    command.env_clear().env("HOME", home).env("PATH", "/usr/bin:/bin");
    command.arg("--home").arg(home).arg("--state-dir").arg(state);
    command
}

impl Exporter {
    /// Starts `serve` and waits until it answers.
    pub fn start(home: &Path, state: &Path, extra: &[&str]) -> Self {
        Self::start_logging(home, state, extra, Stdio::null())
    }

    /// The same with its log going somewhere.
    pub fn start_logging(home: &Path, state: &Path, extra: &[&str], log: Stdio) -> Self {
        let mut command = command(home, state);
        command.args(extra);
        Self::spawn(command, log)
    }

    /// The same with these variables, too.
    pub fn start_logging_with(
        home: &Path,
        state: &Path,
        extra: &[&str],
        variables: &BTreeMap<String, String>,
        log: Stdio,
    ) -> Self {
        let mut command = command(home, state);
        command.args(extra).envs(variables);
        Self::spawn(command, log)
    }

    /// The same with these variables.
    pub fn start_with(home: &Path, state: &Path, variables: &BTreeMap<String, String>) -> Self {
        let mut command = command(home, state);
        command.envs(variables);
        Self::spawn(command, Stdio::null())
    }

    fn spawn(mut command: Command, log: Stdio) -> Self {
        let address = format!("127.0.0.1:{}", free_port());
        command.args(["--web.listen-address", &address]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let exporter = Self { child, address };
        let started = Instant::now();
        while exporter.try_get("/-/healthy").is_none_or(|a| a.status != 200) {
            assert!(started.elapsed() < Duration::from_secs(20), "the exporter does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
        exporter
    }

    /// Waits until the first scan is over.
    pub fn ready(self) -> Self {
        wait_until("ready", || self.get("/-/ready").status == 200);
        self
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn get(&self, path: &str) -> Answer {
        self.try_get(path).unwrap_or_else(|| panic!("no answer to GET {path}"))
    }

    pub fn try_get(&self, path: &str) -> Option<Answer> {
        request(&self.address, "GET", path, &[], b"")
    }

    pub fn get_as(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        request(&self.address, "GET", path, headers, b"").unwrap()
    }

    /// Pushes NDJSON; `None` when the connection breaks.
    pub fn push(&self, lines: &str) -> Option<Answer> {
        let headers = [("content-type", "application/x-ndjson")];
        request(&self.address, "POST", "/api/v1/events", &headers, lines.as_bytes())
    }

    pub fn metrics(&self) -> String {
        self.get("/metrics").text()
    }

    /// The value of a sample, by its exact series.
    pub fn sample(&self, series: &str) -> Option<f64> {
        sample(&self.metrics(), series)
    }

    /// All sessions, children too, by paging.
    pub fn sessions(&self) -> Vec<serde_json::Value> {
        let mut all = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = self.get(&format!("/api/v1/sessions?children=true&limit=1000{cursor}")).json();
            all.extend(page["sessions"].as_array().unwrap().iter().cloned());
            match page["nextCursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return all,
            }
        }
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM; how long it took to end and whether it ended well.
    #[expect(clippy::disallowed_methods, reason = "std has no other way to send a signal")]
    pub fn terminate(mut self) -> (Duration, bool) {
        let started = Instant::now();
        Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        let status = self.child.wait().unwrap();
        (started.elapsed(), status.success())
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value of a sample in an exposition, by its exact series.
pub fn sample(exposition: &str, series: &str) -> Option<f64> {
    let line =
        exposition.lines().find(|l| l.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
    line[series.len() + 1..].split(' ').next()?.parse().ok()
}

/// One HTTP/1.1 request on a connection of its own.
pub fn request(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    if !headers.iter().any(|(n, _)| n.eq_ignore_ascii_case("host")) {
        head.push_str(&format!("host: {address}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body).ok()?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let status = line.split(' ').nth(1)?.parse().ok()?;
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let trimmed = line.trim_end();
        if trimmed.is_empty() {
            break;
        }
        let (name, value) = trimmed.split_once(':')?;
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
    let mut raw = Vec::new();
    reader.read_to_end(&mut raw).ok()?;
    let chunked =
        headers.iter().any(|(n, v)| n.eq_ignore_ascii_case("transfer-encoding") && v.contains("chunked"));
    let length = headers
        .iter()
        .find(|(n, _)| n.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, v)| v.parse().ok());
    let body = if chunked { unchunk(&raw)? } else { raw };
    // A body cut short by the peer's death is no answer.
    if !chunked && length.is_some_and(|n: usize| body.len() < n) {
        return None;
    }
    Some(Answer { status, headers, body })
}

fn unchunk(mut raw: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = raw.windows(2).position(|w| w == b"\r\n")?;
        let size =
            usize::from_str_radix(std::str::from_utf8(&raw[..end]).ok()?.split(';').next()?, 16).ok()?;
        raw = &raw[end + 2..];
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(raw.get(..size)?);
        raw = raw.get(size + 2..)?;
    }
}

/// Waits for a condition, a minute at most.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A recording of the fixtures.
pub fn fixture(path: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Milliseconds since the epoch.
#[expect(clippy::disallowed_methods, reason = "the program under test reads the machine's clock too")]
pub fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}
