//! Content never leaves: a marker planted in every content field of every recording and of pushed events appears
//! nowhere in `/metrics`, the API, the landing page, error answers, the log at trace level, the state files, or in what is
//! sent by OTLP.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "otlp/collector.rs"]
#[allow(dead_code, reason = "tests of answers use the rest")]
mod collector;
#[path = "common/leaving.rs"]
mod leaving;
#[path = "common/running.rs"]
mod running;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use agent_session_exporter::event::Timestamp;
use running::{Exporter, command, wait_until};
use serde_json::{Map, Value};

const MARKER: &str = "LEAKMARKERq7x";
/// Recordings end so much later than they are planted: by then the exporter counts, and tells what is over.
const AHEAD_MS: i64 = 20_000;

/// Keys whose values are structure, ids or names that may be shown; everything else is content.
const STRUCTURE: &[&str] = &[
    "type",
    "id",
    "ids",
    "timestamp",
    "status",
    "role",
    "name",
    "namespace",
    "call_id",
    "turn_id",
    "root_turn_id",
    "session_id",
    "thread_id",
    "parent_thread_id",
    "parent_turn_id",
    "forked_from_id",
    "response_id",
    "window_id",
    "cli_version",
    "originator",
    "source",
    "thread_source",
    "model",
    "model_provider",
    "model_provider_id",
    "approval_policy",
    "approvals_reviewer",
    "mode",
    "history_mode",
    "sandbox_permissions",
    "codex_error_info",
    "reason",
    "turn_trigger",
    "plan_type",
    "limit_id",
    "record_type",
    "server",
    "tool",
    "requested_approvals_reviewer",
    "sender_thread_id",
    "new_thread_id",
    "receiver_thread_id",
    "thread_spawn",
    "encrypted_content_kind",
    "collaboration_mode_kind",
    "process_id",
    "item_id",
    "kind",
    "agent_role",
    "goalId",
    "threadId",
    "shell",
    "sessionId",
    "uuid",
    "parentUuid",
    "logicalParentUuid",
    "leafUuid",
    "sourceToolAssistantUUID",
    "toolUseID",
    "parentToolUseID",
    "tool_use_id",
    "agentId",
    "requestId",
    "requestSessionId",
    "promptId",
    "taskId",
    "task_id",
    "backgroundTaskId",
    "version",
    "userType",
    "entrypoint",
    "querySource",
    "operation",
    "subtype",
    "stop_reason",
    "permissionMode",
    "toolDenialKind",
    "commandMode",
    "decision",
    "trigger",
    "to",
    "from",
    "procStart",
    "pidDomain",
    "waitingFor",
];

/// Plants the marker in every content string, leaving the beginning of each, which decides what it is.
fn plant(key: &str, value: &mut Value) {
    match value {
        Value::String(text) if key == "cwd" => *text = text.replace("/home/dev", &format!("/home/{MARKER}")),
        Value::String(text) if key == "arguments" || key == "input" => {
            if let Ok(mut inner) = serde_json::from_str::<Value>(text)
                && inner.is_object()
            {
                plant("", &mut inner);
                *text = inner.to_string();
            } else {
                text.push_str(&format!("\n{MARKER}"));
            }
        }
        Value::String(text) if !STRUCTURE.contains(&key) => text.push_str(&format!(" {MARKER}")),
        Value::Array(list) => list.iter_mut().for_each(|v| plant(key, v)),
        // What a person was asked stands where keys do.
        Value::Object(map) if key == "changes" || key == "answers" => {
            let old: Map<String, Value> = std::mem::take(map);
            for (path, mut change) in old {
                plant("change", &mut change);
                map.insert(format!("/home/{MARKER}{path}"), change);
            }
        }
        Value::Object(map) => map.iter_mut().for_each(|(k, v)| plant(k, v)),
        _ => {}
    }
}

fn plant_line(line: &str) -> String {
    match serde_json::from_str::<Value>(line) {
        Ok(mut value) => {
            plant("", &mut value);
            value.to_string()
        }
        Err(_) => format!("{line}{MARKER}"),
    }
}

