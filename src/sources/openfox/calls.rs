//! Calls, and what they ask a person.

use super::Out;
use super::frames::Changed;
use super::known::{Known, OpenCall, Pending};
use super::wire::{Call, Outcome, flag, read, text, word};
use crate::event::{
    ActionKind, CallEnd, CallOutcome, CallStart, Fact, Id, ReadRange, Resolution, Timestamp, ToolClass,
};
use crate::sources::arguments;

/// What a tool does, where its name alone does not say it to everybody.
fn class_of(tool: &str) -> ToolClass {
    match tool {
        "call_sub_agent" => ToolClass::Task,
        "session_metadata" => ToolClass::Plan,
        known => ToolClass::of_tool(known),
    }
}

/// What an edit or a command was has to be known when its result comes, also after a restart.
const fn weight(class: ToolClass) -> Changed {
    match class {
        ToolClass::Edit | ToolClass::Shell | ToolClass::User => Changed::Structure,
        _ => Changed::Calls,
    }
}

// === impl Known ===

impl Known {
    /// The model makes the ids of its calls, so that only the message they are in makes them unique.
    fn call_id(call: &Call<'_>, out: &Out<'_>) -> Option<(Id, u64)> {
        let id = text(call.call_id).filter(|id| !id.is_empty())?;
        let full = format!("{id}@{}", word(call.message_id));
        Some((out.shared.id(&full), out.shared.hash(&id)))
    }

    pub(super) fn call_begins(&mut self, call: &Call<'_>, out: &mut Out<'_>) -> Changed {
        self.works(out);
        self.doubt_rest(out);
        let Some((id, short)) = Self::call_id(call, out) else { return Changed::Nothing };
        let tool = word(call.tool);
        let class = class_of(&tool);
        let shared = &mut *out.shared;
        let args = call.args.map(super::wire::Json::get);
        let reduced = arguments::reduce(&shared.reducer, &mut shared.memory, &tool, class, args, None)
            .unwrap_or_default();
        let name = shared.name(&tool);
        self.begin_call(OpenCall {
            call: id.clone(),
            short,
            tool: name.clone(),
            class,
            key: reduced.key,
            since: out.now,
            asked: false,
            stale: false,
        });
        let start = CallStart {
            call: id,
            tool: name,
            class,
            key: reduced.key,
            target: reduced.target,
            read: None,
            commands: reduced.commands,
            background: false,
            asks: None,
            nested: false,
        };
        out.push(self, out.now, Fact::ToolStarted(start));
        weight(class)
    }

    /// A call prints, so that it waits for nobody.
    pub(super) fn call_says(&mut self, call: &Call<'_>, out: &mut Out<'_>) {
        self.works(out);
        let Some((_, short)) = Self::call_id(call, out) else { return };
        let now = out.now;
        if let Some(open) = self.open_call(short) {
            (open.since, open.asked, open.stale) = (now, false, false);
        }
    }

    pub(super) fn call_ends(&mut self, call: &Call<'_>, out: &mut Out<'_>) -> Changed {
        self.works(out);
        let Some((id, short)) = Self::call_id(call, out) else { return Changed::Nothing };
        let open = self.end_call(&id, short);
        let result = &call.result;
        let success = flag(result.success);
        let class = open.as_ref().map_or(ToolClass::Other, |open| open.class);
        let tool = open.as_ref().map_or("", |open| open.tool.as_str());
        let confirmed = self.pending.iter().position(|p| p.short == Some(short));
        let confirmed = confirmed.map(|at| self.pending.remove(at));
        let was_confirmed = confirmed.as_ref().is_some_and(|p| p.kind == ActionKind::Confirmation);
        if let Some(pending) = confirmed.filter(|_| was_confirmed) {
            // A refusal and a failure after approval look alike.
            let resolution = if success { Resolution::Approved } else { Resolution::Unknown };
            out.push(self, out.now, Fact::ActionResolved { action: pending.action, resolution });
        }
        let shell = class == ToolClass::Shell;
        let exit_code = match success {
            true if shell => Some(0),
            // One that was asked for may have been refused, and then never ran.
            false if shell && !was_confirmed => Some(1),
            _ => None,
        };
        // The same edit again is no advance, whatever it says; one whose arguments are not known may be one.
        let edited = class == ToolClass::Edit && success;
        let key = open.as_ref().and_then(|open| open.key);
        let diff_lines = edited.then(|| u32::from(key.is_none_or(|key| self.is_new_edit(key))));
        let reducer = &out.shared.reducer;
        let end = CallEnd {
            call: id,
            outcome: if success { CallOutcome::Ok } else { CallOutcome::Error },
            exit_code,
            diff_lines,
            error: (!success).then(|| reducer.error_fingerprint(tool, &word(result.error))),
            output: result.output.map(|raw| reducer.hash(raw.get().as_bytes())),
            read: if class == ToolClass::Read { lines_read(result) } else { None },
        };
        self.close_vague(out);
        out.push(self, out.now, Fact::ToolEnded(end));
        weight(class)
    }

