//! What the exporter did not see: nothing is told twice, and what happened meanwhile is told.

use agent_session_exporter::event::{Fact, Writer};

use super::stand::{Stand, T, start_of};

fn waiting() -> Stand {
    let mut stand = Stand::new();
    stand.live(7, start_of(7));
    stand.status(7, "a", "busy");
    stand.look_at(T);
    stand.turn("a", T, true);
    stand.now = agent_session_exporter::event::Timestamp::from_millis(T + 1500);
    stand.status(7, "a", "waiting");
    stand.next();
    assert_eq!(stand.state("a"), "waiting_for_user/permission");
    stand
}

#[test]
fn a_restart_in_the_middle_repeats_nothing() {
    let mut stand = waiting();
    stand.restart();
    assert_eq!(stand.next(), [], "all of it is known");
    // Without what was kept it is told again under the same names, which the store knows.
    stand.lose_what_was_kept();
    let told = stand.events.len();
    let again = stand.next();
    assert!(!again.is_empty());
    let news: Vec<_> = stand.events[told..].iter().map(|e| e.fact.clone()).collect();
    assert_eq!(news, [Fact::Writer(Writer::Alive)], "only the probe is a new one");
    assert_eq!(stand.derived("a").since.as_millis(), T + 1500);
    assert_eq!(stand.facts("a").actions.len(), 1);
}

#[test]
fn an_end_during_a_break_is_told_at_the_next_start() {
    for left_behind in [true, false] {
        let mut stand = waiting();
        stand.restart();
        stand.kill(7);
        if !left_behind {
            stand.remove(7);
        }
        for _ in 0..15 {
            stand.next();
        }
        let (writer, state) = if left_behind {
            (Writer::Gone, "failed/process_gone")
        } else {
            (Writer::Left, "cancelled/by_user")
        };
        assert_eq!(stand.writers("a"), [Writer::Alive, writer]);
        assert_eq!(stand.state("a"), state);
        assert!(stand.facts("a").actions.is_empty());
        stand.restart();
        assert_eq!(stand.next(), []);
    }
}

#[test]
fn an_end_that_is_still_to_be_read_is_waited_for() {
    let mut stand = waiting();
    stand.restart();
    stand.kill(7);
    stand.remove(7);
    stand.look_at(T + 60_000);
    stand.next();
    assert_eq!(stand.writers("a"), [Writer::Alive], "not yet");
    // The transcript says how the turn ended; it is read seconds after the first look.
    stand.turn("a", T + 3000, false);
    stand.restart();
    for _ in 0..15 {
        stand.next();
    }
    assert_eq!(stand.writers("a"), [Writer::Alive, Writer::Left]);
    assert_eq!(stand.state("a"), "completed/turn_complete");
}

#[test]
fn an_answer_during_a_break_ends_the_waiting() {
    let mut stand = waiting();
    stand.restart();
    stand.now = agent_session_exporter::event::Timestamp::from_millis(T + 60_000);
    stand.status(7, "a", "busy");
    stand.next();
    assert_eq!(stand.state("a"), "running/working");
    assert!(stand.facts("a").actions.is_empty());
    // Another one has come meanwhile.
    stand.restart();
    stand.now = agent_session_exporter::event::Timestamp::from_millis(T + 90_000);
    stand.status(7, "a", "waiting");
    stand.next();
    assert_eq!(stand.derived("a").since.as_millis(), T + 90_000);
}

#[test]
fn a_process_left_for_another_session_while_nobody_looked() {
    let mut stand = waiting();
    stand.restart();
    stand.status(7, "b", "idle");
    for _ in 0..15 {
        stand.next();
    }
    assert_eq!(stand.writers("a"), [Writer::Alive, Writer::Left]);
    assert_eq!(stand.writers("b"), [Writer::Alive]);
    assert!(stand.facts("a").actions.is_empty());
}

#[test]
fn nonsense_that_was_kept_is_no_obstacle() {
    use super::stand::{reducer, source};
    use agent_session_exporter::sources::claude_code::Registry;
    use agent_session_exporter::sources::files::NewLive;
    let agent = tempfile::tempdir().unwrap();
    let begin: NewLive = Registry::begin;
    for kept in [&b""[..], &[1], &[1, 255, 255, 255, 255, 255], &[9, 0, 0], &[0; 4096]] {
        let mut registry = begin(agent.path(), source(), reducer(), Some(kept));
        let mut out = Vec::new();
        registry.look(super::stand::ms(T), &mut out);
        assert_eq!(out, []);
    }
}
