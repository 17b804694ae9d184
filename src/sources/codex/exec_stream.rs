//! The stream of `codex exec --json`: one process, one thread, one turn, no times. Item ids begin again in each
//! process. An `error` line is a retry or comes before `turn.failed`; it never ends a turn by itself.

use super::events::{TurnEnd, http_class};
use super::usage::Tokens;
use super::wire::{ErrorInfo, ExecLine, Item, Line, Raw, count, object, read, text, word};
use super::{Codex, Emit};
use crate::event::{
    ActivityClass, BlockReason, Capabilities, Capability, ErrorClass, Fact, Name, SessionInfo, Tally,
    Trigger, TurnOutcome,
};

/// What the stream shows. Nobody is asked for approval in `codex exec`.
const SHOWS: Capabilities = Capabilities::of(&[
    Capability::Ends,
    Capability::PendingActions,
    Capability::Progress,
    Capability::Calls,
    Capability::Usage,
]);

// === impl Codex ===

impl Codex {
    pub(super) fn exec_line(&mut self, e: &mut Emit<'_>, kind: &str, line: &ExecLine<'_>) {
        if let Some(turn) = text(line.turn_id) {
            e.request = Some(self.id(&turn));
        }
        match kind {
            "thread.started" => self.thread_started(e, line),
            "turn.started" => {
                self.state.turn = e.request.clone();
                self.push(e, Fact::TurnStarted { trigger: Trigger::Unknown });
            }
            "turn.completed" => {
                self.take_usage(e, line.usage);
                // The turn only pauses where it waits for something.
                if word(line.status) != "pending" {
                    let end = TurnEnd { outcome: TurnOutcome::Completed, error: None, known: true };
                    self.end_turn(e, &end);
                }
            }
            "turn.failed" => self.turn_failed(e, line),
            "item.started" | "item.updated" | "item.completed" => self.exec_item(e, kind, &object(line.item)),
            "item.agent_message.delta" => self.work(e, false),
            "error" => self.blocked(e, BlockReason::Retry, None),
            "tool.call.required" => {
                if let (Some(call), Some(true)) = (text(line.call_id), read(line.requires_approval)) {
                    self.permission_asked(e, &call, &word(line.tool_name), line.arguments);
                }
            }
            "thread/tokenUsage/updated" => match line.usage {
                Some(_) => self.take_usage(e, line.usage),
                None => self.take_delta(e, line.delta),
            },
            "turn/compaction/completed" => self.compaction(e, None),
            "turn.continuation" => {}
            other => self.push_unknown(e, other),
        }
    }

    fn work(&self, e: &mut Emit<'_>, message: bool) {
        self.push(e, Fact::Activity { class: ActivityClass::Work, message });
    }

    fn take_delta(&mut self, e: &mut Emit<'_>, delta: Raw<'_>) {
        if let Some(usage) = Tokens::read(delta).and_then(|t| self.state.usage.take_addition(t)) {
            self.push_usage(e, usage);
        }
    }

    fn thread_started(&mut self, e: &mut Emit<'_>, line: &ExecLine<'_>) {
        if let Some(thread) = text(line.thread_id) {
            self.state.session = Some(self.session_id(&thread));
        }
        self.stream_started(e, SessionInfo::default());
    }

    /// The first lines of an old stream: settings, then the prompt.
    pub(super) fn stream_head(&mut self, e: &mut Emit<'_>, line: &Line<'_>) {
        if line.prompt.is_some() {
            self.prompt(e);
            return;
        }
        self.set_project(line.workdir);
        self.state.model = text(line.model).map(|m| self.name(&m));
        let model = self.state.model.clone();
        self.stream_started(e, SessionInfo { model, ..SessionInfo::default() });
    }

    fn stream_started(&mut self, e: &mut Emit<'_>, info: SessionInfo) {
        self.state.started = true;
        self.state.run = true;
        self.state.never_asks = Some(true);
        self.state.capabilities = Some(SHOWS);
        let info = SessionInfo {
            agent: Some(Name::from("codex")),
            originator: Some(Name::from("codex_exec")),
            interactive: Some(false),
            capabilities: Some(SHOWS),
            ..info
        };
        self.push(e, Fact::SessionStarted(info));
    }

    fn turn_failed(&mut self, e: &mut Emit<'_>, line: &ExecLine<'_>) {
        let info: ErrorInfo<'_> = object(line.error);
        let class = match (word(info.code).as_ref(), read::<u16>(info.status)) {
            ("rate_limit_exceeded", _) => ErrorClass::RateLimit,
            ("usage_limit_reached", _) => ErrorClass::UsageLimit,
            (_, Some(status)) => http_class(status),
            _ => ErrorClass::Other,
        };
        if class == ErrorClass::RateLimit {
            let delay_ms = info.retry_after.map(|_| count(info.retry_after).saturating_mul(1000));
            self.push(e, Fact::RateLimitSignal { delay_ms });
        }
        self.end_turn(e, &TurnEnd { outcome: TurnOutcome::Failed, error: Some(class), known: true });
    }

    fn exec_item(&mut self, e: &mut Emit<'_>, kind: &str, item: &Item<'_>) {
        let ends = kind == "item.completed";
        match word(item.kind).as_ref() {
            "command_execution" | "file_change" | "mcp_tool_call" | "collab_tool_call" => match kind {
                "item.started" => self.stream_item_begins(e, item),
                "item.completed" => self.stream_item_ends(e, item),
                _ => {}
            },
            // Its completion only says that the turn is over.
            "todo_list" if !ends => self.todo_list(e, item),
            "agent_message" if ends => self.work(e, true),
            "reasoning" | "web_search" if ends => self.work(e, false),
            // An item of this type is a warning.
            "todo_list" | "agent_message" | "reasoning" | "web_search" | "error" => {}
            other => self.push_unknown(e, &format!("item/{other}")),
        }
    }

    fn todo_list(&self, e: &mut Emit<'_>, item: &Item<'_>) {
        #[derive(serde::Deserialize)]
        struct Todo {
            #[serde(default)]
            completed: bool,
        }
        let Some(todos) = read::<Vec<Todo>>(item.items) else { return };
        let done = u32::try_from(todos.iter().filter(|t| t.completed).count()).unwrap_or(u32::MAX);
        let all = u32::try_from(todos.len()).unwrap_or(u32::MAX);
        let items = Tally { done, pending: all - done, ..Tally::default() };
        self.push(e, Fact::PlanUpdated { ready: false, items, told: false });
    }
}
