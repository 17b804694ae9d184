//! opencode's closed words, translated. Messages of errors are prose and never looked at.

use serde::{Deserialize, Serialize};

use super::wire::{Failure, Raw, StatusAction, object, read, shape, text, word};
use crate::event::{BlockReason, ErrorClass, Mode, TurnOutcome};

/// Agents that may not write.
const READ_ONLY: [&str; 2] = ["plan", "explore"];
/// Agents the program itself puts in for a message; they do not set what the session is.
const INTERNAL: [&str; 3] = ["compaction", "title", "summary"];

/// Events that say nothing about a session: neither work nor anything unknown.
const NOISE: [&str; 25] = [
    "server.connected",
    "server.heartbeat",
    "session.idle",
    "session.diff",
    "session.compacted",
    "message.removed",
    "message.part.removed",
    "command.executed",
    "file.edited",
    "storage.write",
    "vcs.branch.updated",
    "global.disposed",
    "ide.installed",
    "models-dev.refreshed",
    "mcp.tools.changed",
    "mcp.browser.open.failed",
    "lsp.updated",
    "lsp.client.diagnostics",
    "project.updated",
    "project.directories.updated",
    "plugin.added",
    "catalog.updated",
    "reference.updated",
    "integration.updated",
    "installation.updated",
];
const NOISE_OF: [&str; 8] =
    ["file.watcher.", "tui.", "pty.", "worktree.", "workspace.", "integration.", "installation.", "catalog."];

/// How a model's answer ended, as `finish` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Finish {
    /// It said what it had to say.
    Done,
    /// It asked for tools: more follows, unless a person refused one.
    Tools,
    /// It was cut at its longest.
    Length,
    /// It was held back.
    Refused,
}

/// Why something failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Broken {
    /// A person stopped it, or the instance was closed.
    Aborted,
    /// The answer was cut at its longest.
    Length,
    /// Anything else.
    Class(ErrorClass),
}

/// What a turn's end comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) outcome: TurnOutcome,
    pub(super) error: Option<ErrorClass>,
    pub(super) denied: bool,
}

// === impl Verdict ===

impl Verdict {
    pub(super) fn of(outcome: TurnOutcome) -> Self {
        Self { outcome, error: None, denied: false }
    }
}

pub(super) fn is_noise(kind: &str) -> bool {
    NOISE.contains(&kind) || NOISE_OF.iter().any(|begins| kind.starts_with(begins))
}

pub(super) fn is_internal(agent: &str) -> bool {
    INTERNAL.contains(&agent)
}

pub(super) fn is_read_only(agent: &str) -> bool {
    READ_ONLY.contains(&agent)
}

pub(super) fn mode_of(agent: &str) -> Mode {
    Mode::parse(agent).unwrap_or(Mode::Other)
}

pub(super) fn finish_of(raw: Raw<'_>) -> Option<Finish> {
    Some(match text(raw)?.as_ref() {
        "tool-calls" => Finish::Tools,
        "length" => Finish::Length,
        "content-filter" | "error" => Finish::Refused,
        _ => Finish::Done,
    })
}

/// The class of an error, from its name and status.
pub(super) fn broken_of(raw: Raw<'_>) -> Option<Broken> {
    let failure: Failure<'_> = shape(raw)?;
    let status: Option<u16> = read(failure.data.status_code);
    let class = match word(failure.name).as_ref() {
        "MessageAbortedError" => return Some(Broken::Aborted),
        "MessageOutputLengthError" => return Some(Broken::Length),
        "ProviderAuthError" => ErrorClass::Auth,
        "ContextOverflowError" => ErrorClass::ContextOverflow,
        "ProviderModelNotFoundError" => ErrorClass::ModelMissing,
        _ => match status {
            Some(401 | 403) => ErrorClass::Auth,
            Some(402) => ErrorClass::Billing,
            Some(404) => ErrorClass::ModelMissing,
            Some(408) => ErrorClass::Timeout,
            Some(429) => ErrorClass::RateLimit,
            Some(400 | 413 | 422) => ErrorClass::InvalidRequest,
            Some(500..=599) => ErrorClass::Server,
            None if read(failure.data.retryable) == Some(true) => ErrorClass::Network,
            _ => ErrorClass::Other,
        },
    };
    Some(Broken::Class(class))
}

/// Why it is tried again. A status has no code, but may have a word for limits of an account.
pub(super) fn held_by(action: Raw<'_>) -> BlockReason {
    let action: StatusAction<'_> = object(action);
    let reason = word(action.reason);
    let has = |part: &str| reason.contains(part);
    if has("rate_limit") {
        BlockReason::RateLimit
    } else if has("limit") || has("quota") || has("credit") {
        BlockReason::UsageLimit
    } else {
        BlockReason::Retry
    }
}

/// Whether a kind may be told as it is: a word of a protocol, not a text somebody wrote.
pub(super) fn is_kind(kind: &str) -> bool {
    let dots = kind.bytes().filter(|b| *b == b'.').count();
    (1..=64).contains(&kind.len())
        && (1..=6).contains(&dots)
        && kind
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'_'))
}
