//! What is counted over all sessions, without a session's name: the keys, the increments one event causes, and
//! their sums.
//!
//! An event that arrives late makes the fold redo a short stretch (see [`super::window`]); the increments of that
//! stretch are then exchanged for the new ones. A sum may thereby fall for a moment, but what is shown never does.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::notes::{Note, Notes};
use crate::event::{
    ActionKind, BlockReason, CallOutcome, EndOutcome, Name, ProgressKind, Requester, Resolution, SourceId,
    StepKind, StepOutcome, Timestamp, ToolClass, TurnOutcome,
};

/// Upper bounds of the histogram buckets, in seconds, from a fast read to a night's wait.
pub const BUCKETS: [f64; 10] = [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0];
/// Projects that are told apart; others count under `other`.
pub const MAX_PROJECTS: usize = 50;
/// Tools that are told apart per source.
pub const MAX_TOOLS: usize = 40;
/// Models that are told apart, and providers likewise.
pub const MAX_MODELS: usize = 20;
/// Sources that are told apart.
pub const MAX_SOURCES: usize = 16 + 8;
/// Detectors and layers of agents' own guards that are told apart.
pub const MAX_DETECTORS: usize = 20;
/// The label of everything beyond a bound.
pub const OTHER: &str = "other";

/// Kinds of tokens, disjoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TokenKind {
    /// Uncached input.
    Input,
    /// Input read from a cache.
    CacheRead,
    /// Input written to a cache.
    CacheWrite,
    /// Output.
    Output,
}

/// Something that is counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Count {
    /// Sessions started.
    Started,
    /// End facts of sessions.
    Ended(EndOutcome),
    /// Turns ended.
    Turn(TurnOutcome),
    /// Episodes of being stalled, by the reason's word.
    Stall(super::Reason),
    /// Facts of progress.
    Progress(ProgressKind, bool),
    /// Requests to the user that were closed.
    UserAction(ActionKind, Resolution),
    /// Verifications: passed or failed.
    Verification(bool),
    /// Requests to stop.
    StopRequest(Requester),
    /// Compactions of the context.
    Compaction,
    /// Calls ended.
    ToolCall(Name, CallOutcome),
    /// Steps ended.
    Step(StepKind, StepOutcome),
    /// An agent's own guard: detector, layer.
    NativeStuck(Name, Name),
    /// Retries: reason, model.
    Retry(BlockReason, Name),
    /// Rate limit signals, by model.
    RateLimitSignal(Name),
    /// Announced waiting, in milliseconds.
    BackoffMs,
    /// Tokens: model, provider, kind.
    Tokens(Name, Name, TokenKind),
    /// Cost in 1e-9 US dollars: model, provider.
    CostNano(Name, Name),
    /// What orchestrators tell of their runs.
    Orchestration(super::orchestration::Orchestrated),
}

/// Something whose duration is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Observation {
    /// A turn.
    Turn(TurnOutcome),
    /// A workflow step.
    Step(StepKind),
    /// A tool call.
    Call(ToolClass),
    /// A wait for the user.
    Wait(ActionKind),
}

/// What one event adds to the sums.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Effects {
    /// The project they count under.
    pub project: Option<Name>,
    /// Whether the session is an agent's, and no sub-agent.
    pub root: bool,
    /// Counts with their amounts.
    pub counts: Vec<(Count, u64)>,
    /// Durations in milliseconds.
    pub observations: Vec<(Observation, u64)>,
    /// What spans are made of, where they are wanted.
    #[serde(skip)]
    pub notes: Notes,
}

/// What events of one session changed in the sums: each key once, however many events it took. What a stretch that
/// is folded again had added is taken back.
#[derive(Debug, Default)]
pub struct Change {
    counted: Vec<Counted>,
    /// Durations measured, with whether the session is no sub-agent.
    observed: Vec<(Observation, u64, bool)>,
    /// Durations that were measured before: they are in the histograms already.
    known: Vec<(Observation, u64)>,
    /// Whether notes are wanted.
    pub noting: bool,
    /// Notes that were made, and those of them that were made before.
    noted: Vec<Note>,
    renoted: Vec<Note>,
}

#[derive(Debug)]
struct Counted {
    project: Option<Name>,
    root: bool,
    count: Count,
    delta: i64,
    /// Events it comes from, those taken back subtracted.
    events: i64,
}

/// A sum, and the highest it has been: only that is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    now: i64,
    shown: u64,
}

