//! Every scenario through a server that speaks the real protocol, and is asked nothing that it must not be.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use agent_session_exporter::event::{ProgressKind, Timestamp};
use agent_session_exporter::session::{Facts, Snapshot};
use agent_session_exporter::sources::openfox::{DEF, SERVERS};

use super::common::follow::{Fold, Following, Stand, standing};
use super::common::peer::{Asked, Kind, Reply, Rules, Server};
use super::cut::places;
use super::play::{self, Play, words};
use super::recorded::{Recording, What, names, status_of};

/// The recorded server, at the time of the test's clock.
fn rules(recording: &Arc<Recording>, hand: &Arc<AtomicI64>) -> Rules {
    let (recording, hand) = (recording.clone(), hand.clone());
    let allowed = |asked: &Asked| {
        let path = asked.plain();
        let status = path.strip_prefix("/api/sessions/").and_then(|p| p.strip_suffix("/status"));
        let known =
            path == "/api/sessions" || path == "/api/config" || status.is_some_and(|id| !id.contains('/'));
        asked.method == "GET" && asked.body.is_empty() && known
    };
    Rules::new(Kind::Socket("/ws", &[])).allow(allowed).answer(move |asked| {
        let now = Timestamp::from_millis(hand.load(Ordering::SeqCst));
        let (status, body) = play::reply(&recording, &asked.path, now).unwrap_or((404, Vec::new()));
        Reply::json(status, body)
    })
}

/// What has to be equal however the frames came.
fn essence(f: &Facts) -> String {
    // Calls that nobody ended are, once the store notices.
    let progress: Vec<_> = f.progress.iter().filter(|p| p.kind != ProgressKind::ToolCall).collect();
    format!(
        "{:?} {:?} {:?} {:?} {} {} {:?} {:?} {:?}",
        f.turns,
        f.calls,
        progress,
        f.criteria,
        f.usage.input,
        f.usage.output,
        f.info.mode,
        f.info.phase,
        f.project
    )
}

fn states(snapshot: &Snapshot, now: Timestamp) -> Vec<String> {
    let roots: Vec<_> = snapshot.roots().collect();
    let mut states: Vec<String> = roots
        .into_iter()
        .map(|slot| {
            let rollup = snapshot.rollup(slot, now).unwrap();
            format!("{} {}", rollup.root.session.as_str(), words(&snapshot.derive(&rollup)))
        })
        .collect();
    states.sort();
    states
}

/// One recording through the server, with the stream cut before these lines and a look after each moment.
fn through(
    recording: &Arc<Recording>,
    cuts: &[usize],
    look: &mut dyn FnMut(&Following),
) -> (Arc<Snapshot>, Timestamp) {
    let start = recording.lines[0].0;
    let hand = Arc::new(AtomicI64::new(start.as_millis()));
    let mut server = Server::start(rules(recording, &hand));
    let mut stand = Stand::new(&SERVERS, DEF.capabilities, start).server(&server);
    stand.longest_pause = Duration::from_millis(10);
    let run = stand.start();
    run.until_up(&server, true);
    let mut sent = 0;
    let mut last = start;
    let mut open = true;
    for (n, (at, what)) in recording.lines.iter().enumerate().skip(1) {
        if *at > last {
            // Everything of the moment before was taken at its time.
            run.until_records(sent, &server);
            look(&run);
            if open && cuts.contains(&n) {
                run.cut(&server);
            }
            // The server is not ahead of its own frames.
            run.move_to(*at);
            hand.store(at.as_millis(), Ordering::SeqCst);
            last = *at;
        }
        match what {
            What::Frame(frame) => {
                server.send(frame);
                sent += 1;
            }
            What::Closed => {
                run.until_records(sent, &server);
                server.down();
                run.until_up(&server, false);
                open = false;
            }
            What::Opened => {
                server.up();
                run.until_up(&server, true);
                open = true;
            }
        }
    }
    run.until_records(sent, &server);
    let end = recording.end().plus(30_000);
    hand.store(end.as_millis(), Ordering::SeqCst);
    run.move_to(end);
    run.until_records(sent, &server);
    for asked in server.asked().iter().filter(|asked| !asked.upgrade) {
        assert_eq!(asked.method, "GET");
    }
    (run.end(), end)
}

#[test]
fn every_scenario_through_the_real_protocol() {
    for name in names() {
        let recording = Arc::new(Recording::of(&name));
        let play = Play::of(&recording);
        let mut said = play.events.iter().peekable();
        let mut on_the_way = Fold::new(DEF.name, DEF.capabilities);
        let (snapshot, end) = through(&recording, &[], &mut |run| {
            while let Some(event) = said.next_if(|event| event.observed <= run.now()) {
                on_the_way.take(event);
            }
            run.until_stands(&standing(&on_the_way.snapshot(), run.now()), &name);
        });
        assert_eq!(states(&snapshot, end), states(&play.snapshot(), end), "{name}");
        for session in play.sessions.values() {
            let wanted = session.facts();
            let found = super::common::owner::facts(&snapshot, "openfox", wanted.session.as_str()).unwrap();
            assert_eq!(found.deleted_at, wanted.deleted_at, "{name}");
            assert!(found.info.endpoint.is_some());
            if wanted.deleted_at.is_some() {
                // It may have gone before the list said where it belongs.
                assert_eq!(found.turns, wanted.turns, "{name}");
                continue;
            }
            assert_eq!(essence(&found), essence(wanted), "{name}");
        }
        assert!(snapshot.health.iter().all(|health| health.up), "{name}");
    }
}

