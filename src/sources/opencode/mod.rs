//! opencode servers: records of `/global/event` and answers to a few questions become events. A connection is made
//! elsewhere, and no state is decided here.
//!
//! Format: the document that a server gives at `/doc`; version 1.18 is recorded. Two generations of sessions share
//! one stream: `v1` knows those with a status, `v2` those of `/api/session`. Not used:
//! - `/event`, which tells of one directory only and ends with its instance; `/api/event`, which breaks;
//! - what a message or a status says in words;
//! - any question with a directory that the stream has not just named: it would start an instance there.

mod calls;
mod catch_up;
mod details;
mod saved;
mod state;
mod turns;
mod v1;
mod v2;
mod wire;
mod words;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::live::{self, Answer, Ask, AskError, LiveSource, Opening, Peer, Said, Stream, Token};
use super::recorded::Form;
use super::{DecodeError, Record, SourceDef};
use crate::event::{ActionKind, Capabilities, Capability, Fact, Resolution, SessionId, Timestamp};

use self::catch_up::Survey;
use self::state::{Common, Doubt, Session, Sessions, Tell};
use self::wire::{Frame, Kept, Pending, Props, from_line, made, millis, read, text, word};

/// The opencode source in the list.
pub const DEF: SourceDef = SourceDef {
    name: "opencode",
    about: "opencode, from the event stream of its servers (`opencode serve`, or the TUI with `--port`)",
    maturity: "experimental",
    default_on: true,
    // It has no workflow.
    capabilities: Capabilities::of(Capability::ALL).without(Capability::Steps),
    of_some: Capabilities(0),
    looks_at: "",
    live: Some(&LIVE),
    sees_stops: false,
    retells: &[],
    recorded: Form::Server(&LIVE),
    start: Some(|context| live::start(&LIVE, context)),
};

/// Where servers are, and how they talk.
pub const LIVE: LiveSource = LiveSource {
    name: "opencode",
    servers: &["http://127.0.0.1:4096"],
    stream: Stream::Events { path: "/global/event" },
    // It sends a heartbeat every ten seconds.
    quiet: Some(Duration::from_secs(35)),
    // The first question may have to wait until an instance has started: 110 s were seen.
    patience: Duration::from_secs(180),
    health: &["/global/health"],
    token: Token::Bearer,
    username: "opencode",
    new: |opening, saved| Box::new(Opencode::new(opening, saved)),
};

/// One server.
pub struct Opencode {
    common: Common,
    sessions: Sessions,
    survey: Survey,
    /// Directories that the stream has named since it stands, by their hash.
    live: HashMap<u64, Arc<str>>,
    /// When the stream was heard last.
    heard: Option<Timestamp>,
    /// Number of records so far.
    count: u64,
    /// Hash of the id of the newest event in its first form.
    last: u64,
    /// Something changed that has to survive a restart.
    changed: bool,
    /// It may be told: once a second is enough, because what came since is asked for again and counts once.
    due: bool,
}

// === impl Opencode ===

impl Opencode {
    /// A server that was followed before, where there is something of that.
    pub fn new(opening: &Opening, saved: Option<&[u8]>) -> Self {
        let common = Common::new(opening.source.clone(), opening.endpoint.clone(), opening.reducer.clone());
        let mut sessions = Sessions::default();
        let heard = saved::restore(saved, &mut sessions);
        Self {
            common,
            sessions,
            survey: Survey::default(),
            live: HashMap::new(),
            heard,
            count: 0,
            last: 0,
            changed: false,
            due: false,
        }
    }

