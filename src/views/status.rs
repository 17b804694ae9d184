//! The flat status answer of one session with its sub-agents. Only shapes what the fold knows; what a source cannot
//! see is `null`. `status.schema.json` beside this file describes every field.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::event::{Capabilities, Capability, Certainty, ProgressKind, SCHEMA_VERSION, Timestamp, ToolClass};
use crate::session::facts::{Facts, OpenCall, RECENT_PROGRESS};
use crate::session::{Derived, Reason, Rollup, Snapshot, State};

/// JSON Schema of [`Status`].
pub const SCHEMA_JSON: &str = include_str!("status.schema.json");

/// A moment, shown as RFC 3339 in UTC with milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(pub Timestamp);

/// What is known about one session, ready to be serialised.
#[expect(missing_docs, reason = "the schema beside this file documents each field under its wire name")]
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status<'a> {
    pub schema_version: &'static str,
    pub source: &'a str,
    pub session_id: &'a str,
    pub parent_session_id: Option<&'a str>,
    pub project_id: Option<&'a str>,
    pub mode: Option<&'static str>,
    pub state: &'static str,
    pub state_reason: &'static str,
    pub state_since: Moment,
    pub phase: Option<&'static str>,
    pub workflow_step: Option<WorkflowStep<'a>>,
    pub criteria: Option<Criteria>,
    pub last_activity_at: Option<Moment>,
    pub last_progress_at: Option<Moment>,
    pub last_seen_at: Option<Moment>,
    pub progress: Option<BTreeMap<&'static str, Levels>>,
    pub recent_progress: Option<Vec<ProgressEntry>>,
    pub waiting_for_user: Option<bool>,
    pub action_required: Option<ActionRequired<'a>>,
    pub blocked: Option<BlockedBy>,
    pub stop: Option<StopRequest>,
    pub terminal_reason: Option<&'static str>,
    pub turns: Turns,
    pub calls: Option<Calls>,
    pub signals: Signals,
    pub usage: Option<Usage>,
    pub subagents: Subagents,
    pub capabilities: BTreeMap<&'static str, bool>,
    pub links: Links<'a>,
}

/// The open workflow step.
#[expect(missing_docs, reason = "see the schema")]
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowStep<'a> {
    pub id: &'a str,
    pub kind: &'static str,
    pub name: Option<&'a str>,
    pub started_at: Option<Moment>,
    pub entry: Option<u32>,
}

/// Acceptance criteria by status; what is under way is pending.
#[expect(missing_docs, reason = "see the schema")]
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Criteria {
    pub total: u64,
    pub passed: u32,
    pub pending: u64,
    pub failed: u32,
}

/// How often a kind of progress was seen.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Levels {
    /// Times it moved `lastProgressAt`.
    pub high: u64,
    /// Times it only counted.
    pub low: u64,
}

/// One fact of progress.
#[expect(missing_docs, reason = "see the schema")]
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ProgressEntry {
    pub time: Moment,
    pub kind: &'static str,
    pub evidence: &'static str,
}

/// What a person has to do.
#[expect(missing_docs, reason = "see the schema")]
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ActionRequired<'a> {
    pub id: &'a str,
    pub kind: &'static str,
    pub since: Moment,
    pub certainty: &'static str,
    pub count: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<&'a str>,
    /// The sub-agent that asks; left out where it is the session itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<&'a str>,
}

/// What holds the session up, other than a person.
#[expect(missing_docs, reason = "see the schema")]
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BlockedBy {
    pub reason: &'static str,
    pub since: Moment,
    pub until: Option<Moment>,
    pub attempt: Option<u32>,
}

/// The newest request to stop.
#[expect(missing_docs, reason = "see the schema")]
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StopRequest {
    pub pending: bool,
    pub requester: &'static str,
    pub requested_at: Moment,
    pub acknowledged_at: Option<Moment>,
}

/// Turns by outcome; truncated and interrupted ones are failed.
#[expect(missing_docs, reason = "see the schema")]
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Turns {
    pub started: u64,
    pub completed: u64,
    pub failed: u64,
    pub cancelled: u64,
}

