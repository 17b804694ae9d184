//! Frames of the stream: which says what, and which say nothing to us.

use super::known::{Done, Known};
use super::wire::{
    Body, Change, Context, Done as Ended, Failure, Frame, Gone, Message, Raw, count, flag, moment, object,
    read, text, word,
};
use super::{MAX_ID, OpenFox, Out, mode_of};
use crate::event::{
    ErrorClass, Fact, Phase, SessionId, SessionInfo, Step, StepKind, StepOutcome, Timestamp, Trigger, Usage,
};
use crate::sources::DecodeError;
use crate::sources::live::Said;

/// Longest name of an unknown kind that is told.
const MAX_KIND: usize = 64;

// === impl OpenFox ===

impl OpenFox {
    pub(super) fn frame(
        &mut self,
        frame: &Frame<'_>,
        observed: Timestamp,
        said: &mut Said,
    ) -> Result<(), DecodeError> {
        let kind = text(frame.kind).ok_or(DecodeError::Shape)?;
        match kind.as_ref() {
            "session.deleted" => {
                let gone: Gone<'_> = object(frame.payload);
                let id = session_id(frame.session_id.or(gone.session_id))?;
                self.deleted(&id, observed, said);
                return Ok(());
            }
            // Which ones they were, the list knows.
            "session.deletedAll" => {
                self.polls.list_all_soon();
                return Ok(());
            }
            // Nothing about a session.
            "mcp.servers.changed" | "ack" | "git.status" => return Ok(()),
            other if other.starts_with("devServer.") => return Ok(()),
            _ => {}
        }
        let unknown = !is_known(&kind);
        if unknown {
            said.unknown.push(kind.chars().take(MAX_KIND).collect());
            if frame.session_id.is_none() {
                return Ok(());
            }
        }
        let id = session_id(frame.session_id)?;
        if self.gone.contains(&id) {
            return Ok(());
        }
        let seq: Option<u64> = read(frame.seq);
        let (structural, calls, new) = self.with(&id, observed, said, |known, out| {
            let new = !known.told;
            known.introduce(out);
            known.heard = known.heard.max(observed);
            // A server that begins to count anew says nothing about what lies between.
            let missing =
                seq.zip(known.seq).and_then(|(now, before)| now.checked_sub(before.checked_add(1)?));
            known.seq = seq.or(known.seq);
            let resumed = std::mem::take(&mut known.resumed) && missing == Some(0);
            if let Some(run) = known.run.as_mut().filter(|run| resumed && run.fell.is_none()) {
                // Nothing was lost.
                run.cut = false;
            }
            if unknown {
                out.push(known, observed, Fact::Unknown);
                return (false, false, new);
            }
            let changed = known.take(&kind, frame.payload, missing, out);
            (changed == Changed::Structure, changed == Changed::Calls, new)
        });
        if new {
            // A session is announced to nobody; what it is called and where it belongs is in the list.
            self.polls.list_soon();
        }
        self.dirty |= structural | new;
        self.dirty_soon |= calls;
        Ok(())
    }
}

/// What a frame changed of what has to survive a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    Nothing,
    /// What may wait for the next tick.
    Calls,
    Structure,
}

/// A session's id. What is longer than any is none.
pub(super) fn session_id(raw: Raw<'_>) -> Result<SessionId, DecodeError> {
    let id = text(raw).ok_or(DecodeError::Shape)?;
    if id.is_empty() || id.len() > MAX_ID || id.chars().any(char::is_control) {
        return Err(DecodeError::Shape);
    }
    Ok(SessionId::from(id.as_ref()))
}

fn is_known(kind: &str) -> bool {
    matches!(
        kind,
        "session.running"
            | "session.name_generated"
            | "session.created"
            | "session.state"
            | "session.confirmation_pending"
            | "session.confirmation_resolved"
            | "chat.message"
            | "chat.message_updated"
            | "chat.delta"
            | "chat.thinking"
            | "chat.progress"
            | "chat.todo"
            | "chat.vision_fallback"
            | "chat.tool_preparing"
            | "chat.tool_call"
            | "chat.tool_output"
            | "chat.tool_result"
            | "chat.done"
            | "chat.error"
            | "chat.ask_user"
            | "chat.format_retry"
            | "chat.path_confirmation"
            | "chat.llm_retry"
            | "chat.llm_retry_failed"
            | "metadata.updated"
            | "criteria.updated"
            | "mode.changed"
            | "phase.changed"
            | "workflow.execution_changed"
            | "task.completed"
            | "tasks.update"
            | "queue.state"
            | "context.state"
    )
}

