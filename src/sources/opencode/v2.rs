//! Sessions of the second generation: `session.next.*`, `permission.v2.*`, `question.v2.*`. They have no status: a
//! turn ends with the step that says so, and what is retried, hangs or is interrupted says nothing at all.

use super::calls::{self, Ending};
use super::state::{Call, Doubt, MAX_WAITING, Message, Origin, Session, Tell, keep};
use super::wire::{Metadata, Props, Raw, count, millis, object, read, text, word};
use super::words::{Finish, is_read_only};
use super::words::{Verdict, finish_of, held_by, mode_of};
use crate::event::reduce::stable_hash;
use crate::event::{
    BlockReason, ErrorClass, Fact, Id, Name, SessionInfo, Step, StepKind, StepOutcome, Timestamp, Trigger,
    TurnOutcome, Usage,
};
use crate::sources::shape::moment;

/// What the names of these events begin with.
pub(super) const BEGINS: &str = "session.next.";

/// Times are texts on the stream and numbers in answers.
pub(super) fn time_of(props: &Props<'_>) -> Option<Timestamp> {
    moment(props.timestamp).or(millis(props.timestamp))
}

/// A call by its message and its own id, which is not unique by itself.
fn call_of(t: &Tell<'_>, props: &Props<'_>) -> Option<(Id, Id, Id)> {
    let (message, call) = (text(props.assistant)?, text(props.call)?);
    let part = t.common.id(&format!("{message}:{call}"));
    Some((part, t.common.id(&message), t.common.id(&call)))
}

// === impl Session ===

impl Session {
    /// One event; false if its kind is not known.
    pub(super) fn next(&mut self, t: &mut Tell<'_>, kind: &str, props: &Props<'_>) -> bool {
        self.v2 = true;
        if !t.replay {
            (self.doubt, self.lost_at) = (Doubt::None, None);
        }
        let time = time_of(props).unwrap_or(t.time);
        match kind {
            "prompt.admitted" => {}
            "prompted" => self.next_prompt(t, props, time),
            "step.started" => self.next_step(t, props, time),
            "step.ended" => self.next_ended(t, props, time),
            "step.failed" => {
                let error = Some(ErrorClass::Other);
                self.next_over(t, Verdict { error, ..Verdict::of(TurnOutcome::Failed) }, time);
            }
            "tool.called" => {
                if let Some((part, message, call)) = call_of(t, props) {
                    self.next_call(&part, message, call);
                    calls::start(self, t, &part, &word(props.tool), props.input, time);
                }
            }
            "tool.success" | "tool.failed" => self.next_result(t, kind == "tool.failed", props, time),
            "retried" => {
                let attempt = read::<f64>(props.attempt).filter(|n| (0.0..1e9).contains(n)).map(|n| n as u32);
                let reason = if props.action.is_some() { held_by(props.action) } else { BlockReason::Retry };
                let fact = Fact::Blocked { reason, attempt, delay_ms: None, until: None };
                self.push(t, &format!("retry:{}", time.as_millis()), time, fact);
            }
            "compaction.ended" => {
                let id = t.common.id(&format!("compaction:{}", time.as_millis()));
                let step = Step {
                    id,
                    kind: StepKind::Compaction,
                    name: None,
                    index: None,
                    total: None,
                    entry: None,
                };
                let fact = Fact::StepCompleted { step, outcome: StepOutcome::Advanced };
                self.push(t, &format!("summary:{}", time.as_millis()), time, fact);
            }
            "moved" | "synthetic" | "agent.switched" | "model.switched" | "context.updated" => {}
            known
                if ["reasoning.", "text.", "tool.", "shell.", "compaction.", "revert."]
                    .iter()
                    .any(|b| known.starts_with(b)) =>
            {
                self.work(t, time);
            }
            _ => return false,
        }
        true
    }

    fn next_prompt(&mut self, t: &mut Tell<'_>, props: &Props<'_>, time: Timestamp) {
        let Some(id) = text(props.message).map(|id| t.common.id(&id)) else { return };
        if self.message(&id).is_some() || self.ended.as_ref() == Some(&id) {
            return;
        }
        let mut prompt = Message::new(id.clone(), true, time);
        prompt.origin = Origin::Person;
        self.add_message(prompt);
        let queued = self.turn.is_some();
        if queued {
            keep(&mut self.waiting, id.clone(), MAX_WAITING);
        } else {
            self.begin(t, &id, time);
        }
        if self.parent.is_none() {
            let fact = Fact::Prompt { trigger: Trigger::Person, queued };
            self.push(t, &format!("prompt:{}", id.as_str()), time, fact);
        }
    }

