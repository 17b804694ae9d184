//! One event changes the facts of its session. Events come in the order of (time, rank, id) for all that is
//! younger than the window of [`super::window`]; what is older is still applied, so registers compare times and
//! natural keys are remembered.
//!
//! Rank of evidence: progress moves both clocks, work activity `last_activity`, everything `last_seen`.

mod actions;
mod callers;
mod orchestration;
mod process;
mod usage;
mod work;

use std::collections::VecDeque;
use std::hash::Hash;

use super::counts::{Count, Effects, Observation};
use super::facts::{
    Action, Blocked, Facts, MAX_ACTIONS, MAX_DONE, MAX_REMEMBERED, MAX_TURNS, NativeStuck, OpenStep, RunEnd,
    Stop, Turn, TurnEnd,
};
use super::notes::{Ended, RunOutcome, What};
use super::state::Reason;
use crate::event::reduce::stable_hash;
use crate::event::{
    ActivityClass, BlockReason, Certainty, Event, Evidence, Fact, Id, Name, ProgressKind, Requester,
    Resolution, SessionInfo, Step, StepKind, StepOutcome, Tally, Timestamp, Trigger, TurnOutcome,
};

/// Tool name of a call whose start was never seen.
const UNSEEN_TOOL: &str = "unknown";

/// Longest announced wait that is believed, a year: one absurd number must not spoil a sum for ever.
const MAX_DELAY_MS: u64 = 366 * 24 * 3_600_000;

/// Unkeyed hash of something that may be shown; only to remember it in eight bytes.
pub(super) fn short(value: impl Hash) -> u64 {
    stable_hash(value)
}

/// Remembers a key; false if it was known.
fn remember(memory: &mut VecDeque<u64>, key: u64, max: usize) -> bool {
    if memory.contains(&key) {
        return false;
    }
    if memory.len() == max {
        memory.pop_front();
    }
    memory.push_back(key);
    true
}

/// The end of an announced wait, which is counted.
fn announced(at: Timestamp, delay_ms: Option<u64>, out: &mut Effects) -> Option<Timestamp> {
    let delay = delay_ms?.min(MAX_DELAY_MS);
    out.add(Count::BackoffMs, delay);
    Some(at.plus(i64::try_from(delay).expect("a year in milliseconds fits")))
}

/// A register: the newest record's word stays, whatever arrives after it.
fn settle<T: Clone + PartialEq>(
    slot: &mut Option<T>,
    as_of: &mut Option<Timestamp>,
    value: &T,
    t: Option<Timestamp>,
) {
    if slot.is_some() && t.is_some() && t < *as_of {
        return;
    }
    if slot.as_ref() != Some(value) {
        *slot = Some(value.clone());
    }
    later(as_of, t);
}

fn later(slot: &mut Option<Timestamp>, time: Option<Timestamp>) {
    *slot = (*slot).max(time);
}

// === impl Facts ===

