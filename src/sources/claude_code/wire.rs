//! Shapes of Claude Code's lines as far as they are read. No meaning here.

use crate::sources::shape::shapes;
pub(super) use crate::sources::shape::{
    Json, Raw, count, elements, from_line, list, moment, object, read, text, word,
};

shapes! {
    /// One line of a transcript.
    Line {
        kind = "type", subtype, timestamp, uuid, parent_uuid = "parentUuid", session_id = "sessionId",
        request_session = "requestSessionId",
        is_sidechain = "isSidechain", agent_id = "agentId", version, cwd, entrypoint, prompt_id = "promptId",
        permission_mode = "permissionMode", origin, is_meta = "isMeta", is_compact_summary = "isCompactSummary",
        turn_companion = "turnCompanion", message, tool_use_result = "toolUseResult",
        denial = "toolDenialKind", denial_before_run = "toolDenialBeforeRun",
        permission_decision = "permissionDecision", error, is_api_error = "isApiErrorMessage",
        api_error_status = "apiErrorStatus", retry_in_ms = "retryInMs", retry_attempt = "retryAttempt",
        operation, attachment,
    }
    /// `message` of a user's or an assistant's line.
    Message { id, model, usage, stop_reason, content }
    /// `usage` of a message; the kinds are disjoint.
    Tokens { input_tokens, cache_read_input_tokens, cache_creation_input_tokens, output_tokens }
    /// One block of a message.
    Block { kind = "type", text, id, name, input, tool_use_id, is_error, content }
    /// Arguments that decide something.
    Input { offset, limit, prompt }
    /// `toolUseResult`, whatever the tool.
    Outcome {
        status, agent_id = "agentId", interrupted, structured_patch = "structuredPatch", content,
        file, background_task_id = "backgroundTaskId", new_todos = "newTodos", task, task_id = "taskId",
        status_change = "statusChange", exit_meaning = "returnCodeInterpretation", shell_id, is_async = "isAsync",
        original_file = "originalFile",
    }
    /// The lines a read got.
    FileRead { start_line = "startLine", num_lines = "numLines", total_lines = "totalLines" }
    /// One hunk of a patch.
    Hunk { lines }
    /// An item of a list, a task, or anything else that has a status.
    Item { id, status, to, task_id, decision }
    /// `error` of a retry.
    Failure { status }
    /// What is attached to the conversation.
    Attachment { kind = "type", command_mode = "commandMode", prompt }
    /// Where a prompt came from.
    Origin { kind }
}

/// Whether a field is `true`.
pub(super) fn flag(raw: Raw<'_>) -> bool {
    raw.is_some_and(|raw| raw.get() == "true")
}
