//! The exposition: goldens of hand-made sessions, bounds on series, modes, caps and grace, hostile labels. Goldens
//! lie in `tests/golden/metrics`; `BLESS=1` renews them.

#[path = "metrics/exemplars.rs"]
mod exemplars;
#[path = "common/exposition.rs"]
mod exposition;
#[path = "common/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_session_exporter::event::*;
use agent_session_exporter::session::{Reason, Snapshot, State};
use agent_session_exporter::telemetry::Telemetry;
use agent_session_exporter::views::families::{self, Life, Rows};
use agent_session_exporter::views::prometheus::{Format, Renderer, accepts_gzip, gzip};
use agent_session_exporter::views::selection::{Options, SeriesMode};
use proptest::prelude::*;

use exposition::{Dialect, Family, parse};
use world::{World, at};

const HOSTILE: [&str; 6] =
    ["a\"b", "back\\slash\\", "line\nfeed", "\\n is no line feed", "x=\"1\"} 1\n# EOF", "🦀 žluťoučký"];

fn all_seen() -> Capabilities {
    Capabilities::of(Capability::ALL)
}

fn renderer(options: Options) -> (Renderer, Arc<Telemetry>) {
    let telemetry = Arc::new(Telemetry::new());
    (Renderer::new(options, telemetry.clone()), telemetry)
}

/// The body in one format, checked strictly.
fn read(renderer: &Renderer, snapshot: &Snapshot, now: Timestamp, format: Format) -> Vec<Family> {
    let dialect = match format {
        Format::Text => Dialect::Text,
        Format::OpenMetrics => Dialect::OpenMetrics,
    };
    let body = renderer.render(snapshot, now, format);
    parse(&body, dialect).unwrap_or_else(|e| panic!("{e}\n{}", String::from_utf8_lossy(&body)))
}

fn scrape(snapshot: &Snapshot, now: Timestamp, options: Options) -> Vec<Family> {
    read(&renderer(options).0, snapshot, now, Format::Text)
}

fn family<'a>(families: &'a [Family], name: &str) -> Option<&'a Family> {
    families.iter().find(|f| f.name == name)
}

fn value(families: &[Family], name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    family(families, name)?.value(labels)
}

/// Names of a session's series with their number.
fn series_of(families: &[Family], session: &str) -> Vec<String> {
    let own = families.iter().flat_map(|f| &f.samples).filter(|s| s.label("session") == session);
    own.map(|s| s.name.clone()).collect()
}

/// The sessions that have series, in the order of the exposition.
fn shown(families: &[Family]) -> Vec<String> {
    let info = family(families, "agent_session_info");
    info.into_iter().flat_map(|f| &f.samples).map(|s| s.label("session").to_owned()).collect()
}

// Facts.

fn name(text: &str) -> Name {
    Name::from(text)
}

fn info() -> SessionInfo {
    SessionInfo {
        agent: Some(name("codex")),
        version: Some(name("0.171.0")),
        originator: Some(name("codex_exec")),
        mode: Some(Mode::Build),
        phase: Some(Phase::Build),
        model: Some(name("gpt-5")),
        provider: Some(name("openai")),
        read_only: Some(false),
        interactive: Some(true),
        url: Some(name("http://127.0.0.1:4096/s/1")),
        ..SessionInfo::default()
    }
}

fn started() -> Fact {
    Fact::SessionStarted(info())
}

fn turn() -> Fact {
    Fact::TurnStarted { trigger: Trigger::Person }
}

fn turn_ended(outcome: TurnOutcome) -> Fact {
    Fact::TurnEnded { outcome, error: None, reset: None, denied: false, result_known: true }
}

fn call(id: &str, class: ToolClass) -> Fact {
    Fact::ToolStarted(CallStart {
        call: Id::from(id),
        tool: name(class.as_str()),
        class,
        key: None,
        target: None,
        read: None,
        commands: Commands(0),
        background: false,
        asks: None,
        nested: false,
    })
}

/// A read of a part of a file.
fn reads(id: &str) -> Fact {
    let Fact::ToolStarted(start) = call(id, ToolClass::Read) else { unreachable!() };
    let read = Some(ReadRange { start: 1, end: 100, total: Some(400) });
    Fact::ToolStarted(CallStart { target: Some(1 << 40), read, ..start })
}

fn call_ended(id: &str, outcome: CallOutcome, diff_lines: Option<u32>) -> Fact {
    let call = Id::from(id);
    Fact::ToolEnded(CallEnd {
        call,
        outcome,
        exit_code: None,
        diff_lines,
        error: None,
        output: None,
        read: None,
    })
}

fn asks(id: &str, kind: ActionKind, certainty: Certainty) -> Fact {
    Fact::ActionRequired { action: Id::from(id), kind, certainty, tool: None, call: None }
}

fn step(id: &str) -> Step {
    let name = Some(name("implement"));
    Step { id: Id::from(id), kind: StepKind::Build, name, index: Some(2), total: Some(4), entry: Some(1) }
}

fn work() -> Fact {
    Fact::Activity { class: ActivityClass::Work, message: false }
}

