//! Who may ask, and who may read the files.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::common::{self, Ending, Exporter, command, request};
use crate::event;

/// Every route there is, push included.
const ROUTES: [(&str, &str); 13] = [
    ("GET", "/"),
    ("GET", "/metrics"),
    ("GET", "/-/healthy"),
    ("GET", "/-/ready"),
    ("GET", "/api/v1/sessions"),
    ("GET", "/api/v1/sessions/mine/s/status"),
    ("GET", "/api/v1/sessions/mine/s/explain"),
    ("GET", "/api/sessions/s/status"),
    ("GET", "/api/v1/openapi.json"),
    ("GET", "/api/v1/schema/event.json"),
    ("GET", "/api/v1/schema/status.json"),
    ("POST", "/api/v1/events"),
    ("GET", "/nothing/here"),
];

#[test]
fn rebinding_is_refused_on_every_route_and_pushes_from_other_origins() {
    let folder = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(folder.path(), &folder.path().join("state"), &[]).ready();
    exporter.push(&event("1", "s", "activity", r#"{"class":"work"}"#)).unwrap();
    let line = event("2", "s", "activity", r#"{"class":"work"}"#);
    let json = ("content-type", "application/json");
    let rebound = format!("evil.example:{}", exporter.address.rsplit_once(':').unwrap().1);
    for (method, path) in ROUTES {
        let body: &[u8] = if method == "POST" { line.as_bytes() } else { b"" };
        let ask = |headers: &[(&str, &str)]| {
            request(&exporter.address, method, path, &[&[json], headers].concat(), body).unwrap()
        };
        for host in ["evil.example", rebound.as_str(), "127.0.0.1.evil.example"] {
            let answer = ask(&[("host", host)]);
            assert_eq!(answer.status, 403, "{method} {path} {host}: {}", answer.text());
        }
        for origin in ["https://evil.example", "null", "http://127.0.0.1:1"] {
            let answer = ask(&[("origin", origin)]);
            // What only reads is answered: without a permission in the answer the page does not see it.
            assert_eq!(answer.status == 403, method == "POST", "{method} {path} {origin}: {}", answer.text());
            assert!(!answer.headers.iter().any(|(name, _)| name.starts_with("access-control")));
        }
    }
    let cross_site = [("content-type", "text/plain"), ("sec-fetch-site", "cross-site")];
    let answer = request(&exporter.address, "POST", "/api/v1/events", &cross_site, line.as_bytes()).unwrap();
    assert_eq!(answer.status, 403);
    // Nothing of all this was taken: the event is still new.
    assert_eq!(exporter.push(&line).unwrap().json()["accepted"], 1);
}

#[test]
fn other_machines_are_served_only_when_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:9"] {
        let output = command(folder.path(), &state).args(["--web.listen-address", address]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{address}: {said}");
        assert!(said.contains("--web.allow-remote") && said.contains(address), "{said}");
    }
    assert!(!state.exists(), "refused before anything is written");
    let port = common::free_port();
    let everywhere = format!("0.0.0.0:{port}");
    let child = Ending(
        command(folder.path(), &state)
            .args(["--web.allow-remote", "--web.listen-address", &everywhere])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap(),
    );
    let address = format!("127.0.0.1:{port}");
    common::wait_until("it serves all addresses", || {
        request(&address, "GET", "/-/healthy", &[], b"").is_some_and(|a| a.status == 200)
    });
    drop(child);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a shell sets the umask")]
fn state_is_for_nobody_else_whatever_the_umask() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let status = std::process::Command::new("sh")
        .args([
            "-c",
            "umask 000; exec \"$0\" \"$@\" once",
            env!("CARGO_BIN_EXE_agent-session-exporter"),
            "--home",
        ])
        .arg(folder.path())
        .arg("--state-dir")
        .arg(&state)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&state), 0o700);
    let files: Vec<_> = fs::read_dir(&state).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(files.len() >= 2, "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}