impl Facts {
    /// Applies one event; `out` receives what it adds to the counts.
    pub fn apply(&mut self, event: &Event, out: &mut Effects) {
        let t = event.time;
        if let Fact::StallBegan { reason } = &event.fact {
            // Our own conclusion is no sign of life.
            if let Some(reason) = Reason::parse(reason.as_str()) {
                out.one(Count::Stall(reason));
            }
            return;
        }
        // A record without a time moves no clock, so a month-old file does not look fresh.
        later(&mut self.last_seen, t);
        if let Some(parent) = &event.parent
            && *parent != self.session
        {
            settle(&mut self.parent, &mut self.parent_as_of, parent, t);
        }
        // The project follows the newest record, so that a session that moves is shown where it works now.
        if let Some(project) = &event.project {
            settle(&mut self.project, &mut self.project_as_of, project, t);
        }
        self.called_before(event);
        match &event.fact {
            Fact::SessionQueued(info) => {
                self.queued_at = self.queued_at.into_iter().chain(t).min();
                self.merge(info, t);
            }
            Fact::SessionStarted(info) => {
                self.merge(info, t);
                // The run begins anew under the same name.
                if self.run_end.as_ref().is_some_and(|end| t > end.time) {
                    self.run_end = None;
                }
                self.begin(t, out);
                later(&mut self.last_activity, t);
                self.undelete(t);
            }
            Fact::SessionResumed(info) => {
                self.merge(info, t);
                self.begin(t, out);
                later(&mut self.last_activity, t);
                self.undelete(t);
            }
            Fact::SessionUpdated(info) => self.merge(info, t),
            Fact::SessionEnded { outcome, error, workflow } => {
                let end = RunEnd { time: t, outcome: *outcome, error: *error, workflow: *workflow };
                self.run_ended(end, out);
            }
            Fact::SessionDeleted => {
                let started = self.turn.as_ref().and_then(|turn| turn.started);
                if t.is_none() || started <= t {
                    self.deleted_at = self.deleted_at.max(Some(t.unwrap_or(event.observed)));
                    self.close_turn_items(t, out);
                    let gone = RunOutcome { outcome: Ended::Deleted, error: None };
                    self.note_run(t, gone, &mut out.notes);
                    self.turn = None;
                }
            }
            Fact::TurnStarted { trigger } => self.turn_started(event.request.as_ref(), *trigger, t, out),
            Fact::TurnEnded { outcome, error, reset, denied, result_known } => {
                let end = TurnEnd {
                    request: event.request.clone(),
                    time: t,
                    started: None,
                    outcome: *outcome,
                    error: *error,
                    reset: *reset,
                    denied: *denied,
                    result_known: *result_known,
                };
                self.turn_ended(event.request.as_ref(), end, out);
            }
            Fact::StepStarted(step) => self.step_started(step, t, out),
            Fact::StepCompleted { step, outcome } => {
                self.step_completed(step, *outcome, event.request.as_ref(), t, out);
            }
            Fact::PlanUpdated { ready, items, told } => {
                // A plan that is ready need not have items yet; it erases none.
                if *ready && *items == Tally::default() {
                    self.work(t, out);
                } else {
                    self.plan_updated(*items, *told, t, out);
                }
                if *ready {
                    self.note(t, &mut out.notes, || What::PlanReady);
                }
            }
            Fact::CriteriaUpdated(items) => self.criteria_updated(*items, t, out),
            Fact::ToolStarted(start) => self.call_started(start, event.request.as_ref(), t, out),
            Fact::ToolEnded(end) => self.call_ended(end, t, out),
            Fact::Progress { kind, evidence, call, subject } => {
                self.declared_progress(*kind, *evidence, call.as_ref(), *subject, t, out);
            }
            Fact::Verification { passed, call } => self.verification(*passed, call.as_ref(), t, out),
            Fact::ActionRequired { action, kind, certainty, tool, call } => {
                let since = t.unwrap_or(event.observed);
                let (tool, call) = (tool.clone(), call.clone());
                self.action_required(
                    Action {
                        action: action.clone(),
                        kind: *kind,
                        certainty: *certainty,
                        since,
                        tool,
                        call,
                        dialog: false,
                    },
                    t,
                    out,
                );
            }
            Fact::Dialog { action, kind } => {
                let since = t.unwrap_or(event.observed);
                let (action, kind, certainty) = (action.clone(), *kind, Certainty::Certain);
                self.action_required(
                    Action { action, kind, certainty, since, tool: None, call: None, dialog: true },
                    t,
                    out,
                );
            }
            Fact::ActionResolved { action, resolution } => self.action_resolved(action, *resolution, t, out),
            Fact::Prompt { trigger, queued } => self.prompted(*trigger, *queued, t, out),
            Fact::Blocked { reason, attempt, delay_ms, until } => {
                if attempt.is_some() || *reason == BlockReason::Retry {
                    let model = self.info.model.clone().unwrap_or_else(Name::none);
                    out.one(Count::Retry(*reason, model));
                }
                let at = t.unwrap_or(event.observed);
                let announced = until.or(announced(at, *delay_ms, out));
                self.hold(*reason, at, announced, *attempt);
            }
            Fact::Unblocked => {
                if self.blocked.is_some_and(|b| t.is_none_or(|t| t >= b.since)) {
                    self.release(t, out);
                }
            }
            Fact::RateLimitSignal { delay_ms } => {
                let model = self.info.model.clone().unwrap_or_else(Name::none);
                out.one(Count::RateLimitSignal(model));
                let at = t.unwrap_or(event.observed);
                let announced = announced(at, *delay_ms, out);
                self.hold(BlockReason::RateLimit, at, announced, None);
            }
            Fact::SpecLimited(limit) => self.spec_limited(limit, t, out),
            Fact::Orchestration(update) => self.orchestration_updated(update, t, out),
            Fact::Spec(update) => self.spec_updated(update, t, out),
            Fact::LaunchBudget(update) => self.launch_updated(update, t, out),
            Fact::Parallel(update) => self.parallel_updated(update, t, out),
            Fact::AgentWork(work) => self.agent_works(work, t, out),
            Fact::OwnSpec(update) => self.own_spec_updated(update, t),
            Fact::Error { .. } => {
                self.progress(ProgressKind::ErrorOccurred, Evidence::Structured, 1, false, t, out)
            }
            Fact::StopRequested { requester } => {
                self.stop_requested(*requester, t.unwrap_or(event.observed), out)
            }
            Fact::StopAcknowledged => self.stop_acknowledged(t.unwrap_or(event.observed)),
            Fact::StopCleared => {
                if let Some(stop) = &mut self.stop
                    && t.is_none_or(|t| t >= stop.requested_at)
                {
                    stop.pending = false;
                }
            }
            Fact::Usage(usage) => self.used(usage, t, out),
            Fact::NativeStuck { detector, layer } => {
                out.one(Count::NativeStuck(detector.clone(), layer.clone()));
                let time = t.unwrap_or(event.observed);
                if self.native_stuck.as_ref().is_none_or(|n| n.time <= time) {
                    self.native_stuck =
                        Some(NativeStuck { time, detector: detector.clone(), layer: layer.clone() });
                }
            }
            Fact::Activity { class: ActivityClass::Work, message } => {
                let newest = t.is_none() || t >= self.last_activity;
                self.work(t, out);
                if newest {
                    self.message_last = *message;
                }
            }
            Fact::Activity { class: ActivityClass::Bookkeeping, .. }
            | Fact::Unknown
            // The store forgets before anything is folded.
            | Fact::SessionReset
            | Fact::StallBegan { .. } => {}
            Fact::QueuedPrompts { waiting } => {
                if t.is_none() || t >= self.queued_as_of {
                    self.queued_prompts = *waiting;
                    later(&mut self.queued_as_of, t);
                }
            }
            Fact::Workflow { name } => self.is_of_workflow(name.as_ref(), event.request.as_ref(), t),
            Fact::Writer(writer) => {
                self.probed(*writer, t.unwrap_or(event.observed), out);
            }
            Fact::Background { task, running } => {
                self.background.retain(|open| open != task);
                if *running && self.background.len() < MAX_ACTIONS {
                    self.background.push(task.clone());
                }
                self.work(t, out);
            }
        }
        self.called_after(event);
    }

