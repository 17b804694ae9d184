//! The API document and the answers agree, both ways.

use std::collections::BTreeSet;
use std::sync::Arc;

use agent_session_exporter::event::*;
use agent_session_exporter::session::{Facts, Snapshot, State};
use agent_session_exporter::views::guard::{AllowedHosts, guard};
use agent_session_exporter::views::http::paths;
use agent_session_exporter::views::status::SCHEMA_JSON;
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use crate::make::{MINUTE, Story, ask, encode, every_state, get_json, maximal, now, site, snapshot};

/// Requests that between them bring every documented answer of the reading routes but 401, which needs a socket:
/// declared path, request, host, expected status.
const REQUESTS: [(&str, &str, &str, u16); 42] = [
    ("/", "/", "localhost", 200),
    ("/", "/", "evil.example", 403),
    ("/metrics", "/metrics", "localhost", 200),
    ("/metrics", "/metrics", "evil.example", 403),
    ("/-/healthy", "/-/healthy", "localhost", 200),
    ("/-/healthy", "/-/healthy", "evil.example", 403),
    ("/-/ready", "/-/ready", "localhost", 200),
    ("/-/ready", "/-/ready", "evil.example", 403),
    ("/api/v1/sessions", "/api/v1/sessions?children=true", "localhost", 200),
    ("/api/v1/sessions", "/api/v1/sessions?limit=1", "localhost", 200),
    ("/api/v1/sessions", "/api/v1/sessions?limit=x", "localhost", 400),
    ("/api/v1/sessions", "/api/v1/sessions", "evil.example", 403),
    (STATUS, "/api/v1/sessions/push/max/status", "localhost", 200),
    (STATUS, "/api/v1/sessions/push/none/status", "localhost", 404),
    (STATUS, "/api/v1/sessions/push/%FF/status", "localhost", 400),
    (STATUS, "/api/v1/sessions/push/max/status", "evil.example", 403),
    (EXPLAIN, "/api/v1/sessions/push/max/explain", "localhost", 200),
    (EXPLAIN, "/api/v1/sessions/push/failed%2Fauth/explain", "localhost", 200),
    (EXPLAIN, "/api/v1/sessions/push/completed%2Frun_complete/explain", "localhost", 200),
    (EXPLAIN, "/api/v1/sessions/push/none/explain", "localhost", 404),
    (EXPLAIN, "/api/v1/sessions/push/%FF/explain", "localhost", 400),
    (EXPLAIN, "/api/v1/sessions/push/max/explain", "evil.example", 403),
    (ALIAS, "/api/sessions/max/status", "localhost", 200),
    (ALIAS, "/api/sessions/both/status", "localhost", 409),
    (ALIAS, "/api/sessions/none/status", "localhost", 404),
    (ALIAS, "/api/sessions/%FF/status", "localhost", 400),
    (ALIAS, "/api/sessions/max/status", "evil.example", 403),
    (RUNS, "/api/v1/orchestrations", "localhost", 200),
    (RUNS, "/api/v1/orchestrations", "evil.example", 403),
    (RUN, "/api/v1/orchestrations/run/status?source=spec", "localhost", 200),
    (RUN, "/api/v1/orchestrations/bare/status", "localhost", 200),
    (RUN, "/api/v1/orchestrations/none/status", "localhost", 404),
    (RUN, "/api/v1/orchestrations/run/status", "localhost", 409),
    (RUN, "/api/v1/orchestrations/%FF/status", "localhost", 400),
    (RUN, "/api/v1/orchestrations/run/status", "evil.example", 403),
    ("/api/v1/openapi.json", "/api/v1/openapi.json", "localhost", 200),
    ("/api/v1/openapi.json", "/api/v1/openapi.json", "evil.example", 403),
    (SCHEMA, "/api/v1/schema/event.json", "localhost", 200),
    (SCHEMA, "/api/v1/schema/status.json", "localhost", 200),
    (SCHEMA, "/api/v1/schema/none.json", "localhost", 404),
    (SCHEMA, "/api/v1/schema/%FF", "localhost", 400),
    (SCHEMA, "/api/v1/schema/event.json", "evil.example", 403),
];
const STATUS: &str = "/api/v1/sessions/{source}/{session}/status";
const EXPLAIN: &str = "/api/v1/sessions/{source}/{session}/explain";
const ALIAS: &str = "/api/sessions/{session}/status";
const RUNS: &str = "/api/v1/orchestrations";
const RUN: &str = "/api/v1/orchestrations/{orchestration}/status";
const SCHEMA: &str = "/api/v1/schema/{name}";
const PUSH: &str = "/api/v1/events";

