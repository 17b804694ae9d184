//! What is over becomes spans, one trace per run. Notes of the fold wait here until nothing corrects them any more and
//! what they hang on is known; then each is a span once.
//!
//! Ids follow from source, session and the run's id, else its start. A run of a sub-agent belongs to the trace of the run
//! that was open in its parent when it began, below the call that started it.

mod back;
mod lose;
mod tell;

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::build::Parts;
use super::events::Events;
use super::parts;
use super::run::{Advance, Mark, MarkOf, Place, Run};
use super::told::Told;
use super::{Context, Link, Outgoing, SpanId, SpanIds, TraceId, exemplars};
use crate::event::{OrchestrationState, SessionId, SourceId, Timestamp};
use crate::session::Facts;
use crate::session::exemplars::Exemplars;
use crate::session::notes::{Note, RunKey, What};

/// How long something is over before it is told.
pub(super) const SETTLED_MS: i64 = 5_000;
/// Runs of one session that something may still be told of.
const MAX_RUNS: usize = 8;
/// Things of one session that wait to be told; more are counted as lost.
const MAX_WAITING: usize = 20_000;
/// A sub-agent begins a little before or after the record of the call that started it.
const SLACK_MS: i64 = 2_000;
/// Depth of sub-agents.
const MAX_DEPTH: usize = 32;

type Key = (SourceId, SessionId);
pub(super) type Owner = Key;

/// Traces of all sessions that are under way.
#[derive(Debug, Default)]
pub struct Tracer {
    pub(super) traces: HashMap<Key, Trace>,
    /// Orchestrations by the sessions of the agents that work for them.
    employers: HashMap<SessionId, Key>,
    /// Those whose rows changed, each once for as long as it is known.
    dirty: Vec<Key>,
    /// Spans that could not be told, since the last call.
    lost: u64,
    pub(super) exemplars: Arc<Exemplars>,
    /// Nothing is due before; none: nothing is due at all.
    earliest: Option<Timestamp>,
}

/// One session.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Trace {
    parent: Option<SessionId>,
    forked_from: Option<SessionId>,
    pub(super) runs: VecDeque<Run>,
    /// The number of the newest of all runs so far.
    newest: u32,
    /// By when it is due.
    waiting: VecDeque<Waiting>,
    told: Told,
    /// What was told without an end that anybody saw, beside: it may end long after it was forgotten there.
    given_up: Told,
    pub(super) events: Events,
    /// Whether its row changed.
    #[serde(skip)]
    dirty: bool,
    /// Once one of them was needed.
    #[serde(skip)]
    ids: Option<SpanIds>,
}

/// Something that is told when it is due.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Waiting {
    due: Timestamp,
    /// The number of its run.
    run: u32,
    note: Note,
    observed: bool,
    /// What a run's span says, as it stood at its end.
    parts: Option<Box<Parts>>,
}

// === impl Tracer ===

impl Tracer {
    /// Takes what the fold noted about a session, and what of earlier notes no longer holds.
    pub fn take(&mut self, facts: &Facts, noted: &[Note], taken_back: &[Note], now: Timestamp) {
        if noted.is_empty() && taken_back.is_empty() {
            return;
        }
        let key = (facts.source.clone(), facts.session.clone());
        let trace = self.traces.entry(key.clone()).or_default();
        trace.parent.clone_from(&facts.parent);
        if facts.info.forked_from.is_some() {
            trace.forked_from.clone_from(&facts.info.forked_from);
        }
        // What is folded again mostly says the same again, and in the same order.
        let same = noted.iter().zip(taken_back).take_while(|(new, old)| new == old).count();
        let (noted, taken_back) = (&noted[same..], &taken_back[same..]);
        if noted.is_empty() && taken_back.is_empty() {
            return;
        }
        let mut again: Vec<&Note> = taken_back.iter().collect();
        let mut fresh: Vec<&Note> = noted.iter().collect();
        if !again.is_empty() {
            fresh.retain(|note| match again.iter().position(|known| known == note) {
                Some(at) => {
                    again.swap_remove(at);
                    false
                }
                None => true,
            });
        }
        // What is known of steps follows from what came before: where some of it changes, all of it is taken in anew.
        if !taken_back.is_empty() && again.iter().chain(&fresh).any(|note| note.what.is_in_order()) {
            let is_part = |of: &[&Note], note: &Note| {
                note.what.is_in_order() || of.iter().any(|part| std::ptr::eq(*part, note))
            };
            again = taken_back.iter().filter(|note| is_part(&again, note)).collect();
            fresh = noted.iter().filter(|note| is_part(&fresh, note)).collect();
        }
        // First, because what takes its place may be about the same end of the same run; the newest of it before the others.
        for note in again.into_iter().rev() {
            trace.take_back(&key, note);
            trace.events.take_back(note);
        }
        for note in fresh {
            if let What::Agent { thread, .. } = &note.what {
                self.employers.insert(SessionId::from(thread.as_str()), key.clone());
            }
            self.lost += u64::from(!trace.note(&key, facts, note, now));
            self.lost += u64::from(!trace.events.note(&key, note, now));
        }
        if !taken_back.is_empty() {
            trace.forget_unfounded(facts);
        }
        if !std::mem::replace(&mut trace.dirty, true) {
            self.dirty.push(key);
        }
        self.expect(now.plus(SETTLED_MS));
    }

