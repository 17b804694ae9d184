//! Situations people reported about agents of this kind and about exporters.

use std::fs;

use agent_session_exporter::event::Timestamp;

use super::folded::{Folded, decode, derived, read, source, words};
use super::running::{Home, append, clock_at, facts, scrape, shown, state};

fn head(thread: &str, cwd: &str, more: &str) -> String {
    format!(
        "{{\"timestamp\":\"2026-11-29T15:00:00.000Z\",\"type\":\"session_meta\",\"payload\":{{\"id\":\"{thread}\",\
         \"cli_version\":\"0.130.0\",\"originator\":\"codex_exec\",\"source\":\"exec\",\"cwd\":{}{more}}}}}\n",
        serde_json::Value::from(cwd)
    )
}

fn event(second: &str, payload: &str) -> String {
    format!("{{\"timestamp\":\"2026-11-29T15:00:{second}Z\",\"type\":\"event_msg\",\"payload\":{payload}}}\n")
}

fn tokens(total: u64, last: u64) -> String {
    let usage = |n: u64| format!("{{\"input_tokens\":{n},\"cached_input_tokens\":0,\"output_tokens\":0}}");
    format!(
        "{{\"type\":\"token_count\",\"info\":{{\"total_token_usage\":{},\"last_token_usage\":{}}}}}",
        usage(total),
        usage(last)
    )
}

const THREAD: &str = "01a227dd-0000-7000-8000-000000000001";
const CHILD: &str = ",\"parent_thread_id\":\"01a227d0-0000-7000-8000-000000000000\"";
const NOON: &str = "2026-11-29T15:01:00Z";

fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

#[test]
fn report_10_a_polling_loop_is_no_loop_of_doom() {
    let name = "public/codex/rollout-0.130.0-polling-20-identical.jsonl";
    let whole = Folded::of(name);
    assert_eq!(whole.facts().calls.total, 20);
    // Two of them before the person's second message.
    assert_eq!(whole.facts().calls_since_progress(), 18);
    let signals = super::loops::signals(&whole);
    assert_eq!((signals.window_calls, signals.call_streak), (18, 18), "a number, but no state");
    assert_eq!(whole.state(0), "completed/turn_complete");
    // Nor while it goes on, after any of its records.
    let events = decode(&read(name), "named-by-file");
    let mut folded = Folded::default();
    for event in events {
        folded.take(vec![event]);
        let now = derived(&folded.snapshot(), folded.last());
        assert_ne!(words(now).split('/').next(), Some("stalled"));
    }
}

#[test]
fn report_28_copied_token_history_is_the_baseline() {
    let mut text = head(THREAD, "/home/dev/project", CHILD);
    for n in 1..=500 {
        text.push_str(&event("00.000", &tokens(n * 1_000, 1_000)));
    }
    for n in 1..=15 {
        text.push_str(&event(&format!("{:02}.000", 2 + n), &tokens(500_000 + n * 10, 10)));
    }
    let mut folded = Folded::default();
    folded.take(decode(text.as_bytes(), THREAD));
    assert_eq!(folded.facts().usage.input, 150);
}

#[test]
fn report_29_a_child_that_starts_from_zero_counts_all_of_it() {
    let fork = ",\"forked_from_id\":\"01a227d0-0000-7000-8000-000000000000\"";
    for more in [CHILD, fork] {
        let mut text = head(THREAD, "/home/dev/project", more);
        text.push_str(&event("03.000", &tokens(14_700, 14_700)));
        text.push_str(&event("09.000", &tokens(15_000, 300)));
        let mut folded = Folded::default();
        folded.take(decode(text.as_bytes(), THREAD));
        assert_eq!(folded.facts().usage.input, 15_000);
    }
}

