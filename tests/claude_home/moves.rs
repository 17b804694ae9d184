//! Files that move and go, and folders whose names say nothing.

use std::fs;

use agent_session_exporter::event::Timestamp;
use serde_json::Value;

use super::lines::{behind, bytes, lines, prompt, says, session};
use super::stand::{Home, assert_same, clock_at, facts, known, recording, roots, scrape, shown, state};

fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

#[test]
fn report_41_a_transcript_that_moves_in_mid_session_stays_one_session() {
    // The second half is written elsewhere, in another working folder.
    let whole = recording("resume-fork.transcript");
    let cut = behind(&whole, "\"cost-state\"");
    let id = session(&whole);
    let mut rest = lines(&whole[cut..]);
    for line in rest.iter_mut().filter(|line| line.get("cwd").is_some()) {
        line["cwd"] = Value::from("/home/dev/trees/feature.x");
    }
    let rest = bytes(&rest);
    let (old, new) =
        (format!("-home-dev-project/{id}.jsonl"), format!("-home-dev-trees-feature-x/{id}.jsonl"));
    let plain = Home::new();
    plain.append(&new, &[&whole[..cut], &rest].concat());
    let wanted = known(&plain.once());

    for restarted in [false, true] {
        let home = Home::new();
        home.append(&old, &whole[..cut]);
        let mut run = Some(home.start());
        let before = run.as_ref().unwrap().settle();
        assert_eq!(facts(&before, &id).unwrap().project.as_ref().unwrap().as_str(), "project");
        if restarted {
            run.take().unwrap().end();
        }
        // It grows before, in the very moment of, and after the move.
        home.append(&old, &rest[..300]);
        fs::create_dir_all(home.place("-home-dev-trees-feature-x")).unwrap();
        fs::rename(home.place(&old), home.place(&new)).unwrap();
        home.append(&new, &rest[300..900]);
        let running = run.unwrap_or_else(|| home.start());
        running.settle();
        std::thread::sleep(std::time::Duration::from_millis(300));
        home.append(&new, &rest[900..]);
        let end = running.until("the rest", |s| facts(s, &id).is_some_and(|f| f.turns.completed == 2));
        assert_eq!(facts(&end, &id).unwrap().project.as_ref().unwrap().as_str(), "feature.x");
        // Long enough for a look at everything to find the old place empty.
        std::thread::sleep(std::time::Duration::from_millis(1_500));
        let families = scrape(&running.life.snapshot(), at("2026-11-29T15:30:30Z"));
        assert_eq!(shown(&families), std::slice::from_ref(&id));
        let info = families.iter().find(|f| f.name == "agent_session_info").unwrap();
        assert_eq!(info.samples.iter().map(|s| s.label("project")).collect::<Vec<_>>(), ["feature.x"]);
        let mut got = known(&running.end());
        let mut wanted = wanted.clone();
        // Counts stand under the project they were made in.
        let under = |known: &mut super::stand::Known| {
            let mut sums = std::collections::BTreeMap::new();
            for (key, n) in std::mem::take(&mut known.1) {
                *sums.entry(key.replace("feature.x", "project")).or_insert(0) += n;
            }
            known.1 = sums;
        };
        under(&mut got);
        under(&mut wanted);
        assert_same(&format!("restarted: {restarted}"), &got, &wanted);
    }
}

#[test]
fn a_session_folder_moves_with_its_sub_agents() {
    let (parent, child) =
        (recording("subagent-bg.transcript"), recording("subagent-bg.subagent-1.transcript"));
    let id = session(&parent);
    let agent = lines(&child)[0]["agentId"].as_str().unwrap().to_owned();
    let place = |folder: &str| {
        (format!("{folder}/{id}.jsonl"), format!("{folder}/{id}/subagents/agent-{agent}.jsonl"))
    };
    let (old, new) = (place("a"), place("b"));
    let plain = Home::new();
    plain.append(&new.0, &parent);
    plain.append(&new.1, &child);
    let wanted = known(&plain.once());
    let home = Home::new();
    let (cut, child_cut) = (behind(&parent, "stop_hook_summary"), behind(&child, "tool_result"));
    home.append(&old.0, &parent[..cut]);
    home.append(&old.1, &child[..child_cut]);
    let running = home.start();
    running.settle();
    fs::create_dir_all(home.place("b")).unwrap();
    for what in [format!("{id}.jsonl"), id.clone()] {
        fs::rename(home.place("a").join(&what), home.place("b").join(&what)).unwrap();
    }
    home.append(&new.1, &child[child_cut..]);
    home.append(&new.0, &parent[cut..]);
    running.until("the end", |s| facts(s, &id).is_some_and(|f| f.turns.completed == 2));
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    assert_same("moved", &known(&running.end()), &wanted);
}

