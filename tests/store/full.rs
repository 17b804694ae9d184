//! A disk without room, and one that hangs: nothing is shown or answered before it is durable.

use std::sync::mpsc::channel;
use std::time::Duration;

use agent_session_exporter::event::{Batch, Cursor, Event, Fact, Receipt, Refused, Usage};
use agent_session_exporter::session::Snapshot;
use agent_session_exporter::store::{OpenError, db};

use crate::common::disk::Disk;
use crate::common::owner::{KEY, LONG, Life, asking, event, facts, now, open, with_id};

/// Long enough for a commit that is not held up.
const MOMENT: Duration = Duration::from_millis(300);

fn tokens(id: u64) -> Event {
    let fact = Fact::Usage(Usage { input: 1, ..Usage::default() });
    let mut event = with_id(id, event("push", "s", now(), fact));
    event.counting = agent_session_exporter::event::Counting::Always;
    event
}

fn seen(snapshot: &Snapshot) -> u64 {
    facts(snapshot, "push", "s").map_or(0, |f| f.usage.input)
}

#[test]
fn a_full_disk_refuses_pushes_and_recovers() {
    let disk = Disk::default();
    let life = Life::start(&disk);
    assert_eq!(life.pushed(vec![tokens(1)]), Ok(Receipt { accepted: 1, duplicate: 0 }));
    life.until("the first event", |s| seen(s) == 1);
    disk.set_full(true);
    for id in 2..10 {
        assert_eq!(life.pushed(vec![tokens(id)]), Err(Refused::Unavailable), "{id}");
    }
    let file =
        |k: i64| event("files", "f", now().plus(k), Fact::Usage(Usage { input: 1, ..Usage::default() }));
    for k in 0..12 {
        life.read(vec![file(k)], 5, k as u64 + 1);
    }
    std::thread::sleep(MOMENT);
    assert_eq!(seen(&life.snapshot()), 1, "nothing is shown that is not durable");
    assert!(facts(&life.snapshot(), "files", "f").is_none());
    assert!(life.counter("store_commit_failures_total") >= 1.0);
    // What was acknowledged is on the disk as it is.
    assert_eq!(seen(&Life::start(&disk.synced()).snapshot()), 1);
    disk.set_full(false);
    life.until("the file's events", |s| facts(s, "files", "f").is_some_and(|f| f.usage.input == 12));
    for id in 1..10 {
        let receipt = life.pushed(vec![tokens(id)]).expect("taken again");
        assert_eq!(receipt.accepted + receipt.duplicate, 1);
    }
    assert_eq!(life.pushed(vec![tokens(10)]), Ok(Receipt { accepted: 1, duplicate: 0 }));
    life.until("each event once", |s| seen(s) == 10);
    life.end();
    let again = Life::start(&disk);
    assert_eq!(seen(&again.snapshot()), 10);
    assert_eq!(again.cursor(5), 12);
}

#[test]
fn nothing_is_answered_or_shown_before_it_is_durable() {
    let disk = Disk::default();
    let life = Life::start(&disk);
    life.pushed(vec![tokens(1)]).unwrap();
    life.until("the first event", |s| seen(s) == 1);
    disk.hold_syncs(true);
    let first = life.push(vec![tokens(2)]);
    let second = life.push(vec![tokens(3)]);
    // The copies are known already, but their originals may still be lost.
    let copies = life.push(vec![tokens(2), tokens(3)]);
    let known = life.push(vec![tokens(1)]);
    std::thread::sleep(MOMENT);
    for answer in [&first, &second, &copies, &known] {
        assert!(answer.try_recv().is_err(), "answered before it was durable");
    }
    assert_eq!(seen(&life.snapshot()), 1, "shown before it was durable");
    assert_eq!(seen(&Life::start(&disk.synced()).snapshot()), 1);
    disk.hold_syncs(false);
    assert_eq!(first.recv_timeout(LONG).unwrap().unwrap().accepted, 1);
    assert_eq!(second.recv_timeout(LONG).unwrap().unwrap().accepted, 1);
    assert_eq!(copies.recv_timeout(LONG).unwrap(), Ok(Receipt { accepted: 0, duplicate: 2 }));
    assert_eq!(known.recv_timeout(LONG).unwrap().unwrap().duplicate, 1);
    life.until("all events", |s| seen(s) == 3);
}

#[test]
fn a_cursor_is_durable_when_its_reply_comes() {
    let disk = Disk::default();
    let life = Life::start(&disk);
    disk.hold_syncs(true);
    let first = life.push(vec![tokens(1)]);
    std::thread::sleep(MOMENT);
    let (tell, answer) = channel();
    let at_reply = disk.clone();
    let reply = Box::new(move |_| drop(tell.send(at_reply.synced())));
    let cursors = vec![Cursor { key: 3, value: Some(vec![1]) }];
    life.store.live.blocking_send(Batch { cursors, reply: Some(reply), ..Batch::default() }).unwrap();
    std::thread::sleep(MOMENT);
    disk.hold_syncs(false);
    first.recv_timeout(LONG).unwrap().unwrap();
    let left = answer.recv_timeout(LONG).unwrap();
    assert_eq!(open(&left).contents.cursors, [(3, vec![1])]);
}

#[test]
fn shutdown_with_a_full_disk_ends_and_answers() {
    let disk = Disk::default();
    let life = Life::start(&disk);
    life.pushed(vec![tokens(1)]).unwrap();
    disk.set_full(true);
    let answers: Vec<_> = (2..30).map(|id| life.push(vec![tokens(id)])).collect();
    life.end();
    for answer in answers {
        assert_eq!(answer.recv_timeout(LONG), Ok(Err(Refused::Unavailable)));
    }
    disk.set_full(false);
    assert!(seen(&Life::start(&disk).snapshot()) >= 1);
}

#[test]
fn a_full_disk_is_no_damaged_file() {
    let disk = Disk::default();
    let life = Life::start(&disk);
    life.pushed(vec![tokens(1)]).unwrap();
    life.end();
    disk.set_full(true);
    assert!(matches!(db::open(&disk.backend(), KEY, now()), Err(OpenError::Io(_))));
    disk.set_full(false);
    assert_eq!(seen(&Life::start(&disk).snapshot()), 1);
}

#[test]
fn a_batch_that_was_never_taken_is_answered_too() {
    let disk = Disk::default();
    let life = Life::start(&disk);
    disk.set_full(true);
    let (batch, answer) = asking(vec![tokens(1)]);
    life.store.live.blocking_send(batch).unwrap();
    life.end();
    assert_eq!(answer.recv_timeout(LONG), Ok(Err(Refused::Unavailable)));
}
