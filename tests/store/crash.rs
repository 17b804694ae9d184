//! Power goes off at random operations of the disk, again and again; afterwards everything is as if it never had.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use agent_session_exporter::event::{
    ActionKind, ActivityClass, Batch, CallEnd, CallOutcome, CallStart, Certainty, Commands, Cursor, Event,
    Fact, Id, Name, Resolution, Timestamp, ToolClass, Trigger, TurnOutcome, Usage,
};
use agent_session_exporter::session::{Facts, Snapshot};
use agent_session_exporter::store::db;

use crate::common::disk::{Crash, Disk, Rng};
use crate::common::owner::{
    Answer, KEY, LONG, Life, all_facts, counter, event, facts, now, open, options, sums, with_id,
};

/// Lives that end by a crash.
const LIVES: u64 = 220;
/// Pushes without an answer at one time.
const OUTSTANDING: usize = 4;
const CURSOR: u64 = 99;

fn usage(input: u64) -> Fact {
    Fact::Usage(Usage { input, ..Usage::default() })
}

/// The `n`th pushed event: turns with a call, a landing, a question and tokens, in four sessions.
fn pushed(n: u64, start: Timestamp) -> Event {
    let id = |prefix: &str, n: u64| Id::from(format!("{prefix}{n}").as_str());
    let call = |n: u64| CallStart {
        call: id("call", n),
        tool: Name::from("edit"),
        class: ToolClass::Edit,
        key: Some(n),
        target: None,
        read: None,
        commands: Commands::default(),
        background: false,
        asks: None,
        nested: false,
    };
    let end = |n: u64| CallEnd {
        call: id("call", n),
        outcome: CallOutcome::Ok,
        exit_code: None,
        diff_lines: Some(3),
        error: None,
        output: None,
        read: None,
    };
    let fact = match n % 10 {
        0 => Fact::TurnStarted { trigger: Trigger::Person },
        1 => Fact::ToolStarted(call(n)),
        2 => Fact::ToolEnded(end(n - 1)),
        3 => Fact::ActionRequired {
            action: id("ask", n),
            kind: ActionKind::Question,
            certainty: Certainty::Certain,
            tool: None,
            call: None,
        },
        4 => Fact::ActionResolved { action: id("ask", n - 1), resolution: Resolution::Answered },
        5 => Fact::Activity { class: ActivityClass::Work, message: false },
        9 => Fact::TurnEnded {
            outcome: TurnOutcome::Completed,
            error: None,
            reset: None,
            denied: false,
            result_known: true,
        },
        _ => usage(1),
    };
    let session = format!("p{}", n / 10 % 4);
    let mut event = event("push", &session, start.plus(n as i64 * 3), fact);
    event.request = Some(id("turn", n / 10));
    event.counting = agent_session_exporter::event::Counting::Always;
    with_id(n, event)
}

/// The `k`th event of a file, without an id: only the cursor keeps it from counting twice.
fn read(k: u64, start: Timestamp) -> Event {
    let fact = if k.is_multiple_of(7) { Fact::TurnStarted { trigger: Trigger::Person } } else { usage(1) };
    event("files", &format!("f{}", k % 2), start.plus(k as i64 * 3), fact)
}

/// What the file's sessions have counted: must be where the cursor stands.
fn counted(snapshot: &Snapshot) -> u64 {
    let of = |session| facts(snapshot, "files", session).map_or(0, |f| f.usage.input + f.turns.started);
    of("f0") + of("f1")
}

/// What was shown may not be taken back, by no crash.
#[derive(Default)]
struct Shown(BTreeMap<(String, String), [Option<Timestamp>; 4]>, BTreeMap<String, u64>);

impl Shown {
    fn check(&mut self, snapshot: &Snapshot) {
        for (name, f) in all_facts(snapshot) {
            let new = [f.last_activity, f.last_progress, f.last_seen, f.last_prompt];
            let old = self.0.insert(name.clone(), new).unwrap_or_default();
            assert!(old.iter().zip(&new).all(|(old, new)| old <= new), "{name:?}: {old:?} then {new:?}");
            let tokens = self.1.insert(name.1, f.usage.input).unwrap_or(0);
            assert!(tokens <= f.usage.input, "tokens that were shown are gone");
        }
    }
}

/// What goes on from life to life: the senders, and what was shown to the readers.
struct World {
    start: Timestamp,
    rng: Rng,
    shown: Shown,
    /// Pushes without an acknowledgement, oldest first: ranges of events.
    todo: VecDeque<Range<u64>>,
    /// Events that were made so far.
    made: u64,
}

impl World {
    /// The next push: one to eight events.
    fn make(&mut self, stop: Option<u64>) {
        let end = (self.made + 1 + self.rng.below(8)).min(stop.unwrap_or(u64::MAX));
        self.todo.push_back(self.made..end);
        self.made = end;
    }

    /// The events of a push, in any order.
    fn events(&self, range: &Range<u64>) -> Vec<Event> {
        let mut events: Vec<Event> = range.clone().map(|n| pushed(n, self.start)).collect();
        let mut rng = Rng::new(range.start);
        for i in (1..events.len()).rev() {
            events.swap(i, rng.below(i as u64 + 1) as usize);
        }
        events
    }

