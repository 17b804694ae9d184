//! What the fold notes for spans: that something is over, with when it began and how it ended, at the moment the facts let
//! go of it. Notes are made only where somebody wants them, and like sums they are taken back when a stretch is folded
//! again: see [`super::counts::Change`].

use serde::{Deserialize, Serialize};

use super::facts::{Action, Blocked, Facts, OpenCall};
use crate::event::{
    ActionKind, BlockReason, CallOutcome, EndOutcome, ErrorClass, Evidence, Id, Name, OrchestrationState,
    ProgressKind, Resolution, Step, StepOutcome, Timestamp, ToolClass, TraceContext, Trigger, TurnOutcome,
};

/// The run something belongs to: its own id, else when it began.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RunKey {
    /// The id its source gives it.
    Named(Id),
    /// When it began.
    Since(Timestamp),
}

/// Something that happened in a run, or is over in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// The run; `None`: the one that was open when it began.
    pub run: Option<RunKey>,
    /// When the run began, where that is known.
    pub run_since: Option<Timestamp>,
    /// When it happened or ended.
    pub at: Timestamp,
    /// What.
    pub what: What,
}

/// What a [`Note`] tells.
#[expect(missing_docs, reason = "fields are those of the facts they are from")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum What {
    /// A run that nobody had declared is the first part of this one.
    Declared(RunKey),
    /// A run is over.
    Run {
        since: Timestamp,
        trigger: Trigger,
        end: RunOutcome,
        workflow: Option<Option<Name>>,
        callers: Vec<TraceContext>,
    },
    /// A step was entered.
    StepBegan(Step),
    /// A step that was entered between two runs goes on in the second.
    StepGoesOn(Step),
    /// A step is over; its start is in the [`What::StepBegan`] before.
    Step { step: Step, since: Option<Timestamp>, outcome: StepOutcome },
    /// A call that may start other sessions began.
    TaskBegan(Id),
    /// A call is over.
    Call {
        call: Id,
        tool: Name,
        class: ToolClass,
        since: Timestamp,
        outcome: CallOutcome,
        exit_code: Option<i32>,
    },
    /// A request to the user began.
    Asked { action: Id, kind: ActionKind },
    /// A request to the user is over. `call`: the one it held up, where that has a span.
    Wait { action: Id, kind: ActionKind, since: Timestamp, resolution: Resolution, call: Option<Id> },
    /// An episode of being held up is over.
    Hold { reason: BlockReason, since: Timestamp, attempt: Option<u32> },
    /// A fact of progress.
    Progress { kind: ProgressKind, evidence: Evidence, high: bool },
    /// A plan waits for its start.
    PlanReady,
    /// A verification failed.
    VerificationFailed,
    /// Tokens and cost that were added: input, cache read, cache write, output, 1e-9 dollars.
    Usage([u64; 5]),
    /// A part of an orchestration began.
    PartBegan(Part),
    /// An agent of this session works on a part.
    Agent { part: Part, thread: Id },
    /// A part of an orchestration is over. `polled`: its times are those of looks.
    Part { part: Part, since: Timestamp, end: PartEnd, polled: bool },
    /// A turn of an agent that works on an attempt is over. Tokens: input with cached ones, cached, output.
    AgentTurn { turn: Part, since: Timestamp, end: PartEnd, usage: Option<[u64; 3]>, polled: bool },
    /// A call of such a turn is over.
    AgentCall {
        turn: Part,
        call: Id,
        tool: Name,
        class: ToolClass,
        since: Timestamp,
        outcome: CallOutcome,
        exit_code: Option<i32>,
        polled: bool,
    },
    /// An orchestration was held up, or this part of it, until then or until the note's time.
    Held { reason: BlockReason, since: Timestamp, until: Option<Timestamp>, of: Option<Part>, polled: bool },
    /// The run of an orchestration is over.
    Orchestration { since: Timestamp, state: OrchestrationState, polled: bool, callers: Vec<TraceContext> },
}

/// A part of the run of an orchestration, with where it belongs.
#[expect(missing_docs, reason = "names, and numbers from 1")]
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Part {
    /// Specs that are worked on at once.
    Batch(u32),
    /// One of them.
    Spec { name: Name, batch: Option<u32> },
    /// An attempt at one.
    Attempt { spec: Name, batch: Option<u32>, number: u32 },
    /// A turn of an agent that works on it, whose own session is `thread`.
    Turn { spec: Name, batch: Option<u32>, attempt: u32, number: u32, thread: Option<Id> },
}

/// How a part ended; unknown: nobody told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartEnd {
    /// The word for it.
    pub outcome: EndOutcome,
    /// By which error.
    pub error: Option<ErrorClass>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunOutcome {
    /// The word for it.
    pub outcome: Ended,
    /// By which error.
    pub error: Option<ErrorClass>,
}

/// The ways in which a run may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// As a turn.
    Turn(TurnOutcome),
    /// With its session or workflow.
    Session(EndOutcome),
    /// Its process is proven gone.
    Gone,
    /// The session was removed.
    Deleted,
    /// Another one began, and nothing told how this one ended.
    Unseen,
}

/// Notes about one session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Notes {
    /// Whether they are wanted.
    pub wanted: bool,
    list: Vec<Note>,
}

// === impl What ===

impl What {
    /// Whether what it comes to depends on the notes of steps and ends before it.
    pub const fn is_in_order(&self) -> bool {
        matches!(self, Self::Run { .. } | Self::StepBegan(_) | Self::StepGoesOn(_) | Self::Step { .. })
    }
}

// === impl Ended ===

