//! Wall time and modification times that make no sense.

use std::fs::File;
use std::time::{Duration, Instant, UNIX_EPOCH};

use agent_session_exporter::clock::Clock;

use crate::harness::{Home, age, alone, append, counted, lines, runtime, texts};

const HOUR_MS: i64 = 3_600_000;

fn modified(path: &std::path::Path, seconds: u64) {
    let file = File::options().append(true).open(path).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_the_future_are_live_and_of_1970_are_history_until_they_grow() {
    let mut home = Home::new();
    let (future, past) = (home.session("future"), home.session("past"));
    append(&future, lines(1, 2));
    age(&future, -400);
    append(&past, "past 1\n");
    modified(&past, 0);
    let mut running = home.start();
    running.scanned().await;
    assert_eq!(running.texts(), counted(1, 2));
    // A writer whose clock never was set.
    append(&past, "past 2\n");
    modified(&past, 1);
    running.events(4).await;
    assert_eq!(running.texts()[2..], ["1:past 1", "2:past 2"]);
    append(&future, lines(3, 3));
    age(&future, -500);
    running.events(5).await;
    running.end().await;
}

#[test]
fn times_of_the_future_keep_nobody_busy() {
    if !alone("clocks::times_of_the_future_keep_nobody_busy") {
        return;
    }
    runtime().block_on(async {
        let mut home = Home::new();
        for i in 0..100 {
            let path = home.session(&format!("{i}"));
            append(&path, lines(1, 2));
            age(&path, -400);
        }
        // A last line that is never whole, and a clock that stands long before all of them.
        append(&home.session("1"), "{\"half\":");
        home.clock = Clock::shifted(-24 * HOUR_MS);
        let mut running = home.start();
        running.scanned().await;
        assert_eq!(running.events.len(), 200);
        running.rest(Duration::from_secs(6)).await;
        let before = cpu();
        running.rest(Duration::from_secs(3)).await;
        assert!(cpu() - before < 0.3, "{} s of three", cpu() - before);
        assert_eq!(running.end().await.len(), 200);
    });
}

/// Seconds of processor time this process has used.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_loses_and_repeats_nothing() {
    let mut home = Home::new();
    let path = home.session("a");
    append(&path, lines(1, 2));
    let mut next = 3;
    assert_eq!(texts(&home.once().await), counted(1, 2));
    for hours in [-5, 5, -30 * 24, 6 * 24, 0] {
        home.clock = Clock::shifted(hours * HOUR_MS);
        let mut running = home.start();
        running.scanned().await;
        let began = Instant::now();
        append(&path, lines(next, next + 1));
        running.events(2).await;
        assert!(began.elapsed() < Duration::from_secs(2), "{hours} h: {:?}", began.elapsed());
        assert_eq!(running.texts(), counted(next, next + 1), "{hours} h");
        let observed = running.events[0].observed;
        assert!((observed.as_millis() - home_now(running.home().clock)).abs() < 60_000);
        running.end().await;
        next += 2;
    }
}

fn home_now(clock: Clock) -> i64 {
    clock.now().as_millis()
}
