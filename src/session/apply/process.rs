//! What becomes of a session with the process that writes it.

use super::super::counts::{Count, Effects};
use super::super::facts::{Facts, RunEnd, TurnEnd};
use super::super::notes::{Ended, RunOutcome};
use crate::event::{EndOutcome, Timestamp, TurnOutcome, Writer};

// === impl Facts ===

impl Facts {
    /// What a probe of the writing process found. One that could not be made takes back that it was seen alive, but
    /// not that it is gone.
    pub(super) fn probed(&mut self, writer: Writer, at: Timestamp, out: &mut Effects) {
        let was_gone = self.writer.is_some_and(|(w, _)| w == Writer::Gone);
        if self.writer.is_some_and(|(_, since)| since > at) || (writer == Writer::Unknown && was_gone) {
            return;
        }
        let in_turn = self.turn.as_ref().is_some_and(|turn| turn.started <= Some(at));
        if writer == Writer::Left && self.writer.is_none_or(|(w, _)| w != Writer::Left) {
            self.left(at, out);
        }
        if writer == Writer::Gone && !was_gone && in_turn {
            out.one(Count::Ended(EndOutcome::Failed));
            // Nobody is left who could take an answer.
            self.close_turn_items(Some(at), out);
            let gone = RunOutcome { outcome: Ended::Gone, error: None };
            self.note_run(Some(at), gone, &mut out.notes);
        }
        self.writer = Some((writer, at));
    }

    /// The process left in order. Whoever told it to ended the turn that was open; one that never did anything is over.
    fn left(&mut self, at: Timestamp, out: &mut Effects) {
        let time = Some(at);
        if self.turn.as_ref().is_some_and(|turn| turn.started <= time) {
            let outcome = TurnOutcome::Cancelled;
            let end = TurnEnd {
                request: None,
                time,
                started: None,
                outcome,
                error: None,
                reset: None,
                denied: false,
                result_known: true,
            };
            self.turn_ended(None, end, out);
        } else if self.turn.is_none() && self.turn_end.is_none() && self.run_end.is_none() {
            let outcome = EndOutcome::Cancelled;
            self.run_ended(RunEnd { time, outcome, error: None, workflow: false }, out);
        }
    }
}
