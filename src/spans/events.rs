//! Events of high level as log records: what somebody may want to be told of at once. What facts say comes from the notes of
//! the fold, after the same time in which they may be taken back; what is derived is looked at once a second, and told
//! once per episode.
//!
//! What was told lies in the row of the session's trace, which is written together with what leaves: a restart repeats
//! nothing. That a step began is told by the tracer, which knows its span.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::build::step_attributes;
use super::parts;
use super::told::Told;
use super::tracer::{Owner, SETTLED_MS, Tracer};
use super::{Context, Key, LogRecord, Outgoing, Value};
use crate::event::reduce::stable_hash;
use crate::event::{EndOutcome, ProgressKind, Timestamp};
use crate::session::notes::{Note, Part, RunKey, What, key_of};
use crate::session::{Derived, Facts, State};

/// Name, what tells the fact from others, attributes, whether somebody should look.
type Said = (&'static str, String, Vec<(Key, Value)>, bool);

/// Events of one session that wait to be told.
const MAX_WAITING: usize = 1_000;

/// Events of one session.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Events {
    /// The state that was told last, and the moment that was given for it.
    state: Option<(String, Timestamp)>,
    /// How new its facts were at the last look.
    heard: Option<Timestamp>,
    /// By when it is due.
    waiting: VecDeque<Waiting>,
    told: Told,
}

/// An event that is told when it is due.
#[derive(Debug, Serialize, Deserialize)]
struct Waiting {
    due: Timestamp,
    run: Option<RunKey>,
    /// What it is from; `None`: from a look.
    note: Option<Note>,
    record: LogRecord,
}

// === impl Waiting ===

impl Waiting {
    fn is_of(&self, note: &Note) -> bool {
        // Its time tells most of them apart.
        self.record.time == note.at && self.note.as_ref() == Some(note)
    }
}

// === impl Events ===

impl Events {
    /// Takes a note that may be an event; false where there is no room for it.
    pub(super) fn note(&mut self, owner: &Owner, note: &Note, now: Timestamp) -> bool {
        let Some((name, fact, more, warning)) = of_note(note) else { return true };
        // One record may tell of several that look the same; they are told apart by their number.
        let alike = self.waiting.iter().filter(|w| w.is_of(note)).count();
        let mut record = record(owner, name, note.at, more);
        record.id = stable_hash((owner.0.as_str(), owner.1.as_str(), name, fact, alike));
        record.warning = warning;
        self.wait(Waiting {
            due: note.at.max(now).plus(SETTLED_MS),
            run: note.run.clone(),
            note: Some(note.clone()),
            record,
        })
    }

    /// A note no longer holds.
    pub(super) fn take_back(&mut self, note: &Note) {
        if let Some(at) = self.waiting.iter().rposition(|w| w.is_of(note)) {
            self.waiting.remove(at);
        }
    }

    /// When the first of them is due.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.waiting.front().map(|w| w.due)
    }

    /// How many are due by now.
    pub(super) fn due(&self, now: Timestamp) -> usize {
        self.waiting.partition_point(|w| w.due <= now)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Everything is due.
    pub(super) fn hurry(&mut self, now: Timestamp) {
        self.waiting.iter_mut().for_each(|w| w.due = now);
    }

    fn wait(&mut self, waiting: Waiting) -> bool {
        let fits = self.waiting.len() < MAX_WAITING;
        if fits {
            let at = self.waiting.partition_point(|w| w.due <= waiting.due);
            self.waiting.insert(at, waiting);
        }
        fits
    }

    /// Whether its state may have changed since the last look: by a new fact, or by time alone.
    fn wants_a_look(&self, facts: &Facts) -> bool {
        let rests = |state: &str| {
            let ends = [State::Completed, State::Failed, State::Cancelled, State::Unknown];
            ends.iter().any(|end| end.as_str() == state)
        };
        facts.turn.is_some()
            || self.heard != Some(facts.last_heard())
            || self.state.as_ref().is_none_or(|(state, _)| !rests(state))
    }

    /// Looks at the state. Of what held before `epoch` nothing is told. True where there is something to keep.
    fn see(
        &mut self,
        owner: &Owner,
        facts: &Facts,
        derived: &Derived,
        epoch: Timestamp,
        now: Timestamp,
    ) -> bool {
        self.heard = Some(facts.last_heard());
        let state = derived.state.as_str();
        if self.state.as_ref().is_some_and(|(known, _)| known == state) {
            return false;
        }
        let before = self.state.as_ref().map(|(_, time)| *time);
        // Back in a state that began before the last one: it holds again since about now.
        let time = if before.is_some_and(|before| derived.since <= before) { now } else { derived.since };
        self.state = Some((state.to_owned(), time));
        if before.is_none() && derived.since < epoch {
            return true;
        }
        let ended = || facts.turn_end.as_ref().and_then(|end| key_of(end.request.clone(), end.started));
        let open = facts.turn.as_ref().and_then(|turn| key_of(turn.request.clone(), turn.started));
        let run = open.or_else(ended);
        let of_state = match derived.state {
            State::Stalled => Some(("agent_session.stalled", true)),
            State::Blocked => Some(("agent_session.blocked", true)),
            State::Failed => Some(("agent_session.failed", true)),
            State::Completed => Some(("agent_session.completed", false)),
            State::Cancelled => Some(("agent_session.cancelled", false)),
            _ => None,
        };
        for (name, warning) in [Some(("agent_session.state_changed", false)), of_state].into_iter().flatten()
        {
            let more = vec![(Key::State, state.into()), (Key::Reason, derived.reason.as_str().into())];
            let mut record = record(owner, name, time, more);
            let episode = (state, derived.since.as_millis(), before.map(Timestamp::as_millis));
            record.id = stable_hash((owner.0.as_str(), owner.1.as_str(), name, episode));
            record.warning = warning;
            // Without room it is lost like any other.
            self.wait(Waiting { due: now, run: run.clone(), note: None, record });
        }
        true
    }

    /// What is due by now and was not told before.
    fn drain(&mut self, now: Timestamp) -> Vec<Waiting> {
        let due = self.waiting.partition_point(|w| w.due <= now);
        let mut news = Vec::new();
        for waiting in self.waiting.drain(..due) {
            if self.told.tell(waiting.record.id) {
                news.push(waiting);
            }
        }
        news
    }
}

