//! The sentences of the states' rules, one case each.

use agent_session_exporter::event::{
    ActionKind, BlockReason, CallStart, Capability, Certainty, EndOutcome, ErrorClass, Fact, Id,
    ProgressKind, Resolution, SessionInfo, ToolClass, TurnOutcome, Writer,
};
use agent_session_exporter::session::counts::Count;
use agent_session_exporter::session::{Reason, State};

use super::made::*;

fn open() -> Story {
    Story::new().say(0, started()).say(0, turn("t"))
}

fn open_interactive() -> Story {
    Story::new().say(0, interactive()).say(0, turn("t"))
}

fn escalated(id: &str) -> Fact {
    Fact::ToolStarted(CallStart { asks: Some(true), ..start(id, ToolClass::Shell) })
}

#[test]
fn silence_turns_unknown_after_hours_unless_the_writer_is_proven_to_live() {
    let silent = open().say(10, work());
    assert_eq!(silent.state(10 + 6 * HOUR - 1).0, State::Stalled);
    assert_eq!(silent.state(10 + 6 * HOUR), (State::Unknown, Reason::SilentTooLong));
    let waiting = open().say(10, asks("a", ActionKind::Question));
    assert_eq!(waiting.state(10 + 24 * HOUR - 1), (State::WaitingForUser, Reason::Question));
    assert_eq!(waiting.state(10 + 24 * HOUR), (State::Unknown, Reason::SilentTooLong));
    let proven = open().say(10, asks("a", ActionKind::Question)).say(11, writer(Writer::Alive));
    assert_eq!(proven.state(72 * HOUR), (State::WaitingForUser, Reason::Question));
    let no_longer = proven.say(20, writer(Writer::Unknown));
    assert_eq!(no_longer.state(72 * HOUR), (State::Unknown, Reason::SilentTooLong));
}

#[test]
fn a_source_is_lost_five_minutes_after_it_failed_and_push_never() {
    let down = open().say(100, work()).down_since(100);
    assert_eq!(down.state(399).0, State::Running);
    assert_eq!(down.state(400), (State::Unknown, Reason::SourceLost));
    let mut untried = open().say(100, work()).down_since(100);
    untried.health[0].scanned = false;
    assert_eq!(untried.state(500).0, State::Running);
    let mut young = open().say(100, work()).down_since(100).snapshot();
    young.process_start = at(1000);
    let source = &open().facts().source.clone();
    assert_eq!(young.lost_since(source, at(1299)), None);
    assert_eq!(young.lost_since(source, at(1300)), Some(at(1300)));
    let push = open().say(100, work());
    assert_eq!(push.state(400).0, State::Running);
}

#[test]
fn a_turn_of_an_interactive_agent_ends_and_a_prompt_opens_it_again() {
    let story = open_interactive().say(10, end("t"));
    assert_eq!(story.state(3 * 24 * HOUR), (State::Completed, Reason::TurnComplete));
    let story = story.say(100, prompt());
    assert_eq!(story.state(101), (State::Running, Reason::Working));
    let story = story.say(101, turn("u"));
    assert_eq!((story.state(102).0, story.sessions.len()), (State::Running, 1));
    assert_eq!(story.facts().turns.started, 2, "the prompt opens the turn, the turn is counted once");
    let over = open().say(10, session_ended(EndOutcome::Completed));
    assert_eq!(over.state(20), (State::Completed, Reason::RunComplete));
    assert_eq!(over.say(30, turn("u")).state(40), (State::Running, Reason::Working));
}

#[test]
fn a_run_that_starts_anew_is_not_over() {
    let over = Story::new().say(0, started()).say(1, work()).say(10, session_ended(EndOutcome::Failed));
    assert_eq!(over.state(20).0, State::Failed);
    let again = over.say(30, started());
    assert_eq!(again.state(40), (State::Queued, Reason::Starting));
    assert_eq!(again.say(41, work()).state(42), (State::Running, Reason::Working));
}

#[test]
fn a_queued_prompt_waits_behind_the_turn() {
    let story =
        open().say(5, Fact::Prompt { trigger: agent_session_exporter::event::Trigger::Person, queued: true });
    assert_eq!(story.facts().queued_prompts, 1);
    let story = story.say(10, end("t"));
    assert_eq!(story.state(11).0, State::Completed);
    assert_eq!(story.say(12, turn("u")).facts().queued_prompts, 0);
}

#[test]
fn a_file_that_just_stops_is_no_end() {
    let story = open().say(10, call("c", ToolClass::Shell));
    assert_eq!(story.state(3000), (State::Running, Reason::Working));
    assert_eq!(story.state(7 * HOUR), (State::Unknown, Reason::SilentTooLong));
}

