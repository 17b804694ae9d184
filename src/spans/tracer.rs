//! What is over becomes spans, one trace per run. Notes of the fold wait here until nothing corrects them any more and
//! what they hang on is known; then each is a span once.
//!
//! Ids follow from source, session and the run's id, else its start. A run of a sub-agent belongs to the trace of the run
//! that was open in its parent when it began, below the call that started it.

use std::collections::{HashMap, HashSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::build::{self, Parts};
use super::events::Events;
use super::{Context, Link, Outgoing, SpanEvent, SpanId, TraceId};
use crate::event::reduce::stable_hash;
use crate::event::{Id, SessionId, SourceId, Timestamp};
use crate::session::Facts;
use crate::session::facts::OpenCall;
use crate::session::notes::{Ended, Note, RunKey, RunOutcome, What, key_of};

/// How long something is over before it is told.
pub(super) const SETTLED_MS: i64 = 5_000;
/// Runs of one session that something may still be told of.
const MAX_RUNS: usize = 8;
/// Steps and calls of one run that others may hang on.
const MAX_MARKS: usize = 128;
/// Ids of a session that were told and must not be told again with other content.
const MAX_TOLD: usize = 512;
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
    pub(super) dirty: HashSet<Key>,
    /// Spans that could not be told, since the last call.
    lost: u64,
}

/// One session.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Trace {
    parent: Option<SessionId>,
    forked_from: Option<SessionId>,
    pub(super) runs: VecDeque<Run>,
    waiting: Vec<Waiting>,
    told: VecDeque<u64>,
    pub(super) events: Events,
}

/// One run of a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) key: RunKey,
    /// How often it came back after it was lost.
    generation: u8,
    since: Timestamp,
    until: Option<Timestamp>,
    /// It ended only as far as we know: what follows is another run.
    given_up: bool,
    /// Known once it was needed: then its parent is known, too.
    place: Option<Place>,
    /// Steps, and calls that may have started others: what they are, since when, until when.
    marks: Vec<Mark>,
    events: Vec<(Timestamp, SpanEvent)>,
    dropped_events: u32,
    usage: [u64; 5],
}