/// A session that has everything a session can have at once.
fn maximal(world: &mut World) {
    world.sees("codex", all_seen());
    let items = Tally { pending: 2, in_progress: 1, done: 3, failed: 1 };
    let usage = Usage {
        model: Some(name("gpt-5")),
        provider: Some(name("openai")),
        input: 1200,
        cache_read: 30_000,
        output: 800,
        cost_usd: Some(0.125),
        context_used: Some(0.25),
        ..Usage::default()
    };
    let guard = Fact::NativeStuck { detector: name("doom_loop"), layer: name("agent") };
    let held =
        Fact::Blocked { reason: BlockReason::Retry, attempt: Some(2), delay_ms: Some(60_000), until: None };
    world
        .story("codex", "root", Some("shop"))
        .then(0.0, started())
        .turn("t1")
        .then(1.0, turn())
        .then(1.0, Fact::Prompt { trigger: Trigger::Person, queued: false })
        .then(2.0, Fact::StepStarted(step("s1")))
        .then(3.0, Fact::PlanUpdated { ready: true, items, told: false })
        .then(4.0, Fact::CriteriaUpdated(items))
        .then(5.0, call("edit", ToolClass::Edit))
        .then(5.25, call_ended("edit", CallOutcome::Ok, Some(4)))
        .then(6.0, Fact::Verification { passed: false, call: None })
        .then(7.0, Fact::Verification { passed: true, call: None })
        .then(8.0, Fact::Usage(usage))
        .then(9.0, asks("q0", ActionKind::Question, Certainty::Certain))
        .then(19.0, Fact::ActionResolved { action: Id::from("q0"), resolution: Resolution::Answered })
        .then(20.0, call("shell", ToolClass::Shell))
        .then(21.0, Fact::StepStarted(step("s2")))
        .then(22.0, Fact::StepCompleted { step: step("s2"), outcome: StepOutcome::LoopedBack })
        .then(23.0, Fact::StepStarted(step("s1")))
        .then(24.0, Fact::Background { task: Id::from("dev-server"), running: true })
        .then(25.0, asks("q1", ActionKind::Permission, Certainty::Certain))
        .then(26.0, Fact::Prompt { trigger: Trigger::Unknown, queued: true })
        .then(27.0, guard)
        .then(28.0, Fact::StopRequested { requester: Requester::Http })
        .then(29.0, Fact::StopAcknowledged)
        .then(30.5, held);
    world
        .story("codex", "child", Some("shop"))
        .child_of("root")
        .turn("c1")
        .then(10.0, started())
        .then(10.0, turn())
        .then(11.0, reads("read"));
}

/// Sessions that together have a sample of every family.
fn catalogue() -> World {
    let mut world = World::default();
    maximal(&mut world);
    world
        .story("codex", "done", Some("shop"))
        .then(0.0, started())
        .turn("t1")
        .then(1.0, turn())
        .then(2.0, Fact::StepStarted(Step { kind: StepKind::Compaction, ..step("compact") }))
        .then(
            3.0,
            Fact::StepCompleted {
                step: Step { kind: StepKind::Compaction, ..step("compact") },
                outcome: StepOutcome::Advanced,
            },
        )
        .then(4.5, turn_ended(TurnOutcome::Completed))
        .then(5.0, Fact::SessionEnded { outcome: EndOutcome::Completed, error: None, workflow: false });
    let limited = Fact::TurnEnded {
        outcome: TurnOutcome::Failed,
        error: Some(ErrorClass::UsageLimit),
        reset: Some(at(9000.0)),
        denied: false,
        result_known: true,
    };
    world
        .story("codex", "limited", Some("docs"))
        .then(0.0, started())
        .turn("t1")
        .then(1.0, turn())
        .then(2.0, Fact::RateLimitSignal { delay_ms: Some(1500) })
        .then(8.0, limited);
    // A source that sees little: what it cannot see is absent.
    world.sees("push", Capabilities::default());
    world.story("push", "bare", None).then(10.0, work());
    // No certain surface: an edit that has been open for long is probably a dialog.
    world.sees("tail", all_seen().without(Capability::PendingActions));
    world
        .story("tail", "probable", Some("shop"))
        .then(0.0, started())
        .turn("t1")
        .then(1.0, turn())
        .then(2.0, call("edit", ToolClass::Edit));
    world.story("tail", "waiting in line", Some("shop")).then(3.0, Fact::SessionQueued(info()));
    orchestration(&mut world);
    world
}

/// A run of an orchestrator that met everything.
fn orchestration(world: &mut World) {
    let spec = |name_of: &str, status| SpecUpdate::of(name(name_of)).with(status);
    let mut retried = spec("104-flaky", SpecStatus::Running);
    (retried.batch, retried.retries, retried.turn) = (Some(1), Some(3), true);
    let mut failed = spec("105-bad-tests", SpecStatus::Failed);
    (failed.batch, failed.error) = (Some(1), Some(ErrorClass::Exit));
    let skipped = spec("106-notes", SpecStatus::Skipped);
    let run = |state, specs| {
        let (batch, batches) = (Some(1), Some(2));
        Fact::Orchestration(Box::new(OrchestrationUpdate {
            state: Some(state),
            batch,
            batches,
            specs,
            ..OrchestrationUpdate::default()
        }))
    };
    let limit = LimitUpdate {
        spec: Some(name("104-flaky")),
        retry: Some(2),
        delay_ms: Some(1_384),
        hold_ms: Some(900),
        class: Some(LimitClass::Http429),
        ..LimitUpdate::default()
    };
    let launch = LaunchUpdate {
        budget: Some(6),
        window_ms: Some(60_000),
        used: Some(6),
        hold_ms: Some(2_992),
        held: true,
        ..LaunchUpdate::default()
    };
    let parallel = |effective| {
        Fact::Parallel(ParallelUpdate {
            adaptive: Some(true),
            max: Some(4),
            effective: Some(effective),
            floor: Some(1),
            reason: Some(ThrottleReason::RateLimit),
            ..ParallelUpdate::default()
        })
    };
    world
        .story("spec", "shop", Some("shop"))
        .then(1.0, run(OrchestrationState::Running, vec![retried, spec("101-parser", SpecStatus::Completed)]))
        .then(2.0, parallel(4))
        .then(3.0, Fact::SpecLimited(Box::new(limit)))
        .then(3.0, parallel(2))
        .then(4.0, Fact::LaunchBudget(launch))
        .then(5.0, parallel(3))
        .then(6.0, Fact::StopRequested { requester: Requester::Cli })
        .then(7.0, run(OrchestrationState::Failed, vec![failed, skipped]));
}

