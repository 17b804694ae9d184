//! `replay --otlp`: the program sends what recordings tell, with the ids of the live store; it says what arrived, and fails
//! where not everything did.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{Event, Reducer, Timestamp};
use agent_session_exporter::otlp::{Encoder, Protocol};
use agent_session_exporter::sources::LIST;
use agent_session_exporter::sources::recorded::{Played, Setting, play};
use agent_session_exporter::spans::Outgoing;
use agent_session_exporter::telemetry::Telemetry;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::trace::v1::Span;
use tonic::Code;

use crate::collector::{Collector, Say, nobody};
use crate::stand::{BOTH, env};
use crate::tree::told;

#[expect(clippy::disallowed_methods, reason = "what is tested is the program")]
fn replay(env: impl IntoIterator<Item = (String, String)>, arguments: &[&str]) -> Output {
    let state = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_agent-session-exporter"))
        .args(["replay", "--otlp", "--state-dir", state.path().to_str().unwrap()])
        .args(arguments)
        .env_clear()
        .env("HOME", state.path())
        .envs(env)
        .output()
        .unwrap()
}

fn events(source: &str, file: &Path) -> Vec<(Timestamp, Event)> {
    let setting = Setting {
        reducer: Arc::new(Reducer::new([0; 16], Runners::default())),
        telemetry: Arc::new(Telemetry::new()),
        allow_builtin: true,
    };
    let def = LIST.iter().find(|def| def.name == source).unwrap();
    let mut played = Played::default();
    play(def, &[file.to_owned()], &setting, &mut played).unwrap();
    played.events
}

/// What a store that heard the same live has to send, by id.
fn live(source: &str, file: &Path) -> (Vec<Span>, Vec<LogRecord>) {
    let encoder = Encoder::new(&[]);
    let (mut spans, mut logs) = (Vec::new(), Vec::new());
    for (_, item) in told(events(source, file)) {
        match item {
            Outgoing::Span(span) => spans.push(span),
            Outgoing::Log(log) => logs.push(log),
        }
    }
    let spans = encoder.spans(spans).resource_spans.into_iter().flat_map(|r| r.scope_spans);
    let logs = encoder.logs(logs).resource_logs.into_iter().flat_map(|r| r.scope_logs);
    (by_id(spans.flat_map(|s| s.spans).collect()), logs.flat_map(|s| s.log_records).collect())
}

fn by_id(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by(|a, b| a.span_id.cmp(&b.span_id));
    spans
}

/// Two runs with steps, a failing call, a wait, and one that never ends.
fn made(folder: &Path) -> PathBuf {
    let mut text = String::new();
    let mut line = |at: i64, session: &str, kind: &str, more: serde_json::Value| {
        let mut line = serde_json::json!({
            "schemaVersion": "1", "source": "mine", "sessionId": session, "type": kind,
            "id": format!("{session}:{kind}:{at}"), "time": 1_795_960_000_000_i64 + at * 1000,
        });
        for (key, value) in more.as_object().unwrap() {
            line[key.as_str()] = value.clone();
        }
        text.push_str(&format!("{line}\n"));
    };
    let json = |data: serde_json::Value| serde_json::json!({ "requestId": "r", "data": data });
    line(0, "s", "turn.started", json(serde_json::json!({})));
    line(1, "s", "workflow.step.started", json(serde_json::json!({ "stepId": "build", "kind": "build" })));
    line(2, "s", "tool.started", json(serde_json::json!({ "callId": "c", "tool": "bash" })));
    line(9, "s", "tool.ended", json(serde_json::json!({ "callId": "c", "outcome": "error" })));
    line(10, "s", "user.action_required", json(serde_json::json!({ "actionId": "a", "kind": "question" })));
    line(400, "s", "user.action_resolved", json(serde_json::json!({ "actionId": "a" })));
    let outcome = serde_json::json!({ "stepId": "build", "outcome": "advanced" });
    line(401, "s", "workflow.step.completed", json(outcome));
    line(402, "s", "turn.ended", json(serde_json::json!({ "outcome": "completed" })));
    line(9_000, "lost", "turn.started", json(serde_json::json!({})));
    line(9_001, "lost", "tool.started", json(serde_json::json!({ "callId": "d", "tool": "read" })));
    let path = folder.join("made.ndjson");
    std::fs::write(&path, text).unwrap();
    path
}

