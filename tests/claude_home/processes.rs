//! The registry and the transcripts beside each other: who waits for whom, and how processes end.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use agent_session_exporter::event::Timestamp;
use agent_session_exporter::session::Snapshot;
use serde_json::{Value, json};

use super::lines::{bytes, calls, lines, prompt, result, says, session, time};
use super::stand::{Home, Running, clock_at, facts, recording, state};

const NAMESPACE: &str = "pid:[4026531836]";
const SESSION: &str = "0f0f0f0f-0000-4000-8000-000000000000";
/// Start of every process here, in ticks.
const START: u64 = 176_028;

fn at(second: u32) -> String {
    format!("2026-11-29T{:02}:{:02}:{:02}.000Z", 15 + second / 3600, second / 60 % 60, second % 60)
}

fn moment(second: u32) -> Timestamp {
    Timestamp::parse(&at(second)).unwrap()
}

impl Home {
    /// A machine whose processes are seen, with one of them. What is there is not written again: the kernel shows no
    /// half-written process.
    fn process(&self, pid: i32, start: u64) {
        let proc = self.proc();
        if proc.join(format!("{pid}/stat")).exists() {
            return;
        }
        fs::create_dir_all(proc.join("self/ns")).unwrap();
        let _ = symlink(NAMESPACE, proc.join("self/ns/pid"));
        fs::create_dir_all(proc.join(pid.to_string())).unwrap();
        let zeros = "0 ".repeat(18);
        fs::write(proc.join(format!("{pid}/stat")), format!("{pid} (claude) S {zeros}{start} 1 2\n"))
            .unwrap();
    }

    /// The number is another process's from one moment to the next.
    fn is_given_away(&self, pid: i32) {
        let (new, zeros) = (self.proc().join("new"), "0 ".repeat(18));
        fs::write(&new, format!("{pid} (vim) S {zeros}{} 1 2\n", START + 100_000)).unwrap();
        fs::rename(new, self.proc().join(format!("{pid}/stat"))).unwrap();
    }

    fn dies(&self, pid: i32) {
        fs::remove_dir_all(self.proc().join(pid.to_string())).unwrap();
    }

    fn register(&self, pid: i32, content: &str) {
        fs::write(self.path(&format!("sessions/{pid}.json")), content).unwrap();
    }

    fn status(&self, pid: i32, status: &str, second: u32) {
        let at = moment(second).as_millis();
        let mut content = json!({
            "pid": pid, "sessionId": SESSION, "cwd": "/home/dev/project", "startedAt": moment(0).as_millis(),
            "procStart": START.to_string(), "version": "2.1.332", "entrypoint": "cli",
            "pidDomain": format!("linux:boot-id:{NAMESPACE}"), "status": status,
            "updatedAt": at, "statusUpdatedAt": at
        });
        if status == "waiting" {
            content["waitingFor"] = json!("permission prompt");
        }
        self.register(pid, &content.to_string());
    }
}

/// Open requests that are facts, of the whole tree.
fn pending(snapshot: &Snapshot, now: Timestamp) -> usize {
    let of = |slot| snapshot.rollup(slot, now).map_or(0, |rollup| rollup.certain_actions());
    snapshot.roots().map(of).sum()
}

