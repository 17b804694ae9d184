//! `--web.config.file` on the binary: TLS and users, and that it stands for the flag that opens other addresses.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::Arc;

use base64::Engine as _;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, Stream};

use crate::common::{Ending, command, free_port, wait_until};

fn ask(port: u16, roots: &RootCertStore, path: &str, user: &str) -> Option<String> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots.clone())
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut socket = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let mut stream = Stream::new(&mut connection, &mut socket);
    let user = base64::engine::general_purpose::STANDARD.encode(user);
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost:{port}\r\nauthorization: Basic {user}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = Vec::new();
    // Some peers close without a word; what was read counts.
    let _ = stream.read_to_end(&mut answer);
    Some(String::from_utf8_lossy(&answer).into_owned())
}

#[test]
fn tls_and_users_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(folder.path().join("cert.pem"), made.cert.pem()).unwrap();
    fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let hash = bcrypt::hash("secret", 4).unwrap();
    let file = folder.path().join("web.yml");
    let text = format!(
        "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\nbasic_auth_users:\n  alice: {hash}\n"
    );
    fs::write(&file, text).unwrap();
    let port = free_port();
    let state = folder.path().join("state");
    let child = Ending(
        command(folder.path(), &state)
            .args(["--web.listen-address", &format!("0.0.0.0:{port}"), "--web.config.file"])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    wait_until("it answers over TLS", || {
        ask(port, &roots, "/-/ready", "alice:secret").is_some_and(|a| a.starts_with("HTTP/1.1 200 "))
    });
    let metrics = ask(port, &roots, "/metrics", "alice:secret").unwrap();
    assert!(metrics.contains("agent_session_exporter_build_info"), "{metrics}");
    let stranger = ask(port, &roots, "/metrics", "alice:wrong").unwrap();
    assert!(stranger.starts_with("HTTP/1.1 401 ") && !stranger.contains("build_info"), "{stranger}");
    drop(child);

    fs::write(&file, "tls_server_config:\n  cert_file: gone.pem\n  key_file: key.pem\n").unwrap();
    let refused = command(folder.path(), &state)
        .args(["--web.listen-address", &format!("127.0.0.1:{port}"), "--web.config.file"])
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("gone.pem"), "{said}");
}
