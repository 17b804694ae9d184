//! What the notes beside the recordings say is worth a test, a test each.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_session_exporter::event::{CallOutcome, Capability, Event, Fact, ProgressKind, Requester};
use agent_session_exporter::session::Snapshot;
use agent_session_exporter::sources::LIST;
use agent_session_exporter::sources::gobby::DEF;
use agent_session_exporter::telemetry::Telemetry;
use agent_session_exporter::views::prometheus::{Format, Renderer};
use agent_session_exporter::views::selection::Options;
use serde_json::json;

use super::daemon::{Daemon, RECORDINGS, frames, time};
use super::made::{at, hook, row, started};
use super::replay::Replay;

const SESSION_025: &str = "746aa4b1-c1e2-4ec7-af0f-376a7db060ca";

#[test]
fn sessions_go_by_the_agents_id_and_the_daemons_is_joined_through_the_list_only() {
    for recording in RECORDINGS {
        let replay = Replay::of(recording);
        let internals = replay.daemon.internals();
        for session in replay.names() {
            assert!(!internals.contains(&session), "{recording}: {session}");
        }
    }
    // Told under the daemon's id alone, before the list was asked for it.
    let replay = Replay::of("0.2.5-ws-autonomous");
    let stuck = |s| replay.said_of(s).iter().filter(|f| matches!(f, Fact::NativeStuck { .. })).count();
    assert_eq!(["ses-task-loop-2", "ses-tool-loop-2", "ses-stagnant-2"].map(stuck), [2, 1, 1]);
    assert!(replay.unknown.is_empty(), "{:?}", replay.unknown);
}

#[test]
fn what_no_list_joins_is_counted_and_becomes_no_session() {
    let mut replay = Replay::new(Daemon::empty(""), at(0));
    replay.connect();
    replay.made(&json!({
        "type": "autonomous_event", "event": "stuck_detected", "layer": "tool_loop",
        "session_id": SESSION_025, "timestamp": at(0).to_string(),
    }));
    // The list was asked for when the stream was opened, so it is asked again a second later.
    assert!(replay.unknown.is_empty());
    replay.wait(2);
    assert_eq!(replay.unknown, ["autonomous_event/unjoined"]);
    assert!(replay.names().is_empty());
    // Once the list knows it, it waits no more.
    replay.daemon.put(replay.now, row(SESSION_025, "ses-a", replay.now));
    replay.made(&json!({
        "type": "autonomous_event", "event": "stuck_detected", "layer": "tool_loop",
        "session_id": SESSION_025, "timestamp": replay.now.to_string(),
    }));
    replay.wait(2);
    assert_eq!(replay.unknown.len(), 1);
    assert!(replay.facts("ses-a").native_stuck.is_some());
}

#[test]
fn a_failed_call_of_0_2_counts_as_failed_where_its_result_says_so() {
    let replay = Replay::of("0.2.5-ws-session");
    let facts = replay.facts("ses-demo-0002");
    assert_eq!(facts.calls.failed, 1, "exit code 1, in a frame that says the tool was used");
    let counts: BTreeMap<_, _> = facts.progress.iter().map(|p| (p.kind, (p.high, p.low))).collect();
    assert_eq!(counts.get(&ProgressKind::TestFailed), Some(&(0, 1)));
    assert_eq!(counts.get(&ProgressKind::TestPassed), None);
}

/// The end of one call with this result, by a daemon of either version.
fn ended(
    modern: bool,
    tool: &str,
    input: serde_json::Value,
    response: serde_json::Value,
) -> (CallOutcome, Option<u32>) {
    let mut replay = started(modern, "ses-a");
    let call = |kind: &str, extra: serde_json::Value| {
        let mut data = json!({"tool_name": tool, "tool_input": input});
        data.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        hook(kind, "ses-a", at(5), data)
    };
    replay.made(&call("pre-tool-use", json!({})));
    replay.made(&call("post-tool-use", json!({ "tool_response": response })));
    let ends = replay.said_of("ses-a").into_iter().filter_map(|f| match f {
        Fact::ToolEnded(end) => Some((end.outcome, end.diff_lines)),
        _ => None,
    });
    let [end] = ends.collect::<Vec<_>>()[..] else { panic!("one end") };
    end
}

