//! The file of `--web.config.file`: TLS, passwords and response headers, in the schema of Prometheus' exporter-toolkit
//! (<https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md>). A key that is not
//! supported here is an error, because ignoring one could leave a door open. Read once, at start.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue};
use serde::Deserialize;
use tokio_rustls::rustls;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};

use super::auth::Users;

/// Headers the toolkit lets a user set; anything else could undo what the answers rely on.
const SETTABLE: [&str; 5] = [
    "content-security-policy",
    "strict-transport-security",
    "x-content-type-options",
    "x-frame-options",
    "x-xss-protection",
];

/// How the listener is protected.
#[derive(Clone, Default)]
pub struct WebConfig {
    pub(super) tls: Option<Arc<ServerConfig>>,
    pub(super) users: Option<Arc<Users>>,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

/// Why the file cannot be used. Neither keys nor hashes are ever part of the text.
#[derive(Debug, thiserror::Error)]
pub enum WebConfigError {
    /// A file that cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// Not YAML, or a key or value that is not supported.
    #[error("not a web configuration: {0}")]
    Format(String),
    /// A certificate or key file without usable content.
    #[error("no usable certificate or key in {}", .0.display())]
    Pem(PathBuf),
    /// Certificate and key do not fit, or a setting is missing.
    #[error("tls_server_config: {0}")]
    Tls(String),
    /// A password that is not a bcrypt hash, or a name that basic authentication cannot carry.
    #[error("basic_auth_users: user {0:?} needs a bcrypt hash, and a name without colon")]
    User(String),
    /// A header that may not be set, or a value that is none.
    #[error("http_server_config.headers: {0:?} cannot be set")]
    Header(String),
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    tls_server_config: Option<TlsSection>,
    http_server_config: HttpSection,
    basic_auth_users: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TlsSection {
    cert_file: PathBuf,
    key_file: PathBuf,
    #[serde(default)]
    client_auth_type: ClientAuth,
    client_ca_file: Option<PathBuf>,
    #[serde(default)]
    min_version: TlsVersion,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct HttpSection {
    /// Whether HTTP/2 may be offered. It never is, so both values are honoured; the toolkit's example names the key.
    #[serde(rename = "http2")]
    _http2: bool,
    headers: BTreeMap<String, String>,
}

/// Spelled as in the toolkit. Its two types that ask for a certificate without verifying it protect nothing and are
/// refused.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
enum ClientAuth {
    #[default]
    NoClientCert,
    VerifyClientCertIfGiven,
    RequireAndVerifyClientCert,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
enum TlsVersion {
    #[default]
    #[serde(rename = "TLS12")]
    Tls12,
    #[serde(rename = "TLS13")]
    Tls13,
}

// === impl WebConfig ===

impl WebConfig {
    /// Reads the file and what it names.
    ///
    /// # Errors
    /// The first problem found.
    pub fn read(path: &Path) -> Result<Self, WebConfigError> {
        let bytes = read(path)?;
        let text = String::from_utf8(bytes).map_err(|_| WebConfigError::Format("not UTF-8".to_owned()))?;
        // Relative names are relative to the file, as in the toolkit.
        Self::parse(&text, path.parent().unwrap_or(Path::new("")))
    }

    /// From the file's text; `base` is where the files it names lie.
    ///
    /// # Errors
    /// The first problem found.
    pub fn parse(text: &str, base: &Path) -> Result<Self, WebConfigError> {
        // The parser's message may quote the line, and a line may hold a hash: only its place is told.
        let file: File = if text.trim().is_empty() {
            File::default()
        } else {
            serde_saphyr::from_str(text).map_err(|e| WebConfigError::Format(place(&e)))?
        };
        let tls = file.tls_server_config.map(|section| section.load(base)).transpose()?;
        let users =
            (!file.basic_auth_users.is_empty()).then(|| Users::new(file.basic_auth_users)).transpose();
        let headers = file.http_server_config.headers.into_iter().map(header).collect::<Result<_, _>>()?;
        Ok(Self {
            tls: tls.map(Arc::new),
            users: users.map_err(|e| WebConfigError::User(e.0))?.map(Arc::new),
            headers,
        })
    }

    /// Whether it encrypts or asks for a password: only then it can stand in for the loopback address.
    pub fn protects(&self) -> bool {
        self.tls.is_some() || self.users.is_some()
    }

    /// Whether it asks for user and password.
    pub fn asks_for_users(&self) -> bool {
        self.users.is_some()
    }

    /// Whether TLS is spoken.
    pub fn https(&self) -> bool {
        self.tls.is_some()
    }
}

fn place(error: &serde_saphyr::Error) -> String {
    match error.location() {
        Some(at) => format!("unknown key, wrong value or malformed YAML at line {}", at.line()),
        None => "unknown key, wrong value or malformed YAML".to_owned(),
    }
}

fn header((name, value): (String, String)) -> Result<(HeaderName, HeaderValue), WebConfigError> {
    let known = SETTABLE.into_iter().find(|known| known.eq_ignore_ascii_case(&name));
    let value = HeaderValue::from_str(&value).ok();
    match (known, value) {
        (Some(known), Some(value)) => Ok((HeaderName::from_static(known), value)),
        _ => Err(WebConfigError::Header(name)),
    }
}

// === impl TlsSection ===

impl TlsSection {
    fn load(&self, base: &Path) -> Result<ServerConfig, WebConfigError> {
        let tls = |e: rustls::Error| WebConfigError::Tls(e.to_string());
        let versions: &[&SupportedProtocolVersion] = match self.min_version {
            TlsVersion::Tls12 => rustls::ALL_VERSIONS,
            TlsVersion::Tls13 => &[&rustls::version::TLS13],
        };
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .map_err(tls)?;
        let builder = match self.verifier(base)? {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let key_path = base.join(&self.key_file);
        let key = PrivateKeyDer::from_pem_slice(&read(&key_path)?)
            .map_err(|_| WebConfigError::Pem(key_path.clone()))?;
        let mut config =
            builder.with_single_cert(certificates(&base.join(&self.cert_file))?, key).map_err(tls)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }

    fn verifier(&self, base: &Path) -> Result<Option<Arc<dyn ClientCertVerifier>>, WebConfigError> {
        let error = |text: &str| WebConfigError::Tls(text.to_owned());
        let ca = match (self.client_auth_type, &self.client_ca_file) {
            (ClientAuth::NoClientCert, None) => return Ok(None),
            (ClientAuth::NoClientCert, Some(_)) => {
                return Err(error("client_ca_file needs a client_auth_type that verifies"));
            }
            (_, None) => return Err(error("client_auth_type needs client_ca_file")),
            (_, Some(file)) => base.join(file),
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&ca)? {
            roots.add(certificate).map_err(|_| WebConfigError::Pem(ca.clone()))?;
        }
        let provider = Arc::new(ring::default_provider());
        let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        if self.client_auth_type == ClientAuth::VerifyClientCertIfGiven {
            builder = builder.allow_unauthenticated();
        }
        builder.build().map(Some).map_err(|e| WebConfigError::Tls(e.to_string()))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, WebConfigError> {
    std::fs::read(path).map_err(|error| WebConfigError::Read { path: path.to_owned(), error })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, WebConfigError> {
    let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    list.ok().filter(|l| !l.is_empty()).ok_or_else(|| WebConfigError::Pem(path.to_owned()))
}

impl std::fmt::Debug for WebConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebConfig")
            .field("tls", &self.tls.is_some())
            .field("users", &self.users.is_some())
            .field("headers", &self.headers.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi";

    fn parse(text: &str) -> Result<WebConfig, WebConfigError> {
        WebConfig::parse(text, Path::new("/nowhere"))
    }

    #[test]
    fn an_empty_file_protects_nothing() {
        assert!(!parse("").unwrap().protects());
        assert!(!parse("http_server_config:\n  http2: false\n").unwrap().protects());
        assert!(parse(&format!("basic_auth_users:\n  alice: {HASH}\n")).unwrap().protects());
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        let tls = "tls_server_config:\n  cert_file: a\n  key_file: b\n";
        for text in [
            "basic_auth_user:\n  a: b\n".to_owned(),
            format!("{tls}  cipher_suites: [x]\n"),
            format!("{tls}  client_auth_type: RequireAnyClientCert\n"),
            "rate_limit:\n  burst: 1\n".to_owned(),
            "basic_auth_users: [a\n".to_owned(),
        ] {
            assert!(matches!(parse(&text), Err(WebConfigError::Format(_))), "{text}");
        }
        assert!(matches!(parse("basic_auth_users:\n  a: plain\n"), Err(WebConfigError::User(_))));
        let colon = format!("basic_auth_users:\n  'a:b': {HASH}\n");
        assert!(matches!(parse(&colon), Err(WebConfigError::User(_))));
        let cors = "http_server_config:\n  headers:\n    Access-Control-Allow-Origin: '*'\n";
        assert!(matches!(parse(cors), Err(WebConfigError::Header(_))));
    }

    #[test]
    fn half_a_client_check_is_refused() {
        let tls = "tls_server_config:\n  cert_file: a\n  key_file: b\n";
        let without_ca = format!("{tls}  client_auth_type: RequireAndVerifyClientCert\n");
        assert!(matches!(parse(&without_ca), Err(WebConfigError::Tls(_))));
        let without_type = format!("{tls}  client_ca_file: ca.pem\n");
        assert!(matches!(parse(&without_type), Err(WebConfigError::Tls(_))));
        assert!(matches!(parse(tls), Err(WebConfigError::Read { .. })));
    }

    #[test]
    fn errors_do_not_show_secrets() {
        let error = parse(&format!("basic_auth_users:\n  alice: [{HASH}]\n")).unwrap_err();
        assert!(!error.to_string().contains("QOauh"), "{error}");
    }
}
