//! Notes that no longer hold, because what they are from is folded again.

use super::super::parts;
use super::super::run::{Advance, Mark, MarkOf};
use super::{Key, Trace, Waiting};
use crate::event::Timestamp;
use crate::session::Facts;
use crate::session::notes::{Note, What, key_of};

// === impl Trace ===

impl Trace {
    /// A note no longer holds.
    pub(super) fn take_back(&mut self, key: &Key, note: &Note) {
        if let Some(at) = self.waiting.iter().position(|w| w.note == *note) {
            self.waiting.remove(at);
        }
        let Some(i) = self.runs.iter().rposition(|run| note.run.as_ref().is_none_or(|key| run.key == *key))
        else {
            return;
        };
        let ids = self.ids(key);
        let run = &mut self.runs[i];
        match &note.what {
            What::Usage(_) if run.is_told_at(note.at) => {}
            What::Usage(added) => {
                for (sum, n) in run.usage.iter_mut().zip(added) {
                    *sum = sum.saturating_sub(*n);
                }
            }
            &What::Progress { kind, evidence, high } => {
                let event = Advance { at: note.at, kind, evidence, high };
                match run.events.iter().position(|known| *known == event) {
                    Some(at) => drop(run.events.remove(at)),
                    None => run.dropped_events = run.dropped_events.saturating_sub(1),
                }
            }
            What::Run { .. } if run.until == Some(note.at) => self.reopen(i, note.at),
            What::Orchestration { .. } if run.until == Some(note.at) => run.until = None,
            What::Agent { thread, .. } => {
                run.marks.retain(|m| !matches!(&m.of, MarkOf::Agent(known) if known == thread));
            }
            What::Part { part, .. } => {
                let own = parts::span_of(key, &run.id(), part);
                let ended = |m: &&mut Mark| m.span == own && m.until == Some(note.at);
                run.marks.iter_mut().filter(ended).for_each(|m| m.until = None);
            }
            What::Run { .. }
            | What::Declared(_)
            | What::PartBegan(_)
            | What::Held { .. }
            | What::Orchestration { .. } => {}
            What::TaskBegan(call) => {
                let span = ids.call(call);
                run.marks.retain(|m| m.span != span);
            }
            What::StepBegan(step) | What::StepGoesOn(step) => {
                let span = match &note.what {
                    What::StepBegan(_) => ids.step(step, note.at),
                    _ => ids.step_on(step, note.at),
                };
                run.marks.retain(|m| m.span != span);
            }
            What::Step { step, .. } => {
                let same = |m: &&mut Mark| {
                    m.until == Some(note.at) && matches!(&m.of, MarkOf::Step(s) if s.id == step.id)
                };
                if let Some(mark) = run.marks.iter_mut().find(same) {
                    mark.until = None;
                }
            }
            _ => {}
        }
    }

    /// Runs that only looked like some, before what began earlier was read: nothing is left of them, and nothing may hang on
    /// them or lead to them.
    pub(super) fn forget_unfounded(&mut self, facts: &Facts) {
        let open = facts.turn.as_ref().and_then(|turn| key_of(turn.request.clone(), turn.started));
        let Self { runs, waiting, .. } = self;
        runs.retain(|run| {
            let is_bare =
                run.place.is_none() && run.until.is_none() && run.marks.is_empty() && run.events.is_empty();
            !is_bare
                || run.usage != [0; 5]
                || open.as_ref() == Some(&run.key)
                || waiting.iter().any(|w| w.run == run.number)
        });
    }

    /// A run is not over: neither is what was concluded to be over with it.
    fn reopen(&mut self, at: usize, end: Timestamp) {
        let run = &mut self.runs[at];
        run.until = None;
        let number = run.number;
        let concluded =
            |w: &Waiting| !w.observed && w.run == number && matches!(w.note.what, What::Step { .. });
        for waiting in self.waiting.iter().filter(|w| concluded(w)) {
            let What::Step { since, .. } = &waiting.note.what else { continue };
            let own = |m: &&mut Mark| m.until == Some(waiting.note.at) && Some(m.since) == *since;
            run.marks.iter_mut().filter(own).for_each(|m| m.until = None);
        }
        let with_it = |m: &&mut Mark| m.until == Some(end) && matches!(m.of, MarkOf::Task(_)) || m.is_aside();
        run.marks.iter_mut().filter(with_it).for_each(|m| m.until = None);
        self.waiting.retain(|w| !concluded(w));
    }
}
