//! What others see: the report and its refusals, modes of series, and that orchestrations are no sessions of agents.

use agent_session_exporter::event::*;
use std::sync::Arc;

use agent_session_exporter::session::Snapshot;
use agent_session_exporter::telemetry::Telemetry;
use agent_session_exporter::views::prometheus::{Format, Renderer};
use agent_session_exporter::views::selection::{Options, SeriesMode};
use serde_json::{Value, json};

use crate::exposition::Family;
use crate::stand::{Fold, RUNS, SHOP, engine_events, get, scrape, state, status_events, ts, value};

const REPORT: &str = "/api/v1/orchestrations/shop/status";

fn recorded(run: &str) -> (Fold, Timestamp) {
    let mut events = status_events(run);
    events.extend(engine_events(run));
    events.sort_by_key(|e| e.time);
    let end = events.last().unwrap().time.unwrap();
    (Fold::of(events), end)
}

#[test]
fn the_report_tells_everything_and_null_is_unknown() {
    let (fold, _) = recorded("3.0.0-mixed");
    let (code, report) = get(fold.snapshot(), REPORT);
    assert_eq!(code, 200);
    assert_eq!(
        (&report["state"], &report["batch"], &report["batches"]),
        (&json!("failed"), &json!(2), &json!(2))
    );
    assert_eq!(report["startedAt"], "2026-11-29T15:17:06.019Z");
    assert_eq!(report["endedAt"], "2026-11-29T15:17:19.643Z");
    assert_eq!(
        report["specsByStatus"],
        json!({"pending": 0, "running": 0, "completed": 6, "failed": 1, "timeout": 0, "skipped": 1})
    );
    let spec =
        |name: &str| report["specs"].as_array().unwrap().iter().find(|s| s["spec"] == name).unwrap().clone();
    let flaky = spec("104-flaky-provider");
    assert_eq!(
        (&flaky["retries"], &flaky["errorClass"], &flaky["batch"]),
        (&json!(3), &Value::Null, &json!(1))
    );
    assert_eq!((&flaky["turns"], &flaky["sessionId"]), (&json!(4), &json!("shop/104-flaky-provider")));
    assert!(flaky["threadId"].is_string());
    assert_eq!(spec("106-release-notes")["errorClass"], "dependency");
    assert_eq!(report["rateLimit"]["signals"], 3);
    assert_eq!(report["rateLimit"]["lastSpec"], "104-flaky-provider");
    assert_eq!(report["parallel"]["effective"], 3);
    assert_eq!(
        report["launchBudget"],
        json!({"perWindow": 6, "windowMs": 6000, "used": 3, "holdSignals": 0, "lastHoldMs": null, "lastHoldAt": null})
    );
    assert_eq!(report["stop"], Value::Null);
    let (_, list) = get(fold.snapshot(), "/api/v1/orchestrations");
    assert_eq!(list["orchestrations"][0]["orchestrationId"], SHOP);
    assert_eq!(list["orchestrations"].as_array().unwrap().len(), 1);
}

#[test]
fn the_report_of_an_id_that_two_sources_have_asks_for_the_source() {
    let mut events = status_events("3.0.0-cycle");
    let mut twin = events.clone();
    twin.iter_mut().for_each(|e| e.source = SourceId::from("my_runner"));
    events.extend(twin);
    let snapshot = || Fold::of(events.clone()).snapshot();
    let (code, refusal) = get(snapshot(), REPORT);
    assert_eq!((code, &refusal["reason"]), (409, &json!("ambiguous_orchestration")));
    let (code, report) = get(snapshot(), &format!("{REPORT}?source=my_runner"));
    assert_eq!((code, &report["source"]), (200, &json!("my_runner")));
    for (uri, code) in [
        (format!("{REPORT}?source=none"), 404),
        ("/api/v1/orchestrations/none/status".to_owned(), 404),
        (format!("{REPORT}?color=red"), 400),
        ("/api/v1/orchestrations/%FF/status".to_owned(), 400),
        // A spec is no orchestration.
        ("/api/v1/orchestrations/shop%2F105-bad-tests/status".to_owned(), 404),
    ] {
        assert_eq!(get(snapshot(), &uri).0, code, "{uri}");
    }
}