// === impl Known ===

impl Known {
    /// Takes a frame in. `missing`: numbers between it and the one before.
    fn take(&mut self, kind: &str, payload: Raw<'_>, missing: Option<u64>, out: &mut Out<'_>) -> Changed {
        match kind {
            "session.running" => {
                let change: Change<'_> = object(payload);
                if flag(change.is_running) {
                    self.rises(out);
                } else {
                    self.falls(missing, out);
                }
                return Changed::Structure;
            }
            "chat.message" => {
                let message: Message<'_> = object(payload);
                return self.message(&message.message, out);
            }
            "chat.tool_call" => return self.call_begins(&object(payload), out),
            "chat.tool_output" => self.call_says(&object(payload), out),
            "chat.tool_result" => return self.call_ends(&object(payload), out),
            "chat.ask_user" => {
                self.question(&object(payload), out);
                return Changed::Structure;
            }
            "chat.done" => return self.done(&object(payload), out),
            "chat.error" => {
                self.failure(&object(payload), out);
                return Changed::Structure;
            }
            "metadata.updated" | "criteria.updated" => {
                self.criteria_changed(&object(payload), out);
                return Changed::Structure;
            }
            "mode.changed" => {
                let change: Change<'_> = object(payload);
                if let Some(mode) = mode_of(&word(change.mode)) {
                    (self.mode, self.mode_told) = (Some(mode), true);
                    self.update(out, SessionInfo { mode: Some(mode), ..SessionInfo::default() });
                }
                return Changed::Structure;
            }
            "phase.changed" => {
                let change: Change<'_> = object(payload);
                let phase = Phase::parse(&word(change.phase)).unwrap_or(Phase::Other);
                self.phase = Some(phase);
                self.update(out, SessionInfo { phase: Some(phase), ..SessionInfo::default() });
                return Changed::Structure;
            }
            "workflow.execution_changed" => {
                self.execution_changed(&object(payload), out);
                return Changed::Structure;
            }
            "task.completed" => {
                self.task_completed(out);
                return Changed::Structure;
            }
            "context.state" => self.gauge(&object(payload), out),
            // Follows every message; it begins nothing.
            "chat.message_updated" => self.goes_on(out),
            // The title is content; the rest only reaches clients that load a session.
            "session.name_generated"
            | "session.created"
            | "session.state"
            | "tasks.update"
            | "queue.state" => {}
            _ => self.works(out),
        }
        Changed::Nothing
    }

    /// A sign of work that shows what kind of run it is.
    pub(super) fn works(&mut self, out: &mut Out<'_>) {
        if self.runs() {
            self.begin_if_beginning(out);
            self.goes_on(out);
        }
    }

    /// A sign of work. What comes after the end of a run is a late word about it.
    fn goes_on(&mut self, out: &Out<'_>) {
        if self.runs() {
            self.active = self.active.max(Some(out.now));
        }
    }

    /// A model that works in a session that does not run: a frame got lost.
    pub(super) fn doubt_rest(&mut self, out: &Out<'_>) {
        if self.run.is_none() {
            self.doubt = self.doubt.or(Some(out.now));
        }
    }

