//! What holds for any sequence of events.

use proptest::collection::vec;
use proptest::prelude::*;

use agent_session_exporter::event::{
    ActionKind, BlockReason, CallEnd, CallOutcome, CallStart, Capabilities, Certainty, Commands, EndOutcome,
    ErrorClass, Event, Evidence, Fact, Id, Name, ProgressKind, ReadRange, Requester, Resolution, SessionId,
    SessionInfo, Step, StepKind, StepOutcome, Timestamp, ToolClass, Trigger, TurnOutcome, Usage, Writer,
};
use agent_session_exporter::session::facts::{
    MAX_ACTIONS, MAX_DONE, MAX_OPEN_CALLS, MAX_REMEMBERED, MAX_RESPONSES, MAX_TURNS, RECENT_PROGRESS,
};
use agent_session_exporter::session::window::{Row, Session};
use agent_session_exporter::session::{Facts, State};

use super::made::*;

/// Seeds of one event: session, time in milliseconds, kind, two choices.
type Seed = (u8, i64, u8, u8, u8);

fn pick<T: Copy>(all: &[T], n: u8) -> T {
    all[usize::from(n) % all.len()]
}

fn fact(kind: u8, a: u8, b: u8) -> (Fact, bool) {
    let name = |prefix: &str| Id::from(format!("{prefix}{}", a % 6).as_str());
    let step = || Step {
        id: name("s"),
        kind: pick(StepKind::ALL, b),
        name: None,
        index: None,
        total: None,
        entry: None,
    };
    let info = || SessionInfo {
        model: (b.is_multiple_of(3)).then(|| Name::from(format!("m{}", a % 3).as_str())),
        interactive: (b.is_multiple_of(2)).then_some(a.is_multiple_of(2)),
        read_only: (b.is_multiple_of(5)).then_some(a.is_multiple_of(2)),
        ..SessionInfo::default()
    };
    let named = |fact| (fact, true);
    let plain = |fact| (fact, false);
    match kind % 29 {
        0 => plain(Fact::SessionQueued(info())),
        1 => plain(Fact::SessionStarted(info())),
        2 => plain(Fact::SessionResumed(info())),
        3 => plain(Fact::SessionUpdated(info())),
        4 if a.is_multiple_of(4) => plain(Fact::SessionEnded {
            outcome: pick(EndOutcome::ALL, b),
            error: None,
            workflow: a.is_multiple_of(8),
        }),
        5 if a.is_multiple_of(8) => plain(Fact::SessionDeleted),
        4..=7 => named(Fact::TurnStarted { trigger: pick(Trigger::ALL, b) }),
        8 | 9 => named(Fact::TurnEnded {
            outcome: pick(TurnOutcome::ALL, b),
            error: (b.is_multiple_of(3)).then(|| pick(ErrorClass::ALL, a)),
            reset: (b.is_multiple_of(4)).then(|| at(i64::from(a))),
            denied: b.is_multiple_of(7),
            result_known: !b.is_multiple_of(5),
        }),
        10 => named(Fact::StepStarted(step())),
        11 => named(Fact::StepCompleted { step: step(), outcome: pick(StepOutcome::ALL, a) }),
        12 => plain(Fact::PlanUpdated {
            ready: a.is_multiple_of(2),
            items: tally(u32::from(a), u32::from(b % 9)),
            told: b.is_multiple_of(2),
        }),
        13 => plain(Fact::CriteriaUpdated(tally(u32::from(a), u32::from(b % 9)))),
        14..=16 => plain(Fact::ToolStarted(CallStart {
            commands: Commands(b % 8),
            key: (b.is_multiple_of(2)).then_some(u64::from(b % 4)),
            background: b.is_multiple_of(11),
            asks: (b.is_multiple_of(3)).then_some(b.is_multiple_of(2)),
            nested: b.is_multiple_of(13),
            target: (!b.is_multiple_of(3)).then_some(u64::from(b % 3) << 40),
            read: (b.is_multiple_of(4)).then_some(ReadRange {
                start: u32::from(a),
                end: u32::from(a) + 20,
                total: None,
            }),
            ..start(name("c").as_str(), pick(ToolClass::ALL, b))
        })),
        17 | 18 => plain(Fact::ToolEnded(CallEnd {
            outcome: pick(CallOutcome::ALL, b),
            exit_code: (b.is_multiple_of(2)).then_some(i32::from(b % 3)),
            diff_lines: (b.is_multiple_of(3)).then_some(u32::from(b % 4)),
            output: (b.is_multiple_of(2)).then_some(u64::from(b % 3) << 40),
            error: (b.is_multiple_of(5)).then_some(u64::from(a % 3) << 40),
            ..call_end(name("c").as_str())
        })),
        19 => plain(Fact::Progress {
            kind: pick(ProgressKind::ALL, a),
            evidence: Evidence::Declared,
            call: (b.is_multiple_of(2)).then(|| name("c")),
            subject: (b.is_multiple_of(3)).then_some(u64::from(b % 5)),
        }),
        20 => plain(Fact::Verification { passed: a.is_multiple_of(2), call: None }),
        21 => plain(Fact::ActionRequired {
            action: name("a"),
            kind: pick(ActionKind::ALL, b),
            certainty: pick(Certainty::ALL, b),
            tool: None,
            call: (b.is_multiple_of(3)).then(|| name("c")),
        }),
        22 => plain(Fact::ActionResolved { action: name("a"), resolution: pick(Resolution::ALL, b) }),
        23 => plain(Fact::Prompt { trigger: pick(Trigger::ALL, a), queued: b.is_multiple_of(3) }),
        24 => match b % 4 {
            0 => plain(Fact::Unblocked),
            1 => plain(Fact::RateLimitSignal { delay_ms: Some(u64::from(a) * 100) }),
            2 => plain(retry(u32::from(a))),
            _ => plain(Fact::Blocked {
                reason: pick(BlockReason::ALL, a),
                attempt: None,
                delay_ms: (a.is_multiple_of(2)).then_some(u64::MAX),
                until: (a.is_multiple_of(3)).then(|| at(i64::from(a))),
            }),
        },
        25 => match b % 4 {
            0 => plain(Fact::StopRequested { requester: pick(Requester::ALL, a) }),
            1 => plain(Fact::StopAcknowledged),
            2 => plain(Fact::StopCleared),
            _ => plain(Fact::NativeStuck { detector: Name::from("d"), layer: Name::from("l") }),
        },
        26 => plain(Fact::Usage(Usage {
            response: (b.is_multiple_of(2)).then(|| name("r")),
            input: u64::from(a),
            output: u64::from(b),
            cost_usd: (b.is_multiple_of(3)).then_some(f64::from(a) / 7.0),
            context_used: (b.is_multiple_of(5)).then_some(f64::from(a) / 255.0),
            ..Usage::default()
        })),
        27 => match b % 3 {
            0 => plain(Fact::Writer(pick(Writer::ALL, a))),
            1 => plain(background(name("b").as_str(), a.is_multiple_of(2))),
            _ => plain(Fact::Error { class: pick(ErrorClass::ALL, a), recoverable: b.is_multiple_of(2) }),
        },
        _ => plain(if b.is_multiple_of(3) {
            bookkeeping()
        } else if b % 3 == 1 {
            message()
        } else {
            work()
        }),
    }
}

