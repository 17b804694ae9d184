//! Counters about the exporter itself, in a `prometheus` registry of their own. Every name begins with
//! `agent_session_exporter_`; the catalogue is section "self" of METRICS.md.

mod process;

use std::cell::RefCell;

use prometheus::proto::MetricType;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

/// The prefix of everything in here.
pub const PREFIX: &str = "agent_session_exporter_";
/// Distinct kinds of unknown records that get a series of their own, per process; others count as `other`.
const MAX_UNKNOWN_KINDS: usize = 50;

/// Target of the spans that the exporter makes of its own work. Nothing listens to it unless that is asked for. Their
/// numbers are signed: unsigned ones would be sent as texts.
pub const OWN_TRACES: &str = "own_traces";

/// Metrics, without the prefix, that are about what was read and not about the process that reads it: those hold of a
/// recording too.
const OF_RECORDS: [&str; 9] = [
    "counting_since_timestamp_seconds",
    "duplicates_total",
    "events_total",
    "label_overflow_total",
    "series_mode",
    "sessions_evicted_total",
    "sessions_tracked",
    "source_capability",
    "source_open_turns",
];

/// Whether the metric of this name is about what was read, whoever reads it.
pub fn is_of_records(name: &str) -> bool {
    name.strip_prefix(PREFIX).is_some_and(|name| OF_RECORDS.contains(&name))
}

/// One counter of a family.
pub type Counter = IntCounter;

/// Handles to all self metrics.
#[derive(Debug)]
pub struct Telemetry {
    registry: Registry,
    catalogue: Vec<SelfMetric>,
    unknown_kinds: std::sync::Mutex<std::collections::HashSet<String>>,
    /// 1 where the endpoint or root could be read at the last try.
    pub source_up: IntGaugeVec,
    /// Static facts about an endpoint; `store` tells two exporters on one home apart.
    pub source_info: IntGaugeVec,
    /// 1 where the source can see this kind of fact.
    pub source_capability: IntGaugeVec,
    /// Observation time of the newest record.
    pub source_last_record: GaugeVec,
    /// Turns open at the source.
    pub source_open_turns: IntGaugeVec,
    /// Connections made again after a loss.
    pub source_reconnects: IntCounterVec,
    /// Records read.
    pub records: IntCounterVec,
    unknown_records: IntCounterVec,
    /// Records that could not be decoded.
    pub decode_errors: IntCounterVec,
    /// Events taken in.
    pub events: IntCounterVec,
    /// Events that had been counted before.
    pub duplicates: IntCounter,
    /// Times a source's own word differed from the derived state.
    pub state_disagreements: IntCounterVec,
    /// Records dated more than five minutes ahead.
    pub clock_skew: IntCounter,
    /// Folders watched, by how.
    pub watched_roots: IntGaugeVec,
    /// Sessions held in memory.
    pub sessions_tracked: IntGauge,
    /// Sessions that lost their series or left memory, before their time or at it.
    pub sessions_evicted: IntCounterVec,
    /// Label values folded into `other`.
    pub label_overflow: IntCounterVec,
    /// Batches waiting for the owner task.
    pub queue_length: IntGauge,
    /// Time from observing a record to its being published.
    pub ingest_lag: Gauge,
    /// Transactions committed.
    pub store_commits: IntCounter,
    /// Time of a commit.
    pub store_commit_seconds: Histogram,
    /// Transactions that failed.
    pub store_commit_failures: IntCounter,
    /// Size of the store's file.
    pub store_bytes: IntGauge,
    /// Spans, log records and points of metrics by what became of them.
    pub otlp_items: IntCounterVec,
    /// Spans and log records that wait to be sent.
    pub otlp_spool_items: IntGauge,
    /// End of the last scan of all roots.
    pub last_scan: Gauge,
    /// Creation time of the store: facts before it do not count.
    pub counting_since: Gauge,
    /// 1 for the mode in force.
    pub series_mode: IntGaugeVec,
    /// 1; the running build.
    pub build_info: IntGaugeVec,
    /// Pushes refused, by reason.
    pub push_refused: IntCounterVec,
}

