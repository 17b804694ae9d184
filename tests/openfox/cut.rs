//! The connection breaks anywhere. Where nothing was lost the facts are equal; where something was, they are equal,
//! or unknown, or say that something was interrupted, but never that something went well that did not.

use super::play::{Play, words};
use super::recorded::{Recording, What, names};

/// Positions of lines before which a client may be cut off: every tenth, or the next at which time has passed, because
/// within one moment nobody can say what a new connection still gets.
pub(crate) fn places(recording: &Recording, every: usize) -> Vec<usize> {
    let lines = &recording.lines;
    let later = |n: usize| (n..lines.len()).find(|n| lines[*n].0 > lines[*n - 1].0);
    let mut places: Vec<usize> = (2..lines.len()).step_by(every).filter_map(later).collect();
    places.dedup();
    places
}

/// Plays all lines but those from `from` to before `to`, during which there is no connection.
fn without(recording: &Recording, from: usize, to: usize) -> Play<'_> {
    let mut play = Play::blind(recording);
    let mut connected = false;
    for (n, (at, what)) in recording.lines.iter().enumerate() {
        if n == from && connected {
            play.lose();
            connected = false;
        }
        if n == to && !connected {
            // As late as possible: nothing comes that the server tells already.
            play.move_to(recording.lines[n - 1].0);
            play.connect();
            connected = true;
        }
        if (from..to).contains(&n) {
            continue;
        }
        play.move_to(*at);
        match what {
            What::Opened if connected => {}
            What::Closed if !connected => {}
            _ => {
                play.line(what);
                connected = *what != What::Closed;
            }
        }
    }
    play.move_to(recording.end().plus(2_000));
    if !connected {
        play.connect();
    }
    play.move_to(recording.end().plus(40_000));
    play
}

/// What is compared: counts, and where things stand. Not the moments of polls.
pub(crate) fn essence(play: &Play<'_>) -> Vec<String> {
    let mut all = Vec::new();
    for (id, derived) in play.derived(&Default::default()) {
        let f = play.facts(id.as_str());
        all.push(format!(
            "{} {} {:?} {:?} {:?} {:?} tokens {} {} entries {:?} {:?}",
            id.as_str(),
            words(&derived),
            f.turns,
            f.calls,
            f.progress,
            f.criteria,
            f.usage.input,
            f.usage.output,
            f.step_entries.len(),
            f.step.as_ref().map(|s| (s.step.id.clone(), s.step.entry)),
        ));
    }
    all
}

#[test]
fn a_break_in_which_nothing_was_lost_changes_nothing() {
    let (mut equal, mut all) = (0, 0);
    for name in names() {
        let recording = Recording::of(&name);
        let whole = essence(&Play::of(&recording));
        for at in places(&recording, 10) {
            let play = without(&recording, at, at);
            let found = essence(&play);
            all += 1;
            if found == whole {
                equal += 1;
                continue;
            }
            // Who ended a run may show only in what comes within a second after its end; a client that was cut off
            // in that second may not know.
            let fell = recording.lines[..at].iter().rev().find(|(_, what)| {
                matches!(what, What::Frame(f) if f.contains("session.running") && f.contains("false"))
            });
            let settles = fell.is_some_and(|(fell, _)| recording.lines[at - 1].0.since(*fell) <= 1_000);
            let unknown = found.iter().any(|f| f.contains(" unknown/ended_without_result"));
            assert!(settles && unknown, "{name} cut before line {at}:\n{found:#?}\nnot\n{whole:#?}");
        }
    }
    assert!(all > 120 && equal * 100 >= all * 97, "{equal} of {all}");
}

#[test]
fn a_gap_leaves_what_is_true_or_nothing() {
    let (mut same, mut all) = (0, 0);
    for name in names() {
        let recording = Recording::of(&name);
        let play = Play::of(&recording);
        let whole = play.derived(&Default::default());
        for at in places(&recording, 10) {
            for gap in [1, 5, 10, 40] {
                let to = (at + gap).min(recording.lines.len());
                // A connection in the middle of a moment gets what the server tells already.
                let later = |n: usize| recording.lines[n].0 > recording.lines[n - 1].0;
                let to = (to..recording.lines.len()).find(|n| later(*n)).unwrap_or(recording.lines.len());
                let cut = without(&recording, at, to);
                let place = format!("{name} without lines {at} to {to}");
                for (id, derived) in cut.derived(&Default::default()) {
                    let found = words(&derived);
                    let truth = words(&whole.iter().find(|(session, _)| *session == id).unwrap().1);
                    all += 1;
                    same += usize::from(found == truth);
                    let allowed = found == truth
                        || found == "unknown/ended_without_result"
                        || (found == "failed/interrupted" && name == "restart")
                        // Nothing was ever told of it.
                        || found == "queued/starting";
                    assert!(allowed, "{place}: {found}, not {truth}");
                    let (f, w) = (cut.facts(id.as_str()), play.facts(id.as_str()));
                    assert!(f.turns.completed <= w.turns.completed, "{place}: completed turns");
                    assert!(f.calls.total <= w.calls.total, "{place}: calls");
                    assert!(f.usage.input <= w.usage.input, "{place}: tokens");
                    assert!(f.actions.is_empty(), "{place}: nobody is asked any more");
                    let high = |f: &agent_session_exporter::session::Facts, kind: &str| {
                        f.progress.iter().filter(|p| p.kind.as_str() == kind).map(|p| p.high).sum::<u64>()
                    };
                    for kind in ["file_modified", "criterion_passed", "task_completed"] {
                        assert!(high(f, kind) <= high(w, kind), "{place}: {kind}");
                    }
                }
            }
        }
    }
    assert!(same * 10 >= all * 7, "{same} of {all}");
}

