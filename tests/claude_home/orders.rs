//! Copied history, read in every order: before the start, one file after the other while running, with a restart
//! between. The same facts and the same sums each time, and they are the true ones.

use agent_session_exporter::session::counts::TokenKind;
use agent_session_exporter::session::{Count, Snapshot};
use serde_json::{Value, json};

use super::lines::{behind, bytes, lines, prompt, says, session};
use super::stand::{Home, Known, assert_same, calls, count, facts, fixture, known, recording, roots, tokens};

/// Files of a home, with their places.
type Files = Vec<(String, Vec<u8>)>;

#[derive(Clone, Copy, Debug)]
enum Way {
    /// All are there; the newest is read first.
    Before,
    /// They come one after the other.
    Meanwhile,
    /// Likewise, with a restart after each.
    Restarted,
}

fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for shorter in permutations(n - 1) {
        for at in 0..n {
            let mut longer = shorter.clone();
            longer.insert(at, n - 1);
            all.push(longer);
        }
    }
    all
}

fn read(files: &Files, order: &[usize], way: Way) -> std::sync::Arc<Snapshot> {
    let home = Home::new();
    match way {
        Way::Before => {
            for (minutes, i) in order.iter().enumerate() {
                home.append(&files[*i].0, &files[*i].1);
                home.age(&files[*i].0, minutes as i64);
            }
            home.once()
        }
        Way::Meanwhile => {
            let running = home.start();
            running.settle();
            for i in order {
                let before = running.records();
                home.append(&files[*i].0, &files[*i].1);
                running.read_since(before, lines(&files[*i].1).len());
            }
            running.end()
        }
        Way::Restarted => {
            let mut last = None;
            for i in order {
                home.append(&files[*i].0, &files[*i].1);
                last = Some(home.once());
            }
            last.unwrap()
        }
    }
}

/// Reads files in every order and every way.
fn in_every_order(files: &Files, truth: impl Fn(&Snapshot)) {
    in_every_order_but(files, |_| false, truth);
}

/// Likewise; some sums may differ.
fn in_every_order_but(files: &Files, may_differ: fn(&str) -> bool, truth: impl Fn(&Snapshot)) {
    let mut wanted: Option<Known> = None;
    for order in permutations(files.len()) {
        for way in [Way::Before, Way::Meanwhile, Way::Restarted] {
            let end = read(files, &order, way);
            let mut got = known(&end);
            got.1.retain(|key, _| !may_differ(key));
            // A copy of a sub-agent, of which nothing is left when its original is known.
            got.0.retain(|_, facts| facts.parent.is_none() || facts.last_seen.is_some());
            match &wanted {
                None => {
                    truth(&end);
                    wanted = Some(got);
                }
                Some(wanted) => assert_same(&format!("{order:?} {way:?}"), &got, wanted),
            }
        }
    }
}

fn file(bytes: Vec<u8>) -> (String, Vec<u8>) {
    (format!("-home-dev-project/{}.jsonl", session(&bytes)), bytes)
}

#[test]
fn a_fork_counts_nothing_of_its_origin() {
    let (origin, fork) = (recording("resume-fork.transcript"), recording("resume-fork.transcript.2"));
    let (origin_id, fork_id) = (session(&origin), session(&fork));
    in_every_order(&vec![file(origin), file(fork)], |end| {
        assert_eq!(tokens(end, TokenKind::Output), 447);
        assert_eq!((calls(end, "Read"), calls(end, "Edit")), (1, 1));
        assert_eq!(count(end, |c| matches!(c, Count::Turn(_))), 4);
        assert_eq!(count(end, |c| matches!(c, Count::Started)), 2);
        let (origin, fork) = (facts(end, &origin_id).unwrap(), facts(end, &fork_id).unwrap());
        assert_eq!((origin.turns.completed, fork.turns.completed), (2, 2));
        assert_eq!((origin.calls.total, fork.calls.total), (2, 0));
        assert_eq!((origin.usage.output, fork.usage.output), (57 + 64 + 71 + 78, 85 + 92));
        assert!(fork.started_at > origin.last_activity, "a copy is no activity");
        assert!(origin.last_progress.is_some() && fork.last_progress.is_none());
    });
}

