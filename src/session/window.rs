//! Makes the order of arrival irrelevant for a short while. A session keeps its facts as of two seconds ago
//! (`base`) and the events since; an event that arrives late is put in its place and the stretch is folded again.
//! Without it every register of the fold would have to be commutative by itself; with it the fold reads its events
//! in order, whatever the source, the batch borders or the file they came from.
//!
//! Putting an event in its place and folding are two steps, so that a batch whose events share a millisecond is
//! sorted first and folded once. On the way the facts are kept every `STRIDE` events: `base` moves on from one such
//! mark to the next, no event is folded a second time for it, and a late event costs a part of the stretch.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::counts::{Change, Effects};
use super::facts::Facts;
use super::packed::Packed;
use crate::event::{Counting, Event, Timestamp};

/// How far back, in event time, a late event is still put in its place.
const SPAN_MS: i64 = 2_000;
/// Events held for that, at most: bounds memory and the cost of folding again.
const MAX_HELD: usize = 256;
/// After so much silence nothing is held any more.
const IDLE_MS: i64 = 3_000;
/// Events between two marks. A mark costs a copy of the facts, about as much as folding ten events.
const STRIDE: usize = 64;

/// One session of the owner task: facts to publish, and what it takes to correct them.
#[derive(Debug)]
pub struct Session {
    /// Facts with all of `held` that is folded.
    head: Arc<Facts>,
    /// Facts before `held`; `None` while nothing is held.
    base: Option<Arc<Facts>>,
    /// Facts before some positions of `held`, in order.
    marks: Vec<(usize, Arc<Facts>)>,
    /// Events by time, but for the first `settled`.
    held: VecDeque<Held>,
    /// How many of `held` have their final place: they wait for a mark to leave with.
    settled: usize,
    /// How many of `held` are not folded yet, and the position of the first.
    unfolded: usize,
    stale_from: usize,
    /// When an event was read last.
    touched: Timestamp,
}

#[derive(Debug)]
struct Held {
    key: (i64, u8, u64),
    folded: bool,
    event: Stored,
}

/// An event on the heap: putting one in its place moves others.
#[derive(Debug)]
enum Stored {
    /// Not folded yet.
    Fresh(Box<Event>),
    /// Folded, and hardly ever needed again: thousands of sessions hold dozens of these.
    Packed(Packed),
}

/// The stored form of a session.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    facts: Facts,
    /// Events with the time they are sorted by; it is not their own where they have none.
    held: Vec<(i64, Packed)>,
}

// === impl Session ===

impl Session {
    /// A session that was just heard of.
    pub fn new(facts: Facts) -> Self {
        let touched = facts.first_seen;
        Self {
            head: Arc::new(facts),
            base: None,
            marks: Vec::new(),
            held: VecDeque::new(),
            settled: 0,
            unfolded: 0,
            stale_from: 0,
            touched,
        }
    }

    /// The facts, for reading and publishing, as of the last [`Self::fold`].
    pub fn facts(&self) -> &Arc<Facts> {
        &self.head
    }

    /// Takes an event in and folds it.
    pub fn apply(&mut self, event: Event, epoch: Timestamp) -> Change {
        let mut change = Change::default();
        self.put(event);
        self.fold(epoch, &mut change);
        change
    }

    /// Puts an event at its place in time; one without a time stands where it was read: behind the newest one.
    pub fn put(&mut self, event: Event) {
        self.touched = self.touched.max(event.observed);
        let newest = self.held.back().map(|h| h.key.0);
        let newest = newest.or_else(|| self.head.last_seen.map(Timestamp::as_millis));
        let time = event.time.map(Timestamp::as_millis).or(newest).unwrap_or(i64::MIN);
        let held = Held { key: sort_key(time, &event), folded: false, event: Stored::Fresh(Box::new(event)) };
        self.base.get_or_insert_with(|| self.head.clone());
        let at = self.place_of(held.key);
        self.stale_from = if self.unfolded == 0 { at } else { self.stale_from.min(at) };
        self.unfolded += 1;
        self.held.insert(at, held);
        self.settle();
    }

    /// How many events wait to be folded.
    pub const fn unfolded(&self) -> usize {
        self.unfolded
    }

    /// Folds what was put in its place since the last time; `change` receives what that changes in the sums.
    ///
    /// Facts from before `epoch`, the store's creation, are known but not counted; pushed ones always count.
    pub fn fold(&mut self, epoch: Timestamp, change: &mut Change) {
        if self.unfolded == 0 {
            return;
        }
        let from = self.stale_from;
        if self.unfolded < self.held.len() - from {
            self.fall_back(from, epoch, change);
        }
        let mut effects = change.effects();
        let mut at = from;
        while at < self.held.len() {
            let marked = self.marks.last().map_or(0, |(i, _)| *i);
            if at - marked >= STRIDE {
                self.marks.push((at, self.head.clone()));
            }
            let facts = Arc::make_mut(&mut self.head);
            let to = self.held.len().min(at + STRIDE);
            for held in self.held.range_mut(at..to) {
                held.folded = true;
                fold(facts, held, epoch, &mut effects);
                held.pack();
                change.add(&effects);
            }
            at = to;
        }
        self.unfolded = 0;
        self.advance();
    }

