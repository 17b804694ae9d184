//! What is due becomes a span or a record, unless it was told before.

use super::super::run::{Mark, MarkOf, Place};
use super::super::{Context, Link, Outgoing, SpanId, build, parts};
use super::{Key, Trace, Waiting, call_span, step_span};
use crate::event::{CallOutcome, Timestamp};
use crate::session::notes::What;

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
        let i = self.index_of(&waiting.run)?;
        let run = &mut self.runs[i];
        let (at, context) = (waiting.note.at, place.context);
        let step_over = |since: Timestamp| run.innermost(since, since, |of| matches!(of, MarkOf::Step(_)));
        let within = |span: SpanId| Context { trace: context.trace, span };
        let over = |since: Timestamp| step_over(since).unwrap_or(context.span);
        let span = match &waiting.note.what {
            What::StepBegan(step) => {
                let id = step_span(key, step, at);
                let record = build::step_began(step, within(id), context.span, at, now, &key.1);
                return Some(Outgoing::Log(record));
            }
            What::Run { since, trigger, end } => {
                let since = run.since.min(*since);
                let parts = waiting.parts.clone().unwrap_or_default();
                let mut span =
                    build::run(key, &parts, context, place.parent, (since, at), *trigger, end, &run.usage);
                span.links = links;
                (span.events, span.dropped_events) = (
                    std::mem::take(&mut run.events).into_iter().map(|(_, e)| e).collect(),
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
            What::Held { reason, since, until, of, polled } => {
                let end = until.map_or(at, |until| until.min(at));
                let since = run.carried(*since);
                if since >= end {
                    return None;
                }
                parts::held(key, &run.id(), context, of.as_ref(), (since, end), *reason, *polled)
            }
            What::Orchestration { since, state, polled } => {
                let parts = waiting.parts.clone().unwrap_or_default();
                let since = run.carried(run.since.min(*since));
                parts::orchestration(key, &parts, context, (since, at), *state, *polled, links)
            }
            What::Step { step, since, outcome } => {
                let same =
                    |m: &&Mark| m.until == Some(at) && matches!(&m.of, MarkOf::Step(s) if s.id == step.id);
                // The same step may have been entered again: whose end it is tells when it began.
                let exact = |m: &&Mark| Some(m.since) == *since && same(m);
                let mark = run.marks.iter().find(exact).or_else(|| run.marks.iter().rev().find(same));
                let since = mark.map(|m| m.since).or(*since)?;
                build::step(
                    key,
                    step,
                    within(step_span(key, step, since)),
                    context.span,
                    (since, at),
                    *outcome,
                )
            }
            What::Call { call, tool, class, since, outcome, exit_code } => {
                let (id, since) = (call_span(key, call), *since);
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
                let id = SpanId::of((key.0.as_str(), key.1.as_str(), "wait", action));
                let parent = call.as_ref().map_or_else(|| over(*since), |call| call_span(key, call));
                build::wait(key, within(id), parent, (*since, at), *kind, *resolution)
            }
            What::Hold { reason, since, attempt } => {
                let id = SpanId::of((key.0.as_str(), key.1.as_str(), "hold", since.as_millis()));
                build::hold(key, within(id), over(*since), (*since, at), *reason, *attempt)
            }
            What::TaskBegan(_)
            | What::Declared(_)
            | What::Agent { .. }
            | What::Progress { .. }
            | What::Usage(_)
            | What::Asked { .. }
            | What::PlanReady
            | What::VerificationFailed => return None,
        };
        let told = u64::from_be_bytes(span.context.span.0);
        if !self.told.tell(told) {
            return None;
        }
        Some(Outgoing::Span(if waiting.observed { span } else { build::unobserved(span) }))
    }
}