#[test]
fn what_was_continued_in_a_new_file_is_counted_once() {
    // The first file, as the old program left it: the conversation up to where it was continued.
    let second = fixture("public/claude-code/cc-1.0.56-continue-two-session-ids.jsonl");
    let all = lines(&second);
    let first_id = all[1]["sessionId"].as_str().unwrap().to_owned();
    let second_id = session(&second);
    assert_ne!(first_id, second_id);
    let text = String::from_utf8(second.clone()).unwrap();
    let first: Vec<String> =
        text.lines().skip(1).take(2).map(|l| l.replace(&second_id, &first_id) + "\n").collect();
    let first = first.concat().into_bytes();
    // The old program told no ends of turns: that the next prompt ended one shows in the copy alone, and what was
    // counted of a copy before the original came is not taken back.
    let ends = |key: &str| key.contains("Turn(");
    in_every_order_but(&vec![file(first), file(second.clone())], ends, |end| {
        assert!(count(end, |c| matches!(c, Count::Turn(_))) <= 1);
        assert_eq!(roots(end), 2);
        let (first, second) = (facts(end, &first_id).unwrap(), facts(end, &second_id).unwrap());
        assert_eq!((first.turns.started, second.turns.started), (1, 1));
        assert!(second.started_at > first.last_activity);
        assert_eq!(first.calls.total + second.calls.total, 1);
    });
    // Without the first file what it said is nobody else's.
    in_every_order(&vec![file(second)], |end| {
        assert!(facts(end, &second_id).is_some());
        assert_eq!(count(end, |c| matches!(c, Count::ToolCall(..))), 1);
    });
}

#[test]
fn a_session_that_is_resumed_in_its_file_is_one() {
    let whole = recording("resume-fork.transcript");
    let id = session(&whole);
    let cut = behind(&whole, "\"cost-state\"");
    let at_once = read(&vec![file(whole.clone())], &[0], Way::Before);
    for restarted in [false, true] {
        let home = Home::new();
        let (place, _) = file(whole.clone());
        home.append(&place, &whole[..cut]);
        if restarted {
            home.once();
        }
        let running = home.start();
        running.settle();
        let before = running.records();
        home.append(&place, &whole[cut..]);
        running.read_since(before, lines(&whole[cut..]).len());
        let end = running.end();
        assert_eq!(facts(&end, &id).unwrap().turns.completed, 2);
        assert_same(&format!("restarted: {restarted}"), &known(&end), &known(&at_once));
    }
}

#[test]
fn report_25_lines_of_one_message_without_a_request_id_are_one_message() {
    let mut all = vec![prompt("s", "2026-11-29T15:00:00.000Z", "x")];
    let mut message = 0;
    let mut lines_of = 0;
    // 368 lines of 171 messages.
    while message < 171 {
        let times = if message < 26 { 3 } else { 2 };
        for n in 0..times {
            let at = format!("2026-11-29T15:{:02}:{:02}.{n}00Z", 1 + message / 60, message % 60);
            all.push(says("s", &at, &format!("msg_{message}"), 2, "tool_use"));
            lines_of += 1;
        }
        message += 1;
    }
    assert_eq!(lines_of, 368);
    let files = vec![("p/s.jsonl".to_owned(), bytes(&all))];
    in_every_order(&files, |end| {
        assert_eq!(tokens(end, TokenKind::Output), 2 * 171);
        assert_eq!(tokens(end, TokenKind::Input), 10 * 171);
    });
}

