//! Streams of events as no recording has them, from fixed seeds: what is promised of spans holds of them too, and whether
//! events come late or twice, or the exporter ends and goes on in between, makes no difference.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{
    ActionKind, ActivityClass, BlockReason, CallEnd, CallOutcome, CallStart, Certainty, Commands, EndOutcome,
    Event, Evidence, Fact, Id, Name, ProgressKind, Reducer, Resolution, SessionId, SessionInfo, SourceId,
    Step, StepKind, StepOutcome, Timestamp, ToolClass, Trigger, TurnOutcome, Usage,
};
use agent_session_exporter::spans::{Key, LogRecord, Outgoing, Span, SpanId, TraceId, Value};
use agent_session_exporter::store::offline::Offline;
use agent_session_exporter::telemetry::Telemetry;

use super::common::disk::{Crash, Disk, Rng};
use super::made::{START_MS, attribute};
use super::tree::options;

/// How much later than it happened an event may be read.
const LATE_MS: u64 = 1_900;
/// Longer than a session without a word stays known.
const SILENCE_MS: i64 = 26 * 3_600_000;

/// What was made of one session.
#[derive(Clone, Debug)]
struct Session {
    name: String,
    parent: Option<String>,
    forked_from: Option<String>,
    /// Whether its source tells of turns, and by which names.
    turns: bool,
    names: bool,
    /// Whether its steps say how often they were entered.
    entries: bool,
    runs: u32,
    entered: u32,
}

/// A call that was made, and what it started.
#[derive(Debug)]
struct Call {
    session: String,
    call: String,
    since: i64,
    child: Option<String>,
}

/// A stream that is made.
struct Maker {
    rng: Rng,
    events: Vec<Event>,
    calls: Vec<Call>,
    sessions: u32,
    ids: u64,
}

// === impl Maker ===

