//! What `replay` writes: the same as scrapes of the running program, with ends of series, in order, whatever the order of
//! the files; and what it says of files it cannot use.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{Event, Reducer, SourceId, Timestamp};
use agent_session_exporter::session::Thresholds;
use agent_session_exporter::sources::recorded::{Played, Setting, play};
use agent_session_exporter::sources::{LIST, push};
use agent_session_exporter::store;
use agent_session_exporter::store::offline::Offline;
use agent_session_exporter::telemetry::Telemetry;
use agent_session_exporter::views::history::History;
use agent_session_exporter::views::prometheus::{Format, Renderer};
use agent_session_exporter::views::selection::{Options, SeriesMode};

const STEP_MS: i64 = 15_000;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn played(source: &str, files: &[PathBuf]) -> Played {
    let setting = Setting {
        reducer: Arc::new(Reducer::new([0; 16], Runners::default())),
        telemetry: Arc::new(Telemetry::new()),
        allow_builtin: false,
    };
    let def = LIST.iter().find(|def| def.name == source).unwrap();
    let mut played = Played::default();
    play(def, files, &setting, &mut played).unwrap();
    played
}

fn options() -> store::Options {
    store::Options {
        max_tracked: 1_000,
        retention: std::time::Duration::from_secs(7 * 86_400),
        thresholds: Thresholds::default(),
        capabilities: LIST.iter().map(|d| (SourceId::from(d.name), d.capabilities)).collect(),
        pushed: push::DEF.capabilities,
        retell: Default::default(),
        see_stops: Default::default(),
        expected_scans: Vec::new(),
        file_sources: Vec::new(),
        read_only_agents: Vec::new(),
        spool: None,
        folder: None,
        traced: false,
    }
}

/// Scrapes of events, each told to `each` with what the running program would have shown at that moment.
fn scraped(
    mut events: Vec<(Timestamp, Event)>,
    mode: SeriesMode,
    mut each: impl FnMut(Timestamp, Vec<u8>),
) -> History {
    events.sort_by_key(|(at, _)| *at);
    let (start, end) = (events[0].0, events.last().unwrap().0.plus(20 * 60_000));
    let hand: &'static AtomicI64 = Box::leak(Box::new(AtomicI64::new(start.as_millis())));
    let (telemetry, live) = (Arc::new(Telemetry::new()), Arc::new(Telemetry::new()));
    let reducer = Arc::new(Reducer::new([0; 16], Runners::default()));
    let mut store = Offline::begin(options(), Clock::held(hand), reducer, telemetry.clone(), start).unwrap();
    let series = Options { mode, ..Options::default() };
    let mut history = History::new(series, telemetry, &[], start, STEP_MS);
    let renderer = Renderer::new(series, live);
    let mut events = events.into_iter().peekable();
    while history.next() <= end {
        let now = history.next();
        hand.store(now.as_millis(), Ordering::SeqCst);
        let mut quiet = true;
        let due = std::iter::from_fn(|| events.next_if(|(at, _)| *at <= now));
        store.take(due.inspect(|_| quiet = false).map(|(_, event)| event));
        store.pass();
        let snapshot = store.snapshot();
        each(now, renderer.render(&snapshot, now, Format::OpenMetrics));
        history.scrape(&snapshot, quiet);
    }
    history
}

