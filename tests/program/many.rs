//! Many sessions, and one with everything: series are bounded, sums are exact.

use std::collections::BTreeSet;

use crate::common::{self, Exporter, now_ms, wait_until};
use crate::{event, families, push};

const SESSIONS: usize = 10_000;
/// How long an ended session keeps its series.
const GRACE_MS: i64 = 15 * 60 * 1000;

fn lines(sessions: impl Iterator<Item = usize>, kind: &str, data: &str, time: i64) -> String {
    let line = |n| {
        format!(
            r#"{{"id":"{kind}{n}","time":{time},"source":"mine","sessionId":"s{n}","projectId":"shop","requestId":"t","type":"{kind}","data":{data}}}"#
        ) + "\n"
    };
    sessions.map(line).collect()
}

fn with_series(metrics: &str) -> usize {
    let own =
        metrics.lines().filter_map(|l| l.split_once("session=\"")).filter_map(|(_, l)| l.split_once('"'));
    own.map(|(id, _)| id).collect::<BTreeSet<_>>().len()
}

fn sum(metrics: &str, family: &str) -> f64 {
    let of =
        metrics.lines().filter(|l| l.strip_prefix(family).is_some_and(|r| r.starts_with("{source=\"mine\"")));
    of.map(|l| l.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

/// Lines of samples, but for the exporter's own.
fn series(metrics: &str) -> usize {
    metrics.lines().filter(|l| !l.starts_with('#') && !l.starts_with("agent_session_exporter_")).count()
}

#[test]
fn ten_thousand_sessions_come_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let exporter =
        Exporter::start(folder.path(), &folder.path().join("state"), &["--max-sessions", "700"]).ready();
    // One session whose grace is over brings the aggregates into being: the base level.
    let old = now_ms() - 2 * GRACE_MS;
    for (kind, data) in
        [("turn.started", r#"{"trigger":"person"}"#), ("turn.ended", r#"{"outcome":"completed"}"#)]
    {
        push(&exporter, &lines([SESSIONS].into_iter(), kind, data, old));
    }
    let base = series(&exporter.metrics());
    assert_eq!(with_series(&exporter.metrics()), 0);

    let start = now_ms() - GRACE_MS - 60_000;
    for first in (0..SESSIONS).step_by(1000) {
        let body = lines(first..first + 1000, "turn.started", r#"{"trigger":"person"}"#, start);
        push(&exporter, &body);
    }
    let metrics = exporter.metrics();
    assert_eq!(with_series(&metrics), 700);
    assert_eq!(sum(&metrics, "agent_sessions"), SESSIONS as f64);
    assert_eq!(sum(&metrics, "agent_session_started_total"), SESSIONS as f64 + 1.0);
    wait_until("all are tracked", || {
        exporter.sample("agent_session_exporter_sessions_tracked") == Some(SESSIONS as f64 + 1.0)
    });

    // They end so that their grace is over in some seconds.
    let end = now_ms() - GRACE_MS + 8_000;
    for first in (0..SESSIONS).step_by(1000) {
        exporter.push(&lines(first..first + 1000, "turn.ended", r#"{"outcome":"completed"}"#, end)).unwrap();
    }
    wait_until("all series of sessions have left", || with_series(&exporter.metrics()) == 0);
    let metrics = exporter.metrics();
    assert_eq!(series(&metrics), base, "back at the base level");
    let completed = r#"agent_session_turns_total{source="mine",project="shop",outcome="completed"}"#;
    assert_eq!(common::sample(&metrics, completed), Some(SESSIONS as f64 + 1.0));
    assert_eq!(sum(&metrics, "agent_session_started_total"), SESSIONS as f64 + 1.0);
    assert_eq!(sum(&metrics, "agent_sessions"), 0.0, "gauges show what is there");
}

#[test]
fn a_maximal_session_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(folder.path(), &folder.path().join("state"), &["--series", "all"]).ready();
    let until = now_ms() + 60_000;
    let facts = [
        ("session.started", r#"{"agent":"a","agentVersion":"1","mode":"builder","model":"m","provider":"p","url":"https://bot.example/1"}"#.to_owned()),
        ("session.updated", r#"{"phase":"build","readOnly":true}"#.to_owned()),
        ("turn.started", r#"{"trigger":"person"}"#.to_owned()),
        ("user.prompt", r#"{"trigger":"person"}"#.to_owned()),
        ("workflow.step.started", r#"{"stepId":"b","kind":"build","name":"build","index":1,"total":2,"entry":1}"#.to_owned()),
        ("plan.updated", r#"{"pending":2,"inProgress":1,"completed":1}"#.to_owned()),
        ("criteria.updated", r#"{"passed":2,"pending":1,"failed":1}"#.to_owned()),
        ("verification.passed", "{}".to_owned()),
        ("verification.failed", "{}".to_owned()),
        ("progress", r#"{"kind":"file_modified","evidence":"vcs"}"#.to_owned()),
        ("native_stuck", r#"{"detector":"repeated_call","layer":"harness"}"#.to_owned()),
        ("stop.requested", r#"{"requester":"cli"}"#.to_owned()),
        ("stop.acknowledged", "{}".to_owned()),
        ("usage", r#"{"model":"m","provider":"p","responseId":"r","input":1,"cacheRead":2,"cacheWrite":3,"output":4,"costUsd":0.5,"contextUsed":0.3}"#.to_owned()),
        ("tool.started", r#"{"callId":"c","tool":"read","args":{"path":"x"},"readRange":{"start":1,"end":9,"total":10}}"#.to_owned()),
        ("user.action_required", r#"{"actionId":"a","kind":"permission","tool":"shell"}"#.to_owned()),
        ("session.blocked", format!(r#"{{"reason":"rate_limit","attempt":2,"delayMs":30000,"until":{until}}}"#)),
    ];
    let mut body: String = facts
        .iter()
        .enumerate()
        .map(|(n, (kind, data))| event(&n.to_string(), "max", kind, data) + "\n")
        .collect();
    let child = event("child", "kid", "turn.started", r#"{"trigger":"machine"}"#);
    body.push_str(&child.replacen('{', r#"{"parentSessionId":"max","#, 1));
    push(&exporter, &body);

    let own = |exporter: &Exporter| {
        let [text, open] = families(exporter);
        let count = |list: &[crate::exposition::Family]| {
            let samples = list.iter().flat_map(|f| &f.samples);
            samples.filter(|s| s.label("session") == "max").count()
        };
        assert_eq!(count(&text), count(&open));
        count(&text)
    };
    let live = own(&exporter);
    assert!((48..=60).contains(&live), "{live} series of a session with everything");
    push(&exporter, &event("end", "max", "session.ended", r#"{"outcome":"failed","errorClass":"timeout"}"#));
    let ended = own(&exporter);
    assert!((13..=14).contains(&ended), "{ended} series of an ended session");
}