fn full() -> Snapshot {
    let now = now();
    let mut sessions = every_state(now);
    sessions.push(maximal(now).facts());
    for source in ["push", "codex"] {
        sessions.push(Story::new(source, "both", now).turn(MINUTE).facts());
    }
    sessions.extend(["spec", "runner"].map(|source| full_run(Story::new(source, "run", now))));
    let bare = Fact::Orchestration(Box::default());
    sessions.push(Story::new("spec", "bare", now).ago(MINUTE, bare).facts());
    let child = Story::new("push", "child", now).child_of("both").turn(MINUTE);
    sessions.push(child.action(MINUTE, "q", ActionKind::Question, Certainty::Certain).facts());
    snapshot(sessions)
}

/// An orchestration of which everything is known.
fn full_run(story: Story) -> Option<Arc<Facts>> {
    let mut spec = SpecUpdate::of(Name::from("101-parser")).with(SpecStatus::Failed);
    (spec.batch, spec.retries, spec.error) = (Some(1), Some(2), Some(ErrorClass::Exit));
    (spec.turn, spec.thread) = (true, Some(Id::from("thread")));
    let limit = LimitUpdate {
        spec: Some(Name::from("102-cli")),
        retry: Some(1),
        delay_ms: Some(900),
        hold_ms: Some(100),
        class: Some(LimitClass::Http429),
        ..LimitUpdate::default()
    };
    let launch = LaunchUpdate {
        budget: Some(6),
        window_ms: Some(60_000),
        used: Some(6),
        hold_ms: Some(2_000),
        held: true,
        ..LaunchUpdate::default()
    };
    let parallel = |change| ParallelUpdate {
        adaptive: Some(true),
        max: Some(4),
        effective: Some(2),
        floor: Some(1),
        reason: Some(ThrottleReason::RateLimit),
        change: Some(change),
        ..ParallelUpdate::default()
    };
    let run = OrchestrationUpdate {
        state: Some(OrchestrationState::Failed),
        batch: Some(1),
        batches: Some(2),
        specs: vec![spec],
        beyond: 3,
        unattributed: true,
        ..OrchestrationUpdate::default()
    };
    let story = story.ago(5 * MINUTE, Fact::Orchestration(Box::new(run)));
    let story =
        story.ago(4 * MINUTE, Fact::SpecLimited(Box::new(limit))).ago(4 * MINUTE, Fact::LaunchBudget(launch));
    let story = story.ago(3 * MINUTE, Fact::Parallel(parallel(ParallelChange::Throttled)));
    let story = story.ago(2 * MINUTE, Fact::Parallel(parallel(ParallelChange::Recovered)));
    story.ago(MINUTE, Fact::StopRequested { requester: Requester::Cli }).facts()
}

/// Checks a value against a part of the document, which may refer to other parts.
pub(crate) fn validate(document: &Value, schema: &Value, value: &Value, what: &str) {
    let mut root = schema.clone();
    root["components"] = document["components"].clone();
    let validator = jsonschema::validator_for(&root).unwrap();
    let problems: Vec<_> = validator.iter_errors(value).map(|e| e.to_string()).collect();
    assert!(problems.is_empty(), "{what}: {problems:?}");
}

