//! OpenFox: one silent WebSocket tells what all its sessions do, a list that is asked for now and then tells what the
//! stream leaves out (confirmations, sessions nobody announced), and the status of one session is asked when in doubt.
//! Nothing but GET is ever sent, and no frame: a client that loads a session starts work in the server.
//!
//! Recorded from version 2.0.127. Traps of the protocol that shape this room:
//! - frames carry no time, so the moment of reading is theirs; `seq` is per session, with gaps that mean nothing, and
//!   nothing is sent twice: what was missed has to come from the answers;
//! - the end of a run is sent two or three times, and who ended it shows only in the order of the frames around it;
//! - failures of the model, retries, queues and a restart of the server are not told at all: what cannot be known is
//!   absent, or ends without a result;
//! - in the list `phase` and the counts of criteria are stale, and `mode` may be (it was: planner for a builder).
//!
//! A sub-agent is a part of its session here: it has no begin and no end of its own, its calls carry no word of it,
//! and the server lists no such session.

mod answers;
mod calls;
mod flow;
mod frames;
mod known;
mod runs;
mod wire;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};

use self::answers::Polls;
use self::known::Known;
use self::runs::Verdict;
use self::wire::{Frame, from_line};
use super::arguments::Memory;
use super::live::{self, Answer, Ask, AskError, LiveSource, Opening, Peer, Said, Stream, Token};
use super::recorded::Form;
use super::{DecodeError, Record, SourceDef};
use crate::event::{
    ActivityClass, Capabilities, Capability, Event, Fact, Id, Mode, Name, Reducer, SessionId, SessionInfo,
    SourceId, Timestamp, Writer,
};

/// The OpenFox source in the list.
pub const DEF: SourceDef = SourceDef {
    name: "openfox",
    about: "OpenFox, from the event stream of its server",
    maturity: "experimental",
    default_on: true,
    capabilities: Capabilities::of(Capability::ALL),
    of_some: Capabilities(0),
    looks_at: "http://127.0.0.1:10369",
    live: Some(&SERVERS),
    sees_stops: false,
    retells: &[],
    recorded: Form::Server(&SERVERS),
    start: Some(|context| live::start(&SERVERS, context)),
};

/// How its servers are followed.
pub static SERVERS: LiveSource = LiveSource {
    name: "openfox",
    servers: &["http://127.0.0.1:10369"],
    stream: Stream::Socket { path: "/ws", port_offset: 0, hello: None },
    quiet: None,
    patience: Duration::from_secs(10),
    health: &["/api/health"],
    token: Token::Named { header: "x-session-token", query: "token" },
    username: "",
    new: |opening, kept| Box::new(OpenFox::new(opening, kept)),
};

/// Product name in `info`.
const AGENT: &str = "openfox";
/// Sessions that are remembered.
const MAX_SESSIONS: usize = 1_000;
/// Deleted sessions of which late frames are ignored.
const MAX_GONE: usize = 64;
/// Longest id of a session; they are UUIDs.
const MAX_ID: usize = 128;
/// Bytes of the checkpoint.
const MAX_CHECKPOINT: usize = 60 << 10;
/// Version of the checkpoint's layout.
const LAYOUT: u8 = 2;
/// What stays as it is in a part of a path.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// One server of OpenFox.
pub struct OpenFox {
    shared: Shared,
    sessions: HashMap<SessionId, Known>,
    gone: VecDeque<SessionId>,
    polls: Polls,
    /// Something changed that has to survive a restart.
    dirty: bool,
    /// Something changed that may wait for the next tick with that.
    dirty_soon: bool,
}

/// What is needed to say something.
struct Shared {
    source: SourceId,
    endpoint: Name,
    base: String,
    reducer: Arc<Reducer>,
    memory: Memory,
    version: Option<Name>,
    /// Number of events so far, which tells those of one moment apart.
    events: u32,
}

/// Where what is said goes.
struct Out<'a> {
    shared: &'a mut Shared,
    said: &'a mut Said,
    now: Timestamp,
}

/// The checkpoint: sessions are written one by one, so that it can be bounded.
#[derive(Serialize, Deserialize)]
struct Kept {
    version: Option<Name>,
    gone: Vec<SessionId>,
    sessions: Vec<Vec<u8>>,
}

// === impl OpenFox ===

