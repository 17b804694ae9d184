//! The answers to pushed events are those of the API document.

use std::collections::BTreeSet;
use std::sync::Arc;

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::{Batch, Receipt, Reducer, Refused};
use agent_session_exporter::sources::push::{self, Options, Push};
use agent_session_exporter::telemetry::Telemetry;
use agent_session_exporter::views::guard::{AllowedHosts, guard};
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::document::validate;
use crate::make::{ask, get_json, site, snapshot};

const EVENTS: &str = r#"[{"id": "1", "source": "ci", "sessionId": "a", "type": "session.started"},
    {"source": "ci", "sessionId": "a", "type": "activity"}, {"source": "ci", "type": "activity"}]"#;

/// The router as the app merges it, with an owner task that answers every batch alike, or takes none.
fn app(answer: Option<Result<Receipt, Refused>>, options: Options) -> Router {
    let (out, mut batches) = mpsc::channel::<Batch>(1);
    if answer.is_none() {
        out.try_send(Batch::default()).unwrap();
    }
    tokio::spawn(async move {
        let Some(answer) = answer else { return std::future::pending().await };
        while let Some(batch) = batches.recv().await {
            if let Some(reply) = batch.reply {
                reply(answer);
            }
        }
    });
    let reducer = Arc::new(Reducer::new([7; 16], Default::default()));
    let push = Push::new(out, reducer, Arc::new(Telemetry::new()), Clock::system(), options);
    guard(site(snapshot(Vec::new())).router.merge(push::router(push)), AllowedHosts::new(&[]))
}

fn post(kind: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::post("/api/v1/events").header("host", "localhost").header("content-type", kind);
    request.body(body.into()).unwrap()
}

#[tokio::test]
async fn every_answer_to_a_push_is_as_documented() {
    let taken = Some(Ok(Receipt { accepted: 2, duplicate: 0 }));
    let json = "application/json";
    let mut cross = post(json, EVENTS);
    cross.headers_mut().insert("origin", "https://evil.example".parse().unwrap());
    let with_token = Options { token: Some("t".to_owned()), ..Options::default() };
    let small = Options { max_body: 16, ..Options::default() };
    let requests = [
        (app(taken, Options::default()), post(json, EVENTS), 202),
        (app(taken, Options::default()), post(json, "no json"), 400),
        (app(taken, with_token), post(json, EVENTS), 401),
        (app(taken, Options::default()), cross, 403),
        (app(taken, small), post(json, EVENTS), 413),
        (app(taken, Options::default()), post("text/csv", EVENTS), 415),
        (app(None, Options::default()), post(json, EVENTS), 429),
        (app(Some(Err(Refused::Unavailable)), Options::default()), post(json, EVENTS), 503),
    ];
    let (_, document) = get_json(&app(taken, Options::default()), "/api/v1/openapi.json").await;
    let answers = &document["paths"]["/api/v1/events"]["post"]["responses"];
    let mut seen = BTreeSet::new();
    for (router, request, expected) in requests {
        let (status, headers, body) = ask(&router, request).await;
        assert_eq!(status.as_u16(), expected, "{body}");
        assert_eq!(headers["content-type"], json);
        let mut answer = &answers[expected.to_string()];
        if let Some(reference) = answer["$ref"].as_str() {
            answer = document.pointer(&reference[1..]).unwrap();
        }
        let body: Value = serde_json::from_str(&body).unwrap();
        validate(&document, &answer["content"][json]["schema"], &body, &expected.to_string());
        seen.insert(expected.to_string());
    }
    // 408 needs a body that does not end; the push source's own tests make one.
    let documented: BTreeSet<_> =
        answers.as_object().unwrap().keys().filter(|s| *s != "408").cloned().collect();
    assert_eq!(seen, documented);
}
