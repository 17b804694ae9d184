//! What is told about orchestrations and their specs becomes facts. A run is told apart by when it began; counts of a
//! run are added to the sums by what they rise, see [`Meter`](super::super::orchestration::Meter).

use super::super::counts::{Count, Effects};
use super::super::facts::Facts;
use super::super::notes::{Note, What};
use super::super::orchestration::{MAX_SPECS, Orchestrated, Orchestration, Spec};
use super::super::story::Teller;
use super::{MAX_DELAY_MS, later};
use crate::event::{
    AgentWork, BlockReason, ErrorClass, Evidence, LaunchUpdate, LimitClass, LimitUpdate, OrchestrationState,
    OrchestrationUpdate, ParallelChange, ParallelUpdate, ProgressKind, SpecStatus, SpecUpdate, StatusTotals,
    ThrottleReason, Timestamp,
};

/// Most batches whose end is remembered; a run has a handful.
const MAX_BATCHES: usize = 512;

/// What an update brings beyond the orchestration's own facts.
#[derive(Default)]
struct News {
    /// Advances, with their time.
    advances: Vec<(ProgressKind, Option<Timestamp>)>,
    /// Something happened, when last.
    worked: Option<Timestamp>,
    /// Another run began.
    new_run: bool,
    /// Read in a file that is looked at now and then.
    polled: bool,
    /// What is over.
    notes: Vec<Note>,
}

// === impl Facts ===

impl Facts {
    pub(super) fn orchestration_updated(
        &mut self,
        update: &OrchestrationUpdate,
        t: Option<Timestamp>,
        out: &mut Effects,
    ) {
        self.orchestrated(t, out, |run, news, out| {
            if !run.enter(update, t, news) {
                return;
            }
            news.polled = update.rewritten;
            run.story_hears((update.state, update.rewritten), t);
            run.update(update, t, news);
            run.story_of_batches(update, t, news);
            for spec in &update.specs {
                run.spec_told(spec, t, news, out);
            }
            if let Some(totals) = &update.totals {
                run.totals_told(totals, t, out);
            }
            run.finish_batches(update.batch_done, t, news);
            run.story_of_holds(t, news);
            run.story_ends(t, news);
        });
    }

    pub(super) fn spec_updated(&mut self, update: &SpecUpdate, t: Option<Timestamp>, out: &mut Effects) {
        self.orchestrated(t, out, |run, news, out| {
            if run.is_current(t) {
                run.story_hears((None, false), t);
                if update.attempt || update.turn || update.thread.is_some() {
                    run.story.seen();
                }
                news.polled = update.received;
                run.spec_told(update, t, news, out);
                run.finish_batches(None, t, news);
            }
        });
    }

    /// Work of a spec's agent, which says nothing about where the orchestration stands.
    pub(super) fn agent_works(&mut self, work: &AgentWork, t: Option<Timestamp>, out: &mut Effects) {
        self.work(t, out);
        let Some(run) = self.orchestration.as_mut().filter(|run| run.is_current(t)) else { return };
        if let Some(at) = t {
            let mut notes = Vec::new();
            let mut to = Teller { at, polled: work.received, out: &mut notes };
            run.story.agent_tells(&work.spec, &work.news, &mut to);
            out.notes.extend(notes);
        }
    }

    pub(super) fn spec_limited(&mut self, update: &LimitUpdate, t: Option<Timestamp>, out: &mut Effects) {
        self.orchestrated(t, out, |run, news, out| {
            if run.is_current(t) {
                run.story_hears((None, false), t);
                run.story.seen();
                run.limited(update, t, out);
                run.story_of_holds(t, news);
                if let Some(spec) = update.held_spec() {
                    run.spec_told(&spec, t, news, out);
                }
                later(&mut news.worked, t);
            }
        });
    }

    pub(super) fn launch_updated(&mut self, update: &LaunchUpdate, t: Option<Timestamp>, out: &mut Effects) {
        self.orchestrated(t, out, |run, news, out| {
            if run.is_current(t) {
                run.story_hears((None, false), t);
                if update.held {
                    let more = run.meters.holds.see(1);
                    out.add(Count::Orchestration(Orchestrated::LaunchHold), more);
                }
                run.launch_told(update, t);
                run.story_of_holds(t, news);
            }
        });
    }

