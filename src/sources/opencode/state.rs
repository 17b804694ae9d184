//! What is remembered of a session and of a server, all of it bounded.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::words::{Broken, Finish};
use crate::event::{Event, Fact, Id, Name, Reducer, SessionId, SourceId, Timestamp};
use crate::sources::arguments::Memory;
use crate::sources::live::Said;

/// Sessions of one server that are followed; the one that was heard of longest ago leaves first.
pub(super) const MAX_SESSIONS: usize = 512;
/// Messages of a session that are remembered; a step has one, and its parts follow it at once.
const MAX_MESSAGES: usize = 16;
/// Calls of a session that have not ended.
const MAX_CALLS: usize = 128;
/// Ended calls that are remembered, so that a repeated part is no new call.
const MAX_DONE: usize = 256;
/// Requests of a session that wait for a person.
const MAX_PENDING: usize = 64;
/// Prompts that wait behind a turn.
pub(super) const MAX_WAITING: usize = 64;
/// Files of one step that edits told of.
const MAX_EDITED: usize = 64;
/// Kinds of unknown records that are told.
const MAX_UNKNOWN: usize = 64;
/// Milliseconds between two signs of life that are told: a stream of words is one sign.
const ACTIVITY_EVERY_MS: i64 = 1_000;

/// What all sessions of one server have in common.
pub(super) struct Common {
    pub(super) source: SourceId,
    pub(super) endpoint: Name,
    pub(super) reducer: Arc<Reducer>,
    pub(super) memory: Memory,
    unknown: HashSet<String>,
}

/// Where the facts of one record go.
pub(super) struct Tell<'a> {
    pub(super) common: &'a mut Common,
    pub(super) said: &'a mut Said,
    pub(super) observed: Timestamp,
    /// When the record was made.
    pub(super) time: Timestamp,
    /// The record is told again from what the server keeps: beginnings and ends of turns are not among it.
    pub(super) replay: bool,
}

/// One session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) parent: Option<SessionId>,
    pub(super) project: Option<Name>,
    /// Hash of its directory; the directory itself is only kept while the stream names it.
    pub(super) directory: Option<u64>,
    pub(super) created: Option<Timestamp>,
    /// Sequence of its newest durable event.
    pub(super) seq: Option<u64>,
    /// It was made through the second generation of the interface.
    pub(super) v2: bool,
    /// The server says that it works.
    pub(super) busy: bool,
    /// It worked when the connection was lost.
    pub(super) doubt: Doubt,
    pub(super) lost_at: Option<Timestamp>,
    /// When its status is to be asked again.
    #[serde(skip)]
    pub(super) again_at: Option<Timestamp>,
    pub(super) turn: Option<Turn>,
    /// It works, but not yet on a prompt we know: since when.
    pub(super) edge: Option<Timestamp>,
    /// It stopped, but how is not yet known: since when.
    pub(super) ending: Option<Timestamp>,
    pub(super) messages: VecDeque<Message>,
    pub(super) calls: VecDeque<Call>,
    pub(super) done: VecDeque<u64>,
    pub(super) pending: Vec<Pending>,
    pub(super) waiting: VecDeque<Id>,
    /// A person refused something in this turn.
    pub(super) denied: bool,
    /// The server's word of an error, before the message has it.
    pub(super) error: Option<Broken>,
    /// The last status was that of a retry.
    pub(super) retrying: bool,
    /// The turn that ended last.
    pub(super) ended: Option<Id>,
    /// What was last told of its properties.
    pub(super) told: u64,
    pub(super) worked: Timestamp,
    /// Order in which sessions were heard of.
    #[serde(skip)]
    pub(super) touched: u64,
    /// Number of the record that told of its newest beginning or end.
    #[serde(skip)]
    pub(super) edges: u64,
}

/// How sure it is that a session works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Doubt {
    /// The stream tells.
    #[default]
    None,
    /// Nothing was said since the loss.
    Open,
    /// The server once said that it does not, but its last message is not complete.
    Once,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Turn {
    pub(super) request: Id,
    pub(super) started: Timestamp,
    /// The stream did not carry its beginning.
    pub(super) inferred: bool,
}

