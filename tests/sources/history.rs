//! The first start on a home with history: facts are there, nothing is counted, nothing old has series.

use std::time::Duration;

use agent_session_exporter::event::Timestamp;

use super::folded::{files, read};
use super::recordings::recordings;
use super::running::{Home, age, clock_at, facts, scrape, shown, thread};
use crate::common::owner::sums;

const DAY_MS: i64 = 86_400_000;

#[test]
fn the_first_start_counts_no_history_and_shows_no_series_of_it() {
    let mut home = Home::new();
    let mut threads = Vec::new();
    for name in files("codex", ".rollout.jsonl").iter().filter(|n| !n.contains(".at_")) {
        threads.push(home.put(&read(name)));
    }
    // Three days later the grace of all is over, of those without an end too.
    home.clock = clock_at(Timestamp::parse("2026-12-02T20:00:00Z").unwrap());
    home.created = home.clock.now();
    let end = home.once();
    for thread in &threads {
        assert!(facts(&end, thread).is_some(), "{thread}");
    }
    assert_eq!(sums(&end), std::collections::BTreeMap::new());
    assert!(end.aggregates.histograms.is_empty());
    let families = scrape(&end, home.clock.now());
    assert_eq!(shown(&families), [""; 0]);
    let moved: Vec<_> = families
        .iter()
        .filter(|f| {
            f.kind != "gauge"
                && !f.name.starts_with("agent_session_exporter_")
                && !f.name.starts_with("process_")
        })
        .flat_map(|f| &f.samples)
        .filter(|s| s.value != 0.0)
        .collect();
    assert!(moved.is_empty(), "{moved:?}");
}

#[test]
fn what_lies_behind_the_age_is_not_read_and_a_fork_of_it_is_its_own() {
    let mut home = Home::new();
    home.max_age = Duration::from_secs(7 * 86_400);
    let parent = home.put(&read("public/codex/rollout-0.130.0-fork/parent.jsonl"));
    age(&home.rollout(&parent), home.clock, 30);
    let child = home.put(&read("public/codex/rollout-0.130.0-fork/child.jsonl"));
    let end = home.once();
    assert!(facts(&end, &parent).is_none());
    let own = facts(&end, &child).unwrap();
    assert_eq!((own.turns.started, own.turns.completed), (1, 1));
    assert_eq!(own.usage.input + own.usage.cache_read + own.usage.output, 30_300);
}

#[test]
fn what_happens_after_the_first_start_is_counted() {
    let bytes = read("codex/resume_two_runs.rollout.jsonl");
    let mut home = Home::new();
    // Between the two runs.
    let cut = super::running::behind(&bytes, "\"task_complete\"");
    let first = read_end(&bytes[..cut]);
    home.created = first.plus(1);
    home.put(&bytes);
    let end = home.once();
    let turns: i64 = sums(&end).iter().filter(|(k, _)| k.contains("Turn(")).map(|(_, n)| n).sum();
    assert_eq!(turns, 1);
    assert_eq!(facts(&end, &thread(&bytes)).unwrap().turns.completed, 2);
    assert!(home.clock.now().since(first) < 2 * DAY_MS);
}

/// When the last line was written.
fn read_end(bytes: &[u8]) -> Timestamp {
    let line = bytes.split(|b| *b == b'\n').rfind(|l| !l.is_empty()).unwrap();
    let line: serde_json::Value = serde_json::from_slice(line).unwrap();
    Timestamp::parse(line["timestamp"].as_str().unwrap()).unwrap()
}

#[test]
fn report_47_a_backfill_gives_one_sample_of_a_series_and_no_timestamps() {
    let mut folded = super::folded::Folded::default();
    for name in recordings() {
        folded.take(super::folded::decode(&read(&name), &name));
    }
    // The strict reader refuses a second sample of a series and anything behind a value.
    let families = scrape(&folded.snapshot(), Timestamp::parse("2026-11-29T15:20:00Z").unwrap());
    let shown = shown(&families).len();
    assert!(shown > 25, "{shown}");
}
