//! `POST /api/v1/events`: a body becomes one batch, and the answer is given when the batch is durable. Who may
//! ask (Host, Origin, address) is decided before a request comes here; the bearer token is checked here.

use std::io::Read as _;
use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::body::Bytes;
use axum::extract::Request;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::StatusCode;
use axum::http::header;
use axum::response::IntoResponse;
use axum::response::Response;
use axum::routing::post;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot;

use super::DEF;
use super::Decoder;
use super::Intake;
use super::Push;
use super::Reason;
use super::cloudevents::CloudEnvelope;
use crate::event::Batch;
use crate::event::Receipt;
use crate::event::Timestamp;
use crate::event::TraceContext;

/// When a refused batch may be sent again, in seconds.
const RETRY_AFTER: &str = "1";
/// Items decoded before other tasks get their turn: about a millisecond of work.
const SLICE: usize = 1_000;

/// The forms of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Json,
    Lines,
    CloudEvent,
    CloudBatch,
    CloudBinary,
}

struct Shared {
    push: Push,
    /// One permit per byte of a body that is held.
    room: Semaphore,
}

/// The answer to a batch that was taken.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Taken {
    accepted: u64,
    duplicate: u64,
    rejected: Vec<Rejected>,
    /// Accepted items without an `id`: if they are sent again, they count again.
    #[serde(skip_serializing_if = "Option::is_none")]
    without_id: Option<u64>,
}

#[derive(Serialize)]
struct Rejected {
    /// Position in the body, from 0; blank lines are not counted.
    index: usize,
    reason: &'static str,
}

/// Why the whole request is refused.
struct Refusal {
    reason: Reason,
    message: &'static str,
}

/// The route of the push source.
pub fn router(push: Push) -> Router {
    let room = Semaphore::new(push.options.max_held.max(push.options.max_body));
    Router::new().route("/api/v1/events", post(receive)).with_state(Arc::new(Shared { push, room }))
}

async fn receive(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    match shared.receive(request).await {
        Ok(taken) => (StatusCode::ACCEPTED, Json(taken)).into_response(),
        Err(refusal) => {
            shared.push.refused(refusal.reason);
            refusal.into_response()
        }
    }
}

// === impl Shared ===

impl Shared {
    async fn receive(&self, request: Request) -> Result<Taken, Refusal> {
        let (parts, body) = request.into_parts();
        self.check_token(&parts.headers)?;
        let form = Form::of(&parts.headers)?;
        let gzip = is_gzip(&parts.headers)?;
        let max = self.push.options.max_body;
        let length = content_length(&parts.headers);
        if length.is_some_and(|n| n > max) {
            return Err(Refusal::too_large());
        }
        // Bytes that a body may come to are set aside before the first one is read.
        let most = if gzip { max } else { length.unwrap_or(max) };
        let permits = u32::try_from(most).unwrap_or(u32::MAX);
        let _held = self.room.try_acquire_many(permits).map_err(|_| Refusal::no_room())?;

        let body = self.read(body, length.is_some()).await?;
        let body = if gzip { inflate(&body, max)? } else { body };
        let now = self.push.clock.now();
        let mut decoder = self.push.decoder();
        decoder.caller = caller(&parts.headers, &decoder);
        let intake = match form {
            Form::Lines => self.lines(&body, &mut decoder, now).await?,
            Form::Json | Form::CloudBatch | Form::CloudEvent => {
                self.json(form, &body, &mut decoder, now).await?
            }
            Form::CloudBinary => {
                let mut intake = Intake::default();
                let event = CloudEnvelope::from_headers(&parts.headers)
                    .and_then(|envelope| decoder.binary(envelope, body.trim_ascii(), now));
                if event == Err(Reason::MalformedJson) {
                    return Err(Refusal::malformed());
                }
                intake.take(0, event);
                intake
            }
        };
        drop(body);
        self.hand_over(intake, decoder.without_id, now).await
    }

    fn check_token(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(wanted) = &self.push.options.token else { return Ok(()) };
        let given = headers.get(header::AUTHORIZATION).map_or(&b""[..], |v| v.as_bytes());
        let (scheme, given) = given.split_at_checked(7).unwrap_or((b"", b""));
        if scheme.eq_ignore_ascii_case(b"bearer ") && equal(given, wanted.as_bytes()) {
            return Ok(());
        }
        Err(Refusal::new(Reason::Unauthorized, "a bearer token is required"))
    }

