//! What the exporter says about itself, and what the configuration adds to what sources say.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use agent_session_exporter::event::Capability;
use agent_session_exporter::sources::LIST;
use serde_json::{Value, json};

use crate::common::{Ending, Exporter, command, fixture, free_port, now_ms, request, sample, wait_until};

fn line(exporter: &Exporter, start: &str) -> Option<String> {
    exporter.metrics().lines().find(|l| l.starts_with(start)).map(str::to_owned)
}

#[test]
fn two_exporters_on_one_home_can_be_told() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    fs::create_dir_all(home.join(".codex/sessions")).unwrap();
    let start = |state: &str| Exporter::start(&home, &folder.path().join(state), &[]).ready();
    let (one, other) = (start("one"), start("other"));
    let info = r#"agent_session_exporter_source_info{endpoint="default",source="codex",store=""#;
    wait_until("both say what they read", || line(&one, info).is_some() && line(&other, info).is_some());
    assert_eq!(line(&one, info), line(&other, info), "the same store, whatever the state folder");
}

#[test]
fn folded_labels_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(&folder.path().join("home"), &folder.path().join("state"), &[]).ready();
    let event = |n: usize| {
        format!(
            r#"{{"source":"mine","sessionId":"s{n}","projectId":"p{n}","type":"turn.started","data":{{}}}}"#
        )
    };
    let lines: Vec<String> = (0..60).map(event).collect();
    assert_eq!(exporter.push(&lines.join("\n")).unwrap().status, 202);
    let folded = r#"agent_session_exporter_label_overflow_total{label="project"}"#;
    wait_until("ten projects too many are counted", || exporter.sample(folded).is_some_and(|n| n >= 10.0));
}

