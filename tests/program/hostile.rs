//! Names from outside are data: a scrape stays valid whatever they are.

use std::collections::BTreeSet;

use serde_json::json;

use crate::common::{Exporter, now_ms, request, wait_until};
use crate::families;

fn nasty() -> Vec<String> {
    let mut names: Vec<String> = [
        "quote\"quote",
        "back\\slash",
        "new\nline",
        "carriage\rreturn",
        "end\\",
        "\"",
        "\\\"",
        "\\n",
        "brace}{=,",
        "# HELP x y",
        "nul\u{0}",
        "bell\u{7}",
        "line\u{2028}separator",
        "\u{202e}turned",
        "\u{feff}bom",
        "\u{1f600}",
        "é",
        "e\u{301}",
        " ",
        "../../etc/passwd",
        "%2e%2e%2f",
        "<script>alert(1)</script>",
        "# EOF",
    ]
    .map(str::to_owned)
    .to_vec();
    names.push("long".repeat(2_500));
    names.push("\u{1f600}".repeat(2_500));
    names.push("\"\\\n".repeat(3_000));
    names
}

#[test]
fn no_name_breaks_a_scrape() {
    let folder = tempfile::tempdir().unwrap();
    let exporter =
        Exporter::start(folder.path(), &folder.path().join("state"), &["--max-sessions", "5000"]).ready();
    let mut lines = Vec::new();
    let mut item = |n: usize, session: &str, project: &str, kind: &str, data: serde_json::Value| {
        let event = json!({"id": format!("{n}-{kind}"), "time": now_ms(), "source": "mine", "sessionId": session,
            "projectId": project, "type": kind, "data": data});
        lines.extend(event.to_string().into_bytes());
        lines.push(b'\n');
    };
    for (n, name) in nasty().iter().enumerate() {
        for (n, session, project) in [
            (n, name.as_str(), "shop"),
            (n + 100, "plain", name.as_str()),
            (n + 200, name.as_str(), name.as_str()),
        ] {
            let session = if session == "plain" { format!("plain{n}") } else { session.to_owned() };
            let session = session.as_str();
            item(
                n,
                session,
                project,
                "session.started",
                json!({"agent": name, "agentVersion": name, "model": name, "provider": name, "mode": name, "url": name}),
            );
            item(n, session, project, "turn.started", json!({"trigger": "person"}));
            item(
                n,
                session,
                project,
                "workflow.step.started",
                json!({"stepId": name, "kind": "build", "name": name}),
            );
            item(n, session, project, "tool.started", json!({"callId": name, "tool": name}));
            item(n, session, project, "tool.ended", json!({"callId": name, "tool": name, "outcome": "ok"}));
            item(n, session, project, "native_stuck", json!({"detector": name, "layer": name}));
            item(n, session, project, "usage", json!({"model": name, "provider": name, "input": 1}));
            item(
                n,
                session,
                project,
                "user.action_required",
                json!({"actionId": name, "kind": "question", "tool": name}),
            );
        }
    }
    // Bytes that are no text, and half a surrogate, each as a line of its own.
    for bytes in [&b"\xff\xfe"[..], b"caf\xe9", b"\xc3", b"\\ud800", b"\xed\xa0\x80"] {
        lines.extend_from_slice(b"{\"source\":\"mine\",\"sessionId\":\"");
        lines.extend_from_slice(bytes);
        lines.extend_from_slice(b"\",\"projectId\":\"");
        lines.extend_from_slice(bytes);
        lines.extend_from_slice(b"\",\"type\":\"activity\",\"data\":{}}\n");
    }
    let headers = [("content-type", "application/x-ndjson")];
    let answer = request(&exporter.address, "POST", "/api/v1/events", &headers, &lines).unwrap();
    assert_eq!(answer.status, 202, "{}", answer.text());
    let rejected = answer.json()["rejected"].as_array().unwrap().len();
    let accepted = answer.json()["accepted"].as_u64().unwrap();
    assert!(rejected >= 5 && accepted > 200, "{}", answer.text());

    wait_until("the sessions show", || exporter.sessions().len() > 50);
    // The parser refuses invalid escapes and any label set that appears twice.
    let [text, open] = families(&exporter);
    assert_eq!(text.len(), open.len());
    let labels = |name: &str| -> BTreeSet<String> {
        let samples = text.iter().flat_map(|f| &f.samples).filter(|s| s.labels.contains_key(name));
        samples.map(|s| s.label(name).to_owned()).collect()
    };
    assert!(labels("session").contains("quote\"quote") && labels("session").contains("back\\slash"));
    for label in ["session", "project", "tool", "model", "step", "agent"] {
        let longest = labels(label).iter().map(String::len).max().unwrap_or(0);
        assert!(longest <= 256, "{label}: {longest} bytes");
    }
    let page = exporter.get("/").text();
    assert!(!page.contains("<script>alert"), "the landing page escapes names");
    for session in exporter.sessions() {
        let id = session["sessionId"].as_str().unwrap();
        let encoded: String = id.bytes().map(|b| format!("%{b:02x}")).collect();
        let status = exporter.get(&format!("/api/v1/sessions/mine/{encoded}/status"));
        assert_eq!(status.status, 200, "{id:?}: {}", status.text());
        assert_eq!(status.json()["sessionId"], session["sessionId"]);
    }
}
