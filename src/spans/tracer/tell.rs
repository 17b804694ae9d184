//! What is due becomes a span or a record, unless it was told before.

use super::super::run::{Mark, MarkOf, Place, Run};
use super::super::{Context, Link, Outgoing, SpanId, build, parts};
use super::{Key, Trace, Tracer, Waiting};
use crate::event::{CallOutcome, SessionId, SourceId, Timestamp};
use crate::session::notes::{Part, What};

// === impl Tracer ===

impl Tracer {
    /// Whether an orchestrator passes on what an agent tells by its own files as well: then its own row tells it, below the
    /// same attempt. What hangs on something that was told is told in any case.
    pub(super) fn is_told_by_itself(&self, key: &Key, waiting: &Waiting) -> bool {
        let (What::AgentTurn { turn, .. } | What::AgentCall { turn, .. }) = &waiting.note.what else {
            return false;
        };
        let Part::Turn { thread: Some(thread), .. } = turn else { return false };
        let own = (SourceId::from(parts::AGENT), SessionId::from(thread.as_str()));
        let run = self.traces.get(key).and_then(|trace| Some(&trace.runs[trace.index_of(waiting.run)?]));
        let told = run.is_some_and(|run| {
            let span = parts::span_of(key, &run.id(), turn);
            run.marks.iter().any(|mark| mark.of == MarkOf::Lines && mark.span == span)
        });
        let whole = run.and_then(|run| run.place).map(|place| place.context.trace);
        // Read so late that its row had a trace of its own by then, it does not stand for what was told here.
        let below = |run: &Run| run.place.is_none_or(|place| Some(place.context.trace) == whole);
        !told && own != *key && self.traces.get(&own).is_some_and(|trace| trace.runs.iter().any(below))
    }
}

// === impl Trace ===

