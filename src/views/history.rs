//! What scrapes at equal intervals would have shown, kept as one list per series and written as OpenMetrics with
//! timestamps or as input for unit tests of `promtool`. No metric is named here: see [`super::families`].
//!
//! Most values stay as they are from scrape to scrape, or grow by the same amount, so that months of them are few
//! stretches: see `Stretch`.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use hashbrown::HashMap;
use prometheus::proto::{MetricFamily, MetricType};

use crate::event::Timestamp;
use crate::session::Snapshot;
use crate::session::counts::{BUCKETS, Histogram};
use crate::session::exemplars::Newest;
use crate::telemetry::{self, Telemetry};
use crate::views::families::{self, Family, IDENTITY, Kind, Rows, SessionSink, SessionView, Sink, Value};
use crate::views::lines::{write_label, write_value};
use crate::views::selection::{Memory, Options, Selected, SeriesMode};

/// Scrapes so far.
pub struct History {
    options: Options,
    telemetry: Arc<Telemetry>,
    memory: Memory,
    /// Labels that every series gets, escaped, with a comma before each.
    labels: Vec<u8>,
    start: Timestamp,
    step_ms: i64,
    scrapes: u32,
    /// In the order of the exposition.
    families: Vec<Shown>,
    /// By name: families of the registry.
    registered: BTreeMap<String, Shown>,
    /// Sessions at the last look at the registry.
    looked_at: Option<usize>,
}

/// One family.
struct Shown {
    name: String,
    kind: Kind,
    help: String,
    /// By labels. What belongs together at one moment (the lines of a histogram) stands together.
    metrics: HashMap<Vec<u8>, Vec<Part>>,
    /// Whether its series are sums that fall to nothing, rather than things that are no more.
    sums: bool,
}

/// One series of a metric.
struct Part {
    /// What its name adds to the family's.
    suffix: &'static str,
    /// The label it has beside the metric's, escaped.
    le: Vec<u8>,
    stretches: Vec<Stretch>,
}

/// Scrapes in a row whose values lie on a line.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stretch {
    at: u32,
    n: u32,
    first: Value,
    /// What each value is more than the one before, in the unit of the value.
    more: i64,
}

/// Where a stretch of samples ends without another one at the next scrape, a reader has to be told.
enum Sample {
    Is(Value),
    Ended,
}

/// Takes the samples of one family.
struct Keeper<'a> {
    shown: &'a mut Shown,
    identity: &'a [u8],
    extra: &'a [u8],
    at: u32,
}

// === impl History ===

impl History {
    /// Begins at `start`, with `labels` on every series as a scrape would add them.
    pub fn new(
        options: Options,
        telemetry: Arc<Telemetry>,
        labels: &[(String, String)],
        start: Timestamp,
        step_ms: i64,
    ) -> Self {
        telemetry.series_mode.with_label_values(&[options.mode.as_str()]).set(1);
        let mut extra = Vec::new();
        for (name, value) in labels {
            write_label(name, value, true, &mut extra);
        }
        let shown = |f: &Family| Shown {
            sums: f.kind == Kind::Gauge && matches!(f.rows, Rows::Totals(_)),
            ..Shown::new(f.name, f.kind, f.help)
        };
        let families = families::all().map(shown).collect();
        Self {
            options,
            telemetry,
            memory: Memory::default(),
            labels: extra,
            start,
            step_ms,
            scrapes: 0,
            families,
            registered: BTreeMap::new(),
            looked_at: None,
        }
    }

    /// The moment of the next scrape.
    pub fn next(&self) -> Timestamp {
        self.moment(self.scrapes)
    }

    fn moment(&self, scrape: u32) -> Timestamp {
        self.start.plus(i64::from(scrape).saturating_mul(self.step_ms))
    }

