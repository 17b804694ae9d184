//! What one item becomes, or why it is refused.

use agent_session_exporter::event::{
    BlockReason, Capability, Certainty, Commands, EndOutcome, Evidence, Fact, Mode, ProgressKind,
    SCHEMA_JSON, StepKind, Timestamp, ToolClass, Trigger,
};
use agent_session_exporter::sources::push::{BUILT_IN, DEF, MAX_SOURCES, Options};
use serde_json::{Value, json};

use super::stand::{Stand, item};

fn with(mut item: Value, field: &str, value: Value) -> Value {
    item[field] = value;
    item
}

#[tokio::test]
async fn every_example_of_the_schema_is_its_type() {
    let stand = Stand::new(Options::default());
    let schema: Value = serde_json::from_str(SCHEMA_JSON).unwrap();
    let mut shown: Vec<&str> = Vec::new();
    for example in schema["examples"].as_array().unwrap() {
        let event = stand.event(example.clone()).await;
        let kind = example["type"].as_str().unwrap();
        // Records of orchestrators say what they say in the schema's own types.
        if kind.starts_with("orchestrator.") {
            assert_eq!(event.fact.type_name(), "spec.updated");
        } else {
            assert_eq!(event.fact.type_name(), kind);
        }
        shown.push(kind);
    }
    for rule in schema["allOf"].as_array().unwrap() {
        for kind in rule["if"]["properties"]["type"]["enum"].as_array().unwrap() {
            assert!(shown.contains(&kind.as_str().unwrap()), "{kind} has no example");
        }
    }
}

#[tokio::test]
async fn times_in_each_form() {
    let stand = Stand::new(Options::default());
    let at = |time: Value| with(item("activity", json!({})), "time", time);
    let moment = Timestamp::parse("2026-01-01T00:00:00.5Z").unwrap();
    for time in [
        json!("2026-01-01T00:00:00.5Z"),
        json!("2026-01-01T01:00:00.500+01:00"),
        json!(1_767_225_600_500u64),
        json!(1_767_225_600_500.0),
    ] {
        assert_eq!(stand.event(at(time)).await.time, Some(moment));
    }
    for absent in [item("activity", json!({})), at(Value::Null)] {
        let event = stand.event(absent).await;
        assert_eq!(event.time, Some(event.observed));
    }
    for unit in [json!(1_767_225_600), json!(1.5), json!(-1), json!(1_767_225_600_000_000u64)] {
        assert_eq!(stand.reason(at(unit)).await.as_deref(), Some("time_unit"));
    }
    for bad in [json!("yesterday"), json!(""), json!({}), json!(true)] {
        assert_eq!(stand.reason(at(bad)).await.as_deref(), Some("bad_time"));
    }
    let until = item("session.blocked", json!({"reason": "retry", "until": 5}));
    assert_eq!(stand.reason(until).await.as_deref(), Some("time_unit"));
}

#[tokio::test]
async fn envelopes_that_are_refused() {
    let stand = Stand::new(Options::default());
    let good = item("activity", json!({}));
    for (field, value, reason) in [
        ("schemaVersion", json!("2"), "bad_schema_version"),
        ("source", Value::Null, "bad_source"),
        ("source", json!("My Bot"), "bad_source"),
        ("source", json!("x".repeat(33)), "bad_source"),
        ("source", json!(5), "bad_value"),
        ("sessionId", json!(""), "missing_session"),
        ("sessionId", Value::Null, "missing_session"),
        ("type", Value::Null, "missing_type"),
        ("data", json!("text"), "bad_shape"),
        ("data", json!([1]), "bad_shape"),
        ("id", json!({}), "bad_value"),
    ] {
        assert_eq!(stand.reason(with(good.clone(), field, value)).await.as_deref(), Some(reason), "{field}");
        assert!(stand.counter("push_refused_total", reason) >= 1.0);
    }
    for name in BUILT_IN {
        let reserved = with(good.clone(), "source", json!(name));
        assert_eq!(stand.reason(reserved).await.as_deref(), Some("reserved_source"));
    }
    let open = Stand::new(Options { allow_builtin: true, ..Options::default() });
    assert_eq!(open.event(with(good, "source", json!("codex"))).await.source.as_str(), "codex");
}

