//! Bytes in, records out: which files there are, what was appended to them, who holds a lock. Nothing here knows
//! what a record means, and nothing here writes. What is made of the records belongs to `sources`.

pub mod client;
mod discover;
pub mod locks;
mod network;
mod packed;
pub mod poll;
mod read;
pub mod stream;
mod tail;
mod watch;
pub mod whole;

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::discover::RootState;
pub use self::read::{Line, MAX_LINE};
pub use self::tail::{Followed, Handle, Look, Options, Outcome, Slice, Tail, file_name};
pub use self::watch::{Kernel, Polled, Wake};

/// Keyed hash of content; the key belongs to whoever keeps the positions.
pub type Hash = Arc<dyn Fn(&[u8]) -> u64 + Send + Sync>;

/// What a file is, whatever it is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileId {
    /// Device.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
}

/// Keyed hashes of what was read of a file, to tell whether it is still the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prints {
    /// Of its first bytes, at most 256.
    pub head: u64,
    /// Of the last bytes that were read, at most 256: a file may be cut and written on behind the same head.
    pub tail: u64,
}

/// How far a file was read. Only whole lines count as read, and a last line without an end that needs none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The file.
    pub id: FileId,
    /// Behind the last line that was read.
    pub offset: u64,
    /// What lies before `offset`.
    pub prints: Prints,
    /// A compressed file that was read to its end: it never grows.
    pub done: bool,
}

/// What a look at a file's entry tells.
#[derive(Clone, Copy, Debug)]
struct Stat {
    id: FileId,
    size: u64,
    mtime_ms: i64,
    is_dir: bool,
    /// Nothing else is opened: a pipe would hold up whoever opens it.
    is_file: bool,
}

// === impl Stat ===

impl Stat {
    fn of(meta: &Metadata) -> Self {
        Self {
            id: FileId { dev: meta.dev(), ino: meta.ino() },
            size: meta.len(),
            mtime_ms: meta.mtime().saturating_mul(1000).saturating_add(meta.mtime_nsec() / 1_000_000),
            is_dir: meta.is_dir(),
            is_file: meta.is_file(),
        }
    }
}
