//! A recording told to the source as the runner would tell it: questions are answered at once, a tick comes each
//! second, and connections break where the test says.

use std::sync::Arc;

use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{Event, Name, Reducer, SourceId, Timestamp};
use agent_session_exporter::sources::Record;
use agent_session_exporter::sources::live::{Answer, Ask, Opening, Peer, Said};
use agent_session_exporter::sources::opencode::Opencode;

use super::recorded::Line;
use super::world::World;
use crate::common::tape::Tape;

/// One exporter at one server.
pub(crate) struct Play {
    opening: Opening,
    peer: Opencode,
    pub(crate) world: World,
    /// Events in the order in which they were told, with the moment.
    pub(crate) events: Vec<(Timestamp, Event)>,
    pub(crate) asked: Vec<Ask>,
    pub(crate) unknown: Vec<String>,
    named: Vec<String>,
    now: Timestamp,
    saved: Option<Vec<u8>>,
    /// Answers are on their way until they `arrive`.
    pub(crate) slow: bool,
    late: Vec<(Ask, Answer)>,
    /// What the server said and answered.
    pub(crate) tape: Tape,
}

pub(crate) fn reducer() -> Arc<Reducer> {
    Arc::new(Reducer::new([7; 16], Runners::default()))
}

pub(crate) fn opening(endpoint: &str) -> Opening {
    Opening {
        source: SourceId::from("opencode"),
        endpoint: Name::from(endpoint),
        base: format!("http://{endpoint}"),
        reducer: reducer(),
    }
}

// === impl Play ===

impl Play {
    pub(crate) fn new() -> Self {
        Self::at("127.0.0.1:4096")
    }

    pub(crate) fn at(endpoint: &str) -> Self {
        let opening = opening(endpoint);
        Self {
            peer: Opencode::new(&opening, None),
            opening,
            world: World::default(),
            events: Vec::new(),
            asked: Vec::new(),
            unknown: Vec::new(),
            named: Vec::new(),
            now: Timestamp::default(),
            saved: None,
            slow: false,
            late: Vec::new(),
            tape: Tape::default(),
        }
    }

    /// The whole of a recording, with some time after its end.
    pub(crate) fn whole(scenario: &str) -> Self {
        let mut play = Self::new();
        for (i, lines) in super::recorded::connections(scenario).iter().enumerate() {
            if i > 0 {
                play.between(scenario);
            }
            play.connect(lines[0].at);
            for line in lines {
                play.line(line);
            }
            play.until(play.now.plus(2_000));
        }
        play.ends(scenario);
        play
    }

    /// What happened between two connections of a recording.
    pub(crate) fn between(&mut self, scenario: &str) {
        self.lost();
        if scenario == "server_restart" {
            self.world.restart();
        }
    }

    /// What happened after its last record.
    pub(crate) fn ends(&mut self, scenario: &str) {
        self.until(self.now.plus(5_000));
        if scenario == "v2_session" {
            self.world.interrupts();
            self.until(self.now.plus(45_000));
        }
        self.until(self.now.plus(5_000));
    }

    pub(crate) fn connect(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        self.named.clear();
        self.tape.connected(self.now, true);
        self.with(|peer, now, said| peer.connected(now, said));
    }

    pub(crate) fn lost(&mut self) {
        self.tape.connected(self.now, false);
        self.with(|peer, now, said| peer.lost(now, said));
    }

    /// The exporter ends without a word and begins again.
    pub(crate) fn exporter_restarts(&mut self) {
        self.peer = Opencode::new(&self.opening, self.saved.as_deref());
        self.connect(self.now);
    }

    pub(crate) fn saved(&self) -> &[u8] {
        self.saved.as_deref().unwrap_or_default()
    }

    /// Time passes, with a tick each second.
    pub(crate) fn until(&mut self, then: Timestamp) {
        while then.since(self.now) > 0 {
            let step = 1_000 - self.now.as_millis().rem_euclid(1_000);
            self.now = self.now.plus(step).min(then);
            self.with(|peer, now, said| peer.tick(now, said));
        }
    }

    /// One record, which the server's answers know of, too.
    pub(crate) fn line(&mut self, line: &Line) {
        self.until(line.at);
        self.world.take(&line.frame);
        self.hear(&serde_json::to_vec(&line.frame).unwrap()).unwrap();
    }

    /// One that is missed.
    pub(crate) fn missed(&mut self, line: &Line) {
        self.now = self.now.max(line.at);
        self.world.take(&line.frame);
    }

    pub(crate) fn hear(&mut self, bytes: &[u8]) -> Result<(), agent_session_exporter::sources::DecodeError> {
        if let Some(directory) = serde_json::from_slice::<serde_json::Value>(bytes)
            .ok()
            .and_then(|v| Some(v.get("directory")?.as_str()?.to_owned()))
        {
            self.named.push(directory);
        }
        self.tape.record(self.now, bytes);
        let mut result = Ok(());
        self.with(|peer, observed, said| result = peer.record(&Record { bytes, observed }, said));
        result
    }

    fn with(&mut self, run: impl FnOnce(&mut Opencode, Timestamp, &mut Said)) {
        let mut said = Said::default();
        run(&mut self.peer, self.now, &mut said);
        self.take(&mut said);
        let mut open: std::collections::VecDeque<Ask> = said.asks.drain(..).collect();
        while let Some(ask) = open.pop_front() {
            self.allowed(&ask);
            let (status, body) = self.world.answer(&ask.path, ask.query.as_deref());
            let body = if status == 200 { body.to_string().into_bytes() } else { Vec::new() };
            self.tape.answer(self.now, &ask.path, status, &body);
            let answer = Answer { status, body, next: self.world.next(&ask.path) };
            if self.slow {
                self.asked.push(ask.clone());
                self.late.push((ask, answer));
                continue;
            }
            self.peer.answered(&ask, &Ok(answer), self.now, &mut said).unwrap();
            self.take(&mut said);
            open.extend(said.asks.drain(..));
            self.asked.push(ask);
        }
        assert!(!self.peer.catching_up(), "everything is answered");
        self.saved = self.peer.changed().or(self.saved.take());
    }

    /// What was answered comes at last; records may have overtaken it. What it raises is asked as before.
    pub(crate) fn arrive(&mut self) {
        for (ask, answer) in std::mem::take(&mut self.late) {
            self.with(|peer, now, said| peer.answered(&ask, &Ok(answer), now, said).unwrap());
        }
    }

    fn take(&mut self, said: &mut Said) {
        assert!(!said.give_up);
        self.unknown.append(&mut said.unknown);
        let now = self.now;
        self.events.extend(said.events.drain(..).map(|event| (now, event)));
    }

    /// Only questions that change nothing, and directories that the stream has just named.
    fn allowed(&self, ask: &Ask) {
        assert_eq!(ask.query.is_some(), ask.path == "/sync/history", "{ask:?}");
        if let Some((_, directory)) = ask.path.split_once("directory=") {
            let directory = percent_encoding::percent_decode_str(directory).decode_utf8().unwrap();
            assert!(self.named.iter().any(|named| *named == directory), "{ask:?} would start an instance");
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }
}
