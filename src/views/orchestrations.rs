//! Answers about orchestrations: the list, and one report with everything that is known of the newest run. `null` is what
//! nobody told.

use axum::http::StatusCode;
use serde::Serialize;

use super::families::OrchestrationView;
use super::http::Refusal;
use super::status::Moment;
use crate::event::{SCHEMA_VERSION, SpecStatus, Timestamp};
use crate::session::Snapshot;
use crate::session::orchestration::Spec;

/// All orchestrations.
#[derive(Debug, Serialize)]
pub(super) struct List<'a> {
    orchestrations: Vec<Summary<'a>>,
}

/// One of them in short.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    source: &'a str,
    orchestration_id: &'a str,
    project_id: Option<&'a str>,
    state: &'static str,
    started_at: Option<Moment>,
    ended_at: Option<Moment>,
    last_update_at: Option<Moment>,
    batch: Option<u32>,
    batches: Option<u32>,
    specs_by_status: ByStatus,
}

/// The report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report<'a> {
    schema_version: &'static str,
    #[serde(flatten)]
    summary: Summary<'a>,
    /// Since when it is in its state.
    state_since: Moment,
    stop: Option<Stop>,
    specs: Vec<SpecReport<'a>>,
    /// Further specs, which are not followed.
    specs_beyond: u64,
    rate_limit: RateLimit<'a>,
    parallel: Parallel,
    launch_budget: LaunchBudget,
    /// Lines of agents that belong to no spec.
    unattributed: u64,
}

#[derive(Debug, Serialize)]
struct ByStatus {
    pending: u64,
    running: u64,
    completed: u64,
    failed: u64,
    timeout: u64,
    skipped: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Stop {
    pending: bool,
    requested_at: Moment,
    acknowledged_at: Option<Moment>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SpecReport<'a> {
    spec: &'a str,
    /// The session of the spec in `/api/v1/sessions`.
    session_id: String,
    status: &'static str,
    since: Option<Moment>,
    batch: Option<u32>,
    retries: u32,
    error_class: Option<&'static str>,
    turns: Option<u64>,
    /// The session of its newest agent, by the agent's own name for it.
    thread_id: Option<&'a str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RateLimit<'a> {
    signals: u64,
    backoff_ms: u64,
    last_signal_at: Option<Moment>,
    last_spec: Option<&'a str>,
    last_retry: Option<u32>,
    last_delay_ms: Option<u64>,
    launch_hold_ms: Option<u64>,
    class: Option<&'static str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Parallel {
    adaptive: Option<bool>,
    max: Option<u64>,
    effective: Option<u64>,
    floor: Option<u64>,
    throttled: u64,
    recovered: u64,
    last_throttled_at: Option<Moment>,
    last_recovered_at: Option<Moment>,
    reason: Option<&'static str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LaunchBudget {
    per_window: Option<u64>,
    window_ms: Option<u64>,
    used: Option<u64>,
    hold_signals: u64,
    last_hold_ms: Option<u64>,
    last_hold_at: Option<Moment>,
}

const UNKNOWN: Refusal =
    Refusal::new(StatusCode::NOT_FOUND, "no_such_orchestration", "no such orchestration");
const SHARED: Refusal = Refusal::new(
    StatusCode::CONFLICT,
    "ambiguous_orchestration",
    "several sources have an orchestration with this id; name one with ?source=",
);
const QUERY: Refusal =
    Refusal::new(StatusCode::BAD_REQUEST, "unknown_parameter", "the only parameter is source");

/// All orchestrations, by source and id.
pub(super) fn list(snapshot: &Snapshot, now: Timestamp) -> List<'_> {
    List { orchestrations: OrchestrationView::all(snapshot, now).map(|view| Summary::of(&view)).collect() }
}

/// The report of the orchestration with this id; `query` may name its source.
pub(super) fn report<'a>(
    snapshot: &'a Snapshot,
    id: &str,
    query: Option<&str>,
    now: Timestamp,
) -> Result<Report<'a>, Refusal> {
    let source = match query.filter(|q| !q.is_empty()).map(|q| q.strip_prefix("source=")) {
        None => None,
        // Names of sources need no encoding, so one that has any is no source.
        Some(Some(source)) if !source.contains(['&', '=']) => Some(source),
        Some(_) => return Err(QUERY),
    };
    let own = |slot: &usize| {
        snapshot.facts(*slot).is_some_and(|f| {
            f.orchestration.is_some()
                && f.session.as_str() == id
                && source.is_none_or(|s| f.source.as_str() == s)
        })
    };
    let mut found = snapshot.slots().filter(own);
    let slot = found.next().ok_or(UNKNOWN)?;
    if found.next().is_some() {
        return Err(SHARED);
    }
    OrchestrationView::of(snapshot, slot, now).map(|view| Report::of(&view)).ok_or(UNKNOWN)
}

