//! What is known about one session. Plain data: [`super::apply`] writes it, [`super::state`] reads it.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::orchestration::{Orchestration, Spec};
use super::signals::CallLog;
use crate::event::{
    ActionKind, BlockReason, CallStart, Capabilities, Certainty, EndOutcome, ErrorClass, Evidence, Id, Mode,
    Name, Phase, ProgressKind, Requester, SessionId, SourceId, Step, Tally, Timestamp, TraceContext, Trigger,
    TurnOutcome, Writer,
};

/// Entries of `recent_progress`, as the status answer promises.
pub const RECENT_PROGRESS: usize = 20;
/// Calls of one session that can be in flight; more are counted but not followed.
pub const MAX_OPEN_CALLS: usize = 256;
/// Pending actions of one session that are followed.
pub const MAX_ACTIONS: usize = 64;
/// Natural keys (calls, actions, turns) that are remembered after their end.
pub const MAX_REMEMBERED: usize = 64;
/// Model responses whose usage may still rise; each takes 48 bytes, and they follow one another.
pub const MAX_RESPONSES: usize = 16;
/// Low-value facts of progress since the last landing that are kept with their time.
pub const MAX_LOW_VALUE: usize = 32;
/// Turns that no person began, and entries of steps, since the last landing that are kept with their time.
pub const MAX_TURNS: usize = 64;
/// Done steps, tasks and recognised commands that are remembered.
pub const MAX_DONE: usize = 128;

/// Everything known about one session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// The source.
    pub source: SourceId,
    /// Its id there.
    pub session: SessionId,
    /// The session that started it.
    pub parent: Option<SessionId>,
    /// Last component of the project's path.
    pub project: Option<Name>,
    /// Time of the record the project is from.
    pub project_as_of: Option<Timestamp>,
    /// Time of the record the parent is from.
    pub parent_as_of: Option<Timestamp>,
    /// Static and current properties.
    pub info: Info,
    /// When it was queued.
    pub queued_at: Option<Timestamp>,
    /// Earliest start anything says.
    pub started_at: Option<Timestamp>,
    /// When the exporter first heard of it.
    pub first_seen: Timestamp,
    /// Newest work activity or progress.
    pub last_activity: Option<Timestamp>,
    /// Newest factual advance.
    pub last_progress: Option<Timestamp>,
    /// Newest record of any rank.
    pub last_seen: Option<Timestamp>,
    /// Newest prompt of a person.
    pub last_prompt: Option<Timestamp>,
    /// Prompts that wait behind the running turn.
    pub queued_prompts: u32,
    /// Time of the record that number is from.
    pub queued_as_of: Option<Timestamp>,
    /// Whether `session.started` (or the first work) was counted.
    pub counted: bool,
    /// Whether the source tells turns; if not, work opens one implicitly.
    pub has_turns: bool,
    /// The open turn.
    pub turn: Option<Turn>,
    /// Traces that the next turn belongs to, or the run of an orchestration.
    pub callers: Vec<TraceContext>,
    /// The newest end of a turn.
    pub turn_end: Option<TurnEnd>,
    /// The end of the run or process; cleared when something starts again.
    pub run_end: Option<RunEnd>,
    /// When the source removed it.
    pub deleted_at: Option<Timestamp>,
    /// Turns by outcome.
    pub turns: TurnTotals,
    /// Calls by outcome.
    pub calls: CallTotals,
    /// Calls in flight.
    pub open_calls: Vec<OpenCall>,
    /// Calls since the last landing or person's prompt.
    pub log: CallLog,
    /// Low-value facts of progress since the last landing.
    pub low_value: Moments,
    /// Progress counts: kind, high value, number.
    pub progress: Vec<ProgressCount>,
    /// The newest facts of progress, oldest first.
    pub recent_progress: VecDeque<ProgressFact>,
    /// Open requests to the user.
    pub actions: Vec<Action>,
    /// The open episode of being held up.
    pub blocked: Option<Blocked>,
    /// The newest request to stop.
    pub stop: Option<Stop>,
    /// The open workflow step.
    pub step: Option<OpenStep>,
    /// Entries of steps since the last landing, oldest first: hash of the step's id, time.
    pub step_entries: VecDeque<(u64, Option<Timestamp>)>,
    /// Plan items by status.
    pub plan: Option<Tally>,
    /// Time of the record the plan is from.
    pub plan_as_of: Option<Timestamp>,
    /// Most plan items done so far.
    pub plan_high: u32,
    /// Criteria by status.
    pub criteria: Option<Tally>,
    /// Time of the record the criteria are from.
    pub criteria_as_of: Option<Timestamp>,
    /// Most criteria passed so far.
    pub criteria_high: u32,
    /// Turns, nudges and compactions since the last landing that no person began.
    pub machine_turns: Moments,
    /// Tokens and cost.
    pub usage: UsageTotals,
    /// Share of the context window in use.
    pub context_used: Option<f64>,
    /// Newest passed verification.
    pub verification_passed_at: Option<Timestamp>,
    /// Newest failed verification.
    pub verification_failed_at: Option<Timestamp>,
    /// The agent's own loop guard.
    pub native_stuck: Option<NativeStuck>,
    /// Background tasks (not agents) that go on.
    pub background: Vec<Id>,
    /// What is known of the writing process, and since when.
    pub writer: Option<(Writer, Timestamp)>,
    /// Whether the newest work was the agent's message to its user.
    pub message_last: bool,
    /// The newest landing that is no test or build pass.
    pub last_landing: Option<Timestamp>,
    /// The run of the orchestrator this is; then it is no session of an agent.
    pub orchestration: Option<Box<Orchestration>>,
    /// The spec of an orchestration this is; likewise.
    pub spec: Option<Box<Spec>>,
    /// Bookkeeping of natural keys.
    pub memory: Memory,
}