#[test]
fn background_agents_hold_a_turn_and_shells_only_for_ten_minutes() {
    let agents = open().kid("kid", 5, turn("k")).say(100, end("t")).kid("kid", 1000, work());
    assert_eq!(agents.state(1100), (State::Running, Reason::Working));
    let agents = agents.kid("kid", 1200, end("k"));
    assert_eq!(agents.state(1201), (State::Completed, Reason::TurnComplete));

    let shells = open().say(50, background("sh", true)).say(100, end("t"));
    let held = shells.derived(ROOT, 699);
    assert_eq!((held.state, held.reason, held.since), (State::Running, Reason::Working, at(0)));
    assert_eq!(shells.state(700), (State::Completed, Reason::BackgroundOpen));
    assert_eq!(shells.say(300, background("sh", false)).state(301), (State::Completed, Reason::TurnComplete));
    let failed = open().say(50, background("sh", true)).say(100, of("t", ended(TurnOutcome::Failed)));
    assert_eq!(failed.state(101).0, State::Failed);
}

#[test]
fn progress_just_before_a_held_end_still_shows() {
    let story = open().say(50, background("sh", true)).say(90, progress(ProgressKind::CommitCreated));
    assert_eq!(story.say(100, end("t")).state(200), (State::Progressing, Reason::Working));
}

#[test]
fn a_process_is_gone_only_by_proof() {
    let gone = open().say(10, asks("a", ActionKind::Permission)).say(100, writer(Writer::Gone));
    assert_eq!(gone.state(101), (State::Failed, Reason::ProcessGone));
    assert!(gone.facts().actions.is_empty(), "nobody is left who could take an answer");
    assert_eq!(gone.counted(&Count::Ended(EndOutcome::Failed)), 1);
    let gone = gone.say(110, writer(Writer::Gone)).say(120, writer(Writer::Unknown));
    assert_eq!(
        gone.state(130),
        (State::Failed, Reason::ProcessGone),
        "a probe that cannot be made changes nothing"
    );
    assert_eq!(gone.counted(&Count::Ended(EndOutcome::Failed)), 1);
    assert_eq!(
        gone.say(200, turn("u")).state(201).0,
        State::Running,
        "proof of before the turn says nothing of it"
    );
    let unsure = open().say(10, writer(Writer::Unknown));
    assert_eq!(unsure.state(11), (State::Running, Reason::Working));
    let idle = open().say(10, end("t")).say(20, writer(Writer::Gone));
    assert_eq!(idle.state(30), (State::Completed, Reason::TurnComplete), "whether or not the process lives");
}

#[test]
fn calls_of_a_process_that_is_gone_are_not_in_flight() {
    let gone = open().say(5, call("c", ToolClass::Shell)).say(10, writer(Writer::Gone));
    assert_eq!(gone.ask(ROOT, 15, |_, v| v.calls().in_flight), 1);
    assert_eq!(gone.ask(ROOT, 16, |_, v| v.calls().in_flight), 0);
}

#[test]
fn probable_actions_wait_for_their_time_and_for_a_person() {
    let edit = open_interactive().say(10, call("e", ToolClass::Edit));
    assert_eq!(edit.state(29), (State::Running, Reason::Working));
    assert_eq!(edit.state(30), (State::WaitingForUser, Reason::Probable));
    assert_eq!(edit.ask(ROOT, 30, |_, v| v.certain_actions()), 0);
    let shell = open_interactive().say(10, escalated("s"));
    assert_eq!(shell.state(69).0, State::Running);
    assert_eq!(shell.state(70), (State::WaitingForUser, Reason::Probable));
    let both = Fact::ToolStarted(CallStart { asks: Some(true), ..start("x", ToolClass::Edit) });
    assert_eq!(open_interactive().say(10, both).state(30).0, State::WaitingForUser);
    let never = Fact::ToolStarted(CallStart { asks: Some(false), ..start("x", ToolClass::Edit) });
    assert_eq!(open_interactive().say(10, never).state(100).0, State::Running);
    let plain = open_interactive().say(10, call("c", ToolClass::Shell));
    assert_eq!(plain.state(500).0, State::Running);
    let headless = open().say(10, call("e", ToolClass::Edit));
    assert_eq!(headless.state(100).0, State::Running);
    assert_eq!(edit.say(40, edited("e", 1)).state(41).0, State::Progressing);
}

