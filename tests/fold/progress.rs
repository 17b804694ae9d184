//! What is progress, what only counts, and what counts once.

use agent_session_exporter::event::{
    CallEnd, CallOutcome, Commands, Evidence, Fact, Id, ProgressKind, StepOutcome, ToolClass,
};
use agent_session_exporter::session::counts::Count;

use super::made::*;

use ProgressKind as P;

fn open() -> Story {
    Story::new().say(0, started()).say(0, turn("t"))
}

/// A recognised command that ran between two seconds.
fn ran(story: Story, s: i64, id: &str, bit: u8, key: u64, code: i32) -> Story {
    story.say(s, runs(id, bit, key)).say(s + 1, exit(id, code))
}

#[test]
fn an_edit_that_landed_is_progress_and_equal_content_is_none() {
    let edit = |lines| open().say(1, call("e", ToolClass::Edit)).say(2, edited("e", lines));
    assert_eq!((edit(4).progress(P::FileModified), edit(4).facts().last_progress), ((1, 0), Some(at(2))));
    assert_eq!((edit(0).progress(P::FileModified), edit(0).facts().last_progress), ((0, 0), None));
    assert_eq!(edit(0).progress(P::ToolCall), (0, 1));
    let failed = CallEnd { outcome: CallOutcome::Error, diff_lines: Some(4), ..call_end("e") };
    let story = open().say(1, call("e", ToolClass::Edit)).say(2, Fact::ToolEnded(failed));
    assert_eq!((story.progress(P::FileModified), story.progress(P::ErrorOccurred)), ((0, 0), (0, 1)));
}

#[test]
fn a_commit_takes_exit_code_zero() {
    let story = ran(open(), 1, "c", Commands::COMMIT, 1, 0);
    assert_eq!((story.progress(P::CommitCreated), story.progress(P::ToolCall)), ((1, 0), (0, 0)));
    assert_eq!(ran(open(), 1, "c", Commands::COMMIT, 1, 1).progress(P::CommitCreated), (0, 0));
    let unknown = open().say(1, runs("c", Commands::COMMIT, 1)).say(2, done("c"));
    assert_eq!((unknown.progress(P::CommitCreated), unknown.progress(P::ToolCall)), ((0, 0), (0, 1)));
}

#[test]
fn a_test_or_build_is_high_value_only_where_it_is_news() {
    for (bit, pass, fail) in
        [(Commands::TEST, P::TestPassed, P::TestFailed), (Commands::BUILD, P::BuildSucceeded, P::BuildFailed)]
    {
        let story = ran(open(), 10, "a", bit, 7, 0);
        assert_eq!(story.progress(pass), (1, 0), "never passed before");
        let story = ran(story, 20, "b", bit, 7, 0);
        assert_eq!(story.progress(pass), (1, 1), "a repeat");
        let story = ran(story, 30, "c", bit, 8, 0);
        assert_eq!(story.progress(pass), (2, 1), "another command");
        let story = ran(story, 35, "c2", bit, 7, 0);
        assert_eq!(story.progress(pass), (2, 2), "two commands do not feed each other");
        let story = ran(story, 40, "d", bit, 7, 1);
        assert_eq!((story.progress(fail), story.facts().last_progress), ((0, 1), Some(at(31))));
        let story = ran(story, 50, "e", bit, 7, 0);
        assert_eq!(story.progress(pass), (3, 2), "it failed last");
        let story = story.say(60, call("x", ToolClass::Edit)).say(61, edited("x", 1));
        let story = ran(story, 70, "f", bit, 7, 0);
        assert_eq!(story.progress(pass), (4, 2), "something landed since");
    }
}

#[test]
fn a_test_that_was_cut_off_is_no_result() {
    let cut = CallEnd { outcome: CallOutcome::Interrupted, exit_code: Some(130), ..call_end("c") };
    let story = open().say(1, runs("c", Commands::TEST, 7)).say(2, Fact::ToolEnded(cut));
    assert_eq!((story.progress(P::TestFailed), story.progress(P::TestPassed)), ((0, 0), (0, 0)));
    let odd = CallEnd { outcome: CallOutcome::Error, exit_code: Some(0), ..call_end("c") };
    let story = open().say(1, runs("c", Commands::TEST, 7)).say(2, Fact::ToolEnded(odd));
    assert_eq!(story.progress(P::TestPassed), (0, 0));
}

#[test]
fn untimed_passes_are_news_once() {
    let story = (0..3).fold(open(), |s, i| {
        let id = format!("c{i}");
        s.untimed(runs(&id, Commands::TEST, 7)).untimed(exit(&id, 0))
    });
    assert_eq!(story.progress(P::TestPassed), (1, 2));
}

#[test]
fn facts_with_one_call_count_once() {
    let declared = |kind| Fact::Progress {
        kind,
        evidence: Evidence::Structured,
        call: Some(Id::from("c")),
        subject: None,
    };
    let edit = || open().say(1, call("c", ToolClass::Edit));
    let before = edit().say(2, declared(P::FileModified)).say(3, edited("c", 5));
    let after = edit().say(3, edited("c", 5)).say(4, declared(P::FileModified));
    for story in [before, after] {
        assert_eq!((story.progress(P::FileModified), story.progress(P::ToolCall)), ((1, 0), (0, 0)));
        assert_eq!(story.counted(&Count::Progress(P::FileModified, true)), 1);
    }
    let commit = || open().say(1, runs("c", Commands::COMMIT, 1));
    let both = commit().say(2, declared(P::CommitCreated)).say(3, exit("c", 0));
    assert_eq!((both.progress(P::CommitCreated), both.progress(P::ToolCall)), ((1, 0), (0, 0)));
    let plain = || open().say(1, call("c", ToolClass::Shell));
    assert_eq!(plain().say(2, declared(P::ToolCall)).say(3, done("c")).progress(P::ToolCall), (0, 1));
    assert_eq!(plain().say(2, done("c")).say(3, declared(P::ToolCall)).progress(P::ToolCall), (0, 1));
}

