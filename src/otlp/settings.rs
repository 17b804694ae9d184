//! Where to and how: the standard variables of OpenTelemetry, read once. Nothing is sent unless an endpoint is named.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};

use super::tls::Files;
use super::variables::Variables;
use crate::spans::Signal;

/// How long a connection may take to be made.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// A limit that was set to none is this one: something has to end a request that nobody answers.
const NO_LIMIT: Duration = Duration::from_secs(600);

/// What is sent where.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Where spans go.
    pub traces: Option<Target>,
    /// Where log records go.
    pub logs: Option<Target>,
    /// Where metrics go.
    pub metrics: Option<Target>,
    /// Attributes of who sends, without the id of the instance.
    pub resource: Vec<(String, String)>,
    /// Time between two sendings of metrics.
    pub metric_interval: Duration,
    /// Items that may wait, where `OTEL_BSP_MAX_QUEUE_SIZE` says so.
    pub max_waiting: Option<u64>,
    /// What was set and is ignored, a sentence each.
    pub ignored: Vec<String>,
}

/// Where one signal goes.
#[derive(Clone, Debug)]
pub struct Target {
    /// How it is spoken to.
    pub protocol: Protocol,
    /// Its address; over HTTP with the path of the signal.
    pub url: Url,
    /// What is sent along.
    pub headers: Headers,
    /// How long a request may take.
    pub timeout: Duration,
    /// Whether requests are packed.
    pub gzip: bool,
    /// Whom to believe, and who we are.
    pub tls: Files,
    /// How many at once, and when.
    pub batching: Batching,
}

/// The protocols of OTLP that are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP with protobuf.
    Http,
    /// gRPC.
    Grpc,
}

/// Headers, which are secrets: they are not shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

/// How many items are sent at once, and how long they may wait to become as many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Items of one request.
    pub size: usize,
    /// How long the first waits for others.
    pub delay: Duration,
}

/// A variable that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {what}")]
pub struct Wrong {
    /// Its name.
    pub variable: String,
    /// What is expected of it.
    pub what: String,
}

// === impl Headers ===

impl Headers {
    /// Each with its value.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} headers", self.0.len())
    }
}

// === impl Protocol ===

impl Protocol {
    /// As the variable names it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http/protobuf",
            Self::Grpc => "grpc",
        }
    }
}

// === impl Target ===

impl Target {
    /// Whether it is spoken to through TLS.
    pub fn is_tls(&self) -> bool {
        self.url.scheme() == "https"
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.url.clone();
        // Some put keys there.
        shown.set_query(None);
        write!(f, "{shown} ({})", self.protocol.as_str())
    }
}

// === impl Settings ===

impl Settings {
    /// Reads the variables. `endpoint` is the one of the configuration file; a variable goes before it.
    ///
    /// # Errors
    /// Every variable that cannot be read.
    pub fn read(env: &BTreeMap<String, String>, endpoint: Option<&str>) -> Result<Self, Vec<Wrong>> {
        let mut vars = Variables::new(env);
        let mut settings = Self {
            metric_interval: vars
                .millis(&["OTEL_METRIC_EXPORT_INTERVAL".to_owned()])
                .unwrap_or(Duration::from_secs(60)),
            max_waiting: vars.count("OTEL_BSP_MAX_QUEUE_SIZE"),
            resource: resource(&mut vars),
            ..Self::default()
        };
        if settings.metric_interval.is_zero() {
            vars.is_wrong("OTEL_METRIC_EXPORT_INTERVAL", "expected a number of milliseconds, at least 1");
        }
        let disabled = vars.switch("OTEL_SDK_DISABLED");
        let [traces, logs, metrics] =
            [Signal::Traces, Signal::Logs, Signal::Metrics].map(|signal| target(&mut vars, signal, endpoint));
        if disabled {
            // Nothing of it is used.
            let unused = vars.wrong.drain(..).map(|wrong| format!("{wrong}; OpenTelemetry is switched off"));
            vars.ignored.extend(unused);
        } else {
            (settings.traces, settings.logs, settings.metrics) = (traces, logs, metrics);
        }
        settings.ignored = vars.ignored;
        if vars.wrong.is_empty() { Ok(settings) } else { Err(vars.wrong) }
    }