    /// The agent asks its user, until the result of the same call.
    pub(super) fn question(&mut self, call: &Call<'_>, out: &mut Out<'_>) {
        self.works(out);
        let Some(id) = text(call.call_id).filter(|id| !id.is_empty()) else { return };
        let short = out.shared.hash(&id);
        if self.pending.iter().any(|p| p.short == Some(short)) || self.turn.is_none() {
            return;
        }
        let open = self.open_call(short).map(|open| (open.call.clone(), open.tool.clone()));
        let (call, tool) = open.unzip();
        let action = call.clone().unwrap_or_else(|| out.shared.id(&id));
        let pending = Pending { action, kind: ActionKind::Question, short: Some(short), vague: false };
        self.ask(pending, tool, call, out);
    }

    /// A confirmation that the list shows.
    pub(super) fn confirmation(&mut self, call_id: &str, tool: &str, out: &mut Out<'_>) {
        let short = out.shared.hash(call_id);
        if self.pending.iter().any(|p| p.short == Some(short)) || self.ended.contains(&short) {
            return;
        }
        let open = self.open_call(short).map(|open| (open.call.clone(), open.tool.clone()));
        let (call, name) = open.unzip();
        let action = call.clone().unwrap_or_else(|| out.shared.id(call_id));
        let tool = name.or_else(|| (!tool.is_empty()).then(|| out.shared.name(tool)));
        let pending = Pending { action, kind: ActionKind::Confirmation, short: Some(short), vague: false };
        self.resolve_where(|pending| pending.vague, Resolution::Unknown, out);
        self.ask(pending, tool, call, out);
    }

    /// Confirmations that the list does not show any more.
    pub(super) fn confirmations_gone(&mut self, listed: &[u64], out: &mut Out<'_>) {
        let gone = |p: &Pending| {
            p.kind == ActionKind::Confirmation && p.short.is_some_and(|short| !listed.contains(&short))
        };
        self.resolve_where(gone, Resolution::Unknown, out);
    }

    /// Requests that match are over.
    pub(super) fn resolve_where(
        &mut self,
        over: impl Fn(&Pending) -> bool,
        resolution: Resolution,
        out: &mut Out<'_>,
    ) {
        let (gone, kept) = std::mem::take(&mut self.pending).into_iter().partition(|p| over(p));
        self.pending = kept;
        let gone: Vec<Pending> = gone;
        for pending in gone {
            out.push(self, out.now, Fact::ActionResolved { action: pending.action, resolution });
        }
    }

    pub(super) fn resolve_all(&mut self, resolution: Resolution, at: Timestamp, out: &mut Out<'_>) {
        for pending in std::mem::take(&mut self.pending) {
            out.push(self, at, Fact::ActionResolved { action: pending.action, resolution });
        }
    }

    /// Work goes on, so that nobody waits for what only the status knew of.
    pub(super) fn close_vague(&mut self, out: &mut Out<'_>) {
        if self.pending.iter().any(|pending| pending.vague) {
            self.resolve_where(|pending| pending.vague, Resolution::Unknown, out);
        }
    }

    /// Calls whose end was lost with the connection.
    pub(super) fn end_stale_calls(&mut self, out: &mut Out<'_>) {
        let (stale, kept) = std::mem::take(&mut self.calls).into_iter().partition(|open| open.stale);
        self.calls = kept;
        let stale: Vec<OpenCall> = stale;
        for open in stale {
            self.pending.retain(|p| p.short != Some(open.short));
            out.push(self, out.now, Fact::ToolEnded(CallEnd::interrupted(open.call)));
        }
    }
}

/// Lines a read got.
fn lines_read(result: &Outcome<'_>) -> Option<ReadRange> {
    let number = |raw| read::<f64>(raw).filter(|n| (0.0..1e9).contains(n)).map(|n| n as u32);
    let (start, end) = (number(result.metadata.start)?.max(1), number(result.metadata.end)?);
    (end >= start).then(|| ReadRange { start, end, total: number(result.metadata.total) })
}
