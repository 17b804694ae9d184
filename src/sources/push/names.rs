//! Texts that are kept (ids and names), shared while they repeat; and which sources may push.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use super::refuse::Reason;
use crate::event::Reducer;
use crate::event::SourceId;
use crate::event::reduce::MAX_TEXT;

/// Distinct pushed sources with a name of their own, per process.
pub const MAX_SOURCES: usize = 16;
/// Where further ones are counted.
const OTHER: &str = "other";
/// Names of the built-in sources.
pub const BUILT_IN: [&str; 6] = ["codex", "claude_code", "openfox", "opencode", "gobby", "spec"];
/// Longest source name.
const MAX_SOURCE: usize = 32;
/// Texts remembered by one decoder; a power of two. A hundred sessions and their models fit with few clashes.
const SLOTS: usize = 512;

/// The sources that have pushed so far, shared by HTTP and standard input.
#[derive(Debug, Default)]
pub struct Admission {
    seen: Mutex<HashSet<Arc<str>>>,
}

/// What a source is called here.
#[derive(Clone)]
pub(super) struct Admitted {
    pub(super) source: SourceId,
    /// Whether it is one too many and goes by [`OTHER`].
    pub(super) folded: bool,
}

/// Hands out one allocation for equal texts that follow each other. One per decoder: threads that share
/// reference counts would slow each other down.
pub(super) struct Interner {
    slots: Vec<Option<Arc<str>>>,
}

// === impl Admission ===

impl Admission {
    /// Decides about a source's name.
    pub(super) fn admit(&self, name: &str, allow_built_in: bool) -> Result<Admitted, Reason> {
        let shape = (1..=MAX_SOURCE).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if !shape {
            return Err(Reason::BadSource);
        }
        if BUILT_IN.contains(&name) {
            let own = Admitted { source: SourceId::from(name), folded: false };
            return if allow_built_in { Ok(own) } else { Err(Reason::ReservedSource) };
        }
        if name == OTHER {
            return Ok(Admitted { source: SourceId::from(OTHER), folded: false });
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if !seen.contains(name) {
            if seen.len() >= MAX_SOURCES {
                return Ok(Admitted { source: SourceId::from(OTHER), folded: true });
            }
            seen.insert(Arc::from(name));
        }
        Ok(Admitted { source: SourceId::from(name), folded: false })
    }
}

// === impl Interner ===

impl Interner {
    pub(super) fn new() -> Self {
        Self { slots: vec![None; SLOTS] }
    }

    /// The bounded form of a text that is likely to come again.
    pub(super) fn get(&mut self, text: &str, reducer: &Reducer) -> Arc<str> {
        let slot = &mut self.slots[slot_of(text.as_bytes())];
        if let Some(known) = slot
            && **known == *text
        {
            return known.clone();
        }
        let fresh = bounded(text, reducer);
        *slot = Some(fresh.clone());
        fresh
    }
}

/// The bounded form of a text. Nearly every id is short printable ASCII, which needs no look at its characters.
pub(super) fn bounded(text: &str, reducer: &Reducer) -> Arc<str> {
    let plain = text.len() <= MAX_TEXT && text.bytes().all(|b| (b' '..=b'~').contains(&b));
    if plain { Arc::from(text) } else { Arc::from(reducer.bounded(text)) }
}

/// Ids differ in their last bytes if in any; length and the last sixteen decide the slot.
fn slot_of(text: &[u8]) -> usize {
    let word = |bytes: &[u8]| bytes.iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
    let tail = text.last_chunk::<8>().map_or_else(|| word(text), |c| u64::from_le_bytes(*c));
    let before = text.len().checked_sub(8).and_then(|n| text[..n].last_chunk::<8>());
    let before = before.map_or(0, |c| u64::from_le_bytes(*c));
    let mixed = (tail ^ before.rotate_left(29) ^ text.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::reduce::Runners;

    #[test]
    fn equal_texts_share_and_long_ones_are_cut() {
        let reducer = Reducer::new([1; 16], Runners::default());
        let mut interner = Interner::new();
        let a = interner.get("session-1", &reducer);
        assert!(Arc::ptr_eq(&a, &interner.get("session-1", &reducer)));
        assert!(!Arc::ptr_eq(&a, &interner.get("session-2", &reducer)));
        let long = "x".repeat(5_000);
        assert!(interner.get(&long, &reducer).len() <= MAX_TEXT);
        assert_eq!(&*interner.get("a\u{7}b", &reducer), "a b");
    }

    #[test]
    fn the_seventeenth_source_is_folded() {
        let admission = Admission::default();
        for i in 0..MAX_SOURCES {
            assert!(!admission.admit(&format!("s{i}"), false).unwrap().folded);
        }
        let late = admission.admit("late", false).unwrap();
        assert!(late.folded);
        assert_eq!(late.source.as_str(), OTHER);
        assert!(!admission.admit("s3", false).unwrap().folded);
        assert!(!admission.admit(OTHER, false).unwrap().folded);
    }

    #[test]
    fn built_in_names_need_leave() {
        let admission = Admission::default();
        for name in BUILT_IN {
            assert_eq!(admission.admit(name, false).err(), Some(Reason::ReservedSource));
            assert_eq!(admission.admit(name, true).unwrap().source.as_str(), name);
        }
        for name in ["", "My_bot", "my-bot", "a b", &"x".repeat(33)] {
            assert_eq!(admission.admit(name, true).err(), Some(Reason::BadSource), "{name}");
        }
    }
}
