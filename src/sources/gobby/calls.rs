//! Calls of tools begin and end.

use super::state::{Action, Open};
use super::wire::{Hook, spelled, text, word};
use super::{Emit, Gobby, tools};
use crate::event::reduce::stable_hash;
use crate::event::{
    ActionKind, CallEnd, CallOutcome, CallStart, Fact, Id, Name, Resolution, SessionId, ToolClass,
};
use crate::sources::arguments::{self, Reduced};

/// A call as its hook describes it.
pub(super) struct Called {
    pub(super) tool: Name,
    class: ToolClass,
    reduced: Reduced,
    /// The id the agent gave it, and its hash.
    given: Option<(Id, u64)>,
}

// === impl Gobby ===

impl Gobby {
    pub(super) fn called(&mut self, hook: &Hook<'_>) -> Called {
        let name = word(hook.tool_name);
        let class = tools::class_of(&name, hook);
        let tool = Name::from(self.reducer.bounded(&name).as_str());
        let args = spelled(hook.tool_input);
        let reduced = arguments::reduce(&self.reducer, &mut self.memory, tool.as_str(), class, args, None);
        // Arguments that cannot be reduced are told apart by their spelling.
        let reduced = reduced.unwrap_or_else(|_| Reduced {
            key: args.map(|args| self.reducer.call_key(tool.as_str(), args)),
            ..Reduced::default()
        });
        let given = text(hook.tool_use_id).filter(|id| !id.is_empty());
        let given = given.map(|id| (self.id(&id), stable_hash(id.as_ref())));
        Called { tool, class, reduced, given }
    }

    /// A name for a call that has none, or one that was used before.
    fn call_id(&mut self, e: &Emit<'_>, at: usize, called: &Called) -> Id {
        let ms = e.time.as_millis();
        match &called.given {
            Some((id, hash)) if !self.state.sessions[at].use_up(*hash) => id.clone(),
            Some((id, _)) => self.id(&format!("{}@{ms}", id.as_str())),
            None => self.id(&format!("call-{ms}-{:04x}", called.reduced.key.unwrap_or_default() & 0xffff)),
        }
    }

    fn start_of(&self, hook: &Hook<'_>, called: &Called, call: Id) -> CallStart {
        CallStart {
            call,
            tool: called.tool.clone(),
            class: called.class,
            key: called.reduced.key,
            target: called.reduced.target,
            read: tools::range(called.class, hook),
            commands: called.reduced.commands,
            background: false,
            asks: None,
            nested: false,
        }
    }

    /// A call begins, or is held back by a rule of the daemon: then no end of it follows.
    pub(super) fn call_began(&mut self, e: &mut Emit<'_>, at: usize, hook: &Hook<'_>, held_back: bool) {
        self.works(e, at);
        let called = self.called(hook);
        let child = self.child_of(at, hook);
        let call = self.call_id(e, at, &called);
        let start = self.start_of(hook, &called, call.clone());
        self.push_in(e, at, child.as_ref(), Fact::ToolStarted(start));
        if held_back {
            let denied = CallEnd { outcome: CallOutcome::Denied, ..CallEnd::interrupted(call) };
            return self.push_in(e, at, child.as_ref(), Fact::ToolEnded(denied));
        }
        let (given, key) = (called.hash(), called.reduced.key);
        let open = Open { call: call.clone(), given, key, child: child.clone(), outlived: 0 };
        self.state.sessions[at].add_call(open);
        if called.class == ToolClass::User && child.is_none() {
            let plan = called.tool.as_str().eq_ignore_ascii_case("exitplanmode");
            let kind = if plan { ActionKind::PlanApproval } else { ActionKind::Question };
            let wanted = Action { action: call.clone(), call: Some(call), key, elicitation: false };
            self.ask_person(e, at, kind, wanted, Some(called.tool));
        }
    }

    pub(super) fn call_ended(&mut self, e: &mut Emit<'_>, at: usize, hook: &Hook<'_>, failed: bool) {
        let called = self.called(hook);
        let open = self.state.sessions[at].take_call(called.hash(), called.reduced.key);
        // One that began before the end of its turn is only late.
        if open.is_none() {
            self.works(e, at);
        }
        let child = match &open {
            Some(open) => open.child.clone(),
            None => self.child_of(at, hook),
        };
        let call = match &open {
            Some(open) => open.call.clone(),
            None => self.unseen(e, at, hook, &called, child.as_ref()),
        };
        self.resolve(e, at, &call, called.reduced.key, Resolution::Approved);
        let ended = tools::ended(called.class, hook, self.state.modern, failed);
        let error = (ended.outcome == CallOutcome::Error).then(|| tools::failure(hook)).flatten();
        let end = CallEnd {
            call,
            outcome: ended.outcome,
            exit_code: ended.exit_code,
            diff_lines: ended.diff_lines,
            error: error.map(|text| self.reducer.error_fingerprint(called.tool.as_str(), &text)),
            output: tools::output(hook).map(|text| self.reducer.hash(text.as_bytes())),
            read: None,
        };
        self.push_in(e, at, child.as_ref(), Fact::ToolEnded(end));
        // How they ended was not told: 0.4 leaves failures out, and a stream that was cut what came meanwhile.
        for over in self.state.sessions[at].take_outlived() {
            self.resolve(e, at, &over.call, over.key, Resolution::Unknown);
            let end = CallEnd { outcome: CallOutcome::Unknown, ..CallEnd::interrupted(over.call) };
            self.push_in(e, at, over.child.as_ref(), Fact::ToolEnded(end));
        }
    }

    /// A person refused it before it ran.
    pub(super) fn call_denied(&mut self, e: &mut Emit<'_>, at: usize, hook: &Hook<'_>) {
        let called = self.called(hook);
        let Some(open) = self.state.sessions[at].take_call(called.hash(), called.reduced.key) else {
            return;
        };
        let denied = CallEnd { outcome: CallOutcome::Denied, ..CallEnd::interrupted(open.call) };
        self.push_in(e, at, open.child.as_ref(), Fact::ToolEnded(denied));
    }

    /// The beginning of a call that was missed. It counts, but nobody knows when it was.
    fn unseen(
        &mut self,
        e: &mut Emit<'_>,
        at: usize,
        hook: &Hook<'_>,
        called: &Called,
        child: Option<&SessionId>,
    ) -> Id {
        let call = self.call_id(e, at, called);
        let start = self.start_of(hook, called, call.clone());
        self.push_in(e, at, child, Fact::ToolStarted(start));
        if let Some(event) = e.said.events.last_mut() {
            event.time = None;
        }
        call
    }

    /// The call ran: what was asked because of it is answered.
    fn resolve(&mut self, e: &mut Emit<'_>, at: usize, call: &Id, key: Option<u64>, resolution: Resolution) {
        let actions = &mut self.state.sessions[at].actions;
        let own =
            |a: &Action| a.call.as_ref() == Some(call) || (a.call.is_none() && key.is_some() && a.key == key);
        if let Some(own) = actions.iter().position(own) {
            let action = actions.remove(own).action;
            self.push(e, at, Fact::ActionResolved { action, resolution });
        }
    }
}

// === impl Called ===

impl Called {
    /// Hash of the id the agent gave it.
    pub(super) fn hash(&self) -> Option<u64> {
        self.given.as_ref().map(|(_, hash)| *hash)
    }

    pub(super) const fn key(&self) -> Option<u64> {
        self.reduced.key
    }
}
