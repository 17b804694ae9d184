//! However a file grows, the same lines come out, in the right order; what the clock says changes little.

use std::fs::File;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;

use super::{Entry, Kernel, Options, Outcome, Polled, Tail, Wake};

/// 2026, in milliseconds.
const NOW: i64 = 1_780_000_000_000;

fn append(path: &Path, bytes: impl AsRef<[u8]>) {
    let mut file = File::options().append(true).create(true).open(path).unwrap();
    file.write_all(bytes.as_ref()).unwrap();
}

fn options(roots: &[&Path]) -> Options {
    Options {
        stream: super::file_name,
        roots: roots.iter().map(|r| r.to_path_buf()).collect(),
        accepts: |_| true,
        max_age_ms: i64::MAX,
        hash: Arc::new(|b| b.iter().fold(5381, |h, c| (h * 33 % 0xffff_fffb) ^ u64::from(*c))),
        complete: |_| false,
        poll_only: true,
        kernel: Kernel::default(),
    }
}

fn tail_of(root: &Path) -> Tail {
    Tail::new(options(&[root]), Arc::new(Wake::default()))
}

/// Makes a file look as if it had last been written so many seconds before [`NOW`].
fn age(path: &Path, seconds: i64) {
    let since_epoch = Duration::from_millis(u64::try_from(NOW - seconds * 1000).unwrap());
    let file = File::options().append(true).open(path).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + since_epoch).unwrap();
}

/// Looks once and reads everything there is, in slices of about `budget` bytes.
fn drain(tail: &mut Tail, budget: u64, lines: &mut Vec<Vec<u8>>) {
    tail.look(Duration::ZERO, NOW);
    while let Some((handle, _)) = tail.next_file() {
        let outcome = tail.read(handle, budget, &mut |line| {
            lines.push(line.bytes.to_vec());
            if budget == 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(outcome, Outcome::Slice(_)), "a file that only grows never starts again");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn in_one_go_or_piece_by_piece(
        content in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b' '), any::<u8>()], 0..400),
        pieces in prop::collection::vec(1usize..40, 1..12),
        budget in 1u64..64,
    ) {
        let whole = tempfile::tempdir().unwrap();
        append(&whole.path().join("f"), &content);
        let mut expected = Vec::new();
        drain(&mut tail_of(whole.path()), u64::MAX, &mut expected);

        let grown = tempfile::tempdir().unwrap();
        let path = grown.path().join("f");
        let mut tail = tail_of(grown.path());
        let (mut lines, mut at) = (Vec::new(), 0);
        for piece in pieces.iter().cycle() {
            let end = content.len().min(at + piece);
            append(&path, &content[at..end]);
            // A look at the file itself, without waiting for the next one that is due.
            tail.touch(&path, false, NOW);
            drain(&mut tail, budget, &mut lines);
            at = end;
            if at == content.len() {
                break;
            }
        }
        prop_assert_eq!(lines, expected);
    }
}

const DAY: i64 = 86_400;

#[test]
fn newest_first_and_live_before_history_over_all_roots() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (root, name, days) in [
        (&one, "d", 4),
        (&one, "b", 2),
        (&two, "c", 3),
        (&two, "a", 1),
        (&two, "live", 0),
        (&one, "future", -3),
    ] {
        let path = root.path().join(name);
        append(&path, format!("{name}\n"));
        age(&path, days * DAY);
    }
    let mut tail = Tail::new(options(&[one.path(), two.path()]), Arc::new(Wake::default()));
    let mut lines = Vec::new();
    drain(&mut tail, u64::MAX, &mut lines);
    let lines: Vec<_> = lines.iter().map(|l| String::from_utf8_lossy(l).into_owned()).collect();
    assert_eq!(lines, ["future", "live", "a", "b", "c", "d"]);
}