/// A message: of a person, or one call of the model.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Message {
    pub(super) id: Id,
    /// The prompt it answers; none: it is one.
    pub(super) prompt: Option<Id>,
    pub(super) user: bool,
    pub(super) created: Timestamp,
    pub(super) completed: Option<Timestamp>,
    pub(super) finish: Option<Finish>,
    pub(super) error: Option<Broken>,
    pub(super) origin: Origin,
    /// It sums up what was said before.
    pub(super) summary: bool,
    pub(super) tools: bool,
    pub(super) steps: bool,
    /// Hashes of the files that edits of this step told of.
    pub(super) edited: Vec<u64>,
    /// The last call of this step that may have changed a file without saying so.
    pub(super) changer: Option<Id>,
    pub(super) model: Option<(Name, Name)>,
    /// A turn began with it.
    pub(super) taken: bool,
}

/// Whom a prompt is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Origin {
    /// Its parts have not come yet.
    Unknown,
    Person,
    /// A person who ran a command or asked for a summary: no prompt, but a turn.
    Command,
    /// The program itself, in the middle of a turn.
    Program,
}

/// A call that has not ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Call {
    /// The id of its part: those of the model are not unique.
    pub(super) part: Id,
    pub(super) message: Id,
    pub(super) call: Option<Id>,
    pub(super) tool: Option<Name>,
    pub(super) started: bool,
    /// When it asked for something before it ran.
    pub(super) asked: Option<Timestamp>,
    pub(super) denied: bool,
}

/// A request that waits for a person.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Pending {
    pub(super) id: Id,
    pub(super) part: Option<Id>,
    pub(super) question: bool,
}

/// Sessions by id.
#[derive(Default)]
pub(super) struct Sessions {
    pub(super) all: HashMap<SessionId, Session>,
    count: u64,
}

/// Adds to a bounded list; the oldest leaves.
pub(super) fn keep<T>(list: &mut VecDeque<T>, item: T, most: usize) {
    if list.len() >= most {
        list.pop_front();
    }
    list.push_back(item);
}

// === impl Common ===

impl Common {
    pub(super) fn new(source: SourceId, endpoint: Name, reducer: Arc<Reducer>) -> Self {
        Self { source, endpoint, reducer, memory: Memory::default(), unknown: HashSet::new() }
    }

    pub(super) fn id(&self, text: &str) -> Id {
        Id::from(self.reducer.bounded(text).as_str())
    }

    pub(super) fn name(&self, text: &str) -> Name {
        Name::from(self.reducer.bounded(text).as_str())
    }

    pub(super) fn session(&self, text: &str) -> SessionId {
        SessionId::from(self.reducer.bounded(text).as_str())
    }

    pub(super) fn hash(&self, text: &str) -> u64 {
        self.reducer.hash(text.as_bytes())
    }

    /// Tells a kind that is not known, once.
    pub(super) fn unknown(&mut self, kind: &str, said: &mut Said) {
        if self.unknown.len() < MAX_UNKNOWN && self.unknown.insert(kind.to_owned()) {
            said.unknown.push(kind.to_owned());
        }
    }
}

// === impl Sessions ===

impl Sessions {
    /// The session of this id, which may be new.
    pub(super) fn of(&mut self, id: &SessionId) -> &mut Session {
        self.count += 1;
        if !self.all.contains_key(id) && self.all.len() >= MAX_SESSIONS {
            let oldest = self.all.values().min_by_key(|s| (s.is_open(), s.touched)).map(|s| s.id.clone());
            if let Some(oldest) = oldest {
                self.all.remove(&oldest);
            }
        }
        let session = self.all.entry(id.clone()).or_insert_with(|| Session::new(id.clone()));
        session.touched = self.count;
        session
    }

    pub(super) fn get(&mut self, id: &SessionId) -> Option<&mut Session> {
        self.all.get_mut(id)
    }
}

