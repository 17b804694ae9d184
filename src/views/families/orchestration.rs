//! Families about orchestrations and their specs, and the sums over them. An orchestration has no series of sessions; its
//! agents have their own.
//!
//! A number that is not known, a limit that is not set and a moment that has not come have no series. Specs have series
//! while they work or wait for another attempt, and once they failed, at most [`MAX_SPECS`] of an orchestration.

use std::collections::BTreeSet;

use super::Kind::{Counter, Gauge};
use super::Stability::Experimental;
use super::{Family, Rows, Sink, Totals, Value};
use crate::event::{LimitClass, OrchestrationState, SpecStatus, ThrottleReason, Timestamp};
use crate::session::facts::Facts;
use crate::session::orchestration::{Orchestrated, Orchestration, Spec};
use crate::session::{Count, Derived, Snapshot, State};

/// Specs of one orchestration that have series.
pub const MAX_SPECS: usize = 50;
/// The labels of every family about one orchestration.
pub const IDENTITY: [&str; 3] = ["source", "project", "orchestration"];

/// One orchestration at one moment.
#[derive(Debug)]
pub struct OrchestrationView<'a> {
    /// The session it is.
    pub facts: &'a Facts,
    /// Its newest run.
    pub run: &'a Orchestration,
    /// Its state in the words of sessions.
    pub derived: Derived,
    /// Its state in its own.
    pub state: OrchestrationState,
    /// Specs that have series, by name.
    pub specs: Vec<&'a Spec>,
    /// The moment.
    pub now: Timestamp,
}

// === impl OrchestrationView ===

impl<'a> OrchestrationView<'a> {
    /// Prepares all of them, in the order of their keys.
    pub fn all(snapshot: &'a Snapshot, now: Timestamp) -> impl Iterator<Item = Self> {
        snapshot.slots().filter_map(move |slot| Self::of(snapshot, slot, now))
    }

    /// Prepares the one in this slot, if it is one.
    pub fn of(snapshot: &'a Snapshot, slot: usize, now: Timestamp) -> Option<Self> {
        let facts = &**snapshot.facts(slot)?;
        let run = facts.orchestration.as_deref()?;
        let derived = snapshot.derive(&snapshot.rollup(slot, now)?);
        // A source that is lost says nothing about what ran.
        let lost = derived.state == State::Unknown;
        let state = if lost { OrchestrationState::Unknown } else { run.state_at(now) };
        Some(Self { facts, run, derived, state, specs: shown(run), now })
    }

    /// What it is known by.
    pub fn key(&self) -> (&'a str, &'a str) {
        (self.facts.source.as_str(), self.facts.session.as_str())
    }

    /// Whether somebody should look at it: as with sessions, or because of a spec.
    pub fn needs_attention(&self) -> bool {
        self.derived.state.needs_attention()
            || self.facts.stop.is_some_and(|stop| stop.pending)
            || self.run.specs.iter().any(|s| is_bad(s) || s.status == SpecStatus::Skipped)
    }

