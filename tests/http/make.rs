//! Snapshots made by hand, a router over them, and requests to it.

use std::collections::HashMap;
use std::sync::Arc;

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::*;
use agent_session_exporter::session::{Facts, Session, Snapshot, snapshot::Tree};
use agent_session_exporter::views::http::{Api, Options, router};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use axum::response::IntoResponse;
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::sync::watch;
use tower::ServiceExt;

pub(crate) const SECOND: i64 = 1000;
pub(crate) const MINUTE: i64 = 60 * SECOND;
pub(crate) const HOUR: i64 = 60 * MINUTE;

/// Events of one session, dated by their age.
pub(crate) struct Story {
    pub(crate) source: SourceId,
    pub(crate) session: SessionId,
    parent: Option<SessionId>,
    now: Timestamp,
    live: Session,
}

impl Story {
    pub(crate) fn new(source: &str, session: &str, now: Timestamp) -> Self {
        let (source, session) = (SourceId::from(source), SessionId::from(session));
        let live = Session::new(Facts::new(source.clone(), session.clone(), now));
        Self { source, session, parent: None, now, live }
    }

    pub(crate) fn child_of(mut self, parent: &str) -> Self {
        self.parent = Some(SessionId::from(parent));
        self
    }

    /// A fact `age` milliseconds ago.
    pub(crate) fn ago(mut self, age: i64, fact: Fact) -> Self {
        let mut event = Event::new(&self.source, &self.session, self.now, fact);
        event.time = Some(self.now.plus(-age));
        event.parent.clone_from(&self.parent);
        event.project = Some(Name::from("shop"));
        self.live.apply(event, Timestamp::default());
        self
    }

    pub(crate) fn turn(self, age: i64) -> Self {
        self.ago(age, Fact::TurnStarted { trigger: Trigger::Person })
    }

    pub(crate) fn turn_end(self, age: i64, outcome: TurnOutcome, error: Option<ErrorClass>) -> Self {
        self.ago(age, Fact::TurnEnded { outcome, error, reset: None, denied: false, result_known: true })
    }

    pub(crate) fn action(self, age: i64, id: &str, kind: ActionKind, certainty: Certainty) -> Self {
        let tool = Some(Name::from("bash"));
        self.ago(age, Fact::ActionRequired { action: Id::from(id), kind, certainty, tool, call: None })
    }

    pub(crate) fn call(self, age: i64, id: &str, class: ToolClass, asks: Option<bool>) -> Self {
        self.ago(age, Fact::ToolStarted(call_start(id, class, asks)))
    }

    pub(crate) fn info(self, age: i64, info: SessionInfo) -> Self {
        self.ago(age, Fact::SessionUpdated(info))
    }

    pub(crate) fn facts(self) -> Option<Arc<Facts>> {
        Some(self.live.facts().clone())
    }
}

fn call_start(id: &str, class: ToolClass, asks: Option<bool>) -> CallStart {
    CallStart {
        call: Id::from(id),
        tool: Name::from("apply_patch"),
        class,
        key: None,
        target: None,
        read: None,
        commands: Commands::default(),
        background: false,
        asks,
        nested: false,
    }
}

pub(crate) fn now() -> Timestamp {
    Clock::system().now()
}

pub(crate) fn snapshot(sessions: Vec<Option<Arc<Facts>>>) -> Snapshot {
    let tree = Arc::new(Tree::of(&sessions));
    let all = Capabilities::of(Capability::ALL);
    let capabilities = ["push", "codex"].map(|source| (SourceId::from(source), all));
    Snapshot {
        sessions,
        tree,
        capabilities: Arc::new(HashMap::from(capabilities)),
        scanned: true,
        ..Snapshot::default()
    }
}

/// One session for each state and some for reasons with fields of their own; the id is what is expected.
pub(crate) fn every_state(now: Timestamp) -> Vec<Option<Arc<Facts>>> {
    let story = |id: &str| Story::new("push", id, now);
    let progress = Fact::Progress {
        kind: ProgressKind::FileModified,
        evidence: Evidence::Structured,
        call: None,
        subject: None,
    };
    let retry = |reason, until| Fact::Blocked { reason, attempt: Some(3), delay_ms: None, until };
    let limited = Fact::TurnEnded {
        outcome: TurnOutcome::Failed,
        error: Some(ErrorClass::UsageLimit),
        reset: Some(now.plus(HOUR)),
        denied: false,
        result_known: true,
    };
    let run_end = |outcome| Fact::SessionEnded { outcome, error: None, workflow: false };
    let unseen = Capabilities::of(&[Capability::Ends, Capability::Calls]);
    let person = SessionInfo {
        interactive: Some(true),
        capabilities: Some(unseen),
        url: Some(Name::from("http://127.0.0.1:4096/s/1")),
        ..SessionInfo::default()
    };
    vec![
        story("queued/starting").ago(MINUTE, Fact::SessionQueued(SessionInfo::default())).facts(),
        story("running/working").turn(MINUTE).facts(),
        story("progressing/working").turn(MINUTE).ago(10 * SECOND, progress.clone()).facts(),
        story("waiting_for_user/permission")
            .turn(9 * MINUTE)
            .action(8 * MINUTE, "a1", ActionKind::Permission, Certainty::Certain)
            .action(7 * MINUTE, "a2", ActionKind::Question, Certainty::Certain)
            .facts(),
        story("waiting_for_user/probable")
            .info(9 * MINUTE, person)
            .turn(9 * MINUTE)
            .call(2 * MINUTE, "call-7", ToolClass::Shell, Some(true))
            .facts(),
        story("stalled/silent").turn(20 * MINUTE).facts(),
        story("blocked/retry")
            .turn(9 * MINUTE)
            .ago(MINUTE, retry(BlockReason::Retry, Some(now.plus(MINUTE))))
            .facts(),
        story("blocked/usage_limit").turn(9 * MINUTE).ago(MINUTE, limited).facts(),
        story("completed/turn_complete")
            .turn(9 * MINUTE)
            .turn_end(MINUTE, TurnOutcome::Completed, None)
            .facts(),
        story("completed/run_complete")
            .turn(9 * MINUTE)
            .turn_end(MINUTE, TurnOutcome::Completed, None)
            .ago(SECOND, run_end(EndOutcome::Completed))
            .facts(),
        story("failed/auth")
            .turn(9 * MINUTE)
            .turn_end(MINUTE, TurnOutcome::Failed, Some(ErrorClass::Auth))
            .facts(),
        story("cancelled/stopped")
            .turn(9 * MINUTE)
            .ago(2 * MINUTE, Fact::StopRequested { requester: Requester::Cli })
            .ago(90 * SECOND, Fact::StopAcknowledged)
            .turn_end(MINUTE, TurnOutcome::Cancelled, None)
            .facts(),
        story("unknown/silent_too_long").turn(7 * HOUR).facts(),
    ]
}

