//! Shapes of Codex's lines as far as they are read: fields stay raw until one is needed, so that a field of an
//! unexpected type loses that field and not the record. No meaning here.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::event::Timestamp;

/// A field that is looked at only where its kind of record has it.
pub(super) type Raw<'a> = Option<&'a RawValue>;

/// One line, whatever its dialect.
#[derive(Deserialize)]
pub(super) struct Line<'a> {
    #[serde(borrow, default)]
    pub(super) timestamp: Raw<'a>,
    #[serde(borrow, default, rename = "type")]
    pub(super) kind: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) payload: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) msg: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) record_type: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) id: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) prompt: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) model: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) workdir: Raw<'a>,
}

/// `session_meta`.
#[derive(Deserialize, Default)]
pub(super) struct Meta<'a> {
    #[serde(borrow, default)]
    pub(super) id: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) timestamp: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) cwd: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) originator: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) cli_version: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) source: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) thread_source: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) model_provider: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) parent_thread_id: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) forked_from_id: Raw<'a>,
}

/// `turn_context`.
#[derive(Deserialize, Default)]
pub(super) struct Context<'a> {
    #[serde(borrow, default)]
    pub(super) turn_id: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) cwd: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) approval_policy: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) approvals_reviewer: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) sandbox_policy: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) active_permission_profile: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) model: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) collaboration_mode: Raw<'a>,
}

/// An object of which only its tag or name matters.
#[derive(Deserialize, Default)]
pub(super) struct Tagged<'a> {
    #[serde(borrow, default, rename = "type")]
    pub(super) kind: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) mode: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) id: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) turn_trigger: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) command: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) status: Raw<'a>,
    #[serde(borrow, default, rename = "createdAt")]
    pub(super) created_at: Raw<'a>,
}

/// `response_item`, and the bare records of old files.
#[derive(Deserialize, Default)]
pub(super) struct ResponseItem<'a> {
    #[serde(borrow, default, rename = "type")]
    pub(super) kind: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) role: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) content: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) call_id: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) name: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) namespace: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) arguments: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) input: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) action: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) output: Raw<'a>,
}

/// `event_msg`, and `msg` of the old stream.
#[derive(Deserialize, Default)]
pub(super) struct EventMsg<'a> {
    #[serde(borrow, default, rename = "type")]
    pub(super) kind: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) turn_id: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) turn_attribution: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) last_agent_message: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) error: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) started_at: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) reason: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) item: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) started_at_ms: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) completed_at_ms: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) info: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) rate_limits: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) usage: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) call_id: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) success: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) changes: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) command: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) exit_code: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) aggregated_output: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) plan: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) goal: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) input_tokens: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) cached_input_tokens: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) output_tokens: Raw<'a>,
}

/// `item` of `item_completed` and of the exec stream.
#[derive(Deserialize, Default)]
pub(super) struct Item<'a> {
    #[serde(borrow, default, rename = "type")]
    pub(super) kind: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) id: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) status: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) command: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) exit_code: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) aggregated_output: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) changes: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) server: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) tool: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) arguments: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) result: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) items: Raw<'a>,
}

/// `compacted`.
#[derive(Deserialize, Default)]
pub(super) struct Compacted<'a> {
    #[serde(borrow, default)]
    pub(super) window_id: Raw<'a>,
}

/// `token_usage_record`.
#[derive(Deserialize, Default)]
pub(super) struct UsageRecord<'a> {
    #[serde(borrow, default)]
    pub(super) thread_id: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) turn_id: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) response_id: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) usage: Raw<'a>,
}

/// `info` of `token_count`.
#[derive(Deserialize, Default)]
pub(super) struct TokenInfo<'a> {
    #[serde(borrow, default)]
    pub(super) total_token_usage: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) last_token_usage: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) model_context_window: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) prompt: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) completion: Raw<'a>,
}

/// Token numbers, wherever they stand.
#[derive(Deserialize, Default)]
pub(super) struct TokenNumbers<'a> {
    #[serde(borrow, default)]
    pub(super) input_tokens: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) cached_input_tokens: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) cache_write_input_tokens: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) output_tokens: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) total_tokens: Raw<'a>,
}

/// `rate_limits`.
#[derive(Deserialize, Default)]
pub(super) struct RateLimits<'a> {
    #[serde(borrow, default)]
    pub(super) primary: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) secondary: Raw<'a>,
}

/// One window of `rate_limits`.
#[derive(Deserialize, Default)]
pub(super) struct LimitWindow<'a> {
    #[serde(borrow, default)]
    pub(super) used_percent: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) resets_at: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) reset_at: Raw<'a>,
}

/// An error, in any dialect. Its message is never looked at.
#[derive(Deserialize, Default)]
pub(super) struct ErrorInfo<'a> {
    #[serde(borrow, default)]
    pub(super) codex_error_info: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) kind: Raw<'a>,
    #[serde(borrow, default, rename = "resetAt")]
    pub(super) reset_at: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) code: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) status: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) retry_after: Raw<'a>,
}

/// Arguments that decide something; the rest only enters the call's key.
#[derive(Deserialize, Default)]
pub(super) struct Arguments<'a> {
    #[serde(borrow, default)]
    pub(super) cmd: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) command: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) session_id: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) plan: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) sandbox_permissions: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) with_escalated_permissions: Raw<'a>,
}

/// One file of a patch; old versions nest the fields below the kind of change.
#[derive(Deserialize, Default)]
pub(super) struct Change<'a> {
    #[serde(borrow, default, rename = "type")]
    pub(super) kind: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) unified_diff: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) content: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) move_path: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) add: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) delete: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) update: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) path: Raw<'a>,
}

/// A line of the exec stream beside its `item`.
#[derive(Deserialize, Default)]
pub(super) struct ExecLine<'a> {
    #[serde(borrow, default)]
    pub(super) thread_id: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) turn_id: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) item: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) usage: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) delta: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) status: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) error: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) call_id: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) tool_name: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) arguments: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) requires_approval: Raw<'a>,
}

/// Text that borrows where it has no escapes; `Option<Cow<str>>` alone would always copy.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The field as `T`, or `None` where it is absent or something else.
pub(super) fn read<'a, T: Deserialize<'a>>(raw: Raw<'a>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}

/// The field as an object, or one without fields.
pub(super) fn object<'a, T: Deserialize<'a> + Default>(raw: Raw<'a>) -> T {
    read(raw).unwrap_or_default()
}

/// The field's text.
pub(super) fn text(raw: Raw<'_>) -> Option<Cow<'_, str>> {
    read::<Text<'_>>(raw).map(|t| t.0)
}

/// The field's text, empty where it has none.
pub(super) fn word(raw: Raw<'_>) -> Cow<'_, str> {
    text(raw).unwrap_or_default()
}

/// The field as a number of things; negative ones are none.
pub(super) fn count(raw: Raw<'_>) -> u64 {
    match read::<f64>(raw) {
        Some(n) if n.is_finite() && n > 0.0 => n as u64,
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
