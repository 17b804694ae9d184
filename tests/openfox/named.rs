//! Scenarios by name: what started this project, and what a signal or a clock of ours has to say about it.

use agent_session_exporter::event::{ActionKind, Fact, Timestamp};
use agent_session_exporter::session::Thresholds;

use super::play::{Play, words};
use super::recorded::{Recording, What, time};

/// Everything up to the last frame before a moment, and then time alone.
fn hanging(recording: &Recording, until: Timestamp) -> Play<'_> {
    let mut play = Play::new(recording);
    for (at, what) in recording.lines.iter().take_while(|(at, _)| *at < until) {
        play.move_to(*at);
        play.line(what);
    }
    play.move_to(until);
    play
}

fn states<'a>(play: &'a Play<'_>) -> Vec<&'a str> {
    play.states.iter().map(|(_, _, state)| state.as_str()).collect()
}

#[test]
fn loops_of_steps_are_seen_before_they_end() {
    for name in ["workflow_max_iterations", "workflow_ping_pong"] {
        let recording = Recording::of(name);
        let play = Play::of(&recording);
        let states = states(&play);
        let stalled = states.iter().position(|s| *s == "stalled/step_loop");
        let blocked = states.iter().position(|s| *s == "blocked/workflow_blocked");
        assert!(stalled.is_some() && stalled < blocked, "{name}: {states:?}");
        assert_eq!(blocked, Some(states.len() - 1), "{name}");
    }
    // A run that goes somewhere is none.
    let recording = Recording::of("workflow_verify_fail_then_pass");
    assert!(!states(&Play::of(&recording)).iter().any(|s| s.starts_with("stalled")));
}

#[test]
fn an_edit_that_fails_again_and_again_raises_the_streak() {
    let recording = Recording::of("edit_loop");
    let play = Play::of(&recording);
    let snapshot = play.snapshot();
    let slot = snapshot.roots().next().unwrap();
    let rollup = snapshot.rollup(slot, play.now).unwrap();
    let signals = rollup.signals();
    assert_eq!(signals.error_streak, 8);
    assert_eq!(signals.repeated_call_max, 7, "the first of eight equal calls was new");
    assert_eq!(play.only().last_progress, None);
    // With a threshold that eight failures pass, the session is stalled while it runs.
    let limits = Thresholds { loop_calls: 8, repeating_errors: 8, ..Thresholds::default() };
    let last =
        recording.lines.iter().rev().find(|(_, w)| matches!(w, What::Frame(f) if f.contains("\"complete\"")));
    let running = hanging(&recording, last.unwrap().0);
    assert_eq!(words(&running.derived(&limits)[0].1), "stalled/repeating_error");
}

#[test]
fn a_model_that_hangs_is_silent_though_the_server_says_that_it_runs() {
    // The first frame after the model fell silent; until then it hangs, for as long as we like.
    for (name, silent_from, woke) in [
        ("model_hang", "2026-11-29T15:25:42.500Z", "2026-11-29T15:25:54.000Z"),
        ("model_no_reply", "2026-11-29T15:26:02.500Z", "2026-11-29T15:26:19.000Z"),
    ] {
        let recording = Recording::of(name);
        let mut frozen = Recording::of(name);
        frozen.lines.retain(|(at, _)| *at < time(woke));
        let mut play = hanging(&recording, time(woke));
        play.serve(&frozen);
        assert_eq!(play.state(), "running/working", "{name}");
        let quiet = play.only().last_activity.unwrap();
        assert!(quiet < time(silent_from), "{name}");
        play.leap_to(quiet.plus(599_000));
        assert_eq!(play.state(), "running/working", "{name}");
        play.move_to(quiet.plus(601_000));
        assert_eq!(play.state(), "stalled/silent", "{name}");
        // The list says that it runs, so that this may last for days; a poll is no activity.
        play.leap_to(quiet.plus(7 * 3_600_000));
        assert_eq!(play.state(), "stalled/silent", "{name}");
        assert_eq!(play.only().last_activity, Some(quiet), "{name}");
        assert_eq!(play.disagreements, 0, "{name}");
        // Without the server nobody knows.
        play.lose();
        assert_eq!(play.state(), "unknown/silent_too_long", "{name}");
    }
}

#[test]
fn what_ends_without_a_result_is_unknown_and_what_is_blocked_is_blocked() {
    for (name, state, asked) in [
        ("workflow_model_400", "blocked/workflow_blocked", 0),
        ("shell_blocked", "blocked/workflow_blocked", 0),
        ("model_400", "unknown/ended_without_result", 1),
        ("launch_unknown_workflow", "unknown/ended_without_result", 1),
    ] {
        let recording = Recording::of(name);
        let play = Play::of(&recording);
        assert_eq!(play.state(), state, "{name}");
        let statuses = play.asked.iter().filter(|path| path.ends_with("/status")).count();
        assert_eq!(statuses, asked, "{name}: asked once, where nothing tells the end");
        let mut later = play;
        later.leap_to(recording.end().plus(24 * 3_600_000));
        assert_eq!(later.state(), state, "{name}: and stays so");
    }
}

#[test]
fn a_restarted_server_interrupts_what_it_ran() {
    let recording = Recording::of("restart");
    let play = hanging(&recording, time("2026-11-29T15:28:09.519Z"));
    for (_, derived) in play.derived(&Thresholds::default()) {
        assert_eq!(words(&derived), "failed/interrupted");
        assert_eq!(derived.since, time("2026-11-29T15:28:09.514Z"));
    }
    assert_eq!(play.sessions.len(), 2);
}

