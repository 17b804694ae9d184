//! Where runs and turns begin and end. A run lies between two edges of `session.running`; a turn is a run, or all
//! runs of one execution of a workflow.

use super::known::{Criterion, Done, FlowStatus, Known, Run};
use super::{Out, answers};
use crate::event::{
    BlockReason, EndOutcome, ErrorClass, Fact, Id, Mode, Resolution, Timestamp, Trigger, TurnOutcome,
};

/// Time in which what belongs to the end of a run still comes.
const SETTLE_MS: i64 = 1_000;
/// Time for the server to say how a run ended that did not say so itself.
const ANSWER_MS: i64 = 5_000;
/// Silence of a call after which it is asked whether it waits for a person.
const QUIET_CALL_MS: i64 = 5_000;

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It did not: a workflow waits for a choice.
    Waits,
    Completed,
    WorkflowCompleted,
    WorkflowCancelled,
    Blocked,
    Cancelled,
    Failed,
    Truncated,
    /// The server was restarted under it.
    Interrupted,
    Unknown,
}

// === impl Known ===

impl Known {
    /// `session.running` became true.
    pub(super) fn rises(&mut self, out: &mut Out<'_>) {
        self.doubt = None;
        if self.runs() {
            return;
        }
        self.overtaken = self.asked;
        self.settle(out);
        let mut run = Run::new(out.now);
        if self.turn.is_some() {
            // A workflow goes on.
            run.beginning = false;
        }
        self.run = Some(run);
        if self.turn.is_none() && self.flow.as_ref().is_some_and(|flow| flow.under_way()) {
            self.begin_as(Trigger::Unknown, out);
        }
    }

    /// `session.running` became false; it says so two or three times.
    pub(super) fn falls(&mut self, missing: Option<u64>, out: &mut Out<'_>) {
        self.doubt = None;
        let Some(run) = &mut self.run else { return };
        run.falls = run.falls.saturating_add(1);
        if run.fell.is_none() {
            self.overtaken = self.asked;
            (run.fell, run.missing) = (Some(out.now), missing);
        }
        // What a workflow says of itself needs no second word.
        let told = run.workflow && self.flow.as_ref().is_some_and(|flow| flow.status != FlowStatus::Running);
        if told {
            self.settle(out);
        }
    }

    /// Tells the start of the run, once it is known what it is.
    pub(super) fn begin_as(&mut self, trigger: Trigger, out: &mut Out<'_>) {
        let Some(run) = self.run.as_mut().filter(|run| run.beginning) else { return };
        run.beginning = false;
        let began = run.began;
        let request = match self.flow.as_mut().filter(|flow| flow.under_way()) {
            Some(flow) => {
                flow.turns += 1;
                match flow.turns {
                    1 => flow.id.clone(),
                    n => format!("{}~{n}", flow.id),
                }
            }
            None => format!("run:{}", began.as_millis()),
        };
        self.turn = Some(out.shared.id(&request));
        self.had_turn = true;
        out.push(self, began, Fact::TurnStarted { trigger });
        if self.flow.as_ref().is_some_and(|flow| flow.under_way()) {
            self.tell_workflow(out);
        }
        if std::mem::take(&mut self.criteria_untold) {
            self.tell_criteria(began, out);
        }
    }

    pub(super) fn begin_if_beginning(&mut self, out: &mut Out<'_>) {
        self.begin_as(Trigger::Unknown, out);
    }

    /// A second has passed, about. Whether anything changed that has to survive a restart.
    pub(super) fn tick(&mut self, out: &mut Out<'_>) -> bool {
        let mut changed = false;
        if self.run.as_ref().is_some_and(|run| run.beginning && out.now.since(run.began) >= SETTLE_MS) {
            self.begin_if_beginning(out);
            changed = true;
        }
        if let Some(fell) = self.run.as_ref().and_then(|run| run.fell)
            && out.now.since(fell) >= SETTLE_MS
        {
            let asked = self.run.as_ref().is_some_and(|run| run.asked);
            if self.verdict() != Verdict::Unknown || out.now.since(fell) >= ANSWER_MS {
                self.settle(out);
            } else if !asked {
                // Nothing tells how it ended; the server may know.
                out.ask_status(self);
                if let Some(run) = &mut self.run {
                    run.asked = true;
                }
            }
            changed = true;
        }
        self.tell_activity(out);
        let quiet = |call: &super::known::OpenCall| {
            !call.asked && !call.stale && out.now.since(call.since) >= QUIET_CALL_MS
        };
        if self.pending.is_empty() && self.calls.iter().any(quiet) {
            for call in &mut self.calls {
                call.asked |= out.now.since(call.since) >= QUIET_CALL_MS;
            }
            out.said
                .asks
                .extend((!std::mem::replace(&mut self.asked, true)).then(|| answers::status_of(&self.id)));
        }
        changed
    }

    /// Concludes a run that fell from what is known of it.
    pub(super) fn settle(&mut self, out: &mut Out<'_>) {
        let Some(fell) = self.run.as_ref().and_then(|run| run.fell) else { return };
        let verdict = self.verdict();
        self.conclude(verdict, fell, out);
    }

