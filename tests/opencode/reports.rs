//! Situations from public reports, as records of the stream.

use agent_session_exporter::event::{Event, Fact, Timestamp};
use serde_json::json;

use super::folded::{Folded, words};
use super::play::Play;
use super::recorded::{DIRECTORY, connections, json_of};
use super::told::Told;

/// kdlbs/kandev#2026
#[test]
fn a_call_that_hangs_is_stuck_and_heartbeats_are_no_life() {
    let mut told = Told::new();
    told.works("ses_a");
    let started = told.at;
    told.tool(
        "ses_a",
        "msg_2",
        "prt_1",
        "bash",
        json!({
            "status": "running", "input": { "command": "sleep 1 &" }, "time": { "start": started },
        }),
    );
    let before = told.play.events.len();
    for _ in 0..900 {
        told.say(10, "server.heartbeat", json!({}));
    }
    assert_eq!(told.play.events.len(), before);
    assert_eq!(told.state("ses_a", 0), "stalled/call_stuck");
    let folded = told.folded();
    let derived = &folded.states(Timestamp::from_millis(told.at))["ses_a"];
    assert_eq!(
        derived.since,
        Timestamp::from_millis(started + 7_200_000),
        "since one moment, however often seen"
    );
}

/// openchamber/openchamber#904
#[test]
fn a_failed_child_stays_failed_when_it_gets_idle_and_its_parent_goes_on() {
    for (error, wanted) in [
        (json!({ "name": "APIError", "data": { "statusCode": 500 } }), "failed"),
        (json!({ "name": "MessageAbortedError", "data": {} }), "cancelled"),
    ] {
        let mut told = Told::new();
        told.works("ses_p");
        let at = told.at;
        told.tool(
            "ses_p",
            "msg_2",
            "prt_t",
            "task",
            json!({ "status": "running", "input": {}, "time": { "start": at } }),
        );
        told.session("ses_c", Some("ses_p")).prompt("ses_c", "msg_c").status("ses_c", "busy");
        told.answer("ses_c", "msg_d", "msg_c", json!({}));
        told.say(5, "session.error", json!({ "sessionID": "ses_c", "error": error }));
        told.status("ses_c", "idle").say(0, "session.idle", json!({ "sessionID": "ses_c" }));
        let (created, completed) = (told.at - 5_000, told.at);
        let times = json!({ "created": created, "completed": completed });
        told.answer("ses_c", "msg_d", "msg_c", json!({ "error": error, "time": times }));
        told.status("ses_c", "idle");
        let folded = told.folded();
        let child = folded.facts("ses_c");
        assert_eq!(child.turn_end.as_ref().unwrap().outcome.as_str(), wanted);
        assert_eq!(child.turns.completed, 0);
        assert_eq!(told.state("ses_p", 0), "running/working");
    }
}

/// WalshyDev/oc-orchestrator#202
#[test]
fn a_session_that_the_status_leaves_out_is_idle() {
    let mut told = Told::new();
    told.works("ses_p");
    let at = told.at;
    told.tool(
        "ses_p",
        "msg_2",
        "prt_t",
        "task",
        json!({ "status": "running", "input": {}, "time": { "start": at } }),
    );
    told.play.lost();
    told.play.world.restart();
    told.at += 20_000;
    told.play.connect(Timestamp::from_millis(told.at));
    assert_eq!(told.state("ses_p", 0), "running/working", "once is not enough");
    told.at += 6_000;
    told.play.until(Timestamp::from_millis(told.at));
    assert_eq!(told.state("ses_p", 0), "failed/interrupted");
    assert_eq!(told.state("ses_p", 3 * 3600), "failed/interrupted", "its task is not stuck");
}

/// code-yeongyu/oh-my-openagent#4570
#[test]
fn a_child_that_never_ran_is_not_completed() {
    let mut told = Told::new();
    told.works("ses_p");
    told.session("ses_c", Some("ses_p")).prompt("ses_c", "msg_c");
    let at = told.at;
    let times = json!({ "start": at, "end": at });
    told.tool(
        "ses_p",
        "msg_2",
        "prt_t",
        "task",
        json!({ "status": "completed", "input": {}, "output": "done", "time": times }),
    );
    let child = told.folded().facts("ses_c");
    assert_eq!((child.turns.started, child.usage.input, child.turn_end.is_some()), (0, 0, false));
}

