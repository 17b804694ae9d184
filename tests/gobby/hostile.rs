//! Frames nobody should send: nothing panics, everything is bounded, and no content gets out.

use agent_session_exporter::event::{Event, Name};
use agent_session_exporter::sources::gobby::LIVE;
use agent_session_exporter::sources::live::{Answer, AskError, Opening, Peer, Said};
use agent_session_exporter::sources::{DecodeError, Record};
use serde_json::{Value, json};

use super::daemon::{Daemon, RECORDINGS, frames};
use super::made::{at, hook};
use super::replay::{reducer, source};

const MARKER: &str = "LEAKMARKERq7x";

/// A peer whose questions are answered by nobody or by a list without sessions.
struct Bare {
    peer: Box<dyn Peer>,
    said: Said,
    seconds: i64,
}

impl Bare {
    fn new() -> Self {
        let opening = Opening {
            source: source(),
            endpoint: Name::from("127.0.0.1:8765"),
            base: "http://127.0.0.1:8765".to_owned(),
            reducer: reducer(),
        };
        let mut bare = Self { peer: (LIVE.new)(&opening, None), said: Said::default(), seconds: 0 };
        bare.peer.connected(at(0), &mut bare.said);
        bare.answer();
        bare
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        let record = Record { bytes, observed: at(self.seconds) };
        self.peer.record(&record, &mut self.said)
    }

    fn made(&mut self, value: &Value) {
        self.take(value.to_string().as_bytes()).unwrap();
    }

    fn tick(&mut self) {
        self.seconds += 1;
        self.peer.tick(at(self.seconds), &mut self.said);
    }

    fn answer(&mut self) {
        let daemon = Daemon::empty("");
        loop {
            let asks = std::mem::take(&mut self.said.asks);
            if asks.is_empty() {
                return;
            }
            for ask in asks {
                let (status, body) = daemon.answer(&ask.path, at(self.seconds));
                let body = if status == 200 { body.into_bytes() } else { Vec::new() };
                let answer = Ok(Answer { status, body, next: None });
                self.peer.answered(&ask, &answer, at(self.seconds), &mut self.said).unwrap();
            }
        }
    }

    fn saved(&mut self) -> Vec<u8> {
        let saved = self.peer.changed().unwrap();
        assert!(saved.len() <= 64 << 10, "{} bytes", saved.len());
        saved
    }
}

#[test]
fn what_is_no_frame_is_refused() {
    let mut bare = Bare::new();
    for (bytes, wanted) in [
        (&b""[..], DecodeError::Json),
        (b"{", DecodeError::Json),
        (b"\xff\xfe", DecodeError::Json),
        (b"{\"type\": \"ping\"} x", DecodeError::Json),
        (b"[]", DecodeError::Shape),
        (b"7", DecodeError::Shape),
        (b"{}", DecodeError::Shape),
        (b"{\"type\": 7}", DecodeError::Shape),
    ] {
        assert_eq!(bare.take(bytes), Err(wanted), "{}", String::from_utf8_lossy(bytes));
    }
    assert!(bare.said.events.is_empty());
}

/// Every value of a frame, in every other type.
fn mutate(value: &Value, each: &mut impl FnMut(&Value)) {
    fn walk(whole: &mut Value, path: &mut Vec<String>, each: &mut impl FnMut(&Value)) {
        let at = path.iter().fold(&*whole, |v, key| &v[key]).clone();
        for other in [json!(null), json!(true), json!(-1e300), json!(""), json!([[]]), json!({"a": {}})] {
            *path.iter().fold(&mut *whole, |v, key| &mut v[key]) = other;
            each(whole);
        }
        *path.iter().fold(&mut *whole, |v, key| &mut v[key]) = at.clone();
        for key in at.as_object().into_iter().flatten().map(|(key, _)| key.clone()) {
            path.push(key);
            walk(whole, path, each);
            path.pop();
        }
    }
    let mut whole = value.clone();
    for key in value.as_object().unwrap().keys() {
        walk(&mut whole, &mut vec![key.clone()], each);
    }
}