/// What the exporter says about itself, as far as a test can fix it: the process's own numbers vary.
fn without_process(body: Vec<u8>) -> String {
    let text = String::from_utf8(body).expect("expositions are UTF-8");
    let fixed = |line: &&str| {
        !line.trim_start_matches("# HELP ").trim_start_matches("# TYPE ").starts_with("process_")
    };
    let lines: Vec<&str> = text.lines().filter(fixed).collect();
    lines.join("\n").replace(env!("CARGO_PKG_VERSION"), "VERSION") + "\n"
}

fn golden(case: &str, snapshot: &Snapshot, now: Timestamp, renderer: &Renderer) {
    for (format, extension) in [(Format::Text, "prom"), (Format::OpenMetrics, "om")] {
        read(renderer, snapshot, now, format);
        let body = without_process(renderer.render(snapshot, now, format));
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/metrics/{case}.{extension}"));
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &body).expect("goldens can be written");
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(body == expected, "{} differs; BLESS=1 renews it\n{body}", path.display());
    }
}

#[test]
fn catalogue_golden() {
    let mut world = catalogue();
    // Counted elsewhere: the tick that finds a session stalled.
    let stalled = agent_session_exporter::session::Effects {
        notes: Default::default(),
        counts: vec![(agent_session_exporter::session::Count::Stall(Reason::Silent), 1)],
        observations: Vec::new(),
        project: Some(name("shop")),
        root: true,
    };
    world.aggregates.add(&SourceId::from("codex"), &stalled);
    let (renderer, telemetry) = renderer(Options { mode: SeriesMode::All, ..Options::default() });
    telemetry.source_up.with_label_values(&["codex", "default"]).set(1);
    telemetry.records.with_label_values(&["codex"]).inc_by(42);
    telemetry.store_commit_seconds.observe(0.003);
    telemetry.last_scan.set(at(1.5).as_seconds());
    let snapshot = world.snapshot();
    let families = read(&renderer, &snapshot, at(60.0), Format::Text);
    for expected in families::all() {
        assert!(family(&families, expected.name).is_some(), "{} has no sample here", expected.name);
    }
    golden("catalogue", &snapshot, at(60.0), &renderer);
}

#[test]
fn hostile_golden() {
    let mut world = World::default();
    world.sees("push", all_seen());
    for text in HOSTILE {
        let info = SessionInfo { agent: Some(name(text)), model: Some(name(text)), ..SessionInfo::default() };
        world
            .story("push", text, Some(text))
            .then(0.0, Fact::SessionStarted(info))
            .then(1.0, Fact::NativeStuck { detector: name(text), layer: name(text) })
            .then(2.0, Fact::StepStarted(Step { name: Some(name(text)), ..step("s") }))
            .then(3.0, call(text, ToolClass::Shell));
    }
    let (renderer, _) = renderer(Options::default());
    let snapshot = world.snapshot();
    for format in [Format::Text, Format::OpenMetrics] {
        let families = read(&renderer, &snapshot, at(5.0), format);
        for text in HOSTILE {
            let labels = [("session", text), ("project", text), ("step", text)];
            let started = value(&families, "agent_session_step_start_timestamp_seconds", &labels);
            assert_eq!(started, Some(at(2.0).as_seconds()), "{text}");
        }
    }
    golden("hostile", &snapshot, at(5.0), &renderer);
}

#[test]
fn long_values_are_written_whole() {
    let mut world = World::default();
    let long = "\"".repeat(10_000);
    world.story("push", &long, None).then(0.0, work());
    let families = scrape(&world.snapshot(), at(1.0), Options::default());
    assert_eq!(shown(&families), [long]);
}

#[test]
fn one_id_in_two_sources_is_two_sessions() {
    let mut world = World::default();
    world.story("codex", "same", Some("p")).then(0.0, work());
    world.story("push", "same", Some("p")).then(0.0, work());
    let families = scrape(&world.snapshot(), at(1.0), Options::default());
    for source in ["codex", "push"] {
        let running = [("source", source), ("session", "same"), ("state", "running")];
        assert_eq!(value(&families, "agent_session_state", &running), Some(1.0));
        assert_eq!(
            value(&families, "agent_sessions", &[("source", source), ("state", "running")]),
            Some(1.0)
        );
    }
}

#[test]
fn a_session_that_its_agents_own_source_sees_too_is_counted_there() {
    let mut world = World::default();
    for (source, session) in [("codex", "same"), ("gobby", "same"), ("gobby", "other")] {
        world.story(source, session, Some("p")).then(0.0, work());
    }
    let retell = [(SourceId::from("gobby"), vec![SourceId::from("claude_code"), SourceId::from("codex")])];
    let snapshot = Snapshot { retell: Arc::new(retell.into()), ..world.snapshot() };
    let families = scrape(&snapshot, at(1.0), Options::default());
    let counted = |source| value(&families, "agent_sessions", &[("source", source), ("state", "running")]);
    assert_eq!((counted("codex"), counted("gobby")), (Some(1.0), Some(1.0)));
    let row = [("source", "gobby"), ("session", "same"), ("state", "running")];
    assert_eq!(value(&families, "agent_session_state", &row), Some(1.0), "its row stays");
}

