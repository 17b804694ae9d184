//! What is asked, and what follows from the answers. Asked is only what the stream cannot tell: once per connection
//! what works and what waits for a person, then the details of what we do not know the newest of; the same once for
//! each further directory that the stream names; and, while a session of the second generation works, whether it
//! still does.
//!
//! A session that a status leaves out is idle, or run by another server: only one that this server's stream carried
//! is ended here, and only by a status that covers its directory.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::state::{Doubt, Session, Tell, keep};
use super::v2::time_of;
use super::wire::{
    Data, Info, Kept, Pending, Raw, Status, elements, list, made, millis, object, pairs, shape, text, word,
};
use super::{Heard, Opencode, plain};
use crate::event::{ActionKind, Fact, Id, Name, Resolution, SessionId, Timestamp};
use crate::sources::DecodeError;
use crate::sources::live::{Answer, Ask, AskError, Said};
use crate::sources::shape::json;

// What is asked.
const LIST: u32 = 1;
const HERE: u32 = 2;
const STATUS: u32 = 3;
const PERMISSIONS: u32 = 4;
const QUESTIONS: u32 = 5;
pub(super) const PAGE: u32 = 6;
pub(super) const HISTORY: u32 = 7;
const ACTIVE: u32 = 8;
const NEXT_HISTORY: u32 = 9;
const NEXT_PERMISSIONS: u32 = 10;
const NEXT_QUESTIONS: u32 = 11;

/// Sessions of one page of the list; the server's own default is 100.
const LISTED: usize = 300;
/// Pages of the list. Only a list that is complete allows the question for the history.
const MAX_PAGES: usize = 10;
/// Sessions whose place in the history is not known and that are asked about one by one.
const MAX_SINGLY: usize = 16;
/// Directories that are asked about in one connection.
const MAX_DIRECTORIES: usize = 64;
/// Sessions that were deleted and are remembered.
const MAX_GONE: usize = 256;
/// Milliseconds between two looks at what works in the second generation.
const ACTIVE_EVERY_MS: i64 = 15_000;

/// Where the questions of this connection stand.
#[derive(Default)]
pub(super) struct Survey {
    /// The stream waits for the answers.
    holding: bool,
    /// Questions without an answer.
    open: usize,
    /// Records heard when a question was asked, by tag and subject.
    since: HashMap<(u32, Option<Arc<str>>), u64>,
    /// Questions of this catching up that were answered as they should be.
    good: usize,
    /// Sessions as they were listed.
    pub(super) listed: HashMap<SessionId, Listed>,
    /// Pages of the list so far.
    pages: usize,
    /// The list has all there are.
    pub(super) complete: bool,
    /// The directory the server was started in, if that is sure.
    here: Option<u64>,
    /// Directories that were asked about.
    asked: HashSet<u64>,
    pub(super) gone: VecDeque<SessionId>,
    active_at: Option<Timestamp>,
    /// Turns of the second generation that the last look did not find at work.
    missed: HashSet<(SessionId, Id)>,
    /// Instances that were closed while questions were open, and records heard by then.
    closed: HashMap<u64, u64>,
    /// Sessions nobody told of that changed while nobody listened.
    pub(super) found: HashSet<SessionId>,
}

/// A session of the list.
#[derive(Clone)]
pub(super) struct Listed {
    parent: Option<SessionId>,
    project: Option<Name>,
    directory: Option<u64>,
    created: Option<Timestamp>,
    pub(super) updated: Option<Timestamp>,
}

// === impl Survey ===

impl Survey {
    pub(super) fn holds(&self) -> bool {
        self.holding
    }

    pub(super) fn stop(&mut self) {
        let gone = std::mem::take(&mut self.gone);
        *self = Self { gone, ..Self::default() };
    }

    pub(super) fn gone(&mut self, session: SessionId) {
        self.listed.remove(&session);
        if !self.gone.contains(&session) {
            keep(&mut self.gone, session, MAX_GONE);
        }
    }

