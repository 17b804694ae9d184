//! The closed sets of the vocabulary. Each word is spelled once, here; labels, API and schema use `as_str`.

use serde::{Deserialize, Serialize};

/// Declares a closed set: an enum with its spellings, `ALL`, `as_str` and `parse`.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vmeta])* #[doc = concat!("`", $text, "`")] $variant,)+
        }

        impl $name {
            /// Every word of the set, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The spelling used in labels, answers and schemas.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The word with this spelling.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

words! {
    /// What an agent is set up to do.
    Mode { Plan = "plan", Build = "build", Verify = "verify", Other = "other" }
}
words! {
    /// Where a workflow stands, as its source says.
    Phase { Plan = "plan", Build = "build", Verification = "verification", Waiting = "waiting", Blocked = "blocked", Done = "done", Other = "other" }
}
words! {
    /// How a session ended.
    EndOutcome { Completed = "completed", Failed = "failed", Cancelled = "cancelled", Unknown = "unknown" }
}
words! {
    /// What began a turn.
    Trigger { Person = "person", Machine = "machine", Unknown = "unknown" }
}
words! {
    /// How a turn ended.
    TurnOutcome { Completed = "completed", Failed = "failed", Cancelled = "cancelled", Truncated = "truncated", Interrupted = "interrupted" }
}
words! {
    /// What kind of error it was; texts are never kept.
    ErrorClass {
        RateLimit = "rate_limit", UsageLimit = "usage_limit", Billing = "billing", Auth = "auth", Timeout = "timeout",
        Network = "network", Server = "server", InvalidRequest = "invalid_request", ContextOverflow = "context_overflow",
        ModelMissing = "model_missing", Dependency = "dependency", Spawn = "spawn", Exit = "exit", Stopped = "stopped", Other = "other",
    }
}
words! {
    /// Kind of a workflow step.
    StepKind { Plan = "plan", Build = "build", Verify = "verify", Task = "task", Spec = "spec", Batch = "batch", Attempt = "attempt", Compaction = "compaction", Other = "other" }
}
words! {
    /// How a workflow step ended.
    StepOutcome { Advanced = "advanced", LoopedBack = "looped_back", Failed = "failed" }
}
words! {
    /// What a tool does, whatever it is called.
    ToolClass { Read = "read", Search = "search", Edit = "edit", Shell = "shell", Task = "task", Wait = "wait", User = "user", Plan = "plan", Mcp = "mcp", Other = "other" }
}
words! {
    /// How a tool call ended; `Unknown`: it did, and its record cannot tell success from failure.
    CallOutcome { Ok = "ok", Error = "error", Denied = "denied", Interrupted = "interrupted", Unknown = "unknown" }
}
words! {
    /// A fact that may be an advance (design section 4).
    ProgressKind {
        FileModified = "file_modified", CommitCreated = "commit_created", TestPassed = "test_passed", BuildSucceeded = "build_succeeded",
        StepCompleted = "step_completed", TaskCompleted = "task_completed", CriterionPassed = "criterion_passed",
        VerificationPassed = "verification_passed", BatchCompleted = "batch_completed", SpecCompleted = "spec_completed",
        GoalCompleted = "goal_completed", Deliverable = "deliverable",
        ToolCall = "tool_call", FileRead = "file_read", TaskStarted = "task_started", TestFailed = "test_failed",
        BuildFailed = "build_failed", ErrorOccurred = "error_occurred",
    }
}
words! {
    /// How a fact is known.
    Evidence { Structured = "structured", ExitCode = "exit_code", Vcs = "vcs", Declared = "declared" }
}
words! {
    /// What a person is asked for.
    ActionKind { Permission = "permission", Question = "question", Confirmation = "confirmation", Choice = "choice", PlanApproval = "plan_approval", Elicitation = "elicitation", Other = "other" }
}
words! {
    /// Whether a pending action is a fact or an inference.
    Certainty { Certain = "certain", Probable = "probable" }
}
words! {
    /// How a pending action was closed.
    Resolution { Answered = "answered", Approved = "approved", Denied = "denied", Expired = "expired", Cancelled = "cancelled", Unknown = "unknown" }
}
words! {
    /// Why a session is held up by something that is not a person.
    BlockReason { Retry = "retry", RateLimit = "rate_limit", UsageLimit = "usage_limit", LaunchBudget = "launch_budget", Guardrail = "guardrail", Dependency = "dependency", Auth = "auth", Backend = "backend", WorkflowBlocked = "workflow_blocked" }
}
words! {
    /// Who asked a run to stop.
    Requester { Http = "http", Websocket = "websocket", Cli = "cli", Mcp = "mcp", Workflow = "workflow", Unknown = "unknown" }
}
words! {
    /// Rank of evidence of an otherwise meaningless record.
    ActivityClass { Work = "work", Bookkeeping = "bookkeeping" }
}
words! {
    /// What is known about the process that writes a session: it lives, it died without a word, it left in order,
    /// nobody can tell.
    Writer { Alive = "alive", Gone = "gone", Left = "left", Unknown = "unknown" }
}
words! {
    /// Whether an event adds to the sums over all sessions: if it happened since the counting epoch, in any case (what
    /// is pushed), or never (what was counted under another session before).
    Counting { SinceEpoch = "since_epoch", Always = "always", Never = "never" }
}
words! {
    /// What a source can see (capability labels).
    Capability { Ends = "ends", PendingActions = "pending_actions", Progress = "progress", Calls = "calls", Steps = "steps", Usage = "usage", Liveness = "liveness" }
}

words! {
    /// Where an orchestration stands, by its own word; unknown where nobody says so.
    OrchestrationState { Idle = "idle", Running = "running", Completed = "completed", Failed = "failed", Stopped = "stopped", Unknown = "unknown" }
}
words! {
    /// Where a spec of an orchestration stands.
    SpecStatus { Pending = "pending", Running = "running", Completed = "completed", Failed = "failed", Timeout = "timeout", Skipped = "skipped" }
}
words! {
    /// Which limit of a provider an orchestration met.
    LimitClass { Http429 = "http_429", Quota = "quota", PerMinute = "per_minute", Other = "other" }
}
words! {
    /// Why an orchestration runs fewer agents at once.
    ThrottleReason { RateLimit = "rate_limit", Other = "other" }
}
words! {
    /// How the number of agents at once changed.
    ParallelChange { Throttled = "throttled", Recovered = "recovered" }
}

// === impl OrchestrationState ===

impl OrchestrationState {
    /// Whether the run is over.
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Stopped)
    }
}

