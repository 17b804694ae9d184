//! Whose line it is, what is known of that session, and when its turns begin and end.

use memchr::memmem;

use super::state::{Lane, Turn};
use super::wire::{Line, flag, text, word};
use super::{AGENT, Claude, Emit, SEEN, is_inner};
use crate::event::{
    Capability, ErrorClass, Fact, Id, Mode, SessionId, SessionInfo, Timestamp, Trigger, TurnOutcome,
};

/// First version whose messages all say why they stopped.
const TELLS_ENDS: [u32; 3] = [2, 1, 91];
/// Request of a sub-agent's first turn, which its parent's file tells of too.
pub(super) const RUN: &str = "run";

/// How a turn ends.
pub(super) struct Ended {
    pub(super) outcome: TurnOutcome,
    pub(super) error: Option<ErrorClass>,
    pub(super) denied: bool,
    pub(super) result_known: bool,
}

// === impl Ended ===

impl Ended {
    pub(super) const fn as_known(outcome: TurnOutcome) -> Self {
        Self { outcome, error: None, denied: false, result_known: true }
    }
}

// === impl Claude ===

impl Claude {
    /// Takes from the name and the head of a file whose it is. The ids inside decide: names may be anything.
    pub(super) fn look_at_head(&mut self, name: Option<&str>, head: &[u8]) {
        self.state.agent = name.and_then(|name| name.strip_prefix("agent-")).map(str::to_owned);
        if self.state.agent.is_some() {
            return;
        }
        let (mut first_answer, mut last, mut named, mut others) = (None, None, false, Vec::new());
        for line in head.split(|b| *b == b'\n') {
            let Some(id) = field(line, b"\"sessionId\":\"") else { continue };
            named |= name == Some(id);
            last = Some(id);
            if first_answer.is_none() && memmem::find(line, b"\"type\":\"assistant\"").is_some() {
                first_answer = Some(id);
            }
            others.push(id);
            // The session an answer was asked for in: a copy names the one it is from.
            others.extend(field(line, b"\"requestSessionId\":\""));
        }
        let Some(own) = name.filter(|_| named).or(first_answer).or(last) else { return };
        self.begin_lane(own);
        if let Some(other) = others.into_iter().find(|id| *id != own) {
            self.copies_from(other);
        }
    }

    fn begin_lane(&mut self, own: &str) {
        self.state.own = Some(self.hash(own));
        let session = self.session_id(own);
        self.state.lanes.push(Lane::new(session));
    }

    /// The file begins with what is another session's.
    fn copies_from(&mut self, other: &str) {
        if !self.state.fork {
            self.state.fork = true;
            self.state.forked_from = Some(self.session_id(other));
            let claimed = self.state.lanes.iter_mut().filter_map(|lane| lane.owner.take()).count() > 0;
            if let Some(origin) = self.state.forked_from.as_ref().filter(|_| claimed) {
                // What was claimed before this was known may have been taken from there.
                self.owners.lose(origin);
            }
        }
    }

    pub(super) fn session_id(&self, text: &str) -> SessionId {
        SessionId::from(self.reducer.bounded(text).as_str())
    }

    /// Names a sub-agent. Its own id alone was short in some versions.
    pub(super) fn child_id(&self, session: &str, agent: &str) -> SessionId {
        self.session_id(&format!("{session}:{agent}"))
    }

    /// The lane a line belongs to; `None` as long as nothing said whose file this is.
    pub(super) fn lane(&mut self, line: &Line<'_>, kind: &str, time: Option<Timestamp>) -> Option<usize> {
        let id = text(line.session_id);
        if self.state.lanes.is_empty() {
            let id = id.as_deref()?;
            let agent =
                text(line.agent_id).map(|agent| agent.into_owned()).or_else(|| self.state.agent.clone());
            match agent {
                Some(agent) if flag(line.is_sidechain) || self.state.agent.is_some() => {
                    self.state.agent = Some(agent.clone());
                    let mut lane = Lane::new(self.child_id(id, &agent));
                    lane.parent = Some(self.session_id(id));
                    self.state.lanes.push(lane);
                }
                _ => self.begin_lane(id),
            }
        }
        let at = if self.state.agent.is_some() {
            0
        } else if is_inner(line) {
            self.inner_lane(line)
        } else if let Some(agent) = text(line.agent_id).filter(|_| flag(line.is_sidechain)) {
            let own = self.state.lanes[0].session.clone();
            let child = self.child_id(own.as_str(), &agent);
            self.state.lane_of(&child, Some(&own))
        } else {
            self.own_lane(id.as_deref(), kind);
            // The session an answer was asked for in: a copy names the one it is from.
            let asked = text(line.request_session).filter(|id| Some(self.hash(id)) != self.state.own);
            if let Some(other) = asked {
                self.copies_from(&other);
            }
            0
        };
        let lane = &mut self.state.lanes[at];
        lane.start = lane.start.or(time);
        Some(at)
    }

