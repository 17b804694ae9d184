//! The vocabulary: facts about an agent, never about metrics. Sources make [`Event`]s, the fold applies them.
//!
//! An event is already reduced: arguments, targets, errors and paths have become keyed 64-bit hashes or a class
//! of a closed set (see [`reduce`]), so nothing behind this room can leak content. What is text here is allowed
//! to be shown: ids, the project's name, agent, model, provider and tool names, step names of a workflow
//! definition.

mod batch;
mod orchestration;
pub mod reduce;
mod time;
mod trace;
mod words;

use std::sync::Arc;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

pub use self::batch::*;
pub use self::orchestration::*;
pub use self::reduce::Reducer;
pub use self::time::{TimeError, Timestamp};
pub use self::trace::{MAX_CALLERS, TraceContext};
pub use self::words::*;

/// Version of the event model, as `schemaVersion` says it on the wire.
pub const SCHEMA_VERSION: &str = "1";
/// JSON Schema (2020-12) of the event model, as it is pushed.
pub const SCHEMA_JSON: &str = include_str!("schema.json");

/// Name of a source, `[a-z0-9_]{1,32}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SourceId(pub Arc<str>);

/// A session's id as its source gives it, bounded by [`reduce::Reducer::bounded`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub Arc<str>);

/// Any other id a source gives: call, action, step, prompt, turn or run. Unique within its session only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Id(pub Arc<str>);

/// A name that may be shown: project, tool, model, provider, agent, step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Name(pub Arc<str>);

macro_rules! text_newtype {
    ($($name:ident),+) => {$(
        impl $name {
            /// The text itself.
            pub fn as_str(&self) -> &str { &self.0 }
        }
        impl From<&str> for $name {
            fn from(text: &str) -> Self { Self(Arc::from(text)) }
        }
    )+};
}
text_newtype!(SourceId, SessionId, Id, Name);

// === impl Name ===

impl Name {
    /// The empty name: the label value of what is not known. Shared, because most counts need it.
    pub fn none() -> Self {
        static NONE: LazyLock<Name> = LazyLock::new(|| Name::from(""));
        NONE.clone()
    }
}

/// One fact about one session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Keyed hash of (source, session, id): the deduplication key. `None` where the sender gave no id.
    pub id: Option<u64>,
    /// When it happened, as the source says. `None` counts, but moves no clock.
    pub time: Option<Timestamp>,
    /// When the exporter read it.
    pub observed: Timestamp,
    /// The source that reported it.
    pub source: SourceId,
    /// The session it is about.
    pub session: SessionId,
    /// The session that started this one (a sub-agent's parent), of the same source.
    pub parent: Option<SessionId>,
    /// Last component of the project's path.
    pub project: Option<Name>,
    /// The prompt, turn or run it belongs to.
    pub request: Option<Id>,
    /// The trace of the agent or its caller that it belongs to.
    pub trace: Option<TraceContext>,
    /// Whether it adds to the sums over all sessions.
    pub counting: Counting,
    /// What happened.
    pub fact: Fact,
}