    /// Where a signal goes.
    pub const fn target(&self, signal: Signal) -> Option<&Target> {
        match signal {
            Signal::Traces => self.traces.as_ref(),
            Signal::Logs => self.logs.as_ref(),
            Signal::Metrics => self.metrics.as_ref(),
        }
    }

    /// Attributes of who sends. `instance` stays the same over restarts.
    pub fn resource(&self, instance: &str) -> Vec<(String, String)> {
        let mut all = self.resource.clone();
        if !all.iter().any(|(name, _)| name == "service.instance.id") {
            all.push(("service.instance.id".to_owned(), instance.to_owned()));
        }
        all
    }
}

/// What the environment says of who sends, with what is known anyway.
fn resource(vars: &mut Variables<'_>) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for (name, value) in vars.pairs(&["OTEL_RESOURCE_ATTRIBUTES".to_owned()]) {
        // OTLP knows no name twice.
        all.retain(|(known, _)| *known != name);
        all.push((name, value));
    }
    if let Some(name) = vars.text("OTEL_SERVICE_NAME") {
        all.retain(|(key, _)| key != "service.name");
        all.push(("service.name".to_owned(), name.to_owned()));
    }
    for (name, value) in
        [("service.name", "agent_session_exporter"), ("service.version", env!("CARGO_PKG_VERSION"))]
    {
        if !all.iter().any(|(key, _)| key == name) {
            all.push((name.to_owned(), value.to_owned()));
        }
    }
    all
}

/// The variables of a signal: its own goes before the general one.
fn names(signal: Signal, what: &str) -> [String; 2] {
    let upper = signal.as_str().to_ascii_uppercase();
    [format!("OTEL_EXPORTER_OTLP_{upper}_{what}"), format!("OTEL_EXPORTER_OTLP_{what}")]
}

fn target(vars: &mut Variables<'_>, signal: Signal, configured: Option<&str>) -> Option<Target> {
    let wanted = wanted(vars, signal);
    let protocol = vars
        .choice(&names(signal, "PROTOCOL"), &[("grpc", Protocol::Grpc), ("http/protobuf", Protocol::Http)])
        .unwrap_or(Protocol::Http);
    let gzip =
        vars.choice(&names(signal, "COMPRESSION"), &[("gzip", true), ("none", false)]).unwrap_or(false);
    let headers = headers(vars, signal);
    let limit = |limit: Duration| if limit.is_zero() { NO_LIMIT } else { limit };
    let timeout = vars.millis(&names(signal, "TIMEOUT")).map_or(Duration::from_secs(10), limit);
    let file = |what| vars.first(&names(signal, what)).map(|(_, path)| PathBuf::from(path));
    let tls =
        Files { ca: file("CERTIFICATE"), certificate: file("CLIENT_CERTIFICATE"), key: file("CLIENT_KEY") };
    if tls.certificate.is_some() != tls.key.is_some() {
        let [_, name] = names(signal, "CLIENT_KEY");
        vars.is_wrong(&name, "expected together with OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE");
    }
    let insecure = names(signal, "INSECURE").into_iter().find(|name| vars.text(name).is_some());
    let insecure = insecure.is_some_and(|name| vars.switch(&name));
    let batching = batching(vars, signal);
    // An export has a limit of its own, of which a single request is the whole.
    let timeout = timeout.min(batching.1);
    let url = url(vars, signal, configured, protocol, insecure)?;
    let batching = batching.0;
    wanted.then_some(Target { protocol, url, headers, timeout, gzip, tls, batching })
}

