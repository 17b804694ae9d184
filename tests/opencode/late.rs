//! Answers that records overtook, and states that come back within a moment.

use std::collections::HashSet;

use agent_session_exporter::event::{Fact, Timestamp};
use serde_json::json;

use super::folded::Folded;
use super::recorded::DIRECTORY;
use super::told::Told;

/// Not where the server was started: what works here is only asked once the stream names it.
const ELSEWHERE: &str = "/home/dev/elsewhere";

/// A session that works on its second answer. Nobody heard of it.
fn unheard() -> Told {
    let mut told = Told::new();
    (told.unheard, told.directory) = (true, ELSEWHERE);
    told.works("ses_a");
    finish(&mut told, "msg_2", "msg_1", "tool-calls");
    told
}

fn finish(told: &mut Told, message: &str, prompt: &str, how: &str) {
    let times = json!({ "created": told.at, "completed": told.at });
    told.answer("ses_a", message, prompt, json!({ "finish": how, "time": times }));
}

/// A connection is made, and what is asked from now on is on its way until it arrives.
fn heard(told: &mut Told) {
    told.unheard = false;
    told.play.lost();
    told.play.connect(Timestamp::from_millis(told.at));
    assert!(!told.folded().states(told.play.now()).contains_key("ses_a"));
    told.play.slow = true;
}

/// The stream names the directory; its status is asked and answered, and then the messages are on their way.
fn messages_on_their_way(told: &mut Told) {
    heard(told);
    told.at += 1_000;
    told.session("ses_b", None);
    told.play.arrive();
    assert!(told.play.asked.iter().any(|ask| ask.path.starts_with("/session/ses_a/message")));
}

#[test]
fn messages_that_come_after_the_end_of_their_turn_begin_no_other() {
    let mut told = unheard();
    told.at += 1_000;
    told.answer("ses_a", "msg_3", "msg_1", json!({}));
    messages_on_their_way(&mut told);
    told.at += 1_000;
    finish(&mut told, "msg_3", "msg_1", "stop");
    told.status("ses_a", "idle");
    told.play.slow = false;
    told.play.arrive();
    let turns = told.folded().facts("ses_a").turns;
    assert_eq!((turns.started, turns.completed, turns.cancelled, turns.failed), (1, 1, 0, 0));
    assert_eq!(told.state("ses_a", 0), "completed/turn_complete");
}

#[test]
fn messages_of_an_earlier_turn_end_none_that_has_begun() {
    let mut told = unheard();
    told.at += 1_000;
    finish(&mut told, "msg_3", "msg_1", "stop");
    told.status("ses_a", "idle");
    told.at += 1_000;
    told.prompt("ses_a", "msg_4").status("ses_a", "busy");
    messages_on_their_way(&mut told);
    told.at += 1_000;
    told.answer("ses_a", "msg_5", "msg_4", json!({}));
    told.play.slow = false;
    told.play.arrive();
    let ended: Vec<_> =
        told.play.events.iter().filter(|(_, e)| matches!(e.fact, Fact::TurnEnded { .. })).collect();
    assert!(!ended.iter().any(|(_, e)| e.request.as_ref().unwrap().as_str() == "msg_4"), "{ended:?}");
    assert_eq!(told.state("ses_a", 0), "running/working");
    told.at += 1_000;
    finish(&mut told, "msg_5", "msg_4", "stop");
    told.status("ses_a", "idle");
    assert_eq!(told.state("ses_a", 0), "completed/turn_complete");
}

#[test]
fn a_status_that_is_older_than_the_end_of_its_instance_wakes_nobody() {
    for known in [true, false] {
        let mut told = unheard();
        heard(&mut told);
        if known {
            told.status("ses_a", "busy");
        } else {
            told.session("ses_b", None);
        }
        // Asked and answered; and then the instance is closed.
        told.say(1, "server.instance.disposed", json!({ "directory": ELSEWHERE }));
        told.play.slow = false;
        told.play.arrive();
        told.play.until(told.play.now().plus(20_000));
        let states = told.folded().states(told.play.now());
        let state = states.get("ses_a").map(|derived| derived.state.as_str());
        assert_ne!(state, Some("running"), "known: {known}");
    }
}

#[test]
fn a_request_that_was_answered_or_whose_turn_is_over_is_asked_again_by_no_list() {
    for replied in [true, false] {
        let mut told = unheard();
        let ask = json!({ "id": "per_1", "sessionID": "ses_a", "permission": "bash" });
        told.say(1, "permission.asked", ask);
        heard(&mut told);
        told.session("ses_b", None);
        if replied {
            let reply = json!({ "sessionID": "ses_a", "requestID": "per_1", "reply": "once" });
            told.say(1, "permission.replied", reply);
        } else {
            told.at += 1_000;
            finish(&mut told, "msg_3", "msg_1", "stop");
            told.status("ses_a", "idle");
        }
        told.play.slow = false;
        told.play.arrive();
        assert!(told.folded().facts("ses_a").actions.is_empty(), "{replied}");
    }
}

#[test]
fn a_look_that_missed_one_turn_says_nothing_of_the_next() {
    let mut told = Told::new();
    let prompt = |told: &mut Told, id: &str| {
        told.say(1, "session.next.prompted", json!({ "sessionID": "ses_n", "messageID": id }));
    };
    told.session("ses_n", None);
    prompt(&mut told, "msg_1");
    // Missed once.
    told.play.world.interrupts();
    told.at += 2_000;
    told.play.until(Timestamp::from_millis(told.at));
    let step = json!({ "sessionID": "ses_n", "assistantMessageID": "msg_2" });
    told.say(0, "session.next.step.started", step.clone());
    let mut ended = step;
    ended["finish"] = json!("stop");
    told.say(0, "session.next.step.ended", ended);
    assert_eq!(told.state("ses_n", 0), "completed/turn_complete");
    prompt(&mut told, "msg_3");
    told.play.world.interrupts();
    told.at += 14_000;
    told.play.until(Timestamp::from_millis(told.at));
    assert_eq!(told.play.asked.iter().filter(|ask| ask.path == "/api/session/active").count(), 3);
    assert_eq!(told.state("ses_n", 0), "running/working", "missed once");
    told.at += 16_000;
    told.play.until(Timestamp::from_millis(told.at));
    assert_eq!(told.state("ses_n", 0), "cancelled/by_user");
}

#[test]
fn what_comes_back_within_a_millisecond_is_told_again() {
    let mut told = Told::new();
    told.session("ses_a", None);
    for agent in ["plan", "build", "plan"] {
        let info = json!({
            "id": "ses_a", "directory": DIRECTORY, "agent": agent, "time": { "created": told.at, "updated": told.at },
        });
        told.say(0, "session.updated", json!({ "sessionID": "ses_a", "info": info }));
    }
    let updates = told.play.events.iter().filter(|(_, e)| matches!(e.fact, Fact::SessionUpdated(_)));
    let ids: HashSet<_> = updates.map(|(_, e)| e.id.unwrap()).collect();
    assert_eq!(ids.len(), 3);
    let folded = Folded::of(told.play.events.iter().map(|(_, event)| event));
    assert_eq!(folded.doubles, 0);
}