/// Nothing is lost between the frames before a cut and those after it, so the answers a new stream begins with make the
/// facts equal: exactly, not mostly.
#[test]
fn every_scenario_cut_at_every_tenth_frame_through_the_real_protocol() {
    let mut cuts = 0;
    for name in names() {
        let recording = Arc::new(Recording::of(&name));
        let places = places(&recording, 10);
        cuts += places.len();
        let (snapshot, end) = through(&recording, &places, &mut |_| ());
        let play = Play::of(&recording);
        assert_eq!(states(&snapshot, end), states(&play.snapshot(), end), "{name}");
        for session in play.sessions.values().filter(|s| s.facts().deleted_at.is_none()) {
            let whole = session.facts();
            let cut = super::common::owner::facts(&snapshot, "openfox", whole.session.as_str()).unwrap();
            assert_eq!(essence(&cut), essence(whole), "{name}");
            assert!(cut.actions.is_empty(), "{name}: nobody is asked any more");
        }
    }
    assert!(cuts > 120, "{cuts}");
}

#[test]
fn a_password_is_shown_as_openfox_wants_it() {
    let recording = Arc::new(Recording::of("ask_user"));
    let start = recording.lines[0].0;
    let hand = Arc::new(AtomicI64::new(start.as_millis()));
    let token = "abc+/=x";
    let rules = rules(&recording, &hand).login(move |asked| {
        if asked.plain() == "/ws" {
            asked.path == "/ws?token=abc%2B%2F%3Dx" && asked.header("x-session-token").is_none()
        } else {
            asked.header("x-session-token") == Some(token) && asked.header("authorization").is_none()
        }
    });
    let server = Server::start(rules);
    let folder = std::env::temp_dir().join(format!("openfox-token-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("token");
    std::fs::write(&file, format!("{token}\n")).unwrap();
    let mut stand = Stand::new(&SERVERS, DEF.capabilities, start).server(&server);
    stand.configured.login.token_file = Some(file);
    let run = stand.start();
    run.until_up(&server, true);
    assert!(run.end().health.iter().all(|health| health.up));
    std::fs::remove_dir_all(folder).unwrap();
}

/// The socket opens for everybody; who has no token is told nothing by it, and the list is refused.
#[test]
fn a_server_with_a_password_is_down_for_who_does_not_know_it() {
    assert_eq!(status_of("auth", "no token"), 401);
    assert_eq!(status_of("auth", "bearer header is not accepted"), 401);
    assert_eq!(status_of("auth", "with x-session-token"), 200);
    let recording = Arc::new(Recording::of("ask_user"));
    let start = recording.lines[0].0;
    let hand = Arc::new(AtomicI64::new(start.as_millis()));
    let known = |asked: &Asked| asked.upgrade || asked.header("x-session-token") == Some("known");
    let server = Server::start(rules(&recording, &hand).login(known));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let mut stand = Stand::new(&SERVERS, DEF.capabilities, start).server(&server);
    for (token, up) in [(None, false), (Some("another"), false), (Some("known"), true)] {
        stand.configured.login.token_file = token.map(|token| {
            std::fs::write(&file, token).unwrap();
            file.clone()
        });
        let run = stand.start();
        run.until_up(&server, up);
        assert_eq!(run.life.counter("source_up"), f64::from(up), "{token:?}");
        run.end();
    }
}

/// Half open: the stream says nothing any more, and the list is answered as before. It needs no new stream to tell who
/// works and who does not.
#[test]
fn who_works_is_known_though_the_stream_fell_silent() {
    let recording = Arc::new(Recording::of("model_no_reply"));
    let start = recording.lines[0].0;
    let hand = Arc::new(AtomicI64::new(start.as_millis()));
    let server = Server::start(rules(&recording, &hand));
    let stand = Stand::new(&SERVERS, DEF.capabilities, start).server(&server);
    let run = stand.start();
    run.until_up(&server, true);
    // Time passes, while the server stands where its recording was then.
    let passes = |server_at: Timestamp| {
        hand.store(server_at.as_millis(), Ordering::SeqCst);
        for _ in 0..40 {
            run.move_to(run.now().plus(1_000));
            run.until_records(0, &server);
        }
    };
    let differs = || run.life.telemetry.state_disagreements.with_label_values(&["openfox"]).get();
    passes(start.plus(10_000));
    let working = |s: &Snapshot| states(s, run.now()).iter().all(|line| line.ends_with(" running/working"));
    run.life.until("at work", |s| s.roots().count() == 1 && working(s));
    assert_eq!(differs(), 1, "its begin was not told");
    passes(recording.end());
    let over = |line: &String| line.ends_with(" unknown/ended_without_result");
    run.life.until("over", |s| states(s, run.now()).iter().all(over));
    assert_eq!(differs(), 2, "nor its end");
    assert_eq!(run.life.counter("source_up"), 1.0);
}
