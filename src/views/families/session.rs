//! Families about one session, and what is prepared once per scrape to compute them. Each is one record of the table
//! below; that table is the reason for the length of this file.
//!
//! What a source cannot see has no series: see the checks of capabilities beside the values.

use super::Kind::Gauge;
use super::Life::{Always, Live, Over};
use super::Stability::Experimental;
use super::{Family, Life, Rows, SessionSink, Value, signals};
use crate::event::{ActionKind, Capabilities, Capability, Certainty, Name, SourceId, Timestamp};
use crate::session::facts::Facts;
use crate::session::rollup::CallSummary;
use crate::session::snapshot::SourceNow;
use crate::session::{Derived, Reason, Rollup, Signals, Snapshot, State};

/// One session at one moment, with everything its families need.
#[derive(Debug)]
pub struct SessionView<'a> {
    /// The session with its sub-agents.
    pub rollup: Rollup<'a>,
    /// Its state.
    pub derived: Derived,
    /// What can be seen of it.
    pub capabilities: Capabilities,
    /// Calls of the tree.
    pub calls: CallSummary,
    /// Newest activity of the tree.
    pub last_activity: Option<Timestamp>,
    /// Newest progress of the tree, where the source can see any.
    pub last_progress: Option<Timestamp>,
    /// The model as it is shown: beyond the bound, `other`.
    pub model: &'a str,
    /// Its provider likewise.
    pub provider: &'a str,
    /// Whether a request to stop would be seen.
    pub sees_stops: bool,
}

// === impl SessionView ===

impl<'a> SessionView<'a> {
    /// Prepares the root sessions of agents, in the order of their keys. Orchestrations have families of their own.
    pub fn roots(snapshot: &'a Snapshot, now: Timestamp) -> impl Iterator<Item = Self> {
        // Sessions of one source follow one another, and mostly use the same model.
        let mut source: Option<(&SourceId, SourceNow)> = None;
        let mut model = Shown::default();
        let mut provider = Shown::default();
        snapshot.roots().filter_map(move |slot| {
            snapshot.facts(slot).filter(|facts| !facts.is_orchestrated())?;
            let rollup = snapshot.rollup(slot, now)?;
            let facts = rollup.root;
            let source_now = match source {
                Some((last, known)) if *last == facts.source => known,
                _ => snapshot.source_now(&facts.source, now),
            };
            source = Some((&facts.source, source_now));
            let capabilities = facts.capabilities(source_now.capabilities);
            Some(Self {
                derived: snapshot.derive_with(&rollup, source_now),
                capabilities,
                calls: rollup.calls(),
                last_activity: rollup.last_activity(),
                last_progress: rollup.last_progress().filter(|_| capabilities.has(Capability::Progress)),
                model: model.of(snapshot, facts.info.model.as_ref()),
                provider: provider.of(snapshot, facts.info.provider.as_ref()),
                sees_stops: source_now.sees_stops,
                rollup,
            })
        })
    }

