//! The exporter's traces of itself: only where they are asked for, under a scope of their own, apart from those of sessions,
//! with nothing in them but numbers.

use std::collections::{BTreeMap, BTreeSet};

use agent_session_exporter::otlp::Protocol;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;

use crate::collector::{Collector, Request};
use crate::running::Exporter;
use crate::stand::{BOTH, env, until};

const OWN: &str = "agent_session_exporter.self";

/// A turn with a call; `MARK` is content.
fn events(n: u32) -> String {
    let line = |kind: &str, data: &str| {
        format!(
            r#"{{"source":"mine","sessionId":"s{n}","requestId":"r","type":"{kind}","projectId":"p","data":{data}}}"#
        )
    };
    [
        line("turn.started", "{}"),
        line("tool.started", r#"{"callId":"c","tool":"bash","args":{"command":"echo MARK"}}"#),
        line("tool.ended", r#"{"callId":"c","outcome":"error","error":"MARK"}"#),
        line("turn.ended", r#"{"outcome":"completed"}"#),
    ]
    .join("\n")
}

/// Serves with these settings, pushes, scrapes, and ends as soon as the sessions' spans have arrived.
fn served(collector: &Collector, env: &BTreeMap<String, String>, seen: impl Fn() -> bool) {
    let folder = tempfile::tempdir().unwrap();
    let (home, state) = (folder.path().join("home"), folder.path().join("state"));
    let exporter = Exporter::start_with(&home, &state, env);
    assert_eq!(exporter.push(&events(1)).unwrap().status, 202);
    exporter.metrics();
    until("spans arrive", || of(collector, |scope| scope != OWN).len() >= 2 && seen());
}

fn of(collector: &Collector, wanted: impl Fn(&str) -> bool) -> Vec<Span> {
    let fits = |r: &&Request| r.scopes.iter().all(|(name, ..)| wanted(name));
    collector.memory.requests().iter().filter(fits).flat_map(|r| r.spans.clone()).collect()
}

#[test]
fn commits_scrapes_and_batches_are_traced_apart_from_sessions() {
    for protocol in BOTH {
        let collector = Collector::start();
        let mut env = env(collector.address, protocol);
        env.insert("AGENT_SESSION_EXPORTER_OTLP_OWN_TRACES".to_owned(), "true".to_owned());
        let names = || of(&collector, |s| s == OWN).iter().map(|s| s.name.clone()).collect::<BTreeSet<_>>();
        served(&collector, &env, || names().len() >= 3);
        assert_eq!(names().iter().map(String::as_str).collect::<Vec<_>>(), ["commit", "fold", "scrape"]);
        let own = of(&collector, |scope| scope == OWN);
        let traces = |spans: &[Span]| spans.iter().map(|s| s.trace_id.clone()).collect::<BTreeSet<_>>();
        let sessions = of(&collector, |scope| scope != OWN);
        assert!(sessions.iter().all(|s| s.name.contains(' ')), "{sessions:?}");
        assert!(traces(&own).is_disjoint(&traces(&sessions)), "{protocol:?}");
        for span in &own {
            assert!(span.end_time_unix_nano >= span.start_time_unix_nano && span.events.is_empty());
            for attribute in &span.attributes {
                let value = attribute.value.as_ref().and_then(|v| v.value.as_ref());
                assert!(matches!(value, Some(Value::IntValue(_) | Value::BoolValue(_))), "{attribute:?}");
            }
        }
        let batch = own.iter().find(|s| s.name == "fold").unwrap();
        assert!(batch.attributes.iter().any(|a| a.key == "events"), "{batch:?}");
    }
}

#[test]
fn nobody_who_did_not_ask_gets_them() {
    let collector = Collector::start();
    served(&collector, &env(collector.address, Protocol::Http), || true);
    assert_eq!(of(&collector, |scope| scope == OWN), []);
}