/// Static and current properties.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Info {
    /// Time of the newest property.
    pub as_of: Option<Timestamp>,
    /// Product name of the agent.
    pub agent: Option<Name>,
    /// Its version.
    pub version: Option<Name>,
    /// The client that drives it.
    pub originator: Option<Name>,
    /// What it is set up to do.
    pub mode: Option<Mode>,
    /// Where a workflow stands.
    pub phase: Option<Phase>,
    /// Model in use.
    pub model: Option<Name>,
    /// Its provider.
    pub provider: Option<Name>,
    /// Whether it may not write.
    pub read_only: Option<bool>,
    /// Whether a person sits in front.
    pub interactive: Option<bool>,
    /// Page in the agent's own UI.
    pub url: Option<Name>,
    /// What can be seen of this session.
    pub capabilities: Option<Capabilities>,
    /// The session it was forked from.
    pub forked_from: Option<SessionId>,
    /// The server that runs it, where the source follows several.
    pub endpoint: Option<Name>,
}

/// An open turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// The turn's own id.
    pub request: Option<Id>,
    /// When it began, where that has a time.
    pub started: Option<Timestamp>,
    /// What began it.
    pub trigger: Trigger,
    /// Whether it was opened by work because the source tells no turns.
    pub implicit: bool,
    /// Traces of the agent or its caller that it belongs to.
    pub callers: Vec<TraceContext>,
    /// The workflow it is a run of, with its name where that is known.
    pub workflow: Option<Option<Name>>,
}

/// How the newest turn ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnEnd {
    /// The turn's own id.
    pub request: Option<Id>,
    /// When.
    pub time: Option<Timestamp>,
    /// When it had begun.
    pub started: Option<Timestamp>,
    /// How.
    pub outcome: TurnOutcome,
    /// By which error.
    pub error: Option<ErrorClass>,
    /// When the limit that ended it is announced to be lifted.
    pub reset: Option<Timestamp>,
    /// Whether a person's refusal ended it.
    pub denied: bool,
    /// False where the record cannot tell success from failure.
    pub result_known: bool,
}

/// How the run or process ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEnd {
    /// When.
    pub time: Option<Timestamp>,
    /// How.
    pub outcome: EndOutcome,
    /// By which error.
    pub error: Option<ErrorClass>,
    /// Whether it was a workflow's run.
    pub workflow: bool,
}

/// Turns by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnTotals {
    /// Begun.
    pub started: u64,
    /// Completed.
    pub completed: u64,
    /// Failed, truncated or interrupted.
    pub failed: u64,
    /// Cancelled.
    pub cancelled: u64,
}

/// Calls by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallTotals {
    /// Begun.
    pub total: u64,
    /// Ended by an error, a denial or a non-zero exit code.
    pub failed: u64,
}

/// A call in flight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenCall {
    /// What began.
    pub start: CallStart,
    /// When.
    pub since: Option<Timestamp>,
    /// The turn it belongs to.
    pub request: Option<Id>,
}

/// How often a kind of progress was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressCount {
    /// The kind.
    pub kind: ProgressKind,
    /// Times it moved `last_progress`.
    pub high: u64,
    /// Times it only counted.
    pub low: u64,
}

