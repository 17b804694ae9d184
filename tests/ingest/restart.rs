//! Cursors: what was read is not read again, what was not is, wherever the cut falls.

use std::fs;

use crate::harness::{Home, age, append, counted, lines, texts};

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_at_any_byte_goes_on_exactly_there() {
    let content = b"line 1\nline 2\r\n\nline 3\nline 4\n";
    for cut in 0..=content.len() {
        let mut home = Home::new();
        let path = home.session("a");
        append(&path, &content[..cut]);
        let mut seen = texts(&home.once().await);
        append(&path, &content[cut..]);
        seen.extend(texts(&home.once().await));
        seen.extend(texts(&home.once().await));
        assert_eq!(seen, counted(1, 4), "cut at {cut}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_between_any_two_batches_loses_and_repeats_nothing() {
    let mut home = Home::new();
    append(&home.session("a"), lines(1, 4000));
    let mut seen = Vec::new();
    // Each run ends after its first batches, as by a crash: what was not taken is not committed.
    for _ in 0..20 {
        let mut running = home.start();
        running.until(|r| !r.events.is_empty() || r.health.iter().any(|h| h.scanned)).await;
        seen.extend(running.texts());
    }
    assert_eq!(seen, counted(1, 4000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_of_another_file_is_left_alone() {
    let mut home = Home::new();
    let path = home.session("a");
    append(&path, lines(1, 3));
    home.once().await;
    // The same inode with another head, then another inode, then a decoder that cannot read its checkpoint.
    fs::write(&path, "LINE 1\nLINE 2\nLINE 3\nLINE 4\n").unwrap();
    assert_eq!(texts(&home.once().await), ["1:LINE 1", "2:LINE 2", "3:LINE 3", "4:LINE 4"]);
    fs::copy(&path, path.with_extension("tmp")).unwrap();
    fs::rename(path.with_extension("tmp"), &path).unwrap();
    assert_eq!(home.once().await.len(), 4);
    for value in home.cursors.values_mut() {
        value.truncate(value.len() - 2);
    }
    assert_eq!(home.once().await.len(), 4);
    assert_eq!(home.once().await.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_files_go_on_from_their_checkpoint() {
    let mut home = Home::new();
    let path = home.session("a");
    append(&path, lines(1, 3));
    age(&path, 2);
    let mut running = home.start();
    running.scanned().await;
    append(&path, lines(4, 4));
    running.events(4).await;
    running.end().await;
    age(&path, 30);
    assert_eq!(home.once().await.len(), 0, "too old to be opened");
    append(&path, lines(5, 5));
    assert_eq!(texts(&home.once().await), counted(5, 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_deleted_or_moved_meanwhile() {
    let mut home = Home::new();
    for id in ["a", "b", "c"] {
        append(&home.session(id), format!("session {id}\n"));
    }
    home.once().await;
    fs::remove_file(home.session("a")).unwrap();
    fs::rename(home.session("b"), home.path("archived/r-b.jsonl")).unwrap();
    let packed = crate::harness::compress(&fs::read(home.session("c")).unwrap());
    fs::write(home.session("c").with_extension("jsonl.zst"), packed).unwrap();
    fs::remove_file(home.session("c")).unwrap();
    let mut running = home.start();
    running.events(1).await;
    assert_eq!(running.texts(), ["session.deleted"]);
    assert_eq!(running.events[0].session.as_str(), "session a");
    running.end().await;
    assert_eq!(home.cursors.len(), 2);

    // A root that is not there has lost its files, not deleted them.
    fs::rename(home.path("sessions"), home.path("away")).unwrap();
    fs::rename(home.path("archived"), home.path("away2")).unwrap();
    let mut running = home.start();
    running.scanned().await;
    assert!(running.health.iter().all(|h| !h.up), "what had files once is down without them");
    running.rest(std::time::Duration::from_secs(2)).await;
    assert_eq!(running.end().await.len(), 0);
    assert_eq!(home.cursors.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_path_and_no_content_is_in_a_cursor() {
    let mut home = Home::new();
    append(&home.session("a"), "line 1\nMARKER content\n");
    home.once().await;
    assert_eq!(home.cursors.len(), 1);
    for value in home.cursors.values() {
        let text = String::from_utf8_lossy(value);
        assert!(!text.contains("MARKER") && !text.contains("jsonl") && !text.contains("sessions"), "{text}");
    }
}
