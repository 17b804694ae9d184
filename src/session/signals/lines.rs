//! Which lines of a file were read.

use serde::{Deserialize, Serialize};

use crate::event::Timestamp;

/// Stretches of one file that outlive [`Reads::trim`].
pub(super) const MAX_STRETCHES: usize = 32;
/// A read is news if more than one in so many of its lines is.
const NEWS: u64 = 20;

/// Lines of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Reads {
    /// All of it was read, however long it is.
    whole: bool,
    /// Its length, 0 while unknown.
    pub(super) length: u32,
    /// Stretches that were read, first and last line, in order and apart.
    stretches: Vec<(u32, u32)>,
    /// Start of the newest read.
    pub(super) last: Timestamp,
}

// === impl Reads ===

impl Reads {
    /// Takes a read of these lines in, or of the whole file; says whether it is news.
    pub(super) fn read(&mut self, lines: Option<(u32, u32)>) -> bool {
        let Some((first, last)) = lines.or((self.length > 0).then_some((1, self.length))) else {
            return !std::mem::replace(&mut self.whole, true);
        };
        let last = if self.length > 0 { last.min(self.length) } else { last };
        if self.whole || first > last {
            return false;
        }
        let asked = u64::from(last - first) + 1;
        let known: u64 = self
            .stretches
            .iter()
            .filter(|(from, to)| *from <= last && *to >= first)
            .map(|(from, to)| u64::from((*to).min(last) - (*from).max(first)) + 1)
            .sum();
        self.add(first, last);
        (asked - known) * NEWS > asked
    }

    /// What was read of the same file elsewhere.
    pub(super) fn join(&mut self, other: &Self) {
        self.whole |= other.whole;
        if other.length > 0 && (self.length == 0 || other.last > self.last) {
            self.length = other.length;
        }
        self.last = self.last.max(other.last);
        for (first, last) in &other.stretches {
            self.add(*first, *last);
        }
    }

    /// Forgets the shortest stretches beyond the bound: then a repeat may pass for news, but never the reverse.
    pub(super) fn trim(&mut self) {
        while self.stretches.len() > MAX_STRETCHES {
            let shortest = self.stretches.iter().enumerate().min_by_key(|(_, (from, to))| to - from);
            let Some((at, _)) = shortest else { return };
            self.stretches.remove(at);
        }
        self.stretches.shrink_to_fit();
    }

    fn add(&mut self, mut first: u32, mut last: u32) {
        // Those that overlap or touch become one.
        let from = self.stretches.partition_point(|(_, to)| to.saturating_add(1) < first);
        let to = self.stretches.partition_point(|(from, _)| *from <= last.saturating_add(1));
        for (start, end) in self.stretches.drain(from..to) {
            first = first.min(start);
            last = last.max(end);
        }
        self.stretches.insert(from, (first, last));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_one_new_line_in_twenty_is_news() {
        let mut reads = Reads { length: 400, ..Reads::default() };
        assert!(reads.read(Some((1, 100))));
        assert!(!reads.read(Some((6, 105))), "5 of 100");
        assert!(reads.read(Some((12, 111))), "6 of 100");
        assert!(reads.read(Some((300, 900))), "beyond the end there is nothing to read");
        assert!(!reads.read(Some((300, 400))));
        assert!(!reads.read(Some((401, 500))));
        assert_eq!(reads.stretches, [(1, 111), (300, 400)]);
        assert!(reads.read(Some((112, 299))));
        assert_eq!(reads.stretches, [(1, 400)]);
        assert!(!reads.read(None));
    }

    #[test]
    fn a_whole_file_covers_what_follows_even_if_its_length_is_unknown() {
        let mut reads = Reads::default();
        assert!(reads.read(Some((1, 10))));
        assert!(reads.read(None));
        assert!(!reads.read(None));
        assert!(!reads.read(Some((500, 600))));
    }

    #[test]
    fn the_longest_stretches_are_kept() {
        let mut reads = Reads::default();
        for n in 0..100 {
            reads.read(Some((n * 1000 + 1, n * 1000 + 1 + n)));
        }
        reads.trim();
        assert_eq!((reads.stretches.len(), reads.stretches[0]), (MAX_STRETCHES, (68_001, 68_069)));
        let mut other = Reads { whole: true, length: 7, ..Reads::default() };
        other.join(&reads);
        assert!(!other.read(Some((1, 7))));
    }
}
