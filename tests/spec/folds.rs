//! What the fold makes of the schema's own facts, in any order and over several runs.

use agent_session_exporter::event::*;
use agent_session_exporter::session::Count;
use agent_session_exporter::session::orchestration::{MAX_SPECS, Orchestrated};
use agent_session_exporter::views::selection::Options;

use crate::stand::{Fold, SHOP, decode, status, ts, value};

fn say(seconds: i64, fact: Fact) -> Event {
    let time = ts("2026-11-29T16:00:00Z").plus(seconds * 1_000);
    let mut event = Event::new(&SourceId::from("spec"), &SessionId::from(SHOP), time, fact);
    event.time = Some(time);
    event.project = Some(Name::from(SHOP));
    event
}

fn run(update: OrchestrationUpdate) -> Fact {
    Fact::Orchestration(Box::new(update))
}

fn running(batch: u32) -> Fact {
    let state = Some(OrchestrationState::Running);
    run(OrchestrationUpdate {
        state,
        batch: Some(batch),
        begins: batch == 1,
        ..OrchestrationUpdate::default()
    })
}

fn over(state: OrchestrationState) -> Fact {
    run(OrchestrationUpdate { state: Some(state), ..OrchestrationUpdate::default() })
}

fn spec(name: &str, status: SpecStatus, batch: u32) -> Fact {
    let mut update = SpecUpdate::of(Name::from(name)).with(status);
    update.batch = Some(batch);
    Fact::Spec(Box::new(update))
}

fn signal() -> Fact {
    let spec = Some(Name::from("a"));
    Fact::SpecLimited(Box::new(LimitUpdate { spec, delay_ms: Some(900), ..LimitUpdate::default() }))
}

fn signals(fold: &Fold) -> i64 {
    fold.sum(&Count::Orchestration(Orchestrated::LimitSignal(LimitClass::Other)))
}

fn told(started: i64, signals: u64) -> OrchestrationUpdate {
    let totals =
        StatusTotals { totals: RunTotals { signals, ..RunTotals::default() }, ..StatusTotals::default() };
    OrchestrationUpdate {
        state: Some(OrchestrationState::Running),
        started: Some(ts("2026-11-29T16:00:00Z").plus(started * 1_000)),
        rewritten: true,
        totals: Some(Box::new(totals)),
        ..OrchestrationUpdate::default()
    }
}

#[test]
fn a_new_run_lowers_the_runs_numbers_and_not_the_counters() {
    let mut fold = Fold::of([say(1, run(told(0, 2))), say(2, run(told(0, 5)))]);
    assert_eq!((fold.run().totals().signals, signals(&fold)), (5, 5));
    fold.take([say(60, run(told(59, 1)))]);
    assert_eq!((fold.run().totals().signals, signals(&fold)), (1, 6));
    // Late news of the run before changes nothing.
    fold.take([say(61, run(told(0, 9))), say(3, signal())]);
    assert_eq!((fold.run().totals().signals, signals(&fold)), (1, 6));
    // A lower word within one run is a count that began anew.
    fold.take([say(62, run(told(59, 0))), say(63, run(told(59, 2)))]);
    assert_eq!(signals(&fold), 8);
}

#[test]
fn runs_told_by_events_alone_are_told_apart_by_their_first_batch() {
    let mut fold = Fold::of([
        say(0, running(1)),
        say(1, spec("a", SpecStatus::Running, 1)),
        say(2, signal()),
        say(5, spec("a", SpecStatus::Completed, 1)),
        say(6, over(OrchestrationState::Completed)),
    ]);
    assert_eq!(fold.state(SHOP, ts("2026-11-29T16:00:07Z")), "completed/workflow_complete");
    fold.take([say(100, running(1)), say(101, spec("b", SpecStatus::Running, 1)), say(102, signal())]);
    assert_eq!((fold.run().totals().signals, signals(&fold)), (1, 2));
    assert_eq!(fold.run().specs.len(), 2, "b, and a by its signal");
    assert_eq!(fold.state("shop/a", ts("2026-11-29T16:00:07Z")), "completed/run_complete");
    // Begun again without an end: a crash.
    fold.take([say(200, running(1))]);
    assert_eq!((fold.run().totals().signals, fold.run().specs.len()), (0, 0));
    assert_eq!(fold.state("shop/b", ts("2026-11-29T16:03:21Z")), "unknown/ended_without_result");
    // A file that knows when this run began is about the same one.
    fold.take([say(201, run(told(199, 0)))]);
    assert_eq!(fold.run().started, Some(ts("2026-11-29T16:03:19Z")));
}

