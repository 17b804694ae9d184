//! Events of high level: which there are, when, in which run, and that each is told once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::Reducer;
use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::spans::{Key, LogRecord, Outgoing, Value};
use agent_session_exporter::store::offline::Offline;
use agent_session_exporter::telemetry::Telemetry;
use serde_json::{Value as Json, json};

use super::made::{START_MS, events_of, line};
use super::tree::{options, told};

fn records(lines: &[Json]) -> (Vec<LogRecord>, Vec<Outgoing>) {
    let all: Vec<Outgoing> = told(events_of(lines)).into_iter().map(|(_, o)| o).collect();
    let logs = all.iter().filter_map(|o| match o {
        Outgoing::Log(log) => Some(log.clone()),
        Outgoing::Span(_) => None,
    });
    let mut logs: Vec<LogRecord> = logs.collect();
    logs.sort_by_key(|l| l.time);
    (logs, all)
}

/// Name, what it is about, seconds after the start.
fn shown(logs: &[LogRecord]) -> Vec<String> {
    let text = |log: &LogRecord, key: Key| {
        let found = log.attributes.iter().find(|(k, _)| *k == key)?;
        match &found.1 {
            Value::Text(text) => Some(text.as_str().to_owned()),
            other => Some(format!("{other:?}")),
        }
    };
    let show = |log: &LogRecord| {
        let name = log.name.strip_prefix("agent_session.").unwrap();
        let keys = [Key::State, Key::Reason, Key::WaitReason, Key::Resolution, Key::StepName, Key::Outcome];
        let about: Vec<String> = keys.into_iter().filter_map(|key| text(log, key)).collect();
        let mark = if log.warning { "!" } else { "" };
        format!("{}{mark} {} {}", name, about.join(" "), (log.time.as_millis() - START_MS) / 1000)
    };
    logs.iter().map(show).collect()
}

fn story() -> Vec<Json> {
    let turn = json!({"requestId": "r1", "data": {"trigger": "person"}});
    let step = json!({"data": {"stepId": "s1", "kind": "build", "name": "Builder"}});
    let step_over =
        json!({"data": {"stepId": "s1", "kind": "build", "name": "Builder", "outcome": "advanced"}});
    vec![
        line("a", 0.0, "turn.started", turn),
        line("a", 10.0, "plan.ready", json!({"data": {"pending": 3}})),
        line("a", 20.0, "workflow.step.started", step),
        line("a", 30.0, "user.action_required", json!({"data": {"actionId": "q", "kind": "question"}})),
        line("a", 60.0, "user.action_resolved", json!({"data": {"actionId": "q", "resolution": "answered"}})),
        line("a", 70.0, "verification.failed", json!({"data": {}})),
        line("a", 80.0, "progress", json!({"data": {"kind": "task_completed"}})),
        line("a", 90.0, "workflow.step.completed", step_over),
        line("a", 100.0, "session.blocked", json!({"data": {"reason": "rate_limit"}})),
        line("a", 130.0, "session.unblocked", json!({"data": {}})),
        line("a", 140.0, "turn.ended", json!({"requestId": "r1", "data": {"outcome": "failed"}})),
    ]
}

#[test]
fn what_happens_is_told_where_it_happened_and_once() {
    let (logs, all) = records(&story());
    let shown = shown(&logs);
    for wanted in [
        "plan.ready  10",
        "user.action_required! question 30",
        "user.action_resolved question answered 60",
        "verification.failed!  70",
        "task.completed  80",
        "step.completed Builder advanced 90",
    ] {
        assert_eq!(shown.iter().filter(|s| *s == wanted).count(), 1, "{wanted}: {shown:#?}");
    }
    let states: Vec<&str> =
        shown.iter().filter(|s| s.contains("state_changed")).map(|s| s.split(' ').nth(1).unwrap()).collect();
    for pair in ["waiting_for_user", "blocked", "failed"] {
        assert_eq!(states.iter().filter(|s| *s == &pair).count(), 1, "{shown:#?}");
    }
    assert!(states.windows(2).all(|w| w[0] != w[1]), "{states:?}");
    for once in ["blocked! blocked rate_limit 100", "failed! failed"] {
        assert_eq!(shown.iter().filter(|s| s.starts_with(once)).count(), 1, "{once}: {shown:#?}");
    }
    let ids: BTreeSet<u64> = logs.iter().map(|l| l.id).collect();
    assert_eq!(ids.len(), logs.len(), "each is told from all others");
    let run = all.iter().find_map(|o| match o {
        Outgoing::Span(span) if span.parent.is_none() => Some(span.context),
        _ => None,
    });
    for log in logs.iter().filter(|l| !l.name.contains("step.started")) {
        assert!(log.observed >= log.time);
        let Some(of) = log.context else {
            assert!(log.observed.as_millis() < START_MS + 5_000, "{}", log.name);
            continue;
        };
        let run = run.unwrap();
        assert_eq!(of.trace, run.trace, "{}", log.name);
        assert_eq!(of == run, log.name != "agent_session.step.completed", "{}", log.name);
    }
}

/// Of states that held before anybody counted nothing is told; what happened in them is, like its spans.
#[test]
fn past_states_are_no_news() {
    let events = events_of(&story());
    let last = events.last().unwrap().0;
    let later = last.plus(3_600_000);
    let hand: &'static AtomicI64 = Box::leak(Box::new(AtomicI64::new(later.as_millis())));
    let reducer = Arc::new(Reducer::new([0; 16], Runners::default()));
    let mut store =
        Offline::begin(options(), Clock::held(hand), reducer, Arc::new(Telemetry::new()), later).unwrap();
    store.take(events.into_iter().map(|(_, e)| e));
    let mut logs = Vec::new();
    for seconds in 0..30 {
        let now = later.plus(seconds * 1000);
        hand.store(now.as_millis(), Ordering::SeqCst);
        store.pass();
        let of_state = |o: &Outgoing| match o {
            Outgoing::Log(log) => log.attributes.iter().any(|(key, _)| *key == Key::State),
            Outgoing::Span(_) => false,
        };
        logs.extend(store.outgoing(now).into_iter().filter(of_state));
    }
    assert!(logs.is_empty(), "{logs:#?}");
}
