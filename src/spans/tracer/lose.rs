//! Sessions that nothing is known of any more: what is open in them is over as far as anybody saw, and what comes later
//! is another run.

use super::{SETTLED_MS, Tracer};
use crate::event::{CallOutcome, Id, OrchestrationState, Timestamp};
use crate::session::Facts;
use crate::session::facts::OpenCall;
use crate::session::notes::{Ended, Note, RunOutcome, What, key_of};
use crate::session::orchestration::Orchestration;

// === impl Tracer ===

impl Tracer {
    /// Nothing is known of a session any more: what is open in it ended, as far as anybody saw, with the last activity in it
    /// or in its sub-agents.
    pub fn lose(&mut self, facts: &Facts, last_activity: Option<Timestamp>, now: Timestamp) {
        if let Some(run) = &facts.orchestration {
            return self.lose_orchestration(facts, run, now);
        }
        let key = (facts.source.clone(), facts.session.clone());
        let (Some(turn), Some(end)) = (&facts.turn, last_activity.or(facts.last_seen)) else { return };
        let Some(run) = key_of(turn.request.clone(), turn.started) else { return };
        let trace = self.traces.entry(key.clone()).or_default();
        let Some(at) = trace.run_of(Some(&run), turn.started, end, false) else { return };
        if trace.runs[at].until.is_some() {
            return;
        }
        let note =
            |at: Timestamp, what: What| Note { run: Some(run.clone()), run_since: turn.started, at, what };
        let unfinished = |call: &OpenCall| {
            let since = call.since.filter(|since| *since <= end)?;
            Some(What::Call {
                call: call.start.call.clone(),
                tool: call.start.tool.clone(),
                class: call.start.class,
                since,
                outcome: CallOutcome::Unknown,
                exit_code: None,
            })
        };
        let mut open: Vec<What> = facts.open_calls.iter().filter_map(unfinished).collect();
        let told: Vec<Id> = open.iter().filter_map(call_of).cloned().collect();
        for action in facts.actions.iter().filter(|a| a.since <= end) {
            open.push(What::Wait {
                action: action.action.clone(),
                kind: action.kind,
                since: action.since,
                resolution: crate::event::Resolution::Unknown,
                call: action.call.clone().filter(|c| told.contains(c)),
            });
        }
        if let Some(blocked) = facts.blocked.filter(|b| b.since <= end) {
            open.push(What::Hold { reason: blocked.reason, since: blocked.since, attempt: blocked.attempt });
        }
        for what in open {
            trace.wait(at, note(end, what), false, None, now);
        }
        let since = trace.runs[at].since;
        let unseen = RunOutcome { outcome: Ended::Unseen, error: None };
        let (workflow, callers) = (turn.workflow.clone(), turn.callers.clone());
        trace.note(
            &key,
            facts,
            &note(end.max(since), What::Run { since, trigger: turn.trigger, end: unseen, workflow, callers }),
            now,
        );
        if let Some(at) = trace.runs.iter().rposition(|known| known.key == run) {
            trace.runs[at].given_up = true;
        }
        self.changed(key);
        self.expect(now.plus(SETTLED_MS));
    }

    fn lose_orchestration(&mut self, facts: &Facts, run: &Orchestration, now: Timestamp) {
        let (Some((key, since)), Some(at)) = (run.story.key(), run.updated.filter(|_| !run.story.is_over()))
        else {
            return;
        };
        let owner = (facts.source.clone(), facts.session.clone());
        let trace = self.traces.entry(owner.clone()).or_default();
        let Some(known) = trace.run_of(Some(&key), Some(since), at, true) else { return };
        if trace.runs[known].until.is_some() {
            return;
        }
        let state = OrchestrationState::Unknown;
        let mut open = run.story.open(state, true);
        open.push(What::Orchestration { since, state, polled: false, callers: facts.callers.clone() });
        for what in open {
            let note = Note { run: Some(key.clone()), run_since: Some(since), at: at.max(since), what };
            trace.note(&owner, facts, &note, now);
        }
        if let Some(known) = trace.runs.iter().rposition(|run| run.key == key) {
            trace.runs[known].given_up = true;
        }
        self.changed(owner);
        self.expect(now.plus(SETTLED_MS));
    }
}

const fn call_of(what: &What) -> Option<&Id> {
    match what {
        What::Call { call, .. } => Some(call),
        _ => None,
    }
}
