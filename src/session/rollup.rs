//! A session together with its sub-agents: their activity, progress, calls and pending actions count for the root;
//! their end or failure is neither the root's end nor its progress.

use std::cell::OnceCell;

use super::facts::{Action, Facts, OpenCall};
use super::signals::{self, CallLog, Signals, Walk};
use crate::event::{Certainty, ProgressKind, Timestamp, ToolClass, TurnOutcome, Writer};

/// Calls that are still open this long after their turn's end count as interrupted.
pub const INTERRUPTED_AFTER_MS: i64 = 5_000;
/// A child that has been silent for so long is not taken for working.
const CHILD_SILENT_MS: i64 = 6 * 3_600_000;

/// One session and everything it started, at one moment.
#[derive(Clone, Debug)]
pub struct Rollup<'a> {
    /// The session itself.
    pub root: &'a Facts,
    /// Its sub-agents, at any depth.
    pub children: Vec<&'a Facts>,
    /// The moment.
    pub now: Timestamp,
    /// What its calls look like, once somebody asked.
    signals: OnceCell<Signals>,
}

/// Calls of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSummary {
    /// Begun.
    pub total: u64,
    /// Failed, denied or with a non-zero exit code.
    pub failed: u64,
    /// In flight.
    pub in_flight: u64,
    /// In flight, sub-agents' own task calls left out.
    pub excusing: u64,
    /// Start of the oldest in flight.
    pub oldest: Option<Timestamp>,
}

// === impl Rollup ===

impl<'a> Rollup<'a> {
    /// A session with its sub-agents at a moment.
    pub fn new(root: &'a Facts, children: Vec<&'a Facts>, now: Timestamp) -> Self {
        Self { root, children, now, signals: OnceCell::new() }
    }

    /// The root, then its sub-agents.
    pub fn all(&self) -> impl Iterator<Item = &'a Facts> + '_ {
        std::iter::once(self.root).chain(self.children.iter().copied())
    }

    /// Newest work activity or progress of the tree, not ahead of now.
    pub fn last_activity(&self) -> Option<Timestamp> {
        self.all().filter_map(|f| f.last_activity).max().map(|t| t.min(self.now))
    }

    /// Newest factual advance of the tree, not ahead of now.
    pub fn last_progress(&self) -> Option<Timestamp> {
        self.all().filter_map(|f| f.last_progress).max().map(|t| t.min(self.now))
    }

    /// Newest record of any rank, not ahead of now.
    pub fn last_seen(&self) -> Option<Timestamp> {
        self.all().filter_map(|f| f.last_seen).max().map(|t| t.min(self.now))
    }

    /// Calls of the tree.
    pub fn calls(&self) -> CallSummary {
        let mut sum = CallSummary::default();
        for facts in self.all() {
            sum.total += facts.calls.total;
            sum.failed += facts.calls.failed;
            for call in facts.open_calls.iter().filter(|c| !c.start.nested && self.in_flight(facts, c)) {
                sum.in_flight += 1;
                if call.start.class != ToolClass::Task {
                    sum.excusing += 1;
                }
                sum.oldest = sum.oldest.into_iter().chain(call.since).min();
            }
        }
        sum
    }

    /// Whether an open call still counts: its turn is open, or ended a moment ago, and did not end with its root's.
    pub fn in_flight(&self, facts: &Facts, call: &OpenCall) -> bool {
        let lost = !std::ptr::eq(facts, self.root) && (self.writer_gone(facts) || !self.outlives_root(facts));
        !lost && !is_interrupted(facts, call, self.now)
    }

    /// Pending actions of the tree, oldest first, with the session each belongs to.
    pub fn actions(&self) -> Vec<(&'a Facts, &'a Action)> {
        let mut list: Vec<_> = self.all().flat_map(|f| f.actions.iter().map(move |a| (f, a))).collect();
        list.sort_by(|a, b| (a.1.since, &a.1.action).cmp(&(b.1.since, &b.1.action)));
        list
    }

    /// The oldest certain action.
    pub fn certain_action(&self) -> Option<(&'a Facts, &'a Action)> {
        self.all()
            .flat_map(|f| f.actions.iter().map(move |a| (f, a)))
            .filter(|(_, a)| a.certainty == Certainty::Certain)
            .min_by_key(|(_, a)| (a.since, &a.action))
    }

    /// Number of certain actions.
    pub fn certain_actions(&self) -> usize {
        self.all().flat_map(|f| &f.actions).filter(|a| a.certainty == Certainty::Certain).count()
    }

    /// Whether a child works: its turn is open, its writer not gone, and it was heard of lately.
    pub fn child_works(&self, child: &Facts) -> bool {
        child.turn.is_some()
            && child.deleted_at.is_none()
            && !self.writer_gone(child)
            && child.last_activity.is_some_and(|t| self.now.since(t) < CHILD_SILENT_MS)
            && self.outlives_root(child)
    }

    /// Whether the process that writes a child is proven gone; one without a probe of its own is its root's.
    fn writer_gone(&self, child: &Facts) -> bool {
        match (child.writer, self.root.writer) {
            (Some((writer, _)), _) => matches!(writer, Writer::Gone | Writer::Left),
            (None, Some((Writer::Gone | Writer::Left, at))) => child.last_activity <= Some(at),
            (None, _) => false,
        }
    }

