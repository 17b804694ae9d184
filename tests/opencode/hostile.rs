//! A server that says what no server would: nothing breaks, nothing grows without bound, and no content leaves.

use agent_session_exporter::event::{Fact, Timestamp};
use agent_session_exporter::sources::DecodeError;
use agent_session_exporter::sources::live::{Answer, AskError, Peer as _, Said};
use agent_session_exporter::sources::opencode::Opencode;
use serde_json::{Value, json};

use super::folded::Folded;
use super::play::{Play, opening};
use super::recorded::{Line, connections, scenarios};

const MARK: &str = "zanzibar7marker";
/// Names of members that hold what somebody wrote or where something lies.
const CONTENT: [&str; 24] = [
    "text",
    "command",
    "filePath",
    "content",
    "oldString",
    "newString",
    "output",
    "error",
    "message",
    "title",
    "description",
    "prompt",
    "delta",
    "diff",
    "patch",
    "file",
    "filepath",
    "pattern",
    "patterns",
    "preview",
    "question",
    "label",
    "header",
    "directory",
];

/// One record of a session.
fn hear(play: &mut Play, kind: &str, props: Value) {
    let frame = json!({ "directory": "/d", "payload": { "type": kind, "properties": props } });
    play.hear(&serde_json::to_vec(&frame).unwrap()).unwrap();
}

fn connected() -> Play {
    let mut play = Play::new();
    play.connect(Timestamp::from_millis(1_795_965_361_000));
    play
}

/// Plants the mark into everything that is content.
fn plant(value: &mut Value, content: bool, planted: &mut usize) {
    match value {
        Value::String(text) if content => {
            *planted += 1;
            // The last component of a path is the project's name, which may be shown.
            *text = match text.strip_prefix("/home/") {
                Some(rest) => format!("/home/{MARK}/{rest}"),
                None => format!("{MARK} {text}"),
            };
        }
        Value::Array(all) => all.iter_mut().for_each(|v| plant(v, content, planted)),
        Value::Object(all) => {
            for (name, v) in all {
                plant(v, content || CONTENT.contains(&name.as_str()), planted);
            }
        }
        _ => {}
    }
}

#[test]
fn no_content_leaves() {
    let mut planted = 0;
    for scenario in scenarios() {
        let mut play = Play::new();
        for (i, lines) in connections(&scenario).iter().enumerate() {
            if i > 0 {
                play.between(&scenario);
            }
            play.connect(lines[0].at);
            for line in lines {
                let mut frame = line.frame.clone();
                // What a name of an error or an id is stays what it is.
                plant(&mut frame, false, &mut planted);
                unplant(&mut frame);
                play.line(&Line { at: line.at, frame });
            }
        }
        play.ends(&scenario);
        assert!(play.events.len() >= 5, "{scenario}: {}", play.events.len());
        let told = format!("{:?} {:?}", play.events, play.unknown);
        let found =
            told.find(MARK).map(|at| told[at.saturating_sub(200)..].chars().take(300).collect::<String>());
        assert_eq!(found, None, "{scenario}");
        let saved = String::from_utf8_lossy(play.saved()).into_owned();
        assert!(!saved.is_empty() && !saved.contains(MARK), "{scenario}");
        assert!(!saved.contains("/home/"), "{scenario}: no path is saved");
    }
    assert!(planted > 5_000, "{planted}");
}