fn recordings() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut found = Vec::new();
    for below in ["codex", "public/codex", "public/codex/rollout-0.130.0-fork"] {
        for entry in fs::read_dir(folder.join(below)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let rollout = name.contains("rollout") || path.to_string_lossy().contains("fork");
            if name.ends_with(".jsonl") && rollout && !name.contains(".at_") {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 60, "only {} recordings found", found.len());
    found
}

/// Files of the other agent: all transcripts, what its registry said last, and the key that lies there.
fn plant_claude(home: &Path) -> usize {
    let agent = home.join(".claude");
    let projects = agent.join(format!("projects/-home-{MARKER}-project"));
    fs::create_dir_all(projects.join("x/subagents")).unwrap();
    fs::create_dir_all(agent.join("sessions")).unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut folders = vec![fixtures.join("claude_code"), fixtures.join("public/claude-code")];
    let (mut files, mut planted) = (0, 0);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
            if name.ends_with(".sessions.ndjson") {
                let mut said = text.lines().rev().map(|line| serde_json::from_str::<Value>(line).unwrap());
                let mut last = said.find(|change| change["content"].is_object()).unwrap();
                plant("", &mut last["content"]);
                let file = last["file"].as_str().unwrap();
                fs::write(agent.join("sessions").join(file), last["content"].to_string()).unwrap();
                fs::write(agent.join("sessions").join(file.replace(".json", ".0123.key")), MARKER).unwrap();
            } else if name.ends_with(".jsonl") {
                let text = moved(&text, running::now_ms() + AHEAD_MS);
                let lines: Vec<String> = text.lines().map(plant_line).collect();
                planted += lines.iter().filter(|l| l.contains(MARKER)).count();
                let own = name.starts_with("agent-") || name.contains(".subagent-");
                let place = match own {
                    true => format!("x/subagents/agent-{files}.jsonl"),
                    false => format!("{files:08}-0000-4000-8000-000000000000.jsonl"),
                };
                fs::write(projects.join(place), lines.join("\n") + "\n").unwrap();
                files += 1;
            }
        }
    }
    assert!(files > 50, "only {files} transcripts found");
    planted
}

/// A recording with its times moved so that the last is this moment: what was over before a store began is not told.
fn moved(text: &str, end: i64) -> String {
    const LONG: usize = "2026-11-29T15:12:58.768Z".len();
    let stamp = |at: usize| {
        let text = text.get(at..at + LONG).filter(|t| t.starts_with("20") && t.ends_with('Z'))?;
        Timestamp::parse(text).ok()
    };
    let stamps: Vec<(usize, Timestamp)> =
        (0..text.len().saturating_sub(LONG - 1)).filter_map(|at| Some((at, stamp(at)?))).collect();
    let Some(last) = stamps.iter().map(|(_, stamp)| *stamp).max() else { return text.to_owned() };
    let mut out = text.to_owned();
    for (at, stamp) in stamps {
        let new = stamp.plus(end - last.as_millis()).to_string();
        assert_eq!(new.len(), LONG, "{new}");
        out.replace_range(at..at + LONG, &new);
    }
    out
}

