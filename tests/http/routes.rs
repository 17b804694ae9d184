//! What each route answers.

use std::sync::Arc;

use agent_session_exporter::event::*;
use agent_session_exporter::session::Snapshot;
use agent_session_exporter::views::http::{PathError, check_metrics_path};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use base64::Engine;
use serde_json::{Value, json};

use crate::make::{
    HOUR, MINUTE, SECOND, Story, ask, encode, every_state, get, get_json, maximal, now, options, site,
    site_with, snapshot,
};

async fn status_of(site: &crate::make::Site, session: &str) -> Value {
    let (status, body) =
        get_json(&site.router, &format!("/api/v1/sessions/push/{}/status", encode(session))).await;
    assert_eq!(status, StatusCode::OK, "{session}");
    body
}

#[tokio::test]
async fn every_state_is_answered_with_its_reason() {
    let site = site(snapshot(every_state(now())));
    for facts in every_state(now()).into_iter().flatten() {
        let (state, reason) = facts.session.as_str().split_once('/').unwrap();
        let body = status_of(&site, facts.session.as_str()).await;
        assert_eq!((&body["state"], &body["stateReason"]), (&json!(state), &json!(reason)));
        let terminal = !matches!(reason, "turn_complete")
            && matches!(state, "completed" | "failed" | "cancelled" | "unknown");
        assert_eq!(body["terminalReason"], if terminal { json!(reason) } else { Value::Null }, "{reason}");
        assert_eq!(body["projectId"], "shop");
    }
}

#[tokio::test]
async fn waiting_is_true_false_or_not_known() {
    let now = now();
    let site = site(snapshot(every_state(now)));
    let certain = status_of(&site, "waiting_for_user/permission").await;
    assert_eq!(certain["waitingForUser"], true);
    let expected = json!({"id": "a1", "kind": "permission", "since": now.plus(-8 * MINUTE).to_string(),
        "certainty": "certain", "count": 2, "tool": "bash"});
    assert_eq!(certain["actionRequired"], expected);
    let probable = status_of(&site, "waiting_for_user/probable").await;
    assert_eq!(probable["waitingForUser"], Value::Null);
    let expected = json!({"id": "call-7", "kind": "permission", "since": now.plus(-2 * MINUTE).to_string(),
        "certainty": "probable", "count": 1, "tool": "apply_patch", "link": "http://127.0.0.1:4096/s/1"});
    assert_eq!(probable["actionRequired"], expected);
    // A source that sees neither progress nor steps says null, not zero.
    for field in ["lastProgressAt", "progress", "recentProgress"] {
        assert_eq!(probable[field], Value::Null, "{field}");
    }
    let signals = probable["signals"].as_object().unwrap();
    assert_eq!((signals.len(), signals.values().all(Value::is_null)), (13, true), "{signals:?}");
    assert_eq!(status_of(&site, "running/working").await["waitingForUser"], false);
    assert_eq!(status_of(&site, "unknown/silent_too_long").await["waitingForUser"], Value::Null);
}

#[tokio::test]
async fn a_childs_request_is_its_parents() {
    let now = now();
    let parent = Story::new("push", "parent", now).turn(9 * MINUTE).facts();
    let child = Story::new("push", "child", now)
        .child_of("parent")
        .turn(8 * MINUTE)
        .action(MINUTE, "q", ActionKind::Question, Certainty::Certain)
        .facts();
    let site = site(snapshot(vec![parent, child]));
    let body = status_of(&site, "parent").await;
    assert_eq!(
        (&body["state"], &body["actionRequired"]["sessionId"]),
        (&json!("waiting_for_user"), &json!("child"))
    );
    assert_eq!(body["subagents"], json!({"working": 0, "waiting": 1, "total": 1}));
    let own = status_of(&site, "child").await;
    assert_eq!((&own["parentSessionId"], own["actionRequired"].get("sessionId")), (&json!("parent"), None));
    let (_, roots) = get_json(&site.router, "/api/v1/sessions").await;
    let (_, all) = get_json(&site.router, "/api/v1/sessions?children=true").await;
    let count = |page: &Value| page["sessions"].as_array().unwrap().len();
    assert_eq!((count(&roots), count(&all)), (1, 2));
}