/// What happened. The wire name of each is `type` of the schema.
#[expect(missing_docs, reason = "fields are named as in the schema, which documents them")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Fact {
    /// `session.queued`: known, nothing started.
    SessionQueued(SessionInfo),
    /// `session.started`
    SessionStarted(SessionInfo),
    /// `session.resumed`: an ended or idle session is opened again; no turn is begun by this alone.
    SessionResumed(SessionInfo),
    /// `session.updated`: static or current properties became known or changed.
    SessionUpdated(SessionInfo),
    /// `session.ended`: the agent's process or run is over.
    SessionEnded { outcome: EndOutcome, error: Option<ErrorClass>, workflow: bool },
    /// `session.deleted`: the source removed it; series leave, counters stay.
    SessionDeleted,
    /// `turn.started`
    TurnStarted { trigger: Trigger },
    /// `turn.ended`; `reset`: when a limit that ended it is announced to be lifted; `denied`: a person's refusal
    /// ended it; `result_known` false: the source ends failed and completed turns with the same record, so that
    /// `outcome` counts the turn, but claims nothing about the session.
    TurnEnded {
        outcome: TurnOutcome,
        error: Option<ErrorClass>,
        reset: Option<Timestamp>,
        denied: bool,
        result_known: bool,
    },
    /// The open turn is a run of this workflow, by its name in its definition; never pushed.
    Workflow { name: Option<Name> },
    /// `workflow.step.started`
    StepStarted(Step),
    /// `workflow.step.completed`
    StepCompleted { step: Step, outcome: StepOutcome },
    /// `plan.ready` (`ready`) and `plan.updated`: items by status. `told`: items that get done are told as tasks of
    /// their own too, so that a rise is no further advance.
    PlanUpdated { ready: bool, items: Tally, told: bool },
    /// `criteria.updated`: `pending`, `done` = passed, `failed`.
    CriteriaUpdated(Tally),
    /// `tool.started`
    ToolStarted(CallStart),
    /// `tool.ended`
    ToolEnded(CallEnd),
    /// `progress`, `task.started`, `task.completed`, `test.*`, `build.*` and the engine's own advances.
    Progress { kind: ProgressKind, evidence: Evidence, call: Option<Id>, subject: Option<u64> },
    /// `verification.passed`, `verification.failed`
    Verification { passed: bool, call: Option<Id> },
    /// `user.action_required`
    ActionRequired {
        action: Id,
        kind: ActionKind,
        certainty: Certainty,
        tool: Option<Name>,
        call: Option<Id>,
    },
    /// The agent shows a dialog, about whatever it may be; never pushed. Where a call that asks a person is open, the
    /// dialog is that call's.
    Dialog { action: Id, kind: ActionKind },
    /// `user.action_resolved`
    ActionResolved { action: Id, resolution: Resolution },
    /// `user.prompt`; a prompt that waits behind the running turn is `queued`.
    Prompt { trigger: Trigger, queued: bool },
    /// `session.blocked`
    Blocked { reason: BlockReason, attempt: Option<u32>, delay_ms: Option<u64>, until: Option<Timestamp> },
    /// `session.unblocked`
    Unblocked,
    /// `rate_limit.signal`
    RateLimitSignal { delay_ms: Option<u64> },
    /// `rate_limit.signal` that names a spec of an orchestration.
    SpecLimited(Box<LimitUpdate>),
    /// `orchestration.updated`
    Orchestration(Box<OrchestrationUpdate>),
    /// `spec.updated`
    Spec(Box<SpecUpdate>),
    /// `launch_budget.updated`
    LaunchBudget(LaunchUpdate),
    /// `parallel.updated`
    Parallel(ParallelUpdate),
    /// Work of the agent of a spec, which goes by `activity`; pushed as its own record only.
    AgentWork(Box<AgentWork>),
    /// What an orchestration's event says about the session of one of its specs; never pushed.
    OwnSpec(Box<SpecUpdate>),
    /// `error`
    Error { class: ErrorClass, recoverable: bool },
    /// `stop.requested`
    StopRequested { requester: Requester },
    /// `stop.acknowledged`
    StopAcknowledged,
    /// `stop.cleared`
    StopCleared,
    /// `usage`: an addition (`response` absent) or the running maximum of one response.
    Usage(Usage),
    /// `native_stuck`: an agent's own loop guard spoke.
    NativeStuck { detector: Name, layer: Name },
    /// `activity`; `message`: it is an agent's message to its user, which in agents without turn ends may be the last word.
    Activity { class: ActivityClass, message: bool },
    /// Liveness of the writing process, from a probe of ours; never pushed.
    Writer(Writer),
    /// A background task (not agent) was declared or ended.
    Background { task: Id, running: bool },
    /// The store saw an episode of being stalled begin; only for counting it once, never pushed.
    StallBegan { reason: Id },
    /// Prompts that wait behind the running turn, as a number; never pushed.
    QueuedPrompts { waiting: u32 },
    /// What was known of the session is to be forgotten, because its records turned out to be another's; they follow
    /// again as far as they are its own. The sums stay. Never pushed.
    SessionReset,
    /// A type this version does not know: bookkeeping, and counted.
    Unknown,
}

/// Properties of a session; `None` leaves what was known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Product name of the agent, e.g. `codex`.
    pub agent: Option<Name>,
    /// Its version.
    pub version: Option<Name>,
    /// The client that drives the agent, e.g. `codex_exec`.
    pub originator: Option<Name>,
    /// What it is set up to do.
    pub mode: Option<Mode>,
    /// Where a workflow stands.
    pub phase: Option<Phase>,
    /// Model in use.
    pub model: Option<Name>,
    /// Provider of the model.
    pub provider: Option<Name>,
    /// Whether the agent may not write, so that no progress is expected.
    pub read_only: Option<bool>,
    /// Whether a person sits in front: only then an open call may be a dialog, and a turn's end is no session's end.
    pub interactive: Option<bool>,
    /// The session's page in the agent's own UI.
    pub url: Option<Name>,
    /// What the source can see of this session, where that differs from the source's default.
    pub capabilities: Option<Capabilities>,
    /// The session this one was forked from; it is no child of it.
    pub forked_from: Option<SessionId>,
    /// The server that runs it, as the health of the source names it; never pushed.
    pub endpoint: Option<Name>,
}

/// A step of a workflow, from its definition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Identifies the step within its run.
    pub id: Id,
    /// What kind of step.
    pub kind: StepKind,
    /// Its name in the workflow's definition.
    pub name: Option<Name>,
    /// Position, from 1.
    pub index: Option<u32>,
    /// How many steps there are.
    pub total: Option<u32>,
    /// How often it was entered, from 1.
    pub entry: Option<u32>,
}

