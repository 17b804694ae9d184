//! Questions and their answers: the list every few seconds, the status of one session in doubt, the version once.

use std::collections::HashSet;

use super::known::{FlowStatus, Known, Pending, Run};
use super::runs::Verdict;
use super::wire::{
    Config, Confirmation, Page, Row, Status, flag, from_line, json, list, moment, pairs, text, word,
};
use super::{MAX_ID, OpenFox, Out, encoded, frames, mode_of};
use crate::event::{ActionKind, BlockReason, Fact, Resolution, SessionId, Timestamp, Writer};
use crate::sources::DecodeError;
use crate::sources::live::{Answer, Ask, AskError, Said};

/// The list.
const LIST: u32 = 1;
/// The version.
const CONFIG: u32 = 2;
/// The status of one session.
const STATUS: u32 = 3;
/// Time between two lists.
const LIST_EVERY_MS: i64 = 15_000;
/// The same where something new wants one.
const LIST_SOON_MS: i64 = 1_000;
/// Sessions of one page.
const PAGE: usize = 100;
/// Pages of one list; what lies beyond is taken for neither there nor gone.
const MAX_PAGES: usize = 20;
/// How long list and stream may differ before somebody is asked: one of them is a moment older.
const DOUBT_MS: i64 = 2_000;
/// Sessions of before our time whose status is asked, if they changed within this time.
const RECENT_MS: i64 = 15 * 60_000;
/// Of how many.
const MAX_RECENT: usize = 32;
/// Longest id of a call that is looked at.
const MAX_CALL: usize = 512;

/// What is being asked.
#[derive(Default)]
pub(super) struct Polls {
    connected: bool,
    /// The first list of this connection is not complete.
    first: bool,
    round: Option<Round>,
    listed: Option<Timestamp>,
    soon: bool,
    /// The next list is needed to its end.
    whole: bool,
    /// Sessions whose status the first look waits for.
    waits: HashSet<SessionId>,
    asked_version: bool,
}

/// One list, page by page.
#[derive(Default)]
struct Round {
    pages: usize,
    there: HashSet<SessionId>,
    recent: usize,
}

/// The question for a session's status.
pub(super) fn status_of(id: &SessionId) -> Ask {
    Ask::get(STATUS, format!("/api/sessions/{}/status", encoded(id.as_str()))).about(id.as_str())
}

// === impl Polls ===

impl Polls {
    pub(super) fn stop(&mut self) {
        *self = Self { asked_version: self.asked_version, ..Self::default() };
    }

    pub(super) fn list_soon(&mut self) {
        self.soon = true;
    }

    /// Who is gone shows only in all of it.
    pub(super) fn list_all_soon(&mut self) {
        (self.soon, self.whole) = (true, true);
    }

    pub(super) fn catching_up(&self) -> bool {
        self.connected && (self.first || !self.waits.is_empty())
    }

    fn begin(&mut self, now: Timestamp, said: &mut Said) {
        (self.round, self.listed, self.soon) = (Some(Round::default()), Some(now), false);
        said.asks.push(Ask::get(LIST, format!("/api/sessions?limit={PAGE}")));
    }
}

// === impl OpenFox ===

impl OpenFox {
    pub(super) fn begin_catching_up(&mut self, now: Timestamp, said: &mut Said) {
        self.polls.stop();
        (self.polls.connected, self.polls.first) = (true, true);
        self.polls.begin(now, said);
        if !std::mem::replace(&mut self.polls.asked_version, true) {
            said.asks.push(Ask::get(CONFIG, "/api/config"));
        }
    }

    /// Asks what is due.
    pub(super) fn poll(&mut self, now: Timestamp, said: &mut Said) {
        if !self.polls.connected {
            return;
        }
        let doubtful = |known: &Known| known.doubt.is_some_and(|since| now.since(since) >= DOUBT_MS);
        self.with_each(now, said, |known, out| {
            if doubtful(known) {
                out.ask_status(known);
            }
        });
        let since = self.polls.listed.map_or(i64::MAX, |at| now.since(at));
        let due = since >= LIST_EVERY_MS || (self.polls.soon && since >= LIST_SOON_MS);
        if self.polls.round.is_none() && due {
            self.polls.begin(now, said);
        }
    }

