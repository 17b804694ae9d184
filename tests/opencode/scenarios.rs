//! Every recorded scenario, whole: what was told on the way stands in `tests/golden/opencode`, and the end is that of
//! the table of the recordings.

use agent_session_exporter::sources::opencode::DEF;

use super::folded::{Folded, story, words};
use super::play::{Play, reducer};
use super::recorded::{golden, scenarios};

/// The table of the recordings: how each session of a scenario ends, in the order in which they began.
const TRUTH: &[(&str, &[&str])] = &[
    ("abort", &["completed/turn_complete", "cancelled/by_user"]),
    ("compaction", &["completed/turn_complete"]),
    ("dispose_busy", &["cancelled/by_user"]),
    ("doom_loop", &["failed/error"]),
    ("edit_error", &["completed/turn_complete"]),
    ("edit_task", &["completed/turn_complete"]),
    (
        "model_errors",
        &[
            "completed/turn_complete",
            "completed/turn_complete",
            "failed/error",
            "failed/auth",
            "completed/turn_complete",
            "failed/truncated",
            "completed/turn_complete",
        ],
    ),
    ("model_hang", &["cancelled/by_user", "completed/turn_complete"]),
    ("multi_dir", &["completed/turn_complete"]),
    ("no_git", &["completed/turn_complete"]),
    ("noop_write", &["completed/turn_complete"]),
    ("permission_ask", &["cancelled/denied"]),
    ("permission_edit", &["completed/turn_complete"]),
    ("question", &["cancelled/denied"]),
    // The third is a fork: copied history, and nothing of its own.
    ("queued_prompt", &["completed/turn_complete", "completed/turn_complete", "queued/starting"]),
    ("read_loop", &["completed/turn_complete"]),
    ("retry_abort", &["cancelled/by_user", "cancelled/by_user"]),
    ("retry_midrun", &["completed/turn_complete"]),
    ("server_restart", &["completed/turn_complete"]),
    ("session_deleted", &["cancelled/deleted", "cancelled/deleted", "queued/starting"]),
    ("subagent", &["completed/turn_complete"]),
    ("test_commit", &["completed/turn_complete"]),
    ("todo_incomplete", &["completed/turn_complete"]),
    ("todo_steps", &["completed/turn_complete"]),
    ("two_servers", &["cancelled/by_user"]),
    ("v2_session", &["cancelled/by_user"]),
];

fn high(folded: &Folded, kind: &str) -> u64 {
    let all = folded.all();
    all.iter().flat_map(|f| &f.progress).filter(|p| p.kind.as_str() == kind).map(|p| p.high).sum()
}

fn whole(scenario: &str) -> (Play, Folded) {
    let play = Play::whole(scenario);
    let folded = Folded::of(play.events.iter().map(|(_, event)| event));
    (play, folded)
}

#[test]
fn each_scenario_ends_as_the_table_of_the_recordings_says() {
    let named: Vec<&str> = TRUTH.iter().map(|(name, _)| *name).collect();
    assert_eq!(scenarios(), named);
    for (scenario, ends) in TRUTH {
        let (play, folded) = whole(scenario);
        let states = folded.states(play.now());
        let mut roots: Vec<_> =
            states.iter().map(|(id, derived)| (folded.facts(id).start(), words(derived))).collect();
        roots.sort();
        let got: Vec<&str> = roots.iter().map(|(_, word)| word.as_str()).collect();
        assert_eq!(got, *ends, "{scenario}\n{}", story(&play.events, play.now()));
        assert_eq!(play.unknown, [""; 0], "{scenario}");
    }
}

#[test]
fn what_happens_on_the_way_is_what_the_golden_file_says() {
    for scenario in scenarios() {
        let play = Play::whole(&scenario);
        let told = story(&play.events, play.now());
        let path = golden(&format!("{scenario}.txt"));
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &told).unwrap();
        }
        assert_eq!(told, std::fs::read_to_string(&path).unwrap_or_default(), "{scenario}");
    }
}

#[test]
fn a_replay_of_what_the_server_said_tells_the_same() {
    for scenario in scenarios() {
        let play = Play::whole(&scenario);
        play.tape.tells_the_same(&DEF, &scenario, reducer(), play.events.iter().map(|(_, event)| event));
    }
}

#[test]
fn only_what_changed_something_is_progress() {
    // File changes, commits, passed tests, done items.
    for (scenario, wanted) in [
        ("edit_task", [1, 0, 0, 0]),
        // An edit and a new file, in one step.
        ("edit_error", [2, 0, 0, 0]),
        ("noop_write", [1, 0, 0, 0]),
        ("no_git", [1, 0, 0, 0]),
        ("todo_steps", [1, 0, 1, 3]),
        ("todo_incomplete", [1, 0, 0, 1]),
        ("test_commit", [1, 1, 1, 0]),
        ("read_loop", [0, 0, 0, 0]),
        ("queued_prompt", [1, 0, 0, 0]),
        ("v2_session", [1, 0, 0, 0]),
    ] {
        let (_, folded) = whole(scenario);
        let kinds = ["file_modified", "commit_created", "test_passed", "step_completed"];
        assert_eq!(kinds.map(|kind| high(&folded, kind)), wanted, "{scenario}");
    }
}

#[test]
fn few_questions_are_asked() {
    for scenario in scenarios() {
        let play = Play::whole(&scenario);
        let connections = super::recorded::connections(&scenario).len();
        let most = if scenario == "v2_session" { 12 } else { 8 + (connections - 1) * 12 };
        let asked: Vec<_> = play.asked.iter().map(|ask| &ask.path).collect();
        assert!(asked.len() <= most, "{scenario}: {asked:?}");
    }
}
