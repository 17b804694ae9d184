//! Files that are damaged anywhere, written in any pieces, read by any number of runs: every whole line counts once.

use std::collections::HashSet;
use std::fs;

use proptest::prelude::*;

use crate::harness::{Home, append, runtime, texts};

/// Something in a file.
#[derive(Clone, Debug)]
enum Part {
    /// A record with an end; every record has a number of its own.
    Line,
    /// Records on one line, with or without blanks.
    Several(usize, &'static str),
    /// Anything that is no record, on lines of its own.
    Damage(Vec<u8>),
    /// What was being written when the machine went, and what was written after.
    Cut(usize),
    /// A record between zeroes.
    Zeroes(usize),
    /// A record with a line end and a mark of another system.
    Foreign,
}

fn part() -> impl Strategy<Value = Part> {
    let separator = prop::sample::select(vec!["", " ", "\r", "\t\t", "\0\0"]);
    let noise = prop::sample::select(vec![b'x', b'"', b'}', b']', b',', b'\\', 0xff, 0, b' ', b'\r']);
    prop_oneof![
        4 => Just(Part::Line),
        2 => (2usize..5, separator).prop_map(|(n, s)| Part::Several(n, s)),
        2 => prop::collection::vec(noise, 0..40).prop_map(Part::Damage),
        2 => (1usize..20).prop_map(Part::Cut),
        1 => (0usize..600).prop_map(Part::Zeroes),
        1 => Just(Part::Foreign),
    ]
}

/// The bytes of a file and the records in it.
fn content(parts: &[Part]) -> (Vec<u8>, Vec<String>) {
    let (mut bytes, mut records) = (Vec::new(), Vec::new());
    let mut record = || {
        let text = format!("{{\"number\":{},\"text\":\"line\"}}", records.len());
        records.push(text.clone());
        text
    };
    for part in parts {
        match part {
            Part::Line => bytes.extend(format!("{}\n", record()).bytes()),
            Part::Several(n, between) => {
                let all: Vec<_> = (0..*n).map(|_| record()).collect();
                bytes.extend(format!("{}\n", all.join(between)).bytes());
            }
            Part::Damage(noise) => {
                bytes.extend(noise);
                bytes.push(b'\n');
            }
            Part::Cut(length) => {
                let cut = "{\"number\":\"cut in a text";
                bytes.extend(cut[..cut.len().min(13 + length)].bytes());
                bytes.extend(format!("{}\n", record()).bytes());
            }
            Part::Zeroes(n) => {
                bytes.resize(bytes.len() + n, 0);
                bytes.extend(record().bytes());
                bytes.resize(bytes.len() + n, 0);
                bytes.push(b'\n');
            }
            Part::Foreign => bytes.extend(format!("\u{feff}{}\r\n", record()).bytes()),
        }
    }
    (bytes, records)
}

/// How a file comes to be what it is: pieces that are appended, and after which of them a run ends.
fn schedule() -> impl Strategy<Value = Vec<(usize, bool)>> {
    prop::collection::vec((1usize..300, any::<bool>()), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_whole_line_counts_once(
        parts in prop::collection::vec(part(), 1..24),
        schedule in schedule(),
    ) {
        let (bytes, records) = content(&parts);
        let seen = runtime().block_on(async {
            let mut home = Home::new();
            let path = home.session("a");
            let (mut at, mut seen) = (0, Vec::new());
            for (length, restart) in schedule.iter().cycle() {
                let end = bytes.len().min(at + length * bytes.len().div_ceil(1000).max(1));
                append(&path, &bytes[at..end]);
                at = end;
                if *restart || at == bytes.len() {
                    seen.extend(home.once().await);
                }
                if at == bytes.len() {
                    break;
                }
            }
            assert_eq!(fs::read(&path).unwrap(), bytes);
            assert_eq!(home.once().await.len(), 0);
            seen
        });
        let texts = texts(&seen);
        let read: Vec<_> = texts.iter().filter_map(|t| t.split_once(':')).map(|(_, t)| t).collect();
        // Noise that is no object is a record to this decoder, unless it begins like one.
        let read: Vec<_> = read.into_iter().filter(|t| t.starts_with("{\"number\":")).collect();
        let expected: Vec<_> = records.iter().map(|r| r.chars().take(40).collect::<String>()).collect();
        prop_assert_eq!(&read, &expected);
        let ids: HashSet<_> = seen.iter().map(|e| e.id).collect();
        prop_assert!(ids.len() >= expected.len());
    }
}
