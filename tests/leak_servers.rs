//! Content never leaves, part two: what servers send. A marker is planted in every text, path and argument of every
//! recording of every server; the running program shows it nowhere, and sends it nowhere by OTLP.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "otlp/collector.rs"]
#[allow(dead_code, reason = "tests of answers use the rest")]
mod collector;
#[path = "common/leaving.rs"]
mod leaving;
#[path = "common/peer.rs"]
mod peer;
#[path = "common/running.rs"]
mod running;
#[path = "common/traffic.rs"]
mod traffic;

use std::fs;
use std::path::Path;
use std::process::Stdio;

use peer::{Kind, Reply, Rules, Server};
use running::{Exporter, wait_until};
use serde_json::Value;
use traffic::Known;

const MARKER: &str = "LEAKMARKERq7x";
/// Names that a person gave in a workflow's definition may be shown.
const SHOWN: &[&str] = &["currentStepName", "workflowName", "stepName"];
/// Whatever stands below these is content, however short.
const CONTENT: &[&str] = &[
    "args",
    "arguments",
    "input",
    "tool_input",
    "tool_response",
    "output",
    "delta",
    "text",
    "content",
    "title",
    "message",
    "error",
    "metadata",
    "description",
    "prompt",
    "command",
    "paths",
    "patterns",
    "files",
    "diff",
    "patch",
    "question",
    "questions",
    "options",
    "answers",
    "reason",
    "summary",
    "lines",
    "details",
];