/// A histogram over [`BUCKETS`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// Observations per bucket, not cumulative; the last is beyond the highest bound.
    pub buckets: [u64; BUCKETS.len() + 1],
    /// Sum of all observations in milliseconds.
    pub sum_ms: u64,
}

/// All sums. Label values are bounded on the way in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aggregates {
    /// Sums by source, project and key. The project is empty for keys that are counted by source only.
    pub sums: HashMap<(SourceId, Name, Count), Sum>,
    /// Histograms by source.
    pub histograms: HashMap<(SourceId, Observation), Histogram>,
    bounds: Bounds,
}

/// Label values in use, each set with its bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Bounds {
    projects: Vec<Name>,
    tools: HashMap<SourceId, Vec<Name>>,
    models: Vec<Name>,
    providers: Vec<Name>,
    detectors: Vec<Name>,
    /// Values that were folded into `other`, by label.
    overflows: HashMap<String, u64>,
}

// === impl TokenKind ===

impl TokenKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Input, Self::CacheRead, Self::CacheWrite, Self::Output];

    /// The label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::CacheRead => "cache_read",
            Self::CacheWrite => "cache_write",
            Self::Output => "output",
        }
    }
}

// === impl Count ===

impl Count {
    /// Whether the key is counted by project too.
    pub const fn by_project(&self) -> bool {
        matches!(
            self,
            Self::Started
                | Self::Ended(_)
                | Self::Turn(_)
                | Self::Stall(_)
                | Self::Progress(..)
                | Self::UserAction(..)
                | Self::Verification(_)
                | Self::StopRequest(_)
                | Self::Compaction
                | Self::Orchestration(_)
        )
    }

    /// Whether it is counted for roots only; calls, tokens and progress count all sessions.
    pub const fn roots_only(&self) -> bool {
        matches!(self, Self::Started | Self::Ended(_) | Self::Turn(_) | Self::Stall(_))
    }
}

// === impl Effects ===

impl Effects {
    /// Nothing happened.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.observations.is_empty()
    }

    /// Forgets them, but keeps the room.
    pub fn clear(&mut self) {
        self.counts.clear();
        self.observations.clear();
        self.notes.clear();
    }

    /// Adds one to a count.
    pub fn one(&mut self, count: Count) {
        self.counts.push((count, 1));
    }

    /// Adds to a count; zero is nothing.
    pub fn add(&mut self, count: Count, amount: u64) {
        if amount > 0 {
            self.counts.push((count, amount));
        }
    }

    /// Measures from `start` to `end`, if both are known and in order.
    pub fn measure(&mut self, what: Observation, start: Option<Timestamp>, end: Option<Timestamp>) {
        if let (Some(start), Some(end)) = (start, end)
            && let Ok(ms) = u64::try_from(end.since(start))
        {
            self.observations.push((what, ms));
        }
    }
}

// === impl Change ===

impl Change {
    /// Nothing changed.
    pub fn is_empty(&self) -> bool {
        self.observed.is_empty() && self.counted.iter().all(|c| c.delta == 0)
    }

    /// Forgets it, but keeps the room.
    pub fn clear(&mut self) {
        self.counted.clear();
        self.observed.clear();
        self.known.clear();
        self.noted.clear();
        self.renoted.clear();
    }

    /// Effects that note what this wants noted.
    pub fn effects(&self) -> Effects {
        let mut effects = Effects::default();
        effects.notes.wanted = self.noting;
        effects
    }

    /// Notes that were made and those that were taken back; what stands in both did not change.
    pub fn notes(&self) -> (&[Note], &[Note]) {
        (&self.noted, &self.renoted)
    }

    /// Adds what an event causes.
    pub fn add(&mut self, effects: &Effects) {
        self.count(effects, 1);
        self.observed.extend(effects.observations.iter().map(|(what, ms)| (*what, *ms, effects.root)));
        self.noted.extend_from_slice(effects.notes.list());
    }

    /// Takes back what an event had caused.
    pub fn take_back(&mut self, effects: &Effects) {
        self.count(effects, -1);
        self.known.extend_from_slice(&effects.observations);
        self.renoted.extend_from_slice(effects.notes.list());
    }

    /// Differences by key.
    pub fn counts(&self) -> impl Iterator<Item = (&Count, i64)> {
        self.counted.iter().map(|c| (&c.count, c.delta))
    }

