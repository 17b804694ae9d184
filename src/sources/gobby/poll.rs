//! Questions to the daemon: the list of sessions, which joins both ids, and whether a request to stop stands.

use std::sync::Arc;

use super::state::Session;
use super::tell::requester;
use super::wire::{Listed, Raw, Sessions, Signal, count, flag, from_line, list, moment, read, text, word};
use super::{Emit, Gobby};
use crate::event::{Fact, Id, Name, Requester, SessionId, Timestamp, Trigger, TurnOutcome, Usage};
use crate::sources::DecodeError;
use crate::sources::live::{Answer, Ask, AskError, Said};

/// Bits of a tag that number the questions; the lowest two say what is asked.
pub(super) const SERIAL: u32 = u32::MAX >> 2;
/// Tag of the question for the list of sessions.
const LIST: u32 = 1;
/// Tag of the question whether a session is asked to stop.
const STOP: u32 = 2;
/// Time between two lists, and between two looks at a request that stands.
const LIST_EVERY: i64 = 15_000;
/// Time between two looks at sessions that are not known to be asked to stop.
const STOPS_EVERY: i64 = 30_000;
/// Least time between two lists, whatever wants them.
const LIST_AGAIN: i64 = 1_000;
/// Sessions that are asked about in one round.
const MAX_STOPS: usize = 32;
/// Sessions of a list that are kept.
const MAX_JOINED: usize = 2_048;
/// How long a request to stop of a session that ended is still looked at.
const STOP_AFTER_END: i64 = 10 * 60_000;
/// A listed session that nobody told of is one at work if it changed so recently.
const RECENT: i64 = 10 * 60_000;
/// Changes of a session's row within its making.
const MAKING: i64 = 1_000;
/// Least time for which a list has to say the same before it is believed against what was told.
const LASTS: i64 = 10_000;
/// Agents the daemon serves, by its word for them, and the name they have elsewhere here.
const AGENTS: &[(&str, &str)] = &[
    ("claude", "claude-code"),
    ("codex", "codex"),
    ("gemini", "gemini"),
    ("antigravity", "antigravity"),
    ("droid", "droid"),
    ("qwen", "qwen"),
];

/// A session of the newest list.
#[derive(Clone, Debug)]
pub(super) struct Joined {
    pub(super) external: Arc<str>,
    agent: Option<&'static str>,
    spawned: bool,
    parent: Option<Arc<str>>,
}

/// When what is asked.
#[derive(Debug, Default)]
pub(super) struct Poll {
    /// The first list of this connection is not there yet.
    first: bool,
    asking: bool,
    /// The other prefix was tried.
    turned: bool,
    /// The daemon answers at all: then status 500 of the route for stops means what it does there.
    answers: bool,
    asked: Option<Timestamp>,
    wanted: bool,
    /// So many of what waits for a list came after the one that is on its way was asked for.
    held: usize,
    stops_asked: Option<Timestamp>,
    stops_wanted: bool,
    /// Where the next round begins.
    next: usize,
}

// === impl Poll ===

impl Poll {
    pub(super) const fn is_first(&self) -> bool {
        self.first
    }

    pub(super) const fn want(&mut self) {
        self.wanted = true;
    }

    pub(super) const fn holds_one(&mut self) {
        self.held += 1;
    }

    pub(super) const fn held_since(&self) -> usize {
        self.held
    }

    pub(super) const fn want_stops(&mut self) {
        self.stops_wanted = true;
    }
}

// === impl Gobby ===

impl Gobby {
    pub(super) fn ask_first(&mut self, now: Timestamp, said: &mut Said) {
        self.poll = Poll { first: true, ..Poll::default() };
        self.ask_list(now, said);
    }

