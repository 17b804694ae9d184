//! Spans of orchestrations: the run, its batches, specs and attempts, and what held them up. What they are called follows
//! from where they stand in their run, so that a part has one id however and how often it is told of.

use super::build::{self, Parts};
use super::{Context, Key, Link, LogRecord, Span, SpanId, Value};
use crate::event::reduce::stable_hash;
use crate::event::{
    BlockReason, EndOutcome, Id, OrchestrationState, SessionId, SourceId, StepKind, Timestamp,
};
use crate::session::notes::{Part, PartEnd, RunKey};

type Owner = (SourceId, SessionId);

/// The agent whose lines orchestrators pass on, and the source that reads what it writes itself.
pub(super) const AGENT: &str = "codex";
type Stretch = (Timestamp, Timestamp);

/// The id of a part of a run.
pub(super) fn span_of(owner: &Owner, run: &(RunKey, u8), part: &Part) -> SpanId {
    SpanId::of((owner.0.as_str(), owner.1.as_str(), "part", run, part))
}

/// What a part belongs to; `None`: the run itself.
fn above(part: &Part) -> Option<Part> {
    match part {
        Part::Batch(_) => None,
        Part::Spec { batch, .. } => batch.map(Part::Batch),
        Part::Attempt { spec, batch, .. } => Some(Part::Spec { name: spec.clone(), batch: *batch }),
        Part::Turn { spec, batch, attempt, .. } => {
            Some(Part::Attempt { spec: spec.clone(), batch: *batch, number: *attempt })
        }
    }
}

/// The span that a part belongs to.
pub(super) fn parent_of(owner: &Owner, run: &(RunKey, u8), part: &Part, context: Context) -> SpanId {
    above(part).map_or(context.span, |above| span_of(owner, run, &above))
}

pub(super) fn attributes_of(part: &Part) -> Vec<(Key, Value)> {
    let (kind, name, index) = match part {
        Part::Batch(n) => (StepKind::Batch, None, Some(*n)),
        Part::Spec { name, .. } => (StepKind::Spec, Some(name), None),
        Part::Attempt { spec, number, .. } => (StepKind::Attempt, Some(spec), Some(*number)),
        // No step, but a run of its agent.
        Part::Turn { .. } => return Vec::new(),
    };
    let mut attributes: Vec<(Key, Value)> = vec![(Key::StepKind, kind.as_str().into())];
    attributes.extend(name.map(|name| (Key::StepName, (&name.0).into())));
    attributes.extend(index.map(|index| (Key::StepIndex, index.into())));
    attributes
}

fn name_of(part: &Part) -> String {
    match part {
        Part::Batch(n) => format!("batch {n}"),
        Part::Spec { name, .. } => format!("spec {}", name.as_str()),
        Part::Attempt { number, .. } => format!("attempt {number}"),
        Part::Turn { .. } => format!("invoke_agent {AGENT}"),
    }
}

/// Times of looks are said to be such.
fn polled(mut span: Span, polled: bool) -> Span {
    if polled {
        span.attributes.push((Key::Polled, true.into()));
    }
    span
}

/// A part that is over.
pub(super) fn part(
    owner: &Owner,
    run: &(RunKey, u8),
    context: Context,
    part: &Part,
    stretch: Stretch,
    end: PartEnd,
    is_polled: bool,
) -> Span {
    let own = Context { trace: context.trace, span: span_of(owner, run, part) };
    let parent = parent_of(owner, run, part, context);
    let mut span = build::span(owner, own, Some(parent), name_of(part), stretch);
    span.attributes.extend(attributes_of(part));
    ended(span, end, is_polled)
}

/// With how it ended, if anybody told.
fn ended(mut span: Span, end: PartEnd, is_polled: bool) -> Span {
    if end.outcome == EndOutcome::Unknown {
        span.attributes.push((Key::EndObserved, false.into()));
        return polled(span, is_polled);
    }
    span.attributes.push((Key::Outcome, end.outcome.as_str().into()));
    span.failed = end.outcome == EndOutcome::Failed;
    if span.failed {
        span.attributes.push((Key::ErrorType, end.error.map_or("other", |e| e.as_str()).into()));
    }
    polled(span, is_polled)
}

/// The agent's own session, where that is known; else the whole is one conversation.
fn agents_own(span: &mut Span, turn: &Part) {
    if let (Part::Turn { thread: Some(thread), .. }, Some((_, id))) =
        (turn, span.attributes.iter_mut().find(|(key, _)| *key == Key::ConversationId))
    {
        *id = (&thread.0).into();
    }
}

