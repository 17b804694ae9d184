//! One row for each recording: what the fold knows at its end, and the state then and later. The rows are in
//! `tests/golden/codex/recordings.txt`; what the scenarios' own notes say is checked besides.

use agent_session_exporter::event::ProgressKind;
use agent_session_exporter::session::Facts;
use serde_json::Value;

use super::folded::{Folded, decode, derived, files, fixtures, read, words};

/// Right after the last record, behind ten minutes, behind six hours.
const LATER: [i64; 3] = [0, 660, 7 * 3600];

fn row(name: &str) -> String {
    let folded = Folded::of(name);
    let f = folded.facts();
    let mut states: Vec<_> = LATER.into_iter().map(|s| folded.state(s)).collect();
    states.dedup();
    format!(
        "{} | turns {} {} {} {} | calls {} {} | {} | signals {} | tokens {} {} {} | {}\n",
        short(name),
        f.turns.started,
        f.turns.completed,
        f.turns.failed,
        f.turns.cancelled,
        f.calls.total,
        f.calls.failed,
        progress(&f),
        signals(&folded),
        f.usage.input,
        f.usage.cache_read,
        f.usage.output,
        states.join(" > "),
    )
}

fn short(name: &str) -> &str {
    let name = name.strip_suffix(".jsonl").unwrap_or(name);
    let name = name.strip_suffix(".rollout").unwrap_or(name);
    name.strip_prefix("codex/").or(name.strip_prefix("public/codex/")).unwrap_or(name)
}

/// Calls since progress, those of the window that bring nothing new, the error streak, the most repeated call.
fn signals(folded: &Folded) -> String {
    let s = super::loops::signals(folded);
    format!(
        "{} {}/{} {} {}",
        s.calls_since_progress, s.nothing_new, s.window_calls, s.error_streak, s.repeated_call_max
    )
}

/// `kind high+low` for each kind that was seen.
fn progress(facts: &Facts) -> String {
    let counts = facts.progress.iter();
    let each: Vec<_> = counts.map(|p| format!("{} {}+{}", p.kind.as_str(), p.high, p.low)).collect();
    each.join(", ")
}

/// Rollouts of both folders and the public streams; the other recorded surfaces are decoded elsewhere.
pub(crate) fn recordings() -> Vec<String> {
    let mut all = files("codex", ".jsonl");
    all.retain(|name| name.contains(".rollout."));
    all.extend(files("public/codex", ".jsonl"));
    all
}

#[test]
fn each_recording_ends_as_its_row_says() {
    let path = fixtures("../golden/codex/recordings.txt");
    let rows: String = recordings().iter().map(|n| row(n)).collect();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &rows).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap();
    for (got, wanted) in rows.lines().zip(wanted.lines()) {
        assert_eq!(got, wanted);
    }
    assert_eq!(rows.lines().count(), wanted.lines().count());
}

fn count(facts: &Facts, kind: ProgressKind) -> (u64, u64) {
    facts.progress.iter().find(|p| p.kind == kind).map_or((0, 0), |p| (p.high, p.low))
}

/// The version of a recording, from its head.
fn version(bytes: &[u8]) -> (u32, u32) {
    let head: Value = serde_json::from_slice(bytes.split(|b| *b == b'\n').next().unwrap()).unwrap();
    let text = head["payload"]["cli_version"].as_str().unwrap_or("0.23.0").to_owned();
    let mut parts = text.split('.').map(|p| p.parse().unwrap());
    (parts.next().unwrap(), parts.next().unwrap())
}

