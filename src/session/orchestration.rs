//! What is known about an orchestration and its specs. Plain data: `apply::orchestration` writes it; here is only what
//! follows from it when asked.
//!
//! An orchestration is a session whose facts hold an [`Orchestration`]. Each of its specs is an entry there, and a
//! session of its own below it, whose facts hold a [`Spec`]. Neither counts among the sessions of agents: the agents that
//! work on specs have rows of their own.

use serde::{Deserialize, Serialize};

use super::facts::Facts;
use super::state::{Derived, Reason, State, Thresholds};
use super::story::Story;
use crate::event::{
    ErrorClass, Event, Fact, Id, LimitClass, Name, OrchestrationState, RunTotals, SessionId, SpecStatus,
    SpecUpdate, ThrottleReason, Timestamp,
};

/// Specs of one orchestration that are followed.
pub const MAX_SPECS: usize = 512;
/// A living orchestrator rewrites its status file about every second; one that has not for so long is not alive.
pub const REWRITTEN_WITHIN_MS: i64 = 10_000;

/// Something that is counted over all orchestrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Orchestrated {
    /// Specs that ended.
    Spec(SpecStatus),
    /// Signals of a rate limit.
    LimitSignal(LimitClass),
    /// Waiting they announced, in milliseconds.
    BackoffMs,
    /// Signals of held back starts.
    LaunchHold,
    /// Times fewer agents at once were allowed.
    Throttled(ThrottleReason),
    /// Times more were allowed again.
    Recovered,
}

/// One run of an orchestration: the newest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Orchestration {
    /// Its own word.
    pub state: Option<OrchestrationState>,
    /// Since when that holds.
    pub state_since: Option<Timestamp>,
    pub(super) state_as_of: Option<Timestamp>,
    /// When the run began, as the orchestrator says.
    pub started: Option<Timestamp>,
    /// Earliest sign of the run.
    pub began: Option<Timestamp>,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// What is not younger belongs to the run before.
    pub(super) before: Option<Timestamp>,
    /// When its first batch began.
    pub(super) first_batch: Option<Timestamp>,
    /// Newest rewrite of its status file, where it has one.
    pub rewritten: Option<Timestamp>,
    /// Newest word about it, whatever it said.
    pub updated: Option<Timestamp>,
    /// The batch it is in, from 1.
    pub batch: Option<u32>,
    /// How many there are.
    pub batches: Option<u32>,
    pub(super) batch_as_of: Option<Timestamp>,
    /// Batches that count as advances already.
    pub(super) batches_done: Vec<u32>,
    /// Its specs by name, at most [`MAX_SPECS`].
    pub specs: Vec<Spec>,
    /// Further ones, which are not followed: how many, or how often any was told of.
    pub beyond: u64,
    /// The newest signal of a rate limit.
    pub limit: Limit,
    /// How many agents may be started.
    pub launch: Launch,
    /// How many may run at once.
    pub parallel: Parallel,
    /// Totals of the run.
    pub(super) meters: Meters,
    /// News of agents that belong to no spec.
    pub unattributed: u64,
    /// What is under way in it.
    pub story: Box<Story>,
}

/// One spec of an orchestration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Its name.
    pub name: Name,
    /// Where it stands.
    pub status: SpecStatus,
    /// Since when.
    pub since: Option<Timestamp>,
    pub(super) as_of: Option<Timestamp>,
    /// Its batch, from 1.
    pub batch: Option<u32>,
    /// How often it was tried again.
    pub retries: u32,
    pub(super) attempts: u32,
    /// The error it met last; none once it is completed.
    pub error: Option<ErrorClass>,
    /// Turns its agents began, where anybody tells.
    pub turns: Option<u64>,
    /// Its newest agent's own session.
    pub thread: Option<Id>,
    /// Ends that were counted, as bits.
    pub(super) counted: u8,
}

/// The newest signal of a rate limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// When.
    pub at: Option<Timestamp>,
    /// About which spec.
    pub spec: Option<Name>,
    /// Its attempt, from 0.
    pub retry: Option<u32>,
    /// Until the spec is tried again.
    pub delay_ms: Option<u64>,
    /// Until anything is started again.
    pub hold_ms: Option<u64>,
    /// Which limit.
    pub class: Option<LimitClass>,
}

