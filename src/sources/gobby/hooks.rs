//! Hooks of the agents, as the daemon broadcasts them.

use super::state::{Action, MAX_ACTIONS, MAX_CHILDREN};
use super::wire::{Frame, Hook, text, word};
use super::{Emit, Gobby};
use crate::event::reduce::stable_hash;
use crate::event::{
    ActionKind, ActivityClass, Certainty, ErrorClass, Evidence, Fact, Id, Name, ProgressKind, Resolution,
    SessionId, Step, StepKind, StepOutcome, Tally, Trigger, TurnOutcome,
};

// === impl Gobby ===

impl Gobby {
    pub(super) fn hook(&mut self, e: &mut Emit<'_>, frame: &Frame<'_>) {
        let kind = word(frame.event_type);
        let Some(external) = text(frame.session_id).filter(|id| !id.is_empty()) else {
            // The operator keeps payloads back, and with them whose hook it is.
            e.said.unknown.push("hook_event/no_session".to_owned());
            return;
        };
        let hook = &frame.data;
        e.project =
            text(hook.cwd).and_then(|cwd| self.reducer.project_of(&cwd)).map(|p| Name::from(p.as_str()));
        let at = self.session(e, &external);
        if kind != "session-end" {
            self.heard(e, at);
        }
        let held_back = matches!(word(frame.result.decision).as_ref(), "block" | "deny");
        match kind.as_ref() {
            "session-start" => self.started(e, at, hook),
            "session-end" => self.end_session(e, at, None),
            "user-prompt-submit" | "before-agent" => self.prompted(e, at),
            // The daemon made the agent go on.
            "stop" | "after-agent" if held_back => self.activity(e, at, ActivityClass::Work),
            "stop" | "after-agent" => self.stopped(e, at, hook),
            "stop-failure" => self.stop_failed(e, at, hook),
            "pre-tool-use" | "before-tool" => self.call_began(e, at, hook, held_back),
            "post-tool-use" | "after-tool" => self.call_ended(e, at, hook, false),
            "post-tool-use-failure" => self.call_ended(e, at, hook, true),
            "before-model" | "after-model" | "before-tool-selection" => {
                self.works(e, at);
                self.activity(e, at, ActivityClass::Work);
            }
            "permission-request" => self.permission_wanted(e, at, hook),
            "permission-denied" => self.permission_denied(e, at, hook),
            "notification" => self.notified(e, at, hook),
            "elicitation" => {
                let action = self.stamped(e, "elicitation");
                self.ask_person(
                    e,
                    at,
                    ActionKind::Elicitation,
                    Action { action, call: None, key: None, elicitation: true },
                    None,
                );
            }
            "elicitation-result" => self.elicited(e, at, hook),
            "subagent-start" => self.child_began(e, at, hook),
            "subagent-stop" => self.child_stopped(e, at, hook),
            "task-created" | "task-completed" => self.own_task(e, at, hook, kind == "task-completed"),
            "pre-compact" => {
                self.compacted(e, at);
                self.state.sessions[at].compacting = true;
            }
            "post-compact" => {
                // Counted when it began, if that was told.
                if !std::mem::take(&mut self.state.sessions[at].compacting) {
                    self.compacted(e, at);
                }
            }
            "teammate-idle"
            | "instructions-loaded"
            | "config-change"
            | "cwd-changed"
            | "file-changed"
            | "worktree-create"
            | "worktree-remove"
            | "setup" => {
                self.activity(e, at, ActivityClass::Bookkeeping);
            }
            other => {
                e.said.unknown.push(format!("hook_event/{other}"));
                self.activity(e, at, ActivityClass::Bookkeeping);
            }
        }
    }

    pub(super) fn activity(&self, e: &mut Emit<'_>, at: usize, class: ActivityClass) {
        self.push(e, at, Fact::Activity { class, message: false });
    }

    /// An id for what the daemon gives none.
    pub(super) fn stamped(&self, e: &Emit<'_>, what: &str) -> Id {
        Id::from(format!("{what}-{}", e.time.as_millis()).as_str())
    }

    fn started(&mut self, e: &mut Emit<'_>, at: usize, hook: &Hook<'_>) {
        let info = self.info(at);
        self.state.sessions[at].ended = false;
        match word(hook.source).as_ref() {
            // Goes on with what it was.
            "resume" | "compact" => self.push(e, at, Fact::SessionResumed(info)),
            _ => self.push(e, at, Fact::SessionStarted(info)),
        }
    }