    /// A sign that the session itself began; counted once.
    fn begin(&mut self, t: Option<Timestamp>, out: &mut Effects) {
        self.started_at = self.started_at.into_iter().chain(t).min();
        if !self.counted {
            self.counted = true;
            out.one(Count::Started);
        }
    }

    fn undelete(&mut self, t: Option<Timestamp>) {
        if t.is_some() && self.deleted_at.is_some_and(|d| t > Some(d)) {
            self.deleted_at = None;
        }
    }

    fn merge(&mut self, info: &SessionInfo, t: Option<Timestamp>) {
        let newest = t.is_none() || t >= self.info.as_of;
        later(&mut self.info.as_of, t);
        let own = &mut self.info;
        macro_rules! take {
            ($($field:ident),+) => {$(
                if info.$field.is_some() && (newest || own.$field.is_none()) {
                    own.$field.clone_from(&info.$field);
                }
            )+};
        }
        take!(
            agent,
            version,
            originator,
            mode,
            phase,
            model,
            provider,
            read_only,
            interactive,
            url,
            capabilities,
            forked_from,
            endpoint
        );
    }

    /// A real sign of life. Opens an implicit turn where the source tells none, and ends an episode of being held up.
    fn work(&mut self, t: Option<Timestamp>, out: &mut Effects) {
        if t.is_none() || t >= self.last_activity {
            self.message_last = false;
        }
        later(&mut self.last_activity, t);
        self.begin(t, out);
        // Attempts are part of the episode: only what comes after the newest sign ends it.
        if self.blocked.is_some_and(|b| t.is_none_or(|t| t >= b.latest) && !self.ended_blocked()) {
            self.release(t, out);
        }
        let never_ended = self.turn_end.is_none() && self.run_end.is_none();
        if !self.has_turns && self.turn.is_none() && never_ended {
            self.open_turn(None, t, Trigger::Unknown, true, out);
        }
    }