#[tokio::test]
async fn the_seventeenth_source_is_other_and_keeps_its_ids() {
    let stand = Stand::new(Options::default());
    let from =
        |source: &str| with(with(item("activity", json!({})), "source", json!(source)), "id", json!("1"));
    for i in 0..MAX_SOURCES {
        let name = format!("bot_{i}");
        assert_eq!(stand.event(from(&name)).await.source.as_str(), name);
    }
    for late in ["late", "later"] {
        let event = stand.event(from(late)).await;
        assert_eq!(event.source.as_str(), "other");
    }
    let answer = stand.send("application/json", from("late").to_string()).await;
    assert_eq!(answer.body["duplicate"], 1);
    assert_eq!(stand.counter("label_overflow_total", "source"), 3.0);
    assert_eq!(stand.event(with(from("bot_3"), "id", json!("2"))).await.source.as_str(), "bot_3");
}

#[tokio::test]
async fn unknown_types_are_bookkeeping_and_counted() {
    let stand = Stand::new(Options::default());
    let data =
        json!({"state": "running", "batch": {"input": []}, "reason": 5, "kind": [[]], "until": "soon"});
    assert_eq!(stand.event(item("session.teleported", data)).await.fact, Fact::Unknown);
    assert_eq!(stand.event(item("x".repeat(500).as_str(), json!({}))).await.fact, Fact::Unknown);
    assert_eq!(stand.counter("unknown_records_total", "session.teleported"), 1.0);
    assert_eq!(stand.counter("unknown_records_total", "other"), 1.0);
}

#[tokio::test]
async fn words_of_closed_sets() {
    let stand = Stand::new(Options::default());
    for (text, mode) in [
        ("planner", Mode::Plan),
        ("builder", Mode::Build),
        ("verifier", Mode::Verify),
        ("dream", Mode::Other),
    ] {
        let Fact::SessionStarted(info) =
            stand.event(item("session.started", json!({"mode": text}))).await.fact
        else {
            panic!("not a start")
        };
        assert_eq!(info.mode, Some(mode));
    }
    for (kind, data, reason) in [
        ("turn.ended", json!({"outcome": "great"}), "bad_value"),
        ("turn.ended", json!({}), "missing_field"),
        ("tool.ended", json!({"callId": "c", "outcome": "fine"}), "bad_value"),
        ("tool.ended", json!({"outcome": "ok"}), "missing_field"),
        ("tool.started", json!({"callId": "c"}), "missing_field"),
        ("tool.started", json!({"callId": "c", "tool": "x", "args": "text"}), "bad_value"),
        ("tool.started", json!({"callId": 5, "tool": "x"}), "bad_value"),
        ("progress", json!({"kind": "happiness"}), "bad_value"),
        ("progress", json!({}), "missing_field"),
        ("test.passed", json!({"evidence": "feeling"}), "bad_value"),
        ("workflow.step.completed", json!({"stepId": "s"}), "missing_field"),
        ("workflow.step.started", json!({}), "missing_field"),
        ("session.blocked", json!({"reason": "mood"}), "bad_value"),
        ("user.action_required", json!({"kind": "question"}), "missing_field"),
        ("user.action_required", json!({"actionId": "a", "certainty": "maybe"}), "bad_value"),
        ("activity", json!({"class": "leisure"}), "bad_value"),
        ("session.started", json!({"readOnly": "yes"}), "bad_value"),
    ] {
        assert_eq!(stand.reason(item(kind, data.clone())).await.as_deref(), Some(reason), "{kind} {data}");
    }
    assert!(matches!(
        stand.event(item("session.ended", json!({"outcome": "odd"}))).await.fact,
        Fact::SessionEnded { outcome: EndOutcome::Unknown, error: None, workflow: false }
    ));
    assert!(matches!(
        stand.event(item("user.prompt", json!({}))).await.fact,
        Fact::Prompt { trigger: Trigger::Person, queued: false }
    ));
    assert!(matches!(
        stand.event(item("user.action_required", json!({"actionId": "a", "kind": "odd"}))).await.fact,
        Fact::ActionRequired { certainty: Certainty::Certain, .. }
    ));
    let Fact::StepStarted(step) =
        stand.event(item("workflow.step.started", json!({"stepId": "s", "kind": "odd"}))).await.fact
    else {
        panic!("not a step")
    };
    assert_eq!(step.kind, StepKind::Other);
}