#[test]
fn a_session_that_changes_its_project_stays_one() {
    let mut world = World::default();
    world.story("codex", "s", Some("old")).then(0.0, started());
    world.story("codex", "s", Some("new")).then(5.0, work());
    let families = scrape(&world.snapshot(), at(6.0), Options::default());
    assert_eq!(shown(&families), ["s"]);
    assert_eq!(value(&families, "agent_session_info", &[("project", "new")]), Some(1.0));
    // The old project is still known by its counters.
    assert_eq!(value(&families, "agent_sessions", &[("project", "old"), ("state", "running")]), Some(0.0));
}

#[test]
fn a_maximal_session_is_bounded() {
    let mut world = World::default();
    maximal(&mut world);
    let families = scrape(&world.snapshot(), at(60.0), Options::default());
    let series = series_of(&families, "root");
    let missing: Vec<_> = families::all()
        .filter(|f| matches!(f.rows, Rows::Session(Life::Always | Life::Live, _)))
        .filter(|f| !series.iter().any(|s| s == f.name))
        .map(|f| f.name)
        .collect();
    assert!(missing.is_empty(), "not maximal: {missing:?}");
    let all = Options { mode: SeriesMode::All, ..Options::default() };
    let every = series_of(&scrape(&world.snapshot(), at(60.0), all), "root");
    assert!((series.len(), every.len()) <= (60, 60), "{}, {}", series.len(), every.len());
    let extra: Vec<_> = every.iter().filter(|s| !series.contains(s)).map(String::as_str).collect();
    let names = ["repeat_ratio", "top_target_calls", "call_streak", "cycle_repeats", "low_value_events"];
    assert_eq!(extra, names.map(|n| format!("agent_session_{n}")));
    assert_eq!(series_of(&families, "child"), Vec::<String>::new());
}

#[test]
fn an_ended_session_has_fourteen_series() {
    let mut world = World::default();
    maximal(&mut world);
    world.story("codex", "root", Some("shop")).turn("t1").then(40.0, turn_ended(TurnOutcome::Failed)).then(
        41.0,
        Fact::SessionEnded { outcome: EndOutcome::Failed, error: Some(ErrorClass::Auth), workflow: false },
    );
    world
        .story("codex", "child", Some("shop"))
        .child_of("root")
        .turn("c1")
        .then(42.0, turn_ended(TurnOutcome::Completed));
    let families = scrape(&world.snapshot(), at(60.0), Options::default());
    let series = series_of(&families, "root");
    assert_eq!(series.len(), 14, "{series:?}");
    let end = [("session", "root")];
    assert_eq!(value(&families, "agent_session_end_timestamp_seconds", &end), Some(at(41.0).as_seconds()));
    assert_eq!(
        value(&families, "agent_session_state_reason", &[("session", "root"), ("reason", "auth")]),
        Some(1.0)
    );
}

#[test]
fn what_cannot_be_seen_is_absent() {
    let world = catalogue();
    let families = scrape(&world.snapshot(), at(60.0), Options::default());
    let bare: BTreeSet<String> = series_of(&families, "bare").into_iter().collect();
    let expected = [
        "current",
        "info",
        "last_activity_timestamp_seconds",
        "seconds_since_activity",
        "start_timestamp_seconds",
        "state",
        "state_reason",
        "state_since_timestamp_seconds",
        "turn_start_timestamp_seconds",
    ];
    assert_eq!(bare, expected.iter().map(|n| format!("agent_session_{n}")).collect());
    // A probable dialog is shown, but is no pending action where only certain ones count.
    let probable = [("session", "probable")];
    assert_eq!(value(&families, "agent_session_pending_user_actions", &probable), None);
    let oldest = [("session", "probable"), ("kind", "permission"), ("certainty", "probable")];
    let since = value(&families, "agent_session_oldest_pending_user_action_timestamp_seconds", &oldest);
    assert_eq!(since, Some(at(2.0).as_seconds()));
    // Nothing has begun: no clock of progress runs.
    assert_eq!(
        value(&families, "agent_session_seconds_since_progress", &[("session", "waiting in line")]),
        None
    );
}

#[test]
fn signals_take_sight_of_calls_and_of_progress() {
    let mut world = World::default();
    world.sees("codex", all_seen());
    world.sees("tail", all_seen().without(Capability::Progress));
    for source in ["codex", "tail"] {
        let mut story = world.story(source, source, None).turn("t").then(0.0, turn());
        for i in 0..4 {
            let id = format!("c{i}");
            let ended = call_ended(&id, CallOutcome::Error, None);
            story = story.then(f64::from(i), reads(&id)).then(f64::from(i), ended);
        }
    }
    let options = Options { mode: SeriesMode::All, ..Options::default() };
    let families = scrape(&world.snapshot(), at(5.0), options);
    let own = |name: &str, session: &str| {
        value(&families, &format!("agent_session_{name}"), &[("session", session)])
    };
    for (name, wanted) in [
        ("calls_since_progress", Some(4.0)),
        ("window_calls", Some(4.0)),
        ("no_new_ratio", Some(0.75)),
        ("error_streak", Some(4.0)),
        ("repeated_call_max", Some(3.0)),
        ("read_coverage_ratio", None),
        ("repeat_ratio", Some(0.75)),
        ("top_target_calls", Some(4.0)),
        ("call_streak", Some(4.0)),
        ("cycle_repeats", Some(4.0)),
        ("low_value_events", Some(4.0)),
    ] {
        assert_eq!((own(name, "codex"), own(name, "tail")), (wanted, None), "{name}");
    }
}

