//! A session together with its sub-agents: their activity, progress, calls and pending actions count for the root;
//! their end or failure is neither the root's end nor its progress.

use super::facts::{Action, Facts, OpenCall};
use crate::event::{Certainty, ProgressKind, Timestamp, ToolClass, Writer};

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

    /// Whether an open call still counts: its turn is open, or ended a moment ago.
    pub fn in_flight(&self, facts: &Facts, call: &OpenCall) -> bool {
        !is_interrupted(facts, call, self.now)
    }

    /// Pending actions of the tree, oldest first, with the session each belongs to.
    pub fn actions(&self) -> Vec<(&'a Facts, &'a Action)> {
        let mut list: Vec<_> = self.all().flat_map(|f| f.actions.iter().map(move |a| (f, a))).collect();
        list.sort_by(|a, b| (a.1.since, &a.1.action).cmp(&(b.1.since, &b.1.action)));
        list
    }

    /// The oldest certain action.
    pub fn certain_action(&self) -> Option<(&'a Facts, &'a Action)> {
        self.actions().into_iter().find(|(_, a)| a.certainty == Certainty::Certain)
    }

    /// Number of certain actions.
    pub fn certain_actions(&self) -> usize {
        self.all().flat_map(|f| &f.actions).filter(|a| a.certainty == Certainty::Certain).count()
    }

    /// Whether a child works: its turn is open, its writer not gone, and it was heard of lately.
    pub fn child_works(&self, child: &Facts) -> bool {
        child.turn.is_some()
            && child.deleted_at.is_none()
            && child.writer.is_none_or(|(w, _)| w != Writer::Gone)
            && child.last_activity.is_some_and(|t| self.now.since(t) < CHILD_SILENT_MS)
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

    /// Calls of the tree since the root's tree last landed or its person last prompted.
    pub fn calls_since_progress(&self) -> u64 {
        let cleared = self.last_progress().max(self.root.last_prompt);
        self.all()
            .map(|f| {
                let counted = f.starts.iter().filter(|start| Some(**start) > cleared).count() as u64;
                counted + u64::from(f.starts_uncounted)
            })
            .sum()
    }

    /// Turns, nudges and compactions of the tree since its last landing that no person began.
    pub fn turns_since_progress(&self) -> u64 {
        let landed_elsewhere =
            self.children.iter().filter_map(|f| f.last_progress).max() > self.root.last_progress;
        if landed_elsewhere { 0 } else { u64::from(self.root.turns_since_progress) }
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
                .map(|f| f.usage.input + f.usage.cache_read + f.usage.cache_write + f.usage.output)
                .sum()
        })
    }

    /// Cost of the tree in US dollars.
    pub fn cost_usd(&self) -> Option<f64> {
        let seen = self.all().any(|f| f.usage.cost_seen);
        seen.then(|| self.all().map(|f| f.usage.cost_nano).sum::<u64>() as f64 / 1e9)
    }

    /// Whether everything of the tree has ended or was never begun.
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
    let over_since = match &facts.turn {
        Some(turn) if turn.implicit || turn.request == call.request || call.request.is_none() => return None,
        Some(turn) => turn.started,
        None => {
            let turn = facts.turn_end.as_ref().and_then(|e| e.time);
            turn.max(facts.run_end.as_ref().and_then(|e| e.time)).max(facts.deleted_at)
        }
    };
    over_since.filter(|_| !call.start.background).map(|t| t.plus(INTERRUPTED_AFTER_MS))
}
