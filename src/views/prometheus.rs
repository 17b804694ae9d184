//! Writes the families down: text 0.0.4 and OpenMetrics 1.0, for the snapshot and for the registry of self metrics
//! alike. No metric is named here: see [`super::families`]; how a line looks is said in `super::lines`.

use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use flate2::Compression;
use flate2::write::GzEncoder;
use prometheus::proto::{LabelPair, MetricFamily, MetricType};

use crate::event::Timestamp;
use crate::session::Snapshot;
use crate::telemetry::Telemetry;
use crate::views::families::{self, Kind, OrchestrationView, Rows, SessionView, Sink as _, Totals, Value};
use crate::views::lines::{SessionLines, TextSink};
use crate::views::selection::{Memory, Options, SeriesMode};

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The classic text format, 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

/// Renders the exposition. Remembers between scrapes which sessions needed attention and which the cap left out.
#[derive(Debug)]
pub struct Renderer {
    options: Options,
    telemetry: Arc<Telemetry>,
    memory: Arc<Mutex<Memory>>,
    /// Length of the last body: the next one is about as long, so that its buffer need not grow.
    last_length: AtomicUsize,
    /// What the last scrape worked with, for the next: fresh memory costs as much as writing into it.
    spare: Arc<Spare>,
}

/// Buffers between two scrapes.
#[derive(Debug, Default)]
struct Spare {
    body: Mutex<Vec<u8>>,
    lines: Mutex<Option<SessionLines>>,
}

/// A finished exposition; its buffer serves the next one.
#[derive(Debug)]
pub struct Body {
    bytes: Vec<u8>,
    spare: Arc<Spare>,
}

/// A larger buffer is given back to the system.
const MAX_SPARE: usize = 64 << 20;

// === impl Body ===

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let mut kept = self.spare.body.lock().unwrap_or_else(PoisonError::into_inner);
        if self.bytes.capacity() <= MAX_SPARE && self.bytes.capacity() > kept.capacity() {
            *kept = std::mem::take(&mut self.bytes);
        }
    }
}

// === impl Format ===

impl Format {
    /// What the client likes best by its `Accept` header. OpenMetrics only if it is named there.
    pub fn negotiate(accept: Option<&str>) -> Self {
        let mut open_metrics = None;
        // How well text is liked, by the most specific range that covers it.
        let mut text: Option<(u8, f32, usize)> = None;
        for (at, range) in accept.unwrap_or_default().split(',').enumerate() {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default().to_ascii_lowercase();
            let (mut quality, mut version) = (1.0, None);
            for (name, value) in parts.filter_map(|p| p.split_once('=')) {
                let value = value.trim().trim_matches('"');
                match name.trim().to_ascii_lowercase().as_str() {
                    "q" => quality = value.parse().unwrap_or(0.0),
                    "version" => version = Some(value.to_owned()),
                    _ => {}
                }
            }
            let specific = match media.as_str() {
                "application/openmetrics-text" => {
                    if version.is_none_or(|v| v == "1.0.0") && open_metrics.is_none_or(|(q, _)| q < quality) {
                        open_metrics = Some((quality, at));
                    }
                    continue;
                }
                "text/plain" if version.is_none_or(|v| v == "0.0.4") => 2,
                "text/*" => 1,
                "*/*" => 0,
                _ => continue,
            };
            if text.is_none_or(|(known, q, _)| (known, q) < (specific, quality)) {
                text = Some((specific, quality, at));
            }
        }
        let Some((quality, at)) = open_metrics.filter(|(q, _)| *q > 0.0) else { return Self::Text };
        // What is named beats what is only covered by a wildcard; else the first of two equals wins.
        let text_first = text.is_some_and(|(specific, q, text_at)| {
            q > quality || q == quality && specific == 2 && text_at < at
        });
        if text_first { Self::Text } else { Self::OpenMetrics }
    }

    /// The `Content-Type` of a body.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Whether a client takes gzip, by its `Accept-Encoding` header.
pub fn accepts_gzip(accept_encoding: Option<&str>) -> bool {
    accept_encoding.unwrap_or_default().split(',').any(|coding| {
        let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
        let refused = parameters
            .trim()
            .strip_prefix("q=")
            .is_some_and(|q| q.trim().parse::<f32>().is_ok_and(|q| q <= 0.0));
        name.trim().eq_ignore_ascii_case("gzip") && !refused
    })
}

/// Compresses a body at the fastest level: a scrape is sent once, mostly to a neighbour.
pub fn gzip(body: &[u8]) -> Vec<u8> {
    // A guess that seldom has to grow: labels repeat, so expositions shrink well.
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 8 + 64), Compression::new(1));
    encoder.write_all(body).expect("a vector takes every byte");
    encoder.finish().expect("a vector takes every byte")
}

// === impl Renderer ===

impl Renderer {
    /// A renderer with these bounds; says in the self metrics which mode is in force.
    pub fn new(options: Options, telemetry: Arc<Telemetry>) -> Self {
        Self::sharing(options, telemetry, Arc::default())
    }

    /// The same with a memory that others use as well: then they show the same sessions.
    pub fn sharing(options: Options, telemetry: Arc<Telemetry>, memory: Arc<Mutex<Memory>>) -> Self {
        telemetry.series_mode.with_label_values(&[options.mode.as_str()]).set(1);
        Self { options, telemetry, memory, last_length: AtomicUsize::new(0), spare: Arc::default() }
    }

