//! What the table of scenarios says, as far as a transcript and its registry can tell it.

use std::collections::{BTreeMap, HashMap};

use agent_session_exporter::event::{
    CallOutcome, Counting, ErrorClass, Event, Fact, ProgressKind, StepKind, Timestamp, TurnOutcome,
};
use agent_session_exporter::session::Facts;

use super::folded::{Folded, decode, text, words};
use super::moments::{Play, clock, of_scenario, scenarios};
use super::recordings::is_prompt;

/// Final state with the registry's word, and from the transcript alone where that differs: right at the end, then
/// seven hours later.
const FINAL: &[(&str, &str, &[&str])] = &[
    ("api-400", "failed/error", &[]),
    ("api-401", "failed/process_gone", &["blocked/auth", "unknown/silent_too_long"]),
    ("api-429", "completed/turn_complete", &[]),
    ("api-429-exhausted", "failed/rate_limit", &[]),
    ("api-500-exhausted", "failed/error", &[]),
    ("api-529", "completed/turn_complete", &[]),
    ("ask-question", "completed/turn_complete", &[]),
    ("compact-auto", "completed/turn_complete", &[]),
    ("compact-clear", "completed/turn_complete", &[]),
    ("denied-p", "completed/turn_complete", &[]),
    ("edit-ok", "completed/turn_complete", &[]),
    ("hang-mid-stream", "cancelled/by_user", &[]),
    ("hang-no-headers", "cancelled/by_user", &[]),
    ("hang-watchdog", "completed/turn_complete", &[]),
    ("invalid-calls", "completed/turn_complete", &[]),
    ("kill9", "failed/process_gone", &["progressing/working", "unknown/silent_too_long"]),
    ("kill9-subagent", "failed/process_gone", &["running/working", "unknown/silent_too_long"]),
    ("kill9-tui", "failed/process_gone", &["running/working", "unknown/silent_too_long"]),
    ("loop-reads", "completed/turn_complete", &[]),
    ("perm-auto-mode", "completed/turn_complete", &[]),
    ("perm-manual", "completed/turn_complete", &[]),
    ("perm-reject-interrupt", "cancelled/by_user", &[]),
    ("plan-approval", "completed/turn_complete", &[]),
    ("resume-fork", "completed/turn_complete", &[]),
    ("sigint-tool", "cancelled/by_user", &[]),
    ("sigterm-tool", "cancelled/by_user", &[]),
    ("subagent", "completed/turn_complete", &[]),
    ("subagent-bg", "completed/turn_complete", &[]),
    ("test-commit", "completed/turn_complete", &[]),
    ("todo", "completed/turn_complete", &[]),
    ("todo-legacy", "completed/turn_complete", &[]),
];

fn all_states(folded: &Folded, now: Timestamp) -> Vec<String> {
    folded.derived(now).into_iter().map(words).collect()
}

#[test]
fn each_scenario_ends_as_its_table_says() {
    let names: Vec<_> = FINAL.iter().map(|row| row.0).collect();
    assert_eq!(scenarios(), names);
    let table = text("claude_code/README.md");
    for (scenario, last, alone) in FINAL {
        assert!(table.contains(&format!("`{scenario}`")), "{scenario}");
        let known = Play::new(scenario, true).whole();
        for seconds in [0, 660, 7 * 3600] {
            for state in all_states(&known, known.last().plus(seconds * 1000)) {
                assert_eq!(state, *last, "{scenario} after {seconds} s");
            }
        }
        let file_only = Play::new(scenario, false).whole();
        let default = [*last, *last];
        let alone = if alone.is_empty() { &default[..] } else { alone };
        for (wanted, seconds) in alone.iter().zip([0, 7 * 3600]) {
            for state in all_states(&file_only, file_only.last().plus(seconds * 1000)) {
                assert_eq!(state, *wanted, "{scenario} without its registry, after {seconds} s");
            }
        }
    }
}