#[tokio::test]
async fn numbers_that_cannot_be_are_dropped() {
    let stand = Stand::new(Options::default());
    let data = json!({"input": -5, "output": 1e300, "cacheRead": 7, "costUsd": -0.1, "contextUsed": 1.5});
    let Fact::Usage(usage) = stand.event(item("usage", data)).await.fact else { panic!("not usage") };
    assert_eq!((usage.input, usage.output, usage.cache_read), (0, 0, 7));
    assert_eq!((usage.cost_usd, usage.context_used), (None, None));
    let data = json!({"reason": "retry", "attempt": -1, "delayMs": 1500.5});
    assert!(matches!(
        stand.event(item("session.blocked", data)).await.fact,
        Fact::Blocked { reason: BlockReason::Retry, attempt: None, delay_ms: Some(1500), until: None }
    ));
    let end = json!({"callId": "c", "outcome": "error", "exitCode": -9, "diffLines": -2});
    let Fact::ToolEnded(end) = stand.event(item("tool.ended", end)).await.fact else { panic!("not an end") };
    assert_eq!((end.exit_code, end.diff_lines), (Some(-9), None));
}

#[tokio::test]
async fn calls_are_classed_and_reduced() {
    let stand = Stand::new(Options::default());
    let start = async |data: Value| match stand.event(item("tool.started", data)).await.fact {
        Fact::ToolStarted(start) => start,
        other => panic!("{other:?}"),
    };
    let shell =
        start(json!({"callId": "c", "tool": "bash", "args": {"command": "cd x && cargo test"}})).await;
    assert_eq!(shell.class, ToolClass::Shell);
    assert!(shell.commands.has(Commands::TEST));
    let own = start(json!({"callId": "c", "tool": "my_tool", "toolClass": "read", "target": "a.rs",
        "readRange": {"start": 3, "end": 9, "total": 100}}))
    .await;
    assert_eq!(own.class, ToolClass::Read);
    assert_eq!(own.read.map(|r| (r.start, r.end, r.total)), Some((3, 9, Some(100))));
    assert!(own.key.is_none());
    let got = json!({"callId": "c", "outcome": "ok", "readRange": {"start": 3, "end": 7, "total": 100}});
    let Fact::ToolEnded(end) = stand.event(item("tool.ended", got)).await.fact else { panic!("no end") };
    assert_eq!(end.read.map(|r| (r.start, r.end, r.total)), Some((3, 7, Some(100))));
    let by_args = start(json!({"callId": "c", "tool": "read", "args": {"filePath": "a.rs"}})).await;
    assert_eq!(by_args.target, own.target);
    let deep = format!("{}{}", "[".repeat(70), "]".repeat(70));
    let deep = format!(
        r#"{{"source":"b","sessionId":"s","type":"tool.started","data":{{"callId":"c","tool":"t","args":{{"x":{deep}}}}}}}"#
    );
    let answer = stand.send("application/x-ndjson", deep).await;
    assert_eq!(answer.body["rejected"][0]["reason"], "too_deep");
}

#[tokio::test]
async fn names_are_bounded_and_projects_lose_their_path() {
    let stand = Stand::new(Options::default());
    let long = "x".repeat(10_000);
    let mut wide = item("session.started", json!({"agent": long, "url": format!("https://h/{long}")}));
    wide["sessionId"] = json!(long);
    wide["projectId"] = json!("/home/dev/shop/");
    let event = stand.event(wide).await;
    assert!(event.session.as_str().len() <= 200);
    assert_eq!(event.project.unwrap().as_str(), "shop");
    let Fact::SessionStarted(info) = event.fact else { panic!("not a start") };
    assert!(info.agent.unwrap().as_str().len() <= 200);
    assert_eq!(info.url, None);
    let data = json!({"taskId": "7", "evidence": "vcs"});
    assert!(matches!(
        stand.event(item("task.completed", data)).await.fact,
        Fact::Progress {
            kind: ProgressKind::TaskCompleted,
            evidence: Evidence::Vcs,
            subject: Some(_),
            call: None
        }
    ));
}

#[test]
fn the_source_sees_all_but_liveness() {
    for capability in Capability::ALL {
        assert_eq!(DEF.capabilities.has(*capability), *capability != Capability::Liveness);
    }
}
