//! The words of derived states: the ten states and the closed set of reasons, each spelled once.

use serde::{Deserialize, Serialize};

use crate::event::{ActionKind, BlockReason, ErrorClass};

/// The ten states; exactly one holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Known, nothing started.
    Queued,
    /// A turn is open.
    Running,
    /// A turn is open and advanced lately.
    Progressing,
    /// A person has to act.
    WaitingForUser,
    /// It works, but gets nowhere.
    Stalled,
    /// Something that is not a person holds it up.
    Blocked,
    /// Ended well.
    Completed,
    /// Ended badly.
    Failed,
    /// Ended because somebody wanted it to.
    Cancelled,
    /// Evidence ran out.
    Unknown,
}

/// Why the state holds: a closed set, see [`State::reasons`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is its own word; the table of design states explains them")]
pub enum Reason {
    SourceLost,
    SilentTooLong,
    EndedWithoutResult,
    NeverStarted,
    Permission,
    Question,
    Confirmation,
    Choice,
    PlanApproval,
    Elicitation,
    Other,
    Probable,
    Retry,
    RateLimit,
    UsageLimit,
    LaunchBudget,
    Guardrail,
    Dependency,
    Auth,
    Backend,
    WorkflowBlocked,
    ResetPassed,
    Silent,
    CallStuck,
    Spinning,
    RepeatingError,
    SlowLoop,
    StepLoop,
    NoProgress,
    Error,
    Timeout,
    Truncated,
    ProcessGone,
    Interrupted,
    ByUser,
    Stopped,
    Denied,
    Deleted,
    TurnComplete,
    RunComplete,
    WorkflowComplete,
    BackgroundOpen,
    Working,
    Starting,
}

// === impl State ===

impl State {
    /// Every state, in the order of the documentation.
    pub const ALL: [Self; 10] = [
        Self::Queued,
        Self::Running,
        Self::Progressing,
        Self::WaitingForUser,
        Self::Stalled,
        Self::Blocked,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Unknown,
    ];

    /// The label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Progressing => "progressing",
            Self::WaitingForUser => "waiting_for_user",
            Self::Stalled => "stalled",
            Self::Blocked => "blocked",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
        }
    }

    /// The state with this spelling.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.as_str() == text)
    }

    /// Whether the session is over, as far as it said.
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    /// Whether a person has to look: the `attention` mode of series shows these.
    pub const fn needs_attention(self) -> bool {
        matches!(self, Self::WaitingForUser | Self::Stalled | Self::Blocked | Self::Failed | Self::Unknown)
    }

    /// The reasons this state can have.
    pub const fn reasons(self) -> &'static [Reason] {
        use Reason as R;
        match self {
            Self::Unknown => &[R::SourceLost, R::SilentTooLong, R::EndedWithoutResult, R::NeverStarted],
            Self::WaitingForUser => &[
                R::Permission,
                R::Question,
                R::Confirmation,
                R::Choice,
                R::PlanApproval,
                R::Elicitation,
                R::Other,
                R::Probable,
            ],
            Self::Blocked => &[
                R::Retry,
                R::RateLimit,
                R::UsageLimit,
                R::LaunchBudget,
                R::Guardrail,
                R::Dependency,
                R::Auth,
                R::Backend,
                R::WorkflowBlocked,
                R::ResetPassed,
            ],
            Self::Stalled => &[
                R::Silent,
                R::CallStuck,
                R::Spinning,
                R::RepeatingError,
                R::SlowLoop,
                R::StepLoop,
                R::NoProgress,
            ],
            Self::Failed => &[
                R::Error,
                R::RateLimit,
                R::UsageLimit,
                R::Auth,
                R::Timeout,
                R::Truncated,
                R::ProcessGone,
                R::Interrupted,
            ],
            Self::Cancelled => &[R::ByUser, R::Stopped, R::Denied, R::Deleted],
            Self::Completed => &[R::TurnComplete, R::RunComplete, R::WorkflowComplete, R::BackgroundOpen],
            Self::Running | Self::Progressing | Self::Queued => &[R::Working, R::Starting],
        }
    }
}

// === impl Reason ===

impl Reason {
    /// The label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SourceLost => "source_lost",
            Self::SilentTooLong => "silent_too_long",
            Self::EndedWithoutResult => "ended_without_result",
            Self::NeverStarted => "never_started",
            Self::Permission => "permission",
            Self::Question => "question",
            Self::Confirmation => "confirmation",
            Self::Choice => "choice",
            Self::PlanApproval => "plan_approval",
            Self::Elicitation => "elicitation",
            Self::Other => "other",
            Self::Probable => "probable",
            Self::Retry => "retry",
            Self::RateLimit => "rate_limit",
            Self::UsageLimit => "usage_limit",
            Self::LaunchBudget => "launch_budget",
            Self::Guardrail => "guardrail",
            Self::Dependency => "dependency",
            Self::Auth => "auth",
            Self::Backend => "backend",
            Self::WorkflowBlocked => "workflow_blocked",
            Self::ResetPassed => "reset_passed",
            Self::Silent => "silent",
            Self::CallStuck => "call_stuck",
            Self::Spinning => "spinning",
            Self::RepeatingError => "repeating_error",
            Self::SlowLoop => "slow_loop",
            Self::StepLoop => "step_loop",
            Self::NoProgress => "no_progress",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::Truncated => "truncated",
            Self::ProcessGone => "process_gone",
            Self::Interrupted => "interrupted",
            Self::ByUser => "by_user",
            Self::Stopped => "stopped",
            Self::Denied => "denied",
            Self::Deleted => "deleted",
            Self::TurnComplete => "turn_complete",
            Self::RunComplete => "run_complete",
            Self::WorkflowComplete => "workflow_complete",
            Self::BackgroundOpen => "background_open",
            Self::Working => "working",
            Self::Starting => "starting",
        }
    }

    /// The reason with this spelling.
    pub fn parse(text: &str) -> Option<Self> {
        State::ALL.iter().flat_map(|s| s.reasons()).copied().find(|r| r.as_str() == text)
    }

    /// The reason a pending action of this kind gives.
    pub const fn of_action(kind: ActionKind) -> Self {
        match kind {
            ActionKind::Permission => Self::Permission,
            ActionKind::Question => Self::Question,
            ActionKind::Confirmation => Self::Confirmation,
            ActionKind::Choice => Self::Choice,
            ActionKind::PlanApproval => Self::PlanApproval,
            ActionKind::Elicitation => Self::Elicitation,
            ActionKind::Other => Self::Other,
        }
    }

    /// The reason an episode of being held up gives.
    pub const fn of_block(reason: BlockReason) -> Self {
        match reason {
            BlockReason::Retry => Self::Retry,
            BlockReason::RateLimit => Self::RateLimit,
            BlockReason::UsageLimit => Self::UsageLimit,
            BlockReason::LaunchBudget => Self::LaunchBudget,
            BlockReason::Guardrail => Self::Guardrail,
            BlockReason::Dependency => Self::Dependency,
            BlockReason::Auth => Self::Auth,
            BlockReason::Backend => Self::Backend,
            BlockReason::WorkflowBlocked => Self::WorkflowBlocked,
        }
    }

    /// The reason a failure by this class gives.
    pub const fn of_failure(class: Option<ErrorClass>) -> Self {
        match class {
            Some(ErrorClass::RateLimit) => Self::RateLimit,
            Some(ErrorClass::UsageLimit | ErrorClass::Billing) => Self::UsageLimit,
            Some(ErrorClass::Auth) => Self::Auth,
            Some(ErrorClass::Timeout) => Self::Timeout,
            _ => Self::Error,
        }
    }
}
