//! Exports that are larger than a request may be.

use std::collections::BTreeSet;

use agent_session_exporter::otlp::metrics::Limits;
use agent_session_exporter::views::selection::{Options, SeriesMode};
use prost::Message as _;

use crate::common::owner::now;
use crate::stand::{fed, metrics, requests, shown, taken};

#[test]
fn nothing_is_lost_or_said_twice_where_it_is_cut() {
    let (life, snapshot) = fed();
    let options = Options { mode: SeriesMode::All, ..Options::default() };
    let points = taken(&snapshot, &options, &life.telemetry, now());
    let key =
        |p: crate::stand::Shown| format!("{}{} {:?} {:x}", p.metric, p.suffix, p.labels, p.value.to_bits());
    let whole = requests(Limits::default()).of(points.clone(), now());
    assert_eq!(whole.len(), 1);
    let all: BTreeSet<String> = shown(metrics(&whole)).into_iter().map(key).collect();
    for limits in [
        Limits { points: 1, bytes: 1 << 20 },
        Limits { points: 7, bytes: 1 << 20 },
        Limits { points: 10_000, bytes: 4096 },
        Limits { points: 50, bytes: 6000 },
    ] {
        let cut = requests(limits).of(points.clone(), now());
        assert!(cut.len() > 3, "{limits:?}");
        let mut again = Vec::new();
        for request in &cut {
            let counted: usize = request.points.try_into().unwrap();
            assert!(counted > 0 && counted <= limits.points);
            assert!(
                request.message.encoded_len() <= limits.bytes,
                "{limits:?}: {}",
                request.message.encoded_len()
            );
            let resource = &request.message.resource_metrics[0];
            assert_eq!(resource.resource.as_ref().unwrap().attributes[0].key, "service.name");
            assert_eq!(resource.scope_metrics[0].scope.as_ref().unwrap().name, "agent_session_exporter");
            for metric in metrics(std::slice::from_ref(request)) {
                assert!(!metric.description.is_empty() && !shown([metric]).is_empty(), "{}", metric.name);
            }
            again.extend(shown(metrics(std::slice::from_ref(request))).into_iter().map(key));
        }
        let total: u64 = cut.iter().map(|r| r.points).sum();
        assert_eq!(total, whole[0].points);
        assert_eq!(again.len(), all.len());
        assert_eq!(again.into_iter().collect::<BTreeSet<_>>(), all);
    }
    life.end();
}

#[test]
fn what_is_too_large_becomes_smaller_down_to_a_bound() {
    let mut requests = requests(Limits { points: 10_000, bytes: 300 << 10 });
    assert!(requests.halve() && requests.halve());
    assert!(!requests.halve(), "who takes no 75 KiB takes nothing");
}