    fn count(&mut self, effects: &Effects, sign: i64) {
        for (count, amount) in &effects.counts {
            let delta = sign.saturating_mul(i64::try_from(*amount).unwrap_or(i64::MAX));
            // A handful of keys that mostly share their names' allocations: a walk is faster than hashing.
            let known = self
                .counted
                .iter_mut()
                .find(|c| c.count == *count && c.root == effects.root && c.project == effects.project);
            match known {
                Some(known) => {
                    known.delta = known.delta.saturating_add(delta);
                    known.events += sign;
                }
                None => self.counted.push(Counted {
                    project: effects.project.clone(),
                    root: effects.root,
                    count: count.clone(),
                    delta,
                    events: sign,
                }),
            }
        }
    }
}

// === impl Sum ===

impl Sum {
    /// What is shown: never falls.
    pub const fn shown(self) -> u64 {
        self.shown
    }

    /// The true sum, which a late event may lower.
    pub const fn exact(self) -> i64 {
        self.now
    }

    fn add(&mut self, delta: i64) {
        self.now = self.now.saturating_add(delta);
        self.shown = self.shown.max(u64::try_from(self.now).unwrap_or(0));
    }
}

// === impl Histogram ===

impl Histogram {
    /// Number of observations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The place of the bucket that counts so many milliseconds.
    pub fn bucket_of(ms: u64) -> usize {
        let seconds = ms as f64 / 1000.0;
        BUCKETS.iter().position(|bound| seconds <= *bound).unwrap_or(BUCKETS.len())
    }

    fn observe(&mut self, ms: u64) {
        self.buckets[Self::bucket_of(ms)] += 1;
        self.sum_ms = self.sum_ms.saturating_add(ms);
    }
}

// === impl Aggregates ===

impl Aggregates {
    /// Adds what an event of this source caused.
    pub fn add(&mut self, source: &SourceId, effects: &Effects) {
        let mut change = Change::default();
        change.add(effects);
        self.take(source, &mut change);
    }

    /// Takes in what events of this source changed, and leaves the change empty. Durations that were observed before
    /// stay.
    pub fn take(&mut self, source: &SourceId, change: &mut Change) {
        for counted in &change.counted {
            if counted.delta != 0 {
                self.change(source, counted);
            }
        }
        for (what, ms, root) in &change.observed {
            match change.known.iter().position(|known| *known == (*what, *ms)) {
                Some(at) => _ = change.known.swap_remove(at),
                None => self.observe(source, *root, *what, *ms),
            }
        }
        change.clear();
    }

    /// Label values that were folded into `other`, by label.
    pub fn overflows(&self) -> impl Iterator<Item = (&str, u64)> {
        self.bounds.overflows.iter().map(|(label, n)| (label.as_str(), *n))
    }

    /// The label a project is counted under; an unseen one is admitted while there is room.
    pub fn project_label(&mut self, project: Option<&Name>) -> Name {
        match project {
            Some(p) => {
                bound(&mut self.bounds.projects, MAX_PROJECTS, p, ("project", 1), &mut self.bounds.overflows)
            }
            None => Name::none(),
        }
    }

    /// The label under which a project was admitted, for views.
    pub fn shown_project<'a>(&'a self, project: Option<&'a Name>) -> &'a str {
        match project {
            None => "",
            Some(p) if self.bounds.projects.contains(p) => p.as_str(),
            Some(_) => OTHER,
        }
    }

    /// The label under which a model was admitted, for views.
    pub fn shown_model<'a>(&'a self, model: Option<&'a Name>) -> &'a str {
        match model {
            None => "",
            Some(m) if self.bounds.models.contains(m) => m.as_str(),
            Some(_) => OTHER,
        }
    }

    /// Admits a model's name, so that it can be shown.
    pub fn admit_model(&mut self, model: &Name) {
        bound(&mut self.bounds.models, MAX_MODELS, model, ("model", 1), &mut self.bounds.overflows);
    }

    fn change(&mut self, source: &SourceId, counted: &Counted) {
        let Counted { project, root, count, delta, events } = counted;
        if count.roots_only() && !root {
            return;
        }
        let events = u64::try_from(*events).unwrap_or(0);
        let Bounds { projects, overflows, .. } = &mut self.bounds;
        let project = match project {
            Some(p) if count.by_project() => bound(projects, MAX_PROJECTS, p, ("project", events), overflows),
            _ => Name::none(),
        };
        let key = (source.clone(), project, self.bounded(source, count, events));
        self.sums.entry(key).or_default().add(*delta);
    }

    fn observe(&mut self, source: &SourceId, root: bool, what: Observation, ms: u64) {
        if root || !matches!(what, Observation::Turn(_)) {
            self.histograms.entry((source.clone(), what)).or_default().observe(ms);
        }
    }

