//! Factual records about tool calls: commands, patches, calls to MCP servers and to other agents, as the harness
//! writes them beside the conversation. Their begin and their output are in `calls`.

use super::calls::{COMMAND_TOOL, End, Start, canonical};
use super::output;
use super::wire::{Item, Json, Raw, changes, millis, read, text, word};
use super::{Codex, Emit};
use crate::event::{CallOutcome, Timestamp, ToolClass};

// === impl Codex ===

impl Codex {
    /// A factual record about a call: ends an open one, is late for an ended one, and otherwise is about a call
    /// inside a script, which begins and ends here.
    fn item_ends<'s>(
        &mut self,
        e: &mut Emit<'_>,
        call: &'s str,
        started: Raw<'_>,
        start: impl FnOnce(&mut Self) -> Start<'s>,
        end: &End,
    ) {
        let hash = self.call_hash(call);
        if self.state.calls.take(hash).is_some() {
            self.push_end(e, call, end);
        } else if self.state.calls.is_closed(hash) {
            if let Some(code) = end.exit_code
                && let Some(ended) = self.state.calls.command_ended(hash)
            {
                self.command_result(e, &ended, code, end.time);
            }
        } else if end.outcome != CallOutcome::Interrupted {
            let time = millis(started).or(e.time);
            let start = start(self);
            self.push_start(e, time, &start, true);
            self.push_end(e, call, end);
        }
    }

    pub(super) fn command_item(
        &mut self,
        e: &mut Emit<'_>,
        item: &Item<'_>,
        started: Raw<'_>,
        completed: Raw<'_>,
    ) {
        let Some(call) = text(item.id) else { return };
        let time = millis(completed).or(e.time);
        let status = word(item.status);
        let mut end = match read::<i32>(item.exit_code) {
            _ if status == "declined" => End::new(CallOutcome::Denied, time),
            // A killed command has no exit code of its own; this line may come seconds after the turn's end.
            Some(-1) if status == "failed" => End::new(CallOutcome::Interrupted, time),
            Some(code) => End::exit(code, time),
            None if status == "failed" => End::new(CallOutcome::Error, time),
            None => End::new(CallOutcome::Ok, time),
        };
        end.output = text(item.aggregated_output).map(|o| self.reducer.hash_all(&[o.as_bytes()]));
        let command = output::command_text(item.command).unwrap_or_default();
        self.item_ends(e, &call, started, |s| s.shell_start(&call, COMMAND_TOOL, &command), &end);
    }

    pub(super) fn file_item(
        &mut self,
        e: &mut Emit<'_>,
        item: &Item<'_>,
        started: Raw<'_>,
        completed: Raw<'_>,
    ) {
        let Some(call) = text(item.id) else { return };
        let time = millis(completed).or(e.time);
        let changes = changes(item.changes);
        let end = match word(item.status).as_ref() {
            "declined" => End::new(CallOutcome::Denied, time),
            "failed" => End::new(CallOutcome::Error, time),
            _ => {
                End { diff: Some(output::changed_lines(changes.values())), ..End::new(CallOutcome::Ok, time) }
            }
        };
        let paths: Vec<String> = changes.into_keys().collect();
        let key = self.reducer.call_key("apply_patch", item.changes.map_or("", Json::get));
        let lines = end.diff;
        self.item_ends(e, &call, started, |s| s.edit_start(&call, "apply_patch", &paths, key, lines), &end);
    }

    /// A patch was applied or not, in versions before file items.
    pub(super) fn patch_ended(
        &mut self,
        e: &mut Emit<'_>,
        call: &str,
        raw_changes: Raw<'_>,
        ok: bool,
        time: Option<Timestamp>,
    ) {
        let Some(open) = self.state.calls.take(self.call_hash(call)) else { return };
        let named = raw_changes.map(|_| output::changed_lines(changes(raw_changes).values()));
        let outcome = if ok { CallOutcome::Ok } else { CallOutcome::Error };
        let diff = if ok { named.or(open.diff) } else { None };
        self.push_end(e, call, &End { diff, ..End::new(outcome, time.or(e.time)) });
    }

    pub(super) fn mcp_item(
        &mut self,
        e: &mut Emit<'_>,
        item: &Item<'_>,
        started: Raw<'_>,
        completed: Raw<'_>,
    ) {
        let Some(call) = text(item.id) else { return };
        let tool = format!("mcp__{}__{}", word(item.server), word(item.tool));
        let result = item.result.map_or("", Json::get);
        let failed = word(item.status) == "failed";
        let mut end =
            End::new(if failed { CallOutcome::Error } else { CallOutcome::Ok }, millis(completed).or(e.time));
        end.output = Some(self.reducer.hash(result.as_bytes()));
        end.error = failed.then(|| self.reducer.error_fingerprint(&tool, result));
        let arguments = canonical(item.arguments.map_or("", Json::get));
        self.item_ends(e, &call, started, |s| s.other_start(&call, &tool, ToolClass::Mcp, &arguments), &end);
    }

    pub(super) fn collab_item(
        &mut self,
        e: &mut Emit<'_>,
        item: &Item<'_>,
        started: Raw<'_>,
        completed: Raw<'_>,
    ) {
        let Some(call) = text(item.id) else { return };
        let tool = word(item.tool);
        let failed = word(item.status) == "failed";
        let outcome = if failed { CallOutcome::Error } else { CallOutcome::Ok };
        let end = End::new(outcome, millis(completed).or(e.time));
        let class = ToolClass::of_tool(&tool);
        self.item_ends(e, &call, started, |s| s.other_start(&call, &tool, class, &call), &end);
    }
}