impl OpenFox {
    /// A peer, from what an earlier run kept.
    pub fn new(opening: &Opening, kept: Option<&[u8]>) -> Self {
        let mut fox = Self {
            shared: Shared {
                source: opening.source.clone(),
                endpoint: opening.endpoint.clone(),
                base: opening.base.clone(),
                reducer: opening.reducer.clone(),
                memory: Memory::default(),
                version: None,
                events: 0,
            },
            sessions: HashMap::new(),
            gone: VecDeque::new(),
            polls: Polls::default(),
            dirty: false,
            dirty_soon: false,
        };
        if let Some(kept) = kept.and_then(read_kept) {
            fox.shared.version = kept.version;
            fox.gone = kept.gone.into();
            for piece in kept.sessions {
                if let Ok(known) = postcard::from_bytes::<Known>(&piece) {
                    fox.sessions.insert(known.id.clone(), known);
                }
            }
        }
        fox
    }

    /// Makes room for a session.
    fn make_room(&mut self) {
        if self.sessions.len() < MAX_SESSIONS {
            return;
        }
        // One at work leaves last.
        let oldest = self.sessions.values().min_by_key(|known| (known.is_open(), known.heard));
        if let Some(id) = oldest.map(|known| known.id.clone()) {
            self.sessions.remove(&id);
        }
    }

