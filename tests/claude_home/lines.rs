//! Transcripts as lists of lines: split, changed, put together again.

use agent_session_exporter::event::Timestamp;
use serde_json::Value;

/// The lines of a transcript.
pub(crate) fn lines(bytes: &[u8]) -> Vec<Value> {
    let lines = bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

/// The other way round.
pub(crate) fn bytes(lines: &[Value]) -> Vec<u8> {
    lines.iter().flat_map(|line| (line.to_string() + "\n").into_bytes()).collect()
}

/// Whole lines of a transcript as they are, up to the one behind the first that holds this text.
pub(crate) fn behind(bytes: &[u8], text: &str) -> usize {
    let at = bytes.windows(text.len()).position(|w| w == text.as_bytes()).unwrap();
    at + bytes[at..].iter().position(|b| *b == b'\n').unwrap() + 1
}

/// When a line says it was written.
pub(crate) fn time(line: &Value) -> Option<Timestamp> {
    Timestamp::parse(line["timestamp"].as_str()?).ok()
}

/// The session a transcript is about.
pub(crate) fn session(bytes: &[u8]) -> String {
    let own = lines(bytes).iter().rev().find_map(|line| line["sessionId"].as_str().map(str::to_owned));
    own.unwrap()
}

/// A person's prompt.
pub(crate) fn prompt(session: &str, at: &str, text: &str) -> Value {
    line(session, at, "user", serde_json::json!({"role": "user", "content": text}))
}

/// A message of the model: blocks, what it cost, why it stopped.
pub(crate) fn message(session: &str, at: &str, id: &str, blocks: Value, output: u64, stop: &str) -> Value {
    let usage = serde_json::json!({
        "input_tokens": 10, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0,
        "output_tokens": output
    });
    let message = serde_json::json!({
        "id": id, "model": "claude-opus-5-5", "role": "assistant", "content": blocks, "usage": usage,
        "stop_reason": stop
    });
    line(session, at, "assistant", message)
}

/// A message that says something.
pub(crate) fn says(session: &str, at: &str, id: &str, output: u64, stop: &str) -> Value {
    message(session, at, id, serde_json::json!([{"type": "text", "text": "x"}]), output, stop)
}

/// A message that calls a tool.
pub(crate) fn calls(session: &str, at: &str, call: &str, tool: &str, input: Value) -> Value {
    let block = serde_json::json!([{"type": "tool_use", "id": call, "name": tool, "input": input}]);
    message(session, at, &format!("msg_{call}"), block, 5, "tool_use")
}

/// The result of a call.
pub(crate) fn result(session: &str, at: &str, call: &str, outcome: Value) -> Value {
    let block = serde_json::json!([{"type": "tool_result", "tool_use_id": call, "content": "x"}]);
    let mut line = line(session, at, "user", serde_json::json!({"role": "user", "content": block}));
    line["toolUseResult"] = outcome;
    line
}

/// A line of any kind, named after its moment.
pub(crate) fn line(session: &str, at: &str, kind: &str, message: Value) -> Value {
    serde_json::json!({
        "type": kind, "sessionId": session, "timestamp": at, "uuid": format!("{session}-{at}-{kind}"),
        "version": "2.1.332", "cwd": "/home/dev/project", "entrypoint": "cli", "message": message
    })
}
