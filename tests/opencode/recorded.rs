//! Recordings as what a server sends on `/global/event`, with the time at which each record came.

use std::path::{Path, PathBuf};

use agent_session_exporter::event::Timestamp;
use serde_json::{Value, json};

/// The directory all recordings but one are from.
pub(crate) const DIRECTORY: &str = "/home/dev/project";

/// One record as it came.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) at: Timestamp,
    pub(crate) frame: Value,
}

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/opencode").join(name)
}

pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/opencode").join(name)
}

pub(crate) fn json_of(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(name)).unwrap()).unwrap()
}

fn raw(name: &str) -> Vec<(i64, Value)> {
    let text = std::fs::read_to_string(fixture(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let line = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap();
        (value["t"].as_i64().unwrap(), value["event"].clone())
    };
    text.lines().map(line).collect()
}

/// When an event was made.
pub(crate) fn made(id: &str) -> Option<i64> {
    let stamp = i64::from_str_radix(id.strip_prefix("evt_")?.get(..12)?, 16).ok()? >> 12;
    Some((26 << 36) + stamp)
}

/// The moment at which the clock of a recording stood at zero: nothing came before it was made.
fn zero(scenario: &str, lines: &[(i64, Value)]) -> i64 {
    let rest = fixture(&format!("{scenario}.rest.json"));
    if rest.exists() {
        let first = &json_of(&format!("{scenario}.rest.json"))[0];
        return first["wallMs"].as_i64().unwrap() - first["t"].as_i64().unwrap();
    }
    let id = |event: &Value| made(event["id"].as_str()?);
    lines.iter().filter_map(|(t, event)| Some(id(event)? - t)).max().unwrap()
}

/// Whether the server keeps events of this kind.
pub(crate) fn is_durable(kind: &str) -> bool {
    matches!(
        kind,
        "session.created"
            | "session.updated"
            | "session.deleted"
            | "message.updated"
            | "message.removed"
            | "message.part.updated"
            | "message.part.removed"
    ) || kind.starts_with("session.next.") && !kind.ends_with(".delta")
}

/// A recording of one directory in the form of all directories: with its twins.
fn framed(at: Timestamp, event: Value, seq: &mut std::collections::HashMap<String, u64>) -> Vec<Line> {
    let kind = event["type"].as_str().unwrap().to_owned();
    if kind == "server.connected" || kind == "server.heartbeat" {
        return vec![Line { at, frame: json!({ "payload": event }) }];
    }
    let mut lines =
        vec![Line { at, frame: json!({ "directory": DIRECTORY, "project": "p", "payload": event }) }];
    if is_durable(&kind) {
        let props = &event["properties"];
        let session = props["sessionID"].as_str().unwrap();
        let next = seq.entry(session.to_owned()).or_default();
        let twin = json!({ "id": event["id"], "type": format!("{kind}.1"), "seq": *next, "aggregateID": session, "data": props });
        *next += 1;
        let payload = json!({ "type": "sync", "syncEvent": twin });
        lines.push(Line { at, frame: json!({ "directory": DIRECTORY, "project": "p", "payload": payload }) });
    }
    lines
}

/// The connections of a recording, in order.
pub(crate) fn connections(scenario: &str) -> Vec<Vec<Line>> {
    let global = format!("{scenario}.global.sse.ndjson");
    if fixture(&global).exists() {
        let lines = raw(&global);
        let zero = zero(scenario, &lines);
        let line = |(t, frame): (i64, Value)| Line { at: Timestamp::from_millis(zero + t), frame };
        return vec![lines.into_iter().map(line).collect()];
    }
    let mut files = vec![format!("{scenario}.sse.ndjson")];
    files.extend(Some(format!("{scenario}.reconnect.sse.ndjson")).filter(|name| fixture(name).exists()));
    let mut seq = std::collections::HashMap::new();
    let first = raw(&files[0]);
    let zero = zero(scenario, &first);
    let mut all = Vec::new();
    for file in &files {
        let lines = raw(file).into_iter();
        let at = |t: i64| Timestamp::from_millis(zero + t);
        all.push(lines.flat_map(|(t, event)| framed(at(t), event, &mut seq)).collect());
    }
    all
}

/// Names of the recorded scenarios.
pub(crate) fn scenarios() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(fixture(""))
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let stem = name.strip_suffix(".sse.ndjson")?;
            (!stem.contains('.')).then(|| stem.to_owned())
        })
        .collect();
    names.sort();
    assert!(names.len() >= 25, "{names:?}");
    names
}