#[test]
fn report_26_a_conversation_written_again_with_new_names_counts_its_new_messages() {
    let old = recording("edit-ok.transcript");
    let id = session(&old);
    let new_id = "0b0b0b0b-0000-4000-8000-000000000000";
    let mut copied = lines(&old);
    for (n, line) in copied.iter_mut().enumerate() {
        line["sessionId"] = Value::from(new_id);
        if line.get("uuid").is_some() {
            line["uuid"] = Value::from(format!("0c0c0c0c-0000-4000-8000-{n:012}"));
        }
    }
    copied.retain(|line| line["type"] != "cost-state");
    copied.push(prompt(new_id, "2026-11-29T18:00:00.000Z", "and on"));
    copied.push(says(new_id, "2026-11-29T18:00:04.000Z", "msg_new", 33, "end_turn"));
    let alone = read(&vec![file(old.clone())], &[0], Way::Before);
    let alone_calls = facts(&alone, &id).unwrap().calls.total;
    in_every_order(&vec![file(old), file(bytes(&copied))], |end| {
        assert_eq!(tokens(end, TokenKind::Output), 270 + 33);
        let all_calls = |s: &Snapshot| count(s, |c| matches!(c, Count::ToolCall(..)));
        assert_eq!(all_calls(end), all_calls(&alone));
        // Nothing in the files tells which of the two was first: the smaller id owns what both have.
        let (old, new) = (facts(end, &id).unwrap(), facts(end, new_id).unwrap());
        assert_eq!(old.turns.started + new.turns.started, 2);
        assert_eq!(old.calls.total + new.calls.total, alone_calls);
        assert_eq!(old.usage.output + new.usage.output, 270 + 33);
        assert_eq!(new.last_prompt.unwrap().to_string(), "2026-11-29T18:00:00.000Z");
    });
}

#[test]
fn report_35_an_inherited_conversation_is_not_the_sub_agents() {
    let parent = recording("subagent-bg.transcript");
    let child = recording("subagent-bg.subagent-1.transcript");
    let id = session(&parent);
    let agent = lines(&child)[0]["agentId"].as_str().unwrap().to_owned();
    let inherited: Vec<Value> = lines(&parent)
        .into_iter()
        .filter(|line| matches!(line["type"].as_str(), Some("user" | "assistant")))
        .take(3)
        .map(|mut line| {
            line["isSidechain"] = json!(true);
            line["agentId"] = json!(agent);
            line
        })
        .collect();
    assert_eq!(inherited.len(), 3);
    let with_copies = [bytes(&inherited), child.clone()].concat();
    let place = format!("-home-dev-project/{id}/subagents/agent-{agent}.jsonl");
    let plain = read(&vec![file(parent.clone()), (place.clone(), child)], &[0, 1], Way::Before);
    let child_id = format!("{id}:{agent}");
    let told = |s: &Snapshot| {
        let child = facts(s, &child_id).unwrap();
        (
            child.usage,
            child.calls.total,
            child.last_prompt,
            child.parent.clone(),
            tokens(s, TokenKind::Output),
        )
    };
    in_every_order(&vec![file(parent), (place, with_copies)], |end| {
        assert_eq!(roots(end), 1);
        assert_eq!(told(end), told(&plain));
        assert_eq!((calls(end, "Agent"), calls(end, "Read"), calls(end, "Edit")), (1, 1, 1));
    });
}

/// A session forked from another file: all its lines under a new name, then lines of its own.
fn forked(of: &[u8], id: &str, own: &[Value]) -> Vec<u8> {
    let from = session(of);
    let mut copied = lines(of);
    copied.retain(|line| matches!(line["type"].as_str(), Some("user" | "assistant" | "system")));
    for line in &mut copied {
        line["sessionId"] = json!(id);
        if line["type"] == "assistant" {
            line["requestSessionId"] = json!(from);
        }
    }
    // What the program does first when it begins a fork.
    let began = own[0]["timestamp"].as_str().unwrap().replace("16:00:00", "15:59:59");
    let begins =
        json!({"type": "queue-operation", "operation": "enqueue", "sessionId": id, "timestamp": began});
    let mut own = own.to_vec();
    own.iter_mut().for_each(|line| line["cwd"] = copied[0]["cwd"].clone());
    [bytes(&[begins]), bytes(&copied), bytes(&own)].concat()
}