#[tokio::test]
async fn blocked_and_stop_tell_their_times() {
    let now = now();
    let site = site(snapshot(every_state(now)));
    let at = |age: i64| now.plus(-age).to_string();
    let retry = json!({"reason": "retry", "since": at(MINUTE), "until": at(-MINUTE), "attempt": 3});
    assert_eq!(status_of(&site, "blocked/retry").await["blocked"], retry);
    let limit = json!({"reason": "usage_limit", "since": at(MINUTE), "until": at(-HOUR), "attempt": null});
    assert_eq!(status_of(&site, "blocked/usage_limit").await["blocked"], limit);
    let stop = &status_of(&site, "cancelled/stopped").await["stop"];
    assert_eq!((&stop["requester"], &stop["requestedAt"]), (&json!("cli"), &json!(at(2 * MINUTE))));
    assert_eq!(stop["acknowledgedAt"], at(90 * SECOND));
    assert_eq!(status_of(&site, "running/working").await["blocked"], Value::Null);
}

#[tokio::test]
async fn a_session_that_has_everything_tells_everything() {
    let now = now();
    let site = site(snapshot(vec![maximal(now).facts()]));
    let body = status_of(&site, "max").await;
    assert_eq!((&body["mode"], &body["phase"]), (&json!("build"), &json!("build")));
    let step = json!({"id": "s1", "kind": "build", "name": "build it",
        "startedAt": now.plus(-30 * SECOND).to_string(), "entry": 2});
    assert_eq!(body["workflowStep"], step);
    assert_eq!(body["criteria"], json!({"total": 10, "passed": 3, "pending": 3, "failed": 4}));
    assert_eq!(body["progress"]["file_modified"], json!({"high": 25, "low": 0}));
    let recent = body["recentProgress"].as_array().unwrap();
    assert_eq!(recent.len(), 20);
    assert!(recent.windows(2).all(|w| w[0]["time"].as_str() <= w[1]["time"].as_str()));
    assert_eq!(body["calls"]["total"], 2);
    assert_eq!((&body["calls"]["failed"], &body["calls"]["inFlight"]), (&json!(1), &json!(1)));
    let usage = json!({"inputTokens": 5, "outputTokens": 13, "cacheReadTokens": 7, "cacheWriteTokens": 11, "costUsd": 0.25});
    assert_eq!(body["usage"], usage);
    assert_eq!(body["links"]["ui"], "https://agents.example/s/1");
    assert_eq!(body["turns"]["started"], 1);
}

#[tokio::test]
async fn explain_names_the_rule_and_the_sources_word() {
    let site = site(snapshot(every_state(now())));
    for (session, rule) in [
        ("unknown/silent_too_long", 1),
        ("blocked/usage_limit", 2),
        ("failed/auth", 3),
        ("waiting_for_user/permission", 4),
        ("blocked/retry", 5),
        ("stalled/silent", 6),
        ("progressing/working", 7),
        ("running/working", 8),
        ("queued/starting", 9),
    ] {
        let (_, body) =
            get_json(&site.router, &format!("/api/v1/sessions/push/{}/explain", encode(session))).await;
        assert_eq!(body["rule"]["number"], rule, "{session}");
        assert_eq!(body["rule"]["text"], agent_session_exporter::session::explain::RULES[rule - 1]);
        assert_eq!(body["facts"].get("rule"), None);
    }
    let (_, failed) = get_json(&site.router, "/api/v1/sessions/push/failed%2Fauth/explain").await;
    assert_eq!(failed["sourceWord"]["turn"]["outcome"], "failed");
    assert_eq!(failed["sourceWord"]["turn"]["errorClass"], "auth");
    assert_eq!(failed["sourceWord"]["run"], Value::Null);
    assert_eq!(failed["facts"]["turnOpen"], "false");
    let (_, run) = get_json(&site.router, "/api/v1/sessions/push/completed%2Frun_complete/explain").await;
    assert_eq!(run["sourceWord"]["run"]["outcome"], "completed");
}

