//! Frames that are in no recording, made as the notes and the daemon's source describe them.

use agent_session_exporter::event::{Fact, ProgressKind, Timestamp};
use serde_json::{Value, json};

use super::daemon::Daemon;
use super::replay::Replay;

const INTERNAL: &str = "11111111-aaaa-4bbb-8ccc-222222222222";
const CHILD: &str = "33333333-aaaa-4bbb-8ccc-444444444444";

/// Seconds into the story.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_795_960_000_000 + seconds * 1000)
}

pub(crate) fn hook(kind: &str, session: &str, time: Timestamp, mut data: Value) -> Value {
    let fields = data.as_object_mut().unwrap();
    fields.insert("external_id".to_owned(), json!(session));
    fields.entry("cwd").or_insert(json!("/home/dev/project"));
    json!({
        "type": "hook_event", "event_type": kind, "session_id": session, "timestamp": time.to_string(),
        "data": data, "result": {"status": "success", "continue": true, "decision": "allow"},
    })
}

/// A row of the list, made and changed at this time.
pub(crate) fn row(internal: &str, external: &str, time: Timestamp) -> Value {
    json!({
        "id": internal, "external_id": external, "source": "claude", "status": "active",
        "created_at": time.to_string(), "updated_at": time.to_string(), "parent_session_id": null, "agent_depth": 0,
    })
}

/// A session at work on its first prompt.
pub(crate) fn started(modern: bool, session: &str) -> Replay {
    let mut replay = Replay::new(Daemon::empty(if modern { "/api" } else { "" }), at(0));
    replay.connect();
    replay.made(&hook("session-start", session, at(0), json!({"source": "startup"})));
    replay.move_to(at(1));
    replay.made(&hook("user-prompt-submit", session, at(1), json!({"prompt": "do it"})));
    replay
}

fn now(replay: &mut Replay, kind: &str, data: Value) {
    replay.wait(1);
    let frame = hook(kind, "ses-a", replay.now, data);
    replay.made(&frame);
}

fn event(replay: &mut Replay, kind: &str, event: &str, extra: Value) {
    replay.wait(1);
    let mut frame = json!({"type": kind, "event": event, "timestamp": replay.now.to_string()});
    frame.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    replay.made(&frame);
}

#[test]
fn a_permission_waits_until_its_call_ran_or_was_denied() {
    let bash = json!({"tool_name": "Bash", "tool_input": {"command": "git push"}, "tool_use_id": "toolu_1"});
    let with = |extra: Value| {
        let mut data = bash.clone();
        data.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        data
    };
    for (answer, data, calls_failed) in [
        ("post-tool-use", with(json!({"tool_response": {"exit_code": 0}})), 0),
        ("permission-denied", with(json!({"reason": "no"})), 1),
    ] {
        let mut replay = started(true, "ses-a");
        now(&mut replay, "pre-tool-use", bash.clone());
        now(&mut replay, "permission-request", bash.clone());
        let since = replay.now;
        assert_eq!(replay.state("ses-a", 0), "waiting_for_user/permission");
        // The notice about it is no second request, and moves no clock.
        now(&mut replay, "notification", json!({"notification_type": "permission_prompt"}));
        let actions = replay.facts("ses-a").actions.clone();
        assert_eq!(actions.iter().map(|a| a.since).collect::<Vec<_>>(), [since]);
        now(&mut replay, answer, data);
        assert!(replay.facts("ses-a").actions.is_empty(), "{answer}");
        assert_eq!(replay.facts("ses-a").calls.failed, calls_failed);
        assert_eq!(replay.state("ses-a", 0), "running/working");
    }
}

#[test]
fn a_notice_waits_only_where_it_says_for_what() {
    for (data, wanted, counted) in [
        (json!({"notification_type": "permission_prompt"}), "waiting_for_user/permission", 0),
        (json!({"notification_type": "elicitation_dialog"}), "waiting_for_user/elicitation", 0),
        (json!({"notification_type": "auth_success"}), "running/working", 0),
        (json!({"message": "needs your permission"}), "running/working", 1),
        // The turn is over, and nobody has to do anything.
        (json!({"notification_type": "idle_prompt"}), "unknown/ended_without_result", 0),
    ] {
        let mut replay = started(false, "ses-a");
        now(&mut replay, "notification", data.clone());
        assert_eq!(replay.state("ses-a", 0), wanted, "{data}");
        assert_eq!(replay.unknown.len(), counted, "{data}");
    }
}

