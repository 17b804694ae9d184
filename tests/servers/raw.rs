//! Servers that are nothing but bytes: what they do is a function over the connection.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use agent_session_exporter::sources::live::Place;

/// A listener whose connections are each given to a function on a thread of its own.
pub(crate) struct Raw {
    address: String,
    done: Arc<AtomicBool>,
    pub(crate) connections: Arc<AtomicU64>,
}

impl Raw {
    pub(crate) fn start(serve: impl Fn(TcpStream, &str) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (done, connections) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ends, counts, serve) = (done.clone(), connections.clone(), Arc::new(serve));
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(mut connection) = connection else { continue };
                counts.fetch_add(1, Ordering::SeqCst);
                let serve = serve.clone();
                std::thread::spawn(move || {
                    let head = head(&mut connection);
                    serve(connection, &head);
                });
            }
        });
        Self { address, done, connections }
    }

    pub(crate) fn place(&self) -> Place {
        Place::parse(&format!("http://{}", self.address)).unwrap()
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.address
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.done.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(&self.address);
    }
}

/// The head of a request.
fn head(connection: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && connection.read(&mut byte).is_ok_and(|n| n == 1) {
        head.push(byte[0]);
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// A whole answer.
pub(crate) fn answer(connection: &mut TcpStream, status: &str, kind: &str, body: &str) {
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    let _ = connection.write_all(text.as_bytes());
}

/// The head of a stream of events.
pub(crate) fn stream(connection: &mut TcpStream) {
    let text = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let _ = connection.write_all(text.as_bytes());
}

/// The other half of the handshake of a WebSocket.
pub(crate) fn upgrade(connection: &mut TcpStream, head: &str) {
    let _ = connection.write_all(accepted(head).as_bytes());
}

/// The answer to the head of a request for a WebSocket.
pub(crate) fn accepted(head: &str) -> String {
    let key = head
        .lines()
        .find_map(|l| l.split_once(": ").filter(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-key")))
        .map(|(_, key)| key.trim())
        .unwrap();
    let accept = tokio_tungstenite::tungstenite::handshake::derive_accept_key(key.as_bytes());
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: {accept}\r\n\r\n"
    )
}

/// Opens the stream of either kind, as the request wants it.
pub(crate) fn open(connection: &mut TcpStream, head: &str) {
    match is_upgrade(head) {
        true => upgrade(connection, head),
        false => stream(connection),
    }
}

pub(crate) fn is_upgrade(head: &str) -> bool {
    head.to_ascii_lowercase().contains("upgrade: websocket")
}

/// One record on a stream of either kind; false once nobody reads it any more.
pub(crate) fn tell(connection: &mut TcpStream, head: &str, record: &[u8]) -> bool {
    let bytes = match is_upgrade(head) {
        true => frame(0x82, record),
        false => [b"data: ".as_slice(), record, b"\n\n"].concat(),
    };
    connection.write_all(&bytes).is_ok()
}

/// A sign of life without content: a comment, or a ping.
pub(crate) fn lives(connection: &mut TcpStream, head: &str) -> bool {
    let bytes = match is_upgrade(head) {
        true => frame(0x89, b""),
        false => b": alive\n\n".to_vec(),
    };
    connection.write_all(&bytes).is_ok()
}

/// A frame of a WebSocket with this first byte.
pub(crate) fn frame(first: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match (u8::try_from(content.len()), u16::try_from(content.len())) {
        (Ok(short), _) if short < 126 => bytes.push(short),
        (_, Ok(middle)) => {
            bytes.push(126);
            bytes.extend_from_slice(&middle.to_be_bytes());
        }
        _ => {
            bytes.push(127);
            bytes.extend_from_slice(&(content.len() as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(content);
    bytes
}
