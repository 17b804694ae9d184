//! Order and repetition: what a late, early or second event may change.

use agent_session_exporter::event::{
    ActionKind, BlockReason, CallEnd, CallOutcome, EndOutcome, ErrorClass, Event, Fact, Id, Name,
    ProgressKind, Requester, SessionId, SessionInfo, StepOutcome, Timestamp, ToolClass, TurnOutcome, Usage,
};
use agent_session_exporter::session::Facts;
use agent_session_exporter::session::counts::{Count, TokenKind};
use agent_session_exporter::session::window::{Row, Session};
use agent_session_exporter::session::{Reason, State};

use super::made::*;

fn open() -> Story {
    Story::new().say(0, started()).say(0, turn("t"))
}

fn model(name: &str) -> Fact {
    Fact::SessionUpdated(SessionInfo { model: Some(Name::from(name)), ..SessionInfo::default() })
}

#[test]
fn registers_keep_the_newest_word() {
    let story = open().say(50, model("new")).say(10, model("old"));
    assert_eq!(story.facts().info.model, Some(Name::from("new")));
    let plan = |done| Fact::PlanUpdated { ready: false, items: tally(5 - done, done), told: false };
    let story = open().say(50, plan(3)).say(10, plan(1));
    assert_eq!(story.facts().plan, Some(tally(2, 3)));
    let story =
        open().say(50, Fact::CriteriaUpdated(tally(1, 2))).say(10, Fact::CriteriaUpdated(tally(3, 0)));
    assert_eq!(story.facts().criteria, Some(tally(1, 2)));
    let share = |used| Fact::Usage(Usage { context_used: Some(used), ..Usage::default() });
    let story = open().say(50, work()).say(51, share(0.5)).say(10, share(0.1));
    assert_eq!(story.facts().context_used, Some(0.5));
}

#[test]
fn project_and_parent_follow_the_newest_record() {
    let mut story = open();
    for (s, id, project, parent) in [(50, 91, "new", "p2"), (10, 92, "old", "p1")] {
        let mut event = event(ROOT, id, Some(at(s)), work().into(), at(s));
        event.project = Some(Name::from(project));
        event.parent = Some(SessionId::from(parent));
        story.take(event);
    }
    assert_eq!(story.facts().project, Some(Name::from("new")));
    assert_eq!(story.facts().parent, Some(SessionId::from("p2")));
}

#[test]
fn an_end_of_an_older_turn_closes_nothing() {
    let story = open().say(10, turn("u")).say(11, end("t"));
    assert_eq!(story.state(12), (State::Running, Reason::Working));
    assert_eq!(story.facts().turns.completed, 1);
    let unnamed =
        Story::new().say(20, Fact::TurnStarted { trigger: agent_session_exporter::event::Trigger::Person });
    assert_eq!(unnamed.say(15, end("t")).state(21).0, State::Running);
}

#[test]
fn an_end_without_a_name_closes_the_open_turn_unless_it_is_older() {
    let unnamed = || Story::new().say(0, started()).say(20, turn("t"));
    assert_eq!(unnamed().say(15, ended(TurnOutcome::Completed)).state(30).0, State::Running);
    assert_eq!(unnamed().say(20, ended(TurnOutcome::Completed)).state(30).0, State::Completed);
    assert_eq!(unnamed().say(25, ended(TurnOutcome::Completed)).state(30).0, State::Completed);
}

#[test]
fn a_second_end_says_nothing_new() {
    let named = open().say(10, of("t", failed(ErrorClass::Server, None))).say(11, end("t"));
    let unnamed = open().say(10, failed(ErrorClass::Server, None)).say(11, ended(TurnOutcome::Completed));
    let mixed = open().say(10, failed(ErrorClass::Server, None)).say(11, end("t"));
    for (name, story) in [("named", named), ("unnamed", unnamed), ("mixed", mixed)] {
        assert_eq!(story.state(20), (State::Failed, Reason::Error), "{name}");
        assert_eq!((story.facts().turns.failed, story.facts().turns.completed), (1, 0), "{name}");
    }
    let run = open().say(10, session_ended(EndOutcome::Failed)).say(11, session_ended(EndOutcome::Completed));
    assert_eq!(run.state(20).0, State::Failed);
    assert_eq!(run.counted(&Count::Ended(EndOutcome::Completed)), 0);
}

