//! The recorded scenarios of Codex CLI and Claude Code.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{Event, Reducer, Timestamp};
use agent_session_exporter::sources::LIST;
use agent_session_exporter::sources::recorded::{Played, Setting, play};
use agent_session_exporter::spans::{Outgoing, Span};
use agent_session_exporter::telemetry::Telemetry;

use super::tree::{golden, told, trees};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

pub(crate) fn events(source: &str, files: &[PathBuf]) -> Vec<(Timestamp, Event)> {
    let setting = Setting {
        reducer: Arc::new(Reducer::new([0; 16], Runners::default())),
        telemetry: Arc::new(Telemetry::new()),
        allow_builtin: true,
    };
    let def = LIST.iter().find(|def| def.name == source).unwrap();
    let mut played = Played::default();
    play(def, files, &setting, &mut played).unwrap();
    played.events
}

fn files(source: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(root().join("fixtures").join(source)).unwrap();
    let mut all: Vec<PathBuf> = all.map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

#[test]
fn codex() {
    let all = files("codex");
    let mut scenarios: Vec<&str> = all
        .iter()
        .map(|p| name(p))
        .filter(|n| n.contains(".rollout"))
        .map(|n| n.split(".rollout").next().unwrap())
        .collect();
    scenarios.dedup();
    assert!(scenarios.len() > 60);
    for scenario in scenarios {
        let own =
            |p: &&PathBuf| name(p).split(".rollout").next() == Some(scenario) && name(p).contains(".rollout");
        let files: Vec<PathBuf> = all.iter().filter(own).cloned().collect();
        golden("codex", scenario, &trees(&told(events("codex", &files))));
    }
}

#[test]
fn claude_code() {
    let folder = tempfile::tempdir().unwrap();
    let all = files("claude_code");
    let mut scenarios: Vec<&str> = all
        .iter()
        .map(|p| name(p))
        .filter(|n| n.ends_with(".transcript.jsonl"))
        .map(|n| n.split('.').next().unwrap())
        .collect();
    scenarios.dedup();
    assert!(scenarios.len() > 30);
    for scenario in scenarios {
        let own = |p: &&PathBuf| name(p).split('.').next() == Some(scenario) && name(p).ends_with(".jsonl");
        let files: Vec<PathBuf> =
            all.iter().filter(own).map(|path| placed(folder.path(), scenario, path)).collect();
        golden("claude_code", scenario, &trees(&told(events("claude_code", &files))));
    }
}

/// Spans of the transcript of a session of Claude Code without sub-agents.
pub(crate) fn transcript(scenario: &str) -> Vec<Span> {
    let folder = tempfile::tempdir().unwrap();
    let path = root().join("fixtures/claude_code").join(format!("{scenario}.transcript.jsonl"));
    let files = [placed(folder.path(), scenario, &path)];
    let span = |(_, outgoing)| match outgoing {
        Outgoing::Span(span) => Some(span),
        Outgoing::Log(_) => None,
    };
    told(events("claude_code", &files)).into_iter().filter_map(span).collect()
}

/// A file where its agent would have it: a sub-agent's lies below its session.
fn placed(home: &Path, scenario: &str, path: &Path) -> PathBuf {
    let text = std::fs::read_to_string(path).unwrap();
    let field = |key: &str| {
        text.lines().find_map(|line| {
            let value: serde_json::Value = serde_json::from_str(line).ok()?;
            Some(value.get(key)?.as_str()?.to_owned())
        })
    };
    let session = field("sessionId").unwrap();
    let project = home.join(scenario);
    let place = match name(path).contains(".subagent-") {
        true => {
            project.join(session).join("subagents").join(format!("agent-{}.jsonl", field("agentId").unwrap()))
        }
        false => project.join(format!("{session}.jsonl")),
    };
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::fs::write(&place, text).unwrap();
    place
}