#[test]
fn fields_of_any_type_lose_the_field_and_not_more() {
    let mut bare = Bare::new();
    let mut taken = 0u32;
    for recording in RECORDINGS {
        let mut kinds = Vec::new();
        for frame in frames(recording) {
            let kind = (
                frame.value["type"].clone(),
                frame.value["event"].clone(),
                frame.value["event_type"].clone(),
            );
            if kinds.contains(&kind) {
                continue;
            }
            kinds.push(kind);
            mutate(&frame.value, &mut |value| {
                let result = bare.take(value.to_string().as_bytes());
                assert!(matches!(result, Ok(()) | Err(DecodeError::Shape)), "{value}");
                taken += 1;
                if taken.is_multiple_of(50) {
                    bare.tick();
                    bare.answer();
                }
            });
        }
    }
    assert!(taken > 1000, "{taken}");
    bare.saved();
}

#[test]
fn damaged_bytes_do_no_harm() {
    let mut bare = Bare::new();
    let mut random = 1u64;
    let mut next = move |n: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % n
    };
    for frame in frames("0.2.5-ws-session").iter().chain(&frames("0.4.6-ws-star")) {
        for _ in 0..50 {
            let mut bytes = frame.text.clone().into_bytes();
            for _ in 0..1 + next(4) {
                let at = next(bytes.len());
                bytes[at] = b"{}[]\",:\\0x"[next(10)];
            }
            bytes.truncate(bytes.len() - next(bytes.len() / 2));
            let _ = bare.take(&bytes);
        }
    }
    bare.saved();
}

#[test]
fn depth_and_length_are_bounded() {
    let mut bare = Bare::new();
    let time = at(1).to_string();
    let nested = |depth: usize| {
        let deep = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        format!(
            r#"{{"type":"hook_event","event_type":"pre-tool-use","session_id":"s","timestamp":"{time}","data":{{"tool_name":"Bash","tool_input":{deep}}}}}"#
        )
    };
    bare.take(nested(100).as_bytes()).unwrap();
    assert!(!bare.said.events.is_empty());
    assert!(bare.take(nested(200_000).as_bytes()).is_err(), "not looked into that deep");
    let long = "x".repeat(1 << 20);
    let data = json!({
        "tool_name": long, "tool_use_id": long, "tool_input": {"command": long}, "agent_id": long, "cwd": long,
    });
    bare.made(&hook("pre-tool-use", &long, at(1), data));
    bare.made(&json!({
        "type": "task_event", "event": "task_claimed", "task_id": long,
        "task": {"state": {"owner_session_id": long}}, "timestamp": time,
    }));
    bare.made(
        &json!({"type": "pipeline_event", "event": "step_started", "execution_id": long, "step_id": long}),
    );
    for event in &bare.said.events {
        let size = format!("{event:?}").len();
        assert!(size < 4_000, "{size}");
        assert!(event.session.as_str().len() <= 200);
    }
    bare.saved();
}

#[test]
fn endless_sessions_tasks_calls_and_strangers_are_bounded() {
    let mut bare = Bare::new();
    for n in 0..3_000 {
        let session = format!("session-{n}-{}", "y".repeat(100));
        let time = at(bare.seconds);
        bare.made(&hook("user-prompt-submit", &session, time, json!({})));
        bare.made(&hook(
            "pre-tool-use",
            &session,
            time,
            json!({"tool_name": "Read", "tool_input": {"path": n}}),
        ));
        bare.made(&hook(
            "permission-request",
            "busy",
            time,
            json!({"tool_name": "Bash", "tool_input": {"command": n}}),
        ));
        bare.made(&hook(
            "pre-tool-use",
            "busy",
            time,
            json!({"tool_name": "Read", "tool_input": {"path": n}}),
        ));
        bare.made(&hook("subagent-start", "busy", time, json!({"agent_id": format!("agent-{n}")})));
        bare.made(&json!({
            "type": "task_event", "event": "task_claimed", "task_id": format!("task-{n}"), "timestamp": time.to_string(),
            "task": {"state": {"owner_session_id": format!("stranger-{n}")}},
        }));
        bare.said.events.clear();
        if n % 500 == 0 {
            bare.saved();
        }
    }
    // However much is told under ids nobody knows, the list is asked for once a second at most.
    assert!(bare.said.asks.len() <= 1, "{}", bare.said.asks.len());
    assert!(bare.said.unknown.iter().all(|kind| kind == "task_event/unjoined"));
    assert!(bare.said.unknown.len() >= 2_500, "what has no place is counted");
    bare.tick();
    assert!(bare.said.asks.len() <= 40, "{}", bare.said.asks.len());
    bare.answer();
    bare.saved();
}

