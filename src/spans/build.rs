//! What each kind of span is called and says.

use serde::{Deserialize, Serialize};

use super::run::Advance;
use super::{Context, Key, Link, LogRecord, Span, SpanEvent, SpanId, TraceId, Value};
use crate::event::reduce::stable_hash;
use crate::event::{
    ActionKind, BlockReason, CallOutcome, Id, Name, Resolution, SessionId, SourceId, Step, StepOutcome,
    Timestamp, ToolClass, TraceContext, Trigger,
};
use crate::session::Facts;
use crate::session::notes::RunOutcome;

/// Attributes that most spans have room for without moving.
const USUAL: usize = 9;

type Owner = (SourceId, SessionId);
type Stretch = (Timestamp, Timestamp);

/// What a run's span says of its session, as it was at the run's end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Parts {
    agent: Option<Name>,
    version: Option<Name>,
    model: Option<Name>,
    provider: Option<Name>,
    project: Option<Name>,
    cost_seen: bool,
    usage_seen: bool,
    /// Whether its runs are measured: it is no sub-agent, and no orchestrator's.
    pub(super) measured: bool,
}

// === impl Parts ===

impl Parts {
    pub(super) fn of(facts: &Facts) -> Self {
        let info = &facts.info;
        Self {
            agent: info.agent.clone(),
            version: info.version.clone(),
            model: info.model.clone(),
            provider: info.provider.clone(),
            project: facts.project.clone(),
            cost_seen: facts.usage.cost_seen,
            usage_seen: facts.usage.seen,
            measured: facts.parent.is_none() && !facts.is_orchestrated(),
        }
    }

    pub(super) fn project(&self) -> Option<&Name> {
        self.project.as_ref()
    }
}

/// A span that says whose it is, and nothing else.
pub(super) fn span(
    owner: &Owner,
    context: Context,
    parent: Option<SpanId>,
    name: String,
    (start, end): Stretch,
) -> Span {
    Span {
        context,
        parent,
        name,
        start,
        end: end.max(start),
        attributes: {
            let mut attributes = Vec::with_capacity(USUAL);
            attributes.push((Key::ConversationId, (&owner.1.0).into()));
            attributes.push((Key::Source, (&owner.0.0).into()));
            attributes
        },
        events: Vec::new(),
        dropped_events: 0,
        links: Vec::new(),
        failed: false,
    }
}

#[expect(clippy::too_many_arguments, reason = "all that a run is known by; it is called once")]
pub(super) fn run(
    owner: &Owner,
    parts: &Parts,
    context: Context,
    parent: Option<SpanId>,
    stretch: Stretch,
    trigger: Trigger,
    end: &RunOutcome,
    usage: &[u64; 5],
) -> Span {
    let agent = parts.agent.as_ref().map_or(&owner.0.0, |name| &name.0);
    let mut span = span(owner, context, parent, format!("invoke_agent {agent}"), stretch);
    let attributes = &mut span.attributes;
    attributes.push((Key::OperationName, "invoke_agent".into()));
    attributes.push((Key::AgentName, agent.into()));
    let names = [
        (Key::AgentVersion, &parts.version),
        (Key::RequestModel, &parts.model),
        (Key::ProviderName, &parts.provider),
        (Key::Project, &parts.project),
    ];
    attributes.extend(names.into_iter().filter_map(|(key, name)| Some((key, (&name.as_ref()?.0).into()))));
    attributes.push((Key::Trigger, trigger.as_str().into()));
    attributes.push((Key::Outcome, end.outcome.as_str().into()));
    if parts.usage_seen {
        let [input, cache_read, cache_write, output, _] = *usage;
        let all = input.saturating_add(cache_read).saturating_add(cache_write);
        attributes.push((Key::InputTokens, all.into()));
        attributes.push((Key::CacheReadTokens, cache_read.into()));
        attributes.push((Key::CacheCreationTokens, cache_write.into()));
        attributes.push((Key::OutputTokens, output.into()));
    }
    if parts.cost_seen {
        attributes.push((Key::CostDollars, Value::Float(usage[4] as f64 / 1e9)));
    }
    if let Some(error) = end.error {
        attributes.push((Key::ErrorType, error.as_str().into()));
    } else if end.outcome.is_failure() {
        attributes.push((Key::ErrorType, end.outcome.as_str().into()));
    }
    if !end.outcome.is_observed() {
        attributes.push((Key::EndObserved, false.into()));
    }
    span.failed = end.outcome.is_failure();
    span
}

pub(super) fn step(
    owner: &Owner,
    step: &Step,
    context: Context,
    parent: SpanId,
    stretch: Stretch,
    outcome: StepOutcome,
) -> Span {
    let mut span = span(owner, context, Some(parent), step_name(step), stretch);
    span.attributes.extend(step_attributes(step));
    span.attributes.push((Key::Outcome, outcome.as_str().into()));
    span.failed = outcome == StepOutcome::Failed;
    span
}

fn step_name(step: &Step) -> String {
    match &step.name {
        Some(name) => format!("{} {}", step.kind.as_str(), name.as_str()),
        None => step.kind.as_str().to_owned(),
    }
}

