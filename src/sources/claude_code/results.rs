//! A call ends: what its result is evidence for.

use std::borrow::Cow;

use super::prompts::tagged;
use super::state::{OpenCall, TaskState};
use super::stream::{Ended, RUN};
use super::wire::{Block, Hunk, Item, Line, Outcome, Raw, elements, flag, list, object, read, text, word};
use super::{Claude, Emit};
use crate::event::{
    CallEnd, CallOutcome, Counting, Event, Evidence, Fact, ProgressKind, ReadRange, SessionId, ToolClass,
    TurnOutcome,
};

/// How the program words a refusal that came before the call ran, in versions that say nothing structured.
const REFUSED: &str = "The user doesn't want to proceed";
/// How it begins the result of a command that failed.
const EXIT_CODE: &str = "Exit code ";
/// How it marks a call that was stopped while it ran.
const STOPPED: &str = "[Request interrupted by user";

// === impl Claude ===

impl Claude {
    /// The result of a call.
    pub(super) fn result(&mut self, e: &mut Emit<'_>, at: usize, line: &Line<'_>, block: &Block<'_>) {
        let Some(call) = text(block.tool_use_id) else { return };
        let hash = self.hash(&call);
        let open = self.state.lanes[at].end_call(hash);
        let outcome = &line.tool_use_result;
        let error = flag(block.is_error).then(|| said(block.content));
        let how = ended(line, outcome, error.as_deref());
        if let Some(turn) = &mut self.state.lanes[at].turn {
            turn.worked = true;
        }
        self.state.lanes[at].denied |= how == CallOutcome::Denied && line.denial_by_person();
        self.state.lanes[at].message_last = false;
        let class = open.as_ref().map_or(ToolClass::Other, |open| open.class);
        let tool = open.as_ref().map_or("", |open| open.tool.as_str());
        let background = text(outcome.background_task_id);
        let exit_code = exit_code(class, how, error.as_deref(), outcome).filter(|_| background.is_none());
        let end = CallEnd {
            call: self.id(&call),
            outcome: how,
            exit_code,
            diff_lines: (class == ToolClass::Edit && how == CallOutcome::Ok).then(|| changed_lines(outcome)),
            error: error.as_deref().map(|text| self.reducer.error_fingerprint(tool, text)),
            output: block.content.map(|raw| self.reducer.hash(raw.get().as_bytes())),
            read: lines_read(outcome),
        };
        self.push_as(e, at, e.time, &format!("end:{hash:016x}"), Fact::ToolEnded(end));
        if let Some(task) = background {
            let task = self.id(&task);
            self.push(e, at, Fact::Background { task, running: true });
        }
        if how == CallOutcome::Ok {
            self.tool_said(e, at, open.as_ref(), outcome);
        }
    }

    /// What single tools say with their result.
    fn tool_said(&mut self, e: &mut Emit<'_>, at: usize, open: Option<&OpenCall>, outcome: &Outcome<'_>) {
        let Some(open) = open else { return };
        match open.class {
            ToolClass::Task => self.agent_returned(e, open, outcome),
            ToolClass::Plan => self.plan_said(e, at, outcome),
            ToolClass::Wait => {
                let task: Item<'_> = object(outcome.task);
                let id = text(task.task_id).or_else(|| text(task.id));
                if let Some(id) =
                    id.filter(|_| !matches!(word(task.status).as_ref(), "" | "running" | "pending"))
                {
                    let task = self.id(&id);
                    self.push(e, at, Fact::Background { task, running: false });
                }
            }
            _ => {
                if let Some(shell) = text(outcome.shell_id) {
                    // A background command was stopped.
                    let task = self.id(&shell);
                    self.push(e, at, Fact::Background { task, running: false });
                }
            }
        }
    }