#[test]
fn a_certain_surface_refutes_or_confirms_what_is_probable() {
    let sees = sees_most().with(Capability::PendingActions);
    let refuted = open_interactive().seeing(sees).say(10, call("e", ToolClass::Edit)).say(11, escalated("s"));
    assert_eq!(refuted.state(200), (State::Running, Reason::Working));
    let declared = |certainty| Fact::ActionRequired {
        action: Id::from("a"),
        kind: ActionKind::Permission,
        certainty,
        tool: None,
        call: None,
    };
    let probable = open_interactive().say(10, declared(Certainty::Probable));
    assert_eq!(probable.state(69).0, State::Running);
    assert_eq!(probable.state(70), (State::WaitingForUser, Reason::Probable));
    let confirmed = probable.say(80, declared(Certainty::Certain));
    let d = confirmed.derived(ROOT, 81);
    assert_eq!((d.reason, d.since), (Reason::Permission, at(10)));
    let refuted = open_interactive().seeing(sees).say(10, declared(Certainty::Probable));
    assert_eq!(refuted.state(200).0, State::Running);
}

#[test]
fn repeats_do_not_move_the_clock_of_an_action() {
    let story = open().say(10, asks("a", ActionKind::Question)).say(60, asks("a", ActionKind::Question));
    assert_eq!(story.derived(ROOT, 70).since, at(10));
    let two = story.say(65, asks("b", ActionKind::Choice)).say(66, answered("a"));
    let d = two.derived(ROOT, 70);
    assert_eq!((d.reason, d.since), (Reason::Choice, at(65)));
}

#[test]
fn an_action_closes_on_its_answer_its_call_or_the_end_of_its_turn() {
    let about_call = Fact::ActionRequired {
        action: Id::from("a"),
        kind: ActionKind::Permission,
        certainty: Certainty::Certain,
        tool: None,
        call: Some(Id::from("c")),
    };
    let waits = || open().say(10, about_call.clone());
    assert_eq!(waits().state(11).0, State::WaitingForUser);
    let closed_by: Vec<(&str, Told, Resolution)> = vec![
        ("answer", answered("a").into(), Resolution::Answered),
        ("start of the call", call("c", ToolClass::Shell).into(), Resolution::Approved),
        ("end of the call", done("c").into(), Resolution::Answered),
        ("end of the turn", end("t"), Resolution::Expired),
        ("end of the session", session_ended(EndOutcome::Completed).into(), Resolution::Expired),
        ("a new turn", turn("u"), Resolution::Expired),
    ];
    for (name, told, resolution) in closed_by {
        let story = waits().say(40, told);
        assert!(story.facts().actions.is_empty(), "{name}");
        assert_eq!(story.counted(&Count::UserAction(ActionKind::Permission, resolution)), 1, "{name}");
        let again = story.say(50, about_call.clone());
        assert!(again.facts().actions.is_empty(), "{name}: a late repeat opens nothing");
    }
    let other = waits().say(40, call("d", ToolClass::Shell)).say(41, work());
    assert_eq!(other.state(42).0, State::WaitingForUser, "other work does not close it");
    let kids = waits().kid("kid", 41, turn("k")).kid("kid", 42, answered("a")).kid("kid", 43, end("k"));
    assert_eq!(kids.state(44).0, State::WaitingForUser, "a sub-agent's events do not close the parent's");
}

#[test]
fn an_episode_of_being_held_up_goes_to_the_next_work_or_the_turns_end() {
    let held = open().say(10, retry(1)).say(20, retry(2)).say(30, blocked(BlockReason::RateLimit));
    let d = held.derived(ROOT, 40);
    assert_eq!((d.state, d.reason, d.since), (State::Blocked, Reason::RateLimit, at(10)));
    assert_eq!(held.facts().last_activity, Some(at(0)), "retries are no work");
    assert_eq!(held.say(50, bookkeeping()).state(51).0, State::Blocked);
    let held = || open().say(10, retry(1)).say(20, retry(2));
    assert_eq!(held().say(50, work()).state(51).0, State::Running);
    assert_eq!(held().say(50, Fact::Unblocked).state(51).0, State::Running);
    assert_eq!(
        held().say(50, of("t", failed(ErrorClass::Server, None))).state(51),
        (State::Failed, Reason::Error)
    );
    assert_eq!(
        held().kid("kid", 50, turn("k")).state(51).0,
        State::Running,
        "a sub-agent's work is the root's"
    );
    let kid_first =
        open().kid("kid", 5, turn("k")).say(10, retry(1)).kid("kid", 11, work()).say(20, retry(2));
    assert_eq!(kid_first.state(21).0, State::Blocked, "held up again after it");
}