    /// Hands a session and the way to say something to whoever works on both.
    fn with<R>(
        &mut self,
        id: &SessionId,
        now: Timestamp,
        said: &mut Said,
        work: impl FnOnce(&mut Known, &mut Out<'_>) -> R,
    ) -> R {
        if !self.sessions.contains_key(id) {
            self.make_room();
        }
        let known = self.sessions.entry(id.clone()).or_insert_with(|| Known::new(id.clone(), now));
        work(known, &mut Out { shared: &mut self.shared, said, now })
    }

    /// The same for every session, in the order of their ids.
    fn with_each(&mut self, now: Timestamp, said: &mut Said, mut work: impl FnMut(&mut Known, &mut Out<'_>)) {
        let mut all: Vec<&mut Known> = self.sessions.values_mut().collect();
        all.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        for known in all {
            work(known, &mut Out { shared: &mut self.shared, said, now });
        }
    }

    /// The server removed a session.
    fn deleted(&mut self, id: &SessionId, now: Timestamp, said: &mut Said) {
        if let Some(known) = self.sessions.remove(id) {
            Out { shared: &mut self.shared, said, now }.push(&known, now, Fact::SessionDeleted);
        }
        if self.gone.len() >= MAX_GONE {
            self.gone.pop_front();
        }
        self.gone.push_back(id.clone());
        self.dirty = true;
    }
}

impl Peer for OpenFox {
    fn connected(&mut self, now: Timestamp, said: &mut Said) {
        if self.shared.events == 0 {
            // Counted on from where no earlier process was: what it told of a moment, this one may tell more of.
            self.shared.events = now.as_millis() as u32;
        }
        for known in self.sessions.values_mut() {
            (known.doubt, known.asked, known.told, known.unlisted) = (None, false, false, false);
            known.overtaken = false;
            (known.resumed, known.listed) = (true, None);
            if let Some(run) = &mut known.run {
                run.cut = true;
            }
            for call in &mut known.calls {
                call.stale = true;
            }
        }
        self.begin_catching_up(now, said);
    }

    fn lost(&mut self, now: Timestamp, said: &mut Said) {
        self.polls.stop();
        self.with_each(now, said, |known, out| {
            known.begin_if_beginning(out);
            // What comes after the end of a run does not come any more.
            if let Some(run) = known.run.as_mut().filter(|run| run.fell.is_some()) {
                run.cut = true;
                if known.verdict() != Verdict::Unknown {
                    known.settle(out);
                }
            }
            known.tell_activity(out);
            if std::mem::take(&mut known.alive) {
                out.push(known, now, Fact::Writer(Writer::Unknown));
            }
        });
        self.dirty = true;
    }

    fn record(&mut self, record: &Record<'_>, said: &mut Said) -> Result<(), DecodeError> {
        let frame: Frame<'_> = from_line(record.bytes)?;
        self.frame(&frame, record.observed, said)
    }

    fn answered(
        &mut self,
        ask: &Ask,
        answer: &Result<Answer, AskError>,
        now: Timestamp,
        said: &mut Said,
    ) -> Result<(), DecodeError> {
        self.hear(ask, answer, now, said)
    }

    fn tick(&mut self, now: Timestamp, said: &mut Said) {
        let mut changed = false;
        self.with_each(now, said, |known, out| {
            changed |= known.tick(out);
        });
        self.dirty |= changed | std::mem::take(&mut self.dirty_soon);
        self.poll(now, said);
    }

    fn catching_up(&self) -> bool {
        self.polls.catching_up()
    }

    fn has_open(&self) -> bool {
        self.sessions.values().any(Known::is_open)
    }

    fn changed(&mut self) -> Option<Vec<u8>> {
        if !std::mem::take(&mut self.dirty) {
            return None;
        }
        self.dirty_soon = false;
        let mut all: Vec<&Known> = self.sessions.values().collect();
        all.sort_unstable_by_key(|known| (!known.is_open(), std::cmp::Reverse(known.heard)));
        let mut kept = Kept {
            version: self.shared.version.clone(),
            gone: self.gone.iter().cloned().collect(),
            sessions: Vec::new(),
        };
        // Ids of sessions are bounded, so that the rest of the room is theirs.
        let mut room = MAX_CHECKPOINT.saturating_sub(self.gone.len() * (MAX_ID + 2));
        for known in all {
            let Ok(piece) = postcard::to_allocvec(known) else { continue };
            if piece.len() + 3 > room {
                continue;
            }
            room -= piece.len() + 3;
            kept.sessions.push(piece);
        }
        postcard::to_extend(&kept, vec![LAYOUT]).ok()
    }
}

fn read_kept(bytes: &[u8]) -> Option<Kept> {
    let (&layout, rest) = bytes.split_first()?;
    if layout != LAYOUT {
        return None;
    }
    postcard::from_bytes(rest).ok()
}

/// An id as part of a path.
fn encoded(id: &str) -> String {
    utf8_percent_encode(id, PLAIN).to_string()
}

/// What OpenFox calls what an agent is set up to do.
fn mode_of(text: &str) -> Option<Mode> {
    Some(match text {
        "" => return None,
        "planner" => Mode::Plan,
        "builder" => Mode::Build,
        "verifier" => Mode::Verify,
        other => Mode::parse(other).unwrap_or(Mode::Other),
    })
}

// === impl Shared ===

impl Shared {
    fn id(&self, text: &str) -> Id {
        Id::from(self.reducer.bounded(text).as_str())
    }

    fn name(&self, text: &str) -> Name {
        Name::from(self.reducer.bounded(text).as_str())
    }

    fn hash(&self, text: &str) -> u64 {
        self.reducer.hash(text.as_bytes())
    }
}

// === impl Out ===

impl Out<'_> {
    /// Says a fact about a session.
    fn push(&mut self, known: &Known, time: Timestamp, fact: Fact) {
        self.push_of(known, time, known.turn.clone(), fact);
    }

    /// The same of another turn than the open one.
    fn push_of(&mut self, known: &Known, time: Timestamp, request: Option<Id>, fact: Fact) {
        self.shared.events = self.shared.events.wrapping_add(1);
        // What happens in one millisecond is told apart by its number, and is ordered by it: frames have no times.
        let moment = format!("{}", time.as_millis());
        let hash = self.shared.reducer.event_id(&self.shared.source, known.id.as_str(), &moment);
        let id = (hash & !u64::from(u32::MAX)) | u64::from(self.shared.events);
        let mut event = Event::new(&self.shared.source, &known.id, self.now, fact);
        event.id = Some(id);
        event.time = Some(time);
        event.project.clone_from(&known.project);
        event.request = request;
        self.said.events.push(event);
    }

    /// Asks for the status of a session, unless that is being done.
    fn ask_status(&mut self, known: &mut Known) {
        if !std::mem::replace(&mut known.asked, true) {
            known.overtaken = false;
            self.said.asks.push(answers::status_of(&known.id));
        }
    }
}

// === impl Known ===

impl Known {
    /// Says what is known of the session itself, once per process.
    fn introduce(&mut self, out: &mut Out<'_>) {
        if std::mem::replace(&mut self.told, true) {
            return;
        }
        let link = |project: &String| {
            let base = &out.shared.base;
            let link = format!("{base}/p/{}/s/{}", encoded(project), encoded(self.id.as_str()));
            out.shared.name(&link)
        };
        let info = SessionInfo {
            agent: Some(Name::from(AGENT)),
            version: out.shared.version.clone(),
            mode: self.mode,
            phase: self.phase,
            model: self.model.clone(),
            provider: self.provider.clone(),
            interactive: Some(true),
            url: self.project_id.as_ref().map(link),
            endpoint: Some(out.shared.endpoint.clone()),
            ..SessionInfo::default()
        };
        out.push(self, out.now, Fact::SessionUpdated(info));
    }

    /// Says properties that changed.
    fn update(&mut self, out: &mut Out<'_>, info: SessionInfo) {
        if self.told {
            out.push(self, out.now, Fact::SessionUpdated(info));
        } else {
            self.introduce(out);
        }
    }

    /// Says that there was work, as of the newest sign of it. Said at most once a tick: a model that writes sends
    /// hundreds of frames.
    fn tell_activity(&mut self, out: &mut Out<'_>) {
        if self.run.as_ref().is_some_and(|run| run.beginning) {
            return;
        }
        if let Some(at) = self.active.take() {
            out.push(self, at, Fact::Activity { class: ActivityClass::Work, message: false });
        }
    }
}
