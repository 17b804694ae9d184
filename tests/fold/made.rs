//! Events and sessions made by hand. A [`Story`] is told second by second and asked at a moment.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use agent_session_exporter::event::{
    ActionKind, ActivityClass, BlockReason, CallEnd, CallOutcome, CallStart, Capabilities, Capability,
    Certainty, Commands, EndOutcome, ErrorClass, Event, Evidence, Fact, Id, Name, ProgressKind, Resolution,
    SessionId, SessionInfo, SourceHealth, SourceId, Step, StepKind, StepOutcome, Tally, Timestamp, ToolClass,
    Trigger, TurnOutcome, Usage, Writer,
};
use agent_session_exporter::session::counts::{Aggregates, Count};
use agent_session_exporter::session::snapshot::{Snapshot, Tree};
use agent_session_exporter::session::window::Session;
use agent_session_exporter::session::{Derived, Facts, Reason, Rollup, State};

/// Second zero of every story.
pub(super) const T0: i64 = 1_790_000_000_000;
/// The session a story is about.
pub(super) const ROOT: &str = "root";
pub(super) const MINUTE: i64 = 60;
pub(super) const HOUR: i64 = 3600;

/// The moment `s` seconds into the story.
pub(super) fn at(s: i64) -> Timestamp {
    Timestamp::from_millis(T0 + s * 1000)
}

/// Everything a source can see but pending actions and liveness.
pub(super) fn sees_most() -> Capabilities {
    Capabilities::of(&[
        Capability::Ends,
        Capability::Progress,
        Capability::Calls,
        Capability::Steps,
        Capability::Usage,
    ])
}

/// A fact, with the turn it belongs to.
pub(super) struct Told {
    pub(super) fact: Fact,
    pub(super) request: Option<Id>,
}

impl From<Fact> for Told {
    fn from(fact: Fact) -> Self {
        Self { fact, request: None }
    }
}

/// A fact of a named turn.
pub(super) fn of(turn: &str, fact: Fact) -> Told {
    Told { fact, request: Some(Id::from(turn)) }
}

/// Sessions of one source, and what is known around them.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) sessions: BTreeMap<String, Session>,
    pub(super) sums: Aggregates,
    pub(super) capabilities: Capabilities,
    pub(super) health: Vec<SourceHealth>,
    pub(super) suspended: Vec<(Timestamp, Timestamp)>,
    told: u64,
}

impl Story {
    pub(super) fn new() -> Self {
        Self {
            sessions: BTreeMap::new(),
            sums: Aggregates::default(),
            capabilities: sees_most(),
            health: Vec::new(),
            suspended: Vec::new(),
            told: 0,
        }
    }