    /// Whether the last turn ended with its workflow blocked: only what starts again gets it out of there, no late item.
    pub(super) fn ended_blocked(&self) -> bool {
        self.turn.is_none()
            && self.turn_end.is_some()
            && self.blocked.is_some_and(|b| b.reason == BlockReason::WorkflowBlocked)
    }

    /// Something that begins work: after an end it opens the session again, a late item does not.
    fn start_of_work(&mut self, t: Option<Timestamp>, out: &mut Effects) {
        if !self.has_turns {
            self.open_implicitly(t, Trigger::Unknown, out);
        }
        self.work(t, out);
    }

    /// Opens a turn nobody declared, unless one is open or has ended since.
    fn open_implicitly(&mut self, t: Option<Timestamp>, trigger: Trigger, out: &mut Effects) {
        let end = self.newest_end();
        if self.turn.is_none() && (end.is_none() || t > end) {
            self.open_turn(None, t, trigger, true, out);
            self.run_end = None;
            self.turn_end = None;
            self.undelete(t);
        }
    }

    fn newest_end(&self) -> Option<Timestamp> {
        let turn = self.turn_end.as_ref().and_then(|e| e.time);
        turn.max(self.run_end.as_ref().and_then(|e| e.time))
    }

    fn turn_started(
        &mut self,
        request: Option<&Id>,
        trigger: Trigger,
        t: Option<Timestamp>,
        out: &mut Effects,
    ) {
        self.has_turns = true;
        if let Some(id) = request {
            if !remember(&mut self.memory.begun_turns, short(id), MAX_REMEMBERED) {
                return self.turn_began_earlier(id, t);
            }
            self.turns.started += 1;
            if self.memory.ended_turns.contains(&short(id)) {
                if let Some(end) = self.turn_end.as_mut().filter(|end| end.request.as_ref() == Some(id)) {
                    end.started = end.started.or(t);
                }
                return;
            }
        } else {
            self.turns.started += 1;
        }
        if trigger == Trigger::Machine && (t.is_none() || t > self.last_progress) {
            self.machine_turns.push(t, MAX_TURNS);
        }
        let overtaken =
            self.turn.as_ref().is_some_and(|open| !open.implicit && t.is_some() && open.started > t)
                || (t.is_some() && self.newest_end() > t);
        if overtaken {
            later(&mut self.last_activity, t);
            return;
        }
        if self.turn.as_ref().is_some_and(|open| !open.implicit) {
            self.close_turn_items(t, out);
            let unseen = RunOutcome { outcome: Ended::Unseen, error: None };
            self.note_run(self.last_activity.min(t), unseen, &mut out.notes);
        }
        self.note_declared(request, t, &mut out.notes);
        self.queued_prompts = self.queued_prompts.saturating_sub(1);
        self.open_turn(request, t, trigger, false, out);
        self.run_end = None;
        self.turn_end = None;
        self.undelete(t);
        self.work(t, out);
    }

