//! Spans: what noting and building them adds to the fold of pushed events, and how many a core builds and encodes in a
//! second. Two kinds of work: the lines of the push bench, and turns with steps, calls, waits and progress.
//!
//! Times are CPU time of the one thread, where the kernel tells it; the two ways of a comparison take turns.

#![allow(clippy::unwrap_used, reason = "a bench that fails says where")]

mod support;

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{Event, Reducer, Timestamp};
use agent_session_exporter::otlp::Encoder;
use agent_session_exporter::session::notes::Note;
use agent_session_exporter::session::{Aggregates, Facts};
use agent_session_exporter::sources::LIST;
use agent_session_exporter::sources::recorded::{Played, Setting, play};
use agent_session_exporter::spans::{Outgoing, Signal, Tracer};
use agent_session_exporter::store::sessions::Sessions;
use agent_session_exporter::telemetry::Telemetry;
use support::{row, table};

const EVENTS: usize = 200_000;
const BATCH: usize = 1_000;
const SESSIONS: usize = 100;
/// Items of one request, as the standard settings have it.
const REQUEST: usize = 512;
const RUNS: usize = 7;
const START_MS: i64 = 1_795_960_000_000;
/// A batch a second: spans become due while others are made.
const BETWEEN_MS: i64 = 1_000;

