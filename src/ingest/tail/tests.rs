//! However a file grows, the same lines come out.

use std::fs::File;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::{Options, Outcome, Tail, Wake};

/// 2026, in milliseconds.
const NOW: i64 = 1_780_000_000_000;

fn append(path: &Path, bytes: impl AsRef<[u8]>) {
    let mut file = File::options().append(true).create(true).open(path).unwrap();
    file.write_all(bytes.as_ref()).unwrap();
}

fn tail_of(root: &Path) -> Tail {
    let options = Options {
        stream: super::file_name,
        roots: vec![root.to_owned()],
        accepts: |_| true,
        max_age_ms: i64::MAX,
        hash: Arc::new(|b| b.iter().fold(5381, |h, c| (h * 33 % 0xffff_fffb) ^ u64::from(*c))),
        poll_only: true,
    };
    Tail::new(options, Arc::new(Wake::default()))
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

#[test]
fn newest_first_and_live_before_history() {
    let root = tempfile::tempdir().unwrap();
    for (name, days) in [("c", 3), ("a", 1), ("b", 2), ("live", 0)] {
        let path = root.path().join(name);
        append(&path, format!("{name}\n"));
        let modified =
            std::time::UNIX_EPOCH + Duration::from_millis(NOW as u64) - days * Duration::from_secs(86_400);
        File::options().append(true).open(&path).unwrap().set_modified(modified).unwrap();
    }
    let (mut tail, mut lines) = (tail_of(root.path()), Vec::new());
    drain(&mut tail, u64::MAX, &mut lines);
    assert_eq!(lines, [b"live".to_vec(), b"a".to_vec(), b"b".to_vec(), b"c".to_vec()]);
}