    /// Runs something about a session, which may be new.
    fn about<R>(
        &mut self,
        session: &str,
        said: &mut Said,
        observed: Timestamp,
        time: Timestamp,
        replay: bool,
        run: impl FnOnce(&mut Session, &mut Tell<'_>) -> R,
    ) -> Option<R> {
        let id = self.common.session(session);
        if self.survey.is_gone(&id) {
            return None;
        }
        self.changed = true;
        let known = self.sessions.all.contains_key(&id);
        // One that is not known after a restart would not be asked about.
        self.due |= !known;
        let session = self.sessions.of(&id);
        let mut tell = Tell { common: &mut self.common, said, observed, time, replay };
        if !known {
            self.survey.introduce(session, &mut tell);
        }
        Some(run(session, &mut tell))
    }

    /// One event of the stream, or one that the server kept.
    fn event(&mut self, e: &Heard<'_>, said: &mut Said) {
        let (props, observed, time, replay) = (e.props, e.observed, e.time, e.replay);
        let kind = e.kind;
        if words::is_noise(kind) {
            return;
        }
        if kind == "server.instance.disposed" {
            return self.disposed(props, observed, time, said);
        }
        let Some(session) = text(props.session).or_else(|| text(props.info.id)) else {
            if words::is_kind(kind) {
                self.common.unknown(kind, said);
            }
            return;
        };
        let edges = self.count;
        let mut unknown = false;
        self.about(&session, said, observed, time, replay, |s, t| match kind {
            "session.created" | "session.updated" => s.info(t, &props.info),
            "session.deleted" => {
                s.push(t, "deleted", time, Fact::SessionDeleted);
                s.edges = edges;
            }
            "session.status" => {
                s.status(t, &props.status);
                s.edges = edges;
            }
            "session.error" => s.failed(props.error),
            "message.updated" => s.said(t, &props.info),
            "message.part.updated" => {
                let at = millis(props.time);
                s.part(t, &props.part, at);
            }
            "message.part.delta" => s.work(t, time),
            "todo.updated" => s.planned(t, props.todos, time),
            "permission.asked" | "permission.v2.asked" => {
                s.asked(t, &props.waits(), ActionKind::Permission, time);
            }
            "question.asked" | "question.v2.asked" => s.asked(t, &props.waits(), ActionKind::Question, time),
            "permission.replied" | "permission.v2.replied" => {
                s.replied(t, props.request, v1::reply_of(props));
            }
            "question.replied" | "question.v2.replied" => s.replied(t, props.request, Resolution::Answered),
            "question.rejected" | "question.v2.rejected" => s.replied(t, props.request, Resolution::Denied),
            _ => {
                let next = kind.strip_prefix(v2::BEGINS);
                let known = next.is_some_and(|next| s.next(t, next, props));
                s.edges = if next.is_some() { edges } else { s.edges };
                unknown = !known;
                if unknown {
                    s.push(t, &format!("unknown:{}", e.id), time, Fact::Unknown);
                }
            }
        });
        if unknown && words::is_kind(kind) {
            self.common.unknown(kind, said);
        }
        if kind == "session.deleted" {
            self.gone(&session);
        }
    }

    /// A session is not there any more, whatever a status may go on saying.
    fn gone(&mut self, session: &str) {
        let id = self.common.session(session);
        self.sessions.all.remove(&id);
        self.survey.gone(id);
        self.changed = true;
    }

    /// An instance was closed: what it ran is over, what it asked is void.
    fn disposed(&mut self, props: &Props<'_>, observed: Timestamp, time: Timestamp, said: &mut Said) {
        let Some(directory) = text(props.directory) else { return };
        let hash = self.common.hash(&directory);
        self.live.remove(&hash);
        self.survey.closed(hash, self.count);
        self.ask_ends(hash, said);
        let works = |s: &&mut Session| s.directory == Some(hash) && s.is_open() && s.doubt == Doubt::None;
        for session in self.sessions.all.values_mut().filter(works) {
            let mut tell = Tell { common: &mut self.common, said, observed, time, replay: false };
            let verdict = words::Verdict::of(crate::event::TurnOutcome::Cancelled);
            session.end_at(&mut tell, Some(verdict), time);
            self.changed = true;
        }
    }

    /// The second form of an event follows the first, and tells the same. Where the stream began between the two, it is
    /// all there is.
    fn twin(&mut self, kept: &Kept<'_>, observed: Timestamp, said: &mut Said) {
        let (id, kind) = (word(kept.id), word(kept.kind));
        if self.common.hash(&id) != self.last
            && let Some((kind, _)) = kind.rsplit_once('.')
        {
            let time = made(kept.id, observed).unwrap_or(observed);
            self.event(&Heard { id: &id, kind, props: &kept.data, observed, time, replay: false }, said);
        }
        self.kept(kept);
    }

    /// The second form of an event says where it stands in its session's sequence.
    fn kept(&mut self, kept: &Kept<'_>) {
        let Some(id) = text(kept.aggregate).or_else(|| text(kept.aggregate_id)) else { return };
        let Some(seq) = read::<u64>(kept.seq) else { return };
        let id = self.common.session(&id);
        if let Some(session) = self.sessions.get(&id) {
            session.seq = session.seq.max(Some(seq));
            self.changed = true;
        }
    }
}

/// One event as it was heard.
struct Heard<'a> {
    id: &'a str,
    kind: &'a str,
    props: &'a Props<'a>,
    observed: Timestamp,
    time: Timestamp,
    replay: bool,
}