impl Trace {
    /// Makes what is due a span or a record; `None` where it was told before.
    pub(super) fn tell(
        &mut self,
        key: &Key,
        waiting: &Waiting,
        place: Place,
        links: Vec<Link>,
        now: Timestamp,
    ) -> Option<Outgoing> {
        let i = self.index_of(waiting.run)?;
        let ids = self.ids(key);
        let run = &mut self.runs[i];
        let (at, context) = (waiting.note.at, place.context);
        let step_over = |since: Timestamp| run.innermost(since, since, |of| matches!(of, MarkOf::Step(_)));
        let within = |span: SpanId| Context { trace: context.trace, span };
        let over = |since: Timestamp| step_over(since).unwrap_or(context.span);
        let span = match &waiting.note.what {
            What::StepBegan(step) => {
                let id = ids.step(step, at);
                if run.marks.iter().any(|mark| mark.span == id && mark.is_aside()) {
                    return None;
                }
                let parent = run.around(step.kind, at).unwrap_or(context.span);
                let record = build::step_began(step, within(id), parent, at, now, &key.1);
                return self.told.tell(record.id).then_some(Outgoing::Log(record));
            }
            What::Run { since, trigger, end, workflow, callers } => {
                let since = run.since.min(*since);
                let parts = waiting.parts.clone().unwrap_or_default();
                let mut span =
                    build::run(key, &parts, context, place.parent, (since, at), *trigger, end, &run.usage);
                if let Some(name) = workflow {
                    build::of_workflow(&mut span, name.as_ref());
                }
                span.links = links;
                build::called_by(&mut span, callers);
                (span.events, span.dropped_events) = (
                    std::mem::take(&mut run.events).into_iter().map(build::progress).collect(),
                    run.dropped_events,
                );
                span
            }
            What::PartBegan(part) => {
                return Some(Outgoing::Log(parts::part_began(key, &run.id(), context, part, at, now)));
            }
            What::Part { part, since, end, polled } => {
                parts::part(key, &run.id(), context, part, (run.carried(*since), at), *end, *polled)
            }
            What::AgentTurn { turn, since, end, usage, polled } => {
                let stretch = (run.carried(*since), at);
                parts::turn(key, &run.id(), context, turn, stretch, *end, *usage, *polled)
            }
            What::AgentCall { turn, call, tool, class, since, outcome, exit_code, polled } => {
                let (own, since) = (run.id(), run.carried(*since));
                let parent = parts::span_of(key, &own, turn);
                run.mark(Mark { span: parent, of: MarkOf::Lines, since, until: Some(at), taken: false });
                let id = within(parts::call_of(key, &own, turn, call));
                let stretch = (since, at);
                let span = build::call(key, call, tool, *class, id, parent, stretch, *outcome, *exit_code);
                parts::agents_call(span, turn, *polled)
            }
            What::Held { reason, since, until, of, polled } => {
                let end = until.map_or(at, |until| until.min(at));
                let since = run.carried(*since);
                if since >= end {
                    return None;
                }
                parts::held(key, &run.id(), context, of.as_ref(), (since, end), *reason, *polled)
            }
            What::Orchestration { since, state, polled, callers } => {
                let parts = waiting.parts.clone().unwrap_or_default();
                let since = run.carried(run.since.min(*since));
                let mut span =
                    parts::orchestration(key, &parts, context, (since, at), *state, *polled, links);
                build::called_by(&mut span, callers);
                span
            }
            What::Step { step, since, outcome } => {
                let same = |m: &&Mark| m.until == Some(at) && m.is_of(step);
                // The same step may have been entered again: whose end it is tells when it began.
                let exact = |m: &&Mark| Some(m.since) == *since && same(m);
                let mark = run.marks.iter().find(exact).or_else(|| run.marks.iter().rev().find(same));
                let since = mark.map(|m| m.since).or(*since)?;
                let id = mark.map_or_else(|| ids.step(step, since), |m| m.span);
                // Where it lies follows from what it was announced as.
                let kind = match mark.map(|m| &m.of) {
                    Some(MarkOf::Step(began)) => began.kind,
                    _ => step.kind,
                };
                let step = match mark.map(|m| &m.of) {
                    Some(MarkOf::Step(began)) => &step.said_before(began),
                    _ => step,
                };
                let parent = run.around(kind, since).unwrap_or(context.span);
                build::step(key, step, within(id), parent, (since, at), *outcome)
            }
            What::Call { call, tool, class, since, outcome, exit_code } => {
                let (id, since) = (ids.call(call), *since);
                // Of a call that nothing ended it is known a while later that it was over with its run.
                let cut = run.until.filter(|_| *outcome == CallOutcome::Interrupted);
                let at = cut.map_or(at, |until| at.min(until.max(since)));
                build::call(
                    key,
                    call,
                    tool,
                    *class,
                    within(id),
                    over(since),
                    (since, at),
                    *outcome,
                    *exit_code,
                )
            }
            What::Wait { action, kind, since, resolution, call } => {
                let id = ids.wait(action);
                let parent = call.as_ref().map_or_else(|| over(*since), |call| ids.call(call));
                build::wait(key, within(id), parent, (*since, at), *kind, *resolution)
            }
            What::Hold { reason, since, attempt } => {
                let id = ids.hold(*since);
                build::hold(key, within(id), over(*since), (*since, at), *reason, *attempt)
            }
            What::TaskBegan(_)
            | What::StepGoesOn(_)
            | What::Declared(_)
            | What::Agent { .. }
            | What::Progress { .. }
            | What::Usage(_)
            | What::Asked { .. }
            | What::PlanReady
            | What::VerificationFailed => return None,
        };
        let told = u64::from_be_bytes(span.context.span.0);
        if self.given_up.has(told) || !self.told.tell(told) {
            return None;
        }
        if !waiting.observed {
            self.given_up.tell(told);
        }
        Some(Outgoing::Span(if waiting.observed { span } else { build::unobserved(span) }))
    }
}
