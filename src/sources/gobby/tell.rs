//! What is told under the daemon's own id of a session: loops, tasks, runs of sub-agents, requests to stop. Until a
//! list joined that id with the agent's, it waits.

use std::sync::Arc;

use super::poll::SERIAL;
use super::state::Action;
use super::state::{Held, Kind, Layer, MAX_HELD, Run, Told};
use super::wire::{Frame, Raw, text, word};
use super::{Emit, Gobby};
use crate::event::{
    ActionKind, ActivityClass, BlockReason, EndOutcome, ErrorClass, Evidence, Fact, Id, Name, ProgressKind,
    Requester, Resolution, SessionInfo, Step, StepKind, StepOutcome, Trigger, TurnOutcome,
};

/// The detector of the daemon, as `native_stuck` names it.
const DETECTOR: &str = "gobby";
/// How sessions that are runs of a pipeline are named.
const PIPELINE: &str = "pipeline";

// === impl Gobby ===

impl Gobby {
    pub(super) fn told(&mut self, e: &mut Emit<'_>, kind: &str, frame: &Frame<'_>) {
        let event = word(frame.event);
        let own = || text(frame.session_id).map(|id| self.bounded(&id));
        let (kind, internal, told) = match kind {
            "autonomous_event" => (Kind::Autonomous, own(), self.autonomous(&event, frame)),
            "session_event" => (Kind::Session, own(), self.of_session(&event)),
            "task_event" => {
                let (internal, told) = self.of_task(&event, frame);
                (Kind::Task, internal, told)
            }
            "agent_event" => {
                let parent = text(frame.parent_session_id).map(|id| self.bounded(&id));
                (Kind::Agent, parent, self.of_run(&event, frame))
            }
            // Texts and tokens: that the agent works is all that is taken; the numbers come with the list.
            _ => (Kind::Other, own(), Some(Told::Worked)),
        };
        let Some(told) = told else {
            e.said.unknown.push(format!("{}/{event}", word(frame.kind)));
            return;
        };
        // A task nobody works on is no session's.
        let Some(internal) = internal.filter(|id| !id.is_empty()) else { return };
        let held = Held { internal, time: e.time, observed: e.observed, seed: e.seed, kind, told };
        if kind == Kind::Session || kind == Kind::Other {
            self.poll.want();
        }
        match self.find(e, &held.internal) {
            Some(at) => self.apply(e, at, held.told),
            None => {
                self.poll.want();
                if self.state.held.len() >= MAX_HELD {
                    let oldest = self.state.held.pop_front().map_or(Kind::Other, |h| h.kind);
                    e.said.unknown.push(oldest.unjoined().to_owned());
                }
                self.state.held.push_back(held);
                self.poll.holds_one();
            }
        }
        self.ask_if_wanted(e.observed, e.said);
    }

    /// After a list: who can be joined is told, the rest is only counted. What was told since the list was asked for may
    /// be of a session that is newer than it, and waits for the next.
    pub(super) fn tell_held(&mut self, said: &mut super::Said) {
        let all = std::mem::take(&mut self.state.held);
        let older = all.len().saturating_sub(self.poll.held_since());
        for (n, held) in all.into_iter().enumerate() {
            let (time, observed, seed) = (held.time, held.observed, held.seed);
            let mut e = Emit { said: &mut *said, time, observed, project: None, seed, count: 0 };
            match self.find(&mut e, &held.internal) {
                Some(at) => self.apply(&mut e, at, held.told),
                None if n >= older => self.state.held.push_back(held),
                None => e.said.unknown.push(held.kind.unjoined().to_owned()),
            }
        }
    }

    fn bounded(&self, id: &str) -> Arc<str> {
        Arc::from(self.reducer.bounded(id).as_str())
    }

    /// The session with this id of the daemon.
    pub(super) fn find(&mut self, e: &mut Emit<'_>, internal: &str) -> Option<usize> {
        if let Some(at) = self.state.find_internal(internal) {
            return Some(at);
        }
        let external = self.joined.get(internal)?.external.clone();
        Some(self.session(e, &external))
    }

    fn autonomous(&self, event: &str, frame: &Frame<'_>) -> Option<Told> {
        Some(match event {
            // Only a mark: our counts go on.
            "loop_started" | "loop_stopped" => Told::Noted,
            "task_started" => Told::Selected(self.id(&text(frame.task_id)?)),
            // The daemon searches texts, we read what tools returned: its word counts only for what no hook shows.
            "progress_recorded" if word(frame.progress_type) == "task_completed" => Told::Finished,
            "progress_recorded" => Told::Noted,
            "stuck_detected" => Told::Stuck(Layer::parse(&word(frame.layer))?),
            "stop_requested" => Told::Stop(requester(frame.source)),
            _ => return None,
        })
    }

