//! Trace contexts of items and of requests.

use agent_session_exporter::event::TraceContext;
use agent_session_exporter::sources::push::Options;
use serde_json::{Value, json};

use super::stand::{Stand, item};

const ITEMS: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const REQUESTS: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

fn traced(mut item: Value, traceparent: Value) -> Value {
    item["traceparent"] = traceparent;
    item
}

fn of(text: &str) -> Option<TraceContext> {
    Some(TraceContext::parse(text).unwrap())
}

#[tokio::test]
async fn an_item_has_its_own_in_either_envelope() {
    let stand = Stand::new(Options::default());
    let own = stand.event(traced(item("activity", json!({})), json!(ITEMS))).await;
    assert_eq!(own.trace, of(ITEMS));
    let cloud = json!({"specversion": "1.0", "id": "c", "source": "/agents/my_bot", "subject": "s1",
        "type": "activity", "traceparent": ITEMS, "tracestate": "vendor=SECRET"});
    stand.send("application/cloudevents+json", cloud.to_string()).await;
    let headers = [
        ("content-type", "application/json"),
        ("ce-specversion", "1.0"),
        ("ce-id", "binary"),
        ("ce-type", "turn.started"),
        ("ce-source", "/agents/my_bot"),
        ("ce-subject", "s1"),
        ("ce-traceparent", ITEMS),
        // That of the hop it came over, which is not the event's.
        ("traceparent", REQUESTS),
    ];
    stand.send_with(&headers, "{}").await;
    let events = stand.events.lock().unwrap();
    assert_eq!(events.len(), 3);
    assert!(events.iter().all(|event| event.trace == of(ITEMS)));
    assert!(!format!("{events:?}").contains("SECRET"));
}

#[tokio::test]
async fn what_is_none_is_counted_and_the_item_taken_without_it() {
    let stand = Stand::new(Options::default());
    let zeroes = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
    let upper = ITEMS.to_uppercase();
    for bad in [json!(zeroes), json!(upper), json!("SECRET"), json!(""), json!(7), json!({"a": 1})] {
        let event = stand.event(traced(item("turn.started", json!({})), bad)).await;
        assert_eq!(event.trace, None);
    }
    assert_eq!(stand.event(traced(item("turn.started", json!({})), Value::Null)).await.trace, None);
    assert_eq!(stand.counter("decode_errors_total", "traceparent"), 6.0);
}

#[tokio::test]
async fn the_requests_own_is_that_of_who_asked() {
    let stand = Stand::new(Options::default());
    let lines = [
        item("session.started", json!({})),
        item("turn.started", json!({})),
        traced(item("turn.started", json!({})), json!(ITEMS)),
        item("activity", json!({})),
        item("turn.ended", json!({"outcome": "completed"})),
    ];
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let headers = [("content-type", "application/x-ndjson"), ("traceparent", REQUESTS)];
    assert_eq!(stand.send_with(&headers, body).await.body["accepted"], 5);
    {
        let events = stand.events.lock().unwrap();
        let found: Vec<_> = events.iter().map(|event| event.trace).collect();
        assert_eq!(found, [of(REQUESTS), of(REQUESTS), of(ITEMS), None, None]);
    }
    // Two of them are none, and neither is text.
    for headers in [vec![("traceparent", REQUESTS), ("traceparent", ITEMS)], vec![("traceparent", "SECRET")]]
    {
        let headers = [vec![("content-type", "application/json")], headers].concat();
        stand.send_with(&headers, item("turn.started", json!({})).to_string()).await;
        assert_eq!(stand.events.lock().unwrap().last().unwrap().trace, None);
    }
    assert_eq!(stand.counter("decode_errors_total", "traceparent"), 2.0);
}