/// A documented answer, references resolved.
fn documented<'a>(document: &'a Value, path: &str, status: u16) -> &'a Value {
    let answer = &document["paths"][path]["get"]["responses"][status.to_string()];
    match answer["$ref"].as_str() {
        Some(reference) => document.pointer(reference.strip_prefix('#').unwrap()).unwrap(),
        None => answer,
    }
}

#[tokio::test]
async fn every_answer_is_as_documented() {
    let site = site(full());
    let app = guard(site.router.clone(), AllowedHosts::new(&[]));
    let (_, document) = get_json(&app, "/api/v1/openapi.json").await;
    let mut seen = BTreeSet::new();
    let mut requests =
        REQUESTS.map(|(path, uri, host, status)| (path, uri.to_owned(), host, status)).to_vec();
    for facts in full().sessions.into_iter().flatten() {
        let (source, session) = (facts.source.as_str(), encode(facts.session.as_str()));
        for (path, word) in [(STATUS, "status"), (EXPLAIN, "explain")] {
            requests.push((path, format!("/api/v1/sessions/{source}/{session}/{word}"), "localhost", 200));
        }
    }
    requests.push(("/-/ready", "/-/ready".to_owned(), "localhost", 503));
    for (path, uri, host, expected) in requests {
        if expected == 503 {
            site.publish.send(Snapshot::default().into()).unwrap();
        }
        let request = Request::get(&uri).header("host", host).body(Body::empty()).unwrap();
        let (status, headers, body) = ask(&app, request).await;
        assert_eq!(status.as_u16(), expected, "{uri}");
        let answer = documented(&document, path, expected);
        let kind = headers["content-type"].to_str().unwrap().split(';').next().unwrap();
        let schema = &answer["content"][kind]["schema"];
        assert!(schema.is_object(), "{uri}: {kind} is not documented for {expected}");
        if kind == "application/json" {
            validate(&document, schema, &serde_json::from_str(&body).unwrap(), &uri);
        }
        seen.insert((path.to_owned(), expected.to_string()));
    }
    let mut all = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap().iter().filter(|(path, _)| *path != PUSH) {
        let statuses = item["get"]["responses"].as_object().unwrap().keys().filter(|s| *s != "401");
        all.extend(statuses.map(|status| (path.clone(), status.clone())));
    }
    assert_eq!(seen, all, "every documented answer was asked for");
}

