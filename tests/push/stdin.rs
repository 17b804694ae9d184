//! Lines from standard input.

use agent_session_exporter::sources::push::{Options, read_stdin};
use serde_json::json;
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc;

use super::stand::{Stand, item, push_to};

#[tokio::test]
async fn lines_in_any_chunks_give_the_same_events() {
    let long = item("activity", json!({"x": "y".repeat(2_000)})).to_string();
    let mut text = String::new();
    for i in 0..50 {
        let mut line = item("turn.started", json!({}));
        line["id"] = json!(format!("é{i}"));
        text.push_str(&format!("{line}\n\n"));
    }
    text.push_str(&format!("{long}\nbroken\n{}", item("activity", json!({}))));
    for chunk in [1, 7, 300, 65_536] {
        let stand = Stand::new(Options { max_line: 1_000, ..Options::default() });
        read_stdin(stand.push.clone(), BufReader::with_capacity(chunk, text.as_bytes())).await;
        assert_eq!(stand.events.lock().unwrap().len(), 51, "chunks of {chunk}");
        assert_eq!(stand.counter("push_refused_total", "line_too_long"), 1.0);
        assert_eq!(stand.counter("push_refused_total", "malformed_json"), 1.0);
    }
}

#[tokio::test]
async fn a_line_is_handed_on_before_the_input_ends() {
    let stand = Stand::new(Options::default());
    let (mut writer, reader) = tokio::io::duplex(4_096);
    let reading = tokio::spawn(read_stdin(stand.push.clone(), BufReader::new(reader)));
    writer.write_all(format!("{}\n", item("activity", json!({}))).as_bytes()).await.unwrap();
    while stand.events.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(!reading.is_finished());
    drop(writer);
    reading.await.unwrap();
}

#[tokio::test]
async fn it_ends_with_the_owner_task() {
    let (out, batches) = mpsc::channel(1);
    drop(batches);
    let text = format!("{}\n", item("activity", json!({})));
    let push = push_to(out, Options::default());
    read_stdin(push.clone(), text.as_bytes()).await;
    assert!(push.out.is_closed());
}
