//! Recordings taken in the middle, one second and 61 seconds after their last record, with what a probe of the
//! writer's lock says: held, left behind without a holder, or nothing at all.

use agent_session_exporter::event::Writer;

use super::folded::Folded;

/// The state after so many seconds; the probe is made at once.
fn after(name: &str, writer: Option<Writer>, seconds: i64) -> String {
    let mut folded = Folded::of(&format!("codex/{name}.rollout.jsonl"));
    let last = folded.last();
    if let Some(writer) = writer {
        folded.writer(writer, last.plus(500));
    }
    let derived = super::folded::derived(&folded.snapshot(), last.plus(seconds * 1000));
    super::folded::words(derived)
}

#[test]
fn a_moment_is_told_as_far_as_the_file_and_the_lock_tell_it() {
    let waits = "waiting_for_user/probable";
    let asks = "waiting_for_user/question";
    let turn = "completed/turn_complete";
    let (works, lands) = ("running/working", "progressing/working");
    let killed = "failed/process_gone";
    // Recording; held or without a lock after 1 s and 61 s; lock left behind.
    let table = [
        ("as_approval.at_pending0", works, waits, killed),
        // An edit that is open for 20 s is as good as a dialog.
        ("as_approval.at_pending1", works, waits, killed),
        ("as_approval.at_pending2", lands, waits, killed),
        ("as_user_input.at_pending0", asks, asks, killed),
        ("tui_approval.at_pending", works, waits, killed),
        ("tui_approval.at_idle", turn, turn, turn),
        ("tui_approval.at_aborted", "cancelled/by_user", "cancelled/by_user", "cancelled/by_user"),
        ("tui_daemon.at_after_terminal_closed", works, works, killed),
        ("partial_line.at_killed", works, works, killed),
        ("kill9_in_command", lands, lands, killed),
        ("sigterm_in_command", works, works, killed),
        ("as_approval_kill", works, waits, killed),
        ("as_idle_kill9", turn, turn, turn),
    ];
    for (name, second, minute, left_behind) in table {
        for writer in [None, Some(Writer::Alive), Some(Writer::Unknown)] {
            assert_eq!(after(name, writer, 1), second, "{name}, {writer:?}");
            assert_eq!(after(name, writer, 61), minute, "{name}, {writer:?}");
        }
        for seconds in [1, 61, 7 * 3600] {
            assert_eq!(after(name, Some(Writer::Gone), seconds), left_behind, "{name} after {seconds} s");
        }
    }
}

#[test]
fn an_open_turn_lasts_as_long_as_its_writer_lives() {
    let late = 30 * 3600;
    for name in ["kill9_in_command", "tui_daemon.at_after_terminal_closed"] {
        assert_eq!(after(name, Some(Writer::Alive), late), "stalled/call_stuck");
        assert_eq!(after(name, None, late), "unknown/silent_too_long");
    }
    // Asked for a day, then nobody knows.
    assert_eq!(after("as_user_input.at_pending0", None, 23 * 3600), "waiting_for_user/question");
    assert_eq!(after("as_user_input.at_pending0", None, 25 * 3600), "unknown/silent_too_long");
    assert_eq!(after("as_user_input.at_pending0", Some(Writer::Alive), late), "waiting_for_user/question");
    assert_eq!(after("tui_approval.at_pending", Some(Writer::Alive), late), "waiting_for_user/probable");
}

#[test]
fn nothing_but_a_question_counts_as_certainly_pending() {
    for (name, certain) in [("as_approval.at_pending0", 0), ("as_user_input.at_pending0", 1)] {
        let folded = Folded::of(&format!("codex/{name}.rollout.jsonl"));
        let snapshot = folded.snapshot();
        let slot = snapshot.roots().next().unwrap();
        let rollup = snapshot.rollup(slot, folded.last().plus(61_000)).unwrap();
        assert_eq!(rollup.certain_actions(), certain, "{name}");
    }
}
