//! Claude Code: lines of its transcripts become events, its live registry tells who works and who waits. Finding and
//! following files is not done here, and no state is decided here.
//!
//! The format is not documented; it was recorded from versions 1.0.17 to 2.1.332. They differ in what they say:
//! - sub-agents: inside the session's file (to 2.0.22), in a file beside it (2.0.28), below `<session>/subagents`
//!   (from 2.1.2); from 2.1.232 they may begin with a copy of their parent's conversation;
//! - the end of a turn is a fact (`stop_reason: end_turn` on every message) only from 2.1.91; before that
//!   `system/turn_duration` says it in most interactive sessions from 2.1.1 on, and nothing says it elsewhere;
//! - retries are `system/api_error` lines from 2.0.5;
//! - requests for permission are in no transcript, but in the registry of newer versions.

mod answers;
mod calls;
mod prompts;
mod registry;
mod results;
mod side;
mod state;
mod stream;
mod wire;

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use super::arguments::Memory;
use super::files::{self, Claim, FileSource, Opening, Owners, Rank};
use super::recorded::Form;
use super::{Decode, DecodeError, Record, SourceDef};
use crate::event::{
    ActivityClass, Capabilities, Capability, Counting, Event, Fact, Id, Name, Reducer, SessionId, SourceId,
    Timestamp,
};

pub use self::registry::{Existence, Probe, Registry};
use self::state::State;
use self::wire::{Line, flag, from_line, moment, text, word};

/// What transcripts alone can show: whether anybody is asked for permission, and who still runs, is in the registry.
pub(super) const SEEN: Capabilities = Capabilities::of(Capability::ALL)
    .without(Capability::Steps)
    .without(Capability::PendingActions)
    .without(Capability::Liveness);

/// The Claude Code source in the list.
pub const DEF: SourceDef = SourceDef {
    name: "claude_code",
    about: "Claude Code, from the transcripts it writes and its live registry",
    maturity: "experimental",
    default_on: true,
    capabilities: SEEN,
    // Where the version keeps a live registry.
    of_some: Capabilities::of(&[Capability::PendingActions, Capability::Liveness]),
    looks_at: ".claude",
    live: None,
    sees_stops: false,
    retells: &[],
    recorded: Form::Files(&FILES),
    start: Some(|context| files::start(FILES, context)),
};

/// Where the files are, and what makes them streams of records.
pub const FILES: FileSource = FileSource {
    name: "claude_code",
    folder: ".claude",
    roots: &["projects", "sessions"],
    accepts: |name| name.to_str().is_some_and(|name| name.ends_with(".jsonl")),
    stream: stream_of,
    stream_id: |name| Some(stem(name)?.to_owned()),
    lock_dir: None,
    peeks: true,
    live: Some(Registry::begin),
    new: |opening| Box::new(Claude::new(opening)),
    restore: |opening, checkpoint| Some(Box::new(Claude::restore(opening, checkpoint)?)),
};

/// Product name in `info`.
const AGENT: &str = "claude-code";
/// Sessions of one file that are begun anew with it.
const MAX_KNOWN: usize = 256;
/// Kinds of unknown records that wait to be told.
const MAX_UNKNOWN: usize = 32;
/// Version of the checkpoint's layout.
const LAYOUT: u8 = 2;
/// Ranks a fact may have.
const RANKS: usize = 32;
/// Being there still is said at most this often, in milliseconds.
const SAY_AGAIN_MS: i64 = 1_000;

/// A session's file is named by the session wherever it lies, because it moves with the project; a sub-agent's by its
/// session and itself, because ids of sub-agents were short once.
fn stream_of(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy();
    let folder = path.parent().filter(|folder| folder.file_name() == Some(OsStr::new("subagents")));
    let session = folder.and_then(Path::parent).and_then(Path::file_name).map(OsStr::to_string_lossy);
    Some(match session {
        Some(session) => format!("{session}/{name}"),
        None => name.into_owned(),
    })
}

/// The name of a file without folders and extension.
fn stem(name: &OsStr) -> Option<&str> {
    let name = name.to_str()?.strip_suffix(".jsonl")?;
    Some(name.rsplit('/').next().unwrap_or(name))
}

