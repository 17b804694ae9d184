//! `kill -9` at random moments while events are pushed and files of both agents grow: afterwards the facts equal those of an
//! uninterrupted run, each acknowledged event is in, none is counted twice, no timestamp moved back.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "common/running.rs"]
mod common;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Exporter, fixture, now_ms, wait_until};
use serde_json::Value;

/// How often it is killed.
const KILLS: usize = 170;
/// Events per pushed batch.
const BATCH: usize = 20;
/// Recordings that grow meanwhile.
const RECORDINGS: [&str; 8] = [
    "codex/tests_commit.rollout.jsonl",
    "codex/edit_ok.rollout.jsonl",
    "codex/as_legacy.rollout.jsonl",
    "codex/loop_reads.rollout.jsonl",
    "codex/subagent.rollout.jsonl",
    "codex/subagent.rollout.2.jsonl",
    "codex/old_0.117.0_ok.rollout.jsonl",
    "codex/resume_after_kill9.rollout.jsonl",
];

/// Likewise of the other agent, with their places: a fork beside its origin, sub-agents beside their parents, one that
/// begins with what its parent said.
const TRANSCRIPTS: [(&str, &str); 9] = [
    ("424ea170-5b98-4a7e-946b-29c506995644.jsonl", "resume-fork.transcript"),
    ("40df5b8b-d0ed-4bd3-a181-d4b28c1605df.jsonl", "resume-fork.transcript.2"),
    ("e7d31264-0eae-4973-8c85-f17b9a186d5a.jsonl", "subagent-bg.transcript"),
    (
        "e7d31264-0eae-4973-8c85-f17b9a186d5a/subagents/agent-a53e45fcf295c8882.jsonl",
        "subagent-bg.subagent-1.transcript",
    ),
    ("PARENT.jsonl", "subagent.transcript"),
    ("PARENT/subagents/agent-ONE.jsonl", "subagent.subagent-1.transcript"),
    ("PARENT/subagents/agent-TWO.jsonl", "subagent.subagent-2.transcript"),
    ("todo.jsonl", "todo.transcript"),
    ("loop-reads.jsonl", "loop-reads.transcript"),
];

/// Small, seeded and good enough to pick moments.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// A file that is written piece by piece.
struct Growing {
    path: PathBuf,
    bytes: Vec<u8>,
    written: usize,
}

impl Growing {
    fn grow(&mut self, n: usize) {
        let to = (self.written + n).min(self.bytes.len());
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&self.path).unwrap();
        file.write_all(&self.bytes[self.written..to]).unwrap();
        self.written = to;
    }
}

fn rollouts(home: &Path) -> Vec<Growing> {
    let folder = home.join(".codex/sessions/2026/11/29");
    fs::create_dir_all(&folder).unwrap();
    let growing = RECORDINGS.iter().enumerate().map(|(i, name)| {
        let path =
            folder.join(format!("rollout-2026-11-29T15-00-00-0000000{i}-0000-7000-8000-000000000000.jsonl"));
        Growing { path, bytes: fixture(name), written: 0 }
    });
    growing.collect()
}

fn transcripts(home: &Path) -> Vec<Growing> {
    let folder = home.join(".claude/projects/-home-dev-project");
    let bytes = |name: &str| fixture(&format!("claude_code/{name}.jsonl"));
    let field = |bytes: &[u8], key: &str| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let from = text.find(&format!("\"{key}\":\"")).unwrap() + key.len() + 4;
        text[from..].split('"').next().unwrap().to_owned()
    };
    let names = [
        ("PARENT", field(&bytes("subagent.transcript"), "sessionId")),
        ("ONE", field(&bytes("subagent.subagent-1.transcript"), "agentId")),
        ("TWO", field(&bytes("subagent.subagent-2.transcript"), "agentId")),
    ];
    let growing = TRANSCRIPTS.iter().map(|(place, name)| {
        let place = names.iter().fold((*place).to_owned(), |place, (what, name)| place.replace(what, name));
        let path = folder.join(place);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        Growing { path, bytes: bytes(name), written: 0 }
    });
    growing.collect()
}

