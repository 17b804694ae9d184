//! Who owns a record that lies in several files of one agent's home. Agents copy history: a fork, an old way of
//! going on, a sub-agent that inherits its parent's conversation write lines that are another session's. Such a record
//! counts once, for the session that started first, whatever the order in which the files are read.
//!
//! A record is known by a key its copies share (a message's id, a call's id, time and content of a prompt). Its owner
//! is settled by the first file that shows it, and changes when a file of an older session shows it later; the one
//! that loses it is read anew, so that in the end both sessions know the same as if they had been read in order.
//! What the loser had counted stays counted, and is not counted a second time.
//!
//! The tokens of a message are the most any file says of it; only what exceeds the most so far is new.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;
use serde::{Deserialize, Serialize};

use crate::event::{Counting, SessionId, Timestamp};

/// Records of one stored piece: pieces are written whole, and only the newest ones change.
const CHUNK: usize = 256;
/// Records that are remembered; the oldest are forgotten first. 40 bytes each.
const MAX_RECORDS: usize = 1 << 19;
/// Sessions of one stored piece.
const SESSIONS: usize = 64;
/// Nobody's facts were told the tokens of this record yet.
const UNTOLD: u8 = u8::MAX;
/// Changes with the layout of what is stored.
const VERSION: u8 = 2;

/// Tokens by kind: input, cache read, cache write, output.
pub type Tokens = [u64; 4];

/// A session, as this index names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerId(u32);

/// Who is the elder, before times are asked: those of copied records are the original's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Rank {
    /// A session of which nothing says that it copied another one.
    Original,
    /// A session that began as a copy.
    Fork,
    /// A sub-agent: it is never older than whose conversation it inherits, and is itself copied with its parent.
    Child,
    /// A sub-agent in a file that began as a copy.
    ChildOfFork,
}

/// Whose a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The asking session's: nobody showed it before, or it did itself.
    Own,
    /// The asking session's, but it was counted for one that started later.
    Taken,
    /// Another session's: it changes no count and no clock of the asking one.
    Copied,
}

/// Tokens that are to be told to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spent {
    /// The session that owns the message.
    pub session: SessionId,
    /// How many.
    pub tokens: Tokens,
    /// Whether they were counted before.
    pub counting: Counting,
    /// All that is known of the message now; makes the event's id.
    pub total: Tokens,
}

/// A piece of the index as it is stored; what is stored under a number before is overwritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Names the piece within its home.
    pub(super) name: String,
    /// Its bytes; `None`: it was forgotten.
    pub(super) value: Option<Vec<u8>>,
}

