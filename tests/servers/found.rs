//! Which servers are followed: the usual ones if they are there, those of a file as it changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use agent_session_exporter::sources::live::{LiveSource, Stream};

use super::common::owner::LONG;
use super::common::peer::Server;
use super::raw::{Raw, answer, is_upgrade, open};
use super::toy::{events, record, rules, server, stand};

/// How often the source looks at its file of servers, and then some.
const SOON: Duration = Duration::from_secs(3);

/// The source, for which this server is a usual one.
fn usual(server: &Server) -> LiveSource {
    let places: Vec<&'static str> = vec![server.url().leak()];
    LiveSource { servers: places.leak(), ..events() }
}

fn ups(run: &super::common::follow::Following) -> Vec<f64> {
    let families = run.life.telemetry.registry().gather();
    let up = families.iter().find(|f| f.name() == "agent_session_exporter_source_up");
    up.map(|f| f.get_metric().iter().map(|m| m.get_gauge().get_value()).collect()).unwrap_or_default()
}

#[test]
fn a_usual_server_that_is_not_there_is_not_missed() {
    let mut server = server(&events());
    server.down();
    let stand = stand(usual(&server));
    let run = stand.start();
    run.until_up(&server, false);
    assert_eq!(ups(&run), [0.0; 0]);
    assert!(run.life.until("scanned", |s| s.scanned).scanned, "ready all the same");
}

#[test]
fn a_usual_server_leaves_without_a_word_unless_a_session_was_at_work() {
    for (list, after) in [("[]", vec![]), (r#"["s"]"#, vec![0.0])] {
        let mut server = Server::start(rules(&events(), list));
        let stand = stand(usual(&server));
        let run = stand.start();
        run.until_up(&server, true);
        assert_eq!(ups(&run), [1.0]);
        server.down();
        run.until_up(&server, false);
        assert_eq!(ups(&run), after, "with the list {list}");
    }
}

/// Another program may listen on a usual port: it is not spoken to.
#[test]
fn what_merely_listens_on_a_usual_port_is_told_nothing() {
    let spoken_to = Arc::new(AtomicU32::new(0));
    let count = spoken_to.clone();
    let strange = Raw::start(move |mut connection, head| {
        if is_upgrade(head) {
            count.fetch_add(1, Ordering::SeqCst);
            return open(&mut connection, head);
        }
        answer(&mut connection, "404 Not Found", "application/json", "{}");
    });
    let sockets = Arc::new(AtomicU32::new(0));
    let count = sockets.clone();
    let own = Raw::start(move |mut connection, head| {
        if is_upgrade(head) {
            count.fetch_add(1, Ordering::SeqCst);
            open(&mut connection, head);
            return std::thread::sleep(LONG);
        }
        answer(&mut connection, "200 OK", "application/json", "[]");
    });
    let stream = Stream::Socket { path: "/ws", port_offset: 0, hello: Some("hello") };
    let places: Vec<&'static str> =
        [&strange, &own].map(|s| &*format!("http://{}", s.endpoint()).leak()).into();
    let stand = stand(LiveSource { stream, servers: places.leak(), ..events() });
    let run = stand.start();
    let health = |raw: &Raw, up: bool| {
        run.life.until("health", |s| {
            s.health.iter().any(|h| h.endpoint.as_str() == raw.endpoint() && h.up == up && h.scanned)
        });
    };
    health(&own, true);
    health(&strange, false);
    assert_eq!(sockets.load(Ordering::SeqCst), 1);
    assert_eq!(spoken_to.load(Ordering::SeqCst), 0, "no socket was opened there");
    assert_eq!(ups(&run), [1.0], "one that is none of ours is not missed");
}

#[test]
fn a_file_of_servers_is_followed_as_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("servers.json");
    let source = events();
    let (a, b) = (server(&source), server(&source));
    std::fs::write(&file, format!("[\"{0}\", \"{0}/\"]", a.url())).unwrap();
    let mut stand = stand(source);
    stand.configured.servers_file = Some(file.clone());
    let run = stand.start();
    run.until_up(&a, true);
    assert_eq!(a.streams(), 1, "named twice, followed once");

    std::fs::write(&file, format!("{{\"x\": {{\"url\": \"{}\"}}, \"y\": [\"{}\"]}}", a.url(), b.url()))
        .unwrap();
    run.until_up(&b, true);
    assert_eq!(a.opened(), 1, "the first one was left alone");

    std::fs::write(&file, "{\"x\": ").unwrap();
    let began = std::time::Instant::now();
    while run.errors("servers_file") == 0 {
        assert!(began.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(10));
    }
    a.send(&record("s", 1));
    run.until_records(1, &a);
    assert_eq!((a.streams(), b.streams()), (1, 1), "the last list stays");
    std::thread::sleep(SOON);
    assert_eq!(run.errors("servers_file"), 1, "counted once");

    std::fs::write(&file, format!("[\"{}\"]", b.url())).unwrap();
    run.until_up(&a, false);
    a.until_streams(0);
    assert_eq!(ups(&run), [1.0]);
}

#[test]
fn a_source_whose_file_names_nobody_is_ready() {
    let folder = tempfile::tempdir().unwrap();
    let mut stand = stand(events());
    stand.configured.servers_file = Some(folder.path().join("not there"));
    let run = stand.start();
    assert!(run.life.until("scanned", |s| s.scanned).scanned);
}