    /// Scrapes at [`Self::next`]; `quiet`: no event was taken in since the last time.
    pub fn scrape(&mut self, snapshot: &Snapshot, quiet: bool) {
        let (now, at) = (self.next(), self.scrapes);
        self.scrapes += 1;
        self.telemetry.counting_since.set(snapshot.counting_since.as_seconds());
        let all = self.options.mode == SeriesMode::All;
        let Selected { sessions, totals, orchestrations, evicted } =
            self.options.select(snapshot, now, &mut self.memory);
        self.telemetry.sessions_evicted.with_label_values(&["limit"]).inc_by(evicted);
        let identities: Vec<Vec<u8>> = sessions.iter().map(identity).collect();
        for (family, shown) in families::all().zip(&mut self.families) {
            let mut keeper = Keeper { shown, identity: &[], extra: &self.labels, at };
            match family.rows {
                Rows::Session(life, rows) => {
                    for (session, identity) in sessions.iter().zip(&identities) {
                        if life.includes(session.is_over(), all) {
                            keeper.identity = identity;
                            rows(session, &mut keeper);
                        }
                    }
                }
                Rows::Totals(rows) => rows(&totals, &mut keeper),
                Rows::Orchestration(rows) => orchestrations.iter().for_each(|view| rows(view, &mut keeper)),
            }
        }
        // Gathering costs more than all the rest of a quiet scrape.
        let sessions = Some(snapshot.slots().count());
        if quiet && self.looked_at == sessions && evicted == 0 {
            self.registered.values_mut().for_each(|shown| shown.keep_again(at));
            return;
        }
        self.looked_at = sessions;
        for family in self.telemetry.registry().gather() {
            if telemetry::is_of_records(family.name()) {
                self.keep_registered(&family, at);
            }
        }
    }

    fn keep_registered(&mut self, family: &MetricFamily, at: u32) {
        let kind = Kind::of_registry(family.get_field_type());
        let new = || Shown::new(family.name(), kind, family.help());
        let shown = self.registered.entry(family.name().to_owned()).or_insert_with(new);
        let mut keeper = Keeper { shown, identity: &[], extra: &self.labels, at };
        for metric in family.get_metric() {
            let labels: Vec<(&str, &str)> =
                metric.get_label().iter().map(|l| (l.name(), l.value())).collect();
            let value = match family.get_field_type() {
                MetricType::COUNTER => metric.get_counter().get_value(),
                _ => metric.get_gauge().get_value(),
            };
            Sink::sample(&mut keeper, &labels, Value::Float(value));
        }
    }

    fn shown(&self) -> impl Iterator<Item = &Shown> {
        self.families.iter().chain(self.registered.values()).filter(|shown| !shown.metrics.is_empty())
    }

    /// Number of series, and of their samples.
    pub fn size(&self) -> (usize, u64) {
        let parts = self.shown().flat_map(|s| s.metrics.values().flatten());
        parts.fold((0, 0), |(series, samples), part| {
            (series + 1, samples + part.stretches.iter().map(|s| u64::from(s.n)).sum::<u64>())
        })
    }

    /// Writes OpenMetrics: by family, series and time. Where a gauge's series ends before the last scrape, one sample
    /// that is no number says so.
    ///
    /// # Errors
    /// When `out` takes no more.
    pub fn write_openmetrics(&self, out: &mut impl Write) -> io::Result<()> {
        let mut line = Vec::new();
        for shown in self.shown() {
            let family = match shown.kind {
                Kind::Counter => shown.name.strip_suffix("_total").unwrap_or(&shown.name),
                _ => &shown.name,
            };
            writeln!(out, "# HELP {family} {}", shown.help)?;
            writeln!(out, "# TYPE {family} {}", shown.kind.as_str())?;
            for (labels, parts) in shown.sorted() {
                let mut cursors: Vec<_> =
                    parts.iter().map(|part| part.samples(self.scrapes).peekable()).collect();
                // The lines of one moment stand together.
                while let Some(at) = cursors.iter_mut().filter_map(|c| c.peek().map(|(at, _)| *at)).min() {
                    for (part, cursor) in parts.iter().zip(&mut cursors) {
                        let Some((_, sample)) = cursor.next_if(|(next, _)| *next == at) else { continue };
                        line.clear();
                        line.extend_from_slice(shown.name.as_bytes());
                        line.extend_from_slice(part.suffix.as_bytes());
                        write_labels(labels, &part.le, &mut line);
                        line.push(b' ');
                        match sample {
                            Sample::Is(value) => write_value(value, &mut line),
                            // A counter is no number at no time; those of ours do not end.
                            Sample::Ended if shown.kind != Kind::Gauge => continue,
                            // A sum with one that is no number in it would be none itself.
                            Sample::Ended if shown.sums => line.extend_from_slice(b"0\n"),
                            Sample::Ended => line.extend_from_slice(b"NaN\n"),
                        }
                        line.pop();
                        line.push(b' ');
                        write_value(Value::moment(self.moment(at)), &mut line);
                        out.write_all(&line)?;
                    }
                }
            }
        }
        out.write_all(b"# EOF\n")
    }