#[test]
fn a_passed_reset_stays_blocked_but_a_pause_between_attempts_is_none() {
    let limit =
        |until| Fact::Blocked { reason: BlockReason::UsageLimit, attempt: None, delay_ms: None, until };
    let story = open().say(10, limit(Some(at(100))));
    assert_eq!(story.derived(ROOT, 99).until, Some(at(100)));
    assert_eq!(story.state(99), (State::Blocked, Reason::UsageLimit));
    assert_eq!(story.state(100), (State::Blocked, Reason::ResetPassed));
    let other = story.say(20, blocked(BlockReason::Backend));
    assert_eq!(other.state(200), (State::Blocked, Reason::Backend), "another reason has no reset");
    assert_eq!(open().say(10, retry(3)).state(100), (State::Blocked, Reason::Retry));
    assert_eq!(open().say(10, limit(None)).state(100), (State::Blocked, Reason::UsageLimit));
    let signal = open().say(10, Fact::RateLimitSignal { delay_ms: Some(30_000) });
    assert_eq!(signal.state(39), (State::Blocked, Reason::RateLimit));
    assert_eq!(signal.state(40), (State::Blocked, Reason::ResetPassed));
}

#[test]
fn what_excuses_silence() {
    let shell = open().say(10, call("c", ToolClass::Shell));
    assert_eq!(shell.state(2 * HOUR).0, State::Running);
    let task = open().say(10, call("c", ToolClass::Task));
    assert_eq!(task.state(610), (State::Stalled, Reason::Silent), "a task call is excused by its child only");
    let child = open().say(10, call("c", ToolClass::Task)).kid("kid", 300, turn("k")).kid("kid", 600, work());
    assert_eq!(child.state(1100), (State::Running, Reason::Working));
    assert_eq!(child.state(1200), (State::Stalled, Reason::Silent), "the child's own silence counts");
    let child_calls = child.kid("kid", 601, call("kc", ToolClass::Shell));
    assert_eq!(child_calls.state(2 * HOUR), (State::Running, Reason::Working));
    let declared = open().say(10, background("timer", true));
    assert_eq!(declared.state(5 * HOUR), (State::Running, Reason::Working));
}

#[test]
fn suspended_time_does_not_count() {
    let story = || open().say(10, work()).asleep(100, 5000);
    assert_eq!(story().state(5100), (State::Running, Reason::Working));
    let d = story().derived(ROOT, 5510);
    assert_eq!((d.reason, d.since), (Reason::Silent, at(610 + 4900)));
    let stuck = open().say(10, call("c", ToolClass::Shell)).asleep(100, 4000);
    assert_eq!(stuck.state(2 * HOUR + 100).0, State::Running);
    assert_eq!(stuck.derived(ROOT, 3 * HOUR + 1000).since, at(10 + 2 * HOUR + 3900));
}

#[test]
fn no_progress_needs_activity_calls_time_and_somebody_who_may_write() {
    let busy = |info: SessionInfo, prompt_at: Option<i64>| {
        let mut story = Story::new().say(0, Fact::SessionStarted(info)).say(0, turn("t"));
        for i in 0..60 {
            let id = format!("c{i}");
            story = story.say(10 + i * 50, call(&id, ToolClass::Read)).say(11 + i * 50, done(&id));
        }
        match prompt_at {
            Some(s) => story.say(s, prompt()),
            None => story,
        }
    };
    let plain = SessionInfo::default;
    assert_eq!(busy(plain(), None).state(2961), (State::Stalled, Reason::NoProgress));
    assert_eq!(busy(plain(), Some(400)).state(2962).0, State::Running, "a person's prompt clears");
    let reader = SessionInfo { read_only: Some(true), ..plain() };
    assert_eq!(busy(reader, None).state(2961).0, State::Running);
    assert_eq!(
        busy(plain(), None).seeing(sees_most().without(Capability::Progress)).state(2961).0,
        State::Running
    );
    let landed = busy(plain(), None).kid("kid", 2000, turn("k")).kid(
        "kid",
        2001,
        progress(ProgressKind::CommitCreated),
    );
    assert_eq!(landed.state(2961).0, State::Running, "a landing in a sub-agent clears too");
}

