//! Frames and answers through the peer into the fold, at a clock of the test's own.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{Event, Fact, Name, Reducer, SessionId, SourceId, Timestamp};
use agent_session_exporter::session::snapshot::Tree;
use agent_session_exporter::session::{Aggregates, Facts, Session, Snapshot};
use agent_session_exporter::sources::gobby::{DEF, LIVE};
use agent_session_exporter::sources::live::{Answer, Ask, Opening, Peer, Said};
use agent_session_exporter::sources::{DecodeError, Record};
use serde_json::Value;

use super::daemon::{Daemon, Frame, frames};
use crate::common::tape::Tape;

pub(crate) struct Replay {
    pub(crate) peer: Box<dyn Peer>,
    pub(crate) daemon: Daemon,
    pub(crate) now: Timestamp,
    sessions: BTreeMap<SessionId, Session>,
    aggregates: Aggregates,
    /// Everything that was said, for looking closer.
    pub(crate) events: Vec<Event>,
    pub(crate) unknown: Vec<String>,
    pub(crate) disagreements: u64,
    pub(crate) asked: Vec<String>,
    pub(crate) saved: Option<Vec<u8>>,
    /// `time session what`, a line for each change.
    pub(crate) story: Vec<String>,
    told: BTreeMap<SessionId, String>,
    /// What the daemon said and answered.
    pub(crate) tape: Tape,
    full_seconds: bool,
    /// Answers are on their way until they `arrive`.
    pub(crate) slow: bool,
    late: Vec<(Ask, Answer)>,
}

pub(crate) fn reducer() -> Arc<Reducer> {
    Arc::new(Reducer::new([7; 16], Runners::default()))
}

pub(crate) fn source() -> SourceId {
    SourceId::from("gobby")
}

fn opening() -> Opening {
    Opening {
        source: source(),
        endpoint: Name::from("127.0.0.1:8765"),
        base: "http://127.0.0.1:8765".to_owned(),
        reducer: reducer(),
    }
}

impl Replay {
    pub(crate) fn new(daemon: Daemon, now: Timestamp) -> Self {
        Self {
            peer: (LIVE.new)(&opening(), None),
            daemon,
            now,
            sessions: BTreeMap::new(),
            aggregates: Aggregates::default(),
            events: Vec::new(),
            unknown: Vec::new(),
            disagreements: 0,
            asked: Vec::new(),
            saved: None,
            story: Vec::new(),
            told: BTreeMap::new(),
            tape: Tape::default(),
            full_seconds: false,
            slow: false,
            late: Vec::new(),
        }
    }

    /// A whole recording, and a minute more.
    pub(crate) fn of(recording: &str) -> Self {
        let mut replay = Self::begun(recording);
        for frame in frames(recording) {
            replay.frame(&frame);
        }
        replay.wait(60);
        replay
    }

    /// The same with a tick at each full second, as `replay` plays it.
    pub(crate) fn in_full_seconds(recording: &str) -> Self {
        let mut replay = Self::new(Daemon::of(recording), frames(recording)[0].at);
        replay.full_seconds = true;
        replay.connect();
        for frame in frames(recording) {
            replay.frame(&frame);
        }
        replay.wait(60);
        replay
    }

    /// Connected, as of its first frame.
    pub(crate) fn begun(recording: &str) -> Self {
        let mut replay = Self::new(Daemon::of(recording), frames(recording)[0].at);
        replay.connect();
        replay
    }

    pub(crate) fn connect(&mut self) {
        self.tape.connected(self.now, true);
        let mut said = Said::default();
        self.peer.connected(self.now, &mut said);
        self.hear(said);
    }

    pub(crate) fn lose(&mut self) {
        self.tape.connected(self.now, false);
        let mut said = Said::default();
        self.peer.lost(self.now, &mut said);
        self.hear(said);
    }

    /// A new process with what the old one had stored last.
    pub(crate) fn restart(&mut self) {
        self.peer = (LIVE.new)(&opening(), self.saved.as_deref());
    }

    pub(crate) fn frame(&mut self, frame: &Frame) {
        self.move_to(frame.at);
        self.take(&frame.text).unwrap();
    }

    /// A frame made here, at the current time.
    pub(crate) fn made(&mut self, value: &Value) {
        self.take(&value.to_string()).unwrap();
    }

    pub(crate) fn take(&mut self, text: &str) -> Result<(), DecodeError> {
        self.take_bytes(text.as_bytes())
    }

    pub(crate) fn take_bytes(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        self.tape.record(self.now, bytes);
        let mut said = Said::default();
        let result = self.peer.record(&Record { bytes, observed: self.now }, &mut said);
        self.hear(said);
        result
    }

    /// Ticks until then.
    pub(crate) fn move_to(&mut self, moment: Timestamp) {
        // Frames that come faster stop the ticks, unless these have times of their own.
        let full = self.full_seconds;
        let since = |now: Timestamp| if full { now.as_millis().rem_euclid(1000) } else { 0 };
        while self.now.plus(1000 - since(self.now)) <= moment {
            self.now = self.now.plus(1000 - since(self.now));
            self.tick();
        }
        self.now = self.now.max(moment);
    }

