//! The status file becomes events. No clock: when the file was rewritten and read is given.
//!
//! All that the file says is said again only when it changed; that it was rewritten is said each time, because that is
//! the only sign of a living orchestrator.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::lifecycle::Times;
use crate::event::ErrorClass;
use crate::event::reduce::stable_hash;
use crate::event::{
    Event, Fact, LaunchUpdate, LimitUpdate, Name, OrchestrationState, OrchestrationUpdate, ParallelUpdate,
    Reducer, Requester, RunTotals, SessionId, SourceId, SpecStatus, SpecUpdate, StatusTotals, ThrottleReason,
    Timestamp,
};
use crate::sources::DecodeError;
use crate::sources::orchestrator::error_class;

/// Specs that are told of.
const MAX_SPECS: usize = 512;
/// Rewrites for which `stopped` has to stay.
const STOPPED_FOR: u8 = 2;
/// Or the file is left alone for so long: then nobody is there to write over it.
const LEFT_ALONE_MS: i64 = 10_000;
/// Version of the checkpoint's layout.
const LAYOUT: u8 = 1;
/// Counts above this are none: JSON does not carry them exactly.
const MAX_COUNT: f64 = 9_007_199_254_740_992.0;
/// Times of other files may differ by the resolution of the status file's.
const SLACK_MS: i64 = 1_000;

/// One rewrite of the file.
#[derive(Clone, Copy, Debug)]
pub struct Rewrite<'a> {
    /// What is in it.
    pub bytes: &'a [u8],
    /// When it was written.
    pub mtime: Timestamp,
    /// When it was read.
    pub observed: Timestamp,
}

/// Decoder of the status file of one project.
#[derive(Debug)]
pub struct Status {
    source: SourceId,
    session: SessionId,
    project: Name,
    reducer: Arc<Reducer>,
    saved: Saved,
    /// Hash of the content that was told last.
    content: Option<u64>,
    /// What was told last of each spec.
    told: HashMap<String, u64>,
    /// Words this version does not know, since they were asked for.
    unknown: Vec<&'static str>,
    /// Numbers that cannot be counts, likewise.
    dropped: u64,
}

/// What survives a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Saved {
    /// The run that is known, by its start.
    run: Option<Timestamp>,
    /// The newest rewrite that could be read.
    rewritten: Option<Timestamp>,
    /// `stopped` stands in the file: since when, and in how many rewrites.
    stopped: Option<(Timestamp, u8)>,
    /// The stop was taken for done.
    believed: bool,
}

// === impl Status ===

impl Status {
    /// A decoder that has seen nothing of this orchestration.
    pub fn new(source: SourceId, session: SessionId, project: Name, reducer: Arc<Reducer>) -> Self {
        Self {
            source,
            session,
            project,
            reducer,
            saved: Saved::default(),
            content: None,
            told: HashMap::new(),
            unknown: Vec::new(),
            dropped: 0,
        }
    }

    /// Goes on where an earlier run of the exporter was; a checkpoint that cannot be read is none.
    #[must_use]
    pub fn restored(mut self, checkpoint: &[u8]) -> Self {
        if let Some((&LAYOUT, rest)) = checkpoint.split_first() {
            self.saved = postcard::from_bytes(rest).unwrap_or_default();
        }
        self
    }

    /// What has to survive a restart.
    pub fn checkpoint(&self) -> Vec<u8> {
        postcard::to_extend(&self.saved, vec![LAYOUT]).expect("numbers can always be written")
    }