fn text(history: &History) -> String {
    let mut out = Vec::new();
    history.write_openmetrics(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Families of sums that fall to nothing where there is nothing more to add.
const SUMS: [&str; 2] = ["agent_sessions{", "agent_model_sessions{"];

fn seconds(time: Timestamp) -> String {
    let text = format!("{:.3}", time.as_seconds());
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Samples about sessions and sums, without those about the exporter.
fn is_ours(line: &str) -> bool {
    let own = ["agent_session_exporter_", "process_"];
    !line.starts_with('#') && !own.iter().any(|prefix| line.starts_with(prefix))
}

fn rollouts() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(fixture("codex")).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.retain(|path| path.to_str().unwrap().contains(".rollout"));
    all.sort();
    assert!(all.len() > 60);
    all
}

#[test]
fn each_scrape_is_the_one_of_the_running_program() {
    for mode in [SeriesMode::Full, SeriesMode::All, SeriesMode::Attention, SeriesMode::Off] {
        let played = played("codex", &rollouts()[..20]);
        let mut live: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let history = scraped(played.events, mode, |now, body| {
            let body = String::from_utf8(body).unwrap();
            live.insert(seconds(now), body.lines().filter(|l| is_ours(l)).map(str::to_owned).collect());
        });
        let mut told: BTreeMap<String, BTreeSet<String>> =
            live.keys().map(|t| (t.clone(), BTreeSet::new())).collect();
        for line in text(&history).lines().filter(|l| is_ours(l)) {
            let (sample, time) = line.rsplit_once(' ').unwrap();
            let sum = SUMS.iter().any(|s| sample.starts_with(s)) && sample.ends_with("} 0");
            let ended = sample.ends_with(" NaN") || sum && !live[time].contains(sample);
            if !ended {
                assert!(told.get_mut(time).unwrap().insert(sample.to_owned()), "twice: {line}");
            }
        }
        assert!(live.values().map(BTreeSet::len).max() > Some(20));
        for (time, live) in &live {
            let told = &told[time];
            let missing: Vec<_> = live.difference(told).take(3).collect();
            let extra: Vec<_> = told.difference(live).take(3).collect();
            assert!(missing.is_empty() && extra.is_empty(), "{mode:?} at {time}: -{missing:?} +{extra:?}");
        }
    }
}

#[test]
fn families_series_and_times_are_in_order_and_ends_are_told_once() {
    let played = played(
        "codex",
        &[fixture("codex/edit_ok.rollout.jsonl"), fixture("codex/hang_sigint.rollout.jsonl")],
    );
    let text = text(&scraped(played.events, SeriesMode::Full, |_, _| {}));
    let mut names = BTreeSet::new();
    let mut family = "";
    let mut last: BTreeMap<&str, f64> = BTreeMap::new();
    let mut ended = BTreeSet::new();
    for line in text.lines().take_while(|l| *l != "# EOF") {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            family = rest.split_once(' ').unwrap().0;
            assert!(names.insert(family), "{family} twice");
        }
        if line.starts_with('#') {
            continue;
        }
        let (rest, time) = line.rsplit_once(' ').unwrap();
        let (series, value) = rest.rsplit_once(' ').unwrap();
        assert!(series.starts_with(family), "{line} in {family}");
        let time: f64 = time.parse().unwrap();
        assert!(last.insert(series, time).is_none_or(|before| before < time), "{line}");
        if value == "NaN" {
            assert!(ended.insert(series), "{series} ends twice");
        } else {
            assert!(!ended.contains(series), "{series} goes on behind its end");
        }
    }
    assert!(text.ends_with("# EOF\n"));
    // Both sessions' series end within the time looked at, and sums never do.
    let states = ended.iter().filter(|s| s.starts_with("agent_session_state{")).count();
    assert_eq!(states, 20);
    assert!(ended.iter().all(|s| s.contains("session=\"")), "{ended:?}");
    // Of a model nobody works with any more there are none.
    let models: Vec<&str> = text.lines().filter(|l| l.starts_with("agent_model_sessions{")).collect();
    assert!(models.iter().any(|l| l.contains("} 0 ")) && models.iter().all(|l| !l.contains("NaN")));
}

/// Output tokens that were counted.
fn tokens(text: &str) -> f64 {
    let sum = |l: &&str| l.starts_with("agent_session_tokens_total{") && l.contains("kind=\"output\"");
    text.lines().rfind(sum).unwrap().split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn what_was_copied_counts_once_whatever_the_order_of_files() {
    let folder = tempfile::tempdir().unwrap();
    let original = fixture("claude_code/test-commit.transcript.jsonl");
    let told = std::fs::read_to_string(&original).unwrap();
    let head: serde_json::Value = serde_json::from_str(told.lines().next().unwrap()).unwrap();
    let (session, later) = (head["sessionId"].as_str().unwrap(), "ffffffff-0000-4000-8000-000000000000");
    // As agents once resumed: the old conversation under a new name, then what is new.
    let copy = folder.path().join(format!("{later}.jsonl"));
    std::fs::write(&copy, told.replace(session, later)).unwrap();
    let of = |files: &[&PathBuf]| {
        let files: Vec<PathBuf> = files.iter().map(|f| (*f).clone()).collect();
        text(&scraped(played("claude_code", &files).events, SeriesMode::All, |_, _| {}))
    };
    let both = of(&[&original, &copy]);
    assert!(both == of(&[&copy, &original]));
    assert_eq!(tokens(&both), tokens(&of(&[&original])));
    assert_eq!(tokens(&both), tokens(&of(&[&copy])));
}

#[test]
fn unit_tests_tell_the_same_values_from_zero_on() {
    let played = played("codex", &[fixture("codex/edit_ok.rollout.jsonl")]);
    let history = scraped(played.events, SeriesMode::Full, |_, _| {});
    let mut out = Vec::new();
    history.write_unit_test(&["it's.yml".to_owned()], &mut out).unwrap();
    let unit = String::from_utf8(out).unwrap();
    assert!(unit.contains("rule_files:\n  - 'it''s.yml'\nevaluation_interval: 15000ms\n"), "{unit}");
    let scrapes = unit.lines().filter(|l| l.contains("values:")).map(|l| expand(l).len()).max().unwrap();
    let values: BTreeMap<String, Vec<Option<f64>>> = unit
        .split("      - series: '")
        .skip(1)
        .map(|part| {
            let (series, values) = part.split_once("'\n").unwrap();
            (series.to_owned(), expand(values))
        })
        .collect();
    let text = text(&history);
    let start: f64 = text
        .lines()
        .filter(|l| l.starts_with("agent_sessions{"))
        .map(|l| l.rsplit_once(' ').unwrap().1.parse().unwrap())
        .fold(f64::INFINITY, f64::min);
    let mut seen = 0;
    for line in text.lines().filter(|l| !l.starts_with('#') && !l.contains(" NaN ")) {
        let mut parts = line.rsplitn(3, ' ');
        let (time, value, series) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
        let at = ((time.parse::<f64>().unwrap() - start) / 15.0).round() as usize;
        let shift =
            if series.split('{').next().unwrap().ends_with("_timestamp_seconds") { start } else { 0.0 };
        let wanted = value.parse::<f64>().unwrap() - shift;
        let Some(told) = values[series][at] else {
            assert!(wanted == 0.0 && SUMS.iter().any(|sum| series.starts_with(sum)), "{line}");
            continue;
        };
        assert!((told - wanted).abs() < 1e-3, "{series} at {at}: {told} for {wanted}");
        seen += 1;
    }
    let told: usize = values.values().flatten().filter(|v| v.is_some()).count();
    assert_eq!(told, seen, "nothing beside");
    assert!(seen > scrapes * 20);
}

/// The notation of promtool's series; `None` where there is no sample.
fn expand(values: &str) -> Vec<Option<f64>> {
    let values = values.trim().trim_start_matches("values: '").trim_end_matches('\'');
    let mut out = Vec::new();
    for word in values.split(' ') {
        if word == "stale" {
            out.push(None);
        } else if let Some(n) = word.strip_prefix("_x") {
            out.extend(std::iter::repeat_n(None, n.parse().unwrap()));
        } else {
            let (line, n) =
                word.split_once('x').map_or((word, 0), |(line, n)| (line, n.parse::<u32>().unwrap()));
            let sign = line[1..].find(['+', '-']).map(|at| at + 1).filter(|at| !line[..*at].ends_with('e'));
            let (first, more) = sign.map_or((line, "0"), |at| line.split_at(at));
            let (first, more): (f64, f64) = (first.parse().unwrap(), more.parse().unwrap());
            out.extend((0..=n).map(|i| Some(first + more * f64::from(i))));
        }
    }
    out
}

#[expect(clippy::disallowed_methods, reason = "the exporter itself is run here")]
fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_agent-session-exporter")).arg("replay").args(arguments).output().unwrap()
}

#[test]
fn lines_of_several_sessions_may_stand_one_behind_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("behind.ndjson");
    let start = 1_795_965_000_000_i64;
    let line = |session: &str, kind: &str, ms: i64| {
        let at = start + ms;
        format!(
            r#"{{"source":"mine","sessionId":"{session}","time":{at},"type":"{kind}","data":{{"outcome":"completed"}}}}"#
        )
    };
    let lines = [
        line("a", "turn.started", 0),
        line("a", "turn.ended", 3_600_000),
        line("b", "turn.started", 60_000),
        line("b", "turn.ended", 120_000),
    ];
    std::fs::write(&path, lines.join("\n")).unwrap();
    let at: Vec<i64> = played("push", &[path]).events.iter().map(|(at, _)| at.as_millis() - start).collect();
    assert_eq!(at, [0, 3_600_000, 60_000, 120_000]);
}

