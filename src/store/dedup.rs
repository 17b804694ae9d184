//! Event ids that are known: a window of the last [`WINDOW`] per source, kept as keyed 64-bit hashes in chunks, so
//! that a checkpoint writes only the newest chunk.

use std::collections::VecDeque;

use hashbrown::{HashMap, HashSet};
use serde::{Deserialize, Serialize};

use crate::event::{SourceId, Timestamp};

/// Ids that are remembered per source, at least.
pub const WINDOW: usize = 1 << 20;
/// Ids per chunk.
const CHUNK: usize = 4096;

/// Known ids of all sources.
#[derive(Debug, Default)]
pub struct Known {
    sources: HashMap<SourceId, Window>,
}

#[derive(Debug, Default)]
struct Window {
    ids: HashSet<u64, Spread>,
    chunks: VecDeque<Chunk>,
    next: u64,
    /// Number of the newest chunk that fell out, and the newest event time in it or before.
    forgotten: Option<(u64, Option<Timestamp>)>,
    /// Chunks changed or dropped since the last checkpoint.
    changed: Vec<u64>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Chunk {
    number: u64,
    /// Newest event time in this chunk and all before it.
    newest: Option<Timestamp>,
    ids: Vec<u64>,
}

/// The ids are hashes already.
#[derive(Clone, Copy, Debug, Default)]
struct Spread;

#[derive(Clone, Copy, Debug, Default)]
struct AsIs(u64);

impl std::hash::BuildHasher for Spread {
    type Hasher = AsIs;
    fn build_hasher(&self) -> AsIs {
        AsIs(0)
    }
}

impl std::hash::Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*b);
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

/// Key and value of a chunk that changed; `None` removes it.
pub type ChunkRow = (Vec<u8>, Option<Vec<u8>>);

// === impl Known ===

impl Known {
    /// Remembers an id; false if it was known.
    pub fn insert(&mut self, source: &SourceId, id: u64, time: Option<Timestamp>) -> bool {
        if let Some(window) = self.sources.get_mut(source) {
            return window.insert(id, time);
        }
        self.sources.entry(source.clone()).or_default().insert(id, time)
    }

    /// Whether an id of this time may have been forgotten, if its session is known since chunk `since` (what
    /// [`Self::position`] said when it came).
    pub fn may_have_forgotten(&self, source: &SourceId, time: Option<Timestamp>, since: u64) -> bool {
        let forgotten = self.sources.get(source).and_then(|w| w.forgotten);
        forgotten.is_some_and(|(number, newest)| since <= number && time <= newest)
    }

    /// Number of the chunk that is being filled.
    pub fn position(&self, source: &SourceId) -> u64 {
        self.sources.get(source).and_then(|w| w.chunks.back()).map_or(0, |c| c.number)
    }

    /// What changed since the last call, for the checkpoint.
    pub fn changes(&mut self) -> Vec<ChunkRow> {
        let mut rows = Vec::new();
        for (source, window) in &mut self.sources {
            let mut numbers = std::mem::take(&mut window.changed);
            numbers.dedup();
            for number in numbers {
                let key = [source.as_str().as_bytes(), &[0], &number.to_be_bytes()].concat();
                let chunk = window.chunks.iter().find(|c| c.number == number);
                let row = chunk.map(|c| postcard::to_allocvec(c).expect("numbers always serialise"));
                rows.push((key, row));
            }
        }
        rows
    }

    /// Takes a stored chunk in; they come in the order of their keys. False if it cannot be read.
    pub fn restore(&mut self, key: &[u8], row: &[u8]) -> bool {
        let source = key.split(|b| *b == 0).next().and_then(|s| std::str::from_utf8(s).ok());
        let (Some(source), Ok(chunk)) = (source, postcard::from_bytes::<Chunk>(row)) else { return false };
        // Numbers count up from 0: one without a successor was never written.
        let Some(next) = chunk.number.checked_add(1) else { return false };
        let window = self.sources.entry(SourceId::from(source)).or_default();
        if window.chunks.is_empty() && chunk.number > 0 {
            // Older chunks were dropped before the restart; nothing in them is younger than this one's newest.
            window.forgotten = Some((chunk.number - 1, chunk.newest));
        }
        window.next = window.next.max(next);
        window.ids.extend(chunk.ids.iter().copied());
        window.chunks.push_back(chunk);
        true
    }
}

// === impl Window ===

impl Window {
    fn insert(&mut self, id: u64, time: Option<Timestamp>) -> bool {
        if !self.ids.insert(id) {
            return false;
        }
        if self.chunks.back().is_none_or(|c| c.ids.len() >= CHUNK) {
            let newest = self.chunks.back().and_then(|c| c.newest);
            self.chunks.push_back(Chunk { number: self.next, newest, ids: Vec::new() });
            self.next += 1;
        }
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.ids.push(id);
            chunk.newest = chunk.newest.max(time);
            if self.changed.last() != Some(&chunk.number) {
                self.changed.push(chunk.number);
            }
        }
        if self.chunks.len() > WINDOW / CHUNK + 1
            && let Some(old) = self.chunks.pop_front()
        {
            for id in &old.ids {
                self.ids.remove(id);
            }
            self.forgotten = Some((old.number, old.newest));
            self.changed.push(old.number);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_bounded_and_says_what_it_forgot_also_after_a_restart() {
        let mut known = Known::default();
        let source = SourceId::from("push");
        let at = |ms: i64| Some(Timestamp::from_millis(ms));
        let mix = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let many = (WINDOW + 3 * CHUNK) as u64;
        for i in 0..many {
            // What falls out is younger than all that stays.
            assert!(known.insert(&source, mix(i), at(if i < CHUNK as u64 { 1_000 } else { 10 })));
        }
        assert!(!known.insert(&source, mix(many - 1), at(10)), "a recent id is known");
        assert!(known.sources[&source].ids.len() <= WINDOW + CHUNK);
        let mut again = Known::default();
        for (key, row) in known.changes() {
            assert!(row.is_none_or(|row| again.restore(&key, &row)));
        }
        for known in [&known, &again] {
            assert!(known.may_have_forgotten(&source, at(1_000), 0));
            assert!(!known.may_have_forgotten(&source, at(1_001), 0));
            let position = known.position(&source);
            assert!(!known.may_have_forgotten(&source, at(10), position), "its session came later");
        }
    }

    #[test]
    fn chunks_read_back() {
        let mut known = Known::default();
        let source = SourceId::from("codex");
        for i in 0..10_000u64 {
            known.insert(&source, i, Some(Timestamp::from_millis(1)));
        }
        let mut again = Known::default();
        for (key, row) in known.changes() {
            assert!(again.restore(&key, &row.unwrap()));
        }
        assert!(known.changes().is_empty());
        assert!((0..10_000u64).all(|i| !again.insert(&source, i, None)));
        assert!(again.insert(&source, 10_000, None));
    }
}
