//! What holds for every record: no content in events, checkpoints that go on as if nothing had happened, no panic on
//! fields of another type, kinds nobody knows.

use std::collections::HashSet;
use std::sync::Arc;

use agent_session_exporter::event::{Event, Fact};
use agent_session_exporter::sources::claude_code::Claude;
use agent_session_exporter::sources::files::Owners;
use agent_session_exporter::sources::{Decode, Record};
use serde_json::{Value, json};

use super::folded::{File, Folded, OBSERVED, all_files, decode, file, lines, opening};

const MARKER: &str = "LEAKMARKERq7x";
/// Most a decoder may keep between two lines.
const MAX_CHECKPOINT: usize = 64 << 10;
/// Fields that are structure, ids or names that may be shown. Everything else is content.
const STRUCTURE: &[&str] = &[
    "type",
    "subtype",
    "timestamp",
    "uuid",
    "parentUuid",
    "sessionId",
    "session_id",
    "requestSessionId",
    "agentId",
    "promptId",
    "requestId",
    "id",
    "tool_use_id",
    "task_id",
    "taskId",
    "backgroundTaskId",
    "shell_id",
    "version",
    "entrypoint",
    "model",
    "name",
    "role",
    "stop_reason",
    "status",
    "to",
    "operation",
    "kind",
    "permissionMode",
    "toolDenialKind",
    "decision",
    "commandMode",
    "error",
];

fn record(line: &[u8]) -> Record<'_> {
    Record { bytes: line, observed: OBSERVED }
}

/// Plants the marker behind every text that is content; a path keeps its last part, which names the project.
fn plant(key: &str, value: &mut Value) {
    match value {
        Value::String(text) if key == "cwd" => *text = format!("/home/{MARKER}{text}"),
        Value::String(text) if !STRUCTURE.contains(&key) => text.push_str(&format!(" {MARKER}")),
        Value::Array(list) => list.iter_mut().for_each(|v| plant(key, v)),
        Value::Object(map) => map.iter_mut().for_each(|(k, v)| plant(k, v)),
        _ => {}
    }
}

fn planted(file: &File) -> File {
    let mut bytes = Vec::new();
    for line in lines(&file.bytes) {
        let mut value: Value = serde_json::from_slice(line).unwrap();
        plant("", &mut value);
        bytes.extend(value.to_string().into_bytes());
        bytes.push(b'\n');
    }
    File { name: file.name.clone(), bytes }
}

fn has_marker(bytes: &[u8]) -> bool {
    bytes.windows(MARKER.len()).any(|w| w == MARKER.as_bytes())
}

#[test]
fn no_content_is_in_any_event_or_checkpoint() {
    let mut planted_in = 0;
    for file in all_files() {
        let file = planted(&file);
        planted_in += lines(&file.bytes).into_iter().filter(|l| has_marker(l)).count();
        let owners = Arc::new(Owners::default());
        let mut decoder = Claude::new(&opening(&file, &owners));
        let mut events = Vec::new();
        for line in lines(&file.bytes) {
            decoder.decode(&record(line), &mut events).unwrap();
        }
        for event in &events {
            let stored = postcard::to_allocvec(event).unwrap();
            assert!(
                !has_marker(&stored) && !format!("{event:?}").contains(MARKER),
                "{}: {event:?}",
                file.name
            );
        }
        assert!(!has_marker(&decoder.checkpoint()), "{}", file.name);
        assert!(!format!("{:?}", decoder.unknown_kinds()).contains(MARKER), "{}", file.name);
    }
    assert!(planted_in > 1500, "the marker stands in {planted_in} lines only");
}

#[test]
fn a_checkpoint_after_any_line_goes_on_as_if_nothing_had_happened() {
    for file in all_files() {
        let through = decode(std::slice::from_ref(&file));
        let owners = Arc::new(Owners::default());
        let opening = opening(&file, &owners);
        let mut checkpoint = Claude::new(&opening).checkpoint();
        let mut events = Vec::new();
        for line in lines(&file.bytes) {
            let mut decoder = Claude::restore(&opening, &checkpoint).unwrap();
            decoder.decode(&record(line), &mut events).unwrap();
            checkpoint = decoder.checkpoint();
            assert!(checkpoint.len() <= MAX_CHECKPOINT, "{}: {} bytes", file.name, checkpoint.len());
        }
        assert_eq!(events, through, "{}", file.name);
    }
}

#[test]
fn a_checkpoint_of_something_else_is_refused() {
    let file = file("claude_code/edit-ok.transcript.jsonl");
    let owners = Arc::new(Owners::default());
    let good = Claude::new(&opening(&file, &owners)).checkpoint();
    for bad in [&[][..], &[0xff], &good[..1], &[&[9], &good[1..]].concat()] {
        assert!(Claude::restore(&opening(&file, &owners), bad).is_none());
    }
}