    async fn read(&self, body: Body, length_known: bool) -> Result<Bytes, Refusal> {
        let options = &self.push.options;
        let reading = axum::body::to_bytes(body, options.max_body);
        match tokio::time::timeout(options.body_timeout, reading).await {
            Ok(Ok(bytes)) => Ok(bytes),
            // The HTTP layer holds a sender to the length it announced, so this is a connection that broke.
            Ok(Err(_)) if length_known => Err(Refusal::new(Reason::MalformedBody, "the body ended early")),
            Ok(Err(_)) => Err(Refusal::too_large()),
            Err(_) => Err(Refusal::new(Reason::SlowBody, "the body did not arrive in time")),
        }
    }

    async fn lines(&self, body: &[u8], decoder: &mut Decoder, now: Timestamp) -> Result<Intake, Refusal> {
        let count = memchr::memchr_iter(b'\n', body).count() + 1;
        self.check_items(count)?;
        let mut intake = Intake { events: Vec::with_capacity(count), refused: Vec::new() };
        let ends = memchr::memchr_iter(b'\n', body).chain([body.len()]);
        let (mut from, mut index) = (0, 0);
        for end in ends {
            let line = body[from..end].trim_ascii();
            from = end + 1;
            if line.is_empty() {
                continue;
            }
            intake.take(index, decoder.item(line, now));
            index += 1;
            if index % SLICE == 0 {
                tokio::task::yield_now().await;
            }
        }
        Ok(intake)
    }

    /// One object or a list of them.
    async fn json(
        &self,
        form: Form,
        body: &[u8],
        decoder: &mut Decoder,
        now: Timestamp,
    ) -> Result<Intake, Refusal> {
        let one = |decoder: &mut Decoder, item: &[u8]| match form {
            Form::Json => decoder.item(item, now),
            _ => decoder.cloud_event(item, now),
        };
        let mut intake = Intake::default();
        let body = body.trim_ascii();
        if !body.starts_with(b"[") {
            if form == Form::CloudBatch {
                return Err(Refusal::new(Reason::MalformedBody, "a batch of CloudEvents is a JSON array"));
            }
            let event = one(decoder, body);
            if event == Err(Reason::MalformedJson) {
                return Err(Refusal::malformed());
            }
            intake.take(0, event);
            return Ok(intake);
        }
        if form == Form::CloudEvent {
            return Err(Refusal::new(
                Reason::MalformedBody,
                "a list of CloudEvents is sent as application/cloudevents-batch+json",
            ));
        }
        let text = std::str::from_utf8(body).map_err(|_| Refusal::malformed())?;
        let items: Vec<&RawValue> = serde_json::from_str(text).map_err(|_| Refusal::malformed())?;
        self.check_items(items.len())?;
        for (index, item) in items.iter().enumerate() {
            intake.take(index, one(decoder, item.get().as_bytes()));
            if index % SLICE == SLICE - 1 {
                tokio::task::yield_now().await;
            }
        }
        Ok(intake)
    }

    fn check_items(&self, count: usize) -> Result<(), Refusal> {
        if count > self.push.options.max_items {
            return Err(Refusal::new(Reason::TooManyItems, "the body holds more items than one request may"));
        }
        Ok(())
    }

    /// Gives the batch to the owner task and waits for its commit.
    async fn hand_over(&self, intake: Intake, without_id: u64, now: Timestamp) -> Result<Taken, Refusal> {
        let mut receipt = Receipt::default();
        if intake.events.is_empty() {
            self.push.count(&intake, now);
        } else {
            let permit = self.push.out.try_reserve().map_err(|refused| match refused {
                TrySendError::Full(()) => Refusal::no_room(),
                TrySendError::Closed(()) => Refusal::unavailable(),
            })?;
            self.push.count(&intake, now);
            let (tell, told) = oneshot::channel();
            permit.send(Batch {
                events: intake.events,
                // A client that went away does not want to know.
                reply: Some(Box::new(move |answer| _ = tell.send(answer))),
                ..Batch::default()
            });
            receipt = match told.await {
                Ok(Ok(receipt)) => receipt,
                Ok(Err(_)) | Err(_) => return Err(Refusal::unavailable()),
            };
        }
        Ok(Taken {
            accepted: receipt.accepted,
            duplicate: receipt.duplicate,
            rejected: intake
                .refused
                .into_iter()
                .map(|(index, reason)| Rejected { index, reason: reason.as_str() })
                .collect(),
            without_id: Some(without_id).filter(|n| *n > 0),
        })
    }
}