/// Scenario, clock, state with the registry's word, state from the transcript alone.
const ON_THE_WAY: &[(&str, &str, &str, &str)] = &[
    ("api-429", "15:28:15.000", "blocked/rate_limit", "blocked/rate_limit"),
    ("api-429", "15:28:18.000", "blocked/rate_limit", "blocked/rate_limit"),
    ("api-429", "15:28:18.500", "running/working", "running/working"),
    ("api-429", "15:28:19.000", "blocked/rate_limit", "blocked/rate_limit"),
    ("api-529", "15:28:22.500", "blocked/retry", "blocked/retry"),
    ("api-401", "15:29:52.000", "blocked/auth", "blocked/auth"),
    ("api-401", "15:30:28.000", "blocked/auth", "blocked/auth"),
    ("hang-no-headers", "15:32:20.000", "running/working", "running/working"),
    ("hang-mid-stream", "15:31:40.000", "running/working", "running/working"),
    ("hang-watchdog", "15:30:52.450", "running/working", "running/working"),
    ("sigint-tool", "15:29:18.000", "running/working", "running/working"),
    ("kill9", "15:29:36.000", "progressing/working", "progressing/working"),
    ("perm-manual", "15:29:50.000", "waiting_for_user/permission", "running/working"),
    ("perm-manual", "15:29:58.300", "progressing/working", "progressing/working"),
    ("perm-manual", "15:30:30.000", "waiting_for_user/permission", "progressing/working"),
    ("perm-manual", "15:31:30.000", "completed/turn_complete", "completed/turn_complete"),
    ("perm-auto-mode", "15:28:10.000", "waiting_for_user/other", "progressing/working"),
    ("perm-auto-mode", "15:29:10.000", "waiting_for_user/permission", "progressing/working"),
    ("perm-auto-mode", "15:29:30.000", "cancelled/denied", "cancelled/denied"),
    ("ask-question", "15:32:50.000", "waiting_for_user/question", "waiting_for_user/question"),
    ("ask-question", "15:32:52.200", "running/working", "running/working"),
    ("plan-approval", "15:36:05.000", "waiting_for_user/plan_approval", "waiting_for_user/plan_approval"),
    ("plan-approval", "15:36:10.900", "progressing/working", "progressing/working"),
    ("perm-reject-interrupt", "15:34:32.000", "waiting_for_user/permission", "running/working"),
    ("perm-reject-interrupt", "15:34:33.500", "cancelled/denied", "cancelled/denied"),
    ("perm-reject-interrupt", "15:34:40.000", "running/working", "running/working"),
    ("perm-reject-interrupt", "15:34:44.000", "cancelled/by_user", "cancelled/by_user"),
    ("subagent-bg", "15:29:04.000", "running/working", "running/working"),
    ("subagent-bg", "15:29:07.700", "progressing/working", "progressing/working"),
];