/// Calls of the whole tree.
#[expect(missing_docs, reason = "see the schema")]
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Calls {
    pub total: u64,
    pub failed: u64,
    pub in_flight: u64,
}

/// Signals without thresholds; absent sight is `null`.
#[expect(missing_docs, reason = "see the schema")]
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Signals {
    pub calls_since_progress: Option<u32>,
    pub window_calls: Option<u32>,
    pub no_new_ratio: Option<f64>,
    pub error_streak: Option<u32>,
    pub repeated_call_max: Option<u32>,
    pub read_coverage_ratio: Option<f64>,
    pub turns_since_progress: Option<u64>,
    pub step_entries_max: Option<u32>,
    pub repeat_ratio: Option<f64>,
    pub top_target_calls: Option<u32>,
    pub call_streak: Option<u32>,
    pub cycle_repeats: Option<u32>,
    pub low_value_events: Option<u64>,
}

/// Tokens and cost of the whole tree, in disjoint kinds.
#[expect(missing_docs, reason = "see the schema")]
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
    pub cost_usd: Option<f64>,
}

/// Sub-agents at any depth.
#[expect(missing_docs, reason = "see the schema")]
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Subagents {
    pub working: u64,
    pub waiting: u64,
    pub total: usize,
}

/// Pages elsewhere.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Links<'a> {
    /// The session's page in the agent's own UI.
    pub ui: Option<&'a str>,
}

// === impl Moment ===

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

fn moment(t: Option<Timestamp>) -> Option<Moment> {
    t.map(Moment)
}

// === impl Status ===

impl<'a> Status<'a> {
    /// The status of a session at this moment, with its sub-agents.
    pub fn of(snapshot: &Snapshot, view: &Rollup<'a>) -> Self {
        Self::with(snapshot, view, &snapshot.derive(view))
    }

    /// The same where the state is already derived.
    pub fn with(snapshot: &Snapshot, view: &Rollup<'a>, derived: &Derived) -> Self {
        let root = view.root;
        let caps = snapshot.capabilities_of(root);
        let sees_progress = caps.has(Capability::Progress);
        Self {
            schema_version: SCHEMA_VERSION,
            source: root.source.as_str(),
            session_id: root.session.as_str(),
            parent_session_id: root.parent.as_ref().map(|p| p.as_str()),
            project_id: root.project.as_ref().map(|p| p.as_str()),
            mode: root.info.mode.map(|m| m.as_str()),
            state: derived.state.as_str(),
            state_reason: derived.reason.as_str(),
            state_since: Moment(derived.since),
            phase: root.info.phase.map(|p| p.as_str()),
            workflow_step: workflow_step(root),
            criteria: criteria(root),
            last_activity_at: moment(view.last_activity()),
            last_progress_at: moment(view.last_progress()).filter(|_| sees_progress),
            last_seen_at: moment(view.last_seen()),
            progress: sees_progress.then(|| progress(view)),
            recent_progress: sees_progress.then(|| recent_progress(view)),
            waiting_for_user: waiting_for_user(view, derived, caps),
            action_required: action_required(view, derived),
            blocked: blocked(root, derived),
            stop: stop(root),
            terminal_reason: terminal_reason(derived),
            turns: turns(root),
            calls: calls(view, caps),
            signals: signals(view, caps),
            usage: usage(view),
            subagents: subagents(view),
            capabilities: Capability::ALL.iter().map(|c| (c.as_str(), caps.has(*c))).collect(),
            links: Links { ui: root.info.url.as_ref().and_then(|u| web_link(u.as_str())) },
        }
    }
}

/// A link that is safe to offer: a web page, without credentials in it. Anything else an agent may have put there
/// (`javascript:`, `file:`) is no page of a UI.
pub fn web_link(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let plain = !authority.is_empty() && !authority.contains(['@', '\\']);
    (plain && !url.contains(|c: char| c.is_control() || c.is_whitespace())).then_some(url)
}

