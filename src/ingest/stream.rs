//! Streams of a server: server-sent events and WebSockets. Bytes in, records out, each bounded. Nothing is sent but
//! what opens the stream, one subscription where a server wants one, and the answers the protocol itself demands.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::{HeaderName, HeaderValue};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::client::{AGENT, AskError, Client};

/// Longest record that is handed out; a longer one is skipped and counted.
pub const MAX_RECORD: usize = 16 << 20;
/// A record that is still not over after so many bytes ends the stream.
const MAX_SKIPPED: usize = 64 << 20;
/// Seconds of silence after which the kernel asks whether the other side is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Something a stream said.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// One record.
    Record(Vec<u8>),
    /// One that was too long; its bytes are gone.
    TooLong,
    /// A sign of life without content.
    Nothing,
}

/// An open stream.
pub enum Stream {
    /// Server-sent events.
    Events(Box<Events>),
    /// A WebSocket.
    Socket(Box<WebSocketStream<Box<dyn Wire>>>),
}

/// What a WebSocket runs over.
pub trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// Where and how a WebSocket is opened.
pub struct SocketRequest<'a> {
    /// Host name or address.
    pub host: &'a str,
    /// Port.
    pub port: u16,
    /// Host and port as they stand in a URL.
    pub authority: String,
    /// Path and query.
    pub path: String,
    /// Headers of the request.
    pub headers: &'a [(&'static str, String)],
    /// TLS, where the server is reached over it.
    pub tls: Option<Arc<ClientConfig>>,
    /// The one message that is sent.
    pub hello: Option<&'static str>,
}

/// Server-sent events being read.
pub struct Events {
    response: reqwest::Response,
    splitter: Splitter,
}

/// Takes the events out of the bytes of an event stream. Only `data` is of interest; the events of one chunk wait
/// inside.
#[derive(Debug, Default)]
pub struct Splitter {
    /// The line that is not over yet.
    line: Vec<u8>,
    /// Bytes of the line that were left out, because it is too long.
    skipped: usize,
    /// Data of the event that is not over yet.
    data: Vec<u8>,
    /// Whether the event has data, be it empty.
    some: bool,
    /// Whether the event is too long.
    too_long: bool,
    /// The last byte was a CR, so that an LF belongs to it.
    cr: bool,
    ready: std::collections::VecDeque<Heard>,
}

// === impl Stream ===

impl Stream {
    /// Opens server-sent events.
    ///
    /// # Errors
    /// There is no such stream.
    pub async fn events(client: &Client, path: &str, within: Duration) -> Result<Self, AskError> {
        let response = client.events(path, within).await?;
        Ok(Self::Events(Box::new(Events { response, splitter: Splitter::default() })))
    }

    /// Opens a WebSocket.
    ///
    /// # Errors
    /// There is none.
    pub async fn socket(request: SocketRequest<'_>, within: Duration) -> Result<Self, AskError> {
        let opened = tokio::time::timeout(within, open_socket(request)).await;
        opened.map_err(|_| AskError::Timeout)?
    }

    /// What the stream says next. Safe to be dropped and called again.
    ///
    /// # Errors
    /// The stream is over.
    pub async fn next(&mut self) -> Result<Heard, AskError> {
        match self {
            Self::Events(events) => events.next().await,
            Self::Socket(socket) => match socket.next().await {
                None => Err(AskError::Ended),
                Some(Ok(Message::Text(text))) => Ok(Heard::Record(text.as_bytes().to_vec())),
                Some(Ok(Message::Binary(bytes))) => Ok(Heard::Record(bytes.to_vec())),
                Some(Ok(Message::Close(_))) => Err(AskError::Ended),
                // A ping is answered by the protocol's own machinery with the next read.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => Ok(Heard::Nothing),
                Some(Err(Error::Capacity(_))) => Err(AskError::Record),
                Some(Err(Error::ConnectionClosed | Error::AlreadyClosed | Error::Io(_))) => {
                    Err(AskError::Ended)
                }
                Some(Err(_)) => Err(AskError::Protocol),
            },
        }
    }

    /// Whether everything that has arrived can be had at once. A stream of events hands out one piece at a time, however
    /// many have come.
    pub const fn reads_ahead(&self) -> bool {
        matches!(self, Self::Socket(_))
    }

    /// Takes leave, as the protocol wants it.
    pub async fn close(self) {
        if let Self::Socket(mut socket) = self {
            // Whether the other side hears it is not our concern any more.
            let _ = tokio::time::timeout(Duration::from_secs(1), socket.as_mut().close(None)).await;
        }
    }
}

