//! What is remembered of a session between frames, all of it bounded, because it travels in the checkpoint.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::event::{ActionKind, Id, Mode, Name, Phase, SessionId, Step, Timestamp, ToolClass};

/// Calls in flight that are remembered.
const MAX_CALLS: usize = 64;
/// Calls that ended a moment ago.
const MAX_ENDED: usize = 16;
/// Arguments of edits that are remembered.
const MAX_EDITS: usize = 64;
/// Criteria that are followed one by one.
const MAX_CRITERIA: usize = 128;
/// Steps of one workflow whose entries are counted.
const MAX_STEPS: usize = 64;
/// Names of requests to a person that are remembered.
const MAX_REQUESTS: usize = 64;
/// Executions of workflows that are remembered.
const MAX_FLOWS: usize = 4;
/// Requests to a person that are open.
const MAX_PENDING: usize = 16;

/// One session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) id: SessionId,
    /// When its newest frame came.
    pub(super) heard: Timestamp,
    /// The project's id, for links, and its name.
    pub(super) project_id: Option<String>,
    pub(super) project: Option<Name>,
    pub(super) mode: Option<Mode>,
    /// The mode was told by a frame, which knows better than the list.
    pub(super) mode_told: bool,
    pub(super) phase: Option<Phase>,
    pub(super) model: Option<Name>,
    pub(super) provider: Option<Name>,
    /// The open run of `session.running`.
    pub(super) run: Option<Run>,
    /// The open turn: a run, or all runs of a workflow.
    pub(super) turn: Option<Id>,
    /// Whether a turn was ever told.
    pub(super) had_turn: bool,
    pub(super) flow: Option<Flow>,
    /// Criteria by the hash of their id.
    pub(super) criteria: Vec<(u64, Criterion)>,
    /// They changed before the first turn and are not told yet.
    pub(super) criteria_untold: bool,
    pub(super) calls: Vec<OpenCall>,
    pub(super) ended: VecDeque<u64>,
    /// Keys of edits that succeeded.
    pub(super) edits: VecDeque<u64>,
    pub(super) pending: Vec<Pending>,
    /// The server says that it runs.
    pub(super) alive: bool,
    /// Usage was reported, so that more can be said about it.
    pub(super) used: bool,
    /// Number of its newest frame on this connection.
    #[serde(skip)]
    pub(super) seq: Option<u64>,
    /// Its properties were told since this process began.
    #[serde(skip)]
    pub(super) told: bool,
    /// Newest work that is not told yet.
    #[serde(skip)]
    pub(super) active: Option<Timestamp>,
    /// Share of the context in use, until there is usage to tell it with.
    #[serde(skip)]
    pub(super) context: Option<f64>,
    /// Since when list and stream differ.
    #[serde(skip)]
    pub(super) doubt: Option<Timestamp>,
    /// Its status was asked and is not answered yet.
    #[serde(skip)]
    pub(super) asked: bool,
    /// No frame of it came on this connection yet.
    #[serde(skip)]
    pub(super) resumed: bool,
    /// It was missing in a list, and its status was asked for that.
    #[serde(skip)]
    pub(super) unlisted: bool,
    /// The stream told a beginning or an end of a run since its status was asked: what is answered is older.
    #[serde(skip)]
    pub(super) overtaken: bool,
    /// Names of requests to a person that were used up; a step, or a call, may ask more than once.
    #[serde(skip)]
    pub(super) requests: VecDeque<u64>,
    /// Executions before this one, which may be taken up again.
    #[serde(skip)]
    pub(super) flows: VecDeque<Flow>,
    /// Whether it runs, as the newest list of this connection says that has it.
    #[serde(skip)]
    pub(super) listed: Option<bool>,
}

/// One run, between the edges of `session.running`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) began: Timestamp,
    /// What it is, is not known yet, so that its start is not told yet.
    pub(super) beginning: bool,
    /// When it fell first, and how often.
    pub(super) fell: Option<Timestamp>,
    pub(super) falls: u32,
    /// Numbers missing right before the first fall, where that can be told.
    pub(super) missing: Option<u64>,
    /// The newest word of the model's turn.
    pub(super) done: Option<Done>,
    /// Somebody stopped it.
    pub(super) stopped: bool,
    /// An error, and whether the agent could go on.
    pub(super) error: Option<bool>,
    /// Whether it said anything at all.
    pub(super) spoke: bool,
    /// Whether there were workflow frames in it.
    pub(super) workflow: bool,
    pub(super) criteria_changed: bool,
    /// Newest time of the server's own clock in its frames.
    pub(super) server_time: Option<Timestamp>,
    /// The server was asked how it ended.
    pub(super) asked: bool,
    /// The connection broke in it: what its frames would have told may be lost.
    pub(super) cut: bool,
}