/// DEVtheOPS/opencode-plugin-otel#44
#[test]
fn a_session_diff_counts_nothing() {
    let mut told = Told::new();
    told.works("ses_a");
    let before = told.play.events.len();
    for additions in [10, 25, 25, 18] {
        let diff = json!([{ "file": "a", "additions": additions, "deletions": 0 }]);
        told.say(1, "session.diff", json!({ "sessionID": "ses_a", "diff": diff }));
    }
    assert_eq!(told.play.events.len(), before);
}

#[test]
fn what_comes_after_idle_is_no_activity() {
    let play = Play::whole("edit_task");
    let ended = |event: &Event| matches!(event.fact, Fact::TurnEnded { .. });
    let end = play.events.iter().find(|(_, event)| ended(event)).unwrap().1.time;
    let folded = Folded::of(play.events.iter().map(|(_, event)| event));
    assert_eq!(folded.all()[0].last_activity, end);
}

#[test]
fn two_servers_on_one_folder_tell_one_story() {
    let recorded = json_of("two_servers.ab.json");
    assert_eq!(recorded["B"]["/session/status"], json!({}));
    assert_eq!(recorded["A"]["/session/status"].as_object().unwrap().len(), 1);
    let (mut a, mut b) = (Play::at("127.0.0.1:4096"), Play::at("127.0.0.1:4097"));
    let lines = &connections("two_servers")[0];
    a.connect(lines[0].at);
    for line in lines {
        a.line(line);
        // The other comes again and again, and sees the folder, but neither the status nor the stream.
        b.world = a.world.clone();
        b.world.restart();
        b.connect(line.at);
        b.lost();
    }
    assert_eq!(b.events, [], "what it lists is not its own");
    // An exporter that had it from there once does not end it either.
    let folded = Folded::of(a.events.iter().map(|(_, event)| event));
    assert_eq!(folded.all().len(), 1);
    let info = &folded.all()[0].info;
    assert_eq!(info.endpoint.as_ref().unwrap().as_str(), "127.0.0.1:4096");
}

#[test]
fn both_servers_of_a_session_count_it_once() {
    let (mut a, mut b) = (Play::at("127.0.0.1:4096"), Play::at("127.0.0.1:4097"));
    for play in [&mut a, &mut b] {
        let lines = &connections("edit_task")[0];
        play.connect(lines[0].at);
        lines.iter().for_each(|line| play.line(line));
    }
    let one = Folded::of(a.events.iter().map(|(_, event)| event));
    let both = Folded::of(a.events.iter().chain(&b.events).map(|(_, event)| event));
    let numbers = |folded: &Folded| folded.all().iter().map(|f| Folded::numbers(f)).collect::<Vec<_>>();
    assert_eq!(numbers(&one), numbers(&both));
    assert!(both.doubles > 15, "{}", both.doubles);
}

#[test]
fn an_instance_that_is_closed_ends_what_it_ran() {
    let mut told = Told::new();
    told.works("ses_a");
    told.say(3, "server.instance.disposed", json!({ "directory": DIRECTORY }));
    assert_eq!(told.state("ses_a", 0), "cancelled/by_user");
}

#[test]
fn a_child_of_a_child_that_asks_makes_the_root_wait() {
    let mut told = Told::new();
    told.works("ses_a");
    for (child, parent) in [("ses_b", "ses_a"), ("ses_c", "ses_b")] {
        let prompt = format!("msg_{child}");
        told.session(child, Some(parent)).prompt(child, &prompt).status(child, "busy");
        told.answer(child, &format!("{prompt}_2"), &prompt, json!({}));
    }
    let asks = json!({ "id": "per_1", "sessionID": "ses_c", "permission": "bash", "patterns": [] });
    told.say(1, "permission.asked", asks);
    assert_eq!(told.state("ses_a", 3600), "waiting_for_user/permission");
}

#[test]
fn a_kind_that_is_not_known_is_told_once_and_is_no_work() {
    let mut told = Told::new();
    told.works("ses_a");
    let before = told.folded().facts("ses_a").last_activity;
    for _ in 0..3 {
        told.say(9, "session.dreams", json!({ "sessionID": "ses_a" }));
        told.say(0, "Not a word, but prose", json!({ "sessionID": "ses_a" }));
    }
    assert_eq!(told.play.unknown, ["session.dreams"]);
    let facts = told.folded().facts("ses_a");
    assert_eq!(facts.last_activity, before);
    assert!(facts.last_seen > before);
}