#[tokio::test]
async fn pages_cover_all_sessions_once_and_keep_their_now() {
    let now = now();
    let many = |from: usize, to: usize| {
        (from..to)
            .map(move |i| Story::new(["codex", "push"][i % 2], &format!("s{i:05}"), now).turn(MINUTE).facts())
    };
    let site = site(snapshot(many(0, 2500).collect()));
    let (mut seen, mut moments, mut cursor) = (Vec::new(), Vec::new(), String::new());
    let mut pages = 0;
    loop {
        let (status, page) = get_json(&site.router, &format!("/api/v1/sessions?limit=1000{cursor}")).await;
        assert_eq!(status, StatusCode::OK);
        for session in page["sessions"].as_array().unwrap() {
            seen.push((session["source"].to_string(), session["sessionId"].to_string()));
        }
        pages += 1;
        let Some(next) = page["nextCursor"].as_str() else { break };
        let plain = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(next).unwrap();
        moments.push(String::from_utf8(plain).unwrap().lines().next().unwrap().to_owned());
        cursor = format!("&cursor={next}");
        // Sessions that come in between shift nothing.
        let more = many(0, 2500).chain(many(3000, 3001)).chain(Some(Story::new("codex", "a", now).facts()));
        site.publish.send(Arc::new(snapshot(more.collect()))).unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(3)).await;
    }
    assert_eq!(pages, 3);
    assert!(seen.windows(2).all(|w| w[0] < w[1]), "ordered by source and session, each once");
    let old = seen.iter().filter(|(_, s)| s.as_str() < "\"s02500\"").count();
    assert_eq!((old, seen.len()), (2500, 2501));
    moments.dedup();
    assert_eq!(moments.len(), 1, "one now for all pages: {moments:?}");
    let (_, default) = get_json(&site.router, "/api/v1/sessions").await;
    assert_eq!(default["sessions"].as_array().unwrap().len(), 100);
}

#[tokio::test]
async fn a_full_last_page_has_no_next() {
    let now = now();
    let site =
        site(snapshot(vec![Story::new("push", "a", now).facts(), Story::new("push", "b", now).facts()]));
    let (_, page) = get_json(&site.router, "/api/v1/sessions?limit=2").await;
    assert_eq!(page["nextCursor"], Value::Null);
    let (_, page) = get_json(&site.router, "/api/v1/sessions?limit=1").await;
    let next = page["nextCursor"].as_str().unwrap();
    let (_, page) = get_json(&site.router, &format!("/api/v1/sessions?limit=1&cursor={next}")).await;
    assert_eq!((&page["sessions"][0]["sessionId"], &page["nextCursor"]), (&json!("b"), &Value::Null));
}

#[tokio::test]
async fn the_list_is_filtered() {
    let mut sessions = every_state(now());
    sessions.push(Story::new("codex", "other", now()).turn(MINUTE).facts());
    let site = site(snapshot(sessions));
    for (query, expected) in [
        ("source=codex", 1),
        ("source=push", 13),
        ("state=failed", 1),
        ("state=blocked,unknown", 3),
        ("state=running&source=codex", 1),
        ("project=shop", 14),
        ("project=none", 0),
        ("", 14),
    ] {
        let (_, page) = get_json(&site.router, &format!("/api/v1/sessions?{query}")).await;
        assert_eq!(page["sessions"].as_array().unwrap().len(), expected, "{query}");
    }
}

#[tokio::test]
async fn bad_parameters_are_refused_with_a_reason() {
    let site = site(snapshot(Vec::new()));
    for (query, reason) in [
        ("limit=0", "bad_limit"),
        ("limit=1001", "bad_limit"),
        ("limit=x", "bad_limit"),
        ("state=lost", "bad_state"),
        ("children=maybe", "bad_children"),
        ("cursor=!", "bad_cursor"),
        ("cursor=YQ", "bad_cursor"),
        ("page=2", "unknown_parameter"),
        ("limit=1&limit=2", "repeated_parameter"),
        ("project=%FF", "bad_encoding"),
    ] {
        let (status, body) = get_json(&site.router, &format!("/api/v1/sessions?{query}")).await;
        assert_eq!((status, &body["reason"]), (StatusCode::BAD_REQUEST, &json!(reason)), "{query}");
        assert!(body["error"].as_str().is_some_and(|e| !e.is_empty()));
    }
}

