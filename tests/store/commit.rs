//! Commits without a timer: shared under load, at once for a lone batch; publications at most every 20 ms.

use std::time::{Duration, Instant};

use agent_session_exporter::event::{Event, Fact, Usage};
use agent_session_exporter::session::Snapshot;
use agent_session_exporter::store::owner::PUBLISH_EVERY;

use crate::common::disk::Disk;
use crate::common::owner::{LONG, Life, event, facts, now, with_id};

fn tokens(id: u64) -> Event {
    let fact = Fact::Usage(Usage { input: 1, ..Usage::default() });
    with_id(id, event("push", "s", now(), fact))
}

fn seen(snapshot: &Snapshot) -> u64 {
    facts(snapshot, "push", "s").map_or(0, |f| f.usage.input)
}

#[test]
fn batches_share_commits() {
    let disk = Disk::default();
    disk.slow_syncs(Duration::from_millis(2));
    let life = Life::start(&disk);
    let answers: Vec<_> = (0..600).map(|id| life.push(vec![tokens(id)])).collect();
    for answer in answers {
        assert_eq!(answer.recv_timeout(LONG).unwrap().unwrap().accepted, 1);
    }
    let commits = life.counter("store_commits_total");
    assert!(commits > 0.0 && commits < 150.0, "{commits} commits for 600 batches");
    life.until("the last change", |s| seen(s) == 600);
}

#[test]
fn a_lone_batch_commits_at_once() {
    let disk = Disk::default();
    let life = Life::start(&disk);
    let mut took = Vec::new();
    for id in 0..15 {
        std::thread::sleep(Duration::from_millis(5));
        let started = Instant::now();
        life.pushed(vec![tokens(id)]).unwrap();
        took.push(started.elapsed());
    }
    took.sort();
    // The median, so that a busy machine does not decide.
    assert!(took[took.len() / 2] < Duration::from_millis(100), "{took:?}");
}

#[test]
fn publications_are_spaced_and_the_last_change_is_among_them() {
    let disk = Disk::default();
    let mut life = Life::start(&disk);
    let started = Instant::now();
    let (mut id, mut published) = (0, 0u128);
    while started.elapsed() < Duration::from_millis(600) {
        life.pushed(vec![tokens(id)]).unwrap();
        id += 1;
        if life.store.snapshots.has_changed().unwrap() {
            life.store.snapshots.borrow_and_update();
            published += 1;
        }
    }
    let most = started.elapsed().as_millis() / PUBLISH_EVERY.as_millis() + 2;
    assert!(published >= 2 && published <= most, "{published} publications, {most} at most");
    let stopped = Instant::now();
    life.until("the last change", |s| seen(s) == id);
    assert!(stopped.elapsed() < Duration::from_secs(1));
}

#[test]
fn the_end_of_both_lanes_flushes_everything() {
    let disk = Disk::default();
    disk.slow_syncs(Duration::from_millis(1));
    let life = Life::start(&disk);
    let answers: Vec<_> = (0..64).map(|id| life.push(vec![tokens(id)])).collect();
    for k in 0..30 {
        life.read(vec![event("files", "f", now(), Fact::Unknown)], 1, k + 1);
    }
    let last = life.end();
    assert_eq!(seen(&last), 64, "the last snapshot shows the last change");
    for answer in answers {
        assert_eq!(answer.try_recv().expect("answered before the end").unwrap().accepted, 1);
    }
    let again = Life::start(&disk);
    assert_eq!(seen(&again.snapshot()), 64);
    assert_eq!(again.cursor(1), 30);
    assert!(crate::common::owner::open(&disk.synced()).contents.journal.is_empty(), "the end checkpoints");
}

#[test]
fn the_journal_is_short() {
    let disk = Disk::default();
    let life = Life::start(&disk);
    for id in 0..20 {
        life.pushed(vec![tokens(id)]).unwrap();
    }
    // A checkpoint a second makes the journal superfluous without another event.
    let started = Instant::now();
    while !crate::common::owner::open(&disk.synced()).contents.journal.is_empty() {
        assert!(started.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(seen(&Life::start(&disk.synced()).snapshot()), 20);
}

#[test]
fn the_last_snapshot_is_there_before_anything_is_read() {
    let disk = Disk::default();
    let life = Life::start(&disk);
    life.pushed(vec![tokens(1)]).unwrap();
    life.end();
    assert_eq!(seen(&Life::start(&disk).snapshot()), 1);
}