#[test]
fn sources_are_mixed_and_labels_added() {
    let folder = tempfile::tempdir().unwrap();
    let pushed = folder.path().join("mine.ndjson");
    let line = |kind: &str, at: i64| {
        format!(
            r#"{{"schemaVersion":"1","source":"mine","sessionId":"s","id":"{kind}","time":{at},"type":"{kind}","data":{{}}}}"#
        )
    };
    // What has no time happened with the first thing that has.
    let undated =
        r#"{"source":"mine","sessionId":"s","type":"session.started","data":{"agent":"SECRET ARGUMENT"}}"#;
    let lines = [
        undated.to_owned(),
        line("turn.started", 1_795_965_000_000),
        "{".to_owned(),
        line("turn.ended", 1_795_965_060_000),
    ];
    std::fs::write(&pushed, lines.join("\n")).unwrap();
    let rollout = fixture("codex/edit_ok.rollout.jsonl");
    let codex = format!("codex:{}", rollout.display());
    let out = run(&[
        pushed.to_str().unwrap(),
        &codex,
        "--label",
        "job=a\"b",
        "--label",
        "instance=here",
        "--step",
        "5s",
    ]);
    let (text, said) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert!(out.status.success(), "{said}");
    assert!(said.contains("reason=\"malformed_json\" n=1"), "{said}");
    let samples = || text.lines().filter(|l| !l.starts_with('#'));
    assert!(samples().all(|l| l.contains(r#"job="a\"b",instance="here""#)));
    for source in ["mine", "codex"] {
        assert!(samples().any(|l| l.starts_with("agent_session_state{") && l.contains(&format!("source=\"{source}\""))));
    }
    let start =
        samples().find(|l| l.starts_with("agent_session_start_timestamp_seconds{source=\"mine\"")).unwrap();
    assert!(start.contains("} 1795965000 1795965000"), "{start}");
}

#[test]
fn what_cannot_be_replayed_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let fails = |arguments: &[&str], code: i32, why: &str| {
        let out = run(arguments);
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(code), "{said}");
        assert!(said.contains(why), "{said}");
        assert!(out.stdout.is_empty());
    };
    let empty = file("empty.ndjson", "");
    fails(&[&empty], 1, "nothing in these files has a time");
    fails(&["/nowhere/x.jsonl"], 1, "/nowhere/x.jsonl: ");
    fails(
        &["--format", "opencod", &empty],
        1,
        "no source is called \"opencod\"; there are claude_code, codex",
    );
    fails(&["--step", "0s", &empty], 2, "--step");
    fails(&["--label", "session=x", &empty], 2, "--label");
    fails(&["--until", "tomorrow", &empty], 2, "--until");
    let undated =
        file("undated.ndjson", r#"{"source":"mine","sessionId":"s","type":"turn.started","data":{}}"#);
    fails(&[&undated], 1, "undated_file");
    let rollout = fixture("codex/edit_ok.rollout.jsonl").to_str().unwrap().to_owned();
    fails(
        &["--format", "codex", "--until", "1999-01-01T00:00:00Z", &rollout],
        1,
        "would end before it begins",
    );
    fails(
        &["--format", "codex", "--until", "+20000d", "--step", "10ms", &rollout],
        1,
        "take a longer --step",
    );
    fails(&["--format", "codex", "--output", "/nowhere/x", &rollout], 1, "output /nowhere/x");
}

#[test]
fn records_of_servers_have_times_beside_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server.ndjson");
    let text = [
        r#"{"t":1795965000000,"connected":true}"#,
        r#"{"t":"2026-11-29T15:10:01Z","record":{"payload":{"type":"server.connected","properties":{}}}}"#,
        r#"{"t":17,"record":{}}"#,
        r#"{"record":{}}"#,
        r#"{"t":1795965002000}"#,
    ];
    std::fs::write(&path, text.join("\n")).unwrap();
    let played = played("opencode", &[path]);
    assert_eq!(played.records, 5);
    let refused: Vec<_> = played.refused.iter().map(|(reason, n)| (reason.as_str(), *n)).collect();
    assert_eq!(refused, [("no_record", 1), ("no_stamp", 1), ("time", 1)]);
}
