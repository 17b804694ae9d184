//! Workflows: the step pointer, criteria, verification.

use super::Out;
use super::known::{Criterion, FlowStatus, Known, Pending};
use super::runs::Verdict;
use super::wire::{Criterion as Item, Execution, Metadata, list, status, text, word};
use crate::event::{
    ActionKind, Certainty, Evidence, Fact, Phase, ProgressKind, Resolution, Step, StepKind, StepOutcome,
    Timestamp, Trigger,
};

/// Longest id of an execution that is kept as it is; they are UUIDs.
const MAX_EXECUTION: usize = 128;

// === impl Known ===

impl Known {
    pub(super) fn execution_changed(&mut self, execution: &Execution<'_>, out: &mut Out<'_>) {
        let (id, word) = (word(execution.execution), word(execution.status));
        let Some(now) = FlowStatus::parse(&word).filter(|_| !id.is_empty() && id.len() <= MAX_EXECUTION)
        else {
            return;
        };
        self.follow(&id);
        let running = self.runs();
        if let Some(run) = self.run.as_mut().filter(|_| running) {
            (run.workflow, run.cut) = (true, false);
        }
        let flow = self.flow.as_mut().expect("it was set above");
        if flow.name.is_none() {
            flow.name = text(execution.workflow).map(|name| out.shared.name(&name));
        }
        let waited = flow.status == FlowStatus::Waiting;
        flow.status = now;
        if running {
            flow.over = false;
        }
        self.begin_as(Trigger::Unknown, out);
        self.tell_workflow(out);
        self.works(out);
        if waited && now != FlowStatus::Waiting {
            let resolution =
                if now == FlowStatus::Running { Resolution::Answered } else { Resolution::Cancelled };
            self.resolve_where(|pending| pending.kind == ActionKind::Choice, resolution, out);
        }
        if now == FlowStatus::Running {
            self.close_vague(out);
        }
        if let Some(step) = text(execution.step) {
            self.step_pointer(&step, text(execution.step_name).as_deref(), out);
        }
        match now {
            FlowStatus::Waiting => self.choice(out),
            FlowStatus::Completed => self.leave_step(None, out),
            FlowStatus::Cancelled | FlowStatus::Blocked | FlowStatus::Running => {}
        }
        // It ended while nothing ran: it waited, or had been stopped.
        if self.run.is_none()
            && matches!(now, FlowStatus::Completed | FlowStatus::Cancelled | FlowStatus::Blocked)
        {
            self.ended_at_rest(now, out);
        }
    }

    fn ended_at_rest(&mut self, status: FlowStatus, out: &mut Out<'_>) {
        let verdict = match status {
            FlowStatus::Completed => Verdict::WorkflowCompleted,
            FlowStatus::Cancelled => Verdict::WorkflowCancelled,
            _ => Verdict::Blocked,
        };
        if self.turn.is_some() {
            self.conclude(verdict, out.now, out);
        } else if self.had_turn {
            self.run_ends(verdict, out.now, None, out);
        }
        if let Some(flow) = &mut self.flow {
            flow.over = true;
        }
    }

    /// Says of each of its turns that it is one of this workflow.
    pub(super) fn tell_workflow(&mut self, out: &mut Out<'_>) {
        let Some(flow) = self.flow.as_mut().filter(|_| self.turn.is_some()) else { return };
        if flow.told.replace(flow.turns) != Some(flow.turns) {
            let name = flow.name.clone();
            out.push(self, out.now, Fact::Workflow { name });
        }
    }

    /// The pointer says where the workflow is: at another step, or at the same one anew, which counts as an entry
    /// only if something was said meanwhile: a run that is taken up again repeats the pointer.
    fn step_pointer(&mut self, id: &str, name: Option<&str>, out: &mut Out<'_>) {
        let id = out.shared.id(id);
        let flow = self.flow.as_mut().expect("only a workflow has steps");
        let again = flow.step.as_ref().is_some_and(|step| step.id == id);
        if again && !std::mem::take(&mut flow.worked) {
            return;
        }
        flow.worked = false;
        if !again {
            let back = flow.visited(&id);
            self.leave_step(Some(back), out);
        }
        let kind = match self.phase {
            Some(Phase::Plan) => StepKind::Plan,
            Some(Phase::Build) => StepKind::Build,
            Some(Phase::Verification) => StepKind::Verify,
            _ => StepKind::Other,
        };
        let flow = self.flow.as_mut().expect("only a workflow has steps");
        if !again {
            flow.verifying = (kind == StepKind::Verify).then_some(false);
        }
        let entry = Some(flow.enter(&id));
        let name = name.map(|name| out.shared.name(name));
        let step = Step { id, kind, name, index: None, total: None, entry };
        flow.step = Some(step.clone());
        out.push(self, out.now, Fact::StepStarted(step));
    }