#[test]
fn a_spec_and_a_batch_are_progress_once_per_run() {
    let progress = |fold: &Fold, kind| fold.sum(&Count::Progress(kind, true));
    let both = |fold: &Fold| {
        (progress(fold, ProgressKind::SpecCompleted), progress(fold, ProgressKind::BatchCompleted))
    };
    let mut fold = Fold::of([say(0, running(1)), say(1, spec("a", SpecStatus::Completed, 1))]);
    fold.take([say(2, spec("a", SpecStatus::Completed, 1)), say(3, spec("b", SpecStatus::Running, 1))]);
    assert_eq!(both(&fold), (1, 0));
    fold.take([say(10, running(2))]);
    assert_eq!(both(&fold), (1, 0), "b is not over");
    fold.take([say(11, spec("b", SpecStatus::Failed, 1)), say(12, running(2)), say(12, running(2))]);
    assert_eq!(both(&fold), (1, 1));
    assert_eq!(fold.facts(SHOP).last_progress, Some(ts("2026-11-29T16:00:11Z")));
    // A batch of which nothing was completed is no advance.
    fold.take([say(13, spec("c", SpecStatus::Failed, 2)), say(14, over(OrchestrationState::Failed))]);
    assert_eq!(both(&fold), (1, 1));
    fold.take([say(100, running(1)), say(101, spec("a", SpecStatus::Completed, 1))]);
    assert_eq!(both(&fold), (2, 1));
    let families = fold.scrape(ts("2026-11-29T16:02:00Z"), Options::default());
    let total = |status| {
        value(&families, "specs_ended_total", &[("source", "spec"), ("project", SHOP), ("status", status)])
    };
    assert_eq!((total("completed"), total("failed"), total("timeout")), (Some(2.0), Some(2.0), Some(0.0)));
}

#[test]
fn null_erases_nothing() {
    let mut fold = Fold::of([say(0, running(3))]);
    let launch =
        LaunchUpdate { budget: Some(6), window_ms: Some(60_000), used: Some(6), ..LaunchUpdate::default() };
    let parallel = ParallelUpdate {
        adaptive: Some(true),
        max: Some(4),
        effective: Some(4),
        ..ParallelUpdate::default()
    };
    let mut retried = SpecUpdate::of(Name::from("a")).with(SpecStatus::Pending);
    (retried.retries, retried.error) = (Some(2), Some(ErrorClass::Exit));
    fold.take([say(1, Fact::LaunchBudget(launch)), say(1, Fact::Parallel(parallel))]);
    fold.take([say(1, Fact::Spec(Box::new(retried)))]);
    let before = fold.run();
    fold.take([
        say(2, run(OrchestrationUpdate::default())),
        say(2, Fact::Spec(Box::new(SpecUpdate::of(Name::from("a"))))),
        say(2, Fact::LaunchBudget(LaunchUpdate::default())),
        say(2, Fact::Parallel(ParallelUpdate::default())),
    ]);
    let after = fold.run();
    assert_eq!((after.state, after.batch, &after.specs), (before.state, before.batch, &before.specs));
    assert_eq!((after.launch.budget, after.launch.used, after.parallel.max), (Some(6), Some(6), Some(4)));
    assert_eq!(fold.state("shop/a", ts("2026-11-29T16:00:03Z")), "blocked/retry");
}

