//! What time alone changes, once a second: calls that ended with their turn, episodes of being stalled, sessions
//! that leave, stretches in which the machine slept. Commits and publications are the loop's.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio::time::Instant;

use super::{Owner, db};
use crate::event::{CallEnd, Event, Fact, Id, SourceId, Timestamp};
use crate::session::rollup;
use crate::session::snapshot::Snapshot;
use crate::session::{Facts, State};

/// A wall clock that runs ahead of the awake time by more than this means the machine slept.
const SLEPT_MS: i64 = 5_000;
/// Stretches of sleep that are remembered.
const MAX_SLEEPS: usize = 32;

// === impl Owner ===

impl Owner {
    /// Once a second: what time alone changes.
    pub(super) fn tick(&mut self) {
        self.notice_sleep(self.clock.now());
        self.conclude();
        let due = self.tracer.as_ref().is_some_and(|tracer| tracer.is_due(self.clock.now()));
        self.checkpoint_due |=
            (due || self.sessions.is_dirty()) && self.last_checkpoint.elapsed() >= self.checkpoint_every;
        if let Some(folder) = &self.options.folder {
            self.telemetry.store_bytes.set(i64::try_from(db::file_size(folder)).unwrap_or(i64::MAX));
        }
    }

    /// What follows from the time that passed.
    pub(in crate::store) fn conclude(&mut self) {
        let now = self.clock.now();
        // Rows that change by time alone are written with the next commit, so that the journal behind it begins with
        // sessions as they are.
        if self.sessions.rest(now) {
            self.checkpoint_due = true;
            // The last snapshot keeps their larger form.
            self.unpublished = true;
        }
        if self.failed.is_none() {
            for event in self.own_events(now) {
                self.take_in(event, true);
            }
            self.fold_taken();
            self.expire(now);
            if let Some(tracer) = &mut self.tracer {
                let sessions = &self.sessions;
                tracer.retain(|source, session| sessions.has(source, session));
            }
        }
        self.telemetry.sessions_tracked.set(i64::try_from(self.sessions.len()).unwrap_or(i64::MAX));
        for (label, n) in self.aggregates.overflows() {
            let told = self.overflows_told.entry(label.to_owned()).or_default();
            self.telemetry.label_overflow.with_label_values(&[label]).inc_by(n.saturating_sub(*told));
            *told = n;
        }
        let mut open: HashMap<&SourceId, i64> = self.capabilities.keys().map(|s| (s, 0)).collect();
        for (_, facts) in self.sessions.iter() {
            *open.entry(&facts.source).or_default() += i64::from(facts.turn.is_some());
        }
        for (source, turns) in open {
            self.telemetry.source_open_turns.with_label_values(&[source.as_str()]).set(turns);
        }
    }

    fn notice_sleep(&mut self, now: Timestamp) {
        let (instant, wall) = self.last_tick;
        let awake = i64::try_from(instant.elapsed().as_millis()).unwrap_or(i64::MAX);
        if now.since(wall) - awake > SLEPT_MS {
            let list = Arc::make_mut(&mut self.suspended);
            list.push((wall, now.plus(-awake)));
            let surplus = list.len().saturating_sub(MAX_SLEEPS);
            list.drain(..surplus);
            self.unpublished = true;
        }
        self.last_tick = (Instant::now(), now);
    }

