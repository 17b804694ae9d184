//! Thousands of files and folders; memory does not grow with what they hold.

use std::fs;
use std::time::{Duration, Instant};

use crate::harness::{Home, age, alone, append, lines, runtime};

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_files_in_hundreds_of_folders() {
    let mut home = Home::new();
    for folder in 0..300 {
        let at = home.path(&format!("sessions/{folder}/x"));
        fs::create_dir_all(&at).unwrap();
        for file in 0..10 {
            let path = at.join(format!("r-{folder}-{file}.jsonl"));
            append(&path, format!("session {folder}-{file}\nmore\n"));
            age(&path, if file < 6 { 1 + file } else { 4 + file });
        }
    }
    let began = Instant::now();
    let mut running = home.start();
    running.scanned().await;
    // Those of six days; the other ones are too old.
    assert_eq!(running.events.len(), 2 * 300 * 6, "in {:?}", began.elapsed());
    let newest = running.texts().iter().position(|t| t.ends_with("-1")).unwrap();
    assert_eq!(newest, 2 * 300, "the newest of all folders come first");
    let began = Instant::now();
    append(&running.home().path("sessions/299/x/r-299-9.jsonl"), lines(1, 1));
    let seen = running.events.len();
    running.events(seen + 3).await;
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    running.end().await;
    assert_eq!(home.cursors.len(), 300 * 6 + 1);
}

/// The most memory this process has used, in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn memory_is_bounded_by_neither_files_nor_lines() {
    if !alone("scale::memory_is_bounded_by_neither_files_nor_lines") {
        return;
    }
    runtime().block_on(async {
        let mut home = Home::new();
        let line = format!("{}\n", "y".repeat(9_999));
        for i in 0..400 {
            let path = home.session(&format!("{i}"));
            append(&path, format!("session {i}\n{}", line.repeat(10)));
            age(&path, 1);
        }
        // One line of 64 MB in one of them, written in pieces.
        for _ in 0..64 {
            append(&home.session("7"), vec![b'x'; 1 << 20]);
        }
        append(&home.session("7"), "\nbehind\n");
        let before = peak();
        let mut running = home.start();
        let mut events = 0;
        while !running.health.iter().any(|h| h.scanned) {
            assert!(running.take(Duration::from_secs(60)).await);
            events += std::mem::take(&mut running.events).len();
        }
        assert_eq!(events, 400 * 11 + 1);
        running.end().await;
        assert_eq!(home.errors("too_long"), 1);
        let grown = peak() - before;
        assert!(grown < 24 << 10, "{grown} KiB for 40 MB in 400 files and a line of 64 MB");
    });
}