// === impl SpecStatus ===

impl SpecStatus {
    /// Whether nothing more will happen to the spec in this run.
    pub const fn is_end(self) -> bool {
        !matches!(self, Self::Pending | Self::Running)
    }
}

// === impl Capability ===

impl Capability {
    /// The bit of this capability in [`Capabilities`].
    pub const fn bit(self) -> u8 {
        1 << (self as u8)
    }
}

/// A set of [`Capability`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities(pub u8);

// === impl Capabilities ===

impl Capabilities {
    /// The set of these capabilities.
    pub const fn of(list: &[Capability]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < list.len() {
            bits |= list[i].bit();
            i += 1;
        }
        Self(bits)
    }

    /// Whether the capability is in the set.
    pub const fn has(self, c: Capability) -> bool {
        self.0 & c.bit() != 0
    }

    /// The set with this capability added.
    pub const fn with(self, c: Capability) -> Self {
        Self(self.0 | c.bit())
    }

    /// The set without this capability.
    pub const fn without(self, c: Capability) -> Self {
        Self(self.0 & !c.bit())
    }
}

// === impl ProgressKind ===

impl ProgressKind {
    /// Whether the kind can move `lastProgressAt` at all; repeats of test and build passes do not.
    pub const fn can_be_high(self) -> bool {
        !matches!(
            self,
            Self::ToolCall
                | Self::FileRead
                | Self::TaskStarted
                | Self::TestFailed
                | Self::BuildFailed
                | Self::ErrorOccurred
        )
    }
}

// === impl ToolClass ===

impl ToolClass {
    /// The class of a tool known by its name only. Names are the ones agents give their built-in tools.
    pub fn of_tool(name: &str) -> Self {
        let lower = name.to_ascii_lowercase();
        match lower.as_str() {
            "read" | "read_file" | "cat" | "view" | "view_image" | "notebookread" => Self::Read,
            "list" | "ls" | "list_files" | "webfetch" | "grep" | "glob" | "search" | "find"
            | "codesearch" | "websearch" | "web_search" | "toolsearch" | "tool_search" => Self::Search,
            "edit" | "write" | "multiedit" | "apply_patch" | "patch" | "notebookedit" | "write_file"
            | "edit_file" | "str_replace" => Self::Edit,
            "bash" | "shell" | "exec" | "exec_command" | "local_shell" | "run_command" | "run"
            | "terminal" | "container.exec" | "powershell" => Self::Shell,
            "task" | "agent" | "spawn_agent" | "subagent" | "delegate" => Self::Task,
            "wait" | "wait_agent" | "sleep" | "bashoutput" | "taskoutput" | "write_stdin" | "monitor" => {
                Self::Wait
            }
            "question" | "askuserquestion" | "ask_user" | "request_user_input" | "exitplanmode" => Self::User,
            "todowrite" | "todoread" | "update_plan" | "todo" | "taskcreate" | "taskupdate" => Self::Plan,
            _ if lower.starts_with("mcp__") || lower.starts_with("mcp.") => Self::Mcp,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_read_back() {
        for word in ErrorClass::ALL {
            assert_eq!(ErrorClass::parse(word.as_str()), Some(*word));
        }
        for word in ProgressKind::ALL {
            assert_eq!(ProgressKind::parse(word.as_str()), Some(*word));
        }
        assert_eq!(Mode::parse("planner"), None);
    }

    #[test]
    fn capability_bits_do_not_overlap() {
        let all = Capabilities::of(Capability::ALL);
        assert_eq!(all.0.count_ones() as usize, Capability::ALL.len());
        assert!(!all.without(Capability::Ends).has(Capability::Ends));
    }
}
