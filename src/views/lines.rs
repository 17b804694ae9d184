//! Samples as lines of text. Everything that is escaped is escaped here. Which families there are, and what they
//! mean, is not said here.
//!
//! The formats want one family after the other, but the facts of thousands of sessions fit in no cache: going through
//! them once per family would mostly wait for memory. So [`SessionLines`] asks every family about a session while its
//! facts are near, keeps the answers in short form, one column per family, and writes the columns afterwards.

use std::io::Write as _;
use std::ops::Range;

use crate::session::counts::{BUCKETS, Histogram};
use crate::session::exemplars::{Exemplar, Newest};
use crate::views::families::session::FAMILIES;
use crate::views::families::{IDENTITY, Rows, SessionSink, SessionView, Sink, Value};

/// Largest number up to which every integer is exact in a float.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// What all families say about each session.
#[derive(Debug)]
pub(super) struct SessionLines {
    /// The identity labels of each session, escaped, with the brace before them.
    identities: Vec<u8>,
    /// Where each session's end.
    ends: Vec<usize>,
    /// In the order of [`FAMILIES`].
    columns: Vec<Column>,
}

/// The samples of one family, in the order of the sessions.
#[derive(Debug, Default)]
struct Column {
    samples: Vec<Sample>,
    /// Own labels of the samples, escaped, with the brace behind them.
    tails: Vec<u8>,
    /// The tails of [`SessionSink::one_hot`]: the same for every session.
    words: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Sample {
    session: u32,
    tail: Tail,
    value: Value,
}

/// What stands between identity and value.
#[derive(Clone, Copy, Debug)]
enum Tail {
    /// No label more.
    Plain,
    /// This part of [`Column::tails`].
    Own { start: u32, end: u32 },
    /// One line for each word; the value counts which one holds.
    Words,
}

/// Takes what a family says about one session.
struct ColumnSink<'a> {
    column: &'a mut Column,
    session: u32,
}

/// Appends samples of one family over all sessions.
pub(super) struct TextSink<'a> {
    out: &'a mut Vec<u8>,
    name: &'a str,
    exemplars: bool,
}

// === impl SessionLines ===

impl Default for SessionLines {
    fn default() -> Self {
        let columns = FAMILIES.iter().map(|_| Column::default()).collect();
        Self { identities: Vec::new(), ends: Vec::new(), columns }
    }
}

impl SessionLines {
    /// Forgets the sessions, not the memory they took.
    pub(super) fn clear(&mut self) {
        self.identities.clear();
        self.ends.clear();
        for column in &mut self.columns {
            column.samples.clear();
            column.tails.clear();
        }
    }

    /// Asks every family about a session; those of signals that no rule uses only if `all` is asked for.
    pub(super) fn add(&mut self, session: &SessionView<'_>, all: bool) {
        let at = u32::try_from(self.ends.len()).expect("sessions are bounded");
        write_identity(session, &mut self.identities);
        self.ends.push(self.identities.len());
        let over = session.is_over();
        for (family, column) in FAMILIES.iter().zip(&mut self.columns) {
            if let Rows::Session(life, rows) = family.rows
                && life.includes(over, all)
            {
                rows(session, &mut ColumnSink { column, session: at });
            }
        }
    }

    /// Appends the lines of the family at this place of [`FAMILIES`].
    pub(super) fn write(&self, family: usize, name: &str, out: &mut Vec<u8>) {
        let column = &self.columns[family];
        for sample in &column.samples {
            let identity = &self.identities[self.range(sample.session as usize)];
            match sample.tail {
                Tail::Words => {
                    for (tail, at) in column.words.iter().zip(0..) {
                        out.extend_from_slice(name.as_bytes());
                        out.extend_from_slice(identity);
                        out.extend_from_slice(tail);
                        let holds = sample.value == Value::Count(at);
                        out.extend_from_slice(if holds { b"1\n" } else { b"0\n" });
                    }
                    continue;
                }
                Tail::Plain => {
                    out.extend_from_slice(name.as_bytes());
                    out.extend_from_slice(identity);
                    out.extend_from_slice(b"} ");
                }
                Tail::Own { start, end } => {
                    out.extend_from_slice(name.as_bytes());
                    out.extend_from_slice(identity);
                    out.extend_from_slice(&column.tails[start as usize..end as usize]);
                }
            }
            write_value(sample.value, out);
        }
    }

