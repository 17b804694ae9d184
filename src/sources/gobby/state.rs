//! What is kept between frames, and over a restart of the exporter: per session the open turn, calls and requests,
//! per server what it was seen to be. Only ids, hashes, times and numbers.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::event::{Id, Name, Requester, SessionId, Timestamp, TurnOutcome};

/// Version of the layout of what is kept.
const LAYOUT: u8 = 2;
/// Most bytes of what is kept, below the limit of a cursor.
const MAX_SAVED: usize = 60 << 10;
/// Sessions that are followed; the one that was silent longest leaves.
pub(super) const MAX_SESSIONS: usize = 512;
/// Calls of a session that are followed.
pub(super) const MAX_CALLS: usize = 64;
/// Calls of the same agent that begin and end behind one of which no end is told: then it is over. An agent waits for all
/// calls it made at once, and makes no more than a few of them.
const OUTLIVED_BY: u8 = 20;
/// Open requests to the user of a session that are followed.
pub(super) const MAX_ACTIONS: usize = 16;
/// Sub-agents of a session that are followed.
pub(super) const MAX_CHILDREN: usize = 64;
/// Ids of calls that are remembered, because daemons were seen to use one twice.
const MAX_USED: usize = 32;
/// Tasks whose session is remembered.
const MAX_TASKS: usize = 512;
/// What was told under an id nobody has joined yet.
pub(super) const MAX_HELD: usize = 256;

/// Everything that is kept of one server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    /// Whether paths begin with `/api`, once an answer said so.
    pub(super) api: Option<bool>,
    /// 0.4 and later: only calls that succeeded are told as ended.
    pub(super) modern: bool,
    /// The operator lets hooks through that ask a person.
    pub(super) sees_actions: bool,
    /// The one that was heard of last is the last.
    pub(super) sessions: Vec<Session>,
    /// Tasks and who worked on them last.
    pub(super) tasks: VecDeque<Tracked>,
    /// Told under an internal id that is in no list yet.
    pub(super) held: VecDeque<Held>,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Session {
    /// The agent's own id.
    pub(super) id: SessionId,
    /// The daemon's.
    pub(super) internal: Option<Arc<str>>,
    /// Who started it.
    pub(super) parent: Option<SessionId>,
    /// An agent started it, or a pipeline: no person types its prompts.
    pub(super) spawned: bool,
    /// Agent and model as they were told.
    pub(super) agent: Option<Name>,
    pub(super) model: Option<Name>,
    /// Its properties as the list has them were told.
    pub(super) introduced: bool,
    /// Whether a hook of it was ever seen.
    pub(super) hooked: bool,
    /// Something may have been missed since it was heard of last.
    pub(super) gap: Option<Timestamp>,
    /// Time of the newest hook.
    pub(super) heard: Option<Timestamp>,
    /// The open turn.
    pub(super) turn: Option<Id>,
    /// How the newest turn ended, where that is known.
    pub(super) result: Option<TurnOutcome>,
    /// The newest end of a turn or of the session.
    pub(super) over: Option<Timestamp>,
    /// Whether it ended.
    pub(super) ended: bool,
    /// Calls in flight.
    pub(super) calls: Vec<Open>,
    /// Ids of tool calls that were used.
    pub(super) used: VecDeque<u64>,
    /// Open requests to the user.
    pub(super) actions: Vec<Action>,
    /// Sub-agents at work.
    pub(super) children: Vec<SessionId>,
    /// A compaction was begun and counted.
    pub(super) compacting: bool,
    /// A request to stop stands.
    pub(super) stop: bool,
    /// Questions from before this one know nothing of it.
    #[serde(skip)]
    pub(super) stop_told: u32,
    /// The list said `paused` as of this time.
    pub(super) paused: Option<(Timestamp, Timestamp)>,
    /// Tokens and cost as they were told last.
    pub(super) usage: [u64; 5],
    /// The task that was selected last.
    pub(super) task: Option<Id>,
    /// The agent's own tasks: made, done.
    pub(super) own_tasks: [u32; 2],
}