#[test]
fn a_late_item_after_a_turns_end_opens_nothing() {
    let items: Vec<(&str, Fact)> = vec![
        ("action", asks("a", ActionKind::Question)),
        ("retry", retry(1)),
        ("call", call("c", ToolClass::Shell)),
        ("work", work()),
        ("prompt", prompt()),
        ("step", step_started("s")),
    ];
    for (name, fact) in items {
        // With a declared turn, and with one that work opened; within the window and long after.
        for (kind, base) in
            [("declared", open()), ("implicit", Story::new().say(0, started()).say(0, work()))]
        {
            for late in [99, 50] {
                let over = ended(TurnOutcome::Completed);
                let story = if kind == "declared" {
                    base_clone(&base).say(100, of("t", over))
                } else {
                    base_clone(&base).say(100, over)
                };
                let story = story.say(late, fact.clone());
                assert_eq!(
                    story.state(103),
                    (State::Completed, Reason::TurnComplete),
                    "{name} {kind} {late}"
                );
                assert!(
                    story.facts().actions.is_empty() && story.facts().blocked.is_none(),
                    "{name} {kind} {late}"
                );
            }
        }
    }
}

/// The same story told again.
fn base_clone(story: &Story) -> Story {
    if story.facts().has_turns { open() } else { Story::new().say(0, started()).say(0, work()) }
}

#[test]
fn a_late_sign_of_before_the_last_work_holds_nothing_up() {
    let story = open().say(50, work()).say(10, retry(1));
    assert_eq!(story.state(51).0, State::Running);
    let held = open().say(20, retry(2)).say(10, retry(1));
    assert_eq!((held.state(21).0, held.derived(ROOT, 21).since), (State::Blocked, at(10)));
    let reasons = open().say(20, blocked(BlockReason::Auth)).say(10, blocked(BlockReason::Backend));
    assert_eq!(reasons.state(21).1, Reason::Auth);
}

#[test]
fn natural_keys_count_once_whatever_their_ids() {
    let twice = |fact: fn() -> Told| {
        let mut story = open();
        for s in [10, 10, 10] {
            story = story.say(s, fact());
        }
        story
    };
    let calls = twice(|| call("c", ToolClass::Shell).into()).say(12, done("c")).say(12, done("c"));
    assert_eq!((calls.facts().calls.total, calls.facts().open_calls.len()), (1, 0));
    assert_eq!(calls.counted(&Count::ToolCall(Name::from("shell"), CallOutcome::Ok)), 1);
    let again = calls.say(12, call("c", ToolClass::Shell));
    assert!(again.facts().open_calls.is_empty(), "a call that ended does not begin again");
    assert_eq!(twice(|| turn("u")).facts().turns.started, 2);
    assert_eq!(twice(|| asks("a", ActionKind::Question).into()).facts().actions.len(), 1);
    assert_eq!(twice(|| step_started("s").into()).facts().step_entries_max(), 1);
    let steps = twice(|| step_done("s", StepOutcome::Advanced).into());
    assert_eq!(steps.progress(ProgressKind::StepCompleted), (1, 0));
    let kind = agent_session_exporter::event::StepKind::Build;
    assert_eq!(steps.counted(&Count::Step(kind, StepOutcome::Advanced)), 1);
    assert_eq!(twice(|| end("t")).facts().turns.completed, 1);
}

#[test]
fn a_step_may_be_entered_again() {
    let story = (0..3).fold(open(), |s, i| {
        s.say(10 * i + 10, step_started("s")).say(10 * i + 15, step_done("s", StepOutcome::LoopedBack))
    });
    assert_eq!(story.facts().step_entries_max(), 3);
    let story = story.say(50, step_started("s")).say(45, step_done("s", StepOutcome::Failed));
    assert!(story.facts().step.is_some(), "a late end of an earlier entry leaves the open one");
}

