//! Ends of steps and runs: what is known of them from their beginnings, and how long they lasted where nobody saw them end.

use agent_session_exporter::spans::{Key, Outgoing, Span, SpanId, Value};
use serde_json::{Value as Json, json};

use super::made::{attribute, call, call_ended, events_of, line, named, spans, turn, turn_ended};
use super::recordings::transcript;
use super::tree::told;

fn step(at: f64, event: &str, data: Json) -> Json {
    line("s", at, &format!("workflow.step.{event}"), json!({ "data": data }))
}

#[test]
fn a_step_that_ends_by_its_id_alone_is_what_it_began_as() {
    // The outer one is no longer the newest when it ends.
    let lines = [
        turn("s", 0.0, "r1"),
        step(1.0, "started", json!({"stepId": "a", "kind": "build", "name": "Outer", "index": 1})),
        step(2.0, "started", json!({"stepId": "b", "kind": "verify", "name": "Inner"})),
        step(3.0, "completed", json!({"stepId": "b", "outcome": "advanced"})),
        step(4.0, "completed", json!({"stepId": "a", "outcome": "failed"})),
        turn_ended("s", 9.0, "r1", "completed"),
    ];
    let spans = spans(&lines);
    let (outer, inner) = (named(&spans, "build Outer"), named(&spans, "verify Inner"));
    assert_eq!((outer.end.since(outer.start), inner.end.since(inner.start)), (3_000, 1_000));
    assert_eq!(attribute(outer, Key::StepKind), Some(&Value::from("build")));
    assert_eq!(attribute(outer, Key::StepIndex), Some(&Value::Int(1)));
    assert_eq!(attribute(inner, Key::StepName), Some(&Value::from("Inner")));
    assert!(outer.failed && !inner.failed);
    assert_eq!(spans.len(), 3);
}

#[test]
fn a_step_in_which_many_agents_are_started_keeps_its_place() {
    let mut lines = vec![
        turn("s", 0.0, "r1"),
        step(1.0, "started", json!({"stepId": "a", "kind": "build", "name": "Outer"})),
    ];
    for n in 0..300 {
        let (at, id) = (2.0 + f64::from(n) * 10.0, format!("t{n}"));
        lines.extend([call("s", at, &id, "task"), call_ended("s", at + 9.0, &id)]);
    }
    lines.push(step(4_000.0, "completed", json!({"stepId": "a", "outcome": "advanced"})));
    lines.push(turn_ended("s", 4_001.0, "r1", "completed"));
    let spans = spans(&lines);
    let outer = named(&spans, "build Outer");
    assert_eq!(outer.end.since(outer.start), 3_999_000);
    let calls: Vec<&Span> = spans.iter().filter(|s| s.name == "execute_tool task").collect();
    assert_eq!(calls.len(), 300);
    assert!(calls.iter().all(|call| call.parent == Some(outer.context.span)));
}

#[test]
fn a_run_that_is_lost_lasted_as_long_as_its_sub_agents_worked() {
    let own = |data: Json| json!({"parentSessionId": "s", "data": data});
    let spans = spans(&[
        turn("s", 0.0, "r1"),
        call("s", 1.0, "t", "task"),
        line("child", 2.0, "turn.started", own(json!({"trigger": "machine"}))),
        line("child", 3.0, "tool.started", own(json!({"callId": "k", "tool": "grep"}))),
        line("child", 90.0, "tool.ended", own(json!({"callId": "k", "outcome": "ok"}))),
    ]);
    let task = named(&spans, "execute_tool task");
    let run = spans.iter().find(|s| s.parent.is_none()).unwrap();
    let child = spans.iter().find(|s| s.parent == Some(task.context.span)).unwrap();
    for span in [run, task, child] {
        assert_eq!(attribute(span, Key::EndObserved), Some(&Value::Bool(false)), "{}", span.name);
        assert_eq!(span.end, child.end, "{}", span.name);
    }
    assert_eq!(run.end.since(run.start), 90_000);
}

/// Some ask before they call, and what was asked for is never called.
#[test]
fn a_wait_for_a_call_that_nobody_told_of_hangs_on_what_was_open() {
    let asks = |at: f64, action: &str, call: &str| {
        let data = json!({"data": {"actionId": action, "kind": "permission", "callId": call}});
        line("s", at, "user.action_required", data)
    };
    let spans = spans(&[
        turn("s", 0.0, "r1"),
        step(1.0, "started", json!({"stepId": "a", "kind": "build", "name": "Outer"})),
        asks(2.0, "answered", "never1"),
        line("s", 5.0, "user.action_resolved", json!({"data": {"actionId": "answered"}})),
        call("s", 6.0, "c1", "bash"),
        // The rest is given up with its run.
        asks(10.0, "told", "c1"),
        asks(20.0, "untold", "never2"),
    ]);
    let of = |name: &str| named(&spans, name).context.span;
    let (bash, outer) = (of("execute_tool bash"), of("build Outer"));
    let mut waits: Vec<&Span> = spans.iter().filter(|s| s.name == "wait permission").collect();
    waits.sort_by_key(|wait| wait.start);
    let parents: Vec<Option<SpanId>> = waits.iter().map(|wait| wait.parent).collect();
    assert_eq!(parents, [Some(outer), Some(bash), Some(outer)]);
    let given_up = |span: &&Span| attribute(span, Key::EndObserved) == Some(&Value::Bool(false));
    assert_eq!(spans.iter().filter(given_up).count(), 5, "the run, its step, its call, two waits");
}

