//! `/metrics` of 10,000 sessions, beside the encoders of the `prometheus` and `prometheus-client` crates on the very
//! same samples, copying the finished body, and compressing it.

#![allow(clippy::unwrap_used, reason = "a bench that fails says where")]

mod support;

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::Arc;

use agent_session_exporter::event::{
    CallEnd, CallOutcome, CallStart, Commands, Event, Fact, Id, Name, SessionId, SessionInfo, SourceId,
    Timestamp, ToolClass, Trigger, Usage,
};
use agent_session_exporter::session::snapshot::Tree;
use agent_session_exporter::session::{Facts, Session, Snapshot};
use agent_session_exporter::telemetry::Telemetry;
use agent_session_exporter::views::prometheus::{self as ours, Format, Renderer};
use agent_session_exporter::views::selection;
use prometheus::Encoder as _;
use support::{cpu, ms, row, table};

const SESSIONS: usize = 10_000;

fn session(n: usize, now: Timestamp) -> Arc<Facts> {
    let source = SourceId::from("bench");
    let id = SessionId::from(format!("01a227f1-9958-7663-8864-{n:012}").as_str());
    let mut session = Session::new(Facts::new(source.clone(), id.clone(), now));
    let info = SessionInfo {
        agent: Some(Name::from("agent")),
        version: Some(Name::from("1.2.3")),
        model: Some(Name::from("model-a")),
        provider: Some(Name::from("lab")),
        read_only: Some(false),
        ..SessionInfo::default()
    };
    let call = Id::from("call_0");
    let start = CallStart {
        call: call.clone(),
        tool: Name::from("edit"),
        class: ToolClass::Edit,
        key: Some(1),
        target: None,
        read: None,
        commands: Commands::default(),
        background: false,
        asks: None,
        nested: false,
    };
    let end = CallEnd {
        call,
        outcome: CallOutcome::Ok,
        exit_code: None,
        diff_lines: Some(3),
        error: None,
        output: None,
        read: None,
    };
    let facts = [
        Fact::SessionStarted(info),
        Fact::TurnStarted { trigger: Trigger::Person },
        Fact::Prompt { trigger: Trigger::Person, queued: false },
        Fact::ToolStarted(start),
        Fact::ToolEnded(end),
        Fact::Usage(Usage { input: 1000 + n as u64, output: 40, ..Usage::default() }),
    ];
    for (i, fact) in facts.into_iter().enumerate() {
        let mut event = Event::new(&source, &id, now, fact);
        event.time = Some(now.plus(i as i64 * 100 - 10_000 - n as i64));
        event.project = Some(Name::from(format!("project-{}", n % 40).as_str()));
        event.request = Some(Id::from("turn"));
        session.apply(event, now);
    }
    session.facts().clone()
}

/// A sample as the baselines need it: family, labels, value.
type Sample = (String, Vec<(String, String)>, f64);

fn samples(body: &str) -> Vec<Sample> {
    let lines = body.lines().filter(|l| {
        !l.starts_with('#') && l.starts_with("agent_session") && !l.starts_with("agent_session_exporter")
    });
    lines
        .filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let labels = labels.trim_end_matches('}').split("\",").filter(|l| !l.is_empty());
            let labels = labels
                .filter_map(|l| l.split_once("=\""))
                .map(|(k, v)| (k.to_owned(), v.trim_end_matches('"').to_owned()));
            Some((name.to_owned(), labels.collect(), value.parse().ok()?))
        })
        .collect()
}

fn prometheus_crate(samples: &[Sample]) -> prometheus::Registry {
    let registry = prometheus::Registry::new();
    let mut families: HashMap<&str, prometheus::GaugeVec> = HashMap::new();
    for (name, labels, value) in samples {
        let vec = families.entry(name).or_insert_with(|| {
            let names: Vec<&str> = labels.iter().map(|(k, _)| k.as_str()).collect();
            let vec = prometheus::GaugeVec::new(prometheus::Opts::new(name, "A family."), &names).unwrap();
            registry.register(Box::new(vec.clone())).unwrap();
            vec
        });
        let values: Vec<&str> = labels.iter().map(|(_, v)| v.as_str()).collect();
        vec.with_label_values(&values).set(*value);
    }
    registry
}

