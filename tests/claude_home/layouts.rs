//! Where sub-agents' records lie, in all versions: linked to their root, counted once, and part of how it is.

use agent_session_exporter::event::Timestamp;
use agent_session_exporter::session::Count;
use agent_session_exporter::session::counts::TokenKind;
use serde_json::{Value, json};

use super::lines::{bytes, calls, lines, prompt, result, says, session};
use super::stand::{Home, count, facts, fixture, recording, roots, state, tokens};

const ROOT: &str = "0e0e0e0e-0000-4000-8000-000000000000";

fn at(second: u32) -> String {
    format!("2026-11-29T{:02}:{:02}:{:02}.000Z", 15 + second / 3600, second / 60 % 60, second % 60)
}

fn moment(second: u32) -> Timestamp {
    Timestamp::parse(&at(second)).unwrap()
}

/// A line of a sub-agent's own file.
fn of(agent: &str, mut line: Value) -> Value {
    line["isSidechain"] = json!(true);
    line["agentId"] = json!(agent);
    line["uuid"] = json!(format!("{agent}-{}", line["uuid"].as_str().unwrap()));
    line
}

fn launched(agent: &str) -> Value {
    json!({"isAsync": true, "status": "async_launched", "agentId": agent})
}

fn notice(second: u32, agent: &str) -> Value {
    let text = format!(
        "<task-notification>\n<task-id>{agent}</task-id>\n<status>completed</status>\n</task-notification>"
    );
    let mut line = prompt(ROOT, &at(second), &text);
    line["origin"] = json!({"kind": "task-notification"});
    line["promptId"] = json!(format!("notice-{second}"));
    line
}

