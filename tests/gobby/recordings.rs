//! Each recording as a story: states on the way, requests to the user and to stop with their times, and what was
//! counted. `tests/golden/gobby/<recording>.txt`, renewed by `BLESS=1`.

use std::collections::BTreeMap;
use std::path::Path;

use agent_session_exporter::event::Fact;
use agent_session_exporter::sources::gobby::DEF;

use super::daemon::RECORDINGS;
use super::replay::{Replay, clock, reducer};

fn counted(replay: &Replay, session: &str) -> String {
    let f = replay.facts(session);
    let mut out = format!("{session}\n");
    let name = |n: &Option<_>| n.as_ref().map_or("-", agent_session_exporter::event::Name::as_str).to_owned();
    let parent = f.parent.as_ref().map_or("-", |p| p.as_str());
    let endpoint = name(&f.info.endpoint);
    out += &format!(
        "  agent {} project {} parent {parent} at {endpoint}\n",
        name(&f.info.agent),
        name(&f.project)
    );
    let t = f.turns;
    out += &format!(
        "  turns {} completed {} failed {} cancelled {}\n",
        t.started, t.completed, t.failed, t.cancelled
    );
    let mut ends: BTreeMap<&str, u32> = BTreeMap::new();
    let mut stuck: BTreeMap<String, u32> = BTreeMap::new();
    for fact in replay.said_of(session) {
        match fact {
            Fact::ToolEnded(end) => *ends.entry(end.outcome.as_str()).or_default() += 1,
            Fact::NativeStuck { detector, layer } => {
                *stuck.entry(format!("{}/{}", detector.as_str(), layer.as_str())).or_default() += 1;
            }
            _ => {}
        }
    }
    out += &format!("  calls {} failed {} ended {ends:?}\n", f.calls.total, f.calls.failed);
    let progress: Vec<_> =
        f.progress.iter().map(|p| format!("{} {}+{}", p.kind.as_str(), p.high, p.low)).collect();
    out += &format!("  progress {}\n", progress.join(", "));
    if let Some(at) = f.last_progress {
        out += &format!("  last progress {}\n", clock(at));
    }
    if !stuck.is_empty() {
        out += &format!("  stuck {stuck:?}\n");
    }
    if let Some(end) = &f.run_end {
        out += &format!("  ended {} at {}\n", end.outcome.as_str(), end.time.map_or_else(String::new, clock));
    }
    out
}

#[test]
fn each_recording_is_told_as_its_golden_says() {
    for recording in RECORDINGS {
        let replay = Replay::of(recording);
        let mut text = replay.story.join("\n");
        text.push_str("\n\n");
        for session in replay.names() {
            text.push_str(&counted(&replay, &session));
        }
        text.push_str(&format!("unknown {:?}\ndisagreements {}\n", replay.unknown, replay.disagreements));
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/gobby/{recording}.txt"));
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let wanted = std::fs::read_to_string(&path).unwrap_or_default();
        for (got, wanted) in text.lines().zip(wanted.lines()) {
            assert_eq!(got, wanted, "{recording}");
        }
        assert_eq!(text.lines().count(), wanted.lines().count(), "{recording}");
    }
}

#[test]
fn a_replay_of_what_the_daemon_said_tells_the_same() {
    for recording in RECORDINGS {
        let replay = Replay::in_full_seconds(recording);
        replay.tape.tells_the_same(&DEF, recording, reducer(), replay.events.iter());
    }
}