#[tokio::test]
async fn every_route_is_documented_and_every_documented_one_exists() {
    let site = site(snapshot(Vec::new()));
    let (_, document) = get_json(&site.router, "/api/v1/openapi.json").await;
    let documented: BTreeSet<_> = document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    let routes: BTreeSet<_> = paths().chain(["/metrics", PUSH]).collect();
    assert_eq!(documented, routes);
    for path in paths() {
        let methods: Vec<_> = document["paths"][path].as_object().unwrap().keys().collect();
        assert_eq!(methods, ["get"], "{path}");
        let named: BTreeSet<_> =
            path.split('/').filter_map(|p| p.strip_prefix('{')?.strip_suffix('}')).collect();
        let parameters = document["paths"][path]["get"]["parameters"].as_array();
        let declared: BTreeSet<_> = parameters
            .into_iter()
            .flatten()
            .filter(|p| p["in"] == "path")
            .map(|p| p["name"].as_str().unwrap())
            .collect();
        assert_eq!(named, declared, "{path}");
    }
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn every_state_fits_the_schema_of_the_status_answer() {
    let site = site(full());
    let schema: Value = serde_json::from_str(SCHEMA_JSON).unwrap();
    assert!(jsonschema::meta::is_valid(&schema));
    let validator = jsonschema::validator_for(&schema).unwrap();
    let mut states = BTreeSet::new();
    let (_, page) = get_json(&site.router, "/api/v1/sessions?children=1").await;
    for status in page["sessions"].as_array().unwrap() {
        let problems: Vec<_> = validator.iter_errors(status).map(|e| e.to_string()).collect();
        assert!(problems.is_empty(), "{}: {problems:?}", status["sessionId"]);
        states.insert(status["state"].as_str().unwrap().to_owned());
        // The schema is strict: a field that is missing, or that it does not know, does not pass.
        for name in status.as_object().unwrap().keys() {
            let mut less = status.clone();
            less.as_object_mut().unwrap().remove(name);
            assert!(!validator.is_valid(&less), "{name} is not required");
        }
        let mut more = status.clone();
        more["surprise"] = json!(1);
        assert!(!validator.is_valid(&more));
    }
    assert_eq!(states.len(), State::ALL.len());
}

/// A field of the report that is not documented, or a documented one that is missing, does not pass either.
#[tokio::test]
async fn the_report_of_an_orchestration_is_documented_strictly() {
    let site = site(full());
    let (_, document) = get_json(&site.router, "/api/v1/openapi.json").await;
    let (_, report) = get_json(&site.router, "/api/v1/orchestrations/run/status?source=spec").await;
    let mut schema = document["components"]["schemas"]["Orchestration"].clone();
    schema["components"] = document["components"].clone();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let parts = ["/rateLimit", "/parallel", "/launchBudget", "/stop", "/specs/0", "/specsByStatus", ""];
    for part in parts {
        let fields = report.pointer(part).unwrap().as_object().unwrap();
        for name in fields.keys() {
            assert!(!fields[name].is_null() || name == "acknowledgedAt", "{part}/{name} is not shown here");
            let mut less = report.clone();
            less.pointer_mut(part).unwrap().as_object_mut().unwrap().remove(name);
            assert!(!validator.is_valid(&less), "{part}/{name} is not required");
        }
        let mut more = report.clone();
        more.pointer_mut(part).unwrap()["surprise"] = json!(1);
        assert!(!validator.is_valid(&more), "{part}");
    }
    let words = |pointer: &str| -> BTreeSet<String> {
        let list = schema.pointer(pointer).unwrap().as_array().unwrap();
        list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let spec = "/properties/specs/items/properties";
    assert_eq!(
        words("/properties/state/enum"),
        OrchestrationState::ALL.iter().map(|w| w.as_str().to_owned()).collect()
    );
    assert_eq!(
        words(&format!("{spec}/status/enum")),
        SpecStatus::ALL.iter().map(|w| w.as_str().to_owned()).collect()
    );
    assert_eq!(
        words(&format!("{spec}/errorClass/enum")),
        ErrorClass::ALL.iter().map(|w| w.as_str().to_owned()).collect()
    );
}

/// The words in the schema are the words in the code.
#[test]
fn closed_sets_are_complete() {
    let schema: Value = serde_json::from_str(SCHEMA_JSON).unwrap();
    let words = |pointer: &str| -> BTreeSet<String> {
        let list = schema.pointer(&format!("/properties/{pointer}/enum")).unwrap().as_array().unwrap();
        list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    macro_rules! same {
        ($pointer:literal, $list:expr) => {
            assert_eq!(words($pointer), $list.iter().map(|w| w.as_str().to_owned()).collect(), $pointer);
        };
    }
    let reasons: Vec<_> = State::ALL.iter().flat_map(|s| s.reasons()).collect();
    same!("state", State::ALL);
    same!("stateReason", reasons);
    same!("mode", Mode::ALL);
    same!("phase", Phase::ALL);
    same!("workflowStep/properties/kind", StepKind::ALL);
    same!("progress/propertyNames", ProgressKind::ALL);
    same!("recentProgress/items/properties/kind", ProgressKind::ALL);
    same!("recentProgress/items/properties/evidence", Evidence::ALL);
    same!("actionRequired/properties/kind", ActionKind::ALL);
    same!("actionRequired/properties/certainty", Certainty::ALL);
    same!("blocked/properties/reason", BlockReason::ALL);
    same!("stop/properties/requester", Requester::ALL);
    let terminal =
        State::ALL.iter().filter(|s| s.is_end() || **s == State::Unknown).flat_map(|s| s.reasons());
    let terminal: Vec<_> = terminal.filter(|r| r.as_str() != "turn_complete").collect();
    same!("terminalReason", terminal);
}
