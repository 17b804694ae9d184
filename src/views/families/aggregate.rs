//! Families over all sessions, without a session's name. Counts and histograms come from the fold's sums; the two
//! gauges count root sessions by their state at the time of the scrape.
//!
//! A counter that appears with its first increment hides that increment from `increase()`. So closed sets start at 0
//! for each source and project that is known, and a tool, step kind or model that was seen gets every word of the
//! closed label beside it. Labels that are open or rarely used appear when seen.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;

use super::Kind::{Counter, Gauge, Histogram as Buckets};
use super::Stability::Experimental;
use super::{Family, Kind, Rows, SessionView, Sink, Value, orchestration};
use crate::event::{
    CallOutcome, EndOutcome, Name, ProgressKind, Resolution, SourceId, StepOutcome, TurnOutcome,
};
use crate::session::counts::{Histogram, Observation, TokenKind};
use crate::session::exemplars::Newest;
use crate::session::orchestration::Orchestrated;
use crate::session::{Count, Snapshot, State};

/// Sums over all sessions at one moment, in the order of the exposition.
#[derive(Debug, Default)]
pub struct Totals<'a> {
    sums: Vec<Sum<'a>>,
    histograms: Vec<Durations<'a>>,
    /// Root sessions by source, project; then by state.
    sessions: BTreeMap<(&'a str, &'a str), ByState>,
    /// Root sessions by source, model, provider; then by state.
    models: BTreeMap<(&'a str, &'a str, &'a str), ByState>,
}

/// A histogram with its examples.
#[derive(Debug)]
struct Durations<'a> {
    what: Observation,
    source: &'a str,
    histogram: &'a Histogram,
    newest: Option<&'a Newest>,
}

#[derive(Debug)]
struct Sum<'a> {
    count: Count,
    source: &'a str,
    project: &'a str,
    value: u64,
}

/// Numbers of sessions in the order of [`State::ALL`].
type ByState = [u64; State::ALL.len()];

// === impl Totals ===

