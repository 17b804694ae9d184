//! Reading what is known reads no file: neither of the home nor of the store.

use std::fs::{self, File, FileTimes};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::common::{Exporter, fixture};
use crate::{event, push};

/// Long before any of these files was written: the next read of one moves its access time, even where access times
/// are kept lazily.
fn long_ago() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)
}

fn files(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, out) } else { out.push(path) }
    }
}

fn unread(path: &Path) {
    File::open(path).unwrap().set_times(FileTimes::new().set_accessed(long_ago())).unwrap();
}

fn was_read(path: &Path) -> bool {
    fs::metadata(path).unwrap().accessed().unwrap() != long_ago()
}

#[test]
fn a_thousand_reads_read_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let (home, state) = (folder.path().join("home"), folder.path().join("state"));
    let sessions = home.join(".codex/sessions/2026/11/29");
    fs::create_dir_all(&sessions).unwrap();
    let control = sessions.join("rollout-2026-11-29T15-00-00-01a227dd-d360-7271-9b03-36dcd1251d99.jsonl");
    fs::write(&control, fixture("codex/edit_ok.rollout.jsonl")).unwrap();
    let exporter = Exporter::start(&home, &state, &[]).ready();
    push(&exporter, &event("1", "s", "turn.started", r#"{"trigger":"person"}"#));
    // The checkpoint of the session's row may follow its journal within a second.
    std::thread::sleep(Duration::from_millis(2500));

    let mut watched = Vec::new();
    files(&home, &mut watched);
    files(&state, &mut watched);
    assert!(watched.len() >= 3, "{watched:?}");
    watched.iter().for_each(|path| unread(path));
    for _ in 0..1000 {
        for path in ["/metrics", "/api/v1/sessions/mine/s/status", "/api/v1/sessions/mine/s/explain"] {
            assert_eq!(exporter.get(path).status, 200, "{path}");
        }
    }
    let read: Vec<_> = watched.iter().filter(|path| was_read(path)).collect();
    assert!(read.is_empty(), "read: {read:?}");
    // The method sees a read: one byte is enough.
    std::io::Read::read_exact(&mut File::open(&control).unwrap(), &mut [0]).unwrap();
    if !was_read(&control) {
        println!("not shown: this file system keeps no access times");
    }
}
