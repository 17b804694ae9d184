//! Beginnings and ends of turns. A turn is what lies between a session's getting to work and its getting idle; how it
//! ended is said by the last call of the model, never by the getting idle and never by an error alone.

use super::state::{Doubt, Message, Origin, Session, Tell, Turn};
use super::words::{Broken, Finish, Verdict};
use crate::event::{ErrorClass, Fact, Id, Timestamp, Trigger, TurnOutcome, Writer};

/// How long the last message may take to be finished after a session got idle.
const FINISHED_WITHIN_MS: i64 = 5_000;

// === impl Session ===

impl Session {
    /// The server says that it works.
    pub(super) fn works(&mut self, t: &mut Tell<'_>, time: Timestamp) {
        let doubt = self.doubt;
        if self.busy && doubt == Doubt::None {
            return;
        }
        if self.ending.is_some() {
            self.end(t, None);
        }
        if doubt == Doubt::Once {
            // It was not at work any more: this is another run.
            self.interrupted(t);
        }
        if !self.busy {
            self.busy = true;
            self.edge = Some(time);
            (self.denied, self.error, self.retrying) = (false, None, false);
        }
        (self.doubt, self.lost_at) = (Doubt::None, None);
        self.push(t, &format!("alive:{}", time.as_millis()), time, Fact::Writer(Writer::Alive));
        // What runs belongs to the newest prompt that nothing ran for yet.
        if self.turn.is_none() {
            let prompt = self.messages.iter().rev().find(|m| m.user);
            if let Some(prompt) = prompt.filter(|m| !m.taken).map(|m| m.id.clone()) {
                self.begin(t, &prompt, time);
            }
        }
    }

    /// A turn begins with this prompt.
    pub(super) fn begin(&mut self, t: &mut Tell<'_>, prompt: &Id, time: Timestamp) {
        let since = self.edge.take().map_or(time, |edge| edge.min(time));
        let again = self.ended.as_ref() == Some(prompt);
        let (mut started, mut origin) = (since, Origin::Unknown);
        if let Some(message) = self.message(prompt) {
            message.taken = true;
            origin = message.origin;
            if !again {
                started = message.created.min(since);
            }
        }
        // What goes on after an end without a new prompt is a turn of its own.
        let request = if again {
            t.common.id(&format!("{}~{}", prompt.as_str(), since.as_millis()))
        } else {
            prompt.clone()
        };
        let trigger = match origin {
            _ if self.parent.is_some() => Trigger::Machine,
            Origin::Person | Origin::Command => Trigger::Person,
            Origin::Program => Trigger::Machine,
            Origin::Unknown => Trigger::Unknown,
        };
        let key = format!("turn:{}", request.as_str());
        // What is only told afterwards may have run at another server.
        let inferred = t.replay && !self.busy;
        self.turn = Some(Turn { request, started, inferred });
        if inferred {
            self.doubt = Doubt::Open;
        }
        self.push(t, &key, started, Fact::TurnStarted { trigger });
    }

    /// The server says that it is idle. It says so more than once, and before the last message is finished.
    pub(super) fn idles(&mut self, t: &mut Tell<'_>, time: Timestamp) {
        (self.doubt, self.lost_at) = (Doubt::None, None);
        if !std::mem::take(&mut self.busy) && self.turn.is_none() {
            return;
        }
        if let Some(edge) = self.edge
            && self.turn.is_none()
        {
            let Some(prompt) = self.last().filter(|m| m.created >= edge).and_then(|m| m.prompt.clone())
            else {
                self.edge = None;
                return;
            };
            self.begin(t, &prompt, edge);
        }
        if self.turn.is_some() {
            self.ending.get_or_insert(time);
        }
        self.try_end(t);
    }

    /// Ends the turn that waits for its last message, if that says how.
    pub(super) fn try_end(&mut self, t: &mut Tell<'_>) {
        if self.ending.is_some()
            && let Some(verdict) = self.verdict()
        {
            self.end(t, Some(verdict));
        }
    }

    /// Ends it without a result if the last message does not come.
    pub(super) fn end_late(&mut self, t: &mut Tell<'_>, now: Timestamp) {
        if self.ending.is_some_and(|at| now.since(at) >= FINISHED_WITHIN_MS) {
            self.end(t, None);
        }
    }

    /// What the last message says about the end of the turn.
    pub(super) fn verdict(&self) -> Option<Verdict> {
        let turn = self.turn.as_ref()?;
        let last = self.last().filter(|m| m.created >= turn.started);
        let cancelled = Some(Verdict::of(TurnOutcome::Cancelled));
        let error = last.and_then(|m| m.error).or(self.error);
        match error {
            Some(Broken::Aborted) => return cancelled,
            Some(Broken::Length) => return Some(Verdict::of(TurnOutcome::Truncated)),
            Some(Broken::Class(class)) if last.is_none_or(|m| m.finish.is_none()) => {
                return Some(Verdict { error: Some(class), ..Verdict::of(TurnOutcome::Failed) });
            }
            _ => {}
        }
        let last = last?;
        match last.finish {
            Some(Finish::Done) => Some(Verdict::of(TurnOutcome::Completed)),
            Some(Finish::Length) => Some(Verdict::of(TurnOutcome::Truncated)),
            Some(Finish::Refused) => {
                Some(Verdict { error: Some(ErrorClass::Other), ..Verdict::of(TurnOutcome::Failed) })
            }
            // The model wanted to go on, and was not let: a person refused what it asked for.
            Some(Finish::Tools) => Some(Verdict { denied: true, ..Verdict::of(TurnOutcome::Cancelled) }),
            None if self.retrying => cancelled,
            // A command that a person ran is a call without a model.
            None if last.completed.is_some() && last.tools && !last.steps => {
                Some(Verdict::of(TurnOutcome::Completed))
            }
            None if last.completed.is_some() => cancelled,
            None => None,
        }
    }