/// Ids and words of the protocol below content are no content.
fn unplant(value: &mut Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(unplant),
        Value::Object(all) => {
            for (name, v) in all {
                let word = ["id", "name", "type", "status", "sessionID", "messageID", "callID"]
                    .contains(&name.as_str());
                match v {
                    Value::String(text) if word => *text = text.replace(&format!("{MARK} "), ""),
                    _ => unplant(v),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn garbage_is_refused_by_its_reason() {
    let mut play = connected();
    for (bytes, wanted) in [
        (&b"not json"[..], DecodeError::Json),
        (b"", DecodeError::Json),
        (b"{\"payload\":{\"type\":\"x\"", DecodeError::Json),
        (b"\xff\xfe", DecodeError::Json),
        (b"[1,2]", DecodeError::Shape),
        (b"null", DecodeError::Shape),
        (b"{}", DecodeError::Shape),
        (b"{\"payload\":7}", DecodeError::Shape),
        (b"{\"payload\":{\"type\":[]}}", DecodeError::Shape),
    ] {
        assert_eq!(play.hear(bytes), Err(wanted), "{}", String::from_utf8_lossy(bytes));
    }
    let deep = format!(
        "{{\"payload\":{{\"type\":\"session.status\",\"properties\":{}1{}}}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    assert!(play.hear(deep.as_bytes()).is_err());
    assert_eq!(play.events, []);
}

/// A number that looks random and is the same each time.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

/// Puts something else in the place of one value.
fn damage(value: &mut Value, seed: &mut u64) {
    let odd = [
        json!(null),
        json!(true),
        json!(-1),
        json!(1e300),
        json!("x".repeat(300)),
        json!([]),
        json!({}),
        json!([{"id": {}}]),
        json!(1_795_965_361_000_i64),
    ];
    match value {
        Value::Object(all) if !all.is_empty() && !next(seed).is_multiple_of(6) => {
            let at = usize::try_from(next(seed)).unwrap() % all.len();
            damage(all.values_mut().nth(at).unwrap(), seed);
        }
        Value::Array(all) if !all.is_empty() && !next(seed).is_multiple_of(6) => {
            let at = usize::try_from(next(seed)).unwrap() % all.len();
            damage(&mut all[at], seed);
        }
        _ => *value = odd[usize::try_from(next(seed)).unwrap() % odd.len()].clone(),
    }
}

#[test]
fn damaged_records_break_nothing() {
    let mut seed = 11;
    for scenario in scenarios() {
        let mut play = connected();
        let lines = &connections(&scenario)[0];
        for line in lines {
            play.until(line.at);
            let mut frame = line.frame.clone();
            damage(&mut frame, &mut seed);
            let _ = play.hear(&serde_json::to_vec(&frame).unwrap());
            if next(&mut seed).is_multiple_of(3) {
                let _ = play.hear(&serde_json::to_vec(&line.frame).unwrap());
            }
        }
        play.lost();
        play.exporter_restarts();
        let folded = Folded::of(play.events.iter().map(|(_, event)| event));
        for facts in folded.all() {
            assert!(facts.last_progress <= facts.last_activity, "{scenario}");
        }
    }
}

#[test]
fn endless_sessions_and_parts_stay_within_bounds() {
    let mut play = connected();
    let long = "i".repeat(20_000);
    for n in 0..700 {
        let id = format!("ses_{n}{}", if n % 100 == 0 { long.as_str() } else { "" });
        hear(&mut play, "session.status", json!({ "sessionID": id, "status": { "type": "busy" } }));
        let info = json!({ "id": format!("msg_{n}"), "role": "assistant", "parentID": format!("m{n}{long}"), "time": { "created": 1_795_965_361_000_i64 } });
        hear(&mut play, "message.updated", json!({ "sessionID": id, "info": info }));
        hear(
            &mut play,
            "permission.asked",
            json!({ "id": format!("per_{n}"), "sessionID": id, "permission": long }),
        );
    }
    play.until(play.now().plus(2_000));
    assert!((1_000..=64 << 10).contains(&play.saved().len()), "{}", play.saved().len());
    for n in 0..1_000 {
        let part = json!({
            "id": format!("prt_{n}"), "messageID": "msg_x", "type": "tool", "tool": long, "callID": "c",
            "state": { "status": "running", "input": { "filePath": long }, "time": { "start": 1_795_965_361_000_i64 } },
        });
        hear(&mut play, "message.part.updated", json!({ "sessionID": "ses_one", "part": part }));
        hear(&mut play, "permission.asked", json!({ "id": format!("q{n}"), "sessionID": "ses_one" }));
        hear(&mut play, &format!("kind.number.{n}"), json!({ "sessionID": "ses_one" }));
    }
    play.until(play.now().plus(2_000));
    assert!((1_000..=64 << 10).contains(&play.saved().len()), "{}", play.saved().len());
    assert!(play.unknown.len() <= 64, "{}", play.unknown.len());
    for (_, event) in &play.events {
        let size = serde_json::to_string(event).unwrap().len();
        assert!(size < 2_000, "{size}");
    }
}

/// It matters most, being at work and heard of last, and is larger than all that a checkpoint may hold.
#[test]
fn a_session_that_does_not_fit_into_the_checkpoint_hides_no_other() {
    let mut play = connected();
    let status = |play: &mut Play, id: &str, status: &str| {
        hear(play, "session.status", json!({ "sessionID": id, "status": { "type": status } }));
    };
    let small: Vec<String> = (10..50).map(|n| format!("ses_{n}")).collect();
    for (n, id) in small.iter().enumerate() {
        status(&mut play, id, if n % 2 == 0 { "busy" } else { "idle" });
    }
    // Of the lengths that are still taken as they are.
    let long = |name: &str, n: u32| format!("{name}_{n:0>180}");
    status(&mut play, "ses_huge", "busy");
    for n in 0..128 {
        let part = json!({
            "id": long("prt", n), "messageID": long("msg", n), "callID": long("call", n), "type": "tool",
            "tool": long("tool", n), "state": { "status": "running" },
        });
        hear(&mut play, "message.part.updated", json!({ "sessionID": "ses_huge", "part": part }));
    }
    play.until(play.now().plus(2_000));
    assert!(play.saved().len() <= 64 << 10, "{}", play.saved().len());

    // None of them is there any more: those that are remembered are told to be deleted.
    let before = play.events.len();
    play.exporter_restarts();
    let deleted = play.events[before..].iter().filter(|(_, e)| matches!(e.fact, Fact::SessionDeleted));
    let mut deleted: Vec<&str> = deleted.map(|(_, e)| e.session.as_str()).collect();
    deleted.sort_unstable();
    assert_eq!(deleted, small);
}

#[test]
fn a_checkpoint_of_another_kind_is_no_checkpoint() {
    use agent_session_exporter::sources::live::Peer as _;
    use agent_session_exporter::sources::opencode::Opencode;
    let opening = super::play::opening("127.0.0.1:4096");
    for bytes in [&b""[..], b"\xff\xff\xff\xff\xff", &[7; 5_000]] {
        assert!(!Opencode::new(&opening, Some(bytes)).has_open());
    }
    let play = Play::whole("edit_task");
    for length in 0..play.saved().len() {
        let _ = Opencode::new(&opening, Some(&play.saved()[..length]));
    }
}

/// A stream alone makes no server: something else may listen there, or a proxy keeps the answers back.
#[test]
fn a_server_that_answers_nothing_is_none() {
    let answer = |status: u16, body: &str| Ok(Answer { status, body: body.as_bytes().to_vec(), next: None });
    let list = "/experimental/session?limit=300&archived=true";
    for (bad, good, gives_up) in [
        (Err(AskError::ContentType), None, true),
        (Err(AskError::Redirect), None, true),
        (answer(500, ""), None, true),
        // Older ones have no list of all directories, or another server has it only.
        (answer(404, ""), Some("/session/status"), false),
        (answer(404, ""), Some(list), false),
    ] {
        let (mut peer, mut said) = (Opencode::new(&opening("127.0.0.1:4096"), None), Said::default());
        let now = Timestamp::from_millis(1_795_965_361_000);
        peer.connected(now, &mut said);
        let mut asked = 0;
        while let Some(ask) = (!said.asks.is_empty()).then(|| said.asks.remove(0)) {
            asked += 1;
            let body = if ask.path == list { "[]" } else { "{}" };
            let reply = if good == Some(ask.path.as_str()) { answer(200, body) } else { bad.clone() };
            peer.answered(&ask, &reply, now, &mut said).unwrap();
        }
        assert!(asked >= 5 && !peer.catching_up());
        assert_eq!(said.give_up, gives_up, "{bad:?} but for {good:?}");
    }
}
