//! What was recorded: frames with the time a client got them, and the server as it was at any moment, as far as its
//! frames and answers tell. A test holds the second against every answer that was recorded.
//!
//! What a client gets that loads a session was recorded too, and is not among the fixtures: loading one starts work in
//! the server, so the exporter never sees such frames.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use agent_session_exporter::event::Timestamp;
use serde_json::{Value, json};

/// What the client got, or what became of its connection.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    Opened,
    Closed,
    Frame(String),
}

/// One recording.
pub(crate) struct Recording {
    pub(crate) name: String,
    pub(crate) lines: Vec<(Timestamp, What)>,
    /// The frames among them, read.
    parsed: Vec<Value>,
    /// The server after each of them.
    after: Vec<BTreeMap<String, Served>>,
    /// Ids of calls that a recorded list shows as waiting for a confirmation.
    shown: BTreeSet<String>,
    /// Answers, in order: when, path, status, body.
    pub(crate) answers: Vec<(Timestamp, String, u16, Value)>,
}

/// One session as the server has it.
#[derive(Clone, Debug, Default)]
struct Served {
    exists: bool,
    running: bool,
    updated: Option<Timestamp>,
    flow: Option<String>,
    /// Open calls by id: tool.
    calls: BTreeMap<String, String>,
    asked: Option<String>,
}

pub(crate) fn time(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

pub(crate) fn iso(at: Timestamp) -> String {
    let ms = at.as_millis();
    let (s, ms) = (ms / 1000, ms % 1000);
    let (h, m, s) = (s / 3600 % 24, s / 60 % 60, s % 60);
    // All of it was recorded on one day.
    format!("2026-11-29T{h:02}:{m:02}:{s:02}.{ms:03}Z")
}

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/openfox").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub(crate) fn index() -> Value {
    serde_json::from_str(&read("index.json")).unwrap()
}

/// Status of a recorded answer, by its label.
pub(crate) fn status_of(name: &str, label: &str) -> u64 {
    let rest: Value = serde_json::from_str(&read(&format!("{name}.rest.json"))).unwrap();
    let entry = rest["entries"].as_array().unwrap().iter().find(|entry| entry["label"] == label);
    entry.unwrap_or_else(|| panic!("no {label}"))["status"].as_u64().unwrap()
}

/// Names of all recordings with frames.
pub(crate) fn names() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/openfox");
    let names = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> =
        names.filter_map(|name| Some(name.strip_suffix(".ws.ndjson")?.to_owned())).collect();
    names.sort();
    names
}

// === impl Recording ===

impl Recording {
    pub(crate) fn of(name: &str) -> Self {
        let lines: Vec<(Timestamp, What)> = read(&format!("{name}.ws.ndjson"))
            .lines()
            .map(|line| {
                let line: Value = serde_json::from_str(line).unwrap();
                let what = match (&line["connection"], &line["frame"]) {
                    (Value::String(how), _) if how == "opened" => What::Opened,
                    (Value::String(_), _) => What::Closed,
                    (_, frame) => What::Frame(frame.to_string()),
                };
                (time(line["receivedAt"].as_str().unwrap()), what)
            })
            .collect();
        let rest: Value = serde_json::from_str(&read(&format!("{name}.rest.json"))).unwrap();
        let answers = rest["entries"].as_array().unwrap().iter().map(|entry| {
            let status = u16::try_from(entry["status"].as_u64().unwrap()).unwrap();
            let path = entry["path"].as_str().unwrap().to_owned();
            (time(entry["at"].as_str().unwrap()), path, status, entry["body"].clone())
        });
        let parsed = lines.iter().map(|(_, what)| match what {
            What::Frame(frame) => serde_json::from_str(frame).unwrap(),
            _ => Value::Null,
        });
        let parsed: Vec<Value> = parsed.collect();
        let answers: Vec<_> = answers.collect();
        let lists =
            answers.iter().filter_map(|(_, _, _, body)| body["pendingConfirmationsBySession"].as_object());
        let calls = lists.flat_map(|list| list.values().flat_map(|calls| calls.as_array().unwrap()));
        let shown = calls.map(|call| call["callId"].as_str().unwrap().to_owned()).collect();
        let after = after(&lines, &parsed);
        Self { name: name.to_owned(), lines, parsed, after, shown, answers }
    }

    pub(crate) fn end(&self) -> Timestamp {
        self.lines.last().unwrap().0
    }

    /// The list's answer at a moment.
    pub(crate) fn list(&self, at: Timestamp) -> Value {
        let mut rows = Vec::new();
        let mut confirmations = serde_json::Map::new();
        for (id, served) in self.served(at).iter().filter(|(_, served)| served.exists) {
            rows.push(json!({
                "id": id, "projectId": format!("project of {}", self.name), "workdir": "/home/dev/demo",
                "branch": "main", "mode": "planner", "phase": "plan", "isRunning": served.running,
                "providerId": "fake", "providerModel": "fake-model", "title": "Greeting module",
                "updatedAt": iso(served.updated.unwrap_or(at)), "criteriaCount": 0, "criteriaCompleted": 0,
                "recentUserPrompts": [{"id": "p", "content": "a prompt"}],
            }));
            let pending: Vec<Value> =
                self.confirmed(served).iter().map(|(id, tool)| json!({"callId": id, "tool": tool})).collect();
            if !pending.is_empty() {
                confirmations.insert(id.clone(), Value::Array(pending));
            }
        }
        json!({"sessions": rows, "hasMore": false, "pendingConfirmationsBySession": confirmations})
    }