#[test]
fn report_44_a_deleted_transcript_has_no_series_at_the_next_scrape() {
    let parent = recording("subagent-bg.transcript");
    let child = recording("subagent-bg.subagent-1.transcript");
    let id = session(&parent);
    let agent = lines(&child)[0]["agentId"].as_str().unwrap().to_owned();
    let mut home = Home::new();
    home.clock = clock_at(at("2026-11-29T15:29:20Z"));
    let places = (format!("p/{id}.jsonl"), format!("p/{id}/subagents/agent-{agent}.jsonl"));
    home.append(&places.0, &parent);
    home.append(&places.1, &child);
    let running = home.start();
    let alive = running.settle();
    assert_eq!(shown(&scrape(&alive, home.clock.now())), std::slice::from_ref(&id));
    // A sub-agent's file goes: its session does, its root stays.
    fs::remove_file(home.place(&places.1)).unwrap();
    let child_id = format!("{id}:{agent}");
    let without = running.until("gone", |s| facts(s, &child_id).is_none_or(|f| f.deleted_at.is_some()));
    assert_eq!(shown(&scrape(&without, home.clock.now())), std::slice::from_ref(&id));
    assert_eq!(state(&without, &id, home.clock.now()).unwrap(), "completed/turn_complete");
    let sums = known(&without).1;
    fs::remove_file(home.place(&places.0)).unwrap();
    let gone = running.until_state(&id, "cancelled/deleted");
    assert_eq!(shown(&scrape(&gone, home.clock.now())), [""; 0]);
    assert_eq!(known(&gone).1, sums, "counters stay");
    running.end();
    // Deleted while nobody looked: found at the next start.
    let home = Home::new();
    home.append(&places.0, &parent);
    home.once();
    fs::remove_file(home.place(&places.0)).unwrap();
    let running = home.start();
    running.until_state(&id, "cancelled/deleted");
    running.end();
}

#[test]
fn report_40_folder_names_are_no_names_of_sessions() {
    let home = Home::new();
    let running = home.start();
    running.settle();
    let folders = [
        ("-home-dev-my-project-v1-2", "/home/dev/my.project_v1.2", "my.project_v1.2"),
        ("-home-dev-two-words", "/home/dev/two words", "two words"),
        ("-home-dev----lu-ou-k-", "/home/dev/žluťoučký", "žluťoučký"),
        ("-home-dev-repo--claude-worktrees-fix", "/home/dev/repo/.claude/worktrees/fix", "fix"),
        ("anything at all", "/home/dev/x", "x"),
    ];
    for (n, (folder, cwd, project)) in folders.iter().enumerate() {
        // The file is named by something else, too.
        let id = format!("0d0d0d0d-0000-4000-8000-{n:012}");
        let at = |second: u32| format!("2026-11-29T15:0{n}:{second:02}.000Z");
        let mut all = [prompt(&id, &at(0), "x"), says(&id, &at(1), &format!("m{n}"), 5, "end_turn")];
        all.iter_mut().for_each(|line| line["cwd"] = Value::from(*cwd));
        home.append(&format!("{folder}/renamed-{n}.jsonl"), &bytes(&all));
        let read = running.until(folder, |s| facts(s, &id).is_some_and(|f| f.turns.completed == 1));
        assert_eq!(facts(&read, &id).unwrap().project.as_ref().unwrap().as_str(), *project);
    }
    assert_eq!(roots(&running.end()), folders.len());
}
