//! Writes the families down: text 0.0.4 and OpenMetrics 1.0, for the snapshot and for the registry of self metrics
//! alike. Everything that is escaped is escaped here.
//!
//! Each session is prepared once per scrape, its identity labels escaped once; then every family walks the prepared
//! sessions and appends to one buffer. No metric is named here: see [`super::families`].

use std::io::Write as _;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use flate2::Compression;
use flate2::write::GzEncoder;
use prometheus::proto::{LabelPair, MetricFamily, MetricType};

use crate::event::Timestamp;
use crate::session::Snapshot;
use crate::session::counts::{BUCKETS, Histogram};
use crate::telemetry::Telemetry;
use crate::views::families::{self, IDENTITY, Kind, Rows, SessionView, Sink, Totals, Value};
use crate::views::selection::{Memory, Options};

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
    memory: Mutex<Memory>,
    /// Length of the last body: the next one is about as long, so that its buffer need not grow.
    last_length: AtomicUsize,
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
        telemetry.series_mode.with_label_values(&[options.mode.as_str()]).set(1);
        Self { options, telemetry, memory: Mutex::default(), last_length: AtomicUsize::new(0) }
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
        let mut sessions: Vec<_> = snapshot
            .roots()
            .filter_map(|slot| SessionView::of(snapshot, slot, now))
            .filter(|session| self.options.is_present(session))
            .collect();
        let totals = Totals::of(snapshot, &sessions);
        let evicted = {
            let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
            memory.select(&mut sessions, &self.options, now)
        };
        if evicted > 0 {
            self.telemetry.sessions_evicted.with_label_values(&["limit"]).inc_by(evicted);
        }
        write_snapshot(&sessions, &totals, format, out);
        for family in self.telemetry.registry().gather() {
            write_registered(&family, format, out);
        }
        if format == Format::OpenMetrics {
            out.extend_from_slice(b"# EOF\n");
        }
        self.last_length.store(out.len() - start, Ordering::Relaxed);
    }
}

fn write_snapshot(sessions: &[SessionView<'_>], totals: &Totals<'_>, format: Format, out: &mut Vec<u8>) {
    let (identities, ranges) = identities(sessions);
    for family in families::all() {
        let start = out.len();
        write_head(family.name, family.kind, family.help, format, out);
        let body = out.len();
        let mut sink = TextSink::new(out, family.name);
        match family.rows {
            Rows::Session(life, rows) => {
                for (session, range) in sessions.iter().zip(&ranges) {
                    if life.includes(session.is_over()) {
                        sink.identity = &identities[range.clone()];
                        rows(session, &mut sink);
                    }
                }
            }
            Rows::Totals(rows) => rows(totals, &mut sink),
        }
        if out.len() == body {
            out.truncate(start);
        }
    }
}

/// The identity labels of each session, escaped, in one buffer.
fn identities(sessions: &[SessionView<'_>]) -> (Vec<u8>, Vec<Range<usize>>) {
    let mut bytes = Vec::with_capacity(sessions.len() * 96);
    let mut ranges = Vec::with_capacity(sessions.len());
    for session in sessions {
        let facts = session.facts();
        let project = facts.project.as_ref().map_or("", |p| p.as_str());
        let start = bytes.len();
        let values = [facts.source.as_str(), project, facts.session.as_str()];
        for (label, value) in IDENTITY.into_iter().zip(values) {
            write_label(label, value, bytes.len() > start, &mut bytes);
        }
        ranges.push(start..bytes.len());
    }
    (bytes, ranges)
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
                sink.buckets(&labels, buckets, histogram.get_sample_count(), sum);
            }
            MetricType::COUNTER => sink.sample(&labels, Value::Float(metric.get_counter().get_value())),
            _ => sink.sample(&labels, Value::Float(metric.get_gauge().get_value())),
        }
    }
}

fn pair(label: &LabelPair) -> (&str, &str) {
    (label.name(), label.value())
}

/// Appends samples of one family.
struct TextSink<'a> {
    out: &'a mut Vec<u8>,
    name: &'a str,
    /// Escaped labels that every sample begins with.
    identity: &'a [u8],
    /// What follows the identity in each line of [`Sink::one_hot`], up to the value: the same for every session.
    tails: Vec<Vec<u8>>,
}

// === impl TextSink ===

