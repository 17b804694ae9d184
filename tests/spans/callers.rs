//! Trace contexts that an agent or its caller gives: the run they come in, or are followed by, links to them.

use agent_session_exporter::spans::{Key, Outgoing, Span, Value};
use serde_json::{Value as Json, json};

use super::made::{events_of, line};
use super::tree::{golden, told, trees};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// The context of one of the spans of one of the traces.
fn context(trace: u8, span: u8) -> String {
    format!("00-4bf92f3577b34da6a3ce929d0e0e47{trace:02x}-00f067aa0ba902{span:02x}-01")
}

fn traced(mut line: Json, trace: u8, span: u8) -> Json {
    line["traceparent"] = json!(context(trace, span));
    line
}

fn began(at: f64, request: &str) -> Json {
    line("s", at, "turn.started", json!({"requestId": request, "data": {"trigger": "person"}}))
}

fn ended(at: f64, request: &str) -> Json {
    line("s", at, "turn.ended", json!({"requestId": request, "data": {"outcome": "completed"}}))
}

fn work(at: f64) -> Json {
    line("s", at, "activity", json!({"data": {"class": "work"}}))
}

fn runs(lines: &[Json]) -> Vec<Span> {
    let span = |(_, outgoing)| match outgoing {
        Outgoing::Span(span) => Some(span),
        Outgoing::Log(_) => None,
    };
    let mut runs: Vec<Span> =
        told(events_of(lines)).into_iter().filter_map(span).filter(|s: &Span| s.parent.is_none()).collect();
    runs.sort_by_key(|run| run.start);
    runs
}

/// Last bytes of trace and span of each link to a caller.
fn callers(run: &Span) -> Vec<(u8, u8)> {
    let own = run.links.iter().filter(|link| link.relation.as_str() == "caller");
    own.map(|link| (link.to.trace.0[15], link.to.span.0[7])).collect()
}

#[test]
fn a_run_links_to_the_first_span_of_each_trace_it_was_told_in() {
    let lines = [
        traced(line("s", 0.0, "session.started", json!({"data": {"agent": "bot"}})), 1, 1),
        traced(began(1.0, "r1"), 1, 2),
        traced(work(2.0), 2, 3),
        // An end is told in the trace of what ends.
        traced(ended(3.0, "r1"), 3, 4),
        // Too late for that run, and it does not say that there will be another.
        traced(work(3.5), 4, 5),
        began(20.0, "r2"),
        traced(ended(21.0, "r2"), 5, 6),
        began(40.0, "r3"),
        ended(41.0, "r3"),
    ];
    let [first, second, third] = &runs(&lines)[..] else { panic!("three runs") };
    assert_eq!(callers(first), [(1, 1), (2, 3), (3, 4)]);
    assert_eq!(callers(second), [(5, 6)]);
    assert_eq!(callers(third), []);
    assert_eq!(first.links[0].to.trace.to_string(), format!("{}01", &TRACE[..30]));
    golden("push", "callers", &trees(&told(events_of(&lines))));
}

#[test]
fn of_many_traces_the_first_four_are_kept() {
    let mut lines = vec![began(0.0, "r1")];
    lines.extend((1..=9).map(|n| traced(work(f64::from(n)), n, n)));
    lines.push(ended(10.0, "r1"));
    assert_eq!(callers(&runs(&lines)[0]), [(1, 1), (2, 2), (3, 3), (4, 4)]);
}

#[test]
fn what_was_open_before_the_turn_was_declared_is_part_of_it_and_a_queued_prompt_is_not() {
    let queued = line("s", 2.0, "user.prompt", json!({"data": {"queued": true}}));
    let lines = [
        traced(work(0.0), 1, 1),
        traced(began(1.0, "r1"), 2, 2),
        traced(queued, 3, 3),
        ended(4.0, "r1"),
        began(20.0, "r2"),
        ended(21.0, "r2"),
    ];
    let runs = runs(&lines);
    let found: Vec<_> = runs.iter().map(callers).collect();
    assert_eq!(found, [vec![(1, 1), (2, 2)], vec![(3, 3)]]);
}

#[test]
fn what_is_told_late_finds_its_run_as_long_as_that_was_not_sent() {
    let mut events = events_of(&[
        began(0.0, "r1"),
        traced(line("s", 1.0, "activity", json!({"requestId": "r1"})), 1, 1),
        ended(2.0, "r1"),
        line("s", 30.0, "session.updated", json!({})),
    ]);
    // The second is known only after the turn's end.
    let end = events[2].0;
    events[1].0 = end.plus(2_000);
    let span = told(events).into_iter().find_map(|(_, outgoing)| match outgoing {
        Outgoing::Span(span) => Some(span),
        Outgoing::Log(_) => None,
    });
    assert_eq!(callers(&span.expect("the run is told")), [(1, 1)]);
}

#[test]
fn a_run_that_nobody_saw_end_links_to_its_caller() {
    let lines = [traced(began(0.0, "r1"), 1, 1), work(1.0)];
    let runs = runs(&lines);
    assert_eq!(callers(&runs[0]), [(1, 1)]);
    let observed = runs[0].attributes.iter().find(|(key, _)| *key == Key::EndObserved);
    assert_eq!(observed.map(|(_, value)| value), Some(&Value::Bool(false)));
}

#[test]
fn an_orchestration_links_to_who_started_it() {
    let told_of = |at: f64, data: Json| line("shop", at, "orchestration.updated", json!({"data": data}));
    let running = told_of(0.0, json!({"state": "running", "batch": 1}));
    let over = told_of(5.0, json!({"state": "completed"}));
    let again = told_of(60.0, json!({"state": "running", "batch": 1}));
    let over_again = told_of(65.0, json!({"state": "stopped"}));
    let runs = runs(&[traced(running, 1, 1), traced(over, 2, 2), again, over_again]);
    let found: Vec<_> = runs.iter().map(callers).collect();
    assert_eq!(found, [vec![(1, 1), (2, 2)], vec![]]);
}