/// Where a run hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) context: Context,
    parent: Option<SpanId>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Mark {
    span: SpanId,
    of: MarkOf,
    since: Timestamp,
    until: Option<Timestamp>,
    /// It is the call of a sub-agent that was found.
    taken: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum MarkOf {
    Step(crate::event::Step),
    Task(Id),
}

/// Something that is told when it is due.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Waiting {
    due: Timestamp,
    run: (RunKey, u8),
    note: Note,
    observed: bool,
    /// What a run's span says, as it stood at its end.
    parts: Option<Parts>,
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
        // What is folded again mostly says the same again.
        let mut again: Vec<&Note> = taken_back.iter().collect();
        for note in noted {
            if let Some(at) = again.iter().position(|known| *known == note) {
                again.swap_remove(at);
            } else {
                self.lost += u64::from(!trace.note(&key, facts, note, now));
                self.lost += u64::from(!trace.events.note(&key, note, now));
            }
        }
        for note in again {
            trace.take_back(&key, note);
            trace.events.take_back(note);
        }
        self.dirty.insert(key);
    }

    /// Nothing is known of a session any more: what is open in it ended, as far as anybody saw, with its last activity.
    pub fn lose(&mut self, facts: &Facts, now: Timestamp) {
        let key = (facts.source.clone(), facts.session.clone());
        let (Some(turn), Some(end)) = (&facts.turn, facts.last_activity.or(facts.last_seen)) else { return };
        let Some(run) = key_of(turn.request.clone(), turn.started) else { return };
        let trace = self.traces.entry(key.clone()).or_default();
        let Some(at) = trace.run_of(Some(&run), turn.started, end) else { return };
        if trace.runs[at].until.is_some() {
            return;
        }
        let note =
            |at: Timestamp, what: What| Note { run: Some(run.clone()), run_since: turn.started, at, what };
        let unfinished = |call: &OpenCall| {
            let since = call.since.filter(|since| *since <= end)?;
            Some(What::Call {
                call: call.start.call.clone(),
                tool: call.start.tool.clone(),
                class: call.start.class,
                since,
                outcome: crate::event::CallOutcome::Unknown,
                exit_code: None,
            })
        };
        let mut open: Vec<What> = facts.open_calls.iter().filter_map(unfinished).collect();
        for action in facts.actions.iter().filter(|a| a.since <= end) {
            open.push(What::Wait {
                action: action.action.clone(),
                kind: action.kind,
                since: action.since,
                resolution: crate::event::Resolution::Unknown,
                call: action.call.clone().filter(|c| facts.open_calls.iter().any(|o| o.start.call == *c)),
            });
        }
        if let Some(blocked) = facts.blocked.filter(|b| b.since <= end) {
            open.push(What::Hold { reason: blocked.reason, since: blocked.since, attempt: blocked.attempt });
        }
        for what in open {
            trace.wait(at, note(end, what), false, None, now);
        }
        let since = trace.runs[at].since;
        let outcome = RunOutcome { outcome: Ended::Unseen, error: None };
        trace.note(
            &key,
            facts,
            &note(end.max(since), What::Run { since, trigger: turn.trigger, end: outcome }),
            now,
        );
        if let Some(at) = trace.runs.iter().rposition(|known| known.key == run) {
            trace.runs[at].given_up = true;
        }
        self.dirty.insert(key);
    }

    /// A session leaves memory: what it still has to tell is told with the next [`Self::drain`], and then it is forgotten.
    pub fn forget(&mut self, facts: &Facts, now: Timestamp) {
        self.lose(facts, now);
        let key = (facts.source.clone(), facts.session.clone());
        if let Some(trace) = self.traces.get_mut(&key) {
            trace.waiting.iter_mut().for_each(|w| w.due = now);
            trace.events.hurry(now);
            self.dirty.insert(key);
        }
    }

    /// Whether a row changed since the last call of [`Self::changes`].
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Whether anything is due by now.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.traces.values().any(|trace| trace.is_due(now))
    }

    /// What is due by now, in the order in which it became so.
    pub fn drain(&mut self, now: Timestamp) -> Vec<Outgoing> {
        let mut keys: Vec<Key> =
            self.traces.iter().filter(|(_, t)| t.is_due(now)).map(|(k, _)| k.clone()).collect();
        keys.sort();
        let mut out = Vec::new();
        for key in keys {
            self.drain_one(&key, now, &mut out);
            self.drain_events(&key, now, &mut out);
            self.dirty.insert(key);
        }
        out.sort_by_key(|(due, _)| *due);
        out.into_iter().map(|(_, outgoing)| outgoing).collect()
    }

    fn drain_one(&mut self, key: &Key, now: Timestamp, out: &mut Vec<(Timestamp, Outgoing)>) {
        let Some(trace) = self.traces.get_mut(key) else { return };
        let (due, later): (Vec<_>, _) =
            std::mem::take(&mut trace.waiting).into_iter().partition(|w| w.due <= now);
        trace.waiting = later;
        for waiting in due {
            let Some(place) = self.place_of(key, &waiting.run, 0) else {
                self.lost += 1;
                continue;
            };
            let links = if matches!(waiting.note.what, What::Run { .. }) {
                self.links_of(key, &waiting.run)
            } else {
                Vec::new()
            };
            let Some(trace) = self.traces.get_mut(key) else { return };
            if let Some(outgoing) = trace.tell(key, &waiting, place, links, now) {
                out.push((waiting.due, outgoing));
            }
        }
    }

    /// Where a run hangs; settled when it is asked for first.
    pub(super) fn place_of(&mut self, key: &Key, run: &(RunKey, u8), depth: usize) -> Option<Place> {
        let trace = self.traces.get(key)?;
        let at = trace.index_of(run)?;
        let found = &trace.runs[at];
        if let Some(place) = found.place {
            return Some(place);
        }
        let (since, parent) = (found.since, trace.parent.clone());
        let own = run_span(key, run);
        let above = parent.filter(|p| *p != key.1 && depth < MAX_DEPTH).and_then(|parent| {
            let above = (key.0.clone(), parent);
            let (over, mark) = self.traces.get_mut(&above)?.open_at(since)?;
            let over = self.place_of(&above, &over, depth + 1)?;
            Some((over.context.trace, mark.unwrap_or(over.context.span)))
        });
        let place = match above {
            Some((trace, parent)) => Place { context: Context { trace, span: own }, parent: Some(parent) },
            None => {
                let trace = TraceId::of((key.0.as_str(), key.1.as_str(), run));
                Place { context: Context { trace, span: own }, parent: None }
            }
        };
        let trace = self.traces.get_mut(key)?;
        trace.runs[at].place = Some(place);
        Some(place)
    }

    /// The run before, and the one that was forked from.
    fn links_of(&mut self, key: &Key, run: &(RunKey, u8)) -> Vec<Link> {
        let mut links = Vec::new();
        let Some(trace) = self.traces.get(key) else { return links };
        let Some(at) = trace.index_of(run) else { return links };
        let since = trace.runs[at].since;
        let before = at.checked_sub(1).map(|before| trace.runs[before].id());
        let forked_from = trace.forked_from.clone().filter(|_| before.is_none());
        if let Some(place) = before.and_then(|before| self.place_of(key, &before, 0)) {
            links.push(Link { to: place.context, relation: "previous_run".to_owned() });
        }
        if let Some(from) = forked_from {
            let from = (key.0.clone(), from);
            let last =
                self.traces.get(&from).and_then(|t| t.runs.iter().rfind(|r| r.since <= since)).map(Run::id);
            if let Some(place) = last.and_then(|last| self.place_of(&from, &last, 0)) {
                links.push(Link { to: place.context, relation: "forked_from".to_owned() });
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
            let row = self.traces.get(&key).map(|trace| {
                postcard::to_allocvec(trace).expect("a trace is made of types that always serialise")
            });
            (key, row)
        };
        dirty.into_iter().map(row).collect()
    }

    /// Takes a stored row in; false if it cannot be read.
    pub fn restore(&mut self, key: Key, row: &[u8]) -> bool {
        let Ok(trace) = postcard::from_bytes(row) else { return false };
        self.traces.insert(key, trace);
        true
    }

    /// Sessions that are gone and have nothing to tell any more are forgotten.
    pub fn retain(&mut self, mut lives: impl FnMut(&SourceId, &SessionId) -> bool) {
        let Self { traces, dirty, .. } = self;
        traces.retain(|key, trace| {
            let stays = !trace.waiting.is_empty() || !trace.events.is_empty() || lives(&key.0, &key.1);
            if !stays {
                dirty.insert(key.clone());
            }
            stays
        });
    }
}