fn pushed() -> String {
    let kinds = [
        ("session.started", format!(r#"{{"agent":"a","prompt":"{MARKER}"}}"#)),
        ("user.prompt", format!(r#"{{"text":"{MARKER}"}}"#)),
        (
            "tool.started",
            format!(
                r#"{{"callId":"c1","tool":"bash","target":"{MARKER}","args":{{"command":"echo {MARKER}","x":["{MARKER}"]}}}}"#
            ),
        ),
        (
            "tool.ended",
            format!(
                r#"{{"callId":"c1","outcome":"error","error":"{MARKER}","outputDigest":"{MARKER}","output":"{MARKER}"}}"#
            ),
        ),
        ("error", format!(r#"{{"errorClass":"server","message":"{MARKER}"}}"#)),
        ("progress", format!(r#"{{"kind":"file_modified","evidence":"declared","path":"/x/{MARKER}/y"}}"#)),
        ("user.action_required", format!(r#"{{"actionId":"a1","kind":"question","question":"{MARKER}"}}"#)),
    ];
    let lines = kinds.iter().enumerate().map(|(i, (kind, data))| {
        format!(r#"{{"id":"e{i}","source":"mine","sessionId":"s","projectId":"/home/{MARKER}/shop","type":"{kind}","data":{data},"note":"{MARKER}"}}"#)
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn assert_clean(what: &str, bytes: &[u8]) {
    if let Some(at) = bytes.windows(MARKER.len()).position(|w| w == MARKER.as_bytes()) {
        let around = &bytes[at.saturating_sub(120)..(at + 60).min(bytes.len())];
        panic!("{what} shows content: …{}…", String::from_utf8_lossy(around));
    }
}

#[test]
fn content_never_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let (home, state) = (folder.path().join("home"), folder.path().join("state"));
    let sessions = home.join(".codex/sessions/2026/11/29");
    fs::create_dir_all(&sessions).unwrap();
    // What was over before there was a store is not told, and to plant takes long on a slow machine.
    let (_, ended_well) = Exporter::start(&home, &state, &[]).ready().terminate();
    assert!(ended_well);
    let mut planted = 0;
    for (i, path) in recordings().iter().enumerate() {
        let bytes = fs::read(path).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        let text = moved(&text, running::now_ms() + AHEAD_MS);
        let lines: Vec<String> = text.lines().map(plant_line).collect();
        planted += lines.iter().filter(|l| l.contains(MARKER)).count();
        let name = format!("rollout-2026-11-29T15-00-00-{i:08}-0000-7000-8000-000000000000.jsonl");
        fs::write(sessions.join(name), lines.join("\n") + "\n").unwrap();
    }
    assert!(planted > 1500, "the marker stands in {planted} lines only");
    let planted = plant_claude(&home);
    assert!(planted > 1500, "the marker stands in {planted} lines only");
    let log = folder.path().join("log");
    let stderr = Stdio::from(fs::File::create(&log).unwrap());
    let collector = leaving::closed();
    let variables = leaving::variables(&collector, ["grpc", "http/protobuf", "grpc"]);
    let flags = ["--log.level", "trace", "--series", "all"];
    let exporter = Exporter::start_logging_with(&home, &state, &flags, &variables, stderr).ready();
    assert_eq!(exporter.push(&pushed()).unwrap().status, 202);
    wait_until("all recordings show", || exporter.sessions().len() > 110);
    leaving::search(&exporter, &state, &collector, (60, 10), assert_clean);

    for path in
        ["/metrics", "/", "/api/v1/openapi.json", "/api/v1/schema/event.json", "/api/v1/schema/status.json"]
    {
        assert_clean(path, &exporter.get(path).body);
    }
    let openmetrics =
        exporter.get_as("/metrics", &[("accept", "application/openmetrics-text; version=1.0.0")]);
    assert_clean("openmetrics", &openmetrics.body);
    for session in exporter.sessions() {
        let id = session["sessionId"].as_str().unwrap();
        let base = format!("/api/v1/sessions/{}/{id}", session["source"].as_str().unwrap());
        assert_clean("status", session.to_string().as_bytes());
        assert_clean("explain", &exporter.get(&format!("{base}/explain")).body);
    }
    let bad = [
        format!("{{\"a\": {MARKER}"),
        format!(
            r#"{{"source":"mine","sessionId":"s","type":"tool.ended","data":{{"outcome":"{MARKER}","callId":"z"}}}}"#
        ),
        format!(r#"{{"source":"{MARKER}!","sessionId":"s","type":"activity","data":{{}}}}"#),
        format!(r#"{{"source":"mine","sessionId":"s","time":"{MARKER}","type":"activity","data":{{}}}}"#),
    ];
    for line in &bad {
        assert_clean("push error", &exporter.push(line).unwrap().body);
        let json = running::request(
            &exporter.address,
            "POST",
            "/api/v1/events",
            &[("content-type", "application/json")],
            line.as_bytes(),
        );
        assert_clean("push error", &json.unwrap().body);
    }
    assert_clean(
        "unknown session",
        &exporter.get(&format!("/api/v1/sessions/mine/{}/status", "nobody")).body,
    );
    let (_, ended_well) = exporter.terminate();
    assert!(ended_well);
    for entry in fs::read_dir(&state).unwrap() {
        let path = entry.unwrap().path();
        assert_clean(&path.display().to_string(), &fs::read(&path).unwrap());
    }
    assert_clean("log", &fs::read(&log).unwrap());
    let once = command(&home, &folder.path().join("once")).arg("once").output().unwrap();
    assert!(once.status.success());
    assert_clean("once", &once.stdout);
    assert_clean("once's log", &once.stderr);
}