    pub(super) fn parallel_updated(
        &mut self,
        update: &ParallelUpdate,
        t: Option<Timestamp>,
        out: &mut Effects,
    ) {
        self.orchestrated(t, out, |run, _, out| {
            if run.is_current(t) {
                run.parallel_changed(update, t, out);
            }
        });
    }

    /// The session of a spec itself: the same as the entry in its orchestration, but nothing of it is counted.
    pub(super) fn own_spec_updated(&mut self, update: &SpecUpdate, t: Option<Timestamp>) {
        let mut own = self.spec.take().unwrap_or_else(|| Box::new(Spec::new(update.spec.clone())));
        let again = matches!(update.status, Some(SpecStatus::Pending | SpecStatus::Running));
        if again && own.status.is_end() && (t.is_none() || t > own.as_of) {
            *own = Spec::new(update.spec.clone());
        }
        let changed = own.take(update, t);
        if changed {
            later(&mut self.last_activity, t);
            self.queued_at = self.queued_at.into_iter().chain(t).min();
            if own.status == SpecStatus::Running {
                self.started_at = self.started_at.into_iter().chain(t).min();
            } else if own.status == SpecStatus::Completed {
                later(&mut self.last_progress, t);
            }
        }
        self.spec = Some(own);
    }

    /// Lets a change be made to the run, and does what follows from it for the session.
    fn orchestrated(
        &mut self,
        t: Option<Timestamp>,
        out: &mut Effects,
        change: impl FnOnce(&mut Orchestration, &mut News, &mut Effects),
    ) {
        let mut run = self.orchestration.take().unwrap_or_default();
        let mut news = News::default();
        change(&mut run, &mut news, out);
        if run.is_current(t) {
            later(&mut run.updated, t);
        }
        if run.started.is_none() && run.is_current(t) {
            run.began = run.began.into_iter().chain(t).min();
        }
        if news.new_run {
            self.started_at = None;
            self.stop = None;
        }
        let began = run.started.or(run.began);
        run.story.began(began);
        if let Some(t) = t {
            run.story.pass(t, &mut news.notes);
        }
        for note in &mut news.notes {
            if let What::Orchestration { callers, .. } = &mut note.what {
                *callers = std::mem::take(&mut self.callers);
            }
        }
        out.notes.extend(std::mem::take(&mut news.notes));
        if began.is_some() && run.state != Some(OrchestrationState::Idle) {
            self.started_at = began;
        }
        self.orchestration = Some(run);
        later(&mut self.last_activity, news.worked);
        for (kind, at) in news.advances {
            self.progress(kind, Evidence::Structured, 1, true, at, out);
        }
    }
}

// === impl Orchestration ===

impl Orchestration {
    /// Whether something of this time is about the newest run.
    fn is_current(&self, t: Option<Timestamp>) -> bool {
        t.is_none() || if self.started.is_some() { t >= self.started } else { t > self.before }
    }

    /// Finds the run an update is about, and begins another where it says so; false if it is about an older one.
    fn enter(&mut self, update: &OrchestrationUpdate, t: Option<Timestamp>, news: &mut News) -> bool {
        if let Some(started) = update.started {
            match self.started {
                Some(known) if known == started => {}
                Some(known) if started < known => return false,
                None if self.before.is_some_and(|before| started <= before) => return false,
                // What was told of the run so far did not say when it began.
                None if self.began.is_none_or(|began| started <= began) => {
                    self.started = Some(started);
                    self.began = Some(started);
                }
                _ => self.begin_anew(Some(started), started, news),
            }
            return true;
        }
        if !self.is_current(t) {
            return false;
        }
        if let Some(t) = t.filter(|_| update.begins) {
            let over =
                self.state.is_some_and(OrchestrationState::is_end) && self.ended.is_some_and(|end| t > end);
            if over || self.first_batch.is_some_and(|first| t > first) {
                self.begin_anew(None, t, news);
            }
            self.first_batch = Some(t);
        }
        true
    }