fn built(id: u64, (session, ms, kind, a, b): Seed) -> Event {
    let (fact, named) = fact(kind, a, b);
    let name = ["root", "kid", "kid2"][usize::from(session) % 3];
    let time = Timestamp::from_millis(T0 + ms);
    let request = (named && b % 4 != 3).then(|| Id::from(format!("t{}", a % 6).as_str()));
    let mut event = event(name, id, Some(time), Told { fact, request }, time);
    event.project = (b.is_multiple_of(6)).then(|| Name::from(format!("p{}", a % 3).as_str()));
    event.parent = (name != "root" && b.is_multiple_of(2)).then(|| SessionId::from("root"));
    event
}

fn seeds() -> impl Strategy<Value = Vec<Seed>> {
    // Most of it within the window, some of it minutes and hours apart.
    let time = prop_oneof![8 => 0i64..6_000, 2 => 0i64..900_000, 1 => 0i64..90_000_000];
    vec((0u8..3, time, any::<u8>(), any::<u8>(), any::<u8>()), 1..90)
}

fn folded(events: impl IntoIterator<Item = Event>) -> Story {
    let mut story = Story::new();
    for event in events {
        story.take(event);
    }
    story
}

fn facts_of(story: &Story) -> Vec<Facts> {
    story.sessions.values().map(|s| Facts::clone(s.facts())).collect()
}

