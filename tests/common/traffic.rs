//! Recordings of servers played for many sessions at once: each copy has ids of its own and times of today. The
//! servers answer what a source asks from what they have sent so far.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    reason = "each test binary uses its part"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::peer::{Asked, Reply};

/// One recording: records with their milliseconds from its start.
#[derive(Clone, Debug)]
pub struct Track {
    pub name: String,
    pub steps: Vec<(i64, String)>,
    /// Epoch milliseconds of the start.
    began: i64,
}

/// What a server knows of what it sent, to answer questions.
#[derive(Clone, Default)]
pub struct Known(Arc<Mutex<World>>);

#[derive(Default)]
struct World {
    /// Sessions by id: project or directory, and the session as the list shows it.
    sessions: BTreeMap<String, Value>,
    running: BTreeMap<String, Value>,
    pending: BTreeMap<String, Value>,
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Recordings of a folder whose names end so, in the order of names.
fn files(folder: &Path, end: &str) -> Vec<(String, std::path::PathBuf)> {
    let mut found: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?.strip_suffix(end)?.to_owned();
            (!name.contains('.')).then_some((name, path))
        })
        .collect();
    found.sort();
    found
}

/// Every OpenFox recording.
pub fn openfox(folder: &Path) -> Vec<Track> {
    let track = |(name, path): (String, std::path::PathBuf)| {
        let mut steps = Vec::new();
        let mut began = None;
        for line in lines(&path) {
            let at = millis(line["receivedAt"].as_str().unwrap());
            let began = *began.get_or_insert(at);
            if line["frame"].is_object() {
                steps.push((at - began, line["frame"].to_string()));
            }
        }
        Track { name, steps, began: began.unwrap_or(0) }
    };
    files(folder, ".ws.ndjson").into_iter().map(track).collect()
}

/// Every opencode recording of V1 sessions, as `/global/event` sends it: what was recorded of one directory is put
/// into its envelope.
pub fn opencode(folder: &Path) -> Vec<Track> {
    let track = |(name, path): (String, std::path::PathBuf)| {
        let mut steps = Vec::new();
        let mut began = None;
        for line in lines(&path) {
            let (at, event) = (line["t"].as_i64().unwrap(), &line["event"]);
            if began.is_none() {
                began = event["properties"]["info"]["time"]["created"].as_i64().map(|created| created - at);
            }
            let record = json!({"directory": "/home/dev/project", "project": "p", "payload": event});
            steps.push((at, record.to_string()));
        }
        Track { name, steps, began: began.unwrap_or(0) }
    };
    files(folder, ".sse.ndjson").into_iter().map(track).collect()
}

/// Epoch milliseconds of a time as JavaScript writes it.
fn millis(text: &str) -> i64 {
    text.parse::<jiff::Timestamp>().unwrap().as_millisecond()
}

impl Track {
    /// How long it takes.
    pub fn length(&self) -> i64 {
        self.steps.last().map_or(0, |(at, _)| *at)
    }

    /// The same with other ids, and so that it starts at this moment.
    #[must_use]
    pub fn copy(&self, n: usize, start: i64) -> Self {
        let shift = start - self.began;
        let steps = self.steps.iter().map(|(at, text)| (*at, renamed(text, n, shift))).collect();
        Self { name: self.name.clone(), steps, began: start }
    }
}

/// Words of a text: ids and numbers stand between other characters.
fn renamed(text: &str, n: usize, shift: i64) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == ':' || c == '.';
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        out.push_str(&word(&rest[..end], n, shift));
        let behind = rest[end..].find(is_word).map_or(rest.len(), |at| end + at);
        out.push_str(&rest[end..behind]);
        rest = &rest[behind..];
    }
    out
}

fn word(word: &str, n: usize, shift: i64) -> String {
    // Ids of opencode: a kind, and for events the time in twelve hexadecimal digits.
    if let Some((kind, id)) = word.split_once('_')
        && ["ses", "msg", "prt", "per", "que", "evt"].contains(&kind)
        && id.len() >= 20
        && id.is_ascii()
    {
        let time = u64::from_str_radix(&id[..12], 16).ok().filter(|_| kind == "evt");
        let moved = time.map_or_else(
            || id[..12].to_owned(),
            |time| {
                let millis = ((time >> 12) as i64 + shift).rem_euclid(1 << 36) as u64;
                format!("{:012x}", (millis << 12) | (time & 0xfff))
            },
        );
        return format!("{kind}_{moved}{n:04}{}", &id[12..]);
    }
    // Ids of OpenFox.
    let dashes: Vec<usize> = word.match_indices('-').map(|(at, _)| at).collect();
    if word.len() == 36 && dashes == [8, 13, 18, 23] {
        return format!("{n:08x}{}", &word[8..]);
    }
    if word.len() == 24
        && word.starts_with("20")
        && let Ok(time) = word.parse::<jiff::Timestamp>()
    {
        let moved = jiff::Timestamp::from_millisecond(time.as_millisecond() + shift).unwrap();
        return format!("{moved:.3}");
    }
    if word.len() == 13
        && word.starts_with("17")
        && let Ok(time) = word.parse::<i64>()
    {
        return (time + shift).to_string();
    }
    word.to_owned()
}