    /// Two surfaces tell of one turn: it began when the first of them says.
    fn turn_began_earlier(&mut self, request: &Id, t: Option<Timestamp>) {
        let open = self.turn.as_mut().filter(|turn| turn.request.as_ref() == Some(request));
        if let Some(turn) = open.filter(|turn| t.is_some() && t < turn.started) {
            turn.started = t;
        }
    }

    /// Likewise of its end.
    fn turn_ended_earlier(&mut self, request: &Id, end: TurnEnd) {
        let known = self.turn_end.as_mut().filter(|known| known.request.as_ref() == Some(request));
        if let Some(known) = known.filter(|known| end.time.is_some() && end.time < known.time) {
            *known = TurnEnd { started: known.started, ..end };
        }
    }

    fn turn_ended(&mut self, request: Option<&Id>, mut end: TurnEnd, out: &mut Effects) {
        let t = end.time;
        let own_turn = |turn: &Turn| match (request, &turn.request) {
            (Some(id), Some(open)) => id == open,
            (Some(_), None) | (None, _) => t.is_none() || turn.started.is_none() || t >= turn.started,
        };
        if let Some(id) = request
            && !remember(&mut self.memory.ended_turns, short(id), MAX_REMEMBERED)
        {
            later(&mut self.last_activity, t);
            return self.turn_ended_earlier(id, end);
        }
        let closes = self.turn.as_ref().is_some_and(own_turn);
        if request.is_none() && self.turn.is_none() && self.turn_end.is_some() {
            // A second end without a name says nothing new about a turn that is over already.
            later(&mut self.last_activity, t);
            return;
        }
        match end.outcome {
            TurnOutcome::Completed => self.turns.completed += 1,
            TurnOutcome::Cancelled => self.turns.cancelled += 1,
            TurnOutcome::Failed | TurnOutcome::Truncated | TurnOutcome::Interrupted => self.turns.failed += 1,
        }
        out.one(Count::Turn(end.outcome));
        later(&mut self.last_activity, t);
        self.begin(t, out);
        // Of a turn that failed because its workflow is blocked, that is what holds from now on.
        let failed = end.outcome == TurnOutcome::Failed;
        let blocked = self.blocked.filter(|b| failed && b.reason == BlockReason::WorkflowBlocked);
        if closes {
            let outcome = RunOutcome { outcome: Ended::Turn(end.outcome), error: end.error };
            self.close_turn_items(t, out);
            self.note_run(t, outcome, &mut out.notes);
            let turn = self.turn.take();
            end.started = turn.as_ref().and_then(|turn| turn.started);
            end.request = end.request.or_else(|| turn.as_ref().and_then(|turn| turn.request.clone()));
            out.measure(Observation::Turn(end.outcome), end.started, t);
            // Ended without its name; a second end that gives the name is the same end.
            if let Some(id) = turn.and_then(|turn| turn.request) {
                remember(&mut self.memory.ended_turns, short(&id), MAX_REMEMBERED);
            }
            (self.turn_end, self.blocked) = (Some(end), blocked);
        } else if self.turn.is_none() && self.turn_end.as_ref().is_none_or(|known| known.time <= t) {
            self.close_turn_items(t, out);
            (self.turn_end, self.blocked) = (Some(end), blocked);
        }
    }

