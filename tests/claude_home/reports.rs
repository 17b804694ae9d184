//! Situations people reported about files, series and loops, as far as this agent can come into them.

use std::fs::{self, File};

use agent_session_exporter::event::Timestamp;
use agent_session_exporter::session::counts::TokenKind;
use agent_session_exporter::session::{Count, Snapshot};
use serde_json::{Value, json};

use super::lines::{behind, bytes, calls, prompt, result, says, session};
use super::stand::{
    Home, assert_same, clock_at, count, facts, known, recording, scrape, shown, source, state, tokens,
};

const SESSION: &str = "1b1b1b1b-0000-4000-8000-000000000000";

fn at(second: u32) -> String {
    format!("2026-11-29T{:02}:{:02}:{:02}.000Z", 15 + second / 3600, second / 60 % 60, second % 60)
}

fn moment(second: u32) -> Timestamp {
    Timestamp::parse(&at(second)).unwrap()
}

fn read(all: &[Value]) -> std::sync::Arc<Snapshot> {
    let home = Home::new();
    home.append(&format!("p/{SESSION}.jsonl"), &bytes(all));
    home.once()
}

fn failed(second: u32, call: &str, text: &str) -> Value {
    let mut line = result(SESSION, &at(second), call, json!(format!("Error: {text}")));
    line["message"]["content"][0]["is_error"] = json!(true);
    line["message"]["content"][0]["content"] = json!(text);
    line
}

/// The tree's signals of the only root.
fn signals(snapshot: &Snapshot, now: Timestamp) -> agent_session_exporter::session::Signals {
    let rollup = snapshot.rollup(snapshot.roots().next().unwrap(), now).unwrap();
    *rollup.signals()
}

#[test]
fn report_10_a_polling_loop_is_a_number_and_no_state() {
    let mut all = vec![prompt(SESSION, &at(0), "wait for it")];
    for n in 0..20 {
        let call = format!("c{n}");
        all.push(calls(SESSION, &at(1 + 40 * n), &call, "Bash", json!({"command": "gh run view 7"})));
        let outcome = json!({"stdout": "in progress", "stderr": "", "interrupted": false});
        all.push(result(SESSION, &at(3 + 40 * n), &call, outcome));
    }
    let open = read(&all);
    let now = moment(3 + 40 * 19 + 5);
    assert_eq!(signals(&open, now).call_streak, 20);
    assert!(signals(&open, now).repeated_call_max < 20, "paced repeats bring something new");
    assert_eq!(state(&open, SESSION, now).unwrap(), "running/working");
    all.push(says(SESSION, &at(900), "m", 5, "end_turn"));
    assert_eq!(state(&read(&all), SESSION, moment(901)).unwrap(), "completed/turn_complete");
}

#[test]
fn report_11_a_cycle_of_three_calls_is_seen() {
    let mut all = vec![prompt(SESSION, &at(0), "fix it")];
    for n in 0..5 {
        let start = 1 + 20 * n;
        let call = |what: &str| format!("{what}{n}");
        all.push(calls(SESSION, &at(start), &call("r"), "Read", json!({"file_path": "/x"})));
        all.push(result(SESSION, &at(start + 1), &call("r"), json!({})));
        let edit = json!({"file_path": "/x", "old_string": "a", "new_string": "b"});
        all.push(calls(SESSION, &at(start + 5), &call("e"), "Edit", edit));
        all.push(failed(start + 6, &call("e"), "String to replace not found in file."));
        all.push(calls(SESSION, &at(start + 10), &call("t"), "Bash", json!({"command": "cargo test"})));
        all.push(failed(start + 14, &call("t"), "Exit code 101\nfailed"));
    }
    let now = moment(120);
    let signals = signals(&read(&all), now);
    assert_eq!((signals.window_calls, signals.cycle_repeats), (15, 5));
    assert_eq!(signals.repeated_call_max, 4, "each of the three, behind its first");
    assert!(signals.no_new_ratio() >= 0.6, "{signals:?}");
    assert!(signals.error_streak >= 1);
}

