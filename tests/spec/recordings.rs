//! Every recorded run by each of its surfaces, and by both at once.

use agent_session_exporter::event::{
    ErrorClass, Event, Name, OrchestrationState, ProgressKind, SpecStatus, Timestamp,
};
use agent_session_exporter::session::orchestration::Orchestrated;
use agent_session_exporter::session::{Count, Facts};
use agent_session_exporter::views::selection::Options;

use crate::stand::{
    Fold, RUNS, SHOP, at, decode, engine_events, fixture, lines, read, status, status_events, value,
};

/// Where everything stands at a moment.
fn moment(fold: &Fold, now: Timestamp) -> String {
    let run = fold.run();
    let specs = run.specs.iter().map(|s| {
        let session = fold.state(&format!("{SHOP}/{}", s.name.as_str()), now);
        let error = s.error.map(|e| format!(" {}", e.as_str())).unwrap_or_default();
        format!("\n    {} {} {session} retries {}{error}", s.name.as_str(), s.status.as_str(), s.retries)
    });
    let batch = |n: Option<u32>| n.map_or("-".to_owned(), |n| n.to_string());
    format!(
        "{} {} batch {}/{}{}",
        run.state_at(now).as_str(),
        fold.state(SHOP, now),
        batch(run.batch),
        batch(run.batches),
        specs.collect::<String>()
    )
}

/// The story of a run: what changes, then what the metrics say at its end.
fn story(events: &[Event]) -> String {
    let mut fold = Fold::default();
    let (mut out, mut before) = (String::new(), String::new());
    for event in events {
        fold.take([event.clone()]);
        if fold.facts(SHOP).orchestration.is_none() {
            continue;
        }
        let now = event.time.unwrap();
        let text = moment(&fold, now);
        if text != before {
            let new = text.lines().filter(|l| !before.lines().any(|b| b == *l));
            out.push_str(&format!("{now} {}\n", new.collect::<Vec<_>>().join("\n").trim_start()));
            before = text;
        }
    }
    let end = events.last().unwrap().time.unwrap().plus(1_000);
    out.push_str(&format!("\n{}\n", moment(&fold, end)));
    for family in fold.scrape(end, Options::default()) {
        for s in family.samples.iter().filter(|s| s.name.starts_with("agent_orchestration_")) {
            let own = s
                .labels
                .iter()
                .filter(|(k, _)| !["source", "project", "orchestration"].contains(&k.as_str()));
            let own: Vec<_> = own.map(|(k, v)| format!("{k}={v}")).collect();
            out.push_str(&format!("{} {{{}}} {}\n", s.name, own.join(","), s.value));
        }
    }
    out
}