/// Nothing is written while a model does not answer, nor while a command runs.
#[test]
fn an_interrupted_run_lasted_until_its_process_ended() {
    for (scenario, least, most) in
        [("hang-no-headers", 39_000, 40_500), ("sigint-tool", 7_300, 7_400), ("sigterm-tool", 6_800, 6_900)]
    {
        let spans = transcript(scenario);
        let run = spans.iter().find(|s| s.parent.is_none()).unwrap();
        let lasted = run.end.since(run.start);
        assert!((least..=most).contains(&lasted), "{scenario}: {lasted}");
        assert_eq!(attribute(run, Key::Outcome), Some(&Value::from("cancelled")), "{scenario}");
        if scenario != "hang-no-headers" {
            let command = named(&spans, "execute_tool Bash");
            assert!(command.end.since(command.start) > 6_000, "{scenario}: {command:?}");
        }
    }
}

#[test]
fn an_event_names_the_run_before_anything_else_of_it_is_told() {
    let all = told(events_of(&[
        turn("s", 0.0, "r1"),
        line("s", 1.0, "user.action_required", json!({"data": {"actionId": "q", "kind": "question"}})),
        turn_ended("s", 600.0, "r1", "completed"),
    ]));
    let asked = all.iter().find_map(|(at, o)| match o {
        Outgoing::Log(log) if log.name.ends_with("action_required") => Some((*at, log.context)),
        _ => None,
    });
    let run = all.iter().find_map(|(at, o)| match o {
        Outgoing::Span(span) if span.parent.is_none() => Some((*at, span.context)),
        _ => None,
    });
    let ((asked_at, context), (told_at, run)) = (asked.unwrap(), run.unwrap());
    assert!(asked_at < told_at);
    assert_eq!(context, Some(run));
}

/// Its file may be read first, and for a moment it looks like a session of its own.
#[test]
fn an_event_of_a_run_that_has_just_begun_does_not_settle_what_the_run_hangs_on() {
    let own = |data: Json| json!({"parentSessionId": "s", "data": data});
    let spans = spans(&[
        line("child", 1.5, "turn.started", json!({"requestId": "c1", "data": {"trigger": "machine"}})),
        // Two seconds later it is known whose it is.
        line("child", 3.5, "tool.started", own(json!({"callId": "k", "tool": "grep"}))),
        turn("s", 0.0, "r1"),
        call("s", 1.0, "t", "task"),
        line("child", 9.0, "turn.ended", own(json!({"requestId": "c1", "outcome": "completed"}))),
        call_ended("s", 10.0, "t"),
        turn_ended("s", 11.0, "r1", "completed"),
    ]);
    let task = named(&spans, "execute_tool task");
    let child = spans.iter().find(|s| s.end.since(s.start) == 7_500).unwrap();
    assert_eq!(child.parent, Some(task.context.span));
}

#[test]
fn a_sub_agent_hangs_on_the_run_that_was_open_though_nothing_in_it_was_over() {
    let own = |data: Json| json!({"parentSessionId": "s", "data": data});
    let spans = spans(&[
        turn("s", 0.0, "r1"),
        turn_ended("s", 10.0, "r1", "completed"),
        turn("s", 20.0, "r2"),
        line("child", 25.0, "turn.started", own(json!({"trigger": "machine"}))),
        line("child", 30.0, "turn.ended", own(json!({"outcome": "completed"}))),
        turn_ended("s", 100.0, "r2", "completed"),
    ]);
    let child = spans.iter().find(|s| s.end.since(s.start) == 5_000).unwrap();
    let second = spans.iter().find(|s| s.end.since(s.start) == 80_000).unwrap();
    assert_eq!((child.parent, child.context.trace), (Some(second.context.span), second.context.trace));
}

