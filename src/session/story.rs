//! What is under way in the run of an orchestration: each part of it is noted once it is over, for spans. A part that is
//! told of on two surfaces is one part; its times are those of the first that tells, in the order of the fold.

mod agents;

use serde::{Deserialize, Serialize};

use self::agents::AgentTurn;
use super::notes::{Note, Part, PartEnd, RunKey, What};
use super::orchestration::{MAX_SPECS, Spec};
use crate::event::{
    BlockReason, EndOutcome, ErrorClass, Id, Name, OrchestrationState, SpecStatus, Timestamp,
};

/// Batches of one run that are followed.
const MAX_BATCHES: usize = 512;
/// A signal so soon behind the end that was announced is about the same hold.
const ONE_HOLD_MS: i64 = 100;

/// The parts of a run that are not over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Story {
    /// What names the run: when it began, as far as was known when it was first heard of.
    key: Option<Timestamp>,
    since: Option<Timestamp>,
    /// Somebody told of it who saw it happen.
    seen: bool,
    over: bool,
    /// Its end was seen in a file only.
    end_polled: bool,
    batches: Vec<(u32, Began)>,
    batches_over: Vec<u32>,
    specs: Vec<SpecStory>,
    holds: Vec<Hold>,
}

/// Since when, and whether that is the time of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Began {
    since: Timestamp,
    polled: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SpecStory {
    name: Name,
    batch: Option<u32>,
    began: Began,
    /// The attempt that runs, from 1.
    attempt: Option<(u32, Began)>,
    /// The next attempt is waited for.
    wait: Option<(BlockReason, Began)>,
    /// The newest agent's session that was told of.
    thread: Option<Id>,
    /// The turn of that agent that is under way.
    turn: Option<AgentTurn>,
    /// Turns that its agents began.
    turns: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Hold {
    reason: BlockReason,
    began: Began,
    until: Timestamp,
    over: bool,
}

/// Where notes go, with when and how they were told of.
pub(super) struct Teller<'a> {
    pub(super) at: Timestamp,
    pub(super) polled: bool,
    pub(super) out: &'a mut Vec<Note>,
}

// === impl Story ===

impl Story {
    /// Something is told of the run. It may be back after an end that was none: then it is another run.
    pub(super) fn hear(
        &mut self,
        (state, polled): (Option<OrchestrationState>, bool),
        began: Option<Timestamp>,
        at: Timestamp,
    ) {
        // A file lags behind what is pushed: it may say for a while that what is over runs.
        let back = state == Some(OrchestrationState::Running) && (!polled || self.end_polled);
        if self.over && back {
            *self = Self { key: Some(at), since: Some(at), ..Self::default() };
        }
        if self.key.is_none() && state != Some(OrchestrationState::Idle) {
            self.key = Some(began.map_or(at, |began| began.min(at)));
            self.since = self.key;
        }
    }

    /// It began earlier than it was heard of.
    pub(super) fn began(&mut self, since: Option<Timestamp>) {
        self.since = self.since.map(|known| since.map_or(known, |since| known.min(since)));
    }

    /// Somebody who sees what happens told of it.
    pub(super) fn seen(&mut self) {
        self.seen = true;
    }

    /// What names the run, once anything of it is known.
    pub fn key(&self) -> Option<(RunKey, Timestamp)> {
        Some((RunKey::Since(self.key?), self.since?))
    }

    /// Whether nothing more is expected of it.
    pub fn is_over(&self) -> bool {
        self.over || self.key.is_none()
    }

    fn tell(&self, at: Timestamp, what: What, out: &mut Vec<Note>) {
        if let Some((run, since)) = self.key() {
            out.push(Note { run: Some(run), run_since: Some(since), at, what });
        }
    }

    /// A batch is under way, so those before it are over.
    pub(super) fn batch(&mut self, batch: u32, to: &mut Teller<'_>) {
        let before: Vec<u32> = self.batches.iter().map(|(n, _)| *n).filter(|n| *n < batch).collect();
        for n in before {
            self.batch_over(n, to);
        }
        let known = self.batches.iter().any(|(n, _)| *n == batch) || self.batches_over.contains(&batch);
        if self.over || known || self.batches_over.len() + self.batches.len() >= MAX_BATCHES {
            return;
        }
        self.batches.push((batch, to.began()));
        self.tell(to.at, What::PartBegan(Part::Batch(batch)), to.out);
    }