    /// A session leaves memory: what it still has to tell is told with the next [`Self::drain`], and then it is forgotten.
    pub fn forget(&mut self, facts: &Facts, now: Timestamp) {
        self.lose(facts, facts.last_activity, now);
        let key = (facts.source.clone(), facts.session.clone());
        if let Some(trace) = self.traces.get_mut(&key) {
            trace.waiting.iter_mut().for_each(|w| w.due = now);
            trace.events.hurry(now);
            self.changed(key);
            self.expect(now);
        }
    }

    /// There is something to keep of a session.
    pub(super) fn changed(&mut self, key: Key) {
        let known = self.traces.get_mut(&key).is_some_and(|trace| std::mem::replace(&mut trace.dirty, true));
        if !known {
            self.dirty.push(key);
        }
    }

    /// Something may be due at a moment.
    pub(super) fn expect(&mut self, at: Timestamp) {
        self.earliest = Some(self.earliest.map_or(at, |known| known.min(at)));
    }

    /// Whether a row changed since the last call of [`Self::changes`].
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Whether anything is due by now.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.earliest.is_some_and(|at| at <= now)
    }

    /// What is due by now, in the order in which it became so.
    pub fn drain(&mut self, now: Timestamp) -> Vec<Outgoing> {
        if !self.is_due(now) {
            return Vec::new();
        }
        let (mut keys, mut due) = (Vec::new(), 0);
        self.earliest = None;
        for (key, trace) in &self.traces {
            match trace.next_due() {
                Some(at) if at <= now => {
                    keys.push(key.clone());
                    due += trace.waiting.partition_point(|w| w.due <= now) + trace.events.due(now);
                }
                Some(at) => self.earliest = Some(self.earliest.map_or(at, |known| known.min(at))),
                None => {}
            }
        }
        keys.sort_unstable();
        let mut out = Vec::with_capacity(due);
        for key in keys {
            self.drain_one(&key, now, &mut out);
            self.drain_events(&key, now, &mut out);
            if let Some(at) = self.traces.get(&key).and_then(Trace::next_due) {
                self.expect(at);
            }
            self.changed(key);
        }
        // They are large and mostly in order: else they are moved once each.
        if !out.is_sorted_by_key(|(due, _)| *due) {
            out.sort_by_cached_key(|(due, _)| *due);
        }
        out.into_iter().map(|(_, outgoing)| outgoing).collect()
    }

    fn drain_one(&mut self, key: &Key, now: Timestamp, out: &mut Vec<(Timestamp, Outgoing)>) {
        let mut last: Option<(u32, Place)> = None;
        while let Some(waiting) = self.traces.get_mut(key).and_then(|trace| trace.next(now)) {
            // Mostly all of it is of one run.
            let known = last.filter(|(run, _)| *run == waiting.run).map(|(_, place)| place);
            let Some(place) = known.or_else(|| self.place_of(key, waiting.run, 0)) else {
                self.lost += 1;
                continue;
            };
            last = Some((waiting.run, place));
            if self.is_told_by_itself(key, &waiting) {
                continue;
            }
            let links = if matches!(waiting.note.what, What::Run { .. } | What::Orchestration { .. }) {
                self.links_of(key, waiting.run)
            } else {
                Vec::new()
            };
            let Some(trace) = self.traces.get_mut(key) else { return };
            if let Some(outgoing) = trace.tell(key, &waiting, place, links, now) {
                if waiting.observed {
                    let run = waiting.parts.as_ref().is_none_or(|parts| parts.measured);
                    exemplars::take(&mut self.exemplars, &key.0, &waiting.note.what, run, &outgoing);
                }
                out.push((waiting.due, outgoing));
            }
        }
    }

    /// Where a run hangs; settled when it is asked for first.
    pub(super) fn place_of(&mut self, key: &Key, run: u32, depth: usize) -> Option<Place> {
        let trace = self.traces.get(key)?;
        let at = trace.index_of(run)?;
        let found = &trace.runs[at];
        if let Some(place) = found.place {
            return Some(place);
        }
        let (since, parent) = (found.since, trace.parent.clone());
        let run = found.id();
        let own = run_span(key, &run);
        let above = parent.filter(|p| *p != key.1 && depth < MAX_DEPTH).and_then(|parent| {
            let above = (key.0.clone(), parent);
            let (over, mark) = self.traces.get_mut(&above)?.open_at(since)?;
            let over = self.place_of(&above, over, depth + 1)?;
            Some((over.context.trace, mark.unwrap_or(over.context.span)))
        });
        let above = above.or_else(|| {
            let employer = self.employers.get(&key.1).filter(|_| depth < MAX_DEPTH)?.clone();
            let own = |run: &Run| Some((run.number, run.attempt_of(&key.1, since.plus(SLACK_MS), since)?));
            let (over, attempt) = self.traces.get(&employer)?.runs.iter().rev().find_map(own)?;
            Some((self.place_of(&employer, over, depth + 1)?.context.trace, attempt))
        });
        let place = match above {
            Some((trace, parent)) => Place { context: Context { trace, span: own }, parent: Some(parent) },
            None => {
                let trace = TraceId::of((key.0.as_str(), key.1.as_str(), &run));
                Place { context: Context { trace, span: own }, parent: None }
            }
        };
        let trace = self.traces.get_mut(key)?;
        trace.runs[at].place = Some(place);
        Some(place)
    }

    /// The run before, and the one that was forked from.
    fn links_of(&mut self, key: &Key, run: u32) -> Vec<Link> {
        let mut links = Vec::new();
        let Some(trace) = self.traces.get(key) else { return links };
        let Some(at) = trace.index_of(run) else { return links };
        let since = trace.runs[at].since;
        let before = at.checked_sub(1).map(|before| trace.runs[before].number);
        let forked_from = trace.forked_from.clone().filter(|_| before.is_none());
        if let Some(place) = before.and_then(|before| self.place_of(key, before, 0)) {
            links.push(Link { to: place.context, relation: "previous_run".into() });
        }
        if let Some(from) = forked_from {
            let from = (key.0.clone(), from);
            let last = self
                .traces
                .get(&from)
                .and_then(|t| t.runs.iter().rfind(|r| r.since <= since))
                .map(|r| r.number);
            if let Some(place) = last.and_then(|last| self.place_of(&from, last, 0)) {
                links.push(Link { to: place.context, relation: "forked_from".into() });
            }
        }
        links
    }

    /// Spans that could not be told since the last call.
    pub fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// Rows of sessions whose traces changed since the last call, by source and session; `None`: there is nothing to keep.
    pub fn changes(&mut self) -> Vec<(Key, Option<Vec<u8>>)> {
        let dirty = std::mem::take(&mut self.dirty);
        let row = |key: Key| {
            let row = self.traces.get_mut(&key).map(|trace| {
                trace.dirty = false;
                postcard::to_allocvec(trace).expect("a trace is made of types that always serialise")
            });
            (key, row)
        };
        dirty.into_iter().map(row).collect()
    }

    /// Takes a stored row in; false if it cannot be read.
    pub fn restore(&mut self, key: Key, row: &[u8]) -> bool {
        let Ok(trace) = postcard::from_bytes::<Trace>(row) else { return false };
        for mark in trace.runs.iter().flat_map(|run| &run.marks) {
            if let MarkOf::Agent(thread) = &mark.of {
                self.employers.insert(SessionId::from(thread.as_str()), key.clone());
            }
        }
        trace.next_due().into_iter().for_each(|at| self.expect(at));
        self.traces.insert(key, trace);
        true
    }

    /// Sessions that are gone and have nothing to tell any more are forgotten.
    pub fn retain(&mut self, mut lives: impl FnMut(&SourceId, &SessionId) -> bool) {
        let Self { traces, dirty, employers, .. } = self;
        traces.retain(|key, trace| {
            let stays = !trace.waiting.is_empty() || !trace.events.is_empty() || lives(&key.0, &key.1);
            if !stays {
                dirty.push(key.clone());
            }
            stays
        });
        employers.retain(|_, employer| traces.contains_key(employer));
    }
}

