//! Memory per session: 10,000 sessions with 30 calls since their landing each, beyond the empty process; and the
//! heaviest session there can be.

#![allow(clippy::unwrap_used, reason = "a bench that fails says where")]

mod support;

use std::time::Duration;

use support::{Client, resident, row, table};

const SESSIONS: usize = 10_000;
const CALLS: usize = 30;

fn body(session: usize, ids: bool, now: i64) -> String {
    let mut lines = String::new();
    let mut n = 0;
    let mut event = |kind: &str, data: &str| {
        let id = if ids { format!(r#""id":"s{session}-{n}","#) } else { String::new() };
        n += 1;
        lines.push_str(&format!(
            r#"{{{id}"time":{},"source":"bench","sessionId":"01a227f1-9958-7663-8864-{session:012}","projectId":"project-{}","type":"{kind}","data":{data}}}"#,
            now + n,
            session % 20
        ));
        lines.push('\n');
    };
    event(
        "session.started",
        r#"{"agent":"agent","agentVersion":"1.2.3","model":"model-a","provider":"lab"}"#,
    );
    event("turn.started", r#"{"trigger":"person"}"#);
    event("tool.started", r#"{"callId":"edit","tool":"edit"}"#);
    event("tool.ended", r#"{"callId":"edit","outcome":"ok","diffLines":4}"#);
    for call in 0..CALLS {
        event(
            "tool.started",
            &format!(r#"{{"callId":"call_{call:04}","tool":"read","target":"src/{call}.rs"}}"#),
        );
        event("tool.ended", &format!(r#"{{"callId":"call_{call:04}","outcome":"ok"}}"#));
    }
    lines
}

fn fill(ids: bool) -> usize {
    let before = resident();
    let running = support::start(1000);
    let empty = resident();
    let now = agent_session_exporter::clock::Clock::system().now().as_millis() - 10_000;
    let mut client = Client::connect(&running.address);
    for session in (0..SESSIONS).step_by(20) {
        let lines: String = (session..session + 20).map(|s| body(s, ids, now)).collect();
        assert_eq!(client.push(lines.as_bytes()), 202);
    }
    // After some seconds of silence sessions let go of what they hold for corrections.
    std::thread::sleep(Duration::from_secs(8));
    let full = resident();
    drop(running);
    println!(
        "<!-- process {} MiB, empty exporter {} MiB, full {} MiB -->",
        before >> 20,
        empty >> 20,
        full >> 20
    );
    (full - empty) / SESSIONS
}

fn main() {
    table("Memory, 10,000 sessions with 30 calls since their landing");
    let argument = std::env::args().find(|a| a == "--without-ids" || a == "--with-ids");
    match argument.as_deref() {
        Some("--without-ids") => {
            row("per session, events without ids", &format!("{} B", fill(false)), "target 4096")
        }
        _ => row(
            "per session, known ids of 640,000 events included",
            &format!("{} B", fill(true)),
            "target 4096",
        ),
    }
    let facts = std::mem::size_of::<agent_session_exporter::session::Facts>();
    row("of it the struct of facts itself", &format!("{facts} B"), "");
}
