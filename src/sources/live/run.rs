//! Follows the servers of one source: a task per server that connects, hands its peer what comes, and begins again
//! after a loss, ever more slowly.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher as _;
use std::time::Duration;

use base64::Engine as _;
use futures_util::FutureExt as _;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::probe;
use super::servers::{Change, Server, Servers};
use super::{
    Answer, Ask, AskError, Context, LiveSource, Opening, Peer, Place, Said, Stream, Surroundings, Token,
    Trust,
};
use crate::event::reduce::stable_hash;
use crate::event::{Batch, Cursor, SourceHealth, SourceId, Timestamp};
use crate::ingest::client::{self, Client, secret};
use crate::ingest::stream::{self, Heard, SocketRequest};
use crate::sources::Record;

/// Time between looks at the file of servers.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Pause between two tries of a server that may not exist.
const LOOK_FOR_EVERY: Duration = Duration::from_secs(10);
/// A connection that held so long was a good one: pauses begin anew after it.
const GOOD_AFTER: Duration = Duration::from_secs(10);
/// Longest wait for a stream to open: a server that is about to start may accept connections that it never answers.
const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// Questions in a row without an answer after which the server counts as lost.
const MAX_UNANSWERED: u32 = 3;
/// Questions that wait.
const MAX_ASKS: usize = 4_096;
/// Bytes of records that wait for answers.
const MAX_HELD: usize = 64 << 20;
/// Records taken before what they said is handed on.
const MAX_AT_ONCE: usize = 256;
/// Events of a batch, about.
const MAX_EVENTS: usize = 512;

/// One source: its servers and the tasks that follow them.
pub(super) struct Run {
    source: &'static LiveSource,
    context: Context,
    surroundings: Surroundings,
}

struct Following {
    server: Server,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// One server being followed.
struct Endpoint {
    source: &'static LiveSource,
    server: Server,
    context: Context,
    stop: watch::Receiver<bool>,
    surroundings: Surroundings,
    peer: Box<dyn Peer>,
    endpoint: String,
    /// What tells two exporters of one server apart from two servers.
    store: String,
    cursor: u64,
    said: Said,
    /// What was last said of it: up, and since when.
    health: Option<(bool, Timestamp)>,
    /// The loss that was logged: an outage is logged once, however often the server seems to be back for a moment.
    logged: Option<AskError>,
    /// Records that could not be read, of this connection and of those before it that did not last.
    damaged: u64,
    was_up: bool,
    closed: bool,
}

// === impl Run ===

impl Run {
    pub(super) fn new(source: &'static LiveSource, context: Context, surroundings: Surroundings) -> Self {
        Self { source, context, surroundings }
    }