    /// The pointer leaves a step: for one that was entered before (`Some(true)`), for a new one, or for the end.
    fn leave_step(&mut self, back: Option<bool>, out: &mut Out<'_>) {
        let phase = self.phase;
        let Some(flow) = &mut self.flow else { return };
        let Some(step) = flow.step.take() else { return };
        let (verifying, back) = (flow.verifying.take(), back == Some(true));
        let outcome = if back { StepOutcome::LoopedBack } else { StepOutcome::Advanced };
        out.push(self, out.now, Fact::StepCompleted { step, outcome });
        let verdict = match verifying {
            // From verification back to a step that was built before: it failed, if nothing said so already.
            Some(false) if back => (phase == Some(Phase::Build)).then_some(false),
            Some(false) => Some(true),
            Some(true) | None => None,
        };
        if let Some(passed) = verdict {
            out.push(self, out.now, Fact::Verification { passed, call: None });
        }
    }

    /// The workflow waits for a person to choose.
    fn choice(&mut self, out: &mut Out<'_>) {
        let Some(flow) = &self.flow else { return };
        let (step, entry) = flow.step.as_ref().map_or(("", None), |s| (s.id.as_str(), s.entry));
        let action = out.shared.id(&format!("{}:{step}:{}", flow.id, entry.unwrap_or_default()));
        if self.pending.iter().any(|pending| pending.kind == ActionKind::Choice && !pending.vague) {
            return;
        }
        self.resolve_where(|pending| pending.vague, Resolution::Unknown, out);
        self.ask(Pending { action, kind: ActionKind::Choice, short: None, vague: false }, None, None, out);
    }

    /// A person is asked something.
    pub(super) fn ask(
        &mut self,
        mut pending: Pending,
        tool: Option<crate::event::Name>,
        call: Option<crate::event::Id>,
        out: &mut Out<'_>,
    ) {
        // What was answered under a name stays answered: another request needs another.
        if self.was_requested(out.shared.hash(pending.action.as_str())) {
            pending.action = out.shared.id(&format!("{}~{}", pending.action.as_str(), out.now.as_millis()));
        }
        let (action, kind) = (pending.action.clone(), pending.kind);
        if !self.begin_pending(pending) {
            return;
        }
        let certainty = Certainty::Certain;
        out.push(self, out.now, Fact::ActionRequired { action, kind, certainty, tool, call });
    }

    /// `task.completed`: the workflow reached its end. It names no execution; that of the frame before is meant.
    pub(super) fn task_completed(&mut self, out: &mut Out<'_>) {
        self.works(out);
        let subject = self.flow.as_ref().map(|flow| out.shared.hash(&flow.id));
        let (kind, evidence) = (ProgressKind::TaskCompleted, Evidence::Structured);
        out.push(self, out.now, Fact::Progress { kind, evidence, call: None, subject });
    }

    pub(super) fn criteria_changed(&mut self, metadata: &Metadata<'_>, out: &mut Out<'_>) {
        self.works(out);
        let (entries, criteria) = (metadata.entries, metadata.criteria);
        let items = match (text(metadata.key).as_deref(), entries, criteria) {
            (Some("criteria"), Some(entries), _) | (None, None, Some(entries)) => entries,
            _ => return,
        };
        let now: Vec<(u64, Criterion)> = list::<Item<'_>>(Some(items))
            .into_iter()
            .filter_map(|item| {
                let id = text(item.id)?;
                Some((out.shared.hash(&id), Criterion::parse(&status(item.status))))
            })
            .collect();
        let failed = self.set_criteria(now);
        if let Some(run) = &mut self.run {
            run.criteria_changed = true;
        }
        if !self.had_turn {
            // Set up by hand before anything runs, which is no work of an agent.
            self.criteria_untold = true;
            return;
        }
        self.tell_criteria(out.now, out);
        for _ in 0..failed {
            out.push(self, out.now, Fact::Verification { passed: false, call: None });
        }
        if failed > 0
            && let Some(failing) = self.flow.as_mut().and_then(|flow| flow.verifying.as_mut())
        {
            *failing = true;
        }
    }

    pub(super) fn tell_criteria(&mut self, at: Timestamp, out: &mut Out<'_>) {
        let (items, claimed) = (self.tally(), self.claimed());
        out.push(self, at, Fact::CriteriaUpdated(items));
        out.push(self, at, Fact::PlanUpdated { ready: false, items: claimed, told: false });
    }
}
