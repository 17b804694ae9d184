//! The live registry: `sessions/<pid>.json` below the agent's folder, one small file per running process. It is rewritten
//! whenever the status changes, removed when the process leaves in order, and left behind when it dies. Says who is
//! there, who waits for a person, and how processes end; what is done in a session is the transcripts' to say.
//!
//! The key beside each file is never opened. Nothing here is a documented interface of the agent: a field that is missing
//! or of another form makes an answer poorer, never wrong.

mod ends;
mod entry;
mod process;
mod sessions;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::entry::{Entry, Listing, Stamp, Status};
use self::process::{Claim, Liveness};
pub use self::process::{Existence, Probe};
use self::sessions::Sessions;
use crate::event::{
    ActionKind, Capabilities, Capability, Event, Fact, Id, Name, Reducer, Resolution, SessionId, SessionInfo,
    SourceId, Timestamp, TurnOutcome,
};
use crate::sources::files::Live;

/// Files that are followed.
const MAX_FILES: usize = 1024;
/// Product name of the agent.
const AGENT: &str = "claude-code";
/// What was left behind longer ago than this and was never heard of tells nothing about now.
const STALE_MS: i64 = 7 * 24 * 3_600_000;
/// Version of the layout of what is kept.
const LAYOUT: u8 = 1;

/// What every session of the registry can be seen of, with its transcript.
const SEES: Capabilities = Capabilities::of(Capability::ALL).without(Capability::Steps);

/// The registry of one agent folder.
#[derive(Debug)]
pub struct Registry {
    source: SourceId,
    reducer: Arc<Reducer>,
    folder: PathBuf,
    probe: Probe,
    kept: Kept,
    /// Contents of files as they were last read, good or not.
    stamps: BTreeMap<i32, Option<Stamp>>,
    /// The folder was listed in this run.
    listed: bool,
    dirty: bool,
}

/// What survives a restart.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    entries: BTreeMap<i32, Known>,
    sessions: Sessions,
}

/// A process that has a file.
#[derive(Debug, Serialize, Deserialize)]
struct Known {
    session: SessionId,
    start: Option<u64>,
    started: Option<Timestamp>,
    status: Status,
    status_at: Option<Timestamp>,
    /// When its file was last rewritten.
    written: Timestamp,
    /// Since when it asks its person; names the action.
    asks_since: Option<Timestamp>,
    /// It was seen alive with its start time.
    seen_alive: bool,
    /// It is dead, and that was said.
    over: bool,
    /// It was told as one whose life cannot be checked.
    blind: bool,
    #[serde(skip)]
    domain: Option<String>,
    #[serde(skip)]
    live: Liveness,
    /// Since when its file is not there.
    #[serde(skip)]
    missing: Option<Timestamp>,
}

// === impl Registry ===

impl Registry {
    /// The registry below an agent's folder, with what an earlier run kept.
    pub fn new(folder: &Path, source: SourceId, reducer: Arc<Reducer>, kept: Option<&[u8]>) -> Self {
        let kept = kept.and_then(<[u8]>::split_first).filter(|(layout, _)| **layout == LAYOUT);
        let kept = kept.and_then(|(_, bytes)| postcard::from_bytes(bytes).ok());
        Self {
            source,
            reducer,
            folder: folder.join("sessions"),
            probe: Probe::default(),
            kept: kept.unwrap_or_default(),
            stamps: BTreeMap::new(),
            listed: false,
            dirty: false,
        }
    }

    /// As [`Self::new`], as file sources begin it.
    pub fn begin(
        folder: &Path,
        source: SourceId,
        reducer: Arc<Reducer>,
        kept: Option<&[u8]>,
    ) -> Box<dyn Live> {
        Box::new(Self::new(folder, source, reducer, kept))
    }

    /// Asks about processes elsewhere.
    #[must_use]
    pub fn with_probe(mut self, probe: Probe) -> Self {
        self.probe = probe;
        self
    }

    fn path(&self, pid: i32) -> PathBuf {
        self.folder.join(format!("{pid}.json"))
    }

    /// An event of a session; `what` names it within the life of one process.
    fn event(&self, of: (&SessionId, i32, Option<u64>), what: &str, time: Timestamp, fact: Fact) -> Event {
        let (session, pid, start) = of;
        let name = format!("{}:{what}", process_name(pid, start));
        let mut event = Event::new(&self.source, session, time, fact);
        event.id = Some(self.reducer.event_id(&self.source, session.as_str(), &name));
        event.time = Some(time);
        event
    }

