//! Status files that nobody honest writes, and content that must not leave.

use std::fs;

use agent_session_exporter::session::orchestration::MAX_SPECS;
use agent_session_exporter::sources::DecodeError;
use agent_session_exporter::sources::spec::{Rewrite, Times};
use agent_session_exporter::views::selection::Options;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::stand::{Fold, Pushed, RUNS, SHOP, at, decode, get, item, lines, status, ts};

const MARKER: &str = "LEAKMARKERq7x";

#[test]
fn wrong_types_are_left_out_and_the_rest_is_taken() {
    let content = json!({
        "status": 7, "startedAt": {"a": 1}, "completedAt": "yesterday", "currentBatch": "two", "totalBatches": -3,
        "specs": {"a": 5, "b": {"status": ["x"], "batch": 1e300, "retryCount": -1, "error": 9}, "": {"status": "running"},
                  "c": {"status": "exploded"}, "d": {"status": "running", "batch": 1}},
        "rateLimit": [], "parallel": {"maxParallel": "4", "adaptive": "yes", "floor": 1.5},
    });
    let mut decoder = status();
    let now = ts("2026-11-29T16:00:00Z");
    let fold = Fold::of(decode(&mut decoder, &content, now));
    let run = fold.run();
    assert_eq!((run.batch, run.batches, run.parallel.max, run.parallel.floor), (None, None, None, Some(1)));
    let names: Vec<_> = run.specs.iter().map(|s| (s.name.as_str(), s.status.as_str(), s.batch)).collect();
    let wanted =
        [("", "running", None), ("b", "pending", None), ("c", "pending", None), ("d", "running", Some(2))];
    assert_eq!(names, wanted);
    assert_eq!((decoder.dropped_numbers(), decoder.unknown_words().len()), (5, 1));
    assert_eq!(fold.state(SHOP, now), "unknown/never_started");
    fold.scrape(now, Options::default());
    assert_eq!(get(fold.snapshot(), "/api/v1/orchestrations/shop/status").0, 200);
}

#[test]
fn too_many_specs_are_counted_and_too_deep_ones_refused() {
    let specs: serde_json::Map<_, _> = (0..10_000)
        .map(|n| (format!("spec-{n:05}"), json!({"status": "failed", "batch": 0, "retryCount": 9})))
        .collect();
    let content = json!({"status": "running", "startedAt": "2026-11-29T16:00:00Z", "specs": specs});
    let now = ts("2026-11-29T16:00:01Z");
    let fold = Fold::of(decode(&mut status(), &content, now));
    assert_eq!((fold.run().specs.len(), fold.run().beyond), (MAX_SPECS, (10_000 - MAX_SPECS) as u64));
    let (code, report) = get(fold.snapshot(), "/api/v1/orchestrations/shop/status");
    assert_eq!((code, report["specsBeyond"].as_u64()), (200, Some((10_000 - MAX_SPECS) as u64)));

    let deep = format!("{{\"specs\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let rewrite = Rewrite { bytes: deep.as_bytes(), mtime: now, observed: now };
    let mut out = Vec::new();
    let refused = status().decode(&rewrite, &mut Times::default(), &mut out);
    assert_eq!((refused, out.len()), (Err(DecodeError::Json), 0));
}

#[test]
fn names_of_specs_are_data() {
    for name in ["../../etc/passwd", "a\"b\\c\nd", &"x".repeat(5_000), "\u{202e}evil", "a/b/c"] {
        let content = json!({"status": "running", "startedAt": "2026-11-29T16:00:00Z",
                             "specs": {name: {"status": "failed", "retryCount": 1}}});
        let base = tempfile::tempdir().unwrap();
        fs::create_dir_all(base.path().join("etc")).unwrap();
        let fold = Fold::of(decode(&mut status(), &content, ts("2026-11-29T16:00:01Z")));
        assert!(fold.run().specs[0].name.as_str().len() <= 200);
        // The strict reader of the exposition finds no fault.
        fold.scrape(ts("2026-11-29T16:00:02Z"), Options::default());
    }
}

/// Plants the marker in every text that is content.
fn plant(key: &str, value: &Value) -> Value {
    match value {
        Value::String(text)
            if ["error", "lastError", "stderr", "text", "command", "aggregated_output", "message"]
                .contains(&key) =>
        {
            json!(format!("{text}{MARKER}"))
        }
        Value::Array(list) => list.iter().map(|v| plant(key, v)).collect(),
        Value::Object(object) => {
            Value::Object(object.iter().map(|(k, v)| (k.clone(), plant(k, v))).collect())
        }
        other => other.clone(),
    }
}

#[test]
fn no_content_leaves() {
    let mut planted = 0;
    for run in RUNS {
        let mut fold = Fold::default();
        let mut all = Vec::new();
        let mut decoder = status();
        for line in lines(&format!("{run}.status.ndjson")) {
            let content = plant("", &line["snapshot"]);
            planted += usize::from(content.to_string().contains(MARKER));
            all.extend(decode(&mut decoder, &content, at(&line)));
        }
        assert!(!String::from_utf8_lossy(&decoder.checkpoint()).contains(MARKER));
        let mut pushed = Pushed::new();
        for (file, kind) in [("events", "orchestrator.event"), ("codex", "orchestrator.codex")] {
            if run.contains("cycle") {
                continue;
            }
            for line in lines(&format!("{run}.{file}.ndjson")) {
                let record = plant("", &line);
                planted += usize::from(record.to_string().contains(MARKER));
                all.push(pushed.event(&item(kind, &record)));
            }
        }
        let end = all.iter().filter_map(|e| e.time).max().unwrap();
        assert!(!format!("{all:?}").contains(MARKER), "{run}");
        fold.take(all);
        let shown = format!("{:?}", fold.scrape(end, Options::default()));
        let report = get(fold.snapshot(), "/api/v1/orchestrations/shop/status").1.to_string();
        let sessions = get(fold.snapshot(), "/api/v1/sessions?children=1").1.to_string();
        for text in [shown, report, sessions] {
            assert!(!text.contains(MARKER), "{run}");
        }
    }
    assert!(planted > 100, "{planted}");
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|n| json!(n)),
        prop_oneof![
            Just("running"),
            Just("stopped"),
            Just("completed"),
            Just("2026-11-29T16:00:00Z"),
            Just("é\n")
        ]
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        let field = prop_oneof![
            Just("status"),
            Just("batch"),
            Just("retryCount"),
            Just("error"),
            Just("signalCount"),
            Just("specName")
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::hash_map(field, inner, 0..4)
                .prop_map(|m| Value::Object(m.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_content_is_taken_or_left_and_what_is_shown_is_valid(
        fields in prop::collection::vec((0usize..9, any_value()), 0..9),
        again in any::<bool>(),
    ) {
        const NAMES: [&str; 9] = ["status", "startedAt", "completedAt", "currentBatch", "totalBatches", "specs",
                                  "rateLimit", "parallel", "unheard"];
        let content: Value = Value::Object(fields.into_iter().map(|(n, v)| (NAMES[n].to_owned(), v)).collect());
        let mut decoder = status();
        let now = ts("2026-11-29T16:00:01Z");
        let mut fold = Fold::of(decode(&mut decoder, &content, now));
        if again {
            fold.take(decode(&mut decoder, &json!({"status": "running"}), now.plus(1_000)));
        }
        fold.scrape(now.plus(2_000), Options::default());
        prop_assert_eq!(get(fold.snapshot(), "/api/v1/orchestrations").0, 200);
    }
}
