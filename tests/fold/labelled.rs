//! The labelled sessions: the signals, and the states derived from them, flag those that must be flagged and no other,
//! at every moment of judgement, with digests of outputs and without. Call by call the signals are what a plain reading
//! of their definitions gives.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use agent_session_exporter::event::Timestamp;
use agent_session_exporter::session::{Reason, State};
use serde::Deserialize;

use super::calls::{Around, Numbers, Row, Telling};

#[derive(Deserialize)]
struct Labels {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    file: String,
    root: String,
    verdict: String,
    now_ms: i64,
    #[serde(default)]
    file_lines: HashMap<String, u32>,
    #[serde(default)]
    checkpoints: Vec<Checkpoint>,
}

#[derive(Deserialize)]
struct Checkpoint {
    at_ms: i64,
    verdict: String,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/labelled")
}

fn cases() -> Vec<(Case, Vec<Row>)> {
    let labels: Labels =
        serde_json::from_str(&std::fs::read_to_string(folder().join("labels.json")).unwrap()).unwrap();
    let rows = |case: &Case| {
        let text = std::fs::read_to_string(folder().join(&case.file)).unwrap();
        let mut rows: Vec<Row> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        rows.sort_by_key(|r| r.ts_ms);
        rows
    };
    labels.cases.into_iter().map(|case| (rows(&case), case)).map(|(rows, case)| (case, rows)).collect()
}

fn around(case: &Case, digests: bool) -> Around {
    Around { root: case.root.clone(), file_lines: case.file_lines.clone(), digests, prompts: Vec::new() }
}

#[test]
fn loops_are_flagged_and_work_is_not() {
    let mut judged = 0;
    for (case, rows) in cases() {
        let last = [Checkpoint { at_ms: case.now_ms, verdict: case.verdict.clone() }];
        let moments = if case.checkpoints.is_empty() { &last[..] } else { &case.checkpoints };
        // Recognised tests and builds are advances besides; no verdict depends on it.
        for (digests, runners) in [(true, true), (true, false), (false, true), (false, false)] {
            for moment in moments {
                let around = around(&case, digests);
                let mut telling = Telling::new();
                let mut latest = i64::MIN;
                let events = telling.events(&rows, &around, runners);
                for (id, event) in (0..).zip(events.iter().filter(|e| e.ms <= moment.at_ms)) {
                    telling.tell(id, event);
                    latest = latest.max(event.ms);
                }
                let must = moment.verdict == "must_flag";
                let what = format!("{} at {}, digests {digests}, runners {runners}", case.file, moment.at_ms);
                let numbers = telling.numbers(&case.root);
                let now = Timestamp::from_millis(moment.at_ms);
                let snapshot = telling.story.snapshot();
                let slot = snapshot.roots().next().unwrap();
                let derived = snapshot.derive(&snapshot.rollup(slot, now).unwrap());
                let guard = moment.at_ms - latest < 900_000 && derived.state != State::WaitingForUser;
                assert_eq!(numbers.flag() && guard, must, "{what}: {numbers:?}");
                let loops = [Reason::Spinning, Reason::RepeatingError, Reason::SlowLoop];
                assert_eq!(loops.contains(&derived.reason), must, "{what}: {derived:?}");
                assert!(derived.since <= now, "{what}: {derived:?}");
                judged += 1;
            }
        }
    }
    assert_eq!(judged, 4 * 28);
}

#[test]
fn each_call_changes_the_signals_as_their_definitions_say() {
    for (case, rows) in cases() {
        for digests in [true, false] {
            let around = around(&case, digests);
            let mut telling = Telling::new();
            let events = telling.events(&rows, &around, false);
            for (id, event) in events.iter().enumerate() {
                telling.tell(id as u64, event);
                if events.get(id + 1).is_some_and(|next| next.ms == event.ms) {
                    continue;
                }
                if !telling.story.sessions.contains_key(&case.root) {
                    continue;
                }
                let judged = Numbers::judged(&rows, &around, event.ms);
                let what = format!("{} at {}, digests {digests}", case.file, event.ms);
                assert_eq!(telling.numbers(&case.root), judged, "{what}");
            }
        }
    }
}
