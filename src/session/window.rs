//! Makes the order of arrival irrelevant for a short while. A session keeps its facts as of two seconds ago
//! (`base`) and the events since; an event that arrives late is put in its place and the stretch is folded again.
//! Without it every register of the fold would have to be commutative by itself; with it the fold reads its events
//! in order, whatever the source, the batch borders or the file they came from.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::counts::Effects;
use super::facts::Facts;
use crate::event::{Event, Timestamp};

/// How far back, in event time, a late event is still put in its place.
const SPAN_MS: i64 = 2_000;
/// Events held for that, at most: bounds memory and the cost of folding again.
const MAX_HELD: usize = 256;
/// Events behind the place from which a late one is folded in.
const NEAR: usize = 8;
/// After so much silence nothing is held any more.
const IDLE_MS: i64 = 5_000;

/// One session of the owner task: facts to publish, and what it takes to correct them.
#[derive(Debug)]
pub struct Session {
    head: Arc<Facts>,
    /// Facts before `held`; `None` while nothing is held.
    base: Option<Box<Facts>>,
    /// Facts after so many of `held`, once events came late: most are late by little, and this saves folding all.
    near: Option<(usize, Box<Facts>)>,
    held: Vec<Held>,
}

#[derive(Debug)]
struct Held {
    key: (i64, u8, u64),
    event: Event,
    effects: Effects,
}

/// What an event changed in the sums: `old` is taken back, `new` comes in its place.
#[derive(Debug, Default)]
pub struct Change {
    /// Effects of the stretch before it was folded again.
    pub old: Effects,
    /// Effects now.
    pub new: Effects,
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
        Self { head: Arc::new(facts), base: None, near: None, held: Vec::new() }
    }

    /// The facts, for reading and publishing.
    pub fn facts(&self) -> &Arc<Facts> {
        &self.head
    }

    /// Takes an event in, at its place in time.
    ///
    /// Facts from before `epoch`, the store's creation, are known but not counted; pushed ones always count.
    pub fn apply(&mut self, event: Event, epoch: Timestamp) -> Change {
        let newest = self.held.last().map(|h| h.key.0);
        let time = event.time.map(Timestamp::as_millis).or(newest).unwrap_or(i64::MIN);
        let key = sort_key(time, &event);
        if self.base.is_none() {
            self.base = Some(Box::new((*self.head).clone()));
        }
        if self.held.last().is_none_or(|last| last.key <= key) {
            let effects = fold(Arc::make_mut(&mut self.head), &event, epoch);
            let change = Change { old: Effects::default(), new: effects.clone() };
            self.held.push(Held { key, event, effects });
            self.settle();
            return change;
        }
        let at = self.held.partition_point(|h| h.key <= key);
        let mut change = Change::default();
        for held in &self.held[at..] {
            change.old.counts.extend(held.effects.counts.iter().cloned());
            change.old.observations.extend(held.effects.observations.iter().copied());
        }
        self.held.insert(at, Held { key, event, effects: Effects::default() });
        self.refold(at, epoch, &mut change.new);
        self.settle();
        change
    }

    /// Lets go of what is held for corrections, once a session has fallen silent; says whether there was anything.
    pub fn rest(&mut self, now: Timestamp) -> bool {
        let rests = self.base.is_some() && now.since(self.head.last_heard()) > IDLE_MS;
        if rests {
            self.base = None;
            self.near = None;
            self.held = Vec::new();
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
        for (time, event) in row.held {
            let effects = fold(Arc::make_mut(&mut session.head), &event, epoch);
            let key = sort_key(time, &event);
            session.held.push(Held { key, event, effects });
        }
        session
    }

    /// Folds what is held again, from the newest known facts before position `from`; effects from there on are new.
    fn refold(&mut self, from: usize, epoch: Timestamp, new: &mut Effects) {
        let Some(base) = &self.base else { return };
        let known = self.near.take().filter(|(n, _)| *n <= from);
        let (start, mut facts) = match &known {
            Some((n, near)) => (*n, (**near).clone()),
            None => (0, (**base).clone()),
        };
        let keep = self.held.len().saturating_sub(NEAR);
        let renew = known.is_none() || keep > start + 2 * NEAR;
        self.near = known;
        for (i, held) in self.held.iter_mut().enumerate().skip(start) {
            if renew && i == keep {
                self.near = Some((keep, Box::new(facts.clone())));
            }
            let effects = fold(&mut facts, &held.event, epoch);
            if i >= from {
                new.counts.extend(effects.counts.iter().cloned());
                new.observations.extend(effects.observations.iter().copied());
            }
            held.effects = effects;
        }
        self.head = Arc::new(facts);
    }

    /// Moves what is older than the span into the base.
    fn settle(&mut self) {
        let newest = self.held.last().map_or(i64::MIN, |h| h.key.0);
        let mut done = self.held.partition_point(|h| h.key.0 < newest.saturating_sub(SPAN_MS));
        done = done.max(self.held.len().saturating_sub(MAX_HELD));
        // In fours of the bound, so that a steady stream does not shift the whole list for each event.
        if done == 0 || (done < MAX_HELD / 4 && self.held.len() < MAX_HELD) && done < self.held.len() / 2 {
            return;
        }
        self.near = self.near.take().and_then(|(n, near)| Some((n.checked_sub(done)?, near)));
        if let Some(base) = &mut self.base {
            for held in self.held.drain(..done) {
                base.apply(&held.event, &mut Effects::default());
            }
        }
    }
}

fn sort_key(time: i64, event: &Event) -> (i64, u8, u64) {
    (time, event.fact.rank(), event.id.unwrap_or(u64::MAX))
}

/// Applies an event and says what it adds to the sums: nothing, if it lies before the counting epoch.
fn fold(facts: &mut Facts, event: &Event, epoch: Timestamp) -> Effects {
    let mut effects = Effects::default();
    facts.apply(event, &mut effects);
    let counts = event.always_counts || event.time.is_some_and(|t| t >= epoch);
    if counts { effects } else { Effects::default() }
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
                for (count, n) in change.new.counts {
                    *sums.entry(count).or_default() += n as i64;
                }
                for (count, n) in change.old.counts {
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
}