#[test]
fn what_grows_is_live_whatever_the_clocks_say() {
    let root = tempfile::tempdir().unwrap();
    let (path, old) = (root.path().join("f"), root.path().join("old"));
    append(&path, "1\n");
    append(&old, "old\n");
    age(&old, 30 * DAY);
    let mut options = options(&[root.path()]);
    options.max_age_ms = 7 * DAY * 1000;
    let (mut tail, mut lines) = (Tail::new(options, Arc::new(Wake::default())), Vec::new());
    drain(&mut tail, u64::MAX, &mut lines);
    assert_eq!(lines, [b"1".to_vec()]);
    // Wall time goes back, ahead by months, and to the epoch; the file's own time stands still.
    for (i, now) in [NOW - 5 * 3_600_000, NOW + 100 * DAY * 1000, 0].into_iter().enumerate() {
        append(&path, format!("{}\n", i + 2));
        age(&path, 60);
        tail.touch(&path, false, now);
        assert!(tail.has_live(), "at {now}");
        drain(&mut tail, u64::MAX, &mut lines);
    }
    assert_eq!(lines.len(), 4);
    append(&old, "new\n");
    age(&old, 30 * DAY);
    tail.touch(&old, false, NOW);
    drain(&mut tail, u64::MAX, &mut lines);
    assert_eq!(lines[4..], [b"old".to_vec(), b"new".to_vec()], "from its head");
    // A touch alone is no growth.
    age(&old, 29 * DAY);
    tail.touch(&old, false, NOW);
    assert!(!tail.has_work());
}

#[test]
fn that_a_root_is_polled_is_told_once_until_it_has_recovered() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("folder")).unwrap();
    let room = Arc::new(AtomicUsize::new(1));
    let rooms = room.clone();
    let mut options = options(&[root.path(), &root.path().join("none")]);
    options.poll_only = false;
    options.kernel.room = Arc::new(move || rooms.load(Ordering::SeqCst));
    let mut tail = Tail::new(options, Arc::new(Wake::default()));
    let mut told = |room_now: usize| {
        room.store(room_now, Ordering::SeqCst);
        tail.sweep(NOW);
        (std::mem::take(&mut tail.look.polled), tail.watched_roots())
    };
    assert_eq!(told(1), (vec![(0, Some(Polled::NoWatches))], (0, 1)), "one that is missing is not counted");
    assert_eq!(told(1), (vec![], (0, 1)));
    assert_eq!(told(9), (vec![(0, None)], (1, 0)));
    assert_eq!(told(9), (vec![], (1, 0)));
    std::fs::create_dir(root.path().join("another")).unwrap();
    assert_eq!(told(0), (vec![(0, Some(Polled::NoWatches))], (0, 1)));
}

#[test]
fn a_kernel_that_gave_nothing_is_asked_again() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("f");
    append(&path, "1\n");
    let room = Arc::new(AtomicUsize::new(0));
    let rooms = room.clone();
    let mut options = options(&[root.path()]);
    options.poll_only = false;
    options.kernel.room = Arc::new(move || rooms.load(Ordering::SeqCst));
    let (mut tail, mut lines) = (Tail::new(options, Arc::new(Wake::default())), Vec::new());
    drain(&mut tail, u64::MAX, &mut lines);
    assert_eq!(tail.watched_roots(), (0, 1));
    room.store(9, Ordering::SeqCst);
    tail.sweep(NOW);
    assert_eq!(tail.watched_roots(), (1, 0));
    // And it tells: no look at the files is due.
    append(&path, "2\n");
    tail.next_sweep += Duration::from_secs(60);
    tail.next_recent += Duration::from_secs(60);
    let began = std::time::Instant::now();
    while !tail.has_work() && began.elapsed() < Duration::from_secs(20) {
        tail.look(Duration::from_secs(1), NOW);
    }
    drain(&mut tail, u64::MAX, &mut lines);
    assert_eq!(lines, [b"1".to_vec(), b"2".to_vec()]);
}

#[test]
fn a_followed_file_is_small() {
    // Beside its path and name: 4,000 of them are no matter.
    assert!(size_of::<Entry>() <= 320, "{}", size_of::<Entry>());
}
