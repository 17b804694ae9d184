//! Wiring: configuration in, running parts out; shutdown in the order of the flow: sources, owner, views. No domain
//! decisions.

mod check;
mod demo;
mod notify;
mod once;
mod replay;

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

use crate::clock::Clock;
use crate::config::Config;
use crate::docs::FamilyDoc;
use crate::event;
use crate::event::reduce::Runners;
use crate::event::{Batch, Name, Reducer, SourceId};
use crate::otlp::{Backoff, Encoder, Metrics, OwnTraces, Senders};
use crate::session::Thresholds;
use crate::sources;
use crate::sources::{LIST, SourceDef, push};
use crate::store;
use crate::store::Store;
use crate::store::spool::Keep;
use crate::telemetry::{OWN_TRACES, Telemetry};
use crate::views::families::{self, Family};
use crate::views::guard::{AllowedHosts, guard};
use crate::views::http::{self, Api, RenderMetrics};
use crate::views::prometheus::{self as exposition, Format, Renderer};
use crate::views::selection::{self, SeriesMode};
use crate::views::serve as web;
use crate::views::webconfig::WebConfig;

pub use self::check::check;
pub use self::notify::{notify, notify_test};
pub use self::once::once;
pub use self::replay::{Moment, Replay, To, duration_ms, replay};

/// How long the store keeps a session after its last event.
const RETENTION: Duration = Duration::from_secs(7 * 86_400);
/// How long shutdown waits for what was taken in to be kept.
const FLUSH_WITHIN: Duration = Duration::from_secs(5);

/// How often the owner is looked after.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What runs behind the views.
struct Core {
    store: Store,
    reducer: Arc<Reducer>,
    telemetry: Arc<Telemetry>,
    clock: Clock,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    /// Which sessions had series.
    shown: Arc<Mutex<selection::Memory>>,
    /// Sends metrics until after the last snapshot.
    metrics: Option<JoinHandle<()>>,
}

/// Serves until it is told to stop.
///
/// # Errors
/// When an address, the state folder or a file named in the configuration cannot be used.
pub fn serve(config: Config) -> anyhow::Result<()> {
    let own = own_traces(&config);
    start_logging_with(&config, own.as_ref());
    runtime()?.block_on(async {
        let listeners = listen(&config).await?;
        let opened = open_store(&config)?;
        let mut core = Core::start(&config, opened.0, opened.1, &running_sources(&config))?;
        core.start_senders(&config)?;
        core.send_own_traces(&config, own.as_ref())?;
        core.start_sources(&config);
        greet(&config, &listeners, &found(&config));
        let ended = run(config, core, listeners).await;
        if let Some(own) = own {
            own.shut_down().await;
        }
        ended
    })
}

/// Serves bundled recordings, in memory only.
///
/// # Errors
/// When an address cannot be used.
pub fn demo(config: Config) -> anyhow::Result<()> {
    start_logging(&config);
    runtime()?.block_on(async {
        let listeners = listen(&config).await?;
        let core = Core::start_in_memory(&config, &[])?;
        let (out, reducer, clock) = (core.store.files.clone(), core.reducer.clone(), core.clock);
        let task = tokio::spawn(demo::play(out, reducer, clock, core.stop.subscribe()));
        let mut core = core;
        core.tasks.push(task);
        let shown: Vec<String> = demo::shown().map(|s| format!("recording shows: {s}")).collect();
        greet(&config, &listeners, &shown);
        run(config, core, listeners).await
    })
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("the runtime cannot be started")
}

/// Traces of the exporter itself, where they are wanted and go somewhere.
fn own_traces(config: &Config) -> Option<OwnTraces> {
    let target = config.otlp.settings.traces.as_ref().filter(|_| config.otlp.own_traces)?;
    Some(OwnTraces::new(target.batching))
}

fn start_logging(config: &Config) {
    start_logging_with(config, None);
}

fn start_logging_with(config: &Config, own: Option<&OwnTraces>) {
    // Libraries stay at warn: what they log of their own is not written with content in mind.
    let filter = EnvFilter::new(format!("warn,agent_session_exporter={}", config.log));
    let logging = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .with_filter(filter);
    // A second start in one process (tests) keeps the first.
    let _ = tracing_subscriber::registry().with(logging).with(own.map(OwnTraces::layer)).try_init();
}

