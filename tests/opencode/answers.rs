//! The tests' server answers as the recorded one did: at each moment at which the real one was asked, what it said is
//! what ours would say, give or take the time by which the stream lagged.

use std::collections::BTreeSet;

use serde_json::Value;

use super::recorded::{connections, fixture, json_of, scenarios};
use super::world::World;

/// How far what a snapshot says may be ahead of or behind the stream, in milliseconds: events came up to 9 s late.
const LAG: (i64, i64) = (2_000, 9_500);

/// What an answer says, without what no decision hangs on.
fn essence(path: &str, body: &Value) -> BTreeSet<String> {
    let list = || body.as_array().unwrap().iter();
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    match path {
        "/session/status" => {
            body.as_object().unwrap().iter().map(|(id, s)| format!("{id} {}", s["type"])).collect()
        }
        "/permission" | "/question" => list().map(|p| text(&p["id"])).collect(),
        "/session" => list().map(|s| text(&s["id"])).collect(),
        // Of each message who wrote it, how it ended, and its calls.
        _ => list()
            .map(|m| {
                let info = &m["info"];
                let tools = m["parts"].as_array().unwrap().iter().filter(|p| p["type"] == "tool");
                let tools: Vec<String> =
                    tools.map(|p| format!("{}:{}", text(&p["id"]), text(&p["state"]["status"]))).collect();
                let (role, finish) = (text(&info["role"]), text(&info["finish"]));
                format!("{} {role} {finish} {} {tools:?}", text(&info["id"]), text(&info["error"]["name"]))
            })
            .collect(),
    }
}

#[test]
fn answers_are_those_of_the_real_server() {
    let mut compared = 0;
    let mut differ = Vec::new();
    for scenario in scenarios() {
        let name = format!("{scenario}.rest.json");
        // V2 sessions are asked about elsewhere, and forks and reverts change messages without a word.
        if !fixture(&name).exists() || scenario.starts_with("v2") {
            continue;
        }
        // What a client without `directory` sees is the directory of the recording; a deleted session stays busy.
        let connections = connections(&scenario);
        let snapshots = json_of(&name);
        for snapshot in snapshots.as_array().unwrap() {
            let at = snapshot["wallMs"].as_i64().unwrap();
            // Of a second process nothing of the first is known.
            let lines: Vec<_> = connections.iter().flatten().collect();
            let rest = snapshot["rest"].as_object().unwrap();
            for (question, answer) in rest {
                let path = question.strip_prefix("GET ").unwrap_or_default();
                let asked = matches!(path, "/session/status" | "/permission" | "/question")
                    || (path.starts_with("/session/") && path.ends_with("/message"));
                if !asked || answer["status"] != 200 {
                    continue;
                }
                let real = essence(path, &answer["body"]);
                let mut world = World::default();
                let mut seen = Vec::new();
                let mut same = false;
                for (n, line) in lines.iter().enumerate() {
                    if line.at.as_millis() > at + LAG.1 {
                        break;
                    }
                    world.take(&line.frame);
                    let next = lines.get(n + 1).map_or(i64::MAX, |l| l.at.as_millis());
                    if next < at - LAG.0 {
                        continue;
                    }
                    let (status, body) = world.answer(path, None);
                    if status == 200 {
                        let ours = essence(path, &body);
                        same |= ours == real;
                        seen.push(ours);
                    }
                }
                // Before the first event nothing is known, and nothing was said.
                let nothing_known = seen.is_empty() && real.is_empty();
                if !(same || nothing_known) {
                    differ.push(format!(
                        "{scenario} {} {path}: {real:?}, ours {:?}",
                        snapshot["label"],
                        seen.last()
                    ));
                }
                compared += 1;
            }
        }
    }
    assert!(compared > 150, "{compared} answers");
    assert!(differ.is_empty(), "{} of {compared}:\n{}", differ.len(), differ.join("\n"));
}

#[test]
fn requests_of_the_second_generation_are_listed_as_by_the_real_server() {
    let lines = &connections("v2_session")[0];
    let mut compared = 0;
    for snapshot in json_of("v2_session.rest.json").as_array().unwrap() {
        let at = snapshot["wallMs"].as_i64().unwrap();
        let mut world = World::default();
        lines.iter().take_while(|line| line.at.as_millis() <= at).for_each(|line| world.take(&line.frame));
        for (question, answer) in snapshot["rest"].as_object().unwrap() {
            let path = question.strip_prefix("GET ").unwrap_or_default();
            let list = path.ends_with("/permission") || path.ends_with("/question");
            if path.starts_with("/api/session/") && list {
                assert_eq!(
                    world.answer(path, None),
                    (200, answer["body"].clone()),
                    "{} {path}",
                    snapshot["label"]
                );
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 4);
}

/// Of each element its name, its place and its kind.
fn elements(history: &Value) -> Vec<(String, u64, String)> {
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let one = |kept: &Value| {
        assert_eq!(kept["data"]["sessionID"], kept["aggregate_id"]);
        (text(&kept["id"]), kept["seq"].as_u64().unwrap(), text(&kept["type"]))
    };
    history.as_array().unwrap().iter().map(one).collect()
}

#[test]
fn the_history_is_that_of_the_real_server() {
    let real = json_of("retry_midrun.sync_history.json");
    let mut world = World::default();
    connections("retry_midrun")[0].iter().for_each(|line| world.take(&line.frame));
    let session = real[0]["aggregate_id"].as_str().unwrap();
    // What a client asks that knows all but this one, and of it the first twenty.
    let ask = |known: u64| serde_json::json!({ session: known }).to_string();
    let (status, ours) = world.answer("/sync/history", Some(&ask(19)));
    assert_eq!(status, 200);
    let behind = |all: Vec<(String, u64, String)>| all.into_iter().filter(|e| e.1 > 19).collect::<Vec<_>>();
    assert_eq!(elements(&ours), behind(elements(&real)));
    // Asked from a place on, the real one answers what lies behind it and nothing else.
    let incremental = json_of("sync_history_incremental.json");
    let places: Vec<u64> = elements(&incremental).iter().map(|e| e.1).collect();
    assert_eq!(places, (44..58).collect::<Vec<_>>());
}
