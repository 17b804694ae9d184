//! Signals of recorded runs: those that went in circles show it, also when a script hides their calls; honest ones, and
//! those that poll, are never taken for stuck.

use agent_session_exporter::event::{Event, Timestamp};
use agent_session_exporter::session::{Reason, Signals};
use serde_json::Value;

use super::folded::{Folded, decode, derived, read};
use super::recordings::recordings;

const LOOPS: [Reason; 3] = [Reason::Spinning, Reason::RepeatingError, Reason::SlowLoop];

/// The signals of the only root.
pub(crate) fn signals(folded: &Folded) -> Signals {
    let snapshot = folded.snapshot();
    let root = snapshot.roots().next().unwrap();
    *snapshot.rollup(root, folded.last()).unwrap().signals()
}

/// Folds one event after the other; the last reason for which it was taken for a loop, and the signals at the end.
fn replayed(events: Vec<Event>) -> (Option<Reason>, Signals) {
    let mut folded = Folded::default();
    let mut found = None;
    for event in events {
        folded.take(vec![event]);
        let reason = derived(&folded.snapshot(), folded.last()).reason;
        found = LOOPS.contains(&reason).then_some(reason).or(found);
    }
    (found, signals(&folded))
}

/// A recording whose lines that `of_loop` names come `times` times, each round `pause` ms later and under ids of its
/// own, as if it had gone on.
fn prolonged(
    name: &str,
    of_loop: &[usize],
    times: i64,
    pause: i64,
    edit: fn(&mut String, i64),
) -> Vec<Event> {
    let bytes = read(name);
    let lines: Vec<&str> = std::str::from_utf8(&bytes).unwrap().lines().collect();
    let mut text = String::new();
    for (n, line) in lines.iter().enumerate() {
        if n == of_loop[0] {
            for round in 0..times {
                for at in of_loop {
                    let mut record: Value = serde_json::from_str(lines[*at]).unwrap();
                    let time = Timestamp::parse(record["timestamp"].as_str().unwrap()).unwrap();
                    record["timestamp"] = time.plus(round * pause).to_string().into();
                    for field in ["started_at_ms", "completed_at_ms"] {
                        if let Some(ms) = record["payload"][field].as_i64() {
                            record["payload"][field] = (ms + round * pause).into();
                        }
                    }
                    let mut line = record.to_string();
                    for id in ["call_0000_0", "call_0001_0", "exec-96600d5f-e1ee-49ec-a301-8ff18312754d"] {
                        line = line.replace(id, &format!("{id}-{round}"));
                    }
                    edit(&mut line, round);
                    text.push_str(&line);
                    text.push('\n');
                }
            }
        } else if n < of_loop[0] {
            text.push_str(line);
            text.push('\n');
        }
    }
    decode(text.as_bytes(), "named-by-file")
}

/// Places of the lines that hold this text.
fn lines_with(name: &str, text: &str) -> Vec<usize> {
    let bytes = read(name);
    let lines = std::str::from_utf8(&bytes).unwrap().lines().enumerate();
    lines.filter(|(_, line)| line.contains(text)).map(|(n, _)| n).collect()
}

const AS_IT_IS: fn(&mut String, i64) = |_, _| {};

#[test]
fn twelve_equal_reads_show_as_what_they_are() {
    let seen = signals(&Folded::of("codex/loop_reads.rollout.jsonl"));
    assert_eq!((seen.calls_since_progress, seen.window_calls, seen.nothing_new), (12, 12, 11));
    assert_eq!((seen.repeated_call_max, seen.call_streak, seen.cycle_repeats), (11, 12, 12));
    assert_eq!(seen.error_streak, 0);
}

#[test]
fn equal_reads_that_go_on_spin() {
    let name = "codex/loop_reads.rollout.jsonl";
    let read = lines_with(name, "\"call_0000_0\"");
    assert_eq!(read.len(), 3, "call, record and output");
    let (found, seen) = replayed(prolonged(name, &read, 20, 600, AS_IT_IS));
    assert_eq!((found, seen.window_calls), (None, 20));
    let (found, seen) = replayed(prolonged(name, &read, 21, 600, AS_IT_IS));
    assert_eq!((found, seen.repeated_call_max), (Some(Reason::SlowLoop), 20));
    let (found, seen) = replayed(prolonged(name, &read, 40, 600, AS_IT_IS));
    assert_eq!((found, seen.nothing_new), (Some(Reason::Spinning), 39));
}

#[test]
fn a_script_hides_no_loop() {
    let name = "codex/code_mode.rollout.jsonl";
    let mut script = lines_with(name, "\"call_0000_0\"");
    script.extend(lines_with(name, "exec-96600d5f"));
    script.sort_unstable();
    assert_eq!(script.len(), 3);
    // The script is another text each time; the command in it is not.
    let rename: fn(&mut String, i64) =
        |line, round| *line = line.replace("const r", &format!("const r{round}"));
    let (found, seen) = replayed(prolonged(name, &script, 40, 600, rename));
    assert_eq!((found, seen.calls_since_progress, seen.nothing_new), (Some(Reason::Spinning), 40, 39));
}

#[test]
fn calls_of_a_script_stand_for_it() {
    let folded = Folded::of("codex/code_mode.rollout.jsonl");
    let facts = folded.facts();
    // The test passed in the second script; in the third two commands ran side by side.
    let seen = signals(&folded);
    assert_eq!((facts.calls.total, seen.calls_since_progress, seen.nothing_new), (3, 2, 0));
}

#[test]
fn polls_are_told_apart_from_what_they_wait_for() {
    let name = "codex/long_command_polls.rollout.jsonl";
    let seen = signals(&Folded::of(name));
    assert_eq!((seen.calls_since_progress, seen.distinct_keys, seen.error_streak), (4, 2, 1));
    // Each poll but the last, which failed, brought other output.
    assert_eq!(seen.nothing_new, 0);
    let poll = lines_with(name, "\"call_0001_0\"");
    assert_eq!(poll.len(), 2);
    let (found, hurried) = replayed(prolonged(name, &poll, 45, 6_000, AS_IT_IS));
    assert_eq!((found, hurried.nothing_new), (Some(Reason::Spinning), 44));
    let (found, paced) = replayed(prolonged(name, &poll, 45, 40_000, AS_IT_IS));
    assert_eq!((found, paced.nothing_new, paced.repeated_call_max), (None, 0, 0));
}

#[test]
fn no_recorded_run_is_taken_for_a_loop() {
    let mut judged = 0;
    for name in recordings() {
        let events = decode(&read(&name), "named-by-file");
        // Some hold several sessions, of which each is judged with its own tree.
        let mut folded = Folded::default();
        for event in events {
            folded.take(vec![event]);
            let snapshot = folded.snapshot();
            for root in snapshot.roots() {
                let found = snapshot.derive(&snapshot.rollup(root, folded.last()).unwrap());
                assert!(!LOOPS.contains(&found.reason), "{name}: {found:?}");
            }
        }
        judged += 1;
    }
    assert!(judged > 90, "{judged}");
}
