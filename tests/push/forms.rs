//! Every form of a body gives the same events.

use std::io::Write as _;

use agent_session_exporter::event::{Fact, Timestamp};
use agent_session_exporter::sources::push::Options;
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::stand::{Stand, item};

fn with_id(id: &str) -> Value {
    json!({"schemaVersion": "1", "id": id, "time": "2026-01-01T00:00:00Z", "source": "my_bot",
        "sessionId": "s1", "type": "turn.started", "data": {"trigger": "person"}})
}

fn cloud(id: &str) -> Value {
    json!({"specversion": "1.0", "id": id, "time": "2026-01-01T00:00:00Z", "source": "/agents/my_bot",
        "subject": "s1", "type": "turn.started", "data": {"trigger": "person"}})
}

#[tokio::test]
async fn one_object_a_list_and_lines() {
    let stand = Stand::new(Options::default());
    let one = stand.send("application/json; charset=utf-8", with_id("a").to_string()).await;
    assert_eq!(one.status, StatusCode::ACCEPTED);
    assert_eq!(one.body, json!({"accepted": 1, "duplicate": 0, "rejected": []}));

    let list = stand.send("application/json", json!([with_id("a"), with_id("b")]).to_string()).await;
    assert_eq!(list.body, json!({"accepted": 1, "duplicate": 1, "rejected": []}));

    for (n, content_type) in ["application/x-ndjson", "application/jsonl"].iter().enumerate() {
        let lines =
            format!("{}\r\n\n{{\"half\n{}", with_id(&format!("c{n}")), item("turn.started", json!({})));
        let answer = stand.send(content_type, lines).await;
        assert_eq!(answer.status, StatusCode::ACCEPTED);
        assert_eq!(
            answer.body,
            json!({"accepted": 2, "duplicate": 0, "rejected": [{"index": 1, "reason": "malformed_json"}], "withoutId": 1})
        );
    }
    assert_eq!(stand.counter("push_refused_total", "malformed_json"), 2.0);
    assert_eq!(stand.counter("records_total", "my_bot"), 7.0);
}

#[tokio::test]
async fn cloud_events_in_three_modes() {
    let stand = Stand::new(Options::default());
    let plain = stand.send("application/json", with_id("a").to_string()).await;
    assert_eq!(plain.body["accepted"], 1);
    let structured = stand.send("application/cloudevents+json", cloud("a").to_string()).await;
    assert_eq!(structured.body, json!({"accepted": 0, "duplicate": 1, "rejected": []}));
    let batch = json!([cloud("a"), cloud("b"), {"specversion": "0.3", "type": "usage"}]);
    let batch = stand.send("application/cloudevents-batch+json", batch.to_string()).await;
    assert_eq!(
        batch.body,
        json!({"accepted": 1, "duplicate": 1, "rejected": [{"index": 2, "reason": "bad_schema_version"}]})
    );
    let headers = [
        ("content-type", "application/json"),
        ("ce-specversion", "1.0"),
        ("ce-id", "binary"),
        ("ce-type", "turn.started"),
        ("ce-time", "2026-01-01T00:00:00Z"),
        ("ce-source", "/agents/my_bot/"),
        ("ce-subject", "s%201"),
        ("ce-projectid", "shop"),
        ("ce-parentsessionid", "s0"),
        ("ce-requestid", "r1"),
    ];
    let binary = stand.send_with(&headers, r#"{"trigger":"person"}"#).await;
    assert_eq!(binary.body, json!({"accepted": 1, "duplicate": 0, "rejected": []}));

    let events = stand.events.lock().unwrap();
    assert!(events.iter().all(|e| e.fact == events[0].fact && e.source.as_str() == "my_bot"));
    let last = events.last().unwrap();
    assert_eq!(last.session.as_str(), "s 1");
    assert_eq!(last.parent.as_ref().unwrap().as_str(), "s0");
    assert_eq!(last.project.as_ref().unwrap().as_str(), "shop");
    assert_eq!(last.request.as_ref().unwrap().as_str(), "r1");
    assert_eq!(last.time, Some(Timestamp::parse("2026-01-01T00:00:00Z").unwrap()));
}

#[tokio::test]
async fn compressed_bodies_are_bounded_when_inflated() {
    let stand = Stand::new(Options { max_body: 10_000, ..Options::default() });
    let gzip = |text: &str| {
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        gz.write_all(text.as_bytes()).unwrap();
        gz.finish().unwrap()
    };
    let headers = [("content-type", "application/x-ndjson"), ("content-encoding", "gzip")];
    let small = stand.send_with(&headers, gzip(&with_id("a").to_string())).await;
    assert_eq!((small.status, &small.body["accepted"]), (StatusCode::ACCEPTED, &json!(1)));
    let bomb = stand.send_with(&headers, gzip(&" ".repeat(1_000_000))).await;
    assert_eq!(bomb.status, StatusCode::PAYLOAD_TOO_LARGE);
    let broken = stand.send_with(&headers, "no gzip").await;
    assert_eq!(broken.status, StatusCode::BAD_REQUEST);
    let other = [("content-type", "application/json"), ("content-encoding", "br")];
    assert_eq!(stand.send_with(&other, "").await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(stand.events.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_body_of_many_lines_keeps_its_order() {
    let stand = Stand::new(Options::default());
    let lines: String = (0..2_500).map(|i| format!("{}\n", with_id(&format!("id{i}")))).collect();
    let answer = stand.send("application/x-ndjson", lines).await;
    assert_eq!(answer.body["accepted"], 2_500);
    let again: Vec<Value> = (0..2_500).map(|i| with_id(&format!("id{i}"))).collect();
    let answer = stand.send("application/json", Value::from(again).to_string()).await;
    assert_eq!(answer.body["duplicate"], 2_500);
    assert!(matches!(stand.events.lock().unwrap()[0].fact, Fact::TurnStarted { .. }));
}
