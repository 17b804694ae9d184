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