#[test]
fn agents_that_only_explore_are_read_only() {
    let folder = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(&folder.path().join("home"), &folder.path().join("state"), &[]).ready();
    for agent in ["explore", "builder"] {
        let event = format!(
            r#"{{"source":"mine","sessionId":"{agent}","projectId":"p","type":"session.started","data":{{"agent":"{agent}"}}}}"#
        );
        assert_eq!(exporter.push(&event).unwrap().status, 202);
    }
    let series = |s: &str| format!(r#"agent_session_read_only{{source="mine",project="p",session="{s}"}}"#);
    wait_until("the exploring one shows", || exporter.sample(&series("explore")) == Some(1.0));
    assert_eq!(exporter.sample(&series("builder")), None, "nobody said so");
}

/// The words of `check` and the gauges are one table, which is that of the sources.
#[test]
fn what_each_source_can_see_is_told_by_a_metric_and_by_check() {
    let folder = tempfile::tempdir().unwrap();
    let (home, state) = (folder.path().join("home"), folder.path().join("state"));
    let exporter = Exporter::start(&home, &state, &[]).ready();
    let metrics = exporter.metrics();
    let told = command(&home, &state).arg("check").stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    for def in LIST {
        let line = told.lines().find(|l| l.starts_with(&format!("{}: sees", def.name))).unwrap();
        let (seen, blind) = line.split_once("; cannot see ").unwrap_or((line, ""));
        for capability in Capability::ALL {
            let word = capability.as_str();
            let sees = def.capabilities.has(*capability) || def.of_some.has(*capability);
            let series = format!(
                r#"agent_session_exporter_source_capability{{capability="{word}",source="{}"}}"#,
                def.name
            );
            assert_eq!(sample(&metrics, &series), Some(f64::from(sees)), "{series}");
            let words = if sees { seen } else { blind };
            assert!(words.split([' ', ',', ';']).any(|w| w == word), "{word}: {line}");
        }
    }
    let can = |source: &str, word: &str| {
        sample(
            &metrics,
            &format!(r#"agent_session_exporter_source_capability{{capability="{word}",source="{source}"}}"#),
        )
    };
    for source in ["openfox", "opencode"] {
        assert_eq!((can(source, "pending_actions"), can(source, "progress")), (Some(1.0), Some(1.0)));
    }
}

#[test]
fn what_is_pushed_has_a_lag() {
    let folder = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(&folder.path().join("home"), &folder.path().join("state"), &[]).ready();
    let event = r#"{"source":"mine","sessionId":"s","projectId":"p","type":"turn.started","data":{}}"#;
    assert_eq!(exporter.push(event).unwrap().status, 202);
    let lag = || exporter.sample("agent_session_exporter_ingest_lag_seconds");
    wait_until("the lag of what was committed last", || lag().is_some_and(|lag| lag > 0.0 && lag < 5.0));
}

/// The recorded events of an orchestration's engine and of its agents as the README pushes them, as if they came now.
fn engine_lines(source: &str) -> String {
    let mut out = Vec::new();
    let mut first = None;
    for (file, kind) in [("events", "orchestrator.event"), ("codex", "orchestrator.codex")] {
        let text = String::from_utf8(fixture(&format!("spec/3.0.0-mixed.{file}.ndjson"))).unwrap();
        for line in text.lines() {
            let mut record: Value = serde_json::from_str(line).unwrap();
            let at: jiff::Timestamp = record["at"].as_str().unwrap().parse().unwrap();
            let shift = *first.get_or_insert_with(|| now_ms() - at.as_millisecond());
            let moved = jiff::Timestamp::from_millisecond(at.as_millisecond() + shift - 30_000).unwrap();
            record["at"] = json!(moved.to_string());
            let item = json!({"source": source, "sessionId": "shop", "projectId": "shop", "type": kind, "data": record});
            out.push((moved, item.to_string()));
        }
    }
    out.sort_by_key(|(moved, _)| *moved);
    let lines: Vec<String> = out.into_iter().map(|(_, line)| line).collect();
    lines.join("\n") + "\n"
}

/// What a report and the metrics say of the pushed run.
fn is_told(address: &str, source: &str) -> bool {
    let get = |path: &str| request(address, "GET", path, &[], b"");
    let Some(report) = get("/api/v1/orchestrations/shop/status").filter(|answer| answer.status == 200) else {
        return false;
    };
    let report = report.json();
    let specs = &report["specsByStatus"];
    let metrics = get("/metrics").unwrap().text();
    let labels = format!(r#"source="{source}",project="shop""#);
    let retries =
        format!(r#"agent_orchestration_spec_retries{{{labels},orchestration="shop",spec="105-bad-tests"}}"#);
    let failed = format!(r#"agent_orchestration_specs_ended_total{{{labels},status="failed"}}"#);
    (&report["state"], &specs["completed"], &specs["skipped"]) == (&json!("failed"), &json!(6), &json!(1))
        && report["rateLimit"]["signals"] == 3
        && sample(&metrics, &retries) == Some(1.0)
        && sample(&metrics, &failed) == Some(1.0)
}

#[test]
fn events_of_an_orchestrator_come_by_push_and_by_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let lines = engine_lines("my_runner");
    let exporter = Exporter::start(&folder.path().join("home"), &folder.path().join("one"), &[]).ready();
    let answer = exporter.push(&format!("not json\n{lines}")).unwrap();
    assert_eq!(answer.status, 202, "{}", answer.text());
    assert_eq!(answer.json()["rejected"].as_array().unwrap().len(), 1, "only what is no JSON");
    wait_until("the run as it was pushed", || is_told(&exporter.address, "my_runner"));

    let address = format!("127.0.0.1:{}", free_port());
    let mut child = Ending(
        command(&folder.path().join("home"), &folder.path().join("two"))
            .args(["--stdin", "--web.listen-address", &address])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let mut input = child.0.stdin.take().unwrap();
    input.write_all(b"not json\n").unwrap();
    input.write_all(lines.as_bytes()).unwrap();
    drop(input);
    wait_until("the run as it was read", || is_told(&address, "my_runner"));
    drop(child);
}