    pub(super) fn hear(
        &mut self,
        ask: &Ask,
        answer: &Result<Answer, AskError>,
        now: Timestamp,
        said: &mut Said,
    ) -> Result<(), DecodeError> {
        let good = answer.as_ref().ok().filter(|answer| answer.status == 200);
        match (ask.tag, good) {
            (LIST, Some(answer)) => {
                let read = self.page(&answer.body, now, said);
                if read.is_err() {
                    self.list_failed(said);
                }
                read
            }
            (LIST, None) => {
                self.list_failed(said);
                Ok(())
            }
            (CONFIG, Some(answer)) => self.config(&answer.body, now, said),
            (STATUS, _) => {
                let Some(id) = ask.about.as_deref().map(SessionId::from) else { return Ok(()) };
                let read = match (good, answer) {
                    (Some(answer), _) => self.status(&id, &answer.body, now, said),
                    (None, Ok(answer)) if answer.status == 404 => {
                        self.without_status(&id, now, said);
                        Ok(())
                    }
                    _ => Ok(()),
                };
                self.polls.waits.remove(&id);
                if let Some(known) = self.sessions.get_mut(&id) {
                    known.asked = false;
                }
                read
            }
            _ => Ok(()),
        }
    }

    /// The server has no status of this session: it was deleted, unless the list has it. Servers before 2.0.119 have
    /// none at all; then, where nobody listened, what the list says has to do.
    fn without_status(&mut self, id: &SessionId, now: Timestamp, said: &mut Said) {
        let Some(known) = self.sessions.get(id) else { return };
        if known.unlisted {
            return self.deleted(id, now, said);
        }
        let first = self.polls.catching_up();
        self.with(id, now, said, |known, out| {
            known.doubt = None;
            if let Some(running) = known.listed.filter(|running| first && *running != known.runs()) {
                let state = json(if running { r#""running""# } else { "null" });
                known.status(&Status { state, ..Status::default() }, first, out);
            }
        });
        self.dirty = true;
    }

    /// A server without the list is none of ours; one that merely failed once is asked again.
    fn list_failed(&mut self, said: &mut Said) {
        self.polls.round = None;
        said.give_up |= self.polls.first;
    }

    fn config(&mut self, body: &[u8], now: Timestamp, said: &mut Said) -> Result<(), DecodeError> {
        let config: Config<'_> = from_line(body)?;
        let Some(version) = text(config.version).map(|version| self.shared.name(&version)) else {
            return Ok(());
        };
        if self.shared.version.replace(version.clone()) != Some(version) {
            self.with_each(now, said, |known, out| {
                if std::mem::take(&mut known.told) {
                    known.introduce(out);
                }
            });
            self.dirty = true;
        }
        Ok(())
    }

    fn page(&mut self, body: &[u8], now: Timestamp, said: &mut Said) -> Result<(), DecodeError> {
        let page: Page<'_> = from_line(body)?;
        if page.sessions.is_none() {
            return Err(DecodeError::Shape);
        }
        let Some(mut round) = self.polls.round.take() else { return Ok(()) };
        let rows: Vec<Row<'_>> = list(page.sessions);
        for row in &rows {
            if let Ok(id) = frames::session_id(row.id)
                && !self.gone.contains(&id)
            {
                self.row(&id, row, &mut round, now, said);
                round.there.insert(id);
            }
        }
        self.confirmations(&page, &round, now, said);
        round.pages += 1;
        if flag(page.has_more) && !rows.is_empty() {
            // The newest come first. Once all is known, what lies behind those at work is not news, and the server says
            // what was deleted.
            let seen = |known: &Known| !known.is_open() || round.there.contains(&known.id);
            let enough = !self.polls.first && !self.polls.whole && self.sessions.values().all(seen);
            if round.pages < MAX_PAGES && !enough {
                let path = format!("/api/sessions?limit={PAGE}&offset={}", round.pages * PAGE);
                said.asks.push(Ask::get(LIST, path));
                self.polls.round = Some(round);
            } else {
                self.listed(&round, false, now, said);
            }
        } else {
            self.listed(&round, true, now, said);
        }
        Ok(())
    }

    /// One session of the list.
    fn row(&mut self, id: &SessionId, row: &Row<'_>, round: &mut Round, now: Timestamp, said: &mut Said) {
        let running = flag(row.is_running);
        let first = self.polls.first;
        let mut ask = false;
        if !self.sessions.contains_key(id) {
            let recent = moment(row.updated_at).is_some_and(|at| now.since(at) < RECENT_MS);
            let recent = first && recent && round.recent < MAX_RECENT;
            round.recent += usize::from(recent && !running);
            if !running && !recent {
                return;
            }
            ask = first;
        }
        let changed = self.with(id, now, said, |known, out| {
            known.listed = Some(running);
            let news = known.take_row(row, out);
            if news && std::mem::take(&mut known.told) {
                known.introduce(out);
            }
            if known.alive != running && known.told {
                known.alive = running;
                let writer = if running { Writer::Alive } else { Writer::Unknown };
                out.push(known, now, Fact::Writer(writer));
            }
            if first {
                // What was under way before may have ended, or may not be told any more.
                ask |= known.is_open() || running;
            } else if known.settles() || known.runs() == running {
                known.doubt = None;
            } else {
                known.doubt = known.doubt.or(Some(now));
            }
            if ask {
                out.ask_status(known);
            }
            news
        });
        self.dirty |= changed;
        if ask {
            self.polls.waits.insert(id.clone());
        }
    }

    fn confirmations(&mut self, page: &Page<'_>, round: &Round, now: Timestamp, said: &mut Said) {
        let mut pending = Vec::new();
        for (id, raw) in pairs(page.confirmations) {
            let calls: Vec<Confirmation<'_>> = list(raw);
            if id.len() <= MAX_ID && !calls.is_empty() {
                pending.push((SessionId::from(id), calls));
            }
        }
        let mut changed = false;
        self.with_each(now, said, |known, out| {
            let own = pending.iter().find(|(id, _)| *id == known.id);
            if own.is_none() && !round.there.contains(&known.id) {
                return;
            }
            let calls = own.map_or(&[][..], |(_, calls)| calls.as_slice());
            let before = known.pending.len();
            let ids = calls.iter().filter_map(|c| text(c.call_id)).filter(|id| id.len() <= MAX_CALL);
            let listed: Vec<u64> = ids.map(|id| out.shared.hash(&id)).collect();
            known.confirmations_gone(&listed, out);
            for call in calls {
                if known.turn.is_none() {
                    break;
                }
                if let Some(id) = text(call.call_id).filter(|id| !id.is_empty() && id.len() <= MAX_CALL) {
                    known.confirmation(&id, &word(call.tool), out);
                }
            }
            changed |= known.pending.len() != before;
        });
        self.dirty |= changed;
    }

    /// The list was read, to its end or as far as it is.
    fn listed(&mut self, round: &Round, complete: bool, now: Timestamp, said: &mut Said) {
        let first = std::mem::take(&mut self.polls.first);
        self.polls.whole = false;
        let began = self.polls.listed.unwrap_or(now);
        let mut waits = Vec::new();
        let mut asked = 0;
        self.with_each(now, said, |known, out| {
            // Who is not listed is gone, unless it is so new that the list is older.
            let listed = round.there.contains(&known.id);
            let missing = complete && !listed && began.since(known.heard) >= DOUBT_MS && asked < MAX_RECENT;
            let missing = missing && !std::mem::replace(&mut known.unlisted, true);
            known.unlisted &= !listed;
            if missing || (first && known.is_open()) {
                asked += 1;
                out.ask_status(known);
                if first {
                    waits.push(known.id.clone());
                }
            }
        });
        self.polls.waits.extend(waits);
    }

    fn status(
        &mut self,
        id: &SessionId,
        body: &[u8],
        now: Timestamp,
        said: &mut Said,
    ) -> Result<(), DecodeError> {
        let status: Status<'_> = from_line(body)?;
        let first = self.polls.catching_up();
        if !self.sessions.contains_key(id) {
            return Ok(());
        }
        let more = self.with(id, now, said, |known, out| {
            if std::mem::take(&mut known.overtaken) {
                // One that fell since is asked about anew.
                if let Some(run) = &mut known.run {
                    run.asked = false;
                }
                return false;
            }
            known.status(&status, first, out)
        });
        if more {
            self.polls.list_soon();
        }
        self.dirty = true;
        Ok(())
    }
}

// === impl Known ===

impl Known {
    /// What the list says of a session that frames do not. Its mode may be stale, so that any frame knows better.
    fn take_row(&mut self, row: &Row<'_>, out: &Out<'_>) -> bool {
        let name = |raw| text(raw).filter(|name| !name.is_empty()).map(|name| out.shared.name(&name));
        let project_id = text(row.project_id).filter(|id| id.len() <= MAX_ID).map(|id| id.into_owned());
        let workdir = text(row.workdir);
        let project = workdir.and_then(|path| out.shared.reducer.project_of(&path));
        let project = project.map(|name| crate::event::Name::from(name.as_str()));
        let mode = if self.mode_told { self.mode } else { mode_of(&word(row.mode)).or(self.mode) };
        let (model, provider) = (name(row.model), name(row.provider));
        let before = (self.project_id.clone(), self.project.clone(), self.mode, self.model.clone());
        self.project_id = project_id.or(self.project_id.take());
        self.project = project.or(self.project.take());
        self.mode = mode;
        // What a response says is newer.
        if self.model.is_none() {
            (self.model, self.provider) = (model, provider);
        }
        before != (self.project_id.clone(), self.project.clone(), self.mode, self.model.clone())
    }

    /// What the server says of itself about the session. `first`: after a connection was made, when nothing of the
    /// stream is older than the answer. Whether the list should be asked what is waited for.
    fn status(&mut self, status: &Status<'_>, first: bool, out: &mut Out<'_>) -> bool {
        let state = word(status.state);
        let asks_user = flag(status.waiting_for_user);
        let at_choice = state == "waiting" && !asks_user;
        let server_runs = state == "running" || (state == "waiting" && asks_user);
        if self.settles() {
            // It fell without saying how.
            let verdict = match (state.as_ref(), self.flow.as_ref().is_some_and(|flow| flow.under_way())) {
                ("completed", true) => Verdict::WorkflowCompleted,
                ("blocked", _) => Verdict::Blocked,
                _ => Verdict::Unknown,
            };
            let fell = self.run.as_ref().and_then(|run| run.fell).unwrap_or(out.now);
            let verdict = if self.verdict() == Verdict::Unknown { verdict } else { self.verdict() };
            self.conclude(verdict, fell, out);
            return false;
        }
        if self.runs() == server_runs && !(at_choice && self.turn.is_none()) {
            self.doubt = None;
            if self.run.is_none() && self.turn.is_some() && !at_choice {
                // It waited for a choice that nobody waits for any more.
                self.absent(&state, status, out);
            } else if server_runs {
                return self.compare_waiting(asks_user, first, out);
            } else if first && state == "blocked" && !self.had_turn {
                self.introduce(out);
                let reason = BlockReason::WorkflowBlocked;
                let blocked = Fact::Blocked { reason, attempt: None, delay_ms: None, until: None };
                out.push(self, out.now, blocked);
            }
            return false;
        }
        // The two differ. A moment later they may not any more.
        let sure = first || self.doubt.is_some_and(|since| out.now.since(since) >= DOUBT_MS);
        if !sure {
            self.doubt = self.doubt.or(Some(out.now));
            return false;
        }
        self.doubt = None;
        out.said.disagreements += u64::from(!first);
        self.introduce(out);
        if !server_runs && !at_choice {
            self.absent(&state, status, out);
            return false;
        }
        if self.run.is_none() {
            self.resolve_where(|pending| pending.kind == ActionKind::Choice, Resolution::Unknown, out);
            let mut run = Run::new(out.now);
            run.beginning = self.turn.is_none();
            run.workflow = self.flow.as_ref().is_some_and(|flow| flow.under_way());
            self.run = Some(run);
            self.begin_if_beginning(out);
        }
        if at_choice {
            // It fell while nobody listened, and waits.
            self.run = None;
            if self.pending.is_empty() {
                self.ask_vaguely(ActionKind::Choice, out);
            }
            return false;
        }
        self.compare_waiting(asks_user, first, out)
    }

    /// Both say that it runs: do they agree on whether it waits?
    fn compare_waiting(&mut self, asks_user: bool, first: bool, out: &mut Out<'_>) -> bool {
        if !asks_user {
            // Answered while nobody listened. Otherwise the stream tells, and may be newer.
            self.resolve_where(|pending| pending.vague || first, Resolution::Unknown, out);
            return false;
        }
        if !self.pending.is_empty() {
            return false;
        }
        if first {
            // The list showed no confirmation.
            self.ask_vaguely(ActionKind::Question, out);
        }
        !first
    }

    /// Something is asked of which only that is known.
    fn ask_vaguely(&mut self, kind: ActionKind, out: &mut Out<'_>) {
        let action = out.shared.id(&format!("status:{}", out.now.as_millis()));
        self.ask(Pending { action, kind, short: None, vague: true }, None, None, out);
    }

    /// The server does not know of a turn that is open here.
    fn absent(&mut self, state: &str, status: &Status<'_>, out: &mut Out<'_>) {
        let in_flow = self.flow.as_ref().is_some_and(|flow| flow.under_way());
        // The server writes when a run began and when it ended in order. If it wrote nothing since something was said
        // in the run, nothing ended it: the server itself went away under it.
        let seen = self.run.as_ref().and_then(|run| run.server_time);
        let cut = seen.zip(moment(status.last_activity)).is_some_and(|(seen, wrote)| wrote <= seen);
        let verdict = match state {
            "completed" if in_flow => Verdict::WorkflowCompleted,
            "blocked" => Verdict::Blocked,
            _ if cut => Verdict::Interrupted,
            _ => Verdict::Unknown,
        };
        if let Some(flow) = self.flow.as_mut().filter(|_| verdict == Verdict::WorkflowCompleted) {
            flow.status = FlowStatus::Completed;
        }
        self.conclude(verdict, out.now, out);
    }
}