fn run_span(key: &Key, run: &(RunKey, u8)) -> SpanId {
    SpanId::of((key.0.as_str(), key.1.as_str(), "run", run))
}

// === impl Trace ===

impl Trace {
    /// The run something belongs to: by its name, else the one that was open then. A run that was never heard of begins.
    /// `carried`: what was open in a run that was lost is still open in the one that follows.
    fn run_of(
        &mut self,
        key: Option<&RunKey>,
        run_since: Option<Timestamp>,
        at: Timestamp,
        carried: bool,
    ) -> Option<usize> {
        let Some(key) = key else {
            return self.runs.iter().rposition(|run| run.since <= at);
        };
        let known = self.runs.iter().rposition(|run| run.key == *key);
        let back_again = |run: &Run| run.given_up && run.until < Some(at);
        match known {
            Some(i) if !back_again(&self.runs[i]) => {
                if let Some(since) =
                    run_since.filter(|since| *since < self.runs[i].since && self.runs[i].generation == 0)
                {
                    self.runs[i].since = since;
                }
                Some(i)
            }
            _ => {
                let generation = known.map_or(0, |i| self.runs[i].generation.saturating_add(1));
                let since = match known {
                    None => run_since.unwrap_or(at),
                    Some(lost) if carried => self.runs[lost].until.unwrap_or(at),
                    Some(_) => at,
                };
                let number = self.next_number();
                self.begin(Run::new(number, key.clone(), generation, since));
                self.runs.iter().rposition(|run| run.key == *key)
            }
        }
    }