    fn put(&self, out: &mut dyn Sink, own: &[(&'static str, &str)], value: Value) {
        let mut labels = Vec::with_capacity(IDENTITY.len() + own.len());
        let project = self.facts.project.as_ref().map_or("", |p| p.as_str());
        let values = [self.facts.source.as_str(), project, self.facts.session.as_str()];
        labels.extend(IDENTITY.into_iter().zip(values));
        labels.extend_from_slice(own);
        out.sample(&labels, value);
    }

    fn count(&self, out: &mut dyn Sink, n: Option<u64>) {
        if let Some(n) = n {
            self.put(out, &[], Value::Count(n));
        }
    }

    fn millis(&self, out: &mut dyn Sink, ms: Option<u64>) {
        if let Some(ms) = ms {
            self.put(out, &[], Value::Millis(i64::try_from(ms).unwrap_or(i64::MAX)));
        }
    }

    /// A past moment: what is dated ahead of now is shown as now.
    fn moment(&self, out: &mut dyn Sink, own: &[(&'static str, &str)], at: Option<Timestamp>) {
        if let Some(at) = at {
            self.put(out, own, Value::moment(at.min(self.now)));
        }
    }
}

const fn is_bad(spec: &Spec) -> bool {
    matches!(spec.status, SpecStatus::Failed | SpecStatus::Timeout)
}

/// Specs that have series: of too many first those that failed, then those that wait for another attempt.
fn shown(run: &Orchestration) -> Vec<&Spec> {
    let rank = |s: &Spec| match s.status {
        SpecStatus::Failed | SpecStatus::Timeout => Some(0),
        SpecStatus::Pending if s.waits_for_retry() => Some(1),
        SpecStatus::Running => Some(2),
        _ => None,
    };
    let mut ranked: Vec<_> = run.specs.iter().filter_map(|s| Some((rank(s)?, s))).collect();
    if ranked.len() > MAX_SPECS {
        ranked.sort_by_key(|(rank, _)| *rank);
        ranked.truncate(MAX_SPECS);
        ranked.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
    }
    ranked.into_iter().map(|(_, s)| s).collect()
}

/// Sources and projects that have an orchestration, as they are counted.
pub(super) fn projects(snapshot: &Snapshot) -> BTreeSet<(&str, &str)> {
    let aggregates = &*snapshot.aggregates;
    let present = snapshot.sessions.iter().flatten().filter(|f| f.orchestration.is_some());
    let present = present.map(|f| (f.source.as_str(), aggregates.shown_project(f.project.as_ref())));
    let counted = aggregates.sums.keys().filter(|(_, _, count)| matches!(count, Count::Orchestration(_)));
    present.chain(counted.map(|(source, project, _)| (source.as_str(), project.as_str()))).collect()
}

/// What starts at 0 for each of them.
pub(super) fn known() -> impl Iterator<Item = Orchestrated> {
    [Orchestrated::BackoffMs, Orchestrated::LaunchHold, Orchestrated::Recovered]
        .into_iter()
        .chain(SpecStatus::ALL.iter().filter(|s| s.is_end()).map(|s| Orchestrated::Spec(*s)))
        .chain(LimitClass::ALL.iter().map(|c| Orchestrated::LimitSignal(*c)))
        .chain(ThrottleReason::ALL.iter().map(|r| Orchestrated::Throttled(*r)))
}

type Row = fn(&OrchestrationView<'_>, &mut dyn Sink);

const OWN: &[&str] = &IDENTITY;
const BY_STATE: &[&str] = &["source", "project", "orchestration", "state"];
const BY_STATUS: &[&str] = &["source", "project", "orchestration", "status"];
const BY_SPEC: &[&str] = &["source", "project", "orchestration", "spec"];
const BY_SPEC_AND_STATE: &[&str] = &["source", "project", "orchestration", "spec", "state"];
const BY_SPEC_AND_CLASS: &[&str] = &["source", "project", "orchestration", "spec", "class"];

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str, rows: Row) -> Family {
    Family { name, kind: Gauge, help, labels, stability: Experimental, rows: Rows::Orchestration(rows) }
}

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    rows: fn(&Totals<'_>, &mut dyn Sink),
) -> Family {
    Family { name, kind: Counter, help, labels, stability: Experimental, rows: Rows::Totals(rows) }
}

/// The families, in the order of the exposition.
pub static FAMILIES: &[Family] = &[
    gauge(
        "agent_orchestration_state",
        BY_STATE,
        "1 for the state the orchestrator is in by its own word, 0 for the others; unknown where its status file says \
         running but was not rewritten for 10 s.",
        |o, out| {
            for state in OrchestrationState::ALL {
                o.put(out, &[("state", state.as_str())], Value::flag(*state == o.state));
            }
        },
    ),
    gauge(
        "agent_orchestration_start_timestamp_seconds",
        OWN,
        "Unix time at which the newest run began.",
        |o, out| o.moment(out, &[], o.run.started.or(o.run.began)),
    ),
    gauge(
        "agent_orchestration_end_timestamp_seconds",
        OWN,
        "Unix time at which the newest run ended.",
        |o, out| o.moment(out, &[], o.run.ended),
    ),
    gauge(
        "agent_orchestration_last_update_timestamp_seconds",
        OWN,
        "Unix time of the newest rewrite of the status file or the newest pushed event.",
        |o, out| o.moment(out, &[], o.run.updated.max(o.run.rewritten)),
    ),
    gauge(
        "agent_orchestration_stop_requested_timestamp_seconds",
        OWN,
        "Unix time at which somebody asked the newest run to stop; absent once that was taken back.",
        |o, out| {
            // Who only has this series would wait for a stop that nobody wants any more.
            let stop = o.facts.stop.filter(|stop| stop.pending || stop.acknowledged_at.is_some());
            o.moment(out, &[], stop.map(|stop| stop.requested_at));
        },
    ),
    gauge(
        "agent_orchestration_specs",
        BY_STATUS,
        "Specs of the newest run by status; at most 512 are followed.",
        |o, out| {
            for (status, n) in SpecStatus::ALL.iter().zip(o.run.specs_by_status()) {
                o.put(out, &[("status", status.as_str())], Value::Count(n));
            }
        },
    ),
    gauge("agent_orchestration_batch", OWN, "The batch the newest run is in, from 1.", |o, out| {
        o.count(out, o.run.batch.map(u64::from));
    }),
    gauge("agent_orchestration_batches", OWN, "Batches of the newest run.", |o, out| {
        o.count(out, o.run.batches.map(u64::from));
    }),
    gauge(
        "agent_orchestration_rate_limit_last_signal_timestamp_seconds",
        BY_SPEC,
        "Unix time of the newest signal of a rate limit in the run, with the spec it was about.",
        |o, out| {
            let spec = o.run.limit.spec.as_ref().map_or("", |s| s.as_str());
            o.moment(out, &[("spec", spec)], o.run.limit.at);
        },
    ),
    gauge(
        "agent_orchestration_rate_limit_last_retry",
        OWN,
        "Attempt, from 0, that the newest signal of a rate limit was about.",
        |o, out| o.count(out, o.run.limit.retry.filter(|_| o.run.limit.at.is_some()).map(u64::from)),
    ),
    gauge(
        "agent_orchestration_rate_limit_last_delay_seconds",
        OWN,
        "Wait before the spec's next attempt that the newest signal of a rate limit announced.",
        |o, out| o.millis(out, o.run.limit.delay_ms.filter(|_| o.run.limit.at.is_some())),
    ),
    gauge(
        "agent_orchestration_rate_limit_launch_hold_seconds",
        OWN,
        "Time for which the newest signal of a rate limit holds back all starts.",
        |o, out| o.millis(out, o.run.limit.hold_ms.filter(|_| o.run.limit.at.is_some())),
    ),
    gauge(
        "agent_orchestration_launch_budget",
        OWN,
        "Agents that may be started in one window; absent where they are not limited.",
        |o, out| o.count(out, o.run.launch.budget),
    ),
    gauge(
        "agent_orchestration_launch_budget_used",
        OWN,
        "Agents that were started in the window, as of the newest start; it does not fall by itself.",
        |o, out| o.count(out, o.run.launch.used.filter(|_| o.run.launch.budget.is_some())),
    ),
    gauge(
        "agent_orchestration_launch_budget_window_seconds",
        OWN,
        "Length of the launch budget's window.",
        |o, out| o.millis(out, o.run.launch.window_ms.filter(|_| o.run.launch.budget.is_some())),
    ),
    gauge(
        "agent_orchestration_launch_budget_last_hold_seconds",
        OWN,
        "For how long starts are held back by the launch budget, as told last.",
        |o, out| {
            let launch = &o.run.launch;
            o.millis(out, launch.hold_ms.filter(|ms| *ms > 0 || launch.hold_at.is_some()));
        },
    ),
    gauge(
        "agent_orchestration_launch_budget_last_hold_timestamp_seconds",
        OWN,
        "Unix time at which the launch budget held back a start last.",
        |o, out| o.moment(out, &[], o.run.launch.hold_at),
    ),
    gauge(
        "agent_orchestration_parallel_max",
        OWN,
        "Agents that may run at once, as configured.",
        |o, out| {
            o.count(out, o.run.parallel.max);
        },
    ),
    gauge("agent_orchestration_parallel_effective", OWN, "Agents that may run at once now.", |o, out| {
        o.count(out, o.run.parallel.effective);
    }),
    gauge(
        "agent_orchestration_parallel_floor",
        OWN,
        "Agents that may run at once however many limits are met.",
        |o, out| o.count(out, o.run.parallel.floor),
    ),
    gauge(
        "agent_orchestration_parallel_adaptive",
        OWN,
        "1 where rate limits lower the number of agents at once, else 0.",
        |o, out| o.count(out, o.run.parallel.adaptive.map(u64::from)),
    ),
    gauge(
        "agent_orchestration_parallel_last_throttled_timestamp_seconds",
        OWN,
        "Unix time at which the number of agents at once was lowered last.",
        |o, out| o.moment(out, &[], o.run.parallel.throttled_at),
    ),
    gauge(
        "agent_orchestration_parallel_last_recovered_timestamp_seconds",
        OWN,
        "Unix time at which the number of agents at once was raised again last.",
        |o, out| o.moment(out, &[], o.run.parallel.recovered_at),
    ),
    gauge(
        "agent_orchestration_run_rate_limit_signals",
        OWN,
        "Signals of a rate limit in the newest run.",
        |o, out| o.count(out, Some(o.run.totals().signals)),
    ),
    gauge(
        "agent_orchestration_run_backoff_seconds",
        OWN,
        "Waiting that rate limits announced in the newest run.",
        |o, out| o.millis(out, Some(o.run.totals().backoff_ms)),
    ),
    gauge(
        "agent_orchestration_run_launch_holds",
        OWN,
        "Signals of starts held back by the launch budget in the newest run; one hold gives one a second.",
        |o, out| o.count(out, Some(o.run.totals().holds)),
    ),
    gauge(
        "agent_orchestration_run_throttled",
        OWN,
        "Times the number of agents at once was lowered in the newest run.",
        |o, out| o.count(out, Some(o.run.totals().throttled)),
    ),
    gauge(
        "agent_orchestration_run_recovered",
        OWN,
        "Times the number of agents at once was raised again in the newest run.",
        |o, out| o.count(out, Some(o.run.totals().recovered)),
    ),
    gauge(
        "agent_orchestration_spec_state",
        BY_SPEC_AND_STATE,
        "1 for the status of a spec that runs, waits for another attempt or failed.",
        |o, out| {
            for spec in &o.specs {
                let own = [("spec", spec.name.as_str()), ("state", spec.status.as_str())];
                o.put(out, &own, Value::Count(1));
            }
        },
    ),
    gauge(
        "agent_orchestration_spec_retries",
        BY_SPEC,
        "How often a spec that runs, waits for another attempt or failed was tried again.",
        |o, out| {
            for spec in &o.specs {
                o.put(out, &[("spec", spec.name.as_str())], Value::Count(spec.retries.into()));
            }
        },
    ),
    gauge(
        "agent_orchestration_spec_error",
        BY_SPEC_AND_CLASS,
        "1 for the class of the error a spec met last, until it is completed.",
        |o, out| {
            for (spec, class) in o.specs.iter().filter_map(|s| Some((s, s.error?))) {
                o.put(out, &[("spec", spec.name.as_str()), ("class", class.as_str())], Value::Count(1));
            }
        },
    ),
    gauge(
        "agent_orchestration_spec_turns",
        BY_SPEC,
        "Turns that the agents of a spec began, where their lines are pushed.",
        |o, out| {
            for (spec, turns) in o.specs.iter().filter_map(|s| Some((s, s.turns?))) {
                o.put(out, &[("spec", spec.name.as_str())], Value::Count(turns));
            }
        },
    ),
    counter(
        "agent_orchestration_specs_ended_total",
        &["source", "project", "status"],
        "Specs that ended, by how; each once in a run.",
        |t, out| {
            t.counts(out, |c| match c {
                Count::Orchestration(Orchestrated::Spec(status)) => Some([("status", status.as_str())]),
                _ => None,
            });
        },
    ),
    counter(
        "agent_orchestration_rate_limit_signals_total",
        &["source", "project", "class"],
        "Signals of a rate limit that orchestrators met, by which limit.",
        |t, out| {
            t.counts(out, |c| match c {
                Count::Orchestration(Orchestrated::LimitSignal(class)) => Some([("class", class.as_str())]),
                _ => None,
            });
        },
    ),
    counter(
        "agent_orchestration_rate_limit_backoff_seconds_total",
        &["source", "project"],
        "Seconds of waiting that rate limits announced to orchestrators.",
        |t, out| {
            t.counts(out, |c| matches!(c, Count::Orchestration(Orchestrated::BackoffMs)).then_some([]));
        },
    ),
    counter(
        "agent_orchestration_launch_hold_signals_total",
        &["source", "project"],
        "Signals of starts held back by a launch budget; one hold gives one a second.",
        |t, out| {
            t.counts(out, |c| matches!(c, Count::Orchestration(Orchestrated::LaunchHold)).then_some([]));
        },
    ),
    counter(
        "agent_orchestration_throttled_total",
        &["source", "project", "reason"],
        "Times orchestrators lowered the number of agents at once, by why.",
        |t, out| {
            t.counts(out, |c| match c {
                Count::Orchestration(Orchestrated::Throttled(reason)) => Some([("reason", reason.as_str())]),
                _ => None,
            });
        },
    ),
    counter(
        "agent_orchestration_recovered_total",
        &["source", "project"],
        "Times orchestrators raised the number of agents at once again.",
        |t, out| {
            t.counts(out, |c| matches!(c, Count::Orchestration(Orchestrated::Recovered)).then_some([]));
        },
    ),
];