fn exact(story: &Story) -> Vec<String> {
    let mut sums: Vec<_> = story.sums.sums.iter().filter(|(_, s)| s.exact() != 0).collect();
    sums.sort_by(|a, b| a.0.cmp(b.0));
    sums.into_iter().map(|(key, sum)| format!("{key:?} = {}", sum.exact())).collect()
}

/// Whether a second copy under another id is known by its natural key.
fn has_natural_key(event: &Event) -> bool {
    match &event.fact {
        Fact::ToolStarted(_) | Fact::ToolEnded(_) | Fact::StepStarted(_) | Fact::StepCompleted { .. } => true,
        Fact::ActionRequired { .. } | Fact::ActionResolved { .. } => true,
        Fact::TurnStarted { .. } | Fact::TurnEnded { .. } => event.request.is_some(),
        _ => false,
    }
}

fn check_caps(facts: &Facts) {
    let memory = &facts.memory;
    assert!(facts.open_calls.len() <= MAX_OPEN_CALLS);
    assert!(facts.actions.len() <= MAX_ACTIONS && facts.background.len() <= MAX_ACTIONS);
    assert!(facts.recent_progress.len() <= RECENT_PROGRESS && facts.step_entries.len() <= MAX_TURNS);
    for remembered in
        [&memory.ended_calls, &memory.credited, &memory.resolved, &memory.begun_turns, &memory.ended_turns]
    {
        assert!(remembered.len() <= MAX_REMEMBERED);
    }
    assert!(memory.responses.len() <= MAX_RESPONSES);
    assert!(memory.done.len() <= MAX_DONE && memory.commands.len() <= MAX_DONE);
    assert!(postcard::to_allocvec(facts).unwrap().len() <= 64 * 1024);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn order_inside_a_second_and_repetition_change_nothing(
        seeds in seeds(),
        jitter in vec((0i64..1_000, any::<bool>(), 0i64..1_000), 90),
    ) {
        let mut events: Vec<Event> = seeds.iter().enumerate().map(|(i, s)| built(i as u64, *s)).collect();
        events.sort_by_key(|e| e.time);
        let plain = folded(events.clone());
        let mut shaken: Vec<(Timestamp, Event)> = Vec::new();
        for (event, (late, twice, late_copy)) in events.iter().zip(&jitter) {
            let time = event.time.unwrap();
            shaken.push((time.plus(*late), event.clone()));
            if *twice && has_natural_key(event) {
                let copy = Event { id: event.id.map(|id| id + 1_000_000), ..event.clone() };
                shaken.push((time.plus(*late_copy), copy));
            }
        }
        shaken.sort_by_key(|(arrival, _)| *arrival);
        let shaken = folded(shaken.into_iter().map(|(_, event)| event));
        prop_assert_eq!(facts_of(&plain), facts_of(&shaken));
        prop_assert_eq!(exact(&plain), exact(&shaken));
    }

    #[test]
    fn a_restart_in_the_middle_changes_nothing(seeds in seeds(), cut in 0usize..90) {
        let events: Vec<Event> = seeds.iter().enumerate().map(|(i, s)| built(i as u64, *s)).collect();
        let plain = folded(events.clone());
        let cut = cut.min(events.len());
        let mut story = folded(events[..cut].iter().cloned());
        for session in story.sessions.values_mut() {
            let row = postcard::to_allocvec(&session.row()).unwrap();
            *session = Session::from_row(postcard::from_bytes::<Row>(&row).unwrap(), Timestamp::from_millis(0));
        }
        for event in &events[cut..] {
            story.take(event.clone());
        }
        prop_assert_eq!(facts_of(&plain), facts_of(&story));
        prop_assert_eq!(exact(&plain), exact(&story));
    }

    #[test]
    fn clocks_never_fall_while_events_come_in_order(seeds in seeds()) {
        let mut events: Vec<Event> = seeds.iter().enumerate().map(|(i, s)| built(i as u64, *s)).collect();
        events.sort_by_key(|e| (e.time, e.fact.rank(), e.id));
        let mut story = Story::new();
        let mut before = std::collections::HashMap::new();
        for event in events {
            let name = event.session.as_str().to_owned();
            story.take(event);
            let facts = story.sessions[&name].facts();
            let clocks = (facts.last_seen, facts.last_activity, facts.last_progress, facts.last_prompt);
            let old = before.insert(name, clocks).unwrap_or_default();
            prop_assert!(old.0 <= clocks.0 && old.1 <= clocks.1 && old.2 <= clocks.2 && old.3 <= clocks.3);
        }
    }

    #[test]
    fn any_order_keeps_the_invariants_and_has_a_state(
        seeds in seeds(),
        untimed in vec(0u8..8, 90),
        now in prop_oneof![-1_000i64..10_000, Just(-100_000_000_000), Just(4_000_000_000)],
        capabilities in any::<u8>(),
        asleep in (0i64..5_000, 0i64..100_000),
        down in any::<bool>(),
    ) {
        let mut story = Story::new().seeing(Capabilities(capabilities)).asleep(asleep.0, asleep.0 + asleep.1);
        if down {
            story = story.down_since(3);
        }
        for (i, (seed, untimed)) in seeds.iter().zip(untimed).enumerate() {
            let mut event = built(i as u64, *seed);
            event.time = event.time.filter(|_| untimed > 0);
            event.id = event.id.filter(|_| untimed != 1);
            story.take(event);
            for session in story.sessions.values() {
                let facts = session.facts();
                prop_assert!(facts.last_progress <= facts.last_activity);
                check_caps(facts);
            }
        }
        for name in story.sessions.keys() {
            let derived = story.derived(name, now);
            prop_assert!(derived.state.reasons().contains(&derived.reason), "{:?}", derived);
            prop_assert!(derived.since <= at(now), "{:?}", derived);
            prop_assert!((1..=9).contains(&derived.rule));
            prop_assert!(State::parse(derived.state.as_str()) == Some(derived.state));
        }
    }
}

#[test]
fn a_session_that_never_rests_stays_small() {
    let mut story = Story::new();
    for i in 0..4_000u64 {
        let n = i % 251;
        let seed = (0, i64::try_from(i).unwrap() * 700, (i % 29) as u8, n as u8, (i / 7 % 253) as u8);
        let mut event = built(i, seed);
        match &mut event.fact {
            // Every natural key is new.
            Fact::ToolStarted(start) => start.call = Id::from(format!("call-with-a-long-name-{i}").as_str()),
            Fact::ActionRequired { action, .. } => *action = Id::from(format!("action-{i}").as_str()),
            Fact::StepStarted(step) | Fact::StepCompleted { step, .. } => {
                step.id = Id::from(format!("step-{i}").as_str())
            }
            Fact::Usage(usage) => usage.response = Some(Id::from(format!("response-{i}").as_str())),
            Fact::Background { task, .. } => *task = Id::from(format!("task-{i}").as_str()),
            _ => {}
        }
        story.take(event);
    }
    check_caps(story.facts());
}
