//! Made sessions: what hangs on what, what is told once, and what is claimed of ends that nobody saw.

use std::fmt::Write as _;

use agent_session_exporter::event::{Event, Timestamp};
use agent_session_exporter::spans::{Key, Outgoing, Span, Value};
use serde_json::{Value as Json, json};

use super::recordings::events;
use super::tree::{told, trees};

pub(crate) const START_MS: i64 = 1_795_960_000_000;

/// A line of the schema, so many seconds after the start.
pub(crate) fn line(session: &str, at: f64, kind: &str, more: Json) -> Json {
    let mut line = json!({
        "schemaVersion": "1", "source": "mine", "sessionId": session, "type": kind,
        "id": format!("{session}:{kind}:{at}"), "time": START_MS + (at * 1000.0) as i64,
    });
    for (key, value) in more.as_object().unwrap() {
        line[key.as_str()] = value.clone();
    }
    line
}

pub(crate) fn events_of(lines: &[Json]) -> Vec<(Timestamp, Event)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made.ndjson");
    let text = lines.iter().fold(String::new(), |mut text, line| {
        writeln!(text, "{line}").unwrap();
        text
    });
    std::fs::write(&path, text).unwrap();
    events("push", &[path])
}

pub(crate) fn spans(lines: &[Json]) -> Vec<Span> {
    let all = told(events_of(lines));
    trees(&all);
    let span = |outgoing: Outgoing| match outgoing {
        Outgoing::Span(span) => Some(span),
        Outgoing::Log(_) => None,
    };
    all.into_iter().filter_map(|(_, outgoing)| span(outgoing)).collect()
}

pub(crate) fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut found = spans.iter().filter(|s| s.name == name);
    let one = found.next().unwrap_or_else(|| panic!("no {name} in {:?}", names(spans)));
    assert!(found.next().is_none(), "more than one {name}");
    one
}

pub(crate) fn names(spans: &[Span]) -> Vec<&str> {
    spans.iter().map(|s| s.name.as_str()).collect()
}

pub(crate) fn attribute(span: &Span, key: Key) -> Option<&Value> {
    span.attributes.iter().find(|(k, _)| *k == key).map(|(_, v)| v)
}

pub(crate) fn turn(session: &str, at: f64, request: &str) -> Json {
    line(session, at, "turn.started", json!({"requestId": request, "data": {"trigger": "person"}}))
}

pub(crate) fn turn_ended(session: &str, at: f64, request: &str, outcome: &str) -> Json {
    line(session, at, "turn.ended", json!({"requestId": request, "data": {"outcome": outcome}}))
}

pub(crate) fn call(session: &str, at: f64, id: &str, tool: &str) -> Json {
    line(session, at, "tool.started", json!({"data": {"callId": id, "tool": tool, "args": {"n": id}}}))
}

pub(crate) fn call_ended(session: &str, at: f64, id: &str) -> Json {
    line(session, at, "tool.ended", json!({"data": {"callId": id, "outcome": "ok"}}))
}

#[test]
fn a_wait_hangs_on_its_call_a_call_on_its_step_a_step_on_its_run() {
    let step = json!({"data": {"stepId": "s1", "kind": "build", "name": "Builder", "index": 1, "total": 2}});
    let mut done = step.clone();
    done["data"]["outcome"] = json!("advanced");
    let asks = json!({"data": {"actionId": "a", "kind": "permission", "callId": "c1"}});
    let answered = json!({"data": {"actionId": "a", "resolution": "approved"}});
    let held = json!({"data": {"reason": "rate_limit", "attempt": 2}});
    let spans = spans(&[
        turn("s", 0.0, "r1"),
        line("s", 1.0, "workflow.step.started", step),
        call("s", 2.0, "c1", "bash"),
        line("s", 3.0, "user.action_required", asks),
        line("s", 9.0, "user.action_resolved", answered),
        call_ended("s", 12.0, "c1"),
        line("s", 13.0, "session.blocked", held),
        line("s", 20.0, "activity", json!({"data": {"class": "work"}})),
        line("s", 21.0, "workflow.step.completed", done),
        call("s", 22.0, "c2", "read"),
        call_ended("s", 23.0, "c2"),
        turn_ended("s", 30.0, "r1", "completed"),
    ]);
    let (run, step, bash) = (
        named(&spans, "invoke_agent mine"),
        named(&spans, "build Builder"),
        named(&spans, "execute_tool bash"),
    );
    let (wait, hold) = (named(&spans, "wait permission"), named(&spans, "wait rate_limit"));
    assert_eq!(run.parent, None);
    assert_eq!(step.parent, Some(run.context.span));
    assert_eq!(bash.parent, Some(step.context.span));
    assert_eq!(wait.parent, Some(bash.context.span));
    assert_eq!(hold.parent, Some(step.context.span));
    assert_eq!(named(&spans, "execute_tool read").parent, Some(run.context.span));
    assert_eq!((wait.end.since(wait.start), hold.end.since(hold.start)), (6_000, 7_000));
    assert_eq!(attribute(hold, Key::Attempt), Some(&Value::Int(2)));
    assert_eq!(attribute(step, Key::StepName), Some(&Value::from("Builder")));
    assert!(spans.iter().all(|s| s.context.trace == run.context.trace && !s.failed));
    assert!(spans.iter().all(|s| attribute(s, Key::EndObserved).is_none()));
}

