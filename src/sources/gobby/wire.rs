//! Shapes of the daemon's frames and answers as far as they are read. No meaning here.

use crate::sources::shape::shapes;
pub(super) use crate::sources::shape::{
    Json, Raw, count, from_line, list, moment, object, read, shape, text, word,
};

shapes! {
    /// A frame of the stream, whatever its kind.
    Frame {
        kind = "type", event, event_type, timestamp, session_id, data: Hook, result: Verdict, conversation_ids,
        task_id, task: Task, progress_type, layer, source, run_id, parent_session_id, execution_id, step_id,
        step_name, status, signaled_at, requested_at,
    }
    /// What an agent's hook was handed.
    Hook {
        cwd, source, reason, tool_name, tool_input, tool_response, tool_output, tool_use_id,
        canonical_tool_kind, notification_type, agent_id, subagent_id, task_id, error, is_interrupt, action,
    }
    /// What the daemon answered to the hook.
    Verdict { decision }
    /// A task, in both of its versions.
    Task { state: TaskState, claimed_by_session_id, closed_in_session_id }
    /// Its state in 0.4.
    TaskState { owner_session_id, closed_in_session_id, is_escalated, is_blocked }
    /// What a tool returned.
    Response {
        exit_code, exit_status = "exitCode", success, ok, error, is_error, path = "filePath",
        patch = "structuredPatch", original = "originalFile", content, file, filenames,
    }
    /// One hunk of a patch.
    Hunk { lines }
    /// What a tool was called with.
    Input { old_string, new_string, content, new_source, edits, offset, limit }
    /// One of several replacements.
    Edit { old_string, new_string }
    /// The answer to the list of sessions.
    Sessions { sessions }
    /// A session of the list.
    Listed {
        id, external_id, source, status, parent_session_id, agent_depth, agent_run_id, spawned_by_agent_id,
        created_at, updated_at, model, input = "usage_input_tokens", output = "usage_output_tokens",
        cache_write = "usage_cache_creation_tokens", cache_read = "usage_cache_read_tokens",
        cost = "usage_total_cost_usd",
    }
    /// The answer about a request to stop.
    Signal { has_signal, source, signaled_at, requested_at, acknowledged_at }
}

/// Whether the field is `true`.
pub(super) fn flag(raw: Raw<'_>) -> bool {
    raw.is_some_and(|raw| raw.get() == "true")
}

/// The field as it is spelled, `None` where it has none.
pub(super) fn spelled<'a>(raw: Raw<'a>) -> Option<&'a str> {
    raw.map(Json::get)
}
