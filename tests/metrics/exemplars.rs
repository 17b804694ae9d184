//! Exemplars: only in OpenMetrics, only where there are some, each in the bucket that counts it, the newest of each.

use agent_session_exporter::session::counts::Observation;
use agent_session_exporter::session::exemplars::{Exemplar, Exemplars};

use super::*;

fn exemplar(n: u8, seconds: f64, over: f64) -> Exemplar {
    Exemplar { trace: [n; 16], span: [n; 8], ms: (seconds * 1000.0) as u64, at: at(over) }
}

/// Turns of 0.05 s, 2 s and a day, a call, a wait and a step.
fn durations() -> Snapshot {
    let mut world = World::default();
    world.sees("codex", all_seen());
    for (i, seconds) in [0.05, 2.0, 100_000.0].into_iter().enumerate() {
        let start = i as f64 * 200_000.0;
        world
            .story("codex", "s", None)
            .turn(&format!("t{i}"))
            .then(start, turn())
            .then(start + seconds, turn_ended(TurnOutcome::Completed));
    }
    let end = Fact::ActionResolved { action: Id::from("a"), resolution: Resolution::Approved };
    world
        .story("codex", "s", None)
        .turn("last")
        .then(700_000.0, turn())
        .then(700_001.0, Fact::StepStarted(step("build")))
        .then(700_002.0, call("c", ToolClass::Shell))
        .then(700_003.0, asks("a", ActionKind::Permission, Certainty::Certain))
        .then(700_033.0, end)
        .then(700_042.5, call_ended("c", CallOutcome::Ok, None))
        .then(700_061.0, Fact::StepCompleted { step: step("build"), outcome: StepOutcome::Advanced });
    world.snapshot()
}

fn with(mut snapshot: Snapshot, exemplars: Exemplars) -> Snapshot {
    snapshot.exemplars = Arc::new(exemplars);
    snapshot
}

fn exemplars() -> Exemplars {
    let mut all = Exemplars::since(at(0.0));
    let codex = SourceId::from("codex");
    let mut take = |what, exemplar| all.take(&codex, what, exemplar);
    let turns = Observation::Turn(TurnOutcome::Completed);
    take(turns, exemplar(1, 2.0, 200_002.0));
    take(turns, exemplar(2, 1.5, 200_001.0));
    take(turns, exemplar(3, 100_000.0, 500_000.0));
    take(turns, exemplar(4, 0.05, -1.0));
    // Of a bucket in which nothing was counted.
    take(turns, exemplar(5, 700.0, 500_000.0));
    take(Observation::Turn(TurnOutcome::Failed), exemplar(6, 2.0, 500_000.0));
    take(Observation::Step(StepKind::Build), exemplar(7, 60.0, 700_061.0));
    take(Observation::Call(ToolClass::Shell), exemplar(0xab, 40.5, 700_042.5));
    take(Observation::Wait(ActionKind::Permission), exemplar(9, 30.0, 700_033.0));
    all
}

fn shown(families: &[Family]) -> Vec<(String, String, String, f64, f64)> {
    let samples = families.iter().flat_map(|f| &f.samples);
    let one = |s: &exposition::Sample| {
        let e = s.exemplar.as_ref()?;
        assert_eq!(e.labels.keys().collect::<Vec<_>>(), ["span_id", "trace_id"]);
        assert_eq!((e.labels["trace_id"].len(), e.labels["span_id"].len()), (32, 16));
        Some((s.name.clone(), s.label("le").to_owned(), e.labels["span_id"][..2].to_owned(), e.value, e.time))
    };
    samples.filter_map(one).collect()
}

#[test]
fn each_bucket_shows_its_newest_span() {
    let snapshot = with(durations(), exemplars());
    let (renderer, _) = renderer(Options::default());
    let now = at(700_100.0);
    let families = read(&renderer, &snapshot, now, Format::OpenMetrics);
    let all = shown(&families);
    let all: Vec<_> =
        all.iter().map(|(n, le, id, v, t)| (&n[14..], le.as_str(), id.as_str(), *v, *t)).collect();
    let time = |seconds: f64| at(seconds).as_seconds();
    assert_eq!(
        all,
        [
            ("turn_duration_seconds_bucket", "5.0", "01", 2.0, time(200_002.0)),
            ("turn_duration_seconds_bucket", "+Inf", "03", 100_000.0, time(500_000.0)),
            ("step_duration_seconds_bucket", "60.0", "07", 60.0, time(700_061.0)),
            ("tool_call_duration_seconds_bucket", "60.0", "ab", 40.5, time(700_042.5)),
            ("user_wait_seconds_bucket", "60.0", "09", 30.0, time(700_033.0)),
        ]
    );
    // The text format has no word for them, and is the same with and without.
    let body = |snapshot: &Snapshot| without_process(renderer.render(snapshot, now, Format::Text));
    assert!(shown(&read(&renderer, &snapshot, now, Format::Text)).is_empty());
    assert_eq!(body(&snapshot), body(&durations()));
    golden("exemplars", &snapshot, now, &renderer);
}

#[test]
fn where_no_spans_are_sent_there_are_none() {
    let mut all = Exemplars::default();
    all.take(
        &SourceId::from("codex"),
        Observation::Turn(TurnOutcome::Completed),
        exemplar(1, 2.0, 200_002.0),
    );
    assert_eq!(all, Exemplars::default());
    let families =
        read(&renderer(Options::default()).0, &with(durations(), all), at(700_100.0), Format::OpenMetrics);
    assert!(shown(&families).is_empty());
}
