//! Plays a recording to a peer: records and ticks at their times, answers as the server would give them.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{Event, Fact, Name, Reducer, SessionId, SourceId, Timestamp};
use agent_session_exporter::session::snapshot::{Snapshot, Tree};
use agent_session_exporter::session::{Aggregates, Derived, Facts, Session, Thresholds, derive};
use agent_session_exporter::sources::live::{Answer, Ask, Opening, Peer, Said};
use agent_session_exporter::sources::openfox::{DEF, OpenFox};
use agent_session_exporter::sources::{DecodeError, Record};

use super::recorded::{Recording, What};
use crate::common::tape::Tape;

pub(crate) fn source() -> SourceId {
    SourceId::from("openfox")
}

pub(crate) fn reducer() -> Arc<Reducer> {
    Arc::new(Reducer::new([7; 16], Runners::default()))
}

pub(crate) fn opening() -> Opening {
    Opening {
        source: source(),
        endpoint: Name::from("127.0.0.1:10369"),
        base: "http://127.0.0.1:10369".to_owned(),
        reducer: reducer(),
    }
}

/// A peer, what it said, and the fold of that.
pub(crate) struct Play<'a> {
    recording: &'a Recording,
    pub(crate) peer: OpenFox,
    pub(crate) now: Timestamp,
    connected: bool,
    next_tick: Timestamp,
    pub(crate) events: Vec<Event>,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    pub(crate) aggregates: Aggregates,
    pub(crate) asked: Vec<String>,
    pub(crate) unknown: Vec<String>,
    pub(crate) disagreements: u64,
    /// The server is too old to have a status of its sessions.
    pub(crate) no_status: bool,
    /// States in the order they were seen: session, since, state and reason.
    pub(crate) states: Vec<(SessionId, Timestamp, String)>,
    pub(crate) kept: Option<Vec<u8>>,
    /// States on the way are of no interest.
    blind: bool,
    /// What the server said and answered.
    pub(crate) tape: Tape,
    full_seconds: bool,
    /// Answers are on their way until they `arrive`.
    pub(crate) slow: bool,
    late: Vec<(Ask, Answer)>,
}

impl<'a> Play<'a> {
    pub(crate) fn new(recording: &'a Recording) -> Self {
        let now = recording.lines[0].0;
        Self {
            recording,
            peer: OpenFox::new(&opening(), None),
            now,
            connected: false,
            next_tick: now,
            events: Vec::new(),
            sessions: BTreeMap::new(),
            aggregates: Aggregates::default(),
            asked: Vec::new(),
            unknown: Vec::new(),
            disagreements: 0,
            no_status: false,
            states: Vec::new(),
            kept: None,
            blind: false,
            tape: Tape::default(),
            full_seconds: false,
            slow: false,
            late: Vec::new(),
        }
    }

    /// The same without states on the way, which are costly.
    pub(crate) fn blind(recording: &'a Recording) -> Self {
        Self { blind: true, ..Self::new(recording) }
    }

    /// The whole recording, and half a minute after it.
    pub(crate) fn of(recording: &'a Recording) -> Self {
        Self::new(recording).whole()
    }

    /// The same with its ticks at full seconds, as `replay` plays it.
    pub(crate) fn in_full_seconds(recording: &'a Recording) -> Self {
        Self { full_seconds: true, ..Self::blind(recording) }.whole()
    }

    fn whole(self) -> Self {
        let recording = self.recording;
        let mut play = self;
        for (at, what) in &recording.lines {
            play.move_to(*at);
            play.line(what);
        }
        play.move_to(recording.end().plus(30_000));
        play
    }

    /// From now on the server is the one of this recording.
    pub(crate) fn serve(&mut self, recording: &'a Recording) {
        self.recording = recording;
    }