impl<'a> Totals<'a> {
    /// Prepares the sums of a snapshot; `roots` are the sessions that count as present, whether or not each of them
    /// has series of its own.
    pub fn of(snapshot: &'a Snapshot, roots: &[SessionView<'a>]) -> Self {
        let aggregates = &*snapshot.aggregates;
        let mut totals = Self::default();
        // By the names they have, so that the one they are shown under is looked up once for each.
        let mut projects: HashMap<(&str, Option<&Name>), ByState> = HashMap::new();
        let mut models: HashMap<(&str, &str, &str), ByState> = HashMap::new();
        for root in roots {
            let facts = root.facts();
            let source = facts.source.as_str();
            let state = root.derived.state as usize;
            // The row keeps its own series; among the sessions only one of the two is counted.
            let n = u64::from(!snapshot.is_retold(facts));
            projects.entry((source, facts.project.as_ref())).or_default()[state] += n;
            if !root.model.is_empty() {
                models.entry((source, root.model, root.provider)).or_default()[state] += n;
            }
        }
        totals.models.extend(models);
        for ((source, project), numbers) in projects {
            let shown = totals.sessions.entry((source, aggregates.shown_project(project))).or_default();
            for (sum, n) in shown.iter_mut().zip(numbers) {
                *sum += n;
            }
        }
        let mut sums: BTreeMap<(Count, &str, &str), u64> = BTreeMap::new();
        let mut sources: BTreeSet<&str> = BTreeSet::new();
        for ((source, project, count), sum) in &aggregates.sums {
            let (source, project) = (source.as_str(), project.as_str());
            sources.insert(source);
            if count.by_project() && !matches!(count, Count::Orchestration(_)) {
                totals.sessions.entry((source, project)).or_default();
            }
            for beside in siblings(count) {
                sums.entry((beside, source, project)).or_default();
            }
            sums.insert((count.clone(), source, project), sum.shown());
        }
        for (source, project) in totals.sessions.keys() {
            sources.insert(source);
            for count in known() {
                sums.entry((count, source, project)).or_default();
            }
        }
        for source in sources {
            sums.entry((Count::BackoffMs, source, "")).or_default();
        }
        for (source, project) in orchestration::projects(snapshot) {
            for what in orchestration::known() {
                sums.entry((Count::Orchestration(what), source, project)).or_default();
            }
        }
        let row = |((count, source, project), value)| Sum { count, source, project, value };
        totals.sums = sums.into_iter().map(row).collect();
        let durations = |(key, histogram): (&'a (SourceId, Observation), &'a Histogram)| Durations {
            what: key.1,
            source: key.0.as_str(),
            histogram,
            newest: snapshot.exemplars.of(key),
        };
        totals.histograms = aggregates.histograms.iter().map(durations).collect();
        totals.histograms.sort_unstable_by_key(|d| (d.what, d.source));
        totals
    }

    /// The sums that `labels` knows, each with the labels it names.
    pub(super) fn counts<const N: usize>(
        &self,
        out: &mut dyn Sink,
        labels: impl Fn(&Count) -> Option<[(&'static str, &str); N]>,
    ) {
        for sum in &self.sums {
            let Some(own) = labels(&sum.count) else { continue };
            let mut all = [("source", sum.source), ("project", sum.project), ("", ""), ("", ""), ("", "")];
            let from = if sum.count.by_project() { 2 } else { 1 };
            all[from..from + N].copy_from_slice(&own);
            let value = match sum.count {
                Count::BackoffMs | Count::Orchestration(Orchestrated::BackoffMs) => {
                    Value::Millis(i64::try_from(sum.value).unwrap_or(i64::MAX))
                }
                Count::CostNano(..) => Value::Float(sum.value as f64 / 1e9),
                _ => Value::Count(sum.value),
            };
            out.sample(&all[..from + N], value);
        }
    }

    fn durations(
        &self,
        out: &mut dyn Sink,
        label: impl Fn(Observation) -> Option<(&'static str, &'static str)>,
    ) {
        for durations in &self.histograms {
            if let Some(own) = label(durations.what) {
                out.histogram(&[("source", durations.source), own], durations.histogram, durations.newest);
            }
        }
    }
}

/// What starts at 0 for each source and project that is known. Repeats of progress (kinds that can be of high value,
/// counted low), requests to a person and to stop appear when seen: most sources never have them.
fn known() -> impl Iterator<Item = Count> {
    let ends = [EndOutcome::Completed, EndOutcome::Failed, EndOutcome::Cancelled];
    [Count::Started, Count::Compaction, Count::Verification(false), Count::Verification(true)]
        .into_iter()
        .chain(ends.map(Count::Ended))
        .chain(TurnOutcome::ALL.iter().map(|o| Count::Turn(*o)))
        .chain(State::Stalled.reasons().iter().map(|r| Count::Stall(*r)))
        .chain(ProgressKind::ALL.iter().map(|k| Count::Progress(*k, k.can_be_high())))
}

/// The counts that differ from this one in its closed label only.
fn siblings(count: &Count) -> Vec<Count> {
    match count {
        Count::ToolCall(tool, _) => {
            // Where every end says how it went, the word for those that do not say has no place.
            let told = CallOutcome::ALL.iter().filter(|o| **o != CallOutcome::Unknown);
            told.map(|o| Count::ToolCall(tool.clone(), *o)).collect()
        }
        Count::Step(kind, _) => StepOutcome::ALL.iter().map(|o| Count::Step(*kind, *o)).collect(),
        Count::UserAction(kind, _) => Resolution::ALL.iter().map(|r| Count::UserAction(*kind, *r)).collect(),
        Count::Tokens(model, provider, _) => {
            TokenKind::ALL.map(|k| Count::Tokens(model.clone(), provider.clone(), k)).to_vec()
        }
        _ => Vec::new(),
    }
}

const fn family(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
    rows: fn(&Totals<'_>, &mut dyn Sink),
) -> Family {
    Family { name, kind, help, labels, stability: Experimental, rows: Rows::Totals(rows) }
}

/// The families, in the order of the exposition.
pub static FAMILIES: &[Family] = &[
    family(
        "agent_sessions",
        Gauge,
        &["source", "project", "state"],
        "Root sessions by their state at the time of the scrape, until their series would expire; one that two sources see is counted under the agent's own.",
        |t, out| {
            for ((source, project), numbers) in &t.sessions {
                for (state, n) in State::ALL.iter().zip(numbers) {
                    let labels = [("source", *source), ("project", *project), ("state", state.as_str())];
                    out.sample(&labels, Value::Count(*n));
                }
            }
        },
    ),
    family(
        "agent_model_sessions",
        Gauge,
        &["source", "model", "provider", "state"],
        "Root sessions by model in use and state at the time of the scrape, until their series would expire.",
        |t, out| {
            for ((source, model, provider), numbers) in &t.models {
                for (state, n) in State::ALL.iter().zip(numbers) {
                    let labels = [
                        ("source", *source),
                        ("model", *model),
                        ("provider", *provider),
                        ("state", state.as_str()),
                    ];
                    out.sample(&labels, Value::Count(*n));
                }
            }
        },
    ),
    family(
        "agent_session_started_total",
        Counter,
        &["source", "project"],
        "Root sessions whose start or first work was seen.",
        |t, out| t.counts(out, |c| matches!(c, Count::Started).then_some([])),
    ),
    family(
        "agent_session_ended_total",
        Counter,
        &["source", "project", "outcome"],
        "Root sessions that told of their end, by outcome.",
        |t, out| {
            t.counts(out, |c| match c {
                Count::Ended(outcome) => Some([("outcome", outcome.as_str())]),
                _ => None,
            });
        },
    ),
    family(
        "agent_session_turns_total",
        Counter,
        &["source", "project", "outcome"],
        "Turns of root sessions that ended, by outcome.",
        |t, out| {
            t.counts(out, |c| match c {
                Count::Turn(outcome) => Some([("outcome", outcome.as_str())]),
                _ => None,
            });
        },
    ),
    family(
        "agent_session_stalls_total",
        Counter,
        &["source", "project", "reason"],
        "Times a root session became stalled, by reason.",
        |t, out| {
            t.counts(out, |c| match c {
                Count::Stall(reason) => Some([("reason", reason.as_str())]),
                _ => None,
            });
        },
    ),
    family(
        "agent_session_progress_events_total",
        Counter,
        &["source", "project", "kind", "high_value"],
        "Facts of progress, sub-agents included; high_value true where it moved the progress clock.",
        |t, out| {
            t.counts(out, |c| match c {
                Count::Progress(kind, high) => {
                    let high = if *high { "true" } else { "false" };
                    Some([("kind", kind.as_str()), ("high_value", high)])
                }
                _ => None,
            });
        },
    ),
    family(
        "agent_session_user_actions_total",
        Counter,
        &["source", "project", "kind", "resolution"],
        "Requests to a person that were closed, by kind and how.",
        |t, out| {
            t.counts(out, |c| match c {
                Count::UserAction(kind, how) => Some([("kind", kind.as_str()), ("resolution", how.as_str())]),
                _ => None,
            });
        },
    ),
    family(
        "agent_session_verifications_total",
        Counter,
        &["source", "project", "outcome"],
        "Verifications by outcome, as the agent's workflow reports them.",
        |t, out| {
            t.counts(out, |c| match c {
                Count::Verification(true) => Some([("outcome", "passed")]),
                Count::Verification(false) => Some([("outcome", "failed")]),
                _ => None,
            });
        },
    ),
    family(
        "agent_session_stop_requests_total",
        Counter,
        &["source", "project", "requester"],
        "Requests to stop, by who asked.",
        |t, out| {
            t.counts(out, |c| match c {
                Count::StopRequest(requester) => Some([("requester", requester.as_str())]),
                _ => None,
            });
        },
    ),
    family(
        "agent_session_compactions_total",
        Counter,
        &["source", "project"],
        "Compactions of a context that were completed.",
        |t, out| t.counts(out, |c| matches!(c, Count::Compaction).then_some([])),
    ),
    family(
        "agent_session_tool_calls_total",
        Counter,
        &["source", "tool", "outcome"],
        "Tool calls that ended, by tool and outcome, sub-agents included.",
        |t, out| {
            t.counts(out, |c| match c {
                Count::ToolCall(tool, outcome) => {
                    Some([("tool", tool.as_str()), ("outcome", outcome.as_str())])
                }
                _ => None,
            });
        },
    ),
    family(
        "agent_session_steps_total",
        Counter,
        &["source", "kind", "outcome"],
        "Workflow steps that ended, by kind and outcome.",
        |t, out| {
            t.counts(out, |c| match c {
                Count::Step(kind, outcome) => Some([("kind", kind.as_str()), ("outcome", outcome.as_str())]),
                _ => None,
            });
        },
    ),
    family(
        "agent_session_native_stuck_total",
        Counter,
        &["source", "detector", "layer"],
        "Times an agent's own loop guard spoke.",
        |t, out| {
            t.counts(out, |c| match c {
                Count::NativeStuck(detector, layer) => {
                    Some([("detector", detector.as_str()), ("layer", layer.as_str())])
                }
                _ => None,
            });
        },
    ),
    family(
        "agent_session_retries_total",
        Counter,
        &["source", "reason", "model"],
        "Retries the agents announced, by reason and model.",
        |t, out| {
            t.counts(out, |c| match c {
                Count::Retry(reason, model) => Some([("reason", reason.as_str()), ("model", model.as_str())]),
                _ => None,
            });
        },
    ),
    family(
        "agent_session_rate_limit_signals_total",
        Counter,
        &["source", "model"],
        "Signals of a rate limit, by model.",
        |t, out| {
            t.counts(out, |c| match c {
                Count::RateLimitSignal(model) => Some([("model", model.as_str())]),
                _ => None,
            });
        },
    ),
    family(
        "agent_session_backoff_seconds_total",
        Counter,
        &["source"],
        "Seconds of waiting that retries and rate limits announced.",
        |t, out| t.counts(out, |c| matches!(c, Count::BackoffMs).then_some([])),
    ),
    family(
        "agent_session_tokens_total",
        Counter,
        &["source", "model", "provider", "kind"],
        "Tokens the agents reported, by model and disjoint kind, sub-agents included.",
        |t, out| {
            t.counts(out, |c| match c {
                Count::Tokens(model, provider, kind) => Some([
                    ("model", model.as_str()),
                    ("provider", provider.as_str()),
                    ("kind", kind.as_str()),
                ]),
                _ => None,
            });
        },
    ),
    family(
        "agent_session_cost_dollars_total",
        Counter,
        &["source", "model", "provider"],
        "Cost in US dollars the agents reported, by model, sub-agents included.",
        |t, out| {
            t.counts(out, |c| match c {
                Count::CostNano(model, provider) => {
                    Some([("model", model.as_str()), ("provider", provider.as_str())])
                }
                _ => None,
            });
        },
    ),
    family(
        "agent_session_turn_duration_seconds",
        Buckets,
        &["source", "outcome"],
        "Time from a turn's start to its end, of root sessions.",
        |t, out| {
            t.durations(out, |o| match o {
                Observation::Turn(outcome) => Some(("outcome", outcome.as_str())),
                _ => None,
            });
        },
    ),
    family(
        "agent_session_step_duration_seconds",
        Buckets,
        &["source", "kind"],
        "Time from entering a workflow step to its end.",
        |t, out| {
            t.durations(out, |o| match o {
                Observation::Step(kind) => Some(("kind", kind.as_str())),
                _ => None,
            });
        },
    ),
    family(
        "agent_session_tool_call_duration_seconds",
        Buckets,
        &["source", "tool_class"],
        "Time from a tool call's start to its end, by what the tool does.",
        |t, out| {
            t.durations(out, |o| match o {
                Observation::Call(class) => Some(("tool_class", class.as_str())),
                _ => None,
            });
        },
    ),
    family(
        "agent_session_user_wait_seconds",
        Buckets,
        &["source", "kind"],
        "Time from a request to a person to its being closed.",
        |t, out| {
            t.durations(out, |o| match o {
                Observation::Wait(kind) => Some(("kind", kind.as_str())),
                _ => None,
            });
        },
    ),
];
