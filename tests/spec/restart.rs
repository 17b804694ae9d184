//! The store underneath: an exporter that ends in the middle of a run counts on where it was.

use agent_session_exporter::event::{Event, SourceId, Timestamp};
use agent_session_exporter::session::{Facts, Snapshot};
use agent_session_exporter::sources::spec::Status;
use agent_session_exporter::store::Options;

use crate::common::disk::Disk;
use crate::common::owner::{self, Life, facts, now, options, sums};
use crate::stand::{RUNS, SHOP, at, decode, engine_events, lines, moved, status};

/// The contents of a run's status file, as if they were written now.
fn contents(run: &str, start: Timestamp) -> Vec<(serde_json::Value, Timestamp)> {
    let lines = lines(&format!("{run}.status.ndjson"));
    let by = start.plus(2_000).since(at(&lines[0]));
    lines.iter().map(|line| (moved(&line["snapshot"], by), at(line).plus(by))).collect()
}

fn life(disk: &Disk) -> Life {
    let spec = vec![SourceId::from("spec")];
    Life::with(owner::open(disk), Options { file_sources: spec, ..options() })
}

fn feed(life: &Life, decoder: &mut Status, contents: &[(serde_json::Value, Timestamp)]) {
    for (content, mtime) in contents {
        life.read(decode(decoder, content, *mtime), 5, 1);
    }
}

fn picture(snapshot: &Snapshot) -> (Option<Facts>, Vec<(String, i64)>) {
    let own =
        facts(snapshot, "spec", SHOP).map(|f| Facts { first_seen: Timestamp::default(), ..(*f).clone() });
    (
        own,
        sums(snapshot)
            .into_iter()
            .filter(|(key, _)| key.contains("Orchestration") || key.contains("Progress"))
            .collect(),
    )
}

fn wait(life: &Life, until: Timestamp) {
    life.until("all of it", |s| facts(s, "spec", SHOP).is_some_and(|f| f.last_seen >= Some(until)));
}

#[test]
fn a_restart_in_the_middle_changes_no_count() {
    for run in RUNS {
        let (start, straight, broken) = (now(), Disk::default(), Disk::default());
        let whole = life(&straight);
        let parts = life(&broken);
        let contents = contents(run, start);
        let middle = contents.len() / 2;
        feed(&whole, &mut status(), &contents);
        let mut decoder = status();
        feed(&parts, &mut decoder, &contents[..middle]);
        if middle > 0 {
            wait(&parts, contents[middle - 1].1);
        }
        parts.end();
        let parts = life(&broken);
        // The new process knows what the old one kept, and reads the file as it is then.
        let mut decoder = status().restored(&decoder.checkpoint());
        feed(&parts, &mut decoder, &contents[middle.saturating_sub(1)..]);
        let end = contents.last().unwrap().1;
        wait(&whole, end);
        wait(&parts, end);
        let (whole, parts) = (picture(&whole.end()), picture(&parts.end()));
        assert_eq!(whole.1, parts.1, "{run}");
        assert_eq!(whole.0, parts.0, "{run}");
        assert!(run.contains("cycle") || !whole.1.is_empty());
    }
}

/// The engine's events, and a restart after each ten of them.
#[test]
fn a_restart_at_each_tenth_event_changes_no_count() {
    for run in &RUNS[..2] {
        let start = now();
        let mut events = engine_events(run);
        events.sort_by_key(|event| event.time);
        let by = start.since(events[0].time.unwrap());
        for event in &mut events {
            event.time = event.time.map(|t| t.plus(by));
            event.observed = start;
        }
        let (straight, broken) = (Disk::default(), Disk::default());
        let (whole, mut parts) = (life(&straight), life(&broken));
        whole.pushed(events.clone()).unwrap();
        let mut restarts = 0;
        for part in events.chunks(10) {
            assert_eq!(parts.pushed(part.to_vec()).unwrap().accepted, part.len() as u64, "{run}");
            parts.end();
            parts = life(&broken);
            restarts += 1;
        }
        assert!(restarts > 5, "{restarts}");
        assert_eq!(parts.pushed(events.clone()).unwrap().duplicate, events.len() as u64, "{run}");
        let (whole, parts) = (picture(&whole.end()), picture(&parts.end()));
        assert_eq!(parts, whole, "{run}");
        assert!(!whole.1.is_empty());
    }
}

#[test]
fn what_happened_while_the_exporter_was_down_counts_once() {
    let run = "3.0.0-mixed";
    let (start, straight, broken) = (now(), Disk::default(), Disk::default());
    let contents = contents(run, start);
    let whole = life(&straight);
    feed(&whole, &mut status(), &contents);
    let mut decoder = status();
    let parts = life(&broken);
    feed(&parts, &mut decoder, &contents[..3]);
    wait(&parts, contents[2].1);
    parts.end();
    let parts = life(&broken);
    let mut decoder = status().restored(&decoder.checkpoint());
    feed(&parts, &mut decoder, &contents[contents.len() - 1..]);
    let end = contents.last().unwrap().1;
    wait(&whole, end);
    wait(&parts, end);
    assert_eq!(picture(&parts.end()).1, picture(&whole.end()).1);
}

#[test]
fn a_run_that_began_before_counting_did_only_counts_what_is_seen_to_happen() {
    let disk = Disk::default();
    let life = life(&disk);
    // Began two minutes before the store was made; the first look is in the middle.
    let contents = contents("3.0.0-mixed", now().plus(-120_000));
    let mut decoder = status();
    feed(&life, &mut decoder, &contents[15..16]);
    let first = contents[15].1;
    wait(&life, first);
    assert_eq!(picture(&life.snapshot()).1, []);
    let run = facts(&life.snapshot(), "spec", SHOP).unwrap();
    assert_eq!(run.orchestration.as_ref().unwrap().totals().signals, 3);
    // Rewritten after the store was made: what is new is counted.
    let (last, _) = contents.last().unwrap();
    life.read(decode(&mut decoder, last, now().plus(1_000)), 5, 2);
    life.until("the end", |s| {
        facts(s, "spec", SHOP).is_some_and(|f| f.orchestration.as_ref().unwrap().ended.is_some())
    });
    let counted = picture(&life.end()).1;
    let of = |what: &str| counted.iter().filter(|(key, _)| key.contains(what)).map(|(_, n)| *n).sum::<i64>();
    assert_eq!((of("LimitSignal"), of("Recovered"), of("Spec(Skipped)")), (0, 2, 1));
}

#[test]
fn the_sessions_of_specs_survive_in_the_journal() {
    let disk = Disk::default();
    let first = life(&disk);
    let start = now();
    let events = engine_events("3.0.0-mixed");
    let by = start.since(events[0].time.unwrap());
    let shifted: Vec<Event> = events
        .into_iter()
        .map(|mut event| {
            event.time = event.time.map(|t| t.plus(by));
            event.observed = start;
            event
        })
        .collect();
    let count = shifted.len() as u64;
    assert_eq!(
        first.pushed(shifted.clone()).unwrap().accepted,
        count,
        "an event counts once, whatever it is about"
    );
    let before = facts(&first.snapshot(), "spec", "shop/108-packaging").unwrap();
    first.end();
    let second = life(&disk);
    let after = facts(&second.snapshot(), "spec", "shop/108-packaging").unwrap();
    assert_eq!(after.spec, before.spec);
    assert_eq!(second.pushed(shifted).unwrap().duplicate, count);
}