    fn begin_anew(&mut self, started: Option<Timestamp>, began: Timestamp, news: &mut News) {
        let last = self.ended.max(self.updated).unwrap_or(began);
        news.new_run = true;
        // Nobody told how the run before ended.
        let mut to = Teller { at: last.min(began), polled: true, out: &mut news.notes };
        self.story.end(OrchestrationState::Unknown, &mut to);
        *self = Self {
            started,
            began: Some(began),
            before: Some(last.min(began.plus(-1))),
            rewritten: self.rewritten,
            ..Self::default()
        };
    }

    fn story_hears(&mut self, state: (Option<OrchestrationState>, bool), t: Option<Timestamp>) {
        let began = self.started.or(self.began);
        if let Some(t) = t {
            self.story.hear(state, began, t);
        }
    }

    fn story_of_batches(&mut self, update: &OrchestrationUpdate, t: Option<Timestamp>, news: &mut News) {
        let Some(at) = t else { return };
        let mut to = Teller { at, polled: news.polled, out: &mut news.notes };
        if update.begins || update.batch_done.is_some() {
            self.story.seen();
        }
        if let Some(done) = update.batch_done {
            self.story.batch_over(done, &mut to);
        }
        // That a batch is told of as the current one does not say that it is not over.
        if let Some(batch) = update.batch.filter(|b| self.batch == Some(*b) && update.batch_done.is_none()) {
            self.story.batch(batch, &mut to);
        }
    }

    /// Holds as they are known by now.
    fn story_of_holds(&mut self, t: Option<Timestamp>, news: &mut News) {
        let Some(at) = t else { return };
        let mut to = Teller { at, polled: news.polled, out: &mut news.notes };
        let known = [
            (BlockReason::RateLimit, self.limit.at, self.limit.hold_ms),
            (BlockReason::LaunchBudget, self.launch.hold_at, self.launch.hold_ms),
        ];
        for (reason, from, ms) in known {
            if let (Some(from), Some(ms)) = (from.filter(|from| Some(*from) >= self.began), ms) {
                self.story.held(reason, from, ms, &mut to);
            }
        }
    }

    fn story_ends(&mut self, t: Option<Timestamp>, news: &mut News) {
        let Some((state, at)) = self.state.filter(|s| s.is_end()).zip(self.ended.or(t)) else { return };
        self.story.end(state, &mut Teller { at, polled: news.polled, out: &mut news.notes });
    }

    fn update(&mut self, update: &OrchestrationUpdate, t: Option<Timestamp>, news: &mut News) {
        if let Some(state) = update.state
            && (t.is_none() || t >= self.state_as_of)
        {
            if self.state != Some(state) {
                self.state = Some(state);
                self.state_since = t;
                self.ended = None;
                later(&mut news.worked, t);
            }
            if state.is_end() {
                self.ended = update.ended.or(self.ended).or(t);
            }
            later(&mut self.state_as_of, t);
        }
        if (update.batch.is_some() || update.batches.is_some()) && (t.is_none() || t >= self.batch_as_of) {
            if update.batch.is_some() && update.batch != self.batch {
                later(&mut news.worked, t);
            }
            self.batch = update.batch.or(self.batch);
            self.batches = update.batches.or(self.batches);
            later(&mut self.batch_as_of, t);
        }
        if update.rewritten {
            later(&mut self.rewritten, t);
        }
        self.unattributed += u64::from(update.unattributed);
        self.beyond = self.beyond.max(update.beyond);
    }

    fn spec_told(&mut self, update: &SpecUpdate, t: Option<Timestamp>, news: &mut News, out: &mut Effects) {
        let at = match self.specs.binary_search_by(|s| s.name.cmp(&update.spec)) {
            Ok(at) => at,
            Err(_) if self.specs.len() >= MAX_SPECS => {
                self.beyond += 1;
                return;
            }
            Err(at) => {
                self.specs.insert(at, Spec::new(update.spec.clone()));
                at
            }
        };
        let spec = &mut self.specs[at];
        if spec.take(update, t) {
            later(&mut news.worked, t);
        }
        if let Some(at) = t {
            let mut to = Teller { at, polled: news.polled, out: &mut news.notes };
            self.story.spec(spec, &mut to);
            if update.turn {
                self.story.turn_began(&spec.name, &mut to);
            }
        }
        let (status, bit) = (spec.status, 1 << spec.status as u8);
        if status.is_end() && spec.counted & bit == 0 {
            spec.counted |= bit;
            out.one(Count::Orchestration(Orchestrated::Spec(status)));
            if status == SpecStatus::Completed {
                news.advances.push((ProgressKind::SpecCompleted, t));
            }
        }
    }

