//! Recordings, decoders, and sessions folded as the owner task would.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{Event, Name, Reducer, SessionId, SourceId, Timestamp};
use agent_session_exporter::session::orchestration::{Orchestration, of_specs};
use agent_session_exporter::session::snapshot::Tree;
use agent_session_exporter::session::{Aggregates, Count, Facts, Session, Snapshot};
use agent_session_exporter::sources::push::{Admission, Decoder, Options};
use agent_session_exporter::sources::spec::{DEF, Rewrite, Status, Times};
use agent_session_exporter::telemetry::Telemetry;
use agent_session_exporter::views::http;
use agent_session_exporter::views::prometheus::{Format, Renderer};
use agent_session_exporter::views::selection;
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::exposition::{Dialect, Family, parse};

/// The orchestration of every recording.
pub(crate) const SHOP: &str = "shop";
pub(crate) const RUNS: [&str; 4] =
    ["3.0.0-mixed", "3.6.65-mixed", "3.0.0-timeouts-launch-holds", "3.0.0-cycle"];

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/spec").join(name)
}

pub(crate) fn read(name: &str) -> Vec<u8> {
    std::fs::read(fixture(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

pub(crate) fn lines(name: &str) -> Vec<Value> {
    let bytes = read(name);
    let lines = bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty());
    lines.map(|l| serde_json::from_slice(l).unwrap()).collect()
}

pub(crate) fn ts(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

/// When a recorded line was written.
pub(crate) fn at(line: &Value) -> Timestamp {
    ts(line["at"].as_str().unwrap())
}

pub(crate) fn reducer() -> Arc<Reducer> {
    Arc::new(Reducer::new([7; 16], Runners::default()))
}

pub(crate) fn status() -> Status {
    Status::new(SourceId::from("spec"), SessionId::from(SHOP), Name::from(SHOP), reducer())
}

/// Decodes a content written at a moment; no other file is there.
pub(crate) fn decode(status: &mut Status, content: &Value, mtime: Timestamp) -> Vec<Event> {
    let mut out = Vec::new();
    let bytes = content.to_string();
    let rewrite = Rewrite { bytes: bytes.as_bytes(), mtime, observed: mtime };
    status.decode(&rewrite, &mut Times::default(), &mut out).unwrap();
    out
}

/// A recorded record of the engine (`orchestrator.event`) or of an agent (`orchestrator.codex`) as it is pushed.
pub(crate) fn item(kind: &str, record: &Value) -> Value {
    json!({"source": "spec", "sessionId": SHOP, "projectId": SHOP, "type": kind, "data": record})
}

pub(crate) struct Pushed {
    pub(crate) decoder: Decoder,
    pub(crate) telemetry: Arc<Telemetry>,
}

impl Pushed {
    pub(crate) fn new() -> Self {
        let telemetry = Arc::new(Telemetry::new());
        let options = Options { allow_builtin: true, ..Options::default() };
        let admission = Arc::new(Admission::default());
        Self { decoder: Decoder::new(reducer(), telemetry.clone(), admission, &options), telemetry }
    }

    pub(crate) fn event(&mut self, item: &Value) -> Event {
        let observed = ts("2026-11-29T16:00:00Z");
        self.decoder.item(item.to_string().as_bytes(), observed).unwrap_or_else(|e| panic!("{e:?}: {item}"))
    }

    /// The value of a counter with this label value.
    pub(crate) fn counted(&self, name: &str, label: &str) -> f64 {
        let families = self.telemetry.registry().gather();
        let metrics = families.iter().filter(|f| f.name().ends_with(name)).flat_map(|f| f.get_metric());
        let own = metrics.filter(|m| m.get_label().iter().any(|l| l.value() == label));
        own.map(|m| m.get_counter().get_value()).sum()
    }
}

/// Every recorded event of a run, of the engine and of its agents.
pub(crate) fn engine_events(run: &str) -> Vec<Event> {
    let mut pushed = Pushed::new();
    let mut out = Vec::new();
    for (file, kind) in [("events", "orchestrator.event"), ("codex", "orchestrator.codex")] {
        out.extend(lines(&format!("{run}.{file}.ndjson")).iter().map(|line| pushed.event(&item(kind, line))));
    }
    out
}

/// Every recorded content of the status file of a run.
pub(crate) fn status_events(run: &str) -> Vec<Event> {
    let mut decoder = status();
    let lines = lines(&format!("{run}.status.ndjson"));
    lines.iter().flat_map(|line| decode(&mut decoder, &line["snapshot"], at(line))).collect()
}

/// Sessions and sums.
#[derive(Default)]
pub(crate) struct Fold {
    pub(crate) sessions: BTreeMap<(SourceId, SessionId), Session>,
    pub(crate) aggregates: Aggregates,
    pub(crate) epoch: Timestamp,
}

impl Fold {
    pub(crate) fn of(events: impl IntoIterator<Item = Event>) -> Self {
        let mut fold = Self::default();
        fold.take(events);
        fold
    }

    pub(crate) fn take(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            for own in of_specs(&event) {
                self.one(own);
            }
            self.one(event);
        }
    }

    fn one(&mut self, event: Event) {
        let key = (event.source.clone(), event.session.clone());
        let new = || Session::new(Facts::new(event.source.clone(), event.session.clone(), event.observed));
        let session = self.sessions.entry(key).or_insert_with(new);
        let source = event.source.clone();
        let mut change = session.apply(event, self.epoch);
        self.aggregates.take(&source, &mut change);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let sessions: Vec<_> = self.sessions.values().map(|s| Some(s.facts().clone())).collect();
        let capabilities = HashMap::from([(SourceId::from("spec"), DEF.capabilities)]);
        Snapshot {
            tree: Arc::new(Tree::of(&sessions)),
            sessions,
            aggregates: Arc::new(self.aggregates.clone()),
            capabilities: Arc::new(capabilities),
            scanned: true,
            ..Snapshot::default()
        }
    }

    pub(crate) fn facts(&self, session: &str) -> Arc<Facts> {
        let key = (SourceId::from("spec"), SessionId::from(session));
        self.sessions.get(&key).unwrap_or_else(|| panic!("no session {session}")).facts().clone()
    }

    pub(crate) fn run(&self) -> Orchestration {
        (**self.facts(SHOP).orchestration.as_ref().unwrap()).clone()
    }

    /// State and reason of a session at a moment.
    pub(crate) fn state(&self, session: &str, now: Timestamp) -> String {
        state(&self.snapshot(), "spec", session, now)
    }

    /// Sums of orchestrations that are not zero, as text.
    pub(crate) fn sums(&self) -> Vec<String> {
        let mut sums: Vec<_> = self
            .aggregates
            .sums
            .iter()
            .filter(|((_, _, count), sum)| matches!(count, Count::Orchestration(_)) && sum.exact() != 0)
            .map(|((_, project, count), sum)| match count {
                Count::Orchestration(what) => format!("{} {what:?} {}", project.as_str(), sum.exact()),
                _ => unreachable!(),
            })
            .collect();
        sums.sort();
        sums
    }

    /// The sum of one count.
    pub(crate) fn sum(&self, wanted: &Count) -> i64 {
        let own = self.aggregates.sums.iter().filter(|((_, _, count), _)| count == wanted);
        own.map(|(_, sum)| sum.exact()).sum()
    }

    pub(crate) fn scrape(&self, now: Timestamp, options: selection::Options) -> Vec<Family> {
        scrape(&self.snapshot(), now, options)
    }
}

pub(crate) fn state(snapshot: &Snapshot, source: &str, session: &str, now: Timestamp) -> String {
    let slot = snapshot.find(&SourceId::from(source), &SessionId::from(session));
    let rollup = snapshot.rollup(slot.unwrap_or_else(|| panic!("no session {session}")), now).unwrap();
    let derived = snapshot.derive(&rollup);
    format!("{}/{}", derived.state.as_str(), derived.reason.as_str())
}

pub(crate) fn scrape(snapshot: &Snapshot, now: Timestamp, options: selection::Options) -> Vec<Family> {
    let body = Renderer::new(options, Arc::new(Telemetry::new())).render(snapshot, now, Format::Text);
    parse(&body, Dialect::Text).unwrap_or_else(|e| panic!("{e}"))
}

/// The value of the only series with these labels; `None` where there is none.
pub(crate) fn value(families: &[Family], name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    families.iter().find(|f| f.name == format!("agent_orchestration_{name}"))?.value(labels)
}

/// Asks the router about a snapshot.
pub(crate) fn get(snapshot: Snapshot, uri: &str) -> (u16, Value) {
    let (_, snapshots) = tokio::sync::watch::channel(Arc::new(snapshot));
    let api = http::Api {
        snapshots,
        clock: Clock::system(),
        metrics: Arc::new(|_, _, _| axum::response::Response::default()),
        options: http::Options { metrics_path: "/metrics".to_owned(), event_schema: "", push_enabled: true },
    };
    let request = Request::get(uri).body(Body::empty()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let response = http::router(api).oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    })
}

/// A value with all its moments moved.
pub(crate) fn moved(value: &Value, by_ms: i64) -> Value {
    match value {
        Value::String(text) => match Timestamp::parse(text) {
            Ok(t) => json!(t.plus(by_ms).to_string()),
            Err(_) => value.clone(),
        },
        Value::Array(list) => list.iter().map(|v| moved(v, by_ms)).collect(),
        Value::Object(object) => {
            Value::Object(object.iter().map(|(k, v)| (k.clone(), moved(v, by_ms))).collect())
        }
        other => other.clone(),
    }
}
