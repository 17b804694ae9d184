//! Loops of calls: what the definitions say, the states they lead to, since when, and what bounds them.

use proptest::collection::vec;
use proptest::prelude::*;

use agent_session_exporter::event::{
    ActionKind, BlockReason, CallEnd, CallOutcome, CallStart, Capability, Fact, Id, ProgressKind, ReadRange,
    StepOutcome, Timestamp, ToolClass,
};
use agent_session_exporter::session::explain::facts_used;
use agent_session_exporter::session::{Facts, Reason, Session, Signals, State};

use super::calls::{Around, Happening, Numbers, Row, Telling};
use super::made::*;

fn open() -> Story {
    Story::new().say(0, started()).say(0, turn("t"))
}

/// A call with this key that begins now.
fn keyed(id: &str, class: ToolClass, key: u64) -> CallStart {
    CallStart { key: Some(key << 40), target: Some(key << 41), ..start(id, class) }
}

fn begins(start: CallStart) -> Fact {
    Fact::ToolStarted(start)
}

fn fails(id: &str, error: u64) -> Fact {
    Fact::ToolEnded(CallEnd { outcome: CallOutcome::Error, error: Some(error << 40), ..call_end(id) })
}

fn signals(story: &Story) -> Signals {
    story.ask(ROOT, 0, |_, view| *view.signals())
}

/// A call every second from second 10 on, each of which ends at once.
fn calls(story: Story, from: i64, n: i64, each: impl Fn(i64, &str) -> (CallStart, Fact)) -> Story {
    (from..from + n).fold(story, |story, i| {
        let id = format!("c{i}");
        let (start, end) = each(i, &id);
        story.say(10 + i, begins(start)).say(10 + i, end)
    })
}

fn same(story: Story, from: i64, n: i64) -> Story {
    calls(story, from, n, |_, id| (keyed(id, ToolClass::Shell, 1), exit(id, 0)))
}

fn differing(story: Story, from: i64, n: i64) -> Story {
    calls(story, from, n, |i, id| (keyed(id, ToolClass::Search, 100 + i as u64), done(id)))
}

#[test]
fn a_repeated_call_spins_and_since_when_does_not_move() {
    let story = differing(open(), 0, 12);
    assert_eq!(story.state(30).0, State::Running);
    // The window is large enough with the 30th call; 17 of 30 are not yet 60 %.
    let story = same(story, 12, 18);
    assert_eq!(signals(&story).nothing_new, 17);
    assert_eq!(story.state(45), (State::Running, Reason::Working));
    let story = same(story, 30, 2);
    assert_eq!((signals(&story).nothing_new, story.state(45).0), (19, State::Running), "of 32");
    let mut story = same(story, 32, 1);
    let derived = story.derived(ROOT, 45);
    assert_eq!((derived.state, derived.reason, derived.rule), (State::Stalled, Reason::Spinning, 6));
    let used = story.ask(ROOT, 45, |_, view| facts_used(view, &derived));
    let fact =
        |name: &str| used.iter().find(|(n, _)| *n == name).and_then(|(_, value)| value.clone()).unwrap();
    assert_eq!((fact("windowCalls"), fact("noNewRatio")), ("33".to_owned(), "0.606".to_owned()));
    // The 33rd call brought it to 20 of 33.
    for n in 33..700 {
        story = same(story, n, 1);
        let derived = story.derived(ROOT, 20 + n);
        assert_eq!((derived.reason, derived.since), (Reason::Spinning, at(42)), "after {n} calls");
    }
    assert_eq!(story.state(10 + 700 + 15 * MINUTE).1, Reason::Silent);
    let landed = story.say(800, progress(ProgressKind::CommitCreated));
    assert_eq!(landed.state(801).0, State::Progressing);
    assert_eq!(signals(&landed), Signals::default());
}

