//! What the exporter says about itself, and what the configuration adds to what sources say.

use std::fs;

use crate::common::{Exporter, wait_until};

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
