//! A server's answers at any moment of a recording, made from what it had said by then. That they are those of the
//! real server is shown against its recorded answers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::recorded::{DIRECTORY, is_durable};

/// What a server knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    /// Of all servers on one data folder.
    pub(crate) sessions: BTreeMap<String, Value>,
    messages: BTreeMap<String, Vec<(Value, Vec<Value>)>>,
    history: Vec<Value>,
    /// Of this process.
    status: BTreeMap<String, Value>,
    permissions: BTreeMap<String, Value>,
    questions: BTreeMap<String, Value>,
    active: Map<String, Value>,
    /// Directories that the stream named since it was opened: to ask of another would start an instance.
    pub(crate) named: BTreeSet<String>,
    /// Requests of sessions of the second generation, by what their list is called.
    requests: BTreeMap<&'static str, BTreeMap<String, Value>>,
}

/// Rows of a list where nobody asks for more.
const ROWS: usize = 100;

fn rows(path: &str) -> usize {
    let limit = path.split(['?', '&']).find_map(|part| part.strip_prefix("limit="));
    limit.map_or(ROWS, |limit| limit.parse().unwrap())
}

/// Where the page begins that is asked for.
fn cursor(path: &str) -> i64 {
    let cursor = path.split(['?', '&']).find_map(|part| part.strip_prefix("cursor="));
    cursor.map_or(i64::MAX, |cursor| cursor.parse().unwrap())
}

fn updated(session: &Value) -> i64 {
    session["time"]["updated"].as_i64().unwrap_or_default()
}

fn of_directory(path: &str) -> String {
    match path.split_once("directory=") {
        Some((_, directory)) => percent_encoding::percent_decode_str(directory.split('&').next().unwrap())
            .decode_utf8()
            .unwrap()
            .into_owned(),
        None => DIRECTORY.to_owned(),
    }
}

// === impl World ===

impl World {
    /// One record of the stream.
    pub(crate) fn take(&mut self, frame: &Value) {
        self.named.extend(frame["directory"].as_str().map(str::to_owned));
        let payload = &frame["payload"];
        let kind = payload["type"].as_str().unwrap();
        if kind == "sync" {
            let kept = &payload["syncEvent"];
            self.history.push(json!({
                "id": kept["id"], "aggregate_id": kept["aggregateID"], "seq": kept["seq"],
                "type": kept["type"], "data": kept["data"],
            }));
            return;
        }
        let props = &payload["properties"];
        let session = props["sessionID"].as_str().unwrap_or_default().to_owned();
        match kind {
            "session.created" | "session.updated" => {
                self.sessions.insert(session, props["info"].clone());
            }
            "session.deleted" => {
                self.sessions.remove(&session);
                self.history.retain(|kept| kept["aggregate_id"] != session.as_str());
            }
            "session.status" if props["status"]["type"] == "idle" => {
                self.status.remove(&session);
                self.permissions.retain(|_, p| p["sessionID"] != session.as_str());
                self.questions.retain(|_, p| p["sessionID"] != session.as_str());
            }
            "session.status" => {
                self.status.insert(session, props["status"].clone());
            }
            "permission.asked" => {
                self.permissions.insert(props["id"].as_str().unwrap().to_owned(), props.clone());
            }
            "question.asked" => {
                self.questions.insert(props["id"].as_str().unwrap().to_owned(), props.clone());
            }
            "permission.replied" | "question.replied" | "question.rejected" => {
                let request = props["requestID"].as_str().unwrap();
                self.permissions.remove(request);
                self.questions.remove(request);
            }
            "permission.v2.asked" | "question.v2.asked" => {
                let list = if kind.starts_with("permission") { "permission" } else { "question" };
                let request = props["id"].as_str().unwrap().to_owned();
                self.requests.entry(list).or_default().insert(request, props.clone());
            }
            "permission.v2.replied" | "question.v2.replied" | "question.v2.rejected" => {
                let request = props["requestID"].as_str().unwrap();
                self.requests.values_mut().for_each(|all| drop(all.remove(request)));
            }
            "message.updated" => {
                let all = self.messages.entry(session).or_default();
                let id = &props["info"]["id"];
                match all.iter_mut().find(|(info, _)| info["id"] == *id) {
                    Some((info, _)) => *info = props["info"].clone(),
                    None => all.push((props["info"].clone(), Vec::new())),
                }
            }
            "message.part.updated" => {
                let part = &props["part"];
                let all = self.messages.entry(session).or_default();
                let Some((_, parts)) = all.iter_mut().find(|(info, _)| info["id"] == part["messageID"])
                else {
                    return;
                };
                match parts.iter_mut().find(|known| known["id"] == part["id"]) {
                    Some(known) => *known = part.clone(),
                    None => parts.push(part.clone()),
                }
            }
            "session.next.prompted" => {
                self.active.insert(session, json!({ "type": "running" }));
            }
            "session.next.step.failed" => {
                self.active.remove(&session);
            }
            "session.next.step.ended" if props["finish"] != "tool-calls" => {
                self.active.remove(&session);
            }
            _ => {}
        }
        assert!(!is_durable(kind) || payload["id"].is_string());
    }