#[test]
fn report_32_a_line_of_twenty_megabytes_takes_no_session_with_it() {
    let home = Home::new();
    let place = format!("p/{SESSION}.jsonl");
    let mut all = vec![prompt(SESSION, &at(0), "go")];
    let work = |n: u32| says(SESSION, &at(1 + n), &format!("m{n}"), 5, "tool_use");
    all.extend((0..99).map(work));
    home.append(&place, &bytes(&all));
    let mut big = calls(SESSION, &at(100), "big", "Agent", json!({"prompt": "x"}));
    big["message"]["content"][0]["input"]["prompt"] = Value::from("x".repeat(20 << 20));
    home.append(&place, &bytes(&[big]));
    let rest: Vec<Value> = (101..200).map(work).collect();
    home.append(&place, &bytes(&rest));
    home.append(&place, &bytes(&[says(SESSION, &at(300), "last", 5, "end_turn")]));
    let running = home.start();
    running.settle();
    assert_eq!(running.records() + running.errors("too_long"), 201);
    let end = running.end();
    let lost = u64::from(facts(&end, SESSION).unwrap().calls.total == 0);
    assert_eq!(tokens(&end, TokenKind::Output), 5 * (99 + 99 + 1 + 1 - lost as i64));
    assert_eq!(state(&end, SESSION, moment(301)).unwrap(), "completed/turn_complete");
}

