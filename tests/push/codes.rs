//! Every status code.

use agent_session_exporter::sources::push::{Options, router};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tower::ServiceExt as _;

use super::stand::{Stand, item, push_to};

const LINES: &str = "application/x-ndjson";

#[tokio::test]
async fn accepted_even_if_every_item_was_rejected() {
    let stand = Stand::new(Options::default());
    let answer = stand.send(LINES, "x\n[1]\n{}\n").await;
    assert_eq!(answer.status, StatusCode::ACCEPTED);
    assert_eq!(
        answer.body,
        json!({"accepted": 0, "duplicate": 0, "rejected": [
            {"index": 0, "reason": "malformed_json"}, {"index": 1, "reason": "bad_shape"},
            {"index": 2, "reason": "bad_source"}]})
    );
    let empty = stand.send(LINES, "\n\n").await;
    assert_eq!(empty.body, json!({"accepted": 0, "duplicate": 0, "rejected": []}));
}

#[tokio::test]
async fn a_body_that_cannot_be_parsed() {
    let stand = Stand::new(Options::default());
    for body in ["", "{", "[{}", "secret text", "{\"source\":\"a\"}\n{\"source\":\"a\"}", "[1] 2"] {
        let answer = stand.send("application/json", body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        assert_eq!(answer.body["reason"], "malformed_body");
        assert!(!answer.body.to_string().contains("secret"));
    }
    let answer = stand.send("application/cloudevents-batch+json", "{}").await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    let answer = stand.send("application/cloudevents+json", "[]").await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(stand.counter("push_refused_total", "malformed_body"), 8.0);
}

#[tokio::test]
async fn too_large() {
    let options = Options { max_body: 1_000, max_line: 300, max_items: 3, ..Options::default() };
    let stand = Stand::new(options);
    let long = stand.send(LINES, " ".repeat(1_001)).await;
    assert_eq!((long.status, &long.body["reason"]), (StatusCode::PAYLOAD_TOO_LARGE, &json!("too_large")));
    let announced = [("content-type", LINES), ("content-length", "1001")];
    assert_eq!(stand.send_with(&announced, "").await.status, StatusCode::PAYLOAD_TOO_LARGE);
    let many = stand.send("application/json", "[1,2,3,4]").await;
    assert_eq!(
        (many.status, &many.body["reason"]),
        (StatusCode::PAYLOAD_TOO_LARGE, &json!("too_many_items"))
    );
    assert_eq!(stand.send(LINES, "1\n2\n3\n4").await.status, StatusCode::PAYLOAD_TOO_LARGE);

    let line =
        format!("{}\n{}", item("activity", json!({"x": "y".repeat(300)})), item("activity", json!({})));
    let answer = stand.send(LINES, line).await;
    assert_eq!(answer.body["rejected"], json!([{"index": 0, "reason": "line_too_long"}]));
    assert_eq!(answer.body["accepted"], 1);
}

#[tokio::test]
async fn types_that_are_not_read() {
    let stand = Stand::new(Options::default());
    for content_type in ["text/plain", "application/xml", "multipart/form-data; boundary=x", "nonsense"] {
        assert_eq!(stand.send(content_type, "{}").await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    assert_eq!(stand.send_with(&[], "{}").await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let form = stand.send("application/x-www-form-urlencoded", "{}").await;
    assert_eq!(form.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert!(form.body["error"].as_str().unwrap().contains("curl -d"));
    let get = Request::get("/api/v1/events").body(Body::empty()).unwrap();
    let answer = stand.router.clone().oneshot(get).await.unwrap();
    assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn the_bearer_token() {
    let stand = Stand::new(Options { token: Some("right".to_owned()), ..Options::default() });
    let body = item("activity", json!({})).to_string();
    for given in ["", "right", "Basic right", "Bearer", "Bearer wrong", "Bearer righ", "Bearer rightx"] {
        let headers = [("content-type", "application/json"), ("authorization", given)];
        let answer = stand.send_with(&headers, body.clone()).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{given}");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
    }
    let headers = [("content-type", "application/json"), ("authorization", "bearer right")];
    assert_eq!(stand.send_with(&headers, body).await.status, StatusCode::ACCEPTED);
}

#[tokio::test]
async fn no_room_refuses_the_whole_batch() {
    let (out, batches) = mpsc::channel(1);
    let router = router(push_to(out.clone(), Options::default()));
    out.send(Default::default()).await.unwrap();
    let send = |body: Value| {
        let request = Request::post("/api/v1/events").header("content-type", "application/json");
        router.clone().oneshot(request.body(Body::from(body.to_string())).unwrap())
    };
    let full = send(item("activity", json!({}))).await.unwrap();
    assert_eq!(full.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(full.headers()["retry-after"], "1");
    drop(batches);
    let gone = send(item("activity", json!({}))).await.unwrap();
    assert_eq!(gone.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn bodies_in_flight_are_bounded() {
    let (out, mut batches) = mpsc::channel(8);
    let body = item("activity", json!({})).to_string();
    let options = Options { max_body: 1_000, max_held: 1_000, ..Options::default() };
    let router = router(push_to(out, options));
    let request = |length: usize| {
        let request = Request::post("/api/v1/events").header("content-type", "application/json");
        request.header("content-length", length).body(Body::from(body.clone())).unwrap()
    };
    // The first is taken, but its commit has not come: its bytes are still held.
    let first = tokio::spawn(router.clone().oneshot(request(950)));
    let batch: agent_session_exporter::event::Batch = batches.recv().await.unwrap();
    let second = router.clone().oneshot(request(100)).await.unwrap();
    assert_eq!(second.status(), StatusCode::TOO_MANY_REQUESTS);
    (batch.reply.unwrap())(Ok(Default::default()));
    assert_eq!(first.await.unwrap().unwrap().status(), StatusCode::ACCEPTED);
    let third = tokio::spawn(router.oneshot(request(950)));
    (batches.recv().await.unwrap().reply.unwrap())(Ok(Default::default()));
    assert_eq!(third.await.unwrap().unwrap().status(), StatusCode::ACCEPTED);
}

#[tokio::test]
async fn a_store_that_cannot_commit() {
    let stand = Stand::answering(Options::default(), true);
    let answer = stand.send("application/json", item("activity", json!({})).to_string()).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.body["reason"], "unavailable");
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(stand.counter("push_refused_total", "unavailable"), 1.0);
}

#[tokio::test]
async fn the_answer_waits_for_the_commit() {
    let (out, mut batches) = mpsc::channel(1);
    let router = router(push_to(out, Options::default()));
    let request = Request::post("/api/v1/events").header("content-type", "application/json");
    let request = request.body(Body::from(item("activity", json!({})).to_string())).unwrap();
    let answer = tokio::spawn(router.oneshot(request));
    let batch: agent_session_exporter::event::Batch = batches.recv().await.unwrap();
    tokio::task::yield_now().await;
    assert!(!answer.is_finished());
    (batch.reply.unwrap())(Ok(Default::default()));
    assert_eq!(answer.await.unwrap().unwrap().status(), StatusCode::ACCEPTED);
}

#[tokio::test]
async fn a_body_that_does_not_come() {
    let options = Options { body_timeout: std::time::Duration::from_millis(5), ..Options::default() };
    let stand = Stand::new(options);
    let never = Body::from_stream(Never);
    assert_eq!(stand.send(LINES, never).await.status, StatusCode::REQUEST_TIMEOUT);
}

/// A body of which nothing ever arrives.
struct Never;

impl futures_core::Stream for Never {
    type Item = Result<axum::body::Bytes, std::io::Error>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Pending
    }
}