/// How many agents may be started in a window of time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    pub(super) as_of: Option<Timestamp>,
    /// Starts allowed; none where they are not limited.
    pub budget: Option<u64>,
    /// Length of the window.
    pub window_ms: Option<u64>,
    /// Starts in the window as of the newest one.
    pub used: Option<u64>,
    /// How long starts are held back.
    pub hold_ms: Option<u64>,
    /// When they were held back last.
    pub hold_at: Option<Timestamp>,
}

/// How many agents may run at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Parallel {
    pub(super) as_of: Option<Timestamp>,
    /// Whether limits lower the number.
    pub adaptive: Option<bool>,
    /// As configured.
    pub max: Option<u64>,
    /// In force.
    pub effective: Option<u64>,
    /// Never lower than this.
    pub floor: Option<u64>,
    /// When it was lowered last.
    pub throttled_at: Option<Timestamp>,
    /// When it was raised last.
    pub recovered_at: Option<Timestamp>,
    /// Why it changed last.
    pub reason: Option<ThrottleReason>,
}

/// A total that is told by a status file and by single events: whichever is ahead is right, so that what is told in
/// both ways counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meter {
    /// As told; a lower word than the one before is a count that began anew.
    told: u64,
    /// What was told before it began anew.
    base: u64,
    /// Counted here, event by event.
    seen: u64,
}

/// Totals of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meters {
    pub(super) signals: Meter,
    pub(super) backoff_ms: Meter,
    pub(super) holds: Meter,
    pub(super) throttled: Meter,
    pub(super) recovered: Meter,
}

// === impl Meter ===

impl Meter {
    /// The total.
    pub(super) const fn total(self) -> u64 {
        let told = self.base.saturating_add(self.told);
        if told > self.seen { told } else { self.seen }
    }

    /// Takes a total as told; returns by how much that raises ours.
    pub(super) fn tell(&mut self, total: u64) -> u64 {
        let before = self.total();
        if total < self.told {
            self.base = self.base.saturating_add(self.told);
        }
        self.told = total;
        self.total().saturating_sub(before)
    }

    /// Counts what one event adds; returns by how much that raises the total.
    pub(super) fn see(&mut self, amount: u64) -> u64 {
        let before = self.total();
        self.seen = self.seen.saturating_add(amount);
        self.total() - before
    }
}

// === impl Spec ===

impl Spec {
    /// A spec of which only the name is known.
    pub(super) fn new(name: Name) -> Self {
        Self {
            name,
            status: SpecStatus::Pending,
            since: None,
            as_of: None,
            batch: None,
            retries: 0,
            attempts: 0,
            error: None,
            turns: None,
            thread: None,
            counted: 0,
        }
    }

    /// Whether it waits for another attempt.
    pub fn waits_for_retry(&self) -> bool {
        self.status == SpecStatus::Pending && self.retries > 0
    }
}

// === impl Orchestration ===

impl Orchestration {
    /// Totals of the run.
    pub fn totals(&self) -> RunTotals {
        let m = &self.meters;
        RunTotals {
            signals: m.signals.total(),
            backoff_ms: m.backoff_ms.total(),
            holds: m.holds.total(),
            throttled: m.throttled.total(),
            recovered: m.recovered.total(),
        }
    }

    /// Where it stands at this moment: its own word, unless that was left behind by an orchestrator that died.
    pub fn state_at(&self, now: Timestamp) -> OrchestrationState {
        let state = self.state.unwrap_or(OrchestrationState::Unknown);
        if state == OrchestrationState::Running && self.abandoned_at().is_some_and(|at| now >= at) {
            return OrchestrationState::Unknown;
        }
        state
    }

    /// When its status file had not been rewritten for too long.
    fn abandoned_at(&self) -> Option<Timestamp> {
        self.rewritten
            .max(self.updated.filter(|_| self.rewritten.is_some()))
            .map(|at| at.plus(REWRITTEN_WITHIN_MS + 1))
    }

