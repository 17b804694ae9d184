//! What a tool does, and what its result is evidence for.

use super::wire::{Edit, Hook, Hunk, Input, Raw, Response, flag, list, object, read, shape, spelled, text};
use crate::event::{CallOutcome, ReadRange, ToolClass};

/// What is known of how a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) outcome: CallOutcome,
    pub(super) exit_code: Option<i32>,
    pub(super) diff_lines: Option<u32>,
}

/// The class of a tool: the daemon's word for it where it has one, else by its name. The daemon serves several
/// agents, whose tools have names of their own.
pub(super) fn class_of(tool: &str, hook: &Hook<'_>) -> ToolClass {
    let known = match tool {
        "replace" | "Create" | "ApplyPatch" => ToolClass::Edit,
        "run_shell_command" | "Execute" => ToolClass::Shell,
        "read_many_files" => ToolClass::Read,
        "list_directory" | "search_file_content" | "google_web_search" | "web_fetch" | "LS" => {
            ToolClass::Search
        }
        other => ToolClass::of_tool(other),
    };
    if known != ToolClass::Other {
        return known;
    }
    match text(hook.canonical_tool_kind).as_deref() {
        Some("read") => ToolClass::Read,
        Some("search") => ToolClass::Search,
        Some("write" | "edit") => ToolClass::Edit,
        Some("shell" | "execute" | "bash") => ToolClass::Shell,
        _ => ToolClass::Other,
    }
}

/// The result of a call, whichever field holds it.
pub(super) fn response<'a>(hook: &Hook<'a>) -> Raw<'a> {
    hook.tool_response.or(hook.tool_output)
}

/// How a call ended, as far as its record says. `told_ok`: the daemon tells the ends of such calls only where they
/// succeeded. Without that, and without a sign in the result itself, nothing is known: 0.2 tells of a failed call in
/// the same words as of one that succeeded.
pub(super) fn ended(class: ToolClass, hook: &Hook<'_>, told_ok: bool, failed: bool) -> Ended {
    let result: Response<'_> = object(response(hook));
    let exit_code: Option<i32> =
        read(result.exit_code).or_else(|| read(result.exit_status)).filter(|_| class == ToolClass::Shell);
    let said: Option<bool> = read::<bool>(result.success).or_else(|| read(result.ok));
    let error = |raw: Raw<'_>| raw.is_some_and(|raw| !matches!(raw.get(), "false" | "\"\""));
    let wrong = failed
        || error(hook.error)
        || error(result.error)
        || flag(result.is_error)
        || said == Some(false)
        || exit_code.is_some_and(|code| code != 0);
    let shown = match class {
        ToolClass::Edit => result.path.is_some() || result.patch.is_some(),
        ToolClass::Read | ToolClass::Search => {
            result.content.is_some() || result.file.is_some() || result.filenames.is_some()
        }
        _ => false,
    };
    let outcome = if flag(hook.is_interrupt) {
        CallOutcome::Interrupted
    } else if wrong {
        CallOutcome::Error
    } else if told_ok || said == Some(true) || exit_code == Some(0) || shown {
        CallOutcome::Ok
    } else {
        CallOutcome::Unknown
    };
    let landed = class == ToolClass::Edit && outcome == CallOutcome::Ok;
    let diff_lines = landed.then(|| changed_lines(hook, &result));
    Ended { outcome, exit_code, diff_lines }
}

/// Changed lines of an edit that succeeded. Where neither patch nor texts are told, success itself is the evidence
/// that something was changed.
fn changed_lines(hook: &Hook<'_>, result: &Response<'_>) -> u32 {
    let input: Input<'_> = object(hook.tool_input);
    if result.patch.is_some() {
        let changed = |line: &String| line.starts_with(['+', '-']);
        let hunks = list::<Hunk<'_>>(result.patch);
        let lines = hunks.iter().map(|hunk| {
            let lines: Vec<String> = read(hunk.lines).unwrap_or_default();
            lines.iter().filter(|line| changed(line)).count()
        });
        let patched = lines.sum::<usize>();
        // A new file has no patch.
        if patched > 0 || result.original.is_some() {
            return u32::try_from(patched).unwrap_or(u32::MAX);
        }
    }
    if result.original.is_some() && text(result.original) == text(input.content) {
        return 0;
    }
    let several = list::<Edit<'_>>(input.edits);
    let replaced = |old: Raw<'_>, new: Raw<'_>| match (text(old), text(new)) {
        (Some(old), Some(new)) if old == new => 0,
        (old, new) => {
            let most = [old, new].into_iter().flatten().map(|t| t.lines().count()).max();
            u32::try_from(most.unwrap_or(1).max(1)).unwrap_or(u32::MAX)
        }
    };
    if !several.is_empty() {
        return several.iter().fold(0, |n, e| replaced(e.old_string, e.new_string).saturating_add(n));
    }
    replaced(input.old_string, input.new_string.or(input.content).or(input.new_source))
}

/// Lines a read asks for.
pub(super) fn range(class: ToolClass, hook: &Hook<'_>) -> Option<ReadRange> {
    if class != ToolClass::Read {
        return None;
    }
    let input: Input<'_> = shape(hook.tool_input)?;
    let limit: u32 = read(input.limit)?;
    let start = read::<u32>(input.offset).unwrap_or(1).max(1);
    Some(ReadRange { start, end: start.saturating_add(limit.saturating_sub(1)), total: None })
}

/// The text of a failure, wherever it stands.
pub(super) fn failure<'a>(hook: &Hook<'a>) -> Option<std::borrow::Cow<'a, str>> {
    let result: Response<'_> = object(response(hook));
    text(hook.error).or_else(|| text(result.error)).or_else(|| text(response(hook)))
}

/// The result as it is spelled, to tell whether it differs from an earlier one.
pub(super) fn output<'a>(hook: &Hook<'a>) -> Option<&'a str> {
    spelled(response(hook))
}
