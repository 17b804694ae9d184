//! Details of single sessions, after a list or a status raised the question: what the history kept since the newest that
//! is known, or the newest messages; how a turn ended, if it did; and what came and went while nobody listened.

use std::collections::HashMap;

use super::catch_up::{HISTORY, PAGE};
use super::state::{Doubt, Session};
use super::wire::{Info, Kept, Part, Raw, Stored, Times, elements, list, made, millis, shape, text, word};
use super::{Heard, Opencode, plain};
use crate::event::{SessionId, Timestamp};
use crate::sources::live::{Ask, Said};

/// Messages of a session that are looked at where its newest are not known.
const MESSAGES: usize = 50;
/// The same of one that nobody told of: all that happened while nobody listened, mostly.
const MESSAGES_FOUND: usize = 200;
/// Sessions that are looked at because they changed while nobody listened: the newest.
const MAX_FOUND: usize = 64;
/// Clocks of server and exporter may differ.
const SLACK_MS: i64 = 60_000;
/// Sequence beyond any: of a session with it nothing is told. A server tells *everything* of those not named at all.
const NOTHING: u64 = (1 << 53) - 1;
/// Milliseconds after which a session that stopped with an unfinished message is looked at again.
const AGAIN_AFTER_MS: i64 = 5_000;

// === impl Opencode ===

impl Opencode {
    pub(super) fn ask_details(&mut self, wanted: Vec<SessionId>, said: &mut Said) {
        let wanted: Vec<SessionId> = wanted.into_iter().filter(plain).collect();
        let all: HashMap<String, u64> = self
            .survey
            .listed
            .keys()
            .chain(self.survey.gone.iter())
            .map(|id| (id.as_str().to_owned(), NOTHING))
            .collect();
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for id in wanted {
            match self.sessions.all.get(&id).and_then(|s| s.seq) {
                Some(seq) if self.survey.complete => with.push((id, seq)),
                _ => without.push(id),
            }
        }
        self.ask_pages(&without, said);
        if !with.is_empty() {
            let mut body = all;
            body.extend(with.into_iter().map(|(id, seq)| (id.as_str().to_owned(), seq)));
            let body = serde_json::to_string(&body).unwrap_or_default();
            self.ask(Ask::history(HISTORY, "/sync/history", body), said);
        }
    }

    pub(super) fn ask_pages(&mut self, sessions: &[SessionId], said: &mut Said) {
        for id in sessions.iter().filter(|id| plain(id)) {
            let path = format!("/session/{}/message?limit={MESSAGES}", id.as_str());
            self.ask(Ask::get(PAGE, path).about(id.as_str()), said);
        }
    }

    /// Sessions that worked before the loss and of which the server says that they do not.
    pub(super) fn in_question(&self) -> Vec<SessionId> {
        let open = self.sessions.all.values().filter(|s| s.doubt != Doubt::None && !s.busy && !s.v2);
        open.map(|s| s.id.clone()).collect()
    }

    pub(super) fn open_ones(&self) -> Vec<SessionId> {
        self.sessions.all.values().filter(|s| s.is_open() && !s.v2).map(|s| s.id.clone()).collect()
    }

