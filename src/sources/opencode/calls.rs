//! Calls of tools, by their parts: pending, running, completed or failed.

use super::state::{Call, Session, Tell};
use super::v1::spelled;
use super::wire::{FileDiff, Input, Metadata, Part, Raw, count, list, millis, object, read, text, word};
use crate::event::{CallEnd, CallOutcome, CallStart, Fact, Id, ReadRange, Timestamp, ToolClass};
use crate::sources::arguments;

/// What is told of a call that ends.
pub(super) struct Ending<'a> {
    pub(super) failed: bool,
    pub(super) error: Raw<'a>,
    pub(super) output: Raw<'a>,
    pub(super) metadata: Metadata<'a>,
}

/// A part that is a call.
pub(super) fn part(
    session: &mut Session,
    t: &mut Tell<'_>,
    id: &Id,
    message: &Id,
    part: &Part<'_>,
    at: Timestamp,
) {
    let hash = t.common.hash(id.as_str());
    if session.done.contains(&hash) {
        return;
    }
    if let Some(message) = session.message(message) {
        message.tools = true;
    }
    if session.call(id).is_none() {
        let call = text(part.call).map(|call| t.common.id(&call));
        let (part, message) = (id.clone(), message.clone());
        session.add_call(Call {
            part,
            message,
            call,
            started: false,
            asked: None,
            denied: false,
            tool: None,
        });
    }
    let state = &part.state;
    let (started, ended) = (millis(state.time.start).unwrap_or(at), millis(state.time.end).unwrap_or(at));
    let tool = word(part.tool);
    match word(state.status).as_ref() {
        "running" => {
            start(session, t, id, &tool, state.input, started);
            session.work(t, at);
        }
        status @ ("completed" | "error") => {
            start(session, t, id, &tool, state.input, started);
            let metadata = object(state.metadata);
            let ending =
                Ending { failed: status == "error", error: state.error, output: state.output, metadata };
            end(session, t, id, &tool, state.input, &ending, ended);
        }
        _ => session.work(t, at),
    }
}

/// A call begins, unless it has.
pub(super) fn start(
    session: &mut Session,
    t: &mut Tell<'_>,
    id: &Id,
    tool: &str,
    input: Raw<'_>,
    time: Timestamp,
) {
    let Some(call) = session.call(id).filter(|call| !call.started) else { return };
    call.started = true;
    call.tool = Some(t.common.name(tool));
    let time = call.asked.map_or(time, |asked| asked.min(time));
    let class = ToolClass::of_tool(tool);
    let common = &mut t.common;
    let reduced = arguments::reduce(&common.reducer, &mut common.memory, tool, class, spelled(input), None)
        .unwrap_or_default();
    let name = common.name(tool);
    let start = CallStart {
        call: id.clone(),
        tool: name,
        class,
        key: reduced.key,
        target: reduced.target,
        read: if class == ToolClass::Read { asked_lines(input) } else { None },
        commands: reduced.commands,
        background: false,
        asks: None,
        nested: false,
    };
    session.push(t, &format!("call:{}", id.as_str()), time, Fact::ToolStarted(start));
}

/// Lines a read asks for, where it names any.
fn asked_lines(input: Raw<'_>) -> Option<ReadRange> {
    let input: Input<'_> = object(input);
    let number = |raw: Raw<'_>| read::<f64>(raw).filter(|n| (0.0..1e9).contains(n)).map(|n| n as u32);
    let limit = number(input.limit)?;
    let start = number(input.offset).unwrap_or(1).max(1);
    Some(ReadRange { start, end: start + limit.max(1) - 1, total: None })
}

