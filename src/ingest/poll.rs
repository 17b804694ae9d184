//! A small file that its owner rewrites again and again: read whole whenever it changed. It is truncated and then
//! written, so that a reader may find it empty or half; what can be made of it is for whoever asks to say, who then has
//! it looked at again soon. No watcher: such a file changes every second anyway.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::Stat;

/// Largest file that is read.
pub const MAX_SIZE: u64 = 4 << 20;
/// A file may be changed again within the resolution of its time: one that was read so soon after a change is read
/// once more.
const RESOLUTION_MS: i64 = 50;

/// What a look found.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen {
    /// What was there before.
    Same,
    /// The file is not there.
    Missing,
    /// It cannot be read, or is no file.
    Unreadable,
    /// It is larger than [`MAX_SIZE`].
    TooLarge,
    /// It is empty, or was changed while it was read: its owner is at it.
    Unfinished,
    /// Something new, or the same written anew.
    Content {
        /// All of it.
        bytes: Vec<u8>,
        /// When it was written, in milliseconds since the Unix epoch.
        mtime_ms: i64,
    },
}

/// A file that is looked at from time to time.
#[derive(Debug)]
pub struct Poll {
    path: PathBuf,
    /// As it was when it was read; `None`: it is to be read whatever it looks like.
    known: Option<(u64, u64, u64, i64)>,
}

// === impl Poll ===

impl Poll {
    /// Nothing of the file is known yet.
    pub const fn new(path: PathBuf) -> Self {
        Self { path, known: None }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// When it was written last, without reading it; `None` where it is not there.
    pub fn mtime_ms(&self) -> Option<i64> {
        fs::metadata(&self.path).ok().map(|meta| Stat::of(&meta).mtime_ms)
    }

    /// Looks at it, and reads it if it changed. `now_ms`: wall time.
    pub fn look(&mut self, now_ms: i64) -> Seen {
        let stat = match fs::metadata(&self.path) {
            Ok(meta) => Stat::of(&meta),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                self.known = None;
                return Seen::Missing;
            }
            Err(_) => return Seen::Unreadable,
        };
        if self.known == Some(mark(&stat)) {
            return Seen::Same;
        }
        if !stat.is_file {
            return Seen::Unreadable;
        }
        if stat.size > MAX_SIZE {
            self.known = Some(mark(&stat));
            return Seen::TooLarge;
        }
        let Ok((bytes, after)) = self.read() else { return Seen::Unreadable };
        if bytes.is_empty() || mark(&after) != mark(&stat) || bytes.len() as u64 != stat.size {
            self.known = None;
            return Seen::Unfinished;
        }
        let settled = now_ms.saturating_sub(stat.mtime_ms) > RESOLUTION_MS;
        self.known = settled.then(|| mark(&stat));
        Seen::Content { bytes, mtime_ms: stat.mtime_ms }
    }

    /// What was found could not be used: the next look reads it again.
    pub const fn again(&mut self) {
        self.known = None;
    }

    fn read(&self) -> std::io::Result<(Vec<u8>, Stat)> {
        let mut file = File::open(&self.path)?;
        let mut bytes = Vec::new();
        file.by_ref().take(MAX_SIZE + 1).read_to_end(&mut bytes)?;
        Ok((bytes, Stat::of(&file.metadata()?)))
    }
}

const fn mark(stat: &Stat) -> (u64, u64, u64, i64) {
    (stat.id.dev, stat.id.ino, stat.size, stat.mtime_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_when_it_changed_and_never_half() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("status.json");
        let mut poll = Poll::new(path.clone());
        assert_eq!(poll.look(0), Seen::Missing);
        fs::write(&path, "{}").unwrap();
        let written = poll.mtime_ms().unwrap();
        let read = Seen::Content { bytes: b"{}".to_vec(), mtime_ms: written };
        // Just written: another write may hide behind the same time.
        assert_eq!(
            (poll.look(written), poll.look(written + 1_000)),
            (read, Seen::Content { bytes: b"{}".to_vec(), mtime_ms: written })
        );
        assert_eq!(poll.look(written + 2_000), Seen::Same);
        fs::write(&path, "").unwrap();
        assert_eq!((poll.look(written), poll.look(written + 9_000)), (Seen::Unfinished, Seen::Unfinished));
        fs::write(&path, "[]").unwrap();
        assert!(matches!(poll.look(i64::MAX), Seen::Content { .. }));
        poll.again();
        assert!(matches!(poll.look(i64::MAX), Seen::Content { .. }));
        fs::File::create(&path).unwrap().set_len(MAX_SIZE + 1).unwrap();
        assert_eq!((poll.look(i64::MAX), poll.look(i64::MAX)), (Seen::TooLarge, Seen::Same));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(poll.look(i64::MAX), Seen::Unreadable);
    }
}