/// What is sent along. Which header is wrong is not shown: name and value may be mixed up.
fn headers(vars: &mut Variables<'_>, signal: Signal) -> Headers {
    let names = names(signal, "HEADERS");
    let pairs = vars.pairs(&names);
    let fits = |(name, value): &(String, String)| {
        HeaderName::from_bytes(name.as_bytes()).is_ok() && HeaderValue::from_str(value).is_ok()
    };
    if !pairs.iter().all(fits) {
        let name = vars.first(&names).map(|(name, _)| name).unwrap_or_default();
        vars.is_wrong(&name, "expected names and values that headers can have");
    }
    Headers(pairs)
}

/// Whether the signal is to be sent by OTLP at all.
fn wanted(vars: &mut Variables<'_>, signal: Signal) -> bool {
    let name = format!("OTEL_{}_EXPORTER", signal.as_str().to_ascii_uppercase());
    let Some(value) = vars.text(&name) else { return true };
    let words: Vec<&str> = value.split(',').map(str::trim).collect();
    if words.iter().any(|word| !matches!(*word, "otlp" | "none")) {
        vars.is_ignored(format!("{name} names an exporter besides otlp and none, which is ignored"));
    }
    words.contains(&"otlp") || !words.contains(&"none")
}

fn batching(vars: &mut Variables<'_>, signal: Signal) -> (Batching, Duration) {
    let (prefix, delay) = match signal {
        Signal::Logs => ("OTEL_BLRP", 1_000),
        _ => ("OTEL_BSP", 5_000),
    };
    let size = vars.count(&format!("{prefix}_MAX_EXPORT_BATCH_SIZE")).unwrap_or(512);
    let delay = vars.millis(&[format!("{prefix}_SCHEDULE_DELAY")]).unwrap_or(Duration::from_millis(delay));
    let limit = vars.millis(&[format!("{prefix}_EXPORT_TIMEOUT")]).unwrap_or(Duration::from_secs(30));
    let limit = if limit.is_zero() { NO_LIMIT } else { limit };
    (Batching { size: usize::try_from(size).unwrap_or(usize::MAX), delay }, limit)
}

/// The address of a signal. The general endpoint gets the path of the signal, one of its own is used as it is.
fn url(
    vars: &mut Variables<'_>,
    signal: Signal,
    configured: Option<&str>,
    protocol: Protocol,
    insecure: bool,
) -> Option<Url> {
    let names = names(signal, "ENDPOINT");
    let named = vars.first(&names).or_else(|| configured.map(|e| ("otlp.endpoint".to_owned(), e)));
    let (name, text) = named?;
    let is_own = name == names[0];
    // gRPC takes addresses without a scheme; then this variable says which one is meant.
    let with_scheme = match protocol {
        Protocol::Grpc if !text.contains("://") => {
            format!("{}://{text}", if insecure { "http" } else { "https" })
        }
        _ => text.to_owned(),
    };
    let parsed = Url::parse(&with_scheme).ok().filter(|u| {
        matches!(u.scheme(), "http" | "https") && u.host_str().is_some_and(|host| !host.is_empty())
    });
    let Some(mut url) = parsed else {
        vars.is_wrong(&name, "expected an address as \"http://127.0.0.1:4318\" or \"https://host:4317\"");
        return None;
    };
    if !url.username().is_empty() || url.password().is_some() {
        vars.is_wrong(&name, "expected no login in the address: OTEL_EXPORTER_OTLP_HEADERS takes it");
        return None;
    }
    match protocol {
        Protocol::Grpc if url.path() != "/" || url.query().is_some() => {
            vars.is_wrong(&name, "expected an address without a path, as gRPC has its own");
            return None;
        }
        Protocol::Http if !is_own => {
            let path = format!("{}/v1/{}", url.path().trim_end_matches('/'), signal.as_str());
            url.set_path(&path);
        }
        _ => {}
    }
    Some(url)
}