/// What an agent does in a turn: two steps, four calls, an edit, a question.
fn worked(n: usize, time_ms: i64) -> String {
    let (session, step) = (n % SESSIONS, n / SESSIONS);
    let (turn, at) = (step / 20, step % 20);
    let (kind, data) = match at {
        0 => ("turn.started", "{}".to_owned()),
        1 | 9 => ("workflow.step.started", format!(r#"{{"stepId":"step_{}","kind":"build"}}"#, at / 9)),
        2 | 4 | 10 | 12 => (
            "tool.started",
            format!(
                r#"{{"callId":"call_{turn}_{at}","tool":"bash","toolClass":"shell","target":"src/m{at}.rs"}}"#
            ),
        ),
        3 | 5 | 11 | 13 => (
            "tool.ended",
            format!(r#"{{"callId":"call_{turn}_{}","outcome":"ok","outputDigest":"{n:08x}"}}"#, at - 1),
        ),
        6 => ("task.completed", format!(r#"{{"taskId":"task_{turn}"}}"#)),
        7 | 14 => ("usage", r#"{"model":"model-a","provider":"lab","input":90,"output":40}"#.to_owned()),
        8 | 18 => (
            "workflow.step.completed",
            format!(r#"{{"stepId":"step_{}","outcome":"advanced"}}"#, at / 9 - usize::from(at == 18)),
        ),
        15 => ("user.action_required", format!(r#"{{"actionId":"ask_{turn}","kind":"question"}}"#)),
        16 => ("user.action_resolved", format!(r#"{{"actionId":"ask_{turn}"}}"#)),
        19 => ("turn.ended", r#"{"outcome":"completed"}"#.to_owned()),
        _ => ("activity", r#"{"class":"work"}"#.to_owned()),
    };
    format!(
        r#"{{"schemaVersion":"1","id":"event-{n:012}","time":{time_ms},"source":"bench","sessionId":"01a227f1-9958-7663-8864-{session:012}","requestId":"turn_{turn}","projectId":"project-{}","type":"{kind}","data":{data}}}"#,
        session % 20
    ) + "\n"
}

/// The events that the push route makes of these lines.
fn events(line: impl Fn(usize, i64) -> String) -> Vec<Event> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lines.ndjson");
    let mut text = String::new();
    for n in 0..EVENTS {
        let time = START_MS
            + i64::try_from(n / BATCH).unwrap() * BETWEEN_MS
            + i64::try_from(n % BATCH / SESSIONS).unwrap();
        write!(text, "{}", line(n, time)).unwrap();
    }
    std::fs::write(&path, text).unwrap();
    let telemetry = Arc::new(Telemetry::new());
    let reducer = Arc::new(Reducer::new([3; 16], Runners::default()));
    let setting = Setting { reducer, telemetry, allow_builtin: false };
    let def = LIST.iter().find(|def| def.name == "push").unwrap();
    let mut played = Played::default();
    play(def, &[path], &setting, &mut played).unwrap();
    assert_eq!(played.events.len(), EVENTS, "every line is one event");
    played.events.into_iter().map(|(_, event)| event).collect()
}

/// One batch as the fold tells of it: whose it is, what was noted, what no longer holds.
type Told = Vec<(Arc<Facts>, Vec<Note>, Vec<Note>)>;

/// Folds all events, batch by batch; `each` sees what was noted of a session, `after` the end of a batch.
fn fold(
    events: Vec<Event>,
    traced: bool,
    mut each: impl FnMut(&Arc<Facts>, (&[Note], &[Note]), Timestamp),
    mut after: impl FnMut(Timestamp),
) {
    let (mut sessions, mut sums) = (Sessions::default(), Aggregates::default());
    if traced {
        sessions.take_notes();
    }
    let mut now = Timestamp::from_millis(START_MS);
    for (n, event) in events.into_iter().enumerate() {
        let slot = sessions.slot_for(&event, 0).unwrap();
        sessions.put(slot, event);
        if n % BATCH == BATCH - 1 {
            now = now.plus(BETWEEN_MS);
            sessions.fold(Timestamp::from_millis(0), |facts, change, _| {
                if traced {
                    each(facts, change.notes(), now);
                }
                sums.take(&facts.source, change);
            });
            after(now);
        }
    }
    black_box(sums);
}

/// How far the way is gone.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Way {
    Alone,
    Noted,
    Built,
    Rows,
}

/// The fold, and what follows from it up to the rows of the spool; how many spans and log records that were.
fn fold_and_build(events: Vec<Event>, way: Way) -> (u64, u64) {
    let tracer = std::cell::RefCell::new(Tracer::default());
    let (mut spans, mut records) = (0, 0);
    fold(
        events,
        way > Way::Alone,
        |facts, (noted, back), now| {
            if way > Way::Noted {
                tracer.borrow_mut().take(facts, noted, back, now);
            }
        },
        |now| {
            for item in tracer.borrow_mut().drain(now) {
                match item {
                    Outgoing::Span(_) => spans += 1,
                    Outgoing::Log(_) => records += 1,
                }
                if way == Way::Rows {
                    black_box(postcard::to_extend(&item, Vec::with_capacity(384)).unwrap());
                }
            }
        },
    );
    (spans, records)
}

fn notes(events: Vec<Event>) -> Vec<Told> {
    let batches = std::cell::RefCell::new(vec![Told::new()]);
    fold(
        events,
        true,
        |facts, (noted, back), _| {
            batches.borrow_mut().last_mut().unwrap().push((facts.clone(), noted.to_vec(), back.to_vec()));
        },
        |_| batches.borrow_mut().push(Told::new()),
    );
    batches.into_inner()
}

/// Builds what these notes make and encodes it in requests; the number of spans, and what was encoded.
fn build(notes: &[Told], encoder: &Encoder) -> (u64, Vec<Outgoing>) {
    let (mut tracer, mut spans, mut waiting) = (Tracer::default(), 0, Vec::new());
    let mut now = Timestamp::from_millis(START_MS);
    let mut first = Vec::new();
    for batch in notes {
        now = now.plus(BETWEEN_MS);
        for (facts, noted, back) in batch {
            tracer.take(facts, noted, back, now);
        }
        let due = tracer.drain(now).into_iter().filter(|item| item.signal() == Signal::Traces);
        waiting.extend(due);
        while waiting.len() >= REQUEST {
            let request: Vec<Outgoing> = waiting.drain(..REQUEST).collect();
            if first.is_empty() {
                first.clone_from(&request);
            }
            spans += request.len() as u64;
            black_box(encoder.request(Signal::Traces, request));
        }
    }
    (spans, first)
}

fn measure(what: &str, events: &[Event]) {
    let ways = [Way::Alone, Way::Noted, Way::Built, Way::Rows];
    let (mut took, mut told) = ([Duration::MAX; 4], (0, 0));
    for _ in 0..RUNS {
        for (way, took) in ways.into_iter().zip(&mut took) {
            let own = events.to_vec();
            *took = support::thread_time(|| told = fold_and_build(own, way)).min(*took);
        }
    }
    table(&format!("Spans of {what}"));
    let (spans, records) = told;
    let built = format!("… and {spans} spans and {records} log records built");
    let titles =
        ["fold alone", "fold that notes what spans are made of", &built, "… and made rows of the spool"];
    for (title, own) in titles.into_iter().zip(took) {
        let ratio = format!("{:.2}", own.as_secs_f64() / took[0].as_secs_f64());
        let each = format!("{:.0} ns an event", own.as_nanos() as f64 / EVENTS as f64);
        row(title, &each, if title == titles[0] { "baseline" } else { &ratio });
    }

    let (notes, encoder) = (notes(events.to_vec()), Encoder::new(&[]));
    let (mut took, mut built) = (Duration::MAX, (0, Vec::new()));
    for _ in 0..RUNS {
        took = took.min(support::thread_time(|| built = build(&notes, &encoder)));
    }
    let (spans, request) = built;
    let rate = |n: u64, took: Duration| format!("{:.0} spans/s", n as f64 / took.as_secs_f64());
    let copies: Vec<_> = (0..100).map(|_| request.clone()).collect();
    let mut encoded = Duration::MAX;
    for _ in 0..RUNS {
        let copies = copies.clone();
        encoded = encoded.min(support::thread_time(|| {
            copies.into_iter().for_each(|request| drop(black_box(encoder.request(Signal::Traces, request))));
        }));
    }
    let all = 100 * request.len() as u64;
    row("the same spans again and again through opentelemetry-proto", &rate(all, encoded), "baseline");
    let share = (spans as f64 / took.as_secs_f64()) / (all as f64 / encoded.as_secs_f64());
    row("notes built into spans and encoded, one core", &rate(spans, took), &format!("{share:.2}"));
}

fn main() {
    let pushed = events(|n, time| support::line(0, n, SESSIONS, time));
    measure("the lines of the push bench", &pushed);
    let worked = events(worked);
    measure("turns with steps, calls, waits and progress", &worked);
}
