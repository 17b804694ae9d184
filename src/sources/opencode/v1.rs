//! Sessions of the first generation: `session.*`, `message.*`, `permission.*`, `question.*`.

use super::calls;
use super::state::{Doubt, MAX_WAITING, Message, Origin, Pending, Session, Tell, keep};
use super::wire::{
    CallRef, Info, Json, Metadata, Part, Pending as Waits, Props, Raw, Status, Todo, count, elements, list,
    millis, object, read, shape, text, word,
};
use super::words::Broken;
use super::words::{broken_of, finish_of, held_by, is_internal, is_read_only, mode_of};
use crate::event::reduce::stable_hash;
use crate::event::{
    ActionKind, Certainty, Evidence, Fact, Id, Name, ProgressKind, Resolution, SessionInfo, Step, StepKind,
    StepOutcome, Tally, Timestamp, Trigger, Usage,
};

/// Files of a patch that are looked at.
const MAX_FILES: usize = 4_096;

// === impl Session ===

impl Session {
    /// What a session is. `existing`: it did not begin with this.
    pub(super) fn info(&mut self, t: &mut Tell<'_>, info: &Info<'_>) {
        if let Some(parent) = text(info.parent) {
            self.parent = Some(t.common.session(&parent));
        }
        if let Some(directory) = text(info.directory) {
            self.directory = Some(t.common.hash(&directory));
            self.project = t.common.reducer.project_of(&directory).map(|p| Name::from(p.as_str()));
        }
        let fresh = self.created.is_none();
        self.created = self.created.or(millis(info.time.created));
        let name = |raw: Raw<'_>| text(raw).filter(|t| !t.is_empty()).map(|text| t.common.name(&text));
        let agent = text(info.agent).filter(|agent| !is_internal(agent));
        let said = SessionInfo {
            agent: Some(Name::from("opencode")),
            version: name(info.version),
            model: name(info.model.id),
            provider: name(info.model.provider_id),
            mode: agent.as_deref().map(mode_of),
            read_only: agent.as_deref().map(is_read_only),
            endpoint: Some(t.common.endpoint.clone()),
            ..SessionInfo::default()
        };
        let hash = stable_hash(format!("{said:?}"));
        if fresh {
            let created = self.created.unwrap_or(t.time);
            self.push(t, "created", created, Fact::SessionQueued(said));
        } else if hash != self.told {
            let time = millis(info.time.updated).unwrap_or(t.time);
            // What it was before tells a change from the one that takes it back.
            let key = format!("info:{}:{:x}:{hash:x}", time.as_millis(), self.told);
            self.push(t, &key, time, Fact::SessionUpdated(said));
        }
        self.told = hash;
    }

    /// Whether something of this time came with history that was copied from another session.
    pub(super) fn is_copied(&self, at: Option<Timestamp>) -> bool {
        at.is_some_and(|at| self.created.is_some_and(|created| at < created))
    }

    /// A message is there, or has changed.
    pub(super) fn said(&mut self, t: &mut Tell<'_>, info: &Info<'_>) {
        let Some(id) = text(info.id).map(|id| t.common.id(&id)) else { return };
        let created = millis(info.time.created);
        if self.is_copied(created) {
            return;
        }
        let created = created.unwrap_or(t.time);
        if word(info.role) == "user" {
            if self.message(&id).is_none() {
                self.add_message(Message::new(id, true, created));
            }
            return;
        }
        if self.message(&id).is_none() {
            let mut message = Message::new(id.clone(), false, created);
            message.prompt = text(info.parent).map(|parent| t.common.id(&parent));
            message.summary = read(info.summary) == Some(true);
            let model = |raw: Raw<'_>| t.common.name(&word(raw));
            message.model = Some((model(info.model_id), model(info.provider_id)));
            self.answers(t, &message);
            self.add_message(message);
            self.work(t, created);
        }
        self.used(t, &id, info);
        let (completed, finish, error) =
            (millis(info.time.completed), finish_of(info.finish), broken_of(info.error));
        let Some(message) = self.message(&id) else { return };
        message.finish = finish.or(message.finish);
        let failed = error.filter(|_| message.error.is_none());
        message.error = error.or(message.error);
        let newly = completed.filter(|_| message.completed.is_none());
        message.completed = completed.or(message.completed);
        let summed_up =
            newly.filter(|_| message.summary && message.finish.is_some() && message.error.is_none());
        if let Some(Broken::Class(class)) = failed {
            let at = completed.unwrap_or(t.time);
            let fact = Fact::Error { class, recoverable: false };
            self.push(t, &format!("error:{}", id.as_str()), at, fact);
        }
        if let Some(at) = summed_up {
            let step = Step {
                id: id.clone(),
                kind: StepKind::Compaction,
                name: None,
                index: None,
                total: None,
                entry: None,
            };
            let fact = Fact::StepCompleted { step, outcome: StepOutcome::Advanced };
            self.push(t, &format!("summary:{}", id.as_str()), at, fact);
        }
        if let Some(at) = newly {
            let is_final = self.message(&id).is_some_and(|m| m.is_final());
            // What is told again may not be the last of it: that is concluded once all of it was told.
            let ends = self.doubt == Doubt::Once || self.doubt == Doubt::Open && is_final;
            if !self.busy && !t.replay && ends {
                self.ending.get_or_insert(at);
            }
            self.try_end(t);
        }
    }

