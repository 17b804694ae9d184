//! A run as the tracer knows it: where it hangs, and what of it others may hang on.

use serde::{Deserialize, Serialize};

use super::tracer::SETTLED_MS;
use super::{Context, SpanId};
use crate::event::{Evidence, Id, ProgressKind, SessionId, Step, StepKind, Timestamp};
use crate::session::notes::RunKey;

/// Steps and calls of one run that others may hang on.
const MAX_MARKS: usize = 128;

/// One run of a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    /// Tells it from the other runs of its session here, whatever it is called.
    pub(super) number: u32,
    pub(super) key: RunKey,
    /// How often it came back after it was lost.
    pub(super) generation: u8,
    pub(super) since: Timestamp,
    pub(super) until: Option<Timestamp>,
    /// It ended only as far as we know: what follows is another run.
    pub(super) given_up: bool,
    /// Known once it was needed: then its parent is known, too.
    pub(super) place: Option<Place>,
    /// Steps, and calls that may have started others: what they are, since when, until when.
    pub(super) marks: Vec<Mark>,
    pub(super) events: Vec<Advance>,
    pub(super) dropped_events: u32,
    pub(super) usage: [u64; 5],
}

/// A fact of progress in a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Advance {
    pub(super) at: Timestamp,
    pub(super) kind: ProgressKind,
    pub(super) evidence: Evidence,
    pub(super) high: bool,
}

