//! Start, readiness, shutdown, a second exporter, a full disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{self, Exporter, command, fixture, wait_until};
use crate::event;

#[test]
fn ready_only_after_the_first_scan_but_metrics_always() {
    let folder = tempfile::tempdir().unwrap();
    let sessions = folder.path().join(".codex/sessions/2026/11/29");
    fs::create_dir_all(&sessions).unwrap();
    let text = String::from_utf8(fixture("codex/edit_ok.rollout.jsonl")).unwrap();
    for n in 0..600 {
        let id = format!("{n:08x}-d360-7271-9b03-36dcd1251d99");
        let name = format!("rollout-2026-11-29T15-00-00-{id}.jsonl");
        fs::write(sessions.join(name), text.replace("01a227dd-d360-7271-9b03-36dcd1251d99", &id)).unwrap();
    }
    let exporter = Exporter::start(folder.path(), &folder.path().join("state"), &[]);
    let early = exporter.get("/-/ready");
    assert_eq!(early.status, 503, "{}", early.text());
    assert!(exporter.metrics().contains("agent_session_exporter_build_info"));
    let exporter = exporter.ready();
    assert_eq!(exporter.sessions().len(), 600);
}

#[test]
fn sigterm_keeps_what_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let exporter = Exporter::start(folder.path(), &state, &[]).ready();
    let address = exporter.address.clone();
    let pushers: Vec<_> = (0..4)
        .map(|thread| {
            let address = address.clone();
            std::thread::spawn(move || {
                let mut acknowledged = Vec::new();
                for n in 0.. {
                    let session = format!("s{thread}-{n}");
                    let line = event("1", &session, "turn.started", r#"{"trigger":"person"}"#);
                    let headers = [("content-type", "application/json")];
                    match common::request(&address, "POST", "/api/v1/events", &headers, line.as_bytes()) {
                        Some(answer) if answer.status == 202 => acknowledged.push(session),
                        _ => break,
                    }
                }
                acknowledged
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(400));
    let (took, ended_well) = exporter.terminate();
    assert!(ended_well && took < Duration::from_secs(5), "ended after {took:?}, well: {ended_well}");
    let acknowledged: Vec<String> = pushers.into_iter().flat_map(|p| p.join().unwrap()).collect();
    assert!(acknowledged.len() > 20, "{} pushes", acknowledged.len());
    let exporter = Exporter::start(folder.path(), &state, &[]).ready();
    let known: Vec<String> =
        exporter.sessions().iter().map(|s| s["sessionId"].as_str().unwrap().to_owned()).collect();
    let lost: Vec<_> = acknowledged.iter().filter(|s| !known.contains(s)).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
}

#[test]
fn a_second_exporter_on_one_state_folder_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let exporter = Exporter::start(folder.path(), &state, &[]).ready();
    let address = format!("127.0.0.1:{}", common::free_port());
    let second = command(folder.path(), &state).args(["--web.listen-address", &address]).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains("another exporter") && said.contains(state.to_str().unwrap()), "{said}");
    assert_eq!(exporter.get("/-/healthy").status, 200);
}

/// A file system of a few megabytes; left again when dropped.
struct Small(PathBuf);

impl Small {
    #[expect(clippy::disallowed_methods, reason = "only a command can mount")]
    fn mount(at: &Path) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=4m,mode=700", "none"])
            .arg(at)
            .stderr(std::process::Stdio::null())
            .status();
        mounted.is_ok_and(|s| s.success()).then(|| Self(at.to_owned()))
    }
}

impl Drop for Small {
    #[expect(clippy::disallowed_methods, reason = "only a command can unmount")]
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_refuses_pushes_until_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let Some(small) = Small::mount(&folder.path().join("small")) else {
        println!(
            "not run: this user may not mount a small file system; the store's own tests fill a disk too"
        );
        return;
    };
    let state = small.0.join("state");
    let exporter = Exporter::start(folder.path(), &state, &[]).ready();
    let batch = |n: usize| -> String {
        let line = |i: usize| {
            let call = format!(r#"{{"callId":"c{n}-{i}","tool":"tool-{n}-{i}"}}"#);
            event(&format!("e{n}-{i}"), &format!("s{n}"), "tool.started", &call) + "\n"
        };
        (0..200).map(line).collect()
    };
    let push = |n: usize| exporter.push(&batch(n)).map(|a| a.status);
    assert_eq!(push(0), Some(202));
    // What is left of the disk is taken by somebody else.
    let filler = small.0.join("filler");
    let mut taken = fs::File::create(&filler).unwrap();
    let chunk = vec![1; 4096];
    while std::io::Write::write_all(&mut taken, &chunk).is_ok() {}
    let mut acknowledged = 0;
    let mut status = Some(202);
    while status == Some(202) {
        acknowledged += 1;
        assert!(acknowledged < 500, "a full disk was never noticed");
        status = push(acknowledged);
    }
    assert_eq!(status, Some(503), "the first push that cannot be kept");
    assert_eq!(exporter.get("/metrics").status, 200, "reading goes on");
    drop(taken);
    fs::remove_file(&filler).unwrap();
    wait_until("pushes are taken again", || push(acknowledged) == Some(202));
    let calls = |exporter: &Exporter| {
        exporter.sessions().iter().map(|s| s["calls"]["total"].as_u64().unwrap()).sum::<u64>()
    };
    let expected = 200 * (acknowledged as u64 + 1);
    assert_eq!(calls(&exporter), expected, "each acknowledged call once");
    exporter.kill();
    let exporter = Exporter::start(folder.path(), &state, &[]).ready();
    assert_eq!(calls(&exporter), expected, "after a crash too");
    exporter.kill();
}