    fn used(&mut self, t: &mut Tell<'_>, id: &Id, info: &Info<'_>) {
        let tokens = &info.tokens;
        let (input, output) = (count(tokens.input), count(tokens.output) + count(tokens.reasoning));
        let (cache_read, cache_write) = (count(tokens.cache.read), count(tokens.cache.write));
        if input + output + cache_read + cache_write == 0 {
            return;
        }
        let (model, provider) =
            self.message(id).and_then(|m| m.model.clone()).map_or((None, None), |(m, p)| (Some(m), Some(p)));
        let cost_usd = read::<f64>(info.cost).filter(|cost| cost.is_finite() && *cost >= 0.0);
        let response = Some(id.clone());
        let usage = Usage {
            model,
            provider,
            response,
            input,
            cache_read,
            cache_write,
            output,
            cost_usd,
            context_used: None,
        };
        let time = millis(info.time.completed).unwrap_or(t.time);
        let key = format!("usage:{}:{input}:{cache_read}:{cache_write}:{output}", id.as_str());
        self.push(t, &key, time, Fact::Usage(usage));
    }

    /// A part of a message is there, or has changed.
    pub(super) fn part(&mut self, t: &mut Tell<'_>, part: &Part<'_>, at: Option<Timestamp>) {
        let (Some(id), Some(message)) = (text(part.id), text(part.message)) else { return };
        let (id, message) = (t.common.id(&id), t.common.id(&message));
        let own = millis(part.state.time.start).or(millis(part.time.start));
        let known = self.message(&message).map(|m| m.user);
        // What was copied is not among the messages; a part may also tell by itself.
        if self.is_copied(own) || known.is_none() && self.is_copied(at) {
            return;
        }
        if known.is_none() && self.created.is_some() && own.is_none() {
            // Of a message nothing is known of, when it is from neither.
            return;
        }
        let time = at.unwrap_or(t.time);
        if known == Some(true) {
            return self.prompted(t, &message, part);
        }
        match word(part.kind).as_ref() {
            "tool" => calls::part(self, t, &id, &message, part, time),
            "patch" => self.patched(t, &id, &message, part, time),
            "step-start" => {
                if let Some(message) = self.message(&message) {
                    message.steps = true;
                }
                self.work(t, time);
            }
            _ => self.work(t, time),
        }
    }

    /// The first part of a prompt says whom it is from.
    fn prompted(&mut self, t: &mut Tell<'_>, message: &Id, part: &Part<'_>) {
        let metadata: Metadata<'_> = object(part.metadata);
        let origin = match word(part.kind).as_ref() {
            "compaction" if read(part.auto) == Some(true) => Origin::Program,
            "compaction" => Origin::Command,
            "text" if read(metadata.compaction_continue) == Some(true) => Origin::Program,
            "text" if read(part.synthetic) == Some(true) => Origin::Command,
            "text" | "file" | "agent" | "subtask" => Origin::Person,
            _ => return,
        };
        let busy = self.turn.is_some() && !(t.replay && self.last().is_some_and(Message::is_final));
        let child = self.parent.is_some();
        let Some(known) = self.message(message).filter(|m| m.origin == Origin::Unknown) else { return };
        known.origin = origin;
        let (created, taken) = (known.created, known.taken);
        if origin != Origin::Person || child {
            return;
        }
        let queued = busy && !taken;
        if queued {
            keep(&mut self.waiting, message.clone(), MAX_WAITING);
        }
        let fact = Fact::Prompt { trigger: Trigger::Person, queued };
        self.push(t, &format!("prompt:{}", message.as_str()), created, fact);
    }

    /// The working tree changed in a step. What edits of the same step told of already is no second change.
    fn patched(&mut self, t: &mut Tell<'_>, id: &Id, message: &Id, part: &Part<'_>, time: Timestamp) {
        let files = elements(part.files);
        let hashes: Vec<u64> =
            files.iter().take(MAX_FILES).filter_map(|f| Some(t.common.hash(&text(*f)?))).collect();
        let step = self.message(message);
        let untold = |step: &Message| hashes.iter().any(|file| !step.edited.contains(file));
        let news = !hashes.is_empty() && step.as_deref().is_none_or(untold);
        let call = step.and_then(|m| m.changer.clone());
        if news {
            let (kind, evidence) = (ProgressKind::FileModified, Evidence::Vcs);
            let fact = Fact::Progress { kind, evidence, call, subject: None };
            self.push(t, &format!("patch:{}", id.as_str()), time, fact);
        } else {
            self.work(t, time);
        }
    }