/// Where a run hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) context: Context,
    pub(super) parent: Option<SpanId>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Mark {
    pub(super) span: SpanId,
    pub(super) of: MarkOf,
    pub(super) since: Timestamp,
    pub(super) until: Option<Timestamp>,
    /// It is the call of a sub-agent that was found.
    pub(super) taken: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum MarkOf {
    Step(Step),
    Task(Id),
    /// The attempt at a spec that an agent of this session works on.
    Agent(Id),
    /// A turn of such an agent that was told of by its lines.
    Lines,
}

/// The level of steps of a workflow, of which one is open at a time.
const WORKFLOW: u8 = 3;

/// Steps lie in those of a lower level.
const fn level(kind: StepKind) -> u8 {
    match kind {
        StepKind::Batch => 0,
        StepKind::Spec => 1,
        StepKind::Attempt => 2,
        StepKind::Plan | StepKind::Build | StepKind::Verify | StepKind::Other => WORKFLOW,
        StepKind::Task => 4,
        StepKind::Compaction => 5,
    }
}

// === impl Mark ===

impl Mark {
    /// Nothing hangs on it and nothing is told of it, unless its run turns out to have ended later.
    pub(super) fn put_aside(&mut self) {
        self.until = Some(self.since.plus(-1));
    }

    pub(super) fn is_aside(&self) -> bool {
        self.until.is_some_and(|until| until < self.since)
    }

    /// Whether it is this step, in the entry that is named, if one is.
    pub(super) fn is_of(&self, step: &Step) -> bool {
        let MarkOf::Step(own) = &self.of else { return false };
        own.id == step.id && (own.entry.is_none() || step.entry.is_none() || own.entry == step.entry)
    }
}

// === impl Run ===

impl Run {
    pub(super) fn new(number: u32, key: RunKey, generation: u8, since: Timestamp) -> Self {
        Self {
            number,
            key,
            generation,
            since,
            until: None,
            given_up: false,
            place: None,
            marks: Vec::new(),
            events: Vec::new(),
            dropped_events: 0,
            usage: [0; 5],
        }
    }

    /// The start of something that may have begun before the run before was lost.
    pub(super) fn carried(&self, since: Timestamp) -> Timestamp {
        if self.generation > 0 { since.max(self.since) } else { since }
    }

    /// Whether a moment lies so long after its end that its span is told by then.
    pub(super) fn is_told_at(&self, moment: Timestamp) -> bool {
        self.until.is_some_and(|until| moment > until.plus(SETTLED_MS))
    }

    pub(super) fn id(&self) -> (RunKey, u8) {
        (self.key.clone(), self.generation)
    }

    /// Takes what was noted of the same run under another name.
    pub(super) fn merge(&mut self, other: Self) {
        self.since = self.since.min(other.since);
        other.marks.into_iter().for_each(|mark| self.mark(mark));
        other.events.into_iter().for_each(|event| self.event(event));
        self.dropped_events = self.dropped_events.saturating_add(other.dropped_events);
        for (sum, n) in self.usage.iter_mut().zip(other.usage) {
            *sum = sum.saturating_add(n);
        }
    }

    pub(super) fn mark(&mut self, mark: Mark) {
        if self.marks.iter().any(|known| known.span == mark.span) {
            return;
        }
        let at = self.marks.partition_point(|known| known.since <= mark.since);
        self.marks.insert(at, mark);
        if self.marks.len() > MAX_MARKS {
            // What is over is asked for no more, as long as all of it was told.
            let over = self.marks.iter().position(|known| known.until.is_some());
            self.marks.remove(over.unwrap_or(0));
        }
    }

    pub(super) fn event(&mut self, event: Advance) {
        if self.events.len() >= super::MAX_EVENTS {
            self.dropped_events = self.dropped_events.saturating_add(1);
            return;
        }
        let place = self.events.partition_point(|known| known.at <= event.at);
        self.events.insert(place, event);
    }

    /// The call that started a sub-agent in this stretch. Of several that are open at once each starts one, the first of
    /// them the first.
    pub(super) fn task_of(&mut self, by: Timestamp, until: Timestamp) -> Option<SpanId> {
        let open = |m: &Mark| {
            matches!(m.of, MarkOf::Task(_)) && m.since <= by && m.until.is_none_or(|end| end >= until)
        };
        let free = self.marks.iter().position(|m| open(m) && !m.taken);
        let at = free.or_else(|| self.marks.iter().rposition(open))?;
        let mark = &mut self.marks[at];
        mark.taken = true;
        Some(mark.span)
    }

    /// The attempt that a session of an agent works on that was open then.
    pub(super) fn attempt_of(&self, agent: &SessionId, by: Timestamp, until: Timestamp) -> Option<SpanId> {
        self.innermost(
            by,
            until,
            |of| matches!(of, MarkOf::Agent(thread) if thread.as_str() == agent.as_str()),
        )
    }

    /// The step that one of this kind was entered in. Of batches, specs and attempts several may be open at once: where it is
    /// not clear which one is meant, what is around all of them.
    pub(super) fn around(&self, kind: StepKind, since: Timestamp) -> Option<SpanId> {
        let open = self.marks.iter().filter(|m| m.since <= since && m.until.is_none_or(|end| end > since));
        let steps = open.filter_map(|m| match &m.of {
            MarkOf::Step(step) => Some((level(step.kind), m.span)),
            _ => None,
        });
        let steps: Vec<(u8, SpanId)> = steps.collect();
        (0..level(kind)).rev().find_map(|outer| {
            let mut same = steps.iter().rev().filter(|(level, _)| *level == outer);
            let newest = same.next()?.1;
            (outer == WORKFLOW || same.next().is_none()).then_some(newest)
        })
    }

    /// The span of a step that was over then.
    pub(super) fn step_until(&self, step: &Step, until: Timestamp) -> Option<SpanId> {
        let same = |m: &&Mark| m.until == Some(until) && m.is_of(step);
        self.marks.iter().rev().find(same).map(|m| m.span)
    }

    /// When the step of a mark was entered anew, which is the end of the entry before.
    pub(super) fn entered_again(&self, mark: usize) -> Option<Timestamp> {
        let MarkOf::Step(step) = &self.marks[mark].of else { return None };
        let again = |m: &&Mark| matches!(&m.of, MarkOf::Step(other) if other.id == step.id);
        self.marks[mark + 1..].iter().find(again).map(|m| m.since)
    }

    /// The newest mark of a kind that began by `by` and was not over at `until`.
    pub(super) fn innermost(
        &self,
        by: Timestamp,
        until: Timestamp,
        of: impl Fn(&MarkOf) -> bool,
    ) -> Option<SpanId> {
        let open = |m: &&Mark| of(&m.of) && m.since <= by && m.until.is_none_or(|end| end >= until);
        self.marks.iter().rev().find(open).map(|m| m.span)
    }
}
