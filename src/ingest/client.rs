//! Questions to a server on this machine or another: GET, and the few queries of history that a server only takes as
//! POST. Answers are bounded, redirects are not followed, proxies of the environment are not used.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{self, ClientConfig};

/// Longest answer that is read.
pub const MAX_BODY: usize = 32 << 20;
/// How long a connection may take to be made.
pub const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// The only paths that may be asked by POST: the server changes nothing for them.
const QUERIES: &[&str] = &["/sync/history"];
/// How this program calls itself.
pub(super) const AGENT: &str = concat!("agent-session-exporter/", env!("CARGO_PKG_VERSION"));

/// Whom to believe that a server is who it says, for `https`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// Certificates to believe besides those of the system.
    pub ca_file: Option<PathBuf>,
}

/// What a server answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Status of HTTP.
    pub status: u16,
    /// The body, where the status is 2xx and it is JSON or text of Prometheus; empty otherwise.
    pub body: Vec<u8>,
    /// Where the next page begins, as the header `x-next-cursor` says.
    pub next: Option<String>,
}

/// Why there is no answer. Closed; never holds what a server wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// Nobody listens, the name is unknown, or the connection broke.
    #[error("no connection")]
    Connection,
    /// It took too long.
    #[error("no answer in time")]
    Timeout,
    /// The certificate, or what should be one.
    #[error("the certificate is not valid")]
    Certificate,
    /// The server sends elsewhere; that is not followed.
    #[error("the server redirects")]
    Redirect,
    /// The login is missing or wrong.
    #[error("the login is refused")]
    Login,
    /// Not what was asked for.
    #[error("the content type is not the one of this server")]
    ContentType,
    /// More than is read.
    #[error("the answer is too long")]
    TooLong,
    /// Another status than success.
    #[error("the server answers with an error")]
    Status,
    /// A line of a stream without end, or a message beyond the bound.
    #[error("a record is too long")]
    Record,
    /// The stream said nothing for longer than its heartbeats allow.
    #[error("the stream is silent")]
    Silent,
    /// The server closed the stream.
    #[error("the stream ended")]
    Ended,
    /// Something else than the protocol.
    #[error("not the protocol of this server")]
    Protocol,
    /// A question that may not be asked.
    #[error("not a question")]
    Forbidden,
}

/// Asks one server.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    headers: HeaderMap,
}

/// The TLS of a client.
///
/// # Errors
/// The file with further certificates cannot be read, or the system's cannot.
pub fn tls(trust: &Trust) -> Result<Arc<ClientConfig>, AskError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let extra = trust.ca_file.as_deref().map(certificates).transpose()?.unwrap_or_default();
    let verifier = rustls_platform_verifier::Verifier::new_with_extra_roots(extra, provider.clone())
        .map_err(|_| AskError::Certificate)?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|_| AskError::Certificate)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, AskError> {
    let read = CertificateDer::pem_file_iter(path).map_err(|_| AskError::Certificate)?;
    read.collect::<Result<_, _>>().map_err(|_| AskError::Certificate)
}

/// A secret as it stands in its file, without the line end.
///
/// # Errors
/// The file cannot be read or is empty.
pub fn secret(path: &Path) -> Result<String, AskError> {
    let text = std::fs::read_to_string(path).map_err(|_| AskError::Login)?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() { Err(AskError::Login) } else { Ok(text.to_owned()) }
}

// === impl AskError ===

impl AskError {
    /// The reason as a word of the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Timeout => "timeout",
            Self::Certificate => "certificate",
            Self::Redirect => "redirect",
            Self::Login => "login",
            Self::ContentType => "content_type",
            Self::TooLong => "too_long",
            Self::Status => "status",
            Self::Record => "record",
            Self::Silent => "silent",
            Self::Ended => "ended",
            Self::Protocol => "protocol",
            Self::Forbidden => "forbidden",
        }
    }

    pub(super) fn of(error: &reqwest::Error) -> Self {
        if error.is_timeout() {
            return Self::Timeout;
        }
        if error.is_redirect() {
            return Self::Redirect;
        }
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(cause) = source {
            if is_tls(cause) {
                return Self::Certificate;
            }
            source = cause.source();
        }
        if error.is_connect() { Self::Connection } else { Self::Protocol }
    }

    /// What this status means, where it is no success.
    pub(crate) fn of_status(status: u16) -> Self {
        match status {
            200..=299 => Self::Protocol,
            401 | 403 => Self::Login,
            300..=399 => Self::Redirect,
            _ => Self::Status,
        }
    }
}

