//! Every sample of the exposition is a point and every point a sample, whatever a backend makes of names.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use agent_session_exporter::otlp::metrics::Limits;
use agent_session_exporter::views::families;
use agent_session_exporter::views::prometheus::{Format, Renderer};
use agent_session_exporter::views::selection::{Memory, Options, SeriesMode};

use crate::common::owner::now;
use crate::exposition::{Dialect, parse};
use crate::stand::{Labels, Shown, metrics, requests, rested, shown, taken};

/// What Prometheus makes of names: its setting `translation_strategy`.
#[derive(Clone, Copy, Debug)]
enum Strategy {
    UnderscoreEscapingWithSuffixes,
    NoUtf8EscapingWithSuffixes,
    NoTranslation,
}

impl Strategy {
    const ALL: [Self; 3] =
        [Self::UnderscoreEscapingWithSuffixes, Self::NoUtf8EscapingWithSuffixes, Self::NoTranslation];

    /// The name of a metric, by the rules of Prometheus 3.
    fn translate(self, point: &Shown) -> String {
        let is_ratio = point.unit == "1" && !point.is_counter && point.suffix.is_empty();
        assert!(point.unit.is_empty() || point.unit == "1", "units of which the rules are not written here");
        match self {
            // Words, in which `total` moves to the end and the unit stands before it.
            Self::UnderscoreEscapingWithSuffixes => {
                let mut words: Vec<&str> = point
                    .metric
                    .split(|c: char| !c.is_ascii_alphanumeric() && c != ':')
                    .filter(|w| !w.is_empty())
                    .collect();
                if point.is_counter {
                    words.retain(|w| *w != "total");
                    words.push("total");
                }
                if is_ratio {
                    words.retain(|w| *w != "ratio");
                    words.push("ratio");
                }
                words.join("_")
            }
            Self::NoUtf8EscapingWithSuffixes => {
                let bare = point.metric.strip_suffix("_total");
                match bare {
                    Some(bare) if point.is_counter => format!("{bare}_total"),
                    _ if point.is_counter => format!("{}_total", point.metric),
                    _ if is_ratio => format!("{}_ratio", point.metric),
                    _ => point.metric.clone(),
                }
            }
            Self::NoTranslation => point.metric.clone(),
        }
    }
}

/// What the process itself does goes on between two looks.
fn stands_still(name: &str) -> bool {
    !name.starts_with("process_")
}

type Series = BTreeMap<(String, Labels), f64>;

fn unique(samples: impl Iterator<Item = ((String, Labels), f64)>) -> Series {
    let mut all = Series::new();
    for (series, value) in samples {
        assert!(all.insert(series.clone(), value).is_none(), "{series:?} twice");
    }
    all
}

#[test]
fn every_sample_is_a_point_whatever_a_backend_makes_of_names() {
    let (telemetry, snapshot) = rested();
    let now = now();
    let mut sizes = Vec::new();
    for mode in SeriesMode::ALL {
        let options = Options { mode, ..Options::default() };
        let renderer = Renderer::new(options, telemetry.clone());
        let metrics_of_moment = taken(&snapshot, &options, &telemetry, now);
        let body = renderer.render(&snapshot, now, Format::Text);
        let families = parse(&body, Dialect::Text).unwrap();
        let samples = families.iter().flat_map(|f| &f.samples);
        let samples = samples.map(|s| ((s.name.clone(), s.labels.clone()), s.value));
        let samples = unique(samples.filter(|((name, _), _)| stands_still(name)));
        let sent = requests(Limits::default()).of(metrics_of_moment, now);
        let points = shown(metrics(&sent));
        assert!(points.iter().any(|p| !stands_still(&p.metric)), "the process is shown, too");
        for strategy in Strategy::ALL {
            let named = points
                .iter()
                .map(|p| ((format!("{}{}", strategy.translate(p), p.suffix), p.labels.clone()), p.value));
            let named = unique(named.filter(|((name, _), _)| stands_still(name)));
            for (series, value) in &samples {
                let point = named.get(series);
                assert!(
                    point.is_some_and(|p| p.to_bits() == value.to_bits()),
                    "{strategy:?}: {series:?} is {value}, {point:?}"
                );
            }
            for series in named.keys() {
                assert!(samples.contains_key(series), "{strategy:?}: {series:?} is not in the exposition");
            }
        }
        // Names, kinds and texts.
        for family in families {
            let metric = metrics(&sent).into_iter().find(|m| m.name == family.name).unwrap();
            assert_eq!((metric.description.as_str(), metric.unit.as_str()), (family.help.as_str(), ""));
        }
        sizes.push((mode.as_str(), samples.len()));
    }
    let size = |of: &str| sizes.iter().find(|(mode, _)| *mode == of).unwrap().1;
    assert!(size("all") > size("full") && size("full") > size("attention"), "{sizes:?}");
    assert!(size("attention") > size("off"), "{sizes:?}");
}