/// Sources that are switched on and run by themselves.
fn running_sources(config: &Config) -> Vec<&'static SourceDef> {
    let on = |def: &&&SourceDef| def.start.is_some() && config.enabled(def.name, def.default_on);
    LIST.iter().filter(on).copied().collect()
}

fn open_store(config: &Config) -> anyhow::Result<(store::Opened, Arc<Reducer>)> {
    let folder = &config.state_dir;
    let key =
        store::db::prepare_folder(folder).with_context(|| format!("state folder {}", folder.display()))?;
    let reducer = Arc::new(Reducer::new(key, runners(config)));
    let now = Clock::system().now();
    let opened = store::db::open_folder(folder, key_check(&reducer), now)
        .with_context(|| format!("state folder {}", folder.display()))?;
    Ok((opened, reducer))
}

/// Hashes made with another key mean nothing: the store notices by this.
fn key_check(reducer: &Reducer) -> u64 {
    reducer.hash(b"agent-session-exporter")
}

fn runners(config: &Config) -> Runners {
    let mut runners = Runners::default();
    runners.tests.extend(config.runners.tests.iter().cloned());
    runners.builds.extend(config.runners.builds.iter().cloned());
    runners
}

struct Listeners {
    sockets: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    web: WebConfig,
}

async fn listen(config: &Config) -> anyhow::Result<Listeners> {
    let web = config.web.config_file.as_deref().map(WebConfig::read).transpose()?.unwrap_or_default();
    let mut sockets = Vec::new();
    for address in &config.web.listen_address {
        web::check_address(*address, web.protects(), config.web.allow_remote)?;
        sockets.push(web::bind(*address).await?);
    }
    let addresses = sockets.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
    Ok(Listeners { sockets, addresses, web })
}

/// Everything the views offer and the push route, behind one guard.
fn router(config: &Config, core: &Core, listeners: &Listeners) -> anyhow::Result<Router> {
    let mut hosts = allowed_hosts(config, &listeners.addresses)?;
    hosts.set_https(listeners.web.https());
    let api = Api {
        snapshots: core.store.snapshots.clone(),
        clock: core.clock,
        metrics: metrics(config, core),
        options: http::Options {
            metrics_path: config.web.telemetry_path.clone(),
            event_schema: event::SCHEMA_JSON,
            push_enabled: config.push.enabled,
        },
    };
    let mut router = http::router(api);
    if config.push.enabled {
        // Both would have to stand in one Authorization header.
        anyhow::ensure!(
            config.push.token_file.is_none() || !listeners.web.asks_for_users(),
            "push.token_file and basic_auth_users exclude each other: a request can only carry one of them"
        );
        router = router.merge(push::router(push_source(config, core)?));
    }
    Ok(guard(router, hosts))
}

fn allowed_hosts(config: &Config, listening: &[SocketAddr]) -> anyhow::Result<AllowedHosts> {
    let mut hosts = AllowedHosts::new(listening);
    for host in &config.web.allowed_hosts {
        anyhow::ensure!(hosts.allow(host), "web.allowed_hosts: {host:?} is no host name");
    }
    // Whoever names hosts means those, wherever requests come from.
    if config.web.allow_remote && config.web.allowed_hosts.is_empty() {
        hosts.allow_any();
    }
    Ok(hosts)
}

fn push_source(config: &Config, core: &Core) -> anyhow::Result<push::Push> {
    let token = config.push.token_file.as_deref().map(|path| {
        let token =
            std::fs::read_to_string(path).with_context(|| format!("push.token_file {}", path.display()))?;
        anyhow::ensure!(!token.trim().is_empty(), "push.token_file {} is empty", path.display());
        Ok(token.trim().to_owned())
    });
    let options = push::Options {
        token: token.transpose()?,
        allow_builtin: config.push.allow_builtin_sources,
        max_body: config.push.max_body_bytes,
        ..push::Options::default()
    };
    Ok(push::Push::new(
        core.store.live.clone(),
        core.reducer.clone(),
        core.telemetry.clone(),
        core.clock,
        options,
    ))
}

fn renderer(config: &Config, core: &Core) -> Renderer {
    Renderer::sharing(series(config), core.telemetry.clone(), core.shown.clone())
}