/// One fact of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressFact {
    /// When.
    pub time: Timestamp,
    /// What.
    pub kind: ProgressKind,
    /// How it is known.
    pub evidence: Evidence,
}

/// An open request to the user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// Its id.
    pub action: Id,
    /// What is asked.
    pub kind: ActionKind,
    /// Whether it is a fact.
    pub certainty: Certainty,
    /// Its oldest opening.
    pub since: Timestamp,
    /// The tool that waits.
    pub tool: Option<Name>,
    /// The call it holds up.
    pub call: Option<Id>,
    /// It is known only as a dialog that is open.
    pub dialog: bool,
}

/// An episode of being held up by something that is not a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocked {
    /// By what, newest word.
    pub reason: BlockReason,
    /// Since its first sign.
    pub since: Timestamp,
    /// Its newest sign.
    pub latest: Timestamp,
    /// Announced end.
    pub until: Option<Timestamp>,
    /// Attempt, counted by the source.
    pub attempt: Option<u32>,
}

/// A request to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Whether it still stands.
    pub pending: bool,
    /// Who asked.
    pub requester: Requester,
    /// When.
    pub requested_at: Timestamp,
    /// When the agent took note.
    pub acknowledged_at: Option<Timestamp>,
}

/// The open workflow step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenStep {
    /// The step.
    pub step: Step,
    /// When it was entered.
    pub started: Option<Timestamp>,
}

/// Moments since the last landing, oldest first. Beyond a bound the first half and the newest ones are kept, so that
/// the moment a limit was passed stays known, and what lies between is only counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moments {
    kept: VecDeque<Timestamp>,
    /// Those not kept, and those without a time.
    uncounted: u32,
}

/// Tokens and cost. Cost in billionths of a dollar, so that sums do not depend on their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageTotals {
    /// Uncached input tokens.
    pub input: u64,
    /// Cached input tokens.
    pub cache_read: u64,
    /// Input tokens written to a cache.
    pub cache_write: u64,
    /// Output tokens.
    pub output: u64,
    /// Cost in 1e-9 US dollars.
    pub cost_nano: u64,
    /// Whether any usage was reported.
    pub seen: bool,
    /// Whether any cost was reported.
    pub cost_seen: bool,
}

/// What an agent's own loop guard said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NativeStuck {
    /// When.
    pub time: Timestamp,
    /// Which guard.
    pub detector: Name,
    /// Where in the agent it sits.
    pub layer: Name,
}

/// Natural keys that were seen, so that none counts twice beyond the deduplication window. Keys are unkeyed hashes
/// of ids, which may be shown anyway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Calls that ended.
    pub ended_calls: VecDeque<u64>,
    /// Calls, with the kind of fact they were credited with.
    pub credited: VecDeque<u64>,
    /// Actions that were resolved.
    pub resolved: VecDeque<u64>,
    /// Turns that were begun.
    pub begun_turns: VecDeque<u64>,
    /// Turns that ended.
    pub ended_turns: VecDeque<u64>,
    /// Steps, tasks and criteria that are done.
    pub done: VecDeque<u64>,
    /// Usage maxima per response: input, cache read, cache write, output, cost.
    pub responses: VecDeque<(u64, [u64; 5])>,
    /// Recognised commands: key, last pass, last fail.
    pub commands: VecDeque<CommandMemory>,
}

/// How a test or build command went last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandMemory {
    /// Call key.
    pub key: u64,
    /// When it passed last.
    pub passed: Option<Timestamp>,
    /// Whether its newest result is a failure.
    pub failing: bool,
}

// === impl Facts ===

impl Facts {
    /// A session of which nothing is known but its name.
    pub fn new(source: SourceId, session: SessionId, first_seen: Timestamp) -> Self {
        Self {
            source,
            session,
            parent: None,
            project: None,
            project_as_of: None,
            parent_as_of: None,
            info: Info::default(),
            queued_at: None,
            started_at: None,
            first_seen,
            last_activity: None,
            last_progress: None,
            last_seen: None,
            last_prompt: None,
            queued_prompts: 0,
            queued_as_of: None,
            counted: false,
            has_turns: false,
            turn: None,
            callers: Vec::new(),
            turn_end: None,
            run_end: None,
            deleted_at: None,
            turns: TurnTotals::default(),
            calls: CallTotals::default(),
            open_calls: Vec::new(),
            log: CallLog::default(),
            low_value: Moments::default(),
            progress: Vec::new(),
            recent_progress: VecDeque::new(),
            actions: Vec::new(),
            blocked: None,
            stop: None,
            step: None,
            step_entries: VecDeque::new(),
            plan: None,
            plan_as_of: None,
            plan_high: 0,
            criteria: None,
            criteria_as_of: None,
            criteria_high: 0,
            machine_turns: Moments::default(),
            usage: UsageTotals::default(),
            context_used: None,
            verification_passed_at: None,
            verification_failed_at: None,
            native_stuck: None,
            background: Vec::new(),
            writer: None,
            message_last: false,
            last_landing: None,
            orchestration: None,
            spec: None,
            memory: Memory::default(),
        }
    }