/// The index of one home.
#[derive(Debug, Default)]
pub struct Owners {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    sessions: Vec<Session>,
    by_id: HashMap<SessionId, u32>,
    /// Pieces of records, the oldest first, and the number of the first.
    chunks: VecDeque<Vec<Record>>,
    first_chunk: u32,
    /// Where a record stands, counted through all chunks; the key is in the record.
    index: HashTable<u32>,
    dirty: BTreeSet<u32>,
    dirty_sessions: BTreeSet<u32>,
    forgotten: Vec<u32>,
    /// Sessions that are to be read anew, and whether there are more than at the last look.
    lost: BTreeSet<u32>,
    lost_more: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Session {
    id: SessionId,
    rank: Rank,
    start: i64,
    /// How often it was read anew.
    generation: u8,
    /// It lost a record and was not read anew since: a restart in between changes nothing about it.
    lost: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    key: u64,
    owner: u32,
    /// The generation of the owner whose facts were told the tokens.
    told: u8,
    tokens: [u32; 4],
}

#[derive(Serialize, Deserialize)]
enum Stored {
    Records { version: u8, home: u64, number: u32, records: Vec<Record> },
    Sessions { version: u8, home: u64, number: u32, sessions: Vec<Session> },
}

// === impl Owners ===

impl Owners {
    /// From stored pieces; those of other homes and versions are left out.
    pub(super) fn restore<'a>(home: u64, pieces: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut records = std::collections::BTreeMap::new();
        let mut sessions = std::collections::BTreeMap::new();
        for piece in pieces {
            match postcard::from_bytes(piece) {
                Ok(Stored::Records { version: VERSION, home: of, number, records: r }) if of == home => {
                    records.insert(number, r);
                }
                Ok(Stored::Sessions { version: VERSION, home: of, number, sessions: s }) if of == home => {
                    sessions.insert(number, s);
                }
                _ => {}
            }
        }
        let mut inner = Inner::default();
        for (number, list) in sessions {
            // A piece that is missing leaves no room: what follows it would get other names.
            if number as usize * SESSIONS != inner.sessions.len() {
                break;
            }
            inner.sessions.extend(list);
        }
        for (i, session) in inner.sessions.iter().enumerate() {
            inner.by_id.insert(session.id.clone(), i as u32);
            if session.lost {
                inner.lost.insert(i as u32);
            }
        }
        inner.lost_more = !inner.lost.is_empty();
        inner.first_chunk = records.keys().next().copied().unwrap_or(0);
        let mut places = Vec::new();
        for (number, list) in records {
            while inner.first_chunk + (inner.chunks.len() as u32) < number {
                inner.chunks.push_back(Vec::new());
            }
            for (place, record) in list.iter().enumerate() {
                if (record.owner as usize) < inner.sessions.len() {
                    places.push((record.key, number.wrapping_mul(CHUNK as u32).wrapping_add(place as u32)));
                }
            }
            inner.chunks.push_back(list);
        }
        for (key, place) in places {
            inner.place(key, place);
        }
        Self { inner: Mutex::new(inner) }
    }

    /// Names a session. `start` is its first moment.
    pub fn session(&self, id: &SessionId, start: Timestamp, rank: Rank) -> OwnerId {
        let mut inner = self.lock();
        let start = start.as_millis();
        if let Some(known) = inner.by_id.get(id).copied() {
            let session = &mut inner.sessions[known as usize];
            if start < session.start || rank > session.rank {
                session.start = session.start.min(start);
                session.rank = session.rank.max(rank);
                inner.dirty_sessions.insert(known / SESSIONS as u32);
            }
            return OwnerId(known);
        }
        let new = inner.sessions.len() as u32;
        inner.sessions.push(Session { id: id.clone(), rank, start, generation: 0, lost: false });
        inner.by_id.insert(id.clone(), new);
        inner.dirty_sessions.insert(new / SESSIONS as u32);
        OwnerId(new)
    }

    /// Whose the record with this key is.
    pub fn claim(&self, key: u64, session: OwnerId) -> Claim {
        let mut inner = self.lock();
        let Some((chunk, owner)) = inner.find(key).map(|(chunk, record)| (chunk, record.owner)) else {
            inner.add(Record { key, owner: session.0, told: UNTOLD, tokens: [0; 4] });
            return Claim::Own;
        };
        if owner == session.0 {
            return Claim::Own;
        }
        if inner.order(owner) < inner.order(session.0) {
            return Claim::Copied;
        }
        inner.dirty.insert(chunk);
        inner.loses(owner);
        if let Some((_, record)) = inner.find(key) {
            (record.owner, record.told) = (session.0, UNTOLD);
        }
        Claim::Taken
    }

    /// What tells elders from those who may have copied them: the smaller is the elder.
    pub fn elder_by(&self, id: &SessionId) -> Option<(Rank, Timestamp)> {
        let inner = self.lock();
        let session = &inner.sessions[*inner.by_id.get(id)? as usize];
        Some((session.rank, Timestamp::from_millis(session.start)))
    }