fn run_span(key: &Key, run: &(RunKey, u8)) -> SpanId {
    SpanId::of((key.0.as_str(), key.1.as_str(), "run", run))
}

fn step_span(key: &Key, step: &crate::event::Step, since: Timestamp) -> SpanId {
    SpanId::of((
        key.0.as_str(),
        key.1.as_str(),
        "step",
        &step.id,
        step.entry.map_or(since.as_millis(), i64::from),
    ))
}

fn call_span(key: &Key, call: &Id) -> SpanId {
    SpanId::of((key.0.as_str(), key.1.as_str(), "call", call))
}

// === impl Trace ===

impl Trace {
    /// The run something belongs to: by its name, else the one that was open then. A run that was never heard of begins.
    fn run_of(&mut self, key: Option<&RunKey>, run_since: Option<Timestamp>, at: Timestamp) -> Option<usize> {
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
                let since = if generation == 0 { run_since.unwrap_or(at) } else { at };
                self.begin(Run::new(key.clone(), generation, since));
                self.runs.iter().rposition(|run| run.key == *key)
            }
        }
    }

    fn begin(&mut self, run: Run) {
        let at = self.runs.partition_point(|known| known.since <= run.since);
        self.runs.insert(at, run);
        if self.runs.len() > MAX_RUNS {
            // The oldest that nothing waits for.
            let idle = |run: &Run| !self.waiting.iter().any(|w| w.run == run.id());
            if let Some(i) = self.runs.iter().position(idle) {
                self.runs.remove(i);
            }
        }
    }

    fn is_due(&self, now: Timestamp) -> bool {
        self.waiting.iter().any(|w| w.due <= now) || self.events.is_due(now)
    }

    fn index_of(&self, run: &(RunKey, u8)) -> Option<usize> {
        self.runs.iter().rposition(|known| known.key == run.0 && known.generation == run.1)
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
        let Some(i) = self.run_of(note.run.as_ref(), note.run_since, began) else { return true };
        let run = &mut self.runs[i];
        let mut parts = None;
        match &note.what {
            What::Usage(added) => {
                for (sum, n) in run.usage.iter_mut().zip(added) {
                    *sum = sum.saturating_add(*n);
                }
                return true;
            }
            What::Progress { kind, evidence, high } => {
                run.event(note.at, build::progress(note.at, *kind, *evidence, *high));
                return true;
            }
            What::TaskBegan(call) => {
                run.mark(Mark {
                    span: call_span(key, call),
                    of: MarkOf::Task(call.clone()),
                    since: note.at,
                    until: None,
                    taken: false,
                });
                return true;
            }
            What::StepBegan(step) => {
                run.mark(Mark {
                    span: step_span(key, step, note.at),
                    of: MarkOf::Step(step.clone()),
                    since: note.at,
                    until: None,
                    taken: false,
                });
            }
            What::Step { step, .. } => {
                let open =
                    |m: &&mut Mark| m.until.is_none() && matches!(&m.of, MarkOf::Step(s) if s.id == step.id);
                match run.marks.iter_mut().rev().find(open) {
                    Some(mark) => mark.until = Some(note.at),
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
                parts = Some(Parts::of(facts));
                let observed = end.outcome.is_observed();
                let open: Vec<Mark> = run.marks.iter().filter(|m| m.until.is_none()).cloned().collect();
                for mark in &mut run.marks {
                    mark.until = mark.until.or(Some(note.at));
                }
                // A step that nothing ended is over with its run.
                for mark in open {
                    if let MarkOf::Step(step) = mark.of {
                        let outcome = crate::event::StepOutcome::Failed;
                        let what = What::Step { step, since: Some(mark.since), outcome };
                        self.wait(i, Note { what, ..note.clone() }, false, None, now);
                    }
                }
                return self.wait(i, note.clone(), observed, parts, now);
            }
            _ => {}
        }
        self.wait(i, note.clone(), true, parts.take(), now)
    }

    fn wait(&mut self, run: usize, note: Note, observed: bool, parts: Option<Parts>, now: Timestamp) -> bool {
        if self.waiting.len() >= MAX_WAITING {
            return false;
        }
        let due = note.at.max(now).plus(SETTLED_MS);
        let run = self.runs[run].id();
        self.waiting.push(Waiting { due, run, note, observed, parts });
        true
    }

    /// A note no longer holds.
    fn take_back(&mut self, key: &Key, note: &Note) {
        if let Some(at) = self.waiting.iter().position(|w| w.note == *note) {
            self.waiting.swap_remove(at);
        }
        let Some(i) = self.runs.iter().rposition(|run| note.run.as_ref().is_none_or(|key| run.key == *key))
        else {
            return;
        };
        let run = &mut self.runs[i];
        match &note.what {
            What::Usage(added) => {
                for (sum, n) in run.usage.iter_mut().zip(added) {
                    *sum = sum.saturating_sub(*n);
                }
            }
            What::Progress { kind, evidence, high } => {
                let event = build::progress(note.at, *kind, *evidence, *high);
                match run.events.iter().position(|(_, known)| *known == event) {
                    Some(at) => drop(run.events.remove(at)),
                    None => run.dropped_events = run.dropped_events.saturating_sub(1),
                }
            }
            What::Run { .. } if run.until == Some(note.at) => run.until = None,
            What::TaskBegan(call) => {
                let span = call_span(key, call);
                run.marks.retain(|m| m.span != span);
            }
            What::StepBegan(step) => {
                let span = step_span(key, step, note.at);
                run.marks.retain(|m| m.span != span);
            }
            What::Step { step, .. } => {
                let same = |m: &&mut Mark| {
                    m.until == Some(note.at) && matches!(&m.of, MarkOf::Step(s) if s.id == step.id)
                };
                if let Some(mark) = run.marks.iter_mut().find(same) {
                    mark.until = None;
                }
            }
            _ => {}
        }
    }

    /// The run that was open at a moment, and the call in it that may have started another session then.
    fn open_at(&mut self, at: Timestamp) -> Option<((RunKey, u8), Option<SpanId>)> {
        let run = self.runs.iter_mut().rfind(|run| run.since <= at.plus(SLACK_MS))?;
        let task = run.task_of(at, at).or_else(|| run.task_of(at.plus(SLACK_MS), at.plus(-SLACK_MS)));
        let step = || run.innermost(at, at, |of| matches!(of, MarkOf::Step(_)));
        Some((run.id(), task.or_else(step)))
    }

    /// Makes what is due a span or a record; `None` where it was told before.
    fn tell(
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
            What::Step { step, since, outcome } => {
                let same =
                    |m: &&Mark| m.until == Some(at) && matches!(&m.of, MarkOf::Step(s) if s.id == step.id);
                let since = run.marks.iter().rev().find(same).map(|m| m.since).or(*since)?;
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
            _ => return None,
        };
        let told = stable_hash(span.context.span.0);
        if self.told.contains(&told) {
            return None;
        }
        self.told.push_back(told);
        if self.told.len() > MAX_TOLD {
            self.told.pop_front();
        }
        Some(Outgoing::Span(if waiting.observed { span } else { build::unobserved(span) }))
    }
}

