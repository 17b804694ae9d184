//! Finds files below a root. Names and stats only; no file is opened.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{FileId, Stat};

/// Folders below a root that are entered; agents use three or four, the rest is a mistake or an attack.
const MAX_DEPTH: usize = 32;

/// Whether a root can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootState {
    /// Not there (yet): no error.
    Missing,
    /// There, but it cannot be listed.
    Unreadable,
    /// There and listed.
    Readable,
}

/// What a walk calls back with.
pub(super) trait Visit {
    /// Whether a file of this name is looked at.
    fn accepts(&self, name: &OsStr) -> bool;
    /// A folder, before it is listed, so that a watch set here misses nothing.
    fn folder(&mut self, path: &Path, id: FileId);
    /// A file that was accepted.
    fn file(&mut self, path: PathBuf, stat: Stat);
    /// Something that cannot be looked at.
    fn unreadable(&mut self, path: &Path);
}

/// Walks a folder. Symbolic links are followed, each folder is entered once.
pub(super) fn walk(root: &Path, visit: &mut dyn Visit) -> RootState {
    let meta = match fs::metadata(root) {
        Ok(meta) if meta.is_dir() => meta,
        Ok(_) => return RootState::Unreadable,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return RootState::Missing,
        Err(_) => return RootState::Unreadable,
    };
    let id = Stat::of(&meta).id;
    let mut entered = HashSet::from([id]);
    let mut open = vec![(root.to_owned(), id, 0)];
    while let Some((folder, id, depth)) = open.pop() {
        visit.folder(&folder, id);
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            // Removed since its parent was listed: nothing is wrong.
            Err(e) if depth > 0 && e.kind() == io::ErrorKind::NotFound => continue,
            Err(_) if depth == 0 => return RootState::Unreadable,
            Err(_) => {
                visit.unreadable(&folder);
                continue;
            }
        };
        for entry in entries.flatten() {
            let kind = entry.file_type();
            let plain = kind.as_ref().is_ok_and(|k| k.is_file());
            if plain && !visit.accepts(&entry.file_name()) {
                continue;
            }
            let path = entry.path();
            let stat = match fs::metadata(&path) {
                Ok(meta) => Stat::of(&meta),
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(_) => {
                    visit.unreadable(&path);
                    continue;
                }
            };
            if stat.is_dir {
                if depth < MAX_DEPTH && entered.insert(stat.id) {
                    open.push((path, stat.id, depth + 1));
                }
            } else if stat.is_file && (plain || visit.accepts(&entry.file_name())) {
                visit.file(path, stat);
            }
        }
    }
    RootState::Readable
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[derive(Default)]
    struct Seen {
        files: Vec<String>,
        folders: usize,
        unreadable: usize,
    }

    impl Visit for Seen {
        fn accepts(&self, name: &OsStr) -> bool {
            name.to_str().is_some_and(|n| n.ends_with(".jsonl"))
        }
        fn folder(&mut self, _: &Path, _: FileId) {
            self.folders += 1;
        }
        fn file(&mut self, path: PathBuf, _: Stat) {
            self.files.push(path.file_name().unwrap().to_str().unwrap().to_owned());
        }
        fn unreadable(&mut self, _: &Path) {
            self.unreadable += 1;
        }
    }

    #[test]
    fn loops_are_entered_once_and_what_cannot_be_read_is_counted() {
        let home = tempfile::tempdir().unwrap();
        let day = home.path().join("2026/08/01");
        fs::create_dir_all(&day).unwrap();
        fs::write(day.join("a.jsonl"), "x\n").unwrap();
        fs::write(day.join("a.txt"), "x\n").unwrap();
        symlink(home.path(), day.join("up")).unwrap();
        symlink("itself", day.join("itself")).unwrap();
        symlink("nowhere", day.join("dangling.jsonl")).unwrap();
        symlink(day.join("a.txt"), day.join("link.jsonl")).unwrap();
        let mut seen = Seen::default();
        assert_eq!(walk(home.path(), &mut seen), RootState::Readable);
        seen.files.sort();
        assert_eq!(seen.files, ["a.jsonl", "link.jsonl"]);
        assert_eq!((seen.folders, seen.unreadable), (4, 1));
        assert_eq!(walk(&home.path().join("none"), &mut seen), RootState::Missing);
        assert_eq!(walk(&day.join("a.txt"), &mut seen), RootState::Unreadable);
    }
}
