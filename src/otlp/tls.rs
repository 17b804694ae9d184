//! TLS towards a collector: the system's certificates or only those of a file, with a certificate of one's own where the
//! collector asks for one. One form for both protocols.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

/// The files that say whom to believe and who we are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// Certificates to believe instead of the system's.
    pub ca: Option<PathBuf>,
    /// Our own certificate.
    pub certificate: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds something else.
    #[error("{0} cannot be read as PEM")]
    File(PathBuf),
    /// The certificates do not fit each other, or the system has none.
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
}

/// The TLS of a client that speaks these protocols.
pub(super) fn config(files: &Files, alpn: &[&str]) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match &files.ca {
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate)?;
            }
            builder.with_root_certificates(roots)
        }
        None => {
            let verifier = rustls_platform_verifier::Verifier::new(provider)?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
    };
    let mut config = match (&files.certificate, &files.key) {
        (Some(certificate), Some(key)) => {
            let read = PrivateKeyDer::from_pem_file(key).map_err(|_| TlsError::File(key.clone()))?;
            builder.with_client_auth_cert(certificates(certificate)?, read)?
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(config)
}

/// A TLS that believes nobody, for servers without it.
pub(super) fn none() -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let file = || TlsError::File(path.to_owned());
    let list: Vec<_> = CertificateDer::pem_file_iter(path)
        .map_err(|_| file())?
        .collect::<Result<_, _>>()
        .map_err(|_| file())?;
    if list.is_empty() { Err(file()) } else { Ok(list) }
}

/// Whether an error is one of TLS. They hide inside the errors of reading and writing.
pub(super) fn is_cause(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        if cause.is::<rustls::Error>() {
            return true;
        }
        let inner = cause.downcast_ref::<std::io::Error>().and_then(|e| e.get_ref());
        if inner.is_some_and(|inner| is_cause(inner)) {
            return true;
        }
        next = cause.source();
    }
    false
}