// === impl Run ===

impl Run {
    fn new(key: RunKey, generation: u8, since: Timestamp) -> Self {
        Self {
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

    pub(super) fn id(&self) -> (RunKey, u8) {
        (self.key.clone(), self.generation)
    }

    fn mark(&mut self, mark: Mark) {
        if self.marks.iter().any(|known| known.span == mark.span) {
            return;
        }
        let at = self.marks.partition_point(|known| known.since <= mark.since);
        self.marks.insert(at, mark);
        if self.marks.len() > MAX_MARKS {
            self.marks.remove(0);
        }
    }

    fn event(&mut self, at: Timestamp, event: SpanEvent) {
        if self.events.len() >= super::MAX_EVENTS {
            self.dropped_events = self.dropped_events.saturating_add(1);
            return;
        }
        let place = self.events.partition_point(|(known, _)| *known <= at);
        self.events.insert(place, (at, event));
    }

    /// The call that started a sub-agent in this stretch. Of several that are open at once each starts one, the first of
    /// them the first.
    fn task_of(&mut self, by: Timestamp, until: Timestamp) -> Option<SpanId> {
        let open = |m: &Mark| {
            matches!(m.of, MarkOf::Task(_)) && m.since <= by && m.until.is_none_or(|end| end >= until)
        };
        let free = self.marks.iter().position(|m| open(m) && !m.taken);
        let at = free.or_else(|| self.marks.iter().rposition(open))?;
        let mark = &mut self.marks[at];
        mark.taken = true;
        Some(mark.span)
    }

    /// The newest mark of a kind that began by `by` and was not over at `until`.
    fn innermost(&self, by: Timestamp, until: Timestamp, of: impl Fn(&MarkOf) -> bool) -> Option<SpanId> {
        let open = |m: &&Mark| of(&m.of) && m.since <= by && m.until.is_none_or(|end| end >= until);
        self.marks.iter().rev().find(open).map(|m| m.span)
    }
}