#[test]
fn a_certain_action_counts_even_where_the_source_promises_none() {
    let mut world = World::default();
    world.sees("codex", Capabilities::default());
    world
        .story("codex", "s", None)
        .then(0.0, work())
        .then(1.0, asks("q", ActionKind::Question, Certainty::Certain));
    let families = scrape(&world.snapshot(), at(5.0), Options::default());
    assert_eq!(value(&families, "agent_session_pending_user_actions", &[("session", "s")]), Some(1.0));
}

#[test]
fn times_ahead_of_now_are_clamped() {
    let mut world = World::default();
    world.sees("codex", all_seen());
    world
        .story("codex", "s", None)
        .then(0.0, started())
        .turn("t")
        .then(100.0, turn())
        .then(100.0, call("e", ToolClass::Edit))
        .then(101.0, call_ended("e", CallOutcome::Ok, Some(1)));
    let families = scrape(&world.snapshot(), at(10.0), Options::default());
    let s = [("session", "s")];
    for gauge in ["last_activity", "last_progress", "turn_start"] {
        let name = format!("agent_session_{gauge}_timestamp_seconds");
        assert_eq!(value(&families, &name, &s), Some(at(10.0).as_seconds()), "{name}");
    }
    assert_eq!(value(&families, "agent_session_seconds_since_progress", &s), Some(0.0));
}

#[test]
fn a_turn_without_a_time_begins_with_its_session() {
    let mut world = World::default();
    world.sees("codex", all_seen());
    world.story("codex", "s", None).then(3.0, started()).turn("t").then_at(None, turn());
    let families = scrape(&world.snapshot(), at(10.0), Options::default());
    let start = value(&families, "agent_session_turn_start_timestamp_seconds", &[("session", "s")]);
    assert_eq!(start, Some(at(3.0).as_seconds()));
}

#[test]
fn counters_of_closed_sets_start_at_zero() {
    let mut world = World::default();
    world.story("codex", "s", Some("p")).then(0.0, started());
    let families = scrape(&world.snapshot(), at(1.0), Options::default());
    let scope = [("source", "codex"), ("project", "p")];
    for (name, label, words) in [
        ("turns_total", "outcome", TurnOutcome::ALL.iter().map(|o| o.as_str()).collect::<Vec<_>>()),
        ("ended_total", "outcome", vec!["completed", "failed", "cancelled"]),
        ("stalls_total", "reason", State::Stalled.reasons().iter().map(|r| r.as_str()).collect()),
        ("verifications_total", "outcome", vec!["passed", "failed"]),
        ("progress_events_total", "kind", ProgressKind::ALL.iter().map(|k| k.as_str()).collect()),
    ] {
        for word in words {
            let labels = [scope[0], scope[1], (label, word)];
            assert_eq!(
                value(&families, &format!("agent_session_{name}"), &labels),
                Some(0.0),
                "{name} {word}"
            );
        }
    }
    for state in State::ALL {
        let labels = [scope[0], scope[1], ("state", state.as_str())];
        let expected = if state == State::Queued { 1.0 } else { 0.0 };
        assert_eq!(value(&families, "agent_sessions", &labels), Some(expected), "{}", state.as_str());
    }
    assert!(
        family(&families, "agent_session_turn_duration_seconds").is_none(),
        "before the first observation"
    );
}

#[test]
fn histograms_add_up() {
    let mut world = World::default();
    for (i, seconds) in [0.05, 0.1, 2.0, 100_000.0].into_iter().enumerate() {
        let request = format!("t{i}");
        let start = i as f64 * 200_000.0;
        world
            .story("codex", "s", None)
            .turn(&request)
            .then(start, turn())
            .then(start + seconds, turn_ended(TurnOutcome::Completed));
    }
    let families = scrape(&world.snapshot(), at(900_000.0), Options::default());
    let turns = family(&families, "agent_session_turn_duration_seconds").unwrap();
    let values: Vec<f64> = turns.samples.iter().map(|s| s.value).collect();
    assert_eq!(values, [2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 4.0, 100_002.15, 4.0]);
}

#[test]
fn labels_are_those_of_the_table() {
    let families = scrape(&catalogue().snapshot(), at(60.0), Options::default());
    for known in families::all() {
        let Some(seen) = family(&families, known.name) else { continue };
        let mut labels: BTreeSet<&str> = known.labels.iter().copied().collect();
        if matches!(known.rows, Rows::Session(..)) {
            labels.extend(families::IDENTITY);
        }
        for sample in &seen.samples {
            let own: BTreeSet<&str> =
                sample.labels.keys().map(String::as_str).filter(|l| *l != "le").collect();
            assert_eq!(own, labels, "{}", known.name);
        }
        assert_eq!((seen.kind.as_str(), seen.help.as_str()), (known.kind.as_str(), known.help));
    }
}