    fn range(&self, session: usize) -> Range<usize> {
        let start = session.checked_sub(1).map_or(0, |before| self.ends[before]);
        start..self.ends[session]
    }
}

// === impl ColumnSink ===

impl SessionSink for ColumnSink<'_> {
    #[inline]
    fn sample(&mut self, labels: &[(&str, &str)], value: Value) {
        let tail = if labels.is_empty() { Tail::Plain } else { self.column.tail(labels) };
        self.column.samples.push(Sample { session: self.session, tail, value });
    }

    fn one_hot(&mut self, label: &'static str, words: &[&'static str], holds: usize) {
        if self.column.words.is_empty() {
            let tail = |word: &&str| {
                let mut tail = Vec::new();
                write_label(label, word, true, &mut tail);
                tail.extend_from_slice(b"} ");
                tail
            };
            self.column.words = words.iter().map(tail).collect();
        }
        let value = Value::Count(holds as u64);
        self.column.samples.push(Sample { session: self.session, tail: Tail::Words, value });
    }
}

// === impl Column ===

impl Column {
    fn tail(&mut self, labels: &[(&str, &str)]) -> Tail {
        let from = self.tails.len();
        for (name, value) in labels {
            write_label(name, value, true, &mut self.tails);
        }
        self.tails.extend_from_slice(b"} ");
        // Neighbours mostly have the same labels.
        if let Some(Sample { tail: Tail::Own { start, end }, .. }) = self.samples.last()
            && self.tails[*start as usize..*end as usize] == self.tails[from..]
        {
            self.tails.truncate(from);
            return Tail::Own { start: *start, end: *end };
        }
        let place = |at: usize| u32::try_from(at).expect("labels are bounded, and so are sessions");
        Tail::Own { start: place(from), end: place(self.tails.len()) }
    }
}

// === impl TextSink ===

impl Sink for TextSink<'_> {
    fn sample(&mut self, labels: &[(&str, &str)], value: Value) {
        self.line("", labels, None, value);
    }

    fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram, newest: Option<&Newest>) {
        let mut below = 0;
        let buckets = BUCKETS.iter().zip(histogram.buckets).map(|(bound, n)| {
            below += n;
            (*bound, below)
        });
        let sum = Value::Millis(i64::try_from(histogram.sum_ms).unwrap_or(i64::MAX));
        // What is no longer in a histogram is no example of it.
        let counted = |at: usize| histogram.buckets[at] > 0;
        let newest = newest.filter(|_| self.exemplars).copied().unwrap_or_default();
        let newest = newest.into_iter().enumerate().map(|(at, one)| one.filter(|_| counted(at)));
        self.buckets(labels, buckets, newest, histogram.count(), sum);
    }
}

impl<'a> TextSink<'a> {
    /// A sink for the family of this name.
    pub(super) fn new(out: &'a mut Vec<u8>, name: &'a str) -> Self {
        Self { out, name, exemplars: false }
    }

    /// Buckets get examples, which only one of the formats knows.
    pub(super) const fn with_exemplars(mut self, wanted: bool) -> Self {
        self.exemplars = wanted;
        self
    }