#[test]
fn a_sub_agent_hangs_on_the_call_that_started_it_whatever_comes_first() {
    let lines = |child_first: bool| {
        let child = [
            line(
                "child",
                3.0,
                "turn.started",
                json!({"parentSessionId": "s", "data": {"trigger": "machine"}}),
            ),
            line(
                "child",
                4.0,
                "tool.started",
                json!({"parentSessionId": "s", "data": {"callId": "k", "tool": "grep"}}),
            ),
            line(
                "child",
                5.0,
                "tool.ended",
                json!({"parentSessionId": "s", "data": {"callId": "k", "outcome": "ok"}}),
            ),
            line("child", 6.0, "turn.ended", json!({"parentSessionId": "s", "data": {"outcome": "failed"}})),
        ];
        let parent = [
            turn("s", 0.0, "r1"),
            call("s", 1.0, "other", "bash"),
            call("s", 2.9, "t", "task"),
            call_ended("s", 7.0, "t"),
            call_ended("s", 8.0, "other"),
            turn_ended("s", 9.0, "r1", "completed"),
        ];
        let mut all = Vec::new();
        for part in if child_first { [&child[..], &parent[..]] } else { [&parent[..], &child[..]] } {
            all.extend_from_slice(part);
        }
        spans(&all)
    };
    let told = lines(false);
    let task = named(&told, "execute_tool task");
    let runs: Vec<&Span> = told.iter().filter(|s| s.name == "invoke_agent mine").collect();
    let child = runs.iter().find(|s| s.parent.is_some()).unwrap();
    assert_eq!(child.parent, Some(task.context.span));
    assert!(child.failed);
    assert_eq!(named(&told, "execute_tool grep").parent, Some(child.context.span));
    assert!(told.iter().all(|s| s.context.trace == task.context.trace));
    assert!(!runs.iter().find(|s| s.parent.is_none()).unwrap().failed, "a child's failure is not the root's");
    let sorted = |mut spans: Vec<Span>| {
        spans.sort_by_key(|s| s.context.span);
        spans
    };
    assert_eq!(sorted(lines(true)), sorted(told));
}

#[test]
fn of_calls_that_are_open_at_once_each_starts_one_sub_agent() {
    let mut lines = vec![turn("s", 0.0, "r1"), call("s", 1.0, "t1", "task"), call("s", 1.1, "t2", "task")];
    for (child, at) in [("a", 1.3), ("b", 1.4)] {
        let own = |data: Json| json!({"parentSessionId": "s", "data": data});
        lines.push(line(child, at, "turn.started", own(json!({"trigger": "machine"}))));
        lines.push(line(child, at + 2.0, "turn.ended", own(json!({"outcome": "completed"}))));
    }
    lines.extend([
        call_ended("s", 5.0, "t1"),
        call_ended("s", 5.0, "t2"),
        turn_ended("s", 6.0, "r1", "completed"),
    ]);
    let spans = spans(&lines);
    let calls: Vec<_> =
        spans.iter().filter(|s| s.name == "execute_tool task").map(|s| s.context.span).collect();
    let mut parents: Vec<_> =
        spans.iter().filter(|s| s.name == "invoke_agent mine").filter_map(|s| s.parent).collect();
    parents.sort();
    let mut wanted = calls.clone();
    wanted.sort();
    assert_eq!((calls.len(), parents), (2, wanted));
}

