//! Makes the order of arrival irrelevant for a short while. A session keeps its facts as of two seconds ago
//! (`base`) and the events since; an event that arrives late is put in its place and the stretch is folded again.
//! Without it every register of the fold would have to be commutative by itself; with it the fold reads its events
//! in order, whatever the source, the batch borders or the file they came from.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::counts::Effects;
use super::facts::Facts;
use crate::event::{Event, Timestamp};

/// How far back, in event time, a late event is still put in its place.
const SPAN_MS: i64 = 2_000;
/// Events held for that, at most: bounds memory and the cost of folding again.
const MAX_HELD: usize = 256;
/// After so much silence nothing is held any more.
const IDLE_MS: i64 = 5_000;

/// One session of the owner task: facts to publish, and what it takes to correct them.
#[derive(Debug)]
pub struct Session {
    head: Arc<Facts>,
    /// Facts before `held`; `None` while nothing is held.
    base: Option<Box<Facts>>,
    held: VecDeque<Held>,
    /// When an event was read last.
    touched: Timestamp,
}

#[derive(Debug)]
struct Held {
    key: (i64, u8, u64),
    event: Event,
}

/// What an event changed in the sums: `old` is taken back, `new` comes in its place.
#[derive(Debug, Default)]
pub struct Change {
    /// Effects of the stretch before it was folded again.
    pub old: Vec<Effects>,
    /// Effects now.
    pub new: Vec<Effects>,
}

/// The stored form of a session.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    facts: Facts,
    /// Events with the time they are sorted by; it is not their own where they have none.
    held: Vec<(i64, Event)>,
}

// === impl Session ===

impl Session {
    /// A session that was just heard of.
    pub fn new(facts: Facts) -> Self {
        let touched = facts.first_seen;
        Self { head: Arc::new(facts), base: None, held: VecDeque::new(), touched }
    }

    /// The facts, for reading and publishing.
    pub fn facts(&self) -> &Arc<Facts> {
        &self.head
    }

    /// Takes an event in, at its place in time.
    ///
    /// Facts from before `epoch`, the store's creation, are known but not counted; pushed ones always count. An event
    /// without a time stands where it was read: behind the newest one.
    pub fn apply(&mut self, event: Event, epoch: Timestamp) -> Change {
        self.touched = self.touched.max(event.observed);
        let newest = self.held.back().map(|h| h.key.0);
        let newest = newest.or_else(|| self.head.last_seen.map(Timestamp::as_millis));
        let time = event.time.map(Timestamp::as_millis).or(newest).unwrap_or(i64::MIN);
        let key = sort_key(time, &event);
        let base = self.base.get_or_insert_with(|| Box::new((*self.head).clone()));
        let mut change = Change::default();
        if self.held.back().is_none_or(|last| last.key <= key) {
            let held = Held { key, event };
            fold(Arc::make_mut(&mut self.head), &held, epoch, &mut change.new);
            self.held.push_back(held);
        } else {
            // What is older than all that is held goes first: between the base and the rest.
            let at = self.held.partition_point(|h| h.key <= key);
            let mut facts = (**base).clone();
            refold(&mut facts, &self.held, at, epoch, &mut change.old);
            self.held.insert(at, Held { key, event });
            facts.clone_from(base);
            refold(&mut facts, &self.held, at, epoch, &mut change.new);
            self.head = Arc::new(facts);
        }
        self.settle();
        change
    }

    /// Lets go of what is held for corrections, once a session has fallen silent; says whether there was anything.
    pub fn rest(&mut self, now: Timestamp) -> bool {
        // By the time of reading: old records that are still being read need their window too.
        let rests = self.base.is_some() && now.since(self.touched) > IDLE_MS;
        if rests {
            self.base = None;
            self.held = VecDeque::new();
        }
        rests
    }

    /// The stored form.
    pub fn row(&self) -> RowRef<'_> {
        RowRef {
            facts: self.base.as_deref().unwrap_or(&self.head),
            held: self.held.iter().map(|h| (h.key.0, &h.event)).collect(),
        }
    }

    /// From the stored form.
    pub fn from_row(row: Row, epoch: Timestamp) -> Self {
        let mut session = Self::new(row.facts);
        if row.held.is_empty() {
            return session;
        }
        session.base = Some(Box::new((*session.head).clone()));
        // Their sums were stored with them.
        let mut counted_already = Vec::new();
        for (time, event) in row.held {
            session.touched = session.touched.max(event.observed);
            let held = Held { key: sort_key(time, &event), event };
            fold(Arc::make_mut(&mut session.head), &held, epoch, &mut counted_already);
            session.held.push_back(held);
        }
        session
    }

    /// Moves what is older than the span into the base.
    fn settle(&mut self) {
        let Some(base) = &mut self.base else { return };
        let newest = self.held.back().map_or(i64::MIN, |h| h.key.0);
        let mut counted_already = Effects::default();
        while self.held.len() > MAX_HELD
            || self.held.front().is_some_and(|h| h.key.0 < newest.saturating_sub(SPAN_MS))
        {
            let Some(held) = self.held.pop_front() else { return };
            base.apply(&held.event, &mut counted_already);
            counted_already.clear();
        }
    }
}