fn workflow_step(root: &Facts) -> Option<WorkflowStep<'_>> {
    let open = root.step.as_ref()?;
    Some(WorkflowStep {
        id: open.step.id.as_str(),
        kind: open.step.kind.as_str(),
        name: open.step.name.as_ref().map(|n| n.as_str()),
        started_at: moment(open.started),
        entry: open.step.entry,
    })
}

fn criteria(root: &Facts) -> Option<Criteria> {
    let tally = root.criteria?;
    let pending = u64::from(tally.pending) + u64::from(tally.in_progress);
    let total = pending + u64::from(tally.done) + u64::from(tally.failed);
    Some(Criteria { total, passed: tally.done, pending, failed: tally.failed })
}

fn progress(view: &Rollup<'_>) -> BTreeMap<&'static str, Levels> {
    let counts = ProgressKind::ALL.iter().map(|kind| (kind.as_str(), view.progress(*kind)));
    counts
        .filter(|(_, (high, low))| high + low > 0)
        .map(|(k, (high, low))| (k, Levels { high, low }))
        .collect()
}

/// The newest facts of the tree, oldest first.
fn recent_progress(view: &Rollup<'_>) -> Vec<ProgressEntry> {
    let mut facts: Vec<_> = view.all().flat_map(|f| &f.recent_progress).collect();
    facts.sort_by_key(|p| p.time);
    let newest = facts.len().saturating_sub(RECENT_PROGRESS);
    let entry = |p: &&crate::session::facts::ProgressFact| ProgressEntry {
        time: Moment(p.time),
        kind: p.kind.as_str(),
        evidence: p.evidence.as_str(),
    };
    facts[newest..].iter().map(entry).collect()
}

/// True only for a fact. `None` where nobody can know: a probable dialog, a source that does not show its dialogs, or
/// evidence that ran out.
fn waiting_for_user(view: &Rollup<'_>, derived: &Derived, caps: Capabilities) -> Option<bool> {
    match derived.state {
        State::WaitingForUser if derived.reason == Reason::Probable => None,
        State::WaitingForUser => Some(true),
        State::Unknown => None,
        _ if !caps.has(Capability::PendingActions) && view.certain_actions() == 0 => None,
        _ => Some(false),
    }
}

fn action_required<'a>(view: &Rollup<'a>, derived: &Derived) -> Option<ActionRequired<'a>> {
    let ui = |facts: &'a Facts| {
        let url = facts.info.url.as_ref().or(view.root.info.url.as_ref());
        url.and_then(|u| web_link(u.as_str()))
    };
    let childs = |facts: &'a Facts| (facts.session != view.root.session).then(|| facts.session.as_str());
    let probable = derived.reason == Reason::Probable;
    let declared = view.certain_action().or_else(|| view.actions().into_iter().next().filter(|_| probable));
    if let Some((facts, action)) = declared {
        let alike = view.actions().iter().filter(|(_, a)| a.certainty == action.certainty).count();
        return Some(ActionRequired {
            id: action.action.as_str(),
            kind: action.kind.as_str(),
            since: Moment(action.since),
            certainty: action.certainty.as_str(),
            count: alike,
            tool: action.tool.as_ref().map(|t| t.as_str()),
            session_id: childs(facts),
            link: ui(facts),
        });
    }
    let (facts, call) = probable_call(view, derived)?;
    Some(ActionRequired {
        id: call.start.call.as_str(),
        kind: Reason::Permission.as_str(),
        since: Moment(derived.since),
        certainty: Certainty::Probable.as_str(),
        count: 1,
        tool: Some(call.start.tool.as_str()),
        session_id: childs(facts),
        link: ui(facts),
    })
}

/// The open call that was taken for a dialog: the one that began when the derived state did.
fn probable_call<'a>(view: &Rollup<'a>, derived: &Derived) -> Option<(&'a Facts, &'a OpenCall)> {
    if derived.reason != Reason::Probable {
        return None;
    }
    let may_ask = |call: &OpenCall| match call.start.asks {
        Some(asks) => asks,
        None => call.start.class == ToolClass::Edit,
    };
    let calls = view.all().flat_map(|f| f.open_calls.iter().map(move |c| (f, c)));
    calls
        .filter(|(f, c)| f.turn.is_some() && may_ask(c) && view.in_flight(f, c))
        .find(|(_, c)| c.since == Some(derived.since))
}

