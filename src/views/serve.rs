//! Sockets: which addresses may be listened on, TLS, passwords, and an end without cutting answers. What is answered
//! is no matter of this file.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::middleware::{from_fn_with_state, map_response_with_state};
use axum::response::Response;
use axum::serve::Listener;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::auth;
use super::webconfig::WebConfig;

/// How long running answers may take after the stop.
const GRACE: Duration = Duration::from_secs(2);
/// How long a client may take to agree on TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Clients that agree on TLS at once; others wait in the system's queue.
const MAX_HANDSHAKES: usize = 64;

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a loopback address, and nothing protects it.
    #[error(
        "{0} can be reached from other machines: give --web.config.file with TLS or users, or --web.allow-remote"
    )]
    Remote(SocketAddr),
    /// The address cannot be had.
    #[error("cannot listen on {address}: {error}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        error: std::io::Error,
    },
    /// The socket failed while serving.
    #[error("serving failed: {0}")]
    Serve(#[from] std::io::Error),
}

/// Whether this address may be listened on. `protected`: a web configuration encrypts or asks for passwords;
/// `allow_remote`: the user said so.
///
/// # Errors
/// [`Error::Remote`] if not.
pub fn check_address(address: SocketAddr, protected: bool, allow_remote: bool) -> Result<(), Error> {
    let here = address.ip().to_canonical().is_loopback();
    if here || protected || allow_remote { Ok(()) } else { Err(Error::Remote(address)) }
}

/// Begins to listen.
///
/// # Errors
/// [`Error::Bind`] if the address cannot be had.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|error| Error::Bind { address, error })
}

/// Serves until `stop` turns true (or its sender is gone), then lets running answers finish for a moment.
///
/// # Errors
/// [`Error::Serve`] if the socket fails.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    web: WebConfig,
    stop: watch::Receiver<bool>,
) -> Result<(), Error> {
    let mut router = router;
    if let Some(users) = web.users {
        router = router.layer(from_fn_with_state(users, auth::check));
    }
    if !web.headers.is_empty() {
        router = router.layer(map_response_with_state(web.headers, add_headers));
    }
    match web.tls {
        Some(tls) => {
            run(TlsListener { tcp: listener, tls: tls.into(), handshakes: JoinSet::new() }, router, stop)
                .await
        }
        None => run(listener, router, stop).await,
    }
}

type Headers = Vec<(axum::http::HeaderName, axum::http::HeaderValue)>;

async fn add_headers(
    axum::extract::State(headers): axum::extract::State<Headers>,
    mut response: Response,
) -> Response {
    response.headers_mut().extend(headers);
    response
}

async fn run<L>(listener: L, router: Router, stop: watch::Receiver<bool>) -> Result<(), Error>
where
    L: Listener<Addr = SocketAddr>,
{
    let server = axum::serve(listener, router).with_graceful_shutdown(stopped(stop.clone()));
    let too_late = async {
        stopped(stop).await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        served = server.into_future() => Ok(served?),
        // A client that reads slowly must not hold up the end.
        () = too_late => Ok(()),
    }
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error means that the sender is gone, and with it everybody who could want this to go on.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Accepts connections once their handshake is done, so that a slow client holds up no other.
struct TlsListener {
    tcp: TcpListener,
    tls: TlsAcceptor,
    handshakes: JoinSet<Option<(TlsStream<TcpStream>, SocketAddr)>>,
}

// === impl TlsListener ===

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            tokio::select! {
                Some(done) = self.handshakes.join_next() => {
                    if let Ok(Some(connection)) = done {
                        return connection;
                    }
                }
                (stream, peer) = Listener::accept(&mut self.tcp), if self.handshakes.len() < MAX_HANDSHAKES => {
                    let agreed = self.tls.accept(stream);
                    self.handshakes.spawn(async move {
                        let stream = tokio::time::timeout(HANDSHAKE, agreed).await.ok()?.ok()?;
                        Some((stream, peer))
                    });
                }
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.tcp.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_are_let_in_only_on_purpose() {
        let check = |address: &str, protected, remote| {
            check_address(address.parse().unwrap(), protected, remote).is_ok()
        };
        for here in ["127.0.0.1:10077", "127.1.2.3:1", "[::1]:10077", "[::ffff:127.0.0.1]:1"] {
            assert!(check(here, false, false), "{here}");
        }
        for elsewhere in ["0.0.0.0:10077", "[::]:10077", "192.168.1.2:10077"] {
            assert!(!check(elsewhere, false, false), "{elsewhere}");
            assert!(check(elsewhere, true, false) && check(elsewhere, false, true), "{elsewhere}");
        }
    }
}
