//! The stand-in: a router, an owner task that knows ids, and what it was given.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::Mutex;

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{Batch, Event, Receipt, Reducer, Refused};
use agent_session_exporter::sources::push::{self, Options, Push};
use agent_session_exporter::telemetry::Telemetry;
use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tower::ServiceExt as _;

pub(super) struct Stand {
    pub(super) router: Router,
    pub(super) push: Push,
    pub(super) events: Arc<Mutex<Vec<Event>>>,
}

pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: axum::http::HeaderMap,
    pub(super) body: Value,
}

pub(super) fn push_to(out: mpsc::Sender<Batch>, options: Options) -> Push {
    let reducer = Arc::new(Reducer::new([9; 16], Runners::default()));
    Push::new(out, reducer, Arc::new(Telemetry::new()), Clock::system(), options)
}

impl Stand {
    pub(super) fn new(options: Options) -> Self {
        Self::answering(options, false)
    }

    /// With `broken`, the owner refuses every batch.
    pub(super) fn answering(options: Options, broken: bool) -> Self {
        let (out, mut batches) = mpsc::channel::<Batch>(8);
        let push = push_to(out, options);
        let events = Arc::new(Mutex::new(Vec::new()));
        let kept = events.clone();
        tokio::spawn(async move {
            let mut ids = HashSet::new();
            while let Some(batch) = batches.recv().await {
                let mut receipt = Receipt::default();
                for event in batch.events {
                    assert_eq!(event.counting, agent_session_exporter::event::Counting::Always);
                    if event.id.is_some_and(|id| !ids.insert(id)) {
                        receipt.duplicate += 1;
                    } else {
                        receipt.accepted += 1;
                        kept.lock().unwrap().push(event);
                    }
                }
                let reply = batch.reply.expect("every pushed batch wants an answer");
                reply(if broken { Err(Refused::Unavailable) } else { Ok(receipt) });
            }
        });
        Self { router: push::router(push.clone()), push, events }
    }

    pub(super) async fn send(&self, content_type: &str, body: impl Into<Body>) -> Answer {
        self.send_with(&[("content-type", content_type)], body).await
    }

    pub(super) async fn send_with(&self, headers: &[(&str, &str)], body: impl Into<Body>) -> Answer {
        let mut request = Request::post("/api/v1/events");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.router.clone().oneshot(request.body(body.into()).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Answer { status: parts.status, headers: parts.headers, body }
    }

    /// Sends one item and says why it was not taken.
    pub(super) async fn reason(&self, item: Value) -> Option<String> {
        let answer = self.send("application/json", item.to_string()).await;
        assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.body);
        Some(answer.body["rejected"].get(0)?["reason"].as_str().unwrap().to_owned())
    }

    /// Sends one item that must be taken, and gives the event.
    pub(super) async fn event(&self, item: Value) -> Event {
        let text = item.to_string();
        assert_eq!(self.reason(item).await, None, "{text}");
        self.events.lock().unwrap().last().unwrap().clone()
    }

    /// A counter of the exporter about itself.
    pub(super) fn counter(&self, name: &str, label: &str) -> f64 {
        let families = self.push.telemetry.registry().gather();
        let metrics = families.iter().filter(|f| f.name().ends_with(name)).flat_map(|f| f.get_metric());
        metrics
            .filter(|m| m.get_label().iter().any(|l| l.value() == label))
            .map(|m| m.get_counter().get_value())
            .sum()
    }
}

/// An item of this type with this data.
pub(super) fn item(kind: &str, data: Value) -> Value {
    json!({"source": "my_bot", "sessionId": "s1", "type": kind, "data": data})
}