    /// Words this version does not know, since the last call.
    pub fn unknown_words(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.unknown)
    }

    /// Numbers that cannot be counts, since the last call.
    pub fn dropped_numbers(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// Decodes a rewrite.
    ///
    /// # Errors
    /// Nothing of it is taken; what was known stays.
    pub fn decode(
        &mut self,
        rewrite: &Rewrite<'_>,
        times: &mut Times,
        out: &mut Vec<Event>,
    ) -> Result<(), DecodeError> {
        let content = stable_hash(rewrite.bytes);
        if self.saved.rewritten.is_some_and(|known| rewrite.mtime < known) {
            // An older file in the other place.
            return Ok(());
        }
        let again = self.saved.rewritten == Some(rewrite.mtime);
        if self.content == Some(content) {
            if !again {
                self.rewritten_as_it_was(rewrite, out);
            }
            return Ok(());
        }
        let file: Value = serde_json::from_slice(rewrite.bytes).map_err(|_| DecodeError::Json)?;
        let file = file.as_object().ok_or(DecodeError::Shape)?;
        let before = self.saved.rewritten;
        let started = moment(file.get("startedAt"));
        let mut update = self.update(file, started);
        let is_new_run = started.is_some() && started != self.saved.run;
        if is_new_run {
            self.told.clear();
            self.saved = Saved { run: started, ..Saved::default() };
        }
        self.stops(&mut update, rewrite, again, out);
        if let Some(started) = started.filter(|_| is_new_run) {
            // What the run did before it was looked at first happened at its start or later: dated so, it counts only
            // where all of the run does.
            let state = update.state.map(|_| OrchestrationState::Running);
            let head = OrchestrationUpdate {
                state,
                started: Some(started),
                batches: update.batches,
                totals: update.totals.clone(),
                ..OrchestrationUpdate::default()
            };
            out.push(self.event(
                started.min(rewrite.mtime),
                rewrite.observed,
                Fact::Orchestration(Box::new(head)),
            ));
        }
        let earliest = before.filter(|_| !is_new_run).or(started);
        self.specs(file, &mut update, (earliest, is_new_run), rewrite, times, out);
        out.push(self.event(rewrite.mtime, rewrite.observed, Fact::Orchestration(Box::new(update))));
        self.content = Some(content);
        self.saved.rewritten = Some(rewrite.mtime);
        Ok(())
    }

    /// The file was looked at and has not changed: a stop that nobody writes over is one.
    pub fn left_alone(&mut self, now: Timestamp, out: &mut Vec<Event>) {
        if let (Some((since, _)), Some(rewritten)) = (self.saved.stopped, self.saved.rewritten)
            && !self.saved.believed
            && now.since(rewritten) > LEFT_ALONE_MS
        {
            self.believe(since, now, out);
        }
    }

    fn event(&self, time: Timestamp, observed: Timestamp, fact: Fact) -> Event {
        let mut event = Event::new(&self.source, &self.session, observed, fact);
        event.time = Some(time);
        event.project = Some(self.project.clone());
        event
    }

    fn rewritten_as_it_was(&mut self, rewrite: &Rewrite<'_>, out: &mut Vec<Event>) {
        let update = OrchestrationUpdate { rewritten: true, ..OrchestrationUpdate::default() };
        out.push(self.event(rewrite.mtime, rewrite.observed, Fact::Orchestration(Box::new(update))));
        self.saved.rewritten = Some(rewrite.mtime);
        if let Some((since, rewrites)) = self.saved.stopped {
            let rewrites = rewrites.saturating_add(1);
            self.saved.stopped = Some((since, rewrites));
            if rewrites >= STOPPED_FOR && !self.saved.believed {
                self.believe(since, rewrite.observed, out);
            }
        }
    }

    /// Everything but the specs.
    fn update(&mut self, file: &Map<String, Value>, started: Option<Timestamp>) -> OrchestrationUpdate {
        let word = file.get("status").and_then(Value::as_str);
        let state = word.and_then(OrchestrationState::parse);
        if word.is_some() && state.is_none() {
            self.unknown.push("orchestration_status");
        }
        let count = |this: &mut Self, field| {
            this.count(file.get(field)).map(|n| u32::try_from(n).unwrap_or(u32::MAX))
        };
        OrchestrationUpdate {
            state,
            started,
            ended: moment(file.get("completedAt")),
            // Before the first batch it says 0.
            batch: count(self, "currentBatch").filter(|n| *n > 0),
            batches: count(self, "totalBatches").filter(|n| *n > 0),
            rewritten: true,
            totals: Some(Box::new(self.totals(file))),
            ..OrchestrationUpdate::default()
        }
    }

    fn totals(&mut self, file: &Map<String, Value>) -> StatusTotals {
        let none = Map::new();
        let object = |field| file.get(field).and_then(Value::as_object).unwrap_or(&none);
        let (limit, parallel) = (object("rateLimit"), object("parallel"));
        let last = moment(limit.get("lastSignalAt"));
        let reason = parallel.get("lastReason").and_then(Value::as_str);
        StatusTotals {
            totals: RunTotals {
                signals: self.count(limit.get("signalCount")).unwrap_or(0),
                backoff_ms: self.count(limit.get("totalBackoffMs")).unwrap_or(0),
                holds: self.count(limit.get("launchBudgetHoldCount")).unwrap_or(0),
                throttled: self.count(parallel.get("throttledCount")).unwrap_or(0),
                recovered: self.count(parallel.get("recoveredCount")).unwrap_or(0),
            },
            limit: LimitUpdate {
                spec: limit.get("lastSpecName").and_then(Value::as_str).map(|name| self.name(name)),
                at: last,
                retry: self.count(limit.get("lastRetryCount")).map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
                delay_ms: self.count(limit.get("lastDelayMs")),
                hold_ms: self.count(limit.get("lastLaunchHoldMs")),
                class: None,
                waits: false,
            },
            launch: LaunchUpdate {
                budget: self.count(limit.get("launchBudgetPerMinute")),
                window_ms: self.count(limit.get("launchBudgetWindowMs")),
                used: self.count(limit.get("launchBudgetUsed")),
                hold_ms: self.count(limit.get("lastLaunchBudgetHoldMs")),
                hold_at: moment(limit.get("lastLaunchBudgetHoldAt")),
                held: false,
            },
            parallel: ParallelUpdate {
                adaptive: parallel.get("adaptive").and_then(Value::as_bool),
                max: self.count(parallel.get("maxParallel")),
                effective: self.count(parallel.get("effectiveMaxParallel")),
                floor: self.count(parallel.get("floor")),
                throttled_at: moment(parallel.get("lastThrottledAt")),
                recovered_at: moment(parallel.get("lastRecoveredAt")),
                reason: reason.map(throttle_reason),
                change: None,
            },
        }
    }

    /// `stopped` is what another process wrote: it is a request until it stays.
    fn stops(
        &mut self,
        update: &mut OrchestrationUpdate,
        rewrite: &Rewrite<'_>,
        again: bool,
        out: &mut Vec<Event>,
    ) {
        if update.state != Some(OrchestrationState::Stopped) {
            if update.state.is_some() {
                (self.saved.stopped, self.saved.believed) = (None, false);
            }
            return;
        }
        let (since, rewrites) = self.saved.stopped.unwrap_or((rewrite.mtime, 0));
        if rewrites == 0 {
            let stop = Fact::StopRequested { requester: Requester::Cli };
            out.push(self.event(rewrite.mtime, rewrite.observed, stop));
        }
        let rewrites = if again { rewrites.max(1) } else { rewrites.saturating_add(1) };
        self.saved.stopped = Some((since, rewrites));
        if rewrites < STOPPED_FOR && !self.saved.believed {
            (update.state, update.ended) = (None, None);
        } else if !self.saved.believed {
            self.believe(since, rewrite.observed, out);
        }
    }

    fn believe(&mut self, since: Timestamp, observed: Timestamp, out: &mut Vec<Event>) {
        self.saved.believed = true;
        let update = OrchestrationUpdate {
            state: Some(OrchestrationState::Stopped),
            started: self.saved.run,
            ended: Some(since),
            ..OrchestrationUpdate::default()
        };
        let at = self.saved.rewritten.unwrap_or(since).max(since);
        out.push(self.event(at, observed, Fact::StopAcknowledged));
        out.push(self.event(at, observed, Fact::Orchestration(Box::new(update))));
    }

    /// Specs that changed: with the file's time in `update`, those of a better known time as events of their own.
    fn specs(
        &mut self,
        file: &Map<String, Value>,
        update: &mut OrchestrationUpdate,
        (earliest, is_new_run): (Option<Timestamp>, bool),
        rewrite: &Rewrite<'_>,
        times: &mut Times,
        out: &mut Vec<Event>,
    ) {
        let Some(specs) = file.get("specs").and_then(Value::as_object) else { return };
        update.beyond = specs.len().saturating_sub(MAX_SPECS) as u64;
        let limit = update.totals.as_ref().map(|t| t.limit.clone()).unwrap_or_default();
        for (name, spec) in specs.iter().take(MAX_SPECS) {
            let Some(spec) = spec.as_object() else { continue };
            let told = self.spec(name, spec, &limit);
            let mark = stable_hash((told.status, told.batch, told.retries, told.error));
            if self.told.insert(name.clone(), mark) == Some(mark) {
                continue;
            }
            let status = told.status.unwrap_or(SpecStatus::Pending);
            let known = times.of(name, status).filter(|at| {
                earliest.is_none_or(|from| *at >= from.plus(-SLACK_MS)) && *at <= rewrite.mtime.plus(SLACK_MS)
            });
            let at = known.map(|at| at.max(earliest.unwrap_or(at)).min(rewrite.mtime));
            // What had ended before the run was looked at first ended nobody knows when.
            let at = at.or(earliest.filter(|_| is_new_run && status.is_end()));
            match at {
                Some(at) => out.push(self.event(at, rewrite.observed, Fact::Spec(Box::new(told)))),
                None => update.specs.push(told),
            }
        }
    }

    fn spec(&mut self, name: &str, spec: &Map<String, Value>, limit: &LimitUpdate) -> SpecUpdate {
        let mut told = SpecUpdate::of(self.name(name));
        let word = spec.get("status").and_then(Value::as_str);
        told.status = word.and_then(SpecStatus::parse);
        if word.is_some() && told.status.is_none() {
            self.unknown.push("spec_status");
        }
        let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        // From 0 here, while the current batch is counted from 1.
        told.batch = self.count(spec.get("batch")).map(|n| small(n).saturating_add(1));
        told.retries = self.count(spec.get("retryCount")).map(small);
        // A completed spec keeps the error of an attempt before.
        if told.status != Some(SpecStatus::Completed) {
            told.error = spec.get("error").and_then(Value::as_str).map(error_class);
        }
        let limited = limit.spec.as_ref() == Some(&told.spec)
            && limit.retry.map(|n| n.saturating_add(1)) == told.retries
            && matches!(told.status, Some(SpecStatus::Pending | SpecStatus::Running));
        if told.error == Some(ErrorClass::Other) && limited {
            told.error = Some(ErrorClass::RateLimit);
        }
        told
    }

    fn name(&self, text: &str) -> Name {
        Name::from(self.reducer.bounded(text).as_str())
    }

    /// A count; what cannot be one is dropped. Null is no number, and nothing to count.
    fn count(&mut self, value: Option<&Value>) -> Option<u64> {
        let value = value.filter(|v| !v.is_null())?;
        let number = value.as_f64().filter(|n| (0.0..=MAX_COUNT).contains(n));
        self.dropped += u64::from(number.is_none());
        number.map(|n| n as u64)
    }
}

fn moment(value: Option<&Value>) -> Option<Timestamp> {
    Timestamp::parse(value?.as_str()?).ok()
}

/// The engine's word for why it changed the parallelism.
fn throttle_reason(word: &str) -> ThrottleReason {
    if word.starts_with("rate-limit") { ThrottleReason::RateLimit } else { ThrottleReason::Other }
}
