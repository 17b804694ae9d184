//! Recordings to a trace store: the spans and records that the running program would have told of them, with the same ids.
//! They are sent as they come up, each request until it has been acknowledged.

use std::io::Write as _;
use std::iter::Peekable;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::{Context as _, bail, ensure};

use super::super::{instance, owner_options, runners, runtime};
use super::{Replay, recorded};
use crate::clock::Clock;
use crate::config::Config;
use crate::event::{Event, Reducer, Timestamp};
use crate::otlp::task::MAX_REQUEST;
use crate::otlp::{Answer, Backoff, Encoder, Settings, Transport, Why};
use crate::spans::{Outgoing, Signal};
use crate::store;
use crate::store::offline::Offline;
use crate::telemetry::Telemetry;

/// Longer than a session without a word stays known: what is open then ends unseen.
const LOOK_ON_MS: i64 = 26 * 3_600_000;
/// What ended with the last record is told a little later.
const SETTLES_MS: i64 = 10_000;
/// The running program looks as often.
const TICK_MS: i64 = 1_000;
/// Nothing was told for so long: what follows now follows from hours of silence, and is looked for less often.
const QUIET_AFTER_MS: i64 = 60_000;
const QUIET_TICK_MS: i64 = 10_000;
/// Tries of one request in a row. Somebody waits in front of it; the files stay, and the same ids can be sent again.
const TRIES: u32 = 5;

/// What is sent over one way.
struct Lane {
    signal: Signal,
    transport: Transport,
    encoder: Arc<Encoder>,
    waiting: Vec<Outgoing>,
    /// Items of one request: fewer than wanted after one was too large, then one more each time.
    most: usize,
    wanted: usize,
    /// A server of gRPC had no room for the last item, though it was sent alone.
    full: bool,
    sent: u64,
    /// Items that the collector will never take.
    refused: u64,
}

/// Sends what the recordings tell.
pub(super) fn send(config: &Config, wanted: &Replay) -> anyhow::Result<()> {
    let settings = &config.otlp.settings;
    settings.ignored.iter().for_each(|what| tracing::warn!("{what}"));
    ensure!(
        settings.traces.is_some() || settings.logs.is_some(),
        "nowhere to send to: OTEL_EXPORTER_OTLP_ENDPOINT or otlp.endpoint has to name a collector"
    );
    // The few ids that hold a hash are those of the running program, if there ever was one.
    let key = store::db::known_key(&config.state_dir).unwrap_or_default();
    let reducer = Arc::new(Reducer::new(key, runners(config)));
    let telemetry = Arc::new(Telemetry::new());
    let events = recorded(config, wanted, &reducer, &telemetry)?;
    let encoder = Arc::new(Encoder::new(&settings.resource(&instance(&reducer))));
    let lanes = runtime()?.block_on(async {
        let mut lanes = lanes(settings, &encoder)?;
        tell(config, reducer, telemetry, events, &mut lanes).await?;
        for lane in &mut lanes {
            lane.flush().await?;
        }
        anyhow::Ok(lanes)
    })?;
    let told: Vec<String> =
        lanes.iter().map(|lane| format!("{} {}", lane.sent, words(lane.signal))).collect();
    // Whoever does not listen any more is not told.
    let _ = writeln!(std::io::stdout().lock(), "{} arrived", told.join(" and "));
    let refused: u64 = lanes.iter().map(|lane| lane.refused).sum();
    ensure!(refused == 0, "the collector refused {refused} spans or log records");
    Ok(())
}

const fn words(signal: Signal) -> &'static str {
    match signal {
        Signal::Traces => "spans",
        _ => "log records",
    }
}

fn lanes(settings: &Settings, encoder: &Arc<Encoder>) -> anyhow::Result<Vec<Lane>> {
    let lane = |signal: Signal| {
        settings.target(signal).map(|target| {
            anyhow::Ok(Lane {
                signal,
                transport: Transport::new(target, Clock::system()).context("OTLP")?,
                encoder: encoder.clone(),
                waiting: Vec::new(),
                most: target.batching.size,
                wanted: target.batching.size,
                full: false,
                sent: 0,
                refused: 0,
            })
        })
    };
    [Signal::Traces, Signal::Logs].into_iter().filter_map(lane).collect()
}

