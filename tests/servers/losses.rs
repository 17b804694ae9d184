//! What is kept when a connection goes and comes back.

use std::time::{Duration, Instant};

use super::common::owner::{all_facts, facts};
use super::common::peer::{Reply, Server};
use super::toy::{events, record, rules, server, socket, stand, start};

#[test]
fn records_of_both_protocols_become_facts() {
    for source in [events(), socket()] {
        let server = server(&source);
        let stand = stand(source).server(&server);
        let run = stand.start();
        run.until_up(&server, true);
        for n in 0..100 {
            server.send(&record(&format!("s{}", n % 7), n));
        }
        run.until_records(100, &server);
        let snapshot = run.end();
        assert_eq!(all_facts(&snapshot).len(), 7);
        assert!(snapshot.health.iter().all(|h| h.up), "shutdown is no loss");
        assert_eq!(server.asked().len(), 2, "the stream and the list");
    }
}

#[test]
fn what_comes_while_a_question_is_open_waits_for_its_answer() {
    let source = events();
    let began = Instant::now();
    let slow = rules(&source, "[]").answer(move |_| {
        std::thread::sleep(Duration::from_millis(150));
        Reply::json(200, r#"["listed"]"#)
    });
    let server = Server::start(slow);
    let stand = stand(source).server(&server);
    let run = stand.start();
    server.until_streams(1);
    server.send(&record("listed", 1));
    run.until_records(1, &server);
    assert!(began.elapsed() >= Duration::from_millis(150), "taken after the answer");
    let snapshot = run.end();
    assert_eq!(
        facts(&snapshot, "toy", "listed").unwrap().info.endpoint.as_ref().unwrap().as_str(),
        server.endpoint()
    );
}

#[test]
fn a_server_counts_as_followed_only_with_what_it_told_first() {
    let source = events();
    let server = Server::start(rules(&source, r#"["listed"]"#));
    let mut stand = stand(source).server(&server);
    // Nothing else hands the events on.
    (stand.gather, stand.tick) = (Duration::from_secs(60), Duration::from_secs(60));
    let run = stand.start();
    let snapshot = run.life.until("scanned", |s| s.scanned);
    assert!(facts(&snapshot, "toy", "listed").is_some());
}

#[test]
fn a_stream_that_was_cut_is_opened_again_and_counted() {
    for source in [events(), socket()] {
        let server = server(&source);
        let stand = stand(source).server(&server);
        let run = stand.start();
        for n in 0..10 {
            server.until_streams(1);
            run.until_up(&server, true);
            server.send(&record("s", n));
            run.until_records(n + 1, &server);
            server.cut();
        }
        server.until_streams(1);
        run.until_up(&server, true);
        assert_eq!(run.life.counter("source_reconnects_total"), 10.0);
        assert_eq!(run.records(), 10);
    }
}

#[test]
fn a_server_that_goes_is_down_and_is_found_again() {
    let source = events();
    let mut server = server(&source);
    let stand = stand(source).server(&server);
    let run = stand.start();
    run.until_up(&server, true);
    assert_eq!((run.life.counter("source_up"), run.life.counter("source_info")), (1.0, 1.0));
    server.down();
    run.until_up(&server, false);
    assert_eq!(run.life.counter("source_up"), 0.0);
    server.up();
    run.until_up(&server, true);
    assert_eq!(run.life.counter("source_up"), 1.0);
}

#[test]
fn tries_become_rarer() {
    let source = events();
    let refusing = rules(&source, "[]").answer(|_| Reply::json(500, "{}")).login(|_| false);
    let server = Server::start(refusing);
    let stand = stand(source).server(&server);
    let run = stand.start();
    run.until_up(&server, false);
    std::thread::sleep(Duration::from_millis(1000));
    let tries = server.asked().len();
    // 10, 20, 40, 80, 160, then 200 ms each, a quarter more or less.
    assert!((5..=14).contains(&tries), "{tries} tries");
}

#[test]
fn a_server_that_accepts_and_closes_at_once_is_not_hammered() {
    let source = events();
    let server = server(&source);
    let stand = stand(source).server(&server);
    let run = stand.start();
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1000) {
        server.cut();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(server.opened() <= 14, "{} connections", server.opened());
    run.end();
}

#[test]
fn a_restart_of_the_exporter_gives_the_peer_what_it_kept() {
    let source = events();
    let server = server(&source);
    let stand = stand(source).server(&server);
    for life in 0..3u64 {
        let run = stand.start();
        server.until_streams(1);
        run.until_up(&server, true);
        server.send(&record("s", life));
        run.until_records(1, &server);
        let snapshot = run.end();
        assert!(facts(&snapshot, "toy", "s").is_some());
        server.until_streams(0);
    }
    let run = stand.start();
    let kept: Vec<u32> = run
        .life
        .store
        .cursors
        .values()
        .map(|v| u32::from_le_bytes(v.as_slice().try_into().unwrap()))
        .collect();
    assert_eq!(kept, [3], "each run went on from the last");
}

#[test]
fn sessions_of_a_server_that_stays_away_are_lost_and_those_of_its_neighbour_are_not() {
    let source = events();
    let mut gone = Server::start(rules(&source, r#"["a"]"#));
    let stays = Server::start(rules(&source, r#"["b"]"#));
    let stand = stand(source).server(&gone).server(&stays);
    let run = stand.start();
    run.until_up(&gone, true);
    run.until_up(&stays, true);
    gone.send(&record("a", 1));
    stays.send(&record("b", 1));
    run.until_records(2, &stays);
    run.jump_to(start().plus(20_000));
    gone.down();
    run.until_up(&gone, false);
    let state = |session: &str, after: i64| {
        let snapshot = run.life.snapshot();
        let slot = snapshot.find(&"toy".into(), &session.into()).unwrap();
        let now = start().plus(20_000 + after);
        let derived = snapshot.derive(&snapshot.rollup(slot, now).unwrap());
        format!("{}/{}", derived.state.as_str(), derived.reason.as_str())
    };
    assert_eq!(state("a", 299_000), "running/working");
    assert_eq!(state("a", 310_000), "unknown/source_lost");
    assert_eq!(state("b", 310_000), "running/working", "its server is there");
    gone.up();
    run.until_up(&gone, true);
    assert_eq!(state("a", 310_000), "running/working");
}

#[test]
fn the_end_is_quick_whatever_is_open() {
    let source = events();
    let hanging = rules(&source, "[]").answer(|_| {
        std::thread::sleep(Duration::from_millis(300));
        Reply::json(200, "[]")
    });
    let server = Server::start(hanging);
    let stand = stand(source).server(&server);
    let run = stand.start();
    server.until_streams(1);
    let began = Instant::now();
    run.end();
    assert!(began.elapsed() < Duration::from_secs(2));
}
