//! OTLP over gRPC. Messages go through as bytes: they are the same as over HTTP, and what is wrong with an answer is told from
//! what is wrong with the connection.

use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use futures_util::future::BoxFuture;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::Status;
use tonic::body::Body;
use tonic::client::Grpc as Client;
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};
use tonic::transport::{Channel, Endpoint};
use tonic_types::StatusExt as _;
use tower::{BoxError, Service};

use super::answer::{Answer, MAX_ANSWER, Why, bounded, retry_after};
use super::send::{AGENT, SetupError};
use super::settings::{CONNECT_WITHIN, Target};
use super::tls;
use crate::clock::Clock;
use crate::spans::Signal;

/// How often a quiet connection is asked whether it still is one.
const PING_EVERY: Duration = Duration::from_secs(30);
/// How long it may take to say so.
const PONG_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Grpc {
    channel: Checked,
    metadata: MetadataMap,
    gzip: bool,
    timeout: Duration,
}

/// A channel that tells answers of gRPC from those of whatever else there is.
#[derive(Clone, Debug)]
struct Checked {
    channel: Channel,
    clock: Clock,
}

/// An answer of HTTP alone, and what it means.
#[derive(Debug, thiserror::Error)]
#[error("not an answer of gRPC")]
struct NotGrpc(Answer);

/// A connection, with TLS or without.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Messages as they are.
struct Raw;

// === impl Grpc ===

impl Grpc {
    /// Has to be made inside a runtime.
    pub(super) fn new(target: &Target, clock: Clock) -> Result<Self, SetupError> {
        let mut metadata = MetadataMap::new();
        for (name, value) in target.headers.iter() {
            let name = AsciiMetadataKey::from_bytes(name.to_ascii_lowercase().as_bytes())
                .map_err(|_| SetupError::Header)?;
            let mut value = AsciiMetadataValue::try_from(value).map_err(|_| SetupError::Header)?;
            value.set_sensitive(true);
            metadata.insert(name, value);
        }
        let channel = Checked { channel: channel(target)?, clock };
        Ok(Self { channel, metadata, gzip: target.gzip, timeout: target.timeout })
    }

    pub(super) async fn send(&self, signal: Signal, body: Bytes) -> Answer {
        match tokio::time::timeout(self.timeout, self.ask(signal, body)).await {
            Ok(Ok(body)) => Answer::of_body(signal, &body),
            Ok(Err(status)) => of_status(&status),
            Err(_) => Answer::Later { why: Why::Timeout, after: None },
        }
    }

    async fn ask(&self, signal: Signal, body: Bytes) -> Result<Bytes, Status> {
        let mut client = Client::new(self.channel.clone())
            .max_decoding_message_size(MAX_ANSWER)
            .accept_compressed(CompressionEncoding::Gzip);
        if self.gzip {
            client = client.send_compressed(CompressionEncoding::Gzip);
        }
        let mut request = tonic::Request::new(body);
        *request.metadata_mut() = self.metadata.clone();
        client.ready().await.map_err(Status::from_error)?;
        let path = path(signal).parse().expect("these paths are valid");
        Ok(client.unary(request, path, Raw).await?.into_inner())
    }
}

const fn path(signal: Signal) -> &'static str {
    match signal {
        Signal::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        Signal::Logs => "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
        Signal::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    }
}

/// A connection that is made with the first request and again whenever it broke.
fn channel(target: &Target) -> Result<Channel, SetupError> {
    let url = &target.url;
    let host = url.host_str().ok_or(SetupError::Address)?;
    let port = url.port_or_known_default().ok_or(SetupError::Address)?;
    let bare = host.trim_matches(['[', ']']).to_owned();
    let tls = if target.is_tls() {
        let name = ServerName::try_from(bare.clone()).map_err(|_| SetupError::Address)?;
        let config = tls::config(&target.tls, &["h2"])?;
        Some((TlsConnector::from(Arc::new(config)), name))
    } else {
        None
    };
    let connect = tower::service_fn(move |_: Uri| {
        let (host, tls) = (bare.clone(), tls.clone());
        async move {
            let socket = TcpStream::connect((host.as_str(), port)).await?;
            socket.set_nodelay(true)?;
            let io: Box<dyn Io> = match tls {
                Some((connector, name)) => Box::new(connector.connect(name, socket).await?),
                None => Box::new(socket),
            };
            Ok::<_, io::Error>(TokioIo::new(io))
        }
    });
    // TLS is the connector's, so that it is the same as over HTTP; servers are told the scheme by the origin.
    let origin: Uri = format!("{}://{host}:{port}", url.scheme()).parse().map_err(|_| SetupError::Address)?;
    let endpoint = Endpoint::from_shared(format!("http://{host}:{port}"))
        .and_then(|e| e.user_agent(AGENT))
        .map_err(|_| SetupError::Address)?
        .origin(origin)
        .connect_timeout(CONNECT_WITHIN)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PONG_WITHIN);
    Ok(endpoint.connect_with_connector_lazy(connect))
}

fn of_status(status: &Status) -> Answer {
    // What the connection did has a cause; what the server said has none.
    if let Some(cause) = status.source() {
        return if let Some(other) = cause.downcast_ref::<NotGrpc>() {
            other.0.clone()
        } else if tls::is_cause(cause) {
            Answer::Misled(Why::Certificate)
        } else {
            Answer::Later { why: Why::Connection, after: None }
        };
    }
    let after = status.get_details_retry_info().and_then(|info| info.retry_delay).map(bounded);
    Answer::of_code(status.code(), after)
}

// === impl Checked ===

impl Service<Request<Body>> for Checked {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.channel.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (asked, clock) = (self.channel.call(request), self.clock);
        Box::pin(async move {
            let response = asked.await?;
            let text = |name| response.headers().get(name).and_then(|v| v.to_str().ok());
            let kind = text(CONTENT_TYPE).unwrap_or_default();
            if kind.starts_with("application/grpc") {
                return Ok(response);
            }
            let after = text(RETRY_AFTER).and_then(|text| retry_after(text, clock.now()));
            let answer = match response.status().as_u16() {
                200..=299 => Answer::Misled(Why::NotOtlp),
                status => Answer::of_status(status, kind, after),
            };
            Err(NotGrpc(answer).into())
        })
    }
}

// === impl Raw ===

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, dst: &mut EncodeBuf<'_>) -> Result<(), Status> {
        dst.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(src.copy_to_bytes(src.remaining())))
    }
}