/// Tells the events to the store's own code at their times, and hands on what comes of it.
async fn tell(
    config: &Config,
    reducer: Arc<Reducer>,
    telemetry: Arc<Telemetry>,
    events: Vec<(Timestamp, Event)>,
    lanes: &mut [Lane],
) -> anyhow::Result<()> {
    let (Some((first, _)), Some((last, _))) = (events.first(), events.last()) else { return Ok(()) };
    let (first, last) = (*first, *last);
    // The future was not recorded: what is still open may go on.
    let until = last.plus(LOOK_ON_MS).min(Clock::system().now()).max(last.plus(SETTLES_MS));
    // One clock for the whole life of a process that replays once.
    let hand: &'static AtomicI64 = Box::leak(Box::new(AtomicI64::new(first.as_millis())));
    let options = store::Options { traced: true, ..owner_options(config, &[], None)? };
    let mut store = Offline::begin(options, Clock::held(hand), reducer, telemetry, first)?;
    let mut events = events.into_iter().peekable();
    let (mut now, mut heard) = (first, first);
    while now <= until {
        hand.store(now.as_millis(), Ordering::SeqCst);
        let due = std::iter::from_fn(|| events.next_if(|(at, _)| *at <= now));
        store.take(due.inspect(|_| heard = now).map(|(_, event)| event));
        store.pass();
        for item in store.outgoing(now) {
            if let Some(lane) = lanes.iter_mut().find(|lane| lane.carries(&item)) {
                lane.put(item).await?;
            }
        }
        now = next(now, heard, &mut events);
    }
    Ok(())
}

/// The next look: soon, or with the next event where little can happen before.
fn next(
    now: Timestamp,
    heard: Timestamp,
    events: &mut Peekable<impl Iterator<Item = (Timestamp, Event)>>,
) -> Timestamp {
    if now.since(heard) < QUIET_AFTER_MS {
        return now.plus(TICK_MS);
    }
    let later = now.plus(QUIET_TICK_MS);
    events.peek().map_or(later, |(at, _)| later.min(*at))
}

// === impl Lane ===

impl Lane {
    fn carries(&self, item: &Outgoing) -> bool {
        self.signal == item.signal()
    }

    async fn put(&mut self, item: Outgoing) -> anyhow::Result<()> {
        self.waiting.push(item);
        if self.waiting.len() >= self.most { self.flush().await } else { Ok(()) }
    }

    /// Sends all that waits.
    async fn flush(&mut self) -> anyhow::Result<()> {
        while !self.waiting.is_empty() {
            let n = self.waiting.len().min(self.most);
            let body = self.encoder.request(self.signal, self.waiting[..n].to_vec());
            if body.len() > MAX_REQUEST && n > 1 {
                self.most = n / 2;
                continue;
            }
            if self.deliver(body.into(), n).await? {
                self.waiting.drain(..n);
            }
        }
        Ok(())
    }

    /// Sends one request until it is acknowledged; false if it has to be a smaller one.
    async fn deliver(&mut self, body: bytes::Bytes, n: usize) -> anyhow::Result<bool> {
        let items = n as u64;
        let mut tries = 0;
        loop {
            let answer = self.transport.send(self.signal, body.clone()).await;
            let no_room = matches!(answer, Answer::TooLarge(Why::Code(_)));
            let (why, after) = match answer {
                Answer::Taken { rejected, .. } => {
                    let rejected = rejected.min(items);
                    self.sent += items - rejected;
                    self.refused += rejected;
                    self.most = (self.most + 1).min(self.wanted);
                    self.full = false;
                    return Ok(true);
                }
                Answer::TooLarge(_) if n > 1 => {
                    self.most = n / 2;
                    return Ok(false);
                }
                // A server of gRPC says the same when it has no room. One item may be too large; with a second in a row
                // there is no room for any.
                Answer::TooLarge(why) if no_room && (self.full || tries + 1 < TRIES) => (why, None),
                Answer::TooLarge(why) | Answer::Refused(why) => {
                    tracing::warn!(items, reason = %why, "the collector refuses items");
                    self.refused += items;
                    self.full = no_room;
                    return Ok(true);
                }
                Answer::Misled(why) => {
                    bail!("OTLP is not set up as the collector wants it: {why}; {}", self.so_far());
                }
                Answer::Later { why, after } => (why, after),
                Answer::Failed(why) => (why, None),
            };
            tries += 1;
            ensure!(tries < TRIES, "the collector took nothing in {TRIES} tries: {why}; {}", self.so_far());
            let pause = Backoff::default().pause(tries - 1);
            let pause = after.filter(|after| !after.is_zero()).unwrap_or(pause);
            tracing::warn!(reason = %why, tries, "nothing arrives by OTLP; it is tried again");
            tokio::time::sleep(pause).await;
        }
    }

    fn so_far(&self) -> String {
        format!("{} {} had arrived", self.sent, words(self.signal))
    }
}