#[test]
fn fewer_agents_at_once_are_throttled_and_more_recovered() {
    let effective = |n| Fact::Parallel(ParallelUpdate { effective: Some(n), ..ParallelUpdate::default() });
    let fold = Fold::of([4, 2, 2, 1, 3].into_iter().zip(1..).map(|(n, t)| say(t, effective(n))));
    let totals = fold.run().totals();
    assert_eq!((totals.throttled, totals.recovered, fold.run().parallel.effective), (2, 1, Some(3)));
    assert_eq!(fold.run().parallel.throttled_at, Some(ts("2026-11-29T16:00:04Z")));
    assert_eq!(fold.sum(&Count::Orchestration(Orchestrated::Throttled(ThrottleReason::Other))), 2);
}

#[test]
fn facts_of_one_run_give_one_picture_in_any_order_within_the_window() {
    let story = || {
        let facts = [
            running(1),
            spec("a", SpecStatus::Running, 1),
            spec("b", SpecStatus::Running, 1),
            signal(),
            spec("a", SpecStatus::Completed, 1),
            spec("b", SpecStatus::Timeout, 1),
            over(OrchestrationState::Failed),
        ];
        facts.into_iter().zip(0..).map(|(fact, n)| {
            let mut event = say(0, fact);
            event.time = event.time.map(|t| t.plus(n * 200));
            event.id = Some(n as u64);
            event
        })
    };
    let straight = Fold::of(story());
    for turn in 1..7 {
        let mut events: Vec<_> = story().collect();
        events.rotate_left(turn);
        let turned = Fold::of(events.clone());
        assert_eq!((turned.run(), turned.sums()), (straight.run(), straight.sums()), "{turn}");
        events.reverse();
        assert_eq!(Fold::of(events).run(), straight.run(), "{turn} reversed");
    }
}

#[test]
fn specs_are_bounded() {
    let many = (0..MAX_SPECS + 40).map(|n| say(1, spec(&format!("s{n:04}"), SpecStatus::Failed, 1)));
    let fold = Fold::of(many);
    assert_eq!((fold.run().specs.len(), fold.run().beyond), (MAX_SPECS, 40));
    let families = fold.scrape(ts("2026-11-29T16:00:02Z"), Options::default());
    let shown = families.iter().find(|f| f.name == "agent_orchestration_spec_state").unwrap();
    assert_eq!(shown.samples.len(), 50);
    let own = families.iter().flat_map(|f| &f.samples).filter(|s| s.label("orchestration") == SHOP);
    assert!(own.count() <= 240, "the worst case of one orchestration");
}

/// The time of a file has a resolution, and the engine writes when it likes.
#[test]
fn contents_that_were_written_within_a_millisecond_all_count() {
    let started = "2026-11-29T16:00:00.000Z";
    let content = |state: &str, spec: &str, batch: u32| {
        serde_json::json!({
            "status": state, "startedAt": started, "currentBatch": batch, "totalBatches": 2,
            "specs": {"a": {"status": spec, "batch": 0, "retryCount": 0}},
        })
    };
    let (mut status, mut fold) = (status(), Fold::of([]));
    let at = ts(started).plus(5_000);
    for (spec, wanted) in
        [("running", SpecStatus::Running), ("failed", SpecStatus::Failed), ("running", SpecStatus::Running)]
    {
        fold.take(decode(&mut status, &content("running", spec, 1), at));
        assert_eq!(fold.run().spec(&Name::from("a")).unwrap().status, wanted);
    }
    fold.take(decode(&mut status, &content("completed", "completed", 2), at));
    assert_eq!(fold.run().spec(&Name::from("a")).unwrap().status, SpecStatus::Completed);
    assert_eq!(fold.state(SHOP, at.plus(1_000)), "completed/workflow_complete");
}