#[test]
fn an_elicitation_waits_for_its_result_and_a_question_for_its_call() {
    let mut replay = started(true, "ses-a");
    now(&mut replay, "elicitation", json!({}));
    assert_eq!(replay.state("ses-a", 0), "waiting_for_user/elicitation");
    now(&mut replay, "elicitation-result", json!({"action": "accept"}));
    assert_eq!(replay.state("ses-a", 0), "running/working");
    let question =
        json!({"tool_name": "AskUserQuestion", "tool_input": {"questions": []}, "tool_use_id": "q"});
    now(&mut replay, "pre-tool-use", question.clone());
    assert_eq!(replay.state("ses-a", 0), "waiting_for_user/question");
    now(&mut replay, "post-tool-use", question);
    assert_eq!(replay.state("ses-a", 0), "running/working");
    let plan = json!({"tool_name": "ExitPlanMode", "tool_input": {"plan": "x"}, "tool_use_id": "p"});
    now(&mut replay, "pre-tool-use", plan);
    assert_eq!(replay.state("ses-a", 0), "waiting_for_user/plan_approval");
    now(&mut replay, "user-prompt-submit", json!({}));
    assert_eq!(replay.state("ses-a", 0), "running/working");
}

#[test]
fn a_turn_fails_by_the_class_of_its_error() {
    for (error, wanted) in [
        ("rate_limit", "failed/rate_limit"),
        ("authentication_failed", "failed/auth"),
        ("billing_error", "failed/usage_limit"),
        ("max_output_tokens", "failed/truncated"),
        ("whatever", "failed/error"),
    ] {
        let mut replay = started(true, "ses-a");
        now(&mut replay, "stop-failure", json!({"error": error, "error_details": "429"}));
        assert_eq!(replay.state("ses-a", 0), wanted, "{error}");
        // What failed stays failed when the process leaves.
        now(&mut replay, "session-end", json!({"reason": "other"}));
        assert!(replay.state("ses-a", 0).starts_with("failed/"), "{error}");
    }
}

#[test]
fn an_end_of_the_session_says_nothing_of_a_turn_that_was_open() {
    for reason in ["clear", "logout", "prompt_input_exit", "other"] {
        let mut replay = started(false, "ses-a");
        now(&mut replay, "session-end", json!({"reason": reason}));
        assert_eq!(replay.state("ses-a", 0), "unknown/ended_without_result", "{reason}");
    }
    let mut replay = started(false, "ses-a");
    now(&mut replay, "stop", json!({}));
    assert_eq!(replay.state("ses-a", 3600), "completed/turn_complete");
    now(&mut replay, "session-end", json!({"reason": "logout"}));
    assert_eq!(replay.state("ses-a", 0), "completed/run_complete");
    // It is opened again under the same name.
    now(&mut replay, "session-start", json!({"source": "resume"}));
    now(&mut replay, "user-prompt-submit", json!({}));
    assert_eq!(replay.state("ses-a", 0), "running/working");
}

#[test]
fn a_rule_of_the_daemon_holds_calls_and_stops_back() {
    let mut replay = started(false, "ses-a");
    replay.wait(1);
    let mut frame = hook(
        "pre-tool-use",
        "ses-a",
        replay.now,
        json!({"tool_name": "Bash", "tool_input": {"command": "x"}}),
    );
    frame["result"]["decision"] = json!("block");
    replay.made(&frame);
    let facts = replay.facts("ses-a");
    assert_eq!((facts.calls.total, facts.calls.failed, facts.open_calls.len()), (1, 1, 0));
    let mut frame = hook("stop", "ses-a", replay.now.plus(1), json!({}));
    frame["result"]["decision"] = json!("block");
    replay.made(&frame);
    assert_eq!(replay.state("ses-a", 0), "running/working", "it was made to go on");
}

#[test]
fn an_id_that_is_used_again_is_another_call() {
    let mut replay = started(true, "ses-a");
    for (tool, n) in [("Read", 1), ("Grep", 2), ("Read", 3)] {
        let data = json!({"tool_name": tool, "tool_input": {"path": n}, "tool_use_id": "t1"});
        now(&mut replay, "pre-tool-use", data.clone());
        now(&mut replay, "post-tool-use", data);
    }
    let facts = replay.facts("ses-a");
    assert_eq!((facts.calls.total, facts.open_calls.len()), (3, 0));
}

