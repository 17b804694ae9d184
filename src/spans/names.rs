//! The one table of names: attributes of spans and log records, with the pinned version of the conventions. The
//! conventions for generative AI are still moving, so a name of theirs is written nowhere else.

use serde::{Deserialize, Serialize};

/// Version of the OpenTelemetry semantic conventions that these names are from.
pub const SEMCONV_VERSION: &str = "1.41.0";
/// Their schema, sent with every scope.
pub const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.41.0";

macro_rules! keys {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// The name of an attribute.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Key {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Key {
            /// Every name.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// As it is sent.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }

            /// What it says.
            pub const fn help(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc,)+),)+
                }
            }
        }
    };
}

keys! {
    /// `invoke_agent`, `invoke_workflow` or `execute_tool`.
    OperationName = "gen_ai.operation.name",
    /// The session's id at its source.
    ConversationId = "gen_ai.conversation.id",
    /// Product name of the agent.
    AgentName = "gen_ai.agent.name",
    /// Name of a workflow, from its definition, or of an orchestration.
    WorkflowName = "gen_ai.workflow.name",
    /// Who serves the model.
    ProviderName = "gen_ai.provider.name",
    /// The model that was asked for.
    RequestModel = "gen_ai.request.model",
    /// Input tokens of the run, cached ones included.
    InputTokens = "gen_ai.usage.input_tokens",
    /// Of those, read from a cache.
    CacheReadTokens = "gen_ai.usage.cache_read.input_tokens",
    /// Of those, written to a cache.
    CacheCreationTokens = "gen_ai.usage.cache_creation.input_tokens",
    /// Output tokens of the run.
    OutputTokens = "gen_ai.usage.output_tokens",
    /// Name of the tool.
    ToolName = "gen_ai.tool.name",
    /// The call's id at its source.
    ToolCallId = "gen_ai.tool.call.id",
    /// Class of the error, of a closed set.
    ErrorType = "error.type",
    /// Exit code of a command.
    ExitCode = "process.exit.code",
    /// Name of the source.
    Source = "agent_session.source",
    /// Last component of the project's path.
    Project = "agent_session.project",
    /// Version of the agent.
    AgentVersion = "agent_session.agent.version",
    /// The agent's own trace of the run, where it names no span in it that a link could lead to.
    AgentTrace = "agent_session.agent.trace_id",
    /// What began the run: person, machine, unknown.
    Trigger = "agent_session.run.trigger",
    /// How it ended.
    Outcome = "agent_session.outcome",
    /// False where the end was concluded from silence.
    EndObserved = "agent_session.end_observed",
    /// True where its times are those of looks at it, or of what was received of it.
    Polled = "agent_session.polled",
    /// Cost of the run in US dollars, as reported.
    CostDollars = "agent_session.usage.cost_dollars",
    /// Class of the tool: read, search, edit, shell, task, wait, user, plan, mcp, other.
    ToolClass = "agent_session.tool.class",
    /// The step's id at its source.
    StepId = "agent_session.step.id",
    /// Its kind: plan, build, verify, task, spec, batch, attempt, compaction, other.
    StepKind = "agent_session.step.kind",
    /// Its name in the workflow's definition.
    StepName = "agent_session.step.name",
    /// Its position in the workflow, from 1.
    StepIndex = "agent_session.step.index",
    /// Number of steps of the workflow.
    StepTotal = "agent_session.step.total",
    /// How often it had been entered, this entry included.
    StepEntry = "agent_session.step.entry",
    /// What a wait was for: a kind of request to the user, or what held the run up.
    WaitReason = "agent_session.wait.reason",
    /// How a request to the user was resolved.
    Resolution = "agent_session.wait.resolution",
    /// Attempt, as the source counts.
    Attempt = "agent_session.wait.attempt",
    /// Kind of a fact of progress.
    ProgressKind = "agent_session.progress.kind",
    /// How it is known: structured, exit_code, vcs, declared.
    Evidence = "agent_session.progress.evidence",
    /// Whether it is of high value, an advance.
    HighValue = "agent_session.progress.high_value",
    /// What a link leads to: previous_run, forked_from, caller.
    Relation = "agent_session.link.relation",
    /// State of the session.
    State = "agent_session.state",
    /// Reason of the state.
    Reason = "agent_session.state.reason",
    /// Tells the record from all others, however often it is sent.
    RecordId = "log.record.uid",
    /// Parent of the span that began.
    ParentSpan = "agent_session.parent_span_id",
}