    /// Specs by status, in the order of [`SpecStatus::ALL`].
    pub fn specs_by_status(&self) -> [u64; SpecStatus::ALL.len()] {
        let mut counts = [0; SpecStatus::ALL.len()];
        for spec in &self.specs {
            counts[spec.status as usize] += 1;
        }
        counts
    }

    /// The spec of this name.
    pub fn spec(&self, name: &Name) -> Option<&Spec> {
        self.specs.binary_search_by(|s| s.name.cmp(name)).ok().map(|at| &self.specs[at])
    }

    /// What keeps waiting specs from being started while none runs: since when, until when and why.
    fn held(&self, now: Timestamp) -> Option<(Timestamp, Timestamp, Reason)> {
        let counts = self.specs_by_status();
        if counts[SpecStatus::Running as usize] > 0 || counts[SpecStatus::Pending as usize] == 0 {
            return None;
        }
        let until = |at: Option<Timestamp>, ms: Option<u64>| {
            Some((at?, at?.plus(i64::try_from(ms?).unwrap_or(i64::MAX))))
        };
        let limit = until(self.limit.at, self.limit.hold_ms).map(|(at, to)| (at, to, Reason::RateLimit));
        let launch =
            until(self.launch.hold_at, self.launch.hold_ms).map(|(at, to)| (at, to, Reason::LaunchBudget));
        limit
            .into_iter()
            .chain(launch)
            .filter(|(at, to, _)| *at <= now && *to > now)
            .max_by_key(|(_, to, _)| *to)
    }
}

// === impl Facts ===

impl Facts {
    /// Whether it is an orchestration or a spec of one, and thus no session of an agent.
    pub const fn is_orchestrated(&self) -> bool {
        self.orchestration.is_some() || self.spec.is_some()
    }
}

/// The state of an orchestration or of a spec: its own word, in the words of sessions. `parent`: the orchestration of a
/// spec; `lost`: since when the source is. `None` for a session of an agent.
pub(super) fn derive(
    root: &Facts,
    parent: Option<&Facts>,
    lost: Option<Timestamp>,
    limits: &Thresholds,
    now: Timestamp,
) -> Option<Derived> {
    let say = |rule, state, reason, since: Option<Timestamp>| {
        let since = since.unwrap_or_else(|| root.start());
        Derived { state, reason, since, rule, until: None }
    };
    if let Some(deleted) = root.deleted_at.filter(|_| root.is_orchestrated()) {
        return Some(say(3, State::Cancelled, Reason::Deleted, Some(deleted)));
    }
    if let Some(spec) = &root.spec {
        let of = parent.and_then(|p| Some((p, p.orchestration.as_deref()?)));
        let run = of.map(|(p, o)| (o, of_run(p, o, lost, limits, now)));
        return Some(of_spec(spec, run, say));
    }
    root.orchestration.as_deref().map(|run| of_run(root, run, lost, limits, now))
}

/// The state of a run.
fn of_run(
    root: &Facts,
    run: &Orchestration,
    lost: Option<Timestamp>,
    limits: &Thresholds,
    now: Timestamp,
) -> Derived {
    let say = |rule, state, reason, since: Option<Timestamp>| {
        let since = since.or(run.state_since).unwrap_or_else(|| root.start());
        Derived { state, reason, since, rule, until: None }
    };
    let ended = run.ended;
    match run.state.unwrap_or(OrchestrationState::Unknown) {
        OrchestrationState::Completed => say(3, State::Completed, Reason::WorkflowComplete, ended),
        OrchestrationState::Failed => say(3, State::Failed, Reason::Error, ended),
        OrchestrationState::Stopped => say(3, State::Cancelled, Reason::Stopped, ended),
        OrchestrationState::Unknown => say(1, State::Unknown, Reason::NeverStarted, None),
        _ if lost.is_some() => say(1, State::Unknown, Reason::SourceLost, lost),
        OrchestrationState::Idle => say(9, State::Queued, Reason::Starting, None),
        OrchestrationState::Running => {
            let silent = match run.abandoned_at() {
                Some(at) => Some(at),
                None => run.updated.map(|t| t.plus(i64::from(limits.unknown_seconds) * 1000)),
            };
            if let Some(at) = silent.filter(|at| now >= *at) {
                return say(1, State::Unknown, Reason::SilentTooLong, Some(at));
            }
            if let Some((since, until, reason)) = run.held(now) {
                return Derived { until: Some(until), ..say(5, State::Blocked, reason, Some(since)) };
            }
            let fades = |t: Timestamp| t.plus(i64::from(limits.progressing_seconds) * 1000);
            match root.last_progress.filter(|t| Some(*t) >= run.began) {
                Some(t) if fades(t) > now => say(7, State::Progressing, Reason::Working, Some(t)),
                Some(t) => say(8, State::Running, Reason::Working, Some(fades(t))),
                None => say(8, State::Running, Reason::Working, None),
            }
        }
    }
}