    pub(super) fn is_gone(&self, session: &SessionId) -> bool {
        self.gone.contains(session)
    }

    /// An instance was closed; the next one of its directory is another.
    pub(super) fn closed(&mut self, directory: u64, count: u64) {
        self.asked.remove(&directory);
        if self.open > 0 {
            self.closed.insert(directory, count);
        }
    }

    /// Whether what was answered is of an instance that was closed since it was asked.
    fn is_closed(&self, scope: Option<u64>, since: u64) -> bool {
        scope.or(self.here).and_then(|directory| self.closed.get(&directory)).is_some_and(|at| *at > since)
    }

    /// Says of a session that is new to us what the list said.
    pub(super) fn introduce(&self, session: &mut Session, t: &mut Tell<'_>) {
        let Some(listed) = self.listed.get(&session.id).cloned() else { return };
        session.parent = listed.parent;
        session.project = listed.project;
        session.directory = listed.directory;
        session.created = listed.created;
        let info = crate::event::SessionInfo {
            agent: Some(Name::from("opencode")),
            endpoint: Some(t.common.endpoint.clone()),
            ..Default::default()
        };
        session.push(t, "created", listed.created.unwrap_or(t.time), Fact::SessionQueued(info));
    }

    /// Whether a question about this directory tells of it: of the server's own where none was named.
    fn covers(&self, scope: Option<u64>, session: &Session) -> bool {
        session.directory.is_some() && session.directory == scope.or(self.here)
    }
}

/// Whether this may be where a page begins: the server counts in milliseconds.
fn is_cursor(text: &str) -> bool {
    (1..=20).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit())
}

/// A query that names a directory.
fn within(path: &str, directory: &str) -> String {
    format!("{path}?directory={}", utf8_percent_encode(directory, NON_ALPHANUMERIC))
}

// === impl Opencode ===

impl Opencode {
    pub(super) fn ask(&mut self, ask: Ask, said: &mut Said) {
        let key = (ask.tag, ask.about.clone());
        self.survey.since.insert(key, self.count);
        self.survey.open += 1;
        said.asks.push(ask);
    }

    /// The first question of a connection; what else is asked depends on which sessions there are.
    pub(super) fn survey_everything(&mut self, _: Timestamp, said: &mut Said) {
        self.survey.stop();
        self.survey.holding = true;
        self.ask(Ask::get(LIST, format!("/experimental/session?limit={LISTED}&archived=true")), said);
    }

    /// The questions after the list, with or without one.
    fn survey_the_rest(&mut self, said: &mut Said) {
        if self.has_open_sessions() {
            self.ask(Ask::get(HERE, format!("/session?limit={LISTED}")), said);
        }
        for (tag, path) in [
            (STATUS, "/session/status"),
            (PERMISSIONS, "/permission"),
            (QUESTIONS, "/question"),
            (ACTIVE, "/api/session/active"),
        ] {
            self.ask(Ask::get(tag, path), said);
        }
    }

    fn has_open_sessions(&self) -> bool {
        self.sessions.all.values().any(Session::is_open)
    }

    /// The stream named a directory, so there is an instance of it: it may be asked.
    pub(super) fn named(&mut self, directory: &str, said: &mut Said) {
        let hash = self.common.hash(directory);
        if self.live.contains_key(&hash) && self.survey.asked.contains(&hash) || directory == "global" {
            return;
        }
        if self.survey.asked.len() >= MAX_DIRECTORIES {
            return;
        }
        let directory: Arc<str> = Arc::from(directory);
        self.live.insert(hash, directory.clone());
        self.survey.asked.insert(hash);
        // What was asked of the server's own directory holds.
        if self.survey.here == Some(hash) {
            return;
        }
        for (tag, path) in
            [(STATUS, "/session/status"), (PERMISSIONS, "/permission"), (QUESTIONS, "/question")]
        {
            self.ask(Ask::get(tag, within(path, &directory)).about(&directory), said);
        }
    }