#[test]
fn the_documentation_lists_every_metric_and_no_other() {
    let text = agent_session_exporter::docs::metrics(&agent_session_exporter::app::families());
    let documented: BTreeSet<String> =
        text.lines().filter_map(|l| Some(l.strip_prefix("| `")?.split_once('`')?.0.to_owned())).collect();
    let telemetry = Telemetry::new();
    let own = telemetry.catalogue().iter().map(|m| m.name.clone());
    let known: BTreeSet<String> = families::all().map(|f| f.name.to_owned()).chain(own).collect();
    assert_eq!(documented, known);
    // What the registry hands out is among them, the process's own metrics included.
    let gathered: BTreeSet<String> =
        telemetry.registry().gather().iter().map(|f| f.name().to_owned()).collect();
    assert!(gathered.is_subset(&documented), "{gathered:?}");
    assert!(gathered.contains("process_cpu_seconds_total"));
    let types = telemetry.catalogue().iter().filter(|m| m.name.ends_with("_total"));
    assert!(types.clone().count() > 10);
    for metric in types {
        assert_eq!(families::Kind::of_registry(metric.kind), families::Kind::Counter, "{}", metric.name);
    }
}

// Which sessions have series.

fn ended_at(world: &mut World, session: &str, seconds: f64, outcome: EndOutcome) {
    let end = Fact::SessionEnded { outcome, error: None, workflow: false };
    world.story("codex", session, Some("p")).then(0.0, started()).then(seconds, end);
}

#[test]
fn ended_and_unknown_sessions_leave_after_their_grace() {
    let mut world = World::default();
    world.sees("codex", all_seen());
    ended_at(&mut world, "ended", 10.0, EndOutcome::Completed);
    ended_at(&mut world, "unclear", 10.0, EndOutcome::Unknown);
    world
        .story("codex", "open", Some("p"))
        .turn("t")
        .then(0.0, turn())
        .then(0.0, Fact::Writer(Writer::Alive));
    let snapshot = world.snapshot();
    let minutes = |m: f64| at(10.0 + m * 60.0);
    let look = |now| {
        let families = scrape(&snapshot, now, Options::default());
        let completed = value(&families, "agent_sessions", &[("state", "completed")]);
        (shown(&families), completed)
    };
    let own = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    assert_eq!(look(minutes(14.99)), (own(&["ended", "open", "unclear"]), Some(1.0)));
    assert_eq!(look(minutes(15.0)), (own(&["open", "unclear"]), Some(0.0)));
    assert_eq!(look(minutes(24.0 * 60.0 - 0.01)).0, own(&["open", "unclear"]));
    assert_eq!(look(minutes(24.0 * 60.0)).0, own(&["open"]));
    let short = Options { ended_grace: Duration::from_secs(60), ..Options::default() };
    assert_eq!(shown(&scrape(&snapshot, minutes(1.0), short)), ["open", "unclear"]);
}

#[test]
fn deleted_sessions_leave_at_once_and_counters_stay() {
    let mut world = World::default();
    world.story("codex", "s", Some("p")).then(0.0, started()).then(5.0, Fact::SessionDeleted);
    let families = scrape(&world.snapshot(), at(5.0), Options::default());
    assert!(shown(&families).is_empty());
    assert_eq!(value(&families, "agent_session_started_total", &[("project", "p")]), Some(1.0));
    assert_eq!(value(&families, "agent_sessions", &[("state", "cancelled")]), Some(0.0));
}

#[test]
fn the_cap_takes_the_least_important_first() {
    let mut world = World::default();
    world.sees("codex", all_seen());
    ended_at(&mut world, "0 ended", 50.0, EndOutcome::Failed);
    ended_at(&mut world, "1 unclear", 50.0, EndOutcome::Unknown);
    world
        .story("codex", "2 idle", Some("p"))
        .turn("t")
        .then(0.0, turn())
        .then(50.0, turn_ended(TurnOutcome::Completed));
    world.story("codex", "3 quiet", Some("p")).turn("t").then(0.0, turn()).then(20.0, work());
    world.story("codex", "4 busy", Some("p")).turn("t").then(0.0, turn()).then(40.0, work());
    world
        .story("codex", "5 waits", Some("p"))
        .turn("t")
        .then(0.0, turn())
        .then(1.0, asks("q", ActionKind::Question, Certainty::Certain));
    let snapshot = world.snapshot();
    let everyone = shown(&scrape(&snapshot, at(60.0), Options::default()));
    assert_eq!(everyone.len(), 6);
    for max in 0..=6 {
        let options = Options { max_sessions: max, ..Options::default() };
        let families = scrape(&snapshot, at(60.0), options);
        assert_eq!(shown(&families), everyone[6 - max..]);
        assert_eq!(value(&families, "agent_sessions", &[("state", "running")]), Some(2.0), "sums are exact");
    }
}

#[test]
fn evictions_are_counted_once_each() {
    let mut world = World::default();
    for i in 0..5 {
        world.story("codex", &format!("s{i}"), None).then(f64::from(i), work());
    }
    let (renderer, telemetry) = renderer(Options { max_sessions: 3, ..Options::default() });
    let evicted = || telemetry.sessions_evicted.with_label_values(&["limit"]).get();
    let look = |world: &World| shown(&read(&renderer, &world.snapshot(), at(30.0), Format::Text));
    assert_eq!((look(&world), evicted()), (vec!["s2".into(), "s3".into(), "s4".into()], 2));
    assert_eq!((look(&world).len(), evicted()), (3, 2));
    // One comes back, another goes.
    world.story("codex", "s0", None).then(20.0, work());
    assert_eq!((look(&world), evicted()), (vec!["s0".into(), "s3".into(), "s4".into()], 3));
}