#[test]
fn no_call_is_said_to_have_succeeded_where_its_record_cannot_tell() {
    let shell = json!({"command": "cargo test"});
    let printed = json!({"stdout": "1 failed", "stderr": ""});
    assert_eq!(ended(false, "Bash", shell.clone(), printed.clone()).0, CallOutcome::Unknown);
    assert_eq!(ended(true, "Bash", shell.clone(), printed).0, CallOutcome::Ok, "0.4 tells only of those");
    assert_eq!(ended(false, "Bash", shell.clone(), json!({"exit_code": 0})).0, CallOutcome::Ok);
    assert_eq!(ended(false, "Bash", shell.clone(), json!({"exit_code": 2})).0, CallOutcome::Error);
    assert_eq!(ended(false, "Bash", shell, json!("Error: no such command")).0, CallOutcome::Unknown);
    assert_eq!(ended(false, "Other", json!({"n": 1}), json!({"text": "x"})).0, CallOutcome::Unknown);
    assert_eq!(ended(false, "Other", json!({"n": 1}), json!({"is_error": true})).0, CallOutcome::Error);
    assert_eq!(ended(false, "Other", json!({"n": 1}), json!({"ok": true})).0, CallOutcome::Ok);

    // A shell call that says nothing of its exit passed no tests.
    let mut replay = started(true, "ses-a");
    replay.made(&hook(
        "pre-tool-use",
        "ses-a",
        at(5),
        json!({"tool_name": "Bash", "tool_input": {"command": "pytest"}}),
    ));
    replay.made(&hook(
        "post-tool-use",
        "ses-a",
        at(6),
        json!({"tool_name": "Bash", "tool_input": {"command": "pytest"}, "tool_response": {"stdout": "3 passed"}}),
    ));
    let facts = replay.facts("ses-a");
    let kinds: Vec<_> = facts.progress.iter().map(|p| (p.kind, p.high, p.low)).collect();
    assert_eq!(kinds, [(ProgressKind::ToolCall, 0, 1)]);
}

#[test]
fn an_edit_lands_by_its_patch_or_its_success_and_not_by_writing_the_same() {
    let (old, new) = ("a\nb", "a\nc\nd");
    let input = json!({"file_path": "/home/dev/x", "old_string": old, "new_string": new});
    let done = json!({"filePath": "/home/dev/x"});
    assert_eq!(ended(false, "Edit", input.clone(), done.clone()), (CallOutcome::Ok, Some(3)));
    let patch = json!({
        "filePath": "/home/dev/x", "originalFile": "a\nb",
        "structuredPatch": [{"lines": [" a", "-b", "+c", "+d"]}],
    });
    assert_eq!(ended(false, "Edit", input, patch), (CallOutcome::Ok, Some(3)));
    let same = json!({"file_path": "/home/dev/x", "old_string": "a", "new_string": "a"});
    assert_eq!(ended(false, "Edit", same, done.clone()), (CallOutcome::Ok, Some(0)));
    let written = json!({"file_path": "/home/dev/x", "content": "a\nb"});
    let rewritten = json!({"filePath": "/home/dev/x", "originalFile": "a\nb", "structuredPatch": []});
    assert_eq!(ended(false, "Write", written.clone(), rewritten), (CallOutcome::Ok, Some(0)));
    let made = json!({"filePath": "/home/dev/x", "structuredPatch": []});
    assert_eq!(ended(false, "Write", written.clone(), made), (CallOutcome::Ok, Some(2)));
    // Without a sign that it was done it was not, as far as anybody knows.
    assert_eq!(ended(false, "Write", written, json!("Error: denied")), (CallOutcome::Unknown, None));
    assert_eq!(
        ended(false, "replace", json!({"old_string": "a", "new_string": "b"}), done).1,
        Some(1),
        "Gemini's"
    );
}

#[test]
fn a_failed_call_is_not_told_by_0_4_and_stays_open_until_its_turn_is_over() {
    let recording = "0.4.6-ws-star";
    let posted = std::fs::read_to_string(super::daemon::fixtures().join("0.4.6-hooks-in.ndjson")).unwrap();
    assert!(posted.contains("post-tool-use-failure"), "it was posted");
    let mut replay = Replay::begun(recording);
    for frame in frames(recording) {
        assert_ne!(frame.value["event_type"], "post-tool-use-failure", "and not broadcast");
        if frame.value["event_type"] == "session-end" || frame.value["event"] == "session_expired" {
            break;
        }
        replay.frame(&frame);
    }
    let facts = replay.facts("ses-demo-0046");
    assert_eq!((facts.calls.total, facts.calls.failed, facts.open_calls.len()), (3, 0, 1));
}

