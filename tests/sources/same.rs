//! The same records give the same facts and the same sums, however they come: twice, out of order within a second,
//! in other batches, from files in any order, by lines or in one go.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use agent_session_exporter::event::{Batch, Event, Timestamp};
use agent_session_exporter::session::{Facts, Snapshot};
use agent_session_exporter::store::{Options, db};
use proptest::prelude::*;

use super::folded::{decode, files, read, source};
use super::recordings::recordings;
use super::running::{Home, append, thread};
use crate::common::disk::{Disk, Rng};
use crate::common::owner::{KEY, Life, all_facts, options, sums};

type Known = (BTreeMap<(String, String), Facts>, BTreeMap<String, i64>);

/// How records are brought.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    seed: u64,
    shuffle_files: bool,
    shuffle_second: bool,
    duplicate: bool,
    cut: bool,
}

/// The events of every recording, file by file.
fn decoded() -> &'static Vec<Vec<Event>> {
    static DECODED: OnceLock<Vec<Vec<Event>>> = OnceLock::new();
    DECODED.get_or_init(|| recordings().iter().map(|name| decode(&read(name), name)).collect())
}

fn shuffle<T>(list: &mut [T], rng: &mut Rng) {
    for i in (1..list.len()).rev() {
        list.swap(i, rng.below(i as u64 + 1) as usize);
    }
}

/// Shuffles stretches that lie within a second; records without a time stay where they are.
fn shuffle_seconds(events: &mut [Event], rng: &mut Rng) {
    let mut from = 0;
    while from < events.len() {
        let (mut low, mut high) = (i64::MAX, i64::MIN);
        let mut to = from;
        while let Some(time) = events.get(to).and_then(|e| e.time).map(Timestamp::as_millis) {
            (low, high) = (low.min(time), high.max(time));
            if high - low >= 1_000 {
                break;
            }
            to += 1;
        }
        shuffle(&mut events[from..to], rng);
        from = to.max(from + 1);
    }
}

/// All recordings through the store.
fn fold(way: Way) -> Known {
    let mut rng = Rng::new(way.seed);
    let mut all = decoded().clone();
    if way.shuffle_files {
        shuffle(&mut all, &mut rng);
    }
    let opened = db::open(&Disk::default().backend(), KEY, Timestamp::from_millis(0)).unwrap().unwrap();
    // Nothing was scanned, so that the store draws no conclusions of its own at moments of its own.
    let retention = std::time::Duration::from_secs(100 * 365 * 86_400);
    let options = Options { expected_scans: vec![source()], retention, ..options() };
    let clock = super::running::clock_at(super::folded::OBSERVED);
    let life = Life::at(opened, options, clock);
    for mut events in all {
        if way.shuffle_second {
            shuffle_seconds(&mut events, &mut rng);
        }
        let mut sent: Vec<Event> = Vec::new();
        for event in events {
            sent.push(event);
            if way.duplicate && rng.below(3) == 0 {
                let earlier = sent[rng.below(sent.len() as u64) as usize].clone();
                sent.push(earlier);
            }
        }
        while !sent.is_empty() {
            let n = if way.cut { 1 + rng.below(60) as usize } else { sent.len() };
            let rest = sent.split_off(n.min(sent.len()));
            let batch = Batch { events: std::mem::replace(&mut sent, rest), ..Batch::default() };
            life.store.files.blocking_send(batch).unwrap();
        }
    }
    known(&life.end())
}

fn known(snapshot: &Snapshot) -> Known {
    let mut all = all_facts(snapshot);
    for facts in all.values_mut() {
        facts.first_seen = super::folded::OBSERVED;
        facts.writer = None;
    }
    (all, sums(snapshot))
}

fn assert_same(got: &Known, wanted: &Known) {
    for (key, facts) in &wanted.0 {
        assert_eq!(got.0.get(key), Some(facts), "{key:?}");
    }
    assert_eq!(got.0.len(), wanted.0.len());
    assert_eq!(got.1, wanted.1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn however_records_come_they_say_the_same(
        seed in any::<u64>(), shuffle_files: bool, shuffle_second: bool, duplicate: bool, cut: bool,
    ) {
        static WANTED: OnceLock<Known> = OnceLock::new();
        let wanted = WANTED.get_or_init(|| fold(Way::default()));
        assert_same(&fold(Way { seed, shuffle_files, shuffle_second, duplicate, cut }), wanted);
    }
}

#[test]
fn files_read_piece_by_piece_say_what_they_say_at_once() {
    let mut names = files("codex", ".rollout.jsonl");
    // Calls that outlive their turn are ended by the store five seconds later, at a moment of the test's own.
    let timed =
        ["resume_after_kill9", "sigint", "interrupt", "tui_approval", "hooks_approval", ".at_", "0.23.0"];
    names.retain(|n| !timed.iter().any(|t| n.contains(t)));
    let all: Vec<_> = names.iter().map(|n| read(n)).collect();
    let at_once = Home::new();
    all.iter().for_each(|bytes| drop(at_once.put(bytes)));
    let wanted = known(&at_once.once());
    assert_eq!(wanted.0.len(), all.len());

    let home = Home::new();
    let mut rng = Rng::new(3);
    let mut left: Vec<_> = all.iter().map(|bytes| (home.rollout(&thread(bytes)), &bytes[..])).collect();
    let running = home.start();
    while !left.is_empty() {
        let i = rng.below(left.len() as u64) as usize;
        let (path, bytes) = &mut left[i];
        let n = bytes.len().min(1 + rng.below(30_000) as usize);
        append(path, &bytes[..n]);
        *bytes = &bytes[n..];
        if bytes.is_empty() {
            left.swap_remove(i);
        }
    }
    running.until("the last one", |s| known(s).0 == wanted.0);
    assert_same(&known(&running.end()), &wanted);
}

#[test]
fn a_clock_that_steps_moves_no_fact() {
    // Read by a machine that was an hour behind, then right: the records' own times decide.
    let bytes = read("codex/tests_commit.rollout.jsonl");
    let steady = Home::new();
    steady.put(&bytes);
    let wanted = known(&steady.once());
    let mut home = Home::new();
    let right = home.clock;
    let thread = thread(&bytes);
    append(&home.rollout(&thread), &bytes[..bytes.len() / 2]);
    home.once();
    home.clock = super::running::clock_at(right.now().plus(-3_600_000));
    append(&home.rollout(&thread), &bytes[bytes.len() / 2..]);
    assert_same(&known(&home.once()), &wanted);
}
