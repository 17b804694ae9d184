//! Requests that are no webhooks, or come from where none should.

use crate::bus::{Bus, Desktop, USUAL};
use crate::{Receiver, common, recording};

#[test]
fn what_is_no_webhook_is_refused_with_its_reason() {
    let bus = Bus::start();
    let desktop = Desktop::start(&bus, USUAL);
    let receiver = Receiver::start(&bus, &[]);
    let waits = recording("waits");
    let ask = |method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]| {
        let answer = common::request(&receiver.address, method, path, headers, body).unwrap();
        (answer.status, answer.json()["reason"].as_str().unwrap().to_owned())
    };
    let is = |status: u16, reason: &str| (status, reason.to_owned());
    assert_eq!(ask("GET", "/", &[], b""), is(405, "method_not_allowed"));
    assert_eq!(ask("PUT", "/", &[], &waits), is(405, "method_not_allowed"));
    assert_eq!(ask("POST", "/api/v1/events", &[], &waits), is(404, "no_such_route"));
    assert_eq!(ask("POST", "/", &[], b""), is(400, "bad_body"));
    assert_eq!(ask("POST", "/", &[], b"\xff\xfe\x00"), is(400, "bad_body"));
    assert_eq!(ask("POST", "/", &[], &waits[..waits.len() - 2]), is(400, "bad_body"));
    assert_eq!(ask("POST", "/", &[], &[b'['; 500_000]), is(400, "bad_body"));
    assert_eq!(ask("POST", "/", &[], &vec![b' '; (1 << 20) + 1]), is(413, "body"));
    // Pages in a browser of this machine.
    assert_eq!(ask("POST", "/", &[("host", "evil.example")], &waits), is(403, "host_not_allowed"));
    assert_eq!(ask("POST", "/", &[("origin", "https://evil.example")], &waits), is(403, "cross_origin"));
    assert_eq!(ask("POST", "/", &[("sec-fetch-site", "cross-site")], &waits), is(403, "cross_origin"));
    assert_eq!(desktop.asked().len(), 0);
    assert_eq!(receiver.take(&waits), [1, 0, 0, 0], "it goes on");
}

#[test]
fn other_machines_are_not_served() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = crate::command(&folder, "unix:path=/nonexistent");
    let out = command.args(["--notify.listen-address", "0.0.0.0:0"]).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("other machines can reach 0.0.0.0:0"));
}

#[test]
fn an_address_in_use_is_told() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = crate::command(&folder, "unix:path=/nonexistent");
    let out = command.args(["--notify.listen-address", &address]).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains(&format!("cannot listen on {address}")));
}