#[tokio::test]
async fn the_alias_finds_or_refuses() {
    let now = now();
    let story = |source, id| Story::new(source, id, now).turn(MINUTE).facts();
    let site = site(snapshot(vec![story("push", "a/b"), story("push", "both"), story("codex", "both")]));
    let (status, body) = get_json(&site.router, "/api/sessions/a%2Fb/status").await;
    assert_eq!((status, &body["sessionId"]), (StatusCode::OK, &json!("a/b")));
    let (status, body) = get_json(&site.router, "/api/sessions/both/status").await;
    assert_eq!((status, &body["reason"]), (StatusCode::CONFLICT, &json!("ambiguous_session")));
    let (status, body) = get_json(&site.router, "/api/sessions/none/status").await;
    assert_eq!((status, &body["reason"]), (StatusCode::NOT_FOUND, &json!("no_such_session")));
}

#[tokio::test]
async fn hostile_ids_are_data() {
    let now = now();
    let ids = [
        "a/b/../c",
        "..",
        "日本 ü",
        "\"quotes' & more",
        "<script>alert(1)</script>",
        "%2F",
        "a?b#c=d&e",
        "line\nbreak\0",
        "{session}",
        "\u{202E}gpj",
    ];
    let bad_link = SessionInfo { url: Some(Name::from("javascript:alert(1)")), ..SessionInfo::default() };
    let story = |id: &&str| {
        let mut own = Story::new("push", id, now).info(MINUTE, bad_link.clone()).turn(MINUTE);
        own = own.action(SECOND, id, ActionKind::Other, Certainty::Certain);
        own.facts()
    };
    let site = site(snapshot(ids.iter().map(story).collect()));
    for id in ids {
        let (status, body) =
            get_json(&site.router, &format!("/api/v1/sessions/push/{}/status", encode(id))).await;
        assert_eq!((status, &body["sessionId"]), (StatusCode::OK, &json!(id)));
        assert_eq!((&body["links"]["ui"], body["actionRequired"].get("link")), (&Value::Null, None));
        let (status, _) = get_json(&site.router, &format!("/api/sessions/{}/status", encode(id))).await;
        assert_eq!(status, StatusCode::OK, "{id}");
    }
    let (status, headers, page) = get(&site.router, "/").await;
    assert_eq!(
        (status, &headers["content-type"]),
        (StatusCode::OK, &"text/html; charset=utf-8".parse().unwrap())
    );
    assert!(headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
    let lower = page.to_ascii_lowercase();
    for forbidden in
        ["<script", "javascript:", "\"quotes", "quotes'", "\u{202E}", "href=\"/api/v1/sessions/push/../"]
    {
        assert!(!lower.contains(forbidden), "{forbidden}");
    }
    // Links lead to where they say.
    let link = format!("href=\"/api/v1/sessions/push/{}/status\"", "a%2Fb%2F..%2Fc");
    assert!(page.contains(&link));
    let (status, body) = get_json(&site.router, "/api/v1/sessions/push/%FF/status").await;
    assert_eq!((status, &body["reason"]), (StatusCode::BAD_REQUEST, &json!("bad_id")));
}

#[tokio::test]
async fn the_landing_page_puts_what_needs_a_person_first() {
    let site = site(snapshot(every_state(now())));
    let (_, _, page) = get(&site.router, "/").await;
    let at = |word: &str| page.find(&format!(">{word}</td>")).unwrap_or_else(|| panic!("{word} is missing"));
    assert!(at("waiting_for_user") < at("running") && at("stalled") < at("running"));
    assert!(at("running") < at("completed"));
    assert_eq!(page.matches("<tr>").count(), 1 + 13);
    assert!(page.contains("href=\"/metrics\"") && page.contains("POST /api/v1/events"));
}

#[tokio::test]
async fn the_landing_page_is_bounded() {
    let now = now();
    let sessions = (0..600).map(|i| Story::new("push", &format!("s{i}"), now).turn(MINUTE).facts());
    let site = site(snapshot(sessions.collect()));
    let (_, _, page) = get(&site.router, "/").await;
    assert_eq!(page.matches("<tr>").count(), 1 + 500);
    assert!(page.contains("100 more"));
}

#[tokio::test]
async fn ready_only_after_the_first_scan() {
    let site = site(Snapshot::default());
    assert_eq!(get(&site.router, "/-/ready").await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(get(&site.router, "/-/healthy").await.0, StatusCode::OK);
    assert!(get(&site.router, "/").await.2.contains("first scan is not finished"));
    site.publish.send(Arc::new(snapshot(Vec::new()))).unwrap();
    assert_eq!(get(&site.router, "/-/ready").await.0, StatusCode::OK);
    assert!(get(&site.router, "/").await.2.contains("No sessions yet"));
}

#[tokio::test]
async fn metrics_come_from_the_renderer_at_the_chosen_path() {
    let sessions = vec![Story::new("push", "a", now()).facts()];
    let chosen = agent_session_exporter::views::http::Options {
        metrics_path: "/probe/m.txt".to_owned(),
        push_enabled: false,
        ..options()
    };
    let site = site_with(snapshot(sessions), chosen);
    let request = Request::get("/probe/m.txt").header("accept", "text/plain").body(Body::empty()).unwrap();
    let (status, headers, body) = ask(&site.router, request).await;
    assert_eq!((status, body.as_str()), (StatusCode::OK, "sessions{accept=\"text/plain\"} 1\n"));
    assert_eq!(headers["content-type"], "text/plain; version=0.0.4");
    assert_eq!(get(&site.router, "/metrics").await.0, StatusCode::NOT_FOUND);
    let (_, document) = get_json(&site.router, "/api/v1/openapi.json").await;
    assert!(document["paths"].get("/probe/m.txt").is_some() && document["paths"].get("/metrics").is_none());
    assert_eq!(document["paths"].get("/api/v1/events"), None, "nothing can be pushed");
    assert!(!get(&site.router, "/").await.2.contains("POST"));
}

#[test]
fn a_metrics_path_takes_no_other_route() {
    for path in ["/metrics", "/probe/metrics.txt", "/m~"] {
        assert_eq!(check_metrics_path(path), Ok(()), "{path}");
    }
    for path in ["/", "/api/v1/sessions", "/-/ready", "/api/x"] {
        assert_eq!(check_metrics_path(path), Err(PathError::Taken), "{path}");
    }
    for path in ["", "metrics", "/{x}", "/a?b", "/a b", "/*", "/\"><script>"] {
        assert_eq!(check_metrics_path(path), Err(PathError::Shape), "{path}");
    }
}

#[tokio::test]
async fn nothing_but_reading_is_possible() {
    let site = site(snapshot(every_state(now())));
    for uri in [
        "/",
        "/metrics",
        "/-/healthy",
        "/api/v1/sessions",
        "/api/v1/sessions/push/failed%2Fauth/status",
        "/api/sessions/failed%2Fauth/status",
        "/api/v1/schema/status.json",
    ] {
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            let request = Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
            let (status, headers, body) = ask(&site.router, request).await;
            assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {uri}");
            assert_eq!(headers["allow"], "GET,HEAD");
            assert!(body.contains("method_not_allowed"));
        }
        let head = Request::head(uri).header("origin", "https://evil.example").body(Body::empty()).unwrap();
        let (status, headers, body) = ask(&site.router, head).await;
        assert_eq!((status, body.as_str()), (StatusCode::OK, ""), "{uri}");
        assert!(!headers.keys().any(|name| name.as_str().starts_with("access-control")));
    }
    let (status, body) = get_json(&site.router, "/api/v2").await;
    assert_eq!((status, &body["reason"]), (StatusCode::NOT_FOUND, &json!("no_such_route")));
}

#[tokio::test]
async fn schemas_are_served() {
    let site = site(snapshot(Vec::new()));
    let (status, event) = get_json(&site.router, "/api/v1/schema/event.json").await;
    assert_eq!((status, &event["title"]), (StatusCode::OK, &json!("Event")));
    let (_, status) = get_json(&site.router, "/api/v1/schema/status.json").await;
    assert_eq!(status["$id"], "/api/v1/schema/status.json");
    assert_eq!(get(&site.router, "/api/v1/schema/other.json").await.0, StatusCode::NOT_FOUND);
}