/// Places in a record, without those deep inside of texts and lists.
fn places(value: &Value, at: &str, depth: usize, out: &mut Vec<String>) {
    out.push(at.to_owned());
    if depth == 0 {
        return;
    }
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                places(value, &format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), depth - 1, out);
            }
        }
        Value::Array(list) => {
            list.iter()
                .take(2)
                .enumerate()
                .for_each(|(i, v)| places(v, &format!("{at}/{i}"), depth - 1, out));
        }
        _ => {}
    }
}

/// What kind of record it is.
fn kind(value: &Value) -> String {
    let kinds =
        ["/type", "/subtype", "/message/content/0/type", "/message/content/0/name", "/attachment/type"];
    let kinds: Vec<_> = kinds.iter().map(|at| value.pointer(at).map(Value::to_string)).collect();
    format!("{kinds:?}")
}

#[test]
fn any_type_in_any_field_is_taken() {
    let others = [
        json!(null),
        json!(true),
        json!(-1e308),
        json!(u64::MAX),
        json!("\u{0}\u{1f600}x"),
        json!([[{}], 1, null]),
        json!({}),
        json!({"type": ["x"], "id": 7}),
    ];
    let mut seen = HashSet::new();
    let mut taken = 0;
    for file in all_files() {
        let owners = Arc::new(Owners::default());
        let opening = opening(&file, &owners);
        let mut decoder = Claude::new(&opening);
        for line in lines(&file.bytes) {
            let value: Value = serde_json::from_slice(line).unwrap();
            let mut all = Vec::new();
            places(&value, "", 5, &mut all);
            let mut events = Vec::new();
            // Each place of each kind of record once.
            let kind = kind(&value);
            all.retain(|at| !at.is_empty() && seen.insert((kind.clone(), at.clone())));
            if !all.is_empty() {
                let before = decoder.checkpoint();
                for at in &all {
                    for other in &others {
                        let mut changed = value.clone();
                        *changed.pointer_mut(at).unwrap() = other.clone();
                        // An index of its own: a changed record must not claim what is another's.
                        let mut twin = opening.clone();
                        twin.owners = Arc::default();
                        let mut again = Claude::restore(&twin, &before).unwrap();
                        let _ = again.decode(&record(changed.to_string().as_bytes()), &mut events);
                        assert!(again.checkpoint().len() <= MAX_CHECKPOINT);
                        taken += 1;
                    }
                }
                // Nor does what comes of it break the fold.
                let folded = Folded::of(events.split_off(events.len().saturating_sub(300)));
                if !folded.all().is_empty() {
                    folded.derived(folded.last());
                }
            }
            decoder.decode(&record(line), &mut Vec::new()).unwrap();
        }
    }
    assert!(taken > 15_000, "{taken} changed records");
}

#[test]
fn damaged_lines_are_refused_and_the_rest_is_read() {
    let whole = file("claude_code/todo.transcript.jsonl");
    let wanted = decode(std::slice::from_ref(&whole));
    let owners = Arc::new(Owners::default());
    let mut decoder = Claude::new(&opening(&whole, &owners));
    let mut events: Vec<Event> = Vec::new();
    for line in lines(&whole.bytes) {
        for bad in
            [&b"{"[..], b"\xff\xfe", b"[]", b"7", b"null", b"{}", b"{\"type\":7}", &line[..line.len() / 2]]
        {
            let before = events.len();
            assert!(decoder.decode(&record(bad), &mut events).is_err());
            assert_eq!(events.len(), before);
        }
        decoder.decode(&record(line), &mut events).unwrap();
    }
    assert_eq!(events, wanted);
}

#[test]
fn kinds_nobody_knows_are_counted_and_no_work() {
    let known = file("claude_code/edit-ok.transcript.jsonl");
    let owners = Arc::new(Owners::default());
    let mut decoder = Claude::new(&opening(&known, &owners));
    let mut events = Vec::new();
    for line in lines(&known.bytes) {
        decoder.decode(&record(line), &mut events).unwrap();
    }
    let before = Folded::of(events.clone());
    let id = before.root().session.as_str().to_owned();
    let later = "2026-11-29T16:00:00.000Z";
    let mut sent = Vec::new();
    for (kind, more) in
        [("dream", json!({})), ("system", json!({"subtype": "nap"})), ("dream", json!({"x": 1}))]
    {
        let mut line =
            json!({"type": kind, "sessionId": id, "timestamp": later, "uuid": format!("u{}", sent.len())});
        line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        sent.push(line.to_string());
    }
    let mut news = Vec::new();
    for line in &sent {
        decoder.decode(&record(line.as_bytes()), &mut news).unwrap();
    }
    assert_eq!(decoder.unknown_kinds(), ["dream", "system/nap", "dream"]);
    assert_eq!(decoder.unknown_kinds(), [""; 0]);
    assert!(news.iter().all(|e| e.fact == Fact::Unknown), "{news:?}");
    events.extend(news);
    let after = Folded::of(events);
    assert_eq!(after.root().last_activity, before.root().last_activity);
    assert!(after.root().last_seen > before.root().last_seen);
    assert_eq!(after.state(after.last()), "completed/turn_complete");
}
