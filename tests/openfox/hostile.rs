//! Frames and answers of a server that is none, or means ill.

use agent_session_exporter::sources::Record;
use agent_session_exporter::sources::live::{Answer, Ask, AskError, Peer as _, Said};
use serde_json::{Value, json};

use super::play::{Play, source};
use super::recorded::{Recording, What, names};

/// A client of a server that tells nothing.
fn idle(recording: &Recording) -> Play<'_> {
    let mut play = Play::blind(recording);
    play.connect();
    play
}

#[test]
fn garbage_is_refused_and_leaves_nothing() {
    let recording = Recording::of("launch_unknown_workflow");
    let mut play = idle(&recording);
    let deep = format!(
        r#"{{"type":"chat.delta","payload":{}{},"seq":1,"sessionId":"s"}}"#,
        "[".repeat(9_000),
        "]".repeat(9_000)
    );
    let long =
        format!(r#"{{"type":"chat.message","payload":{{}},"seq":1,"sessionId":"{}"}}"#, "x".repeat(100_000));
    for frame in [
        "",
        "null",
        "[]",
        "7",
        "\"text\"",
        "{",
        "{}",
        "{\"type\":7}",
        "{\"type\":\"chat.message\"}",
        "{\"type\":\"chat.message\",\"sessionId\":7}",
        "{\"type\":\"chat.message\",\"sessionId\":\"\"}",
        "{\"type\":\"session.deleted\"}",
        "{\"type\":\"chat.message\",\"sessionId\":\"a\\u0000b\"}",
        "{\"type\":\"chat.message\",\"sessionId\":\"a\"} {}",
        &deep,
        &long,
    ] {
        assert!(play.frame(frame).is_err(), "{}", &frame[..frame.len().min(80)]);
    }
    assert!(play.events.is_empty(), "{:?}", play.events);
}

#[test]
fn fields_of_wrong_types_lose_the_field_and_not_the_peace() {
    let wrong = [
        json!(null),
        json!(7),
        json!(-1e300),
        json!("text"),
        json!([]),
        json!([[1], {"a": 2}]),
        json!({"a": {}}),
        json!(true),
    ];
    // Replaces the value at the nth place of a tree.
    fn replace(value: &mut Value, n: &mut usize, with: &Value) -> bool {
        if *n == 0 {
            *value = with.clone();
            return true;
        }
        *n -= 1;
        match value {
            Value::Array(all) => all.iter_mut().any(|v| replace(v, n, with)),
            Value::Object(all) => all.values_mut().any(|v| replace(v, n, with)),
            _ => false,
        }
    }
    let mut told = 0;
    for name in ["workflow_pass", "ask_user", "restart"] {
        let recording = Recording::of(name);
        for with in &wrong {
            let mut play = idle(&recording);
            for (round, (at, what)) in recording.lines.iter().enumerate() {
                let What::Frame(frame) = what else { continue };
                play.move_to((*at).max(play.now));
                let mut damaged: Value = serde_json::from_str(frame).unwrap();
                replace(&mut damaged, &mut (1 + round % 12), with);
                let _ = play.frame(&damaged.to_string());
                let _ = play.frame(frame);
                told += 1;
            }
            play.move_to(recording.end().plus(60_000));
            let rows = play.sessions.len();
            assert!(rows <= 4, "{name}: {rows} sessions");
        }
    }
    assert!(told > 1_000);
}

#[test]
fn sessions_and_calls_without_end_are_bounded() {
    let recording = Recording::of("launch_unknown_workflow");
    let mut play = idle(&recording);
    let mut said = Said::default();
    let start = play.now;
    for n in 0..1_100u32 {
        let id = format!("{n:08}-{}", "i".repeat(100));
        for frame in [
            json!({"type": "session.running", "payload": {"isRunning": true}, "seq": 1, "sessionId": id}),
            json!({"type": "chat.tool_call", "payload": {"messageId": "m", "callId": "c".repeat(5_000), "tool": "t".repeat(5_000), "args": {}}, "seq": 2, "sessionId": id}),
        ] {
            let bytes = frame.to_string();
            let record = agent_session_exporter::sources::Record { bytes: bytes.as_bytes(), observed: start };
            play.peer.record(&record, &mut said).unwrap();
        }
        if n % 250 == 0 {
            assert!(play.peer.changed().is_some_and(|kept| kept.len() <= 64 << 10));
        }
    }
    assert!(said.events.iter().all(|e| e.source == source()));
    assert!(said.asks.is_empty(), "asked only when time passes");
    // One session with everything without end.
    let mut play = idle(&recording);
    for n in 0..150u32 {
        let entries: Vec<Value> =
            (0..300).map(|i| json!({"id": format!("{n}-{i}"), "status": "failed"})).collect();
        for frame in [
            json!({"type": "chat.tool_call", "payload": {"messageId": "m", "callId": format!("c{n}"), "tool": "edit_file", "args": {"n": n}}, "seq": n, "sessionId": "one"}),
            json!({"type": "chat.ask_user", "payload": {"callId": format!("c{n}")}, "sessionId": "one"}),
            json!({"type": "workflow.execution_changed", "payload": {"executionId": "e", "status": "running", "currentStepId": format!("{n}{}", "s".repeat(300))}, "sessionId": "one"}),
            json!({"type": if n % 100 == 0 { "metadata.updated" } else { "chat.thinking" }, "payload": {"key": "criteria", "entries": entries}, "sessionId": "one"}),
        ] {
            if n == 1 {
                play.frame(
                    &json!({"type": "session.running", "payload": {"isRunning": true}, "sessionId": "one"})
                        .to_string(),
                )
                .unwrap();
            }
            play.frame(&frame.to_string()).unwrap();
        }
    }
    let kept = play.kept.take().unwrap();
    assert!(kept.len() <= 64 << 10, "{}", kept.len());
    let facts = play.facts("one");
    assert!(facts.actions.len() <= 64 && facts.open_calls.len() <= 256);
}

#[test]
fn answers_of_something_else_end_the_connection_or_change_nothing() {
    let recording = Recording::of("launch_unknown_workflow");
    let list = Ask::get(1, "/api/sessions?limit=100");
    let answer = |status: u16, body: &str| Ok(Answer { status, body: body.as_bytes().to_vec(), next: None });
    let hundred = format!(r#"{{"sessions":[{{"id":"x"}}],"hasMore":true,"n":{}}}"#, "9".repeat(10_000));
    for (n, first) in [
        answer(200, "[]"),
        answer(200, "{}"),
        answer(404, ""),
        answer(500, ""),
        answer(200, "<html>"),
        Err(AskError::TooLong),
        Err(AskError::ContentType),
    ]
    .iter()
    .enumerate()
    {
        let mut play = Play::new(&recording);
        let mut said = Said::default();
        play.peer.connected(play.now, &mut said);
        let _ = play.peer.answered(&list, first, play.now, &mut said);
        assert!(said.give_up, "{n}: a server without a list is none of ours");
    }
    // Later it is merely asked again.
    let mut play = idle(&recording);
    let mut said = Said::default();
    for answered in [answer(500, ""), answer(200, "nonsense"), answer(200, &hundred), Err(AskError::Timeout)]
    {
        play.peer.tick(play.now.plus(20_000), &mut said);
        let _ = play.peer.answered(&list, &answered, play.now, &mut said);
    }
    assert!(!said.give_up);
    assert!(said.events.is_empty());
    // Pages without end have one.
    let mut asked = 0;
    let mut play = Play::new(&recording);
    let mut said = Said::default();
    play.peer.connected(play.now, &mut said);
    while let Some(ask) = said.asks.pop() {
        if ask.path.starts_with("/api/sessions") {
            asked += 1;
            play.peer.answered(&ask, &answer(200, &hundred), play.now, &mut said).unwrap();
        }
    }
    assert!((2..50).contains(&asked), "{asked} pages");
    assert!(!play.peer.catching_up());
}

/// A page holds a hundred sessions with their newest prompts: asking for all of them every fifteen seconds is a burden.
#[test]
fn of_many_sessions_only_the_newest_are_listed_again() {
    let recording = Recording::of("launch_unknown_workflow");
    let more = br#"{"sessions":[{"id":"x"}],"hasMore":true}"#;
    let last = br#"{"sessions":[{"id":"y"}],"hasMore":false}"#;
    let mut play = Play::new(&recording);
    let mut said = Said::default();
    let pages = |play: &mut Play<'_>, said: &mut Said| {
        let mut pages = 0;
        while let Some(ask) = said.asks.pop() {
            let body: &[u8] = if pages < 3 { more } else { last };
            pages += usize::from(ask.path.starts_with("/api/sessions?"));
            let answer = Ok(Answer { status: 200, body: body.to_vec(), next: None });
            play.peer.answered(&ask, &answer, play.now, said).unwrap();
        }
        pages
    };
    play.peer.connected(play.now, &mut said);
    assert_eq!(pages(&mut play, &mut said), 4, "all of them at first");
    for n in 1..=3 {
        play.now = play.now.plus(16_000);
        play.peer.tick(play.now, &mut said);
        assert_eq!(pages(&mut play, &mut said), 1, "list {n}");
    }
    // Who is gone, and who is at work without being among the newest, is looked for to the end.
    let record = |play: &mut Play<'_>, said: &mut Said, frame: &[u8]| {
        play.peer.record(&Record { bytes: frame, observed: play.now }, said).unwrap();
    };
    record(&mut play, &mut said, br#"{"type":"session.deletedAll","payload":{}}"#);
    play.now = play.now.plus(16_000);
    play.peer.tick(play.now, &mut said);
    assert_eq!(pages(&mut play, &mut said), 4);
    record(
        &mut play,
        &mut said,
        br#"{"type":"session.running","seq":1,"sessionId":"y","payload":{"isRunning":true}}"#,
    );
    play.now = play.now.plus(16_000);
    play.peer.tick(play.now, &mut said);
    assert_eq!(pages(&mut play, &mut said), 4);
}

#[test]
fn unknown_frames_are_counted_and_are_no_work() {
    let recording = Recording::of("model_no_reply");
    let mut play = Play::new(&recording);
    for (at, what) in &recording.lines[..6] {
        play.move_to(*at);
        play.line(what);
    }
    play.move_to(play.now.plus(5_000));
    let before = play.only().last_activity;
    let id = play.only().session.clone();
    for kind in ["session.closing", "chat.something_new", "x"] {
        let frame =
            json!({"type": kind, "payload": {"isRunning": false}, "seq": 90, "sessionId": id.as_str()});
        play.frame(&frame.to_string()).unwrap();
    }
    play.frame(r#"{"type":"server.news","payload":{}}"#).unwrap();
    assert_eq!(play.unknown, ["session.closing", "chat.something_new", "x", "server.news"]);
    play.move_to(play.now.plus(2_000));
    assert_eq!(play.only().last_activity, before);
    assert!(play.only().last_seen > before, "but it was heard of");
}

#[test]
fn content_never_leaves() {
    const MARKER: &str = "PLANTED-SECRET";
    const SHOWN: [&str; 30] = [
        "type",
        "sessionId",
        "messageId",
        "callId",
        "id",
        "executionId",
        "workflowId",
        "status",
        "currentStepId",
        "currentStepName",
        "mode",
        "phase",
        "role",
        "messageKind",
        "subAgentId",
        "subAgentType",
        "reason",
        "agentType",
        "model",
        "providerId",
        "timestamp",
        "tool",
        "key",
        "contextWindowId",
        "connection",
        "seq",
        "kind",
        "backend",
        "providerName",
        "workflowName",
    ];
    fn plant(value: &mut Value, key: &str) -> usize {
        match value {
            Value::String(text) if !SHOWN.contains(&key) => {
                text.push_str(MARKER);
                1
            }
            Value::Array(all) => all.iter_mut().map(|v| plant(v, key)).sum(),
            Value::Object(all) => {
                all.iter_mut().map(|(k, v)| plant(v, if key == "args" { "args" } else { k })).sum()
            }
            _ => 0,
        }
    }
    let mut planted = 0;
    for name in names() {
        let recording = Recording::of(&name);
        let mut play = Play::new(&recording);
        for (at, what) in &recording.lines {
            play.move_to(*at);
            match what {
                What::Frame(frame) => {
                    let mut frame: Value = serde_json::from_str(frame).unwrap();
                    planted += plant(&mut frame, "");
                    play.frame(&frame.to_string()).unwrap();
                }
                other => play.line(other),
            }
        }
        play.move_to(recording.end().plus(20_000));
        let said = format!("{:?} {:?}", play.events, play.unknown);
        assert!(!said.contains(MARKER), "{name}: in an event");
        // Nor the prompts and the path that the list shows, nor what the configuration holds.
        for secret in ["a prompt", "/home/dev", "Greeting module", "http://secret"] {
            assert!(!said.contains(secret), "{name}: {secret}");
        }
        let kept = play.kept.unwrap();
        for secret in [MARKER, "a prompt", "/home/dev"] {
            let there = kept.windows(secret.len()).any(|w| w == secret.as_bytes());
            assert!(!there, "{name}: {secret} in the checkpoint");
        }
    }
    assert!(planted > 1_000, "{planted}");
}
