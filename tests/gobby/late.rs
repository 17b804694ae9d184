//! Answers that frames overtook, and states that come back within a moment.

use std::collections::HashSet;

use agent_session_exporter::event::Fact;
use serde_json::{Value, json};

use super::daemon::Daemon;
use super::made::{at, hook, row, started};
use super::replay::Replay;

const INTERNAL: &str = "11111111-aaaa-4bbb-8ccc-222222222222";

#[test]
fn what_is_told_while_a_list_is_on_its_way_waits_for_the_next() {
    let mut replay = Replay::new(Daemon::empty("/api"), at(0));
    replay.connect();
    replay.slow = true;
    replay.move_to(at(16));
    // The session is made after the list was, and spoken of before that arrives.
    replay.daemon.put(replay.now, row(INTERNAL, "ses-a", replay.now));
    let stuck = |session: &str| {
        json!({
            "type": "autonomous_event", "event": "stuck_detected", "layer": "tool_loop", "session_id": session,
            "timestamp": at(16).to_string(),
        })
    };
    replay.made(&stuck("99999999-aaaa-4bbb-8ccc-222222222222"));
    replay.made(&stuck(INTERNAL));
    replay.arrive();
    assert!(replay.unknown.is_empty(), "{:?}", replay.unknown);
    replay.wait(2);
    assert!(replay.facts("ses-a").native_stuck.is_some());
    assert_eq!(replay.unknown, ["autonomous_event/unjoined"], "of nobody, as the next list says");
}

#[test]
fn a_list_that_is_older_than_a_hook_deletes_no_session() {
    let mut replay = started(true, "ses-a");
    let mut gone = row(INTERNAL, "ses-a", at(0));
    (gone["status"], gone["updated_at"]) = (json!("deleted"), json!(at(10).to_string()));
    replay.daemon.put(at(10), gone);
    replay.slow = true;
    replay.move_to(at(17));
    // It is taken up again, which the list does not know yet.
    replay.made(&hook("session-start", "ses-a", at(17), json!({"source": "resume"})));
    replay.made(&hook("user-prompt-submit", "ses-a", at(17), json!({})));
    replay.arrive();
    assert_eq!(replay.state("ses-a", 0), "running/working");
    replay.wait(20);
    assert_eq!(replay.state("ses-a", 0), "running/working");
    assert!(!replay.events.iter().any(|e| e.fact == Fact::SessionDeleted));
    // What is deleted later is.
    let mut gone = row(INTERNAL, "ses-a", at(0));
    (gone["status"], gone["updated_at"]) = (json!("deleted"), json!(replay.now.to_string()));
    replay.daemon.put(replay.now, gone);
    replay.wait(20);
    assert!(replay.events.iter().any(|e| e.fact == Fact::SessionDeleted));
}

#[test]
fn an_answer_about_a_stop_that_was_overtaken_changes_nothing() {
    let mut replay = started(true, "ses-a");
    replay.daemon.put(at(0), row(INTERNAL, "ses-a", at(0)));
    replay.move_to(at(20));
    let told = |event: &str, now| {
        json!({
            "type": "session_event", "event": event, "session_id": INTERNAL, "timestamp": format!("{now}"),
        })
    };
    // Asked while there is none, answered once there is one; and the other way round.
    for (event, stands) in [("session_stop_signaled", true), ("session_stop_cleared", false)] {
        replay.slow = true;
        replay.wait(32);
        let now = replay.now;
        replay.made(&told(event, now));
        replay.arrive();
        assert_eq!(replay.facts("ses-a").stop.unwrap().pending, stands, "{event}");
        replay.daemon.stop(replay.now, INTERNAL, stands);
    }
}

#[test]
fn what_comes_back_within_a_millisecond_is_told_again() {
    let mut replay = started(true, "ses-a");
    replay.daemon.put(at(0), row(INTERNAL, "ses-a", at(0)));
    replay.move_to(at(20));
    let before = replay.events.len();
    for blocked in [true, false, true] {
        let state = json!({"owner_session_id": INTERNAL, "is_blocked": blocked});
        let task = json!({"state": state});
        replay
            .made(&json!({"type": "task_event", "event": "task_updated", "task_id": "task-1", "task": task}));
    }
    let told = &replay.events[before..];
    let ids: HashSet<_> = told.iter().map(|e| e.id.unwrap()).collect();
    assert_eq!((told.len(), ids.len()), (3, 3), "{told:?}");
}

#[test]
fn a_pipeline_waits_again_for_another_approval() {
    let mut replay = Replay::new(Daemon::empty("/api"), at(0));
    replay.connect();
    for step in [json!({}), json!({"step_id": "deploy"})] {
        for _ in 0..2 {
            let say = |replay: &mut Replay, what: &str| {
                replay.wait(1);
                let mut frame: Value = json!({
                    "type": "pipeline_event", "event": what, "execution_id": "run-7",
                    "timestamp": replay.now.to_string(),
                });
                frame.as_object_mut().unwrap().extend(step.as_object().unwrap().clone());
                replay.made(&frame);
            };
            say(&mut replay, "approval_required");
            let since = replay.now;
            assert_eq!(replay.state("pipeline:run-7", 0), "waiting_for_user/confirmation", "{step}");
            // Said twice it is still one.
            say(&mut replay, "approval_required");
            let open = replay.facts("pipeline:run-7").actions.clone();
            assert_eq!(open.iter().map(|a| a.since).collect::<Vec<_>>(), [since]);
            say(&mut replay, "pipeline_resumed");
            assert_eq!(replay.state("pipeline:run-7", 0), "running/working", "{step}");
        }
    }
}