    pub(super) fn batch_over(&mut self, batch: u32, to: &mut Teller<'_>) {
        let Some(at) = self.batches.iter().position(|(n, _)| *n == batch) else { return };
        let (n, began) = self.batches.remove(at);
        self.batches_over.push(n);
        let what = What::Part {
            part: Part::Batch(n),
            since: began.since,
            end: PartEnd { outcome: EndOutcome::Completed, error: None },
            polled: began.polled && to.polled,
        };
        self.tell(to.at, what, to.out);
    }

    /// Where a spec stands.
    pub(super) fn spec(&mut self, spec: &Spec, to: &mut Teller<'_>) {
        if self.over {
            return;
        }
        let found = self.specs.binary_search_by(|s| s.name.cmp(&spec.name));
        let running = spec.status == SpecStatus::Running;
        let at = match found {
            Ok(at) => at,
            Err(at) if running && self.specs.len() < MAX_SPECS => {
                // Its batch has a span of its own, as far as there is room.
                if let Some(batch) = spec.batch {
                    self.batch(batch, to);
                }
                let has_span =
                    |n: &u32| self.batches.iter().any(|(b, _)| b == n) || self.batches_over.contains(n);
                let (name, batch) = (spec.name.clone(), spec.batch.filter(has_span));
                let part = Part::Spec { name: name.clone(), batch };
                self.tell(to.at, What::PartBegan(part), to.out);
                self.specs.insert(at, SpecStory::new(name, batch, to.began()));
                at
            }
            Err(_) => return,
        };
        let number = spec.retries.saturating_add(1);
        let mut own = self.specs.remove(at);
        let end = PartEnd::of(spec.status, spec.error);
        if own.attempt.is_some_and(|(open, _)| !running || number > open) {
            // The next one runs: the one before it failed.
            let failed = PartEnd::of(SpecStatus::Failed, spec.error);
            let end = if running || spec.status == SpecStatus::Pending { failed } else { end };
            own.attempt_over(end, to).into_iter().for_each(|what| self.tell(to.at, what, to.out));
        }
        if running && own.attempt.is_none() {
            own.wait_over(to).into_iter().for_each(|what| self.tell(to.at, what, to.out));
            own.attempt = Some((number, to.began()));
            self.tell(to.at, What::PartBegan(own.part_of(number)), to.out);
        }
        if running
            && own.thread != spec.thread
            && let (Some(thread), Some((number, _))) = (&spec.thread, own.attempt)
        {
            own.thread = Some(thread.clone());
            let what = What::Agent { part: own.part_of(number), thread: thread.clone() };
            self.tell(to.at, what, to.out);
        }
        if spec.waits_for_retry() && own.wait.is_none() {
            let limited = spec.error == Some(ErrorClass::RateLimit);
            let reason = if limited { BlockReason::RateLimit } else { BlockReason::Retry };
            own.wait = Some((reason, to.began()));
        }
        if spec.status.is_end() {
            own.over(end, to).into_iter().for_each(|what| self.tell(to.at, what, to.out));
        } else {
            self.specs.insert(at, own);
        }
    }

    /// Starts are held back for a while.
    pub(super) fn held(&mut self, reason: BlockReason, from: Timestamp, ms: u64, to: &mut Teller<'_>) {
        let until = from.plus(i64::try_from(ms).unwrap_or(i64::MAX));
        self.pass(from, to.out);
        if self.over || self.key.is_none() || ms == 0 {
            return;
        }
        let same = self.holds.iter_mut().find(|hold| hold.reason == reason);
        match same {
            // Signals of one hold, or the same told once more.
            Some(hold) if !hold.over && from <= hold.until.plus(ONE_HOLD_MS) => {
                hold.until = hold.until.max(until)
            }
            Some(hold) if from <= hold.until => {}
            known => {
                let hold =
                    Hold { reason, began: Began { since: from, polled: to.polled }, until, over: false };
                match known {
                    Some(known) => *known = hold,
                    None => self.holds.push(hold),
                }
            }
        }
    }

    /// Holds whose time has come are over.
    pub(super) fn pass(&mut self, now: Timestamp, out: &mut Vec<Note>) {
        for at in 0..self.holds.len() {
            let hold = self.holds[at];
            if !hold.over && now.since(hold.until) > ONE_HOLD_MS {
                self.holds[at].over = true;
                self.tell(hold.until, hold.note(), out);
            }
        }
    }

