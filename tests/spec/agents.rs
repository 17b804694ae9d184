//! Agents that work for an orchestration, by their lines and by what they write themselves: joined by the thread's id and by
//! nothing else, below the attempt that they work on, and each told of once.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::{Event, SourceId, Timestamp};
use agent_session_exporter::session::Count;
use agent_session_exporter::sources::LIST;
use agent_session_exporter::sources::recorded::{Played, Setting, play};
use agent_session_exporter::spans::{Key, Outgoing, Signal, Span, Value};
use agent_session_exporter::store::{Options, db, spool};
use agent_session_exporter::telemetry::Telemetry;
use serde_json::{Value as Json, json};

use super::stand::{Pushed, SHOP, item, read, reducer, ts};
use super::tree::{golden, options, told, trees};
use crate::common::disk::Disk;
use crate::common::owner::{KEY, Life, sum};

/// Thread of the recorded agent.
const THREAD: &str = "01a227dd-d360-7271-9b03-36dcd1251d99";
/// When its process was started.
const STARTED: &str = "2026-11-29T15:12:58.120Z";
/// Who asked for the orchestration.
const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn after(ms: i64) -> Timestamp {
    ts(STARTED).plus(ms)
}

/// What the agent wrote to its own files.
fn own() -> Vec<(Timestamp, Event)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/codex/edit_ok.rollout.jsonl");
    let def = LIST.iter().find(|def| def.name == "codex").unwrap();
    let setting = Setting { reducer: reducer(), telemetry: Arc::new(Telemetry::new()), allow_builtin: true };
    let mut played = Played::default();
    play(def, &[path], &setting, &mut played).unwrap();
    played.events
}

fn pushed(decoder: &mut Pushed, at: Timestamp, kind: &str, record: Json, more: Json) -> (Timestamp, Event) {
    let mut whole = item(kind, &record);
    more.as_object().unwrap().iter().for_each(|(key, value)| whole[key.as_str()] = value.clone());
    let mut event = decoder.event(&whole);
    event.observed = at;
    if event.time == Some(ts("2026-11-29T16:00:00Z")) {
        event.time = Some(at);
    }
    (at, event)
}

/// The orchestration with the lines of its agent, each stamped by who passes it on or not.
fn orchestrated(stamped: bool) -> Vec<(Timestamp, Event)> {
    let mut decoder = Pushed::new();
    let engine = |decoder: &mut Pushed, ms: i64, name: &str, data: Json| {
        let record = json!({"at": after(ms).to_string(), "event": name, "data": data});
        pushed(decoder, after(ms), "orchestrator.event", record, json!({"traceparent": CALLER}))
    };
    let mut all = vec![
        engine(&mut decoder, 0, "batch:start", json!({"batch": 0, "specs": ["calc"]})),
        engine(&mut decoder, 10, "spec:start", json!({"specName": "calc"})),
    ];
    let times = String::from_utf8(read("agent/edit_ok.exec.ms")).unwrap();
    let lines = String::from_utf8(read("agent/edit_ok.exec.jsonl")).unwrap();
    for (ms, line) in times.lines().zip(lines.lines()) {
        let at = after(ms.parse().unwrap());
        let mut record = json!({"specName": "calc", "event": serde_json::from_str::<Json>(line).unwrap()});
        if stamped {
            record["at"] = json!(at.to_string());
        }
        all.push(pushed(&mut decoder, at, "orchestrator.codex", record, json!({"id": line})));
    }
    all.push(engine(&mut decoder, 1_500, "spec:complete", json!({"specName": "calc"})));
    all.push(engine(&mut decoder, 1_510, "batch:complete", json!({"batch": 0, "completed": ["calc"]})));
    all.push(engine(&mut decoder, 1_520, "orchestration:complete", json!({"status": "completed"})));
    all
}

fn joined() -> Vec<(Timestamp, Event)> {
    let mut all = orchestrated(true);
    all.extend(own());
    all
}

fn spans(outgoing: impl IntoIterator<Item = Outgoing>) -> Vec<Span> {
    let span = |outgoing| match outgoing {
        Outgoing::Span(span) => Some(span),
        Outgoing::Log(_) => None,
    };
    outgoing.into_iter().filter_map(span).collect()
}

fn attribute(span: &Span, key: Key) -> Option<&Value> {
    span.attributes.iter().find(|(k, _)| *k == key).map(|(_, v)| v)
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    let [one] = found[..] else { panic!("{} of {name}", found.len()) };
    one
}

#[test]
fn an_agent_that_writes_files_is_told_of_by_them_below_its_attempt() {
    let all = told(joined());
    golden("spec", "agent.joined", &trees(&all));
    let spans = spans(all.into_iter().map(|(_, outgoing)| outgoing));
    let (attempt, agent) = (named(&spans, "attempt 1"), named(&spans, "invoke_agent codex"));
    assert_eq!(agent.parent, Some(attempt.context.span));
    assert_eq!(attribute(agent, Key::Source), Some(&Value::from("codex")));
    assert!(spans.iter().all(|span| span.context.trace == attempt.context.trace));
    // None of its lines is told of beside it.
    assert!(!spans.iter().any(|span| span.name.contains("command_execution")));
    assert_eq!(spans.iter().filter(|span| span.name == "execute_tool exec_command").count(), 2);
}