/// A session that has everything a status can tell.
pub(crate) fn maximal(now: Timestamp) -> Story {
    let info = SessionInfo {
        mode: Some(Mode::Build),
        phase: Some(Phase::Build),
        url: Some(Name::from("https://agents.example/s/1")),
        ..SessionInfo::default()
    };
    let step = Step {
        id: Id::from("s1"),
        kind: StepKind::Build,
        name: Some(Name::from("build it")),
        index: Some(1),
        total: Some(3),
        entry: Some(2),
    };
    let usage = Usage {
        input: 5,
        cache_read: 7,
        cache_write: 11,
        output: 13,
        cost_usd: Some(0.25),
        ..Usage::default()
    };
    let criteria = Tally { pending: 1, in_progress: 2, done: 3, failed: 4 };
    let mut story = Story::new("push", "max", now).info(HOUR, info).turn(30 * MINUTE);
    for i in 0..25 {
        let call = Some(Id::from(format!("edit-{i}").as_str()));
        let kind = ProgressKind::FileModified;
        let fact = Fact::Progress { kind, evidence: Evidence::Structured, call, subject: None };
        story = story.ago((25 - i) * MINUTE, fact);
    }
    let failed = CallEnd {
        call: Id::from("c1"),
        outcome: CallOutcome::Error,
        exit_code: None,
        diff_lines: None,
        error: None,
        output: None,
        read: None,
    };
    story
        .ago(30 * SECOND, Fact::StepStarted(step))
        .ago(29 * SECOND, Fact::CriteriaUpdated(criteria))
        .ago(28 * SECOND, Fact::Usage(usage))
        .call(27 * SECOND, "c1", ToolClass::Shell, None)
        .ago(26 * SECOND, Fact::ToolEnded(failed))
        .call(25 * SECOND, "c2", ToolClass::Shell, None)
}

pub(crate) struct Site {
    pub(crate) router: Router,
    pub(crate) publish: watch::Sender<Arc<Snapshot>>,
}

pub(crate) fn options() -> Options {
    let event_schema = r#"{"title": "Event"}"#;
    Options { metrics_path: "/metrics".to_owned(), event_schema, push_enabled: true }
}

pub(crate) fn site(snapshot: Snapshot) -> Site {
    site_with(snapshot, options())
}

pub(crate) fn site_with(snapshot: Snapshot, options: Options) -> Site {
    let (publish, snapshots) = watch::channel(Arc::new(snapshot));
    let metrics = Arc::new(|snapshot: &Snapshot, _, headers: &HeaderMap| {
        let accept = headers.get("accept").map_or("none", |v| v.to_str().unwrap());
        let body = format!("sessions{{accept=\"{accept}\"}} {}\n", snapshot.slots().count());
        ([("content-type", "text/plain; version=0.0.4")], body).into_response()
    });
    Site { router: router(Api { snapshots, clock: Clock::system(), metrics, options }), publish }
}

pub(crate) async fn ask(router: &Router, request: Request<Body>) -> (StatusCode, HeaderMap, String) {
    let response: Response<Body> = router.clone().oneshot(request).await.unwrap();
    let (head, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (head.status, head.headers, String::from_utf8(bytes.to_vec()).unwrap())
}

pub(crate) async fn get(router: &Router, uri: &str) -> (StatusCode, HeaderMap, String) {
    ask(router, Request::get(uri).header("host", "localhost").body(Body::empty()).unwrap()).await
}

pub(crate) async fn get_json(router: &Router, uri: &str) -> (StatusCode, Value) {
    let (status, headers, body) = get(router, uri).await;
    assert_eq!(headers["content-type"], "application/json", "{uri}");
    (status, serde_json::from_str(&body).unwrap())
}

/// Every byte but letters and digits percent-encoded.
pub(crate) fn encode(id: &str) -> String {
    percent_encoding::utf8_percent_encode(id, percent_encoding::NON_ALPHANUMERIC).to_string()
}
