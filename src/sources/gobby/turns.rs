//! Turns and sessions begin and end.

use super::state::Session;
use super::{Emit, Gobby};
use crate::event::{
    EndOutcome, ErrorClass, Fact, Id, Resolution, SessionId, Timestamp, Trigger, TurnOutcome,
};

/// Silence after a cut of the stream after which nothing is known of an open turn any more. As long as the silence
/// that would be called a stall, which this is none: what came in between may have been missed.
const MISSED_MS: i64 = 10 * 60_000;

// === impl Gobby ===

impl Gobby {
    /// A hook of this session came: it is heard of, and what was missed is past.
    pub(super) fn heard(&mut self, e: &Emit<'_>, at: usize) {
        let session = &mut self.state.sessions[at];
        session.heard = session.heard.max(Some(e.time));
        session.hooked = true;
        session.gap = None;
        session.paused = None;
    }

    /// Work goes on: where no turn is open, one begins here, whatever began it.
    pub(super) fn works(&mut self, e: &mut Emit<'_>, at: usize) {
        if self.state.sessions[at].turn.is_none() {
            self.begin_turn(e, at, Trigger::Unknown);
        }
    }

    pub(super) fn begin_turn(&mut self, e: &mut Emit<'_>, at: usize, trigger: Trigger) {
        let turn = Id::from(format!("t{}", e.time.as_millis()).as_str());
        let session = &mut self.state.sessions[at];
        session.turn = Some(turn);
        session.ended = false;
        session.result = None;
        self.push(e, at, Fact::TurnStarted { trigger });
    }

    /// The turn is over; `known`: so said a record that tells how.
    pub(super) fn end_turn(
        &mut self,
        e: &mut Emit<'_>,
        at: usize,
        outcome: TurnOutcome,
        error: Option<ErrorClass>,
        known: bool,
    ) {
        let ended = Fact::TurnEnded { outcome, error, reset: None, denied: false, result_known: known };
        self.push(e, at, ended);
        let session = &mut self.state.sessions[at];
        session.turn = None;
        session.calls.clear();
        session.actions.clear();
        session.result = known.then_some(outcome);
        session.over = session.over.max(Some(e.time));
        session.paused = None;
    }

    /// The session is over. No reason for it that a record gives says whether it went well: what is known is how its
    /// last turn ended, if that was heard and nothing was missed since.
    pub(super) fn end_session(&mut self, e: &mut Emit<'_>, at: usize, told: Option<EndOutcome>) {
        if self.state.sessions[at].ended {
            return;
        }
        for child in std::mem::take(&mut self.state.sessions[at].children) {
            self.end_child(e, at, &child, TurnOutcome::Interrupted);
        }
        let outcome = told.unwrap_or_else(|| result(&self.state.sessions[at]));
        self.push(e, at, Fact::SessionEnded { outcome, error: None, workflow: false });
        let session = &mut self.state.sessions[at];
        session.ended = true;
        session.turn = None;
        session.calls.clear();
        session.actions.clear();
        session.over = session.over.max(Some(e.time));
    }

    pub(super) fn end_child(&self, e: &mut Emit<'_>, at: usize, child: &SessionId, outcome: TurnOutcome) {
        let ended = Fact::TurnEnded { outcome, error: None, reset: None, denied: false, result_known: true };
        self.push_in(e, at, Some(child), ended);
    }

    /// A person's word, or the agent's own: nothing asked before is open any more.
    pub(super) fn resolve_all(&mut self, e: &mut Emit<'_>, at: usize, resolution: Resolution) {
        for open in std::mem::take(&mut self.state.sessions[at].actions) {
            self.push(e, at, Fact::ActionResolved { action: open.action, resolution });
        }
    }

    /// Turns that were open when the stream was cut, and were not heard of since.
    pub(super) fn conclude(&mut self, now: Timestamp, said: &mut super::Said) {
        for at in 0..self.state.sessions.len() {
            let session = &self.state.sessions[at];
            let Some(cut) = session.gap.filter(|_| session.turn.is_some()) else { continue };
            if now.since(cut) < MISSED_MS {
                continue;
            }
            let time = cut.max(session.heard.unwrap_or(cut));
            let mut e = self.emit(said, time, now, &format!("missed:{}", session.id.as_str()));
            self.end_turn(&mut e, at, TurnOutcome::Completed, None, false);
            self.dirty = true;
        }
    }

    /// Events that no frame tells: an answer does, or what did not come.
    pub(super) fn emit<'r>(
        &self,
        said: &'r mut super::Said,
        time: Timestamp,
        observed: Timestamp,
        what: &str,
    ) -> Emit<'r> {
        let (at, read) = (time.as_millis().to_le_bytes(), observed.as_millis().to_le_bytes());
        let seed = self.reducer.hash_all(&[what.as_bytes(), &at, &read]);
        Emit { said, time, observed, project: None, seed, count: 0 }
    }
}

/// What an end of the session means for its result.
fn result(session: &Session) -> EndOutcome {
    if session.turn.is_some() || session.gap.is_some() {
        return EndOutcome::Unknown;
    }
    match session.result {
        Some(TurnOutcome::Completed) => EndOutcome::Completed,
        Some(TurnOutcome::Cancelled) => EndOutcome::Cancelled,
        Some(TurnOutcome::Failed | TurnOutcome::Truncated | TurnOutcome::Interrupted) => EndOutcome::Failed,
        None => EndOutcome::Unknown,
    }
}