#[test]
fn report_46_ids_that_begin_alike_are_two_sessions() {
    let other = "01a227dd-0000-7000-8000-000000000002";
    let mut folded = Folded::default();
    for thread in [THREAD, other] {
        let turn = event("01.000", "{\"type\":\"task_started\",\"turn_id\":\"t\"}");
        folded.take(decode((head(thread, "/home/dev/project", "") + &turn).as_bytes(), thread));
    }
    let families = scrape(&folded.snapshot(), at(NOON));
    assert_eq!(shown(&families), [THREAD, other]);
}

#[test]
fn report_50_hostile_project_paths_keep_the_scrape_valid() {
    let mut folded = Folded::default();
    for (i, cwd) in
        ["/p/a\"b", "/p/a\\b", "/p/a\nb", "/p/a\u{fffd}b", "/p/a\u{fffd}\u{fffd}b"].iter().enumerate()
    {
        let thread = format!("01a227dd-0000-7000-8000-00000000000{i}");
        let turn = event("01.000", "{\"type\":\"task_started\",\"turn_id\":\"t\"}");
        folded.take(decode((head(&thread, cwd, "") + &turn).as_bytes(), &thread));
    }
    let families = scrape(&folded.snapshot(), at(NOON));
    assert_eq!(shown(&families).len(), 5);
}

#[test]
fn report_53_a_folder_that_vanished_leaves_nothing_running() {
    let mut home = Home::new();
    home.clock = clock_at(at(NOON));
    let turn =
        event("01.000", "{\"type\":\"task_started\",\"turn_id\":\"01a227dd-1000-7000-8000-000000000001\"}");
    append(&home.rollout(THREAD), head(THREAD, "/home/dev/project", "") + &turn);
    let running = home.start();
    running.until_state(THREAD, "running/working");
    let last = running.life.telemetry.source_last_record.with_label_values(&["codex"]).get();
    assert!((last - home.clock.now().as_seconds()).abs() < 30.0);
    // The home is unmounted: nobody deleted a session.
    fs::rename(home.path("home/.codex"), home.path("elsewhere")).unwrap();
    let down = running.until("down", |s| s.health.iter().any(|h| h.source == source() && !h.up));
    let up = running.life.telemetry.source_up.with_label_values(&["codex", "default"]).get();
    assert_eq!(up, 0);
    assert!(facts(&down, THREAD).unwrap().deleted_at.is_none());
    assert_eq!(state(&down, THREAD, home.clock.now().plus(301_000)).unwrap(), "unknown/source_lost");
    running.end();
}

#[test]
fn report_58_series_return_to_the_base_level_and_totals_stay() {
    let mut folded = Folded::default();
    let base = scrape(&folded.snapshot(), at(NOON)).iter().map(|f| f.samples.len()).sum::<usize>();
    for i in 0..50 {
        let thread = format!("01a227dd-0000-7000-8000-0000000000{i:02}");
        let turn = event("01.000", "{\"type\":\"task_started\",\"turn_id\":\"t\"}");
        let end =
            event("05.000", "{\"type\":\"task_complete\",\"turn_id\":\"t\",\"last_agent_message\":\"x\"}");
        folded.take(decode((head(&thread, "/home/dev/project", "") + &turn + &end).as_bytes(), &thread));
    }
    let snapshot = folded.snapshot();
    assert_eq!(shown(&scrape(&snapshot, at(NOON))).len(), 50);
    let week = scrape(&snapshot, at(NOON).plus(7 * 86_400_000));
    assert_eq!(shown(&week), [""; 0]);
    let with_labels = |name: &str| week.iter().any(|f| f.samples.iter().any(|s| !s.label(name).is_empty()));
    assert!(!with_labels("session"));
    // Aggregates do not grow with sessions.
    let left = week.iter().map(|f| f.samples.len()).sum::<usize>();
    assert!(left < base + 250, "{base} before, {left} after");
    let turns = week.iter().find(|f| f.name == "agent_session_turns_total").unwrap();
    assert_eq!(turns.value(&[("source", "codex"), ("outcome", "completed")]), Some(50.0));
}