fn golden(name: &str, text: &str) {
    let path = fixture(&format!("../../golden/spec/{name}.txt"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    for (at, (got, wanted)) in text.lines().zip(wanted.lines()).enumerate() {
        assert_eq!(got, wanted, "{name} line {}", at + 1);
    }
    assert_eq!(text.lines().count(), wanted.lines().count(), "{name}");
}

fn sorted(mut events: Vec<Event>) -> Vec<Event> {
    events.sort_by_key(|e| e.time);
    events
}

#[test]
fn status_files_tell_their_story() {
    for run in RUNS {
        golden(&format!("{run}.status"), &story(&status_events(run)));
    }
}

#[test]
fn events_tell_their_story() {
    for run in &RUNS[..3] {
        golden(&format!("{run}.events"), &story(&sorted(engine_events(run))));
    }
}

fn high(facts: &Facts, kind: ProgressKind) -> u64 {
    facts.progress.iter().find(|p| p.kind == kind).map_or(0, |p| p.high)
}

#[test]
fn both_surfaces_together_count_nothing_twice() {
    for run in &RUNS[..3] {
        let (file, engine) = (status_events(run), engine_events(run));
        let mut both = file.clone();
        both.extend(engine.clone());
        let (by_file, by_engine) = (Fold::of(file.clone()), Fold::of(sorted(engine.clone())));
        let mixed = Fold::of(sorted(both));
        // One surface long after the other: no window puts that in order.
        let late = Fold::of(file.into_iter().chain(sorted(engine)));
        for fold in [&by_engine, &mixed, &late] {
            assert_eq!(fold.sums(), by_file.sums(), "{run}");
            assert_eq!(fold.run().totals(), by_file.run().totals(), "{run}");
            assert_eq!(fold.run().specs_by_status(), by_file.run().specs_by_status(), "{run}");
            for kind in [ProgressKind::SpecCompleted, ProgressKind::BatchCompleted] {
                assert_eq!(high(&fold.facts(SHOP), kind), high(&by_file.facts(SHOP), kind), "{run} {kind:?}");
            }
        }
        // The agents know why a spec failed, the file does not.
        let failed = mixed.run().specs.into_iter().find(|s| s.status == SpecStatus::Failed).unwrap();
        assert!(matches!(failed.error, Some(ErrorClass::Exit | ErrorClass::Timeout)), "{run}: {failed:?}");
    }
}

#[test]
fn totals_are_those_the_orchestrator_printed_at_its_end() {
    for run in RUNS {
        let result: serde_json::Value = serde_json::from_slice(&read(&format!("{run}.result.json"))).unwrap();
        let fold = Fold::of(status_events(run));
        let (totals, limit, parallel) = (fold.run().totals(), &result["rateLimit"], &result["parallel"]);
        let told = [&limit["signalCount"], &limit["totalBackoffMs"], &limit["launchBudgetHoldCount"]]
            .into_iter()
            .chain([&parallel["throttledCount"], &parallel["recoveredCount"]]);
        let told: Vec<u64> = told.map(|n| n.as_u64().unwrap()).collect();
        let own = [totals.signals, totals.backoff_ms, totals.holds, totals.throttled, totals.recovered];
        assert_eq!(own.to_vec(), told, "{run}");
        for status in [SpecStatus::Completed, SpecStatus::Failed, SpecStatus::Skipped] {
            let listed = result[status.as_str()].as_array().unwrap().len() as i64;
            assert_eq!(
                fold.sum(&Count::Orchestration(Orchestrated::Spec(status))),
                listed,
                "{run} {status:?}"
            );
        }
    }
}

/// 107 and 108 have one agent id; 3.0.0 itself believes that 107 is done when 108 is. Nothing of ours is joined by it.
#[test]
fn turns_and_threads_belong_to_the_spec_whatever_slot_their_agent_has() {
    let fold = Fold::of(sorted(engine_events("3.0.0-mixed")));
    let run = fold.run();
    let spec = |name: &str| run.spec(&Name::from(name)).unwrap().clone();
    let codex = lines("3.0.0-mixed.codex.ndjson");
    for name in ["104-flaky-provider", "105-bad-tests", "107-slow-build", "108-packaging"] {
        let own = |kind: &'static str| {
            codex.iter().filter(move |l| l["specName"] == name && l["event"]["type"] == kind)
        };
        assert_eq!(spec(name).turns, Some(own("turn.started").count() as u64), "{name}");
        let thread = own("thread.started").next_back().unwrap()["event"]["thread_id"].as_str();
        assert_eq!(spec(name).thread.as_ref().map(|t| t.as_str()), thread, "{name}");
    }
    assert_eq!((spec("104-flaky-provider").retries, spec("105-bad-tests").retries), (3, 1));
}

#[test]
fn a_spec_that_waits_for_another_attempt_is_blocked_and_one_that_waits_for_its_turn_is_queued() {
    let mut fold = Fold::default();
    let mut decoder = status();
    let mut seen = Vec::new();
    for line in lines("3.0.0-mixed.status.ndjson") {
        let now = at(&line);
        fold.take(decode(&mut decoder, &line["snapshot"], now));
        let state = fold.state("shop/104-flaky-provider", now);
        if seen.last() != Some(&state) {
            seen.push(state);
        }
    }
    let words = "queued/starting running/working blocked/retry blocked/rate_limit running/working \
                 blocked/rate_limit running/working blocked/rate_limit running/working completed/run_complete";
    assert_eq!(seen.join(" "), words);
    let end = at(lines("3.0.0-mixed.status.ndjson").last().unwrap());
    assert_eq!(fold.state("shop/106-release-notes", end), "blocked/dependency");
    assert_eq!(fold.state("shop/105-bad-tests", end), "failed/error");
    // It keeps the error of an attempt before; that is no error of a completed spec.
    assert_eq!(fold.run().spec(&Name::from("104-flaky-provider")).unwrap().error, None);
}

#[test]
fn a_timeout_is_failed_by_timeout() {
    for run in ["3.6.65-mixed", "3.0.0-timeouts-launch-holds"] {
        let events = status_events(run);
        let end = events.last().unwrap().time.unwrap();
        let fold = Fold::of(events);
        assert_eq!(fold.state("shop/107-slow-build", end), "failed/timeout", "{run}");
        let families = fold.scrape(end, Options::default());
        let labels = [("spec", "107-slow-build"), ("class", "timeout")];
        assert_eq!(value(&families, "spec_error", &labels), Some(1.0), "{run}");
    }
}

#[test]
fn a_cycle_fails_without_specs_and_without_a_reason() {
    let events = status_events("3.0.0-cycle");
    let end = events.last().unwrap().time.unwrap();
    let fold = Fold::of(events);
    assert_eq!((fold.run().state_at(end), fold.run().specs.len()), (OrchestrationState::Failed, 0));
    assert_eq!(fold.state(SHOP, end), "failed/error");
    let families = fold.scrape(end, Options::default());
    for absent in [
        "batch",
        "batches",
        "launch_budget",
        "launch_budget_used",
        "launch_budget_window_seconds",
        "launch_budget_last_hold_seconds",
        "launch_budget_last_hold_timestamp_seconds",
        "parallel_max",
        "parallel_effective",
        "parallel_floor",
        "parallel_adaptive",
        "rate_limit_last_retry",
        "rate_limit_last_delay_seconds",
        "rate_limit_last_signal_timestamp_seconds",
        "rate_limit_launch_hold_seconds",
        "spec_state",
        "stop_requested_timestamp_seconds",
    ] {
        assert_eq!(value(&families, absent, &[]), None, "{absent}");
    }
    assert_eq!(value(&families, "state", &[("state", "failed")]), Some(1.0));
    assert_eq!(value(&families, "state", &[("state", "running")]), Some(0.0));
    assert_eq!(value(&families, "end_timestamp_seconds", &[]), Some(1_795_966_180.6));
}

#[test]
fn one_hold_gives_several_signals() {
    let fold = Fold::of(status_events("3.0.0-timeouts-launch-holds"));
    assert_eq!(fold.sum(&Count::Orchestration(Orchestrated::LaunchHold)), 3);
    let mut held = Fold::default();
    let mut decoder = status();
    for line in lines("3.0.0-timeouts-launch-holds.status.ndjson") {
        let now = at(&line);
        held.take(decode(&mut decoder, &line["snapshot"], now));
        // 102 is over and 107 may not begin yet.
        if now == at(&lines("3.0.0-timeouts-launch-holds.status.ndjson")[7]) {
            assert_eq!(held.state(SHOP, now), "blocked/launch_budget");
        }
    }
}