    /// Batches that are over count as an advance once, if a spec of theirs was completed.
    fn finish_batches(&mut self, told: Option<u32>, t: Option<Timestamp>, news: &mut News) {
        let run_over = self.state.is_some_and(OrchestrationState::is_end);
        let is_behind =
            |batch: u32| run_over || told == Some(batch) || self.batch.is_some_and(|now| batch < now);
        let mut behind: Vec<u32> =
            self.specs.iter().filter_map(|s| s.batch).filter(|b| is_behind(*b)).collect();
        behind.sort_unstable();
        behind.dedup();
        for batch in behind {
            let mut own = self.specs.iter().filter(|s| s.batch == Some(batch));
            let advanced =
                self.specs.iter().any(|s| s.batch == Some(batch) && s.status == SpecStatus::Completed);
            let over = own.all(|s| s.status.is_end());
            if over
                && advanced
                && !self.batches_done.contains(&batch)
                && self.batches_done.len() < MAX_BATCHES
            {
                self.batches_done.push(batch);
                news.advances.push((ProgressKind::BatchCompleted, t));
            }
        }
    }

    fn limited(&mut self, update: &LimitUpdate, t: Option<Timestamp>, out: &mut Effects) {
        let class = update.class.unwrap_or(LimitClass::Other);
        let more = self.meters.signals.see(1);
        out.add(Count::Orchestration(Orchestrated::LimitSignal(class)), more);
        let more = self.meters.backoff_ms.see(update.delay_ms.unwrap_or(0).min(MAX_DELAY_MS));
        out.add(Count::Orchestration(Orchestrated::BackoffMs), more);
        // A signal without a wait announces none: it takes the last one's place.
        let whole = LimitUpdate {
            at: update.at.or(t),
            delay_ms: Some(update.delay_ms.unwrap_or(0)),
            hold_ms: Some(update.hold_ms.unwrap_or(0)),
            ..update.clone()
        };
        self.limit_told(&whole);
    }

    fn limit_told(&mut self, update: &LimitUpdate) {
        if update.at.is_none() || update.at < self.limit.at {
            return;
        }
        let own = &mut self.limit;
        own.at = update.at;
        own.spec = update.spec.clone().or(own.spec.take());
        own.retry = update.retry.or(own.retry);
        own.delay_ms = update.delay_ms.map(|ms| ms.min(MAX_DELAY_MS)).or(own.delay_ms);
        own.hold_ms = update.hold_ms.map(|ms| ms.min(MAX_DELAY_MS)).or(own.hold_ms);
        own.class = update.class.filter(|c| *c != LimitClass::Other).or(own.class);
    }

    fn launch_told(&mut self, update: &LaunchUpdate, t: Option<Timestamp>) {
        let own = &mut self.launch;
        if t.is_some() && t < own.as_of {
            return;
        }
        later(&mut own.as_of, t);
        own.budget = update.budget.or(own.budget);
        own.window_ms = update.window_ms.or(own.window_ms);
        own.used = update.used.or(own.used);
        own.hold_ms = update.hold_ms.map(|ms| ms.min(MAX_DELAY_MS)).or(own.hold_ms);
        later(&mut own.hold_at, update.hold_at.or(t.filter(|_| update.held)));
    }

    fn parallel_changed(&mut self, update: &ParallelUpdate, t: Option<Timestamp>, out: &mut Effects) {
        let by_numbers = match (self.parallel.effective, update.effective) {
            _ if t.is_some() && t < self.parallel.as_of => None,
            (Some(before), Some(now)) if now < before => Some(ParallelChange::Throttled),
            (Some(before), Some(now)) if now > before => Some(ParallelChange::Recovered),
            _ => None,
        };
        let mut update = *update;
        match update.change.or(by_numbers) {
            Some(ParallelChange::Throttled) => {
                let more = self.meters.throttled.see(1);
                out.add(throttled(update.reason), more);
                update.throttled_at = update.throttled_at.or(t);
            }
            Some(ParallelChange::Recovered) => {
                let more = self.meters.recovered.see(1);
                out.add(Count::Orchestration(Orchestrated::Recovered), more);
                update.recovered_at = update.recovered_at.or(t);
            }
            None => {}
        }
        self.parallel_told(&update, t);
    }