/// Waits for a state at a moment; meanwhile nobody is ever asked twice.
fn until_at(running: &Running<'_>, id: &str, now: Timestamp, wanted: &str) {
    let started = Instant::now();
    loop {
        let snapshot = running.life.snapshot();
        assert!(pending(&snapshot, now) <= 1);
        let is = state(&snapshot, id, now);
        if is.as_deref() == Some(wanted) {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(15), "{id} is {is:?} at {now}, never {wanted}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Replays a recording's registry and transcript side by side; `wanted`: the states after each change of the registry.
fn replay(name: &str, wanted: &[&str]) {
    let text = fs::read_to_string(
        std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures/claude_code")
            .join(format!("{name}.sessions.ndjson")),
    )
    .unwrap();
    let changes: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(changes.len(), wanted.len(), "{name}");
    let transcript = recording(&format!("{name}.transcript"));
    let id = session(&transcript);
    let end = changes.last().unwrap()["t"].as_i64().unwrap();
    let mut home = Home::new();
    home.clock = clock_at(Timestamp::from_millis(end + 1_000));
    let running = home.start();
    running.settle();
    let place = format!("-home-dev-project/{id}.jsonl");
    let all = lines(&transcript);
    let mut left = &all[..];
    for (change, wanted) in changes.iter().zip(wanted) {
        let now = Timestamp::from_millis(change["t"].as_i64().unwrap());
        let due = left.iter().position(|line| time(line) > Some(now)).unwrap_or(left.len());
        home.append(&place, &bytes(&left[..due]));
        left = &left[due..];
        let pid: i32 = change["file"].as_str().unwrap().strip_suffix(".json").unwrap().parse().unwrap();
        let content = &change["content"];
        if content.is_null() {
            fs::remove_file(home.path(&format!("sessions/{pid}.json"))).unwrap();
            home.dies(pid);
        } else {
            home.process(pid, content["procStart"].as_str().unwrap().parse().unwrap());
            home.register(pid, &content.to_string());
        }
        // Each change is seen, as it would be at its own pace.
        std::thread::sleep(Duration::from_millis(200));
        until_at(&running, &id, now, wanted);
    }
    running.end();
}

#[test]
fn recorded_registries_and_transcripts_tell_one_story() {
    let (starting, running) = ("queued/starting", "running/working");
    let (progressing, completed) = ("progressing/working", "completed/turn_complete");
    let permission = "waiting_for_user/permission";
    // Allowed after 12 s, allowed after 42 s; idle is no wait; a second turn; the end.
    let story = [
        starting,
        starting,
        running,
        permission,
        running,
        permission,
        progressing,
        completed,
        completed,
        completed,
        completed,
    ];
    replay("perm-manual", &story);
    let question = "waiting_for_user/question";
    replay("ask-question", &[starting, starting, running, question, running, completed, completed]);
    let plan = "waiting_for_user/plan_approval";
    replay("plan-approval", &[starting, starting, running, plan, progressing, completed, completed]);
    let other = "waiting_for_user/other";
    let story = [
        starting,
        starting,
        running,
        other,
        permission,
        "cancelled/denied",
        progressing,
        completed,
        completed,
    ];
    replay("perm-auto-mode", &story);
    let (denied, stopped) = ("cancelled/denied", "cancelled/by_user");
    let story = [
        starting, starting, running, permission, denied, running, stopped, stopped, running, stopped, stopped,
    ];
    replay("perm-reject-interrupt", &story);
}

#[test]
fn report_04_a_permission_dialog_is_a_wait_by_the_registrys_word() {
    let mut home = Home::new();
    home.clock = clock_at(moment(2000));
    home.process(7, START);
    home.status(7, "busy", 1);
    let place = format!("p/{SESSION}.jsonl");
    let call = calls(SESSION, &at(5), "c1", "Bash", json!({"command": "make"}));
    home.append(&place, &bytes(&[prompt(SESSION, &at(1), "go"), call]));
    let running = home.start();
    running.settle();
    until_at(&running, SESSION, moment(6), "running/working");
    home.status(7, "waiting", 6);
    until_at(&running, SESSION, moment(7), "waiting_for_user/permission");
    // Twenty minutes later.
    until_at(&running, SESSION, moment(6 + 1200), "waiting_for_user/permission");
    let snapshot = running.life.snapshot();
    assert_eq!(pending(&snapshot, moment(1206)), 1);
    let families = super::stand::scrape(&snapshot, home.clock.now());
    let pending = families.iter().find(|f| f.name == "agent_session_pending_user_actions").unwrap();
    assert_eq!(pending.samples[0].value, 1.0);
    home.status(7, "busy", 1210);
    home.append(
        &place,
        &bytes(&[result(SESSION, &at(1211), "c1", json!({"stdout": "", "interrupted": false}))]),
    );
    until_at(&running, SESSION, moment(1212), "progressing/working");
    running.end();
}

#[test]
fn report_05_bookkeeping_is_no_activity_and_an_edit_that_lasts_is_probably_a_wait() {
    let mut home = Home::new();
    home.clock = clock_at(moment(2000));
    let place = format!("p/{SESSION}.jsonl");
    let input = json!({"file_path": "/x", "old_string": "a", "new_string": "b"});
    let edit = calls(SESSION, &at(5), "c1", "Edit", input);
    home.append(&place, &bytes(&[prompt(SESSION, &at(1), "go"), edit]));
    let running = home.start();
    let open = running.settle();
    let activity = facts(&open, SESSION).unwrap().last_activity;
    assert_eq!(activity, Some(moment(5)));
    for kind in ["ai-title", "last-prompt", "permission-mode", "file-history-snapshot"] {
        let before = running.records();
        home.append(&place, &bytes(&[json!({"type": kind, "sessionId": SESSION, "messageId": "m"})]));
        let now = running.read_since(before, 1);
        assert_eq!(facts(&now, SESSION).unwrap().last_activity, activity, "{kind}");
        assert_eq!(facts(&now, SESSION).unwrap().last_progress, None);
        assert_eq!(state(&now, SESSION, moment(20)).unwrap(), "running/working");
        assert_eq!(state(&now, SESSION, moment(5 + 60)).unwrap(), "waiting_for_user/probable");
        assert_eq!(pending(&now, moment(65)), 0, "inferred, not known");
    }
    // The registry is a certain surface, and refutes it.
    home.process(7, START);
    home.status(7, "busy", 6);
    until_at(&running, SESSION, moment(65), "running/working");
    home.status(7, "waiting", 7);
    until_at(&running, SESSION, moment(65), "waiting_for_user/permission");
    running.end();
}

#[test]
fn report_17_old_runs_are_not_running_after_a_start() {
    let mut home = Home::new();
    let ids: Vec<String> = (0..6).map(|n| format!("1a1a1a1a-0000-4000-8000-{n:012}")).collect();
    for (n, id) in ids.iter().enumerate() {
        let n = u32::try_from(n).unwrap();
        let open = [
            prompt(id, &at(60 * n), "go"),
            calls(id, &at(60 * n + 5), &format!("c{n}"), "Bash", json!({"command": "x"})),
        ];
        home.append(&format!("p/{id}.jsonl"), &bytes(&open));
    }
    home.clock = clock_at(moment(0).plus(3 * 86_400_000));
    for _ in 0..2 {
        let end = home.once();
        for id in &ids {
            assert_eq!(state(&end, id, home.clock.now()).unwrap(), "unknown/silent_too_long");
        }
        let families = super::stand::scrape(&end, home.clock.now());
        let sessions = families.iter().find(|f| f.name == "agent_sessions").unwrap();
        let of = |word: &str| {
            sessions.samples.iter().filter(|s| s.label("state") == word).map(|s| s.value).sum::<f64>()
        };
        assert_eq!((of("running"), of("progressing")), (0.0, 0.0));
    }
}

/// A session in the middle of a call, with its process.
fn in_a_call() -> Home {
    let mut home = Home::new();
    home.clock = clock_at(moment(60));
    home.process(7, START);
    home.status(7, "busy", 1);
    let call = calls(SESSION, &at(5), "c1", "Bash", json!({"command": "make"}));
    home.append(&format!("p/{SESSION}.jsonl"), &bytes(&[prompt(SESSION, &at(1), "go"), call]));
    home
}

#[test]
fn report_19_and_23_a_process_that_died_in_a_call_is_gone_at_once_and_never_a_success() {
    for reused in [false, true] {
        for meanwhile in [false, true] {
            let home = in_a_call();
            let mut running = home.start();
            running.until_state(SESSION, "running/working");
            if !meanwhile {
                // It dies while nobody looks.
                running.end();
                if reused {
                    home.is_given_away(7)
                } else {
                    home.dies(7)
                };
                running = home.start();
            } else if reused {
                home.is_given_away(7);
            } else {
                home.dies(7);
            }
            let gone = running.until_state(SESSION, "failed/process_gone");
            assert_eq!(facts(&gone, SESSION).unwrap().turns.completed, 0);
            for later in [100, 7_000, 30_000] {
                assert_eq!(state(&gone, SESSION, moment(later)).unwrap(), "failed/process_gone");
            }
            running.end();
        }
    }
    // Its process lives on without a word: a matter of thresholds.
    let home = in_a_call();
    let end = home.once();
    assert_eq!(state(&end, SESSION, moment(5 + 1800)).unwrap(), "running/working");
    assert_eq!(state(&end, SESSION, moment(5 + 2 * 3600 + 60)).unwrap(), "stalled/call_stuck");
    assert_eq!(state(&end, SESSION, moment(5 + 7 * 3600)).unwrap(), "stalled/call_stuck");
}

#[test]
fn report_20_what_cannot_be_checked_changes_no_state() {
    let home = in_a_call();
    // Another namespace: whoever has number 7 here is somebody else.
    fs::remove_file(home.proc().join("self/ns/pid")).unwrap();
    symlink("pid:[4026532999]", home.proc().join("self/ns/pid")).unwrap();
    home.dies(7);
    let running = home.start();
    running.until_state(SESSION, "running/working");
    std::thread::sleep(Duration::from_millis(1_300));
    let snapshot = running.life.snapshot();
    assert_eq!(state(&snapshot, SESSION, moment(60)).unwrap(), "running/working");
    assert_eq!(state(&snapshot, SESSION, moment(5 + 7 * 3600)).unwrap(), "unknown/silent_too_long");
    running.end();
}

#[test]
fn a_dialog_is_known_though_a_long_history_is_read_behind_it() {
    let mut home = Home::new();
    home.clock = clock_at(moment(13_000));
    home.process(7, START);
    let mut all = Vec::new();
    // Turns that ended long before the dialog that is open now.
    for n in 0..3_000 {
        let second = 4 * n;
        let mut asked = prompt(SESSION, &at(second), &format!("go {n}"));
        asked["promptId"] = json!(format!("p{n}"));
        all.push(asked);
        all.push(says(SESSION, &at(second + 2), &format!("m{n}"), 5, "end_turn"));
    }
    all.push(prompt(SESSION, &at(12_000), "last"));
    all.push(calls(SESSION, &at(12_005), "c1", "Bash", json!({"command": "make"})));
    home.append(&format!("p/{SESSION}.jsonl"), &bytes(&all));
    home.status(7, "waiting", 12_006);
    let running = home.start();
    running.settle();
    until_at(&running, SESSION, moment(12_100), "waiting_for_user/permission");
    assert_eq!(pending(&running.life.snapshot(), moment(12_100)), 1);
    let facts = facts(&running.life.snapshot(), SESSION).unwrap();
    assert_eq!(facts.turns.completed, 3_000);
    assert!(facts.writer.is_some());
    running.end();
}

#[test]
fn a_fork_that_is_read_anew_still_waits_for_its_person() {
    let (origin, fork) = (recording("resume-fork.transcript"), recording("resume-fork.transcript.2"));
    let id = session(&fork);
    let mut home = Home::new();
    home.clock = clock_at(moment(40 * 60));
    home.process(7, START);
    let mut copied = lines(&fork);
    copied.truncate(
        copied
            .iter()
            .position(|line| {
                line["type"] == "assistant" && line["timestamp"].as_str() > Some("2026-11-29T15:29:49.000Z")
            })
            .unwrap(),
    );
    copied.push(calls(&id, &at(1790), "c1", "Bash", json!({"command": "make"})));
    home.append(&format!("p/{id}.jsonl"), &bytes(&copied));
    home.status(7, "waiting", 1791);
    let file = home.path("sessions/7.json");
    let content = fs::read_to_string(&file).unwrap().replace(SESSION, &id);
    fs::write(file, content).unwrap();
    let running = home.start();
    running.settle();
    let now = moment(1800);
    until_at(&running, &id, now, "waiting_for_user/permission");
    let before = facts(&running.life.snapshot(), &id).unwrap();
    assert!(before.turns.started > 1, "what it copied is its own as long as nobody else has it");
    let records = running.records();
    home.append(&format!("p/{}.jsonl", session(&origin)), &origin);
    let after = running.read_since(records, lines(&origin).len() + copied.len());
    let fork = facts(&after, &id).unwrap();
    assert_eq!(fork.turns.started, 1);
    assert_eq!((fork.writer, fork.info.capabilities), (before.writer, before.info.capabilities));
    assert_eq!(state(&after, &id, now).unwrap(), "waiting_for_user/permission");
    assert_eq!(pending(&after, now), 1);
    running.end();
}