#[test]
fn specs_are_sessions_below_their_orchestration() {
    let (fold, _) = recorded("3.6.65-mixed");
    let (code, status) = get(fold.snapshot(), "/api/v1/sessions/spec/shop%2F106-release-notes/status");
    assert_eq!(code, 200);
    assert_eq!((&status["state"], &status["stateReason"]), (&json!("blocked"), &json!("dependency")));
    assert_eq!(
        (&status["parentSessionId"], &status["blocked"]["reason"]),
        (&json!(SHOP), &json!("dependency"))
    );
    let (_, roots) = get(fold.snapshot(), "/api/v1/sessions?source=spec");
    assert_eq!(roots["sessions"].as_array().unwrap().len(), 1);
    let (_, all) = get(fold.snapshot(), "/api/v1/sessions?source=spec&children=1");
    assert_eq!(all["sessions"].as_array().unwrap().len(), 9);
    let failed =
        all["sessions"].as_array().unwrap().iter().find(|s| s["sessionId"] == "shop/107-slow-build").unwrap();
    assert_eq!((&failed["state"], &failed["terminalReason"]), (&json!("failed"), &json!("timeout")));
    let (_, why) = get(fold.snapshot(), "/api/v1/sessions/spec/shop/explain");
    assert_eq!(why["state"], "failed");
}

/// Sum over all samples of a family.
fn total(families: &[Family], name: &str) -> f64 {
    let own = families.iter().filter(|f| f.name == name);
    own.flat_map(|f| &f.samples).map(|s| s.value).sum()
}

#[test]
fn orchestrations_are_no_sessions_of_agents() {
    for run in RUNS {
        let events = status_events(run);
        let middle = events[events.len() / 2].time.unwrap();
        let fold = Fold::of(events);
        let families = fold.scrape(middle, Options::default());
        for name in [
            "agent_sessions",
            "agent_session_started_total",
            "agent_session_ended_total",
            "agent_session_turns_total",
        ] {
            assert_eq!(total(&families, name), 0.0, "{run} {name}");
        }
        let own = families.iter().filter(|f| f.name.starts_with("agent_session_state"));
        assert_eq!(own.count(), 0, "{run}");
        if !run.contains("cycle") {
            assert!(total(&families, "agent_session_progress_events_total") > 0.0, "{run}");
        }
    }
}

/// One spawn gives an orchestrator's row that fails and an agent's that runs: two rows, linked by nothing but an
/// explicit id, and one session.
#[test]
fn a_row_of_an_orchestrator_and_the_row_of_its_agent_are_counted_once() {
    let start = ts("2026-11-29T16:00:00Z");
    let say = |source: &str, session: &str, seconds: i64, fact: Fact| {
        let time = start.plus(seconds * 1_000);
        let mut event = Event::new(&SourceId::from(source), &SessionId::from(session), time, fact);
        (event.time, event.project) = (Some(time), Some(Name::from("shop")));
        event
    };
    let spec = |status| Fact::Spec(Box::new(SpecUpdate::of(Name::from("implementer")).with(status)));
    let running =
        OrchestrationUpdate { state: Some(OrchestrationState::Running), ..OrchestrationUpdate::default() };
    let mut events = vec![
        say("spec", SHOP, 0, Fact::Orchestration(Box::new(running))),
        say("spec", SHOP, 0, spec(SpecStatus::Running)),
        say("claude_code", "transcript", 0, Fact::SessionStarted(SessionInfo::default())),
        say("claude_code", "transcript", 0, Fact::TurnStarted { trigger: Trigger::Machine }),
        say("spec", SHOP, 40, spec(SpecStatus::Failed)),
    ];
    for n in 0..12 {
        let work = Fact::Activity { class: ActivityClass::Work, message: false };
        events.push(say("claude_code", "transcript", n * 10, work));
    }
    let snapshot: Snapshot = Fold::of(events).snapshot();
    let now = start.plus(120_000);
    assert_eq!(state(&snapshot, "spec", "shop/implementer", now), "failed/error");
    assert_eq!(state(&snapshot, "claude_code", "transcript", now), "running/working");
    let families = scrape(&snapshot, now, Options::default());
    assert_eq!(total(&families, "agent_sessions"), 1.0);
    assert_eq!(total(&families, "agent_session_started_total"), 1.0);
    let (_, all) = get(snapshot, "/api/v1/sessions?children=1");
    assert_eq!(all["sessions"].as_array().unwrap().len(), 3, "each is shown under its own source");
}