    fn prompted(&mut self, e: &mut Emit<'_>, at: usize) {
        self.resolve_all(e, at, Resolution::Unknown);
        // Nobody types the prompts of an agent that another one started.
        let trigger = if self.state.sessions[at].spawned { Trigger::Machine } else { Trigger::Person };
        self.begin_turn(e, at, trigger);
        self.push(e, at, Fact::Prompt { trigger, queued: false });
    }

    fn stopped(&mut self, e: &mut Emit<'_>, at: usize, hook: &Hook<'_>) {
        let outcome = match word(hook.reason).as_ref() {
            "max_tokens" => TurnOutcome::Truncated,
            "cancelled" | "interrupted" | "aborted" => TurnOutcome::Cancelled,
            _ => TurnOutcome::Completed,
        };
        self.end_turn(e, at, outcome, None, true);
    }

    fn stop_failed(&mut self, e: &mut Emit<'_>, at: usize, hook: &Hook<'_>) {
        let error = match word(hook.error).as_ref() {
            "rate_limit" => ErrorClass::RateLimit,
            "authentication_failed" | "oauth_org_not_allowed" => ErrorClass::Auth,
            "billing_error" => ErrorClass::Billing,
            "invalid_request" => ErrorClass::InvalidRequest,
            "model_not_found" => ErrorClass::ModelMissing,
            "server_error" | "overloaded" => ErrorClass::Server,
            "max_output_tokens" => return self.end_turn(e, at, TurnOutcome::Truncated, None, true),
            _ => ErrorClass::Other,
        };
        if error == ErrorClass::RateLimit {
            self.push(e, at, Fact::RateLimitSignal { delay_ms: None });
        }
        self.end_turn(e, at, TurnOutcome::Failed, Some(error), true);
    }

    /// The first of its kind shows that such hooks are let through here; then all sessions can have them.
    fn sees_actions(&mut self, e: &mut Emit<'_>) {
        if std::mem::replace(&mut self.state.sees_actions, true) {
            return;
        }
        for at in 0..self.state.sessions.len() {
            if !self.state.sessions[at].ended {
                let info = self.info(at);
                self.push(e, at, Fact::SessionUpdated(info));
            }
        }
    }

    pub(super) fn ask_person(
        &mut self,
        e: &mut Emit<'_>,
        at: usize,
        kind: ActionKind,
        wanted: Action,
        tool: Option<Name>,
    ) {
        self.works(e, at);
        let fact = Fact::ActionRequired {
            action: wanted.action.clone(),
            kind,
            certainty: Certainty::Certain,
            tool,
            call: wanted.call.clone(),
        };
        self.push(e, at, fact);
        let actions = &mut self.state.sessions[at].actions;
        if actions.len() < MAX_ACTIONS {
            actions.push(wanted);
        }
    }

    fn permission_wanted(&mut self, e: &mut Emit<'_>, at: usize, hook: &Hook<'_>) {
        self.sees_actions(e);
        let called = self.called(hook);
        let (given, key) = (called.hash(), called.key());
        let session = &self.state.sessions[at];
        let same = |c: &&super::state::Open| match given {
            Some(given) => c.given == Some(given),
            None => c.key == key,
        };
        let call = session.calls.iter().find(same).map(|c| c.call.clone());
        let action = call.clone().unwrap_or_else(|| self.stamped(e, "permission"));
        let wanted = Action { action, call, key, elicitation: false };
        self.ask_person(e, at, ActionKind::Permission, wanted, Some(called.tool));
    }

    fn permission_denied(&mut self, e: &mut Emit<'_>, at: usize, hook: &Hook<'_>) {
        self.sees_actions(e);
        let key = self.called(hook).key();
        let actions = &mut self.state.sessions[at].actions;
        let own = actions.iter().position(|a| a.key == key).or_else(|| actions.len().checked_sub(1));
        if let Some(own) = own {
            let denied = actions.remove(own);
            self.push(e, at, Fact::ActionResolved { action: denied.action, resolution: Resolution::Denied });
        }
        self.call_denied(e, at, hook);
    }