    /// Lists of tasks, in both of their forms.
    fn plan_said(&mut self, e: &mut Emit<'_>, at: usize, outcome: &Outcome<'_>) {
        if outcome.new_todos.is_some() {
            let items: Vec<Item<'_>> = list(outcome.new_todos);
            self.state.lanes[at].tasks.clear();
            for (i, item) in items.iter().enumerate() {
                self.state.lanes[at].task(i as u64, TaskState::parse(&word(item.status)));
            }
            let items = self.state.lanes[at].tally();
            return self.push(e, at, Fact::PlanUpdated { ready: false, items, told: false });
        }
        let created: Item<'_> = object(outcome.task);
        let change: Item<'_> = object(outcome.status_change);
        let id = text(created.id).or_else(|| text(outcome.task_id));
        let Some(id) = id else { return };
        let task = self.hash(&id);
        let state = match text(change.to) {
            Some(to) => TaskState::parse(&to),
            None if outcome.task.is_some() => TaskState::Pending,
            None => return,
        };
        self.state.lanes[at].task(task, state);
        let kind = match state {
            TaskState::Done => Some(ProgressKind::TaskCompleted),
            TaskState::InProgress => Some(ProgressKind::TaskStarted),
            TaskState::Pending | TaskState::Dropped => None,
        };
        if let Some(kind) = kind {
            let evidence = Evidence::Structured;
            self.push(e, at, Fact::Progress { kind, evidence, call: None, subject: Some(task) });
        }
        let items = self.state.lanes[at].tally();
        self.push(e, at, Fact::PlanUpdated { ready: false, items, told: true });
    }

    /// A sub-agent was launched, or has answered. How it began, and mostly how it ended, its own file tells.
    fn agent_returned(&mut self, e: &mut Emit<'_>, open: &OpenCall, outcome: &Outcome<'_>) {
        let launched = flag(outcome.is_async) || word(outcome.status) == "async_launched";
        let Some(agent) = text(outcome.agent_id) else {
            if !launched {
                self.inner_answered(e, open);
            }
            return;
        };
        let root = self.state.lanes[0].parent.clone().unwrap_or_else(|| self.state.lanes[0].session.clone());
        let child = self.child_id(root.as_str(), &agent);
        if !launched {
            self.child_ended(e, &child, &root, TurnOutcome::Completed);
        }
    }

    /// A sub-agent inside this file has answered: the one whose task the call gave.
    fn inner_answered(&mut self, e: &mut Emit<'_>, open: &OpenCall) {
        let began = |lane: &super::state::Lane| {
            lane.parent.is_some() && lane.turn.is_some() && lane.start >= open.since
        };
        let Some(at) = self.state.lanes.iter().position(began) else { return };
        self.close_turn(e, at, e.time, &Ended::as_known(TurnOutcome::Completed));
    }

    /// The program tells that something in the background has ended.
    pub(super) fn notification(&mut self, e: &mut Emit<'_>, at: usize, notice: &str) {
        let Some(task) = tagged(notice, "task-id") else { return };
        let status = tagged(notice, "status").unwrap_or_default();
        let id = self.id(task);
        self.push(e, at, Fact::Background { task: id, running: false });
        let root = self.state.lanes[0].parent.clone().unwrap_or_else(|| self.state.lanes[0].session.clone());
        // Agents are told by ids of hexadecimal digits behind an `a`, commands by ones behind a `b`.
        let agent = task
            .strip_prefix('a')
            .is_some_and(|rest| rest.len() >= 6 && rest.bytes().all(|b| b.is_ascii_hexdigit()));
        if agent {
            let child = self.child_id(root.as_str(), task);
            let outcome = match status {
                "failed" | "error" => TurnOutcome::Failed,
                "killed" | "stopped" | "cancelled" => TurnOutcome::Cancelled,
                _ => TurnOutcome::Completed,
            };
            self.child_ended(e, &child, &root, outcome);
        }
    }