#[test]
fn a_run_that_is_lost_claims_no_end_and_what_comes_later_is_another_run() {
    let day = 86_400.0;
    let spans = spans(&[
        turn("s", 0.0, "r1"),
        call("s", 1.0, "c1", "bash"),
        line("s", 2.0, "workflow.step.started", json!({"data": {"stepId": "s1", "kind": "verify"}})),
        // A day later it goes on, under the same name.
        call_ended("s", day, "c1"),
        call("s", day + 1.0, "c2", "bash"),
        call_ended("s", day + 2.0, "c2"),
        turn_ended("s", day + 3.0, "r1", "completed"),
    ]);
    let mut runs: Vec<&Span> = spans.iter().filter(|s| s.name == "invoke_agent mine").collect();
    runs.sort_by_key(|s| s.start);
    let [lost, later] = runs[..] else { panic!("{:?}", names(&spans)) };
    assert_ne!(lost.context.trace, later.context.trace);
    assert_eq!(attribute(lost, Key::EndObserved), Some(&Value::Bool(false)));
    assert_eq!(attribute(lost, Key::Outcome), None);
    assert_eq!(lost.end.since(lost.start), 2_000, "its last activity");
    let unobserved = |s: &&Span| attribute(s, Key::EndObserved).is_some();
    assert_eq!(spans.iter().filter(unobserved).count(), 3, "the run, its call, its step");
    assert_eq!(attribute(later, Key::Outcome), Some(&Value::from("completed")));
    assert_eq!(later.links.len(), 1);
    assert_eq!((later.links[0].to, later.links[0].relation.as_str()), (lost.context, "previous_run"));
    // The call that had been given up is not told a second time.
    assert_eq!(spans.iter().filter(|s| s.name == "execute_tool bash").count(), 2);
}

/// However much was told since.
#[test]
fn a_call_that_was_given_up_is_told_once() {
    let day = 86_400.0;
    let mut lines = vec![turn("s", 0.0, "r1"), call("s", 1.0, "c1", "bash")];
    for n in 0..1_000 {
        let (at, id) = (day + f64::from(n), format!("read{n}"));
        lines.extend([call("s", at, &id, "read"), call_ended("s", at + 0.5, &id)]);
    }
    lines.extend([call_ended("s", day + 1_001.0, "c1"), turn_ended("s", day + 1_002.0, "r1", "completed")]);
    let spans = spans(&lines);
    assert_eq!(attribute(named(&spans, "execute_tool bash"), Key::EndObserved), Some(&Value::Bool(false)));
}

#[test]
fn what_comes_late_changes_nothing_that_was_told() {
    let lines = [
        turn("s", 0.0, "r1"),
        call("s", 1.0, "c1", "bash"),
        line("s", 1.5, "usage", json!({"data": {"input": 10, "cacheRead": 5, "output": 7}})),
        call_ended("s", 2.0, "c1"),
        turn_ended("s", 3.0, "r1", "failed"),
        turn("s", 4.0, "r2"),
        turn_ended("s", 5.0, "r2", "cancelled"),
    ];
    let in_order = spans(&lines);
    let mut mixed: Vec<Json> = lines.to_vec();
    mixed.swap(1, 3);
    mixed.swap(4, 5);
    let told = spans(&mixed);
    let sorted = |mut spans: Vec<Span>| {
        spans.sort_by_key(|s| s.context.span);
        spans
    };
    assert_eq!(sorted(told), sorted(in_order.clone()));
    let failed: Vec<&Span> = in_order.iter().filter(|s| s.failed).collect();
    assert_eq!(failed.len(), 1, "a person's wish is no failure");
    assert_eq!(attribute(failed[0], Key::InputTokens), Some(&Value::Int(15)));
    assert_eq!(attribute(failed[0], Key::OutputTokens), Some(&Value::Int(7)));
    assert_eq!(attribute(failed[0], Key::ErrorType), Some(&Value::from("failed")));
}

#[test]
fn a_run_tells_at_most_so_many_events_and_counts_the_others() {
    let mut lines = vec![turn("s", 0.0, "r1")];
    for n in 0..200 {
        let data = json!({"data": {"kind": "file_modified", "evidence": "structured"}});
        lines.push(line("s", 1.0 + f64::from(n), "progress", data));
    }
    lines.push(turn_ended("s", 300.0, "r1", "completed"));
    let spans = spans(&lines);
    let run = named(&spans, "invoke_agent mine");
    assert_eq!((run.events.len(), run.dropped_events), (128, 72));
}

#[test]
fn nothing_is_told_before_it_has_settled() {
    let lines = [
        turn("s", 0.0, "r1"),
        call("s", 1.0, "c1", "bash"),
        call_ended("s", 2.0, "c1"),
        turn_ended("s", 60.0, "r1", "completed"),
    ];
    for (at, outgoing) in told(events_of(&lines)) {
        if let Outgoing::Span(span) = outgoing {
            assert!(
                at.since(span.end) >= 5_000,
                "{} told {} ms after its end",
                span.name,
                at.since(span.end)
            );
        }
    }
}

