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
        for entry in std::fs::read_dir(&folder).expect("fixtures are in the tree") {
            let path = entry.expect("a readable folder").path();
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
            Fact::PlanUpdated { ready: false, items, .. } => {
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
            records.insert(payload["response_id"].to_string(), payload["usage"].clone());
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

#[test]
fn restoring_after_any_line_changes_nothing() {
    for path in recordings() {
        let bytes = read(&path);
        let (whole, _) = decode(&bytes);
        let mut resumed = decoder();
        let mut events = Vec::new();
        for line in lines(&bytes) {
            let _ = resumed.decode(&Record { bytes: line, observed: OBSERVED }, &mut events);
            let checkpoint = resumed.checkpoint();
            assert!(checkpoint.len() <= 64 * 1024, "{}", path.display());
            resumed = Codex::restore(source(), reducer(), &checkpoint).expect("own checkpoint");
        }
        assert_eq!(events, whole, "{}", path.display());
    }
    assert!(Codex::restore(source(), reducer(), b"").is_none());
    assert!(Codex::restore(source(), reducer(), b"\xffnonsense").is_none());
}

#[test]
fn ids_are_there_and_tell_events_apart() {
    for path in recordings() {
        let (events, _) = decode(&read(&path));
        let ids: HashSet<u64> =
            events.iter().map(|e| e.id.expect("every record of a file has an id")).collect();
        assert_eq!(ids.len(), events.len(), "{}", path.display());
    }
}

#[test]
fn every_recorded_kind_is_known() {
    for path in recordings() {
        let mut decoder = decoder();
        decode_with(&mut decoder, &read(&path));
        let kinds = decoder.unknown_kinds();
        let synthetic = path.ends_with("codex_052_raw.jsonl");
        assert_eq!(kinds.is_empty(), !synthetic, "{}: {kinds:?}", path.display());
        assert!(decoder.unknown_kinds().is_empty());
    }
}

/// The fact of the first `SessionStarted`, with the event around it.
fn started(events: &[Event]) -> (&Event, &SessionInfo) {
    events
        .iter()
        .find_map(|e| match &e.fact {
            Fact::SessionStarted(info) => Some((e, info)),
            _ => None,
        })
        .expect("a session starts")
}

fn recorded(name: &str) -> Vec<Event> {
    decode(&read(&fixtures("codex").join(name))).0
}

fn ends(events: &[Event]) -> Vec<(EndOutcome, Option<ErrorClass>)> {
    events
        .iter()
        .filter_map(|e| match e.fact {
            Fact::SessionEnded { outcome, error, .. } => Some((outcome, error)),
            _ => None,
        })
        .collect()
}

fn last_turn_end(events: &[Event]) -> (TurnOutcome, Option<ErrorClass>, Option<i64>, bool) {
    events
        .iter()
        .rev()
        .find_map(|e| match e.fact {
            Fact::TurnEnded { outcome, error, reset, result_known, .. } => {
                Some((outcome, error, reset.map(Timestamp::as_millis), result_known))
            }
            _ => None,
        })
        .expect("a turn ends")
}

#[test]
fn heads_say_who_runs_where() {
    let events = recorded("edit_ok.rollout.jsonl");
    let (event, info) = started(&events);
    assert_eq!(event.session.as_str(), "01a227dd-d360-7271-9b03-36dcd1251d99");
    assert_eq!(event.time, Timestamp::parse("2026-11-29T15:12:58.734Z").ok());
    assert_eq!(event.project, Some(Name::from("project")));
    assert_eq!((event.parent.clone(), info.forked_from.clone()), (None, None));
    assert_eq!(info.version, Some(Name::from("0.171.0")));
    assert_eq!(info.originator, Some(Name::from("codex_exec")));
    assert_eq!((info.interactive, info.provider.clone()), (Some(false), Some(Name::from("fake"))));

    let tui = recorded("tui_approval.rollout.jsonl");
    let (_, info) = started(&tui);
    assert_eq!(info.interactive, Some(true));

    let fork = recorded("fork_thread.rollout.2.jsonl");
    let (event, info) = started(&fork);
    assert_eq!(event.parent, None);
    assert_eq!(info.forked_from, Some(SessionId::from("01a227df-636b-7920-b257-7e09ebda50b2")));

    let child = recorded("subagent.rollout.2.jsonl");
    let (event, info) = started(&child);
    assert_eq!(event.session.as_str(), "01a227df-ca37-75f2-9ff2-f32446b38311");
    assert_eq!(event.parent, Some(SessionId::from("01a227df-c997-7b13-94b4-c6e119841ac3")));
    assert_eq!(info.interactive, Some(false));
    assert!(child.iter().all(|e| e.parent == event.parent));
    assert!(child.iter().any(|e| matches!(e.fact, Fact::Prompt { trigger: Trigger::Machine, .. })));
    assert_eq!(ends(&child), []);

    let mut parents = Vec::new();
    let folder = fixtures("public/codex/subagent-parent-link");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    for file in files {
        let events = decode(&read(&file)).0;
        assert_eq!(started(&events).1.forked_from, None, "{}", file.display());
        parents.push(events[0].parent.as_ref().map(|p| p.as_str().to_owned()));
    }
    let root = Some("019f6249-055d-76d3-b381-cd9d3eb99189".to_owned());
    assert_eq!(parents, [None, root.clone(), root]);
}

#[test]
fn a_review_is_a_child_without_a_known_parent() {
    let events = decode_text(
        r#"{"type":"session_meta","payload":{"id":"a","cli_version":"0.130.0","originator":"codex_exec","source":{"subagent":"review"}}}"#,
    );
    let (event, info) = started(&events);
    assert_eq!((event.parent.clone(), info.interactive), (None, Some(false)));
}

#[test]
fn the_end_of_a_run_is_told_as_far_as_its_version_can() {
    for (file, outcome, error, reset, known) in [
        ("edit_ok", TurnOutcome::Completed, None, None, true),
        ("usage_limit", TurnOutcome::Failed, Some(ErrorClass::UsageLimit), Some(1_795_968_812_000), true),
        ("err_429_fatal", TurnOutcome::Failed, Some(ErrorClass::RateLimit), None, true),
        ("err_401", TurnOutcome::Failed, Some(ErrorClass::Auth), None, true),
        ("err_500_fatal", TurnOutcome::Failed, Some(ErrorClass::Server), None, true),
        ("context_window_exceeded", TurnOutcome::Failed, Some(ErrorClass::ContextOverflow), None, true),
        ("err_400", TurnOutcome::Failed, Some(ErrorClass::Other), None, true),
        ("sigint_in_command", TurnOutcome::Cancelled, None, None, true),
        ("old_0.104.0_fail", TurnOutcome::Completed, None, None, false),
        ("old_0.144.6_fail", TurnOutcome::Completed, None, None, false),
        ("old_0.148.0_fail", TurnOutcome::Failed, Some(ErrorClass::Server), None, true),
        ("old_0.104.0_ok", TurnOutcome::Completed, None, None, true),
        ("old_0.77.0_sigint", TurnOutcome::Cancelled, None, None, true),
    ] {
        let events = recorded(&format!("{file}.rollout.jsonl"));
        assert_eq!(last_turn_end(&events), (outcome, error, reset, known), "{file}");
        let end = match outcome {
            _ if !known => EndOutcome::Unknown,
            TurnOutcome::Completed => EndOutcome::Completed,
            TurnOutcome::Cancelled => EndOutcome::Cancelled,
            _ => EndOutcome::Failed,
        };
        assert_eq!(ends(&events), [(end, error)], "{file}");
    }
    // A compaction or a plan is a result although no message came.
    assert!(last_turn_end(&recorded("as_plan_compact.rollout.jsonl")).3);
    assert_eq!(ends(&recorded("tui_approval.rollout.jsonl")), []);
    for file in ["old_0.39.0_ok", "old_0.47.0_fail", "old_0.94.0_ok", "kill9_in_command"] {
        let events = recorded(&format!("{file}.rollout.jsonl"));
        assert_eq!((counts(&events).completed, ends(&events)), (0, vec![]), "{file}");
    }
}

#[test]
fn capabilities_follow_version_and_policy() {
    let last = |file: &str| {
        let mut set = Capabilities::default();
        for event in recorded(file) {
            if let Fact::SessionStarted(info) | Fact::SessionUpdated(info) = event.fact {
                set = info.capabilities.unwrap_or(set);
            }
        }
        [Capability::Ends, Capability::Liveness, Capability::PendingActions, Capability::Usage]
            .map(|c| set.has(c))
    };
    assert_eq!(last("old_0.23.0_ok.rollout.jsonl"), [false, false, false, false]);
    assert_eq!(last("old_0.94.0_ok.rollout.jsonl"), [false, false, true, true]);
    assert_eq!(last("old_0.144.6_ok.rollout.jsonl"), [true, false, true, true]);
    assert_eq!(last("edit_ok.rollout.jsonl"), [true, true, true, true]);
    assert_eq!(last("as_approval.rollout.jsonl"), [true, true, false, true]);
}

#[test]
fn settings_are_told_once() {
    let events = recorded("old_0.104.0_ok.rollout.jsonl");
    let updates: Vec<_> = events.iter().filter(|e| matches!(e.fact, Fact::SessionUpdated(_))).collect();
    assert_eq!(updates.len(), 1);
    let plan = decode(&read(&fixtures("public/codex/rollout-0.135.0-apply-patch.jsonl"))).0;
    let modes: Vec<_> = plan
        .iter()
        .filter_map(|e| match &e.fact {
            Fact::SessionUpdated(info) => info.mode,
            _ => None,
        })
        .collect();
    assert_eq!(modes, [Mode::Plan, Mode::Build]);
    assert!(plan.iter().any(|e| matches!(e.fact, Fact::PlanUpdated { ready: true, .. })));
    let pending = decode(&read(&fixtures("public/codex/rollout-0.147.0-approval-pending.jsonl"))).0;
    assert!(pending.iter().any(|e| matches!(&e.fact, Fact::SessionUpdated(i) if i.read_only == Some(true))));
}

fn call_starts(events: &[Event]) -> Vec<&CallStart> {
    events
        .iter()
        .filter_map(|e| match &e.fact {
            Fact::ToolStarted(start) => Some(start),
            _ => None,
        })
        .collect()
}

fn call_ends(events: &[Event]) -> Vec<&CallEnd> {
    events
        .iter()
        .filter_map(|e| match &e.fact {
            Fact::ToolEnded(end) => Some(end),
            _ => None,
        })
        .collect()
}

#[test]
fn requests_for_permission_are_told_by_policy() {
    let asks = |file: &str| call_starts(&recorded(file)).iter().map(|s| s.asks).collect::<Vec<_>>();
    assert_eq!(asks("as_approval.rollout.jsonl"), [Some(true), None, Some(true)]);
    assert_eq!(asks("exec_denied.rollout.jsonl"), [Some(false); 3]);
    let outcomes = |file: &str| call_ends(&recorded(file)).iter().map(|s| s.outcome).collect::<Vec<_>>();
    use CallOutcome::{Denied, Error, Interrupted, Ok};
    assert_eq!(outcomes("as_approval.rollout.jsonl"), [Ok, Ok, Denied]);
    assert_eq!(outcomes("exec_denied.rollout.jsonl"), [Denied, Ok, Ok]);
    assert_eq!(outcomes("mcp_calls.rollout.jsonl"), [Ok, Ok, Error]);
    // The late record about the killed command changes nothing.
    assert_eq!(outcomes("tui_approval.rollout.jsonl"), [Ok, Ok, Ok, Interrupted]);
    assert_eq!(outcomes("tests_fail_then_finish.rollout.jsonl"), [Error; 4]);
}

#[test]
fn a_question_is_open_until_its_answer() {
    let actions = |file: &str| {
        recorded(file)
            .iter()
            .filter_map(|e| match &e.fact {
                Fact::ActionRequired { action, kind, certainty, .. } => {
                    assert_eq!((*kind, *certainty), (ActionKind::Question, Certainty::Certain));
                    Some((action.clone(), None))
                }
                Fact::ActionResolved { action, resolution } => Some((action.clone(), Some(*resolution))),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    let id = Id::from("call_0000_0");
    assert_eq!(actions("as_user_input.at_pending0.rollout.jsonl"), [(id.clone(), None)]);
    assert_eq!(
        actions("as_user_input.rollout.jsonl"),
        [(id.clone(), None), (id, Some(Resolution::Answered))]
    );
}

#[test]
fn calls_inside_a_script_are_nested() {
    let events = recorded("code_mode.rollout.jsonl");
    let starts = call_starts(&events);
    assert_eq!(starts.iter().filter(|s| s.nested).count(), 5);
    let test = starts.iter().find(|s| s.commands.has(Commands::TEST)).unwrap();
    let end = call_ends(&events).into_iter().find(|e| e.call == test.call).unwrap();
    assert_eq!((test.nested, end.exit_code), (true, Some(0)));
    let edit = starts.iter().find(|s| s.class == ToolClass::Edit).unwrap();
    assert!(edit.nested);
    let at = |want: &CallStart| {
        events.iter().find(|e| matches!(&e.fact, Fact::ToolStarted(s) if s == want)).unwrap().time
    };
    assert_eq!(at(test), Some(Timestamp::from_millis(1_795_965_305_331)));
}

#[test]
fn equal_calls_have_equal_keys() {
    let events = recorded("loop_reads.rollout.jsonl");
    let keys: HashSet<_> = call_starts(&events).iter().map(|s| s.key).collect();
    assert_eq!(keys.len(), 1);
    let outputs: HashSet<_> = call_ends(&events).iter().map(|s| s.output).collect();
    assert_eq!(outputs.len(), 1);
    let polls = recorded("long_command_polls.rollout.jsonl");
    let keys: HashSet<_> = call_starts(&polls).iter().map(|s| s.key).collect();
    assert_eq!(keys.len(), 2);
    let mcp = recorded("mcp_calls.rollout.jsonl");
    assert_eq!(call_starts(&mcp)[0].tool, Name::from("mcp__notes__lookup"));
    assert_eq!(call_starts(&mcp)[0].class, ToolClass::Mcp);
}

/// A command that is polled until its end, with its own record or without one.
fn polled(command: &str, code: i32, with_item: bool) -> Vec<Event> {
    let line = |payload: Value| {
        serde_json::json!({"timestamp": "2026-11-29T15:14:59.710Z", "type": "response_item", "payload": payload})
            .to_string()
    };
    let call = |id: &str, name: &str, arguments: Value| {
        line(
            serde_json::json!({"type": "function_call", "name": name, "call_id": id, "arguments": arguments.to_string()}),
        )
    };
    let output = |id: &str, text: String| {
        line(serde_json::json!({"type": "function_call_output", "call_id": id, "output": text}))
    };
    let item = serde_json::json!({"timestamp": "2026-11-29T15:14:59.720Z", "type": "event_msg", "payload": {
        "type": "item_completed", "item": {"type": "CommandExecution", "id": "c", "command": ["bash", "-lc", command],
        "status": if code == 0 { "completed" } else { "failed" }, "exit_code": code}}});
    let head = "Chunk ID: 1\nWall time: 1 seconds\n";
    let mut all = vec![
        r#"{"timestamp":"2026-11-29T15:14:47.000Z","type":"session_meta","payload":{"id":"s","cli_version":"0.130.0"}}"#.to_owned(),
        call("c", "exec_command", serde_json::json!({"cmd": command})),
        output("c", format!("{head}Process running with session ID 7\nOutput:\n")),
        call("p", "write_stdin", serde_json::json!({"session_id": 7, "chars": ""})),
    ];
    if with_item {
        all.push(item.to_string());
    }
    all.push(output("p", format!("{head}Process exited with code {code}\nOutput:\n")));
    decode_text(&all.join("\n"))
}

#[test]
fn a_polled_command_counts_for_the_call_that_began_it_once() {
    for with_item in [false, true] {
        for (command, code, kinds) in [
            ("cargo test", 0, vec![ProgressKind::TestPassed]),
            ("cargo test", 101, vec![ProgressKind::TestFailed]),
            (
                "cargo build && git commit -m x",
                0,
                vec![ProgressKind::BuildSucceeded, ProgressKind::CommitCreated],
            ),
            ("git commit -m x", 1, vec![]),
            ("sleep 20", 0, vec![]),
        ] {
            let events = polled(command, code, with_item);
            let got: Vec<_> = events
                .iter()
                .filter_map(|e| match &e.fact {
                    Fact::Progress { kind, call, evidence, .. } => {
                        assert_eq!((call, evidence), (&Some(Id::from("c")), &Evidence::ExitCode));
                        Some(*kind)
                    }
                    _ => None,
                })
                .collect();
            assert_eq!(got, kinds, "{command} {code} {with_item}");
            let ends: Vec<_> = call_ends(&events).iter().map(|e| (e.call.clone(), e.exit_code)).collect();
            assert_eq!(ends, [(Id::from("c"), None), (Id::from("p"), Some(code))]);
        }
    }
}

#[test]
fn goals_and_limits_are_told() {
    let facts = |file: &str| recorded(file).into_iter().map(|e| e.fact).collect::<Vec<_>>();
    let reached = facts("goal_tools.rollout.jsonl")
        .iter()
        .filter(|f| matches!(f, Fact::Progress { kind: ProgressKind::GoalCompleted, .. }))
        .count();
    assert_eq!(reached, 1);
    let blocked = |f: &&Fact| matches!(f, Fact::Blocked { reason: BlockReason::WorkflowBlocked, .. });
    assert_eq!(facts("goal_blocked.rollout.jsonl").iter().filter(blocked).count(), 1);
    let drift = decode(&read(&fixtures("public/codex/format-drift/codex_053_rate_limit.jsonl"))).0;
    assert!(drift.iter().any(|e| matches!(e.fact, Fact::Blocked { reason: BlockReason::RateLimit, .. })));
    let used = |file: &str| {
        recorded(file)
            .into_iter()
            .any(|e| matches!(e.fact, Fact::Usage(u) if u.context_used.is_some_and(|s| s > 0.0 && s < 1.0)))
    };
    assert!(used("edit_ok.rollout.jsonl") && used("old_0.39.0_ok.rollout.jsonl"));
}

#[test]
fn streams_of_exec_are_read_like_files() {
    let expected: Value = serde_json::from_slice(&read(&fixtures("codex/expected.json"))).unwrap();
    let mut checked = 0;
    for (scenario, files) in expected.as_object().unwrap() {
        let Some(truth) = files.get("exec.jsonl") else { continue };
        let (events, errors) = decode(&read(&fixtures("codex").join(format!("{scenario}.exec.jsonl"))));
        assert_eq!(errors, [], "{scenario}");
        assert!(!events.is_empty() && events.iter().all(|e| e.time.is_none()), "{scenario}");
        // The old stream tells a failure by its error line alone.
        if !scenario.starts_with("old_0.23") && !scenario.starts_with("old_0.39") {
            let c = counts(&events);
            assert_eq!(truth["turn_completed"], c.completed, "{scenario}");
            assert_eq!(truth["turn_failed"], c.failed, "{scenario}");
            let retries = events.iter().filter(|e| matches!(e.fact, Fact::Blocked { .. })).count();
            assert_eq!(truth["errors_top_level"], retries, "{scenario}");
        }
        checked += 1;
    }
    assert_eq!(checked, 64);
    for (file, calls, exit_0, edits, plan_done) in [
        ("edit_ok.exec.jsonl", 3, 2, 1, 0),
        ("plan_updates.exec.jsonl", 3, 2, 1, 3),
        ("mcp_calls.exec.jsonl", 3, 0, 0, 0),
        ("old_0.39.0_ok.exec.jsonl", 4, 2, 1, 0),
        ("old_0.23.0_ok.exec.jsonl", 1, 1, 0, 0),
    ] {
        let c = counts(&recorded(file));
        assert_eq!((c.calls, c.exit_0, c.edits, c.plan_done), (calls, exit_0, edits, plan_done), "{file}");
        assert_eq!(c.unanswered, 0, "{file}");
    }
    let old = recorded("old_0.39.0_fail.exec.jsonl");
    assert_eq!(ends(&old), [(EndOutcome::Failed, Some(ErrorClass::Other))]);
}

#[test]
fn synthetic_streams_and_drifted_files() {
    let stream = |name: &str| decode(&read(&fixtures("public/codex").join(name))).0;
    let total = |events: &[Event]| {
        let c = counts(events);
        c.input + c.output
    };

    let limited = stream("exec-json/thread_error_rate_limit.jsonl");
    assert_eq!(ends(&limited), [(EndOutcome::Failed, Some(ErrorClass::RateLimit))]);
    assert!(limited.iter().any(|e| e.fact == Fact::RateLimitSignal { delay_ms: Some(15_000) }));
    assert_eq!(limited[1].request, Some(Id::from("turn_rate_limit")));

    let retried = stream("exec-json/thread_error_retry_then_completed.jsonl");
    assert_eq!((ends(&retried), total(&retried)), (vec![(EndOutcome::Completed, None)], 13));

    let asked = stream("exec-json/thread_tool_requires_approval.jsonl");
    assert!(
        asked.iter().any(|e| matches!(e.fact, Fact::ActionRequired { kind: ActionKind::Permission, .. }))
    );
    assert_eq!((ends(&asked), counts(&asked).completed, total(&asked)), (vec![], 0, 6));

    let compacted = stream("exec-json/thread_usage_compaction.jsonl");
    assert_eq!(counts(&compacted).compactions, 1);
    assert_eq!(total(&compacted), 180 + 20);

    assert_eq!(total(&stream("format-drift/codex_050_legacy.jsonl")), 1_420 + 910);
    assert_eq!(total(&stream("format-drift/codex_051_usage.jsonl")), 4_360);
    assert_eq!(total(&stream("format-drift/codex_053_rate_limit.jsonl")), 12_273);
    let raw = stream("format-drift/codex_052_raw.jsonl");
    assert_eq!(raw.iter().filter(|e| e.fact == Fact::Unknown).count(), 3);
    assert_eq!(counts(&raw).completed, 2);
}

#[test]
fn what_a_fork_copied_gives_no_event() {
    let bytes = read(&fixtures("public/codex/rollout-0.130.0-fork/child.jsonl"));
    let own = decode(&bytes).0;
    let parent = decode(&read(&fixtures("public/codex/rollout-0.130.0-fork/parent.jsonl"))).0;
    let turns: HashSet<_> = parent.iter().filter_map(|e| e.request.clone()).collect();
    assert_eq!(turns.len(), 2);
    assert!(own.iter().all(|e| e.request.as_ref().is_none_or(|r| !turns.contains(r))));
    assert_eq!(started(&own).1.forked_from, Some(SessionId::from("019e5615-1ef8-7270-b988-4f52f86449a4")));
    // Only the head stands before the first line of the own turn.
    let first = Timestamp::parse("2026-05-23T18:25:23.174Z").unwrap();
    assert!(own[1..].iter().all(|e| e.time >= Some(first)));
}

/// A sub-agent's file: its head, `burst` counts at its creation, then `own` counts of 7 tokens each.
fn child_file(head: &str, burst: u64, base: u64, own: u64) -> String {
    let count = |time: &str, total: u64, last: u64| {
        let numbers = |n: u64| serde_json::json!({"input_tokens": n, "output_tokens": 0, "total_tokens": n});
        serde_json::json!({"timestamp": time, "type": "event_msg", "payload": {"type": "token_count", "info": {
            "total_token_usage": numbers(total), "last_token_usage": numbers(last)}}})
        .to_string()
    };
    let mut all = vec![format!(
        r#"{{"timestamp":"2026-05-23T18:25:15.906Z","type":"session_meta","payload":{{"id":"019e5615-9632-7740-b2cf-3061e4ff06e2","cli_version":"0.130.0",{head}}}}}"#
    )];
    let call = r#"{"timestamp":"2026-05-23T18:25:15.910Z","type":"response_item","payload":{"type":"function_call","name":"exec_command","call_id":"old","arguments":"{}"}}"#;
    all.extend((burst > 0).then(|| call.to_owned()));
    all.extend((1..=burst).map(|n| count("2026-05-23T18:25:15.910Z", n * 100, 100)));
    all.extend((1..=own).map(|n| count(&format!("2026-05-23T18:26:{n:02}.000Z"), base + n * 7, 7)));
    all.join("\n")
}

#[test]
fn a_childs_tokens_are_its_own_in_both_shapes() {
    let spawned = r#""source":{"subagent":{"thread_spawn":{"parent_thread_id":"p"}}}"#;
    let forked = r#""forked_from_id":"p","parent_thread_id":"p","thread_source":"subagent""#;
    let alone = r#""source":"cli""#;
    for (head, burst, base, wanted) in [
        // The parent's history, stamped anew.
        (spawned, 500, 50_000, 15 * 7),
        // From zero, although it says that it was forked.
        (forked, 0, 0, 15 * 7),
        // From the parent's total, without its history.
        (forked, 0, 60_000, 15 * 7),
        // Nobody's child owns everything.
        (alone, 3, 300, 300 + 15 * 7),
    ] {
        let events = decode_text(&child_file(head, burst, base, 15));
        let c = counts(&events);
        assert_eq!((c.input, c.calls), (wanted, u64::from(head == alone)), "{head} {burst} {base}");
    }
}

#[test]
fn who_drives_a_thread_is_told_when_it_changes() {
    let line = |turn: &str, trigger: &str| {
        format!(
            r#"{{"timestamp":"2026-11-29T15:14:59.710Z","type":"event_msg","payload":{{"type":"task_started","turn_id":"{turn}","turn_attribution":{{"turn_trigger":"{trigger}"}}}}}}
{{"timestamp":"2026-11-29T15:15:59.710Z","type":"event_msg","payload":{{"type":"task_complete","turn_id":"{turn}","started_at":1,"last_agent_message":"x"}}}}"#
        )
    };
    let head = r#"{"type":"session_meta","payload":{"id":"s","cli_version":"0.171.0","originator":"codex_exec","source":"exec"}}"#;
    let events = decode_text(&[head, &line("a", "exec"), &line("b", "user"), &line("c", "exec")].join("\n"));
    let told: Vec<_> = events
        .iter()
        .filter_map(|e| match &e.fact {
            Fact::SessionUpdated(info) => info.interactive,
            _ => None,
        })
        .collect();
    assert_eq!(told, [true, false]);
    assert_eq!(ends(&events).len(), 2);
}

#[test]
fn calls_between_copied_turns_are_copies() {
    let text = [
        r#"{"timestamp":"2026-05-23T18:25:15.906Z","type":"session_meta","payload":{"id":"019e5615-9632-7740-b2cf-3061e4ff06e2","forked_from_id":"019e5615-1ef8-7270-b988-4f52f86449a4","cli_version":"0.130.0"}}"#,
        r#"{"timestamp":"2026-05-23T18:25:15.907Z","type":"session_meta","payload":{"id":"019e5615-1ef8-7270-b988-4f52f86449a4"}}"#,
        r#"{"timestamp":"2026-05-23T18:25:15.907Z","type":"event_msg","payload":{"type":"task_started","turn_id":"019e5615-6261-7712-936a-db8c0fca200d"}}"#,
        r#"{"timestamp":"2026-05-23T18:25:15.907Z","type":"response_item","payload":{"type":"function_call","name":"exec_command","call_id":"old","arguments":"{\"cmd\":\"ls\"}"}}"#,
        r#"{"timestamp":"2026-05-23T18:25:15.907Z","type":"response_item","payload":{"type":"function_call_output","call_id":"old","output":"Exit code: 0\nOutput:\n"}}"#,
        r#"{"timestamp":"2026-05-23T18:25:15.907Z","type":"token_usage_record","payload":{"response_id":"r1","usage":{"input_tokens":5,"output_tokens":1}}}"#,
        r#"{"timestamp":"2026-05-23T18:25:15.907Z","type":"compacted","payload":{"message":""}}"#,
        r#"{"timestamp":"2026-05-23T18:25:23.174Z","type":"event_msg","payload":{"type":"task_started","turn_id":"019e5615-b2e2-72c1-93cc-b14b70334bc5"}}"#,
        r#"{"timestamp":"2026-05-23T18:25:24.174Z","type":"response_item","payload":{"type":"function_call","name":"exec_command","call_id":"new","arguments":"{\"cmd\":\"ls\"}"}}"#,
    ]
    .join("\n");
    let events = decode_text(&text);
    let c = counts(&events);
    assert_eq!((c.started, c.calls, c.compactions, c.input, c.unanswered), (1, 1, 0, 0, 1));
    assert_eq!(call_starts(&events)[0].call, Id::from("new"));
}

#[test]
fn equal_undated_lines_are_events_of_their_own() {
    let text = "{\"type\":\"thread.started\",\"thread_id\":\"t\"}\n{\"type\":\"turn.started\"}\n{\"type\":\"turn.started\"}";
    let events = decode_text(text);
    assert_ne!(events[1].id, events[2].id);
    let dated =
        r#"{"timestamp":"2026-11-29T15:14:59.710Z","type":"event_msg","payload":{"type":"user_message"}}"#;
    let events = decode_text(&format!("{dated}\n{dated}"));
    assert_eq!(events[0].id, events[1].id);
}

const MARKER: &str = "qzsecretqz";

/// Plants the marker into every text that a person, a model or a command wrote.
fn plant(value: &mut Value, key: &str) {
    const CONTENT: [&str; 41] = [
        "text",
        "message",
        "input",
        "output",
        "aggregated_output",
        "formatted_output",
        "stdout",
        "stderr",
        "unified_diff",
        "content",
        "objective",
        "prompt",
        "last_agent_message",
        "command",
        "cmd",
        "name_hint",
        "step",
        "question",
        "header",
        "description",
        "label",
        "explanation",
        "justification",
        "encrypted_content",
        "instructions",
        "user_instructions",
        "developer_instructions",
        "path",
        "key",
        "summary_text",
        "branch",
        "repository_url",
        "agent_nickname",
        "completed",
        "chunk",
        "answer",
        "completionBudgetReport",
        "move_path",
        "replacement_history",
        "body",
        "tools",
    ];
    match value {
        Value::String(s) if matches!(key, "arguments" | "output") && s.starts_with('{') => {
            // JSON inside a string stays JSON.
            if let Ok(mut inner) = serde_json::from_str::<Value>(s) {
                plant(&mut inner, "");
                *s = inner.to_string();
            }
        }
        Value::String(s) if key == "cwd" || key == "workdir" => *s = format!("/home/{MARKER}/project"),
        Value::String(s) if CONTENT.contains(&key) => {
            s.push(' ');
            s.push_str(MARKER);
        }
        Value::Array(list) => list.iter_mut().for_each(|v| plant(v, key)),
        Value::Object(map) => {
            if key == "changes" {
                *map = std::mem::take(map).into_iter().map(|(k, v)| (format!("{k}{MARKER}"), v)).collect();
            }
            map.iter_mut().for_each(|(k, v)| plant(v, k));
        }
        _ => {}
    }
}

#[test]
fn no_content_is_in_any_event() {
    let mut planted = 0;
    for path in recordings() {
        let bytes = read(&path);
        let marked: Vec<u8> = lines(&bytes)
            .filter_map(|l| serde_json::from_slice::<Value>(l).ok())
            .flat_map(|mut l| {
                plant(&mut l, "");
                let mut text = l.to_string();
                planted += text.matches(MARKER).count();
                text.push('\n');
                text.into_bytes()
            })
            .collect();
        let (events, _) = decode(&marked);
        assert_eq!(events.len(), decode(&bytes).0.len(), "{}", path.display());
        let shown = serde_json::to_string(&events).unwrap();
        assert!(!shown.contains(MARKER), "{}", path.display());
    }
    assert!(planted > 3_000, "{planted}");
}

#[test]
fn damaged_lines_are_counted_by_reason() {
    let mut d = decoder();
    let (mut out, reason) = (Vec::new(), |d: &mut Codex, bytes: &[u8], out: &mut Vec<Event>| {
        d.decode(&Record { bytes, observed: OBSERVED }, out).err()
    });
    for (bytes, error) in [
        (&b"{\"timestamp\":\"2026"[..], Some(DecodeError::Json)),
        (b"\xff\xfe", Some(DecodeError::Json)),
        (b"{\"type\":\"a\",\"payload\":\"\xff\"}", Some(DecodeError::Json)),
        (b"[1,2]", Some(DecodeError::Shape)),
        (b"7", Some(DecodeError::Shape)),
        (b"{}", Some(DecodeError::Shape)),
        (b"{\"type\":7,\"payload\":{}}", Some(DecodeError::Shape)),
        (b"{\"type\":\"event_msg\",\"payload\":[]}", None),
    ] {
        assert_eq!(reason(&mut d, bytes, &mut out), error, "{}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn a_time_that_is_none_leaves_the_record_undated() {
    for time in ["\"yesterday\"", "12", "null", "[]", "\"2026-13-01T00:00:00Z\""] {
        let events = decode_text(&format!(
            "{{\"timestamp\":{time},\"type\":\"event_msg\",\"payload\":{{\"type\":\"user_message\"}}}}"
        ));
        assert_eq!((events.len(), events[0].time), (1, None), "{time}");
    }
}

/// Lines of all recordings that are short enough to be mutated often.
fn short_lines() -> Vec<String> {
    let all = recordings();
    let texts = all.iter().map(|p| String::from_utf8_lossy(&read(p)).into_owned());
    let mut lines: Vec<String> = texts
        .flat_map(|t| t.lines().map(str::to_owned).collect::<Vec<_>>())
        .filter(|l| l.len() < 3_000)
        .collect();
    lines.sort();
    lines.dedup();
    lines
}

/// Something of an unexpected type or size.
fn hostile() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
        Just(Value::from("\"\\\n\u{0}é".repeat(3_000))),
        Just(Value::from(vec![Value::from(1), Value::Null])),
        Just(serde_json::json!({"type": {"type": []}, "": 1})),
    ]
}

/// Puts `with` in the place of the `at`-th value of the tree.
fn replace(value: &mut Value, at: &mut usize, with: &Value) {
    if *at == 0 {
        *value = with.clone();
    }
    *at = at.wrapping_sub(1);
    match value {
        Value::Array(list) => list.iter_mut().for_each(|v| replace(v, at, with)),
        Value::Object(map) => map.values_mut().for_each(|v| replace(v, at, with)),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hostile_lines_never_panic(
        picks in prop::collection::vec((any::<prop::sample::Index>(), 0usize..40, hostile(), any::<prop::sample::Index>()), 1..40)
    ) {
        static LINES: std::sync::LazyLock<Vec<String>> = std::sync::LazyLock::new(short_lines);
        let mut decoder = decoder();
        let mut out = Vec::new();
        for (line, at, with, cut) in picks {
            let text = &LINES[line.index(LINES.len())];
            let mut mutated = text.clone();
            if let Ok(mut value) = serde_json::from_str::<Value>(text) {
                replace(&mut value, &mut at.clone(), &with);
                mutated = value.to_string();
            }
            let end = if at % 5 == 0 { cut.index(mutated.len() + 1) } else { mutated.len() };
            let _ = decoder.decode(&Record { bytes: &mutated.as_bytes()[..end], observed: OBSERVED }, &mut out);
        }
        prop_assert!(decoder.checkpoint().len() <= 64 * 1024);
        for event in &out {
            prop_assert!(event.session.as_str().len() <= 200);
            if let Fact::ToolStarted(start) = &event.fact {
                prop_assert!(start.call.as_str().len() <= 200 && start.tool.as_str().len() <= 200);
            }
        }
    }
}

#[test]
fn a_clock_that_runs_backwards_changes_no_count() {
    for name in ["tests_commit", "tui_approval", "old_0.104.0_ok", "compaction"] {
        let bytes = read(&fixtures("codex").join(format!("{name}.rollout.jsonl")));
        let turned: String = lines(&bytes)
            .enumerate()
            .map(|(n, line)| {
                let mut line: Value = serde_json::from_slice(line).expect("an undamaged recording");
                let time = Timestamp::from_millis(1_795_966_474_000 - n as i64 * 60_000);
                line["timestamp"] = time.to_string().into();
                format!("{line}\n")
            })
            .collect();
        assert_eq!(counts(&decode_text(&turned)), counts(&decode(&bytes).0), "{name}");
    }
}
