//! Each recording through a server that speaks the daemon's protocol and forbids everything but what may be asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use agent_session_exporter::event::Timestamp;
use agent_session_exporter::session::Facts;
use agent_session_exporter::sources::gobby::{DEF, LIVE};

use super::common::follow::{Fold, Following, Stand, standing};
use super::common::owner::{all_facts, facts};
use super::common::peer::{Asked, Kind, Reply, Rules, Server};
use super::daemon::{Daemon, Frame, RECORDINGS, frames};
use super::replay::{Replay, state};

const HELLO: &[&str] = &[r#"{"type": "subscribe", "events": ["*"]}"#];

/// The server of a recording, and the clock it answers by.
fn server(recording: &str) -> (Server, Arc<AtomicI64>) {
    let daemon = Daemon::of(recording);
    let clock = Arc::new(AtomicI64::new(0));
    let by = clock.clone();
    let rules = Rules { next_port: true, ..Rules::new(Kind::Socket("/", HELLO)) };
    let rules = rules.allow(allowed).answer(move |asked| {
        let now = Timestamp::from_millis(by.load(Ordering::SeqCst));
        let (status, body) = daemon.answer(asked.plain(), now);
        Reply::json(status, body)
    });
    (Server::start(rules), clock)
}

/// A list, or one session's request to stop; only ever asked.
fn allowed(asked: &Asked) -> bool {
    let path = asked.path.strip_prefix("/api").unwrap_or(&asked.path);
    let stop = path.strip_prefix("/sessions/").and_then(|p| p.strip_suffix("/stop"));
    asked.method == "GET"
        && !asked.upgrade
        && asked.body.is_empty()
        && (path == "/sessions" || stop.is_some_and(|id| id.len() == 36 && !id.contains('/')))
}

fn send(run: &Following, server: &Server, clock: &AtomicI64, frame: &Frame, records: u64) {
    run.move_to(frame.at);
    clock.store(frame.at.as_millis(), Ordering::SeqCst);
    server.send(&frame.text);
    run.until_records(records, server);
}

/// What must not depend on when questions were answered.
fn essence(facts: &Facts) -> String {
    let f = facts;
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        f.parent,
        f.turns,
        f.calls,
        // Calls that nobody ended are, once the store notices.
        f.progress.iter().filter(|p| p.high > 0).map(|p| (p.kind, p.high)).collect::<Vec<_>>(),
        f.last_progress,
        f.actions,
        f.stop.map(|s| (s.pending, s.requester)),
        f.native_stuck,
        f.run_end.as_ref().map(|end| end.time),
    )
}

/// A minute after the last frame.
fn end(run: Following, server: &Server, clock: &AtomicI64) -> Arc<agent_session_exporter::session::Snapshot> {
    let last = run.now();
    for second in 1..=60 {
        clock.store(last.plus(second * 1000).as_millis(), Ordering::SeqCst);
        run.move_to(last.plus(second * 1000));
        run.until_records(0, server);
    }
    run.end()
}

#[test]
fn each_recording_gives_the_same_facts_through_a_server() {
    for recording in RECORDINGS {
        let whole = Replay::of(recording);
        let all = frames(recording);
        let (server, clock) = server(recording);
        clock.store(all[0].at.as_millis(), Ordering::SeqCst);
        let stand = Stand::new(&LIVE, DEF.capabilities, all[0].at).server(&server);
        let run = stand.start();
        server.until_streams(1);
        run.until_up(&server, true);
        let mut said = whole.events.iter().peekable();
        let mut on_the_way = Fold::new(DEF.name, DEF.capabilities);
        for (i, frame) in all.iter().enumerate() {
            send(&run, &server, &clock, frame, i as u64 + 1);
            if all.get(i + 1).is_some_and(|next| next.at <= frame.at) {
                continue;
            }
            while let Some(event) = said.next_if(|event| event.observed <= frame.at) {
                on_the_way.take(event);
            }
            run.until_stands(&standing(&on_the_way.snapshot(), frame.at), recording);
        }
        let now = all.last().unwrap().at.plus(60_000);
        let snapshot = end(run, &server, &clock);
        let names: Vec<_> = all_facts(&snapshot).into_keys().map(|(_, session)| session).collect();
        assert_eq!(names, whole.names(), "{recording}");
        for name in names {
            let got = facts(&snapshot, "gobby", &name).unwrap();
            assert_eq!(essence(&got), essence(&whole.facts(&name)), "{recording}: {name}");
            assert_eq!(state(&snapshot, &name, now), whole.state(&name, 0), "{recording}: {name}");
        }
        let asked = server.asked();
        assert!(asked.iter().any(|asked| asked.path.ends_with("/sessions")), "{recording}");
        assert!(asked.iter().all(|asked| asked.method == "GET"), "{recording}");
    }
}

#[test]
fn a_stream_that_is_cut_at_every_tenth_frame_is_opened_again_and_nothing_counts_twice() {
    for recording in RECORDINGS {
        let whole = Replay::of(recording);
        let all = frames(recording);
        let (server, clock) = server(recording);
        clock.store(all[0].at.as_millis(), Ordering::SeqCst);
        let stand = Stand::new(&LIVE, DEF.capabilities, all[0].at).server(&server);
        let run = stand.start();
        server.until_streams(1);
        run.until_up(&server, true);
        for (i, frame) in all.iter().enumerate() {
            if i > 0 && i % 10 == 0 {
                // Until everything first asked is answered: else the answers are of a later moment than the frames.
                run.cut(&server);
            }
            send(&run, &server, &clock, frame, i as u64 + 1);
        }
        let snapshot = end(run, &server, &clock);
        for name in whole.names() {
            let got = facts(&snapshot, "gobby", &name).unwrap();
            assert_eq!(essence(&got), essence(&whole.facts(&name)), "{recording}: {name}");
        }
    }
}