#[test]
fn status_500_of_the_stop_route_is_a_request_and_no_failure_of_the_daemon() {
    let mut replay = started(false, "ses-a");
    replay.daemon.put(replay.now, row(SESSION_025, "ses-a", at(0)));
    replay.wait(31);
    assert!(replay.facts("ses-a").stop.is_none());
    assert!(replay.asked.iter().any(|path| *path == format!("/sessions/{SESSION_025}/stop")));
    let asked_at = replay.now;
    replay.daemon.stop(asked_at, SESSION_025, true);
    replay.wait(31);
    let stop = replay.facts("ses-a").stop.unwrap();
    assert!(stop.pending && stop.requester == Requester::Unknown && stop.requested_at > asked_at);
    assert_eq!(replay.unknown, ["stop/undescribed"], "counted, once");
    // Afterwards it is gone, and whether it was taken note of before is not to be known.
    replay.daemon.stop(replay.now, SESSION_025, false);
    replay.wait(16);
    let stop = replay.facts("ses-a").stop.unwrap();
    assert!(!stop.pending && stop.acknowledged_at.is_none());
    // The next one is a new one.
    let again = replay.now;
    replay.daemon.stop(again, SESSION_025, true);
    replay.wait(31);
    let stop = replay.facts("ses-a").stop.unwrap();
    assert!(stop.pending && stop.requested_at > again);
    let wanted = replay.said_of("ses-a").iter().filter(|f| matches!(f, Fact::StopRequested { .. })).count();
    assert_eq!(wanted, 2);
    assert_eq!(replay.state("ses-a", 0), "running/working", "a request is no end");
}

#[test]
fn a_request_that_is_withdrawn_in_the_same_millisecond_is_withdrawn() {
    let mut replay = started(false, "ses-a");
    replay.daemon.put(replay.now, row(SESSION_025, "ses-a", at(0)));
    replay.daemon.stop(replay.now, SESSION_025, true);
    while replay.facts("ses-a").stop.is_none() {
        replay.wait(1);
    }
    // It is looked at again at once, and no longer there.
    replay.daemon.stop(replay.now, SESSION_025, false);
    replay.tick();
    let stop = |e: &&Event| matches!(e.fact, Fact::StopRequested { .. } | Fact::StopCleared);
    let [wanted, gone] = replay.events.iter().filter(stop).collect::<Vec<_>>()[..] else { panic!() };
    assert_eq!(wanted.time, gone.time);
    assert_ne!(wanted.id, gone.id, "else the store takes one for the other told twice");
    assert!(!replay.facts("ses-a").stop.unwrap().pending);
}

#[test]
fn a_daemon_that_answers_nothing_but_500_says_nothing_of_stops() {
    let mut replay = started(false, "ses-a");
    replay.daemon.put(replay.now, row(SESSION_025, "ses-a", at(0)));
    replay.wait(16);
    replay.daemon.broken = true;
    replay.wait(120);
    assert!(replay.facts("ses-a").stop.is_none());
}

#[test]
fn a_second_request_keeps_the_first_ones_time_and_requester() {
    // Stored over HTTP ten milliseconds before the broadcast that names the WebSocket.
    let replay = Replay::of("0.2.5-ws-session");
    let broadcast =
        frames("0.2.5-ws-session").into_iter().find(|f| f.value["event"] == "stop_requested").unwrap();
    let stop = replay.facts("ses-demo-0002").stop.unwrap();
    assert_eq!(
        (stop.requester, stop.requested_at),
        (Requester::Websocket, time(&broadcast.value["timestamp"]))
    );

    // Seen by a question first, the broadcast is the second one.
    let mut replay = started(false, "ses-a");
    replay.daemon.put(replay.now, row(SESSION_025, "ses-a", at(0)));
    replay.daemon.stop(replay.now, SESSION_025, true);
    replay.wait(61);
    let first = replay.facts("ses-a").stop.unwrap();
    for source in ["websocket", "http_api", "cli"] {
        replay.wait(5);
        replay.made(&json!({
            "type": "autonomous_event", "event": "stop_requested", "source": source, "reason": "x",
            "session_id": SESSION_025, "timestamp": replay.now.to_string(),
        }));
    }
    assert_eq!(replay.facts("ses-a").stop.unwrap(), first);
}

#[test]
fn requesters_are_a_closed_set() {
    for (source, wanted) in [
        ("http_api", Requester::Http),
        ("http", Requester::Http),
        ("websocket", Requester::Websocket),
        ("cli", Requester::Cli),
        ("mcp", Requester::Mcp),
        ("workflow", Requester::Workflow),
        ("something else", Requester::Unknown),
    ] {
        let mut replay = started(false, "ses-a");
        replay.daemon.put(replay.now, row(SESSION_025, "ses-a", at(0)));
        replay.made(&json!({
            "type": "autonomous_event", "event": "stop_requested", "source": source,
            "session_id": SESSION_025, "timestamp": at(5).to_string(),
        }));
        replay.daemon.stop(at(0), SESSION_025, true);
        replay.wait(3);
        assert_eq!(replay.facts("ses-a").stop.unwrap().requester, wanted, "{source}");
    }
}

