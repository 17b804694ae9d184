//! From answers about a lock file to what is said about the writing process (design section 3, rule 3). A death is
//! said only when it is proven.

use serde::{Deserialize, Serialize};

use crate::event::Writer;
use crate::ingest::locks::Lock;

/// What is known about the writer of one session, across restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Liveness {
    /// The lock was held once, so this agent keeps one and we can see it.
    seen_held: bool,
    /// What was said last.
    said: Option<Writer>,
    /// The last answer was "free": said after a second one, because a lock is taken a moment after its file is made.
    #[serde(skip)]
    free_once: bool,
}

// === impl Liveness ===

impl Liveness {
    /// Takes an answer; returns what is news. `sees_everything`: locks of all processes are visible from here.
    pub(super) fn hear(&mut self, lock: Lock, sees_everything: bool) -> Option<Writer> {
        let free_before = std::mem::replace(&mut self.free_once, lock == Lock::Free);
        let now = match lock {
            Lock::Held => {
                self.seen_held = true;
                Writer::Alive
            }
            Lock::Free if free_before && (sees_everything || self.seen_held) => Writer::Gone,
            Lock::Absent if self.seen_held => Writer::Gone,
            // The proof that somebody lives has ended; nothing says that nobody does.
            Lock::CannotTell if self.said == Some(Writer::Alive) => Writer::Unknown,
            Lock::Free | Lock::Absent | Lock::CannotTell => return None,
        };
        (self.said.replace(now) != Some(now)).then_some(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Lock::{Absent, CannotTell, Free, Held};
    use Writer::{Alive, Gone, Unknown};

    #[test]
    fn a_death_is_said_only_when_proven() {
        let said = |locks: &[Lock], all: bool| {
            let mut liveness = Liveness::default();
            locks.iter().filter_map(|l| liveness.hear(*l, all)).collect::<Vec<_>>()
        };
        assert_eq!(said(&[Held, Held, Absent, Absent], true), [Alive, Gone]);
        assert_eq!(said(&[Held, Free], true), [Alive]);
        assert_eq!(said(&[Held, Free, Free, Free], false), [Alive, Gone]);
        assert_eq!(said(&[Free, Free], true), [Gone]);
        assert_eq!(said(&[Free, Held], true), [Alive]);
        assert_eq!(said(&[Free, CannotTell, Free, Absent], true), []);
        assert_eq!(said(&[Free, Free, Free], false), []);
        assert_eq!(said(&[Absent, Absent], true), []);
        assert_eq!(said(&[CannotTell, CannotTell], true), []);
        assert_eq!(said(&[Held, CannotTell, CannotTell, Held, Absent], true), [Alive, Unknown, Alive, Gone]);
        assert_eq!(said(&[Held, Absent, Free, Held], true), [Alive, Gone, Alive]);
    }
}