type ClientGauge = prometheus_client::metrics::gauge::Gauge<f64, std::sync::atomic::AtomicU64>;
type ClientFamily = prometheus_client::metrics::family::Family<Vec<(String, String)>, ClientGauge>;

fn prometheus_client(samples: &[Sample]) -> prometheus_client::registry::Registry {
    let mut registry = prometheus_client::registry::Registry::default();
    let mut families: HashMap<&str, ClientFamily> = HashMap::new();
    for (name, labels, value) in samples {
        let family = families.entry(name).or_insert_with(|| {
            let family = ClientFamily::default();
            registry.register(name.as_str(), "A family", family.clone());
            family
        });
        family.get_or_create(labels).set(*value);
    }
    registry
}

fn main() {
    let now = Timestamp::from_millis(1_800_000_000_000);
    let sessions: Vec<_> = (0..SESSIONS).map(|n| Some(session(n, now))).collect();
    let tree = Arc::new(Tree::of(&sessions));
    let capabilities =
        agent_session_exporter::event::Capabilities::of(agent_session_exporter::event::Capability::ALL);
    let snapshot = Snapshot {
        sessions,
        tree,
        capabilities: Arc::new([(SourceId::from("bench"), capabilities)].into()),
        ..Snapshot::default()
    };
    let renderer = Renderer::new(
        selection::Options { max_sessions: SESSIONS, ..Default::default() },
        Arc::new(Telemetry::new()),
    );
    let body = renderer.render(&snapshot, now, Format::Text);
    let text = String::from_utf8(body.to_vec()).unwrap();
    let list = samples(&text);

    let write = cpu(40, || drop(std::hint::black_box(renderer.body(&snapshot, now, Format::Text))));
    let copy = cpu(40, || drop(std::hint::black_box(text.clone())));
    let compress = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(1));
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let gzip_alone = cpu(3, || drop(std::hint::black_box(compress(text.as_bytes()))));
    let gzipped = cpu(3, || {
        drop(std::hint::black_box(ours::gzip(renderer.body(&snapshot, now, Format::Text).as_ref())))
    });
    let registry = prometheus_crate(&list);
    let theirs = cpu(3, || {
        let mut out = Vec::new();
        prometheus::TextEncoder::new().encode(&registry.gather(), &mut out).unwrap();
        std::hint::black_box(out);
    });
    let client = prometheus_client(&list);
    let clients = cpu(3, || {
        let mut out = String::new();
        prometheus_client::encoding::text::encode(&mut out, &client).unwrap();
        std::hint::black_box(out);
    });

    let ratio =
        |base: std::time::Duration| format!("{:.1}x faster", base.as_secs_f64() / write.as_secs_f64());
    let per = list.len() / SESSIONS;
    table(&format!(
        "`/metrics`: {SESSIONS} sessions, {} samples ({per} a session), {} MB; CPU time",
        list.len(),
        text.len() / 1_000_000
    ));
    row("our encoder", &ms(write), "");
    row(
        "copying the body",
        &ms(copy),
        &format!("we take {:.1}x as long", write.as_secs_f64() / copy.as_secs_f64()),
    );
    row("prometheus-client", &ms(clients), &ratio(clients));
    row("prometheus crate, TextEncoder", &ms(theirs), &ratio(theirs));
    row("gzip level 1 of the body alone", &ms(gzip_alone), "baseline");
    row(
        "our encoder and gzip",
        &ms(gzipped),
        &format!("{:.2}", gzipped.as_secs_f64() / gzip_alone.as_secs_f64()),
    );
}