#[test]
fn nothing_excuses_spinning_but_waiting_and_ends_go_first() {
    let story = same(open(), 0, 40).say(50, background("server", true));
    let story = story.say(50, call("running", ToolClass::Shell));
    assert_eq!(story.state(55).1, Reason::Spinning);
    let asked = story.say(56, asks("a", ActionKind::Question));
    assert_eq!(asked.state(57).0, State::WaitingForUser);
    let answered = asked.say(58, answered("a"));
    assert_eq!(answered.state(59).1, Reason::Spinning);
    let held = answered.say(60, blocked(BlockReason::RateLimit));
    assert_eq!(held.state(61), (State::Blocked, Reason::RateLimit));
    let over = held.say(62, end("t"));
    assert_eq!(over.state(63).1, Reason::Spinning, "the background task holds the turn's end");
    assert_eq!(over.say(64, background("server", false)).state(65).0, State::Completed);
    let blind = same(open(), 0, 40).seeing(sees_most().without(Capability::Progress));
    assert_eq!(blind.state(55), (State::Running, Reason::Working));
}

#[test]
fn a_turns_end_clears_nothing_and_a_persons_prompt_all() {
    let story = same(open(), 0, 40).say(60, end("t")).say(61, machine_turn("u"));
    assert_eq!(story.state(62).1, Reason::Spinning);
    let prompted = story.say(63, prompt());
    assert_eq!((prompted.state(64).0, signals(&prompted)), (State::Running, Signals::default()));
}

#[test]
fn one_error_again_and_again_is_a_loop_whatever_is_looked_at_between() {
    let step = |i: i64, id: &str| match i % 3 {
        0 => (keyed(id, ToolClass::Shell, 1000 + i as u64), exit(id, 2)),
        1 => (keyed(id, ToolClass::Read, 2000 + i as u64), done(id)),
        _ => (keyed(id, ToolClass::Plan, 3000 + i as u64), done(id)),
    };
    let story = calls(open(), 0, 27, step);
    assert_eq!((signals(&story).error_streak, story.state(40).0), (9, State::Running));
    let story = calls(story, 27, 2, step);
    let derived = story.derived(ROOT, 40);
    assert_eq!((signals(&story).error_streak, derived.reason), (10, Reason::RepeatingError));
    assert_eq!(derived.since, at(37), "the tenth error");
    // Its own success is no way out, another tool's is.
    let story = calls(story, 29, 1, |_, id| (keyed(id, ToolClass::Shell, 5), exit(id, 0)));
    assert_eq!(signals(&story).error_streak, 10);
    let cut = CallEnd { outcome: CallOutcome::Interrupted, exit_code: Some(130), ..call_end("cut") };
    let story = story.say(50, begins(keyed("cut", ToolClass::Task, 6))).say(50, Fact::ToolEnded(cut));
    let story = story.say(51, begins(keyed("open", ToolClass::Task, 7)));
    assert_eq!(signals(&story).error_streak, 10, "one that was cut off or goes on is no success");
    assert_eq!(signals(&story.say(52, done("open"))).error_streak, 0);
}

#[test]
fn errors_are_told_apart_by_tool_text_and_kind() {
    let streak = |ends: &[(ToolClass, Fact)]| {
        let story = (0..).zip(ends).fold(open(), |story, (i, (class, end))| {
            let Fact::ToolEnded(end) = end else { panic!("{end:?}") };
            let id = format!("c{i}");
            let end = CallEnd { call: Id::from(id.as_str()), ..end.clone() };
            story.say(10 + i, begins(keyed(&id, *class, i as u64 + 1))).say(10 + i, Fact::ToolEnded(end))
        });
        signals(&story).error_streak
    };
    let denied = Fact::ToolEnded(CallEnd { outcome: CallOutcome::Denied, ..call_end("") });
    let (shell, edit) = (ToolClass::Shell, ToolClass::Edit);
    assert_eq!(streak(&[(shell, exit("", 1)), (shell, exit("", 2))]), 2);
    assert_eq!(streak(&[(shell, fails("", 7)), (shell, fails("", 7))]), 2);
    assert_eq!(streak(&[(shell, fails("", 7)), (shell, fails("", 8))]), 1);
    assert_eq!(streak(&[(shell, fails("", 7)), (edit, fails("", 7))]), 1, "another tool's");
    assert_eq!(streak(&[(shell, exit("", 1)), (shell, denied.clone())]), 1);
    assert_eq!(streak(&[(shell, denied.clone()), (shell, denied)]), 2);
}