    /// The turn is over; `None`: nothing says how.
    pub(super) fn end(&mut self, t: &mut Tell<'_>, verdict: Option<Verdict>) {
        let completed = self.last().and_then(|m| m.completed);
        let time = self.ending.take().or(completed).unwrap_or(t.time);
        self.end_at(t, verdict, time);
    }

    pub(super) fn end_at(&mut self, t: &mut Tell<'_>, verdict: Option<Verdict>, time: Timestamp) {
        self.ending = None;
        self.busy = false;
        self.edge = None;
        (self.doubt, self.lost_at) = (Doubt::None, None);
        let Some(turn) = self.turn.clone() else { return };
        let time = time.max(turn.started);
        let result_known = verdict.is_some();
        let Verdict { outcome, error, denied } = verdict.unwrap_or(Verdict::of(TurnOutcome::Cancelled));
        if !self.waiting.is_empty() {
            self.waiting.clear();
            self.push(t, &format!("waiting:{}", time.as_millis()), time, Fact::QueuedPrompts { waiting: 0 });
        }
        let fact = Fact::TurnEnded { outcome, error, reset: None, denied, result_known };
        self.push(t, &format!("end:{}", turn.request.as_str()), time, fact);
        self.ended = self.prompt_of(&turn.request);
        self.turn = None;
        self.pending.clear();
        (self.denied, self.error, self.retrying) = (false, None, false);
    }

    /// The prompt a turn is named after.
    fn prompt_of(&self, request: &Id) -> Option<Id> {
        let name = request.as_str();
        Some(name.rsplit_once('~').map_or_else(|| request.clone(), |(prompt, _)| Id::from(prompt)))
    }

    /// It was cut off: the server went away with it.
    pub(super) fn interrupted(&mut self, t: &mut Tell<'_>) {
        let time = self.lost_at.unwrap_or(t.time);
        self.end_at(t, Some(Verdict::of(TurnOutcome::Interrupted)), time);
    }

    /// The connection is gone.
    pub(super) fn lost(&mut self, t: &mut Tell<'_>) {
        if !self.is_open() {
            return;
        }
        let now = t.observed;
        self.doubt = Doubt::Open;
        self.lost_at = Some(now);
        self.push(t, &format!("lost:{}", now.as_millis()), now, Fact::Writer(Writer::Unknown));
    }

    /// A call of the model begins: it says which prompt is worked on.
    pub(super) fn answers(&mut self, t: &mut Tell<'_>, message: &Message) {
        let Some(prompt) = message.prompt.clone() else { return };
        let started = self.turn.as_ref().map(|turn| turn.started);
        let before = self.last().filter(|m| started.is_some_and(|started| m.created >= started)).cloned();
        // Records may have overtaken what is told again: what is older than an open turn says nothing of it.
        let before = before.filter(|_| !t.replay || started.is_none_or(|started| message.created >= started));
        if let Some(before) = before {
            let other = before.prompt.as_ref() != Some(&prompt);
            if other && before.completed.is_none() && (self.doubt != Doubt::None || t.replay) {
                // One at a time: what was never finished will never be.
                let busy = self.busy;
                self.interrupted(t);
                self.busy = busy;
            } else if other && before.is_final() && !self.goes_on(&prompt, &before, t.replay) {
                let verdict = self.verdict();
                let (busy, time) = (self.busy, before.completed.unwrap_or(t.time));
                self.end_at(t, verdict, time);
                self.busy = busy;
            }
        }
        let over = self.ended.as_ref() == Some(&prompt)
            && self.last().is_some_and(|newest| newest.created > message.created);
        if self.turn.is_none() && (self.busy || t.replay) && !(t.replay && over) {
            self.begin(t, &prompt, message.created);
        }
        if let Some(at) = self.waiting.iter().position(|waits| *waits == prompt) {
            self.waiting.drain(..=at);
            let waiting = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
            let key = format!("taken:{}", prompt.as_str());
            self.push(t, &key, message.created, Fact::QueuedPrompts { waiting });
        }
        if let Some(prompt) = self.message(&prompt) {
            prompt.taken = true;
        }
        self.error = None;
    }

    /// It works, and what it said up to now is known: if that was the end of a turn, another has begun.
    pub(super) fn catches_up(&mut self, t: &mut Tell<'_>) {
        if self.turn.is_none() {
            // It got to work on the newest prompt while nobody listened.
            if let Some(prompt) =
                self.messages.iter().rev().find(|m| m.user && !m.taken).map(|m| m.id.clone())
            {
                self.begin(t, &prompt, t.time);
            }
            return;
        }
        let Some(last) = self.last().filter(|m| m.is_final()).cloned() else { return };
        let next = self.messages.iter().rev().find(|m| m.user && !m.taken && m.origin != Origin::Unknown);
        let next = next.map(|m| m.id.clone());
        let Some(next) = next.filter(|next| !self.goes_on(next, &last, true)) else { return };
        if self.turn.is_some() {
            let verdict = self.verdict();
            self.end_at(t, verdict, last.completed.unwrap_or(t.time));
        }
        self.busy = true;
        self.begin(t, &next, t.time);
    }

    /// Whether a prompt belongs to the turn in which this message was the last.
    fn goes_on(&mut self, prompt: &Id, before: &Message, replay: bool) -> bool {
        let ended = before.completed;
        match self.message(prompt) {
            Some(m) if m.origin == Origin::Unknown && !replay => true,
            Some(m) => m.origin == Origin::Program || ended.is_some_and(|ended| m.created < ended),
            None => !replay,
        }
    }
}