    fn of_session(&self, event: &str) -> Option<Told> {
        Some(match event {
            "session_stop_signaled" => Told::Stop(Requester::Unknown),
            "session_stop_cleared" => Told::StopCleared,
            "session_expired" => Told::Expired,
            other if other.starts_with("session_") => Told::Noted,
            _ => return None,
        })
    }

    fn of_task(&mut self, event: &str, frame: &Frame<'_>) -> (Option<Arc<str>>, Option<Told>) {
        let (Some(task), true) = (text(frame.task_id), event.starts_with("task_")) else {
            return (None, None);
        };
        let task = self.id(&task);
        let state = &frame.task.state;
        let ids = [
            state.owner_session_id,
            frame.task.claimed_by_session_id,
            state.closed_in_session_id,
            frame.task.closed_in_session_id,
        ];
        let internal = ids.into_iter().find_map(text).map(|id| self.bounded(&id));
        let Some(tracked) = self.state.track(&task, internal.as_deref()) else {
            return (None, Some(Told::Noted));
        };
        let flag = super::wire::flag;
        let (escalated, blocked) = (flag(state.is_escalated), flag(state.is_blocked));
        let told = match event {
            "task_claimed" => Told::Selected(task),
            "task_closed" => Told::Closed(task, !std::mem::replace(&mut tracked.done, true)),
            _ if escalated || blocked => Told::Blocked(escalated),
            _ if tracked.blocks => Told::Unblocked,
            _ => Told::Noted,
        };
        tracked.blocks = matches!(told, Told::Blocked(_));
        (Some(tracked.internal.clone()), Some(told))
    }

    fn of_run(&self, event: &str, frame: &Frame<'_>) -> Option<Told> {
        let run = match event {
            "agent_started" => Run::Started,
            "agent_completed" => Run::Completed,
            "agent_failed" => Run::Failed,
            "agent_cancelled" => Run::Cancelled,
            "agent_timeout" => Run::TimedOut,
            _ => return None,
        };
        let child = text(frame.session_id).map(|id| self.bounded(&id));
        Some(Told::Run(self.id(&text(frame.run_id)?), child, run))
    }

    fn apply(&mut self, e: &mut Emit<'_>, at: usize, told: Told) {
        match told {
            Told::Noted => self.activity(e, at, ActivityClass::Bookkeeping),
            Told::Worked => self.activity(e, at, ActivityClass::Work),
            Told::Selected(task) => self.selected(e, at, task),
            Told::Closed(task, first) => self.closed(e, at, &task, first),
            Told::Finished => match self.state.sessions[at].task.take() {
                Some(task) => {
                    let first = self.first_time(&task, at);
                    self.closed(e, at, &task, first);
                }
                // Of which task is not said: it might be one that counted already.
                None => self.activity(e, at, ActivityClass::Bookkeeping),
            },
            Told::Blocked(waits) => {
                let reason = if waits { BlockReason::WorkflowBlocked } else { BlockReason::Dependency };
                self.push(e, at, Fact::Blocked { reason, attempt: None, delay_ms: None, until: None });
            }
            Told::Unblocked => self.push(e, at, Fact::Unblocked),
            Told::Stuck(layer) => {
                let (detector, layer) = (Name::from(DETECTOR), Name::from(layer.as_str()));
                self.push(e, at, Fact::NativeStuck { detector, layer });
            }
            Told::Stop(requester) => self.stop_wanted(e, at, requester),
            Told::StopCleared => self.stop_gone(e, at),
            Told::Expired => self.end_session(e, at, None),
            Told::Run(run, child, what) => self.run(e, at, &run, child.as_deref(), what),
        }
    }

    pub(super) fn stop_wanted(&mut self, e: &mut Emit<'_>, at: usize, requester: Requester) {
        self.serial = self.serial.wrapping_add(1) & SERIAL;
        let session = &mut self.state.sessions[at];
        (session.stop, session.stop_told) = (true, self.serial);
        // A second one while the first stands changes nothing, which the fold knows.
        self.push(e, at, Fact::StopRequested { requester });
        self.poll.want_stops();
    }

