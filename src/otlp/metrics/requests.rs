//! Points into requests: with a last point for every series that the collector has and that is no more, and cut where a
//! request would grow too large.

use std::collections::{BTreeMap, HashSet};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{self as proto, AggregationTemporality, DataPointFlags};
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use prost::Message as _;

use super::points::{Measure, Metric, Point};
use crate::event::Timestamp;
use crate::otlp::encode::Encoder;
use crate::spans::SCHEMA_URL;
use crate::views::families::Kind;

/// Requests are not made smaller than this; a server that does not take so little is not meant.
const SMALLEST: usize = 64 << 10;

/// What one request may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Points.
    pub points: usize,
    /// Bytes, before they are packed.
    pub bytes: usize,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    /// What is sent.
    pub message: ExportMetricsServiceRequest,
    /// Number of points.
    pub points: u64,
}

/// Makes requests; remembers which series the collector has.
#[derive(Debug)]
pub struct Requests {
    encoder: Encoder,
    limits: Limits,
    known: BTreeMap<String, Known>,
}

/// Series of one family that the collector has.
#[derive(Debug)]
struct Known {
    help: String,
    kind: Kind,
    bounds: Vec<f64>,
    /// Labels as they are sent, which are in the same order whenever they are the same.
    series: HashSet<Box<[u8]>>,
}

// === impl Limits ===

impl Default for Limits {
    /// Half of the 4 MiB that many servers take.
    fn default() -> Self {
        Self { points: 10_000, bytes: 2 << 20 }
    }
}

// === impl Requests ===

impl Requests {
    /// Before anything was sent.
    pub fn new(encoder: Encoder, limits: Limits) -> Self {
        Self { encoder, limits, known: BTreeMap::new() }
    }

    /// Makes requests of half the size from now on; false if they are small already.
    pub fn halve(&mut self) -> bool {
        let goes = self.limits.bytes / 2 >= SMALLEST;
        if goes {
            self.limits = Limits { points: (self.limits.points / 2).max(1), bytes: self.limits.bytes / 2 };
        }
        goes
    }

    /// The requests of one export.
    pub fn of(&self, metrics: Vec<Metric>, now: Timestamp) -> Vec<Request> {
        let mut requests = Vec::new();
        let empty = self.message(Vec::new()).encoded_len();
        let mut open: Vec<proto::Metric> = Vec::new();
        let (mut points, mut bytes) = (0, empty);
        for metric in self.with_ends(metrics) {
            let head = metric.head();
            // Lengths in front of a point, a family and their kind take some bytes, too.
            let head_bytes = proto_metric(&head, &[], now).encoded_len() + 24;
            let mut from = 0;
            bytes += head_bytes;
            for (at, point) in metric.points.iter().enumerate() {
                let size = point.most_bytes();
                if points >= self.limits.points || points > 0 && bytes + size > self.limits.bytes {
                    if at > from {
                        open.push(proto_metric(&head, &metric.points[from..at], now));
                    }
                    let message = self.message(std::mem::take(&mut open));
                    requests.push(Request { message, points: points as u64 });
                    (points, bytes, from) = (0, empty + head_bytes, at);
                }
                points += 1;
                bytes += size;
            }
            open.push(proto_metric(&head, &metric.points[from..], now));
        }
        if points > 0 {
            requests.push(Request { message: self.message(open), points: points as u64 });
        }
        requests
    }

    /// The collector has what is in a request.
    pub fn arrived(&mut self, request: &Request) {
        let scopes = request.message.resource_metrics.iter().flat_map(|r| &r.scope_metrics);
        for metric in scopes.flat_map(|s| &s.metrics) {
            let (kind, bounds) = match &metric.data {
                Some(Data::Sum(_)) => (Kind::Counter, Vec::new()),
                Some(Data::Histogram(h)) => {
                    let first = h.data_points.first();
                    (Kind::Histogram, first.map(|p| p.explicit_bounds.clone()).unwrap_or_default())
                }
                _ => (Kind::Gauge, Vec::new()),
            };
            let new = || Known { help: metric.description.clone(), kind, bounds, series: HashSet::new() };
            let known = self.known.entry(metric.name.clone()).or_insert_with(new);
            let mut note = |labels: &[KeyValue], flags: u32| {
                let series = packed(labels);
                if flags & NO_VALUE == 0 {
                    known.series.insert(series);
                } else {
                    known.series.remove(&series);
                }
            };
            match &metric.data {
                Some(Data::Gauge(g)) => g.data_points.iter().for_each(|p| note(&p.attributes, p.flags)),
                Some(Data::Sum(s)) => s.data_points.iter().for_each(|p| note(&p.attributes, p.flags)),
                Some(Data::Histogram(h)) => h.data_points.iter().for_each(|p| note(&p.attributes, p.flags)),
                _ => {}
            }
        }
        self.known.retain(|_, known| !known.series.is_empty());
    }