#[test]
fn states_on_the_way_are_those_of_the_recorded_moments() {
    let mut wrong = Vec::new();
    for (scenario, time, with, alone) in ON_THE_WAY {
        let now = clock(time);
        let found = [true, false].map(|registry| Play::new(scenario, registry).until(now).state(now));
        if found != [*with, *alone] {
            wrong.push(format!("{scenario} at {time}: {found:?} instead of {:?}", [with, alone]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_retry_says_which_one_it_is_and_when_it_comes() {
    for (scenario, time, attempt, until) in [
        ("api-429", "15:28:15.000", 1, "15:28:17.216"),
        ("api-429", "15:28:18.000", 2, "15:28:18.422"),
        ("api-429", "15:28:19.000", 1, "15:28:19.507"),
        ("api-401", "15:30:28.000", 7, "15:31:05.585"),
    ] {
        let known = Play::new(scenario, true).until(clock(time));
        let blocked = known.root().blocked.unwrap();
        assert_eq!((blocked.attempt, blocked.until), (Some(attempt), Some(clock(until))), "{scenario}");
    }
    // Past its announced time it is blocked still.
    let late = clock("15:31:06.000");
    assert_eq!(Play::new("api-401", false).until(late).state(late), "blocked/reset_passed");
    assert_eq!(retries("api-529"), 4);
    assert_eq!(retries("api-429"), 3);
    assert_eq!(retries("api-401"), 7);
    assert_eq!(retries("api-500-exhausted"), 2);
}

#[test]
fn a_failed_turn_says_by_which_error() {
    for (scenario, error) in [
        ("api-400", ErrorClass::InvalidRequest),
        ("api-429-exhausted", ErrorClass::RateLimit),
        ("api-500-exhausted", ErrorClass::Server),
    ] {
        let end = root(scenario).turn_end.clone().unwrap();
        assert_eq!((end.outcome, end.error), (TurnOutcome::Failed, Some(error)), "{scenario}");
    }
}

fn retries(scenario: &str) -> usize {
    facts(scenario).iter().filter(|f| matches!(f, Fact::Blocked { .. })).count()
}

#[test]
fn silence_without_an_excuse_stalls_and_a_call_excuses_it() {
    for (scenario, time, silent) in [
        ("hang-no-headers", "15:32:20.000", "stalled/silent"),
        ("hang-mid-stream", "15:31:40.000", "stalled/silent"),
        ("sigint-tool", "15:29:18.000", "running/working"),
        ("api-401", "15:30:28.000", "blocked/reset_passed"),
        ("ask-question", "15:32:50.000", "waiting_for_user/question"),
        ("perm-manual", "15:30:30.000", "waiting_for_user/permission"),
    ] {
        let cut = clock(time);
        let known = Play::new(scenario, true).until(cut);
        assert_eq!(known.state(cut.plus(11 * 60_000)), silent, "{scenario}");
    }
}

#[test]
fn waiting_began_when_it_was_asked() {
    for (scenario, time, since) in [
        ("ask-question", "15:32:50.000", "15:32:42.611"),
        ("plan-approval", "15:36:05.000", "15:36:03.712"),
        ("perm-manual", "15:29:50.000", "15:29:45.891"),
        ("perm-manual", "15:30:30.000", "15:29:58.683"),
    ] {
        let now = clock(time);
        let known = Play::new(scenario, true).until(now);
        assert_eq!(known.derived(now)[0].since, clock(since), "{scenario} at {time}");
    }
}

fn facts(scenario: &str) -> Vec<Fact> {
    Play::new(scenario, false).events().map(|e| e.fact.clone()).collect()
}

fn prompts(scenario: &str) -> usize {
    facts(scenario).iter().filter(|fact| is_prompt(fact)).count()
}

fn compactions(scenario: &str) -> usize {
    let is = |f: &&Fact| matches!(f, Fact::StepCompleted { step, .. } if step.kind == StepKind::Compaction);
    facts(scenario).iter().filter(is).count()
}

fn root(scenario: &str) -> std::sync::Arc<Facts> {
    Play::new(scenario, false).whole().root()
}

fn count(facts: &Facts, kind: ProgressKind) -> (u64, u64) {
    facts.progress.iter().find(|p| p.kind == kind).map_or((0, 0), |p| (p.high, p.low))
}

#[test]
fn turns_are_counted_once() {
    for (scenario, turns) in [
        ("hang-mid-stream", (1, 0, 0, 1)),
        ("hang-no-headers", (1, 0, 0, 1)),
        ("hang-watchdog", (1, 1, 0, 0)),
        ("sigint-tool", (1, 0, 0, 1)),
        ("sigterm-tool", (1, 0, 0, 1)),
        ("perm-reject-interrupt", (3, 0, 0, 3)),
        ("perm-auto-mode", (2, 1, 0, 1)),
        ("perm-manual", (2, 2, 0, 0)),
        ("api-500-exhausted", (1, 0, 1, 0)),
        ("compact-auto", (1, 1, 0, 0)),
        ("subagent-bg", (2, 2, 0, 0)),
        ("subagent", (1, 1, 0, 0)),
    ] {
        let t = root(scenario).turns;
        assert_eq!((t.started, t.completed, t.failed, t.cancelled), turns, "{scenario}");
    }
    let ends: Vec<_> = facts("perm-reject-interrupt")
        .into_iter()
        .filter_map(|f| match f {
            Fact::TurnEnded { outcome, denied, .. } => Some((outcome, denied)),
            _ => None,
        })
        .collect();
    let by_user = (TurnOutcome::Cancelled, false);
    assert_eq!(ends, [(TurnOutcome::Cancelled, true), by_user, by_user]);
}

#[test]
fn prompts_are_what_a_person_asked() {
    for (scenario, by_person) in [
        ("edit-ok", 1),
        ("compact-auto", 1),
        // Two in the first session, one in the second; neither the commands nor the summaries.
        ("compact-clear", 3),
        ("subagent-bg", 1),
        ("hang-watchdog", 1),
        ("resume-fork", 4),
        ("perm-reject-interrupt", 3),
    ] {
        assert_eq!(prompts(scenario), by_person, "{scenario}");
    }
    assert_eq!(compactions("compact-auto"), 1);
    assert_eq!(compactions("compact-clear"), 1);
}

#[test]
fn a_background_agent_wakes_its_parent_without_a_person() {
    let play = Play::new("subagent-bg", true);
    // The parent's own turn is over, the child works.
    let now = clock("15:29:06.000");
    let known = play.until(now);
    assert!(known.root().turn.is_none());
    let snapshot = known.snapshot();
    let slot = snapshot.roots().next().unwrap();
    assert_eq!(snapshot.rollup(slot, now).unwrap().subagents(), (1, 0));
    let whole = play.whole();
    let child = whole.all().into_iter().find(|f| f.parent.is_some()).unwrap();
    assert_eq!((child.turns.started, child.turns.completed), (1, 1));
    assert_eq!(whole.root().machine_turns.count_after(None), 1);
}

#[test]
fn sub_agents_are_their_parents_in_whichever_order_files_are_read() {
    for (scenario, children, calls) in [("subagent", 2, 6), ("subagent-bg", 1, 3), ("kill9-subagent", 1, 3)] {
        let mut files = of_scenario(scenario);
        assert_eq!(files.len(), 1 + children);
        let wanted = Folded::of(decode(&files)).all();
        let written = Play::new(scenario, false).whole();
        for _ in 0..files.len() {
            files.rotate_left(1);
            let folded = Folded::of(decode(&files));
            assert_eq!(folded.all(), wanted, "{scenario}");
            let snapshot = folded.snapshot();
            let slot = snapshot.roots().next().unwrap();
            let tree = snapshot.rollup(slot, folded.last()).unwrap();
            assert_eq!((tree.children.len(), tree.calls().total), (children, calls), "{scenario}");
        }
        // Nor does it matter that their lines are read as they are written.
        for (live, read) in written.all().iter().zip(&wanted) {
            let known = |f: &Facts| {
                (f.turns, f.calls, f.usage, f.progress.clone(), f.last_activity, f.parent.clone())
            };
            assert_eq!(known(live), known(read), "{scenario}");
        }
    }
}

#[test]
fn a_killed_process_takes_its_sub_agent_with_it() {
    let known = Play::new("kill9-subagent", true).whole();
    let snapshot = known.snapshot();
    let tree = snapshot.rollup(snapshot.roots().next().unwrap(), known.last()).unwrap();
    assert_eq!(tree.subagents(), (0, 0));
    let later = known.last().plus(6_000);
    assert_eq!(known.state(later), "failed/process_gone");
    let tree = snapshot.rollup(snapshot.roots().next().unwrap(), later).unwrap();
    assert_eq!(tree.calls().in_flight, 0);
}

#[test]
fn plans_tests_and_commits_advance_as_recorded() {
    let todo = root("todo");
    let items = todo.plan.unwrap();
    assert_eq!((items.done, items.done + items.pending + items.in_progress + items.failed), (2, 3));
    assert_eq!(count(&todo, ProgressKind::TaskCompleted), (2, 0));
    assert_eq!(count(&todo, ProgressKind::StepCompleted), (0, 0));
    let legacy = root("todo-legacy");
    assert_eq!((legacy.plan.unwrap().done, legacy.plan_high), (3, 3));
    assert_eq!(count(&legacy, ProgressKind::StepCompleted).0, 3);
    assert_eq!(count(&legacy, ProgressKind::TaskCompleted), (0, 0));
    let commit = root("test-commit");
    assert_eq!(count(&commit, ProgressKind::CommitCreated), (1, 0));
    assert_eq!(count(&commit, ProgressKind::FileModified), (1, 0));
    assert_eq!(commit.calls.failed, 1);
}

#[test]
fn loops_and_failing_calls_show_as_such() {
    let reads = Play::new("loop-reads", false);
    let root_of_reads = reads.whole().root();
    assert_eq!(root_of_reads.last_progress, None);
    assert_eq!(root_of_reads.calls_since_progress(), 9);
    assert_eq!(repeated(reads.events()), 6);
    let calls = facts("invalid-calls");
    let ends: Vec<_> = calls
        .iter()
        .filter_map(|f| match f {
            Fact::ToolEnded(end) => Some(end),
            _ => None,
        })
        .collect();
    assert_eq!(ends.len(), 9);
    assert_eq!(ends.iter().filter(|end| end.outcome == CallOutcome::Error).count(), 7);
    assert_eq!(root("invalid-calls").calls.failed, 7);
    // The same edit failed in the same way three times.
    let errors: Vec<_> = ends.iter().filter_map(|end| end.error).collect();
    assert_eq!(errors[0], errors[1]);
    assert_eq!(errors[1], errors[2]);
    assert_ne!(errors[2], errors[3]);
    let denied = facts("denied-p");
    let refused = |f: &&Fact| matches!(f, Fact::ToolEnded(end) if end.outcome == CallOutcome::Denied);
    assert_eq!(denied.iter().filter(refused).count(), 2);
}

/// How often the most frequent call was made.
pub(crate) fn repeated<'a>(events: impl Iterator<Item = &'a Event>) -> u64 {
    let mut keys: HashMap<u64, u64> = HashMap::new();
    for event in events {
        if let Fact::ToolStarted(start) = &event.fact
            && let Some(key) = start.key
        {
            *keys.entry(key).or_default() += 1;
        }
    }
    keys.into_values().max().unwrap_or(0)
}

/// Output tokens that were counted.
fn output(events: &[Event]) -> u64 {
    let told = events.iter().filter(|e| e.counting != Counting::Never);
    told.filter_map(|e| match &e.fact {
        Fact::Usage(usage) => Some(usage.output),
        _ => None,
    })
    .sum()
}

#[test]
fn tokens_are_counted_once_for_each_message_of_a_home() {
    let table = text("claude_code/README.md");
    let table = table.split("## Usage: how to count").nth(1).unwrap();
    let mut wanted = BTreeMap::new();
    for row in table.lines().filter(|l| l.starts_with("| ")).skip(1) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let scenario = cells[1].split(' ').next().unwrap();
        wanted.insert(scenario.to_owned(), cells[4].parse::<u64>().unwrap());
        if wanted.len() == 4 {
            break;
        }
    }
    assert_eq!(wanted.keys().collect::<Vec<_>>(), ["compact-auto", "edit-ok", "resume-fork", "subagent"]);
    for (scenario, tokens) in wanted {
        let mut files = of_scenario(&scenario);
        assert_eq!(output(&decode(&files)), tokens, "{scenario}");
        files.reverse();
        assert_eq!(output(&decode(&files)), tokens, "{scenario}, the other way round");
    }
}

#[test]
fn a_fork_knows_only_what_it_did_itself() {
    let known = Folded::of(decode(&of_scenario("resume-fork")));
    let all = known.all();
    assert_eq!(all.len(), 2);
    let fork = all.iter().find(|f| f.info.forked_from.is_some()).unwrap();
    let old = all.iter().find(|f| f.info.forked_from.is_none()).unwrap();
    assert_eq!(fork.info.forked_from.as_ref(), Some(&old.session));
    assert!(fork.parent.is_none());
    for f in [fork, old] {
        assert_eq!((f.turns.started, f.turns.completed), (2, 2), "{}", f.session.as_str());
    }
    assert_eq!(fork.usage.output + old.usage.output, 447);
}
