//! All recordings in one home at once: nothing is lost because a scripted model repeats its ids, and nothing depends on
//! how the bytes come.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use agent_session_exporter::session::counts::TokenKind;

use super::lines::session;
use super::stand::{Home, append, assert_same, known, roots, tokens};
use crate::common::disk::Rng;

/// Every transcript of the recordings with its place; a recording's files in one list.
fn recordings() -> BTreeMap<String, Vec<(String, Vec<u8>)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/claude_code");
    let mut all: BTreeMap<String, Vec<(String, Vec<u8>)>> = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.ends_with(".jsonl") {
            continue;
        }
        let recording = name.split('.').next().unwrap();
        let bytes = fs::read(&path).unwrap();
        let id = session(&bytes);
        let agent =
            super::lines::lines(&bytes).iter().find_map(|line| line["agentId"].as_str().map(str::to_owned));
        let place = match agent.filter(|_| name.contains("subagent-") && name.contains(".subagent-")) {
            Some(agent) => format!("-home-dev-project/{id}/subagents/agent-{agent}.jsonl"),
            None => format!("-home-dev-project/{id}.jsonl"),
        };
        all.entry(recording.to_owned()).or_default().push((place, bytes));
    }
    assert!(all.len() > 25, "{}", all.len());
    all
}

#[test]
fn a_home_of_all_recordings_is_the_sum_of_its_recordings() {
    let all = recordings();
    let mut apart: (BTreeMap<_, _>, BTreeMap<String, i64>) = Default::default();
    let together = Home::new();
    let mut output = 0;
    for files in all.values() {
        let home = Home::new();
        for (place, bytes) in files {
            home.append(place, bytes);
            together.append(place, bytes);
        }
        let end = home.once();
        output += tokens(&end, TokenKind::Output);
        let (facts, sums) = known(&end);
        apart.0.extend(facts);
        for (key, n) in sums {
            *apart.1.entry(key).or_default() += n;
        }
    }
    let end = together.once();
    assert_eq!(tokens(&end, TokenKind::Output), output);
    assert_eq!(roots(&end), all.len() + 2, "a fork and a cleared session are two");
    assert_same("together", &known(&end), &apart);
    // Again and again from what was kept.
    assert_same("a second run", &known(&together.once()), &apart);
}

#[test]
fn however_the_bytes_come_the_facts_are_the_same() {
    let all: Vec<_> = recordings().into_values().flatten().collect();
    let at_once = Home::new();
    all.iter().for_each(|(place, bytes)| at_once.append(place, bytes));
    let wanted = known(&at_once.once());
    let home = Home::new();
    let mut rng = Rng::new(11);
    let mut left: Vec<_> = all.iter().map(|(place, bytes)| (home.place(place), &bytes[..])).collect();
    // Whatever falls between two runs is found by the next.
    for run in 0..4 {
        let running = home.start();
        let to = if run == 3 { 0 } else { left.len() * 2 / 3 };
        while left.len() > to {
            let i = rng.below(left.len() as u64) as usize;
            let (path, bytes) = &mut left[i];
            let most = if rng.below(3) == 0 { 3 } else { 20_000 };
            let n = bytes.len().min(1 + rng.below(most) as usize);
            append(path, &bytes[..n]);
            *bytes = &bytes[n..];
            if bytes.is_empty() {
                left.swap_remove(i);
            }
        }
        running.settle();
        running.end();
    }
    let got = known(&home.once());
    assert_same("in pieces", &got, &wanted);
}
