//! The exporter's part from the spool on, with a store of its own, fed by the test.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::otlp::{Backoff, Protocol, Senders, Settings};
use agent_session_exporter::spans::Outgoing;
use agent_session_exporter::store::spool::Keep;
use agent_session_exporter::store::{Opened, Options};
use tokio::sync::watch;

use crate::common::disk::Disk;
use crate::common::owner::{Life, open, options};

pub(crate) use crate::made::{encoded, log, span, spans};

/// Patience of a test.
pub(crate) const LONG: Duration = Duration::from_secs(40);
pub(crate) const BOTH: [Protocol; 2] = [Protocol::Http, Protocol::Grpc];

/// What is kept unless a test says otherwise.
pub(crate) const KEEP: Keep = Keep { spans: true, logs: true, max_items: 200_000, max_bytes: 1 << 28 };

/// One run of the exporter.
pub(crate) struct Exporter {
    pub(crate) life: Life,
    pub(crate) runtime: tokio::runtime::Runtime,
    stop: watch::Sender<bool>,
}

/// The environment that sends everything there, without delay.
pub(crate) fn env(address: SocketAddr, protocol: Protocol) -> BTreeMap<String, String> {
    let pairs = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{address}")),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol.as_str().to_owned()),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "5000".to_owned()),
        ("OTEL_BSP_SCHEDULE_DELAY", "5".to_owned()),
        ("OTEL_BLRP_SCHEDULE_DELAY", "5".to_owned()),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "100".to_owned()),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

pub(crate) fn keeping(keep: Keep) -> Options {
    Options { spool: Some(keep), ..options() }
}

impl Exporter {
    pub(crate) fn start(disk: &Disk, env: &BTreeMap<String, String>) -> Self {
        Self::with(open(disk), env)
    }

    pub(crate) fn with(opened: Opened, env: &BTreeMap<String, String>) -> Self {
        let life = Life::with(opened, keeping(KEEP));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let stop = watch::Sender::new(false);
        let settings = Settings::read(env, None).unwrap();
        let senders = Senders {
            settings: &settings,
            instance: "test-instance",
            reader: life.store.spool.clone(),
            telemetry: life.telemetry.clone(),
            clock: Clock::system(),
            stop: stop.subscribe(),
            backoff: Backoff { first: Duration::from_millis(20), longest: Duration::from_millis(80) },
        };
        let entered = runtime.enter();
        drop(senders.start().unwrap());
        drop(entered);
        Self { life, runtime, stop }
    }

    /// Returns when it is durable.
    pub(crate) fn put(&self, items: impl IntoIterator<Item = Outgoing>) {
        self.runtime.block_on(self.life.store.spool.put(items.into_iter().collect()));
    }

    /// Items of all signals with this result.
    pub(crate) fn items(&self, result: &str) -> u64 {
        let of = |signal| self.life.telemetry.otlp_items.with_label_values(&[signal, result]).get();
        of("traces") + of("logs")
    }

    pub(crate) fn waiting(&self) -> i64 {
        self.life.telemetry.otlp_spool_items.get()
    }

    /// Waits until nothing waits.
    pub(crate) fn until_empty(&self) {
        until("the spool is empty", || self.waiting() == 0);
    }

    /// Stops as the program does.
    pub(crate) fn end(self) {
        self.stop.send_replace(true);
        self.life.end();
        self.runtime.shutdown_background();
    }

    /// Is no more, with whatever it was about to do.
    pub(crate) fn vanish(self) {
        self.runtime.shutdown_background();
        self.life.end();
    }
}

pub(crate) fn until(what: &str, is: impl Fn() -> bool) {
    let started = Instant::now();
    while !is() {
        assert!(started.elapsed() < LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(3));
    }
}
