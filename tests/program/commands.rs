//! The commands and flags as typed, and the README's first steps.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::json;

use crate::common::{self, Ending, Exporter, command, free_port, request, wait_until};
use crate::exposition::{self, Dialect};
use crate::{as_if_now, event, families, push};

fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn one_line_pushed_is_one_session_shown() {
    let folder = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(folder.path(), &folder.path().join("state"), &[]).ready();
    // The request of the README, as curl sends it.
    let body = r#"{
      "schemaVersion": "1", "id": "1", "source": "my_agent", "sessionId": "first", "projectId": "shop",
      "type": "user.action_required", "data": {"actionId": "a1", "kind": "question"}}"#;
    let headers = [("content-type", "application/json"), ("accept", "*/*"), ("user-agent", "curl/8")];
    let post = || request(&exporter.address, "POST", "/api/v1/events", &headers, body.as_bytes()).unwrap();
    let answer = post();
    assert_eq!(answer.status, 202, "{}", answer.text());
    assert_eq!(answer.json(), json!({"accepted": 1, "duplicate": 0, "rejected": []}));
    assert_eq!(post().json(), json!({"accepted": 0, "duplicate": 1, "rejected": []}));
    let waiting =
        r#"agent_session_state{source="my_agent",project="shop",session="first",state="waiting_for_user"}"#;
    wait_until("the session shows", || exporter.sample(waiting) == Some(1.0));
    let status = exporter.get("/api/v1/sessions/my_agent/first/status").json();
    assert_eq!((&status["state"], &status["stateReason"]), (&json!("waiting_for_user"), &json!("question")));
    assert_eq!(status["waitingForUser"], json!(true));
    assert_eq!(exporter.get("/api/sessions/first/status").json(), status);
    assert!(exporter.get("/").text().contains("first"));
}

#[test]
fn once_writes_a_file_whatever_it_saw() {
    let folder = tempfile::tempdir().unwrap();
    let sessions = folder.path().join(".codex/sessions/2026/11/29");
    fs::create_dir_all(&sessions).unwrap();
    for (n, name) in ["err_401", "kill9_in_command", "edit_ok"].iter().enumerate() {
        let id = format!("{n:08x}-d360-7271-9b03-36dcd1251d99");
        let path = sessions.join(format!("rollout-2026-11-29T15-00-00-{id}.jsonl"));
        fs::write(path, as_if_now(name, &id).concat()).unwrap();
    }
    let file = folder.path().join("agents.prom");
    fs::write(&file, "old").unwrap();
    let state = folder.path().join("state");
    let (code, out, said) = run(command(folder.path(), &state).args(["once", "--output"]).arg(&file));
    assert_eq!((code, out.as_str()), (Some(0), ""), "{said}");
    let written = fs::read(&file).unwrap();
    let shown = exposition::parse(&written, Dialect::Text).unwrap();
    let states = shown.iter().find(|f| f.name == "agent_sessions").unwrap();
    assert_eq!(states.value(&[("source", "codex"), ("state", "failed")]), Some(1.0));
    assert_eq!(states.value(&[("source", "codex"), ("state", "completed")]), Some(1.0));
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".tmp")), "{left:?}");

    // Beside a running exporter it does not touch the state, and still answers.
    let _exporter = Exporter::start(folder.path(), &state, &[]).ready();
    let (code, out, _) = run(command(folder.path(), &state).arg("once"));
    assert_eq!(code, Some(0));
    assert!(
        exposition::parse(out.as_bytes(), Dialect::Text).unwrap().iter().any(|f| f.name == "agent_sessions")
    );
    let (code, _, said) =
        run(command(folder.path(), &state).args(["once", "--output", "/nonexistent/x.prom"]));
    assert_eq!(code, Some(1));
    assert!(said.contains("/nonexistent/x.prom"), "{said}");
}

#[test]
fn check_tells_what_was_found() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let (code, out, said) = run(command(folder.path(), &state).arg("check"));
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert!(out.contains("configuration: ok") && out.contains(".codex (nothing there yet)"), "{out}");
    fs::create_dir_all(folder.path().join(".codex")).unwrap();
    let (_, out, _) = run(command(folder.path(), &state).arg("check"));
    assert!(out.contains(".codex (found)") && out.contains("codex: sees"), "{out}");
    assert!(!state.exists(), "looking leaves nothing behind");
}

