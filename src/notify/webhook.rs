//! Alertmanager's webhook, version 4: the bytes, the route that takes them, and the answers. What is told is no matter of
//! this file. Format: <https://prometheus.io/docs/alerting/latest/configuration/#webhook_config>.

use std::collections::BTreeMap;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use serde::{Deserialize, Deserializer};
use tokio::sync::{mpsc, oneshot};

use super::Delivery;
use crate::event::Timestamp;

/// Longest body. The shipped route sends at most 20 alerts at a time, which are some 20 kB.
const MAX_BODY: usize = 1 << 20;
/// Longest fingerprint; Alertmanager's have 16 digits.
const MAX_FINGERPRINT: usize = 64;
/// The version that is understood. It has been the one since 2016.
const VERSION: &str = "4";

/// A webhook, reduced to what is used of it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Webhook {
    version: String,
    status: Status,
    /// Which group of alerts this is about.
    #[serde(default)]
    pub(super) group_key: String,
    /// Alerts of the group that were left out.
    #[serde(default)]
    truncated_alerts: u64,
    /// The others.
    pub(super) alerts: Vec<Alert>,
}

/// One alert.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Alert {
    pub(super) status: Status,
    #[serde(default)]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, String>,
    /// When this episode of it began.
    #[serde(deserialize_with = "rfc3339")]
    pub(super) starts_at: Timestamp,
    /// What stands for its labels.
    pub(super) fingerprint: String,
}

/// Whether it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    /// It does.
    Firing,
    /// It does no more.
    Resolved,
}

/// Why a body is not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum Bad {
    /// It has another form.
    #[error("no webhook of Alertmanager: {0}")]
    Form(#[from] serde_json::Error),
    /// It has a form of another time.
    #[error("the webhook's version is not {VERSION}")]
    Version,
    /// It names an alert in another way.
    #[error("a fingerprint has 1 to {MAX_FINGERPRINT} characters")]
    Fingerprint,
}

// === impl Webhook ===

impl Webhook {
    /// Reads a body.
    pub(super) fn parse(body: &[u8]) -> Result<Self, Bad> {
        let webhook: Self = serde_json::from_slice(body)?;
        if webhook.version != VERSION {
            return Err(Bad::Version);
        }
        if webhook.alerts.iter().any(|a| !(1..=MAX_FINGERPRINT).contains(&a.fingerprint.len())) {
            return Err(Bad::Fingerprint);
        }
        Ok(webhook)
    }

    /// How many alerts that may still hold were left out.
    pub(super) fn truncated(&self) -> u64 {
        if self.status == Status::Firing { self.truncated_alerts } else { 0 }
    }
}

// === impl Alert ===

impl Alert {
    /// The value of a label, empty where there is none.
    pub(super) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }

    /// The text of an annotation, empty where there is none.
    pub(super) fn annotation(&self, name: &str) -> &str {
        self.annotations.get(name).map_or("", String::as_str)
    }
}

fn rfc3339<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
    let text = String::deserialize(from)?;
    Timestamp::parse(&text).map_err(serde::de::Error::custom)
}

/// The route. The shipped alertmanager.yml posts to the root.
pub(super) fn router(outbox: mpsc::Sender<Delivery>) -> Router {
    Router::new()
        .route("/", post(receive))
        .method_not_allowed_fallback(async || {
            refuse(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "webhooks are posted")
        })
        .fallback(async || refuse(StatusCode::NOT_FOUND, "no_such_route", "webhooks are posted to /"))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(outbox)
}

/// 200 once every alert was told, is held or was known; 503 makes Alertmanager send it again, 4xx does not.
async fn receive(
    State(outbox): State<mpsc::Sender<Delivery>>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let body = match body {
        Ok(body) => body,
        Err(e) => return refuse(e.status(), "body", &e.body_text()),
    };
    let webhook = match Webhook::parse(&body) {
        Ok(webhook) => webhook,
        Err(e) => return refuse(StatusCode::BAD_REQUEST, "bad_body", &e.to_string()),
    };
    let (answer, done) = oneshot::channel();
    let stopping = || refuse(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the receiver is stopping");
    if outbox.send(Delivery { webhook, answer }).await.is_err() {
        return stopping();
    }
    match done.await {
        Ok(Ok(done)) => json(StatusCode::OK, &serde_json::json!(done)),
        Ok(Err(e)) => refuse(StatusCode::SERVICE_UNAVAILABLE, "no_desktop", &e.to_string()),
        Err(_) => stopping(),
    }
}

fn refuse(status: StatusCode, reason: &'static str, error: &str) -> Response {
    json(status, &serde_json::json!({ "error": error, "reason": reason }))
}

fn json(status: StatusCode, body: &serde_json::Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An alert as the shipped rules make them.
    pub(in super::super) fn alert(name: &str, session: &str, severity: &str, starts: i64) -> Alert {
        let texts =
            |of: &[(&str, &str)]| of.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Alert {
            status: Status::Firing,
            labels: texts(&[("alertname", name), ("session", session), ("severity", severity)]),
            annotations: texts(&[("summary", session), ("description", "It holds.")]),
            starts_at: Timestamp::from_millis(starts),
            fingerprint: format!("{name}-{session}"),
        }
    }

    const LEAST: &str = r#"{"version":"4","status":"firing","alerts":[{"status":"firing",
        "startsAt":"2026-11-30T02:44:26.766877Z","fingerprint":"e81113512ff2f782"}]}"#;

    #[test]
    fn the_least_there_can_be_is_enough() {
        let webhook = Webhook::parse(LEAST.as_bytes()).unwrap();
        assert_eq!(webhook.alerts[0].starts_at, Timestamp::from_millis(1_796_006_666_766));
        assert_eq!((webhook.alerts[0].label("severity"), webhook.truncated()), ("", 0));
    }

    #[test]
    fn what_is_left_out_counts_only_while_it_may_hold() {
        let with = |status: &str| {
            let text = LEAST.replacen(
                r#""firing","#,
                &format!(r#""{status}","truncatedAlerts":5,"new":[{{}}],"#),
                1,
            );
            Webhook::parse(text.as_bytes()).unwrap().truncated()
        };
        assert_eq!((with("firing"), with("resolved")), (5, 0));
    }

    #[test]
    fn bad_bodies_are_refused_with_what_is_wrong() {
        let said = |body: &str| Webhook::parse(body.as_bytes()).unwrap_err().to_string();
        assert!(said("").contains("EOF"), "{}", said(""));
        assert!(said("[]").starts_with("no webhook of Alertmanager: "));
        assert!(said(&LEAST.replace(r#""4""#, r#""5""#)).contains("version is not 4"));
        assert!(said(&LEAST.replace(r#""version":"4","#, "")).contains("missing field `version`"));
        assert!(said(&LEAST.replace("2026-11-30T02:44:26.766877Z", "yesterday")).contains("RFC 3339"));
        assert!(said(&LEAST.replace("e81113512ff2f782", "")).contains("1 to 64 characters"));
        assert!(said(&LEAST.replace("e81113512ff2f782", &"e".repeat(65))).contains("1 to 64 characters"));
        assert!(said(&LEAST.replace("firing", "smoking")).contains("unknown variant `smoking`"));
        let deep = LEAST.replacen('{', &format!("{{\"new\":{}", "[".repeat(100_000)), 1);
        assert!(said(&deep).contains("expected `,` or `]`"), "{}", said(&deep));
    }

    #[test]
    fn a_body_cut_anywhere_is_refused() {
        for end in 0..LEAST.len() {
            assert!(Webhook::parse(&LEAST.as_bytes()[..end]).is_err(), "{end}");
        }
    }
}