#[test]
fn a_slow_loop_shows_where_no_window_does() {
    // Every fourth call is the same one; the others differ.
    let step = |i: i64, id: &str| {
        let key = if i % 4 == 0 { 1 } else { 1000 + i as u64 };
        (keyed(id, ToolClass::Search, key), done(id))
    };
    let story = calls(open(), 0, 80, step);
    assert_eq!((signals(&story).repeated_call_max, story.state(95).0), (19, State::Running));
    let story = calls(story, 80, 1, step);
    let derived = story.derived(ROOT, 95);
    assert_eq!(
        (signals(&story).repeated_call_max, derived.reason, derived.since),
        (20, Reason::SlowLoop, at(90))
    );
    // Once more of it repeats it spins; it has been stalled since before.
    let faster = same(calls(open(), 0, 81, step), 81, 40);
    let derived = faster.derived(ROOT, 135);
    assert_eq!((derived.reason, derived.since), (Reason::Spinning, at(90)));
    let later = calls(story, 81, 400, step);
    let derived = later.derived(ROOT, 495);
    assert_eq!((derived.reason, derived.since), (Reason::SlowLoop, at(90)), "whatever is kept of the calls");
    assert_eq!(signals(&later).repeated_call_max, 120);
}

#[test]
fn paced_repeats_are_new_if_they_are_of_the_kind_that_polls() {
    let repeat = |class, pause: i64, code| {
        let story = open().say(10, begins(keyed("a", class, 1))).say(11, exit("a", 0));
        let story = story.say(10 + pause, begins(keyed("b", class, 1))).say(11 + pause, exit("b", code));
        signals(&story).nothing_new
    };
    assert_eq!(repeat(ToolClass::Shell, 30, 0), 0);
    assert_eq!(repeat(ToolClass::Wait, 30, 0), 0);
    assert_eq!(repeat(ToolClass::Shell, 29, 0), 1);
    assert_eq!(repeat(ToolClass::Shell, 30, 1), 1, "it failed");
    assert_eq!(repeat(ToolClass::Mcp, 300, 0), 1);
    let untimed = open().untimed(begins(keyed("a", ToolClass::Wait, 1))).untimed(done("a"));
    let untimed = untimed.say(500, work()).untimed(begins(keyed("b", ToolClass::Wait, 1)));
    assert_eq!(signals(&untimed).nothing_new, 1, "without times nobody knows the pace");
}

#[test]
fn another_output_is_new_once_it_is_known() {
    let out = |id: &str, digest: u64| Fact::ToolEnded(CallEnd { output: Some(digest << 40), ..call_end(id) });
    let story = open().say(10, begins(keyed("a", ToolClass::Shell, 1))).say(11, out("a", 1));
    let story = story.say(12, begins(keyed("b", ToolClass::Shell, 1)));
    assert_eq!(signals(&story).nothing_new, 1, "in flight it repeats a call");
    assert_eq!(signals(&story.say(13, out("b", 2))).nothing_new, 0);
}