    /// Writes a file for `promtool test rules` that loads these rules. Its clock begins at zero, so that all moments
    /// are told as seconds since the first scrape.
    ///
    /// # Errors
    /// When `out` takes no more.
    pub fn write_unit_test(&self, rules: &[String], out: &mut impl Write) -> io::Result<()> {
        let step = format!("{}ms", self.step_ms);
        writeln!(out, "# The first scrape was at {}.", self.start)?;
        writeln!(out, "rule_files:{}", if rules.is_empty() { " []" } else { "" })?;
        for rule in rules {
            writeln!(out, "  - '{}'", rule.replace('\'', "''"))?;
        }
        writeln!(out, "evaluation_interval: {step}\ntests:\n  - interval: {step}\n    input_series:")?;
        let mut text = Vec::new();
        for shown in self.shown() {
            let shift = if shown.name.ends_with("_timestamp_seconds") { self.start.as_millis() } else { 0 };
            let parts = shown.sorted().into_iter().flat_map(|(l, parts)| parts.iter().map(move |p| (l, p)));
            for (labels, part) in parts {
                text.clear();
                text.extend_from_slice(shown.name.as_bytes());
                text.extend_from_slice(part.suffix.as_bytes());
                write_labels(labels, &part.le, &mut text);
                let series = String::from_utf8_lossy(&text).replace('\'', "''");
                writeln!(out, "      - series: '{series}'")?;
                write!(out, "        values: '")?;
                part.write_values(shift, self.scrapes, out)?;
                writeln!(out, "'")?;
            }
        }
        Ok(())
    }
}

fn identity(session: &SessionView<'_>) -> Vec<u8> {
    let facts = session.facts();
    let project = facts.project.as_ref().map_or("", |p| p.as_str());
    let mut out = Vec::new();
    for (name, value) in IDENTITY.into_iter().zip([facts.source.as_str(), project, facts.session.as_str()]) {
        write_label(name, value, true, &mut out);
    }
    out
}

/// Labels in braces; each is given with a comma before it.
fn write_labels(labels: &[u8], le: &[u8], out: &mut Vec<u8>) {
    let from = out.len();
    out.extend_from_slice(labels);
    out.extend_from_slice(le);
    if let Some(first) = out.get_mut(from) {
        *first = b'{';
        out.push(b'}');
    }
}

// === impl Shown ===

impl Shown {
    fn new(name: &str, kind: Kind, help: &str) -> Self {
        Self { name: name.to_owned(), kind, help: help.to_owned(), metrics: HashMap::new(), sums: false }
    }

    fn sorted(&self) -> Vec<(&Vec<u8>, &Vec<Part>)> {
        let mut all: Vec<_> = self.metrics.iter().collect();
        all.sort_by_key(|(labels, _)| *labels);
        all
    }

    /// Everything is as it was at the last scrape.
    fn keep_again(&mut self, at: u32) {
        for part in self.metrics.values_mut().flatten() {
            if let Some(last) = part.stretches.last().filter(|last| last.at + last.n == at) {
                part.keep(at, last.value(last.n - 1));
            }
        }
    }
}

// === impl Part ===

impl Part {
    fn new(suffix: &'static str, le: Option<&str>) -> Self {
        let mut label = Vec::new();
        if let Some(le) = le {
            write_label("le", le, true, &mut label);
        }
        Self { suffix, le: label, stretches: Vec::new() }
    }

    fn keep(&mut self, at: u32, value: Value) {
        if let Some(last) = self.stretches.last_mut()
            && last.goes_on(at, value)
        {
            last.n += 1;
            return;
        }
        self.stretches.push(Stretch { at, n: 1, first: value, more: 0 });
    }

    /// Samples by scrape, with an end behind each last one that has no next.
    fn samples(&self, scrapes: u32) -> impl Iterator<Item = (u32, Sample)> {
        let followed = self.stretches.iter().skip(1).map(|s| Some(s.at)).chain([None]);
        self.stretches.iter().zip(followed).flat_map(move |(stretch, next)| {
            let end = stretch.at + stretch.n;
            let is_end = next != Some(end) && end < scrapes;
            let values = (0..stretch.n).map(|i| (stretch.at + i, Sample::Is(stretch.value(i))));
            values.chain(is_end.then_some((end, Sample::Ended)))
        })
    }

