//! The value of a file's cursor: how far it was read and what its decoder knew there. Read by this runner only; the
//! store keeps it as bytes.

use serde::{Deserialize, Serialize};

use super::writer::Liveness;
use crate::ingest::Position;

/// Changes with the layout: an older value is ignored, the file is read from its head again.
const VERSION: u8 = 2;

/// What is kept of a followed file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Saved {
    version: u8,
    /// Name of the source, whose cursors lie among those of others.
    pub(super) source: String,
    /// Keyed hash of its root's path: a file of a root that is not there has not been deleted.
    pub(super) root: u64,
    pub(super) position: Position,
    /// Lines handed to the decoder, for messages.
    pub(super) lines: u64,
    pub(super) liveness: Liveness,
    pub(super) decoder: Vec<u8>,
}

// === impl Saved ===

impl Saved {
    pub(super) fn new(source: &str, root: u64, position: Position) -> Self {
        Self {
            version: VERSION,
            source: source.to_owned(),
            root,
            position,
            lines: 0,
            liveness: Liveness::default(),
            decoder: Vec::new(),
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("a struct of numbers, text and bytes can always be written")
    }

    /// `None` for anything that is not a cursor of this source in this version.
    pub(super) fn from_bytes(source: &str, bytes: &[u8]) -> Option<Self> {
        let saved: Self = postcard::from_bytes(bytes).ok()?;
        (saved.version == VERSION && saved.source == source).then_some(saved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_of_others_and_damaged_ones_are_left_alone() {
        let mut saved = Saved::new("codex", 7, Position { offset: 12, ..Position::default() });
        saved.decoder = vec![1; 1000];
        let bytes = saved.to_bytes();
        assert_eq!(Saved::from_bytes("codex", &bytes), Some(saved));
        assert_eq!(Saved::from_bytes("claude_code", &bytes), None);
        assert_eq!(Saved::from_bytes("codex", &bytes[..40]), None);
        assert_eq!(Saved::from_bytes("codex", b""), None);
    }
}