    /// Conclusions that have to be counted once: calls that ended with their turn, episodes of being stalled. Their
    /// ids name the fact that began them, so that a restart repeats none.
    fn own_events(&mut self, now: Timestamp) -> Vec<Event> {
        let mut events = Vec::new();
        let mut looked_at = Vec::new();
        for (slot, facts) in self.sessions.iter() {
            if !self.is_scanned(&facts.source) {
                continue;
            }
            for call in &facts.open_calls {
                let Some(at) = rollup::interrupted_at(facts, call).filter(|at| now > *at) else { continue };
                let end = CallEnd::interrupted(call.start.call.clone());
                let id = format!("interrupted:{}", call.start.call.as_str());
                events.push(self.own_event(facts, &id, at, Fact::ToolEnded(end), now));
            }
            let is_part = facts.parent.as_ref().is_some_and(|p| self.sessions.has(&facts.source, p));
            let wants_a_look = self
                .tracer
                .as_ref()
                .is_some_and(|tracer| facts.turn.is_some() || !is_part && tracer.wants_a_look(facts));
            // An orchestration has no turns; it is looked at as long as something of it would be told.
            let under_way =
                self.tracer.is_some() && facts.orchestration.as_ref().is_some_and(|run| !run.story.is_over());
            if wants_a_look || under_way || facts.turn.is_some() && facts.parent.is_none() {
                looked_at.push(slot);
            }
        }
        if looked_at.is_empty() {
            return events;
        }
        let sessions = self.sessions.vector();
        let tree = self.sessions.tree(&sessions);
        let view = Snapshot {
            sessions,
            tree,
            thresholds: self.options.thresholds,
            capabilities: self.capabilities.clone(),
            pushed: self.options.pushed,
            health: self.health.clone(),
            suspended: self.suspended.clone(),
            process_start: self.process_start,
            ..Snapshot::default()
        };
        for slot in looked_at {
            let Some(rollup) = view.rollup(slot, now) else { continue };
            let derived = view.derive(&rollup);
            if derived.state == State::Unknown
                && let Some(tracer) = &mut self.tracer
            {
                tracer.lose(rollup.root, rollup.last_activity(), now);
            }
            if let Some(tracer) = &mut self.tracer
                && view.is_root(slot)
            {
                tracer.see(rollup.root, &derived, self.created, now);
            }
            if derived.state == State::Stalled && view.is_root(slot) {
                let reason = derived.reason.as_str();
                let id = format!("stalled:{reason}:{}", derived.since.as_millis());
                let fact = Fact::StallBegan { reason: Id::from(reason) };
                events.push(self.own_event(rollup.root, &id, derived.since, fact, now));
            }
        }
        events
    }

    /// Spans that nobody will find are no examples, also not in the picture that is about to be published.
    pub(super) fn forget_examples(&mut self, lost: &HashSet<[u8; 8]>) {
        let Some(tracer) = &mut self.tracer else { return };
        if tracer.forget_examples(lost) {
            if let Some(frozen) = self.frozen.as_mut().and_then(Arc::get_mut) {
                frozen.exemplars = tracer.exemplars();
            }
            self.unpublished = true;
        }
    }

    /// Whether what a source wrote while we were away has been read: before, silence means nothing.
    fn is_scanned(&self, source: &SourceId) -> bool {
        !self.options.expected_scans.contains(source)
            || self.health.iter().any(|h| h.source == *source && h.scanned)
    }

    fn own_event(&self, facts: &Facts, id: &str, time: Timestamp, fact: Fact, now: Timestamp) -> Event {
        let mut event = Event::new(&facts.source, &facts.session, now, fact);
        event.id = Some(self.reducer.event_id(&facts.source, facts.session.as_str(), id));
        event.time = Some(time);
        event
    }

    /// Sessions leave some days after their last event, and the oldest finished ones when there are too many.
    pub(super) fn expire(&mut self, now: Timestamp) {
        let retention = i64::try_from(self.options.retention.as_millis()).unwrap_or(i64::MAX);
        let old = |f: &Facts| now.since(f.last_heard()) > retention;
        let mut leaving: Vec<(usize, &str)> =
            self.sessions.iter().filter(|(_, f)| old(f)).map(|(slot, _)| (slot, "expired")).collect();
        let over = (self.sessions.len() - leaving.len()).saturating_sub(self.options.max_tracked);
        if over > 0 {
            let mut rest: Vec<_> = self.sessions.iter().filter(|(_, f)| !old(f)).collect();
            rest.sort_by_key(|(_, f)| (f.turn.is_some() || !f.actions.is_empty(), f.last_heard()));
            leaving.extend(rest.into_iter().take(over).map(|(slot, _)| (slot, "limit")));
        }
        for (slot, why) in leaving {
            let from_file = self
                .sessions
                .facts(slot)
                .is_some_and(|f| f.deleted_at.is_none() && self.options.file_sources.contains(&f.source));
            if let (Some(tracer), Some(facts)) = (&mut self.tracer, self.sessions.facts(slot)) {
                tracer.forget(facts, now);
            }
            self.sessions.remove(slot, from_file);
            self.pending.journal.forget(slot);
            self.checkpoint_due = true;
            self.telemetry.sessions_evicted.with_label_values(&[why]).inc();
            self.unpublished = true;
        }
    }
}
