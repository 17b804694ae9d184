//! The standard variables: what is sent where, and what is said of a wrong one.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_session_exporter::config::{Config, Inputs};
use agent_session_exporter::otlp::{Protocol, Settings, Wrong};
use agent_session_exporter::spans::Signal;

use crate::collector::Collector;
use crate::common::disk::Disk;
use crate::stand::{Exporter, env, spans};

fn read(pairs: &[(&str, &str)]) -> Result<Settings, Vec<Wrong>> {
    let env: BTreeMap<String, String> =
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Settings::read(&env, None)
}

fn url(pairs: &[(&str, &str)], signal: Signal) -> String {
    read(pairs).unwrap().target(signal).unwrap().url.to_string()
}

/// The one variable that is wrong.
fn wrong(pairs: &[(&str, &str)]) -> Wrong {
    let mut all = read(pairs).unwrap_err();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

const HTTP: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");

#[test]
fn nothing_is_sent_without_an_endpoint() {
    let settings = read(&[("OTEL_SERVICE_NAME", "x"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).unwrap();
    assert!(Signal::ALL.iter().all(|s| settings.target(*s).is_none()));
    let empty = read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]).unwrap();
    assert!(Signal::ALL.iter().all(|s| empty.target(*s).is_none()), "an empty variable is unset");
}

#[test]
fn endpoints_get_the_path_of_their_signal_unless_they_are_its_own() {
    assert_eq!(url(&[HTTP], Signal::Traces), "http://127.0.0.1:4318/v1/traces");
    assert_eq!(url(&[HTTP], Signal::Logs), "http://127.0.0.1:4318/v1/logs");
    assert_eq!(url(&[HTTP], Signal::Metrics), "http://127.0.0.1:4318/v1/metrics");
    let below = [("OTEL_EXPORTER_OTLP_ENDPOINT", "https://host/otlp/")];
    assert_eq!(url(&below, Signal::Traces), "https://host/otlp/v1/traces");
    let own = [HTTP, ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://other:1/own/path?x=1")];
    assert_eq!(url(&own, Signal::Traces), "http://other:1/own/path?x=1");
    assert_eq!(url(&own, Signal::Logs), "http://127.0.0.1:4318/v1/logs");
    let root = [("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://other:1")];
    assert_eq!(url(&root, Signal::Logs), "http://other:1/");
    assert!(read(&root).unwrap().traces.is_none(), "the others have none");
}

#[test]
fn grpc_takes_addresses_with_and_without_a_scheme() {
    let of = |endpoint: &str, insecure: &str| {
        let pairs = [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
            ("OTEL_EXPORTER_OTLP_INSECURE", insecure),
        ];
        url(&pairs, Signal::Traces)
    };
    assert_eq!(of("http://h:4317", ""), "http://h:4317/");
    assert_eq!(of("https://h:4317", "true"), "https://h:4317/", "the scheme decides");
    assert_eq!(of("h:4317", ""), "https://h:4317/");
    assert_eq!(of("h:4317", "true"), "http://h:4317/");
    assert_eq!(of("[::1]:4317", "true"), "http://[::1]:4317/");
    let wrong =
        wrong(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://h/p")]);
    assert_eq!(wrong.variable, "OTEL_EXPORTER_OTLP_ENDPOINT");
}

#[test]
fn a_signals_own_variable_goes_before_the_general_one() {
    let settings = read(&[
        HTTP,
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1000"),
        ("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "2000"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "none"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
    ])
    .unwrap();
    let of = |signal| settings.target(signal).unwrap();
    assert_eq!(of(Signal::Traces).timeout, Duration::from_secs(1));
    assert_eq!(of(Signal::Logs).timeout, Duration::from_secs(2));
    assert_eq!((of(Signal::Traces).gzip, of(Signal::Metrics).gzip), (true, false));
    assert_eq!((of(Signal::Traces).protocol, of(Signal::Logs).protocol), (Protocol::Grpc, Protocol::Http));
}

#[test]
fn signals_and_everything_can_be_switched_off() {
    let some = read(&[HTTP, ("OTEL_LOGS_EXPORTER", "none"), ("OTEL_TRACES_EXPORTER", "otlp")]).unwrap();
    assert!(some.traces.is_some() && some.logs.is_none() && some.metrics.is_some());
    // What is switched off keeps nobody from starting, whatever else is set.
    let off = ("OTEL_SDK_DISABLED", "true");
    let broken = read(&[off, ("OTEL_EXPORTER_OTLP_ENDPOINT", "nowhere")]).unwrap();
    assert!(broken.traces.is_none() && broken.ignored[0].starts_with("OTEL_EXPORTER_OTLP_ENDPOINT: "));
    let none = read(&[HTTP, ("OTEL_SDK_DISABLED", "TRUE")]).unwrap();
    assert!(Signal::ALL.iter().all(|s| none.target(*s).is_none()));
}

#[test]
fn an_attribute_that_is_named_twice_is_what_was_said_last() {
    let settings = read(&[HTTP, ("OTEL_RESOURCE_ATTRIBUTES", "a=1,b=2,a=%33,service.name=x")]).unwrap();
    let resource = settings.resource("here");
    let of = |name: &str| -> Vec<&str> {
        resource.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
    };
    assert_eq!((of("a"), of("b"), of("service.name")), (vec!["3"], vec!["2"], vec!["x"]));
}

#[test]
fn numbers_of_batching_are_taken() {
    let settings = read(&[
        HTTP,
        ("OTEL_BSP_SCHEDULE_DELAY", "700"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "64"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "900"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "5000"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "15000"),
    ])
    .unwrap();
    let traces = settings.traces.unwrap();
    assert_eq!((traces.batching.size, traces.batching.delay), (64, Duration::from_millis(700)));
    assert_eq!(traces.timeout, Duration::from_millis(900));
    assert_eq!((settings.max_waiting, settings.metric_interval), (Some(5000), Duration::from_secs(15)));
    let logs = settings.logs.unwrap();
    assert_eq!((logs.batching.size, logs.batching.delay), (512, Duration::from_secs(1)));
}

#[test]
fn unknown_words_are_said_and_ignored() {
    let settings = read(&[
        HTTP,
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
        ("OTEL_TRACES_EXPORTER", "console"),
        ("OTEL_SDK_DISABLED", "perhaps"),
    ])
    .unwrap();
    let traces = settings.traces.unwrap();
    assert_eq!((traces.protocol, traces.gzip), (Protocol::Http, false));
    assert_eq!(settings.ignored.len(), 4, "{:?}", settings.ignored);
}

#[test]
fn wrong_values_are_named_and_secrets_are_not_shown() {
    let of = |name: &'static str, value: &'static str| {
        let wrong = wrong(&[HTTP, (name, value)]);
        assert_eq!(wrong.variable, name);
        assert!(!wrong.to_string().contains(value), "{wrong}");
    };
    of("OTEL_EXPORTER_OTLP_TIMEOUT", "soon");
    of("OTEL_EXPORTER_OTLP_HEADERS", "Bearer s3cret");
    of("OTEL_EXPORTER_OTLP_HEADERS", "a key=s3cret");
    of("OTEL_EXPORTER_OTLP_HEADERS", "key=s3c%0Aret");
    of("OTEL_RESOURCE_ATTRIBUTES", "nothing");
    of("OTEL_BSP_SCHEDULE_DELAY", "-5");
    of("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "0");
    of("OTEL_METRIC_EXPORT_INTERVAL", "1m");
    of("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "nowhere");
    of("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://h/x");
    of("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://user:s3cret@h/x");
    let half = wrong(&[HTTP, ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "cert.pem")]);
    assert_eq!(half.variable, "OTEL_EXPORTER_OTLP_CLIENT_KEY");

    let secret = read(&[
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cret"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://h:1/x"),
        ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://h:1/y?key=s3cret"),
    ])
    .unwrap();
    let shown = format!("{:?} {}", secret.traces, secret.logs.as_ref().unwrap());
    assert!(!shown.contains("s3cret"), "{shown}");
}

#[test]
fn they_are_part_of_the_configuration() {
    let load = |pairs: &[(&str, &str)]| {
        let env = pairs.iter().chain(&[("HOME", "/home/dev")]);
        let env = env.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Config::load(&Inputs { env, ..Inputs::default() })
    };
    let problems = load(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "nowhere")]).unwrap_err().to_string();
    assert!(problems.contains("\n  OTEL_EXPORTER_OTLP_ENDPOINT: expected an address"), "{problems}");
    let config = load(&[("AGENT_SESSION_EXPORTER_OTLP_ENDPOINT", "http://h:1")]).unwrap();
    assert_eq!(config.otlp.settings.traces.unwrap().url.as_str(), "http://h:1/v1/traces");
    let config = load(&[
        ("AGENT_SESSION_EXPORTER_OTLP_ENDPOINT", "http://h:1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://env:1"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "77"),
    ])
    .unwrap();
    assert_eq!(config.otlp.settings.traces.unwrap().url.as_str(), "http://env:1/v1/traces");
    assert_eq!((config.otlp.spool_max_items, config.otlp.spool_max_bytes), (77, 256 << 20));
}

#[test]
fn a_signals_own_path_is_asked() {
    let collector = Collector::start();
    let mut env = env(collector.address, Protocol::Http);
    let own = format!("http://{}/own/path", collector.address);
    env.insert("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT".to_owned(), own);
    let exporter = Exporter::start(&Disk::default(), &env);
    exporter.put(spans(0..3));
    exporter.until_empty();
    assert_eq!(collector.memory.requests()[0].path, "/own/path");
    exporter.end();
}
