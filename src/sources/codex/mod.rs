//! Codex CLI: lines of rollout files, of `codex exec --json` and of the older `{"id","msg"}` stream become events.
//! Finding, following and locking files is not done here, and no state is decided here.
//!
//! Format: the types `RolloutLine`, `ResponseItem` and `EventMsg` of
//! <https://github.com/openai/codex/tree/main/codex-rs/protocol/src>, and the stream of
//! <https://github.com/openai/codex/blob/main/codex-rs/exec/src/exec_events.rs>. Versions 0.23 to 0.171 are
//! recorded; they differ in what they say at all:
//! - up to 0.23 bare items without times; up to 0.94 no turns (`turn_aborted` apart);
//! - up to 0.147 a failed turn ends like a `/compact` one, with `last_agent_message: null` and no error;
//! - command results are items from 0.148, before that only the harness's text (see `output`);
//! - requests for approval, retries and the end of the process are in no version.

mod calls;
mod events;
mod exec_stream;
mod items;
mod output;
mod rollout;
mod state;
mod usage;
mod wire;

use std::borrow::Cow;
use std::ffi::OsStr;
use std::sync::Arc;

use super::arguments::Memory;
use super::files::{self, FileSource};
use super::recorded::Form;
use super::{Decode, DecodeError, Record, SourceDef};
use crate::event::{Capabilities, Capability};
use crate::event::{Event, Fact, Id, Name, Reducer, SessionId, SourceId, Timestamp};

use self::state::State;
use self::wire::{Line, from_line, moment, text, word};

/// The Codex source in the list.
pub const DEF: SourceDef = SourceDef {
    name: "codex",
    about: "Codex CLI, from the rollout files it writes and the writer locks it holds",
    maturity: "experimental",
    default_on: true,
    // Requests for approval are in no rollout; a session that can have none says so itself.
    capabilities: Capabilities::of(Capability::ALL).without(Capability::PendingActions),
    of_some: Capabilities(0),
    looks_at: ".codex",
    live: None,
    sees_stops: false,
    retells: &[],
    recorded: Form::Files(&FILES),
    start: Some(|context| files::start(FILES, context)),
};

/// Where the files are, and what makes them streams of records.
pub const FILES: FileSource = FileSource {
    name: "codex",
    folder: ".codex",
    roots: &["sessions", "archived_sessions"],
    accepts: |name| thread_of(name).is_some(),
    stream: crate::ingest::file_name,
    stream_id: thread_of,
    lock_dir: Some("thread-writer-locks"),
    peeks: false,
    live: None,
    new: |opening| {
        let decoder = Codex::new(opening.source.clone(), opening.reducer.clone());
        Box::new(match opening.name {
            Some(thread) => decoder.named(thread),
            None => decoder,
        })
    },
    restore: |opening, checkpoint| {
        Some(Box::new(Codex::restore(opening.source.clone(), opening.reducer.clone(), checkpoint)?))
    },
};

/// The thread's id at the end of `rollout-<local time>-<id>.jsonl[.zst]`.
fn thread_of(name: &OsStr) -> Option<String> {
    let name = name.to_str()?;
    let stem = name.strip_suffix(".zst").unwrap_or(name).strip_suffix(".jsonl")?.strip_prefix("rollout-")?;
    let at = stem.len().checked_sub(UUID_LEN)?;
    let id = stem.get(at..)?;
    let is_uuid = id.bytes().enumerate().all(|(i, b)| match i {
        8 | 13 | 18 | 23 => b == b'-',
        _ => b.is_ascii_hexdigit(),
    });
    is_uuid.then(|| id.to_owned())
}

/// Length of an id in its usual spelling.
const UUID_LEN: usize = 36;
/// Kinds of unknown records that wait to be told.
const MAX_UNKNOWN: usize = 32;
/// Version of the checkpoint's layout.
const LAYOUT: u8 = 1;

/// Decoder of one rollout file or one stream.
#[derive(Debug)]
pub struct Codex {
    source: SourceId,
    reducer: Arc<Reducer>,
    state: State,
    memory: Memory,
    unknown: Vec<String>,
}

/// The events of one line: what they share, and where they go.
struct Emit<'r> {
    bytes: &'r [u8],
    observed: Timestamp,
    time: Option<Timestamp>,
    request: Option<Id>,
    out: &'r mut Vec<Event>,
    /// Hash of the line, once needed.
    hash: Option<u64>,
    /// Number of events so far.
    count: u32,
}

// === impl Codex ===

impl Codex {
    /// A decoder that begins with the first line.
    pub fn new(source: SourceId, reducer: Arc<Reducer>) -> Self {
        Self { source, reducer, state: State::default(), memory: Memory::default(), unknown: Vec::new() }
    }

    /// A decoder that goes on behind the line after which the checkpoint was taken; `None` if it is not one.
    pub fn restore(source: SourceId, reducer: Arc<Reducer>, checkpoint: &[u8]) -> Option<Self> {
        let (&layout, rest) = checkpoint.split_first()?;
        let state = (layout == LAYOUT).then(|| postcard::from_bytes(rest).ok()).flatten()?;
        Some(Self { source, reducer, state, memory: Memory::default(), unknown: Vec::new() })
    }