/// Whether an error is one of TLS. They hide inside the errors of reading and writing.
fn is_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    if error.is::<rustls::Error>() {
        return true;
    }
    let inner = error.downcast_ref::<std::io::Error>().and_then(|e| e.get_ref());
    inner.is_some_and(|inner| is_tls(inner))
}

// === impl Client ===

impl Client {
    /// A client of the server at `base` that sends `headers` with each question.
    ///
    /// # Errors
    /// A header cannot be sent, or TLS cannot be set up.
    pub fn new(
        base: String,
        headers: &[(&'static str, String)],
        tls: Option<&ClientConfig>,
    ) -> Result<Self, AskError> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let mut value = HeaderValue::from_str(value).map_err(|_| AskError::Login)?;
            value.set_sensitive(true);
            map.insert(HeaderName::from_static(name), value);
        }
        let mut builder = reqwest::Client::builder()
            .user_agent(AGENT)
            .redirect(redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_WITHIN)
            .tcp_keepalive(Duration::from_secs(30))
            .pool_max_idle_per_host(1)
            .referer(false);
        // Without TLS nothing is asked of the system's certificates, which a small container may not have.
        builder = match tls {
            Some(tls) => builder.tls_backend_preconfigured(tls.clone()),
            None => builder.tls_backend_preconfigured(no_tls()?),
        };
        let http = builder.build().map_err(|_| AskError::Certificate)?;
        Ok(Self { http, base, headers: map })
    }

    /// Asks one question, within this time from first to last byte.
    ///
    /// # Errors
    /// There is no answer, or none that may be read. A status that is no success is an answer, without its body.
    pub async fn ask(&self, path: &str, query: Option<&str>, within: Duration) -> Result<Answer, AskError> {
        let url = format!("{}{path}", self.base);
        let request = match query {
            None => self.http.get(url),
            Some(_) if !QUERIES.contains(&path) => return Err(AskError::Forbidden),
            Some(body) => self.http.post(url).header(CONTENT_TYPE, "application/json").body(body.to_owned()),
        };
        let request = request.headers(self.headers.clone()).timeout(within);
        let mut response = request.send().await.map_err(|e| AskError::of(&e))?;
        let status = response.status().as_u16();
        if response.status().is_redirection() {
            return Err(AskError::Redirect);
        }
        let text = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok());
        let next = text("x-next-cursor").map(str::to_owned);
        if !response.status().is_success() {
            return Ok(Answer { status, body: Vec::new(), next });
        }
        let kind = text("content-type").unwrap_or_default().to_ascii_lowercase();
        if !kind.starts_with("application/json") {
            return Err(AskError::ContentType);
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| AskError::of(&e))? {
            if body.len() + chunk.len() > MAX_BODY {
                return Err(AskError::TooLong);
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Answer { status, body, next })
    }

    /// Opens a stream of server-sent events; its head has to come within this time.
    ///
    /// # Errors
    /// There is no such stream.
    pub async fn events(&self, path: &str, within: Duration) -> Result<reqwest::Response, AskError> {
        let request = self.http.get(format!("{}{path}", self.base)).headers(self.headers.clone());
        let request = request.header(reqwest::header::ACCEPT, "text/event-stream");
        let sent = tokio::time::timeout(within, request.send()).await;
        let response = sent.map_err(|_| AskError::Timeout)?.map_err(|e| AskError::of(&e))?;
        if !response.status().is_success() {
            return Err(AskError::of_status(response.status().as_u16()));
        }
        let kind = response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        if !kind.to_ascii_lowercase().starts_with("text/event-stream") {
            return Err(AskError::ContentType);
        }
        Ok(response)
    }
}

/// A TLS that believes nobody, for servers without it.
fn no_tls() -> Result<ClientConfig, AskError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|_| AskError::Certificate)?;
    Ok(builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth())
}
