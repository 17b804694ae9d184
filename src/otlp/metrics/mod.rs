//! Metrics over OTLP: what `/metrics` shows, sent at equal intervals. Built as protobuf, because the SDK knows neither so
//! many points nor the end of a series.
//!
//! Nothing waits in the spool: sums are cumulative, so that the next export replaces one that did not arrive. Which series
//! the collector has is remembered as long as the process lives; those that ended while it did not are found stale by
//! whoever reads them.

mod points;
mod requests;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prost::Message as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

pub use self::points::{Measure, Metric, Point, points};
pub use self::requests::{Limits, Request, Requests};
use super::answer::{Answer, Why};
use super::encode::Encoder;
use super::send::{SetupError, Transport};
use super::settings::Settings;
use crate::clock::Clock;
use crate::session::Snapshot;
use crate::spans::Signal;
use crate::telemetry::Telemetry;
use crate::views::selection::{Memory, Options};

/// How long may be waited for the last snapshot after the word to stop.
const LAST_SNAPSHOT_WITHIN: Duration = Duration::from_secs(2);
/// How long the last export may take after that, of the 5 s that everything has.
const LAST_EXPORT_WITHIN: Duration = Duration::from_secs(2);

/// What the exporter of metrics needs.
#[derive(Debug)]
pub struct Metrics<'a> {
    /// Where to, how and how often.
    pub settings: &'a Settings,
    /// Names this installation, the same after a restart.
    pub instance: &'a str,
    /// What is shown.
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    /// Which sessions have series.
    pub options: Options,
    /// Which had, shared with whoever answers scrapes.
    pub memory: Arc<Mutex<Memory>>,
    /// Metrics about the exporter itself.
    pub telemetry: Arc<Telemetry>,
    /// The time of the points.
    pub clock: Clock,
    /// True when it is time for the last export.
    pub stop: watch::Receiver<bool>,
}

/// Sends them.
#[derive(Debug)]
struct Exporter {
    transport: Transport,
    interval: Duration,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    options: Options,
    memory: Arc<Mutex<Memory>>,
    telemetry: Arc<Telemetry>,
    clock: Clock,
    stop: watch::Receiver<bool>,
    requests: Requests,
    /// The collector wants to be left alone until then.
    not_before: Option<Instant>,
    is_down: bool,
}

// === impl Metrics ===

impl Metrics<'_> {
    /// Starts the task if metrics go somewhere. It ends by itself, after a last export that waits for the owner of the
    /// snapshots to end.
    ///
    /// # Errors
    /// The settings name something that cannot be used.
    pub fn start(self) -> Result<Option<JoinHandle<()>>, SetupError> {
        let Some(target) = self.settings.target(Signal::Metrics) else { return Ok(None) };
        let encoder = Encoder::new(&self.settings.resource(self.instance));
        let exporter = Exporter {
            transport: Transport::new(target, self.clock)?,
            interval: self.settings.metric_interval,
            snapshots: self.snapshots,
            options: self.options,
            memory: self.memory,
            telemetry: self.telemetry,
            clock: self.clock,
            stop: self.stop,
            requests: Requests::new(encoder, Limits::default()),
            not_before: None,
            is_down: false,
        };
        Ok(Some(tokio::spawn(exporter.run())))
    }
}

// === impl Exporter ===

impl Exporter {
    async fn run(mut self) {
        for result in ["sent", "rejected", "refused", "failed"] {
            self.count(result, 0);
        }
        let mut ticks = tokio::time::interval_at(Instant::now() + self.interval, self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stop = self.stop.clone();
        loop {
            tokio::select! {
                // Whoever could say so being gone is a reason as well.
                _ = stop.wait_for(|stop| *stop) => break,
                _ = ticks.tick() => {}
            }
            if self.not_before.is_some_and(|moment| Instant::now() < moment) {
                continue;
            }
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                () = self.export() => {}
            }
        }
        let mut snapshots = self.snapshots.clone();
        let last = async move { while snapshots.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(LAST_SNAPSHOT_WITHIN, last).await;
        let _ = tokio::time::timeout(LAST_EXPORT_WITHIN, self.export()).await;
    }

    /// Sends everything as it is now.
    async fn export(&mut self) {
        let requests = {
            let snapshot = self.snapshots.borrow().clone();
            let now = self.clock.now();
            let selected = {
                let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
                self.options.select(&snapshot, now, &mut memory)
            };
            if selected.evicted > 0 {
                self.telemetry.sessions_evicted.with_label_values(&["limit"]).inc_by(selected.evicted);
            }
            let metrics = points(&snapshot, &selected, self.options.mode, &self.telemetry, now);
            self.requests.of(metrics, now)
        };
        let mut left: u64 = requests.iter().map(|r| r.points).sum();
        for request in requests {
            let body = request.message.encode_to_vec().into();
            let answer = self.transport.send(Signal::Metrics, body).await;
            let goes_on = self.learn(answer, &request);
            left -= request.points;
            if !goes_on {
                self.count("failed", left);
                break;
            }
        }
    }

    /// What an answer means; false if the rest of an export had better not be tried.
    fn learn(&mut self, answer: Answer, request: &Request) -> bool {
        let points = request.points;
        match answer {
            Answer::Taken { rejected, message } => {
                let rejected = rejected.min(points);
                self.count("sent", points - rejected);
                self.count("rejected", rejected);
                if rejected > 0 {
                    tracing::warn!(signal = "metrics", rejected, "the collector rejected points");
                }
                if !message.is_empty() {
                    tracing::debug!(message, "the collector says");
                }
                self.requests.arrived(request);
                self.not_before = None;
                if std::mem::take(&mut self.is_down) {
                    tracing::warn!(signal = "metrics", "metrics arrive by OTLP again");
                }
                true
            }
            Answer::TooLarge(_) if self.requests.halve() => {
                self.count("failed", points);
                true
            }
            Answer::TooLarge(why) | Answer::Refused(why) => {
                self.refuse(why, points);
                true
            }
            Answer::Failed(why) | Answer::Misled(why) => {
                self.fail(why, points);
                false
            }
            Answer::Later { why, after } => {
                self.not_before = after.map(|after| Instant::now() + after);
                self.fail(why, points);
                false
            }
        }
    }

    fn refuse(&mut self, why: Why, points: u64) {
        if !std::mem::replace(&mut self.is_down, true) {
            tracing::warn!(signal = "metrics", points, reason = %why, "the collector refuses metrics");
        }
        self.count("refused", points);
    }

    fn fail(&mut self, why: Why, points: u64) {
        if !std::mem::replace(&mut self.is_down, true) {
            tracing::warn!(signal = "metrics", reason = %why, "metrics do not arrive by OTLP; the next ones replace them");
        }
        self.count("failed", points);
    }

    fn count(&self, result: &str, n: u64) {
        self.telemetry.otlp_items.with_label_values(&[Signal::Metrics.as_str(), result]).inc_by(n);
    }
}
