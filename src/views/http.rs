//! The read-only routes. Every answer is made from the snapshot alone: no file is read and no lock of the owner task
//! is taken. Who may ask is decided around this router, in [`super::guard`] and [`super::serve`].

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use axum::{Json, Router};
use serde::Serialize;
use tokio::sync::watch;

use super::explain::Explanation;
use super::status::{self, Status};
use super::{landing, openapi, orchestrations, sessions};
use crate::clock::Clock;
use crate::event::{SessionId, SourceId, Timestamp};
use crate::session::{Rollup, Snapshot};

/// Makes the answer of the metrics route; the exposition lives in a room of its own.
pub type RenderMetrics = Arc<dyn Fn(&Snapshot, Timestamp, &HeaderMap) -> Response + Send + Sync>;

/// The routes, and how each is answered. The metrics path joins them from the options.
const ROUTES: [(&str, Answer); 11] = [
    ("/", || get(landing_page)),
    ("/-/healthy", || get(healthy)),
    ("/-/ready", || get(ready)),
    ("/api/v1/sessions", || get(list)),
    ("/api/v1/sessions/{source}/{session}/status", || get(session_status)),
    ("/api/v1/sessions/{source}/{session}/explain", || get(session_explain)),
    ("/api/sessions/{session}/status", || get(status_alias)),
    ("/api/v1/orchestrations", || get(orchestration_list)),
    ("/api/v1/orchestrations/{orchestration}/status", || get(orchestration_report)),
    ("/api/v1/openapi.json", || get(openapi_json)),
    ("/api/v1/schema/{name}", || get(schema)),
];

/// Makes the handlers of one path.
type Answer = fn() -> MethodRouter<Shared>;

/// What the routes are made from.
pub struct Api {
    /// The latest snapshot.
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    /// Where `now` comes from.
    pub clock: Clock,
    /// Makes the answer of the metrics route.
    pub metrics: RenderMetrics,
    /// What the user may set.
    pub options: Options,
}

/// What the user may set, and texts from other rooms.
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of the metrics route, see [`check_metrics_path`].
    pub metrics_path: String,
    /// JSON Schema of pushed events.
    pub event_schema: &'static str,
    /// Whether events can be pushed: the landing page and the API document then say so.
    pub push_enabled: bool,
}

/// Why a metrics path cannot be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Relative, or with characters that have a meaning in a route or an address.
    #[error("the metrics path must begin with / and consist of letters, digits and -._~/")]
    Shape,
    /// The path of another route.
    #[error("the metrics path is the path of another route")]
    Taken,
}

/// Why a request got no answer. The words are closed; texts never repeat what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) reason: &'static str,
    pub(super) error: &'static str,
}

/// The wire form of a [`Refusal`].
#[derive(Serialize)]
struct ErrorBody {
    error: &'static str,
    reason: &'static str,
}

pub(super) type Shared = Arc<Inner>;

/// What handlers read.
pub(super) struct Inner {
    api: Api,
    openapi: Bytes,
}

/// Whether this can be the path of the metrics route.
///
/// # Errors
/// [`PathError`] says why not.
pub fn check_metrics_path(path: &str) -> Result<(), PathError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    if !path.starts_with('/') || !path.bytes().all(plain) {
        return Err(PathError::Shape);
    }
    let taken = path == "/" || ["/api/", "/-/"].iter().any(|own| path.starts_with(own));
    if taken { Err(PathError::Taken) } else { Ok(()) }
}

/// The paths of all routes, as they are declared, without the metrics path.
pub fn paths() -> impl Iterator<Item = &'static str> {
    ROUTES.iter().map(|(path, _)| *path)
}

/// The read-only routes. The metrics path has passed [`check_metrics_path`].
pub fn router(api: Api) -> Router {
    let metrics_path = api.options.metrics_path.clone();
    let openapi = openapi::document(&api.options).into();
    let mut router = Router::new().route(&metrics_path, get(metrics));
    for (path, answer) in ROUTES {
        router = router.route(path, answer());
    }
    router
        .method_not_allowed_fallback(async || Refusal::METHOD)
        .fallback(async || Refusal::ROUTE)
        .layer(axum::middleware::map_response(plain_headers))
        .with_state(Arc::new(Inner { api, openapi }))
}

// === impl Refusal ===

impl Refusal {
    const METHOD: Self = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "read only");
    const ROUTE: Self = Self::new(StatusCode::NOT_FOUND, "no_such_route", "no such route");
    const SESSION: Self = Self::new(StatusCode::NOT_FOUND, "no_such_session", "no such session");
    const SHARED: Self = Self::new(
        StatusCode::CONFLICT,
        "ambiguous_session",
        "several sources have a session with this id; ask /api/v1/sessions/{source}/{session}/status",
    );
    const ID: Self = Self::new(StatusCode::BAD_REQUEST, "bad_id", "ids are percent-encoded UTF-8");
    const SCHEMA: Self =
        Self::new(StatusCode::NOT_FOUND, "no_such_schema", "the schemas are event.json and status.json");

    /// A refusal with a closed reason.
    pub(super) const fn new(status: StatusCode, reason: &'static str, error: &'static str) -> Self {
        Self { status, reason, error }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(ErrorBody { error: self.error, reason: self.reason })).into_response()
    }
}

