//! Shapes of Codex's lines as far as they are read: fields stay raw until one is needed, so that a field of an
//! unexpected type loses that field and not the record. No meaning here.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::event::Timestamp;

/// A field that is looked at only where its kind of record has it.
pub(super) type Raw<'a> = Option<&'a RawValue>;

/// Declares objects by their fields, each raw; `= "…"` where the wire name is no identifier of ours.
macro_rules! shapes {
    ($($(#[$meta:meta])* $name:ident { $($field:ident $(= $wire:literal)?),+ $(,)? })+) => {$(
        $(#[$meta])*
        #[derive(Deserialize, Default)]
        pub(super) struct $name<'a> {
            $(#[serde(borrow, default $(, rename = $wire)?)] pub(super) $field: Raw<'a>,)+
        }
    )+};
}

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
        exit_code, aggregated_output, plan, goal, input_tokens, cached_input_tokens, output_tokens,
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
}

/// Text that borrows where it has no escapes; `Option<Cow<str>>` alone would always copy.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The field as `T`, or `None` where it is absent or something else.
pub(super) fn read<'a, T: Deserialize<'a>>(raw: Raw<'a>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}

/// The field as an object, or one without fields. A list is none: serde would take it for fields in order.
pub(super) fn object<'a, T: Deserialize<'a> + Default>(raw: Raw<'a>) -> T {
    read(raw.filter(|r| r.get().starts_with('{'))).unwrap_or_default()
}

/// The field's text.
pub(super) fn text(raw: Raw<'_>) -> Option<Cow<'_, str>> {
    read::<Text<'_>>(raw).map(|t| t.0)
}

/// The field's text, empty where it has none.
pub(super) fn word(raw: Raw<'_>) -> Cow<'_, str> {
    text(raw).unwrap_or_default()
}

/// Nobody counts beyond this; sums of such numbers stay far from the end of their range.
const MAX_COUNT: f64 = 1e12;

/// The field as a number of things; negative ones and impossible ones are none.
pub(super) fn count(raw: Raw<'_>) -> u64 {
    match read::<f64>(raw) {
        Some(n) if n > 0.0 && n <= MAX_COUNT => n as u64,
        _ => 0,
    }
}

/// The field as RFC 3339.
pub(super) fn moment(raw: Raw<'_>) -> Option<Timestamp> {
    Timestamp::parse(&text(raw)?).ok()
}

/// The field as epoch milliseconds.
pub(super) fn millis(raw: Raw<'_>) -> Option<Timestamp> {
    Timestamp::from_number(read(raw)?).ok()
}

/// The field as epoch seconds.
pub(super) fn seconds(raw: Raw<'_>) -> Option<Timestamp> {
    Timestamp::from_number(read::<f64>(raw)? * 1000.0).ok()
}

/// The blocks of a text field that may also be a list of `{type, text}`, in order.
pub(super) fn blocks<'a>(raw: Raw<'a>) -> Vec<Cow<'a, str>> {
    #[derive(Deserialize)]
    struct Block<'a> {
        #[serde(borrow, default)]
        text: Raw<'a>,
    }
    if let Some(whole) = text(raw) {
        return vec![whole];
    }
    read::<Vec<Block<'a>>>(raw).unwrap_or_default().into_iter().filter_map(|b| text(b.text)).collect()
}

/// The files of a patch by path.
pub(super) fn changes<'a>(raw: Raw<'a>) -> BTreeMap<String, Change<'a>> {
    read::<BTreeMap<String, &'a RawValue>>(raw)
        .unwrap_or_default()
        .into_iter()
        .map(|(path, change)| (path, object(Some(change))))
        .collect()
}
