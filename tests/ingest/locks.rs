//! Writers, by their locks.

use std::fs::{self, File};
use std::time::Duration;

use agent_session_exporter::event::{Fact, Writer};

use crate::harness::{Home, append, lines};

const INITIAL: &str = "pid:[4026531836]";
const OTHER: &str = "pid:[4026532201]";
/// Three probes.
const PROBES: Duration = Duration::from_millis(3300);

fn said(texts: &[String]) -> Vec<&str> {
    texts.iter().filter_map(|t| t.strip_prefix("writer ")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_lives_while_it_holds_its_lock_and_a_restart_knows() {
    let mut home = Home::new();
    home.probe_at("/proc/locks", OTHER);
    append(&home.session("a"), lines(1, 1));
    append(&home.session("never"), lines(1, 1));
    let lock = File::create(home.path("locks/a.lock")).unwrap();
    lock.lock().unwrap();
    let mut running = home.start();
    running.until(|r| said(&r.texts()).len() == 1).await;
    let event = running.events.last().unwrap();
    assert_eq!((event.session.as_str(), event.time), ("line 1", Some(event.observed)));
    assert_eq!(event.fact, Fact::Writer(Writer::Alive));
    assert!(event.id.is_some());
    running.end().await;

    // Killed while nobody looked: the file is left behind.
    drop(lock);
    let mut running = home.start();
    running.until(|r| !said(&r.texts()).is_empty()).await;
    running.rest(PROBES).await;
    assert_eq!(said(&running.texts()), ["gone"]);
    running.end().await;
    let mut running = home.start();
    running.rest(PROBES).await;
    assert_eq!(said(&running.texts()), Vec::<&str>::new(), "once is enough");
    let lock = File::create(running.home().path("locks/a.lock")).unwrap();
    lock.lock().unwrap();
    running.until(|r| said(&r.texts()) == ["alive"]).await;
    fs::remove_file(running.home().path("locks/a.lock")).unwrap();
    running.until(|r| said(&r.texts()) == ["alive", "gone"]).await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_left_behind_proves_a_death_only_where_all_locks_are_seen() {
    for (namespace, expected) in [(INITIAL, vec!["gone"]), (OTHER, vec![])] {
        let mut home = Home::new();
        home.probe_at("/proc/locks", namespace);
        append(&home.session("a"), lines(1, 1));
        append(&home.session("absent"), lines(1, 1));
        File::create(home.path("locks/a.lock")).unwrap();
        let mut running = home.start();
        running.rest(PROBES).await;
        assert_eq!(said(&running.texts()), expected, "{namespace}");
        running.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_that_cannot_be_made_says_nothing() {
    let mut home = Home::new();
    home.probe_at("/nowhere/locks", INITIAL);
    append(&home.session("a"), lines(1, 1));
    File::create(home.path("locks/a.lock")).unwrap();
    let mut running = home.start();
    running.rest(PROBES).await;
    assert_eq!(said(&running.texts()), Vec::<&str>::new());
    running.end().await;
}