#[test]
fn what_nothing_ended_is_over_with_its_run() {
    let spans = spans(&[
        turn("s", 0.0, "r1"),
        call("s", 1.0, "c1", "bash"),
        turn_ended("s", 3.0, "r1", "cancelled"),
        turn("s", 20.0, "r2"),
        line("s", 20.5, "workflow.step.started", json!({"data": {"stepId": "t", "kind": "task"}})),
        turn_ended("s", 21.0, "r2", "completed"),
        // It is no part of what comes then.
        turn("s", 40.0, "r3"),
        turn_ended("s", 41.0, "r3", "completed"),
    ]);
    let bash = named(&spans, "execute_tool bash");
    assert_eq!(attribute(bash, Key::Outcome), Some(&Value::from("interrupted")));
    assert_eq!(bash.end.since(bash.start), 2_000, "not when it was concluded");
    let task = named(&spans, "task");
    assert_eq!(task.end.since(task.start), 500);
    assert_eq!(attribute(task, Key::EndObserved), Some(&Value::Bool(false)));
}

#[test]
fn what_a_run_ended_with_is_no_time_of_waiting() {
    let spans = spans(&[
        turn("s", 0.0, "r1"),
        line("s", 5.0, "session.blocked", json!({"data": {"reason": "auth"}})),
        turn_ended("s", 5.0, "r1", "failed"),
    ]);
    assert_eq!(names(&spans), ["invoke_agent mine"]);
}

#[test]
fn a_session_that_is_removed_in_mid_turn_ends_its_run() {
    let spans = spans(&[
        turn("s", 0.0, "r1"),
        call("s", 1.0, "c1", "bash"),
        line("s", 2.0, "session.deleted", json!({"data": {}})),
    ]);
    let run = named(&spans, "invoke_agent mine");
    assert_eq!(attribute(run, Key::Outcome), Some(&Value::from("deleted")));
    assert_eq!((run.end.since(run.start), run.failed), (2_000, false));
    assert_eq!(named(&spans, "execute_tool bash").end, run.end);
}

#[test]
fn work_before_the_first_declared_run_belongs_to_it() {
    let spans = spans(&[
        line("s", 0.0, "workflow.step.started", json!({"data": {"stepId": "t", "kind": "task"}})),
        turn("s", 1.0, "r1"),
        line(
            "s",
            2.0,
            "workflow.step.completed",
            json!({"data": {"stepId": "t", "kind": "task", "outcome": "advanced"}}),
        ),
        turn_ended("s", 3.0, "r1", "completed"),
    ]);
    let (run, step) = (named(&spans, "invoke_agent mine"), named(&spans, "task"));
    assert_eq!((run.end.since(run.start), step.end.since(step.start)), (3_000, 2_000));
    assert_eq!(step.parent, Some(run.context.span));
    assert_eq!(attribute(step, Key::EndObserved), None);
}

#[test]
fn a_step_that_is_entered_again_without_an_end_is_two_steps() {
    let began = || json!({"data": {"stepId": "t", "kind": "task"}});
    let spans = spans(&[
        turn("s", 0.0, "r1"),
        line("s", 1.0, "workflow.step.started", began()),
        line("s", 2.0, "workflow.step.started", began()),
        line("s", 4.0, "workflow.step.started", began()),
        turn_ended("s", 4.0, "r1", "completed"),
    ]);
    let mut steps: Vec<_> = spans.iter().filter(|s| s.name == "task").map(|s| s.end.since(s.start)).collect();
    steps.sort();
    assert_eq!(steps, [1_000, 2_000], "and what was entered with the end had no time");
}

#[test]
fn a_step_that_was_chosen_between_two_runs_is_one_of_the_second() {
    let step = |entry: u32| json!({"data": {"stepId": "t", "kind": "task", "entry": entry}});
    let mut over = step(2);
    over["data"]["outcome"] = json!("advanced");
    let spans = spans(&[
        turn("s", 0.0, "r1"),
        line("s", 1.0, "workflow.step.started", step(1)),
        turn_ended("s", 2.0, "r1", "completed"),
        // Chosen before its run began.
        line("s", 10.0, "workflow.step.started", step(2)),
        turn("s", 11.0, "r2"),
        call("s", 12.0, "c1", "read"),
        call_ended("s", 13.0, "c1"),
        line("s", 14.0, "workflow.step.completed", over),
        turn_ended("s", 15.0, "r2", "completed"),
        turn("s", 30.0, "r3"),
        turn_ended("s", 31.0, "r3", "completed"),
    ]);
    let mut steps: Vec<&Span> = spans.iter().filter(|s| s.name == "task").collect();
    steps.sort_by_key(|step| step.start);
    let [first, second] = steps[..] else { panic!("{:?}", names(&spans)) };
    assert_eq!((first.end.since(first.start), second.end.since(second.start)), (1_000, 3_000));
    assert_eq!(attribute(first, Key::EndObserved), Some(&Value::Bool(false)));
    assert_eq!(attribute(second, Key::Outcome), Some(&Value::from("advanced")));
    assert_eq!(second.start.as_millis(), START_MS + 11_000);
    assert_eq!(named(&spans, "execute_tool read").parent, Some(second.context.span));
    assert_ne!(first.context.trace, second.context.trace);
}