    /// Takes in what a record says of the tokens of a message; returns what has to be told of it, and to whom.
    pub fn spend(&self, key: u64, said: Tokens) -> Vec<Spent> {
        let mut inner = self.lock();
        let Some((chunk, owner)) = inner.find(key).map(|(chunk, record)| (chunk, record.owner)) else {
            return Vec::new();
        };
        let Session { id: session, generation, .. } = inner.sessions[owner as usize].clone();
        let Some((_, record)) = inner.find(key) else { return Vec::new() };
        let before = record.tokens;
        let mut more = [0; 4];
        for ((most, more), said) in record.tokens.iter_mut().zip(&mut more).zip(said) {
            let said = u32::try_from(said).unwrap_or(u32::MAX);
            *more = u64::from(said.saturating_sub(*most));
            *most = (*most).max(said);
        }
        let total = record.tokens.map(u64::from);
        let untold = record.told != generation;
        record.told = generation;
        let mut out = Vec::new();
        if untold && before != [0; 4] {
            let tokens = before.map(u64::from);
            out.push(Spent { session: session.clone(), tokens, counting: Counting::Never, total });
        }
        if more != [0; 4] {
            out.push(Spent { session, tokens: more, counting: Counting::SinceEpoch, total });
        }
        if untold || more != [0; 4] {
            inner.dirty.insert(chunk);
        }
        out
    }

    /// Sessions that lost records to older ones and have to be read anew; empty where there are no more than at the
    /// last call.
    pub(super) fn more_lost(&self) -> Vec<SessionId> {
        let mut inner = self.lock();
        if !std::mem::take(&mut inner.lost_more) {
            return Vec::new();
        }
        inner.lost.iter().map(|i| inner.sessions[*i as usize].id.clone()).collect()
    }

    /// A session has to be read anew for another reason: what is known of a relative of it changed.
    pub fn lose(&self, id: &SessionId) {
        let mut inner = self.lock();
        if let Some(known) = inner.by_id.get(id).copied() {
            inner.loses(known);
        }
    }

    /// Whether a session has to be read anew.
    pub(super) fn is_lost(&self, id: &SessionId) -> bool {
        let inner = self.lock();
        !inner.lost.is_empty() && inner.by_id.get(id).is_some_and(|known| inner.lost.contains(known))
    }

    /// A session is going to be read anew: its facts know no tokens.
    pub(super) fn begin_anew(&self, id: &SessionId) {
        let mut inner = self.lock();
        let Some(known) = inner.by_id.get(id).copied() else { return };
        inner.lost.remove(&known);
        let session = &mut inner.sessions[known as usize];
        session.generation = (session.generation + 1) % UNTOLD;
        session.lost = false;
        inner.dirty_sessions.insert(known / SESSIONS as u32);
    }

