//! The families as points of OTLP. No metric is named here: see [`crate::views::families`].
//!
//! Names are those of the exposition, `_total` included, and there are no units: whatever a backend makes of names by
//! its translation, it finds nothing to add.

use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use prometheus::proto::{MetricFamily, MetricType};

use crate::event::Timestamp;
use crate::session::Snapshot;
use crate::session::counts::{BUCKETS, Histogram};
use crate::session::exemplars::Newest;
use crate::telemetry::Telemetry;
use crate::views::families::{self, IDENTITY, Kind, Rows, SessionSink, SessionView, Sink, Value};
use crate::views::selection::{Selected, SeriesMode};

/// One family at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Full name, as it is queried.
    pub name: String,
    /// What is counted.
    pub help: String,
    /// How its values behave.
    pub kind: Kind,
    /// Since when it counts.
    pub since: Timestamp,
    /// Its series.
    pub points: Vec<Point>,
}

/// One series at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Its labels.
    pub labels: Vec<KeyValue>,
    /// What it is now.
    pub is: Measure,
}

/// What a series is.
#[derive(Clone, Debug, PartialEq)]
pub enum Measure {
    /// A number; always as one with a point, so that a family has one kind of them.
    Number(f64),
    /// Observations by bucket, one more than there are bounds, and their sum.
    Buckets(Vec<f64>, Vec<u64>, f64),
    /// It is no more; a histogram had these bounds.
    Ended(Vec<f64>),
}

/// Takes the samples of one family.
struct Taker<'a> {
    identity: &'a [KeyValue],
    points: &'a mut Vec<Point>,
}

/// Everything that is shown at a moment, in the order of the exposition; families without a series are left out.
pub fn points(
    snapshot: &Snapshot,
    selected: &Selected<'_>,
    mode: SeriesMode,
    telemetry: &Telemetry,
    now: Timestamp,
) -> Vec<Metric> {
    let all = mode == SeriesMode::All;
    let identities: Vec<Vec<KeyValue>> = selected.sessions.iter().map(identity).collect();
    let mut metrics = Vec::new();
    for family in families::all() {
        let mut points = Vec::new();
        let mut taker = Taker { identity: &[], points: &mut points };
        match family.rows {
            Rows::Session(life, rows) => {
                for (session, identity) in selected.sessions.iter().zip(&identities) {
                    if life.includes(session.is_over(), all) {
                        taker.identity = identity;
                        rows(session, &mut taker);
                    }
                }
            }
            Rows::Totals(rows) => rows(&selected.totals, &mut taker),
            Rows::Orchestration(rows) => {
                selected.orchestrations.iter().for_each(|view| rows(view, &mut taker));
            }
        }
        metrics.push(Metric {
            name: family.name.to_owned(),
            help: family.help.to_owned(),
            kind: family.kind,
            since: snapshot.counting_since.min(now),
            points,
        });
    }
    let since = snapshot.process_start.min(now);
    metrics.extend(telemetry.registry().gather().iter().map(|family| registered(family, since)));
    metrics.retain(|metric| !metric.points.is_empty());
    metrics
}

fn registered(family: &MetricFamily, since: Timestamp) -> Metric {
    let kind = family.get_field_type();
    let mut points = Vec::new();
    for metric in family.get_metric() {
        let labels = metric.get_label().iter().map(|l| label(l.name(), l.value())).collect();
        let is = match kind {
            MetricType::HISTOGRAM => {
                let histogram = metric.get_histogram();
                let mut below = 0;
                let mut bounds = Vec::new();
                let mut counts = Vec::new();
                for bucket in histogram.get_bucket().iter().filter(|b| b.upper_bound().is_finite()) {
                    bounds.push(bucket.upper_bound());
                    counts.push(bucket.cumulative_count().saturating_sub(below));
                    below = bucket.cumulative_count();
                }
                counts.push(histogram.get_sample_count().saturating_sub(below));
                Measure::Buckets(bounds, counts, histogram.get_sample_sum())
            }
            MetricType::COUNTER => Measure::Number(metric.get_counter().get_value()),
            _ => Measure::Number(metric.get_gauge().get_value()),
        };
        points.push(Point { labels, is });
    }
    let (name, help) = (family.name().to_owned(), family.help().to_owned());
    Metric { name, help, kind: Kind::of_registry(kind), since, points }
}

fn identity(session: &SessionView<'_>) -> Vec<KeyValue> {
    let facts = session.facts();
    let project = facts.project.as_ref().map_or("", |p| p.as_str());
    let values = [facts.source.as_str(), project, facts.session.as_str()];
    IDENTITY.into_iter().zip(values).map(|(name, value)| label(name, value)).collect()
}

fn label(name: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(Any::StringValue(value.to_owned())) });
    KeyValue { key: name.to_owned(), value, ..KeyValue::default() }
}

/// As the exposition's text would be read.
fn number(value: Value) -> f64 {
    match value {
        Value::Count(n) => n as f64,
        Value::Millis(ms) => ms as f64 / 1000.0,
        Value::Float(x) => x,
    }
}

// === impl Taker ===

impl Taker<'_> {
    fn take(&mut self, labels: &[(&str, &str)], is: Measure) {
        let own = labels.iter().map(|(name, value)| label(name, value));
        self.points.push(Point { labels: self.identity.iter().cloned().chain(own).collect(), is });
    }
}

impl SessionSink for Taker<'_> {
    fn sample(&mut self, labels: &[(&str, &str)], value: Value) {
        self.take(labels, Measure::Number(number(value)));
    }

    fn one_hot(&mut self, label: &'static str, words: &[&'static str], holds: usize) {
        for (i, word) in words.iter().enumerate() {
            self.take(&[(label, word)], Measure::Number(f64::from(u8::from(i == holds))));
        }
    }
}

impl Sink for Taker<'_> {
    fn sample(&mut self, labels: &[(&str, &str)], value: Value) {
        self.take(labels, Measure::Number(number(value)));
    }

    fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram, _: Option<&Newest>) {
        let sum = histogram.sum_ms as f64 / 1000.0;
        self.take(labels, Measure::Buckets(BUCKETS.to_vec(), histogram.buckets.to_vec(), sum));
    }
}
