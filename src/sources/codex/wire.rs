//! Shapes of Codex's lines as far as they are read. No meaning here.

use std::collections::BTreeMap;

use crate::sources::shape::shapes;
pub(super) use crate::sources::shape::{
    Json, Raw, blocks, count, from_line, json, list, millis, moment, object, pairs, read, seconds, shape,
    text, word,
};

shapes! {
    /// One line, whatever its dialect.
    Line { timestamp, kind = "type", payload, msg, record_type, id, prompt, model, workdir }
    /// `session_meta`.
    Meta {
        id, timestamp, cwd, originator, cli_version, source, thread_source, model_provider,
        parent_thread_id, forked_from_id,
    }
    /// `turn_context`.
    Context {
        turn_id, cwd, approval_policy, approvals_reviewer, sandbox_policy, active_permission_profile, model,
        collaboration_mode,
    }
    /// An object of which only its tag or name matters.
    Tagged { kind = "type", mode, id, turn_trigger, command, status, created_at = "createdAt" }
    /// `response_item`, and the bare records of old files.
    ResponseItem {
        kind = "type", role, content, call_id, name, namespace, arguments, input, action, output,
    }
    /// `event_msg`, and `msg` of the old stream.
    EventMsg {
        kind = "type", turn_id, turn_attribution, last_agent_message, error, started_at, reason, item,
        started_at_ms, completed_at_ms, info, rate_limits, usage, call_id, success, changes, command,
        exit_code, aggregated_output, plan, goal, input_tokens, cached_input_tokens, output_tokens, trace_id,
    }
    /// `item` of `item_completed` and of the exec stream.
    Item {
        kind = "type", id, status, command, exit_code, aggregated_output, changes, server, tool, arguments,
        result, items,
    }
    /// `compacted`.
    Compacted { window_id }
    /// `token_usage_record`.
    UsageRecord { thread_id, turn_id, response_id, usage }
    /// `info` of `token_count`.
    TokenInfo { total_token_usage, last_token_usage, model_context_window, prompt, completion }
    /// Token numbers, wherever they stand.
    TokenNumbers {
        input_tokens, cached_input_tokens, cache_write_input_tokens, output_tokens, total_tokens,
    }
    /// `rate_limits`.
    RateLimits { primary, secondary }
    /// One window of `rate_limits`.
    LimitWindow { used_percent, resets_at, reset_at }
    /// An error, in any dialect. Its message is never looked at.
    ErrorInfo { codex_error_info, kind, reset_at = "resetAt", code, status, retry_after }
    /// Arguments that decide something; the rest only enters the call's key.
    Arguments { cmd, command, session_id, plan, sandbox_permissions, with_escalated_permissions }
    /// One file of a patch; old versions nest the fields below the kind of change.
    Change { kind = "type", unified_diff, content, move_path, add, delete, update, path }
    /// A line of the exec stream beside its `item`.
    ExecLine {
        thread_id, turn_id, item, usage, delta, status, error, call_id, tool_name, arguments,
        requires_approval,
    }
    /// Who started a thread, in three layers.
    Source { subagent }
    SubAgent { thread_spawn }
    ThreadSpawn { parent_thread_id }
    /// What the goal tools answer.
    GoalAnswer { goal }
    /// An output with its exit code.
    OutputForm { output, metadata }
    OutputMetadata { exit_code }
}

/// The files of a patch by path.
pub(super) fn changes<'a>(raw: Raw<'a>) -> BTreeMap<String, Change<'a>> {
    let files = pairs(raw).into_iter();
    files
        .filter_map(|(path, change)| Some((text(json(&format!("\"{path}\"")))?.into_owned(), object(change))))
        .collect()
}