/// A call ends.
pub(super) fn end(
    session: &mut Session,
    t: &mut Tell<'_>,
    id: &Id,
    tool: &str,
    input: Raw<'_>,
    ending: &Ending<'_>,
    time: Timestamp,
) {
    let hash = t.common.hash(id.as_str());
    let call = session.remove_call(id, hash);
    let class = ToolClass::of_tool(tool);
    let metadata = &ending.metadata;
    let exit_code = read::<i32>(metadata.exit);
    // A command without an exit code was killed, by its time limit or with its turn; but those that a person ran
    // have none at all.
    let step = call.as_ref().and_then(|call| session.message(&call.message)).filter(|step| step.steps);
    let killed = class == ToolClass::Shell && exit_code.is_none() && step.is_some();
    let stopped =
        step.is_some_and(|step| step.error.is_some()) || session.turn.is_none() || session.error.is_some();
    let outcome = match ending.failed {
        _ if read(metadata.interrupted) == Some(true) => CallOutcome::Interrupted,
        true if call.as_ref().is_some_and(|call| call.denied) => CallOutcome::Denied,
        true => CallOutcome::Error,
        false if killed && stopped => CallOutcome::Interrupted,
        false if killed => CallOutcome::Error,
        false => CallOutcome::Ok,
    };
    let diff_lines = if class == ToolClass::Edit && !ending.failed { changed_lines(metadata) } else { None };
    let reducer = t.common.reducer.clone();
    let error = text(ending.error).filter(|_| ending.failed).map(|e| reducer.error_fingerprint(tool, &e));
    let error =
        error.or_else(|| (outcome == CallOutcome::Error).then(|| reducer.error_fingerprint(tool, "killed")));
    let output = text(ending.output).map(|output| reducer.hash(output.as_bytes()));
    let read = if class == ToolClass::Read { lines_read(metadata) } else { None };
    let fact = CallEnd { call: id.clone(), outcome, exit_code, diff_lines, error, output, read };
    // A plan that was written is known by what the call holds, too: that is kept by the server.
    if class == ToolClass::Plan && !ending.failed {
        let todos = metadata.todos.or_else(|| object::<Input<'_>>(input).todos);
        session.planned(t, todos, time);
    }
    if let Some(message) = call.map(|call| call.message).and_then(|message| session.message(&message)) {
        if diff_lines.is_some_and(|n| n > 0) {
            for file in edited_files(input, metadata) {
                message.edits(reducer.hash(file.as_bytes()));
            }
        } else if !ending.failed && matches!(class, ToolClass::Edit | ToolClass::Shell) {
            message.changer = Some(id.clone());
        }
    }
    session.push(t, &format!("done:{}", id.as_str()), time, Fact::ToolEnded(fact));
}

fn lines_of(diff: &FileDiff<'_>) -> u64 {
    count(diff.additions) + count(diff.deletions)
}

/// How much an edit changed, as it says itself.
fn changed_lines(metadata: &Metadata<'_>) -> Option<u32> {
    let files = list::<FileDiff<'_>>(metadata.files);
    let told = lines_of(&metadata.file_diff) + files.iter().map(lines_of).sum::<u64>();
    if told > 0 {
        return u32::try_from(told).ok();
    }
    let patches = files.iter().filter_map(|f| text(f.patch)).chain(text(metadata.diff));
    let mut seen = false;
    let mut lines = 0u32;
    for patch in patches {
        seen = true;
        let changed = |line: &&str| {
            (line.starts_with('+') && !line.starts_with("+++"))
                || (line.starts_with('-') && !line.starts_with("---"))
        };
        lines =
            lines.saturating_add(u32::try_from(patch.lines().filter(changed).count()).unwrap_or(u32::MAX));
    }
    seen.then_some(lines)
}

/// The files an edit changed.
fn edited_files(input: Raw<'_>, metadata: &Metadata<'_>) -> Vec<String> {
    let one = text(metadata.file_diff.file).or_else(|| text(object::<Input<'_>>(input).file_path));
    let more = list::<FileDiff<'_>>(metadata.files);
    one.into_iter().chain(more.iter().filter_map(|f| text(f.file))).map(Into::into).collect()
}

/// Lines a read really got.
fn lines_read(metadata: &Metadata<'_>) -> Option<ReadRange> {
    let number = |raw: Raw<'_>| u32::try_from(count(raw)).ok().filter(|n| *n > 0);
    let (start, end) = (number(metadata.display.line_start)?, number(metadata.display.line_end)?);
    (end >= start).then(|| ReadRange { start, end, total: number(metadata.display.total) })
}