#[test]
fn most_families_were_compared() {
    let (telemetry, snapshot) = rested();
    let options = Options { mode: SeriesMode::All, ..Options::default() };
    let seen = taken(&snapshot, &options, &telemetry, now());
    let all = families::all().count();
    let seen = families::all().filter(|f| seen.iter().any(|m| m.name == f.name)).count();
    assert!(seen * 3 >= all * 2, "only {seen} of {all} have a series");
}

/// A word that translation would move stands at the end already.
#[test]
fn no_name_changes_by_translation() {
    let telemetry = agent_session_exporter::telemetry::Telemetry::new();
    let own = telemetry.catalogue().iter().map(|m| (m.name.clone(), families::Kind::of_registry(m.kind)));
    let all = families::all().map(|f| (f.name.to_owned(), f.kind)).chain(own);
    for (name, kind) in all {
        let point = Shown {
            metric: name.clone(),
            suffix: "",
            unit: String::new(),
            labels: Labels::new(),
            value: 0.0,
            is_counter: kind == families::Kind::Counter,
            is_ended: false,
            since: 0,
            time: 0,
        };
        for strategy in Strategy::ALL {
            assert_eq!(strategy.translate(&point), name, "{strategy:?}");
        }
    }
}

#[test]
fn sums_say_since_when_and_nothing_else_does() {
    let (telemetry, snapshot) = rested();
    let now = now();
    let metrics_of_moment = taken(&snapshot, &Options::default(), &telemetry, now);
    let sent = requests(Limits::default()).of(metrics_of_moment, now);
    let nanos =
        |t: agent_session_exporter::event::Timestamp| u64::try_from(t.as_millis()).unwrap() * 1_000_000;
    let (mut gauges, mut of_store, mut of_process) = (0, 0, 0);
    assert!(snapshot.counting_since.as_millis() > 0);
    for point in shown(metrics(&sent)) {
        assert_eq!(point.time, nanos(now));
        if !point.is_counter && point.suffix.is_empty() {
            assert_eq!(point.since, 0, "{}", point.metric);
            gauges += 1;
        } else if ["agent_session_exporter_", "process_"].iter().any(|p| point.metric.starts_with(p)) {
            assert_eq!(point.since, nanos(snapshot.process_start), "{}", point.metric);
            of_process += 1;
        } else {
            assert_eq!(point.since, nanos(snapshot.counting_since), "{}", point.metric);
            of_store += 1;
        }
    }
    assert!(gauges > 50 && of_store > 50 && of_process > 5, "{gauges} {of_store} {of_process}");
}

/// Sums go on over a restart with the start they had; what the process counts begins anew.
#[test]
fn the_start_outlives_the_process() {
    use crate::common::disk::Disk;
    use crate::common::owner::{Life, open, options};
    use crate::stand::{everything, feed};

    let disk = Disk::default();
    let life = Life::with(open(&disk), options());
    feed(&life, &everything(now().as_millis()));
    let before = life.end();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let life = Life::with(open(&disk), options());
    let after = life.until("it is read", |s| s.slots().count() >= 3);
    assert!(after.process_start > before.process_start);
    let of = |snapshot, options: &Options| {
        let all = taken(snapshot, options, &life.telemetry, now());
        let turns = all.into_iter().find(|m| m.name == "agent_session_turns_total").unwrap();
        (turns.since, turns.points)
    };
    assert_eq!(of(&before, &Options::default()), of(&after, &Options::default()));
    life.end();
}

/// Which sessions are shown while attention lingers does not depend on who asks.
#[test]
fn scrapes_and_exports_share_what_they_remember() {
    let (telemetry, snapshot) = rested();
    let memory = Arc::new(Mutex::new(Memory::default()));
    let options = Options { mode: SeriesMode::Full, max_sessions: 1, ..Options::default() };
    let first = options.select(&snapshot, now(), &mut memory.lock().unwrap()).evicted;
    assert!(first > 0, "one of two has to go");
    let renderer = Renderer::sharing(options, telemetry.clone(), memory);
    drop(renderer.render(&snapshot, now(), Format::Text));
    let evicted = telemetry.sessions_evicted.with_label_values(&["limit"]).get();
    assert_eq!(evicted, 0, "the scrape counts those again that the export had counted");
}