    /// The status of a session at a moment; `None`: it does not exist.
    pub(crate) fn status(&self, id: &str, at: Timestamp) -> Option<Value> {
        let served = self.served(at).remove(id).filter(|served| served.exists)?;
        let asks = served.running && (served.asked.is_some() || !self.confirmed(&served).is_empty());
        let state = match served.flow.as_deref() {
            _ if asks => Some("waiting"),
            Some("waiting") => Some("waiting"),
            _ if served.running => Some("running"),
            Some("blocked") => Some("blocked"),
            Some("completed") => Some("completed"),
            _ => None,
        };
        Some(json!({
            "schemaVersion": 1, "sessionId": id, "state": state, "waitingForUser": asks,
            "lastActivityAt": iso(served.updated.unwrap_or(at)),
        }))
    }

    /// When the first frame of a session came.
    fn first(&self, id: &str) -> Option<Timestamp> {
        let mut lines = self.lines.iter().zip(&self.parsed);
        lines.find(|(_, parsed)| parsed["sessionId"] == id).map(|((at, _), _)| *at)
    }

    /// Open calls that wait for a confirmation, as a recorded list shows them.
    fn confirmed(&self, served: &Served) -> Vec<(String, String)> {
        let shown = |id: &str| self.shown.contains(id);
        served.calls.iter().filter(|(id, _)| shown(id)).map(|(id, tool)| (id.clone(), tool.clone())).collect()
    }

    /// The sessions by a moment, from all frames up to it, whoever got them.
    fn served(&self, at: Timestamp) -> BTreeMap<String, Served> {
        match self.lines.partition_point(|(time, _)| *time <= at) {
            0 => BTreeMap::new(),
            n => self.after[n - 1].clone(),
        }
    }
}

/// The sessions after each line.
fn after(lines: &[(Timestamp, What)], parsed: &[Value]) -> Vec<BTreeMap<String, Served>> {
    let mut all: BTreeMap<String, Served> = BTreeMap::new();
    let step = |((now, what), parsed): (&(Timestamp, What), &Value)| {
        if *what == What::Closed {
            // Only a server that was killed closed a connection in these recordings.
            for served in all.values_mut() {
                (served.running, served.asked) = (false, None);
                served.calls.clear();
            }
        }
        if let Some(id) = parsed["sessionId"].as_str().or(parsed["payload"]["sessionId"].as_str()) {
            // Whatever still comes of a session that was deleted is no session.
            let new = || Served { exists: true, updated: Some(*now), ..Served::default() };
            all.entry(id.to_owned()).or_insert_with(new).take(parsed, *now);
        }
        all.clone()
    };
    lines.iter().zip(parsed).map(step).collect()
}

// === impl Served ===

impl Served {
    fn take(&mut self, frame: &Value, now: Timestamp) {
        let payload = &frame["payload"];
        let text = |v: &Value| v.as_str().map(str::to_owned);
        match frame["type"].as_str().unwrap() {
            "session.running" => {
                let running = payload["isRunning"] == true;
                if self.running != running {
                    self.updated = Some(now);
                }
                self.running = running;
                if !running {
                    self.asked = None;
                    self.calls.clear();
                }
            }
            "session.deleted" => self.exists = false,
            "chat.tool_call" => {
                let tool = text(&payload["tool"]).unwrap();
                self.calls.insert(text(&payload["callId"]).unwrap(), tool);
            }
            "chat.tool_result" => {
                let id = text(&payload["callId"]).unwrap();
                self.calls.remove(&id);
                if self.asked.as_ref() == Some(&id) {
                    self.asked = None;
                }
            }
            "chat.ask_user" => self.asked = text(&payload["callId"]),
            "workflow.execution_changed" => self.flow = text(&payload["status"]),
            _ => {}
        }
    }
}

#[test]
fn the_server_is_modelled_as_it_answered() {
    let mut compared = 0;
    for name in names() {
        let recording = Recording::of(&name);
        for (at, path, code, body) in &recording.answers {
            // After a restart the server was asked before the client was connected again.
            if let Some(id) = path.strip_prefix("/api/sessions/").and_then(|p| p.strip_suffix("/status")) {
                let status = recording.status(id, *at);
                match &status {
                    // Before its first frame there is no session in the model.
                    None => assert!(
                        *code == 404 || recording.first(id).is_none_or(|first| first > *at),
                        "{name} {}",
                        iso(*at)
                    ),
                    Some(status) => {
                        for field in ["state", "waitingForUser"] {
                            assert_eq!(status[field], body[field], "{name} {field} {}", iso(*at));
                        }
                        let apart = time(body["lastActivityAt"].as_str().unwrap())
                            .since(time(status["lastActivityAt"].as_str().unwrap()));
                        assert!(apart.abs() < 500, "{name} {}: updated {apart} ms apart", iso(*at));
                    }
                }
                compared += 1;
            } else if path.starts_with("/api/sessions?limit") && *code == 200 {
                let list = recording.list(*at);
                assert_eq!(
                    list["pendingConfirmationsBySession"].as_object().unwrap().keys().collect::<Vec<_>>(),
                    body["pendingConfirmationsBySession"].as_object().unwrap().keys().collect::<Vec<_>>(),
                    "{name}"
                );
                for row in body["sessions"].as_array().unwrap() {
                    let own = list["sessions"].as_array().unwrap().iter().find(|own| own["id"] == row["id"]);
                    if let Some(own) = own {
                        assert_eq!(own["isRunning"], row["isRunning"], "{name} {}", iso(*at));
                    }
                }
                compared += 1;
            }
        }
    }
    assert!(compared > 60, "{compared}");
}