    /// The episode of being held up is over.
    fn release(&mut self, t: Option<Timestamp>, out: &mut Effects) {
        if let Some(blocked) = self.blocked.take() {
            self.note_hold(&blocked, t, &mut out.notes);
        }
    }

    /// What cannot outlive a turn: its pending actions and the episode of being held up.
    fn close_turn_items(&mut self, t: Option<Timestamp>, out: &mut Effects) {
        self.release(t, out);
        let (newer, open): (Vec<_>, _) =
            std::mem::take(&mut self.actions).into_iter().partition(|a| t.is_some_and(|t| a.since > t));
        self.actions = newer;
        for action in open {
            self.closed(&action, Resolution::Expired, t, out);
        }
    }

    fn run_ended(&mut self, end: RunEnd, out: &mut Effects) {
        let t = end.time;
        if self.run_end.is_some() || self.turn.as_ref().is_some_and(|turn| t.is_some() && turn.started > t) {
            return;
        }
        later(&mut self.last_activity, t);
        self.begin(t, out);
        out.one(Count::Ended(end.outcome));
        self.close_turn_items(t, out);
        let outcome = RunOutcome { outcome: Ended::Session(end.outcome), error: end.error };
        self.note_run(t, outcome, &mut out.notes);
        self.turn = None;
        self.run_end = Some(end);
    }

    fn step_started(&mut self, step: &Step, t: Option<Timestamp>, out: &mut Effects) {
        self.start_of_work(t, out);
        if step.kind == StepKind::Compaction {
            self.note(t, &mut out.notes, || What::StepBegan(step.clone()));
            return;
        }
        let key = short(&step.id);
        let same_entry = |open: &OpenStep| open.step.id == step.id && open.step.entry == step.entry;
        let repeated = (step.entry.is_some() && self.step.as_ref().is_some_and(same_entry))
            || (t.is_some() && self.step_entries.contains(&(key, t)));
        if repeated {
            return;
        }
        self.note(t, &mut out.notes, || What::StepBegan(step.clone()));
        if t.is_none() || t > self.last_progress {
            let at = self.step_entries.partition_point(|(_, time)| *time <= t);
            self.step_entries.insert(at, (key, t));
            if self.step_entries.len() > MAX_TURNS {
                self.step_entries.remove(MAX_TURNS / 2);
            }
        }
        if self.step.as_ref().is_none_or(|open| t.is_none() || open.started <= t) {
            self.step = Some(OpenStep { step: step.clone(), started: t });
        }
    }

    fn step_completed(
        &mut self,
        step: &Step,
        outcome: StepOutcome,
        request: Option<&Id>,
        t: Option<Timestamp>,
        out: &mut Effects,
    ) {
        // One entry ends once, on whichever surface it is seen.
        let entry = step.entry.map(i64::from).or(t.map(Timestamp::as_millis));
        if let Some(entry) = entry
            && !remember(&mut self.memory.done, short((&step.id, request, entry)), MAX_DONE)
        {
            return;
        }
        // Some say what it is only when it begins.
        let same = |open: &&OpenStep| open.step.id == step.id;
        let said = self.step.as_ref().filter(same).map(|open| step.said_before(&open.step));
        let step = said.as_ref().unwrap_or(step);
        out.one(Count::Step(step.kind, outcome));
        let mut started = None;
        if self.step.as_ref().is_some_and(|o| o.step.id == step.id && (t.is_none() || o.started <= t)) {
            started = self.step.take().and_then(|open| open.started);
        }
        out.measure(Observation::Step(step.kind), started, t);
        let over = || What::Step { step: step.clone(), since: started, outcome };
        self.note(t, &mut out.notes, over);
        self.work(t, out);
        if step.kind == StepKind::Compaction {
            if t.is_none() || t > self.last_progress {
                self.machine_turns.push(t, MAX_TURNS);
            }
            out.one(Count::Compaction);
        } else if outcome == StepOutcome::Advanced {
            let fresh = remember(&mut self.memory.done, short((&step.id, request)), MAX_DONE);
            // The step that this advance led to was entered in the same moment: it is the first since the landing.
            let key = short(&step.id);
            let led_to =
                |(entered, time): &&(u64, Option<Timestamp>)| t.is_some() && *time == t && *entered != key;
            let next: Vec<_> = self.step_entries.iter().filter(led_to).copied().collect();
            let task = step.kind == StepKind::Task;
            let kind = if task { ProgressKind::TaskCompleted } else { ProgressKind::StepCompleted };
            self.progress(kind, Evidence::Structured, 1, fresh, t, out);
            for entry in next {
                if !self.step_entries.contains(&entry) {
                    self.step_entries.push_front(entry);
                }
            }
        }
    }