    fn base(&self) -> &'static str {
        if self.state.api == Some(false) { "" } else { "/api" }
    }

    fn ask_list(&mut self, now: Timestamp, said: &mut Said) {
        self.poll.asking = true;
        self.poll.wanted = false;
        self.poll.held = 0;
        self.poll.asked = Some(now);
        said.asks.push(Ask::get(LIST, format!("{}/sessions", self.base())));
    }

    /// A list that something waits for, unless there was one just now.
    pub(super) fn ask_if_wanted(&mut self, now: Timestamp, said: &mut Said) {
        let lately = self.poll.asked.is_some_and(|asked| now.since(asked) < LIST_AGAIN);
        if self.poll.wanted && !self.poll.asking && !lately {
            self.ask_list(now, said);
        }
    }

    pub(super) fn ask_now_and_then(&mut self, now: Timestamp, said: &mut Said) {
        if self.poll.first {
            return;
        }
        self.ask_if_wanted(now, said);
        let due = |asked: Option<Timestamp>, every| asked.is_none_or(|asked| now.since(asked) >= every);
        if due(self.poll.asked, LIST_EVERY) && !self.poll.asking {
            self.ask_list(now, said);
            self.ask_stops(said, |s| s.stop && s.over.is_none_or(|over| now.since(over) < STOP_AFTER_END));
        }
        if due(self.poll.stops_asked, STOPS_EVERY) {
            self.poll.stops_asked = Some(now);
            self.ask_stops(said, |s| !s.stop && !s.ended);
        }
        if std::mem::take(&mut self.poll.stops_wanted) {
            self.ask_stops(said, |s| s.stop);
        }
    }

    /// Asks about some of these sessions; the others' turn comes next time.
    fn ask_stops(&mut self, said: &mut Said, which: impl Fn(&Session) -> bool) {
        let sessions = &self.state.sessions;
        let mut asked = 0;
        for i in 0..sessions.len() {
            let at = (self.poll.next + i) % sessions.len();
            let Some(internal) = sessions[at].internal.as_deref().filter(|_| which(&sessions[at])) else {
                continue;
            };
            // An id is part of the path as it is, or not at all.
            if internal.len() > 64
                || !internal.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
            {
                continue;
            }
            if asked == MAX_STOPS {
                self.poll.next = at;
                return;
            }
            asked += 1;
            said.asks.push(
                Ask::get(STOP | self.serial << 2, format!("{}/sessions/{internal}/stop", self.base()))
                    .about(internal),
            );
        }
    }

    pub(super) fn hear(
        &mut self,
        ask: &Ask,
        answer: &Result<Answer, AskError>,
        now: Timestamp,
        said: &mut Said,
    ) -> Result<(), DecodeError> {
        match ask.tag & 3 {
            LIST => self.hear_list(answer, now, said),
            STOP => self.hear_stop(ask, answer, now, said),
            _ => Ok(()),
        }
    }

    fn hear_list(
        &mut self,
        answer: &Result<Answer, AskError>,
        now: Timestamp,
        said: &mut Said,
    ) -> Result<(), DecodeError> {
        self.poll.asking = false;
        let elsewhere = match answer {
            Ok(answer) => answer.status == 404,
            // Pages of a user interface stand where the other version has its routes.
            Err(error) => matches!(error, AskError::ContentType | AskError::Redirect),
        };
        if elsewhere && !self.poll.turned {
            self.poll.turned = true;
            self.state.api = Some(self.state.api == Some(false));
            self.ask_list(now, said);
            return Ok(());
        }
        let body = answer.as_ref().ok().filter(|a| (200..300).contains(&a.status)).map(|a| a.body.as_slice());
        // A daemon whose list fails for now still tells what happens; what has no such list at all is no daemon.
        let fails = answer.as_ref().is_ok_and(|answer| answer.status >= 500);
        said.give_up |= std::mem::take(&mut self.poll.first) && body.is_none() && !fails;
        self.poll.answers = body.is_some();
        let Some(body) = body else { return Ok(()) };
        self.poll.turned = false;
        let api = *self.state.api.get_or_insert(true);
        self.state.modern |= api;
        let sessions: Sessions<'_> = from_line(body)?;
        let rows = list::<Listed<'_>>(sessions.sessions);
        self.joined.clear();
        for row in rows.iter().take(MAX_JOINED) {
            self.join(row);
        }
        for at in 0..self.state.sessions.len() {
            self.adopt(at);
        }
        for row in rows.iter().take(MAX_JOINED) {
            self.listed(row, now, said);
        }
        self.tell_held(said);
        Ok(())
    }

    /// Both ids of a session.
    fn join(&mut self, row: &Listed<'_>) {
        let (Some(internal), Some(external)) = (text(row.id), text(row.external_id)) else { return };
        let source = word(row.source);
        // The daemon's own, which is no agent's.
        if source == "system" || internal.is_empty() || external.is_empty() {
            return;
        }
        let bounded = |text: &str| Arc::<str>::from(self.reducer.bounded(text).as_str());
        let spawned =
            row.agent_run_id.is_some() || row.spawned_by_agent_id.is_some() || count(row.agent_depth) > 0;
        let joined = Joined {
            external: bounded(&external),
            agent: AGENTS.iter().find(|(word, _)| *word == source).map(|(_, name)| *name),
            spawned: spawned || source == "pipeline",
            parent: text(row.parent_session_id).map(|parent| bounded(&parent)),
        };
        self.joined.insert(bounded(&internal), joined);
    }

    /// Takes over what the list says of a session.
    pub(super) fn adopt(&mut self, at: usize) {
        let session = &self.state.sessions[at];
        let found = self.joined.iter().find(|(_, j)| *j.external == *session.id.as_str());
        let Some((internal, joined)) = found.map(|(internal, joined)| (internal.clone(), joined.clone()))
        else {
            return;
        };
        let parent =
            joined.parent.as_ref().and_then(|p| self.joined.get(p)).map(|p| SessionId::from(&*p.external));
        let session = &mut self.state.sessions[at];
        session.internal = Some(internal);
        session.spawned |= joined.spawned;
        session.agent = session.agent.take().or(joined.agent.map(Name::from));
        session.parent = session.parent.take().or(parent.filter(|parent| *parent != session.id));
    }

    /// A row of the list: what is news of its session.
    fn listed(&mut self, row: &Listed<'_>, now: Timestamp, said: &mut Said) {
        let (Some(internal), Some(external)) = (text(row.id), text(row.external_id)) else { return };
        let Some(joined) = self.joined.get(self.reducer.bounded(&internal).as_str()) else { return };
        debug_assert_eq!(*joined.external, *self.reducer.bounded(&external));
        let created = moment(row.created_at);
        let updated = moment(row.updated_at).unwrap_or(now);
        let status = word(row.status);
        let known = self.state.find(&self.session_id(&external));
        let recent = status == "active" && now.since(updated) < RECENT;
        let at = match known {
            Some(at) => at,
            None if recent => {
                let began = created.unwrap_or(updated);
                let mut e = self.emit(said, began, now, &format!("listed:{internal}"));
                let at = self.state.add(self.session_id(&external));
                self.adopt(at);
                let info = self.info(at);
                self.push(&mut e, at, Fact::SessionStarted(info));
                // Nobody knows what was before.
                self.state.sessions[at].gap = Some(now);
                at
            }
            None => return,
        };
        let mut e = self.emit(said, updated, now, &format!("row:{internal}:{status}"));
        self.properties(&mut e, at, row);
        self.status(&mut e, at, &status, created, updated, now);
    }

    fn properties(&mut self, e: &mut Emit<'_>, at: usize, row: &Listed<'_>) {
        let model = text(row.model).map(|m| Name::from(self.reducer.bounded(&m).as_str()));
        let session = &mut self.state.sessions[at];
        let news = model.is_some() && model != session.model || !session.introduced;
        session.model = model.or(session.model.take());
        session.introduced = true;
        if news {
            let info = self.info(at);
            self.push(e, at, Fact::SessionUpdated(info));
        }
        // Sums of the whole session: their maximum counts, and only what came since.
        let cost: f64 = read(row.cost).unwrap_or(0.0);
        let nano = if cost.is_finite() && cost > 0.0 { (cost * 1e9).min(1e18) as u64 } else { 0 };
        let told = [count(row.input), count(row.cache_read), count(row.cache_write), count(row.output), nano];
        let known = &mut self.state.sessions[at].usage;
        if told.iter().zip(known.iter()).all(|(told, known)| told <= known) {
            return;
        }
        for (known, told) in known.iter_mut().zip(told) {
            *known = told.max(*known);
        }
        let [input, cache_read, cache_write, output, nano] = *known;
        let usage = Usage {
            response: Some(Id::from("session")),
            input,
            cache_read,
            cache_write,
            output,
            cost_usd: (nano > 0).then(|| nano as f64 / 1e9),
            ..Usage::default()
        };
        self.push(e, at, Fact::Usage(usage));
    }

    /// The daemon's word about the session, where nothing that was told says otherwise.
    fn status(
        &mut self,
        e: &mut Emit<'_>,
        at: usize,
        status: &str,
        created: Option<Timestamp>,
        updated: Timestamp,
        now: Timestamp,
    ) {
        let session = &mut self.state.sessions[at];
        let news = session.heard.is_none_or(|heard| updated >= heard);
        if status != "paused" {
            session.paused = None;
        }
        match status {
            // Without hooks the list is all there is: it changed since the session was made, or since it was over.
            "active" => {
                let since = session.over.max(created.map(|c| c.plus(MAKING)));
                let begun = !session.hooked && session.turn.is_none() && now.since(updated) < RECENT;
                if begun && since.is_none_or(|since| updated > since) {
                    self.begin_turn(e, at, Trigger::Unknown);
                }
            }
            // At the end of a turn, at a notice and after mere silence: alone it tells no result.
            "paused" if news && session.turn.is_some() && session.actions.is_empty() => {
                let (as_of, first) =
                    session.paused.filter(|(as_of, _)| *as_of == updated).unwrap_or((updated, now));
                session.paused = Some((as_of, first));
                if now.since(first) >= LASTS {
                    e.said.disagreements += 1;
                    self.end_turn(e, at, TurnOutcome::Completed, None, false);
                }
            }
            "expired" if news && !session.ended => {
                e.said.disagreements += 1;
                self.end_session(e, at, None);
            }
            "deleted" if news && !session.ended => {
                self.push(e, at, Fact::SessionDeleted);
                let session = &mut self.state.sessions[at];
                (session.ended, session.turn, session.over) = (true, None, Some(e.time));
            }
            // Of the context window, not of the work.
            _ => {}
        }
    }

    /// Status 500 is how both versions say that there is a request; they fail at describing it.
    fn hear_stop(
        &mut self,
        ask: &Ask,
        answer: &Result<Answer, AskError>,
        now: Timestamp,
        said: &mut Said,
    ) -> Result<(), DecodeError> {
        let internal = ask.about.as_deref().unwrap_or_default();
        let Some(at) = self.state.find_internal(internal) else { return Ok(()) };
        let Ok(answer) = answer else { return Ok(()) };
        // The stream overtook the answer.
        if ask.tag >> 2 < self.state.sessions[at].stop_told {
            return Ok(());
        }
        let stands = self.state.sessions[at].stop;
        let mut e = self.emit(said, now, now, &format!("stop:{internal}:{}", self.serial));
        match answer.status {
            500 if self.poll.answers && !stands => {
                e.said.unknown.push("stop/undescribed".to_owned());
                self.stop_wanted(&mut e, at, Requester::Unknown);
            }
            200 => {
                let signal: Signal<'_> = from_line(&answer.body)?;
                self.signal(&mut e, at, &signal, stands);
            }
            _ => {}
        }
        Ok(())
    }

    fn signal(&mut self, e: &mut Emit<'_>, at: usize, signal: &Signal<'_>, stands: bool) {
        if !flag(signal.has_signal) {
            if stands {
                self.stop_gone(e, at);
            }
            return;
        }
        // No recorded version comes so far; the fields are those its source code names.
        let acknowledged = moment(signal.acknowledged_at);
        let asked = |raw: Raw<'_>| moment(raw);
        if !stands && acknowledged.is_none() {
            e.time = asked(signal.signaled_at).or_else(|| asked(signal.requested_at)).unwrap_or(e.time);
            self.stop_wanted(e, at, requester(signal.source));
        } else if let Some(time) = acknowledged.filter(|_| stands) {
            e.time = time;
            self.state.sessions[at].stop = false;
            self.push(e, at, Fact::StopAcknowledged);
        }
    }
}