#[test]
fn report_34_a_line_is_read_when_it_is_whole() {
    let whole = recording("edit-ok.transcript");
    let id = session(&whole);
    let cut = behind(&whole, "tool_use") + 70;
    let home = Home::new();
    let place = format!("p/{id}.jsonl");
    home.append(&place, &whole[..cut]);
    let running = home.start();
    running.settle();
    let before = running.records();
    home.append(&place, &whole[cut..cut + 40]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!((running.records(), running.errors("json")), (before, 0));
    home.append(&place, &whole[cut + 40..]);
    running.read_since(before, 1);
    assert_eq!(running.errors("json"), 0);
    let got = known(&running.end());
    let plain = Home::new();
    plain.append(&place, &whole);
    assert_same("in halves", &got, &known(&plain.once()));
}

#[test]
fn reports_46_and_50_ids_that_begin_alike_and_hostile_folders_keep_the_scrape_valid() {
    let home = Home::new();
    let folders =
        ["/p/a\"b", "/p/a\\b", "/p/a\nb", "/p/a\u{fffd}b", "/p/a\u{fffd}\u{fffd}b", "/p/same", "/p/same"];
    for (n, cwd) in folders.iter().enumerate() {
        let id = format!("1c1c1c1c-0000-4000-8000-{n:012}");
        let mut all =
            [prompt(&id, &at(n as u32), "x"), says(&id, &at(60 + n as u32), &format!("m{n}"), 5, "end_turn")];
        all.iter_mut().for_each(|line| line["cwd"] = json!(cwd));
        home.append(&format!("folder {n}/{id}.jsonl"), &bytes(&all));
    }
    // Bytes that are no text, in a text.
    let id = "1c1c1c1c-0000-4000-8000-000000000999";
    let text = bytes(&[prompt(id, &at(100), "x")]);
    let at_folder = text.windows(7).position(|w| w == b"project").unwrap();
    let mut odd = text.clone();
    (odd[at_folder], odd[at_folder + 1]) = (0xff, 0xc3);
    home.append(&format!("odd/{id}.jsonl"), &odd);
    let end = home.once();
    let families = scrape(&end, moment(120));
    assert_eq!(shown(&families).len(), folders.len() + 1);
}

#[test]
fn report_49_series_are_bounded_by_what_lives_and_hold_no_text() {
    let mut home = Home::new();
    home.clock = clock_at(moment(3_000));
    // A great home: most of it ended long ago.
    for n in 0..600u32 {
        let id = format!("1d1d1d1d-0000-4000-8000-{n:012}");
        let second = if n < 20 { 2_900 } else { 0 } + n % 50;
        let mut all = [
            prompt(&id, &at(second), &format!("do {n}")),
            says(&id, &at(second + 1), &format!("m{n}"), 5, "end_turn"),
        ];
        all.iter_mut().for_each(|line| line["gitBranch"] = json!("b".repeat(500)));
        home.append(&format!("p{n}/{id}.jsonl"), &bytes(&all));
    }
    let end = home.once();
    let families = scrape(&end, home.clock.now());
    assert_eq!(shown(&families).len(), 20);
    for sample in families.iter().filter(|f| f.kind == "counter").flat_map(|f| &f.samples) {
        assert_eq!(sample.label("session"), "", "a sum names no session");
    }
    assert_eq!(count(&end, |c| matches!(c, Count::Started)), 600);
    // And all of them leave.
    assert_eq!(shown(&scrape(&end, home.clock.now().plus(3_600_000))), [""; 0]);
}

#[test]
fn report_52_a_transcript_that_is_written_anew_counts_nothing_twice() {
    let whole = recording("edit-ok.transcript");
    let id = session(&whole);
    let place = format!("p/{id}.jsonl");
    let home = Home::new();
    home.append(&place, &whole);
    let running = home.start();
    let once = known(&running.settle());
    let cut = behind(&whole, "tool_result");
    File::options().write(true).truncate(true).open(home.place(&place)).unwrap();
    home.append(&place, &whole[..cut]);
    std::thread::sleep(std::time::Duration::from_millis(600));
    home.append(&place, &whole[cut..]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    running.settle();
    assert_same("rewritten", &known(&running.end()), &once);
    assert_same("restarted", &known(&home.once()), &once);
}

#[test]
fn report_53_a_folder_that_vanished_leaves_nothing_running() {
    let mut home = Home::new();
    home.clock = clock_at(moment(60));
    home.append(&format!("p/{SESSION}.jsonl"), &bytes(&[prompt(SESSION, &at(1), "go")]));
    let running = home.start();
    running.until_state(SESSION, "running/working");
    fs::rename(home.path(""), home.path("../elsewhere")).unwrap();
    let down = running.until("down", |s| s.health.iter().any(|h| h.source == source() && !h.up));
    assert!(facts(&down, SESSION).unwrap().deleted_at.is_none());
    assert_eq!(state(&down, SESSION, home.clock.now().plus(301_000)).unwrap(), "unknown/source_lost");
    running.end();
}

#[test]
fn report_56_a_call_without_a_result_does_not_keep_a_failed_session_running() {
    let mut all =
        vec![prompt(SESSION, &at(0), "go"), calls(SESSION, &at(5), "never", "Bash", json!({"command": "x"}))];
    for n in 0..4 {
        let mut asked = prompt(SESSION, &at(100 + 20 * n), &format!("again {n}"));
        asked["promptId"] = json!(format!("p{n}"));
        all.push(asked);
        let mut error = says(SESSION, &at(103 + 20 * n), &format!("e{n}"), 0, "stop_sequence");
        error["isApiErrorMessage"] = json!(true);
        error["apiErrorStatus"] = json!(400);
        error["message"]["model"] = json!("<synthetic>");
        all.push(error);
    }
    let end = read(&all);
    assert_eq!(state(&end, SESSION, moment(200)).unwrap(), "failed/error");
    assert_eq!(facts(&end, SESSION).unwrap().turns.failed, 5);
    let rollup = end.rollup(end.roots().next().unwrap(), moment(200)).unwrap();
    assert_eq!(rollup.calls().in_flight, 0);
}

#[test]
fn report_58_series_return_to_the_base_level_and_totals_stay() {
    let home = Home::new();
    for n in 0..50 {
        let id = format!("1e1e1e1e-0000-4000-8000-{n:012}");
        let all = [
            prompt(&id, &at(n), &format!("do {n}")),
            says(&id, &at(60 + n), &format!("m{n}"), 5, "end_turn"),
        ];
        home.append(&format!("p/{id}.jsonl"), &bytes(&all));
    }
    let end = home.once();
    assert_eq!(shown(&scrape(&end, moment(120))).len(), 50);
    let week = scrape(&end, moment(120).plus(7 * 86_400_000));
    assert_eq!(shown(&week), [""; 0]);
    let turns = week.iter().find(|f| f.name == "agent_session_turns_total").unwrap();
    assert_eq!(turns.value(&[("source", "claude_code"), ("outcome", "completed")]), Some(50.0));
}