    /// A session of the second generation is interrupted: nothing on the stream says so.
    pub(crate) fn interrupts(&mut self) {
        self.active.clear();
        self.requests.clear();
    }

    /// The process is another one.
    pub(crate) fn restart(&mut self) {
        self.status.clear();
        self.permissions.clear();
        self.questions.clear();
        self.active.clear();
        self.requests.clear();
        self.named.clear();
    }

    /// Whether a question is of no directory, or of one that is surely open.
    pub(crate) fn is_open(&self, path: &str) -> bool {
        !path.contains("directory=") || self.named.contains(&of_directory(path))
    }

    /// Where the next page of the list begins, if there is one.
    pub(crate) fn next(&self, path: &str) -> Option<String> {
        let pages = path.starts_with("/experimental/session?");
        let listed = self.listed().filter(|s| pages && updated(s) < cursor(path)).collect::<Vec<_>>();
        (listed.len() > rows(path)).then(|| updated(listed[rows(path) - 1]).to_string())
    }

    /// Newest first.
    fn listed(&self) -> impl Iterator<Item = &Value> {
        let mut listed: Vec<&Value> = self.sessions.values().collect();
        listed.sort_by_key(|s| std::cmp::Reverse(updated(s)));
        listed.into_iter()
    }

    /// The answer to a question, as status and body.
    pub(crate) fn answer(&self, path: &str, query: Option<&str>) -> (u16, Value) {
        let (plain, here) = (path.split('?').next().unwrap(), of_directory(path));
        let is_here =
            |session: &str| self.sessions.get(session).is_none_or(|s| s["directory"] == here.as_str());
        let pending = |all: &BTreeMap<String, Value>| {
            all.values().filter(|p| is_here(p["sessionID"].as_str().unwrap())).cloned().collect::<Vec<_>>()
        };
        let body = match plain {
            "/experimental/session" => {
                let page = self.listed().filter(|s| updated(s) < cursor(path));
                json!(page.take(rows(path)).collect::<Vec<_>>())
            }
            "/session" => {
                let here = self.listed().filter(|s| s["directory"] == here.as_str());
                json!(here.take(rows(path)).collect::<Vec<_>>())
            }
            "/session/status" => {
                json!(self.status.iter().filter(|(id, _)| is_here(id)).collect::<BTreeMap<_, _>>())
            }
            "/permission" => json!(pending(&self.permissions)),
            "/question" => json!(pending(&self.questions)),
            "/api/session/active" => json!({ "data": self.active }),
            "/sync/history" => {
                let known: BTreeMap<String, u64> = serde_json::from_str(query.unwrap()).unwrap();
                assert!(!known.is_empty(), "everything was asked for");
                let newer = |kept: &&Value| {
                    let seq = kept["seq"].as_u64().unwrap();
                    known.get(kept["aggregate_id"].as_str().unwrap()).is_none_or(|last| seq > *last)
                };
                json!(self.history.iter().filter(newer).collect::<Vec<_>>())
            }
            _ => return self.about_one(plain, rows(path)),
        };
        (200, body)
    }

    fn about_one(&self, path: &str, rows: usize) -> (u16, Value) {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        match parts[..] {
            ["session", id, "message"] if self.sessions.contains_key(id) => {
                let all = self.messages.get(id).cloned().unwrap_or_default();
                // The newest of them, in order.
                let newest = all.len().saturating_sub(rows);
                let stored =
                    all.into_iter().skip(newest).map(|(info, parts)| json!({ "info": info, "parts": parts }));
                (200, stored.collect())
            }
            ["session", _, "message"] => (404, json!({ "name": "NotFoundError" })),
            ["api", "session", id, "history"] => {
                let of = |kept: &&Value| kept["aggregate_id"] == id;
                let data = self.history.iter().filter(of).map(|kept| {
                    let kind = kept["type"].as_str().unwrap().rsplit_once('.').unwrap().0;
                    let durable = json!({ "aggregateID": id, "seq": kept["seq"], "version": 1 });
                    json!({ "id": kept["id"], "type": kind, "durable": durable, "data": kept["data"] })
                });
                (200, json!({ "data": data.collect::<Vec<_>>() }))
            }
            ["api", "session", id, list @ ("permission" | "question")] => {
                let all = self.requests.get(list).into_iter().flat_map(BTreeMap::values);
                (200, json!({ "data": all.filter(|r| r["sessionID"] == id).collect::<Vec<_>>() }))
            }
            _ => panic!("not to be asked: {path}"),
        }
    }
}