#[test]
fn scenarios_end_as_their_script_says_as_far_as_the_file_can_tell() {
    let expected: Value = serde_json::from_slice(&read("codex/expected.json")).unwrap();
    let mut checked = 0;
    for (scenario, truth) in expected.as_object().unwrap().iter().filter(|(_, t)| t.is_object()) {
        let name = format!("codex/{scenario}.rollout.jsonl");
        let bytes = read(&name);
        let (folded, version) = (Folded::of(&name), version(&bytes));
        let rollout = &truth["rollout.jsonl"];
        let wanted = |field: &str| rollout[field].as_u64().unwrap_or(0);
        let facts = folded.facts();
        let turns = facts.turns;
        // Before turns had a beginning and an end only being aborted was told.
        assert_eq!(
            (turns.started, turns.completed, turns.failed, turns.cancelled),
            (
                wanted("turns_started"),
                wanted("turns_completed"),
                wanted("turns_failed"),
                wanted("turns_aborted")
            ),
            "{scenario}"
        );
        assert_eq!(facts.calls.total, wanted("tool_calls"), "{scenario}: calls");
        if version >= (0, 139) && scenario != "as_legacy" {
            assert_eq!(count(&facts, ProgressKind::FileModified), (wanted("file_edits"), 0), "{scenario}");
        }
        assert_eq!(u64::from(facts.plan_high), wanted("plan_completed_max"), "{scenario}: plan");

        let (now, later) = (folded.state(0), folded.state(7 * 3600));
        let last_turn = truth["last_turn"].as_str().unwrap();
        let ends = match last_turn {
            "cancelled" => now == "cancelled/by_user" && later == now,
            "open_writer_gone" => {
                ["running/working", "progressing/working"].contains(&now.as_str())
                    && later == "unknown/silent_too_long"
            }
            _ if version < (0, 104) => {
                ["running/working", "progressing/working"].contains(&now.as_str())
                    && ["unknown/ended_without_result", "unknown/silent_too_long"].contains(&later.as_str())
            }
            "failed" if version < (0, 148) => now == "unknown/ended_without_result" && later == now,
            "failed" => later.starts_with("failed/") && (now == later || scenario == "usage_limit"),
            "completed" => {
                let run = facts.info.originator.as_ref().is_some_and(|o| o.as_str() == "codex_exec");
                now == if run { "completed/run_complete" } else { "completed/turn_complete" } && later == now
            }
            other => panic!("{other}"),
        };
        assert!(ends, "{scenario}: {last_turn} as {now}, later {later}");
        checked += 1;
    }
    assert_eq!(checked, 81);
}

#[test]
fn tests_and_commits_count_as_the_script_ran_them() {
    let facts = Folded::of("codex/tests_commit.rollout.jsonl").facts();
    // Passed, failed after an edit that broke it, passed again: both passes are news.
    assert_eq!(count(&facts, ProgressKind::TestPassed), (2, 0));
    assert_eq!(count(&facts, ProgressKind::TestFailed), (0, 1));
    assert_eq!(count(&facts, ProgressKind::CommitCreated), (1, 0));
    assert_eq!(count(&facts, ProgressKind::FileModified), (3, 0));
    let failing = Folded::of("codex/tests_fail_then_finish.rollout.jsonl").facts();
    assert_eq!(count(&failing, ProgressKind::TestFailed), (0, 1));
    assert_eq!(failing.calls.failed, 4);
    assert_eq!(failing.last_progress, None);
}

#[test]
fn a_limit_with_a_reset_blocks_until_then() {
    let folded = Folded::of("codex/usage_limit.rollout.jsonl");
    let reset = folded.derived(0).until.expect("the limit said when");
    let snapshot = folded.snapshot();
    assert_eq!(words(derived(&snapshot, reset.plus(-1))), "blocked/usage_limit");
    assert_eq!(words(derived(&snapshot, reset)), "failed/usage_limit");
}

#[test]
fn sub_agents_are_linked_in_both_ways_and_in_any_order() {
    let family = files("public/codex/subagent-parent-link", ".jsonl");
    assert_eq!(family.len(), 3);
    for turn in 0..3 {
        let mut folded = Folded::default();
        for i in 0..3 {
            folded.take(decode(&read(&family[(i + turn) % 3]), "named-by-file"));
        }
        let snapshot = folded.snapshot();
        let root = snapshot.roots().collect::<Vec<_>>();
        assert_eq!(root.len(), 1);
        assert_eq!(snapshot.tree.descendants[&root[0]].len(), 2);
    }
}

#[test]
fn a_sub_agent_counts_for_its_parent_and_ends_without_it() {
    for order in [["", ".2"], [".2", ""]] {
        let mut folded = Folded::default();
        for part in order {
            folded.take(decode(&read(&format!("codex/subagent.rollout{part}.jsonl")), "named-by-file"));
        }
        let snapshot = folded.snapshot();
        let root: Vec<_> = snapshot.roots().collect();
        let rollup = snapshot.rollup(root[0], folded.last()).unwrap();
        assert_eq!((root.len(), rollup.children.len()), (1, 1));
        // Two of the parent's own, one of the child's.
        assert_eq!(rollup.calls().total, 3);
        assert_eq!(rollup.tokens(), Some(4_120 + 3_080));
        assert_eq!(folded.state(0), "completed/run_complete");
    }
}
