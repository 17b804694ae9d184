//! A server for the tests of sources that follow servers: it speaks the real protocols (server-sent events,
//! WebSocket, HTTP) on loopback, answers questions from a script, and fails the test on any request outside its allow
//! list and on any message of a client that it did not expect.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    reason = "each test binary uses its part"
)]

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts as _, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    /// Path with its query.
    pub path: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    /// Asks for a WebSocket.
    pub upgrade: bool,
}

/// What is answered.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub kind: &'static str,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

/// Where the stream is.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Server-sent events at this path.
    Events(&'static str),
    /// A WebSocket at this path; the client has to send exactly these messages, and no other.
    Socket(&'static str, &'static [&'static str]),
}

type Answers = Arc<dyn Fn(&Asked) -> Reply + Send + Sync>;
type Allows = Arc<dyn Fn(&Asked) -> bool + Send + Sync>;

/// What a server is like.
#[derive(Clone)]
pub struct Rules {
    pub stream: Kind,
    /// The WebSocket listens on the next port.
    pub next_port: bool,
    /// Whether a request may be made at all.
    pub allow: Allows,
    /// Whether a request carries the right login; without it the answer is 401.
    pub login: Allows,
    /// The answers.
    pub answer: Answers,
}

/// The running server. Dropping it fails the test if anything happened that must not.
pub struct Server {
    rules: Rules,
    address: SocketAddr,
    shared: Arc<Shared>,
    life: Option<tokio::runtime::Runtime>,
}

#[derive(Default)]
struct Shared {
    streams: Mutex<Vec<UnboundedSender<Sent>>>,
    asked: Mutex<Vec<Asked>>,
    breaches: Mutex<Vec<String>>,
    opened: std::sync::atomic::AtomicU64,
    answering: std::sync::atomic::AtomicU64,
}

#[derive(Clone, Debug)]
enum Sent {
    Record(String),
    /// Bytes of a stream of events as they are.
    Raw(Bytes),
}

impl Asked {
    /// The path without its query.
    pub fn plain(&self) -> &str {
        self.path.split('?').next().unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|v| v.to_str().ok())
    }
}

impl Reply {
    pub fn json(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, kind: "application/json", headers: Vec::new(), body: body.into() }
    }

    pub fn none() -> Self {
        Self::json(404, "{}")
    }
}

impl Rules {
    /// Everything may be asked, nobody has to log in, nothing is known.
    pub fn new(stream: Kind) -> Self {
        Self {
            stream,
            next_port: false,
            allow: Arc::new(|_| true),
            login: Arc::new(|_| true),
            answer: Arc::new(|_| Reply::none()),
        }
    }

    #[must_use]
    pub fn allow(mut self, allow: impl Fn(&Asked) -> bool + Send + Sync + 'static) -> Self {
        self.allow = Arc::new(allow);
        self
    }

    #[must_use]
    pub fn answer(mut self, answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        self.answer = Arc::new(answer);
        self
    }

    #[must_use]
    pub fn login(mut self, login: impl Fn(&Asked) -> bool + Send + Sync + 'static) -> Self {
        self.login = Arc::new(login);
        self
    }
}

impl Server {
    pub fn start(rules: Rules) -> Self {
        let address = free_address(rules.next_port);
        let mut server = Self { rules, address, shared: Arc::default(), life: None };
        server.up();
        server
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// As the exporter names it.
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    /// Listens, again.
    pub fn up(&mut self) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut ports = vec![self.address];
        if self.rules.next_port {
            ports.push(SocketAddr::new(self.address.ip(), self.address.port() + 1));
        }
        for address in ports {
            let router = Router::new()
                .fallback(handle)
                .with_state((self.rules.clone(), self.shared.clone()))
                .layer(axum::extract::DefaultBodyLimit::disable());
            let began = Instant::now();
            let listener = loop {
                match runtime.block_on(tokio::net::TcpListener::bind(address)) {
                    Ok(listener) => break listener,
                    Err(e) => assert!(began.elapsed() < Duration::from_secs(10), "{address}: {e}"),
                }
                std::thread::sleep(Duration::from_millis(20));
            };
            runtime.spawn(async move { axum::serve(listener, router).await });
        }
        self.life = Some(runtime);
    }

    /// Is gone: connections break, new ones are refused.
    pub fn down(&mut self) {
        // First nobody is let in any more: who is sent away comes back at once.
        if let Some(life) = self.life.take() {
            life.shutdown_timeout(Duration::from_secs(2));
        }
        self.shared.streams.lock().unwrap().clear();
    }

    /// Closes every stream; the server stays.
    pub fn cut(&self) {
        self.shared.streams.lock().unwrap().clear();
    }

    /// Sends a record to every open stream.
    pub fn send(&self, record: &str) {
        self.tell(&Sent::Record(record.to_owned()));
    }

    /// Sends bytes of a stream of events as they are.
    pub fn send_raw(&self, bytes: impl Into<Bytes>) {
        self.tell(&Sent::Raw(bytes.into()));
    }