    fn ids(&mut self, (source, session): &Key) -> SpanIds {
        *self.ids.get_or_insert_with(|| SpanIds::of(source, session))
    }

    const fn next_number(&mut self) -> u32 {
        self.newest = self.newest.wrapping_add(1);
        self.newest
    }

    fn begin(&mut self, run: Run) {
        let at = self.runs.partition_point(|known| known.since <= run.since);
        self.runs.insert(at, run);
        if self.runs.len() > MAX_RUNS {
            // The oldest that nothing waits for.
            let idle = |run: &Run| !self.waiting.iter().any(|w| w.run == run.number);
            if let Some(i) = self.runs.iter().position(idle) {
                self.runs.remove(i);
            }
        }
    }

    fn next_due(&self) -> Option<Timestamp> {
        self.waiting.front().map(|w| w.due).into_iter().chain(self.events.next_due()).min()
    }

    /// The next thing that is due by now.
    fn next(&mut self, now: Timestamp) -> Option<Waiting> {
        self.waiting.front().filter(|w| w.due <= now)?;
        self.waiting.pop_front()
    }

    fn index_of(&self, run: u32) -> Option<usize> {
        self.runs.iter().rposition(|known| known.number == run)
    }

    /// The open run is known before anything of it is over, so that what hangs on it finds it; true if it was not. One that
    /// nobody declared may turn out to be part of another.
    pub(super) fn know(&mut self, facts: &Facts) -> bool {
        let open = facts.turn.as_ref().filter(|turn| !turn.implicit);
        let Some((Some(request), Some(since))) = open.map(|turn| (turn.request.clone(), turn.started)) else {
            return false;
        };
        let key = RunKey::Named(request);
        let is_new = self.runs.iter().all(|run| run.key != key);
        if is_new {
            let number = self.next_number();
            self.begin(Run::new(number, key, 0, since));
        }
        is_new
    }

