//! Shapes of OpenFox's frames and answers as far as they are read. Content (texts, outputs, prompts, titles, settings)
//! is passed over where it stands. No meaning here.

use crate::sources::shape::shapes;
pub(super) use crate::sources::shape::{
    Json, Raw, count, from_line, json, list, moment, object, pairs, read, text, word,
};

shapes! {
    /// One frame of the stream.
    Frame { kind = "type", payload, seq, session_id = "sessionId" }
    /// Payload of `chat.message`.
    Message { message: Body }
    /// What a message is, without what it says.
    Body {
        role, generated = "isSystemGenerated", kind = "messageKind", sub_agent = "subAgentId",
        compaction = "isCompactionSummary", timestamp, id,
    }
    /// Payload of `chat.tool_call`, `chat.tool_result`, `chat.tool_output` and `chat.ask_user`.
    Call { message_id = "messageId", call_id = "callId", tool, args, result: Outcome }
    /// How a call ended.
    Outcome { success, output, error, metadata: Lines }
    /// The lines a read got.
    Lines { start = "startLine", end = "endLine", total = "lineCount" }
    /// Payload of `chat.done`.
    Done { message_id = "messageId", reason, agent_type = "agentType", stats: Stats }
    /// What a response cost.
    Stats { provider = "providerId", model, mode, prompt = "prefillTokens", generated = "generationTokens" }
    /// Payload of `chat.error`.
    Failure { recoverable }
    /// Payload of `metadata.updated` and `criteria.updated`.
    Metadata { key, entries, criteria }
    /// One criterion.
    Criterion { id, status }
    /// A status that is an object.
    Typed { kind = "type" }
    /// Payload of `session.running`, `mode.changed` and `phase.changed`.
    Change { is_running = "isRunning", mode, phase }
    /// Payload of `workflow.execution_changed`.
    Execution {
        execution = "executionId", status, workflow = "workflowName", step = "currentStepId",
        step_name = "currentStepName",
    }
    /// Payload of `context.state`.
    Context { context: Gauge, sub_agent = "subAgentId" }
    /// How full the context is.
    Gauge { current = "currentTokens", max = "maxTokens" }
    /// Payload of `session.deleted`.
    Gone { session_id = "sessionId" }

    /// Answer of `/api/sessions`.
    Page { sessions, has_more = "hasMore", confirmations = "pendingConfirmationsBySession" }
    /// One session of it.
    Row {
        id, project_id = "projectId", workdir, mode, is_running = "isRunning", updated_at = "updatedAt",
        model = "providerModel", provider = "providerId",
    }
    /// One confirmation that waits for a person.
    Confirmation { call_id = "callId", tool }
    /// Answer of `/api/sessions/:id/status`.
    Status { state, waiting_for_user = "waitingForUser", last_activity = "lastActivityAt" }
    /// Answer of `/api/config`, which holds much that is nobody's business.
    Config { version }
}

/// Whether a field is `true`.
pub(super) fn flag(raw: Raw<'_>) -> bool {
    raw.is_some_and(|raw| raw.get() == "true")
}

/// A status: a word, or an object with one.
pub(super) fn status(raw: Raw<'_>) -> String {
    let spelled = text(raw).unwrap_or_else(|| {
        let typed: Typed<'_> = object(raw);
        word(typed.kind).into_owned().into()
    });
    spelled.into_owned()
}
