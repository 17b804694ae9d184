//! The program itself: what it says of its settings, and that a collector that is not there holds up nothing.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::collector::nobody;
use crate::stand::until;

#[expect(clippy::disallowed_methods, reason = "tests run the program")]
fn program(home: &std::path::Path, env: &[(&str, String)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_agent-session-exporter"));
    command.env_clear().env("HOME", home).envs(env.iter().map(|(name, value)| (name, value)));
    command
}

fn check(env: &[(&str, String)]) -> Output {
    let home = tempfile::tempdir().unwrap();
    program(home.path(), env).arg("check").output().unwrap()
}

fn answers(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut socket = std::net::TcpStream::connect(address)?;
        socket.write_all(format!("GET /-/healthy HTTP/1.0\r\nhost: {address}\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains(" 200 "))
}

#[test]
fn check_says_where_it_would_send() {
    let said = |env: &[(&str, String)]| String::from_utf8(check(env).stdout).unwrap();
    assert!(said(&[]).contains("otlp: nothing is sent\n"));
    let some = said(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318".to_owned()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cret".to_owned()),
        ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "grpc".to_owned()),
        ("OTEL_METRICS_EXPORTER", "none".to_owned()),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd".to_owned()),
    ]);
    assert!(some.contains("otlp: traces to http://127.0.0.1:4318/v1/traces (http/protobuf)\n"), "{some}");
    assert!(some.contains("otlp: logs to http://127.0.0.1:4318/ (grpc)\n"), "{some}");
    assert!(!some.contains("otlp: metrics") && !some.contains("s3cret"), "{some}");
    assert!(some.contains("OTEL_EXPORTER_OTLP_COMPRESSION is none of gzip, none and is ignored"), "{some}");
}

#[test]
fn a_wrong_variable_ends_the_start_with_code_2_and_its_name() {
    let output = check(&[("OTEL_EXPORTER_OTLP_TIMEOUT", "soon".to_owned())]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("OTEL_EXPORTER_OTLP_TIMEOUT: expected a number of milliseconds"), "{said}");
}

#[test]
fn a_collector_that_is_not_there_holds_up_nothing() {
    let home = tempfile::tempdir().unwrap();
    let (listen, collector): (SocketAddr, SocketAddr) = (nobody(), nobody());
    let env = [("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{collector}"))];
    let mut child = program(home.path(), &env)
        .args(["--web.listen-address", &listen.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("it serves", || answers(listen));
    // Signals are waited for a moment after the first answer can come.
    std::thread::sleep(Duration::from_millis(300));
    let started = Instant::now();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let ended = child.wait().unwrap();
    assert!(ended.success(), "{ended:?}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}