impl Ended {
    /// The word of the outcome.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Turn(outcome) => outcome.as_str(),
            Self::Session(outcome) => outcome.as_str(),
            Self::Gone => "process_gone",
            Self::Deleted => "deleted",
            Self::Unseen => "unseen",
        }
    }

    /// Whether that is a failure, which a refusal or a wish of the user is not.
    pub const fn is_failure(self) -> bool {
        matches!(
            self,
            Self::Turn(TurnOutcome::Failed | TurnOutcome::Truncated | TurnOutcome::Interrupted)
                | Self::Session(EndOutcome::Failed)
                | Self::Gone
        )
    }

    /// Whether the end was told by anything.
    pub const fn is_observed(self) -> bool {
        !matches!(self, Self::Unseen)
    }
}

// === impl Notes ===

impl Notes {
    /// What was noted.
    pub fn list(&self) -> &[Note] {
        &self.list
    }

    /// Takes what was noted elsewhere, if it is wanted.
    pub(super) fn extend(&mut self, notes: Vec<Note>) {
        if self.wanted {
            self.list.extend(notes);
        }
    }

    /// Forgets it, but keeps the room.
    pub fn clear(&mut self) {
        self.list.clear();
    }
}

// === impl Facts ===

impl Facts {
    /// The open run, else the newest that is over.
    fn run_at(&self, at: Timestamp) -> Option<(RunKey, Option<Timestamp>)> {
        let open = self.turn.as_ref().filter(|turn| turn.started.is_none_or(|t| t <= at));
        let open = open.map(|turn| (turn.request.clone(), turn.started));
        let over = || self.turn_end.as_ref().map(|end| (end.request.clone(), end.started));
        let (request, started) = open.or_else(over)?;
        Some((key_of(request, started)?, started))
    }

    /// Notes something of the run that is open at its time, or was the last before.
    pub(super) fn note(&self, at: Option<Timestamp>, notes: &mut Notes, what: impl FnOnce() -> What) {
        self.note_since(at, at, notes, what);
    }

    /// The same of something that began earlier.
    fn note_since(
        &self,
        since: Option<Timestamp>,
        at: Option<Timestamp>,
        notes: &mut Notes,
        what: impl FnOnce() -> What,
    ) {
        if !notes.wanted || self.is_orchestrated() {
            return;
        }
        let (Some(since), Some(at)) = (since, at) else { return };
        let (run, run_since) = self.run_at(since).map_or((None, None), |(run, since)| (Some(run), since));
        notes.list.push(Note { run, run_since, at: at.max(since), what: what() });
    }

    /// The open run is over.
    pub(super) fn note_run(&self, at: Option<Timestamp>, end: RunOutcome, notes: &mut Notes) {
        if !notes.wanted || self.is_orchestrated() {
            return;
        }
        let (Some(turn), Some(at)) = (&self.turn, at) else { return };
        let (Some(run), Some(since)) = (key_of(turn.request.clone(), turn.started), turn.started) else {
            return;
        };
        let (workflow, callers) = (turn.workflow.clone(), turn.callers.clone());
        let what = What::Run { since, trigger: turn.trigger, end, workflow, callers };
        notes.list.push(Note { run: Some(run), run_since: Some(since), at: at.max(since), what });
    }

    /// What was taken for a run since some first work is the one that is told of now.
    pub(super) fn note_declared(&self, request: Option<&Id>, at: Option<Timestamp>, notes: &mut Notes) {
        let open = self.turn.as_ref().filter(|turn| notes.wanted && turn.implicit);
        let known = open.and_then(|turn| Some((key_of(None, turn.started)?, turn.started)));
        if let (Some((run, since)), Some(by), Some(at)) = (known, key_of(request.cloned(), at), at)
            && run != by
        {
            notes.list.push(Note { run: Some(run), run_since: since, at, what: What::Declared(by) });
        }
    }

    pub(super) fn note_call(
        &self,
        open: &OpenCall,
        outcome: CallOutcome,
        exit_code: Option<i32>,
        at: Option<Timestamp>,
        notes: &mut Notes,
    ) {
        let Some(since) = open.since.filter(|_| notes.wanted) else { return };
        let before = notes.list.len();
        self.note_since(Some(since), at, notes, || What::Call {
            call: open.start.call.clone(),
            tool: open.start.tool.clone(),
            class: open.start.class,
            since,
            outcome,
            exit_code,
        });
        // It says itself whose it is, though another run may have begun since.
        if let (Some(request), Some(note)) = (&open.request, notes.list.get_mut(before)) {
            let own = RunKey::Named(request.clone());
            if note.run.as_ref() != Some(&own) {
                (note.run, note.run_since) = (Some(own), None);
            }
        }
    }

    pub(super) fn note_wait(
        &self,
        action: &Action,
        resolution: Resolution,
        at: Option<Timestamp>,
        notes: &mut Notes,
    ) {
        let held = |call: &&Id| {
            self.open_calls
                .iter()
                .any(|c| c.start.call == **call && c.since.is_some_and(|t| t <= action.since))
        };
        self.note_since(Some(action.since), at, notes, || What::Wait {
            action: action.action.clone(),
            kind: action.kind,
            since: action.since,
            resolution,
            call: action.call.as_ref().filter(held).cloned(),
        });
    }

    pub(super) fn note_hold(&self, blocked: &Blocked, at: Option<Timestamp>, notes: &mut Notes) {
        self.note_since(Some(blocked.since), at, notes, || What::Hold {
            reason: blocked.reason,
            since: blocked.since,
            attempt: blocked.attempt,
        });
    }
}

/// What a run is called.
pub fn key_of(request: Option<Id>, started: Option<Timestamp>) -> Option<RunKey> {
    request.map(RunKey::Named).or(started.map(RunKey::Since))
}
