//! From an event to `/metrics`, and scrapes while 50,000 events a second come in, beside idle ones.

#![allow(clippy::unwrap_used, reason = "a bench that fails says where")]

mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::{Client, batch, ms, percentile, row, table};

const SESSIONS: usize = 1000;
const RATE: usize = 50_000;
const LINES: usize = 500;

fn scrapes(client: &mut Client, n: usize) -> Vec<Duration> {
    (0..n)
        .map(|_| {
            let started = Instant::now();
            assert_eq!(client.get("/metrics").0, 200);
            let took = started.elapsed();
            std::thread::sleep(Duration::from_millis(10));
            took
        })
        .collect()
}

/// Pushes one event of a session of its own and asks until it shows.
fn until_shown(push: &mut Client, scrape: &mut Client, n: usize, now: i64) -> Duration {
    let name = format!("probe-{n}");
    let event = format!(
        r#"{{"id":"probe-{n}","time":{now},"source":"bench","sessionId":"{name}","type":"turn.started","data":{{}}}}"#
    );
    let started = Instant::now();
    assert_eq!(push.push(event.as_bytes()), 202);
    let wanted = format!("session=\"{name}\"");
    loop {
        let (_, body) = scrape.get("/metrics");
        if body.windows(wanted.len()).any(|w| w == wanted.as_bytes()) {
            return started.elapsed();
        }
    }
}

fn main() {
    let now = || agent_session_exporter::clock::Clock::system().now().as_millis();
    let few = support::start(1000);
    let (mut push, mut scrape) = (Client::connect(&few.address), Client::connect(&few.address));
    let mut shown: Vec<Duration> = (0..200).map(|n| until_shown(&mut push, &mut scrape, n, now())).collect();

    let many = support::start(SESSIONS);
    let mut push = Client::connect(&many.address);
    for b in 0..SESSIONS * 8 / 1000 {
        assert_eq!(push.push(&batch(b * 1000, 1000, SESSIONS, now())), 202);
    }
    let mut scrape = Client::connect(&many.address);
    let mut idle = scrapes(&mut scrape, 150);
    let stop = AtomicBool::new(false);
    let sent = AtomicUsize::new(0);
    let (mut loaded, rate) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let started = Instant::now();
            let mut n = 1_000_000;
            while !stop.load(Ordering::Relaxed) {
                let body = batch(n, LINES, SESSIONS, now());
                n += LINES;
                assert_eq!(push.push(&body), 202);
                sent.fetch_add(LINES, Ordering::Relaxed);
                let due = Duration::from_secs_f64((n - 1_000_000) as f64 / RATE as f64);
                std::thread::sleep(due.saturating_sub(started.elapsed()));
            }
        });
        let started = Instant::now();
        let list = scrapes(&mut scrape, 300);
        let rate = sent.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        (list, rate)
    });

    table("Event to `/metrics`, by push");
    row("median", &ms(percentile(&mut shown, 0.5)), "");
    row("p99", &ms(percentile(&mut shown, 0.99)), "");
    table("Scrapes of 1,000 sessions under load");
    let (idle, busy) = (percentile(&mut idle, 0.99), percentile(&mut loaded, 0.99));
    row("idle, p99", &ms(idle), "baseline");
    let ratio = busy.as_secs_f64() / idle.as_secs_f64();
    row(&format!("{rate:.0} events/s coming in, p99"), &ms(busy), &format!("{ratio:.2}"));
}