    /// Asks now and then whether sessions of the second generation still work: they may stop without a word.
    pub(super) fn ask_active(&mut self, now: Timestamp, said: &mut Said) {
        let works = self.sessions.all.values().any(|s| s.v2 && s.turn.is_some());
        let due = self.survey.active_at.is_none_or(|at| now.since(at) >= ACTIVE_EVERY_MS);
        if works && due && !self.survey.since.contains_key(&(ACTIVE, None)) {
            self.survey.active_at = Some(now);
            self.ask(Ask::get(ACTIVE, "/api/session/active"), said);
        }
    }

    /// An answer, or none.
    pub(super) fn hear(
        &mut self,
        ask: &Ask,
        answer: &Result<Answer, AskError>,
        now: Timestamp,
        said: &mut Said,
    ) -> Result<(), DecodeError> {
        let since = self.survey.since.remove(&(ask.tag, ask.about.clone())).unwrap_or(self.count);
        self.survey.open = self.survey.open.saturating_sub(1);
        self.survey.good += usize::from(answer.as_ref().is_ok_and(|answer| answer.status == 200));
        let result = self.heard(ask, answer, since, now, said);
        if self.survey.open == 0 {
            self.survey.closed.clear();
        }
        if self.survey.open == 0 && std::mem::take(&mut self.survey.holding) {
            // It has a stream, but not one of the answers of this server.
            said.give_up |= self.survey.good == 0;
        }
        result
    }

