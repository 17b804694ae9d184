//! A call begins.

use super::state::OpenCall;
use super::wire::{Block, Input, Json, Raw, object, read, text};
use super::{Claude, Emit};
use crate::event::{ActionKind, CallStart, Certainty, Fact, ReadRange, Tally, ToolClass};
use crate::sources::arguments;

/// What a tool does, where its name alone does not say it to everybody.
fn class_of(tool: &str) -> ToolClass {
    match tool {
        "TaskCreate" | "TaskUpdate" | "TaskGet" | "TaskList" | "EnterPlanMode" => ToolClass::Plan,
        "LSP" | "ReadMcpResourceTool" | "ListMcpResourcesTool" => ToolClass::Read,
        known => ToolClass::of_tool(known),
    }
}

// === impl Claude ===

impl Claude {
    /// The model calls a tool.
    pub(super) fn call(&mut self, e: &mut Emit<'_>, at: usize, block: &Block<'_>) {
        let (Some(call), Some(tool)) = (text(block.id), text(block.name)) else { return };
        let class = class_of(&tool);
        let input: Input<'_> = object(block.input);
        let reduced = arguments::reduce(
            &self.reducer,
            &mut self.memory,
            &tool,
            class,
            block.input.map(Json::get),
            None,
        )
        .unwrap_or_default();
        let (hash, name, id) = (self.hash(&call), self.name(&tool), self.id(&call));
        let prompt =
            text(input.prompt).filter(|_| class == ToolClass::Task).map_or(0, |prompt| self.hash(&prompt));
        self.state.lanes[at].begin_call(OpenCall {
            call: hash,
            tool: name.clone(),
            class,
            prompt,
            since: e.time,
        });
        let start = CallStart {
            call: id.clone(),
            tool: name.clone(),
            class,
            key: reduced.key,
            target: reduced.target,
            read: if class == ToolClass::Read { asked_lines(&input) } else { None },
            commands: reduced.commands,
            background: false,
            asks: None,
            nested: false,
        };
        self.push_as(e, at, e.time, &format!("call:{hash:016x}"), Fact::ToolStarted(start));
        let kind = match tool.as_ref() {
            "AskUserQuestion" => ActionKind::Question,
            "ExitPlanMode" => ActionKind::PlanApproval,
            _ => return,
        };
        if kind == ActionKind::PlanApproval {
            self.push(e, at, Fact::PlanUpdated { ready: true, items: Tally::default(), told: true });
        }
        // Where nobody can be asked the call is refused at once.
        if self.state.lanes[at].interactive {
            let (action, call, tool) = (id.clone(), Some(id), Some(name));
            self.push(
                e,
                at,
                Fact::ActionRequired { action, kind, certainty: Certainty::Certain, tool, call },
            );
        }
    }
}

/// Lines a read asks for, where it names any. Models make mistakes here: whatever is no number is none.
fn asked_lines(input: &Input<'_>) -> Option<ReadRange> {
    let number = |raw: Raw<'_>| read::<f64>(raw).filter(|n| (0.0..1e9).contains(n)).map(|n| n as u32);
    let limit = number(input.limit)?;
    let start = number(input.offset).unwrap_or(1).max(1);
    Some(ReadRange { start, end: start + limit.max(1) - 1, total: None })
}