/// Records without a time stand in the order they were read, behind what was newest then.
fn sort_key(time: i64, event: &Event) -> (i64, u8, u64) {
    match event.time {
        Some(_) => (time, event.fact.rank(), event.id.unwrap_or(u64::MAX)),
        None => (time, u8::MAX, u64::MAX),
    }
}

/// Folds what is held again; effects from position `from` on are collected.
fn refold(
    facts: &mut Facts,
    held: &VecDeque<Held>,
    from: usize,
    epoch: Timestamp,
    effects: &mut Vec<Effects>,
) {
    let mut not_asked = Vec::new();
    for (i, held) in held.iter().enumerate() {
        fold(facts, held, epoch, if i < from { &mut not_asked } else { effects });
        not_asked.clear();
    }
}

/// Applies an event and adds what it changes in the sums: nothing, if it lies before the counting epoch.
fn fold(facts: &mut Facts, held: &Held, epoch: Timestamp, out: &mut Vec<Effects>) {
    let mut effects = Effects::default();
    facts.apply(&held.event, &mut effects);
    let counts = held.event.always_counts || held.key.0 >= epoch.as_millis();
    if counts && !effects.is_empty() {
        // Under which project, and whether at all, depends on what was known then, not on when it was read.
        effects.project.clone_from(&facts.project);
        effects.root = facts.parent.is_none();
        out.push(effects);
    }
}

/// The stored form, borrowed.
#[derive(Debug, Serialize)]
pub struct RowRef<'a> {
    facts: &'a Facts,
    held: Vec<(i64, &'a Event)>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Fact, SessionId, SourceId, Trigger, TurnOutcome};

    #[test]
    fn late_events_are_put_in_their_place_however_many_there_are() {
        let (source, session) = (SourceId::from("push"), SessionId::from("s"));
        let event = |n: u64| {
            let fact = match n % 4 {
                0 => Fact::TurnStarted { trigger: Trigger::Person },
                3 => Fact::TurnEnded {
                    outcome: TurnOutcome::Completed,
                    error: None,
                    reset: None,
                    denied: false,
                    result_known: true,
                },
                _ => Fact::Error { class: crate::event::ErrorClass::Other, recoverable: n % 4 == 1 },
            };
            let time = Timestamp::from_millis(1_000_000 + (n as i64) * 5);
            let mut event = Event::new(&source, &session, time, fact);
            event.time = Some(time);
            event.id = Some(n);
            event
        };
        let epoch = Timestamp::from_millis(0);
        let new = || Session::new(Facts::new(source.clone(), session.clone(), epoch));
        let (mut ordered, mut late) = (new(), new());
        let mut sums = std::collections::HashMap::<_, i64>::new();
        for n in 0..900 {
            ordered.apply(event(n), epoch);
        }
        // Blocks of 3 to 90 events in reverse: late by little and by more than is kept near.
        let mut from = 0;
        for block in [3, 7, 90, 2, 30].into_iter().cycle() {
            let to = (from + block).min(900);
            for n in (from..to).rev() {
                let change = late.apply(event(n), epoch);
                for (count, n) in change.new.into_iter().flat_map(|e| e.counts) {
                    *sums.entry(count).or_default() += n as i64;
                }
                for (count, n) in change.old.into_iter().flat_map(|e| e.counts) {
                    *sums.entry(count).or_default() -= n as i64;
                }
            }
            from = to;
            if from == 900 {
                break;
            }
        }
        assert_eq!(late.facts(), ordered.facts());
        assert_eq!(sums[&super::super::Count::Turn(TurnOutcome::Completed)], 225);
    }

    #[test]
    fn records_without_a_time_stand_in_the_order_they_were_read() {
        let (source, session) = (SourceId::from("codex"), SessionId::from("s"));
        let epoch = Timestamp::from_millis(0);
        // Ids are hashes: they say nothing about the order.
        for id in [1, u64::MAX - 1] {
            let mut folded = Session::new(Facts::new(source.clone(), session.clone(), epoch));
            for (message, id) in [(false, u64::MAX / 2), (true, id)] {
                let fact = Fact::Activity { class: crate::event::ActivityClass::Work, message };
                let mut event = Event::new(&source, &session, epoch, fact);
                event.id = Some(id);
                folded.apply(event, epoch);
            }
            assert!(folded.facts().message_last, "{id}");
        }
    }
}
