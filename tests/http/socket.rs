//! Once on a real socket: TLS, passwords, headers, and an end that is an end.

use std::sync::Arc;
use std::time::Duration;

use agent_session_exporter::views::serve::{Error, bind, serve};
use agent_session_exporter::views::webconfig::WebConfig;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::make::{site, snapshot};

async fn talk(
    mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin,
    headers: &str,
) -> std::io::Result<String> {
    let request = format!("GET /-/healthy HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8(answer).unwrap())
}

fn basic(pair: &str) -> String {
    format!("Authorization: Basic {}\r\n", STANDARD.encode(pair))
}

struct Served {
    port: u16,
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<Result<(), Error>>,
}

async fn start(web: WebConfig) -> Served {
    let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(serve(listener, site(snapshot(Vec::new())).router, web, stopped));
    Served { port, stop, task }
}

#[tokio::test]
async fn tls_and_passwords() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(dir.path().join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(dir.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let file = dir.path().join("web.yml");
    let hash = bcrypt::hash("secret", 4).unwrap();
    let text = format!(
        "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n  min_version: TLS13\n\
         http_server_config:\n  headers:\n    X-Frame-Options: deny\n\
         basic_auth_users:\n  alice: {hash}\n"
    );
    std::fs::write(&file, text).unwrap();
    let web = WebConfig::read(&file).unwrap();
    assert!(web.https() && web.protects());
    let served = start(web).await;

    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let connect = async |client: ClientConfig| {
        let stream = TcpStream::connect(("127.0.0.1", served.port)).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(client)).connect(name, stream).await.unwrap()
    };
    let client = || {
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots.clone())
            .with_no_client_auth()
    };
    // A client that never says a word holds up nobody.
    let _silent = TcpStream::connect(("127.0.0.1", served.port)).await.unwrap();
    for (headers, expected) in [
        (String::new(), "401"),
        (basic("alice:wrong"), "401"),
        (basic("bob:secret"), "401"),
        (basic("alice:secret"), "200"),
        (basic("alice:secret"), "200"),
    ] {
        let answer = talk(connect(client()).await, &headers).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected} ")), "{answer}");
        let lower = answer.to_ascii_lowercase();
        assert!(lower.contains("x-frame-options: deny\r\n"), "{answer}");
        assert_eq!(lower.contains("www-authenticate: basic realm="), expected == "401");
        assert_eq!(lower.contains("\"reason\":\"unauthorized\""), expected == "401");
    }
    let plain = TcpStream::connect(("127.0.0.1", served.port)).await.unwrap();
    let answer = talk(plain, &basic("alice:secret")).await.unwrap_or_default();
    assert!(!answer.contains("200"), "{answer}");

    served.stop.send(true).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(5), served.task).await;
    ended.expect("the stop is heard").unwrap().unwrap();
}

#[tokio::test]
async fn client_certificates_are_verified() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(dir.path().join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(dir.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let text = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n  \
                client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: cert.pem\n";
    let served = start(WebConfig::parse(text, dir.path()).unwrap()).await;
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let builder = || {
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots.clone())
    };
    let ask = async |client: ClientConfig| {
        let stream = TcpStream::connect(("127.0.0.1", served.port)).await?;
        let name = ServerName::try_from("localhost").unwrap();
        talk(TlsConnector::from(Arc::new(client)).connect(name, stream).await?, "").await
    };
    assert!(ask(builder().with_no_client_auth()).await.is_err());
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let chain: Vec<CertificateDer<'static>> = vec![made.cert.der().clone()];
    let answer = ask(builder().with_client_auth_cert(chain, key).unwrap()).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn an_idle_connection_does_not_hold_up_the_end() {
    let served = start(WebConfig::default()).await;
    let mut idle = TcpStream::connect(("127.0.0.1", served.port)).await.unwrap();
    idle.write_all(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    served.stop.send(true).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(4), served.task).await;
    ended.expect("the stop is heard").unwrap().unwrap();
}

#[tokio::test]
async fn a_taken_address_is_an_error_that_names_it() {
    let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let error = bind(address).await.unwrap_err();
    assert!(matches!(error, Error::Bind { .. }) && error.to_string().contains(&address.to_string()));
}