    /// A piece of the file, if there is room; returns where the reader stands.
    fn read(&mut self, life: &Life, position: u64, most: u64) -> u64 {
        let next = (position + 1 + self.rng.below(5)).min(most);
        let events = (position..next).map(|k| read(k, self.start)).collect();
        let cursors = vec![Cursor { key: CURSOR, value: Some(next.to_le_bytes().to_vec()) }];
        let sent = life.store.files.try_send(Batch { events, cursors, ..Batch::default() });
        if sent.is_ok() { next } else { position }
    }

    /// Feeds one life until it dies; with `stop`, until everything below is acknowledged and `most` records are read.
    fn live(&mut self, mut life: Life, most: u64, stop: Option<u64>) {
        let first = life.snapshot();
        self.shown.check(&first);
        let mut position = life.cursor(CURSOR);
        assert_eq!(counted(&first), position, "the cursor stands where the facts do");
        let mut waiting: VecDeque<(Range<u64>, Answer)> = VecDeque::new();
        loop {
            if waiting.len() < OUTSTANDING && self.rng.half() {
                if waiting.len() == self.todo.len() && stop.is_none_or(|stop| self.made < stop) {
                    self.make(stop);
                }
                if let Some(range) = self.todo.get(waiting.len()).cloned() {
                    let answer = life.push(self.events(&range));
                    waiting.push_back((range, answer));
                    continue;
                }
            }
            if position < most {
                position = self.read(&life, position, most);
            }
            let Some((range, answer)) = waiting.pop_front() else {
                if stop.is_some() && position == most && self.todo.is_empty() {
                    break;
                }
                continue;
            };
            let Ok(receipt) = answer.recv_timeout(LONG).expect("every push is answered") else { break };
            assert_eq!(receipt.accepted + receipt.duplicate, range.end - range.start);
            // Some answers get lost on their way; the sender tries again, perhaps in another life.
            let lost = self.rng.below(8) == 0;
            if lost && life.push(self.events(&range)).recv_timeout(LONG).expect("an answer").is_err() {
                break;
            }
            assert_eq!(self.todo.pop_front(), Some(range), "answers come in the order of the pushes");
            if life.store.snapshots.has_changed().unwrap_or(false) {
                let snapshot = life.store.snapshots.borrow_and_update().clone();
                self.shown.check(&snapshot);
            }
        }
        self.shown.check(&life.end());
    }
}

#[test]
fn crashes_lose_nothing_acknowledged_and_count_nothing_twice() {
    let start = now().plus(1_000);
    let created = now();
    let open_at =
        |disk: &Disk| db::open(&disk.backend(), KEY, created).map(|read| read.expect("is readable"));
    let disk = Disk::default();
    drop(open_at(&disk).unwrap());
    let mut world =
        World { start, rng: Rng::new(4), shown: Shown::default(), todo: VecDeque::new(), made: 0 };
    let mut died_opening = 0;
    let mut duplicates = 0.0;
    for i in 0..LIVES {
        disk.die_after(1 + world.rng.below(90));
        match db::open(&disk.backend(), KEY, created) {
            Ok(Ok(opened)) => {
                let life = Life::with(opened, options());
                let telemetry = life.telemetry.clone();
                world.live(life, u64::MAX, None);
                duplicates += counter(&telemetry, "duplicates_total");
            }
            Ok(Err(_)) | Err(_) => died_opening += 1,
        }
        assert!(disk.is_dead(), "life {i} ended without a crash");
        let kinds = [Crash::DropsAll, Crash::KeepsAll, Crash::KeepsSome, Crash::Tears];
        let kind = kinds[world.rng.below(4) as usize];
        disk.crash(kind, &mut world.rng);
    }
    assert!(died_opening < LIVES / 2, "{died_opening} of {LIVES} died before they began");
    assert!(duplicates > 0.0, "no acknowledgement was ever lost on its way");
    // One more life, undisturbed, takes what is left.
    let life = Life::with(open_at(&disk).unwrap(), options());
    let last = life.cursor(CURSOR) + 10;
    let stop = world.made;
    world.live(life, last, Some(stop));
    let after = Life::with(open_at(&disk).unwrap(), options()).snapshot();

    let calm = Disk::default();
    let life = Life::with(open_at(&calm).unwrap(), options());
    for n in 0..stop {
        let _ = life.push(vec![pushed(n, start)]);
    }
    life.read((0..last).map(|k| read(k, start)).collect(), CURSOR, last);
    let before = life.end();
    assert_eq!(counted(&after), last);
    assert!(stop > 500, "only {stop} events were pushed in {LIVES} lives");
    let (crashed, wanted) = (all_facts(&after), all_facts(&before));
    assert_eq!(crashed.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
    for (name, facts) in wanted {
        // A session is first seen with whichever event of its first batch came first.
        let first_seen = facts.first_seen;
        let crashed = Facts { first_seen, ..crashed[&name].clone() };
        assert_eq!(crashed, facts, "{name:?}");
    }
    assert_eq!(sums(&after), sums(&before));
}

#[test]
fn half_a_new_store_is_no_obstacle() {
    let mut rng = Rng::new(9);
    for n in 1..40 {
        let disk = Disk::default();
        disk.die_after(n);
        let made = db::open(&disk.backend(), KEY, now());
        disk.crash(Crash::Tears, &mut rng);
        if let Ok(Ok(_)) = made {
            // Made before it died: then it must be readable.
            drop(open(&disk));
        } else {
            // Readable, or told to be none; never a panic.
            drop(db::open(&disk.backend(), KEY, now()));
        }
    }
}