    /// The lines of one histogram.
    pub(super) fn buckets(
        &mut self,
        labels: &[(&str, &str)],
        cumulative: impl Iterator<Item = (f64, u64)>,
        mut newest: impl Iterator<Item = Option<Exemplar>>,
        count: u64,
        sum: Value,
    ) {
        for (bound, n) in cumulative {
            // Always with a decimal point, as OpenMetrics wants it: a bound has one spelling in both formats, so
            // that a change of format makes no new series.
            self.line("_bucket", labels, Some(&format!("{bound:?}")), Value::Count(n));
            self.exemplar(newest.next().flatten());
        }
        self.line("_bucket", labels, Some("+Inf"), Value::Count(count));
        self.exemplar(newest.next().flatten());
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, Value::Count(count));
    }

    /// An example, behind the last line.
    fn exemplar(&mut self, exemplar: Option<Exemplar>) {
        let Some(exemplar) = exemplar else { return };
        let out = &mut *self.out;
        let unended = |out: &mut Vec<u8>| out.truncate(out.len() - 1);
        unended(out);
        out.extend_from_slice(b" # {trace_id=\"");
        write_hex(&exemplar.trace, out);
        out.extend_from_slice(b"\",span_id=\"");
        write_hex(&exemplar.span, out);
        out.extend_from_slice(b"\"} ");
        write_millis(i64::try_from(exemplar.ms).unwrap_or(i64::MAX), out);
        unended(out);
        out.push(b' ');
        write_millis(exemplar.at.as_millis(), out);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], le: Option<&str>, value: Value) {
        let out = &mut *self.out;
        out.extend_from_slice(self.name.as_bytes());
        out.extend_from_slice(suffix.as_bytes());
        let labels = labels.iter().copied().chain(le.map(|bound| ("le", bound)));
        let before = out.len();
        for (name, value) in labels {
            let more = out.len() > before;
            if !more {
                out.push(b'{');
            }
            write_label(name, value, more, out);
        }
        if out.len() > before {
            out.push(b'}');
        }
        out.push(b' ');
        write_value(value, out);
    }
}

fn write_hex(id: &[u8], out: &mut Vec<u8>) {
    let digit = |n: u8| b"0123456789abcdef"[usize::from(n)];
    id.iter().for_each(|byte| out.extend_from_slice(&[digit(byte >> 4), digit(byte & 15)]));
}

fn write_identity(session: &SessionView<'_>, out: &mut Vec<u8>) {
    let facts = session.facts();
    let project = facts.project.as_ref().map_or("", |p| p.as_str());
    let values = [facts.source.as_str(), project, facts.session.as_str()];
    out.push(b'{');
    for (i, (label, value)) in IDENTITY.into_iter().zip(values).enumerate() {
        write_label(label, value, i > 0, out);
    }
}

#[inline]
pub(super) fn write_label(name: &str, value: &str, after_another: bool, out: &mut Vec<u8>) {
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

/// A value and the end of its line.
#[inline]
pub(super) fn write_value(value: Value, out: &mut Vec<u8>) {
    match value {
        Value::Count(n @ 0..=9) => out.extend_from_slice(&[b'0' + n as u8, b'\n']),
        Value::Count(n) => {
            out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
            out.push(b'\n');
        }
        Value::Millis(ms) => write_millis(ms, out),
        Value::Float(x) => {
            write_float(x, out);
            out.push(b'\n');
        }
    }
}

fn write_float(x: f64, out: &mut Vec<u8>) {
    if x.is_nan() {
        out.extend_from_slice(b"NaN");
    } else if x.is_infinite() {
        out.extend_from_slice(if x > 0.0 { b"+Inf" } else { b"-Inf" });
    } else if x.fract() == 0.0 && x.abs() < EXACT {
        out.extend_from_slice(itoa::Buffer::new().format(x as i64).as_bytes());
    } else {
        write!(out, "{x}").expect("a vector takes every byte");
    }
}

/// Milliseconds as seconds, exactly and without trailing zeros.
#[inline]
fn write_millis(ms: i64, out: &mut Vec<u8>) {
    if ms < 0 {
        out.push(b'-');
    }
    let (seconds, fraction) = (ms.unsigned_abs() / 1000, ms.unsigned_abs() % 1000);
    out.extend_from_slice(itoa::Buffer::new().format(seconds).as_bytes());
    let digit = |n: u64| b'0' + (n % 10) as u8;
    let shown = [b'.', digit(fraction / 100), digit(fraction / 10), digit(fraction), b'\n'];
    match fraction {
        0 => out.push(b'\n'),
        f if f % 100 == 0 => out.extend_from_slice(&[b'.', shown[1], b'\n']),
        f if f % 10 == 0 => out.extend_from_slice(&[b'.', shown[1], shown[2], b'\n']),
        _ => out.extend_from_slice(&shown),
    }
}
