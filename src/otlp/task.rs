//! The senders: one task a signal. Each takes the oldest items, sends them, and lets go of them when the collector has them:
//! one request at a time, in order. While that fails everything waits in the spool, and nobody else notices.

use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::answer::{Answer, Why};
use super::encode::Encoder;
use super::send::{SetupError, Transport};
use super::settings::{Batching, Settings};
use crate::clock::Clock;
use crate::spans::{Outgoing, Signal};
use crate::store::spool::{SpoolReader, State, Waiting};
use crate::telemetry::Telemetry;

/// Longest request that is sent with more than one item in it; many servers take 4 MiB.
pub const MAX_REQUEST: usize = 2 << 20;
/// Bytes of the items of one request as they lie in the spool, where names of attributes are single bytes.
const MAX_STORED: usize = 256 << 10;
/// A server that fails over the same items so often will never take them.
const MAX_FAILURES: u32 = 5;
/// Requests in a row that have to arrive before larger ones are tried again.
const UNTIL_LARGER: u32 = 64;
/// How long senders may go on after the word to stop, of the 5 s that everything has.
const LAST_TRY_WITHIN: Duration = Duration::from_secs(4);

/// Pauses between tries.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The first.
    pub first: Duration,
    /// The longest; each is twice the one before.
    pub longest: Duration,
}

/// What the senders need.
#[derive(Debug)]
pub struct Senders<'a> {
    /// Where to and how.
    pub settings: &'a Settings,
    /// Names this installation, the same after a restart.
    pub instance: &'a str,
    /// What waits.
    pub reader: SpoolReader,
    /// Counters.
    pub telemetry: Arc<Telemetry>,
    /// The time, for servers that say until when.
    pub clock: Clock,
    /// True when it is time for a last try.
    pub stop: watch::Receiver<bool>,
    /// Pauses between tries.
    pub backoff: Backoff,
}

/// Sends one signal.
#[derive(Debug)]
pub struct Sender {
    signal: Signal,
    transport: Transport,
    encoder: Arc<Encoder>,
    reader: SpoolReader,
    state: watch::Receiver<State>,
    stop: watch::Receiver<bool>,
    telemetry: Arc<Telemetry>,
    batching: Batching,
    backoff: Backoff,
    /// The last item that was dealt with.
    after: Option<u64>,
    /// Items of one request, fewer than wanted after one was too large.
    most: usize,
    /// Requests that arrived since.
    arrived: u32,
    /// Tries in vain since the last request that arrived.
    tries: u32,
    /// Times in a row the server failed over the same items.
    failures: u32,
    outage: Option<Outage>,
}

/// What was said of an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    Passing,
    NeedsSomebody,
}

/// What to do after a request.
enum Next {
    /// The items are dealt with: the collector has all of them.
    Gone,
    /// They are dealt with, and it does not have all.
    Lost,
    /// The same again, perhaps fewer, after a pause.
    Again(Duration),
}

// === impl Backoff ===

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), longest: Duration::from_secs(60) }
    }
}

impl Backoff {
    /// The pause after so many tries: half of it is left to chance, so that senders do not come back all at once.
    pub fn pause(self, tries: u32) -> Duration {
        let whole = self.first.saturating_mul(1 << tries.min(16)).min(self.longest);
        let chance = std::hash::RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64;
        whole.mul_f64(0.5 + chance / 2.0)
    }
}

// === impl Senders ===

impl Senders<'_> {
    /// Starts a task for each signal that goes somewhere. They end by themselves after the word to stop, and the owner of
    /// the store waits for that.
    ///
    /// # Errors
    /// The settings name something that cannot be used.
    pub fn start(self) -> Result<Vec<JoinHandle<()>>, SetupError> {
        let encoder = Arc::new(Encoder::new(&self.settings.resource(self.instance)));
        let mut tasks = Vec::new();
        for signal in [Signal::Traces, Signal::Logs] {
            let Some(target) = self.settings.target(signal) else {
                tasks.push(tokio::spawn(discard(signal, self.reader.clone(), self.telemetry.clone())));
                continue;
            };
            let sender = Sender {
                signal,
                transport: Transport::new(target, self.clock)?,
                encoder: encoder.clone(),
                reader: self.reader.clone(),
                state: self.reader.state(),
                stop: self.stop.clone(),
                telemetry: self.telemetry.clone(),
                batching: target.batching,
                backoff: self.backoff,
                after: None,
                most: target.batching.size,
                arrived: 0,
                tries: 0,
                failures: 0,
                outage: None,
            };
            tasks.push(tokio::spawn(sender.run()));
        }
        Ok(tasks)
    }
}