    /// How the run that fell ended, as far as its frames tell.
    pub(super) fn verdict(&self) -> Verdict {
        let Some(run) = &self.run else { return Verdict::Unknown };
        let next_to = run.missing == Some(0);
        if let Some(flow) = self.flow.as_ref().filter(|_| run.workflow) {
            // A workflow that ends by itself tells its fall once.
            let outside =
                run.stopped || (run.falls > 1 && next_to && run.done.is_none_or(|d| d == Done::Step));
            return match flow.status {
                FlowStatus::Waiting => Verdict::Waits,
                FlowStatus::Completed => Verdict::WorkflowCompleted,
                FlowStatus::Cancelled => Verdict::WorkflowCancelled,
                FlowStatus::Blocked => Verdict::Blocked,
                FlowStatus::Running if run.stopped || (outside && !run.cut) => Verdict::Cancelled,
                // Its last iteration was spent without a word. With frames lost that is not known.
                FlowStatus::Running if run.missing.is_some_and(|n| n <= 1) && !run.cut => Verdict::Blocked,
                FlowStatus::Running => Verdict::Unknown,
            };
        }
        match (run.done, run.error) {
            _ if run.stopped => Verdict::Cancelled,
            (Some(Done::Complete | Done::Step), _) => Verdict::Completed,
            (Some(Done::Truncated), _) => Verdict::Truncated,
            (Some(Done::Error), _) | (None, Some(false)) => Verdict::Failed,
            // The end came out of the blue, with nothing before it that would have ended the run.
            (None, None) if next_to && run.spoke && !run.cut => Verdict::Cancelled,
            // The agent went on after its error, and ended in order.
            (None, Some(true)) if !next_to && !run.cut => Verdict::Completed,
            _ => Verdict::Unknown,
        }
    }

    /// The run is over, and mostly the turn with it.
    pub(super) fn conclude(&mut self, verdict: Verdict, at: Timestamp, out: &mut Out<'_>) {
        self.begin_if_beginning(out);
        self.tell_activity(out);
        let run = self.run.take();
        // A record may be older than the answer that its run was known by.
        let at = run.as_ref().map_or(at, |run| at.max(run.began));
        if verdict == Verdict::Waits {
            return;
        }
        let Some(turn) = self.turn.clone() else { return };
        let planned = run.as_ref().is_some_and(|run| run.criteria_changed && !run.workflow);
        if verdict == Verdict::Completed
            && planned
            && self.mode == Some(Mode::Plan)
            && !self.criteria.is_empty()
        {
            let items = self.claimed();
            out.push(self, at, Fact::PlanUpdated { ready: true, items, told: false });
        }
        if verdict == Verdict::Blocked {
            let reason = BlockReason::WorkflowBlocked;
            out.push(self, at, Fact::Blocked { reason, attempt: None, delay_ms: None, until: None });
        }
        if verdict == Verdict::WorkflowCancelled {
            self.resolve_all(Resolution::Cancelled, at, out);
        }
        let (outcome, result_known) = match verdict {
            Verdict::Completed | Verdict::WorkflowCompleted => (TurnOutcome::Completed, true),
            Verdict::Cancelled | Verdict::WorkflowCancelled => (TurnOutcome::Cancelled, true),
            Verdict::Truncated => (TurnOutcome::Truncated, true),
            Verdict::Interrupted => (TurnOutcome::Interrupted, true),
            Verdict::Failed | Verdict::Blocked => (TurnOutcome::Failed, true),
            Verdict::Unknown | Verdict::Waits => (TurnOutcome::Failed, false),
        };
        let error = (verdict == Verdict::Failed).then_some(ErrorClass::Other);
        let end = Fact::TurnEnded { outcome, error, reset: None, denied: false, result_known };
        self.close_turn();
        out.push_of(self, at, Some(turn.clone()), end);
        self.run_ends(verdict, at, Some(turn), out);
    }

    /// A workflow that came to its end ends the run of the session with it.
    pub(super) fn run_ends(&self, verdict: Verdict, at: Timestamp, turn: Option<Id>, out: &mut Out<'_>) {
        let outcome = match verdict {
            Verdict::WorkflowCompleted => EndOutcome::Completed,
            Verdict::WorkflowCancelled => EndOutcome::Cancelled,
            _ => return,
        };
        out.push_of(self, at, turn, Fact::SessionEnded { outcome, error: None, workflow: true });
    }

    /// Forgets what cannot outlive a turn.
    fn close_turn(&mut self) {
        self.turn = None;
        self.end_calls();
        self.pending.clear();
        if let Some(flow) = &mut self.flow {
            flow.over = true;
        }
    }

    /// Criteria by status; those that are claimed to be met but not verified are under way.
    pub(super) fn tally(&self) -> crate::event::Tally {
        let mut tally = crate::event::Tally::default();
        for (_, status) in &self.criteria {
            *match status {
                Criterion::Pending => &mut tally.pending,
                Criterion::InProgress | Criterion::Claimed => &mut tally.in_progress,
                Criterion::Passed => &mut tally.done,
                Criterion::Failed => &mut tally.failed,
            } += 1;
        }
        tally
    }

    /// Criteria as the items of the plan: done when whoever builds says so.
    pub(super) fn claimed(&self) -> crate::event::Tally {
        let claimed = self.criteria.iter().filter(|(_, status)| *status == Criterion::Claimed).count();
        let claimed = u32::try_from(claimed).unwrap_or(u32::MAX);
        let mut tally = self.tally();
        tally.in_progress -= claimed;
        tally.done += claimed;
        tally
    }
}
