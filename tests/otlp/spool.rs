//! The spool by itself: order, bound, what a restart finds, and what it costs a commit.

use std::time::Duration;

use agent_session_exporter::event::{ActivityClass, Fact};
use agent_session_exporter::spans::{Outgoing, Signal};
use agent_session_exporter::store::spool::Keep;

use crate::common::disk::{Crash, Disk, Rng};
use crate::common::owner::{Life, event, now, open};
use crate::stand::{KEEP, keeping, log, span, spans, until};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn put(life: &Life, items: Vec<Outgoing>) {
    runtime().block_on(life.store.spool.put(items));
}

/// Numbers of what waits.
fn waiting(life: &Life, signal: Signal) -> Vec<u64> {
    let read = runtime().block_on(life.store.spool.oldest(signal, None, usize::MAX, usize::MAX));
    read.unwrap().items.iter().map(|w| w.number).collect()
}

fn dropped(life: &Life, signal: &str) -> u64 {
    life.telemetry.otlp_items.with_label_values(&[signal, "dropped"]).get()
}

#[test]
fn what_was_put_is_there_after_a_crash_and_what_left_is_not() {
    let disk = Disk::default();
    let life = Life::with(open(&disk), keeping(KEEP));
    put(&life, spans(0..10));
    runtime().block_on(life.store.spool.left(vec![0, 1, 2, 5]));
    disk.crash(Crash::DropsAll, &mut Rng::new(1));
    life.end();
    let life = Life::with(open(&disk), keeping(KEEP));
    assert_eq!(waiting(&life, Signal::Traces), [3, 4, 6, 7, 8, 9]);
    assert_eq!(life.telemetry.otlp_spool_items.get(), 6);
    let read = runtime().block_on(life.store.spool.oldest(Signal::Traces, Some(4), 2, usize::MAX)).unwrap();
    assert!(read.more, "there is an eighth");
    let items: Vec<_> = read.items.into_iter().filter_map(|w| w.item).collect();
    assert_eq!(items, [Outgoing::Span(span(6)), Outgoing::Span(span(7))]);
    // Numbers go on behind what waits.
    put(&life, spans(10..11));
    assert_eq!(waiting(&life, Signal::Traces), [3, 4, 6, 7, 8, 9, 10]);
    life.end();
}

#[test]
fn beyond_its_items_the_oldest_are_dropped_and_counted() {
    let disk = Disk::default();
    let keep = Keep { max_items: 100, ..KEEP };
    let life = Life::with(open(&disk), keeping(keep));
    put(&life, (0..30).map(|n| Outgoing::Log(log(n))).collect());
    put(&life, spans(0..90));
    assert_eq!((dropped(&life, "logs"), dropped(&life, "traces")), (20, 0));
    put(&life, spans(90..150));
    assert_eq!((dropped(&life, "logs"), dropped(&life, "traces")), (30, 50));
    assert_eq!(waiting(&life, Signal::Traces), (80..180).collect::<Vec<_>>());
    assert_eq!(life.telemetry.otlp_spool_items.get(), 100);
    life.end();
}

#[test]
fn beyond_its_bytes_too_also_over_a_restart() {
    let disk = Disk::default();
    let life = Life::with(open(&disk), keeping(KEEP));
    put(&life, spans(0..100));
    life.end();
    let bytes: usize = (0..100).map(|n| postcard::to_allocvec(&Outgoing::Span(span(n))).unwrap().len()).sum();
    let keep = Keep { max_bytes: bytes as u64, ..KEEP };
    let life = Life::with(open(&disk), keeping(keep));
    put(&life, spans(100..110));
    let left = waiting(&life, Signal::Traces);
    assert_eq!(left.last(), Some(&109));
    assert!((95..=100).contains(&left.len()), "{} of 110 are kept", left.len());
    assert_eq!(dropped(&life, "traces"), 110 - left.len() as u64);
    // What left makes room.
    runtime().block_on(life.store.spool.left(left));
    put(&life, spans(110..200));
    assert_eq!(waiting(&life, Signal::Traces).len(), 90);
    life.end();
}

#[test]
fn nothing_is_kept_for_nobody() {
    let disk = Disk::default();
    let life = Life::start(&disk);
    put(&life, spans(0..10));
    assert_eq!(waiting(&life, Signal::Traces), Vec::<u64>::new());
    life.end();
    let keep = Keep { logs: false, ..KEEP };
    let life = Life::with(open(&disk), keeping(keep));
    put(&life, vec![Outgoing::Log(log(1)), Outgoing::Span(span(1))]);
    assert_eq!(waiting(&life, Signal::Logs), Vec::<u64>::new());
    assert_eq!(waiting(&life, Signal::Traces), [0]);
    life.end();
}

#[test]
fn items_share_the_commit_of_the_events_around_them() {
    let disk = Disk::default();
    disk.slow_syncs(Duration::from_millis(20));
    let life = Life::with(open(&disk), keeping(KEEP));
    let before = life.counter("store_commits_total");
    std::thread::scope(|scope| {
        for n in 0..40 {
            let life = &life;
            scope.spawn(move || {
                let fact = Fact::Activity { class: ActivityClass::Work, message: false };
                let answer = life.push(vec![event("push", "s", now(), fact)]);
                put(life, spans(n * 10..n * 10 + 10));
                answer.recv_timeout(crate::stand::LONG).unwrap().unwrap();
            });
        }
    });
    let commits = life.counter("store_commits_total") - before;
    assert!(commits < 25.0, "{commits} commits for 40 pushes and 40 puts");
    assert_eq!(waiting(&life, Signal::Traces).len(), 400);
    life.end();
}

#[test]
fn a_full_disk_keeps_items_for_later() {
    let disk = Disk::default();
    let life = Life::with(open(&disk), keeping(KEEP));
    put(&life, spans(0..5));
    disk.set_full(true);
    let spool = life.store.spool.clone();
    let later = std::thread::spawn(move || runtime().block_on(spool.put(spans(5..10))));
    until("a commit failed", || life.counter("store_commit_failures_total") > 0.0);
    assert!(!later.is_finished(), "nothing is durable yet");
    disk.set_full(false);
    later.join().unwrap();
    assert_eq!(waiting(&life, Signal::Traces), (0..10).collect::<Vec<_>>());
    life.end();
}