// === impl Session ===

impl Session {
    pub(super) fn new(id: SessionId) -> Self {
        Self {
            id,
            parent: None,
            project: None,
            directory: None,
            created: None,
            seq: None,
            v2: false,
            busy: false,
            doubt: Doubt::None,
            lost_at: None,
            again_at: None,
            turn: None,
            edge: None,
            ending: None,
            messages: VecDeque::new(),
            calls: VecDeque::new(),
            done: VecDeque::new(),
            pending: Vec::new(),
            waiting: VecDeque::new(),
            denied: false,
            error: None,
            retrying: false,
            ended: None,
            told: 0,
            worked: Timestamp::default(),
            touched: 0,
            edges: 0,
        }
    }

    /// Whether it works, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        self.busy || self.turn.is_some()
    }

    /// Tells one fact. `key` is its natural name within the session, the same on whichever way it becomes known, so
    /// that it counts once.
    pub(super) fn push(&self, t: &mut Tell<'_>, key: &str, time: Timestamp, fact: Fact) {
        let common = &t.common;
        let mut event = Event::new(&common.source, &self.id, t.observed, fact);
        event.id = Some(common.reducer.event_id(&common.source, self.id.as_str(), key));
        event.time = Some(time);
        event.parent.clone_from(&self.parent);
        event.project.clone_from(&self.project);
        event.request = self.turn.as_ref().map(|turn| turn.request.clone());
        t.said.events.push(event);
    }

    /// A sign of life, told once a second.
    pub(super) fn work(&mut self, t: &mut Tell<'_>, time: Timestamp) {
        use crate::event::ActivityClass::Work;
        if time.since(self.worked) >= ACTIVITY_EVERY_MS {
            self.worked = time;
            let fact = Fact::Activity { class: Work, message: false };
            self.push(t, &format!("work:{}", time.as_millis()), time, fact);
        }
    }

    pub(super) fn message(&mut self, id: &Id) -> Option<&mut Message> {
        self.messages.iter_mut().rev().find(|m| m.id == *id)
    }

    pub(super) fn add_message(&mut self, message: Message) {
        keep(&mut self.messages, message, MAX_MESSAGES);
    }

    /// The newest call of the model.
    pub(super) fn last(&self) -> Option<&Message> {
        self.messages.iter().filter(|m| !m.user).max_by_key(|m| m.created)
    }

    pub(super) fn call(&mut self, part: &Id) -> Option<&mut Call> {
        self.calls.iter_mut().find(|c| c.part == *part)
    }

    pub(super) fn add_call(&mut self, call: Call) {
        keep(&mut self.calls, call, MAX_CALLS);
    }

    /// Forgets a call that ended.
    pub(super) fn remove_call(&mut self, part: &Id, hash: u64) -> Option<Call> {
        keep(&mut self.done, hash, MAX_DONE);
        let at = self.calls.iter().position(|c| c.part == *part)?;
        self.calls.remove(at)
    }

    pub(super) fn add_pending(&mut self, pending: Pending) {
        if self.pending.len() < MAX_PENDING {
            self.pending.push(pending);
        }
    }
}

// === impl Message ===

impl Message {
    pub(super) fn new(id: Id, user: bool, created: Timestamp) -> Self {
        Self {
            id,
            prompt: None,
            user,
            created,
            completed: None,
            finish: None,
            error: None,
            origin: Origin::Unknown,
            summary: false,
            tools: false,
            steps: false,
            edited: Vec::new(),
            changer: None,
            model: None,
            taken: false,
        }
    }

    /// A file an edit told of; false where there are too many to remember.
    pub(super) fn edits(&mut self, file: u64) {
        if self.edited.len() < MAX_EDITED {
            self.edited.push(file);
        }
    }

    /// Whether the model is done, unless something else follows.
    pub(super) fn is_final(&self) -> bool {
        self.completed.is_some() && (self.error.is_some() || self.finish != Some(Finish::Tools))
    }
}
