//! The Codex decoder against every recording: counts as recorded, the same events however the lines are cut, no
//! content in any event, no panic on damaged or hostile lines.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::*;
use agent_session_exporter::sources::codex::Codex;
use agent_session_exporter::sources::{Decode, DecodeError, Record};
use proptest::prelude::*;
use serde_json::Value;

const OBSERVED: Timestamp = Timestamp::from_millis(1_800_000_000_000);

fn fixtures(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(folder)
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every recording, of both folders.
fn recordings() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![fixtures("codex"), fixtures("public/codex")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "jsonl") {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(found.len() > 150, "{}", found.len());
    found
}

fn source() -> SourceId {
    SourceId::from("codex")
}

fn reducer() -> Arc<Reducer> {
    Arc::new(Reducer::new([7; 16], Runners::default()))
}

/// A decoder as the reader of a file makes it. The oldest streams name no session at all.
fn decoder() -> Codex {
    Codex::new(source(), reducer()).named("named-by-file")
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty())
}

fn decode_with(decoder: &mut Codex, bytes: &[u8]) -> (Vec<Event>, Vec<DecodeError>) {
    let (mut events, mut errors) = (Vec::new(), Vec::new());
    for line in lines(bytes) {
        if let Err(error) = decoder.decode(&Record { bytes: line, observed: OBSERVED }, &mut events) {
            errors.push(error);
        }
    }
    (events, errors)
}

fn decode(bytes: &[u8]) -> (Vec<Event>, Vec<DecodeError>) {
    decode_with(&mut decoder(), bytes)
}

fn decode_text(text: &str) -> Vec<Event> {
    decode(text.as_bytes()).0
}

/// Plain counts over events.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    started: u64,
    completed: u64,
    failed: u64,
    aborted: u64,
    unknown_results: u64,
    prompts: u64,
    calls: u64,
    unanswered: u64,
    exit_0: u64,
    exit_nonzero: u64,
    edits: u64,
    plans: u64,
    plan_done: u64,
    compactions: u64,
    responses: u64,
    input: u64,
    cached: u64,
    output: u64,
}

fn counts(events: &[Event]) -> Counts {
    let mut c = Counts::default();
    let mut open = HashSet::new();
    let mut responses = HashSet::new();
    for event in events {
        match &event.fact {
            Fact::TurnStarted { .. } => c.started += 1,
            Fact::TurnEnded { outcome, result_known, .. } => {
                c.unknown_results += u64::from(!result_known);
                match outcome {
                    TurnOutcome::Completed => c.completed += 1,
                    TurnOutcome::Failed => c.failed += 1,
                    TurnOutcome::Cancelled => c.aborted += 1,
                    other => panic!("{other:?}"),
                }
            }
            Fact::Prompt { .. } => c.prompts += 1,
            Fact::ToolStarted(start) if !start.nested => {
                c.calls += 1;
                open.insert(start.call.clone());
            }
            Fact::ToolEnded(end) => {
                open.remove(&end.call);
                c.exit_0 += u64::from(end.exit_code == Some(0));
                c.exit_nonzero += u64::from(end.exit_code.is_some_and(|x| x != 0));
                c.edits += u64::from(end.outcome == CallOutcome::Ok && end.diff_lines.is_some_and(|l| l > 0));
            }
            Fact::PlanUpdated { ready: false, items } => {
                c.plans += 1;
                c.plan_done = c.plan_done.max(u64::from(items.done));
            }
            Fact::StepCompleted { step, .. } if step.kind == StepKind::Compaction => c.compactions += 1,
            Fact::Usage(usage) => {
                if let Some(response) = &usage.response
                    && !responses.insert(response.clone())
                {
                    continue;
                }
                c.input += usage.input + usage.cache_read + usage.cache_write;
                c.cached += usage.cache_read;
                c.output += usage.output;
            }
            _ => {}
        }
    }
    c.unanswered = open.len() as u64;
    c.responses = responses.len() as u64;
    c
}

/// What the file's own records say of tokens: the sum over responses, else the last total.
fn tokens_in(bytes: &[u8]) -> (u64, u64, u64) {
    let mut records = BTreeMap::new();
    let mut total = Value::Null;
    for line in lines(bytes) {
        let Ok(line) = serde_json::from_slice::<Value>(line) else { continue };
        let payload = &line["payload"];
        if line["type"] == "token_usage_record" {
            records.insert(payload["response_id"].as_str().unwrap().to_owned(), payload["usage"].clone());
        } else if payload["info"]["total_token_usage"].is_object() {
            total = payload["info"]["total_token_usage"].clone();
        }
    }
    let usages: Vec<Value> = if records.is_empty() { vec![total] } else { records.into_values().collect() };
    let sum = |field: &str| usages.iter().map(|u| u[field].as_u64().unwrap_or(0)).sum();
    (sum("input_tokens"), sum("cached_input_tokens"), sum("output_tokens"))
}