    /// The facts of the session itself.
    pub fn facts(&self) -> &'a Facts {
        self.rollup.root
    }

    /// Whether the session is over, as far as it said.
    pub fn is_over(&self) -> bool {
        self.derived.state.is_end()
    }

    /// What its calls look like, where the source can see calls and progress.
    pub fn signals(&self) -> Option<&Signals> {
        let seen = self.sees(Capability::Progress) && (self.sees(Capability::Calls) || self.calls.total > 0);
        seen.then(|| self.rollup.signals())
    }

    fn sees(&self, what: Capability) -> bool {
        self.capabilities.has(what)
    }

    /// A past moment: what is dated ahead of now is shown as now.
    fn past(&self, time: Timestamp) -> Value {
        Value::moment(time.min(self.rollup.now))
    }

    fn since(&self, time: Timestamp) -> Value {
        Value::Millis(self.rollup.now.since(time).max(0))
    }

    /// The moment progress is counted from: the newest ever, else the start.
    fn progress_clock(&self) -> Option<Timestamp> {
        if !self.sees(Capability::Progress) || self.derived.state == State::Queued {
            return None;
        }
        Some(self.last_progress.unwrap_or_else(|| self.facts().start()))
    }

    /// The request a person should look at first: the oldest certain one, else a probable one. An open call that is
    /// probably a dialog has no request of its own; such dialogs ask for permission.
    fn oldest_action(&self) -> Option<(Timestamp, ActionKind, Certainty)> {
        let first = self.rollup.certain_action().or_else(|| self.rollup.actions().into_iter().next());
        if let Some((_, action)) = first {
            return Some((action.since, action.kind, action.certainty));
        }
        let probable = self.derived.state == State::WaitingForUser && self.derived.reason == Reason::Probable;
        probable.then_some((self.derived.since, ActionKind::Permission, Certainty::Probable))
    }

    /// Since when and by what it is held up: the open episode, else the limit that ended its last turn.
    fn blocked_since(&self) -> Option<(Timestamp, &'static str)> {
        if let Some(blocked) = &self.facts().blocked {
            return Some((blocked.since, blocked.reason.as_str()));
        }
        let by_limit = self.derived.state == State::Blocked;
        by_limit.then_some((self.derived.since, self.derived.reason.as_str()))
    }

    fn background_tasks(&self) -> usize {
        self.rollup.all().map(|f| f.background.len()).sum()
    }
}

/// The name that was looked up last, and how it is shown.
#[derive(Default)]
struct Shown<'a>(Option<(&'a Name, &'a str)>);

// === impl Shown ===

impl<'a> Shown<'a> {
    fn of(&mut self, snapshot: &'a Snapshot, name: Option<&'a Name>) -> &'a str {
        let Some(name) = name else { return "" };
        match self.0 {
            Some((last, shown)) if last == name => shown,
            _ => self.0.insert((name, snapshot.aggregates.shown_model(Some(name)))).1,
        }
    }
}

/// The words of all states, in the order of [`State::ALL`], which is that of their numbers.
const STATES: [&str; State::ALL.len()] = {
    let mut words = [""; State::ALL.len()];
    let mut i = 0;
    while i < words.len() {
        words[i] = State::ALL[i].as_str();
        i += 1;
    }
    words
};

const fn gauge(
    name: &'static str,
    life: Life,
    labels: &'static [&'static str],
    help: &'static str,
    rows: fn(&SessionView<'_>, &mut dyn SessionSink),
) -> Family {
    let rows = Rows::Session(life, rows);
    Family { name, kind: Gauge, help, labels, stability: Experimental, rows }
}

fn text(name: Option<&Name>) -> &str {
    name.map_or("", Name::as_str)
}

/// A number that is zero wherever the source can see it, and absent where it cannot and nothing was seen.
fn count(s: &SessionView<'_>, seen_by: Capability, n: u64, out: &mut dyn SessionSink) {
    if s.sees(seen_by) || n > 0 {
        out.sample(&[], Value::Count(n));
    }
}

fn past(s: &SessionView<'_>, time: Option<Timestamp>, out: &mut dyn SessionSink) {
    if let Some(time) = time {
        out.sample(&[], s.past(time));
    }
}