#[test]
fn modes() {
    let (fold, end) = recorded("3.6.65-mixed");
    let shown = |mode, now| {
        let families = fold.scrape(now, Options { mode, ..Options::default() });
        let total = value(
            &families,
            "specs_ended_total",
            &[("source", "spec"), ("project", SHOP), ("status", "failed")],
        );
        assert_eq!(total, Some(2.0), "counters stay in every mode");
        value(&families, "state", &[("state", "failed")])
    };
    for mode in [SeriesMode::Full, SeriesMode::All, SeriesMode::Attention] {
        assert_eq!(shown(mode, end), Some(1.0), "{mode:?}");
    }
    assert_eq!(shown(SeriesMode::Off, end), None);
    // Like a session's, its series end a quarter of an hour after it did.
    assert_eq!(shown(SeriesMode::Full, end.plus(14 * 60_000)), Some(1.0));
    assert_eq!(shown(SeriesMode::Full, end.plus(15 * 60_000)), None);
    // One that is well needs no attention.
    let running =
        OrchestrationUpdate { state: Some(OrchestrationState::Running), ..OrchestrationUpdate::default() };
    let mut event = Event::new(
        &SourceId::from("spec"),
        &SessionId::from(SHOP),
        end,
        Fact::Orchestration(Box::new(running)),
    );
    event.time = Some(end);
    let well = Fold::of([event]).scrape(end, Options { mode: SeriesMode::Attention, ..Options::default() });
    assert_eq!(value(&well, "state", &[("state", "running")]), None);
}

#[test]
fn in_attention_an_orchestration_lingers_as_a_session_does() {
    let at = |ms: i64| Timestamp::from_millis(1_795_960_000_000 + ms);
    let event = |ms: i64, fact: Fact| {
        let mut event = Event::new(&SourceId::from("spec"), &SessionId::from(SHOP), at(ms), fact);
        event.time = Some(at(ms));
        event
    };
    let running = |ms: i64| {
        let state = Some(OrchestrationState::Running);
        event(
            ms,
            Fact::Orchestration(Box::new(OrchestrationUpdate { state, ..OrchestrationUpdate::default() })),
        )
    };
    let options = Options { mode: SeriesMode::Attention, ..Options::default() };
    let renderer = Renderer::new(options, Arc::new(Telemetry::new()));
    let shown = |fold: &Fold, now: Timestamp| {
        let body = renderer.render(&fold.snapshot(), now, Format::Text);
        String::from_utf8(body).unwrap().contains("agent_orchestration_state{")
    };
    let mut fold = Fold::of([running(0)]);
    assert!(!shown(&fold, at(1_000)), "it is well");
    fold.take([event(2_000, Fact::StopRequested { requester: Requester::Cli })]);
    assert!(shown(&fold, at(3_000)));
    fold.take([event(4_000, Fact::StopCleared)]);
    for minute in 1..20 {
        fold.take([running(minute * 60_000)]);
        assert_eq!(shown(&fold, at(minute * 60_000 + 100)), minute <= 15, "minute {minute}");
    }
}
