//! The state of a session at a moment, from facts alone. Pure: the same facts and the same `now` give the same
//! answer, and nothing needs an event to become stalled, waiting or unknown.
//!
//! First match wins:
//! 1. unknown: evidence ran out (source lost, silent too long, ended without a result, never started)
//! 2. blocked: the last turn failed by a limit whose announced reset lies ahead
//! 3. failed, cancelled, completed: the last turn or run ended so and nothing has started since
//! 4. waiting_for_user: a certain action is open; or a probable one, where no certain surface exists
//! 5. blocked: an episode of retries, limits or guardrails without work since; before rule 3 where the last turn
//!    failed because its workflow is blocked, which holds until something starts again
//! 6. stalled: silent, call_stuck, spinning, repeating_error, slow_loop, step_loop, no_progress
//! 7. progressing: a turn is open and advanced within five minutes
//! 8. running: a turn is open
//! 9. queued: known, nothing started

mod words;

use serde::{Deserialize, Serialize};

pub use self::words::{Reason, State};
use super::facts::Facts;
use super::orchestration;
use super::rollup::Rollup;
use crate::event::{
    BlockReason, Capabilities, Capability, EndOutcome, ErrorClass, Timestamp, ToolClass, TurnOutcome, Writer,
};

/// Limits of the derived states. They equal the numbers of the shipped alert rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Thresholds {
    /// Progress younger than this makes a running session progressing, in seconds.
    pub progressing_seconds: u32,
    /// Silence without an excuse that stalls, in seconds.
    pub silent_seconds: u32,
    /// Age of the oldest call in flight that stalls, in seconds.
    pub call_stuck_seconds: u32,
    /// Time without a landing that stalls an active session, in seconds.
    pub no_progress_seconds: u32,
    /// Calls since progress it takes for that.
    pub no_progress_calls: u32,
    /// Turns since progress it takes for that, or for a loop of steps.
    pub no_progress_turns: u32,
    /// Calls since progress it takes for a loop of calls.
    pub loop_calls: u32,
    /// Calls of the window it takes for spinning.
    pub spinning_window: u32,
    /// Share of them that brings nothing new it takes for that, in percent.
    pub spinning_percent: u32,
    /// Errors of one kind in a row that make a loop.
    pub repeating_errors: u32,
    /// Calls for nothing with one key that make a slow loop.
    pub slow_loop_repeats: u32,
    /// Activity older than this is not taken for active, in seconds.
    pub active_seconds: u32,
    /// Entries of one step since progress that make a loop.
    pub step_entries: u32,
    /// Silence of an open turn without proof of life after which it is unknown, in seconds.
    pub unknown_seconds: u32,
    /// The same while a user action is open, in seconds.
    pub unknown_waiting_seconds: u32,
    /// Age of an escalated call that is probably a dialog, in seconds.
    pub probable_seconds: u32,
    /// Age of an edit call that is probably a dialog, in seconds.
    pub probable_edit_seconds: u32,
    /// How long background tasks hold a turn's end, in seconds.
    pub background_seconds: u32,
    /// Silence after a final message that ends a session whose source tells no ends, in seconds.
    pub final_message_seconds: u32,
}

/// What is known beyond the facts of the session itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lost<'a> {
    /// Since when the source counts as lost.
    pub since: Option<Timestamp>,
    /// Stretches in which the machine was suspended.
    pub suspended: &'a [(Timestamp, Timestamp)],
    /// The orchestration a spec belongs to.
    pub parent: Option<&'a Facts>,
}

/// The answer: a state, why, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Derived {
    /// The state.
    pub state: State,
    /// Why.
    pub reason: Reason,
    /// Since when it holds.
    pub since: Timestamp,
    /// The rule of the list above that decided, 1 to 9.
    pub rule: u8,
    /// Announced end of a limit, in rule 2.
    pub until: Option<Timestamp>,
}

// === impl Thresholds ===

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            progressing_seconds: 300,
            silent_seconds: 600,
            call_stuck_seconds: 7200,
            no_progress_seconds: 2700,
            no_progress_calls: 60,
            no_progress_turns: 20,
            loop_calls: 20,
            spinning_window: 30,
            spinning_percent: 60,
            repeating_errors: 10,
            slow_loop_repeats: 20,
            active_seconds: 900,
            step_entries: 4,
            unknown_seconds: 6 * 3600,
            unknown_waiting_seconds: 24 * 3600,
            probable_seconds: 60,
            probable_edit_seconds: 20,
            background_seconds: 600,
            final_message_seconds: 600,
        }
    }
}