    /// Calls started since the last landing or person's prompt.
    pub fn calls_since_progress(&self) -> u64 {
        self.log.count(None)
    }

    /// Most entries of one step since the last landing of its own.
    pub fn step_entries_max(&self) -> u32 {
        self.step_loop(None, u32::MAX).0
    }

    /// Most entries of one step after `cleared`, and when a step was first entered for the `n`th time since.
    pub fn step_loop(&self, cleared: Option<Timestamp>, n: u32) -> (u32, Option<Timestamp>) {
        let (mut most, mut since) = (0, None);
        // Those of the moment of a landing are its own: what was entered before it is not kept.
        let counted = |time: &Option<Timestamp>| time.is_none() || *time >= cleared;
        for (i, (key, time)) in self.step_entries.iter().enumerate().filter(|(_, (_, t))| counted(t)) {
            let entries =
                self.step_entries.iter().take(i + 1).filter(|(k, t)| k == key && counted(t)).count();
            let entries = u32::try_from(entries).unwrap_or(u32::MAX);
            most = most.max(entries);
            if entries == n && since.is_none() {
                since = *time;
            }
        }
        (most, since)
    }

    /// What can be seen of this session, given its source's default.
    pub fn capabilities(&self, default: Capabilities) -> Capabilities {
        self.info.capabilities.unwrap_or(default)
    }

    /// When it began, as far as anything says.
    pub fn start(&self) -> Timestamp {
        self.started_at.or(self.queued_at).or(self.last_activity).unwrap_or(self.first_seen)
    }

    /// Newest moment anything was heard of it.
    pub fn last_heard(&self) -> Timestamp {
        self.last_seen.into_iter().chain(self.last_activity).max().unwrap_or(self.first_seen)
    }

    /// When the newest turn or run ended.
    pub fn newest_end_time(&self) -> Option<Timestamp> {
        let turn = self.turn_end.as_ref().map(|e| e.time.unwrap_or(self.first_seen));
        let run = self.run_end.as_ref().map(|e| e.time.unwrap_or(self.first_seen));
        turn.max(run)
    }
}

// === impl Moments ===

impl Moments {
    /// Adds one; one without a time is only counted.
    pub fn push(&mut self, time: Option<Timestamp>, max: usize) {
        let Some(time) = time else {
            self.uncounted = self.uncounted.saturating_add(1);
            return;
        };
        // Nearly always the newest; a late one goes to its place.
        let at = if self.kept.back().is_none_or(|last| *last <= time) {
            self.kept.len()
        } else {
            self.kept.partition_point(|t| *t <= time)
        };
        self.kept.insert(at, time);
        if self.kept.len() > max {
            self.kept.remove(max / 2);
            self.uncounted = self.uncounted.saturating_add(1);
        }
    }

    /// Forgets what is not younger than a landing.
    pub fn clear_until(&mut self, landed: Option<Timestamp>) {
        match landed {
            Some(landed) => {
                let old = self.kept.partition_point(|t| *t <= landed);
                self.kept.drain(..old);
            }
            None => self.kept.clear(),
        }
        self.uncounted = 0;
    }

    /// How many are younger than a landing elsewhere in the tree.
    pub fn count_after(&self, landed: Option<Timestamp>) -> u64 {
        let old = self.kept.partition_point(|t| Some(*t) <= landed);
        // Those not kept lie in the middle: a landing after the first kept one is taken to be after them too.
        let between = if old == 0 { self.uncounted } else { 0 };
        (self.kept.len() - old) as u64 + u64::from(between)
    }

    /// The moments younger than a landing elsewhere in the tree, as far as they are kept, oldest first.
    pub fn after(&self, landed: Option<Timestamp>) -> impl Iterator<Item = Timestamp> + '_ {
        self.kept.iter().copied().filter(move |t| Some(*t) > landed)
    }
}
