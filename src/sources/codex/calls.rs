//! Tool calls: begun by an item of the conversation, ended by the factual record about them where there is one and
//! by their output otherwise, whichever comes first. Commands may go on behind their call.

use std::borrow::Cow;

use super::output::{self, Said};
use super::state::{Open, Running};
use super::wire::{
    self, Arguments, EventMsg, GoalAnswer, Item, Json, Raw, ResponseItem, Tagged, blocks, json, list, object,
    read, text, word,
};
use super::{Codex, Emit};
use crate::event::{
    ActionKind, ActivityClass, CallEnd, CallOutcome, CallStart, Certainty, Commands, Evidence, Fact, Id,
    ProgressKind, Resolution, Timestamp, ToolClass,
};
use crate::sources::arguments;

/// Arguments that say how long to wait and how much to show, not what to do.
const NOT_IN_KEY: [&str; 3] = ["yield_time_ms", "max_output_tokens", "timeout_ms"];
/// Name under which commands inside a script are shown: that of the tool the script calls.
pub(super) const COMMAND_TOOL: &str = "exec_command";

/// A call that begins.
pub(super) struct Start<'a> {
    pub(super) call: &'a str,
    pub(super) tool: &'a str,
    pub(super) class: ToolClass,
    pub(super) key: Option<u64>,
    pub(super) target: Option<u64>,
    pub(super) commands: Commands,
    pub(super) asks: Option<bool>,
    /// Lines its patch changes, for the end.
    pub(super) diff: Option<u32>,
    /// The process it asks about.
    pub(super) process: Option<u64>,
}

/// How a call ends.
pub(super) struct End {
    pub(super) outcome: CallOutcome,
    pub(super) exit_code: Option<i32>,
    pub(super) diff: Option<u32>,
    pub(super) error: Option<u64>,
    pub(super) output: Option<u64>,
    pub(super) time: Option<Timestamp>,
}

// === impl End ===

impl End {
    pub(super) fn new(outcome: CallOutcome, time: Option<Timestamp>) -> Self {
        Self { outcome, exit_code: None, diff: None, error: None, output: None, time }
    }

    /// The end of a command with this exit code.
    pub(super) fn exit(code: i32, time: Option<Timestamp>) -> Self {
        let outcome = if code == 0 { CallOutcome::Ok } else { CallOutcome::Error };
        Self { exit_code: Some(code), ..Self::new(outcome, time) }
    }
}

// === impl Codex ===

impl Codex {
    pub(super) fn call_hash(&self, call: &str) -> u64 {
        self.reducer.hash(call.as_bytes())
    }

    /// A call of its own begins.
    fn begin(&mut self, e: &mut Emit<'_>, start: &Start<'_>) {
        let tool = self.name(start.tool);
        self.state.calls.open(Open {
            call: self.call_hash(start.call),
            tool: tool.clone(),
            class: start.class,
            key: start.key,
            commands: start.commands,
            diff: start.diff,
            process: start.process,
        });
        self.push_start(e, e.time, start, false);
        if start.class == ToolClass::User {
            let action = self.id(start.call);
            self.push(
                e,
                Fact::ActionRequired {
                    call: Some(action.clone()),
                    action,
                    kind: ActionKind::Question,
                    certainty: Certainty::Certain,
                    tool: Some(tool),
                },
            );
        }
    }

    pub(super) fn push_start(
        &self,
        e: &mut Emit<'_>,
        time: Option<Timestamp>,
        start: &Start<'_>,
        nested: bool,
    ) {
        let fact = Fact::ToolStarted(CallStart {
            call: self.id(start.call),
            tool: self.name(start.tool),
            class: start.class,
            key: start.key,
            target: start.target,
            read: None,
            commands: start.commands,
            background: false,
            asks: start.asks,
            nested,
        });
        self.push_at(e, time, fact);
    }

    pub(super) fn push_end(&self, e: &mut Emit<'_>, call: &str, end: &End) {
        let fact = Fact::ToolEnded(CallEnd {
            call: self.id(call),
            outcome: end.outcome,
            exit_code: end.exit_code,
            diff_lines: end.diff,
            error: end.error,
            output: end.output,
            read: None,
        });
        self.push_at(e, end.time, fact);
    }

    /// Whether a call asks a person before it runs.
    fn asks(&self, escalated: bool) -> Option<bool> {
        if self.state.never_asks == Some(true) || self.state.reviewed {
            Some(false)
        } else {
            escalated.then_some(true)
        }
    }

