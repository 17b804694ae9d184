//! Every recorded run as trees of spans, by each of its surfaces and by both at once: `tests/golden/spans/spec`.

use std::collections::BTreeMap;

use agent_session_exporter::event::{Event, Timestamp};
use agent_session_exporter::spans::{Key, Outgoing, Span, Value};
use serde_json::json;

use super::stand::{Pushed, RUNS, SHOP, at, engine_events, lines, status_events};
use super::tree::{golden, told, trees};

/// Events with the moment at which they became known: a file's when it was rewritten, others at their own.
fn known(events: Vec<Event>) -> Vec<(Timestamp, Event)> {
    events.into_iter().map(|event| (event.time.unwrap().max(event.observed), event)).collect()
}

/// What is pushed is observed when it happens.
fn pushed(run: &str) -> Vec<Event> {
    let mut events = engine_events(run);
    events.iter_mut().for_each(|event| event.observed = event.time.unwrap());
    events
}

fn spans(events: Vec<(Timestamp, Event)>) -> Vec<Span> {
    let all = told(events);
    trees(&all);
    let span = |(_, outgoing)| match outgoing {
        Outgoing::Span(span) => Some(span),
        Outgoing::Log(_) => None,
    };
    all.into_iter().filter_map(span).collect()
}

fn attribute(span: &Span, key: Key) -> Option<&Value> {
    span.attributes.iter().find(|(k, _)| *k == key).map(|(_, v)| v)
}

/// How often each name occurs.
fn names(spans: &[Span]) -> BTreeMap<&str, usize> {
    let mut names = BTreeMap::new();
    spans.iter().for_each(|span| *names.entry(span.name.as_str()).or_default() += 1);
    names
}

#[test]
fn by_file() {
    for run in RUNS {
        golden("spec", &format!("{run}.status"), &trees(&told(known(status_events(run)))));
    }
}

#[test]
fn by_events() {
    for run in &RUNS[..3] {
        golden("spec", &format!("{run}.events"), &trees(&told(known(pushed(run)))));
    }
}

#[test]
fn the_end_of_each_part_is_an_event_of_its_span() {
    let all = told(known(pushed("3.0.0-mixed")));
    trees(&all);
    let mut ended = BTreeMap::new();
    let mut said = BTreeMap::new();
    for (_, outgoing) in &all {
        match outgoing {
            Outgoing::Span(span) if attribute(span, Key::StepKind).is_some() => {
                ended.insert(span.context.span, attribute(span, Key::Outcome).cloned());
            }
            Outgoing::Log(log) if log.name == "agent_session.step.completed" => {
                let outcome = log.attributes.iter().find(|(key, _)| *key == Key::Outcome);
                let twice = said.insert(log.context.unwrap().span, outcome.map(|(_, value)| value.clone()));
                assert_eq!(twice, None, "{log:?}");
                let is_spec = log.attributes.contains(&(Key::StepKind, "spec".into()));
                let failed = log.attributes.contains(&(Key::Outcome, "failed".into()));
                assert_eq!(log.warning, is_spec && failed, "{log:?}");
            }
            _ => {}
        }
    }
    assert!(ended.len() >= 20, "{}", ended.len());
    ended.retain(|_, outcome| outcome.is_some());
    assert_eq!(said, ended);
}

#[test]
fn by_both_without_doubles() {
    for run in &RUNS[..3] {
        let mut events = known(status_events(run));
        events.extend(known(pushed(run)));
        let text = trees(&told(events.clone()));
        let (both, alone) = (spans(events), spans(known(pushed(run))));
        assert_eq!(names(&both), names(&alone), "{run}");
        golden("spec", &format!("{run}.both"), &text);
    }
}

#[test]
fn what_is_known_from_looks_says_so_and_what_was_pushed_does_not() {
    let is_polled = |span: &Span| attribute(span, Key::Polled) == Some(&Value::Bool(true));
    let by_file = spans(known(status_events("3.6.65-mixed")));
    assert!(by_file.len() > 15 && by_file.iter().all(is_polled));
    // But for what is told of at its end only.
    let without_start = |span: &Span| span.name == "execute_tool file_change";
    let pushed = spans(known(pushed("3.6.65-mixed")));
    assert!(pushed.iter().any(without_start));
    assert!(pushed.iter().all(|span| is_polled(span) == without_start(span)));
}

#[test]
fn an_orchestration_that_falls_silent_ends_with_its_last_word_and_goes_on_as_another_run() {
    let mut decoder = Pushed::new();
    let mut all = pushed("3.0.0-timeouts-launch-holds");
    let end = at(&lines("3.0.0-timeouts-launch-holds.events.ndjson")[10]);
    all.retain(|event| event.time.unwrap() <= end);
    let last = all.iter().filter_map(|event| event.time).max().unwrap();
    let later = last.plus(30 * 3_600_000);
    let data = json!({"spec": "107-slow-build", "status": "completed", "batch": 1});
    let over = json!({"state": "completed"});
    for (kind, data, after) in [("spec.updated", data, 0), ("orchestration.updated", over, 1_000)] {
        let time = later.plus(after);
        let item = json!({"source": "spec", "sessionId": SHOP, "type": kind, "data": data,
            "time": time.as_millis()});
        let mut event = decoder.event(&item);
        event.observed = time;
        all.push(event);
    }
    let spans = spans(known(all));
    let mut runs: Vec<&Span> = spans.iter().filter(|s| s.name == "invoke_workflow shop").collect();
    runs.sort_by_key(|run| run.start);
    let [lost, found] = runs[..] else { panic!("{:?}", names(&spans)) };
    assert_eq!(attribute(lost, Key::EndObserved), Some(&Value::Bool(false)));
    assert_eq!((lost.end, found.end), (last, later.plus(1_000)));
    assert_eq!(found.links.first().map(|link| link.to), Some(lost.context));
    assert_eq!(attribute(found, Key::Outcome), Some(&Value::from("completed")));
    assert_ne!(lost.context.trace, found.context.trace);
    let slow: Vec<_> = spans.iter().filter(|s| s.name == "spec 107-slow-build").collect();
    assert_eq!(slow.len(), 2, "what was open is open in the run that follows");
}