#[test]
fn questions_wait_since_they_were_asked() {
    let recording = Recording::of("ask_user");
    let play = hanging(&recording, time("2026-11-29T15:24:12.000Z"));
    assert_eq!(play.state(), "waiting_for_user/question");
    let action = play.only().actions[0].clone();
    assert_eq!(action.since, time("2026-11-29T15:24:08.318Z"));
    assert_eq!(action.tool.unwrap().as_str(), "ask_user");
    assert!(Play::of(&recording).only().actions.is_empty());
}

#[test]
fn a_workflow_keeps_its_turn_while_a_person_chooses() {
    let recording = Recording::of("workflow_pass");
    let play = hanging(&recording, time("2026-11-29T15:24:02.390Z"));
    assert_eq!(play.state(), "waiting_for_user/choice");
    assert_eq!(play.only().actions[0].since, time("2026-11-29T15:24:01.745Z"));
    let turn = play.only().turn.clone().unwrap();
    assert_eq!(turn.request.unwrap().as_str(), "6f10b87b-3a62-4be2-b33c-19e2dbab9895");
    let whole = Play::of(&recording);
    assert_eq!(whole.only().turns.started, 1);
    assert_eq!(whole.only().criteria_high, 2);
}

#[test]
fn confirmations_are_found_by_the_list() {
    let recording = Recording::of("confirm_path");
    let play = hanging(&recording, time("2026-11-29T15:24:54.400Z"));
    assert_eq!(play.state(), "waiting_for_user/confirmation");
    let action = play.only().actions[0].clone();
    assert_eq!((action.kind, action.since), (ActionKind::Confirmation, time("2026-11-29T15:24:54.084Z")));
    assert_eq!(action.tool.unwrap().as_str(), "read_file");
    assert!(Play::of(&recording).only().actions.is_empty());
}

#[test]
fn a_call_that_is_quiet_for_long_is_looked_after_before_the_next_list() {
    // The same session ten times as slow: both confirmations last twelve seconds.
    let mut slow = Recording::of("confirm_path");
    let start = slow.lines[0].0;
    for line in &mut slow.lines {
        line.0 = start.plus(line.0.since(start) * 10);
    }
    let play = Play::of(&slow);
    let opened = play.said(|fact| match fact {
        Fact::ActionRequired { kind: ActionKind::Confirmation, call, .. } => call.clone(),
        _ => None,
    });
    assert_eq!(opened.len(), 2, "{opened:?}");
    for (since, call) in opened {
        let begun = play.said(|fact| match fact {
            Fact::ToolStarted(start) if start.call == call => Some(()),
            _ => None,
        });
        let waited = since.since(begun[0].0);
        assert!((0..8_000).contains(&waited), "found after {waited} ms");
    }
    // One was refused: whether its command ran is not known, so that no exit code is made of it.
    let codes = play.said(|fact| match fact {
        Fact::ToolEnded(end) => Some(end.exit_code),
        _ => None,
    });
    assert_eq!(codes.iter().map(|(_, code)| *code).collect::<Vec<_>>(), [None, None]);
}

#[test]
fn a_sub_agent_is_a_part_of_its_session() {
    let recording = Recording::of("sub_agent");
    let play = Play::of(&recording);
    let facts = play.only();
    assert_eq!((facts.turns.started, facts.turns.completed), (1, 1), "its end is not the end of the run");
    assert_eq!((facts.usage.input, facts.usage.output), (2490 + 2490, 80 + 80));
    // The gauge of the sub-agent's own context is not the session's.
    assert_eq!(facts.context_used, Some(1330.0 / 65536.0));
}

#[test]
fn the_same_edit_again_is_no_progress() {
    let edit = r#"{"type":"chat.tool_call","payload":{"messageId":"m1","callId":"c1","tool":"write_file","args":{"path":"a","content":"b"}},"seq":90,"sessionId":"S"}"#;
    let done = r#"{"type":"chat.tool_result","payload":{"messageId":"m1","callId":"c1","tool":"","result":{"success":true,"output":"ok"}},"seq":91,"sessionId":"S"}"#;
    let recording = Recording::of("ask_user");
    let id = recording.lines[1..].iter().find_map(|(_, what)| match what {
        What::Frame(frame) => {
            let frame: serde_json::Value = serde_json::from_str(frame).unwrap();
            Some(frame["sessionId"].as_str()?.to_owned())
        }
        _ => None,
    });
    let mut play = hanging(&recording, time("2026-11-29T15:24:08.318Z"));
    for n in 1..=3 {
        play.move_to(play.now.plus(100));
        for frame in [edit, done] {
            let frame = frame.replace("\"S\"", &format!("{:?}", id.as_ref().unwrap()));
            play.frame(&frame.replace("c1", &format!("c{n}"))).unwrap();
        }
    }
    let progress = &play.only().progress;
    let edits = progress.iter().find(|p| p.kind.as_str() == "file_modified").unwrap();
    assert_eq!((edits.high, edits.low), (1, 0));
    assert_eq!(play.only().calls.total, 3);
}

#[test]
fn only_a_missing_end_is_asked_about_and_nothing_else_is_asked() {
    for name in super::recorded::names() {
        let recording = Recording::of(&name);
        let play = Play::of(&recording);
        let lists = play.asked.iter().filter(|path| *path == "/api/sessions?limit=100").count();
        let seconds = play.now.since(recording.lines[0].0) / 1000;
        assert!(lists as i64 <= 4 + seconds / 15, "{name}: {lists} lists in {seconds} s");
        assert_eq!(play.asked.iter().filter(|path| *path == "/api/config").count(), 1, "{name}");
    }
}