#[test]
fn sub_agents_of_every_layout_are_children_and_counted_once() {
    let dir = |name: &str| fixture(&format!("public/claude-code/cc-2.1.101-subagents-dir/{name}"));
    let root = "8a525d27-37a4-4a12-8523-a3ea345290cf";
    let sub = |agent: &str| {
        (
            format!("p/{root}/subagents/agent-{agent}.jsonl"),
            dir(&format!("8a525d27/subagents/agent-{agent}.jsonl")),
        )
    };
    let background = recording("subagent-bg.transcript");
    let background_child = recording("subagent-bg.subagent-1.transcript");
    let background_id = session(&background);
    let foreground = recording("subagent.transcript");
    let foreground_id = session(&foreground);
    let children = ["subagent.subagent-1.transcript", "subagent.subagent-2.transcript"].map(recording);
    let agent_of = |bytes: &[u8]| lines(bytes)[0]["agentId"].as_str().unwrap().to_owned();
    let inline = fixture("public/claude-code/cc-1.0.71-task-inline-sidechain.jsonl");
    // Files, output tokens, sub-agents that are known.
    type Case = (&'static str, Vec<(String, Vec<u8>)>, i64, usize);
    let cases: [Case; 5] = [
        ("inline", vec![(format!("p/{}.jsonl", session(&inline)), inline)], -1, 1),
        (
            "flat",
            vec![(
                "p/agent-test-hash-123.jsonl".to_owned(),
                fixture("public/claude-code/cc-2.0.28-agent-file-flat-layout/agent-test-hash-123.jsonl"),
            )],
            10,
            1,
        ),
        (
            "folder",
            vec![
                (format!("p/{root}.jsonl"), dir("8a525d27.jsonl")),
                sub("a0ecfa598b8d3e4cb"),
                sub("ad5ac77d703f22b9f"),
                sub("ae04f393030f3393b"),
            ],
            2123 + 140 + 213 + 681,
            12,
        ),
        (
            "foreground",
            vec![
                (format!("p/{foreground_id}.jsonl"), foreground),
                (
                    format!("p/{foreground_id}/subagents/agent-{}.jsonl", agent_of(&children[0])),
                    children[0].clone(),
                ),
                (
                    format!("p/{foreground_id}/subagents/agent-{}.jsonl", agent_of(&children[1])),
                    children[1].clone(),
                ),
            ],
            505,
            2,
        ),
        (
            "background",
            vec![
                (format!("p/{background_id}.jsonl"), background),
                (
                    format!("p/{background_id}/subagents/agent-{}.jsonl", agent_of(&background_child)),
                    background_child,
                ),
            ],
            57 + 64 + 71 + 57 + 64 + 71,
            1,
        ),
    ];
    for (layout, files, output, children) in cases {
        let home = Home::new();
        files.iter().for_each(|(place, bytes)| home.append(place, bytes));
        let end = home.once();
        if output >= 0 {
            assert_eq!(tokens(&end, TokenKind::Output), output, "{layout}");
        }
        let all: Vec<_> = end.sessions.iter().flatten().collect();
        assert_eq!(all.iter().filter(|f| f.parent.is_some()).count(), children, "{layout}");
        // A flat file alone has a root that nobody knows, and stands for it.
        assert_eq!(roots(&end), 1, "{layout}");
        let started = count(&end, |c| matches!(c, Count::Started));
        assert_eq!(started, i64::from(layout != "flat"), "{layout}");
    }
}

#[test]
fn report_01_a_turn_that_began_itself_ends_with_its_message() {
    let home = Home::new();
    let place = format!("p/{ROOT}.jsonl");
    let shell = json!({"stdout": "", "stderr": "", "interrupted": false, "backgroundTaskId": "b1f2e3d4"});
    let mut all = vec![
        prompt(ROOT, &at(0), "go"),
        calls(ROOT, &at(5), "bg", "Bash", json!({"command": "make all", "run_in_background": true})),
        result(ROOT, &at(6), "bg", shell),
        says(ROOT, &at(10), "said", 5, "end_turn"),
    ];
    let mut duration = says(ROOT, &at(11), "-", 0, "");
    (duration["type"], duration["subtype"], duration["message"]) =
        (json!("system"), json!("turn_duration"), Value::Null);
    all.push(duration);
    home.append(&place, &bytes(&all));
    let running = home.start();
    let waits = running.settle();
    assert_eq!(state(&waits, ROOT, moment(60)).unwrap(), "running/working", "the command goes on");
    let before = running.records();
    let mut more = vec![notice(370, "b1f2e3d4")];
    for n in 0..7 {
        let call = format!("c{n}");
        more.push(calls(ROOT, &at(372 + 4 * n), &call, "Read", json!({"file_path": format!("/f{n}")})));
        more.push(result(ROOT, &at(374 + 4 * n), &call, json!({})));
    }
    home.append(&place, &bytes(&more));
    let works = running.read_since(before, more.len());
    assert_eq!(state(&works, ROOT, moment(400)).unwrap(), "running/working");
    home.append(&place, &bytes(&[says(ROOT, &at(410), "last", 5, "end_turn")]));
    let end = running.until("ended", |s| facts(s, ROOT).is_some_and(|f| f.turns.completed == 2));
    for later in [411, 410 + 3600] {
        assert_eq!(state(&end, ROOT, moment(later)).unwrap(), "completed/turn_complete");
    }
    assert!(facts(&end, ROOT).unwrap().background.is_empty());
    running.end();
}

#[test]
fn report_02_not_completed_while_sub_agents_work_in_the_background() {
    let home = Home::new();
    let place = format!("p/{ROOT}.jsonl");
    let agents = ["a000000000000001", "a000000000000002", "a000000000000003"];
    let mut parent = vec![prompt(ROOT, &at(0), "go")];
    for (n, agent) in agents.iter().enumerate() {
        let n = n as u32;
        let input = json!({"prompt": format!("task {n}"), "description": "d"});
        parent.push(calls(ROOT, &at(1 + 2 * n), &format!("call{n}"), "Agent", input));
        parent.push(result(ROOT, &at(2 + 2 * n), &format!("call{n}"), launched(agent)));
    }
    parent.push(says(ROOT, &at(10), "launched", 5, "end_turn"));
    home.append(&place, &bytes(&parent));
    let file = |agent: &str| format!("p/{ROOT}/subagents/agent-{agent}.jsonl");
    for (n, agent) in agents.iter().enumerate() {
        let n = n as u32;
        let own = [
            of(agent, prompt(ROOT, &at(2 + 2 * n), &format!("task {n}"))),
            of(agent, calls(ROOT, &at(9 + n), &format!("{agent}-c"), "Read", json!({"file_path": "/x"}))),
        ];
        home.append(&file(agent), &bytes(&own));
    }
    let running = home.start();
    let open = running.settle();
    assert_eq!(state(&open, ROOT, moment(30)).unwrap(), "running/working");
    assert_eq!(open.rollup(open.roots().next().unwrap(), moment(30)).unwrap().subagents(), (3, 0));
    // They go on; what they do is their parent's activity.
    let before = running.records();
    for (n, agent) in agents.iter().enumerate() {
        let at_second = at(300 + n as u32);
        home.append(
            &file(agent),
            &bytes(&[of(agent, result(ROOT, &at_second, &format!("{agent}-c"), json!({})))]),
        );
    }
    let working = running.read_since(before, 3);
    assert_eq!(state(&working, ROOT, moment(400)).unwrap(), "running/working");
    let rollup = working.rollup(working.roots().next().unwrap(), moment(400)).unwrap();
    assert_eq!(rollup.last_activity(), Some(moment(302)));
    // One after the other ends, and its parent is told.
    for (n, agent) in agents.iter().enumerate() {
        let n = n as u32;
        assert_eq!(
            state(&running.life.snapshot(), ROOT, moment(400 + 20 * n)).unwrap(),
            "running/working",
            "{n}"
        );
        let before = running.records();
        home.append(
            &file(agent),
            &bytes(&[of(agent, says(ROOT, &at(410 + 20 * n), &format!("{agent}-m"), 5, "end_turn"))]),
        );
        let answer = says(ROOT, &at(413 + 20 * n), &format!("heard{n}"), 5, "end_turn");
        home.append(&place, &bytes(&[notice(411 + 20 * n, agent), answer]));
        running.read_since(before, 3);
    }
    assert_eq!(state(&running.life.snapshot(), ROOT, moment(470)).unwrap(), "completed/turn_complete");
    running.end();
}

#[test]
fn report_07_long_calls_and_sub_agents_that_work_are_no_stall() {
    let home = Home::new();
    let place = format!("p/{ROOT}.jsonl");
    let agent = "a000000000000007";
    let parent = [
        prompt(ROOT, &at(0), "go"),
        calls(ROOT, &at(5), "task", "Agent", json!({"prompt": "long", "description": "d"})),
    ];
    home.append(&place, &bytes(&parent));
    let file = format!("p/{ROOT}/subagents/agent-{agent}.jsonl");
    home.append(&file, &bytes(&[of(agent, prompt(ROOT, &at(6), "long"))]));
    let running = home.start();
    running.settle();
    for minute in 1..11 {
        let before = running.records();
        let second = 60 * minute;
        let call = format!("c{minute}");
        let more = [
            of(agent, calls(ROOT, &at(second), &call, "Read", json!({"file_path": format!("/f{minute}")}))),
            of(agent, result(ROOT, &at(second + 2), &call, json!({}))),
        ];
        home.append(&file, &bytes(&more));
        let now = running.read_since(before, 2);
        assert_eq!(state(&now, ROOT, moment(second + 50)).unwrap(), "running/working");
        let rollup = now.rollup(now.roots().next().unwrap(), moment(second + 50)).unwrap();
        assert_eq!(rollup.last_activity(), Some(moment(second + 2)));
        assert_eq!(rollup.last_progress(), None);
    }
    let before = running.records();
    home.append(&file, &bytes(&[of(agent, says(ROOT, &at(660), "child", 5, "end_turn"))]));
    let more = [
        result(ROOT, &at(661), "task", json!({"status": "completed", "agentId": agent})),
        calls(ROOT, &at(665), "shell", "Bash", json!({"command": "make world"})),
    ];
    home.append(&place, &bytes(&more));
    let shell = running.read_since(before, 3);
    assert_eq!(state(&shell, ROOT, moment(665 + 8 * 60)).unwrap(), "running/working");
    assert_eq!(state(&shell, ROOT, moment(665 + 45 * 60)).unwrap(), "running/working");
    let before = running.records();
    let outcome = json!({"stdout": "", "stderr": "", "interrupted": false});
    home.append(
        &place,
        &bytes(&[result(ROOT, &at(1145), "shell", outcome), says(ROOT, &at(1150), "end", 5, "end_turn")]),
    );
    let end = running.read_since(before, 2);
    assert_eq!(state(&end, ROOT, moment(1160)).unwrap(), "completed/turn_complete");
    running.end();
}

#[test]
fn report_16_a_sub_agent_that_never_ran_is_not_completed() {
    let home = Home::new();
    let agent = "a000000000000016";
    let parent = [
        prompt(ROOT, &at(0), "go"),
        calls(ROOT, &at(5), "task", "Agent", json!({"prompt": "x", "description": "d"})),
        result(ROOT, &at(6), "task", launched(agent)),
        says(ROOT, &at(8), "m", 5, "end_turn"),
    ];
    home.append(&format!("p/{ROOT}.jsonl"), &bytes(&parent));
    home.append(
        &format!("p/{ROOT}/subagents/agent-{agent}.jsonl"),
        &bytes(&[of(agent, prompt(ROOT, &at(6), "x"))]),
    );
    let end = home.once();
    let child = facts(&end, &format!("{ROOT}:{agent}")).unwrap();
    assert_eq!((child.turns.completed, child.usage.output, child.calls.total), (0, 0, 0));
    assert!(child.turn.is_some() && child.turn_end.is_none());
    // While it may still begin its parent is at work; later its parent's own turn is what is left.
    assert_eq!(state(&end, ROOT, moment(60)).unwrap(), "running/working");
    let alone = agent_session_exporter::session::Rollup::new(&child, Vec::new(), moment(8 + 7 * 3600));
    let derived = end.derive(&alone);
    assert_eq!((derived.state.as_str(), derived.reason.as_str()), ("unknown", "silent_too_long"));
}

#[test]
fn a_foreground_sub_agent_that_was_killed_with_its_parent_is_no_success() {
    let parent = recording("kill9-subagent.transcript");
    let child = recording("kill9-subagent.subagent-1.transcript");
    let id = session(&parent);
    let agent = lines(&child)[0]["agentId"].as_str().unwrap().to_owned();
    let home = Home::new();
    home.append(&format!("p/{id}.jsonl"), &parent);
    home.append(&format!("p/{id}/subagents/agent-{agent}.jsonl"), &child);
    let end = home.once();
    assert_eq!(roots(&end), 1);
    let state = state(&end, &id, super::stand::LATER).unwrap();
    assert_eq!(state, "unknown/silent_too_long");
}
