//! Answers that frames overtook, states that come back, and moments that two processes tell of.

use std::collections::HashSet;

use agent_session_exporter::event::Fact;
use serde_json::{Value, json};

use super::play::Play;
use super::recorded::{Recording, iso};

/// A server that says what the test lets it.
struct Told<'a> {
    play: Play<'a>,
    seq: u64,
}

impl<'a> Told<'a> {
    fn new(recording: &'a Recording) -> Self {
        let mut play = Play::blind(recording);
        play.connect();
        play.slow = true;
        Self { play, seq: 0 }
    }

    fn say(&mut self, kind: &str, payload: Value) {
        self.seq += 1;
        let frame = json!({"type": kind, "payload": payload, "seq": self.seq, "sessionId": "s"});
        self.play.frame(&frame.to_string()).unwrap();
    }

    fn wait(&mut self, ms: i64) {
        self.play.move_to(self.play.now.plus(ms));
    }

    fn rises(&mut self) {
        self.say("session.running", json!({"isRunning": true}));
        self.say(
            "chat.message",
            json!({"message": {"id": "u", "role": "user", "timestamp": iso(self.play.now)}}),
        );
    }

    fn falls(&mut self) {
        self.say("session.running", json!({"isRunning": false}));
    }

    fn calls(&mut self, message: &str) {
        let args = json!({"command": "ls"});
        let call = json!({"messageId": message, "callId": "call_0", "tool": "run_command", "args": args});
        self.say("chat.tool_call", call);
    }

    fn ends_call(&mut self, message: &str) {
        let result = json!({"success": true, "output": "ok"});
        let call = json!({"messageId": message, "callId": "call_0", "tool": "run_command", "result": result});
        self.say("chat.tool_result", call);
    }

    fn flow(&mut self, execution: &str, status: &str) {
        let change = json!({
            "executionId": execution, "status": status, "workflowName": "w", "currentStepId": "build",
            "currentStepName": "Build",
        });
        self.say("workflow.execution_changed", change);
    }

    /// The list comes that is on its way, or the next; the call waits for a confirmation in it.
    fn listed(&mut self, running: bool, waits: bool) {
        let row = json!({"id": "s", "isRunning": running, "updatedAt": iso(self.play.now)});
        let pending =
            if waits { json!({"s": [{"callId": "call_0", "tool": "run_command"}]}) } else { json!({}) };
        let list = json!({"sessions": [row], "hasMore": false, "pendingConfirmationsBySession": pending});
        let state = match (waits, running) {
            (true, _) => Some("waiting"),
            (false, running) => running.then_some("running"),
        };
        self.play.arrive_as(|path| match path.ends_with("/status") {
            true => Some((200, json!({"state": state, "waitingForUser": waits}))),
            false => Some((200, list.clone())),
        });
    }

    /// The status that is on its way comes.
    fn answered(&mut self, state: &str) {
        let body = json!({"state": state, "waitingForUser": false, "lastActivityAt": iso(self.play.now)});
        self.play.arrive_as(|path| path.ends_with("/status").then(|| (200, body.clone())));
    }
}

fn recording() -> Recording {
    Recording::of("launch_unknown_workflow")
}

#[test]
fn a_call_that_is_named_like_an_earlier_one_waits_for_its_own_confirmation() {
    let recording = recording();
    let mut told = Told::new(&recording);
    told.rises();
    told.calls("m1");
    told.ends_call("m1");
    told.calls("m2");
    told.wait(16_000);
    told.listed(true, true);
    assert_eq!(told.play.state(), "waiting_for_user/confirmation");
    told.ends_call("m2");
    assert_eq!(told.play.state(), "running/working");
}

#[test]
fn a_call_that_asks_a_second_time_waits_again() {
    let recording = recording();
    let mut told = Told::new(&recording);
    told.rises();
    told.calls("m1");
    for _ in 0..2 {
        told.wait(16_000);
        told.listed(true, true);
        assert_eq!(told.play.state(), "waiting_for_user/confirmation");
        told.wait(16_000);
        told.listed(true, false);
        assert_eq!(told.play.state(), "running/working");
    }
    let asked = told.play.said(|fact| matches!(fact, Fact::ActionRequired { .. }).then_some(()));
    assert_eq!(asked.len(), 2);
}