/// Items by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Not begun.
    pub pending: u32,
    /// Under way.
    pub in_progress: u32,
    /// Done or passed.
    pub done: u32,
    /// Failed or dropped.
    pub failed: u32,
}

/// Commands recognised in a shell call, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commands(pub u8);

/// A range of lines that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadRange {
    /// First line, from 1.
    pub start: u32,
    /// Last line, inclusive.
    pub end: u32,
    /// Length of the file, where known.
    pub total: Option<u32>,
}

/// A tool call begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallStart {
    /// Unique in the session.
    pub call: Id,
    /// The tool's name.
    pub tool: Name,
    /// What the tool does.
    pub class: ToolClass,
    /// Keyed hash of tool and canonical arguments (design section 5).
    pub key: Option<u64>,
    /// Keyed hash of what it works on: class and path, command or search.
    pub target: Option<u64>,
    /// Lines a read asks for.
    pub read: Option<ReadRange>,
    /// Recognised commands of a shell call.
    pub commands: Commands,
    /// Whether it goes on behind the turn.
    pub background: bool,
    /// `Some(true)`: it asks a person before it runs; `Some(false)`: nobody can be asked; `None`: not said.
    pub asks: Option<bool>,
    /// A call inside a call (a script that runs commands): feeds progress and signals, is not counted as a call.
    pub nested: bool,
}

/// A tool call is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallEnd {
    /// The call's id.
    pub call: Id,
    /// How it ended.
    pub outcome: CallOutcome,
    /// Exit code of a command, where the source gives it.
    pub exit_code: Option<i32>,
    /// Changed lines of an edit: 0 changed nothing, `None` is not known or no edit.
    pub diff_lines: Option<u32>,
    /// Keyed hash of the error's fingerprint.
    pub error: Option<u64>,
    /// Keyed hash of the output.
    pub output: Option<u64>,
    /// Lines a read really got, where the source says it; else those its start asked for stand.
    pub read: Option<ReadRange>,
}

/// Tokens and cost, in disjoint kinds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Model that was used.
    pub model: Option<Name>,
    /// Its provider.
    pub provider: Option<Name>,
    /// The model response this is about; the maximum per response counts.
    pub response: Option<Id>,
    /// Uncached input tokens.
    pub input: u64,
    /// Input tokens read from a cache.
    pub cache_read: u64,
    /// Input tokens written to a cache.
    pub cache_write: u64,
    /// Output tokens, reasoning included.
    pub output: u64,
    /// Cost in US dollars, where the source says it.
    pub cost_usd: Option<f64>,
    /// Share of the context window in use, 0..=1, where the source says it.
    pub context_used: Option<f64>,
}

// === impl Step ===

impl Step {
    /// With what an earlier word about the same step said of it, where this one says nothing.
    pub fn said_before(&self, before: &Self) -> Self {
        Self {
            id: self.id.clone(),
            kind: if self.kind == StepKind::Other { before.kind } else { self.kind },
            name: self.name.clone().or_else(|| before.name.clone()),
            index: self.index.or(before.index),
            total: self.total.or(before.total),
            entry: self.entry.or(before.entry),
        }
    }
}

// === impl Commands ===

impl Commands {
    /// A test runner.
    pub const TEST: u8 = 1;
    /// A build tool.
    pub const BUILD: u8 = 2;
    /// `git commit`.
    pub const COMMIT: u8 = 4;

    /// Whether the command is among the recognised ones.
    pub const fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }
}

// === impl CallEnd ===

impl CallEnd {
    /// The end of a call that was cut off: nothing is known of what it did.
    pub fn interrupted(call: Id) -> Self {
        Self {
            call,
            outcome: CallOutcome::Interrupted,
            exit_code: None,
            diff_lines: None,
            error: None,
            output: None,
            read: None,
        }
    }
}

// === impl Fact ===