#[test]
fn compactions_count_once_whether_or_not_their_end_is_told() {
    let compactions = |replay: &Replay| {
        let steps = replay.said_of("ses-a").into_iter().filter(|f| matches!(f, Fact::StepCompleted { .. }));
        steps.count()
    };
    let mut replay = started(true, "ses-a");
    now(&mut replay, "pre-compact", json!({"trigger": "auto"}));
    now(&mut replay, "post-compact", json!({"trigger": "auto"}));
    assert_eq!(compactions(&replay), 1);
    now(&mut replay, "post-compact", json!({"trigger": "manual"}));
    assert_eq!(compactions(&replay), 2, "its beginning was not told");
    assert_eq!(replay.facts("ses-a").last_progress, None);
}

#[test]
fn tasks_are_chosen_done_once_and_hold_up() {
    let mut replay = started(true, "ses-a");
    replay.daemon.put(at(0), row(INTERNAL, "ses-a", at(0)));
    replay.wait(16);
    let task = |replay: &mut Replay, what: &str, state: Value| {
        let extra = json!({"task_id": "task-1", "task": {"title": "secret", "state": state}});
        event(replay, "task_event", what, extra);
    };
    for _ in 0..4 {
        task(&mut replay, "task_claimed", json!({"owner_session_id": INTERNAL}));
    }
    assert_eq!(replay.state("ses-a", 0), "stalled/step_loop", "the same task over and over");
    task(&mut replay, "task_closed", json!({"closed_in_session_id": INTERNAL}));
    assert_eq!(replay.state("ses-a", 0), "progressing/working");
    task(&mut replay, "task_reopened", json!({"owner_session_id": null}));
    task(&mut replay, "task_closed", json!({"closed_in_session_id": INTERNAL}));
    let facts = replay.facts("ses-a");
    let done = facts.progress.iter().find(|p| p.kind == ProgressKind::TaskCompleted).unwrap();
    assert_eq!((done.high, done.low), (1, 0), "once per id");
    assert!(facts.step.is_none());
    task(&mut replay, "task_escalated", json!({"is_escalated": true, "is_blocked": true}));
    assert_eq!(replay.state("ses-a", 0), "blocked/workflow_blocked");
    task(&mut replay, "task_de_escalated", json!({"is_escalated": false}));
    assert_eq!(replay.facts("ses-a").blocked, None);
    task(&mut replay, "task_updated", json!({"is_blocked": true}));
    assert_eq!(replay.state("ses-a", 0), "blocked/dependency");
}

#[test]
fn a_task_of_nobody_is_no_session() {
    let mut replay = Replay::new(Daemon::empty("/api"), at(0));
    replay.connect();
    let state = json!({"owner_session_id": null});
    event(&mut replay, "task_event", "task_created", json!({"task_id": "task-1", "task": {"state": state}}));
    replay.wait(5);
    assert!(replay.names().is_empty());
    assert!(replay.unknown.is_empty());
}

#[test]
fn own_tasks_of_the_agent_are_a_plan_and_each_done_one_an_advance() {
    let mut replay = started(true, "ses-a");
    for id in ["1", "2"] {
        now(&mut replay, "task-created", json!({"task_id": id, "task_subject": "secret"}));
    }
    for _ in 0..2 {
        now(&mut replay, "task-completed", json!({"task_id": "1"}));
    }
    let facts = replay.facts("ses-a");
    let done = facts.progress.iter().find(|p| p.kind == ProgressKind::TaskCompleted).unwrap();
    assert_eq!((done.high, done.low), (1, 1));
    assert!(!facts.progress.iter().any(|p| p.kind == ProgressKind::StepCompleted));
}

