//! Nothing counts twice: ids over a restart, sessions that left memory, facts from before the counting epoch.

use agent_session_exporter::event::{
    ActionKind, Certainty, Event, Fact, Id, Receipt, SessionId, SessionInfo, SourceId, Timestamp, Trigger,
    Usage,
};
use agent_session_exporter::session::{Count, Snapshot};
use agent_session_exporter::store::{Opened, Options, db};
use std::time::Duration;

use crate::common::disk::Disk;
use crate::common::owner::{KEY, Life, event, facts, now, options, sum, with_id};

const HOUR: i64 = 3_600_000;

fn used() -> Fact {
    Fact::Usage(Usage { input: 1, ..Usage::default() })
}

fn started() -> Fact {
    Fact::SessionStarted(SessionInfo::default())
}

/// A store that exists since `hours`.
fn old_store(disk: &Disk, hours: i64) -> Opened {
    db::open(&disk.backend(), KEY, now().plus(-hours * HOUR)).unwrap().unwrap()
}

fn short_lived() -> Options {
    Options { retention: Duration::from_secs(3600), ..options() }
}

fn tokens(snapshot: &Snapshot, source: &str) -> i64 {
    let sums = snapshot.aggregates.sums.iter();
    sums.filter(|((s, _, count), _)| s.as_str() == source && matches!(count, Count::Tokens(..)))
        .map(|(_, sum)| sum.exact())
        .sum()
}

#[test]
fn ids_are_known_after_a_restart() {
    let disk = Disk::default();
    let life = Life::start(&disk);
    let events: Vec<Event> = (0..10).map(|id| with_id(id, event("push", "s", now(), used()))).collect();
    let mut twice = events.clone();
    twice.push(events[0].clone());
    assert_eq!(life.pushed(twice), Ok(Receipt { accepted: 10, duplicate: 1 }));
    assert_eq!(life.pushed(events.clone()), Ok(Receipt { accepted: 0, duplicate: 10 }));
    assert_eq!(life.counter("duplicates_total"), 11.0);
    life.end();
    // After a checkpoint, and from the journal alone.
    for _ in 0..2 {
        let life = Life::start(&disk);
        assert_eq!(life.pushed(events.clone()), Ok(Receipt { accepted: 0, duplicate: 10 }));
        let more = with_id(20, event("push", "s", now(), used()));
        life.pushed(vec![more]).unwrap();
        let left = Life::start(&disk.synced());
        assert_eq!(left.pushed(events.clone()), Ok(Receipt { accepted: 0, duplicate: 10 }));
        assert_eq!(facts(&left.snapshot(), "push", "s").unwrap().usage.input, 11);
        life.end();
    }
}

#[test]
fn one_id_in_two_sources_is_two_events() {
    let disk = Disk::default();
    let life = Life::start(&disk);
    let of = |source| with_id(1, event(source, "s", now(), used()));
    assert_eq!(life.pushed(vec![of("a"), of("b")]), Ok(Receipt { accepted: 2, duplicate: 0 }));
}

#[test]
fn a_session_that_left_is_not_counted_again_when_its_file_grows() {
    let disk = Disk::default();
    let old: Vec<Event> = [started(), used(), used()]
        .into_iter()
        .zip(0..)
        .map(|(fact, i)| event("files", "f", now().plus(-2 * HOUR + i), fact))
        .collect();
    let timeless = Event { time: None, ..old[1].clone() };
    let check = |snapshot: &Snapshot, here: bool, wanted: i64| {
        assert_eq!(facts(snapshot, "files", "f").is_some(), here);
        assert_eq!(sum(snapshot, "files", &Count::Started), 1);
        assert_eq!(tokens(snapshot, "files"), wanted);
    };
    let life = Life::with(old_store(&disk, 24), short_lived());
    life.read(old.clone(), 1, 3);
    life.until("its start counted", |s| sum(s, "files", &Count::Started) == 1);
    life.until("it leaves", |s| facts(s, "files", "f").is_none());
    assert_eq!(life.counter("sessions_evicted_total"), 1.0);
    // Read again from the head, and something without a time, which could be of any age.
    life.read(old.clone(), 1, 3);
    life.read(vec![timeless.clone()], 1, 3);
    life.pushed(vec![]).unwrap();
    check(&life.end(), false, 2);
    let life = Life::with(old_store(&disk, 24), short_lived());
    life.read(old.clone(), 1, 3);
    let new = event("files", "f", now(), used());
    life.read(vec![new], 1, 4);
    life.read(old.clone(), 1, 4);
    check(&life.end(), true, 3);
    // The trace is there although the session is back.
    let life = Life::with(old_store(&disk, 24), short_lived());
    life.read(old.clone(), 1, 4);
    check(&life.end(), true, 3);
    assert_eq!(open_tombstones(&disk), 1);
}

fn open_tombstones(disk: &Disk) -> usize {
    crate::common::owner::open(disk).contents.tombstones.len()
}

#[test]
fn a_deleted_file_leaves_no_trace() {
    let disk = Disk::default();
    let life = Life::with(old_store(&disk, 24), short_lived());
    life.read(vec![event("files", "f", now().plus(-2 * HOUR), started())], 1, 1);
    // Pushed sessions leave none at all.
    life.pushed(vec![event("push", "p", now().plus(-2 * HOUR), started())]).unwrap();
    life.until("they come", |s| sum(s, "files", &Count::Started) + sum(s, "push", &Count::Started) == 2);
    life.until("they leave", |s| s.sessions.iter().flatten().count() == 0);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(open_tombstones(&disk.synced()), 1);
    life.read(vec![event("files", "f", now(), Fact::SessionDeleted)], 1, 1);
    let last = life.end();
    assert!(facts(&last, "files", "f").is_none());
    assert_eq!(open_tombstones(&disk), 0);
}

