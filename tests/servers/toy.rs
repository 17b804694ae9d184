//! A source of one fact: a record `{"s": session, "n": number}` is work of that session; a session named in the
//! answer to `/list` is at work.

use std::time::Duration;

use agent_session_exporter::event::{
    ActivityClass, Capabilities, Event, Fact, Reducer, SessionId, SessionInfo, Timestamp,
};
use agent_session_exporter::sources::live::{
    Answer, Ask, AskError, LiveSource, Opening, Peer, Said, Stream, Token,
};
use agent_session_exporter::sources::{DecodeError, Record};

use super::common::follow::Stand;
use super::common::peer::{Asked, Kind, Reply, Rules, Server};

struct Toy {
    opening: Opening,
    waiting: bool,
    open: bool,
    seen: u32,
    saved: u32,
}

fn new(opening: &Opening, saved: Option<&[u8]>) -> Box<dyn Peer> {
    let seen = saved.map_or(0, |bytes| u32::from_le_bytes(bytes.try_into().unwrap()));
    Box::new(Toy { opening: opening.clone(), waiting: false, open: false, seen, saved: seen })
}

impl Toy {
    fn event(&self, session: &str, id: &str, at: Timestamp, fact: Fact) -> Event {
        let source = &self.opening.source;
        let mut event = Event::new(source, &SessionId::from(session), at, fact);
        event.id = Some(Reducer::event_id(&self.opening.reducer, source, session, id));
        event.time = Some(at);
        event
    }
}

impl Peer for Toy {
    fn connected(&mut self, _: Timestamp, said: &mut Said) {
        self.waiting = true;
        said.asks.push(Ask::get(1, "/list"));
    }

    fn lost(&mut self, _: Timestamp, _: &mut Said) {
        self.waiting = false;
    }

    fn record(&mut self, record: &Record<'_>, said: &mut Said) -> Result<(), DecodeError> {
        let value: serde_json::Value = serde_json::from_slice(record.bytes).map_err(|_| DecodeError::Json)?;
        let session = value["s"].as_str().ok_or(DecodeError::Shape)?;
        if let Some(n) = value["n"].as_u64() {
            self.seen += 1;
            let fact = Fact::Activity { class: ActivityClass::Work, message: false };
            said.events.push(self.event(session, &n.to_string(), record.observed, fact));
        }
        if let Some(path) = value["ask"].as_str() {
            said.asks.push(Ask::get(2, path));
        }
        if let Some(path) = value["query"].as_str() {
            said.asks.push(Ask::history(3, path, "{}".to_owned()));
        }
        Ok(())
    }

    fn answered(
        &mut self,
        ask: &Ask,
        answer: &Result<Answer, AskError>,
        now: Timestamp,
        said: &mut Said,
    ) -> Result<(), DecodeError> {
        if ask.tag != 1 {
            let what = match answer {
                Ok(answer) => format!("{}", answer.status),
                Err(error) => error.as_str().to_owned(),
            };
            said.unknown.push(format!("answer_{what}"));
            return Ok(());
        }
        self.waiting = false;
        let Ok(answer) = answer else {
            said.give_up = true;
            return Ok(());
        };
        let list: Vec<String> = serde_json::from_slice(&answer.body).map_err(|_| DecodeError::Json)?;
        self.open = !list.is_empty();
        for session in list {
            let info =
                SessionInfo { endpoint: Some(self.opening.endpoint.clone()), ..SessionInfo::default() };
            said.events.push(self.event(&session, "start", now, Fact::SessionStarted(info)));
        }
        Ok(())
    }

    fn tick(&mut self, _: Timestamp, _: &mut Said) {}

    fn catching_up(&self) -> bool {
        self.waiting
    }

    fn has_open(&self) -> bool {
        self.open
    }

    fn changed(&mut self) -> Option<Vec<u8>> {
        let changed = self.seen != self.saved;
        self.saved = self.seen;
        changed.then(|| self.seen.to_le_bytes().to_vec())
    }
}

pub(crate) fn events() -> LiveSource {
    LiveSource {
        name: "toy",
        servers: &[],
        stream: Stream::Events { path: "/stream" },
        quiet: None,
        patience: Duration::from_millis(500),
        health: &["/list"],
        token: Token::Named { header: "x-token", query: "token" },
        username: "toy",
        new,
    }
}

pub(crate) fn socket() -> LiveSource {
    let stream = Stream::Socket { path: "/ws", port_offset: 0, hello: None };
    LiveSource { stream, ..events() }
}

pub(crate) fn start() -> Timestamp {
    Timestamp::from_millis(1_780_000_000_000)
}

/// A stand for a source, which has to live as long as the program.
pub(crate) fn stand(source: LiveSource) -> Stand {
    Stand::new(Box::leak(Box::new(source)), Capabilities::default(), start())
}

/// A server of such a source, that lists these sessions.
pub(crate) fn rules(source: &LiveSource, list: &'static str) -> Rules {
    let kind = match source.stream {
        Stream::Events { path } => Kind::Events(path),
        Stream::Socket { path, .. } => Kind::Socket(path, &[]),
    };
    Rules::new(kind)
        .allow(|asked: &Asked| asked.method == "GET" && asked.plain() == "/list")
        .answer(move |_| Reply::json(200, list))
}

pub(crate) fn server(source: &LiveSource) -> Server {
    Server::start(rules(source, "[]"))
}

pub(crate) fn record(session: &str, n: u64) -> String {
    format!("{{\"s\": \"{session}\", \"n\": {n}}}")
}
