//! Lines of the user's side: prompts, results of calls, and what the program itself writes there.

use std::borrow::Cow;

use super::stream::Ended;
use super::wire::{Block, Content, Json, Line, Origin, Raw, flag, object, text, word};
use super::{Claude, Emit};
use crate::event::{Fact, Trigger, TurnOutcome};

/// How the program marks that a person stopped a turn; it writes nothing structured in most versions.
const INTERRUPTED: &str = "[Request interrupted by user";
/// How it begins the notice that something in the background ended.
pub(super) const NOTIFICATION: &str = "<task-notification>";
/// What it writes around commands of a person that are none for the model, and around their output.
const COMMANDS: [&str; 4] = ["<command-", "<local-command-", "<bash-", "<user-memory-input>"];

// === impl Claude ===

impl Claude {
    /// A line of the user's side.
    pub(super) fn user(&mut self, e: &mut Emit<'_>, at: usize, line: &Line<'_>) {
        let Content { raw, blocks } = &line.message.content;
        let first_result = blocks.iter().find(|block| word(block.kind) == "tool_result");
        let key = match first_result {
            Some(block) => self.key("result", &word(block.tool_use_id), e.time),
            None => self.key("prompt", raw.map_or("", Json::get), e.time),
        };
        if self.is_copied(e, at, key) {
            return;
        }
        self.describe(e, at, line);
        if flag(line.own_note) && flag(line.is_meta) {
            // The stream was cut, and the program asks for the rest: what looked like the end was none.
            self.state.lanes[at].ending = None;
        }
        self.settle(e, at);
        if first_result.is_some() {
            for block in blocks.iter().filter(|block| word(block.kind) == "tool_result") {
                self.result(e, at, line, block);
            }
            return;
        }
        e.base = key;
        if flag(line.is_meta) || flag(line.is_compact_summary) || flag(line.turn_companion) {
            return self.note(e, at);
        }
        let said = first_text(*raw, blocks);
        if said.starts_with(INTERRUPTED) {
            let denied = self.state.lanes[at].denied;
            let ended = Ended { denied, ..Ended::as_known(TurnOutcome::Cancelled) };
            return self.close_turn(e, at, e.time, &ended);
        }
        if COMMANDS.iter().any(|mark| said.starts_with(mark)) {
            if said.starts_with("<command-") {
                self.state.lanes[at].command = e.time;
            }
            return self.note(e, at);
        }
        self.prompt(e, at, line, &said);
    }

    /// Somebody or something asks the model for something.
    fn prompt(&mut self, e: &mut Emit<'_>, at: usize, line: &Line<'_>, said: &str) {
        let origin: Origin<'_> = object(line.origin);
        let origin = word(origin.kind);
        let notified = origin == "task-notification" || said.starts_with(NOTIFICATION);
        let by_person = self.state.lanes[at].parent.is_none()
            && !notified
            && matches!(origin.as_ref(), "" | "human" | "sdk" | "typed");
        let trigger = if by_person { Trigger::Person } else { Trigger::Machine };
        if notified {
            self.notification(e, at, said);
        }
        let prompt = text(line.prompt_id);
        self.open_turn(e, at, e.time, trigger, prompt.as_deref());
        if by_person {
            self.push(e, at, Fact::Prompt { trigger, queued: false });
        }
        self.set_mode(e, at, &word(line.permission_mode));
    }
}

/// The text of a message, as far as it tells what kind of line it is.
fn first_text<'a>(content: Raw<'a>, blocks: &[Block<'a>]) -> Cow<'a, str> {
    text(content)
        .or_else(|| blocks.iter().find(|block| word(block.kind) == "text").and_then(|block| text(block.text)))
        .unwrap_or_default()
}

/// What a notice of the program says under a tag.
pub(super) fn tagged<'t>(notice: &'t str, tag: &str) -> Option<&'t str> {
    let open = notice.find(&format!("<{tag}>"))? + tag.len() + 2;
    let length = notice[open..].find(&format!("</{tag}>"))?;
    Some(notice[open..open + length].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_read_by_its_tags() {
        let notice = "<task-notification>\n<task-id>a1</task-id>\n<status>completed</status>\n";
        assert_eq!(tagged(notice, "task-id"), Some("a1"));
        assert_eq!(tagged(notice, "status"), Some("completed"));
        assert_eq!(tagged(notice, "none"), None);
        assert_eq!(tagged("<status>cut", "status"), None);
    }
}