    /// A turn that was broken off, or a process that ended, takes its sub-agents with it; one that goes on shows it.
    /// After a turn that was completed they may work in silence.
    fn outlives_root(&self, child: &Facts) -> bool {
        let root = self.root;
        if root.turn.is_some() {
            return true;
        }
        let broken_off = root.turn_end.as_ref().filter(|e| e.outcome != TurnOutcome::Completed);
        let over = broken_off.and_then(|e| e.time).max(root.run_end.as_ref().and_then(|e| e.time));
        over.is_none_or(|over| child.last_activity > Some(over.plus(INTERRUPTED_AFTER_MS)))
    }

    /// Working and waiting sub-agents.
    pub fn subagents(&self) -> (u64, u64) {
        let mut counts = (0, 0);
        for child in self.children.iter().filter(|c| self.child_works(c)) {
            if child.actions.iter().any(|a| a.certainty == Certainty::Certain) {
                counts.1 += 1;
            } else {
                counts.0 += 1;
            }
        }
        counts
    }

    /// When the tree last landed or the person last prompted its root: what is older is no longer looked at.
    fn cleared(&self) -> Option<Timestamp> {
        self.all().filter_map(|f| f.last_progress).max().max(self.root.last_prompt)
    }

    fn logs(&self) -> Vec<&'a CallLog> {
        self.all().map(|f| &f.log).collect()
    }

    /// What the calls of the tree since its last landing or its person's last prompt look like.
    pub fn signals(&self) -> &Signals {
        self.signals.get_or_init(|| {
            let cleared = self.cleared();
            // Nearly every session is alone: what its log is worth changes with the log only.
            if self.children.is_empty() && self.root.log.is_all_behind(cleared) {
                return self.root.log.signals();
            }
            signals::of(&self.logs(), cleared)
        })
    }

    /// The way through these calls, for saying since when a limit is passed.
    pub fn walk(&self) -> Walk {
        signals::walk(&self.logs(), self.cleared())
    }

    /// Calls of the tree since its last landing or its person's last prompt; cheaper than all signals.
    pub fn calls_since_progress(&self) -> u64 {
        let cleared = self.cleared();
        self.all().map(|f| f.log.count(cleared)).sum()
    }

    /// Low-value facts of progress in the tree since its last landing.
    pub fn low_value_events(&self) -> u64 {
        let landed = self.all().filter_map(|f| f.last_progress).max();
        self.all().map(|f| f.low_value.count_after(landed)).sum()
    }

    /// Turns, nudges and compactions of the root since the last landing in its tree that no person began.
    pub fn turns_since_progress(&self) -> u64 {
        self.root.machine_turns.count_after(self.last_progress())
    }

    /// Most entries of one step of the root since the last landing in its tree.
    pub fn step_entries_max(&self) -> u32 {
        self.root.step_loop(self.last_progress(), u32::MAX).0
    }

    /// Counts of a kind of progress over the tree: high value, low value.
    pub fn progress(&self, kind: ProgressKind) -> (u64, u64) {
        self.all()
            .flat_map(|f| &f.progress)
            .filter(|p| p.kind == kind)
            .fold((0, 0), |sum, p| (sum.0 + p.high, sum.1 + p.low))
    }

    /// Tokens of the tree.
    pub fn tokens(&self) -> Option<u64> {
        let seen = self.all().any(|f| f.usage.seen);
        seen.then(|| {
            self.all()
                .flat_map(|f| [f.usage.input, f.usage.cache_read, f.usage.cache_write, f.usage.output])
                .fold(0, u64::saturating_add)
        })
    }

    /// Cost of the tree in US dollars.
    pub fn cost_usd(&self) -> Option<f64> {
        let seen = self.all().any(|f| f.usage.cost_seen);
        seen.then(|| self.all().map(|f| f.usage.cost_nano as f64).sum::<f64>() / 1e9)
    }

    /// Whether a turn is open: the root's, or that of a sub-agent that works on behind it.
    pub fn works(&self) -> bool {
        self.root.turn.is_some() || self.children.iter().any(|c| self.child_works(c))
    }
}

/// Whether a call that never got its end is over with its turn.
pub fn is_interrupted(facts: &Facts, call: &OpenCall, now: Timestamp) -> bool {
    interrupted_at(facts, call).is_some_and(|t| now > t)
}

/// From when on a call without an end counts as interrupted; `None` while its turn is open.
pub fn interrupted_at(facts: &Facts, call: &OpenCall) -> Option<Timestamp> {
    if call.start.background {
        return None;
    }
    let over_since = match &facts.turn {
        Some(turn) => {
            let gone = facts.writer.filter(|(w, at)| *w == Writer::Gone && turn.started <= Some(*at));
            let own = match (&turn.request, &call.request) {
                (Some(open), Some(own)) => open == own,
                // Without names the times tell: a call of an earlier turn began before this one.
                _ => call.since.is_none() || call.since >= turn.started,
            };
            if own { gone.map(|(_, at)| at) } else { turn.started }
        }
        None => {
            let turn = facts.turn_end.as_ref().and_then(|e| e.time);
            turn.max(facts.run_end.as_ref().and_then(|e| e.time)).max(facts.deleted_at)
        }
    };
    // One that began later is of a turn whose beginning may still be read.
    over_since.map(|over| over.max(call.since.unwrap_or(over)).plus(INTERRUPTED_AFTER_MS))
}