/// Which sessions have series.
fn series(config: &Config) -> selection::Options {
    let mode = SeriesMode::parse(config.series.as_str()).unwrap_or_default();
    selection::Options { mode, max_sessions: config.max_sessions, ..selection::Options::default() }
}

/// Says in the self metrics what each source can see.
fn offer_capabilities(telemetry: &Telemetry, sources: &[&SourceDef]) {
    for def in sources {
        for capability in event::Capability::ALL {
            let gauge = telemetry.source_capability.with_label_values(&[def.name, capability.as_str()]);
            gauge.set(i64::from(def.capabilities.has(*capability) || def.of_some.has(*capability)));
        }
    }
}

/// What the owner is set up with; `scanning` are the sources that will say when their first scan is over.
fn owner_options(
    config: &Config,
    scanning: &[&SourceDef],
    folder: Option<std::path::PathBuf>,
) -> anyhow::Result<store::Options> {
    let names = |defs: &[&SourceDef]| defs.iter().map(|d| SourceId::from(d.name)).collect::<Vec<_>>();
    Ok(store::Options {
        max_tracked: config.max_tracked,
        retention: RETENTION,
        thresholds: config.thresholds::<Thresholds>()?,
        capabilities: LIST.iter().map(|d| (SourceId::from(d.name), d.capabilities)).collect(),
        pushed: push::DEF.capabilities,
        retell: LIST
            .iter()
            .map(|d| (SourceId::from(d.name), d.retells.iter().map(|s| SourceId::from(*s)).collect()))
            .collect(),
        see_stops: LIST.iter().filter(|d| d.sees_stops).map(|d| SourceId::from(d.name)).collect(),
        expected_scans: names(scanning),
        file_sources: names(&scanning.iter().copied().filter(|def| def.live.is_none()).collect::<Vec<_>>()),
        read_only_agents: config.read_only_agents.iter().map(|a| Name::from(a.as_str())).collect(),
        // Without a folder nothing is to leave either.
        spool: folder.as_ref().and_then(|_| spooled(config)),
        folder,
        traced: spooled(config).is_some(),
    })
}

/// What waits to be sent; nothing if nobody sends it.
fn spooled(config: &Config) -> Option<Keep> {
    let otlp = &config.otlp;
    let (spans, logs) = (otlp.settings.traces.is_some(), otlp.settings.logs.is_some());
    let keep = Keep { spans, logs, max_items: otlp.spool_max_items, max_bytes: otlp.spool_max_bytes };
    (spans || logs).then_some(keep)
}

/// Names this installation to whoever gets its spans: a UUID that follows from the key of the state folder.
fn instance(reducer: &Reducer) -> String {
    let [high, low] = [&b"service.instance.id"[..], b"service.instance.id, low"].map(|w| reducer.hash(w));
    let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xfff);
    // Version 8, of a form of our own, and the usual variant.
    format!("{a:08x}-{b:04x}-8{c:03x}-{:04x}-{:012x}", 0x8000 | low >> 50, low & 0xffff_ffff_ffff)
}

