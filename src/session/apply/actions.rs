//! Requests to the user: opened, answered, closed with what they hold up.

use super::super::counts::{Count, Effects, Observation};
use super::super::facts::{Action, Facts, MAX_ACTIONS, MAX_REMEMBERED};
use super::super::notes::What;
use super::{later, remember, short};
use crate::event::{Certainty, Id, Resolution, Timestamp};

// === impl Facts ===

impl Facts {
    pub(super) fn action_required(&mut self, action: Action, t: Option<Timestamp>, out: &mut Effects) {
        if self.memory.resolved.contains(&short(&action.action)) {
            return;
        }
        if let Some(known) = self.actions.iter_mut().find(|a| a.action == action.action) {
            known.since = known.since.min(action.since);
            if action.certainty == Certainty::Certain {
                known.certainty = Certainty::Certain;
            }
            later(&mut self.last_activity, t);
            return;
        }
        if self.over_since(action.since) {
            return;
        }
        self.start_of_work(t, out);
        // One dialog at a time: what is known of it by its call is the better word.
        let twin = |known: &Action| match action.dialog {
            true => known.call.is_some() && known.certainty == Certainty::Certain,
            false => known.dialog && action.call.is_some() && action.certainty == Certainty::Certain,
        };
        if let Some(known) = self.actions.iter_mut().find(|known| twin(known)) {
            let since = known.since.min(action.since);
            if known.dialog {
                *known = action;
            }
            known.since = since;
            return;
        }
        if self.actions.len() < MAX_ACTIONS {
            let asked = || What::Asked { action: action.action.clone(), kind: action.kind };
            self.note(Some(action.since), &mut out.notes, asked);
            self.actions.push(action);
        }
    }

    pub(super) fn action_resolved(
        &mut self,
        action: &Id,
        resolution: Resolution,
        t: Option<Timestamp>,
        out: &mut Effects,
    ) {
        if let Some(i) = self.actions.iter().position(|a| a.action == *action) {
            let action = self.actions.remove(i);
            self.closed(&action, resolution, t, out);
        } else {
            remember(&mut self.memory.resolved, short(action), MAX_REMEMBERED);
        }
        self.work(t, out);
    }

    pub(super) fn close_actions_of(
        &mut self,
        call: &Id,
        resolution: Resolution,
        t: Option<Timestamp>,
        out: &mut Effects,
    ) {
        while let Some(i) =
            self.actions.iter().position(|a| a.call.as_ref() == Some(call) && t.is_none_or(|t| t > a.since))
        {
            let action = self.actions.remove(i);
            self.closed(&action, resolution, t, out);
        }
    }

    pub(super) fn closed(
        &mut self,
        action: &Action,
        resolution: Resolution,
        t: Option<Timestamp>,
        out: &mut Effects,
    ) {
        remember(&mut self.memory.resolved, short(&action.action), MAX_REMEMBERED);
        out.one(Count::UserAction(action.kind, resolution));
        out.measure(Observation::Wait(action.kind), Some(action.since), t);
        self.note_wait(action, resolution, t, &mut out.notes);
    }
}