#[test]
fn reads_are_told_by_their_lines() {
    let read = |id: &str, start, end| CallStart {
        read: Some(ReadRange { start, end, total: Some(400) }),
        target: Some(1 << 40),
        ..keyed(id, ToolClass::Read, u64::from(start * 1000 + end))
    };
    let story = open().say(10, begins(read("a", 1, 200))).say(10, done("a"));
    let story = story.say(11, begins(read("b", 11, 210)));
    let seen = signals(&story);
    assert_eq!((seen.nothing_new, seen.read_coverage_ratio()), (1, Some(1.0)));
    // What it got is more than it asked for.
    let got = ReadRange { start: 11, end: 300, total: Some(400) };
    let story = story.say(12, Fact::ToolEnded(CallEnd { read: Some(got), ..call_end("b") }));
    let seen = signals(&story);
    assert_eq!((seen.nothing_new, seen.read_coverage_ratio()), (0, Some(1.225)));
    // One that failed has read nothing.
    let story = story.say(13, begins(read("c", 301, 400))).say(14, fails("c", 1));
    let story = story.say(15, begins(read("d", 301, 400))).say(16, done("d"));
    assert_eq!(signals(&story).nothing_new, 0);
    let whole = CallStart { read: None, target: Some(2 << 40), ..keyed("w", ToolClass::Read, 77) };
    let part = CallStart { target: Some(2 << 40), ..read("p", 50, 60) };
    let story = story.say(17, begins(whole)).say(17, done("w")).say(18, begins(part));
    assert_eq!(signals(&story).nothing_new, 1, "the whole file was read");
}

#[test]
fn calls_inside_a_script_stand_for_it() {
    let inner = |id: &str, key| CallStart { nested: true, ..keyed(id, ToolClass::Shell, key) };
    let story = open()
        .say(10, begins(keyed("script", ToolClass::Shell, 1)))
        .say(11, begins(inner("a", 2)))
        .say(12, exit("a", 1))
        .say(12, begins(inner("b", 2)))
        .say(13, exit("b", 1))
        .say(14, done("script"))
        .say(15, begins(keyed("plain", ToolClass::Shell, 3)))
        .say(16, exit("plain", 1));
    let seen = signals(&story);
    assert_eq!((seen.calls_since_progress, seen.window_calls, seen.nothing_new), (3, 3, 1));
    assert_eq!(
        (seen.error_streak, seen.repeated_call_max),
        (3, 1),
        "the script's success is none of its own"
    );
    assert_eq!((story.facts().calls.total, story.facts().calls_since_progress()), (2, 3));
}

#[test]
fn a_call_of_which_nothing_is_known_repeats_nothing() {
    let story = calls(open(), 0, 40, |_, id| (start(id, ToolClass::Other), done(id)));
    let seen = signals(&story);
    assert_eq!((seen.window_calls, seen.nothing_new, seen.top_target_calls, seen.call_streak), (40, 0, 0, 1));
    let aimed =
        |_: i64, id: &str| (CallStart { target: Some(9 << 40), ..start(id, ToolClass::Mcp) }, done(id));
    assert_eq!(signals(&calls(open(), 0, 40, aimed)).nothing_new, 39, "by its target, where that is told");
}

#[test]
fn cycles_are_seen_and_low_value_facts_counted() {
    let step = |i: i64, id: &str| (keyed(id, ToolClass::Shell, 1 + (i % 3) as u64), exit(id, 1));
    let seen = signals(&calls(open(), 0, 15, step));
    assert_eq!((seen.cycle_repeats, seen.call_streak, seen.distinct_keys), (5, 1, 3));
    assert_eq!((seen.repeat_ratio(), seen.top_target_calls, seen.repeated_call_max), (0.8, 5, 4));
    let story = calls(open(), 0, 15, step).kid("kid", 30, turn("k")).kid(
        "kid",
        31,
        begins(keyed("x", ToolClass::Read, 9)),
    );
    let story = story.kid("kid", 32, done("x"));
    let low = |story: &Story| story.ask(ROOT, 40, |_, view| view.low_value_events());
    assert_eq!(low(&story), 16);
    assert_eq!(low(&story.kid("kid", 33, progress(ProgressKind::CommitCreated))), 0);
}

