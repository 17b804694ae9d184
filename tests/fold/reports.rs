//! Situations people reported of other trackers, told in events of ours.

use agent_session_exporter::event::{
    ActionKind, BlockReason, Capability, EndOutcome, ErrorClass, Fact, ProgressKind, ToolClass, TurnOutcome,
    Writer,
};
use agent_session_exporter::session::{Reason, State};

use super::made::*;

fn open() -> Story {
    Story::new().say(0, started()).say(0, turn("t"))
}

#[test]
fn report_01_a_turn_that_resumed_itself_does_not_run_for_ever() {
    let mut story = open()
        .say(5, call("bg", ToolClass::Shell))
        .say(6, background("job", true))
        .say(6, done("bg"))
        .say(10, end("t"))
        .say(370, background("job", false))
        .say(371, machine_turn("self"));
    for i in 0..7 {
        let id = format!("c{i}");
        story = story.say(380 + 10 * i, call(&id, ToolClass::Shell)).say(385 + 10 * i, done(&id));
        assert_eq!(story.state(386 + 10 * i), (State::Running, Reason::Working));
    }
    let story = story.say(460, end("self"));
    assert_eq!(story.state(461), (State::Completed, Reason::TurnComplete));
    assert_eq!(story.state(460 + HOUR), (State::Completed, Reason::TurnComplete));
}

#[test]
fn report_02_not_completed_while_sub_agents_work_in_the_background() {
    let kids = ["k1", "k2", "k3"];
    let mut story = open();
    for kid in kids {
        story = story.say(5, call(kid, ToolClass::Task)).say(6, done(kid)).kid(kid, 7, turn("k"));
    }
    story = story.say(10, end("t"));
    for (i, kid) in (1i64..).zip(kids) {
        assert_eq!(story.state(100 * i).0, State::Running);
        assert_eq!(story.ask(ROOT, 100 * i, |_, v| v.subagents().0), (4 - i).unsigned_abs());
        story = story.kid(kid, 100 * i, work()).kid(kid, 100 * i + 1, end("k"));
        assert_eq!(story.ask(ROOT, 100 * i + 1, |_, v| v.last_activity()), Some(at(100 * i + 1)));
    }
    assert_eq!(story.state(302), (State::Completed, Reason::TurnComplete));
}

#[test]
fn report_04_a_permission_dialog_is_a_wait() {
    let story = open().say(10, call("c", ToolClass::Shell)).say(11, asks("p", ActionKind::Permission));
    assert_eq!(story.state(11 + 20 * MINUTE), (State::WaitingForUser, Reason::Permission));
    assert_eq!(story.ask(ROOT, 1200, |_, v| v.certain_actions()), 1);
    let unseen = open().say(10, call("c", ToolClass::Shell));
    assert_eq!(unseen.state(11 + 20 * MINUTE), (State::Running, Reason::Working));
    assert!(!unseen.capabilities.has(Capability::PendingActions));
}

#[test]
fn report_07_long_calls_and_sub_agents_are_no_stall() {
    let agent = (0..11)
        .fold(open().say(10, call("task", ToolClass::Task)).kid("kid", 11, turn("k")), |s, i| {
            s.kid("kid", 20 + i * MINUTE, work())
        });
    assert_eq!(agent.state(11 * MINUTE), (State::Running, Reason::Working));
    assert_eq!(
        agent.ask(ROOT, 11 * MINUTE, |_, v| (v.last_activity(), v.last_progress())),
        (Some(at(620)), None)
    );
    let shell = open().say(10, call("sh", ToolClass::Shell));
    assert_eq!(shell.state(10 + 8 * MINUTE), (State::Running, Reason::Working));
    assert_eq!(shell.say(500, done("sh")).say(501, end("t")).state(502).0, State::Completed);
}

#[test]
fn report_08_a_call_that_hangs_stalls_once_and_heartbeats_are_no_activity() {
    let mut story = open().say(10, call("sh", ToolClass::Shell));
    for i in 0..300 {
        story = story.say(20 + i * 30, bookkeeping());
    }
    assert_eq!(story.facts().last_activity, Some(at(10)));
    assert_eq!(story.state(2 * HOUR), (State::Running, Reason::Working));
    let first = story.derived(ROOT, 10 + 2 * HOUR);
    let later = story.derived(ROOT, 5 * HOUR);
    assert_eq!((first.reason, first.since), (Reason::CallStuck, at(10 + 2 * HOUR)));
    assert_eq!(first, later, "one episode, one beginning");
}

#[test]
fn report_13_idle_after_an_error_does_not_make_a_success() {
    for (error, state, reason) in [
        (failed(ErrorClass::Server, None), State::Failed, Reason::Error),
        (ended(TurnOutcome::Cancelled), State::Cancelled, Reason::ByUser),
    ] {
        let story = open().kid("kid", 5, turn("k")).kid("kid", 20, error).kid(
            "kid",
            21,
            ended(TurnOutcome::Completed),
        );
        let kid = story.derived("kid", 22);
        assert_eq!((kid.state, kid.reason), (state, reason));
        assert_eq!(story.state(22), (State::Running, Reason::Working));
    }
}