/// Decoder of one transcript.
#[derive(Debug)]
pub struct Claude {
    source: SourceId,
    reducer: Arc<Reducer>,
    owners: Arc<Owners>,
    state: State,
    memory: Memory,
    unknown: Vec<String>,
}

/// The events of one line: what they share, and where they go.
struct Emit<'r> {
    observed: Timestamp,
    time: Option<Timestamp>,
    /// Names the line among all of its session, whichever file shows it.
    base: u64,
    out: &'r mut Vec<Event>,
    /// Number of events so far, by the rank of their facts: a line that is written twice need not bring the same
    /// events twice, and those it does bring are to have the same ids.
    counts: [u16; RANKS],
    /// It was counted for a younger session, which copied it and was read before.
    taken: bool,
}

// === impl Claude ===

impl Claude {
    /// A decoder that begins with the first line.
    pub fn new(opening: &Opening<'_>) -> Self {
        let mut claude = Self::with(opening, State::default());
        claude.look_at_head(opening.name, opening.head);
        claude
    }

    /// A decoder that goes on behind the line after which the checkpoint was taken; `None` if it is not one.
    pub fn restore(opening: &Opening<'_>, checkpoint: &[u8]) -> Option<Self> {
        let (&layout, rest) = checkpoint.split_first()?;
        let state = (layout == LAYOUT).then(|| postcard::from_bytes(rest).ok()).flatten()?;
        Some(Self::with(opening, state))
    }

    fn with(opening: &Opening<'_>, state: State) -> Self {
        Self {
            source: opening.source.clone(),
            reducer: opening.reducer.clone(),
            owners: opening.owners.clone(),
            state,
            memory: Memory::default(),
            unknown: Vec::new(),
        }
    }

    /// Hands out a fact of a lane with the line's own time.
    fn push(&mut self, e: &mut Emit<'_>, lane: usize, fact: Fact) {
        self.push_at(e, lane, e.time, fact);
    }

    /// Hands out a fact with a time of its own.
    fn push_at(&mut self, e: &mut Emit<'_>, lane: usize, time: Option<Timestamp>, fact: Fact) {
        let nth = &mut e.counts[usize::from(fact.rank()) % RANKS];
        let parts = (e.base, fact.type_name(), *nth);
        *nth = nth.wrapping_add(1);
        let session = self.state.lanes[lane].session.as_str();
        let id = self.reducer.hash_all(&[
            self.source.as_str().as_bytes(),
            session.as_bytes(),
            &parts.0.to_le_bytes(),
            parts.1.as_bytes(),
            &parts.2.to_le_bytes(),
        ]);
        self.push_with(e, lane, time, id, fact);
    }

    /// Hands out a fact under an id of its own.
    fn push_as(&mut self, e: &mut Emit<'_>, lane: usize, time: Option<Timestamp>, id: &str, fact: Fact) {
        let id = self.reducer.event_id(&self.source, self.state.lanes[lane].session.as_str(), id);
        self.push_with(e, lane, time, id, fact);
    }

    fn push_with(&mut self, e: &mut Emit<'_>, lane: usize, time: Option<Timestamp>, id: u64, fact: Fact) {
        let lane = &mut self.state.lanes[lane];
        let mut event = Event::new(&self.source, &lane.session, e.observed, fact);
        event.id = Some(id);
        event.time = time;
        event.parent.clone_from(&lane.parent);
        event.project.clone_from(&lane.project);
        event.request = lane.turn.as_ref().and_then(|turn| turn.request.clone());
        lane.said = lane.said.max(time);
        // That there is this session was not counted yet.
        if e.taken && !matches!(event.fact, Fact::SessionStarted(_)) {
            event.counting = Counting::Never;
        }
        e.out.push(event);
    }

    /// A record that only says that the session is there.
    fn note(&mut self, e: &mut Emit<'_>, lane: usize) {
        let said = self.state.lanes[lane].said;
        let news = e.time.is_some_and(|t| said.is_none_or(|said| t.since(said) >= SAY_AGAIN_MS));
        if news {
            self.push(e, lane, Fact::Activity { class: ActivityClass::Bookkeeping, message: false });
        }
    }

    /// A record of a kind this version does not know.
    fn unknown(&mut self, e: &mut Emit<'_>, lane: Option<usize>, kind: &str) {
        if self.unknown.len() < MAX_UNKNOWN {
            self.unknown.push(self.reducer.bounded(kind));
        }
        if let Some(lane) = lane {
            self.push(e, lane, Fact::Unknown);
        }
    }