/// The state of a session with its sub-agents. `default`: what its source can see unless the session says otherwise.
pub fn derive(view: &Rollup<'_>, default: Capabilities, limits: &Thresholds, lost: &Lost<'_>) -> Derived {
    // Orchestrators say themselves where they and their specs stand.
    if let Some(own) = orchestration::derive(view.root, lost.parent, lost.since, limits, view.now) {
        return Derived { since: own.since.min(view.now), ..own };
    }
    let case =
        Case { view, root: view.root, caps: view.root.capabilities(default), limits, lost, now: view.now };
    let found = case
        .unknown()
        .or_else(|| case.limited())
        .or_else(|| case.ended_blocked())
        .or_else(|| case.ended())
        .or_else(|| case.waiting())
        .or_else(|| case.held_up())
        .or_else(|| case.stalled())
        .or_else(|| case.working())
        .unwrap_or_else(|| case.queued());
    // What is dated ahead of now is clamped: a state cannot have begun in the future.
    Derived { since: found.since.min(view.now), ..found }
}

struct Case<'a> {
    view: &'a Rollup<'a>,
    root: &'a Facts,
    caps: Capabilities,
    limits: &'a Thresholds,
    lost: &'a Lost<'a>,
    now: Timestamp,
}

const fn seconds(s: u32) -> i64 {
    s as i64 * 1000
}

// === impl Case ===

