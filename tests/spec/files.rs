//! The status file on a real disk: races with its writer, both places, stops, life cycles, the running source.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::{
    Batch, Event, Fact, OrchestrationState, SessionId, SourceHealth, SourceId, SpecStatus, Timestamp,
};
use agent_session_exporter::sources::Context;
use agent_session_exporter::sources::spec::{Pace, Rewrite, STATUS_FILES, Times, start_in};
use agent_session_exporter::telemetry::Telemetry;
use agent_session_exporter::views::selection::Options;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};

use crate::stand::{
    Fold, RUNS, SHOP, at, decode, lines, moved, read, reducer, status, status_events, ts, value,
};

/// A running source over folders of its own.
struct Running {
    runtime: tokio::runtime::Runtime,
    batches: mpsc::Receiver<Batch>,
    stop: watch::Sender<bool>,
    telemetry: Arc<Telemetry>,
    fold: Fold,
    health: Vec<SourceHealth>,
    cursors: Vec<(u64, Vec<u8>)>,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    fn start(roots: Vec<PathBuf>, cursors: Vec<(u64, Vec<u8>)>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (out, batches) = mpsc::channel(64);
        let stop = watch::Sender::new(false);
        let telemetry = Arc::new(Telemetry::new());
        let context = Context {
            homes: Vec::new(),
            roots,
            live: Default::default(),
            machine: String::new(),
            max_age: Duration::from_secs(7 * 86_400),
            reducer: reducer(),
            out,
            cursors: cursors.into_iter().collect(),
            telemetry: telemetry.clone(),
            clock: Clock::system(),
            stop: stop.subscribe(),
        };
        let pace = Pace { every: Duration::from_millis(5), soon: Duration::from_millis(2) };
        let task = {
            let _inside = runtime.enter();
            start_in(context, pace)
        };
        let (fold, health, cursors) = (Fold::default(), Vec::new(), Vec::new());
        Self { runtime, batches, stop, telemetry, fold, health, cursors, task }
    }

