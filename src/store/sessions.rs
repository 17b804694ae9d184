//! All sessions in memory, by slot. A slot keeps its number while its session lives, so that a snapshot is a plain
//! vector.

use std::sync::Arc;

use hashbrown::{Equivalent, HashMap, HashSet};
use serde::{Deserialize, Serialize};

use crate::event::{Event, Fact, SessionId, SourceId, Timestamp};
use crate::session::counts::Change;
use crate::session::window::{Row, Session};
use crate::session::{Facts, snapshot::Tree};

/// Events of one session that wait to be folded, at most.
const MAX_UNFOLDED: usize = 256;

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
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    index: HashMap<Key, usize>,
    tombstones: HashMap<Vec<u8>, Tombstone>,
    dirty: HashSet<usize>,
    /// Slots with events that are not folded yet.
    unfolded: Vec<usize>,
    change: Change,
    removed: Vec<Vec<u8>>,
    changed_tombstones: HashSet<Vec<u8>>,
    /// Slot of the event before: batches are mostly about one session.
    last: Option<(Arc<str>, usize)>,
    tree: Option<Arc<Tree>>,
}

#[derive(Debug)]
struct Slot {
    session: Session,
    /// What this session's earlier stay in memory had seen; what is not younger was counted then.
    floor: Option<Timestamp>,
    /// Where the window of known ids stood when it came; 0 if that is not known.
    since: u64,
    /// Whether its unfolded events name its model.
    named: bool,
}

/// The key of a session's row.
pub fn row_key(source: &SourceId, session: &SessionId) -> Vec<u8> {
    [source.as_str().as_bytes(), &[0], session.as_str().as_bytes()].concat()
}

/// Source and session of a row's key.
pub fn of_row_key(key: &[u8]) -> Option<(SourceId, SessionId)> {
    let (source, session) = std::str::from_utf8(key).ok()?.split_once('\0')?;
    Some((SourceId::from(source), SessionId::from(session)))
}

// === impl Sessions ===

impl Sessions {
    /// The slot of an event's session, made if it is new. `None`: the event is older than what the session had seen
    /// when it left memory. `since`: where the window of known ids stands.
    pub fn slot_for(&mut self, event: &Event, since: u64) -> Option<usize> {
        let slot = match &self.last {
            Some((name, slot))
                if Arc::ptr_eq(name, &event.session.0)
                    && self.facts(*slot).is_some_and(|f| f.source == event.source) =>
            {
                *slot
            }
            _ => match self.index.get(&KeyRef(&event.source, &event.session)) {
                Some(slot) => *slot,
                None => self.create(event, since)?,
            },
        };
        self.last = Some((event.session.0.clone(), slot));
        let floor = self.slots.get(slot)?.as_ref()?.floor;
        let old = floor.is_some() && event.time.is_some() && event.time <= floor;
        (!old).then_some(slot)
    }

    fn create(&mut self, event: &Event, since: u64) -> Option<usize> {
        let mut facts = Facts::new(event.source.clone(), event.session.clone(), event.observed);
        if self.tombstones.is_empty() {
            return Some(self.keep(Session::new(facts), None, since));
        }
        let key = row_key(&event.source, &event.session);
        let Some(stone) = self.tombstones.get(&key).copied() else {
            return Some(self.keep(Session::new(facts), None, since));
        };
        if matches!(event.fact, Fact::SessionDeleted) {
            // Its file is gone too: nothing of it will be read again.
            self.tombstones.remove(&key);
            self.changed_tombstones.insert(key);
            return None;
        }
        // Only what is certainly new brings it back; the trace stays, for what is read again behind it.
        if event.time.is_none_or(|t| t <= stone.heard_until) {
            return None;
        }
        facts.counted = stone.counted;
        Some(self.keep(Session::new(facts), Some(stone.heard_until), 0))
    }

    /// Where the window of known ids stood when a session came.
    pub fn since(&self, slot: usize) -> u64 {
        self.slots.get(slot).and_then(Option::as_ref).map_or(0, |s| s.since)
    }

    fn keep(&mut self, session: Session, floor: Option<Timestamp>, since: u64) -> usize {
        let facts = session.facts();
        let key = Key(facts.source.clone(), facts.session.clone());
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.index.insert(key, slot);
        self.slots[slot] = Some(Slot { session, floor, since, named: false });
        self.tree = None;
        slot
    }

    /// Puts an event at its place in time; [`Self::fold`] makes facts of it. True where that should not wait for
    /// more, because its session has many already.
    pub fn put(&mut self, slot: usize, event: Event) -> bool {
        let Some(Slot { session, named, .. }) = self.slots.get_mut(slot).and_then(Option::as_mut) else {
            return false;
        };
        if session.unfolded() == 0 {
            self.unfolded.push(slot);
            self.dirty.insert(slot);
        }
        *named |= matches!(
            event.fact,
            Fact::SessionQueued(_)
                | Fact::SessionStarted(_)
                | Fact::SessionResumed(_)
                | Fact::SessionUpdated(_)
        );
        session.put(event);
        session.unfolded() >= MAX_UNFOLDED
    }