    fn bounded(&mut self, source: &SourceId, count: &Count, events: u64) -> Count {
        let Bounds { tools, models, providers, detectors, overflows, .. } = &mut self.bounds;
        let model = |set, over, m: &Name| bound(set, MAX_MODELS, m, ("model", events), over);
        let provider = |set, over, p: &Name| bound(set, MAX_MODELS, p, ("provider", events), over);
        match count {
            Count::Retry(reason, m) => Count::Retry(*reason, model(models, overflows, m)),
            Count::RateLimitSignal(m) => Count::RateLimitSignal(model(models, overflows, m)),
            Count::Tokens(m, p, kind) => {
                Count::Tokens(model(models, overflows, m), provider(providers, overflows, p), *kind)
            }
            Count::CostNano(m, p) => {
                Count::CostNano(model(models, overflows, m), provider(providers, overflows, p))
            }
            Count::ToolCall(tool, outcome) => {
                let tools = tools.entry(source.clone()).or_default();
                Count::ToolCall(bound(tools, MAX_TOOLS, tool, ("tool", events), overflows), *outcome)
            }
            Count::NativeStuck(detector, layer) => Count::NativeStuck(
                bound(detectors, MAX_DETECTORS, detector, ("detector", events), overflows),
                bound(detectors, MAX_DETECTORS, layer, ("layer", events), overflows),
            ),
            other => other.clone(),
        }
    }
}

/// The value itself while it is among the first `max`, else `other`; `label` with how often it is meant.
fn bound(
    set: &mut Vec<Name>,
    max: usize,
    value: &Name,
    (label, events): (&str, u64),
    overflows: &mut HashMap<String, u64>,
) -> Name {
    if value.as_str().is_empty() || set.contains(value) {
        return value.clone();
    }
    if set.len() < max {
        set.push(value.clone());
        return value.clone();
    }
    *overflows.entry(label.to_owned()).or_default() += events;
    Name::from(OTHER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effects(counts: Vec<(Count, u64)>) -> Effects {
        Effects { root: true, counts, ..Effects::default() }
    }

    #[test]
    fn what_is_shown_never_falls() {
        let mut a = Aggregates::default();
        let source = SourceId::from("codex");
        let low = Count::Progress(ProgressKind::TestPassed, false);
        let high = Count::Progress(ProgressKind::TestPassed, true);
        a.add(&source, &effects(vec![(low.clone(), 1)]));
        let mut change = Change::default();
        change.take_back(&effects(vec![(low.clone(), 1)]));
        change.add(&effects(vec![(high.clone(), 1)]));
        a.take(&source, &mut change);
        let sum = |c: &Count| a.sums[&(source.clone(), Name::from(""), c.clone())];
        assert_eq!((sum(&low).exact(), sum(&low).shown()), (0, 1));
        assert_eq!((sum(&high).exact(), sum(&high).shown()), (1, 1));
    }

    #[test]
    fn labels_are_bounded() {
        let mut a = Aggregates::default();
        let source = SourceId::from("push");
        for i in 0..200 {
            let name = Name::from(format!("n{i}").as_str());
            let counts = vec![
                (Count::Started, 1),
                (Count::ToolCall(name.clone(), CallOutcome::Ok), 1),
                (Count::RateLimitSignal(name.clone()), 1),
            ];
            a.add(&source, &Effects { project: Some(name), ..effects(counts) });
        }
        let tools = a.sums.keys().filter(|(_, _, c)| matches!(c, Count::ToolCall(..))).count();
        let models = a.sums.keys().filter(|(_, _, c)| matches!(c, Count::RateLimitSignal(_))).count();
        let projects = a.sums.keys().filter(|(_, _, c)| *c == Count::Started).count();
        assert_eq!((tools, models, projects), (MAX_TOOLS + 1, MAX_MODELS + 1, MAX_PROJECTS + 1));
        assert_eq!(a.overflows().map(|(_, n)| n).sum::<u64>(), 160 + 180 + 150);
    }

    #[test]
    fn children_count_calls_but_no_sessions() {
        let mut a = Aggregates::default();
        let source = SourceId::from("codex");
        let call = Count::ToolCall(Name::from("shell"), CallOutcome::Ok);
        a.add(&source, &Effects { root: false, ..effects(vec![(Count::Started, 1), (call, 1)]) });
        assert_eq!(a.sums.len(), 1);
    }
}