    pub(super) fn stop_gone(&mut self, e: &mut Emit<'_>, at: usize) {
        self.serial = self.serial.wrapping_add(1) & SERIAL;
        let session = &mut self.state.sessions[at];
        (session.stop, session.stop_told) = (false, self.serial);
        self.push(e, at, Fact::StopCleared);
    }

    /// An event that belongs to no turn: a task is done once, whatever turn it is told in.
    fn push_task(&self, e: &mut Emit<'_>, at: usize, fact: Fact) {
        let session = &self.state.sessions[at];
        self.push_as(e, &session.id, session.parent.clone(), None, fact);
    }

    /// A task is chosen: each time it is chosen it is entered.
    fn selected(&mut self, e: &mut Emit<'_>, at: usize, task: Id) {
        self.push_task(e, at, Fact::StepStarted(step(&task)));
        let (kind, evidence) = (ProgressKind::TaskStarted, Evidence::Declared);
        self.push_task(e, at, Fact::Progress { kind, evidence, call: None, subject: None });
        self.state.sessions[at].task = Some(task);
    }

    /// A task is done. One that had been done before is closed again without being an advance.
    fn closed(&mut self, e: &mut Emit<'_>, at: usize, task: &Id, first: bool) {
        let outcome = if first { StepOutcome::Advanced } else { StepOutcome::LoopedBack };
        self.push_task(e, at, Fact::StepCompleted { step: step(task), outcome });
        let session = &mut self.state.sessions[at];
        if session.task.as_ref() == Some(task) {
            session.task = None;
        }
    }

    /// Whether a task that the daemon calls done was not done before.
    fn first_time(&mut self, task: &Id, at: usize) -> bool {
        let internal = self.state.sessions[at].internal.clone();
        let tracked = self.state.track(task, internal.as_deref());
        tracked.is_none_or(|tracked| !std::mem::replace(&mut tracked.done, true))
    }

    /// A run of a sub-agent: a session of its own where the list has it, else one by the run's name.
    fn run(&mut self, e: &mut Emit<'_>, at: usize, run: &Id, child: Option<&str>, what: Run) {
        let (outcome, turn, error) = match what {
            Run::Started => (None, None, None),
            Run::Completed => (Some(EndOutcome::Completed), Some(TurnOutcome::Completed), None),
            Run::Failed => (Some(EndOutcome::Failed), Some(TurnOutcome::Failed), None),
            Run::Cancelled => (Some(EndOutcome::Cancelled), Some(TurnOutcome::Cancelled), None),
            Run::TimedOut => (Some(EndOutcome::Failed), Some(TurnOutcome::Failed), Some(ErrorClass::Timeout)),
        };
        if let Some(own) = child.and_then(|child| self.find(e, child)).filter(|own| *own != at) {
            let parent = self.state.sessions[at].id.clone();
            let session = &mut self.state.sessions[own];
            session.parent.get_or_insert(parent);
            session.spawned = true;
            match (outcome, turn) {
                (Some(outcome), Some(turn)) => {
                    if self.state.sessions[own].turn.is_some() {
                        self.end_turn(e, own, turn, error, true);
                    }
                    self.end_session(e, own, Some(outcome));
                }
                _ => {
                    let info = self.info(own);
                    self.push(e, own, Fact::SessionUpdated(info));
                }
            }
            return;
        }
        let name = format!("{}:{}", self.state.sessions[at].id.as_str(), run.as_str());
        let child = self.session_id(&name);
        match (outcome, turn) {
            (Some(outcome), Some(turn)) => {
                let ended =
                    Fact::TurnEnded { outcome: turn, error, reset: None, denied: false, result_known: true };
                self.push_in(e, at, Some(&child), ended);
                let ended = Fact::SessionEnded { outcome, error, workflow: false };
                self.push_in(e, at, Some(&child), ended);
            }
            _ => {
                let info = SessionInfo { endpoint: Some(self.endpoint.clone()), ..SessionInfo::default() };
                self.push_in(e, at, Some(&child), Fact::SessionStarted(info));
                self.push_in(e, at, Some(&child), Fact::TurnStarted { trigger: Trigger::Machine });
            }
        }
    }