#[test]
fn a_list_that_a_new_run_overtook_asks_nothing_in_it() {
    let recording = recording();
    let mut told = Told::new(&recording);
    told.rises();
    told.calls("m1");
    told.wait(16_000);
    // It was made while the call waited; then somebody stopped the run and began another.
    told.say("chat.done", json!({"messageId": "m1", "reason": "stopped"}));
    told.falls();
    told.rises();
    told.listed(true, true);
    assert_eq!(told.play.state(), "running/working");
    assert_eq!(told.play.only().turns.started, 2);
}

#[test]
fn a_workflow_that_comes_back_to_a_choice_waits_again() {
    let recording = recording();
    let mut told = Told::new(&recording);
    told.rises();
    told.flow("e1", "running");
    for _ in 0..3 {
        told.wait(1_000);
        told.flow("e1", "waiting");
        assert_eq!(told.play.state(), "waiting_for_user/choice");
        told.wait(1_000);
        told.flow("e1", "running");
        assert!(told.play.only().actions.is_empty());
    }
}

#[test]
fn an_execution_that_is_taken_up_again_after_another_counts_on() {
    let recording = recording();
    let mut told = Told::new(&recording);
    for execution in ["e1", "e2", "e1"] {
        told.say("session.running", json!({"isRunning": true}));
        told.flow(execution, "running");
        told.flow(execution, "blocked");
        told.falls();
        told.wait(3_000);
    }
    let turns = told.play.only().turns;
    assert_eq!((turns.started, turns.failed), (3, 3));
}

#[test]
fn a_status_from_before_the_end_of_a_run_does_not_say_how_it_ended() {
    let recording = recording();
    let mut told = Told::new(&recording);
    told.rises();
    told.calls("m1");
    // It is quiet, so that the server is asked whether it waits.
    told.wait(7_000);
    // Frames are missing before the end: it does not say how it came.
    told.seq += 3;
    told.falls();
    told.answered("running");
    told.wait(1_500);
    told.answered("blocked");
    assert_eq!(told.play.state(), "blocked/workflow_blocked");
}

#[test]
fn an_end_that_was_read_before_its_run_was_known_is_no_older_than_it() {
    let recording = recording();
    let mut told = Told::new(&recording);
    told.play.lose();
    told.play.connect();
    told.wait(500);
    told.listed(true, false);
    told.listed(true, false);
    assert_eq!(told.play.state(), "running/working");
    // It waited for the answers.
    told.play.now = told.play.now.plus(-200);
    told.falls();
    told.wait(8_000);
    let began = told.play.said(|fact| matches!(fact, Fact::TurnStarted { .. }).then_some(()));
    let ended = told.play.said(|fact| matches!(fact, Fact::TurnEnded { .. }).then_some(()));
    assert_eq!(ended, began);
}

#[test]
fn a_session_that_is_newer_than_the_list_is_not_missed_in_it() {
    let recording = recording();
    let mut told = Told::new(&recording);
    // Before 2.0.119 there is no status: not to have one is no proof of anything.
    told.play.no_status = true;
    told.wait(16_000);
    told.rises();
    told.wait(5_000);
    let none = json!({"sessions": [], "hasMore": false, "pendingConfirmationsBySession": {}});
    told.play.arrive_as(|_| Some((200, none.clone())));
    told.play.arrive_as(|_| None);
    assert_eq!(told.play.state(), "running/working");
    assert!(told.play.said(|fact| matches!(fact, Fact::SessionDeleted).then_some(())).is_empty());
}

#[test]
fn what_two_processes_tell_of_one_moment_has_ids_of_its_own() {
    let recording = recording();
    for prompts in 0..8 {
        let mut told = Told::new(&recording);
        told.rises();
        for _ in 0..prompts {
            told.say("chat.message", json!({"message": {"id": "u", "role": "user"}}));
        }
        told.say("chat.done", json!({"messageId": "m", "reason": "complete"}));
        told.falls();
        told.play.restart();
        told.wait(3_000);
        told.play.connect();
        for _ in 0..3 {
            told.listed(false, false);
        }
        told.wait(3_000);
        assert_eq!(told.play.only().turns.completed, 1);
        let ids: HashSet<_> = told.play.events.iter().map(|e| e.id.unwrap()).collect();
        assert_eq!(ids.len(), told.play.events.len(), "{prompts} prompts");
    }
}