    /// Takes a note; false where there is no room for it.
    fn note(&mut self, key: &Key, facts: &Facts, note: &Note, now: Timestamp) -> bool {
        let began = match &note.what {
            What::Run { since, .. }
            | What::Call { since, .. }
            | What::Wait { since, .. }
            | What::Hold { since, .. } => *since,
            _ => note.at,
        };
        // Of these there are events, but no spans.
        if matches!(note.what, What::Asked { .. } | What::PlanReady | What::VerificationFailed) {
            return true;
        }
        let carried = matches!(
            note.what,
            What::PartBegan(_)
                | What::Agent { .. }
                | What::AgentTurn { .. }
                | What::AgentCall { .. }
                | What::Part { .. }
                | What::Held { .. }
                | What::Orchestration { .. }
        );
        let Some(i) = self.run_of(note.run.as_ref(), note.run_since, began, carried) else { return true };
        let ids = self.ids(key);
        let run = &mut self.runs[i];
        let mut parts = None;
        match &note.what {
            What::Declared(by) => {
                self.declared(i, by, now);
                return true;
            }
            // The beginning of the run that it is of may still be read; this one's span is told by then.
            What::Usage(_) if run.is_told_at(note.at) => return true,
            What::Usage(added) => {
                for (sum, n) in run.usage.iter_mut().zip(added) {
                    *sum = sum.saturating_add(*n);
                }
                return true;
            }
            &What::Progress { kind, evidence, high } => {
                run.event(Advance { at: note.at, kind, evidence, high });
                return true;
            }
            What::TaskBegan(call) => {
                run.mark(Mark {
                    span: ids.call(call),
                    of: MarkOf::Task(call.clone()),
                    since: note.at,
                    until: None,
                    taken: false,
                });
                return true;
            }
            What::StepGoesOn(step) => {
                let of = MarkOf::Step(step.clone());
                let span = ids.step_on(step, note.at);
                run.mark(Mark { span, of, since: note.at, until: None, taken: false });
                return true;
            }
            // Chosen between two runs: it goes on in the next one.
            What::StepBegan(_) if run.until.is_some_and(|until| until <= note.at) => return true,
            What::StepBegan(step) => {
                run.mark(Mark {
                    span: ids.step(step, note.at),
                    of: MarkOf::Step(step.clone()),
                    since: note.at,
                    until: None,
                    taken: false,
                });
                // Told late, of a run that is over.
                if let Some(end) = run.until {
                    self.close_steps(i, end, now);
                }
            }
            What::Step { step, .. } => {
                let open = |m: &Mark| m.until.is_none() && m.is_of(step);
                // Left and entered again in one moment: what is over is the entry before.
                let before = run.marks.iter().rposition(|m| open(m) && m.since < note.at);
                match before.or_else(|| run.marks.iter().rposition(open)) {
                    Some(at) => run.marks[at].until = Some(note.at),
                    // Nobody saw it begin.
                    None => return true,
                }
            }
            What::Call { call, .. } => {
                let own = |m: &&mut Mark| matches!(&m.of, MarkOf::Task(c) if c == call);
                if let Some(mark) = run.marks.iter_mut().find(own) {
                    mark.until = Some(note.at);
                }
            }
            What::Run { end, .. } => {
                if run.until.is_some() {
                    // How it ended was told, or will be.
                    return true;
                }
                run.until = Some(note.at);
                parts = Some(Box::new(Parts::of(facts)));
                let observed = end.outcome.is_observed();
                self.close_steps(i, note.at, now);
                return self.wait(i, note.clone(), observed, parts, now);
            }
            What::Agent { part, thread } => {
                run.mark(Mark {
                    span: parts::span_of(key, &run.id(), part),
                    of: MarkOf::Agent(thread.clone()),
                    since: note.at,
                    until: None,
                    taken: false,
                });
                return true;
            }
            What::Part { part, .. } => {
                let own = parts::span_of(key, &run.id(), part);
                run.marks.iter_mut().filter(|m| m.span == own).for_each(|m| m.until = Some(note.at));
            }
            What::Orchestration { state, .. } => {
                if run.until.is_some() {
                    return true;
                }
                run.until = Some(note.at);
                let observed = *state != OrchestrationState::Unknown;
                return self.wait(i, note.clone(), observed, Some(Box::new(Parts::of(facts))), now);
            }
            What::PartBegan(_) if run.until.is_some() => return true,
            What::PartBegan(_) | What::Held { .. } => {}
            // Held up by how it ended: no time of the run passed in waiting.
            What::Hold { since, .. } if *since >= note.at => return true,
            What::Wait { .. } | What::Hold { .. } => {}
            _ => {}
        }
        self.wait(i, note.clone(), true, parts.take(), now)
    }