    fn heard(
        &mut self,
        ask: &Ask,
        answer: &Result<Answer, AskError>,
        since: u64,
        now: Timestamp,
        said: &mut Said,
    ) -> Result<(), DecodeError> {
        let session = ask.about.as_deref().map(|about| self.common.session(about));
        let status = answer.as_ref().map_or(0, |answer| answer.status);
        let body = answer.as_ref().ok().and_then(|answer| std::str::from_utf8(&answer.body).ok());
        if ask.tag == PAGE && status == 404 {
            if let Some(id) = &session
                && let Some(known) = self.sessions.get(id)
            {
                let mut t = Tell { common: &mut self.common, said, observed: now, time: now, replay: false };
                known.push(&mut t, "deleted", now, Fact::SessionDeleted);
            }
            self.gone(ask.about.as_deref().unwrap_or_default());
            return Ok(());
        }
        if status != 200 {
            match ask.tag {
                LIST => self.survey_the_rest(said),
                // Without history the newest messages have to do.
                HISTORY => self.ask_pages(&self.in_question(), said),
                _ => {}
            }
            return Ok(());
        }
        let body = body.and_then(json).filter(|body| ask.tag != LIST || body.get().starts_with('['));
        let Some(body) = body else {
            if ask.tag == LIST {
                self.survey_the_rest(said);
            }
            return Err(DecodeError::Json);
        };
        let scope = ask.about.as_deref().map(|about| self.common.hash(about));
        match ask.tag {
            STATUS | PERMISSIONS | QUESTIONS if self.survey.is_closed(scope, since) => {}
            LIST => {
                self.list(Some(body));
                let next = answer.as_ref().ok().and_then(|answer| answer.next.as_deref());
                self.survey.complete = next.is_none();
                self.survey.pages += 1;
                let next = next.filter(|next| is_cursor(next) && self.survey.pages < MAX_PAGES);
                if let Some(next) = next {
                    let path = format!("/experimental/session?limit={LISTED}&archived=true&cursor={next}");
                    self.ask(Ask::get(LIST, path), said);
                    return Ok(());
                }
                // One that is not there any more was deleted, unless it says otherwise itself.
                let complete = self.survey.complete;
                let listed = &self.survey.listed;
                let absent = self.sessions.all.keys().filter(|id| complete && !listed.contains_key(id));
                let absent: Vec<SessionId> = absent.take(MAX_DIRECTORIES).cloned().collect();
                self.ask_pages(&absent, said);
                self.survey_the_rest(said);
            }
            HERE => {
                let all: Vec<Info<'_>> = list(Some(body));
                let mut found = all.iter().filter_map(|info| text(info.directory));
                // Sessions of a project may be in several folders; then it is not sure which one answers.
                self.survey.here = found
                    .next()
                    .filter(|first| found.all(|other| other == *first))
                    .map(|directory| self.common.hash(&directory));
            }
            STATUS => self.statuses(Some(body), scope, since, now, said),
            PERMISSIONS => self.waiting(Some(body), ActionKind::Permission, scope, since, now, said),
            QUESTIONS => self.waiting(Some(body), ActionKind::Question, scope, since, now, said),
            PAGE => {
                let (about, before) = (ask.about.as_deref().unwrap_or_default(), said.events.len());
                self.page(about, Some(body), now, said);
                self.conclude(about, now, said);
                self.settle_found(about, before, said);
            }
            HISTORY => {
                self.history(Some(body), now, said);
                for id in self.open_ones() {
                    self.conclude(id.as_str(), now, said);
                }
            }
            ACTIVE => self.active(Some(body), now, said),
            NEXT_HISTORY => self.next_history(object::<Data<'_>>(Some(body)).data, now, said),
            NEXT_PERMISSIONS | NEXT_QUESTIONS => {
                let permission = ask.tag == NEXT_PERMISSIONS;
                let kind = if permission { ActionKind::Permission } else { ActionKind::Question };
                let Some(id) = session else { return Ok(()) };
                let data = object::<Data<'_>>(Some(body)).data;
                self.waits(data, kind, since, now, said);
                self.answered_since(data, kind, since, now, said, |s| s.id == id);
            }
            _ => {}
        }
        Ok(())
    }

    fn list(&mut self, body: Raw<'_>) {
        for info in list::<Info<'_>>(body).into_iter().take(LISTED) {
            let Some(id) = text(info.id) else { continue };
            let directory = text(info.directory);
            let project = directory.as_deref().and_then(|d| self.common.reducer.project_of(d));
            let listed = Listed {
                parent: text(info.parent).map(|parent| self.common.session(&parent)),
                project: project.map(|p| Name::from(p.as_str())),
                directory: directory.map(|d| self.common.hash(&d)),
                created: millis(info.time.created),
                updated: millis(info.time.updated),
            };
            self.survey.listed.insert(self.common.session(&id), listed);
        }
    }

    /// What works, as the server says. What the stream told since it was asked is newer.
    fn statuses(&mut self, body: Raw<'_>, scope: Option<u64>, since: u64, now: Timestamp, said: &mut Said) {
        let mut working = HashSet::new();
        let mut wanted = Vec::new();
        for (id, status) in pairs(body).into_iter().take(LISTED) {
            let id = self.common.session(id);
            // A deleted one may go on being busy there.
            let there = !self.survey.complete
                || self.survey.listed.contains_key(&id)
                || self.sessions.all.contains_key(&id);
            if !there || self.survey.is_gone(&id) {
                continue;
            }
            working.insert(id.clone());
            if self.sessions.get(&id).is_some_and(|s| s.edges > since) {
                continue;
            }
            let news = self.sessions.get(&id).is_none_or(|s| s.doubt != Doubt::None || !s.busy);
            let status: Status<'_> = object(status);
            let name = id.as_str().to_owned();
            self.about(&name, said, now, now, false, |s, t| s.status(t, &status));
            if news {
                wanted.push(id);
            }
        }
        let silent: Vec<SessionId> = self
            .sessions
            .all
            .values()
            .filter(|s| s.doubt != Doubt::None && !s.v2 && s.edges <= since && !working.contains(&s.id))
            .filter(|s| self.survey.covers(scope, s))
            .map(|s| s.id.clone())
            .collect();
        for id in silent {
            let once = self.sessions.get(&id).is_some_and(|s| s.doubt == Doubt::Once);
            if once {
                // Twice not at work, and nothing was ever finished.
                let name = id.as_str().to_owned();
                self.about(&name, said, now, now, false, |s, t| s.interrupted(t));
            } else {
                if let Some(session) = self.sessions.get(&id) {
                    session.busy = false;
                }
                wanted.push(id);
            }
        }
        // What else was heard of may have worked in between: the history tells it in one answer.
        if scope.is_none() && self.survey.holding {
            let mut singly = MAX_SINGLY;
            let others = self.sessions.all.values().filter(|s| {
                singly -= usize::from(s.seq.is_none() && singly > 0);
                !s.v2 && !wanted.contains(&s.id) && (s.seq.is_some() || singly > 0)
            });
            let others: Vec<SessionId> = others.map(|s| s.id.clone()).collect();
            if self.survey.complete {
                wanted.extend(others);
            }
        }
        self.ask_details(wanted, said);
        if scope.is_none() && self.survey.holding {
            self.ask_found(said);
        }
    }

