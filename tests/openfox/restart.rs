//! The exporter is started anew in the middle: only what was committed with the events is known.

use super::cut::{essence, places};
use super::play::{Play, words};
use super::recorded::{Recording, What, names, time};

/// The exporter dies before this line and is back at once.
fn restarted(recording: &Recording, place: usize) -> Play<'_> {
    let mut play = Play::blind(recording);
    for (n, (at, what)) in recording.lines.iter().enumerate() {
        if n == place {
            play.restart();
            if recording.lines[..n].iter().rev().find(|(_, w)| !matches!(w, What::Frame(_))).unwrap().1
                == What::Opened
            {
                play.connect();
            }
        }
        play.move_to(*at);
        play.line(what);
    }
    play.move_to(recording.end().plus(40_000));
    play
}

#[test]
fn nothing_is_lost_and_nothing_interrupted_by_a_restart_of_ours() {
    let mut all = 0;
    for name in names() {
        let recording = Recording::of(&name);
        let whole = Play::of(&recording);
        for place in places(&recording, 10) {
            // Whoever dies while nobody is connected has nothing to lose.
            if recording.lines[place].1 != What::Opened && recording.lines[place - 1].1 == What::Closed {
                continue;
            }
            let play = restarted(&recording, place);
            let place = format!("{name} before line {place}");
            all += 1;
            let states = |play: &Play<'_>| -> Vec<String> {
                play.derived(&Default::default()).iter().map(|(_, d)| words(d)).collect()
            };
            if states(&play) != states(&whole) {
                // What belongs to the end of a run came while nobody listened.
                assert!(
                    states(&play).iter().any(|s| s == "unknown/ended_without_result"),
                    "{place}: {:?}",
                    states(&play)
                );
                continue;
            }
            let (found, wanted) = (essence(&play), essence(&whole));
            assert_eq!(found, wanted, "{place}");
        }
    }
    assert!(all > 120, "{all}");
}

#[test]
fn what_ended_while_the_exporter_was_down_is_interrupted_only_by_proof() {
    // The server went down with the exporter: it says that it does not run, and never wrote that it ended.
    let recording = Recording::of("restart");
    let mut play = Play::new(&recording);
    let closed = recording.lines.iter().position(|(_, what)| *what == What::Closed).unwrap();
    for (at, what) in &recording.lines[..closed] {
        play.move_to(*at);
        play.line(what);
    }
    play.restart();
    play.move_to(time("2026-11-29T15:28:09.000Z"));
    play.connect();
    for (_, derived) in play.derived(&Default::default()) {
        assert_eq!(words(&derived), "failed/interrupted");
    }
    // The server went on, and the run ended in order: how, nobody knows any more.
    let recording = Recording::of("plan");
    let mut play = Play::new(&recording);
    for (at, what) in &recording.lines[..20] {
        play.move_to(*at);
        play.line(what);
    }
    play.move_to(play.now);
    play.restart();
    play.leap_to(recording.end().plus(3_600_000));
    play.connect();
    assert_eq!(play.state(), "unknown/ended_without_result");
}

#[test]
fn a_checkpoint_of_another_layout_or_damaged_is_none() {
    use agent_session_exporter::sources::live::Peer as _;
    use agent_session_exporter::sources::openfox::OpenFox;
    let recording = Recording::of("workflow_pass");
    let play = Play::of(&recording);
    let kept = play.kept.unwrap();
    for n in 0..kept.len().min(400) {
        let mut damaged = kept.clone();
        damaged[n] ^= 0x55;
        let _ = OpenFox::new(&super::play::opening(), Some(&damaged)).has_open();
        let _ = OpenFox::new(&super::play::opening(), Some(&kept[..n])).has_open();
    }
}
