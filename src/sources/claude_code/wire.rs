//! Shapes of Claude Code's lines as far as they are read. No meaning here.

use std::marker::PhantomData;

use crate::sources::shape::shapes;
pub(super) use crate::sources::shape::{
    Json, Raw, count, elements, from_line, list, millis, moment, object, read, text, word,
};
use crate::sources::walk::{Take, Walk};

shapes! {
    /// One line of a transcript.
    Line {
        kind = "type", subtype, timestamp, uuid, parent_uuid = "parentUuid", session_id = "sessionId",
        request_session = "requestSessionId",
        is_sidechain = "isSidechain", agent_id = "agentId", version, cwd, entrypoint, prompt_id = "promptId",
        permission_mode = "permissionMode", origin, is_meta = "isMeta", is_compact_summary = "isCompactSummary",
        turn_companion = "turnCompanion", message: Message, tool_use_result: Outcome = "toolUseResult",
        denial = "toolDenialKind", denial_before_run = "toolDenialBeforeRun",
        permission_decision = "permissionDecision", error, is_api_error = "isApiErrorMessage",
        api_error_status = "apiErrorStatus", retry_in_ms = "retryInMs", retry_attempt = "retryAttempt",
        operation, attachment, own_note = "ownNote", process_began = "startTime",
        process_ms = "totalDuration",
    }
    /// `message` of a user's or an assistant's line.
    Message { id, model, usage: Tokens, stop_reason, stop_details: Seen, content: Content }
    /// `usage` of a message; the kinds are disjoint.
    Tokens { input_tokens, cache_read_input_tokens, cache_creation_input_tokens, output_tokens }
    /// One block of a message.
    Block { kind = "type", text, id, name, input, tool_use_id, is_error, content }
    /// Arguments that decide something.
    Input { offset, limit, prompt }
    /// `toolUseResult`, whatever the tool.
    Outcome {
        status, agent_id = "agentId", interrupted, structured_patch = "structuredPatch", content,
        file: FileRead, background_task_id = "backgroundTaskId", new_todos = "newTodos", task, task_id = "taskId",
        status_change = "statusChange", exit_meaning = "returnCodeInterpretation", shell_id, is_async = "isAsync",
        original_file = "originalFile",
    }
    /// The lines a read got.
    FileRead { start_line = "startLine", num_lines = "numLines", total_lines = "totalLines" }
    /// One hunk of a patch.
    Hunk { lines }
    /// An item of a list, a task, or anything else that has a status.
    Item { id, status, to, task_id, decision }
    /// `error` of a retry.
    Failure { status }
    /// What is attached to the conversation.
    Attachment { kind = "type", command_mode = "commandMode", prompt }
    /// Where a prompt came from.
    Origin { kind }
}

/// Whether a field is `true`.
pub(super) fn flag(raw: Raw<'_>) -> bool {
    raw.is_some_and(|raw| raw.get() == "true")
}

/// A field that only matters for being there, `null` or not.
#[derive(Default)]
pub(super) struct Seen<'a>(bool, PhantomData<&'a ()>);

impl Seen<'_> {
    pub(super) fn is_there(&self) -> bool {
        self.0
    }
}

impl<'a> Take<'a> for Seen<'a> {
    fn take(walk: &mut Walk<'a>) -> Option<Self> {
        walk.value()?;
        Some(Self(true, PhantomData))
    }
}

/// What a message says: a text, or blocks.
#[derive(Default)]
pub(super) struct Content<'a> {
    /// All of it, as it is spelled.
    pub(super) raw: Raw<'a>,
    pub(super) blocks: Vec<Block<'a>>,
}

impl<'a> Take<'a> for Content<'a> {
    fn take(walk: &mut Walk<'a>) -> Option<Self> {
        if walk.peek()? != b'[' {
            return Some(Self { raw: Take::take(walk)?, blocks: Vec::new() });
        }
        let before = walk.rest();
        let mut blocks = Vec::new();
        walk.list(|walk| {
            blocks.push(Block::take(walk)?);
            Some(())
        })?;
        let spelled = &before[..before.len() - walk.rest().len()];
        Some(Self { raw: Json::of(spelled), blocks })
    }
}