/// Items about commands, and how many of them are the late ones of killed commands.
fn command_items(bytes: &[u8]) -> (usize, u64) {
    let codes: Vec<i64> = lines(bytes)
        .filter_map(|l| serde_json::from_slice::<Value>(l).ok())
        .filter(|l| l["payload"]["item"]["type"] == "CommandExecution")
        .filter_map(|l| l["payload"]["item"]["exit_code"].as_i64())
        .collect();
    (codes.len(), codes.iter().filter(|c| **c == -1).count() as u64)
}

#[test]
fn recorded_scenarios_give_the_expected_counts() {
    let expected: Value = serde_json::from_slice(&read(&fixtures("codex/expected.json"))).unwrap();
    let mut checked = 0;
    for (scenario, files) in expected.as_object().unwrap() {
        let Some(files) = files.as_object() else { continue };
        for (file, truth) in
            files.iter().filter(|(f, _)| f.ends_with("rollout.jsonl") || f.contains("rollout."))
        {
            let name = format!("{scenario}.{file}");
            let bytes = read(&fixtures("codex").join(&name));
            let (events, errors) = decode(&bytes);
            let c = counts(&events);
            let wanted = |field: &str| truth[field].as_u64().unwrap_or(0);
            assert_eq!(errors.len() as u64, wanted("malformed"), "{name}");
            for (field, got) in [
                ("turns_started", c.started),
                ("turns_completed", c.completed),
                ("turns_failed", c.failed),
                ("turns_aborted", c.aborted),
                ("tool_calls", c.calls),
                ("plan_updates", c.plans),
                ("plan_completed_max", c.plan_done),
                ("compactions", c.compactions),
                ("model_responses", c.responses),
                ("tool_calls_unanswered", c.unanswered),
            ] {
                assert_eq!(got, wanted(field), "{name}: {field}");
            }
            // Before items the harness's text tells exit codes, and the patch's own success line the edit.
            let (items, killed) = command_items(&bytes);
            let by_text = match scenario.as_str() {
                "old_0.23.0_ok" => Some((1, 0, 0)),
                "as_legacy" => Some((2, 0, 1)),
                s if s.starts_with("old_") && items == 0 && s.ends_with("_ok") => Some((2, 1, 1)),
                s if s.starts_with("old_") && items == 0 && s.ends_with("_fail") => Some((1, 0, 0)),
                _ => None,
            };
            let (zero, nonzero, edits) = by_text.unwrap_or((
                wanted("commands_exit_0"),
                wanted("commands_exit_nonzero") - killed,
                wanted("file_edits"),
            ));
            assert_eq!((c.exit_0, c.exit_nonzero, c.edits), (zero, nonzero, edits), "{name}");
            assert_eq!((c.input, c.cached, c.output), tokens_in(&bytes), "{name}: tokens");
            checked += 1;
        }
    }
    assert_eq!(checked, 93);
}

#[test]
fn public_files_give_the_published_counts() {
    // file, prompts, turns started, completed, aborted, calls, edits, exit 0, input, cached, output
    let table = [
        ("rollout-0.104.0-alpha.1-unanswered-exec.jsonl", [1, 1, 0, 0, 1, 0, 0, 34_469, 3_456, 431]),
        // Outputs are masked there, so that no exit code and no "Success." is left.
        ("rollout-0.104.0-alpha.1-long.jsonl", [5, 5, 5, 0, 104, 0, 0, 7_204_025, 6_836_352, 36_075]),
        ("rollout-0.130.0-turn-aborted.jsonl", [2, 2, 1, 1, 0, 0, 0, 27_045, 26_496, 25]),
        ("rollout-0.130.0-fork/parent.jsonl", [2, 2, 2, 0, 0, 0, 0, 60_536, 36_608, 25]),
        // Only what is new: 30,300 tokens.
        ("rollout-0.130.0-fork/child.jsonl", [1, 1, 1, 0, 0, 0, 0, 30_295, 6_528, 5]),
        ("rollout-0.130.0-polling-20-identical.jsonl", [2, 1, 1, 0, 20, 0, 20, 664_822, 608_128, 1_396]),
        ("rollout-0.135.0-apply-patch.jsonl", [3, 2, 2, 0, 2, 1, 1, 128_728, 99_840, 360]),
        ("rollout-0.147.0-approval-pending.jsonl", [1, 1, 0, 0, 2, 0, 0, 22_724, 11_008, 177]),
        ("rollout-bare-era-no-line-timestamps.jsonl", [1, 0, 0, 0, 18, 0, 14, 0, 0, 0]),
    ];
    for (file, wanted) in table {
        let (events, errors) = decode(&read(&fixtures("public/codex").join(file)));
        assert_eq!(errors, [], "{file}");
        let c = counts(&events);
        let got = [
            c.prompts,
            c.started,
            c.completed,
            c.aborted,
            c.calls,
            c.edits,
            c.exit_0,
            c.input,
            c.cached,
            c.output,
        ];
        assert_eq!(got, wanted, "{file}");
        assert_eq!(c.unknown_results, 0, "{file}");
    }
}
