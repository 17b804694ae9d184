//! What views see: all sessions at the last commit, unchangeable. Views ask it with their own `now`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::counts::Aggregates;
use super::exemplars::Exemplars;
use super::facts::Facts;
use super::rollup::Rollup;
use super::state::{Derived, Lost, Thresholds, derive};
use crate::event::{Capabilities, Name, SessionId, SourceHealth, SourceId, Timestamp};

/// Depth of sub-agents that is followed; deeper ones become roots.
pub const MAX_DEPTH: usize = 32;
/// How long a source must be down before its sessions count as lost.
pub const SOURCE_LOST_MS: i64 = 5 * 60_000;

/// All sessions, their tree and the sums, at one commit.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Facts by slot; a slot whose session has left is empty.
    pub sessions: Vec<Option<Arc<Facts>>>,
    /// Who started whom.
    pub tree: Arc<Tree>,
    /// Sums over all sessions.
    pub aggregates: Arc<Aggregates>,
    /// Spans of what histograms count, where spans are sent.
    pub exemplars: Arc<Exemplars>,
    /// Defaults of derived states.
    pub thresholds: Thresholds,
    /// What each built-in source can see by default.
    pub capabilities: Arc<HashMap<SourceId, Capabilities>>,
    /// What a source that pushes can see.
    pub pushed: Capabilities,
    /// Built-in sources that can tell of requests to stop.
    pub see_stops: Arc<HashSet<SourceId>>,
    /// Sources that tell of sessions by the ids under which these others see them themselves.
    pub retell: Arc<HashMap<SourceId, Vec<SourceId>>>,
    /// Endpoints and roots.
    pub health: Arc<Vec<SourceHealth>>,
    /// Stretches in which the machine was suspended, oldest first.
    pub suspended: Arc<Vec<(Timestamp, Timestamp)>>,
    /// Start of the process: a source is lost at the earliest five minutes later.
    pub process_start: Timestamp,
    /// Creation of the store: the counting epoch.
    pub counting_since: Timestamp,
    /// Whether every source finished its first scan.
    pub scanned: bool,
}

/// What holds for all sessions of a source at one moment.
#[derive(Clone, Copy, Debug)]
pub struct SourceNow {
    /// What can be seen of a session that does not say.
    pub capabilities: Capabilities,
    /// Since when the source counts as lost.
    pub lost_since: Option<Timestamp>,
    /// Whether it would tell of a request to stop; who pushes can tell everything the schema has words for.
    pub sees_stops: bool,
}

/// Slots in the order of (source, session), and the tree over them.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Slots by key.
    pub by_key: HashMap<(SourceId, SessionId), usize>,
    /// All slots, ordered by key.
    pub order: Vec<usize>,
    /// Root of each slot; a root is its own.
    pub root: Vec<usize>,
    /// Descendants of each root at any depth, ordered by key; no entry for a root without.
    pub descendants: HashMap<usize, Vec<usize>>,
    /// Direct children of each slot that has some.
    pub children: HashMap<usize, Vec<usize>>,
    /// Parents that were cut because of a cycle or too much depth.
    pub cut: u64,
}

// === impl Tree ===

impl Tree {
    /// Builds the tree of these sessions. A parent that is not known makes the child its own root.
    pub fn of(sessions: &[Option<Arc<Facts>>]) -> Self {
        let mut tree = Self { root: (0..sessions.len()).collect(), ..Self::default() };
        for (slot, facts) in sessions.iter().enumerate().filter_map(|(i, f)| Some((i, f.as_ref()?))) {
            tree.by_key.insert((facts.source.clone(), facts.session.clone()), slot);
            tree.order.push(slot);
        }
        let key = |slot: usize| sessions[slot].as_ref().map(|f| (&f.source, &f.session));
        tree.order.sort_by(|a, b| key(*a).cmp(&key(*b)));
        let parent = |slot: usize| {
            let facts = sessions[slot].as_ref()?;
            let parent = facts.parent.as_ref()?;
            tree.by_key.get(&(facts.source.clone(), parent.clone())).copied().filter(|p| *p != slot)
        };
        let mut roots = Vec::with_capacity(tree.order.len());
        let mut cut = 0;
        for &slot in &tree.order {
            let mut at = slot;
            let mut depth = 0;
            while let Some(up) = parent(at) {
                depth += 1;
                if depth > MAX_DEPTH || up == slot {
                    cut += 1;
                    at = slot;
                    break;
                }
                at = up;
            }
            roots.push((slot, at, if at == slot { None } else { parent(slot) }));
        }
        for (slot, root, parent) in roots {
            tree.root[slot] = root;
            if root != slot {
                tree.descendants.entry(root).or_default().push(slot);
            }
            if let Some(parent) = parent {
                tree.children.entry(parent).or_default().push(slot);
            }
        }
        tree.cut = cut;
        tree
    }
}

// === impl Snapshot ===