impl Sink for TextSink<'_> {
    fn sample(&mut self, labels: &[(&str, &str)], value: Value) {
        self.line("", labels, None, value);
    }

    fn one_hot(&mut self, label: &'static str, words: &[&'static str], holds: usize) {
        if self.tails.is_empty() {
            let more = !self.identity.is_empty();
            self.tails = words.iter().map(|word| tail(label, word, more)).collect();
        }
        for (i, tail) in self.tails.iter().enumerate() {
            self.out.extend_from_slice(self.name.as_bytes());
            self.out.push(b'{');
            self.out.extend_from_slice(self.identity);
            self.out.extend_from_slice(tail);
            self.out.extend_from_slice(if i == holds { b"1\n" } else { b"0\n" });
        }
    }

    fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) {
        let mut below = 0;
        let buckets = BUCKETS.iter().zip(histogram.buckets).map(|(bound, n)| {
            below += n;
            (*bound, below)
        });
        let sum = Value::Millis(i64::try_from(histogram.sum_ms).unwrap_or(i64::MAX));
        self.buckets(labels, buckets, histogram.count(), sum);
    }
}

impl<'a> TextSink<'a> {
    fn new(out: &'a mut Vec<u8>, name: &'a str) -> Self {
        Self { out, name, identity: &[], tails: Vec::new() }
    }

    fn buckets(
        &mut self,
        labels: &[(&str, &str)],
        cumulative: impl Iterator<Item = (f64, u64)>,
        count: u64,
        sum: Value,
    ) {
        for (bound, n) in cumulative {
            // Always with a decimal point, as OpenMetrics wants it: a bound has one spelling in both formats, so
            // that a change of format makes no new series.
            self.line("_bucket", labels, Some(&format!("{bound:?}")), Value::Count(n));
        }
        self.line("_bucket", labels, Some("+Inf"), Value::Count(count));
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, Value::Count(count));
    }

    #[inline]
    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], le: Option<&str>, value: Value) {
        let out = &mut *self.out;
        out.extend_from_slice(self.name.as_bytes());
        out.extend_from_slice(suffix.as_bytes());
        if !(self.identity.is_empty() && labels.is_empty() && le.is_none()) {
            out.push(b'{');
            out.extend_from_slice(self.identity);
            let mut more = !self.identity.is_empty();
            for (name, value) in labels {
                write_label(name, value, more, out);
                more = true;
            }
            if let Some(bound) = le {
                write_label("le", bound, more, out);
            }
            out.extend_from_slice(b"} ");
        } else {
            out.push(b' ');
        }
        write_value(value, out);
        out.push(b'\n');
    }
}

fn tail(label: &str, word: &str, after_another: bool) -> Vec<u8> {
    let mut tail = Vec::new();
    write_label(label, word, after_another, &mut tail);
    tail.extend_from_slice(b"} ");
    tail
}

#[inline]
fn write_label(name: &str, value: &str, after_another: bool, out: &mut Vec<u8>) {
    if after_another {
        out.push(b',');
    }
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"=\"");
    write_escaped(value, out);
    out.push(b'"');
}

/// A label value: backslash, quote and line feed are escaped in both formats. Other control characters are gone
/// since the reduction on arrival.
fn write_escaped(value: &str, out: &mut Vec<u8>) {
    let special = |b: &u8| matches!(*b, b'\\' | b'"' | b'\n');
    let mut rest = value.as_bytes();
    // Nearly every value is clean; asking all bytes without an early exit is what the compiler makes fast.
    if !rest.iter().fold(false, |any, b| any | special(b)) {
        out.extend_from_slice(rest);
        return;
    }
    while let Some(at) = rest.iter().position(special) {
        out.extend_from_slice(&rest[..at]);
        out.push(b'\\');
        out.push(if rest[at] == b'\n' { b'n' } else { rest[at] });
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// Largest number up to which every integer is exact in a float.
const EXACT: f64 = 9_007_199_254_740_992.0;

#[inline]
fn write_value(value: Value, out: &mut Vec<u8>) {
    match value {
        Value::Count(n @ 0..=9) => out.push(b'0' + n as u8),
        Value::Count(n) => out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes()),
        Value::Millis(ms) => write_millis(ms, out),
        Value::Float(x) if x.fract() == 0.0 && x.abs() < EXACT => {
            out.extend_from_slice(itoa::Buffer::new().format(x as i64).as_bytes());
        }
        Value::Float(x) if x.is_nan() => out.extend_from_slice(b"NaN"),
        Value::Float(x) if x.is_infinite() => {
            out.extend_from_slice(if x > 0.0 { b"+Inf" } else { b"-Inf" });
        }
        Value::Float(x) => write!(out, "{x}").expect("a vector takes every byte"),
    }
}

/// Milliseconds as seconds, exactly and without trailing zeros.
fn write_millis(ms: i64, out: &mut Vec<u8>) {
    if ms < 0 {
        out.push(b'-');
    }
    let (seconds, mut fraction) = (ms.unsigned_abs() / 1000, ms.unsigned_abs() % 1000);
    out.extend_from_slice(itoa::Buffer::new().format(seconds).as_bytes());
    if fraction > 0 {
        out.push(b'.');
        let mut unit = 100;
        while fraction > 0 {
            out.push(b'0' + (fraction / unit) as u8);
            fraction %= unit;
            unit /= 10;
        }
    }
}