impl Case<'_> {
    fn say(&self, rule: u8, state: State, reason: Reason, since: Timestamp) -> Derived {
        Derived { state, reason, since, rule, until: None }
    }

    /// Milliseconds the machine was awake since `since`.
    fn awake(&self, since: Timestamp) -> i64 {
        let asleep: i64 = self
            .lost
            .suspended
            .iter()
            .map(|(from, to)| (*to).min(self.now).since((*from).max(since)).max(0))
            .sum();
        self.now.since(since) - asleep
    }

    /// The moment at which the machine had been awake for so long since `since`.
    fn after(&self, since: Timestamp, seconds_awake: u32) -> Timestamp {
        let mut end = since.plus(seconds(seconds_awake));
        for (from, to) in self.lost.suspended {
            let from = (*from).max(since);
            if from < end {
                end = end.plus(to.since(from).max(0));
            }
        }
        end
    }

    fn open(&self) -> bool {
        self.view.works() || self.held_open()
    }

    /// Background shells and timers hold a turn's end for a while.
    fn held_open(&self) -> bool {
        let end = self.root.turn_end.as_ref().filter(|end| end.outcome == TurnOutcome::Completed);
        let over = self.root.run_end.is_some() || self.root.background.is_empty();
        end.and_then(|end| end.time)
            .is_some_and(|time| !over && self.awake(time) < seconds(self.limits.background_seconds))
    }

    /// Start of the open turn, or of the one that is held open.
    fn turn_start(&self) -> Timestamp {
        let own = self.root.turn.as_ref().and_then(|turn| turn.started);
        let ended = self.root.turn_end.as_ref().and_then(|end| end.started.or(end.time));
        own.or(ended).unwrap_or_else(|| self.root.start())
    }

    fn last_activity(&self) -> Timestamp {
        self.view.last_activity().unwrap_or_else(|| self.root.start().min(self.now))
    }

    /// Whether the writer of the root or of a working child is proven to live.
    fn proven_alive(&self) -> bool {
        self.view.all().any(|f| f.turn.is_some() && f.writer.is_some_and(|(w, _)| w == Writer::Alive))
    }

    /// When the writer of the open turn was proven gone.
    fn gone_since(&self) -> Option<Timestamp> {
        let (writer, at) = self.root.writer?;
        let turn = self.root.turn.as_ref()?;
        (writer == Writer::Gone && turn.started.is_none_or(|start| at >= start)).then_some(at)
    }

    fn unknown(&self) -> Option<Derived> {
        let unknown = |reason, since| Some(self.say(1, State::Unknown, reason, since));
        let over = !self.open() && self.root.newest_end_time().is_some();
        if self.root.deleted_at.is_some() || self.gone_since().is_some() {
            return None;
        }
        if over {
            let run_unknown = self.root.run_end.as_ref().is_some_and(|e| e.outcome == EndOutcome::Unknown);
            let turn_unknown =
                self.root.run_end.is_none() && self.root.turn_end.as_ref().is_some_and(|e| !e.result_known);
            if run_unknown || turn_unknown {
                return unknown(
                    Reason::EndedWithoutResult,
                    self.root.newest_end_time().unwrap_or(self.root.first_seen),
                );
            }
            return None;
        }
        if let Some(since) = self.lost.since {
            return unknown(Reason::SourceLost, since);
        }
        let silence = self.awake(self.last_activity());
        let waits = self.view.certain_action().is_some();
        let limit = if waits { self.limits.unknown_waiting_seconds } else { self.limits.unknown_seconds };
        // The last word only where nothing else is open that could follow it. Asked before the silence, which would
        // change the reason hours later.
        let final_word = !self.caps.has(Capability::Ends)
            && self.root.message_last
            && !waits
            && self.root.blocked.is_none()
            && self.view.all().all(|f| f.background.is_empty())
            && self.view.calls().in_flight == 0;
        if final_word && self.open() && silence >= seconds(self.limits.final_message_seconds) {
            return unknown(
                Reason::EndedWithoutResult,
                self.after(self.last_activity(), self.limits.final_message_seconds),
            );
        }
        if !self.proven_alive() && silence >= seconds(limit) {
            let reason = if self.open() || self.root.turn_end.is_some() {
                Reason::SilentTooLong
            } else {
                Reason::NeverStarted
            };
            return unknown(reason, self.after(self.last_activity(), limit));
        }
        None
    }

    fn limited(&self) -> Option<Derived> {
        let end = self.root.turn_end.as_ref()?;
        let limit =
            matches!(end.error, Some(ErrorClass::RateLimit | ErrorClass::UsageLimit | ErrorClass::Billing));
        let reset = end.reset.filter(|r| *r > self.now)?;
        if self.open() || end.outcome != TurnOutcome::Failed || !limit || self.root.deleted_at.is_some() {
            return None;
        }
        let reason = Reason::of_failure(end.error);
        let since = end.time.unwrap_or(self.root.first_seen);
        Some(Derived { until: Some(reset), ..self.say(2, State::Blocked, reason, since) })
    }

    /// The run is over, but its workflow is not: it is blocked, as the source says itself.
    fn ended_blocked(&self) -> Option<Derived> {
        let blocked = self.root.blocked.as_ref().filter(|_| self.root.ended_blocked() && !self.open())?;
        Some(self.say(5, State::Blocked, Reason::of_block(blocked.reason), blocked.since))
    }

    fn ended(&self) -> Option<Derived> {
        let say = |state, reason, since: Option<Timestamp>| {
            Some(self.say(3, state, reason, since.unwrap_or_else(|| self.last_activity())))
        };
        if let Some(deleted) = self.root.deleted_at {
            return say(State::Cancelled, Reason::Deleted, Some(deleted));
        }
        if let Some(gone) = self.gone_since() {
            return say(State::Failed, Reason::ProcessGone, Some(gone));
        }
        if self.open() {
            return None;
        }
        if let Some(end) = &self.root.run_end {
            return match end.outcome {
                EndOutcome::Completed if end.workflow => {
                    say(State::Completed, Reason::WorkflowComplete, end.time)
                }
                EndOutcome::Completed => say(State::Completed, Reason::RunComplete, end.time),
                EndOutcome::Failed => say(State::Failed, self.failure(end.error), end.time),
                EndOutcome::Cancelled => say(State::Cancelled, self.cancellation(), end.time),
                EndOutcome::Unknown => None,
            };
        }
        let end = self.root.turn_end.as_ref()?;
        match end.outcome {
            TurnOutcome::Completed if !self.root.background.is_empty() => {
                let held_until = end.time.map(|t| self.after(t, self.limits.background_seconds));
                say(State::Completed, Reason::BackgroundOpen, held_until)
            }
            TurnOutcome::Completed => say(State::Completed, Reason::TurnComplete, end.time),
            TurnOutcome::Failed => say(State::Failed, self.failure(end.error), end.time),
            TurnOutcome::Truncated => say(State::Failed, Reason::Truncated, end.time),
            TurnOutcome::Interrupted => say(State::Failed, Reason::Interrupted, end.time),
            TurnOutcome::Cancelled => say(State::Cancelled, self.cancellation(), end.time),
        }
    }

    /// The class of a failure: the run's own, else the turn's that ended with it.
    fn failure(&self, class: Option<ErrorClass>) -> Reason {
        let turn = self.root.turn_end.as_ref();
        match (class, turn.map(|e| e.outcome)) {
            (None, Some(TurnOutcome::Truncated)) => Reason::Truncated,
            (None, Some(TurnOutcome::Interrupted)) => Reason::Interrupted,
            _ => Reason::of_failure(class.or_else(|| turn.and_then(|e| e.error))),
        }
    }

    fn cancellation(&self) -> Reason {
        let turn = self.root.turn_end.as_ref();
        let asked = |at: Timestamp| turn.and_then(|e| e.started).is_none_or(|start| at >= start);
        if turn.is_some_and(|e| e.denied) {
            Reason::Denied
        } else if self.root.stop.is_some_and(|s| {
            // One that was taken back stopped nothing.
            (s.pending || s.acknowledged_at.is_some()) && asked(s.requested_at)
        }) {
            Reason::Stopped
        } else {
            Reason::ByUser
        }
    }

    fn waiting(&self) -> Option<Derived> {
        if let Some((_, action)) = self.view.certain_action() {
            return Some(self.say(4, State::WaitingForUser, Reason::of_action(action.kind), action.since));
        }
        let since = self.probable_since()?;
        Some(self.say(4, State::WaitingForUser, Reason::Probable, since))
    }

    /// Since when an open call is probably a dialog: declared so, escalated, or an edit that should have taken
    /// milliseconds; only with a person in front, and only where no certain surface exists.
    fn probable_since(&self) -> Option<Timestamp> {
        if self.caps.has(Capability::PendingActions) || self.root.info.interactive == Some(false) {
            return None;
        }
        let lasted = |since: Timestamp, limit: u32| self.awake(since) >= seconds(limit);
        // A source that declares one knows of a person; it only waits as long as ours do.
        let declared = self.view.actions().first().map(|(_, a)| a.since);
        if let Some(since) = declared.filter(|since| lasted(*since, self.limits.probable_seconds)) {
            return Some(since);
        }
        self.root.info.interactive?;
        let mut oldest: Option<Timestamp> = None;
        for facts in self.view.all().filter(|f| f.turn.is_some()) {
            for call in facts.open_calls.iter().filter(|c| self.view.in_flight(facts, c)) {
                let limit = match (call.start.asks, call.start.class) {
                    (Some(true) | None, ToolClass::Edit) => self.limits.probable_edit_seconds,
                    (Some(true), _) => self.limits.probable_seconds,
                    _ => continue,
                };
                let Some(since) = call.since else { continue };
                if lasted(since, limit) {
                    oldest = Some(oldest.map_or(since, |o| o.min(since)));
                }
            }
        }
        oldest
    }

    fn held_up(&self) -> Option<Derived> {
        let blocked = self.root.blocked.as_ref()?;
        // A sub-agent's work is the root's.
        if self.view.children.iter().any(|child| child.last_activity > Some(blocked.latest)) {
            return None;
        }
        // Between two attempts lies a pause, no limit that could be lifted.
        let limited = blocked.reason != BlockReason::Retry;
        if let Some(until) = blocked.until.filter(|until| limited && *until <= self.now) {
            return Some(self.say(5, State::Blocked, Reason::ResetPassed, until));
        }
        let reason = Reason::of_block(blocked.reason);
        Some(Derived { until: blocked.until, ..self.say(5, State::Blocked, reason, blocked.since) })
    }

    fn stalled(&self) -> Option<Derived> {
        if !self.open() {
            return None;
        }
        let say = |reason, since| Some(self.say(6, State::Stalled, reason, since));
        let calls = self.view.calls();
        let last_activity = self.last_activity();
        let excused = calls.excusing > 0 || self.view.all().any(|f| !f.background.is_empty());
        if !excused && self.awake(last_activity) >= seconds(self.limits.silent_seconds) {
            return say(Reason::Silent, self.after(last_activity, self.limits.silent_seconds));
        }
        if let Some(oldest) = calls.oldest
            && self.awake(oldest) >= seconds(self.limits.call_stuck_seconds)
        {
            return say(Reason::CallStuck, self.after(oldest, self.limits.call_stuck_seconds));
        }
        if !self.caps.has(Capability::Progress)
            || self.awake(last_activity) >= seconds(self.limits.active_seconds)
        {
            return None;
        }
        if let Some((reason, since)) = self.loop_of_calls() {
            return say(reason, since);
        }
        let landed = self.view.last_progress();
        let (entries, entered) = self.root.step_loop(landed, self.limits.step_entries);
        if entries >= self.limits.step_entries {
            return say(Reason::StepLoop, entered.or(landed).unwrap_or_else(|| self.root.start()));
        }
        if self.view.turns_since_progress() >= u64::from(self.limits.no_progress_turns) {
            let nth = self.limits.no_progress_turns.saturating_sub(1) as usize;
            let began = self.root.machine_turns.after(landed).nth(nth);
            return say(Reason::StepLoop, began.or(landed).unwrap_or_else(|| self.root.start()));
        }
        let clear = self
            .view
            .last_progress()
            .unwrap_or_else(|| self.root.start())
            .max(self.root.last_prompt.unwrap_or_default());
        let many_calls = self.view.calls_since_progress() >= u64::from(self.limits.no_progress_calls);
        let expected = self.root.info.read_only != Some(true);
        if expected && many_calls && self.awake(clear) >= seconds(self.limits.no_progress_seconds) {
            let long = self.after(clear, self.limits.no_progress_seconds);
            let many = self.view.walk().nth_call(self.limits.no_progress_calls);
            return say(Reason::NoProgress, many.map_or(long, |many| many.max(long)));
        }
        None
    }

    /// Calls that lead nowhere, and since when. Nothing excuses them.
    fn loop_of_calls(&self) -> Option<(Reason, Timestamp)> {
        let limits = self.limits;
        if self.view.calls_since_progress() < u64::from(limits.loop_calls) {
            return None;
        }
        let seen = self.view.signals();
        let percent = |n: u32| u64::from(n) * 100;
        let spins = seen.window_calls >= limits.spinning_window
            && percent(seen.nothing_new) >= u64::from(limits.spinning_percent) * u64::from(seen.window_calls);
        let errs = seen.error_streak >= limits.repeating_errors;
        let loops = seen.repeated_call_max >= limits.slow_loop_repeats;
        if !(spins || errs || loops) {
            return None;
        }
        let walk = self.view.walk();
        let spinning =
            || walk.nothing_new_since(limits.spinning_percent).max(walk.nth_call(limits.spinning_window));
        let held = [
            spins.then(|| (Reason::Spinning, spinning())),
            errs.then(|| (Reason::RepeatingError, walk.nth_error(limits.repeating_errors))),
            loops.then(|| (Reason::SlowLoop, walk.nth_repeat(limits.slow_loop_repeats))),
        ];
        // The state holds since the first of them did, whichever gives the reason now.
        let mut held = held.into_iter().flatten();
        let (reason, first) = held.next()?;
        let first = held.fold(first, |first, (_, since)| first.into_iter().chain(since).min());
        let since = first.max(walk.nth_call(limits.loop_calls)).unwrap_or(Timestamp::from_millis(i64::MIN));
        // Calls without a time say nothing; no state began before its session.
        Some((reason, since.max(self.root.start())))
    }

    fn working(&self) -> Option<Derived> {
        if !self.open() {
            return None;
        }
        let started = self.turn_start();
        let progress = self.view.last_progress().filter(|_| self.caps.has(Capability::Progress));
        let fades = progress.map(|p| p.plus(seconds(self.limits.progressing_seconds)));
        if let Some(progress) = progress.filter(|_| fades > Some(self.now)) {
            let since = self.progressing_since(progress).max(started);
            return Some(self.say(7, State::Progressing, Reason::Working, since));
        }
        Some(self.say(8, State::Running, Reason::Working, fades.map_or(started, |f| f.max(started))))
    }

    /// Start of the unbroken run of progress facts that ends with the newest one, as far as they are kept.
    fn progressing_since(&self, newest: Timestamp) -> Timestamp {
        let mut times: Vec<Timestamp> =
            self.view.all().flat_map(|f| &f.recent_progress).map(|p| p.time).collect();
        times.sort_unstable();
        let mut since = newest;
        for time in times.into_iter().rev() {
            if since.since(time) >= seconds(self.limits.progressing_seconds) {
                break;
            }
            since = since.min(time);
        }
        since
    }

    fn queued(&self) -> Derived {
        self.say(9, State::Queued, Reason::Starting, self.root.start())
    }
}