#[test]
fn a_landing_anywhere_in_the_tree_clears_what_is_older() {
    let story =
        same(open(), 0, 40).kid("kid", 30, turn("k")).kid("kid", 31, begins(keyed("x", ToolClass::Edit, 9)));
    assert_eq!(signals(&story).calls_since_progress, 41);
    let landed = story.kid("kid", 40, edited("x", 3));
    let seen = signals(&landed);
    assert_eq!((seen.calls_since_progress, seen.repeated_call_max), (9, 8), "seconds 41 to 49");
    assert_eq!(landed.ask("kid", 60, |_, view| view.signals().calls_since_progress), 0);
}

#[test]
fn sessions_of_a_tree_that_both_forgot_calls_still_add_up() {
    let mut story = same(open(), 0, 400).kid("kid", 9, turn("k"));
    for i in 0..400 {
        let id = format!("k{i}");
        story = story.kid("kid", 10 + i, begins(keyed(&id, ToolClass::Shell, 1))).kid(
            "kid",
            10 + i,
            exit(&id, 0),
        );
    }
    let seen = signals(&story);
    assert_eq!((seen.calls_since_progress, seen.window_calls, seen.nothing_new), (800, 60, 60));
    // Each of the two thinks its first one was new.
    assert_eq!(seen.repeated_call_max, 798);
    let derived = story.derived(ROOT, 420);
    assert_eq!((derived.state, derived.reason), (State::Stalled, Reason::Spinning));
    assert!((at(10)..=at(40)).contains(&derived.since), "{derived:?}");
    // A landing among what was forgotten of one leaves what is kept of both.
    let landed = story.kid("kid", 411, call("e", ToolClass::Edit)).kid(
        "kid",
        390,
        progress(ProgressKind::CommitCreated),
    );
    assert_eq!(signals(&landed).calls_since_progress, 39, "seconds 391 to 409, twice, and the edit");
}

#[test]
fn untimed_calls_count_until_something_lands() {
    let story = (0..25).fold(open(), |story, i| {
        let id = format!("u{i}");
        story.untimed(begins(keyed(&id, ToolClass::Shell, 1))).untimed(exit(&id, 0))
    });
    let seen = signals(&story);
    assert_eq!((seen.calls_since_progress, seen.nothing_new, seen.call_streak), (25, 24, 25));
    assert_eq!(signals(&story.say(1, progress(ProgressKind::CommitCreated))), Signals::default());
}

#[test]
fn what_is_kept_of_a_session_is_bounded() {
    let mut session = Session::new((**open().sessions[ROOT].facts()).clone());
    let mut most = 0;
    for n in 0..100_000_u64 {
        let id = format!("c{n}");
        let time = Timestamp::from_millis(T0 + 60_000 + n as i64 * 500);
        // Files, keys and stretches without end.
        let (start, lines) = (n as u32 * 10 % 4_000_000 + 1, n as u32 % 7 + 1);
        let read = Some(ReadRange { start, end: start + lines, total: Some(u32::MAX) });
        let begun = CallStart { read, target: Some((n % 61 + 1) << 40), ..keyed(&id, ToolClass::Read, n) };
        let over =
            CallEnd { error: n.is_multiple_of(3).then_some(n << 40), output: Some(n << 40), ..call_end(&id) };
        let apply = |session: &mut Session, part: u64, fact: Fact| {
            let event = event(ROOT, n * 2 + part, Some(time), fact.into(), time);
            session.apply(event, Timestamp::from_millis(0));
        };
        apply(&mut session, 0, begins(begun));
        apply(&mut session, 1, Fact::ToolEnded(over));
        if n % 10_000 == 9_999 {
            most = most.max(postcard::to_allocvec(&**session.facts()).unwrap().len());
            assert_eq!(session.facts().calls_since_progress(), n + 1);
        }
    }
    assert!((20_000..64 * 1024).contains(&most), "{most} bytes");
}

// Any sequence: the fold says what a plain reading of the definitions says.

/// Session, pause before it, how long it takes, kind, two choices.
type Seed = (bool, i64, i64, u8, u8, u8);