    pub(super) async fn until_stopped(self) {
        let Self { source, context, surroundings } = self;
        let mut stop = context.stop.clone();
        let mut servers = Servers::new(source, &context.live);
        let mut following: HashMap<Place, Following> = HashMap::new();
        let mut first = true;
        while !*stop.borrow() && !context.out.is_closed() {
            let change = servers.look();
            if matches!(change, Change::Broken | Change::Partly) {
                context.telemetry.decode_errors.with_label_values(&[source.name, "servers_file"]).inc();
            }
            if change == Change::Broken {
                tracing::warn!(
                    source = source.name,
                    "the file of servers cannot be read; the last list stays"
                );
            } else if change == Change::Partly {
                tracing::warn!(
                    source = source.name,
                    "the file of servers has entries that are no addresses; the others are followed"
                );
            }
            let wanted = servers.wanted();
            if wanted.is_empty() && first {
                // Nothing to look at is looked at at once.
                let health = health_of(source.name, "none", true, context.clock.now());
                let _ = context.out.send(Batch { health: Some(health), ..Batch::default() }).await;
            }
            first = false;
            let gone: Vec<Place> = following
                .iter()
                .filter(|(_, f)| !wanted.contains(&f.server) || f.task.is_finished())
                .map(|(place, _)| place.clone())
                .collect();
            for place in gone {
                if let Some(old) = following.remove(&place) {
                    old.stop.send_replace(true);
                    let _ = old.task.await;
                }
            }
            for server in wanted {
                following
                    .entry(server.place.clone())
                    .or_insert_with(|| follow(source, server, context.clone(), surroundings));
            }
            tokio::select! {
                // An error means that whoever could stop us is gone.
                _ = stop.changed() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
        for (_, old) in following {
            old.stop.send_replace(true);
            let _ = old.task.await;
        }
    }
}

fn follow(
    source: &'static LiveSource,
    server: Server,
    context: Context,
    surroundings: Surroundings,
) -> Following {
    let (stop, stopped) = watch::channel(false);
    let endpoint = Endpoint::new(source, server.clone(), context, stopped, surroundings);
    Following { server, stop, task: tokio::spawn(endpoint.until_stopped()) }
}

fn health_of(source: &str, endpoint: &str, up: bool, since: Timestamp) -> SourceHealth {
    SourceHealth { source: SourceId::from(source), endpoint: endpoint.into(), up, since, scanned: true }
}

/// What is sent with every question to log in; reads the secrets.
pub(super) fn headers_of(
    source: &LiveSource,
    server: &Server,
) -> Result<Vec<(&'static str, String)>, AskError> {
    let login = &server.login;
    let mut headers = Vec::new();
    if let Some(file) = &login.password_file {
        let user = login.username.as_deref().unwrap_or(source.username);
        let both = format!("{user}:{}", secret(file)?);
        let encoded = base64::engine::general_purpose::STANDARD.encode(both);
        headers.push(("authorization", format!("Basic {encoded}")));
    }
    if let Some(file) = &login.token_file {
        let token = secret(file)?;
        match source.token {
            Token::Bearer => headers.push(("authorization", format!("Bearer {token}"))),
            Token::Named { header, .. } => headers.push((header, token)),
        }
    }
    Ok(headers)
}

/// A client of the server.
pub(super) fn client_of(
    server: &Server,
    headers: &[(&'static str, String)],
    trust: &Trust,
) -> Result<Client, AskError> {
    let tls = server.place.tls.then(|| client::tls(trust)).transpose()?;
    Client::new(server.place.base(), headers, tls.as_deref())
}

async fn open(
    source: &LiveSource,
    server: &Server,
    trust: &Trust,
) -> Result<(Client, stream::Stream), AskError> {
    // Secrets are read each time: they may have been changed.
    let headers = headers_of(source, server)?;
    let client = client_of(server, &headers, trust)?;
    let within = source.patience.min(OPEN_WITHIN);
    if !server.configured && matches!(source.stream, Stream::Socket { hello: Some(_), .. }) {
        // Nothing is said to a program that merely happens to listen on a usual port.
        probe::answers(source, &client, within).await?;
    }
    let stream = match source.stream {
        Stream::Events { path } => stream::Stream::events(&client, path, within).await?,
        Stream::Socket { path, port_offset, hello } => {
            let place = &server.place;
            let port = place.port.checked_add(port_offset).ok_or(AskError::Connection)?;
            let tls = place.tls.then(|| client::tls(trust)).transpose()?;
            // The parameter of the stream stands for the header of questions.
            let (mut path, mut sent) = (format!("{}{path}", place.prefix), headers);
            if let Token::Named { header, query } = source.token
                && let Some(at) = sent.iter().position(|(name, _)| *name == header)
            {
                let (_, token) = sent.remove(at);
                path = format!("{path}?{query}={}", utf8_percent_encode(&token, NON_ALPHANUMERIC));
            }
            let at = Place { port, ..place.clone() };
            let (host, authority) = (place.host.as_str(), at.authority());
            let request = SocketRequest { host, port, authority, path, headers: &sent, tls, hello };
            stream::Stream::socket(request, within).await?
        }
    };
    Ok((client, stream))
}

/// Between three quarters and five quarters of it, so that many who lost one server do not come back at one moment.
fn jittered(pause: Duration) -> Duration {
    let random = std::hash::RandomState::new().hash_one(0u8) % 1000;
    pause.mul_f64(0.75 + random as f64 / 2000.0)
}

// === impl Endpoint ===

impl Endpoint {
    fn new(
        source: &'static LiveSource,
        server: Server,
        context: Context,
        stop: watch::Receiver<bool>,
        surroundings: Surroundings,
    ) -> Self {
        let endpoint = server.place.endpoint();
        let opening = Opening {
            source: SourceId::from(source.name),
            endpoint: endpoint.clone(),
            base: server.place.base(),
            reducer: context.reducer.clone(),
        };
        let cursor = context.reducer.hash(format!("live:{}:{}", source.name, endpoint.as_str()).as_bytes());
        let saved = context.cursors.get(&cursor).map(Vec::as_slice);
        let peer = (source.new)(&opening, saved);
        let store = format!("{:016x}", stable_hash((context.machine.as_str(), endpoint.as_str())));
        Self {
            source,
            server,
            context,
            stop,
            surroundings,
            peer,
            endpoint: endpoint.as_str().to_owned(),
            store,
            cursor,
            said: Said::default(),
            health: None,
            logged: None,
            damaged: 0,
            was_up: false,
            closed: false,
        }
    }

    async fn until_stopped(mut self) {
        let mut failures = 0u32;
        if self.server.configured {
            // Missed until it is followed, which may take long where it does not answer.
            let labels = [self.source.name, self.endpoint.as_str()];
            self.context.telemetry.source_up.with_label_values(&labels).set(0);
        }
        while !*self.stop.borrow() && !self.closed {
            let began = Instant::now();
            let lost = match self.open().await {
                Ok((client, stream)) => {
                    let lost = self.watch(client, stream).await;
                    if began.elapsed() >= GOOD_AFTER {
                        (failures, self.damaged) = (0, 0);
                    }
                    lost
                }
                Err(error) => Some(error),
            };
            let Some(error) = lost else { break };
            // To be told to stop is no loss.
            if *self.stop.borrow() {
                break;
            }
            self.down(error).await;
            let Surroundings { pause, longest_pause, .. } = self.surroundings;
            let longest = if self.server.configured { longest_pause } else { LOOK_FOR_EVERY };
            let pause = pause.saturating_mul(1 << failures.min(10)).min(longest);
            failures += 1;
            let mut stop = self.stop.clone();
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => {}
                () = tokio::time::sleep(jittered(pause)) => {}
            }
        }
        self.leave().await;
    }

    async fn open(&mut self) -> Result<(Client, stream::Stream), AskError> {
        let (source, server, trust) = (self.source, self.server.clone(), self.context.live.trust.clone());
        let mut stop = self.stop.clone();
        tokio::select! {
            opened = open(source, &server, &trust) => opened,
            _ = stop.wait_for(|stop| *stop) => Err(AskError::Ended),
        }
    }

    /// Follows an open stream until it is lost, and says why; `None` where we are to stop.
    async fn watch(&mut self, client: Client, mut stream: stream::Stream) -> Option<AskError> {
        let mut stop = self.stop.clone();
        let mut tick = tokio::time::interval(self.surroundings.tick);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut asks: VecDeque<Ask> = VecDeque::new();
        let mut asking: Option<JoinHandle<Result<Answer, AskError>>> = None;
        let mut asked: Option<Ask> = None;
        let mut held: VecDeque<(Vec<u8>, Timestamp)> = VecDeque::new();
        let mut held_bytes = 0;
        let mut unanswered = 0;
        let mut flush_at: Option<Instant> = None;
        let mut drained = false;
        let began = Instant::now();
        let mut last_heard = began;
        self.peer.connected(self.context.clock.now(), &mut self.said);
        let lost = loop {
            if self.said.give_up {
                break Some(AskError::Protocol);
            }
            asks.extend(self.said.asks.drain(..));
            if asks.len() > MAX_ASKS {
                break Some(AskError::Protocol);
            }
            if asking.is_none()
                && let Some(ask) = asks.pop_front()
            {
                let (client, path, query) = (client.clone(), ask.path.clone(), ask.query.clone());
                let within = self.source.patience;
                asking = Some(tokio::spawn(async move { client.ask(&path, query.as_deref(), within).await }));
                asked = Some(ask);
            }
            if !self.peer.catching_up() {
                // What was held may itself raise a question that has to be answered first.
                while !self.peer.catching_up()
                    && let Some((record, observed)) = held.pop_front()
                {
                    held_bytes -= record.len();
                    self.take(&record, observed);
                    if self.said.events.len() >= MAX_EVENTS {
                        self.flush().await;
                    }
                }
                self.up().await;
            }
            if !self.said.events.is_empty() {
                flush_at.get_or_insert_with(|| Instant::now() + self.surroundings.gather);
            }
            let due = flush_at.is_some_and(|at| at <= Instant::now());
            if due || self.said.events.len() >= MAX_EVENTS {
                self.flush().await;
                flush_at = None;
            }
            if self.closed {
                break None;
            }
            if std::mem::take(&mut drained) && !self.surroundings.gather.is_zero() {
                // What comes within a moment is read at once: waking up costs more than reading.
                tokio::time::sleep(self.surroundings.gather / 20).await;
            }
            let dead_at = self.source.quiet.map(|quiet| last_heard + quiet);
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break None,
                answer = answered(&mut asking) => {
                    asking = None;
                    let answer = answer.unwrap_or(Err(AskError::Protocol));
                    let failed = matches!(answer, Err(AskError::Connection | AskError::Timeout));
                    unanswered = if failed { unanswered + 1 } else { 0 };
                    // Some servers open their stream for everybody, and let only those ask who are logged in.
                    if self.peer.catching_up() && matches!(&answer, Ok(Answer { status: 401 | 403, .. })) {
                        break Some(AskError::Login);
                    }
                    if let Some(ask) = asked.take() {
                        self.hear(&ask, &answer);
                    }
                    if unanswered >= MAX_UNANSWERED {
                        break answer.err();
                    }
                }
                heard = stream.next() => {
                    let mut heard = heard;
                    last_heard = Instant::now();
                    let mut n = 0;
                    let error = loop {
                        match heard {
                            Ok(Heard::Record(record)) if self.peer.catching_up() || !held.is_empty() => {
                                held_bytes += record.len();
                                held.push_back((record, self.context.clock.now()));
                            }
                            Ok(Heard::Record(record)) => self.take(&record, self.context.clock.now()),
                            Ok(Heard::TooLong) => self.damage("too_long"),
                            Ok(Heard::Nothing) => {}
                            Err(error) => break Some(error),
                        }
                        n += 1;
                        if n >= MAX_AT_ONCE || self.said.events.len() >= MAX_EVENTS || !held.is_empty() {
                            break None;
                        }
                        match stream.next().now_or_never() {
                            Some(next) => heard = next,
                            None => {
                                drained = stream.reads_ahead();
                                break None;
                            }
                        }
                    };
                    if held_bytes > MAX_HELD {
                        break Some(AskError::TooLong);
                    }
                    if error.is_some() {
                        break error;
                    }
                }
                () = until(dead_at) => break Some(AskError::Silent),
                () = until(flush_at) => {}
                _ = tick.tick() => {
                    if began.elapsed() >= GOOD_AFTER && self.logged.take().is_some() {
                        tracing::info!(source = self.source.name, endpoint = self.endpoint, "server is followed again");
                    }
                    self.peer.tick(self.context.clock.now(), &mut self.said);
                    // A position may have moved without an event.
                    flush_at = Some(Instant::now());
                }
            }
        };
        if let Some(asking) = asking {
            asking.abort();
        }
        self.flush().await;
        stream.close().await;
        lost
    }

    /// One record for the peer.
    fn take(&mut self, bytes: &[u8], observed: Timestamp) {
        self.context.telemetry.records.with_label_values(&[self.source.name]).inc();
        self.context
            .telemetry
            .source_last_record
            .with_label_values(&[self.source.name])
            .set(observed.as_seconds());
        if let Err(error) = self.peer.record(&Record { bytes, observed }, &mut self.said) {
            self.damage(error.as_str());
        }
    }

    fn hear(&mut self, ask: &Ask, answer: &Result<Answer, AskError>) {
        if let Err(error) = answer {
            tracing::debug!(
                source = self.source.name,
                endpoint = self.endpoint,
                error = error.as_str(),
                "no answer"
            );
        }
        let now = self.context.clock.now();
        if let Err(error) = self.peer.answered(ask, answer, now, &mut self.said) {
            self.damage(error.as_str());
        }
    }

    fn damage(&mut self, reason: &str) {
        self.context.telemetry.decode_errors.with_label_values(&[self.source.name, reason]).inc();
        self.damaged += 1;
        let (source, endpoint) = (self.source.name, self.endpoint.as_str());
        if self.damaged == 1 {
            tracing::warn!(source, endpoint, reason, "a record cannot be read and is left out");
        } else {
            tracing::debug!(source, endpoint, reason, "a record cannot be read and is left out");
        }
    }

    /// Sends what was said, with the position that goes with it.
    async fn flush(&mut self) {
        for kind in self.said.unknown.drain(..) {
            self.context.telemetry.unknown_record(self.source.name, &kind);
        }
        let disagreements = std::mem::take(&mut self.said.disagreements);
        if disagreements > 0 {
            let labels = [self.source.name];
            self.context.telemetry.state_disagreements.with_label_values(&labels).inc_by(disagreements);
        }
        let value = self.peer.changed();
        let events = std::mem::take(&mut self.said.events);
        if events.is_empty() && value.is_none() {
            return;
        }
        let cursors = value.map(|v| Cursor { key: self.cursor, value: Some(v) }).into_iter().collect();
        self.send(Batch { events, cursors, ..Batch::default() }).await;
    }

    async fn send(&mut self, batch: Batch) {
        self.closed |= self.context.out.send(batch).await.is_err();
    }

    /// The server is followed.
    async fn up(&mut self) {
        if self.health.is_some_and(|(up, _)| up) {
            return;
        }
        let telemetry = self.context.telemetry.clone();
        let labels = [self.source.name, self.endpoint.as_str()];
        telemetry.source_up.with_label_values(&labels).set(1);
        let [source, endpoint] = labels;
        telemetry.source_info.with_label_values(&[source, endpoint, self.store.as_str()]).set(1);
        telemetry.last_scan.set(self.context.clock.now().as_seconds());
        if self.was_up {
            telemetry.source_reconnects.with_label_values(&[source]).inc();
        }
        if self.logged.is_none() || !self.was_up {
            tracing::info!(source, endpoint, again = self.was_up, "server is followed");
        } else {
            // Said once it lasts.
            tracing::debug!(source, endpoint, "server is followed again");
        }
        self.was_up = true;
        self.say_health(true).await;
    }

    /// The server is not there, or does not answer as it should.
    async fn down(&mut self, error: AskError) {
        let was_followed = self.health.is_some_and(|(up, _)| up);
        let now = self.context.clock.now();
        self.said.give_up = false;
        self.said.asks.clear();
        self.peer.lost(now, &mut self.said);
        self.flush().await;
        let labels = [self.source.name, self.endpoint.as_str()];
        let [source, endpoint] = labels;
        // One that may not exist is missed only if it went away from work.
        let missed = self.server.configured || (was_followed && self.peer.has_open());
        if missed {
            self.context.telemetry.source_up.with_label_values(&labels).set(0);
        } else if was_followed {
            let _ = self.context.telemetry.source_up.remove_label_values(&labels);
            let labels = [source, endpoint, self.store.as_str()];
            let _ = self.context.telemetry.source_info.remove_label_values(&labels);
        }
        let reason = error.as_str();
        let said_already = self.logged.is_some();
        if said_already || (!missed && error == AskError::Connection) {
            tracing::debug!(source, endpoint, reason, "server cannot be followed");
        } else if missed {
            tracing::warn!(source, endpoint, reason, "server cannot be followed; it is tried again");
        } else if was_followed {
            tracing::info!(source, endpoint, reason, "server is not followed any more");
        } else if error == AskError::Login {
            tracing::warn!(
                source,
                endpoint,
                reason,
                "server was found, but wants a login that is not configured"
            );
        } else {
            tracing::info!(source, endpoint, reason, "what listens there cannot be followed");
        }
        if missed || was_followed || error != AskError::Connection {
            self.logged = Some(error);
        }
        if self.health.is_none_or(|(up, _)| up) {
            self.say_health(false).await;
        }
    }

    /// Tells how the server is, behind everything that was said so far: a first scan is over with its events.
    async fn say_health(&mut self, up: bool) {
        self.flush().await;
        let now = self.context.clock.now();
        self.health = Some((up, now));
        let health = health_of(self.source.name, &self.endpoint, up, now);
        self.send(Batch { health: Some(health), ..Batch::default() }).await;
    }

    /// Nobody wants the server to be followed any more. At shutdown nothing is said: it goes on without us.
    async fn leave(mut self) {
        if *self.context.stop.borrow() || self.closed {
            return;
        }
        self.peer.lost(self.context.clock.now(), &mut self.said);
        self.flush().await;
        let labels = [self.source.name, self.endpoint.as_str()];
        let _ = self.context.telemetry.source_up.remove_label_values(&labels);
        self.say_health(false).await;
    }
}

async fn answered(
    asking: &mut Option<JoinHandle<Result<Answer, AskError>>>,
) -> Option<Result<Answer, AskError>> {
    match asking {
        Some(task) => task.await.ok(),
        None => std::future::pending().await,
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Tells this machine from others, without naming it.
pub fn machine() -> String {
    let text = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    format!("{:016x}", stable_hash(text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_differ_and_stay_near() {
        let pause = Duration::from_secs(8);
        let all: Vec<Duration> = (0..64).map(|_| jittered(pause)).collect();
        assert!(all.iter().all(|p| (6_000..10_000).contains(&p.as_millis())), "{all:?}");
        assert!(all.iter().any(|p| *p != all[0]), "{all:?}");
    }
}