#[test]
fn loops_are_cleared_by_a_landing_anywhere_in_the_tree() {
    let mut story = open();
    for i in 0..6 {
        story = story.say(100 * i + 10, step_started("implement"));
        story = story.kid("kid", 100 * i + 20, turn(&format!("k{i}")));
        story = story.kid("kid", 100 * i + 30, progress(ProgressKind::FileModified));
        story = story.say(100 * i + 40, machine_turn(&format!("m{i}")));
    }
    assert_eq!(story.state(560), (State::Progressing, Reason::Working));
    assert_eq!(story.ask(ROOT, 560, |_, v| (v.step_entries_max(), v.turns_since_progress())), (0, 1));
    for i in 0..4 {
        story = story.say(600 + i, step_started("implement"));
    }
    let d = story.derived(ROOT, 610);
    assert_eq!((d.reason, d.since), (Reason::StepLoop, at(603)));
}

#[test]
fn waiting_and_blocked_never_become_stalled() {
    for s in [11 * MINUTE, 3 * HOUR, 5 * HOUR] {
        assert_eq!(open().say(5, asks("a", ActionKind::Other)).state(s).0, State::WaitingForUser);
        assert_eq!(open().say(5, retry(1)).state(s).0, State::Blocked);
        let waits = open_interactive().say(5, call("e", ToolClass::Edit));
        assert_eq!(waits.state(s), (State::WaitingForUser, Reason::Probable));
    }
}

#[test]
fn sources_that_cannot_see_progress_never_progress() {
    let blind = open()
        .seeing(sees_most().without(Capability::Progress))
        .say(10, progress(ProgressKind::FileModified));
    let d = blind.derived(ROOT, 20);
    assert_eq!((d.state, d.since), (State::Running, at(0)));
    let looping = (0..8).fold(blind, |s, i| s.say(30 + i, step_started("s")));
    assert_eq!(looping.state(60).0, State::Running);
    assert_eq!(looping.state(700), (State::Stalled, Reason::Silent));
}

#[test]
fn sources_that_never_tell_ends_are_over_ten_minutes_after_the_last_word() {
    let blind = sees_most().without(Capability::Ends);
    let last_word = || Story::new().seeing(blind).say(0, started()).say(1, prompt()).say(10, message());
    assert_eq!(last_word().state(609), (State::Running, Reason::Working));
    let d = last_word().derived(ROOT, 610);
    assert_eq!((d.state, d.reason, d.since), (State::Unknown, Reason::EndedWithoutResult, at(610)));
    let billed = last_word().say(11, tokens(None, 5, 5));
    assert_eq!(
        billed.state(611).1,
        Reason::EndedWithoutResult,
        "the bill does not make it less the last word"
    );
    let late = last_word().say(9, work());
    assert_eq!(late.state(610).1, Reason::EndedWithoutResult, "nor does work of before");
    assert_eq!(last_word().say(12, work()).state(700), (State::Stalled, Reason::Silent));
    let open_things: Vec<(&str, Fact, State)> = vec![
        ("call", call("c", ToolClass::Shell), State::Running),
        ("action", asks("a", ActionKind::Question), State::WaitingForUser),
        ("background", background("b", true), State::Running),
        ("retries", retry(1), State::Blocked),
    ];
    for (name, fact, state) in open_things {
        assert_eq!(last_word().say(11, fact).state(700).0, state, "{name}");
    }
}

#[test]
fn a_run_without_a_result_is_no_success() {
    let fact = |outcome, result_known| Fact::TurnEnded {
        outcome,
        error: None,
        reset: None,
        denied: false,
        result_known,
    };
    let story = open().say(10, of("t", fact(TurnOutcome::Completed, false)));
    assert_eq!(story.state(11), (State::Unknown, Reason::EndedWithoutResult));
    let later = story.say(20, session_ended(EndOutcome::Completed));
    assert_eq!(later.state(21), (State::Completed, Reason::RunComplete));
    assert_eq!(later.say(30, turn("u")).state(31).0, State::Running);
}

#[test]
fn a_deleted_session_comes_back_when_something_starts() {
    let deleted = open().say(10, Fact::SessionDeleted);
    assert_eq!(deleted.say(5, work()).state(20), (State::Cancelled, Reason::Deleted));
    assert_eq!(open().say(10, Fact::SessionDeleted).say(20, turn("u")).state(21).0, State::Running);
    let stale = open().say(30, end("t")).say(40, turn("u")).say(35, Fact::SessionDeleted);
    assert_eq!(stale.state(41).0, State::Running, "a deletion of before the turn");
}

#[test]
fn a_state_never_begins_in_the_future() {
    let story = open().say(200, progress(ProgressKind::FileModified));
    let d = story.derived(ROOT, 100);
    assert_eq!((d.state, d.since), (State::Progressing, at(100)));
    assert_eq!(story.ask(ROOT, 100, |_, v| v.last_progress()), Some(at(100)));
    assert_eq!(story.facts().last_progress, Some(at(200)), "stored as it was");
}