fn recordings(folder: &Path) -> [(&'static str, PathBuf); 3] {
    let fixture = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    [
        ("push", made(folder)),
        ("codex", fixture("codex/edit_ok.rollout.jsonl")),
        ("claude_code", fixture("claude_code/subagent.transcript.jsonl")),
    ]
}

#[test]
fn what_is_recorded_arrives_with_the_ids_of_the_live_store() {
    let folder = tempfile::tempdir().unwrap();
    for protocol in BOTH {
        for (source, file) in recordings(folder.path()) {
            let collector = Collector::start();
            let name = file.to_str().unwrap();
            let out = replay(env(collector.address, protocol), &["--format", source, name]);
            let said = String::from_utf8(out.stderr).unwrap();
            assert_eq!(out.status.code(), Some(0), "{source}: {said}");
            let (spans, logs) = live(source, &file);
            assert!(
                spans.len() > 1 && by_id(collector.memory.spans()) == spans,
                "{source} over {protocol:?}"
            );
            let ids = |logs: &[LogRecord]| {
                let mut ids: Vec<_> = logs
                    .iter()
                    .map(|l| (l.time_unix_nano, l.trace_id.clone(), l.span_id.clone(), l.attributes.clone()))
                    .collect();
                ids.sort_by_key(|(time, ..)| *time);
                ids
            };
            assert_eq!(ids(&collector.memory.logs()), ids(&logs), "{source}");
            assert!(!logs.is_empty(), "{source}");
            let told = format!("{} spans and {} log records arrived\n", spans.len(), logs.len());
            assert_eq!(String::from_utf8(out.stdout).unwrap(), told, "{source}");
        }
    }
}

#[test]
fn a_run_that_nothing_ended_is_told_as_far_as_it_was_seen() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start();
    let file = made(folder.path());
    replay(env(collector.address, Protocol::Http), &[file.to_str().unwrap()]);
    let spans = collector.memory.spans();
    let unseen = |s: &&Span| s.attributes.iter().any(|a| a.key == "agent_session.end_observed");
    let names: Vec<&str> = spans.iter().filter(unseen).map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["execute_tool read", "invoke_agent mine"]);
}

#[test]
fn small_requests_and_a_collector_that_is_busy_at_first_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = made(folder.path());
    for protocol in BOTH {
        let collector = Collector::start();
        let busy = Say::Status(
            429,
            Some(("retry-after", "1".to_owned())),
            Code::Unavailable,
            Some(Duration::from_millis(50)),
        );
        let too_large = Say::Status(413, None, Code::ResourceExhausted, None);
        collector.memory.script([too_large, busy]);
        let mut env = env(collector.address, protocol);
        env.insert("OTEL_BSP_MAX_EXPORT_BATCH_SIZE".to_owned(), "3".to_owned());
        env.insert("OTEL_LOGS_EXPORTER".to_owned(), "none".to_owned());
        let out = replay(env, &[file.to_str().unwrap()]);
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(0), "{said}");
        let requests = collector.memory.requests();
        let sizes: Vec<usize> = requests.iter().map(|r| r.spans.len()).collect();
        assert_eq!(sizes, [3, 1, 1, 2, 3], "{protocol:?}: {said}");
        let wanted = live("push", &file).0;
        assert_eq!(by_id(collector.memory.spans()), wanted, "{protocol:?}");
        assert_eq!(String::from_utf8(out.stdout).unwrap(), format!("{} spans arrived\n", wanted.len()));
    }
}

/// What a server of gRPC says that has no room, perhaps with when it will have some.
fn full(after: Option<Duration>) -> Say {
    Say::Status(429, None, Code::ResourceExhausted, after)
}

