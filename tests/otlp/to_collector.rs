//! Spans in a state folder and from there to a real collector, as the standard variables say. Driven by `check.py`.
//!
//! `otlp_to_collector <folder> <from> <to>` keeps the spans and log records of these numbers, says each on a line of JSON,
//! and sends until nothing waits. `otlp_to_collector certificates <folder>` makes what TLS needs.

#![allow(clippy::unwrap_used, reason = "whoever drives it sees that it failed")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::Reducer;
use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::otlp::{Backoff, Senders, Settings};
use agent_session_exporter::session::Thresholds;
use agent_session_exporter::spans::{Outgoing, Value};
use agent_session_exporter::store::spool::Keep;
use agent_session_exporter::store::{self, db};
use agent_session_exporter::telemetry::Telemetry;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::sync::watch;

#[allow(dead_code, reason = "the tests use more of it")]
#[path = "made.rs"]
mod made;

/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(90);

fn main() {
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr).init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [word, folder] if word == "certificates" => certificates(Path::new(folder)),
        [folder, from, to] => send(Path::new(folder), from.parse().unwrap()..to.parse().unwrap()),
        _ => panic!("unexpected arguments"),
    }
}

fn certificates(folder: &Path) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // By default all have one name, and then each looks as if it had signed itself.
    params.distinguished_name.push(DnType::CommonName, "authority");
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    fs::write(folder.join("ca.pem"), ca.pem()).unwrap();
    for (file, name) in [("server", "localhost"), ("client", "client")] {
        let key = KeyPair::generate().unwrap();
        let made = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &ca).unwrap();
        fs::write(folder.join(format!("{file}.pem")), made.pem()).unwrap();
        fs::write(folder.join(format!("{file}.key")), key.serialize_pem()).unwrap();
    }
}

fn send(folder: &Path, range: std::ops::Range<u64>) {
    let key = db::prepare_folder(folder).unwrap();
    let reducer = Arc::new(Reducer::new(key, Runners::default()));
    let clock = Clock::system();
    let opened = db::open_folder(folder, 1, clock.now()).unwrap();
    assert!(!opened.set_aside, "the state file could not be read");
    let options = store::Options {
        max_tracked: 10,
        retention: Duration::from_secs(1),
        thresholds: Thresholds::default(),
        capabilities: Default::default(),
        pushed: Default::default(),
        see_stops: Default::default(),
        retell: Default::default(),
        expected_scans: Vec::new(),
        file_sources: Vec::new(),
        read_only_agents: Vec::new(),
        spool: Some(Keep { spans: true, logs: true, max_items: 200_000, max_bytes: 1 << 28 }),
        traced: true,
        folder: Some(folder.to_owned()),
    };
    let telemetry = Arc::new(Telemetry::new());
    let store = store::spawn(opened, options, clock, reducer, telemetry.clone()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let items: Vec<Outgoing> =
        range.flat_map(|n| [Outgoing::Span(made::span(n)), Outgoing::Log(made::log(n))]).collect();
    let lines: Vec<String> = items.iter().map(line).collect();
    runtime.block_on(store.spool.put(items));
    let mut out = std::io::stdout().lock();
    for line in lines {
        writeln!(out, "{line}").unwrap();
    }
    out.flush().unwrap();

    let env: BTreeMap<String, String> = std::env::vars().collect();
    let settings = Settings::read(&env, None).unwrap();
    let stop = watch::Sender::new(false);
    let senders = Senders {
        settings: &settings,
        instance: "real-collector",
        reader: store.spool.clone(),
        telemetry: telemetry.clone(),
        clock,
        stop: stop.subscribe(),
        backoff: Backoff { first: Duration::from_millis(100), longest: Duration::from_millis(500) },
    };
    let entered = runtime.enter();
    drop(senders.start().unwrap());
    drop(entered);
    let started = Instant::now();
    while telemetry.otlp_spool_items.get() > 0 {
        assert!(started.elapsed() < PATIENCE, "{} items still wait", telemetry.otlp_spool_items.get());
        std::thread::sleep(Duration::from_millis(5));
    }
    let lost: u64 =
        [("traces", "rejected"), ("traces", "refused"), ("logs", "rejected"), ("logs", "refused")]
            .iter()
            .map(|(signal, result)| telemetry.otlp_items.with_label_values(&[*signal, *result]).get())
            .sum();
    assert_eq!(lost, 0, "the collector did not take everything");
    stop.send_replace(true);
    let store::Store { live, streams, files, spool, thread, .. } = store;
    drop((live, streams, files, spool));
    thread.join().unwrap();
}

/// What has to arrive.
fn line(item: &Outgoing) -> String {
    let value = |v: &Value| match v {
        Value::Text(text) => serde_json::json!(text.as_str()),
        Value::Int(n) => serde_json::json!(n),
        Value::Float(n) => serde_json::json!(n),
        Value::Bool(yes) => serde_json::json!(yes),
        Value::Texts(list) => serde_json::json!(list),
    };
    let nanos = |t: agent_session_exporter::event::Timestamp| t.as_millis() * 1_000_000;
    let said = match item {
        Outgoing::Span(span) => serde_json::json!({
            "trace": span.context.trace.to_string(),
            "span": span.context.span.to_string(),
            "parent": span.parent.map(|p| p.to_string()).unwrap_or_default(),
            "name": span.name,
            "start": nanos(span.start),
            "end": nanos(span.end),
            "attributes": span.attributes.iter().map(|(k, v)| (k.as_str(), value(v))).collect::<BTreeMap<_, _>>(),
        }),
        Outgoing::Log(record) => serde_json::json!({ "record": format!("{:016x}", record.id) }),
    };
    said.to_string()
}