    fn message(&mut self, body: &Body<'_>, out: &mut Out<'_>) -> Changed {
        let role = word(body.role);
        let kind = word(body.kind);
        let (generated, inner) = (flag(body.generated), body.sub_agent.is_some());
        let assistant = role == "assistant";
        let new_work = self.flow.as_mut().is_some_and(|flow| !std::mem::replace(&mut flow.worked, true));
        let running = self.runs();
        if let Some(run) = self.run.as_mut().filter(|_| running) {
            run.server_time = run.server_time.max(moment(body.timestamp));
            run.spoke = true;
            if assistant && !inner {
                // A new turn of the model: what it said before has ended nothing.
                run.done = None;
                run.cut &= run.workflow;
            }
        }
        let person = role == "user" && !generated && !inner;
        if running && kind != "workflow-started" {
            let trigger = if person { Trigger::Person } else { Trigger::Unknown };
            self.begin_as(trigger, out);
            self.works(out);
        }
        if person && running {
            out.push(self, out.now, Fact::Prompt { trigger: Trigger::Person, queued: false });
        }
        if assistant {
            self.doubt_rest(out);
        }
        if assistant && !inner {
            // The model goes on only after its calls have ended.
            self.end_stale_calls(out);
            self.close_vague(out);
        }
        if flag(body.compaction) && running {
            let id = out.shared.id(&format!("compaction:{}", word(body.id)));
            let step =
                Step { id, kind: StepKind::Compaction, name: None, index: None, total: None, entry: None };
            out.push(self, out.now, Fact::StepCompleted { step, outcome: StepOutcome::Advanced });
        }
        match new_work {
            // Whether the step pointer counts when it speaks next.
            true => Changed::Structure,
            false if assistant || person => Changed::Calls,
            false => Changed::Nothing,
        }
    }

    /// The model's turn is over, or that of a sub-agent.
    fn done(&mut self, done: &Ended<'_>, out: &mut Out<'_>) -> Changed {
        let inner = word(done.agent_type) == "sub-agent";
        self.works(out);
        let stats = &done.stats;
        let (input, output) = (count(stats.prompt), count(stats.generated));
        let named = |raw: Raw<'_>| text(raw).map(|name| out.shared.name(&name));
        let (model, provider) = (named(stats.model), named(stats.provider));
        if !inner && stats.model.is_some() {
            let mode = mode_of(&word(stats.mode));
            let news = (&self.model, &self.provider) != (&model, &provider) || self.mode != mode;
            (self.model, self.provider) = (model.clone(), provider.clone());
            if mode.is_some() {
                (self.mode, self.mode_told) = (mode, true);
            }
            if news {
                let (model, provider) = (model.clone(), provider.clone());
                self.update(out, SessionInfo { model, provider, mode, ..SessionInfo::default() });
            }
        }
        if input + output > 0 {
            self.used = true;
            let response = text(done.message_id).map(|id| out.shared.id(&id));
            let context_used = self.context.take();
            let usage = Usage { model, provider, response, input, output, context_used, ..Usage::default() };
            out.push(self, out.now, Fact::Usage(usage));
        }
        if inner {
            return Changed::Nothing;
        }
        let Some(run) = &mut self.run else { return Changed::Nothing };
        let reason = match word(done.reason).as_ref() {
            "stopped" => {
                run.stopped = true;
                None
            }
            "complete" => Some(Done::Complete),
            "step_done" => Some(Done::Step),
            "error" => Some(Done::Error),
            "truncated" => Some(Done::Truncated),
            _ => None,
        };
        // After the end of a run only that it was stopped is news about it.
        if run.fell.is_none() && reason.is_some() {
            run.done = reason;
        }
        Changed::Structure
    }

    fn failure(&mut self, failure: &Failure<'_>, out: &mut Out<'_>) {
        let recoverable = flag(failure.recoverable);
        self.works(out);
        // A person who stops a run while it waits is told as an error, after the end.
        let Some(run) = self.run.as_mut().filter(|run| run.fell.is_none()) else { return };
        run.error = Some(recoverable);
        out.push(self, out.now, Fact::Error { class: ErrorClass::Other, recoverable });
    }

    /// How full the context is. A stream without usage resets it to 0, which is no fact.
    fn gauge(&mut self, context: &Context<'_>, out: &mut Out<'_>) {
        let (current, max) = (count(context.context.current), count(context.context.max));
        if context.sub_agent.is_some() || current == 0 || max == 0 {
            return;
        }
        let share = (current as f64 / max as f64).min(1.0);
        if self.used && self.turn.is_some() {
            let context_used = Some(share);
            out.push(self, out.now, Fact::Usage(Usage { context_used, ..Usage::default() }));
        } else {
            self.context = Some(share);
        }
    }
}