#[test]
fn done_items_count_when_they_rise_above_their_highest() {
    let plan = |done| Fact::PlanUpdated { ready: false, items: tally(9 - done, done), told: false };
    let story = open().say(1, plan(2)).say(2, plan(1)).say(3, plan(2)).say(4, plan(3));
    assert_eq!(story.progress(P::StepCompleted), (3, 0));
    assert_eq!(story.facts().last_progress, Some(at(4)));
    let story = open().say(1, Fact::CriteriaUpdated(tally(2, 1))).say(2, Fact::CriteriaUpdated(tally(1, 2)));
    assert_eq!(story.progress(P::CriterionPassed), (2, 0));
}

#[test]
fn a_step_counts_once_per_id_and_run_and_a_task_once_per_id() {
    let advanced = |run| of(run, step_done("s", StepOutcome::Advanced));
    let story = open().say(1, advanced("t")).say(9, advanced("t")).say(20, advanced("u"));
    assert_eq!(story.progress(P::StepCompleted), (2, 1));
    let back =
        open().say(1, step_done("s", StepOutcome::LoopedBack)).say(2, step_done("s", StepOutcome::Failed));
    assert_eq!(back.facts().last_progress, None);
    let task = |subject| Fact::Progress {
        kind: P::TaskCompleted,
        evidence: Evidence::Structured,
        call: None,
        subject: Some(subject),
    };
    let story = open().say(1, task(1)).say(2, task(1)).say(3, task(2));
    assert_eq!(story.progress(P::TaskCompleted), (2, 1));
}

#[test]
fn verifications_are_progress_where_they_are_news() {
    let verified = |passed| Fact::Verification { passed, call: None };
    let story =
        open().say(1, verified(true)).say(2, verified(true)).say(3, verified(false)).say(4, verified(true));
    assert_eq!(story.progress(P::VerificationPassed), (2, 1));
    assert_eq!(story.counted(&Count::Verification(true)), 3);
    assert_eq!(story.facts().verification_failed_at, Some(at(3)));
}

#[test]
fn each_declared_kind_is_high_or_low_as_the_table_says() {
    for kind in P::ALL {
        let story = open().say(5, progress(*kind));
        let high = kind.can_be_high();
        assert_eq!(story.progress(*kind), (u64::from(high), u64::from(!high)), "{}", kind.as_str());
        assert_eq!(story.facts().last_progress, high.then_some(at(5)), "{}", kind.as_str());
    }
}

#[test]
fn reads_and_other_calls_are_low_value() {
    let one = |class| open().say(1, call("c", class)).say(2, done("c"));
    assert_eq!(one(ToolClass::Read).progress(P::FileRead), (0, 1));
    assert_eq!(one(ToolClass::Search).progress(P::FileRead), (0, 1));
    assert_eq!(one(ToolClass::Shell).progress(P::ToolCall), (0, 1));
    assert_eq!(one(ToolClass::Edit).progress(P::ToolCall), (0, 1), "an edit of unknown size");
    assert_eq!(one(ToolClass::Shell).facts().last_progress, None);
}

#[test]
fn calls_since_progress_are_those_that_began_after_the_landings_end() {
    let story = open()
        .say(1, call("long", ToolClass::Shell))
        .say(2, call("e", ToolClass::Edit))
        .say(3, call("between", ToolClass::Read))
        .say(5, edited("e", 1))
        .say(6, call("after", ToolClass::Read));
    assert_eq!(story.facts().calls_since_progress(), 1);
    let late =
        story.say(4, call("late", ToolClass::Read)).say(20, work()).say(2, call("later", ToolClass::Read));
    assert_eq!(late.facts().calls_since_progress(), 1);
    let many = (0..1000).fold(open(), |s, i| s.say(10 + i, call(&format!("c{i}"), ToolClass::Read)));
    assert_eq!(many.facts().calls_since_progress(), 1000);
    let landed = many.kid("kid", 1000, turn("k")).kid("kid", 1001, progress(P::CommitCreated));
    assert_eq!(
        landed.ask(ROOT, 2000, |_, v| v.calls_since_progress()),
        8,
        "the newest are known by their time"
    );
}

#[test]
fn machine_turns_and_compactions_count_until_a_landing() {
    let story = open().say(10, machine_turn("a")).say(20, compaction("x")).say(30, turn("b"));
    assert_eq!(story.ask(ROOT, 40, |_, v| v.turns_since_progress()), 2);
    assert_eq!(story.counted(&Count::Compaction), 1);
    let landed = story.say(50, progress(P::CommitCreated)).say(45, machine_turn("late"));
    assert_eq!(landed.ask(ROOT, 60, |_, v| v.turns_since_progress()), 0);
}
