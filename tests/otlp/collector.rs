//! A collector that speaks both protocols on one port, remembers what it took and answers as it is told. It dies as processes
//! do: from one moment to the next.

use std::collections::VecDeque;
use std::io::Read as _;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse as _, Response};
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{LogsService, LogsServiceServer};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tonic::codec::CompressionEncoding;
use tonic::service::Routes;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

/// What the collector does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Say {
    /// Takes it.
    Take,
    /// Takes it, but for so many items.
    Partly(i64, &'static str),
    /// Takes it after a while.
    Slowly(Duration),
    /// Never answers.
    Never,
    /// A status of HTTP with a header; over gRPC this code, with a time to wait.
    Status(u16, Option<(&'static str, String)>, Code, Option<Duration>),
    /// A body that is no answer, with its kind.
    Body(Vec<u8>, &'static str),
    /// A page in HTML with this status, whatever protocol was asked in.
    Page(u16, &'static str),
}

/// A request as it came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) at: Option<Instant>,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) resource: Vec<Resource>,
    pub(crate) spans: Vec<Span>,
    pub(crate) logs: Vec<LogRecord>,
    pub(crate) metrics: Vec<Metric>,
    /// The message as it came, unpacked.
    pub(crate) bytes: Bytes,
    pub(crate) scopes: Vec<(String, String, String)>,
    pub(crate) taken: bool,
}

#[derive(Clone, Default)]
pub(crate) struct Memory(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    script: VecDeque<Say>,
    always: Option<Say>,
    requests: Vec<Request>,
}

/// A running collector.
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    pub(crate) memory: Memory,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

impl Memory {
    /// Answers the next requests so, then takes everything.
    pub(crate) fn script(&self, says: impl IntoIterator<Item = Say>) {
        self.0.lock().unwrap().script.extend(says);
    }

    /// Answers everything so that is not in the script.
    pub(crate) fn always(&self, say: Option<Say>) {
        self.0.lock().unwrap().always = say;
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.0.lock().unwrap().requests.clone()
    }

    /// Requests that were not taken.
    pub(crate) fn cut(&self) -> usize {
        self.0.lock().unwrap().requests.iter().filter(|r| !r.taken).count()
    }

    /// Spans of the requests that were taken, in the order in which they came.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let inner = self.0.lock().unwrap();
        inner.requests.iter().filter(|r| r.taken).flat_map(|r| r.spans.clone()).collect()
    }

    pub(crate) fn logs(&self) -> Vec<LogRecord> {
        let inner = self.0.lock().unwrap();
        inner.requests.iter().filter(|r| r.taken).flat_map(|r| r.logs.clone()).collect()
    }

    /// The page that comes next, if one does.
    fn page(&self) -> Option<(u16, &'static str)> {
        let mut inner = self.0.lock().unwrap();
        let Some(Say::Page(status, text)) = inner.script.front().cloned() else { return None };
        inner.script.pop_front();
        inner.requests.push(Request { at: Some(Instant::now()), ..Request::default() });
        Some((status, text))
    }

    fn note(&self, mut request: Request) -> Say {
        let mut inner = self.0.lock().unwrap();
        let say = inner.script.pop_front().or_else(|| inner.always.clone()).unwrap_or(Say::Take);
        request.at = Some(Instant::now());
        request.taken = matches!(say, Say::Take | Say::Partly(..) | Say::Slowly(_));
        inner.requests.push(request);
        say
    }
}

impl Collector {
    pub(crate) fn start() -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), Memory::default())
    }

    /// At this address, remembering what another one took.
    pub(crate) fn at(address: SocketAddr, memory: Memory) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        // Closed connections of the last one linger; tokio's listeners do not mind them.
        let listener = runtime.block_on(async {
            loop {
                match tokio::net::TcpListener::bind(address).await {
                    Ok(listener) => break listener,
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        });
        let address = listener.local_addr().unwrap();
        let traces = TraceServiceServer::new(memory.clone()).accept_compressed(CompressionEncoding::Gzip);
        let logs = LogsServiceServer::new(memory.clone()).accept_compressed(CompressionEncoding::Gzip);
        let router = axum::Router::new()
            .route("/v1/traces", axum::routing::post(over_http))
            .route("/v1/logs", axum::routing::post(over_http))
            .route("/v1/metrics", axum::routing::post(over_http))
            .route("/own/path", axum::routing::post(over_http))
            .with_state(memory.clone());
        let metrics = MetricsServiceServer::new(memory.clone()).accept_compressed(CompressionEncoding::Gzip);
        let routes = Routes::new(traces).add_service(logs).add_service(metrics);
        let router = routes.into_axum_router().merge(router);
        let router = router.layer(axum::middleware::from_fn_with_state(memory.clone(), pages));
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { address, memory, runtime: Some(runtime) }
    }

    /// Nothing that comes from now on is taken; what was taken has been answered; then it is gone.
    pub(crate) fn kill(mut self) -> (SocketAddr, Memory) {
        self.memory.always(Some(Say::Never));
        std::thread::sleep(Duration::from_millis(40));
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        self.memory.always(None);
        (self.address, self.memory.clone())
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A port at which nobody listens.
pub(crate) fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn of_traces(message: ExportTraceServiceRequest) -> Request {
    let mut request = Request { bytes: message.encode_to_vec().into(), ..Request::default() };
    for of_resource in message.resource_spans {
        request.resource.extend(of_resource.resource);
        for of_scope in of_resource.scope_spans {
            let scope = of_scope.scope.unwrap_or_default();
            request.scopes.push((scope.name, scope.version, of_scope.schema_url));
            request.spans.extend(of_scope.spans);
        }
    }
    request
}

fn of_logs(message: ExportLogsServiceRequest) -> Request {
    let mut request = Request { bytes: message.encode_to_vec().into(), ..Request::default() };
    for of_resource in message.resource_logs {
        request.resource.extend(of_resource.resource);
        for of_scope in of_resource.scope_logs {
            let scope = of_scope.scope.unwrap_or_default();
            request.scopes.push((scope.name, scope.version, of_scope.schema_url));
            request.logs.extend(of_scope.log_records);
        }
    }
    request
}

fn of_metrics(message: ExportMetricsServiceRequest) -> Request {
    let mut request = Request { bytes: message.encode_to_vec().into(), ..Request::default() };
    for of_resource in message.resource_metrics {
        request.resource.extend(of_resource.resource);
        request.metrics.extend(of_resource.scope_metrics.into_iter().flat_map(|s| s.metrics));
    }
    request
}

fn texts(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |v: &axum::http::HeaderValue| String::from_utf8_lossy(v.as_bytes()).into_owned();
    headers.iter().map(|(n, v)| (n.as_str().to_owned(), text(v))).collect()
}

async fn pages(State(memory): State<Memory>, request: axum::extract::Request, next: Next) -> Response {
    match memory.page() {
        Some((status, text)) => (StatusCode::from_u16(status).unwrap(), Html(text)).into_response(),
        None => next.run(request).await,
    }
}

async fn over_http(State(memory): State<Memory>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let mut bytes = body.to_vec();
    if headers.get(header::CONTENT_ENCODING).is_some_and(|v| v == "gzip") {
        bytes.clear();
        flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut bytes).unwrap();
    }
    let logs = uri.path() == "/v1/logs";
    let mut request = match uri.path() {
        "/v1/logs" => of_logs(ExportLogsServiceRequest::decode(&bytes[..]).unwrap()),
        "/v1/metrics" => of_metrics(ExportMetricsServiceRequest::decode(&bytes[..]).unwrap()),
        _ => of_traces(ExportTraceServiceRequest::decode(&bytes[..]).unwrap()),
    };
    request.bytes = bytes.into();
    request.path = uri.path().to_owned();
    request.headers = texts(&headers);
    let partly = |rejected, message: &str| {
        let error_message = message.to_owned();
        if logs {
            let partial = ExportLogsPartialSuccess { rejected_log_records: rejected, error_message };
            ExportLogsServiceResponse { partial_success: Some(partial) }.encode_to_vec()
        } else {
            let partial = ExportTracePartialSuccess { rejected_spans: rejected, error_message };
            ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec()
        }
    };
    let of = |body: Vec<u8>| ([(header::CONTENT_TYPE, "application/x-protobuf")], body).into_response();
    match memory.note(request) {
        Say::Take => of(Vec::new()),
        Say::Partly(rejected, message) => of(partly(rejected, message)),
        Say::Slowly(after) => {
            tokio::time::sleep(after).await;
            of(Vec::new())
        }
        Say::Never => std::future::pending().await,
        Say::Status(status, extra, ..) => {
            let status = StatusCode::from_u16(status).unwrap();
            match extra {
                Some((name, value)) => (status, [(name, value)]).into_response(),
                None => status.into_response(),
            }
        }
        Say::Body(body, kind) => ([(header::CONTENT_TYPE, kind)], body).into_response(),
        Say::Page(..) => unreachable!("it was answered before"),
    }
}

/// What gRPC answers; the partial success of the message if there is one.
async fn over_grpc(say: Say) -> Result<Option<(i64, String)>, Status> {
    match say {
        Say::Take => Ok(None),
        Say::Partly(rejected, message) => Ok(Some((rejected, message.to_owned()))),
        Say::Slowly(after) => {
            tokio::time::sleep(after).await;
            Ok(None)
        }
        Say::Never => std::future::pending().await,
        Say::Status(_, _, code, None) => Err(Status::new(code, "told so")),
        Say::Status(_, _, code, delay) => {
            Err(Status::with_error_details(code, "told so", ErrorDetails::with_retry_info(delay)))
        }
        Say::Body(body, _) => Ok(Some((0, "x".repeat(body.len())))),
        Say::Page(..) => unreachable!("it was answered before"),
    }
}

fn of_call<T>(request: tonic::Request<T>, read: fn(T) -> Request) -> Request {
    let headers = texts(&request.metadata().clone().into_headers());
    Request { headers, path: "grpc".to_owned(), ..read(request.into_inner()) }
}

#[tonic::async_trait]
impl TraceService for Memory {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, Status> {
        let say = self.note(of_call(request, of_traces));
        let partial = over_grpc(say).await?;
        let partial = partial.map(|(rejected_spans, error_message)| ExportTracePartialSuccess {
            rejected_spans,
            error_message,
        });
        Ok(tonic::Response::new(ExportTraceServiceResponse { partial_success: partial }))
    }
}

#[tonic::async_trait]
impl LogsService for Memory {
    async fn export(
        &self,
        request: tonic::Request<ExportLogsServiceRequest>,
    ) -> Result<tonic::Response<ExportLogsServiceResponse>, Status> {
        let say = self.note(of_call(request, of_logs));
        let partial = over_grpc(say).await?;
        let partial = partial.map(|(rejected_log_records, error_message)| ExportLogsPartialSuccess {
            rejected_log_records,
            error_message,
        });
        Ok(tonic::Response::new(ExportLogsServiceResponse { partial_success: partial }))
    }
}

#[tonic::async_trait]
impl MetricsService for Memory {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, Status> {
        let say = self.note(of_call(request, of_metrics));
        over_grpc(say).await?;
        Ok(tonic::Response::new(ExportMetricsServiceResponse { partial_success: None }))
    }
}