    pub(super) fn seeing(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// The source's endpoint went down.
    pub(super) fn down_since(mut self, s: i64) -> Self {
        self.health.push(SourceHealth {
            source: SourceId::from("test"),
            endpoint: Name::from("default"),
            up: false,
            since: at(s),
            scanned: true,
        });
        self
    }

    pub(super) fn asleep(mut self, from: i64, to: i64) -> Self {
        self.suspended.push((at(from), at(to)));
        self
    }

    /// Something happened in the root.
    pub(super) fn say(self, s: i64, told: impl Into<Told>) -> Self {
        self.tell(ROOT, None, Some(at(s)), told.into())
    }

    /// Something happened in a sub-agent of the root.
    pub(super) fn kid(self, name: &str, s: i64, told: impl Into<Told>) -> Self {
        self.tell(name, Some(ROOT), Some(at(s)), told.into())
    }

    /// A record without a time, read long after.
    pub(super) fn untimed(self, told: impl Into<Told>) -> Self {
        self.tell(ROOT, None, None, told.into())
    }

    pub(super) fn tell(
        mut self,
        session: &str,
        parent: Option<&str>,
        time: Option<Timestamp>,
        told: Told,
    ) -> Self {
        self.told += 1;
        let observed = time.unwrap_or(at(100_000));
        let mut event = event(session, self.told, time, told, observed);
        event.parent = parent.map(SessionId::from);
        self.take(event);
        self
    }

    /// Takes an event in as the store does.
    pub(super) fn take(&mut self, event: Event) {
        let name = event.session.as_str().to_owned();
        let fresh = || {
            Session::new(Facts::new(event.source.clone(), event.session.clone(), Timestamp::from_millis(T0)))
        };
        let session = self.sessions.entry(name).or_insert_with(fresh);
        let source = event.source.clone();
        let mut change = session.apply(event, Timestamp::from_millis(0));
        self.sums.take(&source, &mut change);
    }

    pub(super) fn facts(&self) -> &Facts {
        self.sessions[ROOT].facts()
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let sessions: Vec<_> = self.sessions.values().map(|s| Some(s.facts().clone())).collect();
        let tree = Arc::new(Tree::of(&sessions));
        Snapshot {
            sessions,
            tree,
            capabilities: Arc::new(HashMap::from([(SourceId::from("test"), self.capabilities)])),
            health: Arc::new(self.health.clone()),
            suspended: Arc::new(self.suspended.clone()),
            process_start: Timestamp::from_millis(0),
            ..Snapshot::default()
        }
    }

    pub(super) fn derived(&self, session: &str, s: i64) -> Derived {
        self.ask(session, s, |snapshot, view| snapshot.derive(view))
    }

    /// Asks about a session with its sub-agents.
    pub(super) fn ask<R>(
        &self,
        session: &str,
        s: i64,
        question: impl FnOnce(&Snapshot, &Rollup<'_>) -> R,
    ) -> R {
        let snapshot = self.snapshot();
        let slot = snapshot.find(&SourceId::from("test"), &SessionId::from(session)).unwrap();
        question(&snapshot, &snapshot.rollup(slot, at(s)).unwrap())
    }

    /// State and reason of the root at a moment.
    pub(super) fn state(&self, s: i64) -> (State, Reason) {
        let d = self.derived(ROOT, s);
        (d.state, d.reason)
    }

    /// What was counted under a key, over all projects.
    pub(super) fn counted(&self, count: &Count) -> i64 {
        self.sums.sums.iter().filter(|((_, _, c), _)| c == count).map(|(_, sum)| sum.exact()).sum()
    }

    /// High and low counts of a kind of progress in the root.
    pub(super) fn progress(&self, kind: ProgressKind) -> (u64, u64) {
        self.facts().progress.iter().find(|p| p.kind == kind).map_or((0, 0), |p| (p.high, p.low))
    }
}

pub(super) fn event(
    session: &str,
    id: u64,
    time: Option<Timestamp>,
    told: Told,
    observed: Timestamp,
) -> Event {
    let mut event = Event::new(&SourceId::from("test"), &SessionId::from(session), observed, told.fact);
    event.id = Some(id);
    event.time = time;
    event.request = told.request;
    event
}

pub(super) fn started() -> Fact {
    Fact::SessionStarted(SessionInfo::default())
}

pub(super) fn interactive() -> Fact {
    Fact::SessionStarted(SessionInfo { interactive: Some(true), ..SessionInfo::default() })
}

pub(super) fn turn(id: &str) -> Told {
    of(id, Fact::TurnStarted { trigger: Trigger::Person })
}

pub(super) fn machine_turn(id: &str) -> Told {
    of(id, Fact::TurnStarted { trigger: Trigger::Machine })
}

pub(super) fn ended(outcome: TurnOutcome) -> Fact {
    Fact::TurnEnded { outcome, error: None, reset: None, denied: false, result_known: true }
}

pub(super) fn failed(error: ErrorClass, reset: Option<i64>) -> Fact {
    let reset = reset.map(at);
    Fact::TurnEnded {
        outcome: TurnOutcome::Failed,
        error: Some(error),
        reset,
        denied: false,
        result_known: true,
    }
}

pub(super) fn end(id: &str) -> Told {
    of(id, ended(TurnOutcome::Completed))
}

pub(super) fn session_ended(outcome: EndOutcome) -> Fact {
    Fact::SessionEnded { outcome, error: None, workflow: false }
}

pub(super) fn call(id: &str, class: ToolClass) -> Fact {
    Fact::ToolStarted(start(id, class))
}

pub(super) fn start(id: &str, class: ToolClass) -> CallStart {
    CallStart {
        call: Id::from(id),
        tool: Name::from(class.as_str()),
        class,
        key: None,
        target: None,
        read: None,
        commands: Commands::default(),
        background: false,
        asks: None,
        nested: false,
    }
}

/// A shell call that runs a recognised command with this key.
pub(super) fn runs(id: &str, bit: u8, key: u64) -> Fact {
    Fact::ToolStarted(CallStart { commands: Commands(bit), key: Some(key), ..start(id, ToolClass::Shell) })
}

pub(super) fn call_end(id: &str) -> CallEnd {
    CallEnd {
        call: Id::from(id),
        outcome: CallOutcome::Ok,
        exit_code: None,
        diff_lines: None,
        error: None,
        output: None,
        read: None,
    }
}

pub(super) fn done(id: &str) -> Fact {
    Fact::ToolEnded(call_end(id))
}

pub(super) fn exit(id: &str, code: i32) -> Fact {
    Fact::ToolEnded(CallEnd { exit_code: Some(code), ..call_end(id) })
}

pub(super) fn edited(id: &str, lines: u32) -> Fact {
    Fact::ToolEnded(CallEnd { diff_lines: Some(lines), ..call_end(id) })
}

pub(super) fn progress(kind: ProgressKind) -> Fact {
    Fact::Progress { kind, evidence: Evidence::Declared, call: None, subject: None }
}

pub(super) fn asks(action: &str, kind: ActionKind) -> Fact {
    Fact::ActionRequired {
        action: Id::from(action),
        kind,
        certainty: Certainty::Certain,
        tool: None,
        call: None,
    }
}

pub(super) fn answered(action: &str) -> Fact {
    Fact::ActionResolved { action: Id::from(action), resolution: Resolution::Answered }
}

pub(super) fn prompt() -> Fact {
    Fact::Prompt { trigger: Trigger::Person, queued: false }
}

pub(super) fn blocked(reason: BlockReason) -> Fact {
    Fact::Blocked { reason, attempt: None, delay_ms: None, until: None }
}

pub(super) fn retry(attempt: u32) -> Fact {
    Fact::Blocked { reason: BlockReason::Retry, attempt: Some(attempt), delay_ms: Some(2_000), until: None }
}

pub(super) fn work() -> Fact {
    Fact::Activity { class: ActivityClass::Work, message: false }
}

pub(super) fn message() -> Fact {
    Fact::Activity { class: ActivityClass::Work, message: true }
}

pub(super) fn bookkeeping() -> Fact {
    Fact::Activity { class: ActivityClass::Bookkeeping, message: false }
}

pub(super) fn background(task: &str, running: bool) -> Fact {
    Fact::Background { task: Id::from(task), running }
}

pub(super) fn writer(writer: Writer) -> Fact {
    Fact::Writer(writer)
}

pub(super) fn step(id: &str) -> Step {
    Step { id: Id::from(id), kind: StepKind::Build, name: None, index: None, total: None, entry: None }
}

pub(super) fn step_started(id: &str) -> Fact {
    Fact::StepStarted(step(id))
}

pub(super) fn step_done(id: &str, outcome: StepOutcome) -> Fact {
    Fact::StepCompleted { step: step(id), outcome }
}

pub(super) fn compaction(id: &str) -> Fact {
    let step = Step { kind: StepKind::Compaction, ..step(id) };
    Fact::StepCompleted { step, outcome: StepOutcome::Advanced }
}

pub(super) fn tokens(response: Option<&str>, input: u64, output: u64) -> Fact {
    Fact::Usage(Usage { response: response.map(Id::from), input, output, ..Usage::default() })
}

pub(super) fn tally(pending: u32, done: u32) -> Tally {
    Tally { pending, done, ..Tally::default() }
}
