//! Lines beside the conversation: what the program says of itself, what waits, what is attached.

use super::answers::of_status;
use super::prompts::NOTIFICATION;
use super::stream::Ended;
use super::wire::{Attachment, Failure, Line, count, millis, object, read, text, word};
use super::{Claude, Emit};
use crate::event::{BlockReason, ErrorClass, Fact, Step, StepKind, StepOutcome, Trigger, TurnOutcome};

/// No process runs longer; a larger sum is damaged.
const LONGEST_RUN_MS: i64 = 366 * 86_400_000;

/// Kinds of lines that are known to say nothing about work.
const KNOWN: &[&str] = &[
    "agent-color",
    "agent-name",
    "agent-setting",
    "ai-title",
    "api-request",
    "api-request-blob",
    "api-request-shape",
    "atis-latch",
    "bridge-session",
    "custom-title",
    "file-history-delta",
    "file-history-snapshot",
    "last-prompt",
    "mode",
    "pr-link",
    "progress",
    "summary",
    "tag",
    "tools-used",
];
/// Likewise of `system` lines.
const KNOWN_SYSTEM: &[&str] = &["away_summary", "informational", "local_command", "microcompact_boundary"];

/// Whether a kind of line is known to say nothing about work.
pub(super) fn is_known(kind: &str) -> bool {
    KNOWN.contains(&kind)
}

// === impl Claude ===

impl Claude {
    /// What the program notes about its own work.
    pub(super) fn system(&mut self, e: &mut Emit<'_>, at: usize, line: &Line<'_>) {
        let base = e.base;
        if self.is_copied(e, at, base) {
            return;
        }
        self.describe(e, at, line);
        match word(line.subtype).as_ref() {
            "api_error" => self.retry(e, at, line),
            "turn_duration" | "stop_hook_summary" => {
                self.settle(e, at);
                self.close_turn(e, at, e.time, &Ended::as_known(TurnOutcome::Completed));
                self.note(e, at);
            }
            "compact_boundary" => {
                let step = Step {
                    id: self.id("compaction"),
                    kind: StepKind::Compaction,
                    name: None,
                    index: None,
                    total: None,
                    entry: None,
                };
                self.push(e, at, Fact::StepCompleted { step, outcome: StepOutcome::Advanced });
            }
            known if KNOWN_SYSTEM.contains(&known) => self.note(e, at),
            other => {
                let kind = format!("system/{other}");
                self.unknown(e, Some(at), &kind);
            }
        }
    }

    /// A request failed and will be tried again.
    fn retry(&mut self, e: &mut Emit<'_>, at: usize, line: &Line<'_>) {
        let failure: Failure<'_> = object(line.error);
        let class = read::<f64>(failure.status).map_or(ErrorClass::Network, of_status);
        let reason = match class {
            ErrorClass::RateLimit => BlockReason::RateLimit,
            ErrorClass::Auth => BlockReason::Auth,
            _ => BlockReason::Retry,
        };
        let number = |raw| read::<f64>(raw).filter(|n| (0.0..1e12).contains(n));
        let attempt = number(line.retry_attempt).map(|n| n as u32);
        let delay_ms = number(line.retry_in_ms).map(|n| n as u64);
        if reason == BlockReason::RateLimit {
            // Its wait is counted once, with the retry.
            self.push(e, at, Fact::RateLimitSignal { delay_ms: None });
        }
        self.push(e, at, Fact::Blocked { reason, attempt, delay_ms, until: None });
    }

    /// What the program puts beside the conversation; only a prompt that reaches a running turn matters.
    pub(super) fn attachment(&mut self, e: &mut Emit<'_>, at: usize, line: &Line<'_>) {
        let attachment: Attachment<'_> = object(line.attachment);
        if word(attachment.kind) != "queued_command" {
            return self.note(e, at);
        }
        let base = e.base;
        if self.is_copied(e, at, base) {
            return;
        }
        self.describe(e, at, line);
        let prompt = word(attachment.prompt);
        if word(attachment.command_mode) == "task-notification" || prompt.starts_with(NOTIFICATION) {
            self.notification(e, at, &prompt);
        } else {
            self.push(e, at, Fact::Prompt { trigger: Trigger::Person, queued: false });
        }
    }

    /// A prompt begins or ceases to wait behind the running turn.
    pub(super) fn queue(&mut self, e: &mut Emit<'_>, at: usize, operation: &str) {
        let lane = &mut self.state.lanes[at];
        lane.queued = match operation {
            "enqueue" => lane.queued.saturating_add(1),
            "dequeue" | "remove" => lane.queued.saturating_sub(1),
            "popAll" | "clear" => 0,
            _ => return self.note(e, at),
        };
        let waiting = lane.queued;
        // Several in one millisecond are told apart, and stay in their order, by a millisecond each.
        let nth = match lane.queued_at {
            Some((time, nth)) if e.time == Some(time) => nth.saturating_add(1),
            _ => 0,
        };
        lane.queued_at = e.time.map(|time| (time, nth));
        let time = e.time.map(|time| time.plus(i64::from(nth)));
        let id = format!("queued:{:016x}:{nth}", e.base);
        self.push_as(e, at, time, &id, Fact::QueuedPrompts { waiting });
    }

    pub(super) fn permission_mode(&mut self, e: &mut Emit<'_>, at: usize, line: &Line<'_>) {
        if self.state.lanes[at].known {
            let mode = text(line.permission_mode).unwrap_or_default();
            self.set_mode(e, at, &mode);
        }
    }

    /// Totals are written when a process ends in order. Where nobody sits in front, the turn that is open ends with
    /// it; a person's process may write them and go on.
    ///
    /// Their line has no time, but says when the session began and how long its processes ran. That sum lies before the
    /// end where the session was resumed, never behind it; the last line may lie long before: of a call that ran, or
    /// of a model that never answered, there is none.
    pub(super) fn process_ends(&mut self, e: &mut Emit<'_>, at: usize, line: &Line<'_>) {
        self.settle(e, at);
        let ran = i64::try_from(count(line.process_ms)).unwrap_or(i64::MAX);
        let summed = millis(line.process_began).filter(|_| ran <= LONGEST_RUN_MS).map(|t| t.plus(ran));
        let lane = &mut self.state.lanes[at];
        if !lane.interactive && lane.parent.is_none() {
            lane.left = true;
            let end = lane.newest.max(summed);
            self.close_turn(e, at, end, &Ended::as_known(TurnOutcome::Cancelled));
        }
    }
}