    pub(super) fn shell_start<'a>(&mut self, call: &'a str, tool: &'a str, command: &str) -> Start<'a> {
        let reduced =
            arguments::reduce_command(&self.reducer, &mut self.memory, tool, ToolClass::Shell, command);
        Start {
            call,
            tool,
            class: ToolClass::Shell,
            key: reduced.key,
            target: reduced.target,
            commands: reduced.commands,
            asks: self.asks(false),
            diff: None,
            process: None,
        }
    }

    pub(super) fn edit_start<'a>(
        &self,
        call: &'a str,
        tool: &'a str,
        paths: &[String],
        key: u64,
        diff: Option<u32>,
    ) -> Start<'a> {
        let target =
            [ToolClass::Edit.as_str().as_bytes()].into_iter().chain(paths.iter().map(|p| p.as_bytes()));
        let target: Vec<&[u8]> = target.collect();
        Start {
            call,
            tool,
            class: ToolClass::Edit,
            key: Some(key),
            target: (!paths.is_empty()).then(|| self.reducer.hash_all(&target)),
            commands: Commands::default(),
            asks: self.asks(false),
            diff,
            process: None,
        }
    }

    pub(super) fn other_start<'a>(
        &self,
        call: &'a str,
        tool: &'a str,
        class: ToolClass,
        arguments: &str,
    ) -> Start<'a> {
        Start {
            call,
            tool,
            class,
            key: Some(self.reducer.call_key(tool, arguments)),
            target: None,
            commands: Commands::default(),
            asks: self.asks(false),
            diff: None,
            process: None,
        }
    }

    pub(super) fn function_call(&mut self, e: &mut Emit<'_>, item: &ResponseItem<'_>) {
        let (Some(call), Some(name)) = (text(item.call_id), text(item.name)) else { return };
        let tool = match text(item.namespace) {
            Some(space) if space.starts_with("mcp__") => Cow::Owned(format!("{space}__{name}")),
            _ => name,
        };
        // A string of JSON in every recorded version.
        let json =
            text(item.arguments).unwrap_or_else(|| Cow::Borrowed(item.arguments.map_or("", Json::get)));
        let arguments: Arguments<'_> = object(wire::json(&json));
        let class = match tool.as_ref() {
            "shell_command" => ToolClass::Shell,
            known => ToolClass::of_tool(known),
        };
        let command = output::command_text(arguments.cmd.or(arguments.command));
        let escalated = word(arguments.sandbox_permissions) == "require_escalated"
            || read(arguments.with_escalated_permissions) == Some(true);
        let patch = command.as_deref().filter(|c| c.starts_with("apply_patch")).and_then(output::patch);
        let mut start = match (class, &command, patch) {
            (ToolClass::Shell, Some(_), Some(patch)) => {
                let key = self.reducer.call_key(&tool, &canonical(&json));
                self.edit_start(&call, &tool, &patch.paths, key, Some(patch.lines))
            }
            (ToolClass::Shell, Some(command), None) => self.shell_start(&call, &tool, command),
            (ToolClass::Plan, ..) => {
                // Repeating a plan word for word says no more than repeating its statuses.
                let statuses = list::<Tagged<'_>>(arguments.plan);
                let pattern: Vec<_> = statuses.iter().map(|s| word(s.status)).collect();
                self.other_start(&call, &tool, class, &pattern.join(","))
            }
            _ => self.other_start(&call, &tool, class, &canonical(&json)),
        };
        start.asks = self.asks(escalated);
        start.process = if tool == "write_stdin" { read(arguments.session_id) } else { None };
        self.begin(e, &start);
        if tool == "update_plan" {
            self.plan_updated(e, arguments.plan);
        }
    }

    pub(super) fn custom_call(&mut self, e: &mut Emit<'_>, item: &ResponseItem<'_>) {
        let (Some(call), Some(tool)) = (text(item.call_id), text(item.name)) else { return };
        let input = word(item.input);
        let key = self.reducer.call_key(&tool, &input);
        let start = if tool == "apply_patch" {
            let patch = output::patch(&input);
            let (paths, lines) = patch.map_or((Vec::new(), None), |p| (p.paths, Some(p.lines)));
            self.edit_start(&call, &tool, &paths, key, lines)
        } else {
            self.other_start(&call, &tool, ToolClass::of_tool(&tool), &input)
        };
        self.begin(e, &start);
    }

    pub(super) fn local_shell_call(&mut self, e: &mut Emit<'_>, item: &ResponseItem<'_>) {
        let Some(call) = text(item.call_id) else { return };
        let action: Tagged<'_> = object(item.action);
        let command = output::command_text(action.command).unwrap_or_default();
        let start = self.shell_start(&call, "local_shell", &command);
        self.begin(e, &start);
    }

    /// A command of the old stream begins.
    pub(super) fn command_begins(&mut self, e: &mut Emit<'_>, msg: &EventMsg<'_>) {
        let Some(call) = text(msg.call_id) else { return };
        if !self.state.calls.is_open(self.call_hash(&call)) {
            let command = output::command_text(msg.command).unwrap_or_default();
            let start = self.shell_start(&call, "shell", &command);
            self.begin(e, &start);
        }
    }

    /// A patch of the old stream begins.
    pub(super) fn edit_begins(&mut self, e: &mut Emit<'_>, call: &str, paths: &[String], diff: Option<u32>) {
        if call.is_empty() || self.state.calls.is_open(self.call_hash(call)) {
            return;
        }
        let key = self.reducer.call_key("apply_patch", &paths.join("\n"));
        let start = self.edit_start(call, "apply_patch", paths, key, diff);
        self.begin(e, &start);
    }

    /// The output line of a call, if no factual record came before it.
    pub(super) fn call_output(&mut self, e: &mut Emit<'_>, item: &ResponseItem<'_>) {
        let Some(call) = text(item.call_id) else { return };
        let Some(open) = self.state.calls.take(self.call_hash(&call)) else { return };
        let parts = blocks(item.output);
        let whole = parts.first().map_or("", AsRef::as_ref);
        let said = output::parse(whole);
        let mut end = self.output_end(e, &open, &said);
        let mut body: Vec<&[u8]> = vec![said.body.as_bytes()];
        body.extend(parts.iter().skip(1).map(|p| p.as_bytes()));
        end.output = Some(self.reducer.hash_all(&body));
        if matches!(end.outcome, CallOutcome::Error | CallOutcome::Denied) && end.exit_code.is_none() {
            end.error = Some(self.reducer.error_fingerprint(open.tool.as_str(), &said.body));
        }
        self.push_end(e, &call, &end);
        match said.said {
            Said::Running(process) => self.state.calls.run(Running {
                hash: open.call,
                process,
                call: self.id(&call),
                commands: open.commands,
                key: open.key,
                told: false,
            }),
            Said::Exit(code) => {
                if let Some(ended) = open.process.and_then(|p| self.state.calls.process_ended(p)) {
                    self.command_result(e, &ended, code, e.time);
                }
            }
            _ => {}
        }
        if open.class == ToolClass::User {
            let resolution = match end.outcome {
                CallOutcome::Ok => Resolution::Answered,
                _ => Resolution::Cancelled,
            };
            self.push(e, Fact::ActionResolved { action: self.id(&call), resolution });
        }
        if matches!(open.tool.as_str(), "create_goal" | "update_goal") {
            let answer: GoalAnswer<'_> = object(json(whole));
            self.goal_updated(e, answer.goal);
        }
    }

    fn output_end(&self, e: &Emit<'_>, open: &Open, output: &output::Output<'_>) -> End {
        let edit = open.class == ToolClass::Edit;
        // Where no record says that a patch was applied, the program's "Success." does.
        let landed = || End { diff: open.diff, ..End::new(CallOutcome::Ok, e.time) };
        match output.said {
            Said::Exit(0) if edit => landed(),
            Said::Exit(_) if edit => End::new(CallOutcome::Error, e.time),
            Said::Exit(code) => End::exit(code, e.time),
            Said::Interrupted => End::new(CallOutcome::Interrupted, e.time),
            Said::Denied => End::new(CallOutcome::Denied, e.time),
            Said::Failed => End::new(CallOutcome::Error, e.time),
            Said::Over if edit && output.body.starts_with("Success.") => landed(),
            Said::Over | Said::Running(_) => End::new(CallOutcome::Ok, e.time),
        }
    }

    /// A command that had outlived its call is over: what that means for its call, once.
    pub(super) fn command_result(
        &self,
        e: &mut Emit<'_>,
        ended: &Running,
        code: i32,
        time: Option<Timestamp>,
    ) {
        let kinds = [
            (Commands::TEST, ProgressKind::TestPassed, Some(ProgressKind::TestFailed)),
            (Commands::BUILD, ProgressKind::BuildSucceeded, Some(ProgressKind::BuildFailed)),
            (Commands::COMMIT, ProgressKind::CommitCreated, None),
        ];
        let mut told = false;
        for (bit, success, failure) in kinds {
            let kind = if code == 0 { Some(success) } else { failure };
            let (Some(kind), true) = (kind, ended.commands.has(bit)) else { continue };
            told = true;
            let call: Option<Id> = Some(ended.call.clone());
            let fact = Fact::Progress { kind, evidence: Evidence::ExitCode, call, subject: ended.key };
            self.push_at(e, time, fact);
        }
        if !told {
            self.push_at(e, time, Fact::Activity { class: ActivityClass::Work, message: false });
        }
    }

    /// An item of the exec stream begins a call.
    pub(super) fn stream_item_begins(&mut self, e: &mut Emit<'_>, item: &Item<'_>) {
        let Some(call) = text(item.id) else { return };
        if self.state.calls.is_open(self.call_hash(&call)) {
            return;
        }
        let tool = word(item.tool);
        let mcp = format!("mcp__{}__{tool}", word(item.server));
        let start = match word(item.kind).as_ref() {
            "command_execution" => {
                let command = output::command_text(item.command).unwrap_or_default();
                self.shell_start(&call, COMMAND_TOOL, &command)
            }
            "file_change" => {
                let paths = stream_paths(item);
                let key = self.reducer.call_key("apply_patch", &paths.join("\n"));
                // Only the files are named: each has at least one changed line.
                let lines = u32::try_from(paths.len()).ok();
                self.edit_start(&call, "apply_patch", &paths, key, lines)
            }
            "mcp_tool_call" => {
                let arguments = canonical(item.arguments.map_or("", Json::get));
                self.other_start(&call, &mcp, ToolClass::Mcp, &arguments)
            }
            _ => self.other_start(&call, &tool, ToolClass::of_tool(&tool), ""),
        };
        self.begin(e, &start);
    }

    /// An item of the exec stream ends a call; some versions do not tell the beginning.
    pub(super) fn stream_item_ends(&mut self, e: &mut Emit<'_>, item: &Item<'_>) {
        self.stream_item_begins(e, item);
        let Some(call) = text(item.id) else { return };
        let Some(open) = self.state.calls.take(self.call_hash(&call)) else { return };
        let failed = word(item.status) == "failed";
        let end = match (read::<i32>(item.exit_code), failed) {
            (Some(code), _) => End::exit(code, e.time),
            (None, true) => End::new(CallOutcome::Error, e.time),
            (None, false) => End { diff: open.diff, ..End::new(CallOutcome::Ok, e.time) },
        };
        let body = text(item.aggregated_output).map(|o| self.reducer.hash_all(&[o.as_bytes()]));
        let result = || item.result.map(|r| self.reducer.hash(r.get().as_bytes()));
        let output = body.or_else(result);
        self.push_end(e, &call, &End { output, ..end });
    }

    /// A call that waits for a person's permission, as the exec stream says.
    pub(super) fn permission_asked(&mut self, e: &mut Emit<'_>, call: &str, tool: &str, arguments: Raw<'_>) {
        let json = canonical(arguments.map_or("", Json::get));
        let mut start = self.other_start(call, tool, ToolClass::of_tool(tool), &json);
        start.asks = Some(true);
        self.begin(e, &start);
        let action = self.id(call);
        let fact = Fact::ActionRequired {
            call: Some(action.clone()),
            action,
            kind: ActionKind::Permission,
            certainty: Certainty::Certain,
            tool: Some(self.name(tool)),
        };
        self.push(e, fact);
    }
}

/// The files of a change in the exec stream.
fn stream_paths(item: &Item<'_>) -> Vec<String> {
    let files: Vec<super::wire::Change<'_>> = super::wire::list(item.changes);
    files.iter().filter_map(|f| text(f.path)).map(Cow::into_owned).collect()
}

/// Arguments in one form: sorted keys, without what only paces the call.
pub(super) fn canonical(json: &str) -> String {
    match serde_json::from_str(json) {
        Ok(serde_json::Value::Object(mut map)) => {
            for name in NOT_IN_KEY {
                map.remove(name);
            }
            serde_json::Value::Object(map).to_string()
        }
        _ => json.to_owned(),
    }
}