impl Snapshot {
    /// Slots of all sessions, ordered by source and session.
    pub fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        self.tree.order.iter().copied().filter(|slot| self.facts(*slot).is_some())
    }

    /// Slots of the sessions nobody started.
    pub fn roots(&self) -> impl Iterator<Item = usize> + '_ {
        self.slots().filter(|slot| self.is_root(*slot))
    }

    /// Whether nobody (known) started this session.
    pub fn is_root(&self, slot: usize) -> bool {
        self.tree.root.get(slot).is_none_or(|root| *root == slot)
    }

    /// Whether the agent's own source sees this session, too: then only its row is counted among the sessions.
    pub fn is_retold(&self, facts: &Facts) -> bool {
        let others = self.retell.get(&facts.source).into_iter().flatten();
        others.into_iter().any(|other| self.find(other, &facts.session).is_some())
    }

    /// The facts of a slot.
    pub fn facts(&self, slot: usize) -> Option<&Arc<Facts>> {
        self.sessions.get(slot)?.as_ref()
    }

    /// The slot of a session.
    pub fn find(&self, source: &SourceId, session: &SessionId) -> Option<usize> {
        let slot = self.tree.by_key.get(&(source.clone(), session.clone())).copied()?;
        self.facts(slot).map(|_| slot)
    }

    /// A session with its sub-agents at this moment.
    pub fn rollup(&self, slot: usize, now: Timestamp) -> Option<Rollup<'_>> {
        let root = self.facts(slot)?;
        let children = if self.is_root(slot) {
            let below = self.tree.descendants.get(&slot);
            below.into_iter().flatten().filter_map(|s| self.facts(*s).map(Arc::as_ref)).collect()
        } else {
            self.below(slot).into_iter().filter_map(|s| self.facts(s).map(Arc::as_ref)).collect()
        };
        Some(Rollup::new(root, children, now))
    }

    /// The state of a session at this moment.
    pub fn derive(&self, rollup: &Rollup<'_>) -> Derived {
        self.derive_with(rollup, self.source_now(&rollup.root.source, rollup.now))
    }

    /// The same, for who asks about many sessions of one source.
    pub fn derive_with(&self, rollup: &Rollup<'_>, source: SourceNow) -> Derived {
        let since = match &rollup.root.info.endpoint {
            Some(endpoint) => self.endpoint_lost_since(&rollup.root.source, endpoint, rollup.now),
            None => source.lost_since,
        };
        let parent = rollup.root.parent.as_ref().filter(|_| rollup.root.spec.is_some());
        let parent = parent.and_then(|parent| self.find(&rollup.root.source, parent));
        let parent = parent.and_then(|slot| self.facts(slot)).map(|facts| &**facts);
        let lost = Lost { since, suspended: &self.suspended, parent };
        derive(rollup, source.capabilities, &self.thresholds, &lost)
    }

    /// What holds for all sessions of a source at this moment.
    pub fn source_now(&self, source: &SourceId, now: Timestamp) -> SourceNow {
        SourceNow {
            capabilities: self.capabilities.get(source).copied().unwrap_or(self.pushed),
            lost_since: self.lost_since(source, now),
            sees_stops: !self.capabilities.contains_key(source) || self.see_stops.contains(source),
        }
    }

    /// Capabilities of a session.
    pub fn capabilities_of(&self, facts: &Facts) -> Capabilities {
        facts.capabilities(self.capabilities.get(&facts.source).copied().unwrap_or(self.pushed))
    }

    /// Since when a source counts as lost: all its endpoints are down, five minutes have passed since then and since
    /// the process began, and it was tried at all.
    pub fn lost_since(&self, source: &SourceId, now: Timestamp) -> Option<Timestamp> {
        let mut own = self.health.iter().filter(|h| h.source == *source).peekable();
        own.peek()?;
        let mut since = Timestamp::from_millis(i64::MIN);
        for endpoint in own {
            if endpoint.up || !endpoint.scanned {
                return None;
            }
            since = since.max(endpoint.since);
        }
        let lost = since.max(self.process_start).plus(SOURCE_LOST_MS);
        (now >= lost).then_some(lost)
    }

    /// The same for sessions of one server of the source. One that is not followed any more is lost, too.
    fn endpoint_lost_since(&self, source: &SourceId, endpoint: &Name, now: Timestamp) -> Option<Timestamp> {
        let mut own = self.health.iter().filter(|h| h.source == *source).peekable();
        own.peek()?;
        let since = match own.find(|h| h.endpoint == *endpoint) {
            Some(health) if health.up || !health.scanned => return None,
            Some(health) => health.since,
            None => self.process_start,
        };
        let lost = since.max(self.process_start).plus(SOURCE_LOST_MS);
        (now >= lost).then_some(lost)
    }

    fn below(&self, slot: usize) -> Vec<usize> {
        // The tree has no cycles: a parent that would make one was cut when it was built.
        let mut found: Vec<usize> = self.tree.children.get(&slot).cloned().unwrap_or_default();
        let mut next = 0;
        while let Some(at) = found.get(next) {
            if let Some(children) = self.tree.children.get(at) {
                found.extend_from_slice(children);
            }
            next += 1;
        }
        found
    }
}