fn batch(number: usize, now: i64) -> String {
    let mut lines = String::new();
    for i in 0..BATCH {
        let n = number * BATCH + i;
        let session = n % 5;
        let time = now + n as i64;
        let (kind, data) = match (n / 5) % 4 {
            0 => ("tool.started", format!(r#"{{"callId":"c{}","tool":"edit"}}"#, n / 20)),
            1 => ("tool.ended", format!(r#"{{"callId":"c{}","outcome":"ok","diffLines":3}}"#, n / 20)),
            2 => ("usage", r#"{"model":"m","input":3,"output":5}"#.to_owned()),
            _ => ("activity", r#"{"class":"work"}"#.to_owned()),
        };
        lines.push_str(&format!(
            r#"{{"id":"e{n}","time":{time},"source":"mine","sessionId":"s{session}","projectId":"p","type":"{kind}","data":{data}}}"#
        ));
        lines.push('\n');
    }
    lines
}

/// What must not depend on interruptions: everything but what `now` alone decides.
fn facts(exporter: &Exporter) -> Vec<Value> {
    let mut sessions = exporter.sessions();
    for session in &mut sessions {
        let session = session.as_object_mut().unwrap();
        // Records without a time are dated by when they were read; the writer's life is probed.
        for volatile in ["lastSeenAt", "stateSince", "state", "stateReason"] {
            session.remove(volatile);
        }
    }
    sessions
}

fn counters(exporter: &Exporter) -> Vec<String> {
    let metrics = exporter.metrics();
    let lines = metrics.lines().filter(|l| l.contains("source=\"mine\"") && l.contains("_total{"));
    lines.filter(|l| !l.starts_with("agent_session_exporter_")).map(str::to_owned).collect()
}

fn clocks(exporter: &Exporter) -> Vec<(String, Option<String>, Option<String>)> {
    let text = |v: &Value| v.as_str().map(str::to_owned);
    exporter
        .sessions()
        .iter()
        .map(|s| (text(&s["sessionId"]).unwrap(), text(&s["lastActivityAt"]), text(&s["lastProgressAt"])))
        .collect()
}

#[test]
fn a_killed_exporter_knows_what_an_uninterrupted_one_knows() {
    let folder = tempfile::tempdir().unwrap();
    let (home, state) = (folder.path().join("home"), folder.path().join("state"));
    let mut files = rollouts(&home);
    files.extend(transcripts(&home));
    let mut dice = Dice(0x1234_5678_9abc_def1);
    let base = now_ms();
    let mut sent = 0;
    let mut acknowledged = 0;
    let mut known = Vec::new();
    for _ in 0..KILLS {
        let exporter = Exporter::start(&home, &state, &[]);
        for (session, activity, progress) in clocks(&exporter) {
            // A copy that was read before its original gives back what it had of it.
            let fork =
                TRANSCRIPTS[..2].iter().any(|(place, _)| place.strip_suffix(".jsonl") == Some(&session));
            let before = known.iter().find(|(s, _, _)| *s == session && !fork);
            if let Some((_, old_activity, old_progress)) = before {
                assert!(activity >= *old_activity && progress >= *old_progress, "{session} moved back");
            }
        }
        for _ in 0..dice.roll(7) {
            let file = dice.roll(files.len() as u64) as usize;
            let n = dice.roll(3000) as usize;
            files[file].grow(n);
        }
        let lives = Duration::from_micros(dice.roll(40_000));
        let address = exporter.address.clone();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(lives);
            exporter.kill();
        });
        // Batches that were not acknowledged are sent again by the next life, as a careful client does.
        loop {
            let headers = [("content-type", "application/x-ndjson")];
            let lines = batch(acknowledged, base);
            sent += 1;
            match common::request(&address, "POST", "/api/v1/events", &headers, lines.as_bytes()) {
                Some(answer) if answer.status == 202 => acknowledged += 1,
                _ => break,
            }
        }
        killer.join().unwrap();
        let exporter = Exporter::start(&home, &state, &[]);
        known = clocks(&exporter);
        exporter.kill();
    }
    assert!(acknowledged > 100, "only {acknowledged} of {sent} batches were acknowledged");
    for file in &mut files {
        file.grow(usize::MAX / 2);
    }
    let interrupted = Exporter::start(&home, &state, &[]).ready();
    interrupted.push(&batch(acknowledged, base)).unwrap();

    let fresh = folder.path().join("fresh");
    let uninterrupted = Exporter::start(&home, &fresh, &[]).ready();
    for number in 0..=acknowledged {
        assert_eq!(uninterrupted.push(&batch(number, base)).unwrap().status, 202);
    }
    wait_until("both read all files", || facts(&interrupted).len() == facts(&uninterrupted).len());
    let mut last = (Vec::new(), Vec::new());
    wait_until("both are quiet", || {
        let now = (facts(&interrupted), facts(&uninterrupted));
        let quiet = now == last;
        last = now;
        quiet
    });
    let (ours, theirs) = last;
    for (a, b) in ours.iter().zip(&theirs) {
        assert_eq!(a, b);
    }
    assert_eq!(counters(&interrupted), counters(&uninterrupted));
    let calls: u64 =
        ours.iter().filter(|s| s["source"] == "mine").map(|s| s["calls"]["total"].as_u64().unwrap()).sum();
    assert_eq!(calls, ((acknowledged + 1) * BATCH / 4) as u64, "each acknowledged call is in, none twice");
}