// === impl Inner ===

impl Inner {
    fn snapshot(&self) -> Arc<Snapshot> {
        self.api.snapshots.borrow().clone()
    }

    fn now(&self) -> Timestamp {
        self.api.clock.now()
    }
}

/// Answers hold for this moment only, and are nothing but what their type says.
async fn plain_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

type Ids<T> = Result<Path<T>, axum::extract::rejection::PathRejection>;

async fn landing_page(State(shared): State<Shared>) -> Response {
    let page = landing::page(&shared.snapshot(), shared.now(), &shared.api.options);
    // The page holds ids from outside; should one ever escape its escaping, it still cannot do anything.
    let policy =
        HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; form-action 'none'");
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    ([(header::CONTENT_TYPE, html), (header::CONTENT_SECURITY_POLICY, policy)], page).into_response()
}

async fn healthy() -> &'static str {
    "healthy\n"
}

async fn ready(State(shared): State<Shared>) -> Response {
    if shared.snapshot().scanned {
        return "ready\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, "the first scan is not finished\n").into_response()
}

async fn metrics(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    (shared.api.metrics)(&shared.snapshot(), shared.now(), &headers)
}

async fn list(State(shared): State<Shared>, RawQuery(query): RawQuery) -> Result<Response, Refusal> {
    let now = shared.now();
    let query = sessions::Query::parse(query.as_deref().unwrap_or_default(), now)?;
    Ok(Json(sessions::page(&shared.snapshot(), &query)).into_response())
}

async fn session_status(
    State(shared): State<Shared>,
    ids: Ids<(String, String)>,
) -> Result<Response, Refusal> {
    let snapshot = shared.snapshot();
    let view = find(&snapshot, ids, shared.now())?;
    Ok(Json(Status::of(&snapshot, &view)).into_response())
}

async fn session_explain(
    State(shared): State<Shared>,
    ids: Ids<(String, String)>,
) -> Result<Response, Refusal> {
    let snapshot = shared.snapshot();
    let view = find(&snapshot, ids, shared.now())?;
    Ok(Json(Explanation::of(&snapshot, &view)).into_response())
}

/// The path of earlier trackers, without a source.
async fn status_alias(State(shared): State<Shared>, id: Ids<String>) -> Result<Response, Refusal> {
    let Path(session) = id.map_err(|_| Refusal::ID)?;
    let snapshot = shared.snapshot();
    let same_id = |slot: &usize| snapshot.facts(*slot).is_some_and(|f| f.session.as_str() == session);
    let mut found = snapshot.slots().filter(same_id);
    let slot = found.next().ok_or(Refusal::SESSION)?;
    if found.next().is_some() {
        return Err(Refusal::SHARED);
    }
    let view = snapshot.rollup(slot, shared.now()).ok_or(Refusal::SESSION)?;
    Ok(Json(Status::of(&snapshot, &view)).into_response())
}

async fn orchestration_list(State(shared): State<Shared>) -> Response {
    Json(orchestrations::list(&shared.snapshot(), shared.now())).into_response()
}

async fn orchestration_report(
    State(shared): State<Shared>,
    id: Ids<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let Path(id) = id.map_err(|_| Refusal::ID)?;
    let snapshot = shared.snapshot();
    let report = orchestrations::report(&snapshot, &id, query.as_deref(), shared.now())?;
    Ok(Json(report).into_response())
}

fn find(snapshot: &Snapshot, ids: Ids<(String, String)>, now: Timestamp) -> Result<Rollup<'_>, Refusal> {
    let Path((source, session)) = ids.map_err(|_| Refusal::ID)?;
    let (source, session) = (SourceId::from(source.as_str()), SessionId::from(session.as_str()));
    let slot = snapshot.find(&source, &session).ok_or(Refusal::SESSION)?;
    snapshot.rollup(slot, now).ok_or(Refusal::SESSION)
}

async fn openapi_json(State(shared): State<Shared>) -> Response {
    json_text(shared.openapi.clone())
}

async fn schema(State(shared): State<Shared>, name: Ids<String>) -> Result<Response, Refusal> {
    let Path(name) = name.map_err(|_| Refusal::ID)?;
    match name.as_str() {
        "event.json" => Ok(json_text(Bytes::from_static(shared.api.options.event_schema.as_bytes()))),
        "status.json" => Ok(json_text(Bytes::from_static(status::SCHEMA_JSON.as_bytes()))),
        _ => Err(Refusal::SCHEMA),
    }
}

fn json_text(text: Bytes) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}