/// `reason` of `chat.done`, as far as it ends anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Done {
    Complete,
    Step,
    Error,
    Truncated,
}

/// One execution of a workflow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Flow {
    pub(super) id: String,
    /// Name of the workflow, from its definition.
    pub(super) name: Option<Name>,
    /// Which of its turns was said to be one of it.
    pub(super) told: Option<u32>,
    pub(super) status: FlowStatus,
    /// Its turn ended while its status still said that it runs.
    pub(super) over: bool,
    /// Turns it had: it can be resumed after an end.
    pub(super) turns: u32,
    pub(super) step: Option<Step>,
    /// How often each step was entered.
    pub(super) entries: Vec<(Id, u32)>,
    /// Something was said since the step pointer spoke last.
    pub(super) worked: bool,
    /// The open step began in the phase of verification; whether it failed already.
    pub(super) verifying: Option<bool>,
}

/// `status` of a workflow's execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FlowStatus {
    Running,
    Waiting,
    Completed,
    Cancelled,
    Blocked,
}

/// Where a criterion stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Criterion {
    Pending,
    InProgress,
    /// Claimed by who builds, not verified.
    Claimed,
    Passed,
    Failed,
}

/// A call in flight.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OpenCall {
    pub(super) call: Id,
    /// Hash of the id the model gave it, which other frames name it by.
    pub(super) short: u64,
    pub(super) tool: Name,
    pub(super) class: ToolClass,
    pub(super) key: Option<u64>,
    /// When it, or its newest output, came.
    pub(super) since: Timestamp,
    /// It was asked whether it waits for a person.
    pub(super) asked: bool,
    /// It was open when the connection broke: its end may be lost.
    pub(super) stale: bool,
}

/// Something a person is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Pending {
    pub(super) action: Id,
    pub(super) kind: ActionKind,
    /// Hash of the id of the call that waits.
    pub(super) short: Option<u64>,
    /// Known from the status only, which names nothing.
    pub(super) vague: bool,
}

// === impl Known ===

impl Known {
    pub(super) fn new(id: SessionId, heard: Timestamp) -> Self {
        Self {
            id,
            heard,
            project_id: None,
            project: None,
            mode: None,
            mode_told: false,
            phase: None,
            model: None,
            provider: None,
            run: None,
            turn: None,
            had_turn: false,
            flow: None,
            criteria: Vec::new(),
            criteria_untold: false,
            calls: Vec::new(),
            ended: VecDeque::new(),
            edits: VecDeque::new(),
            pending: Vec::new(),
            alive: false,
            used: false,
            seq: None,
            told: false,
            active: None,
            context: None,
            doubt: None,
            asked: false,
            resumed: false,
            unlisted: false,
            overtaken: false,
            requests: VecDeque::new(),
            flows: VecDeque::new(),
            listed: None,
        }
    }

    /// Whether anything is under way.
    pub(super) fn is_open(&self) -> bool {
        self.run.is_some() || self.turn.is_some()
    }