async fn open_socket(request: SocketRequest<'_>) -> Result<Stream, AskError> {
    let tcp = TcpStream::connect((request.host, request.port)).await.map_err(|_| AskError::Connection)?;
    // A peer that went without a word is noticed by the kernel; no frame is sent for it.
    let kept = sockopt::set_socket_keepalive(&tcp, true)
        .and_then(|()| sockopt::set_tcp_keepidle(&tcp, KEEPALIVE))
        .and_then(|()| sockopt::set_tcp_keepintvl(&tcp, KEEPALIVE / 3));
    kept.map_err(|_| AskError::Connection)?;
    let (scheme, wire): (_, Box<dyn Wire>) = match request.tls {
        None => ("ws", Box::new(tcp)),
        Some(config) => {
            let name = ServerName::try_from(request.host.to_owned()).map_err(|_| AskError::Certificate)?;
            let wire = TlsConnector::from(config).connect(name, tcp).await;
            ("wss", Box::new(wire.map_err(|_| AskError::Certificate)?))
        }
    };
    let url = format!("{scheme}://{}{}", request.authority, request.path);
    let mut handshake = url.into_client_request().map_err(|_| AskError::Protocol)?;
    let headers = handshake.headers_mut();
    headers.insert("user-agent", HeaderValue::from_static(AGENT));
    for (name, value) in request.headers {
        let value = HeaderValue::from_str(value).map_err(|_| AskError::Login)?;
        headers.insert(HeaderName::from_static(name), value);
    }
    let limits = WebSocketConfig::default()
        .max_message_size(Some(MAX_RECORD))
        .max_frame_size(Some(MAX_RECORD))
        .read_buffer_size(64 << 10);
    let opened = tokio_tungstenite::client_async_with_config(handshake, wire, Some(limits)).await;
    let (mut socket, _) = opened.map_err(|error| match error {
        Error::Http(response) => AskError::of_status(response.status().as_u16()),
        Error::Io(_) => AskError::Connection,
        _ => AskError::Protocol,
    })?;
    if let Some(hello) = request.hello {
        socket.send(Message::text(hello)).await.map_err(|_| AskError::Ended)?;
    }
    Ok(Stream::Socket(Box::new(socket)))
}

// === impl Events ===

impl Events {
    async fn next(&mut self) -> Result<Heard, AskError> {
        loop {
            if let Some(heard) = self.splitter.ready.pop_front() {
                return Ok(heard);
            }
            let chunk = self.response.chunk().await.map_err(|e| match AskError::of(&e) {
                AskError::Protocol => AskError::Ended,
                other => other,
            })?;
            let Some(chunk) = chunk else { return Err(AskError::Ended) };
            self.splitter.take(&chunk)?;
        }
    }
}

// === impl Splitter ===

impl Splitter {
    /// Takes bytes in.
    ///
    /// # Errors
    /// A line does not end.
    pub fn take(&mut self, mut bytes: &[u8]) -> Result<(), AskError> {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.cr) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) else { return self.keep(bytes) };
            self.keep(&bytes[..end])?;
            self.cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            self.end_line();
        }
        Ok(())
    }

    fn keep(&mut self, part: &[u8]) -> Result<(), AskError> {
        if self.skipped > 0 || self.line.len() + part.len() > MAX_RECORD {
            self.skipped += self.line.len() + part.len();
            self.line = Vec::new();
            if self.skipped > MAX_SKIPPED {
                return Err(AskError::Record);
            }
        } else {
            self.line.extend_from_slice(part);
        }
        Ok(())
    }

    fn end_line(&mut self) {
        if std::mem::take(&mut self.skipped) > 0 {
            self.too_long = true;
            return;
        }
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            self.end_event();
            return;
        }
        // A comment is a sign of life.
        if line[0] == b':' {
            self.ready.push_back(Heard::Nothing);
            return;
        }
        let Some(value) = line.strip_prefix(b"data") else { return };
        let value = match value.strip_prefix(b":") {
            Some(value) => value.strip_prefix(b" ").unwrap_or(value),
            None if value.is_empty() => value,
            None => return,
        };
        if self.data.len() + value.len() > MAX_RECORD {
            self.too_long = true;
            return;
        }
        if self.some {
            self.data.push(b'\n');
        }
        self.some = true;
        self.data.extend_from_slice(value);
    }

    fn end_event(&mut self) {
        let data = std::mem::take(&mut self.data);
        let some = std::mem::take(&mut self.some);
        if std::mem::take(&mut self.too_long) {
            self.ready.push_back(Heard::TooLong);
        } else if some {
            self.ready.push_back(Heard::Record(data));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(chunks: &[&[u8]]) -> Vec<Heard> {
        let mut splitter = Splitter::default();
        for chunk in chunks {
            splitter.take(chunk).unwrap();
        }
        splitter.ready.into()
    }

    fn record(text: &str) -> Heard {
        Heard::Record(text.as_bytes().to_vec())
    }

    #[test]
    fn events_are_the_same_however_they_are_cut() {
        let text =
            b"data: {\"a\":1}\r\n\r\ndata: x\ndata: y\n\n: alive\n\nid: 7\ndata:z\n\nevent: e\n\ndata\n\n";
        let whole = split(&[text]);
        let expected = [record("{\"a\":1}"), record("x\ny"), Heard::Nothing, record("z"), record("")];
        assert_eq!(whole, expected);
        for cut in 0..text.len() {
            assert_eq!(split(&[&text[..cut], &text[cut..]]), whole, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(split(&bytes), whole);
    }

    #[test]
    fn a_line_that_is_too_long_is_left_out_and_one_without_end_ends_the_stream() {
        let long = vec![b'x'; MAX_RECORD];
        let heard = split(&[b"data: ", &long, b"\n\ndata: next\n\n"]);
        assert_eq!(heard, [Heard::TooLong, record("next")]);
        let mut splitter = Splitter::default();
        let mut most = 0;
        let ended = (0..10).find(|_| {
            let failed = splitter.take(&long).is_err();
            most = most.max(splitter.line.capacity());
            failed
        });
        assert_eq!(ended, Some(4));
        assert!(most <= 2 * MAX_RECORD, "bounded while it comes");
    }

    #[test]
    fn many_data_lines_do_not_grow_without_bound() {
        let line = [b"data: ".as_slice(), &vec![b'y'; 1 << 20], b"\n"].concat();
        let mut splitter = Splitter::default();
        for _ in 0..40 {
            splitter.take(&line).unwrap();
        }
        assert!(splitter.data.capacity() <= 2 * MAX_RECORD);
        splitter.take(b"\n").unwrap();
        assert_eq!(splitter.ready, [Heard::TooLong]);
    }
}
