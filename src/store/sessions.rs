//! All sessions in memory, by slot. A slot keeps its number while its session lives, so that a snapshot is a plain
//! vector.

use std::sync::Arc;

use hashbrown::{Equivalent, HashMap, HashSet};
use serde::{Deserialize, Serialize};

use crate::event::{Event, SessionId, SourceId, Timestamp};
use crate::session::window::{Change, Row, Session};
use crate::session::{Facts, snapshot::Tree};

/// A session that left memory: enough not to count it twice when its file grows again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// Newest moment anything was heard of it; what is not younger is known.
    pub heard_until: Timestamp,
    /// Whether its start was counted.
    pub counted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key(SourceId, SessionId);

#[derive(Hash)]
struct KeyRef<'a>(&'a SourceId, &'a SessionId);

impl Equivalent<Key> for KeyRef<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        *self.0 == key.0 && *self.1 == key.1
    }
}

/// Sessions by slot, with what changed since the last checkpoint.
#[derive(Debug, Default)]
pub struct Sessions {
    slots: Vec<Option<Session>>,
    free: Vec<usize>,
    index: HashMap<Key, usize>,
    tombstones: HashMap<Vec<u8>, Tombstone>,
    dirty: HashSet<usize>,
    removed: Vec<Vec<u8>>,
    changed_tombstones: HashSet<Vec<u8>>,
    /// Slot of the event before: batches are mostly about one session.
    last: Option<(Arc<str>, usize)>,
    tree: Option<Arc<Tree>>,
}

/// The key of a session's row.
pub fn row_key(source: &SourceId, session: &SessionId) -> Vec<u8> {
    [source.as_str().as_bytes(), &[0], session.as_str().as_bytes()].concat()
}

// === impl Sessions ===

impl Sessions {
    /// The slot of an event's session, made if it is new. `None`: the event is older than what a session that left
    /// memory had seen.
    pub fn slot_for(&mut self, event: &Event) -> Option<usize> {
        if let Some((name, slot)) = &self.last
            && Arc::ptr_eq(name, &event.session.0)
            && self.facts(*slot).is_some_and(|f| f.source == event.source)
        {
            return Some(*slot);
        }
        let slot = match self.index.get(&KeyRef(&event.source, &event.session)) {
            Some(slot) => *slot,
            None => self.create(event)?,
        };
        self.last = Some((event.session.0.clone(), slot));
        Some(slot)
    }

    fn create(&mut self, event: &Event) -> Option<usize> {
        let key = row_key(&event.source, &event.session);
        let mut facts = Facts::new(event.source.clone(), event.session.clone(), event.observed);
        if let Some(tombstone) = self.tombstones.get(&key) {
            if event.time.is_some_and(|t| t <= tombstone.heard_until) {
                return None;
            }
            facts.counted = tombstone.counted;
            self.tombstones.remove(&key);
            self.changed_tombstones.insert(key);
        }
        Some(self.put(Session::new(facts)))
    }

    fn put(&mut self, session: Session) -> usize {
        let facts = session.facts();
        let key = Key(facts.source.clone(), facts.session.clone());
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.index.insert(key, slot);
        self.slots[slot] = Some(session);
        self.tree = None;
        slot
    }

    /// Takes an event in.
    pub fn apply(&mut self, slot: usize, event: Event, epoch: Timestamp) -> Option<(Change, &Arc<Facts>)> {
        let session = self.slots.get_mut(slot)?.as_mut()?;
        let had_parent = session.facts().parent.is_some();
        let moves_parent = event.parent.is_some();
        let change = session.apply(event, epoch);
        if moves_parent && !had_parent {
            self.tree = None;
        }
        self.dirty.insert(slot);
        Some((change, session.facts()))
    }

    /// The facts in a slot.
    pub fn facts(&self, slot: usize) -> Option<&Arc<Facts>> {
        self.slots.get(slot)?.as_ref().map(Session::facts)
    }

    /// Number of sessions.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// All sessions with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Arc<Facts>)> {
        self.slots.iter().enumerate().filter_map(|(i, s)| Some((i, s.as_ref()?.facts())))
    }

    /// Lets silent sessions go of what they hold for corrections.
    pub fn rest(&mut self, now: Timestamp) {
        for session in self.slots.iter_mut().flatten() {
            session.rest(now);
        }
    }

    /// The vector of a snapshot.
    pub fn vector(&self) -> Vec<Option<Arc<Facts>>> {
        self.slots.iter().map(|s| s.as_ref().map(|s| s.facts().clone())).collect()
    }

    /// The tree over that vector, built anew only when a session came, left or got a parent.
    pub fn tree(&mut self, vector: &[Option<Arc<Facts>>]) -> Arc<Tree> {
        self.tree.get_or_insert_with(|| Arc::new(Tree::of(vector))).clone()
    }

    /// Removes a session; `tombstone`: something of it may still be read.
    pub fn remove(&mut self, slot: usize, tombstone: bool) {
        let Some(session) = self.slots.get_mut(slot).and_then(Option::take) else { return };
        let facts = session.facts();
        let key = row_key(&facts.source, &facts.session);
        if tombstone {
            let stone = Tombstone { heard_until: facts.last_heard(), counted: facts.counted };
            self.tombstones.insert(key.clone(), stone);
            self.changed_tombstones.insert(key.clone());
        }
        self.index.remove(&KeyRef(&facts.source, &facts.session));
        self.dirty.remove(&slot);
        self.removed.push(key);
        self.free.push(slot);
        self.last = None;
        self.tree = None;
    }

    /// Whether a checkpoint would write anything.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty() || !self.removed.is_empty() || !self.changed_tombstones.is_empty()
    }

    /// Rows that changed since the last call, and tombstones likewise.
    #[expect(clippy::type_complexity, reason = "two lists of optional rows, as the transaction takes them")]
    pub fn changes(&mut self) -> (Vec<(Vec<u8>, Option<Vec<u8>>)>, Vec<(Vec<u8>, Option<Vec<u8>>)>) {
        let mut rows: Vec<_> = std::mem::take(&mut self.removed).into_iter().map(|key| (key, None)).collect();
        for slot in std::mem::take(&mut self.dirty) {
            let Some(session) = self.slots.get(slot).and_then(Option::as_ref) else { continue };
            let facts = session.facts();
            let row =
                postcard::to_allocvec(&session.row()).expect("facts are made of types that always serialise");
            rows.push((row_key(&facts.source, &facts.session), Some(row)));
        }
        let stones = std::mem::take(&mut self.changed_tombstones);
        let stones = stones.into_iter().map(|key| {
            let row = self.tombstones.get(&key);
            let row = row.map(|t| postcard::to_allocvec(t).expect("numbers always serialise"));
            (key, row)
        });
        (rows, stones.collect())
    }

    /// Takes a stored row in; false if it cannot be read.
    pub fn restore(&mut self, row: &[u8], epoch: Timestamp) -> bool {
        let Ok(row) = postcard::from_bytes::<Row>(row) else { return false };
        self.put(Session::from_row(row, epoch));
        true
    }

    /// Takes a stored tombstone in; false if it cannot be read.
    pub fn restore_tombstone(&mut self, key: Vec<u8>, row: &[u8]) -> bool {
        let Ok(tombstone) = postcard::from_bytes(row) else { return false };
        self.tombstones.insert(key, tombstone);
        true
    }
}