fn metrics(config: &Config, core: &Core) -> RenderMetrics {
    let renderer = renderer(config, core);
    Arc::new(move |snapshot, now, headers: &HeaderMap| -> Response {
        let text = |name| headers.get(name).and_then(|v: &HeaderValue| v.to_str().ok());
        let format = Format::negotiate(text(header::ACCEPT));
        let own = tracing::info_span!(target: OWN_TRACES, "scrape", bytes = tracing::field::Empty).entered();
        let body = renderer.body(snapshot, now, format);
        own.record("bytes", body.as_ref().len() as i64);
        let content_type = (header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
        let vary = (header::VARY, HeaderValue::from_static("accept, accept-encoding"));
        if exposition::accepts_gzip(text(header::ACCEPT_ENCODING)) {
            let encoding = (header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            ([content_type, vary, encoding], exposition::gzip(body.as_ref())).into_response()
        } else {
            ([content_type, vary], Bytes::from_owner(body)).into_response()
        }
    })
}

/// Serves until a signal, then stops in the order of the flow.
async fn run(config: Config, core: Core, listeners: Listeners) -> anyhow::Result<()> {
    let router = router(&config, &core, &listeners)?;
    let mut servers = Vec::new();
    for socket in listeners.sockets {
        let stop = core.stop.subscribe();
        servers.push(tokio::spawn(web::serve(socket, router.clone(), listeners.web.clone(), stop)));
    }
    drop(router);
    let stdin = config.stdin.then(|| push_source(&config, &core)).transpose()?;
    let stdin = stdin.map(|push| {
        let lines = tokio::io::BufReader::with_capacity(1 << 16, tokio::io::stdin());
        tokio::spawn(push::read_stdin(push, lines))
    });
    let lost = tokio::select! {
        signal = stop_signal() => signal.map(|()| false)?,
        () = ended(&core.store) => true,
    };
    tracing::info!("stopping");
    if let Some(stdin) = stdin {
        stdin.abort();
    }
    core.shut_down(servers).await?;
    anyhow::ensure!(!lost, "the task that owns the sessions ended by a bug");
    Ok(())
}

/// Waits for the owner to end, which it must not do by itself: without it nothing would be taken in any more, while
/// the last snapshot would be served for ever.
async fn ended(store: &Store) {
    while !store.thread.is_finished() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn stop_signal() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

// === impl Core ===

impl Core {
    fn start(
        config: &Config,
        opened: store::Opened,
        reducer: Arc<Reducer>,
        scanning: &[&SourceDef],
    ) -> anyhow::Result<Self> {
        let folder = Some(config.state_dir.clone());
        Self::start_with(config, opened, reducer, scanning, folder)
    }

    fn start_in_memory(config: &Config, scanning: &[&SourceDef]) -> anyhow::Result<Self> {
        let reducer = Arc::new(Reducer::new([0; 16], runners(config)));
        let opened =
            store::db::open(&store::db::memory_backend(), key_check(&reducer), Clock::system().now())?;
        let opened = opened.map_err(|_| anyhow::anyhow!("an empty store cannot be read"))?;
        Self::start_with(config, opened, reducer, scanning, None)
    }

    fn start_with(
        config: &Config,
        opened: store::Opened,
        reducer: Arc<Reducer>,
        scanning: &[&SourceDef],
        folder: Option<std::path::PathBuf>,
    ) -> anyhow::Result<Self> {
        let telemetry = Arc::new(Telemetry::new());
        let clock = Clock::system();
        offer_capabilities(&telemetry, LIST);
        telemetry.series_mode.with_label_values(&[config.series.as_str()]).set(1);
        let options = owner_options(config, scanning, folder)?;
        let store = store::spawn(opened, options, clock, reducer.clone(), telemetry.clone())?;
        Ok(Self {
            store,
            reducer,
            telemetry,
            clock,
            stop: watch::Sender::new(false),
            tasks: Vec::new(),
            shown: Arc::default(),
            metrics: None,
        })
    }

    /// Starts to send what waits, and metrics, if an endpoint is named.
    fn start_senders(&mut self, config: &Config) -> anyhow::Result<()> {
        for what in &config.otlp.settings.ignored {
            tracing::warn!("{what}");
        }
        let metrics = Metrics {
            settings: &config.otlp.settings,
            instance: &instance(&self.reducer),
            snapshots: self.store.snapshots.clone(),
            options: series(config),
            memory: self.shown.clone(),
            telemetry: self.telemetry.clone(),
            clock: self.clock,
            stop: self.stop.subscribe(),
        };
        self.metrics = metrics.start().context("OTLP")?;
        if spooled(config).is_none() {
            return Ok(());
        }
        let senders = Senders {
            settings: &config.otlp.settings,
            instance: &instance(&self.reducer),
            reader: self.store.spool.clone(),
            telemetry: self.telemetry.clone(),
            clock: self.clock,
            stop: self.stop.subscribe(),
            backoff: Backoff::default(),
        };
        // The store's thread does not end before they do.
        drop(senders.start().context("OTLP")?);
        Ok(())
    }

    /// Sends traces of the exporter itself where those of sessions go.
    fn send_own_traces(&self, config: &Config, own: Option<&OwnTraces>) -> anyhow::Result<()> {
        let settings = &config.otlp.settings;
        match (own, &settings.traces) {
            (Some(own), Some(target)) => {
                let encoder = Encoder::new(&settings.resource(&instance(&self.reducer)));
                own.send(target, encoder, self.clock).context("OTLP")?;
            }
            _ if config.otlp.own_traces => tracing::warn!("otlp.own_traces is on, but traces go nowhere"),
            _ => {}
        }
        Ok(())
    }

    /// Starts every file source that is on.
    fn start_sources(&mut self, config: &Config) {
        let cursors = std::mem::take(&mut self.store.cursors);
        for def in running_sources(config) {
            let Some(start) = def.start else { continue };
            let context = sources::Context {
                homes: config.home.clone(),
                roots: config.roots(def.name).to_vec(),
                live: config.live(def.name),
                machine: sources::live::machine(),
                max_age: config.history_max_age,
                reducer: self.reducer.clone(),
                out: if def.live.is_some() { self.store.streams.clone() } else { self.store.files.clone() },
                cursors: cursors.clone(),
                telemetry: self.telemetry.clone(),
                clock: self.clock,
                stop: self.stop.subscribe(),
            };
            self.tasks.push(start(context));
        }
    }

    /// Sources first, then what they sent is kept, then the views.
    async fn shut_down(self, servers: Vec<JoinHandle<Result<(), web::Error>>>) -> anyhow::Result<()> {
        let Self { store, stop, tasks, metrics, .. } = self;
        stop.send_replace(true);
        let everything = async move {
            for task in tasks {
                // A source that panicked has said so on its way.
                let _ = task.await;
            }
            let Store { live, streams, files, spool, thread, .. } = store;
            close([live, streams, files]);
            // Whoever sends holds a reader of its own for as long as it takes.
            drop(spool);
            for server in servers {
                let _ = server.await;
            }
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
            if let Some(metrics) = metrics {
                let _ = metrics.await;
            }
        };
        if tokio::time::timeout(FLUSH_WITHIN, everything).await.is_err() {
            tracing::warn!("something did not stop in time; what was acknowledged is kept");
        }
        Ok(())
    }
}

/// The owner ends when nobody can send to it any more.
fn close(lanes: [mpsc::Sender<Batch>; 3]) {
    drop(lanes);
}

/// What was found, one line per source.
fn found(config: &Config) -> Vec<String> {
    check::sources(config, false)
}

/// Says what was found and what to open.
fn greet(config: &Config, listeners: &Listeners, found: &[String]) {
    let mut out = std::io::stdout().lock();
    let scheme = if listeners.web.https() { "https" } else { "http" };
    let mut lines = vec![format!("agent-session-exporter {}", env!("CARGO_PKG_VERSION"))];
    lines.extend(found.iter().map(|line| format!("  {line}")));
    for address in &listeners.addresses {
        let base = format!("{scheme}://{address}");
        lines.push(format!("open    {base}/"));
        lines.push(format!("scrape  {base}{}", config.web.telemetry_path));
        if config.push.enabled {
            lines.push(format!("push    {base}/api/v1/events"));
        }
    }
    for line in lines {
        // Nobody may be left to read it; that is no reason not to serve.
        let _ = writeln!(out, "{line}");
    }
}

/// The families there are, for the documentation.
pub fn families() -> Vec<FamilyDoc> {
    let doc = |f: &Family, group, identity: &[&str]| FamilyDoc {
        name: f.name.to_owned(),
        kind: f.kind.as_str(),
        help: f.help.to_owned(),
        labels: identity.iter().chain(f.labels).map(|l| (*l).to_owned()).collect(),
        stability: f.stability.as_str(),
        group,
    };
    let sessions = families::session::FAMILIES.iter().map(|f| doc(f, "Per session", &families::IDENTITY));
    let sums = families::aggregate::FAMILIES.iter().map(|f| doc(f, "Over all sessions", &[]));
    let runs = families::orchestration::FAMILIES.iter().map(|f| doc(f, "Orchestrations", &[]));
    let telemetry = Telemetry::new();
    let own = telemetry.catalogue().iter().map(|f| FamilyDoc {
        name: f.name.clone(),
        kind: families::Kind::of_registry(f.kind).as_str(),
        help: f.help.clone(),
        labels: f.labels.clone(),
        stability: families::Stability::Experimental.as_str(),
        group: "The exporter itself",
    });
    sessions.chain(sums).chain(runs).chain(own).collect()
}