/// A call in flight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Open {
    pub(super) call: Id,
    /// Hash of the id the agent gave it.
    pub(super) given: Option<u64>,
    /// Tool and arguments.
    pub(super) key: Option<u64>,
    /// The sub-agent that made it.
    pub(super) child: Option<SessionId>,
    /// Calls of the same agent that began after it and are over.
    pub(super) outlived: u8,
}

/// An open request to the user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Action {
    pub(super) action: Id,
    /// The call it holds up.
    pub(super) call: Option<Id>,
    /// Tool and arguments of that call.
    pub(super) key: Option<u64>,
    pub(super) elicitation: bool,
}

/// A task that a session worked on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Tracked {
    pub(super) task: Id,
    /// The daemon's id of the session.
    pub(super) internal: Arc<str>,
    pub(super) done: bool,
    /// It holds its session up.
    pub(super) blocks: bool,
}

/// What was told of a session by the daemon's id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) internal: Arc<str>,
    pub(super) time: Timestamp,
    pub(super) observed: Timestamp,
    /// Hash of the frame.
    pub(super) seed: u64,
    /// Kind of the frame, for counting what stays without a session.
    pub(super) kind: Kind,
    pub(super) told: Told,
}

/// Kinds of frames that name sessions by the daemon's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    Autonomous,
    Session,
    Task,
    Agent,
    Other,
}

/// What a frame means for its session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Told {
    /// A sign of life without meaning for us.
    Noted,
    /// The agent works.
    Worked,
    /// A task was chosen or claimed.
    Selected(Id),
    /// A task is done; for the first time.
    Closed(Id, bool),
    /// A task waits for somebody (`true`) or for another task.
    Blocked(bool),
    Unblocked,
    /// The daemon's own word for the selected task.
    Finished,
    /// The daemon's own loop guard, by its layer.
    Stuck(Layer),
    Stop(Requester),
    StopCleared,
    Expired,
    /// A run of a sub-agent: its name, the daemon's id of its session, what happened.
    Run(Id, Option<Arc<str>>, Run),
}

/// Layers of the daemon's loop guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Layer {
    TaskLoop,
    ToolLoop,
    Stagnation,
}

/// What happened to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Run {
    Started,
    Completed,
    Failed,
    Cancelled,
    TimedOut,
}

// === impl State ===

impl State {
    /// From what an earlier run kept.
    pub(super) fn restore(saved: &[u8]) -> Option<Self> {
        let (layout, rest) = saved.split_first()?;
        if *layout == LAYOUT { postcard::from_bytes(rest).ok() } else { None }
    }

    /// The sessions that were heard of last, as many as fit.
    pub(super) fn save(&self) -> Vec<u8> {
        let mut kept = self.clone();
        loop {
            let out = postcard::to_extend(&kept, vec![LAYOUT]);
            let out = out.expect("the state holds only sequences of known length");
            if out.len() <= MAX_SAVED || (kept.sessions.is_empty() && kept.held.is_empty()) {
                return out;
            }
            // Quiet ones first; half of them, so that this ends soon.
            let leave = kept.sessions.len().div_ceil(2);
            kept.sessions.sort_by_key(|s| (!s.ended, s.heard));
            kept.sessions.drain(..leave);
            kept.held.drain(..kept.held.len().div_ceil(2));
            kept.tasks.drain(..kept.tasks.len().div_ceil(2));
        }
    }

    /// What comes next may not be what came next.
    pub(super) fn interrupted(&mut self, now: Timestamp) {
        for session in self.sessions.iter_mut().filter(|s| !s.ended) {
            session.gap = Some(now);
        }
    }

    pub(super) fn find(&self, id: &SessionId) -> Option<usize> {
        self.sessions.iter().position(|s| s.id == *id)
    }

    pub(super) fn find_internal(&self, internal: &str) -> Option<usize> {
        self.sessions.iter().position(|s| s.internal.as_deref() == Some(internal))
    }