impl Maker {
    fn tell(&mut self, session: &Session, request: Option<&str>, at: i64, fact: Fact) {
        let time = Timestamp::from_millis(START_MS + at);
        let (source, id) = (SourceId::from("mine"), SessionId::from(session.name.as_str()));
        let mut event = Event::new(&source, &id, time, fact);
        self.ids += 1;
        // Like hashes, they say nothing about the order.
        event.id = Some(self.ids.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        event.time = Some(time);
        event.parent = session.parent.as_deref().map(SessionId::from);
        event.request = request.map(Id::from);
        self.events.push(event);
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.rng.below(n) == 0
    }

    /// A moment strictly between two; many are whole seconds, so that some share one.
    fn between(&mut self, from: i64, to: i64) -> i64 {
        let at = from + 1 + self.rng.below((to - from - 1).max(1) as u64) as i64;
        let whole = at / 1_000 * 1_000;
        if self.rng.half() && whole > from { whole } else { at }
    }

    fn session(&mut self, parent: Option<&Session>, forked_from: Option<String>) -> Session {
        self.sessions += 1;
        let turns = !self.one_in(4);
        Session {
            name: format!("s{}", self.sessions),
            parent: parent.map(|p| p.name.clone()),
            forked_from,
            turns,
            names: turns && !self.one_in(3),
            entries: self.one_in(4),
            runs: 0,
            entered: 0,
        }
    }

    /// A session at work from then on, for some runs; when its last one ended.
    fn work(&mut self, session: &mut Session, from: i64, depth: u32) -> i64 {
        let info = SessionInfo {
            forked_from: session.forked_from.as_deref().map(SessionId::from),
            ..SessionInfo::default()
        };
        self.tell(session, None, from, Fact::SessionStarted(info));
        let (mut at, runs) = (from, 1 + self.rng.below(4));
        for n in 0..runs {
            let length = 2_000 + self.rng.below(60_000) as i64;
            at = self.run(session, at, at + length, depth, n + 1 == runs);
            // Of an end without a name that is told in the moment of the next start nobody knows which of the two it ends.
            if !session.names || !self.one_in(3) {
                at += 1 + self.rng.below(20_000) as i64;
            }
        }
        at
    }

    /// One run; when the next one may begin.
    fn run(&mut self, session: &mut Session, from: i64, to: i64, depth: u32, last: bool) -> i64 {
        session.runs += 1;
        let name = session.names.then(|| format!("{}-r{}", session.name, session.runs));
        let request = name.as_deref();
        if session.turns {
            let trigger = if session.parent.is_some() { Trigger::Machine } else { Trigger::Person };
            self.tell(session, request, from, Fact::TurnStarted { trigger });
        } else {
            self.tell(session, None, from, work());
        }
        // What a run says of its session is what is known when its end is taken in: whether it ever tells of tokens may have
        // become known a moment later. So it tells early.
        if session.turns {
            self.tell(session, None, from + 1, tokens());
        }
        self.steps(session, from, to);
        self.calls(session, request, from, to, depth);
        self.others(session, from, to);
        match self.rng.below(12) {
            // Nobody ends it: the next one does, or it is lost.
            0 if session.turns => {}
            3 if last => self.tell(session, None, to, Fact::SessionDeleted),
            // It names no run: told in the moment of the next start it may end that one.
            4 => {
                self.tell(session, None, to, ended(EndOutcome::Completed));
                return to + 1;
            }
            _ if session.turns => {
                let outcome = TurnOutcome::ALL[self.rng.below(TurnOutcome::ALL.len() as u64) as usize];
                let end =
                    Fact::TurnEnded { outcome, error: None, reset: None, denied: false, result_known: true };
                self.tell(session, request, to, end);
            }
            _ => self.tell(session, None, to, ended(EndOutcome::Failed)),
        }
        to
    }

    fn steps(&mut self, session: &mut Session, from: i64, to: i64) {
        let mut at = self.between(from, to);
        for n in 0..self.rng.below(5) {
            let until = self.between(at, to);
            if until <= at || until >= to {
                break;
            }
            let kinds =
                [StepKind::Plan, StepKind::Build, StepKind::Verify, StepKind::Task, StepKind::Compaction];
            let id = self.rng.below(3);
            session.entered += 1;
            let step = Step {
                id: Id::from(format!("step{id}").as_str()),
                kind: kinds[(id + self.rng.below(2)) as usize % kinds.len()],
                name: Some(Name::from(format!("step {id}").as_str())),
                index: Some(n as u32 + 1),
                total: None,
                entry: session.entries.then_some(session.entered),
            };
            self.tell(session, None, at, Fact::StepStarted(step.clone()));
            if !self.one_in(4) {
                let mut step = step;
                if self.rng.half() {
                    (step.kind, step.name, step.index) = (StepKind::Other, None, None);
                }
                let outcome = StepOutcome::ALL[self.rng.below(StepOutcome::ALL.len() as u64) as usize];
                self.tell(session, None, until, Fact::StepCompleted { step, outcome });
            }
            at = if self.rng.half() { until } else { self.between(until, to) };
            if at >= to {
                break;
            }
        }
    }

    fn call(&mut self, session: &Session, request: Option<&str>, at: i64, class: ToolClass) -> String {
        let id = format!("c{}", self.calls.len());
        self.calls.push(Call { session: session.name.clone(), call: id.clone(), since: at, child: None });
        let start = CallStart {
            call: Id::from(id.as_str()),
            tool: Name::from(class.as_str()),
            class,
            key: None,
            target: None,
            read: None,
            commands: Commands::default(),
            background: false,
            asks: None,
            nested: false,
        };
        self.tell(session, request, at, Fact::ToolStarted(start));
        id
    }

    fn calls(&mut self, session: &Session, request: Option<&str>, from: i64, to: i64, depth: u32) {
        let mut tasks: Vec<(i64, i64)> = Vec::new();
        for _ in 0..self.rng.below(7) {
            let at = self.between(from, to);
            let until = self.between(at, to);
            if until <= at || at >= to {
                continue;
            }
            let says = request.filter(|_| self.rng.half());
            // Which of several calls that are open at once started which sub-agent is decided when the first of these is told of:
            // where they overlap, that is not always the one that began first.
            let clear = tasks.iter().all(|(other, over)| *other > to + 3_000 || at > *over + 3_000);
            let spawns = depth < 2 && until - at > 3_000 && clear && self.one_in(3);
            let class = if spawns { ToolClass::Task } else { ToolClass::Shell };
            let id = self.call(session, says, at, class);
            let made = self.calls.len() - 1;
            if self.one_in(3) {
                self.wait(session, at, until, Some(id.as_str()));
            }
            let ends = !self.one_in(5);
            if spawns {
                tasks.push((at, if ends { until } else { to }));
                let mut child = self.session(Some(session), None);
                self.calls[made].child = Some(child.name.clone());
                child.runs = 0;
                self.tell(&child, None, at + 200, Fact::SessionStarted(SessionInfo::default()));
                self.run(&mut child, at + 300, until, depth + 1, true);
            }
            if ends {
                let outcome =
                    [CallOutcome::Ok, CallOutcome::Error, CallOutcome::Denied][self.rng.below(3) as usize];
                self.tell(session, says, until, call_end(&id, outcome));
            }
        }
    }

    fn wait(&mut self, session: &Session, at: i64, until: i64, call: Option<&str>) {
        let since = self.between(at, until);
        let over = self.between(since, until);
        if since <= at || over <= since || over >= until {
            return;
        }
        let action = Id::from(format!("a{}", self.ids).as_str());
        let asks = Fact::ActionRequired {
            action: action.clone(),
            kind: ActionKind::Permission,
            certainty: Certainty::Certain,
            tool: None,
            call: call.map(Id::from),
        };
        self.tell(session, None, since, asks);
        if !self.one_in(4) {
            self.tell(session, None, over, Fact::ActionResolved { action, resolution: Resolution::Approved });
        }
    }

    /// What else happens in a run.
    fn others(&mut self, session: &Session, from: i64, to: i64) {
        for _ in 0..self.rng.below(6) {
            let at = self.between(from, to);
            if at >= to {
                continue;
            }
            match self.rng.below(6) {
                0 => self.wait(session, at, to, None),
                1 => self.wait(session, at, to, Some("never")),
                2 => {
                    for attempt in 1..=1 + self.rng.below(3) {
                        let at = at + attempt as i64 * 700;
                        let reason =
                            if self.rng.half() { BlockReason::Retry } else { BlockReason::RateLimit };
                        let (attempt, until) = (Some(attempt as u32), None);
                        if at < to {
                            self.tell(
                                session,
                                None,
                                at,
                                Fact::Blocked { reason, attempt, delay_ms: None, until },
                            );
                        }
                    }
                    if self.rng.half() {
                        let over = self.between(at, to);
                        self.tell(session, None, over, Fact::Unblocked);
                    }
                }
                3 => {
                    let (kind, evidence) = (ProgressKind::FileModified, Evidence::Structured);
                    self.tell(
                        session,
                        None,
                        at,
                        Fact::Progress { kind, evidence, call: None, subject: None },
                    );
                }
                // Of runs that nobody declares it depends on what was read together which of two the tokens are counted for.
                4 if session.turns => self.tell(session, None, at, tokens()),
                _ => self.tell(session, None, at, work()),
            }
        }
    }
}

fn work() -> Fact {
    Fact::Activity { class: ActivityClass::Work, message: false }
}

fn tokens() -> Fact {
    Fact::Usage(Usage { input: 3, output: 5, ..Usage::default() })
}

fn ended(outcome: EndOutcome) -> Fact {
    Fact::SessionEnded { outcome, error: None, workflow: false }
}

fn call_end(call: &str, outcome: CallOutcome) -> Fact {
    Fact::ToolEnded(CallEnd {
        call: Id::from(call),
        outcome,
        exit_code: None,
        diff_lines: None,
        error: None,
        output: None,
        read: None,
    })
}

fn made(seed: u64) -> Maker {
    let mut maker = Maker { rng: Rng::new(seed), events: Vec::new(), calls: Vec::new(), sessions: 0, ids: 0 };
    let mut at = 0;
    let mut before: Option<String> = None;
    for _ in 0..1 + maker.rng.below(3) {
        let fork = before.clone().filter(|_| maker.rng.half());
        let mut session = maker.session(None, fork);
        let from = at + maker.rng.below(30_000) as i64;
        maker.work(&mut session, from, 0);
        before = Some(session.name);
        at = from;
    }
    maker
}

/// When each event is read.
fn in_order(maker: &Maker) -> Vec<(i64, Event)> {
    let mut all: Vec<_> = maker.events.iter().map(|e| (e.time.unwrap().as_millis(), e.clone())).collect();
    all.sort_by_key(|(at, _)| *at);
    all
}

/// The same, each a little late, some twice.
fn late(maker: &Maker, rng: &mut Rng) -> Vec<(i64, Event)> {
    let mut all = Vec::new();
    for event in &maker.events {
        for _ in 0..1 + u64::from(rng.below(10) == 0) {
            let at = event.time.unwrap().as_millis() + rng.below(LATE_MS) as i64;
            let mut event = event.clone();
            event.observed = Timestamp::from_millis(at);
            all.push((at, event));
        }
    }
    all.sort_by_key(|(at, _)| *at);
    all
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Ends {
    Never,
    /// It stops and goes on.
    InOrder,
    /// What was neither written down nor sent is lost, and read again.
    Killed,
}

/// All that leaves.
fn told(events: &[(i64, Event)], ends: Ends, rng: &mut Rng) -> Vec<Outgoing> {
    // What lies before the beginning is not counted.
    let (first, last) = (START_MS - 1_000, events.last().unwrap().0);
    let hand: &'static AtomicI64 = Box::leak(Box::new(AtomicI64::new(first)));
    let disk = Disk::default();
    let open = |now: i64| {
        let reducer = Arc::new(Reducer::new([0; 16], Runners::default()));
        let (clock, now) = (Clock::held(hand), Timestamp::from_millis(now));
        Offline::open(&disk.backend(), options(), clock, reducer, Arc::new(Telemetry::new()), now).unwrap()
    };
    let mut store = open(first);
    let mut out = Vec::new();
    // Where it would go on after a crash.
    let (mut next, mut kept) = (0, (0, 0));
    let mut now = first;
    while now <= last + SILENCE_MS {
        hand.store(now, Ordering::SeqCst);
        let due = events[next..].iter().take_while(|(at, _)| *at <= now).count();
        store.take(events[next..next + due].iter().map(|(_, event)| event.clone()));
        next += due;
        store.pass();
        let moment = Timestamp::from_millis(now);
        // What is due leaves with a checkpoint only.
        let near = |event: Option<&(i64, Event)>| event.is_some_and(|(at, _)| (at - now).abs() < 30_000);
        let busy = near(events.get(next)) || near(events[..next].last());
        let keeps = ends != Ends::Killed || !busy || rng.below(3) == 0;
        if keeps {
            out.extend(store.outgoing(moment));
        }
        let stops = busy && ends != Ends::Never && now > first && rng.below(25) == 0;
        if ends == Ends::Killed && keeps && busy || ends == Ends::InOrder && stops || now == first {
            out.extend(store.outgoing(moment));
            store.keep().unwrap();
            kept = (next, out.len());
        }
        if stops {
            disk.crash(Crash::KeepsAll, rng);
            drop(store);
            store = open(now);
            next = kept.0;
            out.truncate(kept.1);
        }
        now += if busy { 1_000 } else { 20_000 };
        if !busy && events.get(next).is_none_or(|(at, _)| *at > now + 700_000) {
            now += 600_000;
        }
    }
    out
}

fn spans(told: &[Outgoing]) -> Vec<&Span> {
    told.iter().filter_map(|o| if let Outgoing::Span(span) = o { Some(span) } else { None }).collect()
}

fn began(told: &[Outgoing]) -> Vec<&LogRecord> {
    let logs = told.iter().filter_map(|o| if let Outgoing::Log(log) = o { Some(log) } else { None });
    logs.filter(|log| log.name == "agent_session.step.started").collect()
}

type Ids = BTreeMap<(TraceId, SpanId), Span>;

fn by_id(told: &[Outgoing]) -> Ids {
    spans(told).into_iter().map(|s| ((s.context.trace, s.context.span), s.clone())).collect()
}

fn text(span: &Span, key: Key) -> &str {
    match attribute(span, key) {
        Some(Value::Text(text)) => text.as_str(),
        _ => "",
    }
}

/// What matters of a span, in a line.
fn shown(span: &Span) -> String {
    let at = |t: Timestamp| (t.as_millis() - START_MS) as f64 / 1000.0;
    let known = [Key::ToolCallId, Key::StepId, Key::Outcome].map(|key| text(span, key));
    let parent = span.parent.map(|p| p.to_string()).unwrap_or_default();
    let (of, start, end) = (text(span, Key::ConversationId), at(span.start), at(span.end));
    format!("{of} {} {known:?} [{start} .. {end}] {} in {parent}", span.name, span.context.span)
}

/// What is wrong with it.
fn faults(maker: &Maker, told: &[Outgoing]) -> Vec<String> {
    let mut faults = Vec::new();
    let all = by_id(told);
    let mut seen = BTreeSet::new();
    for span in spans(told) {
        if !seen.insert(span.context.span) {
            faults.push(format!("twice: {}", shown(span)));
        }
        let parent = span.parent.map(|parent| all.get(&(span.context.trace, parent)));
        // Of what was heard of last nobody knows how long it went on.
        let last_heard = attribute(span, Key::EndObserved) == Some(&Value::Bool(false))
            && parent.flatten().is_some_and(|parent| {
                parent.end == span.end && attribute(parent, Key::EndObserved) == Some(&Value::Bool(false))
            });
        if span.start > span.end || span.start == span.end && !last_heard {
            faults.push(format!("no time in it: {}", shown(span)));
        }
        match parent {
            Some(None) => faults.push(format!("an orphan: {}", shown(span))),
            Some(Some(parent)) => {
                let same = text(parent, Key::ConversationId) == text(span, Key::ConversationId);
                if same && parent.start > span.start {
                    faults.push(format!("before its parent: {} in {}", shown(span), shown(parent)));
                }
            }
            None => {}
        }
        for link in &span.links {
            if !all.contains_key(&(link.to.trace, link.to.span)) {
                faults.push(format!("a link to nothing: {}", shown(span)));
            }
        }
    }
    for outgoing in told {
        if let Outgoing::Log(log) = outgoing
            && let Some(of) = log.context
            && !all.contains_key(&(of.trace, of.span))
        {
            faults.push(format!("a record of nothing: {log:?}"));
        }
    }
    let mut announced = BTreeSet::new();
    for log in began(told) {
        let of = log.context.unwrap();
        if !announced.insert(of.span) {
            faults.push(format!("began twice: {log:?}"));
        }
        let parent = log.attributes.iter().find(|(key, _)| *key == Key::ParentSpan).map(|(_, value)| value);
        let fits = |span: &Span| {
            span.start == log.time
                && span.parent.map(|p| Value::from(p.to_string())).as_ref() == parent
                && attribute(span, Key::StepId).is_some()
        };
        match all.get(&(of.trace, of.span)) {
            Some(span) if fits(span) => {}
            found => faults.push(format!("began as another: {log:?} and {:?}", found.map(shown))),
        }
    }
    for call in &maker.calls {
        let own =
            |s: &&Span| text(s, Key::ConversationId) == call.session && text(s, Key::ToolCallId) == call.call;
        let own: Vec<&Span> = all.values().filter(own).collect();
        let [span] = own[..] else {
            faults.push(format!("{} spans of {call:?}", own.len()));
            continue;
        };
        if span.start.as_millis() != START_MS + call.since {
            faults.push(format!("{call:?} is {}", shown(span)));
        }
        let Some(child) = &call.child else { continue };
        let runs = |s: &&Span| {
            text(s, Key::ConversationId) == child && text(s, Key::OperationName) == "invoke_agent"
        };
        for run in all.values().filter(runs) {
            let parent = run.parent.and_then(|p| all.get(&(run.context.trace, p)));
            let task = |s: &&Span| text(s, Key::ToolClass) == "task";
            let below = parent.filter(task).is_some_and(|p| {
                text(p, Key::ConversationId) == call.session && text(p, Key::ToolCallId) == call.call
            });
            if !below {
                faults.push(format!("{} is not below {call:?} but {:?}", shown(run), parent.map(shown)));
            }
        }
    }
    faults
}

/// Where two tellings differ.
fn differences(name: &str, one: &[Outgoing], other: &[Outgoing]) -> Vec<String> {
    let (a, b) = (by_id(one), by_id(other));
    let mut faults = Vec::new();
    for (id, span) in &a {
        match b.get(id) {
            Some(same) if same == span => {}
            found => faults.push(format!("{name}: {}\n   became {:?}", shown(span), found.map(shown))),
        }
    }
    for (_, span) in b.iter().filter(|(id, _)| !a.contains_key(*id)) {
        faults.push(format!("{name}: only there {}", shown(span)));
    }
    let said = |told: &[Outgoing]| -> BTreeSet<_> {
        began(told).iter().map(|l| (l.id, l.time, l.context.map(|c| c.span))).collect()
    };
    if said(one) != said(other) {
        faults.push(format!("{name}: other steps began"));
    }
    faults
}

/// All that is wrong with one stream, told in order, late, and with ends of the exporter in between.
fn all_faults(seed: u64) -> Vec<String> {
    let maker = made(seed);
    let mut rng = Rng::new(seed + 1_000_000);
    let ordered = told(&in_order(&maker), Ends::Never, &mut rng);
    let mut faults = faults(&maker, &ordered);
    for (name, ends) in [("late", Ends::Never), ("stopped", Ends::InOrder), ("killed", Ends::Killed)] {
        let events = late(&maker, &mut rng);
        faults.extend(differences(name, &ordered, &told(&events, ends, &mut rng)));
    }
    faults
}

#[test]
fn what_is_promised_of_spans_holds_whatever_happens() {
    for seed in 0..60 {
        let faults = all_faults(seed);
        assert!(faults.is_empty(), "seed {seed}:\n{}", faults.join("\n"));
    }
}
