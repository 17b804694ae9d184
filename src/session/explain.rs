//! Why a session is in its state: the rule that decided, in words, and the facts it used.

use super::rollup::Rollup;
use super::state::Derived;

/// What each rule of [`super::state`] says, by number.
pub const RULES: [&str; 9] = [
    "evidence ran out: source lost, silence beyond the limit, or an end without a result",
    "the last turn failed by a limit whose announced reset lies ahead",
    "the last turn or run ended and nothing has started since",
    "an action of a person is open, certain or probable",
    "an episode of retries, limits or guardrails without work activity since",
    "a turn is open but gets nowhere: silent, call stuck, spinning, repeating an error, looping slowly, a loop of steps or no \
     progress",
    "a turn is open and a factual advance is younger than the limit",
    "a turn is open",
    "known, nothing started",
];

/// Facts that decide states, as name and value; `None` is what has not happened or cannot be seen.
pub fn facts_used(view: &Rollup<'_>, derived: &Derived) -> Vec<(&'static str, Option<String>)> {
    let root = view.root;
    let calls = view.calls();
    let signals = view.signals();
    let time = |t: Option<crate::event::Timestamp>| t.map(|t| t.to_string());
    vec![
        ("rule", Some(RULES[usize::from(derived.rule.clamp(1, 9)) - 1].to_owned())),
        ("turnStartedAt", time(root.turn.as_ref().and_then(|t| t.started))),
        ("turnOpen", Some(root.turn.is_some().to_string())),
        ("turnEndedAt", time(root.turn_end.as_ref().and_then(|e| e.time))),
        ("turnOutcome", root.turn_end.as_ref().map(|e| e.outcome.as_str().to_owned())),
        ("turnErrorClass", root.turn_end.as_ref().and_then(|e| e.error).map(|e| e.as_str().to_owned())),
        ("limitResetAt", time(root.turn_end.as_ref().and_then(|e| e.reset))),
        ("runEndedAt", time(root.run_end.as_ref().and_then(|e| e.time))),
        ("runOutcome", root.run_end.as_ref().map(|e| e.outcome.as_str().to_owned())),
        ("lastActivityAt", time(view.last_activity())),
        ("lastProgressAt", time(view.last_progress())),
        ("lastSeenAt", time(view.last_seen())),
        ("lastPromptAt", time(root.last_prompt)),
        ("callsInFlight", Some(calls.in_flight.to_string())),
        ("oldestCallSince", time(calls.oldest)),
        ("callsSinceProgress", Some(signals.calls_since_progress.to_string())),
        ("windowCalls", Some(signals.window_calls.to_string())),
        ("noNewRatio", Some(short(signals.no_new_ratio()))),
        ("errorStreak", Some(signals.error_streak.to_string())),
        ("repeatedCallMax", Some(signals.repeated_call_max.to_string())),
        ("turnsSinceProgress", Some(view.turns_since_progress().to_string())),
        ("stepEntriesMax", Some(view.step_entries_max().to_string())),
        ("certainActions", Some(view.certain_actions().to_string())),
        ("oldestActionSince", time(view.actions().first().map(|(_, a)| a.since))),
        ("blockedSince", time(root.blocked.map(|b| b.since))),
        ("blockedUntil", time(root.blocked.and_then(|b| b.until))),
        ("backgroundTasks", Some(root.background.len().to_string())),
        ("writer", root.writer.map(|(w, _)| w.as_str().to_owned())),
        ("writerSince", time(root.writer.map(|(_, t)| t))),
        ("interactive", root.info.interactive.map(|i| i.to_string())),
        ("readOnly", root.info.read_only.map(|r| r.to_string())),
        ("subagentsWorking", Some(view.subagents().0.to_string())),
    ]
}

/// A share for reading.
fn short(ratio: f64) -> String {
    format!("{ratio:.3}")
}
