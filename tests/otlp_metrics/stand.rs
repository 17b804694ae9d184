//! A store that was told one event of every kind, and readers of what is made of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{Reducer, SCHEMA_JSON, Timestamp};
use agent_session_exporter::otlp::Encoder;
use agent_session_exporter::otlp::metrics::{Limits, Metric, Request, Requests, points};
use agent_session_exporter::session::Snapshot;
use agent_session_exporter::sources::push::{self, Push};
use agent_session_exporter::telemetry::Telemetry;
use agent_session_exporter::views::selection::{Memory, Options};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{self as proto, AggregationTemporality};
use serde_json::json;

use crate::common::disk::Disk;
use crate::common::owner::{Life, now, open, options};

pub(crate) const NO_VALUE: u32 = 1;

pub(crate) type Labels = BTreeMap<String, String>;

/// Everything there is of one point.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// As the metric is named on the wire.
    pub(crate) metric: String,
    /// What a histogram's series add to that.
    pub(crate) suffix: &'static str,
    pub(crate) unit: String,
    pub(crate) labels: Labels,
    pub(crate) value: f64,
    pub(crate) is_counter: bool,
    pub(crate) is_ended: bool,
    pub(crate) since: u64,
    pub(crate) time: u64,
}

/// The examples of the schema: everything that happens to sessions, in one that works and one that is over.
pub(crate) fn everything(at: i64) -> String {
    let schema: serde_json::Value = serde_json::from_str(SCHEMA_JSON).unwrap();
    let mut lines = String::new();
    let mut tell = |session: &str, n: usize, example: &serde_json::Value| {
        let mut event = example.clone();
        event["id"] = json!(format!("{session}-{n}"));
        event["time"] = json!(at - 5000 + i64::try_from(n).unwrap());
        event["source"] = json!("everything");
        event["sessionId"] = json!(session);
        event.as_object_mut().unwrap().remove("parentSessionId");
        lines.push_str(&format!("{event}\n"));
    };
    for (n, example) in schema["examples"].as_array().unwrap().iter().enumerate() {
        let is_over = matches!(example["type"].as_str(), Some("session.ended" | "session.deleted"));
        if example["sessionId"] == "shop" {
            tell("run", n, example);
        } else if !is_over {
            tell("works", n, example);
            tell("ended", n, example);
        }
    }
    let plain = |kind: &str, data: serde_json::Value| json!({"schemaVersion": "1", "type": kind, "projectId": "shop", "data": data});
    tell("works", 900, &plain("turn.started", json!({"trigger": "person"})));
    tell("works", 901, &plain("user.action_required", json!({"actionId": "open", "kind": "question"})));
    tell("ended", 900, &plain("session.ended", json!({"outcome": "completed"})));
    lines
}