    /// A dialog that is told only by a notice; one that is open already is what it is about. The prompt an idle agent
    /// waits for is nothing anybody has to do, and an unknown hook arrives as a notice without a type.
    fn notified(&mut self, e: &mut Emit<'_>, at: usize, hook: &Hook<'_>) {
        let kind = match text(hook.notification_type).as_deref() {
            Some("permission_prompt") => ActionKind::Permission,
            Some("elicitation_dialog") => ActionKind::Elicitation,
            Some("idle_prompt") => {
                // So the turn is over, however it ended.
                if self.state.sessions[at].turn.is_some() {
                    self.end_turn(e, at, TurnOutcome::Completed, None, false);
                }
                return self.activity(e, at, ActivityClass::Bookkeeping);
            }
            Some(_) => return self.activity(e, at, ActivityClass::Bookkeeping),
            None => {
                e.said.unknown.push("notification/untyped".to_owned());
                return self.activity(e, at, ActivityClass::Bookkeeping);
            }
        };
        self.sees_actions(e);
        if !self.state.sessions[at].actions.is_empty() {
            return self.activity(e, at, ActivityClass::Bookkeeping);
        }
        let calls = &self.state.sessions[at].calls;
        let (call, key) = match calls.as_slice() {
            [only] => (Some(only.call.clone()), only.key),
            _ => (None, None),
        };
        let action = call.clone().unwrap_or_else(|| self.stamped(e, "notice"));
        let elicitation = kind == ActionKind::Elicitation;
        self.ask_person(e, at, kind, Action { action, call, key, elicitation }, None);
    }

    fn elicited(&mut self, e: &mut Emit<'_>, at: usize, hook: &Hook<'_>) {
        let resolution = match word(hook.action).as_ref() {
            "decline" => Resolution::Denied,
            "cancel" => Resolution::Cancelled,
            _ => Resolution::Answered,
        };
        let actions = &mut self.state.sessions[at].actions;
        if let Some(own) = actions.iter().position(|a| a.elicitation) {
            let action = actions.remove(own).action;
            self.push(e, at, Fact::ActionResolved { action, resolution });
        }
        self.activity(e, at, ActivityClass::Work);
    }

    /// The sub-agent a hook names.
    pub(super) fn child_of(&self, at: usize, hook: &Hook<'_>) -> Option<SessionId> {
        let agent = text(hook.agent_id).or_else(|| text(hook.subagent_id)).filter(|a| !a.is_empty())?;
        Some(self.session_id(&format!("{}:{agent}", self.state.sessions[at].id.as_str())))
    }

    fn child_began(&mut self, e: &mut Emit<'_>, at: usize, hook: &Hook<'_>) {
        self.works(e, at);
        self.activity(e, at, ActivityClass::Work);
        let Some(child) = self.child_of(at, hook) else { return };
        let info = self.info(at);
        self.push_in(e, at, Some(&child), Fact::SessionStarted(info));
        self.push_in(e, at, Some(&child), Fact::TurnStarted { trigger: Trigger::Machine });
        let children = &mut self.state.sessions[at].children;
        if children.len() < MAX_CHILDREN && !children.contains(&child) {
            children.push(child);
        }
    }

    fn child_stopped(&mut self, e: &mut Emit<'_>, at: usize, hook: &Hook<'_>) {
        self.activity(e, at, ActivityClass::Work);
        let Some(child) = self.child_of(at, hook) else { return };
        self.state.sessions[at].children.retain(|open| *open != child);
        self.end_child(e, at, &child, TurnOutcome::Completed);
    }

    /// The agent's own list of tasks.
    fn own_task(&mut self, e: &mut Emit<'_>, at: usize, hook: &Hook<'_>, done: bool) {
        let tasks = &mut self.state.sessions[at].own_tasks;
        let count = &mut tasks[usize::from(done)];
        *count = count.saturating_add(1);
        let [made, finished] = *tasks;
        let items = Tally { pending: made.saturating_sub(finished), done: finished, ..Tally::default() };
        if done {
            let subject = text(hook.task_id).map(|id| stable_hash(("agent's task", id.as_ref())));
            let (kind, evidence) = (ProgressKind::TaskCompleted, Evidence::Structured);
            self.push(e, at, Fact::Progress { kind, evidence, call: None, subject });
        }
        self.push(e, at, Fact::PlanUpdated { ready: false, items, told: true });
    }

    fn compacted(&self, e: &mut Emit<'_>, at: usize) {
        let id = self.stamped(e, "compaction");
        let step = Step { id, kind: StepKind::Compaction, name: None, index: None, total: None, entry: None };
        self.push(e, at, Fact::StepCompleted { step, outcome: StepOutcome::Advanced });
    }
}
