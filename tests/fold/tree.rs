//! Sub-agents: what counts for their root, and how the tree is built from what is known.

use std::sync::Arc;

use agent_session_exporter::event::{
    ActionKind, CallOutcome, ErrorClass, Name, ProgressKind, SessionId, SourceId, Timestamp, ToolClass,
    TurnOutcome, Writer,
};
use agent_session_exporter::session::counts::Count;
use agent_session_exporter::session::snapshot::{MAX_DEPTH, Tree};
use agent_session_exporter::session::{Facts, Reason, State};

use super::made::*;

fn facts(name: &str, parent: Option<&str>) -> Option<Arc<Facts>> {
    let mut facts = Facts::new(SourceId::from("test"), SessionId::from(name), Timestamp::from_millis(T0));
    facts.parent = parent.map(SessionId::from);
    Some(Arc::new(facts))
}

fn open() -> Story {
    Story::new().say(0, started()).say(0, turn("t"))
}

#[test]
fn an_unknown_parent_makes_a_root_until_it_appears() {
    let orphan = vec![facts("kid", Some("p"))];
    assert_eq!(Tree::of(&orphan).root, [0]);
    let found = vec![facts("kid", Some("p")), None, facts("p", None)];
    let tree = Tree::of(&found);
    assert_eq!((tree.root[0], tree.cut, tree.descendants[&2].clone()), (2, 0, vec![0]));
}

#[test]
fn cycles_are_cut_and_counted() {
    let ring =
        vec![facts("a", Some("b")), facts("b", Some("a")), facts("c", Some("a")), facts("s", Some("s"))];
    let tree = Tree::of(&ring);
    assert_eq!(tree.root, [0, 1, 2, 3]);
    assert_eq!(tree.cut, 3, "both of the ring and the one that hangs on it; its own parent is none");
}

#[test]
fn depth_is_bounded() {
    let names: Vec<String> = (0..=MAX_DEPTH + 1).map(|i| format!("s{i:02}")).collect();
    let chain: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(i, name)| facts(name, i.checked_sub(1).map(|p| names[p].as_str())))
        .collect();
    let tree = Tree::of(&chain);
    assert_eq!((tree.root[MAX_DEPTH], tree.root[MAX_DEPTH + 1], tree.cut), (0, MAX_DEPTH + 1, 1));
    assert_eq!(tree.descendants[&0].len(), MAX_DEPTH);
}

#[test]
fn a_childs_activity_progress_calls_and_actions_count_for_the_root() {
    let story = open()
        .kid("kid", 10, turn("k"))
        .kid("kid", 20, call("c", ToolClass::Edit))
        .kid("kid", 30, edited("c", 3))
        .kid("kid", 40, call("d", ToolClass::Shell))
        .kid("kid", 50, asks("a", ActionKind::Permission));
    story.ask(ROOT, 60, |_, view| {
        assert_eq!((view.last_activity(), view.last_progress()), (Some(at(50)), Some(at(30))));
        let calls = view.calls();
        assert_eq!((calls.total, calls.in_flight, calls.oldest), (2, 1, Some(at(40))));
        assert_eq!(view.calls_since_progress(), 1);
        assert_eq!(view.progress(ProgressKind::FileModified), (1, 0));
        assert_eq!(view.subagents(), (0, 1));
        let (owner, _) = view.certain_action().unwrap();
        assert_eq!(owner.session.as_str(), "kid");
    });
    assert_eq!(story.state(60), (State::WaitingForUser, Reason::Permission));
    assert_eq!(story.facts().last_activity, Some(at(0)), "the root's own facts stay its own");
}

#[test]
fn a_childs_end_or_failure_is_neither_the_roots_end_nor_its_progress() {
    let failed = open().kid("kid", 10, turn("k")).kid("kid", 20, of("k", failed(ErrorClass::Server, None)));
    assert_eq!(failed.derived("kid", 30).state, State::Failed);
    assert_eq!(failed.state(30), (State::Running, Reason::Working));
    let completed = open().kid("kid", 10, turn("k")).kid("kid", 20, end("k"));
    assert_eq!(completed.state(30), (State::Running, Reason::Working));
    assert_eq!(completed.ask(ROOT, 30, |_, v| v.last_progress()), None);
}

#[test]
fn roots_are_counted_and_children_count_calls_and_progress() {
    let story = open()
        .kid("kid", 10, turn("k"))
        .kid("kid", 11, call("c", ToolClass::Edit))
        .kid("kid", 12, edited("c", 1))
        .kid("kid", 20, end("k"))
        .say(30, end("t"));
    assert_eq!(story.counted(&Count::Started), 1);
    assert_eq!(story.counted(&Count::Turn(TurnOutcome::Completed)), 1);
    assert_eq!(story.counted(&Count::ToolCall(Name::from("edit"), CallOutcome::Ok)), 1);
    assert_eq!(story.counted(&Count::Progress(ProgressKind::FileModified, true)), 1);
}

#[test]
fn a_turn_that_was_broken_off_takes_silent_children_with_it() {
    let broken = |outcome| {
        open()
            .kid("kid", 10, turn("k"))
            .kid("kid", 50, call("c", ToolClass::Shell))
            .say(100, of("t", ended(outcome)))
    };
    assert_eq!(broken(TurnOutcome::Cancelled).state(200), (State::Cancelled, Reason::ByUser));
    assert_eq!(broken(TurnOutcome::Failed).state(200), (State::Failed, Reason::Error));
    assert_eq!(broken(TurnOutcome::Completed).state(200), (State::Running, Reason::Working));
    assert_eq!(broken(TurnOutcome::Cancelled).kid("kid", 150, work()).state(200).0, State::Running);
}

#[test]
fn children_end_with_the_process_they_run_in() {
    let story = open().kid("kid", 10, turn("k")).say(100, end("t"));
    assert_eq!(story.state(101).0, State::Running);
    let gone = story.say(110, writer(Writer::Gone));
    assert_eq!(gone.state(120), (State::Completed, Reason::TurnComplete));
    assert_eq!(gone.ask(ROOT, 120, |_, v| v.subagents()), (0, 0));
}

#[test]
fn many_children_are_walked_once() {
    let mut all = vec![facts("mid", Some("top")), facts("top", None)];
    for i in 0..20_000 {
        all.push(facts(&format!("k{i}"), Some("mid")));
    }
    let tree = Arc::new(Tree::of(&all));
    let snapshot = agent_session_exporter::session::Snapshot { sessions: all, tree, ..Default::default() };
    assert_eq!(snapshot.rollup(0, at(0)).unwrap().children.len(), 20_000);
    assert_eq!(snapshot.rollup(1, at(0)).unwrap().children.len(), 20_001);
}