    /// A line of the file's own session, or one that it copied.
    fn own_lane(&mut self, id: Option<&str>, kind: &str) {
        let Some(id) = id.filter(|id| Some(self.hash(id)) != self.state.own) else { return };
        let answered = self.state.lanes[0].known && !self.state.lanes[0].messages.is_empty();
        if kind == "assistant" && !answered && !self.state.fork {
            // Nothing of the first id was answered here: the file is the second one's.
            self.state.own = Some(self.hash(id));
            let session = self.session_id(id);
            let before = std::mem::replace(&mut self.state.lanes[0], Lane::new(session));
            self.copies_from(before.session.as_str());
        } else {
            self.copies_from(id);
        }
    }

    /// The lane of a sub-agent's line inside its parent's file: that of the line it follows.
    fn inner_lane(&mut self, line: &Line<'_>) -> usize {
        let own = self.state.lanes[0].session.clone();
        let uuid = word(line.uuid).into_owned();
        let before = text(line.parent_uuid).map(|uuid| self.hash(&uuid));
        let known = before.and_then(|before| self.state.tails.iter().find(|(tail, _)| *tail == before));
        let child = match known {
            Some((_, child)) => child.clone(),
            None => self.child_id(own.as_str(), &uuid),
        };
        let hash = self.hash(&uuid);
        self.state.tail(hash, &child);
        self.state.lane_of(&child, Some(&own))
    }

    /// Makes the session known, and tells what changed about it.
    pub(super) fn describe(&mut self, e: &mut Emit<'_>, at: usize, line: &Line<'_>) {
        let (cwd, version) = (word(line.cwd), word(line.version));
        let (cwd_hash, version_hash) = (self.hash(&cwd), self.hash(&version));
        if self.state.lanes[at].cwd != cwd_hash && !cwd.is_empty() {
            let project = self.reducer.project_of(&cwd);
            let lane = &mut self.state.lanes[at];
            lane.cwd = cwd_hash;
            lane.project =
                project.map(|name| crate::event::Name::from(name.as_str())).or(lane.project.take());
        }
        let lane = &mut self.state.lanes[at];
        let news = !version.is_empty() && lane.version != version_hash;
        if lane.known && !news {
            return;
        }
        let first = !std::mem::replace(&mut lane.known, true);
        let mut info = SessionInfo::default();
        if news {
            lane.version = version_hash;
            // Other versions end some turns with a record; of a turn that has none they tell nothing.
            let tells = tells_ends(&version);
            if std::mem::replace(&mut lane.tells_ends, tells) != tells && !first {
                info.capabilities = Some(if tells { SEEN } else { SEEN.without(Capability::Ends) });
            }
            info.version = Some(self.name(&version));
        }
        if first {
            let entrypoint = text(line.entrypoint);
            let child = self.state.lanes[at].parent.is_some();
            info.agent = Some(crate::event::Name::from(AGENT));
            info.originator = entrypoint.as_deref().map(|entrypoint| self.name(entrypoint));
            // Before it was said, nearly all sessions were a person's at a terminal.
            let interactive = !child && entrypoint.is_none_or(|entrypoint| !entrypoint.starts_with("sdk"));
            info.interactive = (!child).then_some(interactive);
            if at == 0 {
                info.forked_from.clone_from(&self.state.forked_from);
            }
            let lane = &mut self.state.lanes[at];
            lane.interactive = interactive;
            if !lane.tells_ends {
                info.capabilities = Some(SEEN.without(Capability::Ends));
            }
            self.push(e, at, Fact::SessionStarted(info));
        } else {
            self.push(e, at, Fact::SessionUpdated(info));
        }
    }

    /// In plan mode the agent may only read.
    pub(super) fn set_mode(&mut self, e: &mut Emit<'_>, at: usize, mode: &str) {
        let mode = match mode {
            "" => return,
            "plan" => Mode::Plan,
            _ => Mode::Build,
        };
        if self.state.lanes[at].mode.replace(mode) != Some(mode) {
            let read_only = Some(mode == Mode::Plan);
            let info = SessionInfo { mode: Some(mode), read_only, ..SessionInfo::default() };
            self.push(e, at, Fact::SessionUpdated(info));
        }
    }