    fn next_step(&mut self, t: &mut Tell<'_>, props: &Props<'_>, time: Timestamp) {
        let Some(id) = text(props.assistant).map(|id| t.common.id(&id)) else { return };
        if self.message(&id).is_some() {
            return;
        }
        // What goes on after a failed step is a turn of its own.
        if self.turn.is_none()
            && let Some(prompt) = self.messages.iter().rev().find(|m| m.user).map(|m| m.id.clone())
        {
            self.begin(t, &prompt, time);
        }
        let name = |raw: Raw<'_>| t.common.name(&word(raw));
        let (model, provider) = (name(props.model.id), name(props.model.provider_id));
        let agent = text(props.agent);
        let info = SessionInfo {
            agent: Some(Name::from("opencode")),
            model: Some(model.clone()),
            provider: Some(provider.clone()),
            mode: agent.as_deref().map(mode_of),
            read_only: agent.as_deref().map(is_read_only),
            endpoint: Some(t.common.endpoint.clone()),
            ..SessionInfo::default()
        };
        let hash = stable_hash(format!("{info:?}"));
        if std::mem::replace(&mut self.told, hash) != hash {
            self.push(t, &format!("info:{}", id.as_str()), time, Fact::SessionUpdated(info));
        }
        let mut message = Message::new(id, false, time);
        (message.steps, message.model) = (true, Some((model, provider)));
        self.add_message(message);
        self.work(t, time);
    }

    fn next_ended(&mut self, t: &mut Tell<'_>, props: &Props<'_>, time: Timestamp) {
        let Some(id) = text(props.assistant).map(|id| t.common.id(&id)) else { return };
        let tokens = &props.tokens;
        let (model, provider) = self.message(&id).and_then(|m| m.model.clone()).unzip();
        let usage = Usage {
            model,
            provider,
            response: Some(id.clone()),
            input: count(tokens.input),
            cache_read: count(tokens.cache.read),
            cache_write: count(tokens.cache.write),
            output: count(tokens.output) + count(tokens.reasoning),
            cost_usd: read::<f64>(props.cost).filter(|cost| cost.is_finite() && *cost >= 0.0),
            context_used: None,
        };
        self.push(t, &format!("usage:{}", id.as_str()), time, Fact::Usage(usage));
        let finish = finish_of(props.finish);
        if let Some(message) = self.message(&id) {
            (message.completed, message.finish) = (Some(time), finish);
        }
        let verdict = match finish {
            None | Some(Finish::Tools) => return,
            Some(Finish::Done) if !self.waiting.is_empty() => {
                // A prompt that waited is worked on next.
                self.waiting.pop_front();
                let waiting = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
                self.push(t, &format!("taken:{}", id.as_str()), time, Fact::QueuedPrompts { waiting });
                return;
            }
            Some(Finish::Done) => Verdict::of(TurnOutcome::Completed),
            Some(Finish::Length) => Verdict::of(TurnOutcome::Truncated),
            Some(Finish::Refused) => {
                Verdict { error: Some(ErrorClass::Other), ..Verdict::of(TurnOutcome::Failed) }
            }
        };
        self.next_over(t, verdict, time);
    }

    fn next_over(&mut self, t: &mut Tell<'_>, verdict: Verdict, time: Timestamp) {
        if self.turn.is_some() {
            self.end_at(t, Some(verdict), time);
        }
    }

    fn next_call(&mut self, part: &Id, message: Id, call: Id) {
        if self.call(part).is_none() {
            let (part, call) = (part.clone(), Some(call));
            self.add_call(Call {
                part,
                message,
                call,
                started: false,
                asked: None,
                denied: false,
                tool: None,
            });
        }
    }

    fn next_result(&mut self, t: &mut Tell<'_>, failed: bool, props: &Props<'_>, time: Timestamp) {
        let Some((part, message, call)) = call_of(t, props) else { return };
        let hash = t.common.hash(part.as_str());
        if self.done.contains(&hash) {
            return;
        }
        self.next_call(&part, message, call);
        // Results do not say which tool they are from.
        let known = self.call(&part).and_then(|call| call.tool.clone());
        let tool = known.map_or_else(|| "unknown".to_owned(), |tool| tool.as_str().to_owned());
        calls::start(self, t, &part, &tool, props.input, time);
        let metadata: Metadata<'_> = object(props.structured);
        let ending = Ending { failed, error: props.error, output: props.structured, metadata };
        calls::end(self, t, &part, &tool, props.input, &ending, time);
    }

    /// The server was asked what runs, and this does not.
    pub(super) fn not_active(&mut self, t: &mut Tell<'_>) {
        let outcome = if self.lost_at.is_some() { TurnOutcome::Interrupted } else { TurnOutcome::Cancelled };
        self.end_at(t, Some(Verdict::of(outcome)), t.time);
    }
}