#[test]
fn calls_count_as_interrupted_five_seconds_after_their_turns_end() {
    let story = open().say(10, call("c", ToolClass::Shell)).say(20, end("t"));
    let in_flight = |story: &Story, s| story.ask(ROOT, s, |_, v| v.calls().in_flight);
    assert_eq!((in_flight(&story, 25), in_flight(&story, 26)), (1, 0));
    let again = story.say(22, turn("u"));
    assert_eq!((in_flight(&again, 27), in_flight(&again, 28)), (1, 0), "of an earlier turn");
    let late = open().say(10, call("c", ToolClass::Shell)).say(20, end("t")).say(24, done("c"));
    assert_eq!(late.counted(&Count::ToolCall(Name::from("shell"), CallOutcome::Ok)), 1);
    let cut = Fact::ToolEnded(CallEnd {
        call: Id::from("c"),
        outcome: CallOutcome::Error,
        exit_code: Some(1),
        diff_lines: None,
        error: None,
        output: None,
        read: None,
    });
    let too_late = open().say(10, call("c", ToolClass::Shell)).say(20, end("t")).say(26, cut);
    assert_eq!(too_late.counted(&Count::ToolCall(Name::from("shell"), CallOutcome::Interrupted)), 1);
    assert_eq!(
        too_late.facts().calls.failed,
        0,
        "it was cut off, whether or not the store had said so by then"
    );
}

#[test]
fn a_first_sign_opens_an_implicit_turn() {
    let signs: Vec<(&str, Fact)> = vec![
        ("work", work()),
        ("progress", progress(ProgressKind::FileModified)),
        ("prompt", prompt()),
        ("call", call("c", ToolClass::Shell)),
        ("answer", answered("a")),
    ];
    for (name, fact) in signs {
        let story = Story::new().say(0, started()).say(5, fact);
        assert!(
            story.facts().turn.as_ref().is_some_and(|t| t.implicit && t.started == Some(at(5))),
            "{name}"
        );
        assert_eq!(story.facts().turns.started, 0, "{name}: nobody declared it");
    }
    let quiet = Story::new().say(0, started()).say(5, bookkeeping()).say(6, model("m"));
    assert_eq!(quiet.state(7), (State::Queued, Reason::Starting));
}

#[test]
fn of_a_signal_and_its_episode_in_one_moment_the_episode_has_the_last_word_whatever_their_ids() {
    let signal = Fact::RateLimitSignal { delay_ms: Some(1_000) };
    let until = Some(at(900));
    let held = Fact::Blocked { reason: BlockReason::UsageLimit, attempt: None, delay_ms: None, until };
    for ids in [(91, 92), (92, 91)] {
        let mut story = open();
        for (id, fact) in [(ids.0, held.clone()), (ids.1, signal.clone())] {
            story.take(event(ROOT, id, Some(at(10)), fact.into(), at(10)));
        }
        let blocked = story.facts().blocked.unwrap();
        assert_eq!((blocked.reason, blocked.until), (BlockReason::UsageLimit, until));
    }
}

#[test]
fn stop_requests() {
    let request = |s| move |story: Story| story.say(s, Fact::StopRequested { requester: Requester::Cli });
    let once = request(10)(open());
    let twice = request(20)(once).say(25, work());
    let stop = twice.facts().stop.unwrap();
    assert_eq!((stop.pending, stop.requested_at), (true, at(10)), "a second one changes nothing");
    assert_eq!(twice.counted(&Count::StopRequest(Requester::Cli)), 1);
    assert_eq!(twice.state(26).0, State::Running, "it is no end");
    let taken = twice.say(30, Fact::StopAcknowledged);
    let stop = taken.facts().stop.unwrap();
    assert_eq!((stop.pending, stop.acknowledged_at), (false, Some(at(30))));
    assert_eq!(taken.state(31).0, State::Running, "nor is this");
    let again = request(40)(taken);
    let stop = again.facts().stop.unwrap();
    assert_eq!((stop.pending, stop.requested_at, stop.acknowledged_at), (true, at(40), None));
    assert_eq!(again.counted(&Count::StopRequest(Requester::Cli)), 2);
    assert!(!again.say(50, Fact::StopCleared).facts().stop.unwrap().pending);
}

