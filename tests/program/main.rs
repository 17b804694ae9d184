//! The running program as a user meets it: what it promises about itself from outside, over HTTP, files and signals.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails says where")]

#[path = "../common/running.rs"]
mod common;
#[path = "../common/exposition.rs"]
mod exposition;
#[path = "../common/transcripts/mod.rs"]
mod transcripts;

mod cold;
mod commands;
mod follow;
mod guard;
mod hostile;
mod life;
mod many;
mod own;
mod reads;
mod tls;

use exposition::{Dialect, Family};

/// What Prometheus asks for when it wants OpenMetrics.
const OPENMETRICS: (&str, &str) = ("accept", "application/openmetrics-text; version=1.0.0");

/// Both formats of one scrape, read strictly.
fn families(exporter: &common::Exporter) -> [Vec<Family>; 2] {
    let text = exporter.get("/metrics");
    let open = exporter.get_as("/metrics", &[OPENMETRICS]);
    assert!(open.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    let read = |body: &[u8], dialect| exposition::parse(body, dialect).unwrap_or_else(|e| panic!("{e}"));
    [read(&text.body, Dialect::Text), read(&open.body, Dialect::OpenMetrics)]
}

/// Pushes lines that are all accepted or known, and waits until readers see them: a snapshot follows its commit by some
/// milliseconds.
fn push(exporter: &common::Exporter, lines: &str) {
    let answer = exporter.push(lines).unwrap();
    assert_eq!(answer.status, 202, "{}", answer.text());
    assert_eq!(answer.json()["rejected"], serde_json::json!([]));
    let told: serde_json::Value = serde_json::from_str(lines.trim_end().lines().last().unwrap()).unwrap();
    let path = format!(
        "/api/v1/sessions/{}/{}/status",
        told["source"].as_str().unwrap(),
        told["sessionId"].as_str().unwrap()
    );
    let first = std::time::Instant::now();
    common::wait_until("the push shows", || exporter.get(&path).status == 200);
    // Where the session was known before, this is longer than a snapshot takes.
    std::thread::sleep(std::time::Duration::from_millis(100).saturating_sub(first.elapsed()));
}

/// One event as a line.
fn event(id: &str, session: &str, kind: &str, data: &str) -> String {
    let now = common::now_ms();
    format!(
        r#"{{"id":"{id}","time":{now},"source":"mine","sessionId":"{session}","projectId":"shop","type":"{kind}","data":{data}}}"#
    )
}

/// The lines of a recording of Codex under another id, as if all were written now.
fn as_if_now(name: &str, id: &str) -> Vec<String> {
    let text = String::from_utf8(common::fixture(&format!("codex/{name}.rollout.jsonl"))).unwrap();
    let now = jiff::Timestamp::from_millisecond(common::now_ms()).unwrap().to_string();
    let mut recorded = None;
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut record: serde_json::Value = serde_json::from_str(line).unwrap();
        record["timestamp"] = now.clone().into();
        let payload = record["payload"].as_object_mut().unwrap();
        for moment in ["started_at", "completed_at", "started_at_ms", "completed_at_ms"] {
            payload.remove(moment);
        }
        if recorded.is_none() {
            payload["timestamp"] = now.clone().into();
            recorded = payload["id"].as_str().map(str::to_owned);
        }
        lines.push(record.to_string().replace(recorded.as_deref().unwrap(), id) + "\n");
    }
    lines
}
