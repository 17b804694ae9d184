//! Events told to the store's own code at their times, and the spans that come of it as text: one tree per trace.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{Event, Reducer, SourceId, Timestamp};
use agent_session_exporter::session::Thresholds;
use agent_session_exporter::sources::{LIST, push};
use agent_session_exporter::spans::{LogRecord, Outgoing, Span, SpanId, TraceId, Value};
use agent_session_exporter::store;
use agent_session_exporter::store::offline::Offline;
use agent_session_exporter::telemetry::Telemetry;

/// How long is looked on behind the last event: longer than a session without a word stays known.
const LOOK_ON_MS: i64 = 26 * 3_600_000;

pub fn options() -> store::Options {
    store::Options {
        max_tracked: 10_000,
        retention: std::time::Duration::from_secs(7 * 86_400),
        thresholds: Thresholds::default(),
        capabilities: LIST.iter().map(|d| (SourceId::from(d.name), d.capabilities)).collect(),
        pushed: push::DEF.capabilities,
        retell: Default::default(),
        see_stops: Default::default(),
        expected_scans: Vec::new(),
        file_sources: Vec::new(),
        read_only_agents: Vec::new(),
        spool: None,
        folder: None,
        traced: true,
    }
}

/// All that is told of these events, each with the moment at which it was.
pub fn told(mut events: Vec<(Timestamp, Event)>) -> Vec<(Timestamp, Outgoing)> {
    events.sort_by_key(|(at, _)| *at);
    let Some(start) = events.first().map(|(at, _)| *at) else { return Vec::new() };
    let last = events.last().unwrap().0;
    let hand: &'static AtomicI64 = Box::leak(Box::new(AtomicI64::new(start.as_millis())));
    let reducer = Arc::new(Reducer::new([0; 16], Runners::default()));
    let mut store =
        Offline::begin(options(), Clock::held(hand), reducer, Arc::new(Telemetry::new()), start).unwrap();
    let mut out = Vec::new();
    let mut events = events.into_iter().peekable();
    let mut now = start;
    while now <= last.plus(LOOK_ON_MS) {
        hand.store(now.as_millis(), Ordering::SeqCst);
        store.take(std::iter::from_fn(|| events.next_if(|(at, _)| *at <= now)).map(|(_, event)| event));
        store.pass();
        out.extend(store.outgoing(now).into_iter().map(|outgoing| (now, outgoing)));
        // Behind the last event there is nothing to miss between two looks.
        now = now.plus(if now < last.plus(60_000) { 1_000 } else { 600_000 });
    }
    out
}