#[test]
fn usage_is_the_maximum_per_response() {
    let story = open()
        .say(1, tokens(Some("r"), 10, 1))
        .say(2, tokens(Some("r"), 10, 30))
        .say(3, tokens(Some("r"), 10, 20))
        .say(4, tokens(Some("s"), 5, 5))
        .say(5, tokens(None, 1, 1))
        .say(6, tokens(None, 1, 1));
    assert_eq!((story.facts().usage.input, story.facts().usage.output), (17, 37));
    let none = Name::from("");
    assert_eq!(story.counted(&Count::Tokens(none.clone(), none, TokenKind::Output)), 37);
    let absurd = story.say(7, tokens(None, u64::MAX, 1)).say(8, tokens(None, u64::MAX, u64::MAX));
    assert_eq!(absurd.ask(ROOT, 9, |_, v| v.tokens()), Some(u64::MAX));
}

#[test]
fn a_record_without_a_time_counts_but_moves_no_clock() {
    let story = open()
        .say(10, work())
        .untimed(tokens(None, 7, 0))
        .untimed(call("c", ToolClass::Read))
        .untimed(done("c"));
    let facts = story.facts();
    assert_eq!((facts.last_activity, facts.last_seen), (Some(at(10)), Some(at(10))));
    assert_eq!((facts.usage.input, facts.calls.total), (7, 1));
    let story =
        open().untimed(asks("a", ActionKind::Question)).untimed(progress(ProgressKind::CommitCreated));
    assert_eq!((story.facts().last_activity, story.facts().last_progress), (Some(at(0)), None));
    assert_eq!(story.progress(ProgressKind::CommitCreated), (1, 0));
}

fn fresh() -> Session {
    Session::new(Facts::new(
        Event::new(&"test".into(), &ROOT.into(), at(0), work()).source,
        ROOT.into(),
        at(0),
    ))
}

fn told(id: u64, s: i64, fact: impl Into<Told>) -> Event {
    event(ROOT, id, Some(at(s)), fact.into(), at(s))
}

#[test]
fn only_facts_of_after_the_epoch_are_counted_and_untimed_ones_by_their_place() {
    let mut session = fresh();
    assert!(session.apply(told(1, 0, started()), at(10)).is_empty());
    let untimed = |id| event(ROOT, id, None, tokens(None, 5, 5).into(), at(100));
    assert!(session.apply(untimed(2), at(10)).is_empty(), "read among the old ones");
    assert!(!session.apply(told(3, 10, turn("t")), at(10)).is_empty() || session.facts().has_turns);
    session.rest(at(1000));
    assert!(!session.apply(untimed(4), at(10)).is_empty(), "read behind a new one");
    let mut pushed = told(5, 1, tokens(None, 1, 0));
    pushed.counting = agent_session_exporter::event::Counting::Always;
    let change = session.apply(pushed, at(10));
    assert!(!change.is_empty());
}

#[test]
fn an_event_from_before_all_that_is_held_survives_later_corrections() {
    let mut session = fresh();
    for (id, s) in [(1, 100), (2, 101), (3, 102)] {
        let _ = session.apply(told(id, s, work()), at(0));
    }
    let _ = session.apply(told(4, 20, call("old", ToolClass::Read)), at(0));
    let _ = session.apply(told(5, 101, tokens(None, 3, 0)), at(0));
    let _ = session.apply(told(6, 110, done("old")), at(0));
    let _ = session.apply(told(7, 109, tokens(None, 4, 0)), at(0));
    assert_eq!((session.facts().calls.total, session.facts().open_calls.len()), (1, 0));
    assert_eq!(session.facts().usage.input, 7);
}