/// Plants the marker in texts with blanks, in paths before their last part, and in everything that is content.
fn plant(key: &str, content: bool, value: &mut Value) {
    let content = content || CONTENT.contains(&key);
    match value {
        Value::String(_) if SHOWN.contains(&key) => {}
        Value::String(text) if text.starts_with('/') => {
            let at = text.rfind('/').unwrap();
            text.insert_str(at, &format!("/{MARKER}"));
        }
        Value::String(text) => {
            let word = text.len() <= 64 && !text.contains(|c: char| c.is_whitespace() || c == '/');
            // Closed sets stay what they are, also below content: a word that decides what happens.
            if (content && !is_structure(key)) || !word {
                text.push_str(&format!(" {MARKER}"));
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|v| plant(key, content, v)),
        Value::Object(map) => map.iter_mut().for_each(|(k, v)| plant(k, content, v)),
        _ => {}
    }
}

fn is_structure(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    [
        "id", "status", "type", "role", "kind", "reason", "tool", "mode", "agent", "name", "version",
        "model", "provider",
    ]
    .iter()
    .any(|end| key.ends_with(end))
        || ["timestamp", "at", "time", "finish", "level"].iter().any(|whole| key == *whole)
}

fn planted(record: &str, count: &mut usize) -> String {
    let mut value: Value = serde_json::from_str(record).unwrap();
    plant("", false, &mut value);
    let text = value.to_string();
    *count += usize::from(text.contains(MARKER));
    text
}

fn assert_clean(what: &str, bytes: &[u8]) {
    if let Some(at) = bytes.windows(MARKER.len()).position(|w| w == MARKER.as_bytes()) {
        let around = &bytes[at.saturating_sub(160)..(at + 60).min(bytes.len())];
        panic!("{what} shows content: …{}…", String::from_utf8_lossy(around));
    }
}

/// An answer with the marker in it.
fn marked(reply: Reply) -> Reply {
    match serde_json::from_slice::<Value>(&reply.body) {
        Ok(mut value) => {
            plant("", false, &mut value);
            Reply { body: value.to_string().into_bytes(), ..reply }
        }
        Err(_) => reply,
    }
}

#[test]
fn what_servers_send_stays_inside() {
    let folder = tempfile::tempdir().unwrap();
    let (home, state) = (folder.path().join("home"), folder.path().join("state"));
    fs::create_dir_all(&home).unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let (fox, code) = (Known::default(), Known::default());
    let (fox_answers, code_answers) = (fox.clone(), code.clone());
    let openfox = Server::start(
        Rules::new(Kind::Socket("/ws", &[])).answer(move |a| marked(fox_answers.openfox_answers(a))),
    );
    let opencode = Server::start(
        Rules::new(Kind::Events("/global/event")).answer(move |a| marked(code_answers.opencode_answers(a))),
    );
    let gobby_sessions = fs::read_to_string(fixtures.join("gobby/0.4.6-http.ndjson")).unwrap();
    let sessions = gobby_sessions
        .lines()
        .map(|l| serde_json::from_str::<Value>(l).unwrap())
        .find_map(|l| l["response"]["sessions"].is_array().then(|| l["response"].clone()))
        .unwrap_or_else(|| serde_json::json!({"sessions": []}));
    let kind = Kind::Socket("/", &[r#"{"type": "subscribe", "events": ["*"]}"#]);
    let mut rules = Rules::new(kind).answer(move |a| match a.plain() {
        "/api/sessions" => marked(Reply::json(200, sessions.to_string())),
        _ => Reply::none(),
    });
    rules.next_port = true;
    let gobby = Server::start(rules);
    let config = folder.path().join("config.toml");
    let server = |name: &str, server: &Server| format!("[sources.{name}]\nservers = [{:?}]\n", server.url());
    let text = [server("openfox", &openfox), server("opencode", &opencode), server("gobby", &gobby)].concat();
    fs::write(&config, text).unwrap();

    let log = folder.path().join("log");
    let stderr = Stdio::from(fs::File::create(&log).unwrap());
    let collector = leaving::closed();
    let variables = leaving::variables(&collector, ["http/protobuf", "grpc", "http/protobuf"]);
    let flags = ["--log.level", "trace", "--series", "all", "--config.file", config.to_str().unwrap()];
    let exporter = Exporter::start_logging_with(&home, &state, &flags, &variables, stderr).ready();
    for server in [&openfox, &opencode, &gobby] {
        server.until_streams(1);
    }
    let now = running::now_ms();
    let (mut sent, mut with_marker) = (0, 0);
    for track in traffic::openfox(&fixtures.join("openfox")) {
        for (_, record) in track.copy(1, now).steps {
            fox.openfox_sent(&record);
            openfox.send(&planted(&record, &mut with_marker));
            sent += 1;
        }
    }
    for track in traffic::opencode(&fixtures.join("opencode")) {
        for (_, record) in track.copy(1, now).steps {
            code.opencode_sent(&record);
            opencode.send(&planted(&record, &mut with_marker));
            sent += 1;
        }
    }
    for version in ["0.4.6-ws-star", "0.2.5-ws-session", "0.2.5-ws-autonomous"] {
        let text = fs::read_to_string(fixtures.join(format!("gobby/{version}.ndjson"))).unwrap();
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            gobby.send(&planted(&line["frame"].to_string(), &mut with_marker));
            sent += 1;
        }
    }
    assert!(with_marker > 3000, "the marker stands in {with_marker} records only");
    // A record that cannot be read is content as well.
    for server in [&openfox, &opencode, &gobby] {
        server.send(&format!("{{\"{MARKER}\": {MARKER}"));
        server
            .send(&format!("{{\"type\": \"{MARKER} {MARKER}\", \"payload\": {{\"type\": \"{MARKER} x\"}}}}"));
        sent += 2;
    }
    let records = || {
        let text = exporter.metrics();
        let own = text.lines().filter(|l| l.starts_with("agent_session_exporter_records_total{"));
        own.map(|l| l.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as usize).sum::<usize>()
    };
    wait_until("all records are read", || records() >= sent);
    assert!(exporter.sessions().len() > 20);
    leaving::search(&exporter, &state, &collector, (60, 10), assert_clean);

    for path in ["/metrics", "/"] {
        assert_clean(path, &exporter.get(path).body);
    }
    for session in exporter.sessions() {
        let id = session["sessionId"].as_str().unwrap();
        let base = format!("/api/v1/sessions/{}/{id}", session["source"].as_str().unwrap());
        assert_clean("status", session.to_string().as_bytes());
        assert_clean("explain", &exporter.get(&format!("{base}/explain")).body);
    }
    let (_, ended_well) = exporter.terminate();
    assert!(ended_well);
    for entry in fs::read_dir(&state).unwrap() {
        let path = entry.unwrap().path();
        assert_clean(&path.display().to_string(), &fs::read(&path).unwrap());
    }
    assert_clean("log", &fs::read(&log).unwrap());
}