/// Compares trees with `tests/golden/spans/<source>/<name>.txt`; `BLESS=1` renews it.
pub fn golden(source: &str, name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/spans")
        .join(source)
        .join(format!("{name}.txt"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    for (at, (got, wanted)) in text.lines().zip(wanted.lines()).enumerate() {
        assert_eq!(got, wanted, "{source}/{name} line {}", at + 1);
    }
    assert_eq!(text.lines().count(), wanted.lines().count(), "{source}/{name}");
}

/// Spans by trace as trees, with the records of steps that began; ids are left out, but for what a link leads to.
pub fn trees(told: &[(Timestamp, Outgoing)]) -> String {
    let spans: Vec<&Span> = told
        .iter()
        .filter_map(|(_, o)| match o {
            Outgoing::Span(span) => Some(span),
            Outgoing::Log(_) => None,
        })
        .collect();
    let logs: Vec<&LogRecord> = told
        .iter()
        .filter_map(|(_, o)| match o {
            Outgoing::Log(log) => Some(log),
            Outgoing::Span(_) => None,
        })
        .collect();
    check(&spans, &logs);
    let mut traces: BTreeMap<TraceId, Vec<&Span>> = BTreeMap::new();
    for span in &spans {
        traces.entry(span.context.trace).or_default().push(span);
    }
    let mut order: Vec<_> = traces.values().collect();
    let begins = |spans: &[&Span]| spans.iter().map(|s| s.start).min();
    order.sort_by_key(|spans| (begins(spans), spans[0].context.trace));
    let numbers: BTreeMap<TraceId, usize> =
        order.iter().enumerate().map(|(i, s)| (s[0].context.trace, i + 1)).collect();
    let mut out = String::new();
    for spans in order {
        let start = begins(spans).unwrap();
        out.push_str(&format!("trace {} at {start}\n", numbers[&spans[0].context.trace]));
        let known: Vec<SpanId> = spans.iter().map(|s| s.context.span).collect();
        let mut tops: Vec<&&Span> =
            spans.iter().filter(|s| s.parent.is_none_or(|p| !known.contains(&p))).collect();
        tops.sort_by_key(|s| (s.start, s.end, s.name.clone(), s.context.span));
        for top in tops {
            branch(top, spans, start, 1, &numbers, &logs, &mut out);
        }
    }
    out
}

fn branch(
    span: &Span,
    all: &[&Span],
    zero: Timestamp,
    depth: usize,
    numbers: &BTreeMap<TraceId, usize>,
    logs: &[&LogRecord],
    out: &mut String,
) {
    let at = |t: Timestamp| format!("{:.3}", t.since(zero) as f64 / 1000.0);
    let indent = "  ".repeat(depth);
    let failed = if span.failed { " ERROR" } else { "" };
    out.push_str(&format!("{indent}{} [{} .. {}]{failed}\n", span.name, at(span.start), at(span.end)));
    for (key, value) in &span.attributes {
        out.push_str(&format!("{indent}  | {} = {}\n", key.as_str(), shown(value)));
    }
    for link in &span.links {
        let trace = match numbers.get(&link.to.trace) {
            Some(trace) => trace.to_string(),
            None => format!("{} span {}", link.to.trace, link.to.span),
        };
        out.push_str(&format!("{indent}  -> {} in trace {trace}\n", link.relation));
    }
    // Of other events there is a test of its own.
    let steps = logs.iter().filter(|l| l.name == "agent_session.step.started");
    for log in steps.filter(|l| l.context == Some(span.context)) {
        out.push_str(&format!("{indent}  ~ {} at {}\n", log.name, at(log.time)));
    }
    for event in &span.events {
        let words: Vec<String> = event.attributes.iter().map(|(_, v)| shown(v)).collect();
        out.push_str(&format!("{indent}  * {} {} at {}\n", event.name, words.join(" "), at(event.time)));
    }
    if span.dropped_events > 0 {
        out.push_str(&format!("{indent}  * {} events more\n", span.dropped_events));
    }
    let mut below: Vec<&&Span> = all.iter().filter(|s| s.parent == Some(span.context.span)).collect();
    below.sort_by_key(|s| (s.start, s.end, s.name.clone(), s.context.span));
    for child in below {
        branch(child, all, zero, depth + 1, numbers, logs, out);
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Text(text) => text.as_str().to_owned(),
        Value::Int(n) => n.to_string(),
        Value::Float(x) => x.to_string(),
        Value::Bool(yes) => yes.to_string(),
        Value::Texts(texts) => texts.join(","),
    }
}

/// What holds of spans whatever they are from.
fn check(spans: &[&Span], logs: &[&LogRecord]) {
    let mut ids = std::collections::BTreeSet::new();
    for span in spans {
        assert!(ids.insert((span.context.trace, span.context.span)), "twice: {span:?}");
        assert!(span.start <= span.end, "ends before it begins: {span:?}");
        assert_ne!(span.context.span.0, [0; 8]);
    }
    for span in spans {
        let parent = span.parent.map(|parent| (span.context.trace, parent));
        assert!(parent.is_none_or(|p| ids.contains(&p)), "an orphan: {span:?}");
    }
    for log in logs {
        let context = log.context.map(|c| (c.trace, c.span));
        assert!(context.is_none_or(|c| ids.contains(&c)), "a step that began and never ended: {log:?}");
    }
}
