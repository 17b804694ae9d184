//! What is told about a run of an orchestrator, which starts agents for specs in batches. Counts are either of one
//! thing that happened, or a run's totals as its status file keeps them ([`StatusTotals`]); the fold counts no thing
//! twice that is told in both ways.

use serde::{Deserialize, Serialize};

use super::{
    CallOutcome, ErrorClass, Id, LimitClass, Name, OrchestrationState, ParallelChange, SpecStatus,
    ThrottleReason, Timestamp, ToolClass,
};

/// `orchestration.updated`; `None` leaves what was known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OrchestrationUpdate {
    /// The orchestrator's own word.
    pub state: Option<OrchestrationState>,
    /// When the run began: another time is another run.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// The batch it is in, from 1.
    pub batch: Option<u32>,
    /// How many batches there are.
    pub batches: Option<u32>,
    /// Its first batch begins, which happens once in a run.
    pub begins: bool,
    /// This batch, from 1, is over.
    pub batch_done: Option<u32>,
    /// Read in a status file that a living orchestrator keeps rewriting; the event's time is that of the rewrite.
    pub rewritten: bool,
    /// An agent that belongs to no spec told something.
    pub unattributed: bool,
    /// Specs that are not told of because there are too many.
    pub beyond: u64,
    /// Specs that are told of.
    pub specs: Vec<SpecUpdate>,
    /// Totals of the run.
    pub totals: Option<Box<StatusTotals>>,
}

/// `spec.updated`; `None` leaves what was known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpecUpdate {
    /// The spec's name in the orchestrator's plan.
    pub spec: Name,
    /// Where it stands.
    pub status: Option<SpecStatus>,
    /// Its batch, from 1.
    pub batch: Option<u32>,
    /// How often it was tried again.
    pub retries: Option<u32>,
    /// What kind of error it met last.
    pub error: Option<ErrorClass>,
    /// An attempt begins.
    pub attempt: bool,
    /// Its agent began a turn.
    pub turn: bool,
    /// Its agent's own session.
    pub thread: Option<Id>,
    /// The record did not say when: the event's time is that of its arrival.
    pub received: bool,
}

/// What the agent of a spec does, in its own words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentWork {
    /// The spec.
    pub spec: Name,
    /// What it does.
    pub news: AgentNews,
    /// The record did not say when: the event's time is that of its arrival.
    pub received: bool,
}

/// What an agent of an orchestrator tells of itself.
#[expect(missing_docs, reason = "fields are those of calls and turns elsewhere")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AgentNews {
    /// A call begins.
    CallStarted { call: Id, tool: Name, class: ToolClass },
    /// A call is over.
    CallEnded { call: Id, tool: Name, class: ToolClass, outcome: CallOutcome, exit_code: Option<i32> },
    /// A turn is over. Tokens: input with cached ones, cached, output.
    TurnEnded { failed: bool, usage: Option<[u64; 3]> },
}

/// `rate_limit.signal` about a spec.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitUpdate {
    /// The spec that was held up.
    pub spec: Option<Name>,
    /// When, where that is not the event's time.
    pub at: Option<Timestamp>,
    /// The attempt, from 0.
    pub retry: Option<u32>,
    /// Until the spec is tried again.
    pub delay_ms: Option<u64>,
    /// Until anything is started again.
    pub hold_ms: Option<u64>,
    /// Which limit.
    pub class: Option<LimitClass>,
    /// The attempt is over and the spec waits for the next.
    pub waits: bool,
}

/// `launch_budget.updated`: how many agents may be started in a window of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchUpdate {
    /// Starts allowed per minute (the orchestrator's name for it; the window says per what).
    pub budget: Option<u64>,
    /// Length of the window.
    pub window_ms: Option<u64>,
    /// Starts in the window, as of the newest one.
    pub used: Option<u64>,
    /// How long starts are held back.
    pub hold_ms: Option<u64>,
    /// When they were held back last, where that is not the event's time.
    pub hold_at: Option<Timestamp>,
    /// A signal of being held back; one hold gives many.
    pub held: bool,
}

/// `parallel.updated`: how many agents may run at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParallelUpdate {
    /// Whether limits lower the number.
    pub adaptive: Option<bool>,
    /// As configured.
    pub max: Option<u64>,
    /// In force.
    pub effective: Option<u64>,
    /// Never lower than this.
    pub floor: Option<u64>,
    /// When it was lowered last.
    pub throttled_at: Option<Timestamp>,
    /// When it was raised last.
    pub recovered_at: Option<Timestamp>,
    /// Why it changed.
    pub reason: Option<ThrottleReason>,
    /// How it changed, where the orchestrator says so; else the numbers tell.
    pub change: Option<ParallelChange>,
}

/// What a status file says of its run as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusTotals {
    /// Totals since the run began.
    pub totals: RunTotals,
    /// The newest signal of a rate limit.
    pub limit: LimitUpdate,
    /// The launch budget.
    pub launch: LaunchUpdate,
    /// The parallelism.
    pub parallel: ParallelUpdate,
}

/// Totals of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTotals {
    /// Signals of a rate limit.
    pub signals: u64,
    /// Waiting they announced.
    pub backoff_ms: u64,
    /// Signals of held back starts.
    pub holds: u64,
    /// Times the parallelism was lowered.
    pub throttled: u64,
    /// Times it was raised again.
    pub recovered: u64,
}

// === impl SpecUpdate ===

impl SpecUpdate {
    /// An update of a spec that says nothing yet.
    pub fn of(spec: Name) -> Self {
        Self {
            spec,
            status: None,
            batch: None,
            retries: None,
            error: None,
            attempt: false,
            turn: false,
            thread: None,
            received: false,
        }
    }

    /// With this status.
    #[must_use]
    pub fn with(mut self, status: SpecStatus) -> Self {
        self.status = Some(status);
        self
    }
}

// === impl LimitUpdate ===

impl LimitUpdate {
    /// What the signal says about the spec itself.
    pub fn held_spec(&self) -> Option<SpecUpdate> {
        let mut update = SpecUpdate::of(self.spec.clone()?);
        update.error = Some(ErrorClass::RateLimit);
        if self.waits {
            update.status = Some(SpecStatus::Pending);
            update.retries = self.retry.map(|n| n.saturating_add(1));
        }
        Some(update)
    }
}