    /// `session.status`.
    pub(super) fn status(&mut self, t: &mut Tell<'_>, status: &Status<'_>) {
        let time = t.time;
        match word(status.kind).as_ref() {
            "busy" => {
                self.works(t, time);
                self.retrying = false;
            }
            "retry" => {
                self.works(t, time);
                self.retrying = true;
                let attempt =
                    read::<f64>(status.attempt).filter(|n| (0.0..1e9).contains(n)).map(|n| n as u32);
                let until = millis(status.next);
                let next = until.unwrap_or(time).as_millis();
                let fact = Fact::Blocked { reason: held_by(status.action), attempt, delay_ms: None, until };
                self.push(t, &format!("retry:{}:{next}", attempt.unwrap_or(0)), time, fact);
            }
            "idle" => self.idles(t, time),
            _ => {}
        }
    }

    /// `session.error`: only a part of the truth, until the message says it too.
    pub(super) fn failed(&mut self, error: Raw<'_>) {
        if self.is_open() {
            self.error = broken_of(error);
        }
    }

    /// A permission or an answer is asked for.
    pub(super) fn asked(&mut self, t: &mut Tell<'_>, waits: &Waits<'_>, kind: ActionKind, time: Timestamp) {
        let Some(action) = text(waits.id).map(|id| t.common.id(&id)) else { return };
        if self.pending.iter().any(|p| p.id == action) {
            return;
        }
        let about: CallRef<'_> = shape(waits.tool).or_else(|| shape(waits.source)).unwrap_or_default();
        let part = self.asking_call(t, &about, time);
        let what = text(waits.permission).or_else(|| text(waits.action));
        let tool = what.map(|what| t.common.name(&what)).filter(|_| kind == ActionKind::Permission);
        if tool.as_ref().is_some_and(|tool| tool.as_str() == "doom_loop") {
            let fact =
                Fact::NativeStuck { detector: Name::from("doom_loop"), layer: Name::from("tool_loop") };
            self.push(t, &format!("stuck:{}", action.as_str()), time, fact);
        }
        let key = format!("asked:{}", action.as_str());
        let certainty = Certainty::Certain;
        self.add_pending(Pending {
            id: action.clone(),
            part: part.clone(),
            question: kind == ActionKind::Question,
        });
        self.push(t, &key, time, Fact::ActionRequired { action, kind, certainty, tool, call: part });
    }

    /// The call a request is about. One that asks before it runs has begun by then.
    fn asking_call(&mut self, t: &Tell<'_>, about: &CallRef<'_>, time: Timestamp) -> Option<Id> {
        let (message, call) = (t.common.id(&text(about.message)?), t.common.id(&text(about.call)?));
        let found = self.calls.iter_mut().find(|c| c.message == message && c.call.as_ref() == Some(&call))?;
        if !found.started {
            found.asked.get_or_insert(time);
        }
        Some(found.part.clone())
    }

    /// It was answered.
    pub(super) fn replied(&mut self, t: &mut Tell<'_>, request: Raw<'_>, resolution: Resolution) {
        let Some(action) = text(request).map(|id| t.common.id(&id)) else { return };
        self.resolve(t, &action, resolution);
    }

    pub(super) fn resolve(&mut self, t: &mut Tell<'_>, action: &Id, resolution: Resolution) {
        let at = self.pending.iter().position(|p| p.id == *action);
        let part = at.map(|at| self.pending.remove(at)).and_then(|p| p.part);
        if resolution == Resolution::Denied {
            self.denied = true;
            if let Some(call) = part.and_then(|part| self.call(&part)) {
                call.denied = true;
            }
        }
        let fact = Fact::ActionResolved { action: action.clone(), resolution };
        self.push(t, &format!("answered:{}", action.as_str()), t.time, fact);
    }

    /// The list of things to do.
    pub(super) fn planned(&mut self, t: &mut Tell<'_>, todos: Raw<'_>, time: Timestamp) {
        let Some(items) = tally(todos) else { return };
        let Tally { pending, in_progress, done, failed } = items;
        let key = format!("plan:{}:{pending}:{in_progress}:{done}:{failed}", time.as_millis());
        self.push(t, &key, time, Fact::PlanUpdated { ready: false, items, told: false });
    }
}

fn tally(todos: Raw<'_>) -> Option<Tally> {
    todos.filter(|json| json.get().starts_with('['))?;
    let mut items = Tally::default();
    for todo in list::<Todo<'_>>(todos) {
        match word(todo.status).as_ref() {
            "completed" => items.done += 1,
            "in_progress" => items.in_progress += 1,
            "cancelled" => items.failed += 1,
            _ => items.pending += 1,
        }
    }
    Some(items)
}

/// What was said to a request for a permission.
pub(super) fn reply_of(props: &Props<'_>) -> Resolution {
    match word(props.reply).as_ref() {
        "reject" => Resolution::Denied,
        "once" | "always" => Resolution::Approved,
        _ => Resolution::Unknown,
    }
}

/// The spelling of a raw field, for hashing.
pub(super) fn spelled<'a>(raw: Raw<'a>) -> Option<&'a str> {
    raw.map(Json::get)
}