    /// In the notation of unit tests.
    fn write_values(&self, shift: i64, scrapes: u32, out: &mut impl Write) -> io::Result<()> {
        let mut at = 0;
        let mut between = "";
        for stretch in &self.stretches {
            if stretch.at > at {
                // The first scrape without it is where it ends; before it began there is nothing to end.
                let missing = stretch.at - at - u32::from(at > 0);
                if at > 0 {
                    write!(out, "{between}stale")?;
                    between = " ";
                }
                if missing > 0 {
                    write!(out, "{between}_x{missing}")?;
                    between = " ";
                }
            }
            let first = shifted(stretch.first, shift);
            write!(out, "{between}{}", number(first))?;
            if stretch.n > 1 {
                if stretch.more != 0 {
                    let more = match stretch.first {
                        Value::Millis(_) => Value::Millis(stretch.more),
                        _ => Value::Float(stretch.more as f64),
                    };
                    write!(out, "{}{}", if stretch.more < 0 { "" } else { "+" }, number(more))?;
                }
                write!(out, "x{}", stretch.n - 1)?;
            }
            between = " ";
            at = stretch.at + stretch.n;
        }
        if at < scrapes {
            write!(out, "{between}stale")?;
        }
        Ok(())
    }
}

/// A moment as time since the first scrape. The registry tells them as numbers of seconds.
fn shifted(value: Value, shift_ms: i64) -> Value {
    match value {
        _ if shift_ms == 0 => value,
        Value::Millis(ms) => Value::Millis(ms - shift_ms),
        Value::Float(seconds) => Value::Float(seconds - shift_ms as f64 / 1000.0),
        Value::Count(_) => value,
    }
}

fn number(value: Value) -> String {
    let mut text = Vec::new();
    write_value(value, &mut text);
    String::from_utf8_lossy(text.trim_ascii_end()).into_owned()
}

// === impl Stretch ===

impl Stretch {
    fn value(&self, i: u32) -> Value {
        let more = self.more.saturating_mul(i64::from(i));
        match self.first {
            Value::Millis(ms) => Value::Millis(ms.saturating_add(more)),
            Value::Count(n) => Value::Count(n.saturating_add_signed(more)),
            Value::Float(_) => self.first,
        }
    }

    /// Whether a value is the next of the line; the second one says where it goes.
    fn goes_on(&mut self, at: u32, value: Value) -> bool {
        if at != self.at + self.n {
            return false;
        }
        if self.value(self.n) == value {
            return true;
        }
        let more = match (self.first, value) {
            (Value::Millis(first), Value::Millis(ms)) if self.n == 1 => ms.saturating_sub(first),
            _ => return false,
        };
        self.more = more;
        true
    }
}

// === impl Keeper ===

impl Keeper<'_> {
    fn parts(&mut self, labels: &[(&str, &str)]) -> &mut Vec<Part> {
        let mut key = Vec::with_capacity(self.identity.len() + self.extra.len() + 32);
        key.extend_from_slice(self.identity);
        for (name, value) in labels {
            write_label(name, value, true, &mut key);
        }
        key.extend_from_slice(self.extra);
        self.shown.metrics.entry(key).or_default()
    }

    fn keep(&mut self, labels: &[(&str, &str)], value: Value) {
        let at = self.at;
        let parts = self.parts(labels);
        if parts.is_empty() {
            parts.push(Part::new("", None));
        }
        parts[0].keep(at, value);
    }
}

impl SessionSink for Keeper<'_> {
    fn sample(&mut self, labels: &[(&str, &str)], value: Value) {
        self.keep(labels, value);
    }

    fn one_hot(&mut self, label: &'static str, words: &[&'static str], holds: usize) {
        for (i, word) in words.iter().enumerate() {
            self.keep(&[(label, word)], Value::flag(i == holds));
        }
    }
}

impl Sink for Keeper<'_> {
    fn sample(&mut self, labels: &[(&str, &str)], value: Value) {
        self.keep(labels, value);
    }

    fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram, _: Option<&Newest>) {
        let at = self.at;
        let parts = self.parts(labels);
        if parts.is_empty() {
            parts.extend(BUCKETS.iter().map(|bound| Part::new("_bucket", Some(&format!("{bound:?}")))));
            parts.push(Part::new("_bucket", Some("+Inf")));
            parts.push(Part::new("_sum", None));
            parts.push(Part::new("_count", None));
        }
        let mut below = 0;
        let buckets = histogram.buckets.iter().map(|n| {
            below += n;
            Value::Count(below)
        });
        let sum = Value::Millis(i64::try_from(histogram.sum_ms).unwrap_or(i64::MAX));
        let count = Value::Count(histogram.count());
        let values = buckets.take(BUCKETS.len()).chain([count, sum, count]);
        for (part, value) in parts.iter_mut().zip(values) {
            part.keep(at, value);
        }
    }
}
