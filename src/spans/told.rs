//! What was told lately and must not be told again with other content.

use std::collections::VecDeque;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Ids that are kept at least; of what was told before those nothing is known.
const MAX_TOLD: usize = 512;
/// So many more are kept before the oldest leave, all at once.
const ROOM: usize = MAX_TOLD / 2;
/// Where there are no more, all are looked through.
const FEW: usize = 32;
/// Bits of which an id that is there has set its own two: mostly a look at them tells that it is new.
const BITS: u64 = 1 << 14;

/// Ids in the order in which they were told.
#[derive(Debug, Default)]
pub(super) struct Told {
    order: VecDeque<u64>,
    /// Empty as long as there are few.
    bits: Vec<u64>,
}

// === impl Told ===

impl Told {
    pub(super) fn has(&self, id: u64) -> bool {
        let may_be = |(word, bit): (usize, u64)| self.bits.get(word).is_none_or(|bits| bits & bit != 0);
        places(id).into_iter().all(may_be) && self.order.contains(&id)
    }

    /// Takes an id in; false if it was there.
    pub(super) fn tell(&mut self, id: u64) -> bool {
        if self.has(id) {
            return false;
        }
        self.order.push_back(id);
        if self.order.len() > MAX_TOLD + ROOM {
            self.order.drain(..ROOM);
            self.bits.clear();
        }
        if !self.bits.is_empty() {
            places(id).into_iter().for_each(|(word, bit)| self.bits[word] |= bit);
        } else if self.order.len() > FEW {
            self.mark();
        }
        true
    }

    fn mark(&mut self) {
        self.bits.resize(usize::try_from(BITS / 64).unwrap_or(0), 0);
        for (word, bit) in self.order.iter().flat_map(|id| places(*id)) {
            self.bits[word] |= bit;
        }
    }
}

/// Words, and the bits in them, of an id, which is a hash.
fn places(id: u64) -> [(usize, u64); 2] {
    let place = |at: u64| (usize::try_from(at / 64).unwrap_or(0), 1 << (at % 64));
    [place(id % BITS), place(id / BITS % BITS)]
}

impl Serialize for Told {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // What has to be known again, and no more: it is written whenever anything of its session is.
        let least = self.order.len().saturating_sub(MAX_TOLD);
        serializer.collect_seq(self.order.range(least..))
    }
}

impl<'de> Deserialize<'de> for Told {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut told = Self { order: VecDeque::deserialize(deserializer)?, bits: Vec::new() };
        if told.order.len() > FEW {
            told.mark();
        }
        Ok(told)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails says where")]

    use super::{MAX_TOLD, ROOM, Told};
    use crate::event::reduce::stable_hash;

    /// Beside ids as they come, such as have all their bits in common.
    #[test]
    fn at_least_the_last_ones_are_known_over_restarts_too() {
        for id in [|n: u64| stable_hash(n), |n: u64| n << 32] {
            let mut told = Told::default();
            for n in 0..3_000u64 {
                assert!(told.tell(id(n)), "{n}");
                for back in [0, 1, 31, 32, 33, 200, MAX_TOLD as u64 - 1] {
                    assert!(back > n || !told.tell(id(n - back)), "{back} before {n}");
                }
                assert!(told.order.len() <= MAX_TOLD + ROOM);
                if n % 500 == 7 {
                    told = postcard::from_bytes(&postcard::to_stdvec(&told).unwrap()).unwrap();
                }
            }
            assert!(told.tell(id(1)), "it was long ago");
        }
    }
}