    /// A step that nothing ended is over with its run.
    fn close_steps(&mut self, at: usize, end: Timestamp, now: Timestamp) {
        let run = &mut self.runs[at];
        let (number, key, since) = (run.number, run.key.clone(), run.since);
        // One that was entered with the end itself had no time in it, unless it was announced already.
        let idle =
            |w: &Waiting| matches!(w.note.what, What::StepBegan(_)) && w.note.at >= end && w.run == number;
        for began in self.waiting.iter().filter(|w| idle(w)).map(|w| w.note.at) {
            let own =
                |m: &&mut Mark| m.until.is_none() && m.since == began && matches!(m.of, MarkOf::Step(_));
            run.marks.iter_mut().filter(own).for_each(Mark::put_aside);
        }
        let run = &mut self.runs[at];
        let mut steps = Vec::new();
        for i in 0..run.marks.len() {
            if run.marks[i].until.is_some() {
                continue;
            }
            let end = run.entered_again(i).map_or(end, |again| again.min(end));
            let mark = &mut run.marks[i];
            mark.until = Some(end);
            if let MarkOf::Step(step) = &mark.of {
                let outcome = crate::event::StepOutcome::Failed;
                steps.push((end, What::Step { step: step.clone(), since: Some(mark.since), outcome }));
            }
        }
        for (end, what) in steps {
            let note = Note { run: Some(key.clone()), run_since: Some(since), at: end, what };
            self.wait(at, note, false, None, now);
        }
    }

    /// What was noted of a run that nobody had declared belongs to the one that was declared then.
    fn declared(&mut self, at: usize, by: &RunKey, now: Timestamp) {
        let Some(mut run) = self.runs.remove(at) else { return };
        match self.runs.iter_mut().find(|known| known.key == *by) {
            Some(known) => {
                self.waiting.iter_mut().filter(|w| w.run == run.number).for_each(|w| w.run = known.number);
                known.merge(run);
            }
            None => {
                (run.key, run.generation) = (by.clone(), 0);
                self.begin(run);
            }
        }
        // It may have been over before this was known of it.
        let over = self.runs.iter().rposition(|known| known.key == *by && known.until.is_some());
        if let Some((at, end)) = over.and_then(|at| Some((at, self.runs[at].until?))) {
            self.close_steps(at, end, now);
        }
    }

    fn wait(
        &mut self,
        run: usize,
        note: Note,
        observed: bool,
        parts: Option<Box<Parts>>,
        now: Timestamp,
    ) -> bool {
        if self.waiting.len() >= MAX_WAITING {
            return false;
        }
        let due = note.at.max(now).plus(SETTLED_MS);
        let run = self.runs[run].number;
        // Mostly it is due last.
        let last = self.waiting.back().is_none_or(|last| last.due <= due);
        let at = if last { self.waiting.len() } else { self.waiting.partition_point(|w| w.due <= due) };
        self.waiting.insert(at, Waiting { due, run, note, observed, parts });
        true
    }

    /// The run that was open at a moment, and the call in it that may have started another session then.
    fn open_at(&mut self, at: Timestamp) -> Option<(u32, Option<SpanId>)> {
        let run = self.runs.iter_mut().rfind(|run| run.since <= at.plus(SLACK_MS))?;
        let task = run.task_of(at, at).or_else(|| run.task_of(at.plus(SLACK_MS), at.plus(-SLACK_MS)));
        let step = || run.innermost(at, at, |of| matches!(of, MarkOf::Step(_)));
        Some((run.number, task.or_else(step)))
    }
}
