//! Certificates: whom to believe, and one's own, over both protocols. TLS ends before the collector, as with a proxy.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use agent_session_exporter::otlp::Protocol;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::collector::Collector;
use crate::common::disk::Disk;
use crate::stand::{BOTH, Exporter, encoded, env, spans, until};

/// Puts TLS in front of an address and asks for certificates of this authority.
fn proxy(to: SocketAddr, ca: &CertifiedIssuer<'_, KeyPair>) -> (SocketAddr, tokio::runtime::Runtime) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap().signed_by(&key, ca).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(ca.der().clone()).unwrap();
    let provider = Arc::new(ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut inside) = acceptor.accept(socket).await else { return };
                let Ok(mut outside) = tokio::net::TcpStream::connect(to).await else { return };
                let _ = tokio::io::copy_bidirectional(&mut inside, &mut outside).await;
            });
        }
    });
    (address, runtime)
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Writes what a client needs.
fn client(folder: &Path, ca: &CertifiedIssuer<'_, KeyPair>) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["client".to_owned()]).unwrap().signed_by(&key, ca).unwrap();
    fs::write(folder.join("ca.pem"), ca.pem()).unwrap();
    fs::write(folder.join("client.pem"), certificate.pem()).unwrap();
    fs::write(folder.join("client.key"), key.serialize_pem()).unwrap();
}

fn start(address: SocketAddr, protocol: Protocol, files: &[(&str, &Path)]) -> Exporter {
    let mut env = env(address, protocol);
    let endpoint = format!("https://localhost:{}", address.port());
    env.insert("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), endpoint);
    for (name, path) in files {
        env.insert(format!("OTEL_EXPORTER_OTLP_{name}"), path.display().to_string());
    }
    Exporter::start(&Disk::default(), &env)
}

#[test]
fn both_sides_show_their_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let ca = authority();
    client(folder.path(), &ca);
    let file = |name: &str| folder.path().join(name);
    let (root, certificate, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
    for protocol in BOTH {
        let collector = Collector::start();
        let (address, runtime) = proxy(collector.address, &ca);
        let files = [
            ("CERTIFICATE", root.as_path()),
            ("CLIENT_CERTIFICATE", certificate.as_path()),
            ("CLIENT_KEY", key.as_path()),
        ];
        let exporter = start(address, protocol, &files);
        exporter.put(spans(0..250));
        exporter.until_empty();
        assert_eq!(collector.memory.spans(), encoded(0..250), "{protocol:?}");
        exporter.end();
        runtime.shutdown_background();
    }
}

#[test]
fn without_the_right_certificates_everything_waits() {
    let folder = tempfile::tempdir().unwrap();
    let (ca, other) = (authority(), authority());
    client(folder.path(), &ca);
    let strange = folder.path().join("other.pem");
    fs::write(&strange, other.pem()).unwrap();
    let root = folder.path().join("ca.pem");
    for protocol in BOTH {
        for (what, file) in [("a stranger's", &strange), ("no certificate of one's own", &root)] {
            let collector = Collector::start();
            let (address, runtime) = proxy(collector.address, &ca);
            let exporter = start(address, protocol, &[("CERTIFICATE", file)]);
            exporter.put(spans(0..10));
            std::thread::sleep(std::time::Duration::from_millis(300));
            until("it still waits", || exporter.waiting() == 10);
            assert_eq!(collector.memory.requests().len(), 0, "{what} over {protocol:?}");
            exporter.end();
            runtime.shutdown_background();
        }
    }
}

#[test]
fn files_that_are_none_are_said_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    fs::write(&file, "no certificate").unwrap();
    for protocol in BOTH {
        let mut env = env("127.0.0.1:1".parse().unwrap(), protocol);
        env.insert("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), "https://localhost:1".to_owned());
        env.insert("OTEL_EXPORTER_OTLP_CERTIFICATE".to_owned(), file.display().to_string());
        let settings = agent_session_exporter::otlp::Settings::read(&env, None).unwrap();
        let clock = agent_session_exporter::clock::Clock::system();
        let made = agent_session_exporter::otlp::Transport::new(settings.traces.as_ref().unwrap(), clock);
        let said = made.unwrap_err().to_string();
        assert!(said.contains("ca.pem"), "{said}");
    }
}