#[test]
fn beyond_the_bound_the_oldest_finished_leave_first() {
    let disk = Disk::default();
    let life = Life::with(old_store(&disk, 24), Options { max_tracked: 4, ..options() });
    let at = |minutes: i64| now().plus(-minutes * 60_000);
    let mut events = Vec::new();
    for (i, minutes) in [50, 40, 30, 20, 10].into_iter().enumerate() {
        events.push(event("push", &format!("done{i}"), at(minutes), started()));
    }
    let turn = Fact::TurnStarted { trigger: Trigger::Person };
    events.push(event("push", "busy", at(60), turn));
    let ask = Fact::ActionRequired {
        action: Id::from("a"),
        kind: ActionKind::Question,
        certainty: Certainty::Certain,
        tool: None,
        call: None,
    };
    events.push(event("push", "asks", at(70), ask));
    life.pushed(events).unwrap();
    let snapshot = life.until("three leave", |s| s.sessions.iter().flatten().count() == 4);
    let left: Vec<&str> = snapshot.slots().map(|s| snapshot.facts(s).unwrap().session.as_str()).collect();
    assert_eq!(left, ["asks", "busy", "done3", "done4"]);
    let family = life.telemetry.sessions_evicted.with_label_values(&["limit"]);
    assert_eq!(family.get(), 3);
    assert_eq!(sum(&snapshot, "push", &Count::Started), 7, "sums stay exact");
    // Another session in a freed slot is itself, also after a restart from the journal.
    life.pushed(vec![event("push", "new", now(), used())]).unwrap();
    let left = Life::with(old_store(&disk.synced(), 24), options()).snapshot();
    assert_eq!(facts(&left, "push", "new").unwrap().usage.input, 1);
    assert_eq!(left.sessions.iter().flatten().count(), 5);
}

#[test]
fn a_flood_of_sessions_does_not_wait_for_the_tick() {
    let disk = Disk::default();
    let life = Life::with(old_store(&disk, 24), Options { max_tracked: 10, ..options() });
    for i in 0..60 {
        let batch = (0..50).map(|k| event("push", &format!("s{i}-{k}"), now(), used())).collect();
        life.pushed(batch).unwrap();
        assert!(life.snapshot().sessions.iter().flatten().count() <= 10 + 1_024 + 64 * 50);
    }
    assert_eq!(tokens(&life.end(), "push"), 3_000);
}

#[test]
fn what_happened_before_the_store_is_known_but_not_counted() {
    let disk = Disk::default();
    let life = Life::start(&disk);
    let epoch = life.snapshot().counting_since;
    let before = |fact| event("files", "f", epoch.plus(-HOUR), fact);
    life.read(vec![before(started()), before(used())], 1, 2);
    life.read(vec![event("files", "f", epoch.plus(-HOUR + 5_000), used())], 1, 3);
    life.read(vec![event("files", "f", epoch, used())], 1, 4);
    let mut always = event("push", "p", epoch.plus(-HOUR), used());
    always.counting = agent_session_exporter::event::Counting::Always;
    life.pushed(vec![always]).unwrap();
    let check = |snapshot: &Snapshot| {
        assert_eq!(facts(snapshot, "files", "f").unwrap().usage.input, 3);
        assert_eq!(tokens(snapshot, "files"), 1, "only what is not before the epoch");
        assert_eq!(sum(snapshot, "files", &Count::Started), 0);
        assert_eq!(tokens(snapshot, "push"), 1, "pushed events always count");
    };
    check(&life.end());
    let later = Life::start(&disk);
    assert_eq!(later.snapshot().counting_since, epoch, "the epoch is the store's, not the process's");
    check(&later.snapshot());
    assert_eq!(later.telemetry.counting_since.get(), epoch.as_seconds());
}

#[test]
fn a_child_moves_with_its_parent() {
    let disk = Disk::default();
    let life = Life::start(&disk);
    for name in ["a", "b"] {
        life.pushed(vec![event("push", name, now(), started())]).unwrap();
    }
    for name in ["a", "b"] {
        let mut child = event("push", "child", now(), used());
        child.parent = Some(SessionId::from(name));
        life.pushed(vec![child]).unwrap();
        life.until("the child under its parent", |s| {
            let slot = |session| s.find(&SourceId::from("push"), &SessionId::from(session));
            slot("child").is_some_and(|child| Some(s.tree.root[child]) == slot(name))
        });
    }
}

#[test]
fn a_time_far_ahead_is_none() {
    let disk = Disk::default();
    let life = Life::start(&disk);
    let mut skewed = event("push", "s", now(), used());
    skewed.time = Some(Timestamp::from_millis(skewed.observed.as_millis() + 6 * 60_000));
    life.pushed(vec![skewed]).unwrap();
    assert_eq!(life.counter("clock_skew_records_total"), 1.0);
    let last = life.end();
    let facts = facts(&last, "push", "s").unwrap();
    assert_eq!((facts.usage.input, facts.last_activity), (1, None));
    assert_eq!(last.sessions[0].as_ref().unwrap().source, SourceId::from("push"));
}