    /// Asks again about sessions that do not work, but never finished what they did.
    pub(super) fn ask_again(&mut self, now: Timestamp, said: &mut Said) {
        let due =
            |s: &&mut Session| s.doubt == Doubt::Once && s.again_at.is_some_and(|at| now.since(at) >= 0);
        let mut scopes = HashSet::new();
        for session in self.sessions.all.values_mut().filter(due) {
            session.again_at = None;
            scopes.extend(session.directory);
        }
        for scope in scopes {
            if self.survey.here == Some(scope) {
                self.ask(Ask::get(STATUS, "/session/status"), said);
            } else if let Some(directory) = self.live.get(&scope).cloned() {
                self.ask(Ask::get(STATUS, within("/session/status", &directory)).about(&directory), said);
            }
        }
    }

    /// Asks how the turns of sessions ended that were in doubt when their instance was closed.
    pub(super) fn ask_ends(&mut self, directory: u64, said: &mut Said) {
        let mut asked = Vec::new();
        for session in self.sessions.all.values_mut().filter(|s| s.directory == Some(directory)) {
            if session.doubt != Doubt::None && session.turn.is_some() && !session.v2 {
                (session.doubt, session.busy) = (Doubt::Once, false);
                asked.push(session.id.clone());
            }
        }
        self.ask_pages(&asked, said);
    }

    /// What waits for a person, and what does not any more.
    fn waiting(
        &mut self,
        body: Raw<'_>,
        kind: ActionKind,
        scope: Option<u64>,
        since: u64,
        now: Timestamp,
        said: &mut Said,
    ) {
        self.waits(body, kind, since, now, said);
        let here = self.survey.here;
        self.answered_since(body, kind, since, now, said, |s| {
            !s.v2 && s.directory.is_some() && s.directory == scope.or(here)
        });
    }