/// What a self metric is, whether or not it has a series yet: the registry only shows those that do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelfMetric {
    /// Full name.
    pub name: String,
    /// One sentence.
    pub help: String,
    /// How its values behave.
    pub kind: MetricType,
    /// Its labels.
    pub labels: Vec<String>,
}

/// A registry that also keeps the list of what was registered.
#[derive(Default)]
struct Register {
    registry: Registry,
    catalogue: RefCell<Vec<SelfMetric>>,
}

/// Makes one metric and registers it; names are constants, so a failure is a bug that any test run shows.
fn register<C: prometheus::core::Collector + Clone + 'static>(r: &Register, c: prometheus::Result<C>) -> C {
    let metric = c.expect("metric names and labels are constants that are valid");
    let families = metric.collect();
    r.catalogue.borrow_mut().extend(metric.desc().into_iter().map(|desc| {
        SelfMetric {
            name: desc.fq_name.clone(),
            help: desc.help.clone(),
            kind: families
                .iter()
                .find(|f| f.name() == desc.fq_name)
                .map_or(MetricType::GAUGE, |f| f.get_field_type()),
            labels: desc.variable_labels.clone(),
        }
    }));
    r.registry.register(Box::new(metric.clone())).expect("metric names are registered once");
    metric
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(format!("{PREFIX}{name}"), help)
}

// === impl Telemetry ===

impl Default for Telemetry {
    fn default() -> Self {
        Self::new()
    }
}