#[test]
fn a_checkpoint_of_another_layout_is_begun_anew() {
    let opening = Opening {
        source: source(),
        endpoint: Name::from("127.0.0.1:8765"),
        base: String::new(),
        reducer: reducer(),
    };
    for saved in [&b""[..], b"\x01", b"\xff\xff\xff", b"\x01\x07\x07\x07\x07", &[0xff; 70_000]] {
        let mut peer = (LIVE.new)(&opening, Some(saved));
        assert!(!peer.has_open());
        peer.connected(at(0), &mut Said::default());
    }
}

/// Keys whose values are structure, ids, names that may be shown, or words of a closed set.
const STRUCTURE: &[&str] = &[
    "type",
    "event",
    "event_type",
    "timestamp",
    "session_id",
    "external_id",
    "task_id",
    "tool_name",
    "tool_use_id",
    "agent_id",
    "subagent_id",
    "id",
    "owner_session_id",
    "claimed_by_session_id",
    "closed_in_session_id",
    "layer",
    "progress_type",
    "notification_type",
    "decision",
    "canonical_tool_kind",
    "source",
];

fn plant(value: &mut Value, key: &str) {
    match value {
        Value::String(text) if key == "cwd" => *text = format!("/home/dev/{MARKER}/project"),
        Value::String(text) if !STRUCTURE.contains(&key) => *text = format!("{MARKER} {text}"),
        Value::Array(list) => list.iter_mut().for_each(|inner| plant(inner, key)),
        Value::Object(fields) => fields.iter_mut().for_each(|(key, inner)| plant(inner, key)),
        _ => {}
    }
}

#[test]
fn no_content_is_in_an_event_or_in_what_is_kept() {
    let mut events: Vec<Event> = Vec::new();
    for recording in RECORDINGS {
        let mut replay = super::replay::Replay::begun(recording);
        for mut frame in frames(recording) {
            plant(&mut frame.value, "");
            assert!(frame.value.get("data").is_none() || frame.value.to_string().contains(MARKER));
            frame.text = frame.value.to_string();
            replay.frame(&frame);
            let saved = replay.saved.clone().unwrap_or_default();
            assert!(!saved.windows(MARKER.len()).any(|w| w == MARKER.as_bytes()), "{recording}");
        }
        assert!(replay.unknown.iter().all(|kind| !kind.contains(MARKER)));
        events.extend(replay.events);
    }
    assert!(events.len() > 150, "{}", events.len());
    for event in events {
        assert!(!format!("{event:?}").contains(MARKER), "{event:?}");
    }
}

/// Whatever else listens on those ports may open a WebSocket, too.
#[test]
fn what_has_no_list_of_sessions_is_no_daemon() {
    let answer = |status: u16| Ok(Answer { status, body: b"{\"sessions\": []}".to_vec(), next: None });
    for (reply, gives_up) in [
        (Err(AskError::Connection), true),
        (Err(AskError::ContentType), true),
        (Err(AskError::Redirect), true),
        (answer(404), true),
        (answer(500), false),
        (answer(200), false),
    ] {
        let mut bare = Bare::new();
        let mut said = Said::default();
        bare.peer.connected(at(1), &mut said);
        while let Some(ask) = said.asks.pop() {
            bare.peer.answered(&ask, &reply, at(1), &mut said).unwrap();
        }
        assert_eq!(said.give_up, gives_up, "{reply:?}");
        assert!(!bare.peer.catching_up());
    }
}