    /// Lets go of what is held for corrections, once a session has fallen silent; says whether there was anything.
    pub fn rest(&mut self, now: Timestamp) -> bool {
        // By the time of reading: old records that are still being read need their window too.
        let rests = self.base.is_some() && self.unfolded == 0 && now.since(self.touched) > IDLE_MS;
        if rests {
            self.base = None;
            self.marks = Vec::new();
            self.held = VecDeque::new();
            self.settled = 0;
            // A copy has no room for more: most sessions rest for good.
            self.head = Arc::new((*self.head).clone());
        }
        rests
    }

    /// The stored form of what is folded.
    pub fn row(&self) -> RowRef<'_> {
        let mut facts = Cow::Borrowed(&**self.base.as_ref().unwrap_or(&self.head));
        if self.settled > 0 {
            let mut counted_already = Effects::default();
            let facts = facts.to_mut();
            for held in self.held.range(..self.settled) {
                facts.apply(&held.event(facts), &mut counted_already);
                counted_already.clear();
            }
        }
        RowRef { facts, held: self.held.range(self.settled..).map(|h| (h.key.0, h.packed())).collect() }
    }

    /// From the stored form.
    pub fn from_row(row: Row, epoch: Timestamp) -> Self {
        let mut session = Self::new(row.facts);
        if row.held.is_empty() {
            return session;
        }
        session.base = Some(session.head.clone());
        for (time, packed) in row.held {
            let Some(event) = packed.unpack(&session.head) else { continue };
            session.touched = session.touched.max(event.observed);
            let key = sort_key(time, &event);
            session.held.push_back(Held { key, folded: false, event: Stored::Fresh(Box::new(event)) });
        }
        session.unfolded = session.held.len();
        // Their sums were stored with them.
        session.fold(epoch, &mut Change::default());
        session
    }

    /// Where an event with this key belongs. What is older than all that has no final place yet goes first of that.
    fn place_of(&self, key: (i64, u8, u64)) -> usize {
        let (mut low, mut high) = (self.settled, self.held.len());
        if self.held.back().is_none_or(|last| last.key <= key) {
            return high;
        }
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.held[middle].key <= key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Gives what is older than the span its final place.
    fn settle(&mut self) {
        let oldest = self.held.back().map_or(i64::MIN, |h| h.key.0).saturating_sub(SPAN_MS);
        while self.held.len() - self.settled > MAX_HELD
            || self.held.get(self.settled).is_some_and(|h| h.key.0 < oldest)
        {
            self.settled += 1;
        }
    }

    /// Moves the base to the newest mark before which all has its final place.
    fn advance(&mut self) {
        let passed = self.marks.partition_point(|(i, _)| *i <= self.settled);
        let Some((at, facts)) = self.marks.drain(..passed).next_back() else { return };
        self.base = Some(facts);
        self.held.drain(..at);
        self.settled -= at;
        for (i, _) in &mut self.marks {
            *i -= at;
        }
    }

    /// Brings the facts back to what they were before position `from`; `change` receives what that takes from the
    /// sums.
    fn fall_back(&mut self, from: usize, epoch: Timestamp, change: &mut Change) {
        self.marks.retain(|(i, _)| *i <= from);
        let base = self.base.as_ref().map(|base| (0, base));
        let nearest = self.marks.last().map(|(i, facts)| (*i, facts)).or(base);
        let (start, facts) = nearest.expect("what is held has a base");
        let mut facts = facts.clone();
        let mut effects = change.effects();
        let folding = Arc::make_mut(&mut facts);
        for held in self.held.range(start..from) {
            fold(folding, held, epoch, &mut effects);
        }
        let mut before = facts.clone();
        let folding = Arc::make_mut(&mut before);
        for held in self.held.range(from..).filter(|h| h.folded) {
            fold(folding, held, epoch, &mut effects);
            change.take_back(&effects);
        }
        self.head = facts;
    }
}

// === impl Held ===

impl Held {
    fn event(&self, facts: &Facts) -> Cow<'_, Event> {
        match &self.event {
            Stored::Fresh(event) => Cow::Borrowed(event),
            Stored::Packed(packed) => Cow::Owned(packed.unpack(facts).expect("what was packed here unpacks")),
        }
    }

    fn pack(&mut self) {
        if let Stored::Fresh(event) = &self.event {
            self.event = Stored::Packed(Packed::of(event));
        }
    }

    fn packed(&self) -> Cow<'_, Packed> {
        match &self.event {
            Stored::Fresh(event) => Cow::Owned(Packed::of(event)),
            Stored::Packed(packed) => Cow::Borrowed(packed),
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

/// Applies an event; `effects` becomes what it adds to the sums: nothing, if it lies before the counting epoch.
fn fold(facts: &mut Facts, held: &Held, epoch: Timestamp, effects: &mut Effects) {
    effects.clear();
    let event = held.event(facts);
    let counts = match event.counting {
        Counting::SinceEpoch => held.key.0 >= epoch.as_millis(),
        Counting::Always => true,
        Counting::Never => false,
    };
    facts.apply(&event, effects);
    if counts {
        // Under which project, and whether at all, depends on what was known then, not on when it was read.
        if effects.project != facts.project {
            effects.project.clone_from(&facts.project);
        }
        effects.root = facts.parent.is_none() && !facts.is_orchestrated();
    } else {
        effects.clear();
    }
}

/// The stored form, borrowed.
#[derive(Debug, Serialize)]
pub struct RowRef<'a> {
    facts: Cow<'a, Facts>,
    held: Vec<(i64, Cow<'a, Packed>)>,
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
                for (count, n) in change.counts() {
                    *sums.entry(count.clone()).or_default() += n;
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