    /// Folds what comes until it is as wanted.
    fn until(&mut self, what: &str, wanted: impl Fn(&Self) -> bool) {
        let started = Instant::now();
        while !wanted(self) {
            assert!(started.elapsed() < Duration::from_secs(20), "never seen: {what}");
            match self.batches.try_recv() {
                Ok(batch) => {
                    self.fold.take(batch.events);
                    self.health.extend(batch.health);
                    self.cursors.extend(batch.cursors.into_iter().filter_map(|c| Some((c.key, c.value?))));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// For a while nothing but rewrites is told.
    fn settle(&mut self) {
        let end = Instant::now() + Duration::from_millis(150);
        self.until("time passes", |_| Instant::now() > end);
    }

    fn errors(&self, reason: &str) -> u64 {
        self.telemetry.decode_errors.with_label_values(&["spec", reason]).get()
    }

    fn state(&self, session: &str) -> OrchestrationState {
        let facts = self.fold.facts(session);
        facts.orchestration.as_ref().unwrap().state.unwrap()
    }

    fn end(mut self) -> Vec<(u64, Vec<u8>)> {
        self.stop.send_replace(true);
        while self.batches.blocking_recv().is_some() {}
        self.runtime.block_on(&mut self.task).unwrap();
        assert_eq!(self.telemetry.watched_roots.with_label_values(&["polling"]).get(), 0);
        self.cursors
    }
}

fn project(above: &TempDir, name: &str, place: usize) -> (PathBuf, PathBuf) {
    let root = above.path().join(name);
    let file = root.join(STATUS_FILES[place]);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    (root, file)
}

fn knows(running: &Running, session: &str, specs: usize) -> bool {
    let snapshot = running.fold.snapshot();
    let own = snapshot.sessions.iter().flatten().find(|f| f.session.as_str() == session);
    own.and_then(|f| f.orchestration.as_ref()).is_some_and(|o| o.specs.len() == specs)
}

#[test]
fn both_places_are_read_and_a_file_caught_empty_or_half_changes_nothing() {
    for place in 0..STATUS_FILES.len() {
        let above = tempfile::tempdir().unwrap();
        let (root, file) = project(&above, "shop", place);
        fs::write(&file, read("files/orchestration-status.json")).unwrap();
        let mut running = Running::start(vec![root], Vec::new());
        running.until("the specs", |r| knows(r, "shop", 8));
        running.until("the first scan", |r| r.health.last().is_some_and(|h| h.scanned && h.up));
        let before = running.fold.run();
        let content = read("files/orchestration-status.json");
        for part in [0, 1, 900, content.len() - 3] {
            fs::write(&file, &content[..part]).unwrap();
            std::thread::sleep(Duration::from_millis(15));
        }
        fs::write(&file, &content).unwrap();
        running.settle();
        let after = running.fold.run();
        assert_eq!((after.specs, after.batch), (before.specs, before.batch));
        assert_eq!((running.errors("json"), running.errors("shape")), (0, 0), "races are no errors");
        assert!(running.telemetry.records.with_label_values(&["spec"]).get() > 0);
        assert_eq!(running.telemetry.source_up.with_label_values(&["spec", "shop"]).get(), 1);
        assert_eq!(running.telemetry.watched_roots.with_label_values(&["polling"]).get(), 1);
        running.end();
    }
}

#[test]
fn a_file_that_stays_damaged_is_counted_once_and_what_was_known_stays() {
    let above = tempfile::tempdir().unwrap();
    let (root, file) = project(&above, "shop", 0);
    fs::write(&file, read("files/orchestration-status.json")).unwrap();
    let mut running = Running::start(vec![root], Vec::new());
    running.until("the specs", |r| knows(r, "shop", 8));
    for (reason, content) in [("json", "{\"status\": \"running\", "), ("shape", "[1, 2]")] {
        fs::write(&file, content).unwrap();
        running.until("an error", |r| r.errors(reason) == 1);
        running.settle();
        assert_eq!((running.errors(reason), running.state("shop")), (1, OrchestrationState::Failed));
    }
    File::create(&file).unwrap().set_len(5 << 20).unwrap();
    running.until("an error", |r| r.errors("too_long") == 1);
    fs::write(&file, r#"{"status": "running", "startedAt": "2026-11-29T16:00:00Z"}"#).unwrap();
    running.until("it is read again", |r| r.state("shop") == OrchestrationState::Running);
    running.end();
}

#[test]
fn folders_of_one_name_are_told_apart_without_showing_a_path() {
    let above = tempfile::tempdir().unwrap();
    let mut roots = Vec::new();
    for folder in ["a/shop", "b/shop", "b/other"] {
        let (root, file) = project(&above, folder, 1);
        fs::write(&file, read("files/orchestration-status.json")).unwrap();
        roots.push(root);
    }
    // Named twice is one; what is not there is down.
    roots.push(above.path().join("b/../b/other"));
    roots.push(above.path().join("none"));
    let mut running = Running::start(roots, Vec::new());
    running.until("all of them", |r| r.health.iter().filter(|h| h.scanned).count() == 4);
    let snapshot = running.fold.snapshot();
    let runs = snapshot.sessions.iter().flatten().filter(|f| f.orchestration.is_some());
    let names: Vec<_> = runs
        .map(|f| (f.project.clone().unwrap().as_str().to_owned(), f.session.as_str().to_owned()))
        .collect();
    assert_eq!(names.len(), 3);
    assert!(names.contains(&("other".to_owned(), "other".to_owned())), "{names:?}");
    let shops: Vec<_> = names.iter().filter(|(project, _)| project == "shop").map(|(_, id)| id).collect();
    assert!(shops.len() == 2 && shops[0] != shops[1] && shops.iter().all(|id| id.len() == 13), "{shops:?}");
    let up = |endpoint: &str| running.telemetry.source_up.with_label_values(&["spec", endpoint]).get();
    assert_eq!((up("other"), up("none")), (1, 0));
    running.end();
}

#[test]
fn without_folders_the_first_scan_is_over_at_once() {
    let mut running = Running::start(Vec::new(), Vec::new());
    running.until("the scan", |r| r.health.iter().any(|h| h.scanned && h.up));
    running.end();
}

/// The recorded contents of every run written one by one, with the times they had.
#[test]
fn every_recorded_run_on_a_disk_ends_as_it_did() {
    for run in RUNS {
        let above = tempfile::tempdir().unwrap();
        let (root, file) = project(&above, "shop", 0);
        let recorded = lines(&format!("{run}.status.ndjson"));
        let moved_by = Clock::system().now().plus(-60_000).since(at(&recorded[0]));
        let mut running = Running::start(vec![root], Vec::new());
        for (line, n) in recorded.iter().zip(0..) {
            write_at(&above, &file, &moved(&line["snapshot"], moved_by), n);
            let wanted = line["snapshot"]["specs"].as_object().into_iter().flatten().map(|(name, spec)| {
                let retries = spec["retryCount"].as_u64().unwrap();
                (name.clone(), spec["status"].as_str().unwrap().to_owned(), retries)
            });
            let wanted: Vec<_> = wanted.collect();
            running.until("the content", |r| {
                r.telemetry.records.with_label_values(&["spec"]).get() > n
                    && knows(r, "shop", wanted.len())
                    && {
                        let own = r.fold.run().specs.into_iter();
                        let own = own.map(|s| {
                            (s.name.as_str().to_owned(), s.status.as_str().to_owned(), s.retries.into())
                        });
                        own.collect::<Vec<_>>() == wanted
                    }
            });
        }
        let alone = Fold::of(status_events(run));
        let end = at(recorded.last().unwrap());
        let ends_as = alone.state(SHOP, end);
        running.until("the end", |r| {
            r.fold.state(SHOP, end.plus(moved_by)) == ends_as && r.fold.run().totals() == alone.run().totals()
        });
        assert_eq!(running.fold.run().specs_by_status(), alone.run().specs_by_status(), "{run}");
        assert_eq!(running.fold.sums(), alone.sums(), "{run}");
        assert!(!running.end().is_empty(), "the position is kept");
    }
}

/// Puts a content in the place of the file, written so many seconds after a minute ago.
#[expect(clippy::disallowed_methods, reason = "files have the times of the machine")]
fn write_at(above: &TempDir, file: &Path, content: &Value, second: u64) {
    let staged = above.path().join("staged");
    fs::write(&staged, content.to_string()).unwrap();
    let at = SystemTime::now() - Duration::from_secs(60) + Duration::from_secs(second);
    File::options().write(true).open(&staged).unwrap().set_modified(at).unwrap();
    fs::rename(&staged, file).unwrap();
}

fn content(status: &str) -> Value {
    json!({"status": status, "startedAt": "2026-11-29T16:00:00.000Z", "specs": {"a": {"status": "running", "batch": 0}}})
}

#[test]
fn a_stop_that_is_written_over_was_none() {
    let recorded: Vec<Value> = serde_json::from_slice(&read("stop-is-overwritten.json")).unwrap();
    let start = ts("2026-11-29T16:00:00Z");
    let (mut decoder, mut fold) = (status(), Fold::default());
    let mut states = Vec::new();
    for line in &recorded {
        let now = start.plus((line["t_s"].as_f64().unwrap() * 1000.0) as i64);
        fold.take(decode(&mut decoder, &content(line["status"].as_str().unwrap()), now));
        let stop = fold.facts(SHOP).stop.map(|s| (s.requested_at.since(start), s.pending));
        states.push((fold.run().state_at(now).as_str(), stop));
    }
    let asked = Some((6_210, true));
    assert_eq!(states, [("running", None), ("running", asked), ("running", asked), ("failed", asked)]);
    let families = fold.scrape(start.plus(20_000), Options::default());
    let at = start.plus(6_210).as_seconds();
    assert_eq!(value(&families, "stop_requested_timestamp_seconds", &[]), Some(at));
    // A request that was taken back is none that anybody waits for.
    let now = start.plus(21_000);
    let mut cleared = Event::new(&SourceId::from("spec"), &SessionId::from(SHOP), now, Fact::StopCleared);
    cleared.time = Some(now);
    fold.take([cleared]);
    let families = fold.scrape(now, Options::default());
    assert_eq!(value(&families, "stop_requested_timestamp_seconds", &[]), None);
    // Another run was not asked to stop.
    let mut next = content("running");
    next["startedAt"] = json!("2026-11-29T17:00:00Z");
    fold.take(decode(&mut decoder, &next, ts("2026-11-29T17:00:01Z")));
    assert_eq!(fold.facts(SHOP).stop, None);
}

#[test]
fn a_stop_is_believed_when_it_stays_or_nobody_is_left_to_write_over_it() {
    let start = ts("2026-11-29T16:00:00Z");
    let rewritten = |fold: &mut Fold| {
        let mut decoder = status();
        fold.take(decode(&mut decoder, &content("running"), start.plus(1_000)));
        fold.take(decode(&mut decoder, &content("stopped"), start.plus(2_000)));
        assert_eq!(fold.state(SHOP, start.plus(2_000)), "running/working");
        decoder
    };
    let mut fold = Fold::default();
    let mut decoder = rewritten(&mut fold);
    fold.take(decode(&mut decoder, &content("stopped"), start.plus(3_000)));
    assert_eq!(fold.state(SHOP, start.plus(3_000)), "cancelled/stopped");
    assert_eq!(fold.run().ended, Some(start.plus(2_000)));
    assert_eq!(fold.state("shop/a", start.plus(3_000)), "cancelled/stopped");
    assert!(!fold.facts(SHOP).stop.unwrap().pending);

    let mut fold = Fold::default();
    let mut decoder = rewritten(&mut fold);
    let mut out = Vec::new();
    decoder.left_alone(start.plus(11_000), &mut out);
    assert!(out.is_empty());
    decoder.left_alone(start.plus(12_001), &mut out);
    fold.take(out);
    assert_eq!(fold.state(SHOP, start.plus(12_001)), "cancelled/stopped");
}

#[test]
fn running_without_rewrites_is_unknown() {
    let start = ts("2026-11-29T16:00:00Z");
    let (mut decoder, mut fold) = (status(), Fold::default());
    for second in 1..=30 {
        fold.take(decode(&mut decoder, &content("running"), start.plus(second * 1_000)));
    }
    let last = start.plus(30_000);
    assert_eq!(fold.state(SHOP, last.plus(10_000)), "running/working");
    assert_eq!(fold.state(SHOP, last.plus(10_001)), "unknown/silent_too_long");
    assert_eq!(fold.state("shop/a", last.plus(10_001)), "unknown/silent_too_long");
    let families = fold.scrape(last.plus(130_000), Options::default());
    assert_eq!(value(&families, "state", &[("state", "unknown")]), Some(1.0));
    assert_eq!(value(&families, "state", &[("state", "running")]), Some(0.0));
    assert_eq!(value(&families, "last_update_timestamp_seconds", &[]), Some(last.as_seconds()));
    // Rewritten again, it lives.
    fold.take(decode(&mut decoder, &content("running"), last.plus(200_000)));
    assert_eq!(fold.state(SHOP, last.plus(200_500)), "running/working");
    // What the file says at its end holds for ever.
    fold.take(decode(&mut decoder, &content("completed"), last.plus(201_000)));
    assert_eq!(fold.state(SHOP, last.plus(86_400_000)), "completed/workflow_complete");
}

fn with_files(base: &Path) -> Times {
    for (spec, file) in
        [("101-parser", "lifecycle-completed"), ("107-slow-build", "lifecycle-failed-stays-in-progress")]
    {
        fs::create_dir_all(base.join("specs").join(spec)).unwrap();
        fs::write(base.join("specs").join(spec).join("lifecycle.json"), read(&format!("files/{file}.json")))
            .unwrap();
    }
    fs::create_dir_all(base.join("config")).unwrap();
    Times::beside(&base.join("config/orchestration-status.json"))
}

#[test]
fn other_files_know_times_better() {
    let base = tempfile::tempdir().unwrap();
    let mut times = with_files(base.path());
    assert_eq!(times.of("101-parser", SpecStatus::Completed), Some(ts("2026-11-29T15:29:18.464Z")));
    assert_eq!(times.of("107-slow-build", SpecStatus::Running), Some(ts("2026-11-29T15:29:24.490Z")));
    assert_eq!(times.of("107-slow-build", SpecStatus::Failed), None);
    assert_eq!(times.of("../specs/101-parser", SpecStatus::Completed), None, "a name is no path");
    fs::write(base.path().join("config/agent-registry.json"), read("files/agent-registry-running.json"))
        .unwrap();
    fs::remove_dir_all(base.path().join("specs/101-parser")).unwrap();
    let mut times = Times::beside(&base.path().join("config/orchestration-status.json"));
    assert_eq!(times.of("101-parser", SpecStatus::Running), Some(ts("2026-11-29T15:30:38.428Z")));

    // Looked at first in the middle of the run: what was completed then was so at its own time.
    let line = lines("3.0.0-timeouts-launch-holds.status.ndjson").swap_remove(9);
    let base = tempfile::tempdir().unwrap();
    let mut times = with_files(base.path());
    let (mut decoder, mut out) = (status(), Vec::new());
    let (bytes, mtime) = (line["snapshot"].to_string(), ts("2026-11-29T15:29:24.500Z"));
    let rewrite = Rewrite { bytes: bytes.as_bytes(), mtime, observed: mtime };
    decoder.decode(&rewrite, &mut times, &mut out).unwrap();
    let since = |name: &str, events: &[Event]| -> Timestamp {
        let own = |e: &&Event| matches!(&e.fact, Fact::Spec(s) if s.spec.as_str() == name);
        events.iter().find(own).and_then(|e| e.time).unwrap()
    };
    assert_eq!(since("101-parser", &out), ts("2026-11-29T15:29:18.464Z"));
    assert_eq!(since("107-slow-build", &out), ts("2026-11-29T15:29:24.490Z"));
    assert_eq!(
        since("102-cli", &out),
        ts("2026-11-29T15:29:17.454Z"),
        "no earlier than the run, and nobody knows"
    );
    let mut fold = Fold { epoch: ts("2026-11-29T15:29:18.000Z"), ..Fold::default() };
    fold.take(out);
    // The run began before counting did; 101 was completed after.
    assert_eq!(fold.sums(), ["shop Spec(Completed) 1"]);
    assert_eq!(fold.run().totals().holds, 3);
}