impl Telemetry {
    /// All self metrics, registered, at their start values.
    pub fn new() -> Self {
        let r = Register::default();
        let gauges = |name, help, labels: &[&str]| register(&r, IntGaugeVec::new(opts(name, help), labels));
        let counters =
            |name, help, labels: &[&str]| register(&r, IntCounterVec::new(opts(name, help), labels));
        let counter = |name, help| register(&r, IntCounter::with_opts(opts(name, help)));
        let gauge = |name, help| register(&r, IntGauge::with_opts(opts(name, help)));
        let float = |name, help| register(&r, Gauge::with_opts(opts(name, help)));
        register(&r, process::Process::new());
        let t = Self {
            source_up: gauges(
                "source_up",
                "1 where the source's endpoint or root could be read at the last try.",
                &["source", "endpoint"],
            ),
            source_info: gauges(
                "source_info",
                "Always 1; store tells two exporters that read one home apart.",
                &["source", "endpoint", "store"],
            ),
            source_capability: gauges(
                "source_capability",
                "1 where the source can see this kind of fact, at least of some sessions, 0 where its absence means nothing.",
                &["source", "capability"],
            ),
            source_last_record: register(
                &r,
                GaugeVec::new(
                    opts(
                        "source_last_record_timestamp_seconds",
                        "Unix time at which the newest record of the source was read.",
                    ),
                    &["source"],
                ),
            ),
            source_open_turns: gauges("source_open_turns", "Turns that are open at the source.", &["source"]),
            source_reconnects: counters(
                "source_reconnects_total",
                "Connections to the source's endpoint that were made again after a loss.",
                &["source"],
            ),
            records: counters("records_total", "Records read from the source.", &["source"]),
            unknown_records: counters(
                "unknown_records_total",
                "Records of a kind this version does not know, folded as bookkeeping.",
                &["source", "kind"],
            ),
            decode_errors: counters(
                "decode_errors_total",
                "Records that could not be decoded and were skipped.",
                &["source", "reason"],
            ),
            events: counters("events_total", "Events taken in, duplicates left out.", &["source", "type"]),
            duplicates: counter(
                "duplicates_total",
                "Events that had been counted before and changed nothing.",
            ),
            state_disagreements: counters(
                "state_disagreements_total",
                "Times the source's own word about a session differed from the derived state.",
                &["source"],
            ),
            clock_skew: counter(
                "clock_skew_records_total",
                "Records dated more than five minutes ahead, taken as undated.",
            ),
            watched_roots: gauges("watched_roots", "Folders that are watched, by how.", &["mode"]),
            sessions_tracked: gauge("sessions_tracked", "Sessions held in memory."),
            sessions_evicted: counters(
                "sessions_evicted_total",
                "Sessions that lost their series (limit) or left memory, by why.",
                &["reason"],
            ),
            label_overflow: counters(
                "label_overflow_total",
                "Label values beyond their bound that were folded into other.",
                &["label"],
            ),
            queue_length: gauge("queue_length", "Batches of events that wait to be folded."),
            ingest_lag: float(
                "ingest_lag_seconds",
                "Time from reading a record to publishing it, of the last commit.",
            ),
            store_commits: counter("store_commits_total", "Transactions committed."),
            store_commit_seconds: register(
                &r,
                Histogram::with_opts(
                    HistogramOpts::new(format!("{PREFIX}store_commit_seconds"), "Time a commit took.")
                        .buckets(vec![0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0]),
                ),
            ),
            store_commit_failures: counter(
                "store_commit_failures_total",
                "Transactions that failed and were tried again.",
            ),
            store_bytes: gauge("store_bytes", "Size of the state file."),
            otlp_items: counters(
                "otlp_items_total",
                "Items for OTLP by what became of them: sent, rejected or refused by the collector, dropped because \
                 too many were waiting; of metrics points, those that failed to arrive are replaced by the next.",
                &["signal", "result"],
            ),
            otlp_spool_items: gauge(
                "otlp_spool_items",
                "Spans and log records that wait to be sent by OTLP.",
            ),
            last_scan: float(
                "last_scan_timestamp_seconds",
                "Unix time at which all roots had been scanned last.",
            ),
            counting_since: float(
                "counting_since_timestamp_seconds",
                "Unix time of the store's creation: counters leave out facts from before it.",
            ),
            series_mode: gauges("series_mode", "1 for the mode of per-session series in force.", &["mode"]),
            build_info: gauges("build_info", "Always 1; the running build.", &["version"]),
            push_refused: counters(
                "push_refused_total",
                "Pushed items and requests that were refused, by reason.",
                &["reason"],
            ),
            unknown_kinds: std::sync::Mutex::default(),
            registry: r.registry,
            catalogue: r.catalogue.into_inner(),
        };
        t.build_info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        t
    }

    /// The registry, for the exposition.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Every self metric, also those that have no series yet.
    pub fn catalogue(&self) -> &[SelfMetric] {
        &self.catalogue
    }

    /// Counts a record of a kind this version does not know. The set of kinds is bounded.
    pub fn unknown_record(&self, source: &str, kind: &str) {
        let known_shape =
            kind.len() <= 64 && kind.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/".contains(&b));
        let mut kinds = self.unknown_kinds.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let fits = known_shape && (kinds.contains(kind) || kinds.len() < MAX_UNKNOWN_KINDS);
        let label = if fits { kind } else { "other" };
        if fits && !kinds.contains(kind) {
            kinds.insert(kind.to_owned());
        }
        drop(kinds);
        if !fits {
            self.label_overflow.with_label_values(&["kind"]).inc();
        }
        self.unknown_records.with_label_values(&[source, label]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_kinds_are_bounded() {
        let t = Telemetry::new();
        for i in 0..1000 {
            t.unknown_record("codex", &format!("kind_{i}"));
        }
        t.unknown_record("codex", "a sentence, not a kind");
        let families = t.registry().gather();
        let unknown = families.iter().find(|f| f.name().ends_with("unknown_records_total")).unwrap();
        assert_eq!(unknown.get_metric().len(), MAX_UNKNOWN_KINDS + 1);
    }
}