/// Lets go of what waits from a time when this signal went somewhere.
async fn discard(signal: Signal, reader: SpoolReader, telemetry: Arc<Telemetry>) {
    let mut after = None;
    while let Ok(waiting) = reader.oldest(signal, after, 1024, MAX_STORED).await {
        let Some(last) = waiting.items.last() else { break };
        after = Some(last.number);
        let n = waiting.items.len() as u64;
        telemetry.otlp_items.with_label_values(&[signal.as_str(), "dropped"]).inc_by(n);
        reader.left(waiting.items.iter().map(|w| w.number).collect()).await;
    }
}

// === impl Sender ===

impl Sender {
    /// Sends until nothing more will come, or until it is too late.
    pub async fn run(mut self) {
        for result in ["sent", "rejected", "refused"] {
            self.count(result, 0);
        }
        let mut stop = self.stop.clone();
        let too_late = async {
            // Whoever could say so being gone is a reason as well.
            let _ = stop.wait_for(|stop| *stop).await;
            tokio::time::sleep(LAST_TRY_WITHIN).await;
        };
        tokio::select! {
            () = self.work() => {}
            () = too_late => {}
        }
    }

    async fn work(&mut self) {
        let mut first_seen = None;
        loop {
            let state = *self.state.borrow_and_update();
            let read = self.reader.oldest(self.signal, self.after, self.most, MAX_STORED).await;
            let (waiting, more) = match read {
                Ok(oldest) => (oldest.items, oldest.more),
                Err(e) => {
                    // The store says more when it cannot be written either.
                    tracing::debug!(error = %e, "the spool cannot be read");
                    if !self.pause(self.backoff.first).await {
                        return;
                    }
                    continue;
                }
            };
            if waiting.is_empty() {
                first_seen = None;
                if state.last || self.state.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let missing = self.most.saturating_sub(waiting.len()) as u64;
            if missing > 0 && !more && !state.last && self.tries == 0 {
                let until = *first_seen.get_or_insert_with(Instant::now) + self.batching.delay;
                if Instant::now() < until {
                    self.gather(until, state.next + missing).await;
                    continue;
                }
            }
            first_seen = None;
            match self.deal_with(waiting).await {
                Next::Gone | Next::Lost => {}
                Next::Again(pause) if !self.pause(pause).await => return,
                Next::Again(_) => {}
            }
        }
    }

    /// Waits for more, until a request may be full, as so many came, or this moment comes.
    async fn gather(&mut self, until: Instant, full: u64) {
        let state = &mut self.state;
        let more = async move { state.wait_for(|s| s.next >= full || s.last).await.is_ok() };
        if let Ok(false) = tokio::time::timeout_at(until, more).await {
            // Nobody will say more.
            tokio::time::sleep_until(until).await;
        }
    }

    /// Waits; false if there is no time for another try.
    async fn pause(&mut self, pause: Duration) -> bool {
        // A try after the word to stop was the last.
        if *self.stop.borrow() && !pause.is_zero() {
            return false;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = self.stop.wait_for(|stop| *stop) => {}
        }
        true
    }

    /// Sends these items, or some of the first of them.
    async fn deal_with(&mut self, waiting: Vec<Waiting>) -> Next {
        let numbers: Vec<u64> = waiting.iter().map(|w| w.number).collect();
        let items: Vec<Outgoing> = waiting.into_iter().filter_map(|w| w.item).collect();
        let unreadable = (numbers.len() - items.len()) as u64;
        let n = items.len();
        let spans = items.iter().filter_map(|item| match item {
            Outgoing::Span(span) => Some(span.context.span.0),
            Outgoing::Log(_) => None,
        });
        let spans: Vec<[u8; 8]> = spans.collect();
        let next = if n == 0 {
            Next::Gone
        } else {
            let body = Bytes::from(self.encoder.request(self.signal, items));
            let answer = if body.len() > MAX_REQUEST && n > 1 {
                Answer::TooLarge(Why::Status(413))
            } else {
                self.transport.send(self.signal, body).await
            };
            self.learn(answer, n)
        };
        if matches!(next, Next::Gone | Next::Lost) {
            if unreadable > 0 {
                tracing::error!(items = unreadable, "damaged items of the spool are left out");
                self.count("dropped", unreadable);
            }
            self.after = numbers.last().copied();
            // Before that is durable nothing more is sent: a crash repeats one request at most.
            match next {
                // Of some it is not said which: no example names any of them.
                Next::Lost => self.reader.lost(numbers, spans).await,
                _ => self.reader.left(numbers).await,
            }
        }
        next
    }

    /// What an answer means for the `n` items it is about.
    fn learn(&mut self, answer: Answer, n: usize) -> Next {
        let items = n as u64;
        match answer {
            Answer::Taken { rejected, message } => {
                let rejected = rejected.min(items);
                self.count("sent", items - rejected);
                self.count("rejected", rejected);
                if rejected > 0 {
                    tracing::warn!(signal = self.signal.as_str(), rejected, "the collector rejected items");
                }
                if !message.is_empty() {
                    tracing::debug!(message, "the collector says");
                }
                self.is_up();
                if rejected > 0 { Next::Lost } else { Next::Gone }
            }
            Answer::TooLarge(_) if n > 1 => {
                self.most = n / 2;
                self.arrived = 0;
                Next::Again(Duration::ZERO)
            }
            // A server of gRPC says the same when it has no room, which may pass.
            Answer::TooLarge(why @ Why::Code(_)) | Answer::Failed(why) => self.fail(why, items),
            Answer::TooLarge(why) | Answer::Refused(why) => {
                self.refuse(why, items);
                self.is_up();
                Next::Lost
            }
            Answer::Later { why, after } => self.wait(why, after),
            Answer::Misled(why) => {
                if self.outage != Some(Outage::NeedsSomebody) {
                    let signal = self.signal.as_str();
                    tracing::error!(signal, reason = %why, "OTLP is not set up as the collector wants it; everything waits");
                }
                self.outage = Some(Outage::NeedsSomebody);
                self.again(None)
            }
        }
    }

    fn refuse(&self, why: Why, items: u64) {
        let signal = self.signal.as_str();
        tracing::warn!(signal, items, reason = %why, "the collector refuses items; they are left out");
        self.count("refused", items);
    }

    /// The server failed. It may be over these items, which therefore do not hold up the rest for ever; it may be over
    /// everything, and then as few as possible are lost: pauses grow on until a request arrives.
    fn fail(&mut self, why: Why, items: u64) -> Next {
        self.failures += 1;
        if self.failures < MAX_FAILURES {
            return self.wait(why, None);
        }
        self.refuse(why, items);
        self.failures = 0;
        Next::Lost
    }

    fn wait(&mut self, why: Why, after: Option<Duration>) -> Next {
        if self.outage.is_none() {
            tracing::warn!(signal = self.signal.as_str(), reason = %why, "nothing arrives by OTLP; everything waits");
            self.outage = Some(Outage::Passing);
        }
        self.again(after)
    }

    fn again(&mut self, after: Option<Duration>) -> Next {
        let pause = self.backoff.pause(self.tries);
        self.tries = self.tries.saturating_add(1);
        // Who wants to be asked again at once gets the pauses of who says nothing.
        Next::Again(after.filter(|after| !after.is_zero()).unwrap_or(pause))
    }

    fn is_up(&mut self) {
        (self.tries, self.failures) = (0, 0);
        if self.outage.take().is_some() {
            tracing::warn!(signal = self.signal.as_str(), "items arrive by OTLP again");
        }
        self.arrived += 1;
        if self.most < self.batching.size && self.arrived >= UNTIL_LARGER {
            self.most = (self.most * 2).min(self.batching.size);
            self.arrived = 0;
        }
    }

    fn count(&self, result: &str, n: u64) {
        self.telemetry.otlp_items.with_label_values(&[self.signal.as_str(), result]).inc_by(n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        let backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };
        for (tries, most) in [(0, 1), (1, 2), (3, 8), (6, 60), (40, 60)] {
            let pause = backoff.pause(tries);
            assert!(
                pause <= Duration::from_secs(most) && pause >= Duration::from_secs(most) / 2,
                "{pause:?}"
            );
        }
        assert!((0..20).any(|_| backoff.pause(0) != backoff.pause(0)));
    }
}