// === impl Props ===

impl<'a> Props<'a> {
    fn waits(&self) -> Pending<'a> {
        Pending {
            id: self.id,
            session: self.session,
            permission: self.permission,
            action: self.action,
            tool: self.tool,
            source: self.source,
        }
    }
}

// === impl Peer ===

impl Peer for Opencode {
    fn connected(&mut self, now: Timestamp, said: &mut Said) {
        self.live.clear();
        self.survey_everything(now, said);
    }

    fn lost(&mut self, now: Timestamp, said: &mut Said) {
        self.survey.stop();
        self.live.clear();
        for session in self.sessions.all.values_mut() {
            let mut tell = Tell { common: &mut self.common, said, observed: now, time: now, replay: false };
            session.lost(&mut tell);
        }
        self.changed = true;
    }

    fn record(&mut self, record: &Record<'_>, said: &mut Said) -> Result<(), DecodeError> {
        let frame: Frame<'_> = from_line(record.bytes)?;
        let kind = text(frame.payload.kind).ok_or(DecodeError::Shape)?;
        self.count += 1;
        let observed = record.observed;
        self.heard = self.heard.max(Some(observed));
        if kind == "sync" {
            self.twin(&frame.payload.sync, observed, said);
            return Ok(());
        }
        let time = made(frame.payload.id, observed).unwrap_or(observed);
        let id = word(frame.payload.id);
        self.last = self.common.hash(&id);
        let props = &frame.payload.properties;
        if let Some(directory) = text(frame.directory).filter(|_| kind != "server.instance.disposed") {
            self.named(&directory, said);
        }
        self.event(&Heard { id: &id, kind: &kind, props, observed, time, replay: false }, said);
        Ok(())
    }

    fn answered(
        &mut self,
        ask: &Ask,
        answer: &Result<Answer, AskError>,
        now: Timestamp,
        said: &mut Said,
    ) -> Result<(), DecodeError> {
        self.hear(ask, answer, now, said)
    }

    fn tick(&mut self, now: Timestamp, said: &mut Said) {
        for session in self.sessions.all.values_mut().filter(|s| s.ending.is_some()) {
            let mut tell = Tell { common: &mut self.common, said, observed: now, time: now, replay: false };
            session.end_late(&mut tell, now);
            self.changed = true;
        }
        self.ask_active(now, said);
        self.ask_again(now, said);
        self.due = true;
    }

    fn catching_up(&self) -> bool {
        self.survey.holds()
    }

    fn has_open(&self) -> bool {
        self.sessions.all.values().any(Session::is_open)
    }

    fn changed(&mut self) -> Option<Vec<u8>> {
        if !(self.changed && self.due) {
            return None;
        }
        (self.changed, self.due) = (false, false);
        Some(saved::save(&self.sessions, self.heard))
    }
}

/// Whether this id is one that may stand in a path as it is.
fn plain(id: &SessionId) -> bool {
    id.as_str().bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}