    pub(crate) fn tick(&mut self) {
        let mut said = Said::default();
        self.peer.tick(self.now, &mut said);
        self.hear(said);
    }

    pub(crate) fn wait(&mut self, seconds: i64) {
        self.move_to(self.now.plus(seconds * 1000));
    }

    /// What was said, and the answers to what it asks.
    fn hear(&mut self, mut said: Said) {
        loop {
            assert!(!said.give_up);
            self.unknown.append(&mut said.unknown);
            self.disagreements += said.disagreements;
            self.fold(std::mem::take(&mut said.events));
            // As the runner does: the position goes with what was said.
            if let Some(saved) = self.peer.changed() {
                assert!(saved.len() <= 64 << 10, "{} bytes", saved.len());
                self.saved = Some(saved);
            }
            let asks = std::mem::take(&mut said.asks);
            if asks.is_empty() {
                break;
            }
            said = Said::default();
            for ask in asks {
                assert!(ask.query.is_none(), "only GET");
                self.asked.push(ask.path.clone());
                let (status, body) = self.daemon.answer(&ask.path, self.now);
                let body = if status == 200 { body.into_bytes() } else { Vec::new() };
                self.tape.answer(self.now, &ask.path, status, &body);
                let answer = Answer { status, body, next: None };
                if self.slow {
                    self.late.push((ask, answer));
                } else {
                    self.peer.answered(&ask, &Ok(answer), self.now, &mut said).unwrap();
                }
            }
        }
        self.note();
    }

    /// What was answered comes at last; frames may have overtaken it.
    pub(crate) fn arrive(&mut self) {
        self.slow = false;
        let mut said = Said::default();
        for (ask, answer) in std::mem::take(&mut self.late) {
            self.peer.answered(&ask, &Ok(answer), self.now, &mut said).unwrap();
        }
        self.hear(said);
    }

    fn fold(&mut self, events: Vec<Event>) {
        for event in &events {
            let new = || Session::new(Facts::new(source(), event.session.clone(), event.observed));
            let session = self.sessions.entry(event.session.clone()).or_insert_with(new);
            let mut change = session.apply(event.clone(), Timestamp::default());
            self.aggregates.take(&source(), &mut change);
        }
        self.events.extend(events);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let sessions: Vec<_> = self.sessions.values().map(|s| Some(s.facts().clone())).collect();
        Snapshot {
            tree: Arc::new(Tree::of(&sessions)),
            sessions,
            aggregates: Arc::new(self.aggregates.clone()),
            capabilities: Arc::new([(source(), DEF.capabilities)].into()),
            see_stops: Arc::new([source()].into()),
            scanned: true,
            ..Snapshot::default()
        }
    }

    pub(crate) fn facts(&self, session: &str) -> Arc<Facts> {
        self.sessions.get(&SessionId::from(session)).unwrap_or_else(|| panic!("no {session}")).facts().clone()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.sessions.keys().map(|s| s.as_str().to_owned()).collect()
    }

    /// `state/reason`, so many seconds from now.
    pub(crate) fn state(&self, session: &str, later: i64) -> String {
        state(&self.snapshot(), session, self.now.plus(later * 1000))
    }

    /// Facts of one session, in order.
    pub(crate) fn said_of(&self, session: &str) -> Vec<&Fact> {
        self.events.iter().filter(|e| e.session.as_str() == session).map(|e| &e.fact).collect()
    }

    fn note(&mut self) {
        let snapshot = self.snapshot();
        for (id, session) in &self.sessions {
            let now = describe(&snapshot, session.facts(), self.now);
            if self.told.get(id) != Some(&now) {
                self.story.push(format!("{} {} {now}", clock(self.now), id.as_str()));
                self.told.insert(id.clone(), now);
            }
        }
    }
}

pub(crate) fn state(snapshot: &Snapshot, session: &str, now: Timestamp) -> String {
    let slot = snapshot.find(&source(), &SessionId::from(session)).unwrap();
    let derived = snapshot.derive(&snapshot.rollup(slot, now).unwrap());
    format!("{}/{}", derived.state.as_str(), derived.reason.as_str())
}

/// The time of day.
pub(crate) fn clock(time: Timestamp) -> String {
    time.to_string()[11..23].to_owned()
}

/// What a person would look at.
fn describe(snapshot: &Snapshot, facts: &Facts, now: Timestamp) -> String {
    let mut out = state(snapshot, facts.session.as_str(), now);
    for action in &facts.actions {
        out.push_str(&format!(" asks {} since {}", action.kind.as_str(), clock(action.since)));
    }
    if let Some(stop) = facts.stop {
        let stands = if stop.pending { "stands" } else { "is gone" };
        let (who, when) = (stop.requester.as_str(), clock(stop.requested_at));
        out.push_str(&format!(" stop by {who} at {when} {stands}"));
        assert_eq!(stop.acknowledged_at, None, "no recorded version can tell");
    }
    if let Some(step) = &facts.step {
        out.push_str(&format!(" {} {}", step.step.kind.as_str(), step.step.id.as_str()));
    }
    if let Some(blocked) = &facts.blocked {
        out.push_str(&format!(" held up since {}", clock(blocked.since)));
    }
    out
}