// === impl Form ===

impl Form {
    fn of(headers: &HeaderMap) -> Result<Self, Refusal> {
        let content_type =
            headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match essence.as_str() {
            "application/json" if headers.contains_key("ce-specversion") => Ok(Self::CloudBinary),
            "application/json" => Ok(Self::Json),
            "application/x-ndjson" | "application/ndjson" | "application/jsonl" => Ok(Self::Lines),
            "application/cloudevents+json" => Ok(Self::CloudEvent),
            "application/cloudevents-batch+json" => Ok(Self::CloudBatch),
            "application/x-www-form-urlencoded" => Err(Refusal::new(
                Reason::UnsupportedType,
                "curl -d sends a form unless told otherwise: add -H 'content-type: application/json', \
                 or use --data-binary and -H 'content-type: application/x-ndjson' for lines",
            )),
            _ => Err(Refusal::new(
                Reason::UnsupportedType,
                "the content type must be application/json, application/x-ndjson, application/jsonl, \
                 application/cloudevents+json or application/cloudevents-batch+json",
            )),
        }
    }
}

// === impl Refusal ===

impl Refusal {
    const fn new(reason: Reason, message: &'static str) -> Self {
        Self { reason, message }
    }

    const fn too_large() -> Self {
        Self::new(Reason::TooLarge, "the body is larger than one request may be")
    }

    const fn malformed() -> Self {
        Self::new(Reason::MalformedBody, "the body is not JSON; lines are sent as application/x-ndjson")
    }

    const fn no_room() -> Self {
        Self::new(Reason::NoRoom, "no room for another batch now; nothing of it was taken")
    }

    const fn unavailable() -> Self {
        Self::new(Reason::Unavailable, "the store cannot commit; events with an id may safely be sent again")
    }

    const fn status(&self) -> StatusCode {
        match self.reason {
            Reason::Unauthorized => StatusCode::UNAUTHORIZED,
            Reason::UnsupportedType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Reason::TooLarge | Reason::TooManyItems => StatusCode::PAYLOAD_TOO_LARGE,
            Reason::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Reason::NoRoom => StatusCode::TOO_MANY_REQUESTS,
            Reason::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Answer {
            error: &'static str,
            reason: &'static str,
        }
        let status = self.status();
        let answer = Answer { error: self.message, reason: self.reason.as_str() };
        let mut response = (status, Json(answer)).into_response();
        let headers = response.headers_mut();
        match self.reason {
            Reason::NoRoom | Reason::Unavailable => {
                headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static(RETRY_AFTER));
            }
            Reason::Unauthorized => {
                headers.insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}

/// The trace in which the request was sent. One that is none, or more than one, is counted and left out.
fn caller(headers: &HeaderMap, decoder: &Decoder) -> Option<TraceContext> {
    let mut given = headers.get_all("traceparent").iter();
    let first = given.next()?;
    let context = first.to_str().ok().filter(|_| given.next().is_none()).and_then(TraceContext::parse);
    if context.is_none() {
        decoder.bad_trace(DEF.name);
    }
    context
}

fn content_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn is_gzip(headers: &HeaderMap) -> Result<bool, Refusal> {
    match headers.get(header::CONTENT_ENCODING).map(|v| v.as_bytes().to_ascii_lowercase()).as_deref() {
        None | Some(b"identity" | b"") => Ok(false),
        Some(b"gzip" | b"x-gzip") => Ok(true),
        Some(_) => Err(Refusal::new(Reason::UnsupportedType, "the only content encoding is gzip")),
    }
}

/// Inflates at most `max` bytes: a small body may stand for a huge one.
fn inflate(body: &[u8], max: usize) -> Result<Bytes, Refusal> {
    let mut out = Vec::new();
    flate2::read::MultiGzDecoder::new(body)
        .take(max as u64 + 1)
        .read_to_end(&mut out)
        .map_err(|_| Refusal::new(Reason::MalformedBody, "the body is not gzip"))?;
    if out.len() > max { Err(Refusal::too_large()) } else { Ok(out.into()) }
}

/// Compares without telling by time how much was right; the length is no secret.
fn equal(a: &[u8], b: &[u8]) -> bool {
    let different = a.iter().zip(b).fold(0u8, |bits, (x, y)| std::hint::black_box(bits | (x ^ y)));
    a.len() == b.len() && different == 0
}