/// A turn of an agent that works on an attempt.
#[expect(clippy::too_many_arguments, reason = "all that a turn is known by; it is called once")]
pub(super) fn turn(
    owner: &Owner,
    run: &(RunKey, u8),
    context: Context,
    turn: &Part,
    stretch: Stretch,
    end: PartEnd,
    usage: Option<[u64; 3]>,
    is_polled: bool,
) -> Span {
    let own = Context { trace: context.trace, span: span_of(owner, run, turn) };
    let parent = parent_of(owner, run, turn, context);
    let mut span = build::span(owner, own, Some(parent), name_of(turn), stretch);
    agents_own(&mut span, turn);
    span.attributes.push((Key::OperationName, "invoke_agent".into()));
    span.attributes.push((Key::AgentName, AGENT.into()));
    let keys = [Key::InputTokens, Key::CacheReadTokens, Key::OutputTokens];
    let usage = usage.map(|usage| keys.into_iter().zip(usage.map(Value::from)));
    span.attributes.extend(usage.into_iter().flatten());
    ended(span, end, is_polled)
}

/// A call of such a turn, by what it is called there.
pub(super) fn call_of(owner: &Owner, run: &(RunKey, u8), turn: &Part, call: &Id) -> SpanId {
    SpanId::of((owner.0.as_str(), owner.1.as_str(), "agent call", run, turn, call))
}

/// Makes the span of a call one of an agent's own session.
pub(super) fn agents_call(mut span: Span, turn: &Part, is_polled: bool) -> Span {
    agents_own(&mut span, turn);
    polled(span, is_polled)
}

/// A part that began, with the ids its span will have.
pub(super) fn part_began(
    owner: &Owner,
    run: &(RunKey, u8),
    context: Context,
    part: &Part,
    time: Timestamp,
    observed: Timestamp,
) -> LogRecord {
    let own = Context { trace: context.trace, span: span_of(owner, run, part) };
    let mut attributes: Vec<(Key, Value)> = vec![(Key::ConversationId, (&owner.1.0).into())];
    attributes.extend(attributes_of(part));
    let parent = parent_of(owner, run, part, context);
    attributes.push((Key::ParentSpan, parent.to_string().into()));
    LogRecord {
        name: "agent_session.step.started".to_owned(),
        time,
        observed,
        context: Some(own),
        attributes,
        id: stable_hash(("step.started", own.trace.0, own.span.0)),
        warning: false,
    }
}

/// Time that was not work: of the run, or of a spec that waits for its next attempt.
pub(super) fn held(
    owner: &Owner,
    run: &(RunKey, u8),
    context: Context,
    of: Option<&Part>,
    stretch: Stretch,
    reason: BlockReason,
    is_polled: bool,
) -> Span {
    let id = SpanId::of((owner.0.as_str(), owner.1.as_str(), "held", run, of, reason.as_str(), stretch.0));
    let parent = of.map_or(context.span, |of| span_of(owner, run, of));
    let within = Context { trace: context.trace, span: id };
    polled(build::hold(owner, within, parent, stretch, reason, None), is_polled)
}

/// The whole run.
pub(super) fn orchestration(
    owner: &Owner,
    parts: &Parts,
    context: Context,
    stretch: Stretch,
    state: OrchestrationState,
    is_polled: bool,
    links: Vec<Link>,
) -> Span {
    let mut span =
        build::span(owner, context, None, format!("invoke_workflow {}", owner.1.as_str()), stretch);
    span.links = links;
    span.attributes.push((Key::OperationName, "invoke_workflow".into()));
    span.attributes.push((Key::WorkflowName, (&owner.1.0).into()));
    span.attributes.extend(parts.project().map(|name| (Key::Project, (&name.0).into())));
    let outcome = match state {
        OrchestrationState::Completed => EndOutcome::Completed,
        OrchestrationState::Failed => EndOutcome::Failed,
        OrchestrationState::Stopped => EndOutcome::Cancelled,
        _ => {
            span.attributes.push((Key::EndObserved, false.into()));
            return polled(span, is_polled);
        }
    };
    span.attributes.push((Key::Outcome, outcome.as_str().into()));
    span.failed = outcome == EndOutcome::Failed;
    if span.failed {
        span.attributes.push((Key::ErrorType, "other".into()));
    }
    polled(span, is_polled)
}
