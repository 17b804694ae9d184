//! What a decoder remembers between lines, all of it bounded, because it travels in the checkpoint.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::event::{Id, Mode, Name, SessionId, Tally, Timestamp, ToolClass};
use crate::sources::files::OwnerId;

/// Sub-agents inside one file that are told apart; the oldest leaves first.
const MAX_LANES: usize = 24;
/// Lines of sub-agents inside one file whose successors find them.
const MAX_TAILS: usize = 64;
/// Calls without a result.
const MAX_OPEN: usize = 96;
/// Messages whose further lines may follow.
const MAX_MESSAGES: usize = 8;
/// Tasks of a session's list.
const MAX_TASKS: usize = 256;

/// Everything that survives a restart.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct State {
    /// The file's own session first, then sub-agents inside it.
    pub(super) lanes: Vec<Lane>,
    /// The last line of each sub-agent inside the file: hash of its uuid, session.
    pub(super) tails: VecDeque<(u64, SessionId)>,
    /// Hash of the id that lines of the file's own session carry.
    pub(super) own: Option<u64>,
    /// The file began as a copy of another session's.
    pub(super) fork: bool,
    pub(super) forked_from: Option<SessionId>,
    /// The file is a sub-agent's.
    pub(super) agent: Option<String>,
}

/// One session of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Lane {
    pub(super) session: SessionId,
    pub(super) parent: Option<SessionId>,
    /// Time of the first line.
    pub(super) start: Option<Timestamp>,
    /// Whether the session was made known.
    pub(super) known: bool,
    pub(super) project: Option<Name>,
    pub(super) cwd: u64,
    pub(super) version: u64,
    pub(super) model: Option<Name>,
    pub(super) mode: Option<Mode>,
    /// Whether a person can be asked.
    pub(super) interactive: bool,
    /// Whether this session's records tell when a turn ends.
    pub(super) tells_ends: bool,
    pub(super) turn: Option<Turn>,
    /// Hash of the prompt of the newest turn, and how often the turn was taken up again.
    pub(super) prompt: Option<(u64, u32)>,
    /// When a person gave a command that may begin a turn.
    pub(super) command: Option<Timestamp>,
    /// The newest of its lines is its last word to whoever asked.
    pub(super) message_last: bool,
    /// A person refused a call of this turn.
    pub(super) denied: bool,
    /// Message whose end was told already, and one whose end is yet to be told, with its time.
    pub(super) ended: u64,
    pub(super) ending: Option<(u64, Option<Timestamp>)>,
    /// Time of the newest line of any kind.
    pub(super) newest: Option<Timestamp>,
    /// When something was last said of it, to spare saying that it is still there.
    pub(super) said: Option<Timestamp>,
    pub(super) queued: u32,
    /// Time of the newest line about it, and how many of that time came before.
    pub(super) queued_at: Option<(Timestamp, u16)>,
    /// The process wrote its totals: what it still adds is the rest of what it was doing.
    pub(super) left: bool,
    /// Whether whole messages carry the details of their stop, as newer versions write them.
    pub(super) details: bool,
    pub(super) open: VecDeque<OpenCall>,
    pub(super) messages: VecDeque<Message>,
    pub(super) tasks: VecDeque<(u64, TaskState)>,
    /// What this stands for in the index of owners, in this process.
    #[serde(skip)]
    pub(super) owner: Option<OwnerId>,
}

/// An open turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Turn {
    pub(super) request: Option<Id>,
    /// Whether anything was done in it.
    pub(super) worked: bool,
}

/// A call without a result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OpenCall {
    /// Hash of its id.
    pub(super) call: u64,
    pub(super) tool: Name,
    pub(super) class: ToolClass,
    /// Hash of a sub-agent's task.
    pub(super) prompt: u64,
    pub(super) since: Option<Timestamp>,
}

/// A message whose lines follow one another.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Message {
    /// Hash of its id.
    pub(super) id: u64,
    /// Its key in the index of owners.
    pub(super) key: u64,
    /// Whether it is another session's.
    pub(super) copied: bool,
    /// Whether it was counted for another session, which copied it.
    pub(super) taken: bool,
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum TaskState {
    Pending,
    InProgress,
    Done,
    Dropped,
}

// === impl State ===

impl State {
    /// The lane of a session inside the file, made if it is new.
    pub(super) fn lane_of(&mut self, session: &SessionId, parent: Option<&SessionId>) -> usize {
        if let Some(at) = self.lanes.iter().position(|lane| lane.session == *session) {
            return at;
        }
        if self.lanes.len() > MAX_LANES {
            // Never the file's own.
            self.lanes.remove(1);
        }
        let mut lane = Lane::new(session.clone());
        lane.parent = parent.cloned();
        self.lanes.push(lane);
        self.lanes.len() - 1
    }

    /// Remembers where a sub-agent's line stands.
    pub(super) fn tail(&mut self, uuid: u64, session: &SessionId) {
        if self.tails.len() >= MAX_TAILS {
            self.tails.pop_front();
        }
        self.tails.push_back((uuid, session.clone()));
    }
}

// === impl Lane ===

impl Lane {
    pub(super) fn new(session: SessionId) -> Self {
        Self {
            session,
            parent: None,
            start: None,
            known: false,
            project: None,
            cwd: 0,
            version: 0,
            model: None,
            mode: None,
            interactive: true,
            tells_ends: false,
            turn: None,
            prompt: None,
            command: None,
            message_last: false,
            denied: false,
            ended: 0,
            ending: None,
            newest: None,
            said: None,
            queued: 0,
            queued_at: None,
            left: false,
            details: false,
            open: VecDeque::new(),
            messages: VecDeque::new(),
            tasks: VecDeque::new(),
            owner: None,
        }
    }

    pub(super) fn begin_call(&mut self, call: OpenCall) {
        if self.open.len() >= MAX_OPEN {
            self.open.pop_front();
        }
        self.open.push_back(call);
    }

    pub(super) fn end_call(&mut self, call: u64) -> Option<OpenCall> {
        let at = self.open.iter().position(|open| open.call == call)?;
        self.open.remove(at)
    }

    pub(super) fn message(&self, id: u64) -> Option<Message> {
        self.messages.iter().find(|message| message.id == id).copied()
    }

    pub(super) fn remember(&mut self, message: Message) {
        if self.messages.len() >= MAX_MESSAGES {
            self.messages.pop_front();
        }
        self.messages.push_back(message);
    }

    /// Puts a task where it stands now.
    pub(super) fn task(&mut self, id: u64, state: TaskState) {
        if let Some((_, known)) = self.tasks.iter_mut().find(|(task, _)| *task == id) {
            *known = state;
            return;
        }
        if self.tasks.len() >= MAX_TASKS {
            self.tasks.pop_front();
        }
        self.tasks.push_back((id, state));
    }

    /// The session's tasks by status.
    pub(super) fn tally(&self) -> Tally {
        let count = |state| {
            let n = self.tasks.iter().filter(|(_, s)| *s == state).count();
            u32::try_from(n).unwrap_or(u32::MAX)
        };
        Tally {
            pending: count(TaskState::Pending),
            in_progress: count(TaskState::InProgress),
            done: count(TaskState::Done),
            failed: count(TaskState::Dropped),
        }
    }
}

// === impl TaskState ===

impl TaskState {
    pub(super) fn parse(word: &str) -> Self {
        match word {
            "completed" => Self::Done,
            "in_progress" => Self::InProgress,
            "deleted" | "cancelled" | "failed" => Self::Dropped,
            _ => Self::Pending,
        }
    }
}