#[test]
fn report_16_a_sub_agent_that_never_ran_is_not_completed() {
    let queued = open().kid("kid", 5, Fact::SessionQueued(Default::default()));
    assert_eq!(queued.derived("kid", 60).state, State::Queued);
    assert_eq!(queued.derived("kid", 7 * HOUR).reason, Reason::NeverStarted);
    let prompted = open().kid("kid", 5, prompt()).say(10, done("task"));
    assert_ne!(prompted.derived("kid", 60).state, State::Completed);
    assert_eq!(prompted.derived("kid", 7 * HOUR).state, State::Unknown);
    let facts = prompted.sessions["kid"].facts();
    assert_eq!((facts.turns.started, facts.usage.seen), (0, false));
}

#[test]
fn report_17_old_runs_are_not_running_after_a_restart() {
    let old = open().say(10, call("c", ToolClass::Shell));
    assert_eq!(old.state(3 * 24 * HOUR), (State::Unknown, Reason::SilentTooLong));
}

#[test]
fn report_19_a_dead_process_is_gone_at_once_and_an_unknown_one_is_not() {
    let cut = || open().say(10, call("c", ToolClass::Shell));
    assert_eq!(cut().say(20, writer(Writer::Gone)).state(20), (State::Failed, Reason::ProcessGone));
    assert_eq!(cut().say(20, writer(Writer::Alive)).state(20 + HOUR), (State::Running, Reason::Working));
    assert_eq!(cut().say(20, writer(Writer::Alive)).state(3 * HOUR), (State::Stalled, Reason::CallStuck));
}

#[test]
fn report_20_a_probe_that_cannot_be_made_changes_no_state() {
    let story = open().say(10, work());
    let probed = open().say(10, work()).say(20, writer(Writer::Unknown));
    for s in [30, 700, 7 * HOUR] {
        assert_eq!(story.state(s), probed.state(s));
    }
}

#[test]
fn report_23_a_killed_session_is_never_completed() {
    let cut = || open().say(10, call("c", ToolClass::Shell));
    assert_eq!(cut().say(20, writer(Writer::Gone)).state(30), (State::Failed, Reason::ProcessGone));
    for s in [60, HOUR, 3 * HOUR, 7 * HOUR, 72 * HOUR] {
        assert_ne!(cut().state(s).0, State::Completed);
    }
    assert_eq!(cut().state(7 * HOUR).0, State::Unknown);
}

#[test]
fn report_43_a_limit_with_its_reset_is_blocked_until_then() {
    let limit =
        |until| Fact::Blocked { reason: BlockReason::RateLimit, attempt: None, delay_ms: None, until };
    let story =
        open().say(10, limit(Some(at(HOUR)))).say(11, of("t", failed(ErrorClass::RateLimit, Some(HOUR))));
    let d = story.derived(ROOT, HOUR - 1);
    assert_eq!((d.state, d.reason, d.until), (State::Blocked, Reason::RateLimit, Some(at(HOUR))));
    assert_eq!(story.state(HOUR), (State::Failed, Reason::RateLimit));
    let unsaid = open().say(10, limit(None)).say(11, of("t", failed(ErrorClass::RateLimit, None)));
    let d = unsaid.derived(ROOT, 12);
    assert_eq!((d.state, d.reason, d.until), (State::Failed, Reason::RateLimit, None));
}

#[test]
fn report_55_a_guard_that_halts_honest_work_is_no_loop_of_ours() {
    let mut story = Story::new().say(0, interactive()).say(0, turn("t"));
    for i in 0..6 {
        let id = format!("e{i}");
        story = story.say(10 + i, call(&id, ToolClass::Edit)).say(10 + i, edited(&id, 3));
    }
    let guard = Fact::NativeStuck { detector: "loop".into(), layer: "tool_loop".into() };
    let story = story.say(20, guard).say(21, asks("loop", ActionKind::Choice));
    assert_eq!(story.progress(ProgressKind::FileModified), (6, 0));
    assert_eq!(story.facts().calls_since_progress(), 0);
    assert_eq!(story.state(HOUR), (State::WaitingForUser, Reason::Choice));
}

#[test]
fn report_56_an_old_open_call_does_not_keep_a_failed_session_running() {
    let unnamed = || Fact::TurnStarted { trigger: agent_session_exporter::event::Trigger::Person };
    let mut story = Story::new()
        .say(0, started())
        .say(0, unnamed())
        .say(5, call("lost", ToolClass::Shell))
        .say(6, ended(TurnOutcome::Interrupted));
    for i in 0..4 {
        story = story.say(7 + 2 * i, unnamed()).say(8 + 2 * i, failed(ErrorClass::InvalidRequest, None));
    }
    assert_eq!(story.state(15), (State::Failed, Reason::Error));
    assert_eq!(story.facts().turns.failed, 5);
    assert_eq!(story.ask(ROOT, 20, |_, v| v.calls().in_flight), 0);
    let again = story.say(16, unnamed());
    assert_eq!(again.ask(ROOT, 22, |_, v| v.calls().in_flight), 0, "nor does a new turn take it up");
    assert_eq!(again.state(16 + 10 * MINUTE), (State::Stalled, Reason::Silent));
    let ended = again.say(700, session_ended(EndOutcome::Failed));
    assert_eq!(ended.state(701).0, State::Failed);
}