    /// Gives the thread an id where the stream may not say one, because its head is damaged, too long or was
    /// never written: the id in a file's name. What the stream says later wins.
    #[must_use]
    pub fn named(mut self, thread: &str) -> Self {
        if self.state.session.is_none() {
            self.state.session = Some(self.session_id(thread));
            self.state.thread = Some(self.reducer.hash(thread.as_bytes()));
            self.state.made_ms = made_ms(thread);
        }
        self
    }

    /// Hands out a fact with the line's own time.
    fn push(&self, e: &mut Emit<'_>, fact: Fact) {
        self.push_at(e, e.time, fact);
    }

    /// Hands out a fact with a time of its own. Without a session there is nobody it could be about.
    fn push_at(&self, e: &mut Emit<'_>, time: Option<Timestamp>, fact: Fact) {
        let Some(session) = &self.state.session else { return };
        let line = *e.hash.get_or_insert_with(|| self.reducer.hash(e.bytes));
        let mut event = Event::new(&self.source, session, e.observed, fact);
        // A dated line that occurs twice is one record; undated ones repeat for good reasons.
        let text = match e.time {
            Some(_) => format!("{line:016x}.{}", e.count),
            None => format!("{line:016x}.{}.{}", e.count, self.state.untimed),
        };
        e.count += 1;
        event.id = Some(self.reducer.event_id(&self.source, session.as_str(), &text));
        event.time = time;
        event.parent = self.state.parent.clone();
        event.project = self.state.project.clone();
        event.request = e.request.clone();
        e.out.push(event);
    }

    /// A record of a kind this version does not know.
    fn push_unknown(&mut self, e: &mut Emit<'_>, kind: &str) {
        if self.unknown.len() < MAX_UNKNOWN {
            self.unknown.push(self.reducer.bounded(kind));
        }
        self.push(e, Fact::Unknown);
    }

    fn id(&self, text: &str) -> Id {
        Id::from(self.reducer.bounded(text).as_str())
    }

    fn name(&self, text: &str) -> Name {
        Name::from(self.reducer.bounded(text).as_str())
    }

    fn session_id(&self, text: &str) -> SessionId {
        SessionId::from(self.reducer.bounded(text).as_str())
    }

    /// Where a line without payload goes: bare item, exec stream, or a head of an old version.
    fn decode_flat(&mut self, e: &mut Emit<'_>, line: &Line<'_>) -> Result<(), DecodeError> {
        let kind = word(line.kind);
        match kind.as_ref() {
            "message"
            | "reasoning"
            | "function_call"
            | "function_call_output"
            | "custom_tool_call"
            | "custom_tool_call_output"
            | "local_shell_call" => {
                let item = from_line(e.bytes)?;
                self.response_item(e, &item, true);
            }
            "" if line.record_type.is_some() => {}
            "" if line.id.is_some() && line.timestamp.is_some() => self.bare_head(e, line),
            "" if line.prompt.is_some() || line.workdir.is_some() => self.stream_head(e, line),
            "" => return Err(DecodeError::Shape),
            known if known == "error" || known.contains(['.', '/']) => {
                let exec = from_line(e.bytes)?;
                self.exec_line(e, known, &exec);
            }
            other => self.push_unknown(e, other),
        }
        Ok(())
    }
}

impl Decode for Codex {
    fn decode(&mut self, record: &Record<'_>, out: &mut Vec<Event>) -> Result<(), DecodeError> {
        let line: Line<'_> = from_line(record.bytes)?;
        let time = moment(line.timestamp);
        if time.is_none() {
            self.state.untimed += 1;
        }
        let mut e = Emit {
            bytes: record.bytes,
            observed: record.observed,
            time,
            request: self.state.turn.clone(),
            out,
            hash: None,
            count: 0,
        };
        if line.payload.is_some() {
            let kind = text(line.kind).ok_or(DecodeError::Shape)?;
            self.rollout_line(&mut e, &kind, line.payload);
            return Ok(());
        }
        if line.msg.is_some() {
            let msg = wire::shape(line.msg).ok_or(DecodeError::Shape)?;
            self.event_msg(&mut e, &msg, true);
            return Ok(());
        }
        self.decode_flat(&mut e, &line)
    }

    fn checkpoint(&self) -> Vec<u8> {
        let out = postcard::to_extend(&self.state, vec![LAYOUT]);
        out.expect("the state holds only sequences of known length")
    }

    fn session(&self) -> Option<&SessionId> {
        self.state.session.as_ref()
    }

    fn unknown_kinds(&mut self) -> Vec<String> {
        std::mem::take(&mut self.unknown)
    }
}

/// Milliseconds in which a UUIDv7 was made; other ids do not say.
fn made_ms(id: &str) -> Option<i64> {
    let b = id.as_bytes();
    if b.len() != 36 || b[8] != b'-' || b[13] != b'-' || b[14] != b'7' {
        return None;
    }
    let digits: Cow<'_, str> = Cow::Owned(format!("{}{}", id.get(0..8)?, id.get(9..13)?));
    i64::from_str_radix(&digits, 16).ok()
}
