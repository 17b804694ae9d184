//! What is pushed: the schema's types for orchestrators, records of the engine and lines of its agents.

use agent_session_exporter::event::{
    ErrorClass, Fact, LimitClass, OrchestrationState, SpecStatus, ThrottleReason, Timestamp,
};
use serde_json::{Value, json};

use crate::stand::{Fold, Pushed, SHOP, item, lines, reducer, ts};

fn generic(kind: &str, data: Value) -> Value {
    json!({"source": "spec", "sessionId": SHOP, "type": kind, "data": data})
}

fn engine(event: &str, data: Value) -> Value {
    item(
        "orchestrator.event",
        &json!({"at": "2026-11-29T16:00:00Z", "source": "engine", "event": event, "data": data}),
    )
}

fn codex(spec: Value, event: Value) -> Value {
    let record = json!({"at": "2026-11-29T16:00:00Z", "agentId": "m:0", "specName": spec, "event": event});
    item("orchestrator.codex", &record)
}

fn reason(pushed: &mut Pushed, item: &Value) -> &'static str {
    let observed = Timestamp::from_millis(1_800_000_000_000);
    pushed.decoder.item(item.to_string().as_bytes(), observed).unwrap_err().as_str()
}

#[test]
fn the_types_of_the_schema() {
    let mut pushed = Pushed::new();
    let data = json!({"state": "running", "startedAt": 1_795_960_000_000i64, "batch": 2, "batches": 3});
    let Fact::Orchestration(update) = pushed.event(&generic("orchestration.updated", data)).fact else {
        panic!()
    };
    assert_eq!(
        (update.state, update.batch, update.batches),
        (Some(OrchestrationState::Running), Some(2), Some(3))
    );
    assert_eq!(update.started, Some(Timestamp::from_millis(1_795_960_000_000)));
    let data = json!({"spec": "a", "status": "timeout", "batch": 1, "retryCount": 2, "errorClass": "spawn"});
    let Fact::Spec(update) = pushed.event(&generic("spec.updated", data)).fact else { panic!() };
    assert_eq!((update.status, update.batch, update.retries), (Some(SpecStatus::Timeout), Some(1), Some(2)));
    assert_eq!(update.error, Some(ErrorClass::Spawn));
    let data = json!({"spec": "a", "delayMs": 900, "launchHoldMs": 100, "class": "http_429"});
    let Fact::SpecLimited(update) = pushed.event(&generic("rate_limit.signal", data)).fact else { panic!() };
    assert_eq!(
        (update.delay_ms, update.hold_ms, update.class),
        (Some(900), Some(100), Some(LimitClass::Http429))
    );
    // Without a spec it is the session's own, as ever.
    let own = pushed.event(&generic("rate_limit.signal", json!({"delayMs": 5, "class": "quota"}))).fact;
    assert_eq!(own, Fact::RateLimitSignal { delay_ms: Some(5) });
    let data = json!({"budgetPerMinute": 6, "windowMs": 6000, "used": 4, "holdMs": 0});
    let Fact::LaunchBudget(update) = pushed.event(&generic("launch_budget.updated", data)).fact else {
        panic!()
    };
    assert_eq!((update.budget, update.used, update.held), (Some(6), Some(4), false));
    let data = json!({"adaptive": true, "max": 4, "effective": 2, "floor": 1, "reason": "rate_limit"});
    let Fact::Parallel(update) = pushed.event(&generic("parallel.updated", data)).fact else { panic!() };
    assert_eq!((update.effective, update.reason), (Some(2), Some(ThrottleReason::RateLimit)));
}

#[test]
fn what_cannot_be_is_left_out_and_counted() {
    let mut pushed = Pushed::new();
    let data = json!({"state": "exploded", "batch": -1, "batches": 1e300});
    let Fact::Orchestration(update) = pushed.event(&generic("orchestration.updated", data)).fact else {
        panic!()
    };
    assert_eq!((update.state, update.batch, update.batches), (None, None, None));
    let Fact::Spec(update) =
        pushed.event(&generic("spec.updated", json!({"spec": "a", "status": "odd"}))).fact
    else {
        panic!()
    };
    assert_eq!(update.status, None);
    let hold = engine("launch:budget-hold", json!({"holdMs": -5, "used": "many", "budgetPerMinute": 2}));
    let Fact::LaunchBudget(update) = pushed.event(&hold).fact else { panic!() };
    assert_eq!((update.budget, update.hold_ms, update.used), (Some(2), None, None));
    assert_eq!(pushed.counted("decode_errors_total", "number"), 4.0);
    assert_eq!(pushed.counted("unknown_records_total", "orchestration_status"), 1.0);
    assert_eq!(pushed.counted("unknown_records_total", "spec_status"), 1.0);
    // Null is nothing: not dropped, because it was no number.
    pushed.event(&generic("launch_budget.updated", json!({"budgetPerMinute": null, "windowMs": null})));
    assert_eq!(pushed.counted("decode_errors_total", "number"), 4.0);
}

