//! What crashes, editors and half-done writers leave in a file: what is whole counts once, the rest is counted.

use std::fs;
use std::io::Write as _;
use std::time::{Duration, Instant};

use agent_session_exporter::ingest::MAX_LINE;

use crate::harness::{Home, append, compress, counted, lines, texts};

/// Longer than a file has to rest before its last line may count without an end.
const SETTLED: Duration = Duration::from_millis(7500);

fn numbered(numbers: &[usize]) -> Vec<String> {
    numbers.iter().enumerate().map(|(i, n)| format!("{}:{{\"n\":{n}}}", i + 1)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn several_objects_on_a_line_are_records_of_their_own() {
    let mut home = Home::new();
    append(
        &home.session("a"),
        "{\"n\":1}\n{\"n\":2}{\"n\":3}\n{\"n\":4} {\"n\":5}\r{\"n\":6}\n{\"n\":7}{\"n\":\n[{}]\n{\"n\":8}\n",
    );
    let events = home.once().await;
    assert_eq!(texts(&events)[..7], numbered(&[1, 2, 3, 4, 5, 6, 7]));
    assert_eq!(texts(&events)[7..], ["8:[{}]", "9:{\"n\":8}"]);
    assert_eq!(home.errors("json"), 1, "what follows a good object on its line is one error");
    let records = home.telemetry.records.with_label_values(&["counting"]).get();
    assert_eq!(records, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_transcript_with_two_objects_on_a_line() {
    let mut home = Home::new();
    let bytes =
        include_bytes!("../fixtures/public/claude-code/cc-2.1.7-to-2.1.12-two-objects-one-line.jsonl");
    append(&home.session("a"), bytes);
    assert_eq!(home.once().await.len(), 70);
    assert_eq!(home.errors("json"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn zeroes_marks_and_bytes_that_are_no_text() {
    let mut home = Home::new();
    let zeroes = [0; 5000];
    let content = [
        &b"\xef\xbb\xbf{\"n\":1}\r\n\r\n"[..],
        &zeroes,
        b"{\"n\":2}\n",
        &zeroes,
        b"\n{\"n\":3}",
        &zeroes,
        b"\n\n \t \n{\"n\":\"\xff\xfe\"}\n{\"cut\":\"in a te",
        &zeroes,
        b"{\"n\":4}\n\xef\xbb\xbf{\"n\":5}\n\xff\xfe\n{\"cut\":\"in a te{\"cut\":6}\n",
        &zeroes,
    ];
    append(&home.session("a"), content.concat());
    let events = home.once().await;
    let expected =
        ["{\"n\":1}", "{\"n\":2}", "{\"n\":3}", "{\"n\":\"\u{fffd}\u{fffd}\"}", "{\"n\":4}", "{\"n\":5}"];
    let mut expected: Vec<_> = expected.iter().enumerate().map(|(i, t)| format!("{}:{t}", i + 1)).collect();
    expected.push("7:{\"cut\":6}".to_owned());
    assert_eq!(texts(&events), expected);
    assert_eq!(home.errors("json"), 3, "two cut ones and one that is no text");
    assert_eq!(home.once().await.len(), 0, "the zeroes at the end are nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_line_without_an_end_counts_once_whatever_follows() {
    for rest in ["\n{\"n\":3}\n", "{\"n\":3}\n", " \r\n{\"n\":3}", "\0\0\0{\"n\":3}\n"] {
        let mut home = Home::new();
        let path = home.session("a");
        append(&path, "{\"n\":1}\n{\"n\":2}");
        assert_eq!(texts(&home.once().await), numbered(&[1, 2]), "a file may lie there for years");
        assert_eq!(home.once().await.len(), 0);
        append(&path, rest);
        assert_eq!(texts(&home.once().await), ["3:{\"n\":3}"], "{rest:?}");
        assert_eq!(home.once().await.len(), 0);
        assert_eq!(home.errors("json"), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_growing_last_line_waits_and_a_settled_one_counts() {
    let mut home = Home::new();
    let (path, other) = (home.session("a"), home.session("b"));
    append(&path, "{\"n\":1}\n");
    let mut running = home.start();
    running.scanned().await;
    append(&path, "{\"n\":2}");
    append(&other, "{\"n\":1}\n{\"cut\":");
    let began = Instant::now();
    running.events(2).await;
    running.rest(Duration::from_millis(1000)).await;
    assert_eq!(running.events.len(), 2, "it may still grow");
    running.events(3).await;
    assert!(began.elapsed() > Duration::from_secs(4), "{:?}", began.elapsed());
    // The one that is not complete stays, however long.
    running.rest(SETTLED).await;
    assert_eq!(running.events.len(), 3);
    append(&path, "\n");
    append(&path, "{\"n\":3}\n");
    append(&other, "2}\n");
    running.events(5).await;
    let texts = running.texts();
    let of = |session: &str| {
        let mine = running.events.iter().zip(&texts).filter(|(e, _)| e.session.as_str() == session);
        mine.map(|(_, t)| t.clone()).collect::<Vec<_>>()
    };
    // Both sessions are called by their first line, which is the same.
    let mut all = of("{\"n\":1}");
    all.sort();
    assert_eq!(all, ["1:{\"n\":1}", "1:{\"n\":1}", "2:{\"cut\":2}", "2:{\"n\":2}", "3:{\"n\":3}"]);
    running.end().await;
    assert_eq!(home.once().await.len(), 0);
    assert_eq!(home.errors("json"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_half_written_when_we_end_counts_after_the_restart() {
    let mut home = Home::new();
    let path = home.session("a");
    append(&path, "{\"n\":1}\n");
    let mut running = home.start();
    running.scanned().await;
    // Not settled: at the end of this run it was not read.
    append(&path, "{\"n\":2}");
    running.rest(Duration::from_millis(600)).await;
    assert_eq!(texts(&running.end().await), numbered(&[1]));
    assert_eq!(texts(&home.once().await), ["2:{\"n\":2}"]);
    append(&path, "\n{\"n\":3");
    assert_eq!(home.once().await.len(), 0);
    append(&path, "}\n");
    assert_eq!(texts(&home.once().await), ["3:{\"n\":3}"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_file_without_a_last_end_and_its_plain_twin() {
    let mut home = Home::new();
    let (path, packed) = (home.session("a"), home.session("a").with_extension("jsonl.zst"));
    append(&packed, compress(b"{\"n\":1}\n{\"n\":2}"));
    assert_eq!(texts(&home.once().await), numbered(&[1, 2]));
    // The plain file first, then compressed where it had been left.
    append(&home.session("b"), "{\"n\":1}\n{\"n\":2}");
    assert_eq!(home.once().await.len(), 2);
    append(&home.session("b").with_extension("jsonl.zst"), compress(b"{\"n\":1}\n{\"n\":2}\n{\"n\":3}"));
    fs::remove_file(home.session("b")).unwrap();
    assert_eq!(texts(&home.once().await), ["3:{\"n\":3}"]);
    assert!(!path.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_of_any_length_takes_no_other_with_it() {
    let mut home = Home::new();
    let path = home.session("a");
    append(&path, lines(1, 100));
    // 20 MB, 64 MB, and the longest that is read.
    for (length, from) in [(20 << 20, 101), (64 << 20, 151)] {
        append(&path, [vec![b'x'; length], b"\n".to_vec()].concat());
        append(&path, lines(from, from + 49));
    }
    append(&path, [vec![b'y'; MAX_LINE], b"\n".to_vec()].concat());
    let events = home.once().await;
    assert_eq!(texts(&events)[..200], counted(1, 200));
    assert_eq!(events.len(), 201);
    assert_eq!((home.errors("too_long"), home.errors("json")), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_cut_to_a_line_and_written_on_repeats_only_known_ids() {
    let mut home = Home::new();
    let path = home.session("a");
    append(&path, lines(1, 200));
    let mut running = home.start();
    running.scanned().await;
    let first = running.events.clone();
    assert_eq!(first.len(), 200);
    // Cut by ten lines, then on: the head is the same, and soon it is longer than it was.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(lines(1, 190).len() as u64).unwrap();
    (&file).seek_to_end().write_all(lines(201, 230).as_bytes()).unwrap();
    running.until(|r| r.texts().iter().any(|t| t.ends_with(":line 230"))).await;
    let known: std::collections::HashSet<_> = first.iter().map(|e| e.id).collect();
    let new: Vec<_> = running.events.iter().skip(200).filter(|e| !known.contains(&e.id)).collect();
    assert_eq!(new.len(), 30);
    running.end().await;

    // The same while nobody looks, with not one byte more or less.
    let whole = fs::read(&path).unwrap();
    let cut = whole.len() - "line 230\n".len();
    fs::write(&path, [&whole[..cut], b"line 231\n"].concat()).unwrap();
    let again = home.once().await;
    assert_eq!(again.len(), 220, "another end of what was read: from the head");
    assert!(texts(&again).last().unwrap().ends_with("line 231"));
    assert_eq!(home.once().await.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copied_and_emptied_file_goes_on() {
    let mut home = Home::new();
    let path = home.session("a");
    append(&path, lines(1, 50));
    let mut running = home.start();
    running.scanned().await;
    fs::copy(&path, path.with_extension("1")).unwrap();
    fs::OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
    running.rest(Duration::from_millis(300)).await;
    append(&path, lines(51, 60));
    running.until(|r| r.texts().iter().any(|t| t.ends_with(":line 60"))).await;
    assert_eq!(running.events.len(), 60);
    running.end().await;
}

trait SeekToEnd {
    fn seek_to_end(self) -> Self;
}

impl SeekToEnd for &fs::File {
    fn seek_to_end(mut self) -> Self {
        std::io::Seek::seek(&mut self, std::io::SeekFrom::End(0)).unwrap();
        self
    }
}