    fn plan_updated(&mut self, items: Tally, told: bool, t: Option<Timestamp>, out: &mut Effects) {
        self.work(t, out);
        let risen = items.done.saturating_sub(self.plan_high);
        self.plan_high = self.plan_high.max(items.done);
        settle(&mut self.plan, &mut self.plan_as_of, &items, t);
        if risen > 0 && !told {
            self.progress(ProgressKind::StepCompleted, Evidence::Structured, risen, true, t, out);
        }
    }

    fn criteria_updated(&mut self, items: Tally, t: Option<Timestamp>, out: &mut Effects) {
        self.work(t, out);
        let risen = items.done.saturating_sub(self.criteria_high);
        self.criteria_high = self.criteria_high.max(items.done);
        settle(&mut self.criteria, &mut self.criteria_as_of, &items, t);
        if risen > 0 {
            self.progress(ProgressKind::CriterionPassed, Evidence::Structured, risen, true, t, out);
        }
    }

    fn prompted(&mut self, trigger: Trigger, queued: bool, t: Option<Timestamp>, out: &mut Effects) {
        if queued {
            self.queued_prompts = self.queued_prompts.saturating_add(1);
            later(&mut self.last_activity, t);
        } else {
            // Whatever ended, a prompt opens it again; its turn follows where the source tells turns.
            self.open_implicitly(t, trigger, out);
            self.work(t, out);
        }
        if trigger == Trigger::Person {
            later(&mut self.last_prompt, t);
            // One who speaks to a sub-agent starts its calls anew, but not its root's.
            self.log.clear_until(t);
        }
    }

    /// Whether the turn something of this time belonged to is over, so that it comes too late.
    fn over_since(&self, at: Timestamp) -> bool {
        self.turn.is_none() && self.newest_end() >= Some(at)
    }

    fn hold(&mut self, reason: BlockReason, at: Timestamp, until: Option<Timestamp>, attempt: Option<u32>) {
        let worked_since = self.blocked.is_none() && self.last_activity > Some(at);
        if worked_since || self.over_since(at) {
            return;
        }
        let new = Blocked { reason, since: at, latest: at, until: None, attempt: None };
        let known = self.blocked.get_or_insert(new);
        known.since = known.since.min(at);
        if at >= known.latest {
            known.until = until.or(known.until.filter(|_| known.reason == reason));
            known.attempt = attempt.or(known.attempt.filter(|_| known.reason == reason));
            known.reason = reason;
            known.latest = at;
        }
    }

    fn stop_requested(&mut self, requester: Requester, at: Timestamp, out: &mut Effects) {
        // A second request while one is pending changes nothing; one after an acknowledgement re-opens.
        if self.stop.is_none_or(|s| !s.pending && s.requested_at <= at) {
            out.one(Count::StopRequest(requester));
            self.stop = Some(Stop { pending: true, requester, requested_at: at, acknowledged_at: None });
        }
    }

    fn stop_acknowledged(&mut self, at: Timestamp) {
        if let Some(stop) = &mut self.stop
            && at >= stop.requested_at
            && stop.acknowledged_at.is_none()
        {
            stop.pending = false;
            stop.acknowledged_at = Some(at);
        }
    }
}
