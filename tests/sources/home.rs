//! Files that come, grow, move and go in a home folder, and what the store knows of them.

use std::fs::{self, File};

use agent_session_exporter::event::Timestamp;
use agent_session_exporter::session::{Facts, Snapshot};

use super::folded::read;
use super::running::{Home, NEXT_DAY, age, append, behind, clock_at, facts, scrape, shown, state, thread};
use crate::common::owner::{all_facts, sums};

pub(crate) fn recording(name: &str) -> Vec<u8> {
    read(&format!("codex/{name}.jsonl"))
}

fn moment(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

/// Facts of all sessions without the moments of reading, and all sums.
pub(crate) fn known(snapshot: &Snapshot) -> (Vec<Facts>, impl PartialEq + std::fmt::Debug + use<>) {
    let mut all: Vec<_> = all_facts(snapshot).into_values().collect();
    for facts in &mut all {
        facts.first_seen = NEXT_DAY;
        facts.writer = None;
    }
    (all, sums(snapshot))
}

/// What a home with these files gives when nothing happens in it.
pub(crate) fn read_at_once(files: &[&[u8]]) -> std::sync::Arc<Snapshot> {
    let home = Home::new();
    for file in files {
        home.put(file);
    }
    home.once()
}

#[test]
fn a_resumed_thread_goes_on_in_its_file() {
    let home = Home::new();
    let bytes = recording("resume_two_runs.rollout");
    let cut = behind(&bytes, "\"task_complete\"");
    let thread = home.put(&bytes[..cut]);
    let running = home.start();
    running.until_state(&thread, "completed/run_complete");
    assert_eq!(facts(&running.life.snapshot(), &thread).unwrap().turns.completed, 1);
    append(&home.rollout(&thread), &bytes[cut..]);
    running.until("the second run", |s| facts(s, &thread).is_some_and(|f| f.turns.completed == 2));
    assert_eq!(known(&running.end()), known(&read_at_once(&[&bytes])));
}

#[test]
fn a_fork_counts_nothing_of_its_parent_in_either_order() {
    let public = |part: &str| read(&format!("public/codex/rollout-0.130.0-fork/{part}.jsonl"));
    for (parent, child) in [
        (public("parent"), public("child")),
        (recording("fork_thread.rollout"), recording("fork_thread.rollout.2")),
    ] {
        let alone = read_at_once(&[&child]);
        let both = read_at_once(&[&parent, &child]);
        assert_eq!(facts(&both, &thread(&child)).unwrap().turns.started, 1);
        for order in [[&parent, &child], [&child, &parent]] {
            let home = Home::new();
            let running = home.start();
            running.until("scanned", |s| s.scanned);
            for file in order {
                let thread = home.put(file);
                running.until("it is read", |s| {
                    facts(s, &thread).is_some_and(|f| f.turn_end.is_some() && f.turn.is_none())
                        && state(s, &thread, NEXT_DAY).is_some_and(|s| s.starts_with("completed"))
                });
            }
            running.rest(50);
            let end = running.end();
            assert_eq!(known(&end), known(&both));
            let own = |s: &Snapshot| facts(s, &thread(&child)).map(|f| (f.turns, f.calls, f.usage));
            assert_eq!(own(&end), own(&alone));
        }
    }
}

#[test]
fn a_sub_agent_finds_its_parent_whichever_comes_first() {
    let files = [recording("subagent.rollout"), recording("subagent.rollout.2")];
    let both = read_at_once(&[&files[0], &files[1]]);
    assert_eq!(both.roots().count(), 1);
    for order in [[0, 1], [1, 0]] {
        let home = Home::new();
        let running = home.start();
        running.until("scanned", |s| s.scanned);
        for i in order {
            let thread = home.put(&files[i]);
            running.until("it is read", |s| facts(s, &thread).is_some_and(|f| f.turns.completed == 1));
        }
        running.rest(50);
        let end = running.end();
        assert_eq!(end.roots().count(), 1);
        assert_eq!(known(&end), known(&both));
    }
}

#[test]
fn a_file_that_is_archived_while_it_grows_stays_one_session() {
    let home = Home::new();
    let bytes = recording("as_two_turns_idle.rollout");
    let cut = behind(&bytes, "\"task_complete\"");
    let thread = home.put(&bytes[..cut]);
    let running = home.start();
    running.until_state(&thread, "completed/turn_complete");
    append(&home.rollout(&thread), &bytes[cut..cut + 700]);
    fs::rename(home.rollout(&thread), home.archived(&thread)).unwrap();
    append(&home.archived(&thread), &bytes[cut + 700..]);
    running.until("the rest", |s| facts(s, &thread).is_some_and(|f| f.turns.completed == 2));
    running.rest(1_500);
    assert_eq!(known(&running.end()), known(&read_at_once(&[&bytes])));
}

#[test]
fn report_44_a_deleted_session_has_no_series_at_the_next_scrape() {
    let mut home = Home::new();
    let thread = thread(&recording("as_user_input.at_pending0.rollout"));
    // A minute after the record: the session is alive.
    home.clock = clock_at(moment("2026-11-29T15:31:00Z"));
    let head = home.put(&recording("as_user_input.at_pending0.rollout"));
    assert_eq!(head, thread);
    let running = home.start();
    let alive = running.until_state(&thread, "waiting_for_user/question");
    assert_eq!(shown(&scrape(&alive, home.clock.now())), std::slice::from_ref(&thread));
    fs::remove_file(home.rollout(&thread)).unwrap();
    let gone = running.until_state(&thread, "cancelled/deleted");
    assert_eq!(shown(&scrape(&gone, home.clock.now())), [""; 0]);
    running.end();
}

#[test]
fn a_compressed_file_is_history_once() {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    let bytes = recording("tests_commit.rollout");
    let plain = known(&read_at_once(&[&bytes]));
    for twin in [false, true] {
        let home = Home::new();
        let thread = thread(&bytes);
        let packed = home.rollout(&thread).with_extension("jsonl.zst");
        fs::write(packed, compress_to_vec(&bytes[..], CompressionLevel::Fastest)).unwrap();
        if twin {
            home.put(&bytes);
        }
        assert_eq!(known(&home.once()), plain, "twin: {twin}");
    }
    // Compressed while it is followed, and plain again because it is resumed.
    let home = Home::new();
    let thread = home.put(&bytes);
    let running = home.start();
    running.until_state(&thread, "completed/run_complete");
    let (path, packed) = (home.rollout(&thread), home.rollout(&thread).with_extension("jsonl.zst"));
    fs::write(&packed, compress_to_vec(&bytes[..], CompressionLevel::Fastest)).unwrap();
    fs::remove_file(&path).unwrap();
    running.rest(1_500);
    fs::write(&path, &bytes).unwrap();
    fs::remove_file(&packed).unwrap();
    running.rest(1_500);
    assert_eq!(known(&running.end()), plain);
}

#[test]
fn report_34_a_line_is_read_when_it_is_whole() {
    let home = Home::new();
    let bytes = recording("edit_ok.rollout");
    let cut = behind(&bytes, "\"item_completed\"") + 60;
    let thread = home.put(&bytes[..cut]);
    let running = home.start();
    running.until("scanned", |s| s.scanned);
    append(&home.rollout(&thread), &bytes[cut..cut + 20]);
    let half = running.rest(400);
    assert!(facts(&half, &thread).unwrap().turn.is_some());
    assert_eq!(running.errors("json"), 0);
    append(&home.rollout(&thread), &bytes[cut + 20..]);
    running.until_state(&thread, "completed/run_complete");
    assert_eq!(running.errors("json"), 0);
    assert_eq!(known(&running.end()), known(&read_at_once(&[&bytes])));
}

#[test]
fn a_damaged_line_in_the_middle_costs_only_itself() {
    let home = Home::new();
    let bytes = recording("partial_line.rollout");
    let killed = recording("partial_line.at_killed.rollout");
    assert!(bytes.starts_with(&killed[..400]));
    let thread = home.put(&bytes);
    let running = home.start();
    let end = running.until_state(&thread, "completed/run_complete");
    assert_eq!(running.errors("json"), 1);
    let turns = facts(&end, &thread).unwrap().turns;
    assert_eq!((turns.started, turns.completed), (2, 1));
    running.end();
}

#[test]
fn a_character_that_is_cut_in_the_middle_is_read_whole() {
    let line = |n: u32, text: &str| {
        format!(
            "{{\"timestamp\":\"2026-11-29T15:00:0{n}.000Z\",\"type\":\"event_msg\",\"payload\":{text}}}\n"
        )
    };
    let home = Home::new();
    let bytes = recording("edit_ok.rollout");
    let thread = thread(&bytes);
    let head = &bytes[..behind(&bytes, "session_meta")];
    let text = line(1, "{\"type\":\"user_message\",\"message\":\"žluťoučký 🦀\"}");
    let crab = text.find('🦀').unwrap();
    append(&home.rollout(&thread), head);
    let running = home.start();
    running.until("scanned", |s| s.scanned);
    for cut in [&text.as_bytes()[..crab + 2], &text.as_bytes()[crab + 2..]] {
        append(&home.rollout(&thread), cut);
        running.rest(150);
    }
    // Bytes that are no text at all are skipped, and what follows is read.
    append(&home.rollout(&thread), b"{\"type\":\"event_msg\",\"payload\":\"\xff\xfe\"}\n");
    append(&home.rollout(&thread), line(3, "{\"type\":\"user_message\",\"message\":\"x\"}"));
    let prompt = moment("2026-11-29T15:00:03Z");
    running.until("both prompts", |s| facts(s, &thread).is_some_and(|f| f.last_prompt == Some(prompt)));
    running.end();
}

#[test]
fn turns_of_two_writers_in_one_file_are_told_apart() {
    let home = Home::new();
    let thread = "01a227dd-d360-7271-9b03-36dcd1251d99";
    let line = |s: u32, turn: &str, kind: &str| {
        format!(
            "{{\"timestamp\":\"2026-11-29T15:20:{s:02}.000Z\",\"type\":\"event_msg\",\"payload\":{{\"type\":\"{kind}\",\
             \"turn_id\":\"{turn}\",\"last_agent_message\":\"x\",\"reason\":\"interrupted\"}}}}\n"
        )
    };
    let head = format!(
        "{{\"timestamp\":\"2026-11-29T15:19:00.000Z\",\"type\":\"session_meta\",\"payload\":{{\"id\":\"{thread}\",\
         \"cli_version\":\"0.130.0\",\"originator\":\"codex-tui\",\"source\":\"cli\",\"cwd\":\"/home/dev/project\"}}}}\n"
    );
    let (a, b) = ("01a227dd-ffff-7000-8000-00000000000a", "01a227dd-ffff-7000-8000-00000000000b");
    let file = [head, line(1, a, "task_started"), line(2, b, "task_started"), line(3, a, "task_complete")];
    append(&home.rollout(thread), file.concat());
    let running = home.start();
    let open = running.until("scanned", |s| s.scanned);
    // The end of the older turn is not the newer one's.
    let facts_then = facts(&open, thread).unwrap();
    assert_eq!((facts_then.turns.started, facts_then.turns.completed), (2, 1));
    assert!(facts_then.turn.is_some());
    append(&home.rollout(thread), line(4, b, "turn_aborted"));
    let end = running.until_state(thread, "cancelled/by_user");
    let turns = facts(&end, thread).unwrap().turns;
    assert_eq!((turns.completed, turns.cancelled), (1, 1));
    running.end();
}

#[test]
fn an_old_file_that_grows_is_read_from_its_head() {
    let mut home = Home::new();
    home.max_age = std::time::Duration::from_secs(7 * 86_400);
    let bytes = recording("resume_two_runs.rollout");
    let cut = behind(&bytes, "\"task_complete\"");
    let thread = home.put(&bytes[..cut]);
    age(&home.rollout(&thread), home.clock, 30);
    let running = home.start();
    let scanned = running.until("scanned", |s| s.scanned);
    assert!(facts(&scanned, &thread).is_none());
    append(&home.rollout(&thread), &bytes[cut..]);
    running.until("the second run", |s| facts(s, &thread).is_some_and(|f| f.turns.completed == 2));
    assert_eq!(known(&running.end()), known(&read_at_once(&[&bytes])));
}

#[test]
fn report_52_a_restart_in_the_middle_and_a_rewritten_file_count_nothing_twice() {
    let home = Home::new();
    let bytes = recording("tests_commit.rollout");
    let whole = known(&read_at_once(&[&bytes]));
    let mut written = 0;
    let thread = thread(&bytes);
    // Restarted five times, between two lines and in the middle of one.
    for part in 1..=5 {
        let to = bytes.len() * part / 5;
        append(&home.rollout(&thread), &bytes[written..to]);
        written = to;
        home.once();
    }
    assert_eq!(known(&home.once()), whole);
    // Emptied and written again, shorter at first, under the same inode.
    let running = home.start();
    running.until("scanned", |s| s.scanned);
    File::options().write(true).truncate(true).open(home.rollout(&thread)).unwrap();
    append(&home.rollout(&thread), &bytes[..bytes.len() / 3]);
    running.rest(600);
    append(&home.rollout(&thread), &bytes[bytes.len() / 3..]);
    running.rest(600);
    assert_eq!(known(&running.end()), whole);
}

#[test]
fn a_lock_that_is_let_go_in_an_open_turn_is_a_death() {
    for removed in [false, true] {
        let mut home = Home::new();
        let bytes = recording("kill9_in_command.rollout");
        let thread = home.put(&bytes);
        let last = super::folded::Folded::of("codex/kill9_in_command.rollout.jsonl").last();
        home.clock = clock_at(last.plus(2_000));
        let lock = File::create(home.lock(&thread)).unwrap();
        lock.lock().unwrap();
        let running = home.start();
        running.until("the writer is seen", |s| facts(s, &thread).is_some_and(|f| f.writer.is_some()));
        running.until_state(&thread, "progressing/working");
        if removed {
            fs::remove_file(home.lock(&thread)).unwrap();
        }
        drop(lock);
        running.until_state(&thread, "failed/process_gone");
        // It is resumed: the next turn is another story.
        let resumed = File::create(home.lock(&thread)).unwrap();
        resumed.lock().unwrap();
        let at = home.clock.now().as_millis() / 1000;
        append(
            &home.rollout(&thread),
            format!(
                "{{\"timestamp\":{:?},\"type\":\"event_msg\",\"payload\":{{\"type\":\"task_started\",\"turn_id\":\"{}\"}}}}\n",
                at_text(at),
                "01a227ff-ffff-7000-8000-00000000000a"
            ),
        );
        running.until("a second turn", |s| facts(s, &thread).is_some_and(|f| f.turns.started == 2));
        running.until("it works", |s| {
            state(s, &thread, home.clock.now()).is_some_and(|s| s.ends_with("/working"))
        });
        running.end();
    }
}

/// Seconds since the epoch as a rollout writes them.
fn at_text(seconds: i64) -> String {
    Timestamp::from_millis(seconds * 1000).to_string()
}

#[test]
fn a_lock_left_behind_is_a_death_that_was_missed() {
    let mut home = Home::new();
    let thread = home.put(&recording("as_approval_kill.rollout"));
    home.clock =
        clock_at(super::folded::Folded::of("codex/as_approval_kill.rollout.jsonl").last().plus(5_000));
    File::create(home.lock(&thread)).unwrap();
    // Beside it one without any lock: nothing is claimed.
    let other = home.put(&recording("sigterm_in_command.rollout"));
    let running = home.start();
    running.until_state(&thread, "failed/process_gone");
    let open = running.rest(1_500);
    assert!(facts(&open, &other).unwrap().writer.is_none());
    assert!(state(&open, &other, facts(&open, &other).unwrap().last_heard()).unwrap().ends_with("/working"));
    running.end();
}

#[test]
fn several_homes_and_a_folder_of_the_configuration_are_read() {
    let mut home = Home::new();
    home.homes = vec!["home", "other"];
    home.roots = vec!["codex-home", "home/.codex"];
    let files =
        [recording("edit_ok.rollout"), recording("tests_commit.rollout"), recording("usage_limit.rollout")];
    home.put(&files[0]);
    for (folder, bytes) in [("other/.codex", &files[1]), ("codex-home", &files[2])] {
        let day = home.path(&format!("{folder}/sessions/2026/11/29"));
        fs::create_dir_all(&day).unwrap();
        append(&day.join(format!("rollout-2026-11-29T15-00-00-{}.jsonl", thread(bytes))), bytes);
    }
    let end = home.once();
    assert_eq!(end.sessions.len(), 3);
    // The home that is named twice is one.
    assert_eq!(end.health.len(), 3);
    let [a, b, c] = [&files[0][..], &files[1][..], &files[2][..]];
    assert_eq!(known(&end), known(&read_at_once(&[a, b, c])));
}