    fn waits(&mut self, body: Raw<'_>, kind: ActionKind, since: u64, now: Timestamp, said: &mut Said) {
        for waits in list::<Pending<'_>>(body).into_iter().take(LISTED) {
            let Some(session) = text(waits.session) else { continue };
            // What it asked in a turn that ended since nobody waits for any more.
            let known = self.sessions.get(&self.common.session(&session));
            if known.is_some_and(|s| s.edges > since && !s.is_open()) {
                continue;
            }
            // Requests are named like events: their ids tell when they were made.
            let time = text(waits.id).and_then(|id| {
                let spelled = format!("\"evt_{}\"", id.split_once('_')?.1);
                made(json(&spelled), now)
            });
            self.about(&session, said, now, now, false, |s, t| s.asked(t, &waits, kind, time.unwrap_or(now)));
        }
    }

    /// Requests that were open before the connection was lost and are not any more.
    fn answered_since(
        &mut self,
        body: Raw<'_>,
        kind: ActionKind,
        since: u64,
        now: Timestamp,
        said: &mut Said,
        covers: impl Fn(&Session) -> bool,
    ) {
        if self.count > since && !self.survey.holding {
            // The stream went on: it told what was answered, and the list may be older than what was asked since.
            return;
        }
        let open: HashSet<_> = list::<Pending<'_>>(body)
            .iter()
            .filter_map(|p| text(p.id))
            .map(|id| self.common.id(&id))
            .collect();
        for session in self.sessions.all.values_mut().filter(|s| covers(s)) {
            let question = kind == ActionKind::Question;
            let gone: Vec<_> = session
                .pending
                .iter()
                .filter(|p| p.question == question && !open.contains(&p.id))
                .map(|p| p.id.clone())
                .collect();
            for action in gone {
                let mut t = Tell { common: &mut self.common, said, observed: now, time: now, replay: false };
                session.resolve(&mut t, &action, Resolution::Unknown);
            }
        }
    }

    /// Which sessions of the second generation work.
    fn active(&mut self, body: Raw<'_>, now: Timestamp, said: &mut Said) {
        let data = object::<Data<'_>>(body).data;
        let working: HashSet<SessionId> =
            pairs(data).into_iter().take(LISTED).map(|(id, _)| self.common.session(id)).collect();
        for id in &working {
            let known = self.sessions.get(id).map(|s| (s.v2, s.doubt, s.seq, s.turn.is_some()));
            let doubt = match known {
                Some((true, doubt, _, turn)) => doubt != Doubt::None || !turn,
                Some((false, _, _, true)) => false,
                _ => true,
            };
            if doubt && plain(id) && (self.survey.holding || known.is_none()) {
                let name = id.as_str().to_owned();
                self.about(&name, said, now, now, false, |s, _| s.v2 = true);
                let after = known.and_then(|k| k.2).map_or(String::new(), |seq| format!("?after={seq}"));
                self.ask(
                    Ask::get(NEXT_HISTORY, format!("/api/session/{name}/history{after}")).about(&name),
                    said,
                );
                self.ask(
                    Ask::get(NEXT_PERMISSIONS, format!("/api/session/{name}/permission")).about(&name),
                    said,
                );
                self.ask(
                    Ask::get(NEXT_QUESTIONS, format!("/api/session/{name}/question")).about(&name),
                    said,
                );
            }
        }
        let silent = self.sessions.all.values().filter(|s| s.v2 && !working.contains(&s.id));
        let turn = |s: &Session| Some((s.id.clone(), s.turn.as_ref()?.request.clone()));
        let silent: HashSet<(SessionId, Id)> = silent.filter_map(turn).collect();
        for (id, _) in silent.intersection(&std::mem::take(&mut self.survey.missed)) {
            let name = id.as_str().to_owned();
            self.about(&name, said, now, now, false, |s, t| s.not_active(t));
        }
        self.survey.missed = silent;
    }

    fn next_history(&mut self, data: Raw<'_>, now: Timestamp, said: &mut Said) {
        for kept in elements(data).into_iter().filter_map(shape::<NextKept<'_>>) {
            let (kind, name) = (word(kept.kind), word(kept.id));
            let time = time_of(&kept.data).or_else(|| made(kept.id, now)).unwrap_or(now);
            self.event(
                &Heard { id: &name, kind: &kind, props: &kept.data, observed: now, time, replay: true },
                said,
            );
            self.kept(&kept.durable);
        }
    }
}

crate::sources::shape::shapes! {
    /// An element of the history of the second generation.
    NextKept { id, kind = "type", durable: Kept, data: NextProps }
}

/// The shape of its data is that of the stream.
type NextProps<'a> = super::wire::Props<'a>;