    /// Files that are worth a look: all, or the newest and the known ones where there are too many.
    fn chosen(&self, listing: &Listing) -> Vec<i32> {
        let mut pids: Vec<i32> = listing.pids.iter().copied().collect();
        if pids.len() > MAX_FILES {
            pids.sort_by_cached_key(|pid| {
                let known = self.kept.entries.get(pid).is_some_and(|known| !known.over);
                std::cmp::Reverse((known, entry::written_at(&self.path(*pid))))
            });
            pids.truncate(MAX_FILES);
        }
        pids
    }

    fn read(&mut self, pid: i32, now: Timestamp) -> Option<Entry> {
        let path = self.path(pid);
        let bytes = entry::read(&path, self.stamps.entry(pid).or_default(), now)?;
        let entry = Entry::parse(&bytes, pid, now, &self.reducer);
        if entry.is_none() {
            // It is written in place: half a file is an everyday thing, and the next look sees the whole.
            tracing::debug!(pid, "a registry file is not whole; what it said before stands");
        }
        entry
    }

    /// Takes what a file says now.
    fn heard(&mut self, pid: i32, entry: Entry, now: Timestamp, out: &mut Vec<Event>) {
        let Some(known) = self.kept.entries.get_mut(&pid) else {
            return self.first_sight(pid, entry, None, now, out);
        };
        if known.start.is_some() && entry.start.is_some() && known.start != entry.start {
            // The number belongs to another process now, so the one before is dead.
            self.gone(pid, now, out);
            self.kept.entries.remove(&pid);
            return self.first_sight(pid, entry, None, now, out);
        }
        // Not while it asks: the start is part of the name of what it asks.
        if known.start.is_none() && known.asks_since.is_none() {
            known.start = entry.start;
        }
        known.domain.clone_from(&entry.domain);
        known.written = entry.written;
        if known.session != entry.session {
            let before = known.status;
            self.left_for_another(pid, &entry, now, out);
            self.first_sight(pid, entry, Some(before), now, out);
        } else if (known.status, known.status_at) != (entry.status, entry.status_at) {
            let before = std::mem::replace(&mut known.status, entry.status);
            known.status_at = entry.status_at;
            // Whoever writes lives.
            known.over = false;
            let at = entry.status_at.unwrap_or(now);
            self.answered(pid, at, out);
            self.ask(pid, Some(before), at, out);
            self.dirty = true;
        }
    }

    /// Whether one more process can be followed; the dead ones give way.
    fn has_room(&mut self) -> bool {
        if self.kept.entries.len() >= MAX_FILES {
            let dead = self.kept.entries.iter().find(|(_, known)| known.over).map(|(pid, _)| *pid);
            dead.and_then(|pid| self.kept.entries.remove(&pid));
        }
        self.kept.entries.len() < MAX_FILES
    }

    /// A process, or one that turned to this session after `before`.
    fn first_sight(
        &mut self,
        pid: i32,
        entry: Entry,
        before: Option<Status>,
        now: Timestamp,
        out: &mut Vec<Event>,
    ) {
        if !self.has_room() {
            // Asked again when there is room.
            self.stamps.remove(&pid);
            return;
        }
        self.dirty = true;
        let mut known = Known::new(&entry);
        known.live = self.probe.check(&known.claim(pid), now);
        let dead = known.live == Liveness::Gone;
        if dead && now.since(entry.written) > STALE_MS && !self.kept.sessions.is_known(&entry.session) {
            known.over = true;
            self.kept.entries.insert(pid, known);
            return;
        }
        let turned = before.is_some();
        let began = if turned { entry.status_at } else { entry.started.or(entry.status_at) }.unwrap_or(now);
        let of = (&entry.session, pid, entry.start);
        let unfinished = self.kept.sessions.opened(&entry.session, pid, entry.start, now);
        if let Some(died) = unfinished.filter(|_| !dead) {
            out.push(self.event(of, "taken-over", died.max(began), interrupted()));
        }
        known.blind = known.live == Liveness::CannotCheck;
        let mut queued = self.event(of, "queued", began, Fact::SessionQueued(info(&entry, known.blind)));
        queued.project.clone_from(&entry.project);
        out.push(queued);
        self.kept.entries.insert(pid, known);
        if !dead {
            self.ask(pid, before, entry.status_at.unwrap_or(now), out);
        }
    }

    /// A process turned to another session (`/clear`).
    fn left_for_another(&mut self, pid: i32, next: &Entry, now: Timestamp, out: &mut Vec<Event>) {
        // What waited there is dropped with it.
        self.answered(pid, now, out);
        let Some(known) = self.kept.entries.remove(&pid) else { return };
        let of = (&known.session, pid, known.start);
        if known.status == Status::Starting {
            // It was given a name before it found out which session it continues.
            out.push(self.event(of, "renamed", now, Fact::SessionDeleted));
            return self.kept.sessions.forget(&known.session);
        }
        let at = next.status_at.filter(|at| Some(*at) >= known.status_at).unwrap_or(now);
        self.leaves(pid, &known, at);
    }

