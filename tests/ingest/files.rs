//! What happens to files while they are followed.

use std::fs;
use std::time::{Duration, Instant};

use agent_session_exporter::sources::files::FileSource;

use crate::harness::{COUNTING, Home, age, append, compress, counted, lines};

/// Longer than the confirmation of a missing file, shorter than a test should take.
const QUIET: Duration = Duration::from_millis(800);

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[tokio::test(flavor = "multi_thread")]
async fn new_files_and_lines_are_seen_within_a_quarter_of_a_second() {
    let mut home = Home::new();
    let mut running = home.start();
    running.scanned().await;
    assert_eq!(running.home().telemetry.watched_roots.with_label_values(&["inotify"]).get(), 2);
    let (mut found, mut grown) = (Vec::new(), Vec::new());
    for i in 0..9 {
        let path = running.home().path(&format!("sessions/2026/08/{:02}/r-{i}.jsonl", i % 5 + 1));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let seen = running.events.len();
        let began = Instant::now();
        append(&path, "first\n");
        running.events(seen + 1).await;
        found.push(began.elapsed());
        let began = Instant::now();
        append(&path, "second\n");
        running.events(seen + 2).await;
        grown.push(began.elapsed());
    }
    running.end().await;
    let (found, grown) = (median(found), median(grown));
    assert!(found <= Duration::from_millis(250), "new files: {found:?}");
    assert!(grown <= Duration::from_millis(250), "growth: {grown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_kernels_word_growth_is_still_seen() {
    let mut home = Home::new();
    home.surroundings.poll_only = true;
    let path = home.session("a");
    append(&path, lines(1, 2));
    let mut running = home.start();
    running.scanned().await;
    append(&path, lines(3, 3));
    let began = Instant::now();
    running.events(3).await;
    assert!(began.elapsed() < Duration::from_secs(2));
    let polled = &running.home().telemetry.watched_roots;
    assert_eq!(polled.with_label_values(&["poll"]).get(), 2);
    assert_eq!(polled.with_label_values(&["inotify"]).get(), 0);
    running.end().await;
    assert_eq!(home.telemetry.watched_roots.with_label_values(&["poll"]).get(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_line_counts_once_when_it_is_whole() {
    let mut home = Home::new();
    let path = home.session("a");
    append(&path, "line 1\nli");
    let mut running = home.start();
    running.scanned().await;
    append(&path, "ne");
    running.rest(QUIET).await;
    assert_eq!(running.texts(), counted(1, 1));
    append(&path, " 2\nline 3\n");
    running.events(3).await;
    assert_eq!(running.texts(), counted(1, 3));
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_decoded_or_held_is_counted_and_the_rest_counts() {
    let mut home = Home::new();
    let path = home.session("a");
    append(&path, "\u{feff}line 1\r\n\r\nbad\n\nline 2\r\n");
    append(&path, [vec![b'x'; 20 << 20], b"\nline 3\nbad\n?\n".to_vec()].concat());
    std::os::unix::fs::symlink("itself", home.path("sessions/itself")).unwrap();
    let events = home.once().await;
    assert_eq!(crate::harness::texts(&events)[..3], counted(1, 3));
    assert_eq!((home.errors("json"), home.errors("too_long"), home.errors("unreadable")), (2, 1, 1));
    assert_eq!(home.telemetry.records.with_label_values(&["counting"]).get(), 6);
    assert!(home.telemetry.source_last_record.with_label_values(&["counting"]).get() > 1.7e9);
    assert!(home.telemetry.last_scan.get() > 1.7e9);
    let unknown = home.telemetry.registry().gather();
    let unknown = unknown.iter().find(|f| f.name().ends_with("unknown_records_total")).unwrap();
    assert_eq!(unknown.get_metric().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewritten_file_is_read_again() {
    let mut home = Home::new();
    let path = home.session("a");
    append(&path, lines(1, 5));
    let mut running = home.start();
    running.scanned().await;
    fs::write(&path, lines(1, 2)).unwrap();
    running.events(7).await;
    assert_eq!(running.texts()[5..], counted(1, 2));
    // Same length, other head.
    fs::write(&path, "LINE 1\nLINE 2\n").unwrap();
    running.events(9).await;
    assert_eq!(running.texts()[7..], ["1:LINE 1", "2:LINE 2"]);
    // Another inode under the same name.
    fs::write(path.with_extension("tmp"), lines(1, 3)).unwrap();
    fs::rename(path.with_extension("tmp"), &path).unwrap();
    running.events(12).await;
    running.rest(QUIET).await;
    assert_eq!(running.texts()[9..], counted(1, 3));
    running.end().await;
    assert_eq!(home.cursors.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_to_the_archive_is_no_end() {
    let mut home = Home::new();
    let (path, archived) = (home.session("a"), home.path("archived/r-a.jsonl"));
    append(&path, lines(1, 2));
    let mut running = home.start();
    running.scanned().await;
    let file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    append(&path, lines(3, 3));
    fs::rename(&path, &archived).unwrap();
    std::io::Write::write_all(&mut &file, lines(4, 4).as_bytes()).unwrap();
    running.events(4).await;
    running.rest(QUIET).await;
    append(&archived, lines(5, 5));
    running.events(5).await;
    assert_eq!(running.texts(), counted(1, 5));
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_file_is_said_once_and_forgotten() {
    let mut home = Home::new();
    let path = home.session("a");
    append(&path, lines(1, 1));
    append(&home.session("b"), lines(1, 1));
    let mut running = home.start();
    running.scanned().await;
    fs::remove_file(&path).unwrap();
    running.events(3).await;
    running.rest(QUIET).await;
    assert_eq!(running.texts()[2..], ["session.deleted"]);
    let deleted = &running.events[2];
    assert_eq!((deleted.session.as_str(), deleted.time), ("line 1", Some(deleted.observed)));
    assert!(deleted.id.is_some());
    running.end().await;
    assert_eq!(home.cursors.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_twin_is_the_same_stream() {
    let mut home = Home::new();
    let (path, packed) = (home.session("a"), home.session("a").with_extension("jsonl.zst"));
    append(&path, lines(1, 100));
    let mut running = home.start();
    running.scanned().await;
    // Both for a moment, then only the compressed one.
    append(&packed, compress(lines(1, 100).as_bytes()));
    running.rest(QUIET).await;
    fs::remove_file(&path).unwrap();
    running.rest(QUIET).await;
    assert_eq!(running.texts(), counted(1, 100));
    // Made plain again by a resume: the old lines come again under their ids, the new one is new.
    append(&path, lines(1, 101));
    fs::remove_file(&packed).unwrap();
    running.events(201).await;
    running.rest(QUIET).await;
    assert_eq!(running.texts()[100..], counted(1, 101));
    assert_eq!(running.events[100].id, running.events[0].id);
    running.end().await;
    assert_eq!(home.cursors.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_file_alone_is_read_once() {
    let mut home = Home::new();
    let packed = home.session("a").with_extension("jsonl.zst");
    append(&packed, compress(lines(1, 3000).as_bytes()));
    let old = home.session("old").with_extension("jsonl.zst");
    append(&old, compress(lines(1, 10).as_bytes()));
    age(&old, 30);
    assert_eq!(crate::harness::texts(&home.once().await), counted(1, 3000));
    assert_eq!(home.once().await.len(), 0);
    fs::write(home.session("broken").with_extension("jsonl.zst"), b"no zstd").unwrap();
    assert_eq!(home.once().await.len(), 0);
    assert_eq!(home.errors("unreadable"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_file_is_read_when_it_grows_and_from_its_head() {
    let mut home = Home::new();
    let path = home.session("a");
    append(&path, lines(1, 3));
    age(&path, 30);
    let mut running = home.start();
    running.scanned().await;
    assert_eq!(running.texts().len(), 0);
    append(&path, lines(4, 4));
    running.events(4).await;
    assert_eq!(running.texts(), counted(1, 4));
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_that_come_later_and_go_again() {
    let mut home = Home::empty();
    let path = home.session("a");
    let mut running = home.start();
    running.scanned().await;
    assert!(running.health.iter().all(|h| h.up), "not installed is not down");
    let began = Instant::now();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    append(&path, lines(1, 1));
    running.events(1).await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    let up = |r: &crate::harness::Running<'_>| {
        r.home().telemetry.source_up.with_label_values(&["counting", "default"]).get()
    };
    assert_eq!(up(&running), 1);
    let away = running.home().path("away");
    fs::rename(running.home().path("sessions"), &away).unwrap();
    running.until(|r| r.health.last().is_some_and(|h| !h.up)).await;
    running.rest(2 * QUIET).await;
    assert_eq!(up(&running), 0);
    fs::rename(&away, running.home().path("sessions")).unwrap();
    running.until(|r| r.health.last().is_some_and(|h| h.up)).await;
    append(&path, lines(2, 2));
    running.events(2).await;
    running.rest(QUIET).await;
    assert_eq!(running.texts(), counted(1, 2), "a lost root deletes no session");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn history_does_not_delay_what_is_live() {
    let mut home = Home::new();
    for i in 0..40 {
        let path = home.session(&format!("old-{i}"));
        append(&path, lines(1, 500));
        age(&path, 2);
    }
    let path = home.session("live");
    append(&path, "live\n");
    // Room for one batch: the source can go no further than what is taken here.
    let mut running = home.start_with(FileSource { lock_dir: None, ..COUNTING }, 1);
    running.events(1).await;
    assert_eq!(running.texts()[0], "1:live");
    running.events(3000).await;
    append(&path, "again\n");
    running.until(|r| r.texts().iter().any(|t| t == "2:again")).await;
    assert!(running.events.len() < 10_000, "after {} events of history", running.events.len());
    running.scanned().await;
    assert_eq!(running.events.len(), 40 * 500 + 2);
    assert_eq!(running.health.iter().filter(|h| h.scanned).count(), 1);
    running.end().await;
}