#[test]
fn modes() {
    let snapshot = catalogue().snapshot();
    let look = |mode| {
        let (renderer, _) = renderer(Options { mode, ..Options::default() });
        let families = read(&renderer, &snapshot, at(60.0), Format::Text);
        assert_eq!(
            value(&families, "agent_session_exporter_series_mode", &[("mode", mode.as_str())]),
            Some(1.0)
        );
        assert!(family(&families, "agent_sessions").is_some());
        shown(&families)
    };
    assert_eq!(look(SeriesMode::Full).len(), 6);
    assert_eq!(look(SeriesMode::All), look(SeriesMode::Full));
    assert_eq!(look(SeriesMode::Attention), ["limited", "root", "probable"]);
    assert!(look(SeriesMode::Off).is_empty());
    for mode in SeriesMode::ALL {
        assert_eq!(SeriesMode::parse(mode.as_str()), Some(mode));
    }
}

#[test]
fn attention_lingers() {
    let mut world = World::default();
    world.sees("codex", all_seen());
    world
        .story("codex", "asks", None)
        .turn("t")
        .then(0.0, turn())
        .then(1.0, asks("q", ActionKind::Question, Certainty::Certain));
    world
        .story("codex", "stops", None)
        .turn("t")
        .then(0.0, turn())
        .then(1.0, Fact::StopRequested { requester: Requester::Cli });
    let mut story = world.story("codex", "circles", None).turn("t").then(0.0, turn());
    for i in 0..20 {
        story = story.then(1.0 + f64::from(i), call(&format!("c{i}"), ToolClass::Read));
    }
    world.story("codex", "fine", None).turn("t").then(0.0, turn());
    let (renderer, _) = renderer(Options { mode: SeriesMode::Attention, ..Options::default() });
    let look = |world: &World, seconds| shown(&read(&renderer, &world.snapshot(), at(seconds), Format::Text));
    assert_eq!(look(&world, 30.0), ["asks", "circles", "stops"]);
    for session in ["asks", "stops", "circles", "fine"] {
        world
            .story("codex", session, None)
            .turn("t")
            .then(40.0, Fact::ActionResolved { action: Id::from("q"), resolution: Resolution::Answered })
            .then(40.0, Fact::StopAcknowledged)
            .then(
                41.0,
                Fact::Progress {
                    kind: ProgressKind::Deliverable,
                    evidence: Evidence::Declared,
                    call: None,
                    subject: None,
                },
            )
            .then(800.0, call("last", ToolClass::Shell));
    }
    assert_eq!(look(&world, 929.0), ["asks", "circles", "stops"]);
    assert_eq!(look(&world, 930.0), Vec::<String>::new());
}

// The wire.

#[test]
fn formats_are_negotiated() {
    use Format::{OpenMetrics, Text};
    let v2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
    let v3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,/;q=0.1";
    for (accept, expected) in [
        (None, Text),
        (Some(""), Text),
        (Some("*/*"), Text),
        (Some("text/html,application/xhtml+xml,*/*;q=0.8"), Text),
        (Some("application/*"), Text),
        (Some("application/openmetrics-text"), OpenMetrics),
        (Some("Application/OpenMetrics-Text; Version=\"1.0.0\"; charset=utf-8"), OpenMetrics),
        (Some("application/openmetrics-text; version=2.0.0"), Text),
        (Some("application/openmetrics-text; version=0.0.1"), Text),
        (Some("application/openmetrics-text; q=0"), Text),
        (Some("application/openmetrics-text; q=x"), Text),
        (Some("text/plain;q=0.9, application/openmetrics-text;q=0.8"), Text),
        (Some("text/plain;q=0.2, application/openmetrics-text;q=0.8"), OpenMetrics),
        (Some("text/plain, application/openmetrics-text"), Text),
        (Some("application/openmetrics-text, text/plain"), OpenMetrics),
        (Some("*/*, application/openmetrics-text"), OpenMetrics),
        (Some("*/*;q=0.9, text/plain;q=0.1, application/openmetrics-text;q=0.5"), OpenMetrics),
        (Some(v2), OpenMetrics),
        (Some(v3), OpenMetrics),
    ] {
        assert_eq!(Format::negotiate(accept), expected, "{accept:?}");
    }
    assert!(OpenMetrics.content_type().contains("version=1.0.0") && Text.content_type().contains("0.0.4"));
}

#[test]
fn gzip_when_taken() {
    use std::io::Read as _;
    for (header, expected) in [
        (None, false),
        (Some("gzip"), true),
        (Some("deflate, GZIP;q=0.5"), true),
        (Some("br, gzip; q=0"), false),
        (Some("identity"), false),
        (Some("x-gzip-like"), false),
    ] {
        assert_eq!(accepts_gzip(header), expected, "{header:?}");
    }
    let body = renderer(Options::default()).0.render(&catalogue().snapshot(), at(60.0), Format::Text);
    let packed = gzip(&body);
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut unpacked).unwrap();
    assert!(unpacked == body && packed.len() * 4 < body.len());
}

#[test]
fn an_empty_snapshot_shows_the_exporter_itself() {
    let (renderer, _) = renderer(Options::default());
    for format in [Format::Text, Format::OpenMetrics] {
        let families = read(&renderer, &Snapshot::default(), at(0.0), format);
        assert!(
            families
                .iter()
                .all(|f| f.name.starts_with("agent_session_exporter_") || f.name.starts_with("process_"))
        );
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        assert_eq!(value(&families, "agent_session_exporter_build_info", &version), Some(1.0));
    }
}