#[test]
fn steps_lie_in_the_steps_around_them_where_those_are_clear() {
    let began =
        |at: f64, id: &str, kind: &str| step(at, "started", json!({"stepId": id, "kind": kind, "name": id}));
    let over = |at: f64, id: &str| step(at, "completed", json!({"stepId": id, "outcome": "advanced"}));
    let spans = spans(&[
        turn("s", 0.0, "r1"),
        began(1.0, "b", "batch"),
        began(2.0, "s1", "spec"),
        began(3.0, "a1", "attempt"),
        began(4.0, "s2", "spec"),
        // Of which of the two?
        began(5.0, "a2", "attempt"),
        over(6.0, "a2"),
        over(7.0, "s2"),
        over(8.0, "a1"),
        over(9.0, "s1"),
        over(10.0, "b"),
        began(11.0, "p", "plan"),
        began(12.0, "w", "build"),
        began(13.0, "t", "task"),
        over(14.0, "t"),
        over(15.0, "w"),
        began(15.0, "v", "verify"),
        over(16.0, "v"),
        turn_ended("s", 20.0, "r1", "completed"),
    ]);
    let of = |name: &str| named(&spans, name);
    let run = of("invoke_agent mine").context.span;
    let parents = [
        ("batch b", run),
        ("spec s1", of("batch b").context.span),
        ("spec s2", of("batch b").context.span),
        ("attempt a1", of("spec s1").context.span),
        ("attempt a2", of("batch b").context.span),
        ("plan p", run),
        ("build w", run),
        ("task t", of("build w").context.span),
        ("verify v", run),
    ];
    for (name, parent) in parents {
        assert_eq!(of(name).parent, Some(parent), "{name}");
    }
}

#[test]
fn that_a_step_is_over_is_said_of_its_span() {
    let all = told(events_of(&[
        turn("s", 0.0, "r1"),
        step(1.0, "started", json!({"stepId": "a", "kind": "build"})),
        step(2.0, "completed", json!({"stepId": "a", "outcome": "advanced"})),
        turn_ended("s", 9.0, "r1", "completed"),
    ]));
    let span = all.iter().find_map(|(_, o)| match o {
        Outgoing::Span(span) if span.name == "build" => Some(span.context.span),
        _ => None,
    });
    let said = |name: &str| {
        let of = |(_, o): &(_, Outgoing)| match o {
            Outgoing::Log(log) if log.name == name => log.context.map(|c| c.span),
            _ => None,
        };
        all.iter().find_map(of)
    };
    let ids: [Option<SpanId>; 3] =
        [span, said("agent_session.step.started"), said("agent_session.step.completed")];
    assert!(ids[0].is_some() && ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

#[test]
fn a_step_that_is_entered_again_in_the_moment_of_its_end_is_two_steps() {
    let spans = spans(&[
        turn("s", 0.0, "r1"),
        step(1.0, "started", json!({"stepId": "a", "kind": "build"})),
        step(3.0, "completed", json!({"stepId": "a", "outcome": "looped_back"})),
        step(3.0, "started", json!({"stepId": "a", "kind": "build"})),
        step(7.0, "completed", json!({"stepId": "a", "outcome": "advanced"})),
        turn_ended("s", 9.0, "r1", "completed"),
    ]);
    let mut steps: Vec<i64> =
        spans.iter().filter(|s| s.name == "build").map(|s| s.end.since(s.start)).collect();
    steps.sort_unstable();
    assert_eq!(steps, [2_000, 4_000]);
}

/// Spans of these lines, of which one is read so many milliseconds late.
fn spans_late(lines: &[Json], which: usize, by: i64) -> Vec<Span> {
    let mut events = events_of(lines);
    events[which].0 = events[which].0.plus(by);
    let span = |(_, outgoing)| match outgoing {
        Outgoing::Span(span) => Some(span),
        Outgoing::Log(_) => None,
    };
    let mut spans: Vec<Span> = told(events).into_iter().filter_map(span).collect();
    spans.sort_by_key(|s| s.context.span);
    spans
}

#[test]
fn it_makes_no_difference_which_of_two_ends_or_beginnings_is_read_first() {
    let lines = [
        turn("s", 0.0, "r1"),
        step(1.0, "started", json!({"stepId": "a", "kind": "build", "name": "Outer"})),
        step(1.5, "started", json!({"stepId": "b", "kind": "verify", "name": "Inner"})),
        step(2.8, "completed", json!({"stepId": "b", "outcome": "advanced"})),
        step(2.9, "completed", json!({"stepId": "a", "outcome": "failed"})),
        turn_ended("s", 3.0, "r1", "completed"),
    ];
    let in_order = spans_late(&lines, 0, 0);
    assert_eq!(in_order.len(), 3);
    for (which, by) in [(0, 1_900), (1, 1_900), (2, 1_900), (3, 1_900), (4, 1_900), (5, 1_900)] {
        assert_eq!(spans_late(&lines, which, by), in_order, "{which}");
    }
}

#[test]
fn what_only_looked_like_a_run_is_none_that_a_link_leads_to() {
    let lines = [
        line("s", 0.0, "turn.started", json!({"data": {"trigger": "person"}})),
        call("s", 0.5, "c1", "task"),
        call_ended("s", 1.0, "c1"),
        line("s", 9.0, "turn.ended", json!({"data": {"outcome": "completed"}})),
    ];
    let in_order = spans_late(&lines, 0, 0);
    let late = spans_late(&lines, 0, 1_900);
    assert_eq!(late, in_order);
    assert!(late.iter().all(|s| s.links.is_empty()), "{late:#?}");
}