#[test]
fn malformed_records_are_refused_one_by_one() {
    let mut pushed = Pushed::new();
    for (item, why) in [
        (generic("spec.updated", json!({"status": "running"})), "missing_field"),
        (generic("spec.updated", json!({"spec": ["a"]})), "bad_value"),
        (generic("orchestrator.event", json!({"at": "2026-11-29T16:00:00Z"})), "missing_field"),
        (generic("orchestrator.event", json!({"event": 5})), "bad_value"),
        (generic("orchestrator.event", json!({"event": "agent:output", "at": 5})), "time_unit"),
        (engine("spec:start", json!([1])), "bad_value"),
        (engine("spec:start", json!({})), "missing_field"),
        (engine("batch:start", json!({"batch": null})), "missing_field"),
        (codex(json!("a"), json!(7)), "bad_value"),
        (codex(json!("a"), json!("no json")), "bad_value"),
        (codex(json!("a"), json!({"no": "type"})), "bad_value"),
    ] {
        assert_eq!(reason(&mut pushed, &item), why, "{item}");
    }
    // Those behind them are taken.
    assert!(matches!(pushed.event(&engine("spec:start", json!({"specName": "a"}))).fact, Fact::Spec(_)));
}

#[test]
fn unknown_events_are_bookkeeping_and_counted() {
    let mut pushed = Pushed::new();
    assert_eq!(pushed.event(&engine("spec:teleported", json!({}))).fact, Fact::Unknown);
    assert_eq!(pushed.event(&codex(json!("a"), json!({"type": "session.future"}))).fact, Fact::Unknown);
    assert_eq!(pushed.counted("unknown_records_total", "orchestrator.event"), 1.0);
    assert_eq!(pushed.counted("unknown_records_total", "orchestrator.codex"), 1.0);
}

#[test]
fn lines_of_agents_are_objects_or_texts_and_those_of_nobody_are_counted() {
    let mut pushed = Pushed::new();
    let turn = json!({"type": "turn.started"});
    let mut fold = Fold::default();
    fold.take([
        pushed.event(&codex(json!("a"), turn.clone())),
        pushed.event(&codex(json!("a"), json!(turn.to_string()))),
    ]);
    fold.take([pushed.event(&codex(Value::Null, turn.clone())), pushed.event(&codex(json!(""), turn))]);
    let run = fold.run();
    assert_eq!((run.specs.len(), run.specs[0].turns, run.unattributed), (1, Some(2), 2));
    // An agent that begins says that its spec runs; one that errs does not say how.
    fold.take([pushed.event(&codex(json!("a"), json!({"type": "thread.started", "thread_id": "t-1"})))]);
    fold.take([pushed.event(&codex(json!("a"), json!({"type": "error", "message": "secret"})))]);
    let spec = fold.run().specs[0].clone();
    assert_eq!(
        (spec.status, spec.thread.unwrap().as_str().to_owned()),
        (SpecStatus::Running, "t-1".to_owned())
    );
    assert_eq!(spec.error, Some(ErrorClass::Other));
}

#[test]
fn a_record_counts_once_however_often_it_is_sent() {
    let mut pushed = Pushed::new();
    for (file, kind) in [("events", "orchestrator.event"), ("codex", "orchestrator.codex")] {
        let records = lines(&format!("3.6.65-mixed.{file}.ndjson"));
        let mut ids = std::collections::HashSet::new();
        for record in &records {
            let event = pushed.event(&item(kind, record));
            assert_eq!(event.time, Some(ts(record["at"].as_str().unwrap())));
            ids.insert(event.id.unwrap());
            assert_eq!(pushed.event(&item(kind, record)).id, event.id);
        }
        assert_eq!(ids.len(), records.len(), "{file}: each is one of a kind");
    }
    assert_eq!(pushed.decoder.without_id, 0);
    // An id of the item itself wins, and so does its time.
    let mut named = engine("spec:start", json!({"specName": "a"}));
    named["id"] = json!("e-1");
    named["time"] = json!("2026-11-29T17:00:00Z");
    let event = pushed.event(&named);
    let id = reducer().hash_all(&[b"spec", SHOP.as_bytes(), b"e-1"]);
    assert_eq!((event.id, event.time), (Some(id), Some(ts("2026-11-29T17:00:00Z"))));
}

#[test]
fn texts_of_errors_become_classes_where_the_engine_wrote_them() {
    let mut pushed = Pushed::new();
    for (text, class) in [
        ("Timeout after 600s", ErrorClass::Timeout),
        ("Agent wait timeout after 630s for a (m:0) without lifecycle events", ErrorClass::Timeout),
        ("Exit code: 2", ErrorClass::Exit),
        ("ERROR: Timeout after 5s, said the agent", ErrorClass::Other),
        ("429 Too Many Requests", ErrorClass::Other),
    ] {
        let failed = engine("spec:failed", json!({"specName": "a", "error": text, "retryCount": 1}));
        let Fact::Spec(update) = pushed.event(&failed).fact else { panic!() };
        assert_eq!((update.error, update.retries), (Some(class), Some(1)), "{text}");
    }
}
