//! What the arguments of a tool call are reduced to: the key that tells repetitions, the target, the recognised
//! commands. Arguments go in, hashes come out; nothing else of them is kept.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::event::Commands;
use crate::event::Reducer;
use crate::event::ToolClass;
use crate::event::reduce::normal_command;

/// Deepest nesting of arguments. Below serde_json's own limit of 128, at which it would refuse the value.
const MAX_DEPTH: usize = 64;
/// Arguments that name what a call works on, the more telling first.
const TARGETS: [&str; 8] =
    ["filePath", "file_path", "path", "notebook_path", "pattern", "query", "url", "uri"];
/// Arguments that hold a command line or an argument vector.
const COMMANDS: [&str; 2] = ["command", "cmd"];
/// Arguments of plan tools that hold the items.
const ITEMS: [&str; 4] = ["todos", "plan", "items", "tasks"];

/// Command lines remembered by one decoder before it forgets them all.
const MAX_COMMANDS: usize = 1_024;

/// The members of an object whose values are looked at one by one.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

/// A member's name.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// What is kept between the calls of one decoder.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Where canonical arguments are written.
    canonical: String,
    /// Results by keyed hash of tool and command line: agents repeat commands, and recognising one costs
    /// more than all the rest of its event.
    commands: HashMap<u64, Reduced>,
}

/// What is left of a call's arguments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reduced {
    /// Tells repetitions.
    pub(super) key: Option<u64>,
    /// What it works on.
    pub(super) target: Option<u64>,
    /// Recognised commands.
    pub(super) commands: Commands,
}

/// Why arguments could not be reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    /// They are no object.
    NoObject,
    /// They are nested too deep.
    TooDeep,
}

/// Reduces the arguments of one call.
///
/// # Errors
/// They are no object, or nested beyond a bound.
pub(super) fn reduce(
    reducer: &Reducer,
    memory: &mut Memory,
    tool: &str,
    class: ToolClass,
    args: Option<&str>,
    target: Option<&str>,
) -> Result<Reduced, Unusable> {
    let target_hash = |text: &str| reducer.hash_all(&[class.as_str().as_bytes(), text.as_bytes()]);
    let mut reduced = Reduced { target: target.map(target_hash), ..Reduced::default() };
    let Some(args) = args else { return Ok(reduced) };
    let Ok(Members(mut members)) = serde_json::from_str(args) else { return Err(Unusable::NoObject) };
    if deeper_than(args, MAX_DEPTH) {
        return Err(Unusable::TooDeep);
    }

    let find = |names: &[&str]| {
        names.iter().find_map(|name| members.iter().find(|(key, _)| key == name)).map(|(_, v)| v.get())
    };
    let command = if class == ToolClass::Shell { find(&COMMANDS).and_then(command_line) } else { None };
    if let Some(line) = command {
        let known = reduce_command(reducer, memory, tool, class, &line);
        return Ok(Reduced { target: reduced.target.or(known.target), ..known });
    }
    if reduced.target.is_none() {
        reduced.target =
            TARGETS.iter().find_map(|name| find(&[name]).and_then(text_of)).map(|text| target_hash(&text));
    }
    let canonical = &mut memory.canonical;
    canonical.clear();
    let pattern = if class == ToolClass::Plan { find(&ITEMS).and_then(status_pattern) } else { None };
    match pattern {
        Some(pattern) => canonical.push_str(&pattern),
        None => {
            members.sort_by(|(a, _), (b, _)| a.cmp(b));
            write_canonical(canonical, &members);
        }
    }
    reduced.key = Some(reducer.call_key(tool, canonical));
    Ok(reduced)
}

// === impl Members ===

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::with_capacity(4);
                while let Some(key) = map.next_key::<Key<'de>>()? {
                    members.push((key.0, map.next_value::<&'de RawValue>()?));
                }
                Ok(Members(members))
            }
        }

        d.deserialize_map(MembersVisitor)
    }
}

/// Reduces a command line.
pub(super) fn reduce_command(
    reducer: &Reducer,
    memory: &mut Memory,
    tool: &str,
    class: ToolClass,
    line: &str,
) -> Reduced {
    let seen = reducer.hash_all(&[tool.as_bytes(), line.as_bytes()]);
    if memory.commands.len() >= MAX_COMMANDS {
        memory.commands.clear();
    }
    *memory.commands.entry(seen).or_insert_with(|| Reduced {
        key: Some(reducer.command_key(tool, line)),
        target: Some(reducer.hash_all(&[class.as_str().as_bytes(), normal_command(line).as_bytes()])),
        commands: reducer.commands(line),
    })
}