fn moment(t: Option<Timestamp>) -> Option<Moment> {
    t.map(Moment)
}

// === impl Summary ===

impl<'a> Summary<'a> {
    fn of(view: &OrchestrationView<'a>) -> Self {
        let (facts, run) = (view.facts, view.run);
        let [pending, running, completed, failed, timeout, skipped] = run.specs_by_status();
        Self {
            source: facts.source.as_str(),
            orchestration_id: facts.session.as_str(),
            project_id: facts.project.as_ref().map(|p| p.as_str()),
            state: view.state.as_str(),
            started_at: moment(run.started.or(run.began)),
            ended_at: moment(run.ended),
            last_update_at: moment(run.updated.max(run.rewritten)),
            batch: run.batch,
            batches: run.batches,
            specs_by_status: ByStatus { pending, running, completed, failed, timeout, skipped },
        }
    }
}

// === impl Report ===

impl<'a> Report<'a> {
    fn of(view: &OrchestrationView<'a>) -> Self {
        let run = view.run;
        let totals = run.totals();
        let stop = view.facts.stop.map(|stop| Stop {
            pending: stop.pending,
            requested_at: Moment(stop.requested_at),
            acknowledged_at: moment(stop.acknowledged_at),
        });
        let (limit, parallel, launch) = (&run.limit, &run.parallel, &run.launch);
        Self {
            schema_version: SCHEMA_VERSION,
            summary: Summary::of(view),
            state_since: Moment(view.derived.since),
            stop,
            specs: run.specs.iter().map(|s| SpecReport::of(view.facts.session.as_str(), s)).collect(),
            specs_beyond: run.beyond,
            rate_limit: RateLimit {
                signals: totals.signals,
                backoff_ms: totals.backoff_ms,
                last_signal_at: moment(limit.at),
                last_spec: limit.spec.as_ref().map(|s| s.as_str()),
                last_retry: limit.retry.filter(|_| limit.at.is_some()),
                last_delay_ms: limit.delay_ms.filter(|_| limit.at.is_some()),
                launch_hold_ms: limit.hold_ms.filter(|_| limit.at.is_some()),
                class: limit.class.map(|c| c.as_str()),
            },
            parallel: Parallel {
                adaptive: parallel.adaptive,
                max: parallel.max,
                effective: parallel.effective,
                floor: parallel.floor,
                throttled: totals.throttled,
                recovered: totals.recovered,
                last_throttled_at: moment(parallel.throttled_at),
                last_recovered_at: moment(parallel.recovered_at),
                reason: parallel.reason.map(|r| r.as_str()),
            },
            launch_budget: LaunchBudget {
                per_window: launch.budget,
                window_ms: launch.window_ms,
                used: launch.used.filter(|_| launch.budget.is_some()),
                hold_signals: totals.holds,
                last_hold_ms: launch.hold_ms.filter(|ms| *ms > 0 || launch.hold_at.is_some()),
                last_hold_at: moment(launch.hold_at),
            },
            unattributed: run.unattributed,
        }
    }
}

// === impl SpecReport ===

impl<'a> SpecReport<'a> {
    fn of(orchestration: &str, spec: &'a Spec) -> Self {
        Self {
            spec: spec.name.as_str(),
            session_id: format!("{orchestration}/{}", spec.name.as_str()),
            status: spec.status.as_str(),
            since: moment(spec.since),
            batch: spec.batch,
            retries: spec.retries,
            error_class: spec.error.filter(|_| spec.status != SpecStatus::Completed).map(|e| e.as_str()),
            turns: spec.turns,
            thread_id: spec.thread.as_ref().map(|t| t.as_str()),
        }
    }
}