/// Lists have a hundred rows where nobody asks for more, the newest first.
#[test]
fn a_session_behind_hundreds_of_newer_ones_is_found() {
    let mut told = Told::new();
    told.works("ses_old");
    let now = Timestamp::from_millis(told.at + 2_000);
    for (newer, project) in [(250, Some("project")), (2_500, Some("project")), (3_500, None)] {
        let mut late = Play::new();
        late.world = told.play.world.clone();
        for n in 0..newer {
            let (id, at) = (format!("ses_new{n}"), told.at + 1_000 + n);
            let info = json!({ "id": id, "directory": DIRECTORY, "time": { "created": at, "updated": at } });
            late.world.sessions.insert(id, info);
        }
        late.connect(now);
        let folded = Folded::of(late.events.iter().map(|(_, event)| event));
        assert_eq!(folded.all().len(), 1, "{newer}: those that are idle are not told");
        assert_eq!(words(&folded.states(now)["ses_old"]), "running/working", "{newer}");
        // Beyond what is listed nobody says where it belongs, and nobody takes it for deleted.
        let facts = folded.facts("ses_old");
        assert_eq!(facts.project.as_ref().map(|name| name.as_str()), project, "{newer}");
    }
}

/// A list names what any server on the folder runs.
#[test]
fn of_what_went_on_while_nobody_listened_only_what_is_over_is_told() {
    for restarts in [false, true] {
        let mut told = Told::new();
        told.works("ses_a").say(1, "server.heartbeat", json!({}));
        told.play.until(Timestamp::from_millis(told.at + 2_000));
        told.play.lost();
        (told.unheard, told.at) = (true, told.at + 60_000);
        // Without a status here: it runs elsewhere.
        told.session("ses_open", None).prompt("ses_open", "msg_1").answer(
            "ses_open",
            "msg_2",
            "msg_1",
            json!({}),
        );
        told.session("ses_idle", None);
        let over = json!({ "finish": "stop", "time": { "created": told.at, "completed": told.at + 1 } });
        told.session("ses_over", None).prompt("ses_over", "msg_1").answer("ses_over", "msg_2", "msg_1", over);
        // One that took many steps: its end is in the last of them.
        told.session("ses_steps", None).prompt("ses_steps", "msg_000");
        for n in 1..=150 {
            let finish = if n == 150 { "stop" } else { "tool-calls" };
            let over = json!({ "finish": finish, "time": { "created": told.at, "completed": told.at + 1 } });
            told.answer("ses_steps", &format!("msg_{n:03}"), "msg_000", over);
        }
        if restarts {
            told.play.exporter_restarts();
        } else {
            told.play.connect(Timestamp::from_millis(told.at + 1_000));
        }
        let folded = told.folded();
        let names: Vec<_> = folded.all().iter().map(|f| f.session.as_str().to_owned()).collect();
        assert_eq!(names, ["ses_a", "ses_over", "ses_steps"], "restarts: {restarts}");
        assert_eq!(told.state("ses_steps", 1), "completed/turn_complete");
        assert_eq!(told.state("ses_over", 1), "completed/turn_complete");
        assert_eq!(told.state("ses_a", 1), "running/working");
    }
}

/// Its request went over the stream before anybody listened.
#[test]
fn a_session_of_the_second_generation_that_waits_is_found_waiting() {
    let lines = &connections("v2_session")[0];
    for (kind, state) in [
        ("permission.v2.asked", "waiting_for_user/permission"),
        ("question.v2.asked", "waiting_for_user/question"),
    ] {
        let asked = lines.iter().position(|line| line.frame["payload"]["type"] == kind).unwrap();
        let mut late = Play::new();
        lines[..=asked].iter().for_each(|line| late.world.take(&line.frame));
        late.connect(lines[asked].at.plus(1_000));
        let folded = Folded::of(late.events.iter().map(|(_, event)| event));
        let states: Vec<String> = folded.states(late.now()).values().map(words).collect();
        assert_eq!(states, [state]);
        assert!(folded.all()[0].actions[0].since < lines[asked].at.plus(1_000), "since it was asked");
    }
}