    pub(crate) fn line(&mut self, what: &What) {
        match what {
            What::Opened => self.connect(),
            What::Closed => self.lose(),
            What::Frame(frame) => {
                self.frame(frame).unwrap_or_else(|e| panic!("{}: {e}: {frame}", self.recording.name));
            }
        }
    }

    pub(crate) fn connect(&mut self) {
        assert!(!self.connected);
        self.connected = true;
        self.tape.connected(self.now, true);
        self.next_tick = self.now;
        if self.full_seconds {
            self.next_tick = self.now.plus((-self.now.as_millis()).rem_euclid(1000));
        }
        let mut said = Said::default();
        self.peer.connected(self.now, &mut said);
        assert!(self.peer.catching_up());
        self.hear(said);
        assert_eq!(self.peer.catching_up(), self.slow, "everything was answered");
    }

    pub(crate) fn lose(&mut self) {
        self.connected = false;
        self.tape.connected(self.now, false);
        let mut said = Said::default();
        self.peer.lost(self.now, &mut said);
        said.asks.clear();
        self.hear(said);
    }

    pub(crate) fn frame(&mut self, frame: &str) -> Result<(), DecodeError> {
        self.tape.record(self.now, frame.as_bytes());
        let mut said = Said::default();
        let done = self.peer.record(&Record { bytes: frame.as_bytes(), observed: self.now }, &mut said);
        self.hear(said);
        done
    }

    /// Time passes, with a tick each second while connected.
    pub(crate) fn move_to(&mut self, to: Timestamp) {
        while self.next_tick <= to {
            self.now = self.next_tick;
            self.next_tick = self.next_tick.plus(1000);
            if self.connected {
                let mut said = Said::default();
                self.peer.tick(self.now, &mut said);
                self.hear(said);
            }
            self.note_states();
        }
        self.now = to;
        self.note_states();
    }

    /// A long time passes, with a tick each minute.
    pub(crate) fn leap_to(&mut self, to: Timestamp) {
        while self.now < to {
            let next = to.min(self.now.plus(60_000));
            self.next_tick = next;
            self.move_to(next);
        }
    }

    /// The exporter is started anew: only the checkpoint and the store remain.
    pub(crate) fn restart(&mut self) {
        self.peer = OpenFox::new(&opening(), self.kept.as_deref());
        self.connected = false;
    }

    fn hear(&mut self, mut said: Said) {
        loop {
            self.unknown.append(&mut said.unknown);
            self.disagreements += said.disagreements;
            assert!(!said.give_up, "{}: gave up", self.recording.name);
            self.take(std::mem::take(&mut said.events));
            if let Some(kept) = self.peer.changed() {
                assert!(kept.len() <= 64 << 10, "a checkpoint of {} bytes", kept.len());
                self.kept = Some(kept);
            }
            if said.asks.is_empty() {
                break;
            }
            let mut next = Said::default();
            for ask in std::mem::take(&mut said.asks) {
                let answer = self.answer(&ask);
                if self.slow {
                    self.late.push((ask, answer));
                } else {
                    self.peer.answered(&ask, &Ok(answer), self.now, &mut next).unwrap();
                }
            }
            said = next;
        }
        self.note_states();
    }

    /// What was answered comes at last; frames may have overtaken it.
    /// Some are those of the test.
    pub(crate) fn arrive_as(&mut self, own: impl Fn(&str) -> Option<(u16, serde_json::Value)>) {
        let mut said = Said::default();
        for (ask, mut answer) in std::mem::take(&mut self.late) {
            if let Some((status, body)) = own(&ask.path) {
                answer = Answer { status, body: body.to_string().into_bytes(), next: None };
            }
            self.peer.answered(&ask, &Ok(answer), self.now, &mut said).unwrap();
        }
        self.hear(said);
    }