    /// That a sub-agent ended, as its parent's file tells; where its own file says it too, the earlier word stands.
    fn child_ended(&mut self, e: &mut Emit<'_>, child: &SessionId, root: &SessionId, outcome: TurnOutcome) {
        let end = Fact::TurnEnded { outcome, error: None, reset: None, denied: false, result_known: true };
        let id = format!("parent:ended:{:016x}", e.base);
        let mut event = Event::new(&self.source, child, e.observed, end);
        event.id = Some(self.reducer.event_id(&self.source, child.as_str(), &id));
        event.time = e.time;
        event.parent = Some(root.clone());
        event.request = Some(self.id(RUN));
        if e.taken {
            event.counting = Counting::Never;
        }
        e.out.push(event);
    }
}

// === impl Line ===

impl Line<'_> {
    /// Whether a refusal was a person's, before anything ran.
    fn denial_by_person(&self) -> bool {
        self.denial.is_none() || flag(self.denial_before_run)
    }
}

/// How a call ended.
fn ended(line: &Line<'_>, outcome: &Outcome<'_>, error: Option<&str>) -> CallOutcome {
    let Some(error) = error else {
        return if flag(outcome.interrupted) { CallOutcome::Interrupted } else { CallOutcome::Ok };
    };
    let decision: Item<'_> = object(line.permission_decision);
    let refused = error.starts_with(REFUSED);
    if error.starts_with(STOPPED) {
        CallOutcome::Interrupted
    } else if line.denial.is_some() && !flag(line.denial_before_run) && refused && decision.decision.is_none()
    {
        // The same words stand where a person stops a call that runs.
        CallOutcome::Interrupted
    } else if line.denial.is_some() || refused || word(decision.decision) == "reject" {
        CallOutcome::Denied
    } else {
        CallOutcome::Error
    }
}

/// The exit code of a command: the program only writes it where it is not zero, as text of its own.
fn exit_code(class: ToolClass, how: CallOutcome, error: Option<&str>, outcome: &Outcome<'_>) -> Option<i32> {
    match (class, how, error) {
        (ToolClass::Shell, CallOutcome::Ok, _) => {
            // Some codes are no failure of their command, and are not said.
            let meaning = text(outcome.exit_meaning).is_some();
            (!meaning && outcome.interrupted.is_some()).then_some(0)
        }
        (ToolClass::Shell, CallOutcome::Error, Some(error)) => {
            let digits = error.strip_prefix("Error: ").unwrap_or(error).strip_prefix(EXIT_CODE)?;
            let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
            digits[..end].parse().ok()
        }
        _ => None,
    }
}

/// Lines an edit changed. A result that shows no patch is an edit all the same; one whose patch is empty is none.
fn changed_lines(outcome: &Outcome<'_>) -> u32 {
    let Some(patch) = outcome.structured_patch else { return 1 };
    let hunks: Vec<Hunk<'_>> = list(Some(patch));
    if hunks.is_empty() {
        // A file that is new has nothing to be compared with.
        let same = outcome.original_file == outcome.content;
        let created = outcome.original_file.is_none_or(|raw| raw.get() == "null");
        return u32::from(outcome.content.is_some() && (created || !same));
    }
    let changed = |line: &&Raw<'_>| {
        line.is_some_and(|line| line.get().starts_with("\"+") || line.get().starts_with("\"-"))
    };
    let count: usize =
        hunks.iter().map(|hunk| elements(hunk.lines).iter().filter(|line| changed(line)).count()).sum();
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Lines a read got.
fn lines_read(outcome: &Outcome<'_>) -> Option<ReadRange> {
    let file = &outcome.file;
    let number = |raw: Raw<'_>| read::<f64>(raw).filter(|n| (0.0..1e9).contains(n)).map(|n| n as u32);
    let (start, lines, total) =
        (number(file.start_line)?.max(1), number(file.num_lines)?, number(file.total_lines)?);
    (lines > 0).then(|| ReadRange { start, end: start + lines - 1, total: Some(total) })
}

/// The text of a result: its own, or that of its first block.
fn said<'a>(content: Raw<'a>) -> Cow<'a, str> {
    text(content)
        .or_else(|| list::<Block<'a>>(content).first().and_then(|block| text(block.text)))
        .unwrap_or_default()
}