#[test]
fn runs_of_sub_agents_are_children() {
    let mut replay = started(true, "ses-a");
    replay.daemon.put(at(0), row(INTERNAL, "ses-a", at(0)));
    let mut child = row(CHILD, "ses-b", at(3));
    child["parent_session_id"] = json!(INTERNAL);
    child["agent_depth"] = json!(1);
    replay.daemon.put(at(3), child);
    replay.wait(16);
    let run = |replay: &mut Replay, what: &str, run: &str, session: Value| {
        let extra = json!({"run_id": run, "parent_session_id": INTERNAL, "session_id": session, "provider": "claude"});
        event(replay, "agent_event", what, extra);
    };
    // One that the list knows, and one it does not.
    run(&mut replay, "agent_started", "run-1", json!(CHILD));
    run(&mut replay, "agent_started", "run-2", json!(null));
    let frame = hook("user-prompt-submit", "ses-b", replay.now, json!({}));
    replay.made(&frame);
    assert_eq!(replay.names(), ["ses-a", "ses-a:run-2", "ses-b"]);
    for child in ["ses-a:run-2", "ses-b"] {
        assert_eq!(replay.facts(child).parent.as_ref().unwrap().as_str(), "ses-a");
        assert_eq!(replay.state(child, 0), "running/working");
    }
    assert_eq!(replay.facts("ses-b").last_prompt, None, "nobody typed that prompt");
    run(&mut replay, "agent_completed", "run-1", json!(CHILD));
    run(&mut replay, "agent_timeout", "run-2", json!(null));
    assert_eq!(replay.state("ses-b", 0), "completed/run_complete");
    assert_eq!(replay.state("ses-a:run-2", 0), "failed/timeout");
    assert_eq!(replay.state("ses-a", 0), "running/working");
}

#[test]
fn a_pipeline_is_a_session_of_steps_that_may_wait_for_approval() {
    let mut replay = Replay::new(Daemon::empty("/api"), at(0));
    replay.connect();
    let say = |replay: &mut Replay, what: &str, step: Value| {
        let mut extra = json!({"execution_id": "run-7", "message": "secret"});
        extra.as_object_mut().unwrap().extend(step.as_object().unwrap().clone());
        event(replay, "pipeline_event", what, extra);
    };
    let step = json!({"step_id": "deploy", "step_name": "Deploy"});
    say(&mut replay, "pipeline_started", json!({}));
    say(&mut replay, "step_started", step.clone());
    let name = "pipeline:run-7";
    assert_eq!(replay.state(name, 0), "running/working");
    assert_eq!(replay.facts(name).step.as_ref().unwrap().step.name.as_ref().unwrap().as_str(), "Deploy");
    say(&mut replay, "approval_required", step.clone());
    assert_eq!(replay.state(name, 0), "waiting_for_user/confirmation");
    say(&mut replay, "step_completed", step);
    assert_eq!(replay.state(name, 0), "progressing/working");
    say(&mut replay, "pipeline_completed", json!({}));
    assert_eq!(replay.state(name, 0), "completed/workflow_complete");
    say(&mut replay, "pipeline_sings", json!({}));
    assert_eq!(replay.unknown, ["pipeline_event/pipeline_sings"]);
}

#[test]
fn a_list_that_says_paused_twice_ends_a_turn_without_a_result() {
    let mut replay = started(false, "ses-a");
    let mut paused = row(INTERNAL, "ses-a", at(0));
    paused["status"] = json!("paused");
    paused["updated_at"] = json!(at(10).to_string());
    replay.daemon.put(at(10), paused);
    replay.move_to(at(16));
    assert_eq!(replay.state("ses-a", 0), "running/working", "once is nothing");
    replay.wait(16);
    assert_eq!(replay.state("ses-a", 0), "unknown/ended_without_result");
    assert_eq!(replay.disagreements, 1);
    // Work goes on, without a prompt that was told.
    now(&mut replay, "pre-tool-use", json!({"tool_name": "Read", "tool_input": {"path": "x"}}));
    assert_eq!(replay.state("ses-a", 0), "running/working");
    replay.wait(40);
    assert_eq!(replay.state("ses-a", 0), "running/working", "what the list says is older");
}

#[test]
fn tokens_of_the_list_are_maxima_and_count_once() {
    let mut replay = started(false, "ses-a");
    let mut listed = |seconds: i64, input: u64, cost: f64| {
        let mut row = row(INTERNAL, "ses-a", at(0));
        row["usage_input_tokens"] = json!(input);
        row["usage_total_cost_usd"] = json!(cost);
        row["model"] = json!("model-x");
        row["updated_at"] = json!(at(seconds).to_string());
        replay.daemon.put(at(seconds), row);
        replay.move_to(at(seconds + 16));
        let usage = replay.facts("ses-a").usage;
        (usage.input, usage.cost_nano)
    };
    assert_eq!(listed(10, 100, 0.5), (100, 500_000_000));
    assert_eq!(listed(40, 250, 0.75), (250, 750_000_000));
    assert_eq!(listed(70, 50, 0.1), (250, 750_000_000), "never back");
    assert_eq!(replay.facts("ses-a").info.model.as_ref().unwrap().as_str(), "model-x");
}

