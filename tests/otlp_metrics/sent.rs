//! The task against a collector, over both protocols.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::otlp::{Metrics, Settings};
use agent_session_exporter::views::selection::Options;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use prost::Message as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::service::Routes;

use crate::common::owner::Life;
use crate::stand::{Shown, fed, feed, shown};

const LONG: Duration = Duration::from_secs(40);

/// Remembers what it took; refuses while `down`.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    down: Option<u16>,
    asked: usize,
    taken: Vec<ExportMetricsServiceRequest>,
}

impl Collector {
    fn take(&self, request: ExportMetricsServiceRequest) -> Result<(), u16> {
        let mut inner = self.0.lock().unwrap();
        inner.asked += 1;
        match inner.down {
            Some(status) => Err(status),
            None => {
                inner.taken.push(request);
                Ok(())
            }
        }
    }

    fn down(&self, status: Option<u16>) {
        self.0.lock().unwrap().down = status;
    }

    fn asked(&self) -> usize {
        self.0.lock().unwrap().asked
    }

    fn exports(&self) -> Vec<Vec<Shown>> {
        let inner = self.0.lock().unwrap();
        let of = |r: &ExportMetricsServiceRequest| {
            let scopes = r.resource_metrics.iter().flat_map(|r| &r.scope_metrics);
            shown(scopes.flat_map(|s| &s.metrics))
        };
        inner.taken.iter().map(of).collect()
    }

    async fn serve(self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let http = axum::Router::new().route("/v1/metrics", post(over_http)).with_state(self.clone());
        let router = Routes::new(MetricsServiceServer::new(self)).into_axum_router().merge(http);
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }
}

async fn over_http(State(collector): State<Collector>, body: Bytes) -> Result<Vec<u8>, StatusCode> {
    let request = ExportMetricsServiceRequest::decode(body).unwrap();
    let taken = collector.take(request);
    taken.map(|()| Vec::new()).map_err(|status| StatusCode::from_u16(status).unwrap())
}

#[tonic::async_trait]
impl MetricsService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, Status> {
        match self.take(request.into_inner()) {
            Ok(()) => Ok(tonic::Response::new(ExportMetricsServiceResponse::default())),
            Err(503) => Err(Status::unavailable("")),
            Err(_) => Err(Status::invalid_argument("")),
        }
    }
}

struct Running {
    life: Life,
    runtime: tokio::runtime::Runtime,
    collector: Collector,
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

impl Running {
    /// A fed store whose metrics are sent at this interval.
    fn start(protocol: &str, interval: &str, more: &[(&str, &str)]) -> Self {
        let (life, _) = fed();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let collector = Collector::default();
        let address = runtime.block_on(collector.clone().serve());
        let endpoint = format!("http://{address}");
        let env: BTreeMap<String, String> = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
            ("OTEL_METRIC_EXPORT_INTERVAL", interval),
        ]
        .iter()
        .chain(more)
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
        let stop = watch::Sender::new(false);
        let entered = runtime.enter();
        let metrics = Metrics {
            settings: &Settings::read(&env, None).unwrap(),
            instance: "test-instance",
            snapshots: life.store.snapshots.clone(),
            options: Options::default(),
            memory: Arc::default(),
            telemetry: life.telemetry.clone(),
            clock: Clock::system(),
            stop: stop.subscribe(),
        };
        let task = metrics.start().unwrap();
        drop(entered);
        Self { life, runtime, collector, stop, task }
    }

    fn items(&self, result: &str) -> u64 {
        self.life.telemetry.otlp_items.with_label_values(&["metrics", result]).get()
    }

    /// Stops as the program does.
    fn end(mut self) -> Vec<Vec<Shown>> {
        self.stop.send_replace(true);
        self.life.end();
        if let Some(task) = self.task.take() {
            self.runtime.block_on(async { tokio::time::timeout(LONG, task).await }).unwrap().unwrap();
        }
        self.runtime.shutdown_background();
        self.collector.exports()
    }
}

fn until(what: &str, is: impl Fn() -> bool) {
    let started = Instant::now();
    while !is() {
        assert!(started.elapsed() < LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(3));
    }
}

#[test]
fn everything_is_sent_again_and_again_and_what_fails_is_replaced() {
    for protocol in ["http/protobuf", "grpc"] {
        let running = Running::start(protocol, "50", &[]);
        until("two exports", || running.collector.exports().len() >= 2);
        assert!(running.items("sent") > 100);
        assert_eq!((running.items("failed"), running.items("refused")), (0, 0));

        running.collector.down(Some(503));
        let asked = running.collector.asked();
        until("it is asked in vain", || running.collector.asked() > asked + 1);
        until("that is counted", || running.items("failed") > 100);
        running.collector.down(Some(400));
        until("that is counted as well", || running.items("refused") > 100);

        let before = running.collector.exports().len();
        feed(
            &running.life,
            "{\"schemaVersion\":\"1\",\"source\":\"late\",\"sessionId\":\"late\",\"type\":\"turn.started\",\"data\":{}}\n",
        );
        running.collector.down(None);
        let late = |p: &Shown| p.labels.get("session").is_some_and(|s| s == "late");
        until("the next has what came meanwhile", || {
            running.collector.exports()[before..].iter().any(|e| e.iter().any(late))
        });
        let exports = running.end();
        let times: Vec<u64> = exports.iter().map(|e| e[0].time).collect();
        assert!(times.windows(2).all(|w| w[0] < w[1]), "{times:?}");
    }
}

#[test]
fn the_last_export_has_what_was_told_last() {
    let running = Running::start("http/protobuf", "3600000", &[]);
    feed(
        &running.life,
        "{\"schemaVersion\":\"1\",\"source\":\"late\",\"sessionId\":\"late\",\"type\":\"turn.started\",\"data\":{}}\n",
    );
    let exports = running.end();
    assert_eq!(exports.len(), 1, "an hour did not pass");
    assert!(exports[0].iter().any(|p| p.labels.get("session").is_some_and(|s| s == "late")));
    assert!(exports[0].iter().all(|p| !p.is_ended));
}

#[test]
fn a_collector_that_never_answers_does_not_keep_the_program() {
    let running = Running::start("http/protobuf", "20", &[]);
    // A port that takes connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    running.end();
    let running = Running::start("http/protobuf", "20", &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]);
    std::thread::sleep(Duration::from_millis(100));
    let started = Instant::now();
    assert!(running.end().is_empty());
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}

#[test]
fn without_an_endpoint_there_is_no_task() {
    for off in [
        ("OTEL_METRICS_EXPORTER", "none"),
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", ""),
    ] {
        let running = Running::start("http/protobuf", "10", &[off]);
        assert!(running.task.is_none(), "{off:?}");
        running.end();
    }
}