fn row(seed: &Seed, at: &mut i64) -> Row {
    let (kid, pause, lasts, kind, a, b) = *seed;
    *at += pause;
    let json = |text: String| serde_json::from_str(&text).unwrap();
    let (a3, b3) = (a % 3, b % 3);
    let file = if a3 == 0 { "unknown.rs".to_owned() } else { format!("f{a3}.rs") };
    let (tool, args) = match kind % 8 {
        0 if b.is_multiple_of(2) => ("read", json(format!(r#"{{"filePath":"{file}"}}"#))),
        0 | 1 => {
            let (from, lines) = (u32::from(b) * 3, 10 + u32::from(a % 4) * 40);
            ("read", json(format!(r#"{{"filePath":"{file}","offset":{from},"limit":{lines}}}"#)))
        }
        2 => ("grep", json(format!(r#"{{"pattern":"p{b3}","path":"src"}}"#))),
        3 | 4 => ("bash", json(format!(r#"{{"command":"cd x && make t{b3} # {a}"}}"#))),
        5 => ("mcp__x__get", json(format!(r#"{{"id":{b3},"z":{a3}}}"#))),
        6 => ("todowrite", json(format!(r#"{{"todos":[{{"content":"{a}","status":"s{b3}"}}]}}"#))),
        _ => ("edit", json(format!(r#"{{"filePath":"{file}","oldString":"{a3}"}}"#))),
    };
    let edit = tool == "edit";
    Row {
        session: if kid { "kid".to_owned() } else { ROOT.to_owned() },
        parent: kid.then(|| ROOT.to_owned()),
        ts_ms: *at,
        end_ms: (!b.is_multiple_of(17)).then_some(*at + lasts),
        tool: tool.to_owned(),
        target: None,
        args,
        exit_code: (tool == "bash").then_some(i32::from(a % 4 == 1)),
        diff_lines: edit.then_some(u32::from(a.is_multiple_of(16))),
        error: (!edit && tool != "bash" && a % 5 == 1).then(|| format!("line {b}: no such thing {b3}")),
        out: (b % 4 > 0).then(|| format!("{}", b % 4)),
    }
}

/// A story made of seeds, and what is known around it.
fn told(seeds: &[Seed], prompts: &[usize], digests: bool) -> (Vec<Row>, Around) {
    let mut at = T0 + 10_000;
    let rows: Vec<Row> = seeds.iter().map(|seed| row(seed, &mut at)).collect();
    let prompts = prompts.iter().filter_map(|i| rows.get(*i)).map(|r| r.ts_ms + 7).collect();
    let file_lines = [("f1.rs".to_owned(), 300), ("f2.rs".to_owned(), 40)].into();
    (rows, Around { root: ROOT.to_owned(), file_lines, digests, prompts })
}

/// Whatever is read late, and whichever session is read first: the same signals.
fn reordered(seeds: &[Seed], prompts: &[usize]) -> Result<(), TestCaseError> {
    let (rows, around) = told(seeds, prompts, true);
    let order = |rank: fn(&Happening) -> u8| {
        let mut telling = Telling::new();
        telling.story.sessions = open().sessions;
        let mut events: Vec<_> = (1_000..).zip(telling.events(&rows, &around, false)).collect();
        let last = events.iter().map(|(_, e)| e.ms).max().unwrap_or(0);
        events.sort_by_key(|(_, e)| rank(e));
        for (id, event) in &events {
            telling.tell(*id, event);
        }
        (telling.numbers(ROOT), last)
    };
    let (numbers, last) = order(|_| 0);
    prop_assert_eq!(&numbers, &Numbers::judged(&rows, &around, last));
    prop_assert_eq!(&order(|e| u8::from(e.session == ROOT)).0, &numbers, "sub-agents first");
    prop_assert_eq!(&order(|e| u8::from(e.session != ROOT)).0, &numbers, "the root first");
    prop_assert_eq!(&order(|e| u8::from(matches!(e.fact, Fact::ToolEnded(_)))).0, &numbers, "ends last");
    Ok(())
}

fn compare(seeds: &[Seed], prompts: &[usize], digests: bool, every: usize) -> Result<(), TestCaseError> {
    let (rows, around) = told(seeds, prompts, digests);
    let mut telling = Telling::new();
    // The root is known before its sub-agents do anything.
    telling.story.sessions = open().sessions;
    let events = telling.events(&rows, &around, false);
    // What is read within a second arrives in the opposite order.
    let mut next = 0;
    let mut batch = 0;
    while next < events.len() {
        let end = events[next..].partition_point(|e| e.ms < events[next].ms + 1_000) + next;
        for id in (next..end).rev() {
            telling.tell(id as u64 + 1_000, &events[id]);
        }
        if batch % every == 0 || end == events.len() {
            let judged = Numbers::judged(&rows, &around, events[end - 1].ms);
            prop_assert_eq!(telling.numbers(ROOT), judged, "at event {}", end);
        }
        batch += 1;
        next = end;
    }
    // The sums of a log do not depend on whether somebody asked before.
    let fresh = telling.story.sessions[ROOT].facts().clone();
    let bytes = postcard::to_allocvec(&*fresh).unwrap();
    let stored: Facts = postcard::from_bytes(&bytes).unwrap();
    prop_assert_eq!(stored.log.signals(), fresh.log.signals());
    Ok(())
}

fn seed(kids: bool, pause: i64, lasts: i64) -> impl Strategy<Value = Seed> {
    let kid = any::<bool>().prop_map(move |kid| kid && kids);
    (kid, 1..pause, 0..lasts, any::<u8>(), any::<u8>(), any::<u8>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_tree_of_calls_is_judged_call_by_call(
        seeds in vec(seed(true, 20_000, 40_000), 1..120),
        prompts in vec(0..120_usize, 0..2),
        digests in any::<bool>(),
    ) {
        compare(&seeds, &prompts, digests, 1)?;
    }

    #[test]
    fn late_ends_and_the_order_of_sessions_change_nothing(
        seeds in vec(seed(true, 20_000, 4_000), 1..120),
        prompts in vec(0..120_usize, 0..2),
    ) {
        reordered(&seeds, &prompts)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    /// Beyond what is kept call by call. The tables hold all of these few keys and files; ends come soon.
    #[test]
    fn a_long_way_without_a_landing_is_judged_as_if_nothing_was_forgotten(
        seeds in vec(seed(false, 20_000, 1_500), 600..700),
        digests in any::<bool>(),
    ) {
        let seeds: Vec<Seed> = seeds.iter().map(|s| Seed::from((s.0, s.1, s.2, s.3, s.4 | 1, s.5))).collect();
        compare(&seeds, &[], digests, 40)?;
    }
}

#[test]
fn the_step_that_an_advance_led_to_is_the_first_since() {
    // `a` is done, which is progress, and `b` is entered in the same moment: that entry counts, whatever comes first.
    for swapped in [false, true] {
        let story = open().say(10, step_started("a"));
        let story = match swapped {
            false => story.say(20, step_done("a", StepOutcome::Advanced)).say(20, step_started("b")),
            true => story.say(20, step_started("b")).say(20, step_done("a", StepOutcome::Advanced)),
        };
        let most = |story: &Story, s| story.ask(ROOT, s, |_, view| view.step_entries_max());
        assert_eq!(most(&story, 21), 1, "{swapped}");
        let story = story.say(30, step_started("b")).say(40, step_started("b"));
        assert_eq!(most(&story, 41), 3, "{swapped}");
        assert_ne!(story.state(41).1, Reason::StepLoop);
        assert_eq!(story.say(50, step_started("b")).state(51), (State::Stalled, Reason::StepLoop));
    }
    // What was entered before an advance of another kind is forgotten with it.
    let story = open().say(10, step_started("b")).say(20, call("c", ToolClass::Edit)).say(21, edited("c", 1));
    assert_eq!(story.ask(ROOT, 22, |_, view| view.step_entries_max()), 0);
}