#[test]
fn hooks_without_a_session_and_unknown_ones_are_counted() {
    let mut replay = started(false, "ses-a");
    replay.made(&json!({"type": "hook_event", "event_type": "pre-tool-use", "timestamp": at(2).to_string()}));
    now(&mut replay, "brand-new-hook", json!({}));
    replay.made(&json!({"type": "brand_new_event"}));
    replay.made(&json!({"type": "terminal_output", "run_id": "r", "data": "text"}));
    assert_eq!(replay.unknown, ["hook_event/no_session", "hook_event/brand-new-hook", "brand_new_event"]);
    assert_eq!(replay.names(), ["ses-a"]);
    assert_eq!(replay.state("ses-a", 0), "running/working");
}

#[test]
fn the_other_prefix_is_tried_and_kept() {
    let replay = started(false, "ses-a");
    assert_eq!(replay.asked, ["/api/sessions", "/sessions"]);
    let mut replay = started(true, "ses-a");
    assert_eq!(replay.asked, ["/api/sessions"]);
    // A list every fifteen seconds, stops every thirty.
    replay.daemon.put(at(0), row(INTERNAL, "ses-a", at(0)));
    replay.asked.clear();
    replay.move_to(at(121));
    let lists = replay.asked.iter().filter(|path| *path == "/api/sessions").count();
    assert!((7..=9).contains(&lists), "{lists}");
    let stops = replay.asked.iter().filter(|path| path.ends_with("/stop")).count();
    assert!((3..=5).contains(&stops), "{stops}");
}

/// The stream and the answers come on two ways.
#[test]
fn an_answer_that_the_stream_overtook_says_nothing_of_stops() {
    use agent_session_exporter::sources::live::{Answer, Said};
    let mut replay = started(true, "ses-a");
    replay.daemon.put(at(0), row(INTERNAL, "ses-a", at(0)));
    replay.wait(16);
    let told = |what: &str, time: Timestamp| json!({"type": "session_event", "event": what, "session_id": INTERNAL, "timestamp": time.to_string()});
    replay.made(&told("session_stop_signaled", replay.now));
    // Asked while it stood, answered when it had gone.
    let mut said = Said::default();
    replay.peer.tick(replay.now, &mut said);
    let ask = said.asks.iter().find(|ask| ask.path.ends_with("/stop")).unwrap().clone();
    replay.made(&told("session_stop_cleared", replay.now.plus(1)));
    assert!(!replay.facts("ses-a").stop.unwrap().pending);
    let mut said = Said::default();
    let answer = Ok(Answer { status: 500, ..Answer::default() });
    replay.peer.answered(&ask, &answer, replay.now, &mut said).unwrap();
    assert!(said.events.is_empty(), "{:?}", said.events);
}

/// 0.4 does not tell that a call failed, and a turn may last for hours: what the agent left behind is not in flight.
#[test]
fn a_call_whose_end_is_not_told_is_over_once_many_others_came_and_went() {
    let mut replay = started(true, "ses-a");
    let call = |n: u32| json!({"tool_name": "Bash", "tool_input": {"command": format!("run {n}")}, "tool_use_id": format!("t{n}")});
    let ended = |n: u32| {
        let mut data = call(n);
        data["tool_response"] = json!({"exit_code": 0});
        data
    };
    now(&mut replay, "pre-tool-use", call(0));
    let mut child = call(1_000);
    child["agent_id"] = json!("sub");
    now(&mut replay, "pre-tool-use", child);
    for n in 1..=20 {
        assert_eq!(replay.facts("ses-a").open_calls.len(), 1, "{n}");
        now(&mut replay, "pre-tool-use", call(n));
        now(&mut replay, "post-tool-use", ended(n));
    }
    let facts = replay.facts("ses-a");
    assert_eq!((facts.open_calls.len(), facts.calls.total, facts.calls.failed), (0, 21, 0));
    assert_eq!(replay.facts("ses-a:sub").open_calls.len(), 1, "another agent's calls say nothing of its own");
    // Failures without end push no call out of sight that ends.
    for n in 0..200 {
        now(&mut replay, "pre-tool-use", call(2_000 + n));
    }
    now(&mut replay, "pre-tool-use", call(3_000));
    now(&mut replay, "post-tool-use", ended(3_000));
    assert_eq!(replay.facts("ses-a").calls.total, 21 + 201, "each once");
}
