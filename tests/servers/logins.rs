//! How a server is logged in at, and that nothing but questions is asked.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use agent_session_exporter::sources::live::{LiveSource, Stream, probe};

use super::common::owner::LONG;
use super::common::peer::{Reply, Server};
use super::log::{log, logged};
use super::raw::{Raw, answer, is_upgrade, open};
use super::toy::{events, record, rules, socket, stand};

#[test]
fn a_password_goes_as_basic_and_is_read_anew() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "wrong\n").unwrap();
    let source = events();
    // toy:open sesame
    let rules =
        rules(&source, "[]").login(|a| a.header("authorization") == Some("Basic dG95Om9wZW4gc2VzYW1l"));
    let server = Server::start(rules);
    let mut stand = stand(source).server(&server);
    stand.configured.login.password_file = Some(file.clone());
    let run = stand.start();
    run.until_up(&server, false);
    std::fs::write(&file, "open sesame\n").unwrap();
    run.until_up(&server, true);
    server.send(&record("s", 1));
    run.until_records(1, &server);
}

#[test]
fn a_token_goes_as_header_with_questions_and_as_parameter_with_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "a+b/c==").unwrap();
    let source = socket();
    let rules = rules(&source, "[]").login(|asked| match asked.upgrade {
        true => asked.path == "/ws?token=a%2Bb%2Fc%3D%3D",
        false => asked.header("x-token") == Some("a+b/c=="),
    });
    let server = Server::start(rules);
    let mut stand = stand(source).server(&server);
    stand.configured.login.token_file = Some(file);
    let run = stand.start();
    run.until_up(&server, true);
}

#[test]
fn a_file_without_a_secret_is_a_refused_login() {
    let folder = tempfile::tempdir().unwrap();
    let source = events();
    let server = Server::start(rules(&source, "[]"));
    let mut stand = stand(source).server(&server);
    stand.configured.login.token_file = Some(folder.path().join("not there"));
    let run = stand.start();
    run.until_up(&server, false);
    assert!(server.asked().is_empty(), "nobody knocks without the key");
}

/// Nobody named it, so it is not missed. Somebody has to hear of it all the same: nothing else says what is wanting.
#[test]
fn a_server_that_was_merely_found_and_wants_a_login_is_warned_of_once() {
    log();
    let greeted = Stream::Socket { path: "/ws", port_offset: 0, hello: Some("hello") };
    let all = [
        (events(), "401 Unauthorized", false),
        (events(), "403 Forbidden", false),
        // Some open their stream for everybody, and let nobody ask.
        (events(), "401 Unauthorized", true),
        (socket(), "403 Forbidden", false),
        (LiveSource { stream: greeted, ..events() }, "401 Unauthorized", false),
    ];
    for (source, status, opens) in all {
        let raw = Raw::start(move |mut connection, head| {
            if opens && (is_upgrade(head) || head.starts_with("GET /stream")) {
                open(&mut connection, head);
                return std::thread::sleep(Duration::from_millis(300));
            }
            answer(&mut connection, status, "application/json", "{}");
        });
        let server: &'static str = format!("http://{}", raw.endpoint()).leak();
        let run = stand(LiveSource { servers: vec![server].leak(), ..source }).start();
        let tries = || raw.connections.load(Ordering::SeqCst);
        let began = Instant::now();
        // Those behind the first add nothing to the log.
        while tries() < 8 {
            assert!(began.elapsed() < LONG, "only {} tries", tries());
            std::thread::sleep(Duration::from_millis(2));
        }
        let said = logged(raw.endpoint());
        assert_eq!(said.len(), 1, "{said:#?}");
        for words in [" WARN ", "wants a login that is not configured", "source=\"toy\"", "reason=\"login\""]
        {
            assert!(said[0].contains(words), "{words}: {}", said[0]);
        }
        assert!(said[0].contains(&format!("endpoint=\"{}\"", raw.endpoint())), "{}", said[0]);
        run.end();
        assert_eq!(logged(raw.endpoint()), said);
    }
}

#[test]
fn only_known_queries_may_be_posted() {
    let source = events();
    let rules = rules(&source, "[]")
        .allow(|a| a.plain() == "/list" || (a.method == "POST" && a.plain() == "/sync/history"))
        .answer(|a| Reply::json(200, if a.method == "POST" { "{}" } else { "[]" }));
    let server = Server::start(rules);
    let stand = stand(source).server(&server);
    let run = stand.start();
    run.until_up(&server, true);
    server.send(r#"{"s": "s", "query": "/session/abort"}"#);
    server.send(r#"{"s": "s", "query": "/sync/history"}"#);
    run.until_records(2, &server);
    let began = std::time::Instant::now();
    let answers = || {
        let families = run.life.telemetry.registry().gather();
        let unknown = families.iter().find(|f| f.name().ends_with("unknown_records_total"));
        let mut kinds: Vec<String> = unknown
            .into_iter()
            .flat_map(|f| f.get_metric())
            .filter_map(|m| m.get_label().iter().find(|l| l.name() == "kind").map(|l| l.value().to_owned()))
            .collect();
        kinds.sort();
        kinds
    };
    while answers().len() < 2 {
        assert!(began.elapsed() < super::common::owner::LONG, "{:?}", answers());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(answers(), ["answer_200", "answer_forbidden"]);
    let posts: Vec<String> =
        server.asked().iter().filter(|a| a.method == "POST").map(|a| a.path.clone()).collect();
    assert_eq!(posts, ["/sync/history"]);
}

#[test]
fn check_tells_what_was_found() {
    let source = events();
    let there = Server::start(rules(&source, "[]"));
    let locked = Server::start(rules(&source, "[]").login(|_| false));
    let broken = Server::start(rules(&source, "[]").answer(|_| Reply::json(503, "{}")));
    let mut gone = Server::start(rules(&source, "[]"));
    gone.down();
    let stand = stand(source).server(&there).server(&locked).server(&broken).server(&gone);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let found = runtime.block_on(probe(stand.source, &stand.configured));
    let expected = [
        (&there, "answers"),
        (&locked, "refuses the login"),
        (&broken, "answers with status 503"),
        (&gone, "no connection"),
    ];
    let expected: Vec<String> =
        expected.iter().map(|(s, what)| format!("{} ({what})", s.endpoint())).collect();
    assert_eq!(found, expected);
}