/// Spans alone to a collector over gRPC that has no room at first; what the program said.
fn replay_to_full(collector: &Collector, file: &Path) -> Output {
    let mut env = env(collector.address, Protocol::Grpc);
    env.insert("OTEL_LOGS_EXPORTER".to_owned(), "none".to_owned());
    replay(env, &[file.to_str().unwrap()])
}

#[test]
fn a_collector_that_has_no_room_for_a_while_gets_everything_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = made(folder.path());
    let wanted = live("push", &file).0;
    assert_eq!(wanted.len(), 6);
    let soon = full(Some(Duration::from_millis(50)));
    for (says, sizes) in [
        // Who says when to come again means all of it, and is asked for all of it.
        (vec![soon; 4], vec![6, 6, 6, 6, 6]),
        // Else it may be too much at once: pieces, and when those are as small as can be, patience.
        (vec![full(None); 4], vec![6, 3, 1, 1, 1, 2, 3]),
    ] {
        let collector = Collector::start();
        collector.memory.script(says);
        let out = replay_to_full(&collector, &file);
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(0), "{said}");
        let requests = collector.memory.requests();
        assert_eq!(requests.iter().map(|r| r.spans.len()).collect::<Vec<_>>(), sizes, "{said}");
        assert_eq!(by_id(collector.memory.spans()), wanted);
        assert_eq!(String::from_utf8(out.stdout).unwrap(), "6 spans arrived\n");
    }
}

/// Whoever waits in front of it is told, before each span was tried on its own.
#[test]
fn a_collector_that_never_has_room_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = made(folder.path());
    let ends = |after: Option<Duration>, sizes: &[usize]| {
        let collector = Collector::start();
        collector.memory.always(Some(full(after)));
        let out = replay_to_full(&collector, &file);
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(1), "{said}");
        let why = "the collector took nothing in 5 tries: code 8 of gRPC; 0 spans had arrived";
        assert!(said.contains(why), "{said}");
        let requests = collector.memory.requests();
        assert_eq!(requests.iter().map(|r| r.spans.len()).collect::<Vec<_>>(), sizes, "{said}");
    };
    ends(Some(Duration::from_millis(50)), &[6; 5]);
    // One that nobody has room for, and a second.
    let mut sizes = vec![6, 3];
    sizes.extend([1; 10]);
    ends(None, &sizes);
}

#[test]
fn what_does_not_arrive_is_a_failure_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = made(folder.path());
    let name = file.to_str().unwrap();
    let fails = |env: &[(String, String)], arguments: &[&str], code: i32, why: &str| {
        let out = replay(env.iter().cloned(), arguments);
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(code), "{said}");
        assert!(said.contains(why), "{said}");
    };
    fails(&[], &[name], 1, "nowhere to send to: OTEL_EXPORTER_OTLP_ENDPOINT or otlp.endpoint");
    fails(&[], &["--step", "1s", name], 2, "cannot be used with");
    let collector = Collector::start();
    let env: Vec<_> = env(collector.address, Protocol::Http).into_iter().collect();
    collector.memory.always(Some(Say::Status(401, None, Code::Unauthenticated, None)));
    fails(&env, &[name], 1, "OTLP is not set up as the collector wants it: status 401; 0 ");
    assert_eq!(collector.memory.requests().len(), 1);
    collector.memory.always(Some(Say::Status(400, None, Code::InvalidArgument, None)));
    let (spans, logs) = live("push", &file);
    let all = spans.len() + logs.len();
    fails(&env, &[name], 1, &format!("the collector refused {all} spans or log records"));
    collector.memory.always(None);
    collector.memory.script([Say::Partly(2, "too old")]);
    fails(&env, &[name], 1, "the collector refused 2 spans or log records");
    fails(&env, &["/nowhere/x.ndjson"], 1, "/nowhere/x.ndjson: ");
    let nobody = crate::stand::env(nobody(), Protocol::Http).into_iter().collect::<Vec<_>>();
    fails(&nobody, &[name], 1, "the collector took nothing in 5 tries: no connection; 0 ");
}