    fn parallel_told(&mut self, update: &ParallelUpdate, t: Option<Timestamp>) {
        let own = &mut self.parallel;
        later(&mut own.throttled_at, update.throttled_at);
        later(&mut own.recovered_at, update.recovered_at);
        if t.is_some() && t < own.as_of {
            return;
        }
        later(&mut own.as_of, t);
        own.adaptive = update.adaptive.or(own.adaptive);
        own.max = update.max.or(own.max);
        own.effective = update.effective.or(own.effective);
        own.floor = update.floor.or(own.floor);
        own.reason = update.reason.or(own.reason);
    }

    /// Totals as the status file has them; what was counted by events already adds nothing.
    fn totals_told(&mut self, told: &StatusTotals, t: Option<Timestamp>, out: &mut Effects) {
        if t.is_none() || t >= self.rewritten {
            let class = told.limit.class.unwrap_or(LimitClass::Other);
            let (meters, totals) = (&mut self.meters, &told.totals);
            let counts = [
                (Orchestrated::LimitSignal(class), meters.signals.tell(totals.signals)),
                (Orchestrated::BackoffMs, meters.backoff_ms.tell(totals.backoff_ms)),
                (Orchestrated::LaunchHold, meters.holds.tell(totals.holds)),
                (Orchestrated::Recovered, meters.recovered.tell(totals.recovered)),
            ];
            for (what, more) in counts {
                out.add(Count::Orchestration(what), more);
            }
            let more = meters.throttled.tell(totals.throttled);
            out.add(throttled(told.parallel.reason), more);
        }
        self.limit_told(&told.limit);
        self.launch_told(&told.launch, t);
        self.parallel_told(&told.parallel, t);
    }
}

const fn throttled(reason: Option<ThrottleReason>) -> Count {
    let reason = match reason {
        Some(reason) => reason,
        None => ThrottleReason::Other,
    };
    Count::Orchestration(Orchestrated::Throttled(reason))
}

// === impl Spec ===

impl Spec {
    /// Takes in what is told of it; says whether that is news.
    fn take(&mut self, update: &SpecUpdate, t: Option<Timestamp>) -> bool {
        let before = (self.status, self.retries, self.turns);
        self.batch = update.batch.or(self.batch);
        if update.attempt {
            self.attempts = self.attempts.saturating_add(1);
        }
        let retries = update.retries.unwrap_or(0).max(self.attempts.saturating_sub(1));
        self.retries = self.retries.max(retries);
        if update.turn {
            self.turns = Some(self.turns.unwrap_or(0).saturating_add(1));
        }
        if let Some(thread) = &update.thread {
            self.thread = Some(thread.clone());
        }
        // That its agent runs says that the spec does, unless it is known to be over.
        let by_agent =
            (update.thread.is_some() && self.status == SpecStatus::Pending).then_some(SpecStatus::Running);
        let is_new = t.is_none() || t >= self.as_of;
        if let Some(status) = update.status.or(by_agent).filter(|_| is_new) {
            // Told again, nothing has happened since.
            if self.status != status || self.since.is_none() {
                (self.status, self.since) = (status, t);
                later(&mut self.as_of, t);
            }
        }
        self.take_error(update);
        before != (self.status, self.retries, self.turns)
    }

    fn take_error(&mut self, update: &SpecUpdate) {
        if self.status == SpecStatus::Completed {
            self.error = None;
        } else if let Some(class) = update.error {
            // An agent that ended tells of the attempt that runs; once the spec waits again, its orchestrator has said why.
            let late = update.status.is_none()
                && self.status != SpecStatus::Running
                && matches!(class, ErrorClass::Exit | ErrorClass::Timeout);
            let vague = class == ErrorClass::Other
                && self.error.is_some()
                && !(self.error == Some(ErrorClass::RateLimit) && update.status == Some(SpecStatus::Failed));
            if !late && !vague {
                self.error = Some(class);
            }
        }
    }
}