    /// A turn begins, unless this only adds to the one that is open.
    pub(super) fn open_turn(
        &mut self,
        e: &mut Emit<'_>,
        at: usize,
        time: Option<Timestamp>,
        trigger: Trigger,
        prompt: Option<&str>,
    ) {
        let child = self.state.lanes[at].parent.is_some();
        let prompt = if child && self.state.lanes[at].prompt.is_none() { Some(RUN) } else { prompt };
        let hash = prompt.map(|prompt| self.hash(prompt));
        let lane = &self.state.lanes[at];
        let known = lane.prompt.filter(|(known, ..)| Some(*known) == hash);
        if let Some(turn) = &lane.turn {
            // Without names two prompts in a row may be one; with two names they are two.
            let another = hash.is_some() && lane.prompt.is_some();
            if known.is_some() || !(turn.worked || another) {
                return;
            }
            // What came after it ended it; how, nothing says but its last word.
            let answered = lane.message_last && !lane.tells_ends;
            let outcome = if answered { TurnOutcome::Completed } else { TurnOutcome::Interrupted };
            let ended = Ended { result_known: !answered, ..Ended::as_known(outcome) };
            let newest = lane.newest;
            self.close_turn(e, at, newest, &ended);
        }
        let times = known.map_or(1, |(_, times)| times.saturating_add(1));
        let request = prompt.map(|prompt| match times {
            1 => self.id(prompt),
            _ => self.id(&format!("{prompt}#{times}")),
        });
        if let Some(hash) = hash {
            self.state.lanes[at].prompt = Some((hash, times));
        }
        self.begin_turn(e, at, time, trigger, request);
    }

    /// The agent goes on by itself, or because of something that is no prompt.
    pub(super) fn resume_turn(&mut self, e: &mut Emit<'_>, at: usize) {
        let lane = &mut self.state.lanes[at];
        let command = lane.command.take();
        let (time, trigger) = match command {
            Some(time) => (Some(time), Trigger::Person),
            None if lane.newest.is_none() => (e.time, Trigger::Unknown),
            None => (e.time, Trigger::Machine),
        };
        let request = lane.prompt.as_mut().filter(|_| command.is_none()).map(|(hash, times)| {
            *times = times.saturating_add(1);
            (*hash, *times)
        });
        let request = request.map(|(hash, times)| self.id(&format!("{hash:016x}#{times}")));
        self.begin_turn(e, at, time, trigger, request);
        if command.is_some() {
            self.push_at(e, at, time, Fact::Prompt { trigger: Trigger::Person, queued: false });
        }
    }

    fn begin_turn(
        &mut self,
        e: &mut Emit<'_>,
        at: usize,
        time: Option<Timestamp>,
        trigger: Trigger,
        request: Option<Id>,
    ) {
        let lane = &mut self.state.lanes[at];
        (lane.turn, lane.command, lane.denied) = (Some(Turn { request, worked: false }), None, false);
        lane.left = false;
        lane.message_last = false;
        self.push_at(e, at, time, Fact::TurnStarted { trigger });
    }

    /// The open turn ends, if one is open.
    pub(super) fn close_turn(&mut self, e: &mut Emit<'_>, at: usize, time: Option<Timestamp>, ended: &Ended) {
        self.state.lanes[at].ending = None;
        if self.state.lanes[at].turn.is_none() {
            return;
        }
        let Ended { outcome, error, denied, result_known } = *ended;
        self.push_at(e, at, time, Fact::TurnEnded { outcome, error, reset: None, denied, result_known });
        let lane = &mut self.state.lanes[at];
        (lane.turn, lane.denied, lane.message_last) = (None, false, false);
    }

    /// A message that ended its turn without a text of its own is followed by something else: it was the end.
    pub(super) fn settle(&mut self, e: &mut Emit<'_>, at: usize) {
        if let Some((_, time)) = self.state.lanes[at].ending.take() {
            self.close_turn(e, at, time, &Ended::as_known(TurnOutcome::Completed));
        }
    }
}

/// The text behind a field's name, where it stands in a line outside of any text.
fn field<'l>(line: &'l [u8], name: &[u8]) -> Option<&'l str> {
    let from = memmem::find(line, name)? + name.len();
    let length = memchr::memchr(b'"', &line[from..])?;
    std::str::from_utf8(&line[from..from + length]).ok().filter(|id| !id.is_empty() && !id.contains('\\'))
}

/// Whether messages of this version say why they stopped.
fn tells_ends(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let own = [0; 3].map(|_| parts.next().unwrap_or(0));
    own >= TELLS_ENDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_from_a_version_on() {
        for (version, tells) in [
            ("1.0.17", false),
            ("2.1.90", false),
            ("2.1.91", true),
            ("2.1.332", true),
            ("x", false),
            ("3", true),
        ] {
            assert_eq!(tells_ends(version), tells, "{version}");
        }
    }

    #[test]
    fn a_field_is_one_outside_of_texts() {
        let line = br#"{"content":"\"sessionId\":\"x\"","sessionId":"y"}"#;
        assert_eq!(field(line, b"\"sessionId\":\""), Some("y"));
        assert_eq!(field(b"{}", b"\"sessionId\":\""), None);
    }
}