/// Any fact, from a few numbers; names come from `text`.
fn any_fact(kind: u8, n: u8, text: &str) -> Fact {
    let pick = |len: usize| usize::from(n) % len;
    let tally = Tally { pending: n.into(), in_progress: 1, done: u32::from(n) * 3, failed: 2 };
    match kind % 24 {
        0 => Fact::SessionQueued(info()),
        1 => Fact::SessionStarted(SessionInfo { agent: Some(name(text)), model: Some(name(text)), ..info() }),
        2 => Fact::SessionEnded {
            outcome: EndOutcome::ALL[pick(EndOutcome::ALL.len())],
            error: Some(ErrorClass::ALL[pick(ErrorClass::ALL.len())]),
            workflow: n.is_multiple_of(2),
        },
        3 => Fact::SessionDeleted,
        4 => Fact::TurnStarted { trigger: Trigger::ALL[pick(3)] },
        5 => turn_ended(TurnOutcome::ALL[pick(TurnOutcome::ALL.len())]),
        6 => Fact::StepStarted(Step { name: Some(name(text)), ..step(text) }),
        7 => Fact::StepCompleted { step: step(text), outcome: StepOutcome::ALL[pick(3)] },
        8 => Fact::PlanUpdated { ready: false, items: tally, told: false },
        9 => Fact::CriteriaUpdated(tally),
        10 => call(&format!("c{}", n % 8), ToolClass::ALL[pick(ToolClass::ALL.len())]),
        11 => call_ended(&format!("c{}", n % 8), CallOutcome::ALL[pick(4)], Some(n.into())),
        12 => Fact::Progress {
            kind: ProgressKind::ALL[pick(ProgressKind::ALL.len())],
            evidence: Evidence::Declared,
            call: None,
            subject: None,
        },
        13 => Fact::Verification { passed: n.is_multiple_of(2), call: None },
        14 => asks(text, ActionKind::ALL[pick(ActionKind::ALL.len())], Certainty::ALL[pick(2)]),
        15 => Fact::ActionResolved { action: Id::from(text), resolution: Resolution::ALL[pick(6)] },
        16 => Fact::Prompt { trigger: Trigger::ALL[pick(3)], queued: n.is_multiple_of(2) },
        17 => Fact::Blocked {
            reason: BlockReason::ALL[pick(BlockReason::ALL.len())],
            attempt: Some(n.into()),
            delay_ms: Some(u64::MAX / (u64::from(n) + 1)),
            until: None,
        },
        18 => Fact::StopRequested { requester: Requester::ALL[pick(6)] },
        19 => Fact::Usage(Usage {
            model: Some(name(text)),
            input: u64::from(n) << 40,
            cost_usd: Some(f64::from(n) / 7.0),
            context_used: Some([f64::NAN, f64::INFINITY, 0.1][pick(3)]),
            ..Usage::default()
        }),
        20 => Fact::NativeStuck { detector: name(text), layer: name(text) },
        21 => Fact::Background { task: Id::from(text), running: !n.is_multiple_of(3) },
        22 => Fact::Writer(Writer::ALL[pick(3)]),
        _ => work(),
    }
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        (0..HOSTILE.len()).prop_map(|i| HOSTILE[i].to_owned()),
        prop::collection::vec(any::<char>(), 0..12).prop_map(|chars| chars.into_iter().collect()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_facts_render_validly(
        texts in prop::collection::vec(any_text(), 1..6),
        facts in prop::collection::vec(
            (0u8..3, any::<prop::sample::Index>(), any::<u8>(), any::<u8>(), -100.0..100_000.0f64, any::<bool>()),
            0..120,
        ),
        capabilities in any::<u8>(),
        now in -100.0..200_000.0f64,
        max_sessions in 0usize..8,
    ) {
        let mut world = World::default();
        world.sees("s0", Capabilities(capabilities));
        for (source, text, kind, n, time, child) in &facts {
            let text = text.get(&texts);
            let mut story = world.story(&format!("s{source}"), text, Some(text));
            if *child {
                story = story.child_of(&texts[usize::from(*n) % texts.len()]);
            }
            story.then_at((*n != 0).then(|| at(*time)), any_fact(*kind, *n, text));
        }
        let snapshot = world.snapshot();
        let (renderer, _) = renderer(Options { max_sessions, ..Options::default() });
        let text = read(&renderer, &snapshot, at(now), Format::Text);
        let open = read(&renderer, &snapshot, at(now), Format::OpenMetrics);
        prop_assert!(shown(&text).len() <= max_sessions);
        prop_assert_eq!(shown(&text), shown(&open));
        let own = |families: &[Family]| {
            let sessions = families.iter().filter(|f| !f.name.starts_with("process_"));
            sessions.map(|f| (f.name.clone(), f.samples.len())).collect::<Vec<_>>()
        };
        prop_assert_eq!(own(&text), own(&open));
        for (source, session) in text.iter().flat_map(|f| &f.samples).map(|s| (s.label("source"), s.label("session"))).collect::<BTreeSet<_>>() {
            let own = |s: &&exposition::Sample| s.label("source") == source && s.label("session") == session;
            let is_session = family(&text, "agent_session_info").is_some_and(|f| f.samples.iter().any(|s| own(&s)));
            let series = text.iter().flat_map(|f| &f.samples).filter(own).filter(|s| s.labels.contains_key("session")).count();
            prop_assert!(!is_session || series <= 60);
        }
    }
}