pub(super) fn step_attributes(step: &Step) -> Vec<(Key, Value)> {
    let mut attributes: Vec<(Key, Value)> =
        vec![(Key::StepId, (&step.id.0).into()), (Key::StepKind, step.kind.as_str().into())];
    if let Some(name) = &step.name {
        attributes.push((Key::StepName, (&name.0).into()));
    }
    let numbers = [(Key::StepIndex, step.index), (Key::StepTotal, step.total), (Key::StepEntry, step.entry)];
    attributes.extend(numbers.into_iter().filter_map(|(key, n)| Some((key, n?.into()))));
    attributes
}

#[expect(clippy::too_many_arguments, reason = "all that a call is known by; it is called once")]
pub(super) fn call(
    owner: &Owner,
    call: &Id,
    tool: &Name,
    class: ToolClass,
    context: Context,
    parent: SpanId,
    stretch: Stretch,
    outcome: CallOutcome,
    exit_code: Option<i32>,
) -> Span {
    let mut span = span(owner, context, Some(parent), ["execute_tool ", tool.as_str()].concat(), stretch);
    let attributes = &mut span.attributes;
    attributes.push((Key::OperationName, "execute_tool".into()));
    attributes.push((Key::ToolName, (&tool.0).into()));
    attributes.push((Key::ToolCallId, (&call.0).into()));
    attributes.push((Key::ToolClass, class.as_str().into()));
    attributes.push((Key::Outcome, outcome.as_str().into()));
    if let Some(code) = exit_code {
        attributes.push((Key::ExitCode, i64::from(code).into()));
    }
    // What a person refused or cut off is no failure.
    span.failed = outcome == CallOutcome::Error;
    if span.failed {
        let kind = if exit_code.is_some_and(|code| code != 0) { "exit" } else { "other" };
        attributes.push((Key::ErrorType, kind.into()));
    }
    span
}

pub(super) fn wait(
    owner: &Owner,
    context: Context,
    parent: SpanId,
    stretch: Stretch,
    kind: ActionKind,
    resolution: Resolution,
) -> Span {
    let mut span = span(owner, context, Some(parent), format!("wait {}", kind.as_str()), stretch);
    span.attributes.push((Key::WaitReason, kind.as_str().into()));
    span.attributes.push((Key::Resolution, resolution.as_str().into()));
    span
}

pub(super) fn hold(
    owner: &Owner,
    context: Context,
    parent: SpanId,
    stretch: Stretch,
    reason: BlockReason,
    attempt: Option<u32>,
) -> Span {
    let mut span = span(owner, context, Some(parent), format!("wait {}", reason.as_str()), stretch);
    span.attributes.push((Key::WaitReason, reason.as_str().into()));
    if let Some(attempt) = attempt {
        span.attributes.push((Key::Attempt, attempt.into()));
    }
    span
}

pub(super) fn progress(Advance { at, kind, evidence, high }: Advance) -> SpanEvent {
    SpanEvent {
        time: at,
        name: "agent_session.progress".into(),
        attributes: vec![
            (Key::ProgressKind, kind.as_str().into()),
            (Key::Evidence, evidence.as_str().into()),
            (Key::HighValue, high.into()),
        ],
    }
}

/// A step that began, with the ids its span will have.
pub(super) fn step_began(
    step: &Step,
    context: Context,
    parent: SpanId,
    time: Timestamp,
    observed: Timestamp,
    session: &SessionId,
) -> LogRecord {
    let mut attributes: Vec<(Key, Value)> = Vec::with_capacity(USUAL);
    attributes.push((Key::ConversationId, (&session.0).into()));
    attributes.extend(step_attributes(step));
    attributes.push((Key::ParentSpan, parent.to_string().into()));
    LogRecord {
        name: "agent_session.step.started".to_owned(),
        time,
        observed,
        context: Some(context),
        attributes,
        id: stable_hash(("step.started", context.trace.0, context.span.0)),
        warning: false,
    }
}

/// A run of a workflow is called by it.
pub(super) fn of_workflow(span: &mut Span, name: Option<&Name>) {
    const OPERATION: &str = "invoke_workflow";
    span.name = name.map_or(OPERATION.to_owned(), |name| format!("{OPERATION} {}", name.as_str()));
    if let Some(at) = span.attributes.iter().position(|(key, _)| *key == Key::OperationName) {
        span.attributes[at].1 = OPERATION.into();
        let name = name.map(|name| (Key::WorkflowName, (&name.0).into()));
        span.attributes.splice(at + 1..at + 1, name);
    }
}

/// The traces of the agent or of its caller that a run belongs to. One of which no span was named has nothing that a link
/// could lead to.
pub(super) fn called_by(span: &mut Span, callers: &[TraceContext]) {
    for caller in callers {
        match caller.span {
            Some(id) => {
                let to = Context { trace: TraceId(caller.trace), span: SpanId(id) };
                span.links.push(Link { to, relation: "caller".into() });
            }
            None if span.attributes.iter().all(|(key, _)| *key != Key::AgentTrace) => {
                span.attributes.push((Key::AgentTrace, caller.trace_text().into()));
            }
            None => {}
        }
    }
}

/// Of an end that nobody saw nothing is claimed.
pub(super) fn unobserved(mut span: Span) -> Span {
    span.failed = false;
    span.attributes.retain(|(key, _)| {
        !matches!(key, Key::Outcome | Key::Resolution | Key::ErrorType | Key::EndObserved)
    });
    span.attributes.push((Key::EndObserved, false.into()));
    span
}