    /// A place for a new session.
    pub(super) fn add(&mut self, id: SessionId) -> usize {
        if self.sessions.len() >= MAX_SESSIONS {
            let quiet = (0..self.sessions.len()).min_by_key(|i| {
                let s = &self.sessions[*i];
                (!s.ended, s.turn.is_some(), s.heard)
            });
            self.sessions.remove(quiet.expect("there are some"));
        }
        self.sessions.push(Session::new(id));
        self.sessions.len() - 1
    }

    /// The task's entry, with the session that works on it now, if one does.
    pub(super) fn track(&mut self, task: &Id, internal: Option<&str>) -> Option<&mut Tracked> {
        if let Some(at) = self.tasks.iter().position(|t| t.task == *task) {
            if let Some(internal) = internal {
                self.tasks[at].internal = Arc::from(internal);
            }
            return self.tasks.get_mut(at);
        }
        let internal = Arc::from(internal?);
        if self.tasks.len() >= MAX_TASKS {
            self.tasks.pop_front();
        }
        self.tasks.push_back(Tracked { task: task.clone(), internal, done: false, blocks: false });
        self.tasks.back_mut()
    }
}

// === impl Session ===

impl Session {
    fn new(id: SessionId) -> Self {
        Self {
            id,
            internal: None,
            parent: None,
            spawned: false,
            agent: None,
            model: None,
            introduced: false,
            hooked: false,
            gap: None,
            heard: None,
            turn: None,
            result: None,
            over: None,
            ended: false,
            calls: Vec::new(),
            used: VecDeque::new(),
            actions: Vec::new(),
            children: Vec::new(),
            compacting: false,
            stop: false,
            stop_told: 0,
            paused: None,
            usage: [0; 5],
            task: None,
            own_tasks: [0; 2],
        }
    }

    /// Whether a tool call of this name was made before.
    pub(super) fn use_up(&mut self, given: u64) -> bool {
        if self.used.contains(&given) {
            return true;
        }
        if self.used.len() >= MAX_USED {
            self.used.pop_front();
        }
        self.used.push_back(given);
        false
    }

    /// Takes out the call that ended: by the id the agent gave, else by tool and arguments, the oldest first.
    pub(super) fn take_call(&mut self, given: Option<u64>, key: Option<u64>) -> Option<Open> {
        let by = |same: &dyn Fn(&Open) -> bool| self.calls.iter().position(same);
        let at = match given {
            Some(given) => {
                by(&|c| c.given == Some(given) && c.key == key).or_else(|| by(&|c| c.given == Some(given)))
            }
            None => by(&|c| c.key == key),
        };
        let ended = self.calls.remove(at?);
        for earlier in self.calls.iter_mut().take(at?).filter(|c| c.child == ended.child) {
            earlier.outlived = earlier.outlived.saturating_add(1);
        }
        Some(ended)
    }

    /// Takes out the calls whose end was not told and lies behind.
    pub(super) fn take_outlived(&mut self) -> Vec<Open> {
        let over = |call: &mut Open| call.outlived >= OUTLIVED_BY;
        self.calls.extract_if(.., over).collect()
    }

    /// Follows a call; the oldest leaves where there are too many.
    pub(super) fn add_call(&mut self, call: Open) {
        if self.calls.len() >= MAX_CALLS {
            self.calls.remove(0);
        }
        self.calls.push(call);
    }
}

// === impl Kind ===

impl Kind {
    /// What is counted where no session ever had the id.
    pub(super) const fn unjoined(self) -> &'static str {
        match self {
            Self::Autonomous => "autonomous_event/unjoined",
            Self::Session => "session_event/unjoined",
            Self::Task => "task_event/unjoined",
            Self::Agent => "agent_event/unjoined",
            Self::Other => "other/unjoined",
        }
    }
}

// === impl Layer ===

impl Layer {
    pub(super) fn parse(word: &str) -> Option<Self> {
        match word {
            "task_loop" => Some(Self::TaskLoop),
            "tool_loop" => Some(Self::ToolLoop),
            "progress_stagnation" => Some(Self::Stagnation),
            _ => None,
        }
    }

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::TaskLoop => "task_loop",
            Self::ToolLoop => "tool_loop",
            Self::Stagnation => "progress_stagnation",
        }
    }
}