    /// Forgets what is known of a session, but for its having been counted. All of it has to be folded by now.
    pub fn reset(&mut self, slot: usize) {
        let Some(Slot { session, .. }) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        debug_assert_eq!(session.unfolded(), 0, "events of a session that is reset are folded before");
        let old = session.facts();
        let mut facts = Facts::new(old.source.clone(), old.session.clone(), old.first_seen);
        facts.counted = old.counted;
        // Whatever else is told of it, it is nobody's root.
        facts.parent.clone_from(&old.parent);
        // What its process says of it stands in no file, and is not said again.
        (facts.writer, facts.queued_at) = (old.writer, old.queued_at);
        facts.info.capabilities = old.info.capabilities.filter(|_| old.queued_at.is_some());
        facts.actions = old.actions.iter().filter(|action| action.dialog).cloned().collect();
        *session = Session::new(facts);
        self.dirty.insert(slot);
        self.tree = None;
    }

    /// Whether there is anything to fold.
    pub const fn is_unfolded(&self) -> bool {
        !self.unfolded.is_empty()
    }

    /// Folds all that was put; `each` sees every session that got something, with what that changes in the sums and
    /// whether it may have changed its model.
    pub fn fold(&mut self, epoch: Timestamp, mut each: impl FnMut(&Arc<Facts>, &mut Change, bool)) {
        for slot in self.unfolded.drain(..) {
            let Some(Slot { session, named, .. }) = self.slots.get_mut(slot).and_then(Option::as_mut) else {
                continue;
            };
            let parent = session.facts().parent.clone();
            session.fold(epoch, &mut self.change);
            if session.facts().parent != parent {
                self.tree = None;
            }
            each(session.facts(), &mut self.change, std::mem::take(named));
            self.change.clear();
        }
    }

    /// Whether there is this session.
    pub fn has(&self, source: &SourceId, session: &SessionId) -> bool {
        self.index.contains_key(&KeyRef(source, session))
    }

    /// The facts in a slot, as of the last [`Self::fold`].
    pub fn facts(&self, slot: usize) -> Option<&Arc<Facts>> {
        self.slots.get(slot)?.as_ref().map(|s| s.session.facts())
    }

    /// Number of sessions.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// From now on folding notes what spans are made of.
    pub fn take_notes(&mut self) {
        self.change.noting = true;
    }

    /// All sessions with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Arc<Facts>)> {
        self.slots.iter().enumerate().filter_map(|(i, s)| Some((i, s.as_ref()?.session.facts())))
    }

    /// Lets silent sessions go of what they hold for corrections. Their rows are written anew, so that after a
    /// restart a late event finds them as it would have without.
    pub fn rest(&mut self, now: Timestamp) -> bool {
        let mut any = false;
        for (i, slot) in self.slots.iter_mut().enumerate() {
            if slot.as_mut().is_some_and(|s| s.session.rest(now)) {
                self.dirty.insert(i);
                any = true;
            }
        }
        any
    }

    /// The vector of a snapshot.
    pub fn vector(&self) -> Vec<Option<Arc<Facts>>> {
        self.slots.iter().map(|s| s.as_ref().map(|s| s.session.facts().clone())).collect()
    }

    /// The tree over that vector, built anew only when a session came, left or got a parent.
    pub fn tree(&mut self, vector: &[Option<Arc<Facts>>]) -> Arc<Tree> {
        self.tree.get_or_insert_with(|| Arc::new(Tree::of(vector))).clone()
    }

    /// Removes a session; `tombstone`: something of it may still be read.
    pub fn remove(&mut self, slot: usize, tombstone: bool) {
        let Some(gone) = self.slots.get_mut(slot).and_then(Option::take) else { return };
        let facts = gone.session.facts();
        let key = row_key(&facts.source, &facts.session);
        if tombstone {
            let stone = Tombstone { heard_until: facts.last_heard(), counted: facts.counted };
            self.tombstones.insert(key.clone(), stone);
            self.changed_tombstones.insert(key.clone());
        } else if self.tombstones.remove(&key).is_some() {
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
            let Some(Slot { session, .. }) = self.slots.get(slot).and_then(Option::as_ref) else { continue };
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

    /// Takes a stored row in; false if it cannot be read. Tombstones come first.
    pub fn restore(&mut self, row: &[u8], epoch: Timestamp) -> bool {
        let Ok(row) = postcard::from_bytes::<Row>(row) else { return false };
        let session = Session::from_row(row, epoch);
        let key = row_key(&session.facts().source, &session.facts().session);
        let floor = self.tombstones.get(&key).map(|t| t.heard_until);
        self.keep(session, floor, 0);
        true
    }

    /// Takes a stored tombstone in; false if it cannot be read.
    pub fn restore_tombstone(&mut self, key: Vec<u8>, row: &[u8]) -> bool {
        let Ok(tombstone) = postcard::from_bytes(row) else { return false };
        self.tombstones.insert(key, tombstone);
        true
    }
}
