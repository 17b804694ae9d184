//! How a turn opens, and what belongs to it from outside. Traces of the agent or of its caller: a run belongs to those that are given while it is open, or with what announces
//! it. Of each trace the first span counts, because the later ones lie below it or beside it.

use super::super::counts::Effects;
use super::super::facts::{Facts, OpenStep, Turn};
use super::super::notes::What;
use crate::event::{Event, Fact, Id, MAX_CALLERS, Name, Timestamp, TraceContext, Trigger};

/// Takes a context in, unless its trace is known already.
fn admit(callers: &mut Vec<TraceContext>, context: TraceContext) {
    if callers.len() < MAX_CALLERS && callers.iter().all(|known| known.trace != context.trace) {
        callers.push(context);
    }
}

/// Whether it ends the run it belongs to.
fn ends(fact: &Fact) -> bool {
    match fact {
        Fact::TurnEnded { .. } | Fact::SessionEnded { .. } | Fact::SessionDeleted => true,
        Fact::Orchestration(update) => update.state.is_some_and(|state| state.is_end()),
        _ => false,
    }
}

/// Whether it tells of a run that is still to come.
const fn announces(fact: &Fact) -> bool {
    matches!(
        fact,
        Fact::SessionQueued(_)
            | Fact::SessionStarted(_)
            | Fact::SessionResumed(_)
            | Fact::SessionUpdated(_)
            | Fact::Prompt { .. }
    )
}

// === impl Facts ===

impl Facts {
    /// A context that came with an end belongs to what ends with it.
    pub(super) fn called_before(&mut self, event: &Event) {
        if let Some(context) = event.trace.filter(|_| ends(&event.fact)) {
            self.called(event, context);
        }
    }

    /// Any other belongs to what is open once its event is applied.
    pub(super) fn called_after(&mut self, event: &Event) {
        if let Some(context) = event.trace.filter(|_| !ends(&event.fact)) {
            self.called(event, context);
        }
    }

    fn called(&mut self, event: &Event, context: TraceContext) {
        if let Some(run) = &self.orchestration {
            if !run.story.is_over() {
                admit(&mut self.callers, context);
            }
            return;
        }
        let queued = matches!(event.fact, Fact::Prompt { queued: true, .. });
        let Some(turn) = self.turn.as_mut().filter(|_| !queued) else {
            if announces(&event.fact) {
                admit(&mut self.callers, context);
            }
            return;
        };
        let other = event.request.is_some() && turn.request.is_some() && event.request != turn.request;
        let earlier = event.time.is_some() && event.time < turn.started;
        if !other && !earlier {
            admit(&mut turn.callers, context);
        }
    }

    /// The open turn is a run of a workflow. What is said of another turn, or too late, says nothing of it.
    pub(super) fn is_of_workflow(&mut self, name: Option<&Name>, request: Option<&Id>, t: Option<Timestamp>) {
        let Some(turn) = &mut self.turn else { return };
        let own = request.is_none() || turn.request.as_ref() == request;
        if own && (t.is_none() || t >= turn.started) {
            turn.workflow = Some(name.cloned());
        }
    }

    /// Opens a turn. What was known of the traces of the one that is to come is known of it, and so is what was known
    /// of one that nobody had declared.
    pub(super) fn open_turn(
        &mut self,
        request: Option<&Id>,
        started: Option<Timestamp>,
        trigger: Trigger,
        implicit: bool,
        out: &mut Effects,
    ) {
        let mut callers = std::mem::take(&mut self.callers);
        // What was chosen behind all that the run before did is what this one works on.
        let ended = if self.turn.is_some() { self.last_activity.min(started) } else { self.newest_end() };
        let chosen = |open: &&OpenStep| open.started >= ended && open.started < started;
        let step = self.step.as_ref().filter(chosen).map(|open| open.step.clone());
        let before = self.turn.take().filter(|before| before.implicit);
        // The part of a run that nobody had declared is one with it, and the step was entered there.
        let step = step.filter(|_| before.is_none());
        if let Some(before) = before {
            before.callers.into_iter().for_each(|context| admit(&mut callers, context));
        }
        self.turn =
            Some(Turn { request: request.cloned(), started, trigger, implicit, callers, workflow: None });
        if let Some(step) = step {
            self.note(started, &mut out.notes, || What::StepGoesOn(step));
        }
    }
}
