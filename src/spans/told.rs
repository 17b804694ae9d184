//! What was told lately and must not be told again with other content.

use std::collections::VecDeque;

use hashbrown::HashSet;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Ids that are kept; of what was told before those nothing is known.
const MAX_TOLD: usize = 512;

/// Ids in the order in which they were told.
#[derive(Debug, Default)]
pub(super) struct Told {
    order: VecDeque<u64>,
    known: HashSet<u64>,
}

// === impl Told ===

impl Told {
    /// Takes an id in; false if it was there.
    pub(super) fn tell(&mut self, id: u64) -> bool {
        if !self.known.insert(id) {
            return false;
        }
        self.order.push_back(id);
        if self.order.len() > MAX_TOLD
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

impl Serialize for Told {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.order.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Told {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let order = VecDeque::deserialize(deserializer)?;
        Ok(Self { known: order.iter().copied().collect(), order })
    }
}