#[test]
fn an_agent_elsewhere_is_told_of_by_its_lines() {
    let all = told(orchestrated(true));
    golden("spec", "agent.lines", &trees(&all));
    let spans = spans(all.into_iter().map(|(_, outgoing)| outgoing));
    let (attempt, agent) = (named(&spans, "attempt 1"), named(&spans, "invoke_agent codex"));
    assert_eq!(agent.parent, Some(attempt.context.span));
    assert_eq!(attribute(agent, Key::ConversationId), Some(&Value::from(THREAD)));
    assert_eq!(attribute(agent, Key::InputTokens), Some(&Value::Int(5_200)));
    let change = named(&spans, "execute_tool file_change");
    assert_eq!(change.parent, Some(agent.context.span));
    assert_eq!(attribute(change, Key::Polled), None, "its start was told");
    // Commands, paths and outputs stay in the lines.
    assert!(!format!("{spans:?}").contains("calc.py"));
}

#[test]
fn lines_without_a_time_say_that_theirs_is_that_of_receipt() {
    let of_lines = |span: &&Span| span.name.starts_with("execute_tool") || span.name == "invoke_agent codex";
    let is_polled = |span: &Span| attribute(span, Key::Polled) == Some(&Value::Bool(true));
    for stamped in [true, false] {
        let spans = spans(told(orchestrated(stamped)).into_iter().map(|(_, outgoing)| outgoing));
        let lines: Vec<&Span> = spans.iter().filter(of_lines).collect();
        assert_eq!(lines.len(), 4);
        assert!(lines.iter().all(|span| is_polled(span) != stamped), "{stamped}");
        assert!(spans.iter().filter(|span| !of_lines(span)).all(|span| !is_polled(span)));
    }
}

#[test]
fn a_file_that_is_read_much_later_leaves_what_its_lines_told() {
    let late = own().into_iter().map(|(at, event)| (at.plus(60_000), event));
    let spans = spans(told(orchestrated(true).into_iter().chain(late).collect()).into_iter().map(|(_, o)| o));
    let agents: Vec<_> = spans.iter().filter(|span| span.name == "invoke_agent codex").collect();
    assert_eq!(agents.len(), 2, "by its lines, and below the same attempt by its file");
    assert_eq!(agents[0].parent, agents[1].parent);
    assert_ne!(agents[0].context, agents[1].context);
}

/// One life of the store on a disk, at the moments of the events.
fn live(disk: &Disk, hand: &'static AtomicI64, events: &[(Timestamp, Event)]) -> Life {
    let keep = spool::Keep { spans: true, logs: false, max_items: 10_000, max_bytes: 1 << 24 };
    // What it read before it was first started would be history.
    let opened = db::open(&disk.backend(), KEY, ts(STARTED)).unwrap().unwrap();
    let life = Life::at(opened, Options { spool: Some(keep), ..options() }, Clock::held(hand));
    for (at, event) in events {
        hand.store(at.as_millis(), Ordering::SeqCst);
        life.pushed(vec![event.clone()]).unwrap();
    }
    life
}

fn waiting(life: &Life) -> Vec<Span> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let oldest = runtime.block_on(life.store.spool.oldest(Signal::Traces, None, 10_000, 1 << 24)).unwrap();
    spans(oldest.items.into_iter().filter_map(|waiting| waiting.item))
}

#[test]
fn a_restart_at_any_line_tells_the_same_spans() {
    let mut events = joined();
    events.sort_by_key(|(at, _)| *at);
    let wanted: BTreeMap<_, _> = spans(told(events.clone()).into_iter().map(|(_, o)| o))
        .into_iter()
        .map(|s| (s.context.span.0, s))
        .collect();
    assert!(wanted.values().any(|span| span.links.iter().any(|link| link.relation.as_str() == "caller")));
    for cut in (0..events.len()).step_by(8) {
        let (disk, hand): (_, &'static AtomicI64) = (Disk::default(), Box::leak(Box::default()));
        hand.store(ts(STARTED).as_millis(), Ordering::SeqCst);
        live(&disk, hand, &events[..cut]).end();
        let life = live(&disk, hand, &events[cut..]);
        // All of it has settled by then; the last word lets it leave.
        let later = events.last().unwrap().0.plus(20_000);
        let mut word = events[0].1.clone();
        (word.id, word.time, word.session) = (None, Some(later), "another".into());
        live_on(&life, hand, later, word);
        life.until("all spans", |_| waiting(&life).len() >= wanted.len());
        let found: BTreeMap<_, _> = waiting(&life).into_iter().map(|s| (s.context.span.0, s)).collect();
        assert_eq!(found, wanted, "before event {cut}");
        let snapshot = life.end();
        assert_eq!(sum(&snapshot, "codex", &Count::Started), 1);
        let own = |name: &str| snapshot.find(&SourceId::from("spec"), &name.into());
        assert!(own(SHOP).is_some() && snapshot.find(&SourceId::from("codex"), &THREAD.into()).is_some());
    }
}

fn live_on(life: &Life, hand: &AtomicI64, at: Timestamp, event: Event) {
    hand.store(at.as_millis(), Ordering::SeqCst);
    life.pushed(vec![event]).unwrap();
}