    /// What the server answers; nothing else may be asked.
    fn answer(&mut self, ask: &Ask) -> Answer {
        assert_eq!(ask.query, None, "nothing but GET");
        self.asked.push(ask.path.clone());
        let mut answer = reply(self.recording, &ask.path, self.now).expect("on the allow list");
        if self.no_status && ask.path.ends_with("/status") {
            answer = (404, Vec::new());
        }
        let (status, body) = answer;
        self.tape.answer(self.now, &ask.path, status, &body);
        Answer { status, body, next: None }
    }

    pub(crate) fn take(&mut self, events: Vec<Event>) {
        for event in events {
            let session = event.session.clone();
            let new = || Session::new(Facts::new(source(), session.clone(), event.observed));
            let known = self.sessions.entry(session.clone()).or_insert_with(new);
            let mut change = known.apply(event.clone(), Timestamp::from_millis(0));
            self.aggregates.take(&source(), &mut change);
            self.events.push(event);
        }
    }

    fn note_states(&mut self) {
        if self.blind {
            return;
        }
        for (id, derived) in self.derived(&Thresholds::default()) {
            let words = words(&derived);
            let last = self.states.iter().rev().find(|(session, ..)| *session == id);
            if last.is_none_or(|(_, _, state)| *state != words) {
                self.states.push((id, derived.since, words));
            }
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let sessions: Vec<_> = self.sessions.values().map(|s| Some(s.facts().clone())).collect();
        Snapshot {
            tree: Arc::new(Tree::of(&sessions)),
            sessions,
            aggregates: Arc::new(self.aggregates.clone()),
            capabilities: Arc::new([(source(), DEF.capabilities)].into()),
            scanned: true,
            ..Snapshot::default()
        }
    }

    pub(crate) fn derived(&self, limits: &Thresholds) -> Vec<(SessionId, Derived)> {
        let snapshot = self.snapshot();
        let roots: Vec<_> = snapshot.roots().collect();
        roots
            .into_iter()
            .map(|slot| {
                let rollup = snapshot.rollup(slot, self.now).unwrap();
                let derived = derive(&rollup, DEF.capabilities, limits, &Default::default());
                (rollup.root.session.clone(), derived)
            })
            .collect()
    }

    /// The state of the only session.
    pub(crate) fn state(&self) -> String {
        let all = self.derived(&Thresholds::default());
        assert_eq!(all.len(), 1, "{}", self.recording.name);
        words(&all[0].1)
    }

    pub(crate) fn facts(&self, id: &str) -> &Arc<Facts> {
        self.sessions[&SessionId::from(id)].facts()
    }

    /// The facts of the only session.
    pub(crate) fn only(&self) -> &Arc<Facts> {
        assert_eq!(self.sessions.len(), 1, "{}", self.recording.name);
        self.sessions.values().next().unwrap().facts()
    }

    /// Facts of one kind, with their times.
    pub(crate) fn said<'f, T>(&'f self, pick: impl Fn(&'f Fact) -> Option<T> + 'f) -> Vec<(Timestamp, T)> {
        self.events.iter().filter_map(|e| Some((e.time.unwrap(), pick(&e.fact)?))).collect()
    }
}

/// What the recorded server answers at a moment; `None` for what must not be asked.
pub(crate) fn reply(recording: &Recording, path: &str, now: Timestamp) -> Option<(u16, Vec<u8>)> {
    if path == "/api/config" {
        let config = serde_json::json!({"version": "2.0.127", "providers": [{"url": "http://secret"}]});
        return Some((200, config.to_string().into_bytes()));
    }
    if path == "/api/sessions?limit=100" {
        return Some((200, recording.list(now).to_string().into_bytes()));
    }
    let id = path.strip_prefix("/api/sessions/")?.strip_suffix("/status")?;
    Some(match recording.status(id, now) {
        Some(status) => (200, status.to_string().into_bytes()),
        None => (404, Vec::new()),
    })
}

pub(crate) fn words(derived: &Derived) -> String {
    format!("{}/{}", derived.state.as_str(), derived.reason.as_str())
}