/// Tells a store what these lines say.
pub(crate) fn feed(life: &Life, lines: &str) {
    let reducer = Arc::new(Reducer::new([9; 16], Runners::default()));
    let push = Push::new(
        life.store.live.clone(),
        reducer,
        life.telemetry.clone(),
        Clock::system(),
        push::Options::default(),
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(push::read_stdin(push, tokio::io::BufReader::new(lines.as_bytes())));
}

/// A store with everything in it.
pub(crate) fn fed() -> (Life, Arc<Snapshot>) {
    let life = Life::with(open(&Disk::default()), options());
    feed(&life, &everything(now().as_millis()));
    let snapshot = life.until("everything", |s| s.roots().count() >= 2 && s.slots().count() >= 3);
    (life, snapshot)
}

/// The same at rest, for comparisons: a store that goes on counts what it writes.
pub(crate) fn rested() -> (Arc<Telemetry>, Arc<Snapshot>) {
    let (life, _) = fed();
    let telemetry = life.telemetry.clone();
    (telemetry, life.end())
}

/// The points of a moment.
pub(crate) fn taken(
    snapshot: &Snapshot,
    options: &Options,
    telemetry: &Telemetry,
    now: Timestamp,
) -> Vec<Metric> {
    let selected = options.select(snapshot, now, &mut Memory::default());
    points(snapshot, &selected, options.mode, telemetry, now)
}

pub(crate) fn requests(limits: Limits) -> Requests {
    Requests::new(Encoder::new(&[("service.name".to_owned(), "x".to_owned())]), limits)
}

pub(crate) fn metrics(requests: &[Request]) -> Vec<&proto::Metric> {
    let resources = requests.iter().flat_map(|r| &r.message.resource_metrics);
    resources.flat_map(|r| &r.scope_metrics).flat_map(|s| &s.metrics).collect()
}

pub(crate) fn labels(attributes: &[KeyValue]) -> Labels {
    let text = |kv: &KeyValue| match kv.value.as_ref().and_then(|v| v.value.as_ref()) {
        Some(Any::StringValue(text)) => (kv.key.clone(), text.clone()),
        other => panic!("{other:?} is no label"),
    };
    let all: Labels = attributes.iter().map(text).collect();
    assert_eq!(all.len(), attributes.len(), "a label twice");
    all
}

/// Every series that a reader makes of these metrics.
pub(crate) fn shown<'a>(metrics: impl IntoIterator<Item = &'a proto::Metric>) -> Vec<Shown> {
    let mut all = Vec::new();
    for metric in metrics {
        let new = |attributes: &[KeyValue], flags: u32, since: u64, time: u64| Shown {
            metric: metric.name.clone(),
            suffix: "",
            unit: metric.unit.clone(),
            labels: labels(attributes),
            value: f64::NAN,
            is_counter: false,
            is_ended: flags & NO_VALUE != 0,
            since,
            time,
        };
        let number = |p: &proto::NumberDataPoint, is_counter| {
            let shown = new(&p.attributes, p.flags, p.start_time_unix_nano, p.time_unix_nano);
            let value = match p.value {
                Some(Value::AsDouble(x)) => x,
                Some(Value::AsInt(n)) => panic!("{n} of {} is another kind of number", metric.name),
                None => f64::NAN,
            };
            assert_eq!(shown.is_ended, p.value.is_none());
            Shown { is_counter, value, ..shown }
        };
        let cumulative = i32::from(AggregationTemporality::Cumulative);
        match metric.data.as_ref().unwrap() {
            Data::Gauge(gauge) => all.extend(gauge.data_points.iter().map(|p| number(p, false))),
            Data::Sum(sum) => {
                assert!(sum.is_monotonic && sum.aggregation_temporality == cumulative);
                all.extend(sum.data_points.iter().map(|p| number(p, true)));
            }
            Data::Histogram(histogram) => {
                assert_eq!(histogram.aggregation_temporality, cumulative);
                for p in &histogram.data_points {
                    assert_eq!(p.bucket_counts.len(), p.explicit_bounds.len() + 1);
                    assert_eq!(p.bucket_counts.iter().sum::<u64>(), p.count);
                    let shown = new(&p.attributes, p.flags, p.start_time_unix_nano, p.time_unix_nano);
                    let bounds = p.explicit_bounds.iter().map(|b| format!("{b:?}"));
                    let mut below = 0;
                    for (le, n) in bounds.chain(["+Inf".to_owned()]).zip(&p.bucket_counts) {
                        below += n;
                        let mut bucket = Shown { suffix: "_bucket", value: below as f64, ..shown.clone() };
                        bucket.labels.insert("le".to_owned(), le);
                        all.push(bucket);
                    }
                    let sum = p.sum.unwrap_or(f64::NAN);
                    all.push(Shown { suffix: "_sum", value: sum, ..shown.clone() });
                    all.push(Shown { suffix: "_count", value: p.count as f64, ..shown });
                }
            }
            other => panic!("{other:?} is none of ours"),
        }
    }
    all
}
