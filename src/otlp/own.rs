//! Traces of the exporter itself: what it does with its time, for whoever works on it. Off unless asked for; under a scope
//! of their own, with ids of their own, never in a trace of a session, and never with content: only what the spans
//! themselves name, which are numbers and words of this program.
//!
//! They go the way of the sessions' spans, with the same settings, but past the spool: what does not arrive is gone.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider, SpanData, SpanExporter,
};
use tokio::runtime::Handle;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

use super::answer::Answer;
use super::encode::Encoder;
use super::send::{SetupError, Transport};
use super::settings::{Batching, Target};
use crate::clock::Clock;
use crate::spans::Signal;
use crate::telemetry::OWN_TRACES;

/// Name of the instrumentation scope.
const SCOPE: &str = "agent_session_exporter.self";
/// How long the end may wait for the last of them.
const LAST_WITHIN: Duration = Duration::from_secs(2);
/// Spans that wait to be sent; more are dropped.
const MAX_WAITING: usize = 4_096;

/// Spans of the exporter that are being collected. Nothing is sent before there is a way.
#[derive(Debug)]
pub struct OwnTraces {
    provider: SdkTracerProvider,
    way: Arc<OnceLock<Way>>,
}

/// Where they go.
#[derive(Debug)]
struct Way {
    transport: Arc<Transport>,
    encoder: Encoder,
    runtime: Handle,
}

/// What the SDK hands finished spans to.
#[derive(Debug)]
struct Exporter(Arc<OnceLock<Way>>);

// === impl OwnTraces ===

impl OwnTraces {
    /// Collects, in requests of this size.
    pub fn new(batching: Batching) -> Self {
        let way = Arc::new(OnceLock::new());
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(MAX_WAITING)
            .with_max_export_batch_size(batching.size.min(MAX_WAITING))
            .with_scheduled_delay(batching.delay)
            .build();
        let processor = BatchSpanProcessor::builder(Exporter(way.clone())).with_batch_config(config).build();
        // Who sends is said by the encoder.
        let provider = SdkTracerProvider::builder()
            .with_resource(opentelemetry_sdk::Resource::builder_empty().build())
            .with_span_processor(processor)
            .build();
        Self { provider, way }
    }

    /// Takes the spans that are meant, and no other span or event.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer(SCOPE))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_level(false)
            .with_tracked_inactivity(false)
            .with_filter(Targets::new().with_target(OWN_TRACES, LevelFilter::TRACE))
    }

    /// From now on they are sent, in the name of who sends everything else.
    ///
    /// # Errors
    /// The settings name something that cannot be used.
    pub fn send(&self, target: &Target, encoder: Encoder, clock: Clock) -> Result<(), SetupError> {
        let transport = Arc::new(Transport::new(target, clock)?);
        let way = Way { transport, encoder, runtime: Handle::current() };
        // Nobody sets it twice.
        let _ = self.way.set(way);
        Ok(())
    }

    /// Sends the last of them, if that is possible soon.
    pub async fn shut_down(self) {
        let done = move || self.provider.shutdown_with_timeout(LAST_WITHIN);
        if !matches!(tokio::task::spawn_blocking(done).await, Ok(Ok(()))) {
            tracing::debug!("the last traces of the exporter itself did not arrive");
        }
    }
}

// === impl Exporter ===

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let failed = |why: &str| Err(OTelSdkError::InternalFailure(why.to_owned()));
        let Some(way) = self.0.get() else { return failed("there is no way yet") };
        let body = way.encoder.finished(batch).into();
        let transport = way.transport.clone();
        // The SDK's thread has no runtime of its own.
        let sent = way.runtime.spawn(async move { transport.send(Signal::Traces, body).await });
        match sent.await {
            Ok(Answer::Taken { .. }) => Ok(()),
            Ok(answer) => {
                tracing::debug!(?answer, "traces of the exporter itself did not arrive");
                failed("they did not arrive")
            }
            Err(_) => failed("the runtime is gone"),
        }
    }
}