    /// Whose a record is.
    fn claim(&mut self, lane: usize, key: u64) -> Claim {
        let fork = self.state.fork;
        let lane = &mut self.state.lanes[lane];
        // The index needs a start to tell who was first; a record without a time cannot be one.
        let Some(start) = lane.start else { return Claim::Own };
        let rank = match (lane.parent.is_some(), fork) {
            (false, false) => Rank::Original,
            (false, true) => Rank::Fork,
            (true, false) => Rank::Child,
            (true, true) => Rank::ChildOfFork,
        };
        let owner = *lane.owner.get_or_insert_with(|| self.owners.session(&lane.session, start, rank));
        self.owners.claim(key, owner)
    }

    /// `true`: the record is another session's, so that nothing may be made of it.
    fn is_copied(&mut self, e: &mut Emit<'_>, lane: usize, key: u64) -> bool {
        let claim = self.claim(lane, key);
        e.taken = claim == Claim::Taken;
        claim == Claim::Copied
    }

    fn id(&self, text: &str) -> Id {
        Id::from(self.reducer.bounded(text).as_str())
    }

    fn name(&self, text: &str) -> Name {
        Name::from(self.reducer.bounded(text).as_str())
    }

    fn hash(&self, text: &str) -> u64 {
        self.reducer.hash(text.as_bytes())
    }

    /// The key of a record in the index of owners. Its time is part of it: copies keep theirs, and ids that are made
    /// by something else than the real service may repeat.
    fn key(&self, kind: &str, id: &str, time: Option<Timestamp>) -> u64 {
        let time = time.map_or(0, Timestamp::as_millis);
        self.reducer.hash_all(&[kind.as_bytes(), id.as_bytes(), &time.to_le_bytes()])
    }
}

impl Decode for Claude {
    fn decode(&mut self, record: &Record<'_>, out: &mut Vec<Event>) -> Result<(), DecodeError> {
        let line: Line<'_> = from_line(record.bytes)?;
        let kind = text(line.kind).ok_or(DecodeError::Shape)?;
        let time = moment(line.timestamp);
        let base = match text(line.uuid) {
            Some(uuid) => self.hash(&uuid),
            None => self.reducer.hash(record.bytes),
        };
        let counts = [0; RANKS];
        let mut e = Emit { observed: record.observed, time, base, out, counts, taken: false };
        let Some(lane) = self.lane(&line, &kind, time) else {
            // Nothing says yet whose file this is.
            return Ok(());
        };
        match kind.as_ref() {
            "user" => self.user(&mut e, lane, &line),
            "assistant" => self.assistant(&mut e, lane, &line),
            "system" => self.system(&mut e, lane, &line),
            "attachment" => self.attachment(&mut e, lane, &line),
            "queue-operation" => self.queue(&mut e, lane, &word(line.operation)),
            "permission-mode" => self.permission_mode(&mut e, lane, &line),
            "cost-state" => self.process_ends(&mut e, lane, &line),
            known if side::is_known(known) => self.note(&mut e, lane),
            other => self.unknown(&mut e, Some(lane), other),
        }
        let lane = &mut self.state.lanes[lane];
        lane.newest = lane.newest.max(time);
        Ok(())
    }

    fn checkpoint(&self) -> Vec<u8> {
        let out = postcard::to_extend(&self.state, vec![LAYOUT]);
        out.expect("the state holds only sequences of known length")
    }

    fn session(&self) -> Option<&SessionId> {
        self.state.lanes.first().map(|lane| &lane.session)
    }

    fn parent(&self) -> Option<&SessionId> {
        self.state.lanes.first()?.parent.as_ref()
    }

    fn sessions(&self, known: &mut Vec<SessionId>) {
        for lane in &self.state.lanes {
            if known.len() < MAX_KNOWN && !known.contains(&lane.session) {
                known.push(lane.session.clone());
            }
        }
    }

    fn unknown_kinds(&mut self) -> Vec<String> {
        std::mem::take(&mut self.unknown)
    }
}

/// Whether a line is one of a sub-agent that has no file of its own.
fn is_inner(line: &Line<'_>) -> bool {
    flag(line.is_sidechain) && line.agent_id.is_none()
}