    /// The whole exposition at this moment, in a buffer that serves again.
    pub fn body(&self, snapshot: &Snapshot, now: Timestamp, format: Format) -> Body {
        let mut bytes = std::mem::take(&mut *self.spare.body.lock().unwrap_or_else(PoisonError::into_inner));
        bytes.clear();
        self.render_into(snapshot, now, format, &mut bytes);
        Body { bytes, spare: self.spare.clone() }
    }

    /// The whole exposition at this moment.
    pub fn render(&self, snapshot: &Snapshot, now: Timestamp, format: Format) -> Vec<u8> {
        let last = self.last_length.load(Ordering::Relaxed);
        let mut out = Vec::with_capacity(last + last / 16 + 4096);
        self.render_into(snapshot, now, format, &mut out);
        out
    }

    /// The same, appended to a buffer that the caller keeps.
    pub fn render_into(&self, snapshot: &Snapshot, now: Timestamp, format: Format, out: &mut Vec<u8>) {
        let start = out.len();
        let roots = snapshot.roots().count();
        // Where none can be left out, a session is written down while its facts are near.
        let at_once = self.options.keeps_all(roots);
        let all = self.options.mode == SeriesMode::All;
        let spare = self.spare.lines.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut lines = spare.unwrap_or_default();
        lines.clear();
        let mut sessions = Vec::with_capacity(roots);
        for session in SessionView::roots(snapshot, now).filter(|s| self.options.is_present(s)) {
            if at_once {
                lines.add(&session, all);
            }
            sessions.push(session);
        }
        let totals = Totals::of(snapshot, &sessions);
        let (evicted, orchestrations) = {
            let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
            let evicted = memory.select(&mut sessions, &self.options, now);
            (evicted, memory.orchestrations(snapshot, &self.options, now))
        };
        if evicted > 0 {
            self.telemetry.sessions_evicted.with_label_values(&["limit"]).inc_by(evicted);
        }
        if !at_once {
            sessions.iter().for_each(|session| lines.add(session, all));
        }
        write_snapshot(&lines, &totals, &orchestrations, format, out);
        *self.spare.lines.lock().unwrap_or_else(PoisonError::into_inner) = Some(lines);
        for family in self.telemetry.registry().gather() {
            write_registered(&family, format, out);
        }
        if format == Format::OpenMetrics {
            out.extend_from_slice(b"# EOF\n");
        }
        self.last_length.store(out.len() - start, Ordering::Relaxed);
    }
}

fn write_snapshot(
    lines: &SessionLines,
    totals: &Totals<'_>,
    orchestrations: &[OrchestrationView<'_>],
    format: Format,
    out: &mut Vec<u8>,
) {
    for (at, family) in families::all().enumerate() {
        let start = out.len();
        write_head(family.name, family.kind, family.help, format, out);
        let body = out.len();
        match family.rows {
            Rows::Session(..) => lines.write(at, family.name, out),
            Rows::Totals(rows) => {
                let sink = TextSink::new(out, family.name);
                rows(totals, &mut sink.with_exemplars(format == Format::OpenMetrics));
            }
            Rows::Orchestration(rows) => {
                let mut sink = TextSink::new(out, family.name);
                orchestrations.iter().for_each(|view| rows(view, &mut sink));
            }
        }
        if out.len() == body {
            out.truncate(start);
        }
    }
}

fn write_head(name: &str, kind: Kind, help: &str, format: Format, out: &mut Vec<u8>) {
    // OpenMetrics names a counter's family without the suffix its samples have.
    let family = match (format, kind) {
        (Format::OpenMetrics, Kind::Counter) => name.strip_suffix("_total").unwrap_or(name),
        _ => name,
    };
    for (word, text) in [("# HELP ", help), ("# TYPE ", kind.as_str())] {
        out.extend_from_slice(word.as_bytes());
        out.extend_from_slice(family.as_bytes());
        out.push(b' ');
        out.extend_from_slice(text.as_bytes());
        out.push(b'\n');
    }
}

/// A family of the registry, which has neither summaries nor untyped metrics.
fn write_registered(family: &MetricFamily, format: Format, out: &mut Vec<u8>) {
    let kind = family.get_field_type();
    write_head(family.name(), Kind::of_registry(kind), family.help(), format, out);
    let mut sink = TextSink::new(out, family.name());
    for metric in family.get_metric() {
        let labels: Vec<(&str, &str)> = metric.get_label().iter().map(pair).collect();
        match kind {
            MetricType::HISTOGRAM => {
                let histogram = metric.get_histogram();
                let buckets = histogram.get_bucket().iter().map(|b| (b.upper_bound(), b.cumulative_count()));
                let sum = Value::Float(histogram.get_sample_sum());
                sink.buckets(&labels, buckets, std::iter::empty(), histogram.get_sample_count(), sum);
            }
            MetricType::COUNTER => sink.sample(&labels, Value::Float(metric.get_counter().get_value())),
            _ => sink.sample(&labels, Value::Float(metric.get_gauge().get_value())),
        }
    }
}

fn pair(label: &LabelPair) -> (&str, &str) {
    (label.name(), label.value())
}
