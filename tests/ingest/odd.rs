//! Names, links, folders and rights as they are on disks.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use agent_session_exporter::sources::files::FileSource;
use rustix::fs::{FileType, Mode};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::harness::{COUNTING, Home, append, bare, counted, lines, runtime, texts};

const QUIET: Duration = Duration::from_millis(800);

fn pipe(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pipes_sockets_and_folders_with_the_name_of_a_file_hold_nothing_up() {
    let mut home = Home::new();
    append(&home.session("a"), lines(1, 2));
    pipe(&home.session("pipe"));
    let _socket = UnixListener::bind(home.session("socket")).unwrap();
    symlink("/dev/zero", home.session("device")).unwrap();
    fs::create_dir(home.session("folder")).unwrap();
    append(&home.session("folder").join("r-inside.jsonl"), lines(3, 3));
    let mut running = home.start();
    running.scanned().await;
    // And one that comes while we look, in the place of a file.
    fs::remove_file(running.home().session("a")).unwrap();
    pipe(&running.home().session("a"));
    pipe(&running.home().session("later"));
    append(&running.home().session("b"), lines(4, 4));
    running.until(|r| r.texts().iter().any(|t| t == "session.deleted") && r.events.len() >= 5).await;
    let seen = bare(&running.end().await);
    assert_eq!(seen, ["line 1", "line 2", "line 3", "line 4", "session.deleted"]);
    assert_eq!(home.errors("unreadable"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_with_several_paths_counts_once() {
    let mut home = Home::new();
    let path = home.session("a");
    append(&path, lines(1, 2));
    fs::hard_link(&path, home.path("archived/r-hard.jsonl")).unwrap();
    symlink(&path, home.path("archived/r-soft.jsonl")).unwrap();
    symlink(home.path("sessions"), home.path("archived/again")).unwrap();
    symlink(home.path("archived"), home.path("sessions/2026/round")).unwrap();
    let outside = home.path("outside.jsonl");
    append(&outside, "outside 1\n");
    symlink(&outside, home.session("outside")).unwrap();
    let mut running = home.start();
    running.scanned().await;
    // Written through either path, the file grows.
    append(&running.home().path("archived/r-hard.jsonl"), lines(3, 3));
    running.events(4).await;
    append(&path, lines(4, 4));
    append(&outside, "outside 2\n");
    running.events(6).await;
    running.rest(QUIET).await;
    // One path goes, the file stays.
    let held = running.home().path("archived/r-hard.jsonl");
    fs::remove_file(&path).unwrap();
    append(&held, lines(5, 5));
    running.until(|r| r.texts().iter().any(|t| t.ends_with("line 5"))).await;
    running.rest(QUIET).await;
    let events = running.end().await;
    let mut ids: Vec<_> = events.iter().map(|e| e.id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 7, "{:?}", texts(&events));
    assert!(!texts(&events).iter().any(|t| t == "session.deleted"), "it has a path still");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_moves_while_it_grows_is_the_same() {
    let mut home = Home::new();
    let path = home.session("a");
    append(&path, lines(1, 1));
    let mut running = home.start();
    running.scanned().await;
    // To another folder of its root, to one that comes with it, to another root, and back.
    let mut at = path.clone();
    for (i, to) in
        ["sessions/2026/r-a.jsonl", "sessions/new/x/r-a.jsonl", "archived/y/r-a.jsonl"].iter().enumerate()
    {
        let to = running.home().path(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        append(&at, lines(2 * i + 2, 2 * i + 2));
        fs::rename(&at, &to).unwrap();
        append(&to, lines(2 * i + 3, 2 * i + 3));
        at = to;
        running.events(2 * i + 3).await;
    }
    fs::rename(&at, &path).unwrap();
    append(&path, lines(8, 8));
    running.events(8).await;
    running.rest(QUIET).await;
    // And while nobody looks.
    assert_eq!(texts(&running.end().await), counted(1, 8));
    fs::rename(&path, home.path("archived/r-a.jsonl")).unwrap();
    append(&home.path("archived/r-a.jsonl"), lines(9, 9));
    assert_eq!(texts(&home.once().await), counted(9, 9));
    assert_eq!(home.cursors.len(), 1);
}

/// As [`COUNTING`], with streams that are called by their folder, too.
const BY_FOLDER: FileSource = FileSource {
    stream: |path| {
        let folder = path.parent()?.file_name()?.to_str()?;
        Some(format!("{folder}/{}", path.file_name()?.to_str()?))
    },
    ..COUNTING
};

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_becomes_another_stream_is_not_deleted() {
    let mut home = Home::new();
    let path = home.session("a");
    append(&path, lines(1, 3));
    let mut running = home.start_with(BY_FOLDER, 64);
    running.scanned().await;
    let to = running.home().path("archived/r-a.jsonl");
    fs::rename(&path, &to).unwrap();
    append(&to, lines(4, 4));
    running.until(|r| r.texts().iter().any(|t| t.ends_with("line 4"))).await;
    running.rest(QUIET).await;
    // The new stream begins at its head: the same records under the same ids.
    assert_eq!(running.texts(), [counted(1, 3), counted(1, 4)].concat());
    assert_eq!(running.events[0].id, running.events[3].id);
    // A real end is said, also where the inode serves another file at once.
    fs::remove_file(&to).unwrap();
    append(&path, "another\n");
    running.until(|r| r.texts().iter().any(|t| t == "session.deleted")).await;
    running.until(|r| r.texts().iter().any(|t| t == "1:another")).await;
    running.end().await;
    assert_eq!(home.cursors.len(), 1);
    // Nothing of it is taken for deleted by the next run.
    let mut running = home.start_with(BY_FOLDER, 64);
    running.rest(Duration::from_secs(3)).await;
    assert_eq!(running.end().await.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_made_anew_under_its_name_is_read_from_its_head() {
    let mut home = Home::new();
    let path = home.session("a");
    append(&path, lines(1, 3));
    let mut running = home.start();
    running.scanned().await;
    for i in 0..5 {
        fs::remove_file(&path).unwrap();
        append(&path, format!("life {i}\nline 2\nline 3\nline 4\n"));
        running.until(|r| r.texts().iter().any(|t| *t == format!("1:life {i}"))).await;
        running.rest(Duration::from_millis(100)).await;
    }
    let texts = texts(&running.end().await);
    assert_eq!(texts.iter().filter(|t| *t == "4:line 4").count(), 5, "{texts:?}");
}

/// Takes from this thread, and what it starts, the right to read whatever it likes, if it is root.
fn become_ordinary() {
    let mut sets = capabilities(None).unwrap();
    let all = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    sets.effective.remove(all);
    sets.permitted.remove(all);
    sets.inheritable.remove(all);
    set_capabilities(None, sets).unwrap();
}

#[test]
fn files_of_others_are_counted_once_and_read_when_they_may_be() {
    let test = || {
        become_ordinary();
        runtime().block_on(async {
            let mut home = Home::new();
            let rights = |path: &Path, mode| {
                fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            };
            let (file, folder) = (home.session("secret"), home.path("sessions/2026/closed"));
            append(&home.session("a"), lines(1, 1));
            append(&file, "secret\n");
            fs::create_dir(&folder).unwrap();
            append(&folder.join("r-closed.jsonl"), "closed\n");
            rights(&file, 0o000);
            rights(&folder, 0o000);
            let mut running = home.start();
            running.scanned().await;
            append(&running.home().session("a"), lines(2, 2));
            running.events(2).await;
            // Some sweeps later it is still two of them.
            append(&running.home().session("secret-too"), lines(3, 3));
            running.rest(Duration::from_secs(7)).await;
            assert_eq!(running.home().errors("unreadable"), 2);
            assert_eq!(running.home().watched(), (2, 0), "what cannot be listed is not polled for");
            rights(&file, 0o600);
            running.until(|r| r.texts().iter().any(|t| t.ends_with("secret"))).await;
            rights(&folder, 0o700);
            running.until(|r| r.texts().iter().any(|t| t.ends_with("closed"))).await;
            // A file that may no longer be read is not deleted.
            rights(&folder, 0o000);
            running.rest(Duration::from_secs(6)).await;
            let seen = bare(&running.end().await);
            assert_eq!(seen, ["closed", "line 1", "line 2", "line 3", "secret"]);
            rights(&folder, 0o700);
        });
    };
    // A thread of its own: the others keep their rights.
    std::thread::spawn(test).join().unwrap();
}
