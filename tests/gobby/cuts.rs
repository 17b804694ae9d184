//! The stream is cut at every tenth frame, or the exporter restarted: the daemon repeats nothing, so what was missed
//! is unknown, and what was not missed counts once.

use std::collections::BTreeMap;

use agent_session_exporter::event::EndOutcome;
use agent_session_exporter::session::Facts;

use super::daemon::{RECORDINGS, frames};
use super::made::{at, hook, started};
use super::replay::Replay;

/// Facts without the times of questions, which begin anew with a connection: whether the list or the hook told first
/// that a session began depends on them, by milliseconds.
fn plain(facts: &Facts) -> Facts {
    Facts { last_seen: None, started_at: None, first_seen: at(0), ..facts.clone() }
}

/// The same facts, but for an end whose result nobody vouches for any more.
fn same(cut: &Replay, whole: &Replay, what: &str) {
    assert_eq!(cut.names(), whole.names(), "{what}");
    for name in whole.names() {
        let (mut got, wanted) = (plain(&cut.facts(&name)), plain(&whole.facts(&name)));
        if let (Some(got), Some(wanted)) = (&mut got.run_end, &wanted.run_end)
            && got.outcome == EndOutcome::Unknown
        {
            got.outcome = wanted.outcome;
        }
        let began = |replay: &Replay| replay.facts(&name).started_at;
        let apart = began(cut).zip(began(whole)).map(|(a, b)| a.since(b).abs());
        assert!(apart.is_none_or(|ms| ms < 1000), "{what}: {name}");
        // When the connection began again is when properties were said again.
        got.info.as_of = wanted.info.as_of;
        assert_eq!(got, wanted, "{what}: {name}");
    }
}

fn cut_at(recording: &str, at: usize, restart: bool) -> Replay {
    let all = frames(recording);
    let mut replay = Replay::begun(recording);
    for (i, frame) in all.iter().enumerate() {
        if i == at {
            replay.lose();
            if restart {
                replay.restart();
            }
            replay.connect();
            replay.take(&all[0].text).unwrap();
        }
        replay.frame(frame);
    }
    replay.wait(60);
    replay
}

#[test]
fn a_cut_without_a_loss_changes_nothing() {
    for recording in RECORDINGS {
        let whole = Replay::of(recording);
        for at in (10..frames(recording).len()).step_by(10) {
            same(&cut_at(recording, at, false), &whole, &format!("{recording} cut at {at}"));
        }
    }
}

#[test]
fn a_restart_goes_on_with_what_was_kept() {
    for recording in RECORDINGS {
        let whole = Replay::of(recording);
        for at in (5..frames(recording).len()).step_by(10) {
            same(&cut_at(recording, at, true), &whole, &format!("{recording} restarted at {at}"));
        }
    }
}

#[test]
fn what_was_missed_is_never_a_success_and_never_counted_twice() {
    let mut unknown = 0;
    for recording in RECORDINGS {
        let all = frames(recording);
        let whole = Replay::of(recording);
        for at in (2..all.len()).step_by(10) {
            for lost in [1, 5, 20] {
                let mut replay = Replay::begun(recording);
                let mut open = BTreeMap::new();
                for (i, frame) in all.iter().enumerate() {
                    if i == at {
                        replay.lose();
                        for name in replay.names() {
                            open.insert(name.clone(), replay.facts(&name).turn.is_some());
                        }
                    }
                    if (at..at + lost).contains(&i) {
                        continue;
                    }
                    if i == at + lost {
                        replay.move_to(frame.at);
                        replay.connect();
                    }
                    replay.frame(frame);
                    if frame.value["event_type"] == "stop" {
                        open.remove(frame.value["session_id"].as_str().unwrap());
                    }
                }
                if at + lost >= all.len() {
                    replay.connect();
                }
                replay.wait(20 * 60);
                let what = format!("{recording} without {at}..{}", at + lost);
                for (name, was_open) in open {
                    let state = replay.state(&name, 0);
                    assert!(!was_open || !state.starts_with("completed"), "{what}: {name} {state}");
                    assert!(!state.starts_with("stalled"), "{what}: {name} {state}");
                    unknown += u32::from(state == "unknown/ended_without_result");
                }
                // A session of the list that is gone from the recording stays one.
                let both = replay.names().into_iter().filter(|name| whole.names().contains(name));
                for name in both {
                    let (got, most) = (replay.facts(&name), whole.facts(&name));
                    assert!(got.calls.total <= most.calls.total, "{what}: {name}");
                    assert!(
                        got.turns.completed <= most.turns.completed.max(got.turns.started),
                        "{what}: {name}"
                    );
                    let high = |f: &Facts| f.progress.iter().map(|p| p.high).sum::<u64>();
                    assert!(high(&got) <= high(&most), "{what}: {name}");
                }
            }
        }
    }
    assert!(unknown > 10, "{unknown}: no turn was ever cut");
}

#[test]
fn a_turn_that_was_open_at_the_cut_is_unknown_once_it_stays_silent() {
    let mut replay = started(false, "ses-a");
    replay.lose();
    replay.move_to(at(30));
    replay.connect();
    replay.wait(9 * 60);
    assert_eq!(replay.state("ses-a", 0), "running/working");
    replay.wait(2 * 60);
    assert_eq!(replay.state("ses-a", 0), "unknown/ended_without_result");
    let frame =
        hook("pre-tool-use", "ses-a", replay.now, serde_json::json!({"tool_name": "Read", "tool_input": {}}));
    replay.made(&frame);
    assert_eq!(replay.state("ses-a", 0), "running/working", "it only was quiet");
}

#[test]
fn an_end_whose_beginning_was_missed_counts_without_a_time() {
    let mut replay = started(false, "ses-a");
    let data = serde_json::json!({
        "tool_name": "Edit", "tool_input": {"old_string": "a", "new_string": "b"}, "tool_response": {"filePath": "x"},
    });
    replay.wait(5);
    let frame = hook("post-tool-use", "ses-a", replay.now, data);
    replay.made(&frame);
    let facts = replay.facts("ses-a");
    assert_eq!((facts.calls.total, facts.open_calls.len()), (1, 0));
    assert_eq!(facts.last_progress, Some(replay.now));
    assert_eq!(replay.state("ses-a", 0), "progressing/working");
}
