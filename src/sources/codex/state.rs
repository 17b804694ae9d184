//! What a decoder remembers between lines, all of it bounded, because it travels in the checkpoint.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::usage::Tracker;
use crate::event::{Capabilities, Commands, Id, Mode, Name, SessionId, Timestamp, ToolClass};

/// Calls without an output that are kept; the oldest leaves first.
const MAX_OPEN: usize = 128;
/// Ended calls that are remembered, so that a late record about one is not taken for a new call.
const MAX_CLOSED: usize = 256;
/// Commands that go on behind their call.
const MAX_RUNNING: usize = 32;

/// Everything that survives a restart.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) session: Option<SessionId>,
    pub(super) parent: Option<SessionId>,
    pub(super) project: Option<Name>,
    /// Hash of the own thread's raw id, to tell copied heads from repeated ones.
    pub(super) thread: Option<u64>,
    /// Whether a head was seen that made this session known.
    pub(super) started: bool,
    pub(super) version: Option<(u32, u32)>,
    /// Started by another thread.
    pub(super) child: bool,
    /// The process ends with its turn: `codex exec`.
    pub(super) run: bool,
    /// When the own thread's id was made, where the id says so.
    pub(super) made_ms: Option<i64>,
    /// Inside history that was copied from the thread this one was forked from.
    pub(super) inherited: bool,
    /// A turn of the thread's own has begun.
    pub(super) own_turn: bool,
    /// Nobody can be asked for approval, somebody can, or it was not said.
    pub(super) never_asks: Option<bool>,
    /// Another program answers requests for approval.
    pub(super) reviewed: bool,
    pub(super) model: Option<Name>,
    pub(super) provider: Option<Name>,
    pub(super) mode: Option<Mode>,
    pub(super) read_only: Option<bool>,
    pub(super) capabilities: Option<Capabilities>,
    /// The turn that lines belong to now.
    pub(super) turn: Option<Id>,
    /// Whether the turn brought a result that is no message: a compaction or a plan.
    pub(super) turn_result: bool,
    /// A `compacted` line whose twin, the item, has not come yet.
    pub(super) compacted: bool,
    /// The current goal, by creation time, and its last status as the hash of the word.
    pub(super) goal: Option<(i64, u64)>,
    /// Reset of a rate-limit window that is used up.
    pub(super) reset: Option<Timestamp>,
    pub(super) usage: Tracker,
    pub(super) calls: Calls,
    /// Lines without a time so far: with their bytes they make an id, because equal ones are not the same.
    pub(super) untimed: u64,
}

/// Calls by the state they are in.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Calls {
    open: VecDeque<Open>,
    closed: VecDeque<u64>,
    running: VecDeque<Running>,
}

/// A call without an end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Open {
    /// Hash of its id.
    pub(super) call: u64,
    pub(super) tool: Name,
    pub(super) class: ToolClass,
    pub(super) key: Option<u64>,
    pub(super) commands: Commands,
    /// Lines its patch changes.
    pub(super) diff: Option<u32>,
    /// The process it asks about.
    pub(super) process: Option<u64>,
}

/// A command that goes on behind its call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Running {
    /// Hash of its call's id.
    pub(super) hash: u64,
    pub(super) process: u64,
    pub(super) call: Id,
    pub(super) commands: Commands,
    pub(super) key: Option<u64>,
    /// Its end was told.
    pub(super) told: bool,
}

// === impl Calls ===

impl Calls {
    /// A call begins.
    pub(super) fn open(&mut self, open: Open) {
        self.closed.retain(|c| *c != open.call);
        self.open.retain(|o| o.call != open.call);
        if self.open.len() == MAX_OPEN
            && let Some(lost) = self.open.pop_front()
        {
            self.close(lost.call);
        }
        self.open.push_back(open);
    }

    /// Whether the call has begun and not ended.
    pub(super) fn is_open(&self, call: u64) -> bool {
        self.open.iter().any(|o| o.call == call)
    }

    /// Whether the call ended a while ago.
    pub(super) fn is_closed(&self, call: u64) -> bool {
        self.closed.contains(&call)
    }

    /// The call ends; `None` where it is not open.
    pub(super) fn take(&mut self, call: u64) -> Option<Open> {
        let at = self.open.iter().position(|o| o.call == call)?;
        let open = self.open.remove(at)?;
        self.close(call);
        Some(open)
    }

    fn close(&mut self, call: u64) {
        if self.closed.len() == MAX_CLOSED {
            self.closed.pop_front();
        }
        self.closed.push_back(call);
    }

    /// A call returned while its command goes on.
    pub(super) fn run(&mut self, running: Running) {
        self.running.retain(|r| r.process != running.process);
        if self.running.len() == MAX_RUNNING {
            self.running.pop_front();
        }
        self.running.push_back(running);
    }

    /// The command of a call ends, as its own record says; once.
    pub(super) fn command_ended(&mut self, call: u64) -> Option<Running> {
        let running = self.running.iter_mut().find(|r| r.hash == call && !r.told)?;
        running.told = true;
        Some(running.clone())
    }

    /// The command of a process ends, as a poll says; `None` where that was told.
    pub(super) fn process_ended(&mut self, process: u64) -> Option<Running> {
        let at = self.running.iter().position(|r| r.process == process)?;
        self.running.remove(at).filter(|r| !r.told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_state_fits_a_checkpoint() {
        let long = "é".repeat(100);
        let mut state = State {
            session: Some(SessionId::from(long.as_str())),
            parent: Some(SessionId::from(long.as_str())),
            project: Some(Name::from(long.as_str())),
            model: Some(Name::from(long.as_str())),
            provider: Some(Name::from(long.as_str())),
            turn: Some(Id::from(long.as_str())),
            ..State::default()
        };
        for n in 0..1_000 {
            let call = u64::MAX - n;
            state.calls.open(Open {
                call,
                tool: Name::from(long.as_str()),
                class: ToolClass::Shell,
                key: Some(u64::MAX),
                commands: Commands(7),
                diff: Some(u32::MAX),
                process: Some(u64::MAX),
            });
            state.calls.run(Running {
                hash: call,
                process: call,
                call: Id::from(long.as_str()),
                commands: Commands(7),
                key: Some(u64::MAX),
                told: false,
            });
        }
        let bytes = postcard::to_stdvec(&state).unwrap();
        assert!(bytes.len() <= 64 * 1024, "{}", bytes.len());
        assert!(state.calls.is_closed(u64::MAX - 800) && state.calls.is_open(u64::MAX - 999));
    }
}