    /// A run of a pipeline: a session of its own, with the steps of the pipeline's definition.
    pub(super) fn pipeline(&mut self, e: &mut Emit<'_>, frame: &Frame<'_>) {
        let Some(run) = text(frame.execution_id).filter(|id| !id.is_empty()) else {
            e.said.unknown.push("pipeline_event/no_execution".to_owned());
            return;
        };
        let event = word(frame.event);
        let step_id = text(frame.step_id).map(|id| self.id(&id));
        let (of_step, what) = match event.split_once('_') {
            Some(("step", what)) => (true, what.to_owned()),
            Some(("pipeline" | "execution", what)) => (false, what.to_owned()),
            _ => (step_id.is_some(), event.clone().into_owned()),
        };
        // Where the event only says that the state changed, the state is the word.
        let what = match text(frame.status) {
            Some(status) if matches!(what.as_str(), "updated" | "changed" | "status" | "") => {
                status.into_owned()
            }
            _ => what,
        };
        let at = self.session(e, &format!("{PIPELINE}:{run}"));
        self.state.sessions[at].spawned = true;
        match (of_step, what.as_str(), step_id) {
            (_, "waiting_approval" | "approval_required" | "required", step) => {
                let what = step.as_ref().map_or("approval", Id::as_str);
                let key = Some(self.reducer.hash(what.as_bytes()));
                if self.state.sessions[at].actions.iter().any(|open| open.key == key) {
                    return self.activity(e, at, ActivityClass::Bookkeeping);
                }
                // A step may be asked for again.
                let action = self.id(self.stamped(e, what).as_str());
                let wanted = Action { action, call: None, key, elicitation: false };
                self.state.sees_actions = true;
                let info = self.info(at);
                self.push(e, at, Fact::SessionUpdated(info));
                self.ask_person(e, at, ActionKind::Confirmation, wanted, None);
            }
            (true, "started" | "running", Some(id)) => {
                self.resolve_all(e, at, Resolution::Approved);
                self.works(e, at);
                let step = self.pipeline_step(id, frame);
                self.push(e, at, Fact::StepStarted(step));
            }
            (true, "completed" | "failed" | "cancelled" | "interrupted" | "skipped", Some(id)) => {
                let done = what == "completed";
                let resolution = if done { Resolution::Approved } else { Resolution::Unknown };
                self.resolve_all(e, at, resolution);
                if what != "skipped" {
                    let outcome = if done { StepOutcome::Advanced } else { StepOutcome::Failed };
                    let step = self.pipeline_step(id, frame);
                    self.push(e, at, Fact::StepCompleted { step, outcome });
                }
            }
            (false, "pending", _) => {
                let info = self.info(at);
                self.push(e, at, Fact::SessionQueued(info));
            }
            (false, "started" | "running" | "resumed", _) => {
                self.resolve_all(e, at, Resolution::Approved);
                if self.state.sessions[at].turn.is_none() {
                    let info = self.info(at);
                    self.push(e, at, Fact::SessionStarted(info));
                    self.begin_turn(e, at, Trigger::Machine);
                }
            }
            (false, "completed", _) => {
                self.pipeline_ended(e, at, TurnOutcome::Completed, EndOutcome::Completed)
            }
            (false, "failed", _) => self.pipeline_ended(e, at, TurnOutcome::Failed, EndOutcome::Failed),
            (false, "interrupted", _) => {
                self.pipeline_ended(e, at, TurnOutcome::Interrupted, EndOutcome::Failed)
            }
            (false, "cancelled", _) => {
                self.pipeline_ended(e, at, TurnOutcome::Cancelled, EndOutcome::Cancelled)
            }
            _ => {
                e.said.unknown.push(format!("pipeline_event/{event}"));
                self.activity(e, at, ActivityClass::Bookkeeping);
            }
        }
    }

    fn pipeline_step(&self, id: Id, frame: &Frame<'_>) -> Step {
        let name = text(frame.step_name).map(|name| Name::from(self.reducer.bounded(&name).as_str()));
        Step { id, kind: StepKind::Other, name, index: None, total: None, entry: None }
    }

    fn pipeline_ended(&mut self, e: &mut Emit<'_>, at: usize, turn: TurnOutcome, outcome: EndOutcome) {
        if self.state.sessions[at].ended {
            return;
        }
        self.end_turn(e, at, turn, None, true);
        self.push(e, at, Fact::SessionEnded { outcome, error: None, workflow: true });
        self.state.sessions[at].ended = true;
    }
}

/// A task as a step: its title is a user's text and stays out.
fn step(task: &Id) -> Step {
    Step { id: task.clone(), kind: StepKind::Task, name: None, index: None, total: None, entry: None }
}

/// Who asked for the stop.
pub(super) fn requester(word_of: Raw<'_>) -> Requester {
    match word(word_of).as_ref() {
        "http_api" => Requester::Http,
        known => Requester::parse(known).unwrap_or(Requester::Unknown),
    }
}