/// The open episode, in the source's own word, or the limit that ended the last turn while its reset lies ahead.
fn blocked(root: &Facts, derived: &Derived) -> Option<BlockedBy> {
    // What holds up an orchestration or a spec is in the derived state alone.
    if derived.state == State::Blocked && (derived.rule == 2 || root.is_orchestrated()) {
        let (since, until) = (Moment(derived.since), moment(derived.until));
        return Some(BlockedBy { reason: derived.reason.as_str(), since, until, attempt: None });
    }
    root.blocked.map(|b| BlockedBy {
        reason: b.reason.as_str(),
        since: Moment(b.since),
        until: moment(b.until),
        attempt: b.attempt,
    })
}

fn stop(root: &Facts) -> Option<StopRequest> {
    root.stop.map(|s| StopRequest {
        pending: s.pending,
        requester: s.requester.as_str(),
        requested_at: Moment(s.requested_at),
        acknowledged_at: moment(s.acknowledged_at),
    })
}

fn terminal_reason(derived: &Derived) -> Option<&'static str> {
    let terminal = derived.state.is_end() || derived.state == State::Unknown;
    (terminal && derived.reason != Reason::TurnComplete).then(|| derived.reason.as_str())
}

fn turns(root: &Facts) -> Turns {
    let t = root.turns;
    Turns { started: t.started, completed: t.completed, failed: t.failed, cancelled: t.cancelled }
}

fn calls(view: &Rollup<'_>, caps: Capabilities) -> Option<Calls> {
    let sum = view.calls();
    let seen = caps.has(Capability::Calls) || sum.total > 0;
    seen.then_some(Calls { total: sum.total, failed: sum.failed, in_flight: sum.in_flight })
}

fn signals(view: &Rollup<'_>, caps: Capabilities) -> Signals {
    let progress = caps.has(Capability::Progress);
    let sees_calls = progress && (caps.has(Capability::Calls) || view.calls().total > 0);
    let calls = sees_calls.then(|| view.signals());
    Signals {
        calls_since_progress: calls.map(|s| s.calls_since_progress),
        window_calls: calls.map(|s| s.window_calls),
        no_new_ratio: calls.map(|s| s.no_new_ratio()),
        error_streak: calls.map(|s| s.error_streak),
        repeated_call_max: calls.map(|s| s.repeated_call_max),
        read_coverage_ratio: calls.and_then(|s| s.read_coverage_ratio()),
        turns_since_progress: progress.then(|| view.turns_since_progress()),
        step_entries_max: (progress && caps.has(Capability::Steps)).then(|| view.step_entries_max()),
        repeat_ratio: calls.map(|s| s.repeat_ratio()),
        top_target_calls: calls.map(|s| s.top_target_calls),
        call_streak: calls.map(|s| s.call_streak),
        cycle_repeats: calls.map(|s| s.cycle_repeats),
        low_value_events: sees_calls.then(|| view.low_value_events()),
    }
}

fn usage(view: &Rollup<'_>) -> Option<Usage> {
    view.tokens()?;
    let sum = |part: fn(&Facts) -> u64| view.all().map(part).sum();
    Some(Usage {
        input_tokens: sum(|f| f.usage.input),
        output_tokens: sum(|f| f.usage.output),
        cache_read_tokens: sum(|f| f.usage.cache_read),
        cache_write_tokens: sum(|f| f.usage.cache_write),
        cost_usd: view.cost_usd(),
    })
}

fn subagents(view: &Rollup<'_>) -> Subagents {
    let (working, waiting) = view.subagents();
    Subagents { working, waiting, total: view.children.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_are_linked() {
        assert!(web_link("http://127.0.0.1:4096/session/a").is_some());
        assert!(web_link("https://agents.example/s?a=b@c").is_some());
        for url in
            ["javascript:alert(1)", "file:///etc/passwd", "https://u:p@host/", "http://", "http://a b", "//x"]
        {
            assert_eq!(web_link(url), None, "{url}");
        }
    }
}
