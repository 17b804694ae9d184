//! Recordings as crashes, editors, copies and clocks leave them: what is whole counts, and counts the same.

use std::fs;

use agent_session_exporter::event::Timestamp;

use super::home::{known, read_at_once, recording};
use super::running::{Home, append, clock_at, facts};

const NAMES: &[&str] =
    &["edit_ok.rollout", "resume_two_runs.rollout", "as_interrupt.rollout", "as_two_turns_idle.rollout"];

fn lines(bytes: &[u8]) -> Vec<&[u8]> {
    bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty()).collect()
}

#[test]
fn other_line_ends_give_the_same_facts() {
    for name in NAMES {
        let bytes = recording(name);
        let lines = lines(&bytes);
        let zeroes = [0; 700];
        let by_two =
            |between: &[u8]| lines.chunks(2).map(|c| c.join(between)).collect::<Vec<_>>().join(&b'\n');
        let forms = [
            [b"\xef\xbb\xbf", &lines.join(&b"\r\n"[..])[..]].concat(),
            lines.join(&b"\r"[..]),
            lines.join(&[b"\n", &zeroes[..], b"\n"].concat()[..]),
            lines.join(&[b"\n", &zeroes[..]].concat()[..]),
            by_two(b""),
            by_two(b" "),
            by_two(&zeroes),
        ];
        let whole = known(&read_at_once(&[&bytes]));
        for (i, form) in forms.iter().enumerate() {
            assert_ne!(form.last(), Some(&b'\n'), "nor has the last line an end");
            let home = Home::new();
            append(&home.rollout(&super::running::thread(&bytes)), form);
            let running = home.start();
            running.until("scanned", |s| s.scanned);
            assert_eq!(running.errors("json"), 0, "{name}, form {i}");
            assert_eq!(known(&running.end()), whole, "{name}, form {i}");
        }
    }
}

#[test]
fn damage_beside_the_records_is_counted_and_changes_nothing() {
    let bytes = recording("edit_ok.rollout");
    let whole = known(&read_at_once(&[&bytes]));
    let home = Home::new();
    let path = home.rollout(&super::running::thread(&bytes));
    for line in lines(&bytes) {
        // A cut copy before each record, and something behind it on its line.
        append(&path, [&line[..line.len() / 2], b"\0\0\0", line, b" and more\n"].concat());
    }
    let running = home.start();
    running.until("scanned", |s| s.scanned);
    assert_eq!(running.errors("json"), 2 * lines(&bytes).len() as u64);
    assert_eq!(known(&running.end()), whole);
}

#[test]
fn text_that_is_no_utf_8_takes_no_record_with_it() {
    let bytes = recording("edit_ok.rollout");
    let mut damaged = bytes.clone();
    let mut hits = 0;
    // The first letters of messages.
    let text = b"\"text\":\"";
    for at in 0..damaged.len() - text.len() {
        if damaged[at..].starts_with(text) && damaged[at + text.len()].is_ascii_alphabetic() {
            damaged[at + text.len()] = 0xff;
            hits += 1;
        }
    }
    assert!(hits > 0);
    let home = Home::new();
    let thread = home.put(&damaged);
    let running = home.start();
    running.until("scanned", |s| s.scanned);
    assert_eq!(running.errors("json"), 0);
    let (own, other) = (running.end(), read_at_once(&[&bytes]));
    let (own, other) = (facts(&own, &thread).unwrap(), facts(&other, &thread).unwrap());
    assert_eq!((&own.turns, &own.calls, &own.usage), (&other.turns, &other.calls, &other.usage));
}

#[test]
fn a_file_cut_back_by_its_writer_counts_nothing_twice() {
    for name in NAMES {
        let bytes = recording(name);
        let home = Home::new();
        let thread = home.put(&bytes);
        let path = home.rollout(&thread);
        let running = home.start();
        running.until("scanned", |s| s.scanned);
        let before = running.life.snapshot();
        let lines = lines(&bytes);
        let keep: usize = lines[..lines.len() * 2 / 3].iter().map(|l| l.len() + 1).sum();
        // Cut to a line and written on, once while we look and once between two looks.
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(keep as u64).unwrap();
        running.rest(300);
        append(&path, &bytes[keep..]);
        running.rest(800);
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(keep as u64).unwrap();
        append(&path, &bytes[keep..]);
        running.rest(800);
        assert_eq!(known(&running.life.snapshot()), known(&before), "{name}");
        running.end();
        assert_eq!(known(&home.once()), known(&before), "{name}, after a restart");
    }
}

#[test]
fn times_ahead_of_our_clock_move_none() {
    let bytes = recording("edit_ok.rollout");
    let first = Timestamp::parse(
        serde_json::from_slice::<serde_json::Value>(lines(&bytes)[0]).unwrap()["timestamp"].as_str().unwrap(),
    )
    .unwrap();
    // The clock of this machine stands hours before the writer's, then two minutes.
    for (behind_ms, skewed) in [(3 * 3_600_000, true), (120_000, false)] {
        let mut home = Home::new();
        home.clock = clock_at(first.plus(-behind_ms));
        let thread = home.put(&bytes);
        let running = home.start();
        let snapshot = running.until("scanned", |s| s.scanned);
        let now = home.clock.now();
        let own = facts(&snapshot, &thread).unwrap();
        assert_eq!((own.turns.started, own.turns.completed), (1, 1), "it counts all the same");
        assert_eq!(running.life.telemetry.clock_skew.get() > 0, skewed);
        assert!(own.calls.total > 0);
        if skewed {
            assert!(own.last_heard() <= now, "{:?}", own.last_heard());
        }
        // However the clocks stand, there is a state, and no age is negative.
        let families = super::running::scrape(&snapshot, now);
        let ages = families.iter().filter(|f| f.name.contains("_seconds_since_"));
        for sample in ages.flat_map(|f| &f.samples) {
            assert!(sample.value >= 0.0, "{sample:?}");
        }
        running.end();
    }
}

#[test]
fn records_without_times_count_and_move_no_clock() {
    let bytes = recording("edit_ok.rollout");
    let undated: Vec<_> = lines(&bytes)
        .iter()
        .map(|line| {
            let mut line: serde_json::Value = serde_json::from_slice(line).unwrap();
            line.as_object_mut().unwrap().remove("timestamp");
            line.to_string() + "\n"
        })
        .collect();
    let home = Home::new();
    append(&home.rollout(&super::running::thread(&bytes)), undated.concat());
    let snapshot = home.once();
    let own = facts(&snapshot, &super::running::thread(&bytes)).unwrap();
    let whole = read_at_once(&[&bytes]);
    let whole = facts(&whole, &super::running::thread(&bytes)).unwrap();
    assert_eq!(own.calls.total, whole.calls.total);
    assert_eq!(own.usage.output, whole.usage.output);
}
