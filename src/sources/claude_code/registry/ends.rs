//! How processes go on and end: each is asked about once a second, and what that means for its session is said.

use std::collections::BTreeMap;

use super::entry::Listing;
use super::process::{self, Liveness};
use super::sessions::{Holders, Leaving};
use super::{Known, MAX_FILES, Registry, SEES, interrupted};
use crate::event::{Event, Fact, SessionId, SessionInfo, Timestamp, Writer};

/// Between seeing that a process left and saying so: its last records are read meanwhile. Longer where it left while
/// nobody looked, because there is more to read then.
const LEFT_AFTER_MS: i64 = 1_000;
const LEFT_MEANWHILE_AFTER_MS: i64 = 10_000;
/// A process removes its file and then ends, after its last hooks. One that lives on for longer did not remove it itself.
const EXIT_MS: i64 = 60_000;

// === impl Registry ===

impl Registry {
    /// A process left a session in order.
    pub(super) fn leaves(&mut self, pid: i32, known: &Known, at: Timestamp) {
        let after = if self.listed { LEFT_AFTER_MS } else { LEFT_MEANWHILE_AFTER_MS };
        let leaving = Leaving { pid, start: known.start, at, due: at.plus(after) };
        self.kept.sessions.leaves(&known.session, leaving);
        self.dirty = true;
    }

    /// Looks after each process, and after files that are gone.
    pub(super) fn check_processes(
        &mut self,
        now: Timestamp,
        listing: Option<&Listing>,
        out: &mut Vec<Event>,
    ) {
        let pids: Vec<i32> = self.kept.entries.keys().copied().collect();
        for pid in pids {
            let missing = listing.is_some_and(|l| l.complete && !l.pids.contains(&pid));
            let Some(known) = self.kept.entries.get_mut(&pid) else { continue };
            if known.over {
                if missing {
                    self.kept.entries.remove(&pid);
                    self.dirty = true;
                }
                continue;
            }
            let live = self.probe.check(&known.claim(pid), now);
            let before = std::mem::replace(&mut known.live, live);
            match known.live {
                Liveness::Alive { matched } => self.seen_alive(pid, matched, now, out),
                // Whether it left something behind is not to be seen.
                Liveness::Gone if listing.is_none() => known.live = Liveness::CannotCheck,
                Liveness::Gone | Liveness::CannotCheck => {}
            }
            if missing {
                self.missing(pid, now, out);
            } else {
                self.present(pid, before, now, out);
            }
        }
    }

    fn seen_alive(&mut self, pid: i32, matched: bool, now: Timestamp, out: &mut Vec<Event>) {
        let Some(known) = self.kept.entries.get_mut(&pid) else { return };
        if matched && !known.seen_alive {
            known.seen_alive = true;
            self.dirty = true;
        }
        if std::mem::take(&mut known.blind) {
            let (session, start) = (known.session.clone(), known.start);
            let info = SessionInfo { capabilities: Some(SEES), ..SessionInfo::default() };
            out.push(self.event((&session, pid, start), "seen", now, Fact::SessionUpdated(info)));
            self.dirty = true;
        }
    }

    /// The file of a process is there, or may be.
    fn present(&mut self, pid: i32, before: Liveness, now: Timestamp, out: &mut Vec<Event>) {
        let path = self.path(pid);
        let Some(known) = self.kept.entries.get_mut(&pid) else { return };
        known.missing = None;
        if known.live != Liveness::Gone {
            return;
        }
        if process::is_there(&path) {
            self.gone(pid, now, out);
        } else {
            // It left in order, between the listing and the probe: the next look finds the file missing.
            known.live = before;
        }
    }

    /// The file of a process is not there any more.
    fn missing(&mut self, pid: i32, now: Timestamp, out: &mut Vec<Event>) {
        let Some(known) = self.kept.entries.get_mut(&pid) else { return };
        let since = *known.missing.get_or_insert(now);
        let long = now.since(since) > EXIT_MS;
        if matches!(known.live, Liveness::Alive { .. }) {
            if long {
                // Somebody else removed it: what the process asks is not known any more.
                self.answered(pid, now, out);
            }
            return;
        }
        self.answered(pid, since, out);
        let Some(known) = self.kept.entries.remove(&pid) else { return };
        if long {
            self.kept.sessions.ended(&known.session, Writer::Unknown, now, false);
        } else {
            self.leaves(pid, &known, since);
        }
        self.dirty = true;
    }

    /// A process is dead and left its file behind.
    pub(super) fn gone(&mut self, pid: i32, now: Timestamp, out: &mut Vec<Event>) {
        let Some(known) = self.kept.entries.get(&pid).filter(|known| !known.over) else { return };
        let unfinished = known.in_turn();
        let (session, start) = (known.session.clone(), known.start);
        // Nothing lives through a start of the machine, so that is the latest moment at which it died.
        let at = self.probe.boot(now).filter(|boot| *boot > known.written).unwrap_or(now);
        self.answered(pid, at, out);
        let mut others = self.kept.entries.iter().filter(|(other, k)| {
            **other != pid && k.session == session && !k.over && k.live != Liveness::Gone
        });
        let mut taken = false;
        let at_work = others.any(|(_, other)| {
            taken = true;
            other.in_turn()
        });
        if taken && unfinished && !at_work {
            out.push(self.event((&session, pid, start), "broken-off", at, interrupted()));
        }
        self.kept.sessions.ended(&session, Writer::Gone, at, unfinished && !taken);
        if let Some(known) = self.kept.entries.get_mut(&pid) {
            (known.over, known.live) = (true, Liveness::Gone);
        }
        self.dirty = true;
    }

    /// Says what is news about the writers of sessions.
    pub(super) fn say_writers(&mut self, now: Timestamp, out: &mut Vec<Event>) {
        let mut holders: BTreeMap<SessionId, Holders> = BTreeMap::new();
        for known in self.kept.entries.values() {
            let held = holders.entry(known.session.clone()).or_default();
            match known.live {
                _ if known.over => {}
                Liveness::Alive { .. } => held.alive = true,
                Liveness::Gone | Liveness::CannotCheck => held.unclear = true,
            }
        }
        for (session, writer, at) in self.kept.sessions.hear(&holders, now) {
            let name = format!("registry:writer:{}:{}", writer.as_str(), at.as_millis());
            let mut event = Event::new(&self.source, &session, now, Fact::Writer(writer));
            event.id = Some(self.reducer.event_id(&self.source, session.as_str(), &name));
            event.time = Some(at);
            out.push(event);
            self.dirty = true;
        }
        self.dirty |= self.kept.sessions.tidy(&holders, MAX_FILES);
    }
}