    /// Whether the stream says that it runs.
    pub(super) fn runs(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.fell.is_none())
    }

    /// Whether a run has ended of which it is not settled yet how.
    pub(super) fn settles(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.fell.is_some())
    }

    pub(super) fn begin_call(&mut self, call: OpenCall) {
        self.calls.retain(|open| open.call != call.call);
        // Models use an id again.
        self.ended.retain(|short| *short != call.short);
        if self.calls.len() >= MAX_CALLS {
            self.calls.remove(0);
        }
        self.calls.push(call);
    }

    /// The newest open call with this id.
    pub(super) fn open_call(&mut self, short: u64) -> Option<&mut OpenCall> {
        self.calls.iter_mut().rev().find(|open| open.short == short)
    }

    pub(super) fn end_call(&mut self, call: &Id, short: u64) -> Option<OpenCall> {
        self.has_ended(short);
        let at = self.calls.iter().position(|open| open.call == *call)?;
        Some(self.calls.remove(at))
    }

    /// A list that is older shows it as waiting still.
    fn has_ended(&mut self, short: u64) {
        if self.ended.len() >= MAX_ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back(short);
    }

    /// All calls are over with their turn.
    pub(super) fn end_calls(&mut self) {
        for open in std::mem::take(&mut self.calls) {
            self.has_ended(open.short);
        }
    }

    /// Whether a request of this name was made before.
    pub(super) fn was_requested(&mut self, name: u64) -> bool {
        if self.requests.contains(&name) {
            return true;
        }
        if self.requests.len() >= MAX_REQUESTS {
            self.requests.pop_front();
        }
        self.requests.push_back(name);
        false
    }

    /// The execution is this one: a new one, or one from before.
    pub(super) fn follow(&mut self, id: &str) {
        if self.flow.as_ref().is_some_and(|flow| flow.id == id) {
            return;
        }
        let known = self.flows.iter().position(|flow| flow.id == id).and_then(|at| self.flows.remove(at));
        if let Some(before) = self.flow.replace(known.unwrap_or_else(|| Flow::new(id))) {
            if self.flows.len() >= MAX_FLOWS {
                self.flows.pop_front();
            }
            self.flows.push_back(before);
        }
    }

    /// Remembers a request to a person; false if there are too many.
    pub(super) fn begin_pending(&mut self, pending: Pending) -> bool {
        let room = self.pending.len() < MAX_PENDING;
        if room {
            self.pending.push(pending);
        }
        room
    }

    /// Whether an edit with these arguments never succeeded before.
    pub(super) fn is_new_edit(&mut self, key: u64) -> bool {
        if self.edits.contains(&key) {
            return false;
        }
        if self.edits.len() >= MAX_EDITS {
            self.edits.pop_front();
        }
        self.edits.push_back(key);
        true
    }

    /// Takes in where the criteria stand; the ones that turned failed.
    pub(super) fn set_criteria(&mut self, mut now: Vec<(u64, Criterion)>) -> usize {
        now.truncate(MAX_CRITERIA);
        let failed_before =
            |id: u64| self.criteria.iter().any(|(known, was)| *known == id && *was == Criterion::Failed);
        let turned =
            now.iter().filter(|(id, status)| *status == Criterion::Failed && !failed_before(*id)).count();
        self.criteria = now;
        turned
    }
}

// === impl Run ===

impl Run {
    pub(super) fn new(began: Timestamp) -> Self {
        Self {
            began,
            beginning: true,
            fell: None,
            falls: 0,
            missing: None,
            done: None,
            stopped: false,
            error: None,
            spoke: false,
            workflow: false,
            criteria_changed: false,
            server_time: None,
            asked: false,
            cut: false,
        }
    }
}

// === impl Flow ===

impl Flow {
    pub(super) fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            name: None,
            told: None,
            status: FlowStatus::Running,
            over: false,
            turns: 0,
            step: None,
            entries: Vec::new(),
            worked: false,
            verifying: None,
        }
    }

    /// Whether it goes on, or waits to.
    pub(super) fn under_way(&self) -> bool {
        !self.over && matches!(self.status, FlowStatus::Running | FlowStatus::Waiting)
    }

    /// Counts an entry of a step, from 1.
    pub(super) fn enter(&mut self, step: &Id) -> u32 {
        if let Some((_, entries)) = self.entries.iter_mut().find(|(id, _)| id == step) {
            *entries = entries.saturating_add(1);
            return *entries;
        }
        if self.entries.len() >= MAX_STEPS {
            self.entries.remove(0);
        }
        self.entries.push((step.clone(), 1));
        1
    }

    pub(super) fn visited(&self, step: &Id) -> bool {
        self.entries.iter().any(|(id, _)| id == step)
    }
}

// === impl FlowStatus ===

impl FlowStatus {
    pub(super) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "running" => Self::Running,
            "waiting" => Self::Waiting,
            "completed" => Self::Completed,
            "cancelled" => Self::Cancelled,
            "blocked" => Self::Blocked,
            _ => return None,
        })
    }
}

// === impl Criterion ===

impl Criterion {
    pub(super) fn parse(text: &str) -> Self {
        match text {
            "in_progress" => Self::InProgress,
            "completed" => Self::Claimed,
            "passed" => Self::Passed,
            "failed" => Self::Failed,
            _ => Self::Pending,
        }
    }
}