#[test]
fn every_mistake_in_the_configuration_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    fs::write(
        &file,
        "serie = \"full\"\nmax_sessions = \"many\"\n[web]\nlisten_adress = [\"127.0.0.1:1\"]\n[sources.codx]\nenabled = true\n",
    )
    .unwrap();
    let mut serve = command(folder.path(), &folder.path().join("state"));
    let (code, out, said) = run(serve.arg("--config.file").arg(&file).args(["--series", "ful"]));
    assert_eq!((code, out.as_str()), (Some(2), ""), "{said}");
    for told in ["serie", "series", "max_sessions", "listen_adress", "listen_address", "codx", "codex", "ful"]
    {
        assert!(said.contains(told), "{told}: {said}");
    }
    assert!(said.matches("did you mean").count() >= 3, "{said}");
}

#[test]
fn the_demo_shows_every_state_within_a_minute() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let address = format!("127.0.0.1:{}", free_port());
    let child = Ending(
        command(folder.path(), &state)
            .args(["demo", "--web.listen-address", &address])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let mut seen = BTreeSet::new();
    wait_until("all ten states", || {
        if let Some(answer) = request(&address, "GET", "/api/v1/sessions?limit=1000", &[], b"") {
            let sessions = answer.json()["sessions"].as_array().cloned().unwrap_or_default();
            seen.extend(sessions.iter().filter_map(|s| s["state"].as_str().map(str::to_owned)));
        }
        seen.len() == 10
    });
    let metrics = request(&address, "GET", "/metrics", &[], b"").unwrap();
    exposition::parse(&metrics.body, Dialect::Text).unwrap();
    drop(child);
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "the demo writes nothing: {left:?}");
}

#[test]
fn events_come_by_standard_input_too() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let mut child = Ending(
        command(folder.path(), &folder.path().join("state"))
            .args(["--stdin", "--web.listen-address", &address])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let mut input = child.0.stdin.take().unwrap();
    writeln!(input, "{}\nnot json\n", event("1", "piped", "turn.started", r#"{"trigger":"person"}"#))
        .unwrap();
    let state = || {
        let answer = request(&address, "GET", "/api/v1/sessions/mine/piped/status", &[], b"")?;
        answer.json()["state"].as_str().map(str::to_owned)
    };
    wait_until("the session shows", || state().as_deref() == Some("running"));
    // The end of the input is not the end of the program.
    drop(input);
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(state().as_deref(), Some("running"));
    drop(child);
}

#[test]
fn series_modes_decide_which_sessions_have_series() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let waiting = event("2", "waits", "user.action_required", r#"{"actionId":"a","kind":"question"}"#);
    let running = event("1", "runs", "turn.started", r#"{"trigger":"person"}"#);
    for (mode, expected) in [("full", vec!["runs", "waits"]), ("attention", vec!["waits"]), ("off", vec![])] {
        let exporter = Exporter::start(folder.path(), &state, &["--series", mode]).ready();
        push(&exporter, &format!("{running}\n{waiting}"));
        let [text, _] = families(&exporter);
        let samples = text.iter().flat_map(|f| &f.samples).filter(|s| s.labels.contains_key("session"));
        let shown: BTreeSet<&str> = samples.map(|s| s.label("session")).collect();
        assert_eq!(shown.into_iter().collect::<Vec<_>>(), expected, "{mode}");
        let total: f64 =
            text.iter().find(|f| f.name == "agent_sessions").unwrap().samples.iter().map(|s| s.value).sum();
        assert_eq!(total, 2.0, "{mode}");
        let told = format!("agent_session_exporter_series_mode{{mode=\"{mode}\"}}");
        assert_eq!(common::sample(&exporter.metrics(), &told), Some(1.0));
        let (_, ended_well) = exporter.terminate();
        assert!(ended_well);
    }
}

#[test]
fn logs_are_plain_where_nobody_watches() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let stderr = Stdio::from(fs::File::create(&log).unwrap());
    let exporter = Exporter::start_logging(folder.path(), &folder.path().join("state"), &[], stderr).ready();
    exporter.terminate();
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("stopping") && !text.contains('\u{1b}'), "{text:?}");
}