    /// What changed since the last call, to be stored.
    pub(super) fn changed(&self, home: u64) -> Vec<Piece> {
        let mut inner = self.lock();
        let forgotten = std::mem::take(&mut inner.forgotten);
        let mut pieces: Vec<_> =
            forgotten.into_iter().map(|n| Piece { name: format!("r{n}"), value: None }).collect();
        let stored = |value: &Stored| {
            Some(postcard::to_allocvec(value).expect("a struct of numbers and text can always be written"))
        };
        for number in std::mem::take(&mut inner.dirty) {
            let Some(at) = number.checked_sub(inner.first_chunk) else { continue };
            let Some(records) = inner.chunks.get(at as usize).cloned() else { continue };
            let value = Stored::Records { version: VERSION, home, number, records };
            pieces.push(Piece { name: format!("r{number}"), value: stored(&value) });
        }
        for number in std::mem::take(&mut inner.dirty_sessions) {
            let from = number as usize * SESSIONS;
            let to = inner.sessions.len().min(from + SESSIONS);
            let sessions = inner.sessions[from..to].to_vec();
            let value = Stored::Sessions { version: VERSION, home, number, sessions };
            pieces.push(Piece { name: format!("s{number}"), value: stored(&value) });
        }
        pieces
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Inner ===

impl Inner {
    fn find(&mut self, key: u64) -> Option<(u32, &mut Record)> {
        let Self { chunks, first_chunk, index, .. } = self;
        let place = *index.find(key, |place| key_at(chunks, *first_chunk, *place) == Some(key))?;
        let chunk = place / CHUNK as u32;
        let at = chunk.checked_sub(*first_chunk)? as usize;
        Some((chunk, chunks.get_mut(at)?.get_mut(place as usize % CHUNK)?))
    }

    /// Who started first. Of two that started at once the one with the smaller id did.
    fn order(&self, session: u32) -> (Rank, i64, &SessionId) {
        let session = &self.sessions[session as usize];
        (session.rank, session.start, &session.id)
    }

    fn loses(&mut self, session: u32) {
        self.lost_more |= self.lost.insert(session);
        self.sessions[session as usize].lost = true;
        self.dirty_sessions.insert(session / SESSIONS as u32);
    }

    /// Remembers where the record with this key stands.
    fn place(&mut self, key: u64, place: u32) {
        let Self { chunks, first_chunk, index, .. } = self;
        // Keys are hashes already.
        index.insert_unique(key, place, |place| key_at(chunks, *first_chunk, *place).unwrap_or_default());
    }

    fn add(&mut self, record: Record) {
        if self.chunks.back().is_none_or(|chunk| chunk.len() >= CHUNK) {
            if self.index.len() >= MAX_RECORDS
                && let Some(oldest) = self.chunks.pop_front()
            {
                let first = self.first_chunk * CHUNK as u32;
                for (i, record) in oldest.iter().enumerate() {
                    if let Ok(entry) = self.index.find_entry(record.key, |place| *place == first + i as u32) {
                        entry.remove();
                    }
                }
                self.dirty.remove(&self.first_chunk);
                self.forgotten.push(self.first_chunk);
                self.first_chunk += 1;
            }
            self.chunks.push_back(Vec::new());
        }
        let number = self.first_chunk + self.chunks.len() as u32 - 1;
        let chunk = self.chunks.back_mut().expect("one was pushed if there was none");
        let (key, place) = (record.key, number.wrapping_mul(CHUNK as u32).wrapping_add(chunk.len() as u32));
        chunk.push(record);
        self.place(key, place);
        self.dirty.insert(number);
    }
}

/// The key of the record at a place.
fn key_at(chunks: &VecDeque<Vec<Record>>, first_chunk: u32, place: u32) -> Option<u64> {
    let chunk = (place / CHUNK as u32).checked_sub(first_chunk)? as usize;
    Some(chunks.get(chunk)?.get(place as usize % CHUNK)?.key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    #[test]
    fn the_session_that_started_first_owns_a_record_whatever_the_order() {
        let (old, young) = (SessionId::from("b-old"), SessionId::from("a-young"));
        let in_order = Owners::default();
        let (o, y) =
            (in_order.session(&old, at(1), Rank::Original), in_order.session(&young, at(2), Rank::Original));
        assert_eq!(
            [in_order.claim(7, o), in_order.claim(7, o), in_order.claim(7, y)],
            [Claim::Own, Claim::Own, Claim::Copied]
        );
        assert!(in_order.more_lost().is_empty());

        let reversed = Owners::default();
        let (y, o) =
            (reversed.session(&young, at(2), Rank::Original), reversed.session(&old, at(1), Rank::Original));
        assert_eq!(
            [reversed.claim(7, y), reversed.claim(7, o), reversed.claim(7, y)],
            [Claim::Own, Claim::Taken, Claim::Copied]
        );
        assert_eq!(reversed.more_lost(), std::slice::from_ref(&young));
        assert!(reversed.more_lost().is_empty());
        assert!(reversed.is_lost(&young), "until it is read anew, across restarts");
        let stored: Vec<_> = reversed.changed(1).into_iter().filter_map(|piece| piece.value).collect();
        let again = Owners::restore(1, stored.iter().map(Vec::as_slice));
        assert_eq!(again.more_lost(), std::slice::from_ref(&young));
        again.begin_anew(&young);
        assert!(!again.is_lost(&young));
    }

    #[test]
    fn a_fork_is_younger_and_ties_go_by_id() {
        let owners = Owners::default();
        let (a, b) = (SessionId::from("a"), SessionId::from("b"));
        let (first, second) =
            (owners.session(&a, at(1), Rank::Original), owners.session(&b, at(1), Rank::Original));
        owners.claim(1, second);
        assert_eq!(owners.claim(1, first), Claim::Taken);
        owners.session(&a, at(1), Rank::Fork);
        assert_eq!(owners.claim(1, second), Claim::Taken);
        // Its sub-agent is younger still, though its copies are older.
        let child = owners.session(&SessionId::from("a:x"), at(0), Rank::Child);
        owners.claim(2, child);
        assert_eq!(owners.claim(2, first), Claim::Taken);
    }

    #[test]
    fn the_most_any_file_says_of_a_message_counts_once() {
        let owners = Owners::default();
        let (old, young) = (SessionId::from("old"), SessionId::from("young"));
        let y = owners.session(&young, at(2), Rank::Original);
        owners.claim(9, y);
        let spent = |tokens: Tokens| {
            let told = owners.spend(9, tokens);
            told.into_iter()
                .map(|s| (s.session.as_str().to_owned(), s.tokens[3], s.counting))
                .collect::<Vec<_>>()
        };
        let (never, counts) = (Counting::Never, Counting::SinceEpoch);
        assert_eq!(spent([5, 0, 0, 2]), [("young".to_owned(), 2, counts)]);
        assert_eq!(spent([5, 0, 0, 2]), []);
        assert_eq!(spent([5, 0, 0, 30]), [("young".to_owned(), 28, counts)]);
        // An older session shows it: its facts learn all of it, the sums only what is more.
        let o = owners.session(&old, at(1), Rank::Original);
        assert_eq!(owners.claim(9, o), Claim::Taken);
        assert_eq!(spent([5, 0, 0, 31]), [("old".to_owned(), 30, never), ("old".to_owned(), 1, counts)]);
        // Read anew, it is told again, and counted no more.
        owners.begin_anew(&old);
        assert_eq!(spent([5, 0, 0, 31]), [("old".to_owned(), 31, never)]);
    }

    #[test]
    fn what_is_stored_is_known_again() {
        let owners = Owners::default();
        let mut store = HashMap::new();
        let mut keep = |owners: &Owners| {
            for piece in owners.changed(1) {
                store.insert(piece.name, piece.value.unwrap());
            }
            store.clone()
        };
        let id = SessionId::from("s");
        let s = owners.session(&id, at(3), Rank::Original);
        for key in 0..1000 {
            owners.claim(key, s);
        }
        owners.spend(3, [1, 2, 3, 4]);
        keep(&owners);
        owners.spend(999, [1, 2, 3, 5]);
        let stored = keep(&owners);
        assert!(owners.changed(1).is_empty());
        let again = Owners::restore(1, stored.values().map(Vec::as_slice));
        let other = again.session(&SessionId::from("t"), at(4), Rank::Original);
        assert!((0..1000).all(|key| again.claim(key, other) == Claim::Copied));
        assert_eq!(again.spend(3, [1, 2, 3, 4]), []);
        assert_eq!(again.spend(999, [1, 2, 3, 6])[0].tokens, [0, 0, 0, 1]);
        let nobody = Owners::restore(2, stored.values().map(Vec::as_slice));
        assert!(nobody.lock().sessions.is_empty());
    }

    #[test]
    fn the_oldest_records_are_forgotten_beyond_the_bound() {
        let owners = Owners::default();
        let s = owners.session(&SessionId::from("s"), at(3), Rank::Original);
        for key in 0..(MAX_RECORDS + 2 * CHUNK) as u64 {
            owners.claim(key, s);
        }
        assert!(owners.lock().index.len() <= MAX_RECORDS);
        assert!(owners.changed(1).iter().any(|p| p.name == "r0" && p.value.is_none()));
        let t = owners.session(&SessionId::from("t"), at(4), Rank::Original);
        assert_eq!(owners.claim(0, t), Claim::Own);
        assert_eq!(owners.claim(MAX_RECORDS as u64, t), Claim::Copied);
    }
}
