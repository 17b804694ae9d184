//! Who holds a lock file, asked of `/proc/locks`. The lock file itself is never opened: a lock taken for a moment
//! by us would look like a writer, or keep one out.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Name of the first process id namespace of a machine, whose number is fixed in the kernel (`PROC_PID_INIT_INO`).
const INITIAL_NAMESPACE: &str = "pid:[4026531836]";

/// What is known about one lock file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Somebody holds it.
    Held,
    /// It is there and nobody holds it, as far as this namespace of process ids sees.
    Free,
    /// There is no such file.
    Absent,
    /// The kernel does not say.
    CannotTell,
}

/// Where to ask.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The kernel's list of locks.
    pub locks: PathBuf,
    /// The link that names our namespace of process ids.
    pub namespace: PathBuf,
}

/// All lock files of a folder at one moment.
#[derive(Debug, Default)]
pub struct Locks {
    files: HashMap<String, Lock>,
    folder_unknown: bool,
}

/// A line of the kernel's list: a lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holding {
    major: u64,
    minor: u64,
    ino: u64,
}

// === impl Probe ===

impl Default for Probe {
    fn default() -> Self {
        Self { locks: "/proc/locks".into(), namespace: "/proc/self/ns/pid".into() }
    }
}

impl Probe {
    /// Whether the locks of all processes of the machine are seen from here. In another namespace the kernel
    /// hides those of processes outside it.
    pub fn sees_everything(&self) -> bool {
        fs::read_link(&self.namespace).is_ok_and(|name| name.as_os_str() == INITIAL_NAMESPACE)
    }

    /// Asks about all files of a folder, by name.
    pub fn look(&self, folder: &Path) -> Locks {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Locks::default(),
            Err(_) => return Locks { folder_unknown: true, ..Locks::default() },
        };
        // The files before the list: one that is made and taken in between is absent still, rather than free.
        let stats: Vec<_> = entries
            .flatten()
            .filter_map(|e| Some((e.file_name().into_string().ok()?, e.metadata().ok()?)))
            .map(|(name, meta)| (name, (meta.dev(), meta.ino())))
            .collect();
        if stats.is_empty() {
            return Locks::default();
        }
        let held = fs::read(&self.locks).ok().map(|list| parse(&list));
        let answer = |dev, ino| held.as_ref().map_or(Lock::CannotTell, |held| find(held, dev, ino));
        let files = stats.into_iter().map(|(name, (dev, ino))| (name, answer(dev, ino))).collect();
        Locks { files, folder_unknown: false }
    }
}

// === impl Locks ===

impl Locks {
    /// What is known about the file of this name.
    pub fn get(&self, name: &str) -> Lock {
        let absent = if self.folder_unknown { Lock::CannotTell } else { Lock::Absent };
        self.files.get(name).copied().unwrap_or(absent)
    }
}

fn find(held: &[Holding], dev: u64, ino: u64) -> Lock {
    let mut same_inode = held.iter().filter(|h| h.ino == ino).peekable();
    if same_inode.peek().is_none() {
        return Lock::Free;
    }
    let (major, minor) = (major(dev), minor(dev));
    // Some file systems (btrfs, overlays) show another device here than in the kernel's list.
    if same_inode.any(|h| (h.major, h.minor) == (major, minor)) { Lock::Held } else { Lock::CannotTell }
}

/// The encoding of `dev_t` on Linux.
const fn major(dev: u64) -> u64 {
    ((dev >> 8) & 0xfff) | ((dev >> 32) & !0xfff)
}

const fn minor(dev: u64) -> u64 {
    (dev & 0xff) | ((dev >> 12) & !0xff)
}

/// Reads `1: FLOCK  ADVISORY  WRITE 4711 fe:00:10010643 0 EOF`. Lines with `->` wait for a lock.
fn parse(list: &[u8]) -> Vec<Holding> {
    String::from_utf8_lossy(list).lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Holding> {
    let mut words = line.split_ascii_whitespace().skip(1);
    if !matches!(words.next()?, "FLOCK" | "POSIX" | "OFDLCK") {
        return None;
    }
    let mut file = words.nth(3)?.split(':');
    Some(Holding {
        major: u64::from_str_radix(file.next()?, 16).ok()?,
        minor: u64::from_str_radix(file.next()?, 16).ok()?,
        ino: file.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn lines_of_the_kernel() {
        let held = parse(
            b"1: FLOCK  ADVISORY  WRITE 8048 fe:00:10010643 0 EOF\n\
              1: -> FLOCK  ADVISORY  WRITE 8049 fe:00:10010644 0 EOF\n\
              2: POSIX  ADVISORY  READ  1 08:12:77 128 128\n\
              3: OFDLCK ADVISORY  WRITE -1 103:05:78 0 EOF\n\
              4: LEASE  ACTIVE    READ 5 08:12:79 0 EOF\n\
              5: FLOCK damaged\n",
        );
        let inodes: Vec<_> = held.iter().map(|h| h.ino).collect();
        assert_eq!(inodes, [10_010_643, 77, 78]);
        assert_eq!((held[2].major, held[2].minor), (0x103, 5));
        assert_eq!(find(&held, 65024, 10_010_643), Lock::Held);
        assert_eq!(find(&held, 0x12_0005_0300, 78), Lock::CannotTell);
        assert_eq!(find(&held, 65024, 10_010_644), Lock::Free);
    }

    #[test]
    fn a_real_lock_is_seen_and_only_while_it_is_held() {
        let folder = tempfile::tempdir().unwrap();
        let probe = Probe::default();
        let path = folder.path().join("a.lock");
        let file = File::create(&path).unwrap();
        assert_eq!(probe.look(folder.path()).get("a.lock"), Lock::Free);
        file.lock().unwrap();
        assert_eq!(probe.look(folder.path()).get("a.lock"), Lock::Held);
        assert_eq!(probe.look(folder.path()).get("b.lock"), Lock::Absent);
        file.unlock().unwrap();
        assert_eq!(probe.look(folder.path()).get("a.lock"), Lock::Free);
        let blind = Probe { locks: folder.path().join("none"), ..Probe::default() };
        assert_eq!(blind.look(folder.path()).get("a.lock"), Lock::CannotTell);
        assert_eq!(probe.look(&folder.path().join("none")).get("a.lock"), Lock::Absent);
        assert_eq!(probe.look(&path).get("a.lock"), Lock::CannotTell);
    }
}