/// The state of a spec; what it waits for or does is worth no more than the run it belongs to.
fn of_spec(
    spec: &Spec,
    run: Option<(&Orchestration, Derived)>,
    say: impl Fn(u8, State, Reason, Option<Timestamp>) -> Derived,
) -> Derived {
    let since = spec.since;
    match spec.status {
        SpecStatus::Completed => return say(3, State::Completed, Reason::RunComplete, since),
        SpecStatus::Failed => return say(3, State::Failed, Reason::of_failure(spec.error), since),
        SpecStatus::Timeout => return say(3, State::Failed, Reason::Timeout, since),
        SpecStatus::Skipped => return say(5, State::Blocked, Reason::Dependency, since),
        SpecStatus::Pending | SpecStatus::Running => {}
    }
    if let Some((run, derived)) = run {
        let of_another_run =
            run.spec(&spec.name).is_none() || (spec.as_of.is_some() && spec.as_of < run.began);
        match derived.state {
            State::Unknown => return say(1, State::Unknown, derived.reason, Some(derived.since)),
            State::Cancelled => return say(3, State::Cancelled, derived.reason, Some(derived.since)),
            State::Completed | State::Failed => {
                return say(1, State::Unknown, Reason::EndedWithoutResult, Some(derived.since));
            }
            _ if of_another_run => return say(1, State::Unknown, Reason::EndedWithoutResult, run.began),
            _ => {}
        }
    }
    match spec.status {
        SpecStatus::Running => say(8, State::Running, Reason::Working, since),
        _ if spec.retries > 0 && spec.error == Some(ErrorClass::RateLimit) => {
            say(5, State::Blocked, Reason::RateLimit, since)
        }
        _ if spec.retries > 0 => say(5, State::Blocked, Reason::Retry, since),
        _ => say(9, State::Queued, Reason::Starting, since),
    }
}

/// What an event about an orchestration says about the sessions of its specs: an event for each. They follow from the
/// first event alone, so that nothing but that has to be kept.
pub fn of_specs(event: &Event) -> Vec<Event> {
    let own = |update: &SpecUpdate| {
        let name = format!("{}/{}", event.session.as_str(), update.spec.as_str());
        let session = SessionId::from(name.as_str());
        let fact = Fact::OwnSpec(Box::new(update.clone()));
        let mut own = Event::new(&event.source, &session, event.observed, fact);
        own.time = event.time;
        own.parent = Some(event.session.clone());
        own.project.clone_from(&event.project);
        own.counting = event.counting;
        own
    };
    match &event.fact {
        Fact::Orchestration(update) => update.specs.iter().take(MAX_SPECS).map(own).collect(),
        Fact::Spec(update) => vec![own(update)],
        Fact::SpecLimited(limit) => limit.held_spec().as_ref().map(own).into_iter().collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_counts_once_what_is_told_twice() {
        let mut meter = Meter::default();
        assert_eq!((meter.see(1), meter.tell(1), meter.tell(3), meter.see(1), meter.see(1)), (1, 0, 2, 0, 0));
        assert_eq!((meter.see(1), meter.total()), (1, 4));
        // A lower word: the count behind it began anew.
        assert_eq!((meter.tell(2), meter.total()), (1, 5));
    }
}
