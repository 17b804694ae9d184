//! gobby: frames of its WebSocket and answers of its HTTP routes become events. Only one message is ever sent to it,
//! a subscription; everything else is GET.
//!
//! Format: <https://github.com/GobbyAI/gobby>, `servers/websocket/broadcast.py` for the frames, `hooks/` for what is
//! in a hook. Versions 0.2.5 and 0.4.6 are recorded; they differ in what they say at all:
//! - hooks carry the agent's own session id, everything else the daemon's; only the list of sessions joins the two.
//!   A session is named by the agent's own id here, and a sub-agent `<session>:<agent>`, as by the agent's own source;
//! - by default only starts and ends of sessions and tools are broadcast; what is missing (prompts, ends of turns,
//!   permissions) is not made up, but a list that says `paused` twice ends a turn without a result;
//! - 0.2 tells a call that failed as one that ended, 0.4 not at all (`post-tool-use-failure` is no default);
//! - a request to stop has no readable details in either version (status 500 as long as one exists), and that it was
//!   acknowledged is visible nowhere: what follows a request here is only that there is none any more;
//! - loops, tasks and the daemon's own word for progress come under the daemon's id, in 0.4 tasks only.

mod calls;
mod hooks;
mod poll;
mod state;
mod tell;
mod tools;
mod turns;
mod wire;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use self::poll::Poll;
use self::state::State;
use self::wire::{Frame, from_line, moment, word};
use super::arguments::Memory;
use super::live::{Answer, Ask, AskError, LiveSource, Opening, Peer, Said, Stream, Token};
use super::recorded::Form;
use super::{DecodeError, Record, SourceDef, live};
use crate::event::reduce::stable_hash;
use crate::event::{
    Capabilities, Capability, Event, Fact, Id, Name, Reducer, SessionId, SessionInfo, SourceId, Timestamp,
};

/// The gobby source in the list.
pub const DEF: SourceDef = SourceDef {
    name: "gobby",
    about: "gobby, from the WebSocket and the HTTP routes of its daemon",
    maturity: "experimental",
    default_on: true,
    capabilities: SEEN,
    // Only where the operator broadcasts the hooks that ask a person.
    of_some: Capabilities::of(&[Capability::PendingActions]),
    looks_at: "",
    live: Some(&LIVE),
    sees_stops: true,
    retells: &["claude_code", "codex"],
    recorded: Form::Server(&LIVE),
    start: Some(|context| live::start(&LIVE, context)),
};

/// What the hooks that are broadcast by default show.
const SEEN: Capabilities = Capabilities::of(&[
    Capability::Ends,
    Capability::Progress,
    Capability::Calls,
    Capability::Steps,
    Capability::Usage,
]);

/// Where the daemon is, and what is said to it.
pub const LIVE: LiveSource = LiveSource {
    name: "gobby",
    servers: &["http://127.0.0.1:60887", "http://127.0.0.1:8765"],
    stream: Stream::Socket {
        path: "/",
        port_offset: 1,
        hello: Some(r#"{"type": "subscribe", "events": ["*"]}"#),
    },
    quiet: None,
    patience: Duration::from_secs(10),
    health: &["/api/admin/health", "/admin/status"],
    token: Token::Bearer,
    username: "",
    new: |opening, saved| Box::new(Gobby::new(opening, saved)),
};

/// Kinds of frames that tell of no session's work.
const NOTED: &[&str] = &[
    "connection_established",
    "subscribe_success",
    "unsubscribe_success",
    "ping",
    "pong",
    "error",
    "stop_response",
    "tool_result",
    // Text of a screen: not looked at.
    "terminal_output",
    "tmux_session_event",
    "worktree_event",
    "agent_message",
    "agent_command",
    "cron_event",
    "workflow_event",
    "mcp_event",
    "project_event",
    "skill_event",
    "canvas_event",
    "artifact_event",
    "communications_event",
    "trace_event",
];

/// One daemon.
pub struct Gobby {
    source: SourceId,
    endpoint: Name,
    reducer: Arc<Reducer>,
    memory: Memory,
    state: State,
    /// The newest list, by the daemon's id.
    joined: HashMap<Arc<str>, poll::Joined>,
    poll: Poll,
    /// Counts rounds of questions and what was told of stops in between, to tell an answer that is older.
    serial: u32,
    /// Number of frames without a time of their own.
    untimed: u32,
    /// The state differs from what was handed out last.
    dirty: bool,
}

/// The events of one frame or answer: what they share.
struct Emit<'r> {
    said: &'r mut Said,
    time: Timestamp,
    observed: Timestamp,
    project: Option<Name>,
    /// Hash of the frame.
    seed: u64,
    /// Number of events so far.
    count: u32,
}

// === impl Gobby ===

impl Gobby {
    /// A daemon as of the time it was last heard of, where an earlier run kept something.
    pub fn new(opening: &Opening, saved: Option<&[u8]>) -> Self {
        Self {
            source: opening.source.clone(),
            endpoint: opening.endpoint.clone(),
            reducer: opening.reducer.clone(),
            memory: Memory::default(),
            state: saved.and_then(State::restore).unwrap_or_default(),
            joined: HashMap::new(),
            poll: Poll::default(),
            serial: 0,
            untimed: 0,
            dirty: false,
        }
    }

