//! A daemon made of its recordings: what it broadcast, and what it would have answered at a moment.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use agent_session_exporter::event::Timestamp;
use serde_json::Value;

/// Every recording of a stream.
pub(crate) const RECORDINGS: [&str; 5] = [
    "0.2.5-ws-session",
    "0.2.5-ws-autonomous",
    "0.4.6-ws-star",
    "0.4.6-ws-subscribed-session_event",
    "0.4.6-ws-no-subscription",
];

/// A frame as it was received.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) at: Timestamp,
    pub(crate) text: String,
    pub(crate) value: Value,
}

/// What one version answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Daemon {
    /// What its paths begin with.
    prefix: &'static str,
    /// Rows of the list by the daemon's id, each with the time it was read.
    rows: BTreeMap<String, Vec<(Timestamp, Value)>>,
    /// When a request to stop was stored or removed.
    stops: BTreeMap<String, Vec<(Timestamp, bool)>>,
    /// Says of nobody anything, as one does whose database is locked.
    pub(crate) broken: bool,
}

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gobby")
}

pub(crate) fn time(value: &Value) -> Timestamp {
    Timestamp::parse(value.as_str().unwrap()).unwrap()
}

fn lines(name: &str) -> Vec<Value> {
    let path = fixtures().join(format!("{name}.ndjson"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn frames(name: &str) -> Vec<Frame> {
    let frame = |line: &Value| Frame {
        at: time(&line["recv_at"]),
        text: line["frame"].to_string(),
        value: line["frame"].clone(),
    };
    lines(name).iter().map(frame).collect()
}

impl Daemon {
    /// The daemon that made a recording.
    pub(crate) fn of(recording: &str) -> Self {
        let version = &recording[..5];
        let mut daemon = Self { prefix: if version == "0.2.5" { "" } else { "/api" }, ..Self::default() };
        for call in lines(&format!("{version}-http")) {
            let (at, path) = (time(&call["at"]), call["path"].as_str().unwrap());
            if let Some(rows) = call["response"]["sessions"].as_array() {
                for row in rows {
                    daemon.put(at, row.clone());
                }
            }
            if let Some(row) = call["response"].get("session") {
                daemon.put(at, row.clone());
            }
            let stop = path.strip_prefix("/sessions/").and_then(|p| p.strip_suffix("/stop"));
            let present = match call["method"].as_str().unwrap() {
                "POST" => Some(true),
                "DELETE" => Some(false),
                _ => None,
            };
            if let (Some(session), Some(present)) = (stop, present) {
                daemon.stops.entry(session.to_owned()).or_default().push((at, present));
            }
        }
        // Asked for over the WebSocket.
        for frame in frames(recording).iter().filter(|f| f.value["type"] == "stop_response") {
            let session = frame.value["session_id"].as_str().unwrap().to_owned();
            daemon.stops.entry(session).or_default().push((time(&frame.value["signaled_at"]), true));
        }
        for times in daemon.stops.values_mut() {
            times.sort();
        }
        daemon
    }

    /// A daemon of this version without recordings.
    pub(crate) fn empty(prefix: &'static str) -> Self {
        Self { prefix, ..Self::default() }
    }

    pub(crate) fn put(&mut self, at: Timestamp, row: Value) {
        let rows = self.rows.entry(row["id"].as_str().unwrap().to_owned()).or_default();
        rows.push((at, row));
        rows.sort_by_key(|(at, _)| *at);
    }

    pub(crate) fn stop(&mut self, at: Timestamp, internal: &str, present: bool) {
        self.stops.entry(internal.to_owned()).or_default().push((at, present));
    }

    /// Status and body.
    pub(crate) fn answer(&self, path: &str, now: Timestamp) -> (u16, String) {
        let Some(path) = path.strip_prefix(self.prefix).filter(|p| p.starts_with("/sessions")) else {
            return (404, String::new());
        };
        if self.broken {
            return (500, String::new());
        }
        if path == "/sessions" {
            let rows: Vec<&Value> = self.rows.values().filter_map(|rows| row(rows, now)).collect();
            return (200, serde_json::json!({ "sessions": rows, "count": rows.len() }).to_string());
        }
        let Some(session) = path.strip_prefix("/sessions/").and_then(|p| p.strip_suffix("/stop")) else {
            return (404, String::new());
        };
        let times = self.stops.get(session).map(Vec::as_slice).unwrap_or_default();
        match times.iter().rfind(|(at, _)| *at <= now) {
            Some((_, true)) => (500, String::new()),
            _ => (200, serde_json::json!({ "has_signal": false, "session_id": session }).to_string()),
        }
    }

    /// Every internal id that a recording names.
    pub(crate) fn internals(&self) -> BTreeSet<String> {
        self.rows.keys().cloned().collect()
    }
}

/// The row as it was then: the last that was read by that time, else the first, once its session was made.
fn row(rows: &[(Timestamp, Value)], now: Timestamp) -> Option<&Value> {
    if let Some((_, row)) = rows.iter().rfind(|(at, _)| *at <= now) {
        return Some(row);
    }
    let (_, first) = rows.first()?;
    let made = Timestamp::parse(first["created_at"].as_str()?).ok()?;
    (made <= now).then_some(first)
}