#[test]
fn a_fork_of_a_fork_counts_only_its_own() {
    let (origin, fork) = (recording("resume-fork.transcript"), recording("resume-fork.transcript.2"));
    let third_id = "00000000-0000-4000-8000-00000000000a";
    let own = [
        prompt(third_id, "2026-11-29T16:00:00.000Z", "third"),
        says(third_id, "2026-11-29T16:00:04.000Z", "msg_third", 1000, "end_turn"),
    ];
    let third = forked(&fork, third_id, &own);
    let (origin_id, fork_id) = (session(&origin), session(&fork));
    in_every_order(&vec![file(origin), file(fork), file(third)], |end| {
        assert_eq!(tokens(end, TokenKind::Output), 447 + 1000);
        assert_eq!((calls(end, "Read"), calls(end, "Edit")), (1, 1));
        let output = [&origin_id, &fork_id, third_id].map(|id| facts(end, id).unwrap().usage.output);
        assert_eq!(output, [57 + 64 + 71 + 78, 85 + 92, 1000]);
        let turns = [&origin_id, &fork_id, third_id].map(|id| facts(end, id).unwrap().turns.completed);
        assert_eq!(turns, [2, 2, 1]);
    });
}

#[test]
fn sub_agents_inside_a_copied_file_are_their_origins() {
    let origin = fixture("public/claude-code/cc-1.0.71-task-inline-sidechain.jsonl");
    let fork_id = "00000000-0000-4000-8000-00000000000b";
    let own = [
        prompt(fork_id, "2026-08-12T16:00:00.000Z", "fork"),
        says(fork_id, "2026-08-12T16:00:04.000Z", "msg_fork", 1000, "end_turn"),
    ];
    let fork = forked(&origin, fork_id, &own);
    let id = session(&origin);
    let alone = read(&vec![file(origin.clone())], &[0], Way::Before);
    // No ends of turns are told there, as above.
    let ends = |key: &str| key.contains("Turn(");
    in_every_order_but(&vec![file(origin), file(fork)], ends, |end| {
        assert_eq!(tokens(end, TokenKind::Output), tokens(&alone, TokenKind::Output) + 1000);
        assert_eq!((calls(end, "Task"), calls(end, "WebSearch"), calls(end, "WebFetch")), (1, 1, 1));
        let total = |s: &Snapshot, id: &str| {
            let slot = s.find(&super::stand::source(), &id.into()).unwrap();
            s.rollup(slot, super::stand::LATER).unwrap().calls().total
        };
        assert_eq!((total(end, &id), total(end, fork_id)), (3, 0));
    });
}

#[test]
fn copies_that_grow_beside_their_originals_end_the_same() {
    use crate::common::disk::Rng;
    let (origin, fork) = (recording("resume-fork.transcript"), recording("resume-fork.transcript.2"));
    let third_id = "00000000-0000-4000-8000-00000000000a";
    let own = [
        prompt(third_id, "2026-11-29T16:00:00.000Z", "third"),
        says(third_id, "2026-11-29T16:00:04.000Z", "msg_third", 1000, "end_turn"),
    ];
    let third = forked(&fork, third_id, &own);
    let files = vec![file(origin), file(fork), file(third)];
    let wanted = known(&read(&files, &[2, 1, 0], Way::Before));
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let home = Home::new();
        let mut left: Vec<_> = files.iter().map(|(place, bytes)| (place, &bytes[..])).collect();
        let mut running = Some(home.start());
        while !left.is_empty() {
            let i = rng.below(left.len() as u64) as usize;
            let (place, bytes) = &mut left[i];
            let n = bytes.len().min(1 + rng.below(9_000) as usize);
            home.append(place, &bytes[..n]);
            *bytes = &bytes[n..];
            if bytes.is_empty() {
                left.swap_remove(i);
            }
            if rng.below(6) == 0 {
                running.take().unwrap().end();
                running = Some(home.start());
            } else if rng.half() {
                std::thread::sleep(std::time::Duration::from_millis(rng.below(80)));
            }
        }
        let running = running.unwrap();
        running.settle();
        // What had been counted of a copy stays so; nothing is counted twice.
        let mut got = known(&running.end());
        let turns =
            |known: &Known| known.1.iter().filter(|(k, _)| k.contains("Turn(")).map(|(_, n)| n).sum::<i64>();
        assert!(turns(&got) >= turns(&wanted) && turns(&got) <= turns(&wanted) + 3, "{seed}: {:?}", got.1);
        let mut wanted = wanted.clone();
        for known in [&mut got, &mut wanted] {
            known.1.retain(|key, _| !key.contains("Turn("));
        }
        assert_same(&format!("seed {seed}"), &got, &wanted);
    }
}