    fn id(&self, text: &str) -> Id {
        Id::from(self.reducer.bounded(text).as_str())
    }

    fn session_id(&self, text: &str) -> SessionId {
        SessionId::from(self.reducer.bounded(text).as_str())
    }

    /// The session of this name; made, and told of, where it is new.
    fn session(&mut self, e: &mut Emit<'_>, external: &str) -> usize {
        let id = self.session_id(external);
        if let Some(at) = self.state.find(&id) {
            return at;
        }
        let at = self.state.add(id);
        self.adopt(at);
        let info = self.info(at);
        self.push(e, at, Fact::SessionUpdated(info));
        at
    }

    /// What is said of a session whenever something of it changed.
    fn info(&self, at: usize) -> SessionInfo {
        let session = &self.state.sessions[at];
        SessionInfo {
            agent: session.agent.clone(),
            model: session.model.clone(),
            capabilities: self.state.sees_actions.then(|| SEEN.with(Capability::PendingActions)),
            endpoint: Some(self.endpoint.clone()),
            ..SessionInfo::default()
        }
    }

    /// An event of a session, in its open turn.
    fn push(&self, e: &mut Emit<'_>, at: usize, fact: Fact) {
        let session = &self.state.sessions[at];
        let request = session.turn.clone();
        self.push_as(e, &session.id, session.parent.clone(), request, fact);
    }

    /// An event of a sub-agent, which has no turns that are told, or of its session.
    fn push_in(&self, e: &mut Emit<'_>, at: usize, child: Option<&SessionId>, fact: Fact) {
        match child {
            Some(child) => {
                let parent = self.state.sessions[at].id.clone();
                self.push_as(e, child, Some(parent), None, fact);
            }
            None => self.push(e, at, fact),
        }
    }

    fn push_as(
        &self,
        e: &mut Emit<'_>,
        session: &SessionId,
        parent: Option<SessionId>,
        request: Option<Id>,
        fact: Fact,
    ) {
        let mut event = Event::new(&self.source, session, e.observed, fact);
        let id = format!("{:016x}:{}", e.seed, e.count);
        e.count += 1;
        event.id = Some(self.reducer.event_id(&self.source, session.as_str(), &id));
        event.time = Some(e.time);
        event.parent = parent;
        event.project.clone_from(&e.project);
        event.request = request;
        e.said.events.push(event);
    }
}

impl Peer for Gobby {
    fn connected(&mut self, now: Timestamp, said: &mut Said) {
        // An earlier connection may be another run's.
        self.state.interrupted(now);
        self.ask_first(now, said);
    }

    fn lost(&mut self, now: Timestamp, _: &mut Said) {
        self.state.interrupted(now);
        self.poll = Poll::default();
        self.dirty = true;
    }

    fn record(&mut self, record: &Record<'_>, said: &mut Said) -> Result<(), DecodeError> {
        let frame: Frame<'_> = from_line(record.bytes)?;
        let kind = word(frame.kind);
        if kind.is_empty() {
            return Err(DecodeError::Shape);
        }
        // Without a time of its own two equal frames are two.
        let time = moment(frame.timestamp);
        let seed = match time {
            Some(_) => self.reducer.hash(record.bytes),
            None => {
                self.untimed = self.untimed.wrapping_add(1);
                stable_hash((self.reducer.hash(record.bytes), record.observed.as_millis(), self.untimed))
            }
        };
        let time = time.unwrap_or(record.observed);
        let mut e = Emit { said, time, observed: record.observed, project: None, seed, count: 0 };
        match kind.as_ref() {
            "hook_event" => self.hook(&mut e, &frame),
            "autonomous_event"
            | "session_event"
            | "task_event"
            | "agent_event"
            | "session_message"
            | "session_usage_updated"
            | "token_event" => self.told(&mut e, &kind, &frame),
            "pipeline_event" => self.pipeline(&mut e, &frame),
            "connection_established" if frame.conversation_ids.is_some() => self.state.modern = true,
            known if NOTED.contains(&known) => return Ok(()),
            other => e.said.unknown.push(other.to_owned()),
        }
        self.dirty = true;
        Ok(())
    }

    fn answered(
        &mut self,
        ask: &Ask,
        answer: &Result<Answer, AskError>,
        now: Timestamp,
        said: &mut Said,
    ) -> Result<(), DecodeError> {
        self.dirty = true;
        self.hear(ask, answer, now, said)
    }

    fn tick(&mut self, now: Timestamp, said: &mut Said) {
        self.ask_now_and_then(now, said);
        self.conclude(now, said);
    }

    fn catching_up(&self) -> bool {
        self.poll.is_first()
    }

    fn has_open(&self) -> bool {
        self.state.sessions.iter().any(|s| s.turn.is_some())
    }

    fn changed(&mut self) -> Option<Vec<u8>> {
        std::mem::take(&mut self.dirty).then(|| self.state.save())
    }
}