/// Canonical JSON of an object whose members are sorted. Scalars that can be spelled in one way only are copied.
fn write_canonical(out: &mut String, members: &[(Cow<'_, str>, &RawValue)]) {
    out.push('{');
    for (i, (key, value)) in members.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        out.push('"');
        out.push_str(key);
        out.push_str("\":");
        let raw = value.get();
        let simple = match raw.as_bytes() {
            [b'"', ..] => !raw.contains('\\'),
            [b't' | b'f' | b'n', ..] => true,
            digits => digits.iter().all(u8::is_ascii_digit),
        };
        if simple {
            out.push_str(raw);
            continue;
        }
        match serde_json::from_str::<serde_json::Value>(raw) {
            Ok(value) => out.push_str(&value.to_string()),
            // A number no `f64` holds: its spelling is as good a key as any.
            Err(_) => out.push_str(raw),
        }
    }
    out.push('}');
}

/// The text of a JSON string.
fn text_of(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        serde_json::from_str(raw).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

/// A command line from text or an argument vector; of `bash -lc "…"` it is the script.
fn command_line(raw: &str) -> Option<Cow<'_, str>> {
    if let Some(text) = text_of(raw) {
        return Some(text);
    }
    let mut words: Vec<String> = serde_json::from_str(raw).ok()?;
    let is_shell = words
        .first()
        .is_some_and(|w| matches!(w.rsplit('/').next(), Some("sh" | "bash" | "zsh" | "dash" | "fish")));
    if is_shell && words.len() >= 3 && words[1].starts_with('-') && words[1].ends_with('c') {
        return Some(Cow::Owned(words.swap_remove(2)));
    }
    Some(Cow::Owned(words.join(" ")))
}

/// `status` of each item, in order.
fn status_pattern(raw: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Item {
        status: String,
    }
    let items: Vec<Item> = serde_json::from_str(raw).ok()?;
    Some(items.into_iter().map(|item| item.status).collect::<Vec<_>>().join(","))
}

/// Whether valid JSON is nested deeper than `limit`.
fn deeper_than(json: &str, limit: usize) -> bool {
    let (mut depth, mut in_text, mut escaped) = (0usize, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            b'{' | b'[' if !in_text => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b'}' | b']' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::reduce::Runners;

    fn call(tool: &str, args: &str) -> Reduced {
        let reducer = Reducer::new([3; 16], Runners::default());
        reduce(&reducer, &mut Memory::default(), tool, ToolClass::of_tool(tool), Some(args), None).unwrap()
    }

    #[test]
    fn order_and_spelling_of_arguments_do_not_matter() {
        let a = call("read", r#"{"path":"a.rs","limit":{"x":1,"y":[2]}}"#);
        let b = call("read", r#"{ "limit" : {"y":[ 2 ],"x":1}, "path" : "\u0061.rs" }"#);
        assert_eq!(a, b);
        assert_ne!(a.key, call("read", r#"{"path":"b.rs","limit":{"x":1,"y":[2]}}"#).key);
        assert_ne!(a.target, call("read", r#"{"path":"b.rs"}"#).target);
    }

    #[test]
    fn a_command_is_one_in_text_or_as_a_vector() {
        let text = call("bash", r#"{"command":"cd x && cargo test","timeout":5}"#);
        let vector = call("bash", r#"{"cmd":["bash","-lc","cargo test # again"]}"#);
        assert_eq!(text, vector);
        assert!(text.commands.has(Commands::TEST));
        assert!(call("shell", r#"{"command":["git","commit","-m","x"]}"#).commands.has(Commands::COMMIT));
        assert!(!call("read", r#"{"command":"cargo test"}"#).commands.has(Commands::TEST));
    }

    #[test]
    fn plans_are_told_apart_by_status_only() {
        let a = call("todowrite", r#"{"todos":[{"content":"x","status":"pending"}]}"#);
        let b = call("todowrite", r#"{"todos":[{"content":"y","status":"pending"}]}"#);
        let c = call("todowrite", r#"{"todos":[{"content":"y","status":"completed"}]}"#);
        assert_eq!(a.key, b.key);
        assert_ne!(b.key, c.key);
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(!deeper_than(&nested(MAX_DEPTH), MAX_DEPTH));
        assert!(deeper_than(&nested(MAX_DEPTH + 1), MAX_DEPTH));
        assert!(!deeper_than(r#"["[[[\"[[["]"#, 1));
    }
}