    /// Says that a process asks its person, if it does.
    fn ask(&mut self, pid: i32, before: Option<Status>, at: Timestamp, out: &mut Vec<Event>) {
        let Some(known) = self.kept.entries.get_mut(&pid) else { return };
        let Some(kind) = known.status.asks(before) else { return };
        known.asks_since = Some(at);
        let (session, start) = (known.session.clone(), known.start);
        let fact = action_required(action_id(pid, start, at), kind);
        out.push(self.event((&session, pid, start), &format!("{}:waiting", at.as_millis()), at, fact));
    }

    /// A process does not ask any more, whatever the answer was.
    fn answered(&mut self, pid: i32, at: Timestamp, out: &mut Vec<Event>) {
        let Some(known) = self.kept.entries.get_mut(&pid) else { return };
        let Some(since) = known.asks_since.take() else { return };
        let (session, start) = (known.session.clone(), known.start);
        let action = action_id(pid, start, since);
        let fact = Fact::ActionResolved { action, resolution: Resolution::Unknown };
        let what = format!("{}:answered", since.as_millis());
        out.push(self.event((&session, pid, start), &what, at.max(since), fact));
        self.dirty = true;
    }
}

impl Live for Registry {
    fn look(&mut self, now: Timestamp, out: &mut Vec<Event>) {
        let from = out.len();
        // Missing, forbidden or no folder at all: nothing there yet, and asked again at the next look.
        let listing = entry::list(&self.folder);
        if let Some(listing) = &listing {
            self.stamps.retain(|pid, _| listing.pids.contains(pid));
            for pid in self.chosen(listing) {
                if let Some(entry) = self.read(pid, now) {
                    self.heard(pid, entry, now, out);
                }
            }
        }
        self.check_processes(now, listing.as_ref(), out);
        self.say_writers(now, out);
        self.listed |= listing.is_some();
        for event in &mut out[from..] {
            event.observed = now;
        }
    }

    fn changed(&mut self) -> Option<Vec<u8>> {
        if !std::mem::take(&mut self.dirty) {
            return None;
        }
        let mut bytes = vec![LAYOUT];
        bytes.extend(postcard::to_stdvec(&self.kept).ok()?);
        Some(bytes)
    }
}

// === impl Known ===

impl Known {
    fn new(entry: &Entry) -> Self {
        Self {
            session: entry.session.clone(),
            start: entry.start,
            started: entry.started,
            status: entry.status,
            status_at: entry.status_at,
            written: entry.written,
            asks_since: None,
            seen_alive: false,
            over: false,
            blind: false,
            domain: entry.domain.clone(),
            live: Liveness::CannotCheck,
            missing: None,
        }
    }

    fn claim(&self, pid: i32) -> Claim<'_> {
        Claim {
            pid,
            start: self.start,
            started: self.started,
            domain: self.domain.as_deref(),
            seen_alive: self.seen_alive,
            last_word: self.written,
        }
    }

    fn in_turn(&self) -> bool {
        self.status.in_turn() || self.asks_since.is_some()
    }
}

/// Names a process in ids: its number alone is given to others later.
fn process_name(pid: i32, start: Option<u64>) -> String {
    format!("registry:{pid}:{}", start.unwrap_or_default())
}

fn action_id(pid: i32, start: Option<u64>, since: Timestamp) -> Id {
    Id::from(format!("{}:{}", process_name(pid, start), since.as_millis()).as_str())
}

/// A dialog is open. Which call it holds up is not said; the transcript may tell.
fn action_required(action: Id, kind: ActionKind) -> Fact {
    Fact::Dialog { action, kind }
}

/// The process that worked at it died, and another one took the session over.
fn interrupted() -> Fact {
    Fact::TurnEnded {
        outcome: TurnOutcome::Interrupted,
        error: None,
        reset: None,
        denied: false,
        result_known: true,
    }
}

/// What is told of a session at first. `blind`: whether its process lives cannot be checked from here.
fn info(entry: &Entry, blind: bool) -> SessionInfo {
    let sees = if blind { SEES.without(Capability::Liveness) } else { SEES };
    SessionInfo {
        agent: Some(Name::from(AGENT)),
        version: entry.version.clone(),
        originator: entry.entrypoint.clone(),
        interactive: entry.interactive(),
        capabilities: Some(sees),
        ..SessionInfo::default()
    }
}
