//! The order of the rules: what a session is, and which rule wins where two match.

use agent_session_exporter::event::{
    ActionKind, BlockReason, Certainty, EndOutcome, ErrorClass, Fact, Id, Requester, StepOutcome, ToolClass,
    TurnOutcome, Writer,
};
use agent_session_exporter::session::{Reason, State};

use super::made::*;

type Row = (&'static str, Story, i64, (State, Reason, u8, i64));

fn open() -> Story {
    Story::new().say(0, started()).say(0, turn("t"))
}

fn open_interactive() -> Story {
    Story::new().say(0, interactive()).say(0, turn("t"))
}

fn end_with(outcome: TurnOutcome) -> Story {
    open().say(100, of("t", ended(outcome)))
}

/// A turn that works, without ever landing anything.
fn calling(n: i64, every: i64) -> Story {
    (0..n).fold(open(), |story, i| {
        let id = format!("c{i}");
        story.say(10 + i * every, call(&id, ToolClass::Read)).say(11 + i * every, done(&id))
    })
}

fn check(rows: Vec<Row>) {
    for (name, story, now, (state, reason, rule, since)) in rows {
        let d = story.derived(ROOT, now);
        assert_eq!((d.state, d.reason, d.rule, d.since), (state, reason, rule, at(since)), "{name}");
        assert!(d.state.reasons().contains(&d.reason), "{name}: reason outside its state");
    }
}

#[test]
fn evidence_that_ran_out() {
    use Reason as R;
    let unknown = |reason, since| (State::Unknown, reason, 1, since);
    let no_result =
        |outcome| Fact::TurnEnded { outcome, error: None, reset: None, denied: false, result_known: false };
    check(vec![
        ("source lost", open().down_since(50), 400, unknown(R::SourceLost, 350)),
        ("silent", open().say(9, work()), 9 + 6 * HOUR, unknown(R::SilentTooLong, 9 + 6 * HOUR)),
        (
            "turn without result",
            open().say(100, of("t", no_result(TurnOutcome::Completed))),
            101,
            unknown(R::EndedWithoutResult, 100),
        ),
        (
            "run without result",
            open().say(100, session_ended(EndOutcome::Unknown)),
            101,
            unknown(R::EndedWithoutResult, 100),
        ),
        (
            "never started",
            Story::new().say(0, Fact::SessionQueued(Default::default())),
            7 * HOUR,
            unknown(R::NeverStarted, 6 * HOUR),
        ),
    ]);
}

#[test]
fn ends() {
    use Reason as R;
    let failure = |error, since| open().say(since, of("t", failed(error, None)));
    let run = |outcome, error, workflow| open().say(100, Fact::SessionEnded { outcome, error, workflow });
    let cancelled_denied = Fact::TurnEnded {
        outcome: TurnOutcome::Cancelled,
        error: None,
        reset: None,
        denied: true,
        result_known: true,
    };
    let end = |state, reason| (state, reason, 3, 100);
    check(vec![
        ("turn complete", end_with(TurnOutcome::Completed), 200, end(State::Completed, R::TurnComplete)),
        ("run complete", run(EndOutcome::Completed, None, false), 200, end(State::Completed, R::RunComplete)),
        (
            "workflow complete",
            run(EndOutcome::Completed, None, true),
            200,
            end(State::Completed, R::WorkflowComplete),
        ),
        (
            "background open",
            end_with(TurnOutcome::Completed).say(50, background("sh", true)),
            701,
            (State::Completed, R::BackgroundOpen, 3, 700),
        ),
        ("error", failure(ErrorClass::Server, 100), 200, end(State::Failed, R::Error)),
        ("rate limit", failure(ErrorClass::RateLimit, 100), 200, end(State::Failed, R::RateLimit)),
        ("usage limit", failure(ErrorClass::UsageLimit, 100), 200, end(State::Failed, R::UsageLimit)),
        ("billing", failure(ErrorClass::Billing, 100), 200, end(State::Failed, R::UsageLimit)),
        ("auth", failure(ErrorClass::Auth, 100), 200, end(State::Failed, R::Auth)),
        ("timeout", failure(ErrorClass::Timeout, 100), 200, end(State::Failed, R::Timeout)),
        ("truncated", end_with(TurnOutcome::Truncated), 200, end(State::Failed, R::Truncated)),
        ("interrupted", end_with(TurnOutcome::Interrupted), 200, end(State::Failed, R::Interrupted)),
        (
            "run failed",
            run(EndOutcome::Failed, Some(ErrorClass::Timeout), false),
            200,
            end(State::Failed, R::Timeout),
        ),
        ("process gone", open().say(100, writer(Writer::Gone)), 200, end(State::Failed, R::ProcessGone)),
        ("by user", end_with(TurnOutcome::Cancelled), 200, end(State::Cancelled, R::ByUser)),
        (
            "stopped",
            end_with(TurnOutcome::Cancelled).say(90, Fact::StopRequested { requester: Requester::Cli }),
            200,
            end(State::Cancelled, R::Stopped),
        ),
        (
            "a stop that was taken back",
            end_with(TurnOutcome::Cancelled)
                .say(90, Fact::StopRequested { requester: Requester::Cli })
                .say(91, Fact::StopCleared),
            200,
            end(State::Cancelled, R::ByUser),
        ),
        ("denied", open().say(100, of("t", cancelled_denied)), 200, end(State::Cancelled, R::Denied)),
        ("deleted", open().say(100, Fact::SessionDeleted), 200, end(State::Cancelled, R::Deleted)),
        (
            "run's own error before the turn's outcome",
            end_with(TurnOutcome::Truncated).say(
                110,
                Fact::SessionEnded {
                    outcome: EndOutcome::Failed,
                    error: Some(ErrorClass::Auth),
                    workflow: false,
                },
            ),
            200,
            (State::Failed, R::Auth, 3, 110),
        ),
    ]);
}

#[test]
fn every_kind_of_waiting_and_of_being_held_up() {
    for kind in ActionKind::ALL {
        let d = open().say(7, asks("a", *kind)).derived(ROOT, 100);
        assert_eq!((d.state, d.reason.as_str(), d.since), (State::WaitingForUser, kind.as_str(), at(7)));
        assert!(d.state.reasons().contains(&d.reason));
    }
    for reason in BlockReason::ALL {
        let d = open().say(7, blocked(*reason)).derived(ROOT, 100);
        assert_eq!((d.state, d.reason.as_str(), d.since), (State::Blocked, reason.as_str(), at(7)));
        assert!(d.state.reasons().contains(&d.reason));
    }
    let until =
        Fact::Blocked { reason: BlockReason::RateLimit, attempt: None, delay_ms: None, until: Some(at(60)) };
    check(vec![
        ("reset passed", open().say(7, until), 100, (State::Blocked, Reason::ResetPassed, 5, 60)),
        (
            "probable",
            open_interactive().say(5, call("e", ToolClass::Edit)),
            25,
            (State::WaitingForUser, Reason::Probable, 4, 5),
        ),
    ]);
}

#[test]
fn stalled_and_working() {
    use Reason as R;
    let steps = |n: i64| (0..n).fold(open(), |s, i| s.say(10 * (i + 1), step_started("s")));
    let turns = |n: i64| (0..n).fold(open(), |s, i| s.say(10 * (i + 1), machine_turn(&format!("m{i}"))));
    check(vec![
        ("silent", open().say(9, work()), 609, (State::Stalled, R::Silent, 6, 609)),
        (
            "call stuck",
            open().say(9, call("c", ToolClass::Shell)),
            9 + 2 * HOUR,
            (State::Stalled, R::CallStuck, 6, 9 + 2 * HOUR),
        ),
        ("step loop", steps(5), 60, (State::Stalled, R::StepLoop, 6, 40)),
        ("turns", turns(21), 220, (State::Stalled, R::StepLoop, 6, 200)),
        ("no progress", calling(60, 50), 2961, (State::Stalled, R::NoProgress, 6, 10 + 59 * 50)),
        (
            "progressing",
            open().say(30, progress(agent_session_exporter::event::ProgressKind::FileModified)),
            100,
            (State::Progressing, R::Working, 7, 30),
        ),
        (
            "progress faded",
            open()
                .say(30, progress(agent_session_exporter::event::ProgressKind::FileModified))
                .say(300, work()),
            330,
            (State::Running, R::Working, 8, 330),
        ),
        ("running", open(), 10, (State::Running, R::Working, 8, 0)),
        (
            "queued",
            Story::new().say(3, Fact::SessionQueued(Default::default())),
            10,
            (State::Queued, R::Starting, 9, 3),
        ),
    ]);
}

#[test]
fn where_two_rules_match_the_earlier_wins() {
    use Reason as R;
    use agent_session_exporter::event::ProgressKind::FileModified;
    let limit = |now: i64| (open().say(100, of("t", failed(ErrorClass::RateLimit, Some(500)))), now);
    let (before, at_499) = limit(499);
    let (after, at_500) = limit(500);
    let probable = Fact::ActionRequired {
        action: Id::from("p"),
        kind: ActionKind::Permission,
        certainty: Certainty::Probable,
        tool: None,
        call: None,
    };
    let looping = (0..5).fold(open(), |s, i| s.say(10 + i, step_started("s")));
    check(vec![
        (
            "source lost before waiting",
            open().say(5, asks("a", ActionKind::Question)).down_since(10),
            400,
            (State::Unknown, R::SourceLost, 1, 310),
        ),
        (
            "an end before a lost source",
            end_with(TurnOutcome::Completed).down_since(110),
            900,
            (State::Completed, R::TurnComplete, 3, 100),
        ),
        ("limit ahead before failed", before, at_499, (State::Blocked, R::RateLimit, 2, 100)),
        ("failed after the reset", after, at_500, (State::Failed, R::RateLimit, 3, 100)),
        (
            "gone before silence",
            open().say(10, writer(Writer::Gone)),
            7 * HOUR,
            (State::Failed, R::ProcessGone, 3, 10),
        ),
        (
            "an end before an action of later",
            end_with(TurnOutcome::Completed).say(150, asks("a", ActionKind::Question)),
            200,
            (State::Completed, R::TurnComplete, 3, 100),
        ),
        (
            "an end before an episode of later",
            end_with(TurnOutcome::Failed).say(150, retry(1)),
            200,
            (State::Failed, R::Error, 3, 100),
        ),
        (
            "waiting before blocked",
            open().say(5, retry(1)).say(6, asks("a", ActionKind::Permission)).say(7, retry(2)),
            60,
            (State::WaitingForUser, R::Permission, 4, 6),
        ),
        (
            "waiting before stalled",
            open().say(5, asks("a", ActionKind::Permission)),
            3 * HOUR,
            (State::WaitingForUser, R::Permission, 4, 5),
        ),
        (
            "certain before probable",
            open_interactive().say(1, probable).say(200, asks("a", ActionKind::Choice)),
            300,
            (State::WaitingForUser, R::Choice, 4, 200),
        ),
        ("blocked before stalled", open().say(5, retry(1)), 3 * HOUR, (State::Blocked, R::Retry, 5, 5)),
        (
            "blocked before progressing",
            open().say(5, progress(FileModified)).say(6, retry(1)),
            10,
            (State::Blocked, R::Retry, 5, 6),
        ),
        (
            "silent before call stuck",
            open().say(5, call("task", ToolClass::Task)),
            3 * HOUR,
            (State::Stalled, R::Silent, 6, 605),
        ),
        ("step loop before running", looping.say(20, work()), 30, (State::Stalled, R::StepLoop, 6, 13)),
        (
            "call stuck before progressing",
            open().say(5, call("c", ToolClass::Shell)).say(2 * HOUR, progress(FileModified)),
            2 * HOUR + 5,
            (State::Stalled, R::CallStuck, 6, 2 * HOUR + 5),
        ),
        (
            "progressing before running",
            open().say(30, step_done("s", StepOutcome::Advanced)),
            31,
            (State::Progressing, R::Working, 7, 30),
        ),
    ]);
}

/// A turn that failed, by its own word because its workflow is blocked.
fn blocked_to_the_end(outcome: TurnOutcome) -> Story {
    open().say(50, work()).say(90, blocked(BlockReason::WorkflowBlocked)).say(90, of("t", ended(outcome)))
}

#[test]
fn a_run_that_ended_with_its_workflow_blocked_is_blocked_until_something_starts() {
    use Reason as R;
    let over = || blocked_to_the_end(TurnOutcome::Failed);
    let held = (State::Blocked, R::WorkflowBlocked, 5, 90);
    check(vec![
        ("at once", over(), 91, held),
        ("for days", over(), 9 * 24 * HOUR, held),
        ("a late item changes nothing", over().say(95, work()).say(96, step_started("s")), 100, held),
        ("nor does a late call", over().say(95, call("c", ToolClass::Read)).say(96, done("c")), 100, held),
        ("a new turn does", over().say(100, turn("u")), 101, (State::Running, R::Working, 8, 100)),
        ("so does a prompt", over().say(100, prompt()), 101, (State::Running, R::Working, 8, 100)),
        (
            "what was started may fail for another reason",
            over().say(100, turn("u")).say(110, of("u", ended(TurnOutcome::Failed))),
            111,
            (State::Failed, R::Error, 3, 110),
        ),
        (
            "an end of the run is newer",
            over().say(100, session_ended(EndOutcome::Cancelled)),
            101,
            (State::Cancelled, R::ByUser, 3, 100),
        ),
        (
            "so is its removal",
            over().say(100, Fact::SessionDeleted),
            101,
            (State::Cancelled, R::Deleted, 3, 100),
        ),
    ]);
    // A turn that ended otherwise says so itself.
    for (outcome, state) in
        [(TurnOutcome::Completed, State::Completed), (TurnOutcome::Cancelled, State::Cancelled)]
    {
        assert_eq!(blocked_to_the_end(outcome).state(91).0, state);
    }
    // Any other episode ends with the turn, as ever.
    let other = open().say(90, blocked(BlockReason::Backend)).say(90, of("t", ended(TurnOutcome::Failed)));
    assert_eq!(other.state(91), (State::Failed, R::Error));
}