impl Fact {
    /// The wire name, also the label of `events_total`.
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::SessionQueued(_) => "session.queued",
            Self::SessionStarted(_) => "session.started",
            Self::SessionResumed(_) => "session.resumed",
            Self::SessionUpdated(_) => "session.updated",
            Self::SessionEnded { .. } => "session.ended",
            Self::SessionDeleted => "session.deleted",
            Self::TurnStarted { .. } => "turn.started",
            Self::TurnEnded { .. } => "turn.ended",
            Self::StepStarted(_) => "workflow.step.started",
            Self::StepCompleted { .. } => "workflow.step.completed",
            Self::PlanUpdated { ready: true, .. } => "plan.ready",
            Self::PlanUpdated { .. } => "plan.updated",
            Self::CriteriaUpdated(_) => "criteria.updated",
            Self::ToolStarted(_) => "tool.started",
            Self::ToolEnded(_) => "tool.ended",
            Self::Progress { kind, .. } => match kind {
                ProgressKind::TestPassed => "test.passed",
                ProgressKind::TestFailed => "test.failed",
                ProgressKind::BuildSucceeded => "build.succeeded",
                ProgressKind::BuildFailed => "build.failed",
                ProgressKind::TaskStarted => "task.started",
                ProgressKind::TaskCompleted => "task.completed",
                _ => "progress",
            },
            Self::Verification { passed: true, .. } => "verification.passed",
            Self::Verification { .. } => "verification.failed",
            Self::ActionRequired { .. } | Self::Dialog { .. } => "user.action_required",
            Self::ActionResolved { .. } => "user.action_resolved",
            Self::Prompt { .. } => "user.prompt",
            Self::Blocked { .. } => "session.blocked",
            Self::Unblocked => "session.unblocked",
            Self::RateLimitSignal { .. } | Self::SpecLimited(_) => "rate_limit.signal",
            Self::Orchestration(_) => "orchestration.updated",
            Self::Spec(_) | Self::OwnSpec(_) => "spec.updated",
            Self::LaunchBudget(_) => "launch_budget.updated",
            Self::Parallel(_) => "parallel.updated",
            Self::Error { .. } => "error",
            Self::StopRequested { .. } => "stop.requested",
            Self::StopAcknowledged => "stop.acknowledged",
            Self::StopCleared => "stop.cleared",
            Self::Usage(_) => "usage",
            Self::NativeStuck { .. } => "native_stuck",
            Self::Activity { .. } | Self::AgentWork(_) => "activity",
            Self::Writer(_) => "writer",
            Self::Background { .. } => "background",
            Self::StallBegan { .. } => "session.stalled",
            Self::QueuedPrompts { .. } => "queued_prompts",
            Self::Workflow { .. } => "workflow",
            Self::SessionReset => "session.reset",
            Self::Unknown => "unknown",
        }
    }

    /// Order of facts with one time: beginnings before what happens inside, ends last.
    pub fn rank(&self) -> u8 {
        match self {
            // Agents' lines of one moment: the thread, its turn, the calls in it, its end.
            Self::Spec(update) if update.turn => 19,
            Self::AgentWork(work) => match work.news {
                AgentNews::CallStarted { .. } => 20,
                AgentNews::CallEnded { .. } => 21,
                AgentNews::TurnEnded { .. } => 22,
            },
            Self::SessionQueued(_) | Self::SessionReset => 0,
            Self::SessionStarted(_) => 1,
            Self::SessionResumed(_) => 2,
            Self::SessionUpdated(_) => 3,
            Self::TurnStarted { .. } => 4,
            Self::Prompt { .. } | Self::QueuedPrompts { .. } | Self::Workflow { .. } => 5,
            Self::StepStarted(_) | Self::Orchestration(_) => 6,
            Self::PlanUpdated { .. } | Self::CriteriaUpdated(_) => 7,
            Self::ToolStarted(_) => 8,
            Self::ActionRequired { .. } | Self::Dialog { .. } => 9,
            Self::Background { running: true, .. } => 10,
            Self::Activity { .. } | Self::Unknown | Self::Usage(_) => 11,
            // What a source says of being held up is the better word than the signal it came with.
            Self::RateLimitSignal { .. } => 12,
            Self::Blocked { .. }
            | Self::SpecLimited(_)
            | Self::LaunchBudget(_)
            | Self::Parallel(_)
            | Self::Error { .. }
            | Self::NativeStuck { .. } => 13,
            Self::StopRequested { .. } => 14,
            Self::Unblocked | Self::ActionResolved { .. } => 15,
            Self::ToolEnded(_) => 16,
            Self::Background { .. } => 17,
            Self::Progress { .. } | Self::Verification { .. } | Self::Spec(_) | Self::OwnSpec(_) => 18,
            Self::StepCompleted { .. } => 19,
            Self::StopAcknowledged => 20,
            Self::StopCleared => 21,
            Self::TurnEnded { .. } => 22,
            Self::SessionEnded { .. } => 23,
            Self::Writer(_) => 24,
            Self::StallBegan { .. } => 25,
            Self::SessionDeleted => 26,
        }
    }
}

// === impl Event ===

impl Event {
    /// An event of a session with only what every event has; the rest is `None`.
    pub fn new(source: &SourceId, session: &SessionId, observed: Timestamp, fact: Fact) -> Self {
        Self {
            id: None,
            time: None,
            observed,
            source: source.clone(),
            session: session.clone(),
            parent: None,
            project: None,
            request: None,
            trace: None,
            counting: Counting::SinceEpoch,
            fact,
        }
    }
}