// === impl Tracer ===

impl Tracer {
    /// Whether a session's state may have changed since it was last seen.
    pub fn wants_a_look(&self, facts: &Facts) -> bool {
        let key = (facts.source.clone(), facts.session.clone());
        self.traces.get(&key).is_none_or(|trace| trace.events.wants_a_look(facts))
    }

    /// Sees a session's state, and tells what is new. Of what held before `epoch` nothing is told.
    pub fn see(&mut self, facts: &Facts, derived: &Derived, epoch: Timestamp, now: Timestamp) {
        let key = (facts.source.clone(), facts.session.clone());
        let trace = self.traces.entry(key.clone()).or_default();
        let is_news = trace.events.see(&key, facts, derived, epoch, now);
        if trace.know(facts) || is_news {
            self.expect(now);
            self.changed(key);
        }
    }

    /// Events that are due, with the spans of their runs.
    pub(super) fn drain_events(&mut self, key: &Owner, now: Timestamp, out: &mut Vec<(Timestamp, Outgoing)>) {
        let Some(trace) =
            self.traces.get_mut(key).filter(|t| t.events.next_due().is_some_and(|at| at <= now))
        else {
            return;
        };
        let due = trace.events.drain(now);
        for Waiting { due, run, note, mut record } in due {
            record.context = run.and_then(|run| self.context_of(key, run, note.as_ref(), now));
            record.observed = now;
            out.push((due, Outgoing::Log(record)));
        }
    }

    /// The span that an event is about, else the one of its run. Of a run that has just begun it is not settled what it hangs
    /// on: what tells may not have been read yet.
    fn context_of(
        &mut self,
        owner: &Owner,
        key: RunKey,
        note: Option<&Note>,
        now: Timestamp,
    ) -> Option<Context> {
        let runs = &self.traces.get(owner)?.runs;
        let run = runs.iter().rfind(|run| run.key == key)?;
        if run.place.is_none() && now.since(run.since) < SETTLED_MS {
            return None;
        }
        let part = note.and_then(|note| match &note.what {
            What::Part { part, .. } => Some(parts::span_of(owner, &run.id(), part)),
            What::Step { step, .. } => run.step_until(step, note.at),
            _ => None,
        });
        let run = run.number;
        let context = self.place_of(owner, run, 0)?.context;
        Some(part.map_or(context, |span| Context { span, ..context }))
    }
}

fn record(owner: &Owner, name: &str, time: Timestamp, more: Vec<(Key, Value)>) -> LogRecord {
    let mut attributes = Vec::with_capacity(2 + more.len());
    attributes.push((Key::ConversationId, (&owner.1.0).into()));
    attributes.push((Key::Source, (&owner.0.0).into()));
    attributes.extend(more);
    LogRecord {
        name: name.to_owned(),
        time,
        observed: time,
        context: None,
        attributes,
        id: 0,
        warning: false,
    }
}

/// Name, what tells the fact from others, attributes, whether somebody should look; `None`: it is none.
fn of_note(note: &Note) -> Option<Said> {
    let at = || note.at.as_millis().to_string();
    Some(match &note.what {
        What::Asked { action, kind } => {
            let more = vec![(Key::WaitReason, kind.as_str().into())];
            ("agent_session.user.action_required", action.as_str().to_owned(), more, true)
        }
        What::Wait { action, kind, resolution, .. } => {
            let more =
                vec![(Key::WaitReason, kind.as_str().into()), (Key::Resolution, resolution.as_str().into())];
            ("agent_session.user.action_resolved", action.as_str().to_owned(), more, false)
        }
        What::Step { step, outcome, .. } => {
            let mut more = step_attributes(step);
            more.push((Key::Outcome, outcome.as_str().into()));
            ("agent_session.step.completed", format!("{} {}", step.id.as_str(), at()), more, false)
        }
        What::Part { part, end, .. } if end.outcome != EndOutcome::Unknown => {
            let mut more = parts::attributes_of(part);
            more.push((Key::Outcome, end.outcome.as_str().into()));
            let warning = end.outcome == EndOutcome::Failed && matches!(part, Part::Spec { .. });
            ("agent_session.step.completed", format!("{part:?} {}", at()), more, warning)
        }
        What::PlanReady => ("agent_session.plan.ready", at(), Vec::new(), false),
        What::VerificationFailed => ("agent_session.verification.failed", at(), Vec::new(), true),
        What::Progress { kind: ProgressKind::TaskCompleted, evidence, .. } => {
            let more = vec![(Key::Evidence, evidence.as_str().into())];
            ("agent_session.task.completed", at(), more, false)
        }
        _ => return None,
    })
}