/// The families, in the order of the exposition.
pub static FAMILIES: &[Family] = &[
    gauge(
        "agent_session_info",
        Always,
        &["agent", "version", "originator", "parent", "url"],
        "Always 1; properties that do not change, as the agent reports them, empty where unknown.",
        |s, out| {
            let info = &s.facts().info;
            let labels = [
                ("agent", text(info.agent.as_ref())),
                ("version", text(info.version.as_ref())),
                ("originator", text(info.originator.as_ref())),
                ("parent", s.facts().parent.as_ref().map_or("", |p| p.as_str())),
                ("url", text(info.url.as_ref())),
            ];
            out.sample(&labels, Value::Count(1));
        },
    ),
    gauge(
        "agent_session_current",
        Live,
        &["mode", "model", "provider"],
        "Always 1; properties that may change inside a session, as the agent reported them last.",
        |s, out| {
            let mode = s.facts().info.mode.map_or("", |m| m.as_str());
            out.sample(&[("mode", mode), ("model", s.model), ("provider", s.provider)], Value::Count(1));
        },
    ),
    gauge(
        "agent_session_read_only",
        Live,
        &[],
        "1 if the agent may not write, so that no progress is expected; absent where not said.",
        |s, out| {
            if let Some(read_only) = s.facts().info.read_only {
                out.sample(&[], Value::flag(read_only));
            }
        },
    ),
    gauge(
        "agent_session_state",
        Always,
        &["state"],
        "1 for the state that holds, 0 for the nine others, derived from facts at the time of the scrape.",
        |s, out| {
            out.one_hot("state", &STATES, s.derived.state as usize);
        },
    ),
    gauge("agent_session_state_reason", Always, &["reason"], "Always 1; why the state holds.", |s, out| {
        out.sample(&[("reason", s.derived.reason.as_str())], Value::Count(1))
    }),
    gauge(
        "agent_session_state_since_timestamp_seconds",
        Live,
        &[],
        "Unix time since which the state holds.",
        |s, out| past(s, Some(s.derived.since), out),
    ),
    gauge(
        "agent_session_phase",
        Live,
        &["phase"],
        "Always 1; where the workflow stands, as its source says.",
        |s, out| {
            if let Some(phase) = s.facts().info.phase {
                out.sample(&[("phase", phase.as_str())], Value::Count(1));
            }
        },
    ),
    gauge(
        "agent_session_start_timestamp_seconds",
        Always,
        &[],
        "Unix time of the earliest start any record tells of.",
        |s, out| past(s, s.facts().started_at, out),
    ),
    gauge(
        "agent_session_end_timestamp_seconds",
        Over,
        &[],
        "Unix time of the end of the last turn or run, nothing having started since.",
        |s, out| past(s, Some(s.derived.since), out),
    ),
    gauge(
        "agent_session_turn_start_timestamp_seconds",
        Live,
        &[],
        "Unix time at which the open turn began.",
        // One without a time of its own began at the earliest with its session.
        |s, out| {
            let facts = s.facts();
            past(s, facts.turn.as_ref().map(|t| t.started.unwrap_or_else(|| facts.start())), out)
        },
    ),
    gauge(
        "agent_session_last_prompt_timestamp_seconds",
        Live,
        &[],
        "Unix time of the newest prompt by a person.",
        |s, out| past(s, s.facts().last_prompt, out),
    ),
    gauge(
        "agent_session_last_activity_timestamp_seconds",
        Live,
        &[],
        "Unix time of the newest work of the session or its sub-agents.",
        |s, out| past(s, s.last_activity, out),
    ),
    gauge(
        "agent_session_last_progress_timestamp_seconds",
        Live,
        &[],
        "Unix time of the newest factual advance of the session or its sub-agents.",
        |s, out| past(s, s.last_progress, out),
    ),
    gauge(
        "agent_session_seconds_since_activity",
        Live,
        &[],
        "Seconds since the newest work, at the time of the scrape.",
        |s, out| {
            if let Some(time) = s.last_activity {
                out.sample(&[], s.since(time));
            }
        },
    ),
    gauge(
        "agent_session_seconds_since_progress",
        Live,
        &[],
        "Seconds since the newest factual advance, else since the session's start, at the time of the scrape; \
         absent where the source cannot see progress.",
        |s, out| {
            if let Some(time) = s.progress_clock() {
                out.sample(&[], s.since(time));
            }
        },
    ),
    gauge(
        "agent_session_pending_user_actions",
        Live,
        &[],
        "Requests to a person that are certainly open, sub-agents included.",
        |s, out| count(s, Capability::PendingActions, s.rollup.certain_actions() as u64, out),
    ),
    gauge(
        "agent_session_oldest_pending_user_action_timestamp_seconds",
        Live,
        &["kind", "certainty"],
        "Unix time at which the oldest open request to a person was made; certain ones go first.",
        |s, out| {
            if let Some((since, kind, certainty)) = s.oldest_action() {
                let labels = [("kind", kind.as_str()), ("certainty", certainty.as_str())];
                out.sample(&labels, s.past(since));
            }
        },
    ),
    gauge(
        "agent_session_in_flight_calls",
        Live,
        &[],
        "Tool calls that began and have not ended, sub-agents included.",
        |s, out| count(s, Capability::Calls, s.calls.in_flight, out),
    ),
    gauge(
        "agent_session_oldest_in_flight_call_timestamp_seconds",
        Live,
        &[],
        "Unix time at which the oldest tool call in flight began.",
        |s, out| past(s, s.calls.oldest, out),
    ),
    gauge(
        "agent_session_background_tasks",
        Live,
        &[],
        "Declared background tasks (not agents) that go on, sub-agents included.",
        |s, out| count(s, Capability::Calls, s.background_tasks() as u64, out),
    ),
    gauge(
        "agent_session_subagents",
        Live,
        &["state"],
        "Sub-agents with an open turn, by whether they work or wait for a person; absent without sub-agents.",
        |s, out| {
            if !s.rollup.children.is_empty() {
                let (working, waiting) = s.rollup.subagents();
                out.sample(&[("state", "working")], Value::Count(working));
                out.sample(&[("state", "waiting")], Value::Count(waiting));
            }
        },
    ),
    gauge(
        "agent_session_step_start_timestamp_seconds",
        Live,
        &["kind", "step"],
        "Unix time at which the open workflow step was entered; step is its name in the definition.",
        |s, out| {
            if let Some(open) = &s.facts().step
                && let Some(started) = open.started
            {
                let labels = [("kind", open.step.kind.as_str()), ("step", text(open.step.name.as_ref()))];
                out.sample(&labels, s.past(started));
            }
        },
    ),
    signals::CALLS_SINCE_PROGRESS,
    signals::WINDOW_CALLS,
    signals::NO_NEW_RATIO,
    signals::ERROR_STREAK,
    signals::REPEATED_CALL_MAX,
    signals::READ_COVERAGE_RATIO,
    gauge(
        "agent_session_turns_since_progress",
        Live,
        &[],
        "Turns, nudges and compactions since the last factual advance that no person began.",
        |s, out| {
            if s.sees(Capability::Progress) {
                out.sample(&[], Value::Count(s.rollup.turns_since_progress()));
            }
        },
    ),
    gauge(
        "agent_session_step_entries_max",
        Live,
        &[],
        "Most entries of one workflow step since the last factual advance.",
        |s, out| {
            if s.sees(Capability::Progress) {
                count(s, Capability::Steps, u64::from(s.rollup.step_entries_max()), out);
            }
        },
    ),
    signals::REPEAT_RATIO,
    signals::TOP_TARGET_CALLS,
    signals::CALL_STREAK,
    signals::CYCLE_REPEATS,
    signals::LOW_VALUE_EVENTS,
    gauge(
        "agent_session_criteria",
        Live,
        &["status"],
        "Acceptance criteria by status, as the source lists them.",
        |s, out| {
            if let Some(items) = s.facts().criteria {
                let pending = u64::from(items.pending) + u64::from(items.in_progress);
                out.sample(&[("status", "pending")], Value::Count(pending));
                out.sample(&[("status", "passed")], Value::Count(items.done.into()));
                out.sample(&[("status", "failed")], Value::Count(items.failed.into()));
            }
        },
    ),
    gauge(
        "agent_session_plan_items",
        Live,
        &["status"],
        "Items of the agent's plan by status, as the agent lists them.",
        |s, out| {
            if let Some(items) = s.facts().plan {
                out.sample(&[("status", "pending")], Value::Count(items.pending.into()));
                out.sample(&[("status", "in_progress")], Value::Count(items.in_progress.into()));
                out.sample(&[("status", "completed")], Value::Count(items.done.into()));
                out.sample(&[("status", "failed")], Value::Count(items.failed.into()));
            }
        },
    ),
    gauge(
        "agent_session_blocked_since_timestamp_seconds",
        Live,
        &["reason"],
        "Unix time since which something that is not a person holds the session up.",
        |s, out| {
            if let Some((since, reason)) = s.blocked_since() {
                out.sample(&[("reason", reason)], s.past(since));
            }
        },
    ),
    gauge(
        "agent_session_blocked_until_timestamp_seconds",
        Live,
        &[],
        "Unix time at which the obstacle is announced to be gone; may lie ahead.",
        |s, out| {
            if let Some(until) = s.facts().blocked.and_then(|b| b.until).or(s.derived.until) {
                out.sample(&[], Value::moment(until));
            }
        },
    ),
    gauge(
        "agent_session_retry_attempt",
        Live,
        &[],
        "Attempt of the retry under way, as the source counts it.",
        |s, out| {
            if let Some(attempt) = s.facts().blocked.and_then(|b| b.attempt) {
                out.sample(&[], Value::Count(attempt.into()));
            }
        },
    ),
    gauge(
        "agent_session_last_verification_timestamp_seconds",
        Live,
        &["outcome"],
        "Unix time of the newest verification with this outcome.",
        |s, out| {
            if let Some(time) = s.facts().verification_passed_at {
                out.sample(&[("outcome", "passed")], s.past(time));
            }
            if let Some(time) = s.facts().verification_failed_at {
                out.sample(&[("outcome", "failed")], s.past(time));
            }
        },
    ),
    gauge(
        "agent_session_last_native_stuck_timestamp_seconds",
        Live,
        &["detector", "layer"],
        "Unix time at which the agent's own loop guard spoke last.",
        |s, out| {
            if let Some(stuck) = &s.facts().native_stuck {
                let labels = [("detector", stuck.detector.as_str()), ("layer", stuck.layer.as_str())];
                out.sample(&labels, s.past(stuck.time));
            }
        },
    ),
    gauge(
        "agent_session_queued_prompts",
        Live,
        &[],
        "Prompts that wait behind the open turn; absent while there are none.",
        |s, out| {
            if s.facts().queued_prompts > 0 {
                out.sample(&[], Value::Count(s.facts().queued_prompts.into()));
            }
        },
    ),
    gauge(
        "agent_session_stop_pending",
        Live,
        &[],
        "1 while a request to stop stands, else 0; absent where the source could not tell of one.",
        |s, out| {
            let stop = s.facts().stop;
            if stop.is_some() || s.sees_stops {
                out.sample(&[], Value::flag(stop.is_some_and(|stop| stop.pending)));
            }
        },
    ),
    gauge(
        "agent_session_stop_requested_timestamp_seconds",
        Live,
        &[],
        "Unix time of the request to stop.",
        |s, out| past(s, s.facts().stop.map(|stop| stop.requested_at), out),
    ),
    gauge(
        "agent_session_stop_acknowledged_timestamp_seconds",
        Live,
        &[],
        "Unix time at which the agent took note of the request to stop.",
        |s, out| past(s, s.facts().stop.and_then(|stop| stop.acknowledged_at), out),
    ),
    gauge(
        "agent_session_tree_tokens",
        Live,
        &[],
        "Tokens of all kinds that the session and its sub-agents reported.",
        |s, out| {
            if let Some(tokens) = s.rollup.tokens() {
                out.sample(&[], Value::Count(tokens));
            }
        },
    ),
    gauge(
        "agent_session_tree_cost_dollars",
        Live,
        &[],
        "Cost in US dollars that the session and its sub-agents reported.",
        |s, out| {
            if let Some(cost) = s.rollup.cost_usd() {
                out.sample(&[], Value::Float(cost));
            }
        },
    ),
    gauge(
        "agent_session_context_used_ratio",
        Live,
        &[],
        "Share of the context window in use, as the source reported it last.",
        |s, out| {
            if let Some(share) = s.facts().context_used.filter(|share| share.is_finite()) {
                out.sample(&[], Value::Float(share));
            }
        },
    ),
];
