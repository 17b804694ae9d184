//! From an agent's file to a scrape: found and followed within a quarter of a second.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::as_if_now;
use crate::common::{Exporter, sample};

const TRIES: usize = 9;
const WITHIN: Duration = Duration::from_millis(250);

/// A recording in two parts: an open turn, and how it ends.
fn recording(id: &str) -> (String, String) {
    let lines = as_if_now("edit_ok", id);
    let (last, first) = lines.split_last().unwrap();
    (first.concat(), last.clone())
}

/// How long until a scrape shows it.
fn shown(exporter: &Exporter, series: &str) -> Duration {
    let started = Instant::now();
    while sample(&exporter.metrics(), series) != Some(1.0) {
        assert!(started.elapsed() < Duration::from_secs(20), "never shown: {series}");
        std::thread::sleep(Duration::from_millis(2));
    }
    started.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn measure(exporter: &Exporter, home: &Path, round: usize) -> (Vec<Duration>, Vec<Duration>) {
    let (mut found, mut followed) = (Vec::new(), Vec::new());
    for n in 0..TRIES {
        // Each in a folder of a day that was not there before.
        let folder = home.join(format!(".codex/sessions/2026/{:02}/{:02}", round + 1, n + 1));
        fs::create_dir_all(&folder).unwrap();
        let id = format!("{round:04x}{n:04x}-d360-7271-9b03-36dcd1251d99");
        let path = folder.join(format!("rollout-2026-11-29T15-00-00-{id}.jsonl"));
        let (first, last) = recording(&id);
        let state = |s: &str| {
            format!(r#"agent_session_state{{source="codex",project="project",session="{id}",state="{s}"}}"#)
        };
        fs::write(&path, first).unwrap();
        found.push(shown(exporter, &state("progressing")));
        std::thread::sleep(Duration::from_millis(30 * (n as u64 % 5)));
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(last.as_bytes()).unwrap();
        followed.push(shown(exporter, &state("completed")));
    }
    (found, followed)
}

#[test]
fn a_new_file_and_new_lines_show_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    fs::create_dir_all(home.join(".codex/sessions")).unwrap();
    let exporter = Exporter::start(home, &home.join("state"), &[]).ready();
    let (found, followed) = measure(&exporter, home, 0);
    println!("found: {found:?}\nfollowed: {followed:?}");
    assert!(median(found.clone()) < WITHIN, "found: {found:?}");
    assert!(median(followed.clone()) < WITHIN, "followed: {followed:?}");
}