    fn tell(&self, what: &Sent) {
        self.shared.streams.lock().unwrap().retain(|stream| stream.send(what.clone()).is_ok());
    }

    /// Streams that are open.
    pub fn streams(&self) -> usize {
        let mut streams = self.shared.streams.lock().unwrap();
        streams.retain(|stream| !stream.is_closed());
        streams.len()
    }

    /// Streams that were ever opened.
    pub fn opened(&self) -> u64 {
        self.shared.opened.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// Waits for so many open streams.
    pub fn until_streams(&self, wanted: usize) {
        self.until(|streams| streams == wanted, &format!("{wanted} streams"));
    }

    /// Waits for an open stream.
    pub fn until_any_stream(&self) {
        self.until(|streams| streams > 0, "a stream");
    }

    fn until(&self, wanted: impl Fn(usize) -> bool, what: &str) {
        let began = Instant::now();
        while !wanted(self.streams()) {
            assert!(began.elapsed() < Duration::from_secs(20), "never {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// Requests that are being answered.
    pub fn answering(&self) -> u64 {
        self.shared.answering.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// What happened that must not; asking forgives.
    pub fn breaches(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.breaches.lock().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.down();
        if !std::thread::panicking() {
            let breaches = self.breaches();
            assert!(breaches.is_empty(), "the server was asked what it must not be: {breaches:#?}");
        }
    }
}

impl Shared {
    fn breach(&self, what: String) {
        self.breaches.lock().unwrap().push(what);
    }

    fn open(&self) -> UnboundedReceiver<Sent> {
        let (tell, hear) = unbounded_channel();
        self.streams.lock().unwrap().push(tell);
        self.opened.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        hear
    }
}

/// An address whose port, and if wanted the next one, nobody listens on.
fn free_address(two: bool) -> SocketAddr {
    loop {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = first.local_addr().unwrap();
        let next = address.port().checked_add(1);
        if !two || next.is_some_and(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return address;
        }
    }
}

async fn handle(State((rules, shared)): State<(Rules, Arc<Shared>)>, request: Request) -> Response {
    use std::sync::atomic::Ordering::SeqCst;
    shared.answering.fetch_add(1, SeqCst);
    let response = respond(&rules, &shared, request).await;
    shared.answering.fetch_sub(1, SeqCst);
    response
}

async fn respond(rules: &Rules, shared: &Arc<Shared>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
    let upgrade = parts.headers.contains_key(header::UPGRADE);
    let body = axum::body::to_bytes(body, 1 << 24).await.unwrap_or_default().to_vec();
    let asked =
        Asked { method: parts.method.to_string(), path, headers: parts.headers.clone(), body, upgrade };
    shared.asked.lock().unwrap().push(asked.clone());
    let stream = match rules.stream {
        Kind::Events(at) => asked.plain() == at,
        Kind::Socket(at, _) => asked.plain() == at && upgrade,
    };
    if stream && asked.method != "GET" || !stream && !(rules.allow)(&asked) {
        shared.breach(format!("{} {}", asked.method, asked.path));
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    if !(rules.login)(&asked) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    match rules.stream {
        Kind::Events(_) if stream => {
            let hear = shared.open();
            let events = futures_util::stream::unfold(hear, |mut hear| async move {
                let bytes = match hear.recv().await? {
                    Sent::Record(record) => Bytes::from(format!("data: {record}\n\n")),
                    Sent::Raw(bytes) => bytes,
                };
                Some((Ok::<_, Infallible>(bytes), hear))
            });
            ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
        }
        Kind::Socket(_, expected) if stream => {
            let upgrade = match WebSocketUpgrade::from_request_parts(&mut parts, &()).await {
                Ok(upgrade) => upgrade,
                Err(refused) => return refused.into_response(),
            };
            let shared = shared.clone();
            upgrade.on_upgrade(move |socket| talk(socket, shared, expected))
        }
        _ => {
            let reply = (rules.answer)(&asked);
            let mut response = Response::builder().status(reply.status).header("content-type", reply.kind);
            for (name, value) in reply.headers {
                response = response.header(name, value);
            }
            response.body(Body::from(reply.body)).unwrap()
        }
    }
}

async fn talk(mut socket: WebSocket, shared: Arc<Shared>, expected: &'static [&'static str]) {
    for expected in expected {
        match socket.recv().await {
            Some(Ok(Message::Text(text))) if text.as_str() == *expected => {}
            other => return shared.breach(format!("expected {expected}, got {other:?}")),
        }
    }
    let mut hear = shared.open();
    loop {
        tokio::select! {
            record = hear.recv() => match record {
                Some(Sent::Record(record)) => {
                    if socket.send(Message::text(record)).await.is_err() {
                        return;
                    }
                }
                Some(Sent::Raw(bytes)) => {
                    if socket.send(Message::Binary(bytes)).await.is_err() {
                        return;
                    }
                }
                // The connection breaks without a word.
                None => return,
            },
            got = socket.recv() => match got {
                Some(Ok(Message::Pong(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                Some(Ok(other)) => shared.breach(format!("a client sent {other:?}")),
            },
        }
    }
}