#[test]
fn a_question_outlives_a_break_and_is_closed_by_one_in_which_it_was_answered() {
    let recording = Recording::of("ask_user");
    let asked =
        recording.lines.iter().position(|(_, w)| matches!(w, What::Frame(f) if f.contains("chat.ask_user")));
    let answered = recording
        .lines
        .iter()
        .position(|(_, w)| matches!(w, What::Frame(f) if f.contains("chat.tool_result")));
    let (asked, answered) = (asked.unwrap(), answered.unwrap());
    // The question itself was lost: that one waits is known all the same, and since when it was seen.
    let mut play = Play::new(&recording);
    for (at, what) in &recording.lines[..asked] {
        play.move_to(*at);
        play.line(what);
    }
    play.lose();
    play.move_to(recording.lines[answered - 1].0.plus(500));
    play.connect();
    assert_eq!(play.state(), "waiting_for_user/question");
    let since = play.only().actions[0].since;
    assert_eq!(since, play.now);
    // Another break does not move it.
    play.move_to(play.now.plus(1_000));
    play.lose();
    play.connect();
    assert_eq!(play.only().actions.len(), 1);
    assert_eq!(play.only().actions[0].since, since);
    for (at, what) in &recording.lines[answered..] {
        play.move_to(*at);
        play.line(what);
    }
    play.move_to(recording.end().plus(5_000));
    assert_eq!(play.state(), "completed/turn_complete");
    assert!(play.only().actions.is_empty());
}

/// Two sessions at work when somebody begins to listen, and over when so much time has passed after the recording.
fn two_are_found_running(no_status: bool, over_ms: i64) {
    let recording = Recording::of("two_sessions");
    let mut play = Play::new(&recording);
    play.no_status = no_status;
    play.now = recording.lines[60].0;
    play.connect();
    let found: Vec<String> = play.derived(&Default::default()).iter().map(|(_, d)| words(d)).collect();
    assert_eq!(found, ["running/working", "running/working"]);
    for (at, what) in &recording.lines[61..] {
        play.move_to(*at);
        play.line(what);
    }
    play.move_to(recording.end().plus(over_ms));
    let found: Vec<String> = play.derived(&Default::default()).iter().map(|(_, d)| words(d)).collect();
    assert_eq!(found, ["completed/turn_complete", "completed/turn_complete"]);
}

#[test]
fn a_session_that_ran_before_is_found_running() {
    two_are_found_running(false, 5_000);
}

#[test]
fn a_frame_that_the_server_dropped_is_noticed_by_the_list_and_counted() {
    // Without a break: the server drops frames of a slow client in silence.
    let recording = Recording::of("plan");
    let mut play = Play::new(&recording);
    let fall =
        |what: &What| matches!(what, What::Frame(f) if f.contains("session.running") && f.contains("false"));
    for (at, what) in recording.lines.iter().filter(|(_, what)| !fall(what)) {
        play.move_to(*at);
        play.line(what);
    }
    play.move_to(recording.end().plus(1_000));
    assert_eq!(play.state(), "running/working");
    play.move_to(recording.end().plus(20_000));
    assert_eq!(play.state(), "unknown/ended_without_result");
    assert_eq!(play.disagreements, 1);
    // And one that began without a word.
    let recording = Recording::of("model_hang");
    let mut play = Play::new(&recording);
    let rise =
        |what: &What| matches!(what, What::Frame(f) if f.contains("session.running") && f.contains("true"));
    for (at, what) in recording.lines[..8].iter().filter(|(_, what)| !rise(what)) {
        play.move_to(*at);
        play.line(what);
    }
    play.move_to(recording.lines[0].0.plus(10_000));
    assert_eq!(play.state(), "running/working");
    assert_eq!(play.disagreements, 1);
}

/// Before 2.0.119 no session has a status: that is no word of a session being deleted.
#[test]
fn where_no_session_has_a_status_the_list_has_to_do() {
    two_are_found_running(true, 20_000);
    // A question that was open when the connection broke is open still.
    let recording = Recording::of("ask_user");
    let asks = |what: &What| matches!(what, What::Frame(f) if f.contains("chat.ask_user"));
    let asked = recording.lines.iter().position(|(_, what)| asks(what)).unwrap();
    let mut play = Play::new(&recording);
    play.no_status = true;
    for (at, what) in &recording.lines[..=asked] {
        play.move_to(*at);
        play.line(what);
    }
    play.lose();
    play.connect();
    assert_eq!(play.state(), "waiting_for_user/question");
}