impl Known {
    /// Remembers what an answer will have to know.
    pub fn openfox_sent(&self, record: &str) {
        let frame: Value = serde_json::from_str(record).unwrap();
        let mut world = self.0.lock().unwrap();
        let Some(id) = frame["sessionId"].as_str() else { return };
        let session = json!({
            "id": id, "projectId": "p", "workdir": "/home/dev/project", "mode": "builder", "title": "t",
            "isRunning": false, "updatedAt": "2026-11-29T15:00:00.000Z",
        });
        let entry = world.sessions.entry(id.to_owned()).or_insert(session);
        if frame["type"] == "session.running" {
            entry["isRunning"] = frame["payload"]["isRunning"].clone();
        }
        if frame["type"] == "session.deleted" {
            world.sessions.remove(id);
        }
    }

    pub fn openfox_answers(&self, asked: &Asked) -> Reply {
        let world = self.0.lock().unwrap();
        let body = match asked.plain() {
            "/api/sessions" => json!({
                "sessions": world.sessions.values().collect::<Vec<_>>(),
                "hasMore": false,
                "pendingConfirmationsBySession": {},
            }),
            "/api/config" => json!({"version": "2.0.127"}),
            "/api/health" => json!({"status": "ok"}),
            path => match path.strip_prefix("/api/sessions/").and_then(|p| p.strip_suffix("/status")) {
                Some(id) if world.sessions.contains_key(id) => {
                    let running = world.sessions[id]["isRunning"] == true;
                    let state = if running { json!("running") } else { Value::Null };
                    json!({"schemaVersion": 1, "sessionId": id, "state": state, "waitingForUser": false})
                }
                _ => return Reply::none(),
            },
        };
        Reply::json(200, body.to_string())
    }

    pub fn opencode_sent(&self, record: &str) {
        let frame: Value = serde_json::from_str(record).unwrap();
        let (event, kind) = (&frame["payload"]["properties"], &frame["payload"]["type"]);
        let mut world = self.0.lock().unwrap();
        let id = event["sessionID"].as_str().or(event["info"]["id"].as_str()).unwrap_or_default().to_owned();
        match kind.as_str().unwrap_or_default() {
            "session.created" | "session.updated" => {
                world.sessions.insert(id, event["info"].clone());
            }
            "session.deleted" => {
                world.sessions.remove(&id);
                world.running.remove(&id);
            }
            "session.status" if event["status"]["type"] == "idle" => {
                world.running.remove(&id);
            }
            "session.status" => {
                world.running.insert(id, event["status"].clone());
            }
            "permission.asked" | "question.asked" => {
                let request = event["id"].as_str().unwrap().to_owned();
                let mut pending = event.clone();
                pending["kind"] = kind.clone();
                world.pending.insert(request, pending);
            }
            "permission.replied" | "question.replied" | "question.rejected" => {
                world.pending.remove(event["requestID"].as_str().unwrap_or_default());
            }
            _ => {}
        }
    }

    pub fn opencode_answers(&self, asked: &Asked) -> Reply {
        let world = self.0.lock().unwrap();
        let pending =
            |kind: &str| -> Value { world.pending.values().filter(|p| p["kind"] == kind).cloned().collect() };
        let body = match asked.plain() {
            "/global/health" => json!({"healthy": true, "version": "1.18.33"}),
            "/experimental/session" | "/session" => world.sessions.values().cloned().collect(),
            "/session/status" => json!(world.running),
            "/permission" => pending("permission.asked"),
            "/question" => pending("question.asked"),
            "/sync/history" | "/project" => json!([]),
            path if path.starts_with("/session/") => {
                let id = path.split('/').nth(2).unwrap_or_default();
                match (world.sessions.get(id), path.split('/').nth(3)) {
                    (Some(session), None) => session.clone(),
                    (Some(_), Some(_)) => json!([]),
                    (None, _) => return Reply::none(),
                }
            }
            _ => return Reply::none(),
        };
        Reply::json(200, body.to_string())
    }
}
