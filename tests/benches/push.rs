//! Push: 4 connections, batches of 1,000 NDJSON lines of 250 B over 100 sessions, each answer given after the commit.
//! Beside it the floors: parsing the same lines into the event struct with serde_json, and a commit of 16 kB.

#![allow(clippy::unwrap_used, reason = "a bench that fails says where")]

mod support;

use std::time::{Duration, Instant};

use support::{Client, Running, best, ms, row, table};

const CONNECTIONS: usize = 4;
const LINES: usize = 1000;
const SESSIONS: usize = 100;
const BATCHES: usize = 400;

/// The wire form as a plain struct, as a user of serde_json would write it.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Plain<'a> {
    id: &'a str,
    time: i64,
    source: &'a str,
    session_id: &'a str,
    project_id: &'a str,
    r#type: &'a str,
    #[serde(borrow)]
    data: &'a serde_json::value::RawValue,
}

fn parse(body: &[u8]) -> usize {
    let lines = body.split(|b| *b == b'\n').filter(|l| !l.is_empty());
    lines
        .map(|l| {
            let e: Plain<'_> = serde_json::from_slice(l).unwrap();
            e.id.len()
                + e.time as usize % 2
                + e.source.len()
                + e.session_id.len()
                + e.project_id.len()
                + e.r#type.len()
                + e.data.get().len()
        })
        .sum()
}

fn commit_floor() -> Duration {
    let folder = tempfile::tempdir().unwrap();
    agent_session_exporter::store::db::prepare_folder(folder.path()).unwrap();
    let now = agent_session_exporter::event::Timestamp::from_millis(1);
    let mut db = agent_session_exporter::store::db::open_folder(folder.path(), 1, now).unwrap().db;
    let mut seq = 0;
    best(50, || {
        seq += 1;
        let journal = vec![7; 16 * 1024];
        db.commit(&agent_session_exporter::store::db::Work { seq, journal, ..Default::default() }).unwrap();
    })
}

/// Pushes all bodies; how long that took, and each answer.
fn push(running: &Running, bodies: &[Vec<u8>]) -> (Duration, Vec<Duration>) {
    let started = Instant::now();
    let latencies = std::thread::scope(|scope| {
        let threads: Vec<_> = bodies
            .chunks(BATCHES / CONNECTIONS)
            .map(|own| {
                let address = running.address.clone();
                scope.spawn(move || {
                    let mut client = Client::connect(&address);
                    own.iter()
                        .map(|body| {
                            let sent = Instant::now();
                            assert_eq!(client.push(body), 202);
                            sent.elapsed()
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    (started.elapsed(), latencies)
}

fn main() {
    let now = agent_session_exporter::clock::Clock::system().now().as_millis();
    // A connection is a host with sessions of its own, as in life; all advance together.
    let per_connection = BATCHES / CONNECTIONS;
    let body = |b: usize| {
        let (connection, step) = (b / per_connection, b % per_connection);
        support::batch_of(connection, step * LINES, LINES, SESSIONS / CONNECTIONS, now + step as i64)
    };
    let bodies: Vec<Vec<u8>> = (0..BATCHES).map(body).collect();
    let parsing = best(5, || {
        std::hint::black_box(bodies[..20].iter().map(|b| parse(b)).sum::<usize>());
    });
    let parse_rate = (20 * LINES) as f64 / parsing.as_secs_f64();

    let (took, mut latencies) = push(&support::start(1000), &bodies);
    let (traced, _) = push(&support::start_traced(1000), &bodies);
    let rate = |took: Duration| (BATCHES * LINES) as f64 / took.as_secs_f64();

    table("Push, durable");
    row("serde_json into a struct, one core", &format!("{parse_rate:.0} events/s"), "baseline");
    row(
        "push, 4 connections, two cores for both sides",
        &format!("{:.0} events/s", rate(took)),
        &format!("{:.2}", rate(took) / parse_rate),
    );
    row(
        "the same with spans built and kept, to push without",
        &format!("{:.0} events/s", rate(traced)),
        &format!("{:.2}", rate(traced) / rate(took)),
    );
    row("one answer (1,000 events), median", &ms(support::percentile(&mut latencies, 0.5)), "");
    row("one answer (1,000 events), p99", &ms(support::percentile(&mut latencies, 0.99)), "");
    row("floor: commit of 16 kB", &ms(commit_floor()), "");
}