#[test]
fn a_steady_stream_holds_no_more_than_its_bound() {
    let mut session = fresh();
    for id in 0..2_000 {
        let _ = session.apply(event(ROOT, id, Some(at(1)), tokens(None, 1, 0).into(), at(1)), at(0));
    }
    let row = serde_json::to_value(session.row()).unwrap();
    assert_eq!(row["held"].as_array().unwrap().len(), 256);
    assert_eq!(session.facts().usage.input, 2_000);
}

#[test]
fn a_stored_session_goes_on_as_if_it_had_not_been_stored() {
    let mut session = fresh();
    let events: Vec<Event> = (0..40i64)
        .map(|i| {
            told(i as u64, i / 8, if i % 3 == 0 { call(&format!("c{i}"), ToolClass::Read) } else { work() })
        })
        .collect();
    for event in &events {
        let _ = session.apply(event.clone(), at(0));
    }
    let bytes = postcard::to_allocvec(&session.row()).unwrap();
    let mut restored = Session::from_row(postcard::from_bytes::<Row>(&bytes).unwrap(), at(0));
    assert_eq!(restored.facts(), session.facts());
    for (id, s) in [(100, 4), (101, 6), (102, 5)] {
        let _ = session.apply(told(id, s, done("c33")), at(0));
        let _ = restored.apply(told(id, s, done("c33")), at(0));
        assert_eq!(restored.facts(), session.facts());
    }
    let at_rest = |s: &mut Session, now: Timestamp| {
        s.rest(now);
        serde_json::to_value(s.row()).unwrap()["held"].as_array().unwrap().len()
    };
    assert!(at_rest(&mut session, at(7)) > 0);
    assert_eq!(at_rest(&mut session, at(60)), 0);
    assert_eq!(restored.facts(), session.facts());
}

#[test]
fn old_records_that_are_being_read_keep_their_window() {
    let mut session = fresh();
    let read = at(1_000_000);
    let old = |id, s, fact: Told| event(ROOT, id, Some(at(s)), fact, read);
    let _ = session.apply(old(1, 100, done("c").into()), at(0));
    session.rest(read);
    let _ = session.apply(old(2, 99, call("c", ToolClass::Read).into()), at(0));
    assert_eq!(session.facts().calls.total, 1);
    let change = session.apply(old(3, 101, work().into()), at(0));
    assert!(change.counts().all(|(_, n)| n >= 0));
    let tools = session.facts().progress.iter().map(|p| p.kind).collect::<Vec<_>>();
    assert_eq!(tools, [ProgressKind::FileRead], "the call's class was known in time");
}

#[test]
fn sums_follow_what_was_known_at_the_events_place() {
    let with_project = |mut event: Event| {
        event.project = Some(Name::from("shop"));
        event
    };
    let first = || with_project(told(1, 10, started()));
    let second = || told(2, 11, of("t", ended(TurnOutcome::Completed)));
    let mut in_order = Story::new();
    let mut reversed = Story::new();
    for event in [first(), second()] {
        in_order.take(event);
    }
    for event in [second(), first()] {
        reversed.take(event);
    }
    let exact = |story: &Story| {
        let mut sums: Vec<_> = story
            .sums
            .sums
            .iter()
            .filter(|(_, s)| s.exact() != 0)
            .map(|(k, s)| (k.clone(), s.exact()))
            .collect();
        sums.sort();
        sums
    };
    assert_eq!(exact(&in_order), exact(&reversed));
    assert!(exact(&in_order).iter().all(|((_, project, _), _)| project.as_str() == "shop"));
}

#[test]
fn one_absurd_delay_does_not_spoil_the_sum() {
    let signal = |ms| Fact::RateLimitSignal { delay_ms: Some(ms) };
    let story = open().say(10, signal(u64::MAX)).say(11, signal(1_000));
    assert_eq!(story.counted(&Count::BackoffMs), 366 * 24 * 3_600_000 + 1_000);
}