    /// The run is over, and with it all that was open in it.
    pub(super) fn end(&mut self, state: OrchestrationState, to: &mut Teller<'_>) {
        if self.is_over() {
            return;
        }
        for what in self.open(state, to.polled) {
            self.tell(to.at, what, to.out);
        }
        let key = self.since.unwrap_or(to.at);
        let what =
            What::Orchestration { since: key, state, polled: !self.seen && to.polled, callers: Vec::new() };
        self.tell(to.at, what, to.out);
        (self.over, self.end_polled) = (true, to.polled);
        (self.batches, self.specs) = (Vec::new(), Vec::new());
    }

    /// What of it is not over, as over with its run: of what nobody told, nothing is claimed.
    pub fn open(&self, state: OrchestrationState, polled: bool) -> Vec<What> {
        let mut out = Vec::new();
        let outcome = match state {
            OrchestrationState::Stopped => EndOutcome::Cancelled,
            _ => EndOutcome::Unknown,
        };
        let end = PartEnd { outcome, error: None };
        let to = Teller { at: Timestamp::default(), polled, out: &mut Vec::new() };
        for spec in &self.specs {
            let mut spec = spec.clone();
            out.extend(spec.attempt_over(end, &to));
            out.extend(spec.wait_over(&to));
            out.extend(spec.over(end, &to));
        }
        // The last batch is over with its run.
        let told = matches!(state, OrchestrationState::Completed | OrchestrationState::Failed);
        let end = if told { PartEnd { outcome: EndOutcome::Completed, error: None } } else { end };
        for (n, began) in &self.batches {
            let polled = began.polled && polled;
            out.push(What::Part { part: Part::Batch(*n), since: began.since, end, polled });
        }
        out.extend(self.holds.iter().filter(|hold| !hold.over).map(Hold::note));
        out
    }
}

// === impl SpecStory ===

impl SpecStory {
    fn part_of(&self, number: u32) -> Part {
        Part::Attempt { spec: self.name.clone(), batch: self.batch, number }
    }

    fn new(name: Name, batch: Option<u32>, began: Began) -> Self {
        Self { name, batch, began, attempt: None, wait: None, thread: None, turn: None, turns: 0 }
    }

    fn attempt_over(&mut self, end: PartEnd, to: &Teller<'_>) -> Vec<What> {
        let Some((number, began)) = self.attempt.take() else { return Vec::new() };
        // What its agent did until then is over with it; how, its agent did not tell.
        let unknown = PartEnd { outcome: EndOutcome::Unknown, error: None };
        let mut out = self.turn_over(unknown, None, to);
        let polled = began.polled && to.polled;
        out.push(What::Part { part: self.part_of(number), since: began.since, end, polled });
        out
    }

    fn wait_over(&mut self, to: &Teller<'_>) -> Option<What> {
        let (reason, began) = self.wait.take()?;
        let polled = began.polled && to.polled;
        let spec = Some(Part::Spec { name: self.name.clone(), batch: self.batch });
        Some(What::Held { reason, since: began.since, until: None, of: spec, polled })
    }

    fn over(mut self, end: PartEnd, to: &Teller<'_>) -> Vec<What> {
        let mut out: Vec<What> = self.wait_over(to).into_iter().collect();
        let part = Part::Spec { name: self.name.clone(), batch: self.batch };
        let polled = self.began.polled && to.polled;
        out.push(What::Part { part, since: self.began.since, end, polled });
        out
    }
}

// === impl Hold ===

impl Hold {
    fn note(&self) -> What {
        let Began { since, polled } = self.began;
        What::Held { reason: self.reason, since, until: Some(self.until), of: None, polled }
    }
}

// === impl Teller ===

impl Teller<'_> {
    fn began(&self) -> Began {
        Began { since: self.at, polled: self.polled }
    }
}

// === impl PartEnd ===

impl PartEnd {
    fn of(status: SpecStatus, error: Option<ErrorClass>) -> Self {
        let (outcome, error) = match status {
            SpecStatus::Completed => (EndOutcome::Completed, None),
            SpecStatus::Timeout => (EndOutcome::Failed, Some(ErrorClass::Timeout)),
            SpecStatus::Failed => (EndOutcome::Failed, error),
            SpecStatus::Skipped => (EndOutcome::Cancelled, None),
            SpecStatus::Pending | SpecStatus::Running => (EndOutcome::Unknown, None),
        };
        Self { outcome, error }
    }
}