    /// Adds the ends of series that the collector has and that are not among these.
    fn with_ends(&self, mut metrics: Vec<Metric>) -> Vec<Metric> {
        for (name, known) in &self.known {
            let at = metrics.iter().position(|metric| metric.name == *name);
            let live: HashSet<Box<[u8]>> = at
                .map(|at| metrics[at].points.iter().map(|p| packed(&p.labels)).collect())
                .unwrap_or_default();
            let mut ended: Vec<&[u8]> = known.series.difference(&live).map(|s| &**s).collect();
            if ended.is_empty() {
                continue;
            }
            ended.sort_unstable();
            let ends = ended.into_iter().filter_map(unpacked);
            let ends = ends.map(|labels| Point { labels, is: Measure::Ended(known.bounds.clone()) });
            match at {
                Some(at) => metrics[at].points.extend(ends),
                None => metrics.push(Metric {
                    name: name.clone(),
                    help: known.help.clone(),
                    kind: known.kind,
                    since: Timestamp::from_millis(0),
                    points: ends.collect(),
                }),
            }
        }
        metrics
    }

    fn message(&self, metrics: Vec<proto::Metric>) -> ExportMetricsServiceRequest {
        let of_scope =
            ScopeMetrics { scope: Some(self.encoder.scope()), metrics, schema_url: SCHEMA_URL.to_owned() };
        let of_resource = ResourceMetrics {
            resource: Some(self.encoder.resource()),
            scope_metrics: vec![of_scope],
            schema_url: SCHEMA_URL.to_owned(),
        };
        ExportMetricsServiceRequest { resource_metrics: vec![of_resource] }
    }
}

const NO_VALUE: u32 = DataPointFlags::NoRecordedValueMask as u32;

/// Labels as bytes.
fn packed(labels: &[KeyValue]) -> Box<[u8]> {
    let mut bytes = Vec::with_capacity(128);
    for label in labels {
        label.encode_length_delimited(&mut bytes).expect("a vector takes every byte");
    }
    bytes.into()
}

fn unpacked(mut bytes: &[u8]) -> Option<Vec<KeyValue>> {
    let mut labels = Vec::new();
    while !bytes.is_empty() {
        labels.push(KeyValue::decode_length_delimited(&mut bytes).ok()?);
    }
    Some(labels)
}

fn nanos(time: Timestamp) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(0).saturating_mul(1_000_000)
}

/// A part of a family in the form of OTLP.
fn proto_metric(head: &Metric, points: &[Point], now: Timestamp) -> proto::Metric {
    let temporality = AggregationTemporality::Cumulative.into();
    let (since, time) = (nanos(head.since), nanos(now));
    let numbers = |since| points.iter().map(|p| p.number(since, time)).collect();
    let data = match head.kind {
        Kind::Gauge => Data::Gauge(proto::Gauge { data_points: numbers(0) }),
        Kind::Counter => Data::Sum(proto::Sum {
            data_points: numbers(since),
            aggregation_temporality: temporality,
            is_monotonic: true,
        }),
        Kind::Histogram => Data::Histogram(proto::Histogram {
            data_points: points.iter().map(|p| p.histogram(since, time)).collect(),
            aggregation_temporality: temporality,
        }),
    };
    proto::Metric {
        name: head.name.clone(),
        description: head.help.clone(),
        data: Some(data),
        ..proto::Metric::default()
    }
}

// === impl Metric ===

impl Metric {
    /// All but its series.
    fn head(&self) -> Self {
        Self {
            name: self.name.clone(),
            help: self.help.clone(),
            kind: self.kind,
            since: self.since,
            points: Vec::new(),
        }
    }
}

// === impl Point ===

impl Point {
    fn number(&self, since: u64, time: u64) -> proto::NumberDataPoint {
        let value = match self.is {
            Measure::Number(x) => Some(Value::AsDouble(x)),
            Measure::Buckets(..) | Measure::Ended(_) => None,
        };
        proto::NumberDataPoint {
            attributes: self.labels.clone(),
            start_time_unix_nano: since,
            time_unix_nano: time,
            flags: if value.is_none() { NO_VALUE } else { 0 },
            value,
            ..proto::NumberDataPoint::default()
        }
    }

    fn histogram(&self, since: u64, time: u64) -> proto::HistogramDataPoint {
        let (bounds, counts, sum) = match &self.is {
            Measure::Buckets(bounds, counts, sum) => (bounds.clone(), counts.clone(), Some(*sum)),
            // Readers that make series of buckets end each of them.
            Measure::Ended(bounds) => (bounds.clone(), vec![0; bounds.len() + 1], None),
            Measure::Number(_) => (Vec::new(), Vec::new(), None),
        };
        proto::HistogramDataPoint {
            attributes: self.labels.clone(),
            start_time_unix_nano: since,
            time_unix_nano: time,
            count: counts.iter().sum(),
            flags: if sum.is_none() { NO_VALUE } else { 0 },
            sum,
            bucket_counts: counts,
            explicit_bounds: bounds,
            ..proto::HistogramDataPoint::default()
        }
    }

    /// How long it is when it is sent, at most.
    fn most_bytes(&self) -> usize {
        let labels: usize = self.labels.iter().map(|label| label.encoded_len() + 4).sum();
        let buckets = match &self.is {
            Measure::Number(_) => 0,
            Measure::Buckets(bounds, ..) | Measure::Ended(bounds) => bounds.len() + 1,
        };
        labels + buckets * 16 + 64
    }
}