#[test]
fn an_acknowledgement_is_told_by_nobody() {
    // By its table it was acknowledged at 15:25:01.625 and removed at 15:25:02.090.
    let tables = std::fs::read_to_string(super::daemon::fixtures().join("0.2.5-tables.ndjson")).unwrap();
    assert!(tables.contains(r#""acknowledged_at": "2026-11-29T15:25:01.625225+00:00""#));
    let replay = Replay::of("0.2.5-ws-autonomous");
    assert!(!replay.events.iter().any(|e| matches!(e.fact, Fact::StopAcknowledged)));
    let stop = replay.facts("ses-task-loop-2").stop.unwrap();
    assert!(!stop.pending && stop.acknowledged_at.is_none());
}

#[test]
fn a_session_that_nobody_asked_to_stop_says_so() {
    let replay = started(false, "ses-a");
    let mut snapshot = replay.snapshot();
    let renderer = Renderer::new(Options::default(), Arc::new(Telemetry::new()));
    let shown = |snapshot: &Snapshot| {
        let text = String::from_utf8(renderer.render(snapshot, replay.now, Format::Text)).unwrap();
        let own = text.lines().find(|line| line.starts_with("agent_session_stop_pending{"));
        own.map(|line| line.rsplit(' ').next().unwrap().to_owned())
    };
    assert!(LIST.iter().any(|def| def.name == DEF.name && def.sees_stops));
    assert_eq!(shown(&snapshot).as_deref(), Some("0"));
    snapshot.see_stops = Default::default();
    assert_eq!(shown(&snapshot), None, "what cannot be seen is absent");
}

#[test]
fn the_loop_guard_is_a_count_and_never_a_state() {
    let replay = Replay::of("0.2.5-ws-autonomous");
    assert!(!replay.story.iter().any(|line| line.contains("stalled")));
    let mut replay = started(false, "ses-a");
    replay.daemon.put(replay.now, row(SESSION_025, "ses-a", at(0)));
    for layer in ["task_loop", "tool_loop", "progress_stagnation", "something_new"] {
        replay.wait(1);
        replay.made(&json!({
            "type": "autonomous_event", "event": "stuck_detected", "layer": layer, "reason": "text",
            "session_id": SESSION_025, "timestamp": replay.now.to_string(),
        }));
    }
    replay.wait(2);
    let layers = replay.said_of("ses-a").into_iter().filter_map(|f| match f {
        Fact::NativeStuck { layer, .. } => Some(layer.as_str().to_owned()),
        _ => None,
    });
    assert_eq!(layers.collect::<Vec<_>>(), ["task_loop", "tool_loop", "progress_stagnation"]);
    assert_eq!(replay.unknown, ["autonomous_event/stuck_detected"]);
    assert_eq!(replay.state("ses-a", 0), "running/working");
}

#[test]
fn progress_is_what_tools_did_and_not_what_the_daemon_reads_into_texts() {
    let mut replay = started(false, "ses-a");
    replay.daemon.put(replay.now, row(SESSION_025, "ses-a", at(0)));
    for kind in ["file_modified", "test_passed", "build_succeeded", "commit_created", "task_completed"] {
        replay.wait(1);
        replay.made(&json!({
            "type": "autonomous_event", "event": "progress_recorded", "progress_type": kind, "is_high_value": true,
            "session_id": SESSION_025, "timestamp": replay.now.to_string(),
        }));
    }
    replay.wait(2);
    assert_eq!(replay.facts("ses-a").last_progress, None, "task_completed of no task either");
    // Of the selected task it is the only word there is; once.
    for event in ["task_started", "progress_recorded", "task_started", "progress_recorded"] {
        replay.wait(1);
        replay.made(&json!({
            "type": "autonomous_event", "event": event, "progress_type": "task_completed", "task_id": "task-9",
            "session_id": SESSION_025, "timestamp": replay.now.to_string(),
        }));
    }
    let facts = replay.facts("ses-a");
    let done = facts.progress.iter().find(|p| p.kind == ProgressKind::TaskCompleted).unwrap();
    assert_eq!((done.high, done.low), (1, 0));
    assert!(facts.last_progress.is_some());
}

#[test]
fn what_can_be_waited_for_is_known_only_where_such_hooks_are_let_through() {
    let replay = Replay::of("0.4.6-ws-star");
    let facts = replay.facts("ses-demo-0046");
    assert!(!facts.capabilities(DEF.capabilities).has(Capability::PendingActions));
    let replay = Replay::of("0.2.5-ws-session");
    let facts = replay.facts("ses-demo-0002");
    assert!(facts.capabilities(DEF.capabilities).has(Capability::PendingActions));
}