    /// The newest messages of a session.
    pub(super) fn page(&mut self, session: &str, body: Raw<'_>, now: Timestamp, said: &mut Said) {
        for stored in list::<Stored<'_>>(body).into_iter().take(2 * MESSAGES_FOUND) {
            let created = millis(stored.info.time.created).unwrap_or(now);
            let done = millis(stored.info.time.completed).unwrap_or(created);
            self.about(session, said, now, done, true, |s, t| {
                let user = word(stored.info.role) == "user";
                let parts = list::<Part<'_>>(stored.parts);
                // An answer is finished only after its parts.
                let mut begun = Info {
                    time: Times { created: stored.info.time.created, ..Default::default() },
                    ..Default::default()
                };
                (begun.id, begun.role, begun.parent) = (stored.info.id, stored.info.role, stored.info.parent);
                (begun.model_id, begun.provider_id) = (stored.info.model_id, stored.info.provider_id);
                begun.summary = stored.info.summary;
                s.said(t, &begun);
                for part in &parts {
                    s.part(t, part, Some(if user { created } else { done }));
                }
                if !user {
                    s.said(t, &stored.info);
                }
            });
        }
    }

    /// What was kept of sessions since the newest of them we knew.
    pub(super) fn history(&mut self, body: Raw<'_>, now: Timestamp, said: &mut Said) {
        for kept in elements(body).into_iter().filter_map(shape::<Kept<'_>>) {
            let kind = word(kept.kind);
            // `message.updated.1`: its name with the version of its form.
            let Some((kind, _)) = kind.rsplit_once('.') else { continue };
            let Some(id) = text(kept.aggregate_id).or_else(|| text(kept.aggregate)) else { continue };
            let wanted = self.sessions.all.get(&self.common.session(&id)).is_some_and(|s| s.seq.is_some());
            if !wanted {
                continue;
            }
            let time = made(kept.id, now).unwrap_or(now);
            let name = word(kept.id);
            let heard = Heard { id: &name, kind, props: &kept.data, observed: now, time, replay: true };
            self.event(&heard, said);
            self.kept(&kept);
        }
    }

    /// What follows from the details of a session: how its turn ended, if it does not work any more.
    pub(super) fn conclude(&mut self, session: &str, now: Timestamp, said: &mut Said) {
        let id = self.common.session(session);
        let Some(known) = self.sessions.get(&id) else { return };
        if known.doubt == Doubt::None || known.busy {
            if known.busy {
                self.about(session, said, now, now, true, Session::catches_up);
            }
            return;
        }
        if known.turn.is_none() {
            known.doubt = Doubt::None;
            known.edge = None;
            return;
        }
        let last = known.last().filter(|m| m.completed.is_some());
        let (at, is_final) = (last.and_then(|m| m.completed), last.is_some_and(|m| m.is_final()));
        let inferred = known.turn.as_ref().is_some_and(|turn| turn.inferred);
        let verdict = known.verdict().filter(|_| if inferred { is_final } else { at.is_some() });
        if let Some(verdict) = verdict {
            self.about(session, said, now, now, false, |s, t| s.end_at(t, Some(verdict), at.unwrap_or(now)));
        } else if known.doubt == Doubt::Once {
            self.about(session, said, now, now, false, |s, t| s.interrupted(t));
        } else if !inferred {
            known.doubt = Doubt::Once;
            known.again_at = Some(now.plus(AGAIN_AFTER_MS));
        }
    }

    /// Asks about sessions of the list that nobody told of and that changed since the stream was heard last.
    pub(super) fn ask_found(&mut self, said: &mut Said) {
        let Some(since) = self.heard.map(|heard| heard.plus(-SLACK_MS)) else { return };
        let unheard = |id: &SessionId| !self.sessions.all.contains_key(id) && !self.survey.is_gone(id);
        let listed = self.survey.listed.iter().filter(|(id, _)| plain(id) && unheard(id));
        let mut found: Vec<(Timestamp, SessionId)> = listed
            .filter_map(|(id, listed)| Some((listed.updated.filter(|at| *at >= since)?, id.clone())))
            .collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.truncate(MAX_FOUND);
        for (_, id) in found {
            let path = format!("/session/{}/message?limit={MESSAGES_FOUND}", id.as_str());
            self.ask(Ask::get(PAGE, path).about(id.as_str()), said);
            self.survey.found.insert(id);
        }
    }

    /// Of a session nobody told of only what is over is told: what is not may be another server's. `before`: the events
    /// that were there before its messages were looked at.
    pub(super) fn settle_found(&mut self, session: &str, before: usize, said: &mut Said) {
        let id = self.common.session(session);
        if !self.survey.found.remove(&id) {
            return;
        }
        if self.sessions.get(&id).is_some_and(|known| known.busy || !known.is_open() && known.ended.is_some())
        {
            return;
        }
        self.sessions.all.remove(&id);
        let mut n = 0;
        said.events.retain(|event| {
            n += 1;
            n <= before || event.session != id
        });
    }
}
