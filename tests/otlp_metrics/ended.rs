//! A series that is no more gets one last point that says so.

use agent_session_exporter::event::Timestamp;
use agent_session_exporter::otlp::metrics::{Limits, Metric, Request, Requests};
use agent_session_exporter::views::selection::{Options, SeriesMode};

use crate::common::owner::{Life, now};
use crate::stand::{Shown, fed, feed, metrics, requests, shown, taken};

fn all() -> Options {
    Options { mode: SeriesMode::All, ..Options::default() }
}

fn ends(requests: &[Request]) -> Vec<Shown> {
    shown(metrics(requests)).into_iter().filter(|p| p.is_ended).collect()
}

fn export(requests: &mut Requests, metrics: Vec<Metric>, now: Timestamp, arrives: bool) -> Vec<Request> {
    let sent = requests.of(metrics, now);
    if arrives {
        sent.iter().for_each(|r| requests.arrived(r));
    }
    sent
}

/// Takes a session's series away.
fn delete(life: &Life, session: &str) {
    let line = format!(
        r#"{{"schemaVersion":"1","id":"gone-{session}","source":"everything","sessionId":"{session}","type":"session.deleted","data":{{}}}}"#
    );
    feed(life, &(line + "\n"));
}

#[test]
fn a_series_that_ends_gets_one_last_point() {
    let (life, snapshot) = fed();
    let mut requests = requests(Limits::default());
    let first = export(&mut requests, taken(&snapshot, &all(), &life.telemetry, now()), now(), true);
    assert!(ends(&first).is_empty(), "nothing was there before");
    let own = |p: &&Shown| p.labels.get("session").is_some_and(|s| s == "works");
    let had = shown(metrics(&first)).iter().filter(own).count();
    assert!(had > 20, "{had}");

    delete(&life, "works");
    let snapshot = life.until("it is gone", |s| {
        let all = taken(s, &all(), &life.telemetry, now());
        let info = all.iter().find(|m| m.name == "agent_session_info").unwrap();
        info.points.len() == 1
    });
    let moment = now();
    let points = || taken(&snapshot, &all(), &life.telemetry, moment);
    // While it does not arrive it is said again.
    for arrives in [false, true] {
        let second = export(&mut requests, points(), moment, arrives);
        let ended = ends(&second);
        assert_eq!(ended.iter().filter(own).count(), had);
        for end in ended.iter().filter(own) {
            let before = shown(metrics(&first))
                .into_iter()
                .find(|p| (&p.metric, &p.suffix, &p.labels) == (&end.metric, &end.suffix, &end.labels));
            let before = before.unwrap();
            assert_eq!((before.is_counter, &before.unit), (end.is_counter, &end.unit));
            assert_eq!(end.time, u64::try_from(moment.as_millis()).unwrap() * 1_000_000);
        }
    }
    let third = export(&mut requests, points(), moment, true);
    assert!(ends(&third).is_empty(), "it was said");
    life.end();
}

#[test]
fn a_family_whose_last_series_ends_is_still_told() {
    let (life, snapshot) = fed();
    let mut requests = requests(Limits::default());
    let mut points = taken(&snapshot, &all(), &life.telemetry, now());
    export(&mut requests, points.clone(), now(), true);
    let gone: Vec<Metric> =
        points.extract_if(.., |m| m.name.ends_with("_seconds") || m.name.ends_with("_total")).collect();
    let kinds: std::collections::BTreeSet<&str> = gone.iter().map(|m| m.kind.as_str()).collect();
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["counter", "gauge", "histogram"]);
    let sent = export(&mut requests, points.clone(), now(), true);
    for metric in &gone {
        let told = metrics(&sent).into_iter().find(|m| m.name == metric.name).unwrap();
        let told = shown([told]);
        assert!(told.iter().all(|p| p.is_ended), "{}", metric.name);
        let parts = told.len() / metric.points.len();
        assert_eq!(parts * metric.points.len(), told.len());
        // Ten bounds and one more, sum and count: each is a series of its own.
        assert_eq!(parts > 1, metric.kind.as_str() == "histogram", "{}", metric.name);
    }
    assert!(ends(&export(&mut requests, points, now(), true)).is_empty());
    life.end();
}

#[test]
fn what_comes_back_can_end_again() {
    let (life, snapshot) = fed();
    let mut requests = requests(Limits::default());
    let points = taken(&snapshot, &all(), &life.telemetry, now());
    let info = |m: &Metric| m.name == "agent_session_info";
    let without: Vec<Metric> = points.iter().filter(|m| !info(m)).cloned().collect();
    for _ in 0..3 {
        assert!(ends(&export(&mut requests, points.clone(), now(), true)).is_empty());
        assert_eq!(ends(&export(&mut requests, without.clone(), now(), true)).len(), 2);
    }
    life.end();
}
