//! From processes to sessions: several can have one session open, and what is said of its writer is true of all of
//! them. The last one decides how it ended.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::event::{SessionId, Timestamp, Writer};

/// What is known of the processes of a session.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Processes {
    /// What was said last.
    said: Option<Writer>,
    /// How the newest process ended that did.
    ending: Option<(Writer, Timestamp)>,
    /// The process that died was in the middle of something.
    unfinished: bool,
    /// Processes that left and are told a little later.
    leaving: Vec<Leaving>,
    heard: Timestamp,
}

/// A process that left a session in order. It is told after a while, so that what it wrote last is read before its
/// turn counts as cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Leaving {
    pub(super) pid: i32,
    pub(super) start: Option<u64>,
    /// When it left.
    pub(super) at: Timestamp,
    /// When to say so.
    pub(super) due: Timestamp,
}

/// All sessions that processes were seen in.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Sessions {
    known: BTreeMap<SessionId, Processes>,
}

/// Processes that have a session open at a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Holders {
    pub(super) alive: bool,
    /// One may be, but cannot be checked.
    pub(super) unclear: bool,
}

// === impl Processes ===

impl Processes {
    /// What is news about the writer, and since when.
    fn hear(&mut self, holders: Holders, now: Timestamp) -> Option<(Writer, Timestamp)> {
        // A clock that was set back must not hold it for ever.
        let is_due = |leaving: &Leaving| leaving.due <= now || leaving.at > now;
        for left in self.leaving.iter().filter(|leaving| is_due(leaving)) {
            self.ending = Some((Writer::Left, left.at));
            self.unfinished = false;
        }
        self.leaving.retain(|leaving| !is_due(leaving));
        let (writer, at) = if holders.alive {
            (self.ending, self.unfinished) = (None, false);
            (Writer::Alive, now)
        } else if holders.unclear {
            // The proof that somebody lives has ended; nothing says that nobody does.
            (self.said == Some(Writer::Alive)).then_some((Writer::Unknown, now))?
        } else if self.leaving.is_empty() {
            self.ending?
        } else {
            return None;
        };
        (self.said.replace(writer) != Some(writer)).then_some((writer, at))
    }
}

// === impl Sessions ===

impl Sessions {
    pub(super) fn is_known(&self, session: &SessionId) -> bool {
        self.known.contains_key(session)
    }

    fn of(&mut self, session: &SessionId, now: Timestamp) -> &mut Processes {
        let processes = self.known.entry(session.clone()).or_default();
        processes.heard = processes.heard.max(now);
        processes
    }

    /// A process opens a session. Where the last one died in the middle of something, when that was.
    pub(super) fn opened(
        &mut self,
        session: &SessionId,
        pid: i32,
        start: Option<u64>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let processes = self.of(session, now);
        processes.leaving.retain(|leaving| (leaving.pid, leaving.start) != (pid, start));
        let (_, died) = processes.ending.filter(|(writer, _)| *writer == Writer::Gone)?;
        std::mem::take(&mut processes.unfinished).then_some(died)
    }

    /// A process ended, or cannot be followed any more.
    pub(super) fn ended(&mut self, session: &SessionId, writer: Writer, at: Timestamp, unfinished: bool) {
        let processes = self.of(session, at);
        (processes.ending, processes.unfinished) = (Some((writer, at)), unfinished);
    }

    /// A process left in order.
    pub(super) fn leaves(&mut self, session: &SessionId, leaving: Leaving) {
        self.of(session, leaving.at).leaving.push(leaving);
    }

    /// It never was a session of its own.
    pub(super) fn forget(&mut self, session: &SessionId) {
        self.known.remove(session);
    }

    /// What is news of each session's writer. `holders`: the sessions that a process has open, or left behind.
    pub(super) fn hear(
        &mut self,
        holders: &BTreeMap<SessionId, Holders>,
        now: Timestamp,
    ) -> Vec<(SessionId, Writer, Timestamp)> {
        let mut news = Vec::new();
        for (session, processes) in &mut self.known {
            let held = holders.get(session).copied().unwrap_or_default();
            if let Some((writer, at)) = processes.hear(held, now) {
                news.push((session.clone(), writer, at));
            }
        }
        news
    }

    /// Forgets sessions that nothing more can be said of; at most `max` stay.
    pub(super) fn tidy(&mut self, holders: &BTreeMap<SessionId, Holders>, max: usize) -> bool {
        let before = self.known.len();
        self.known.retain(|session, p| {
            holders.contains_key(session) || !p.leaving.is_empty() || (p.unfinished && p.ending.is_some())
        });
        if self.known.len() > max {
            let mut ages: Vec<_> = self.known.values().map(|p| p.heard).collect();
            ages.sort_unstable_by(|a, b| b.cmp(a));
            let oldest = ages[max];
            self.known.retain(|session, p| holders.contains_key(session) || p.heard > oldest);
        }
        self.known.len() != before
    }
}
