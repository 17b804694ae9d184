//! Requests that a page in a browser could make.

use agent_session_exporter::views::guard::{AllowedHosts, guard};
use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode, Version};
use axum::routing::post;

use crate::make::{ask, site, snapshot};

/// The router with a route that changes something beside it, as the app merges them.
fn guarded(https: bool) -> Router {
    let push = Router::new().route("/api/v1/events", post(async || StatusCode::ACCEPTED));
    let mut hosts = AllowedHosts::new(&["127.0.0.1:10077".parse().unwrap()]);
    hosts.set_https(https);
    guard(site(snapshot(Vec::new())).router.merge(push), hosts)
}

async fn status(router: &Router, method: Method, uri: &str, headers: &[(&str, &str)]) -> StatusCode {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    ask(router, request.body(Body::empty()).unwrap()).await.0
}

#[tokio::test]
async fn a_rebinding_request_is_refused() {
    let app = guarded(false);
    for (host, expected) in [
        ("127.0.0.1:10077", StatusCode::OK),
        ("localhost:10077", StatusCode::OK),
        ("[::1]:10077", StatusCode::OK),
        ("attacker.example:10077", StatusCode::FORBIDDEN),
        ("127.0.0.1.attacker.example", StatusCode::FORBIDDEN),
        ("not a host", StatusCode::BAD_REQUEST),
    ] {
        for uri in ["/metrics", "/", "/api/v1/sessions"] {
            assert_eq!(status(&app, Method::GET, uri, &[("host", host)]).await, expected, "{host} {uri}");
        }
        let nowhere = status(&app, Method::GET, "/nowhere", &[("host", host)]).await;
        let unknown = if expected == StatusCode::OK { StatusCode::NOT_FOUND } else { expected };
        assert_eq!(nowhere, unknown, "{host}");
    }
    let two = [("host", "localhost"), ("host", "attacker.example")];
    assert_eq!(status(&app, Method::GET, "/", &two).await, StatusCode::BAD_REQUEST);
    let absolute = "http://attacker.example/metrics";
    assert_eq!(status(&app, Method::GET, absolute, &[("host", "localhost")]).await, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_host_is_needed_since_http_1_1() {
    let app = guarded(false);
    assert_eq!(status(&app, Method::GET, "/", &[]).await, StatusCode::BAD_REQUEST);
    let old = |method| Request::builder().method(method).version(Version::HTTP_10);
    let get = old(Method::GET).uri("/metrics").body(Body::empty()).unwrap();
    assert_eq!(ask(&app, get).await.0, StatusCode::OK);
    let push = old(Method::POST).uri("/api/v1/events").header("origin", "null").body(Body::empty()).unwrap();
    assert_eq!(ask(&app, push).await.0, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_push_from_another_origin_is_refused() {
    let app = guarded(false);
    let push = async |headers: &[(&str, &str)]| {
        let all = [&[("host", "localhost:10077")], headers].concat();
        status(&app, Method::POST, "/api/v1/events", &all).await
    };
    assert_eq!(push(&[]).await, StatusCode::ACCEPTED, "no page, as from curl");
    assert_eq!(push(&[("origin", "http://localhost:10077")]).await, StatusCode::ACCEPTED);
    assert_eq!(push(&[("sec-fetch-site", "same-origin")]).await, StatusCode::ACCEPTED);
    for origin in [
        "https://evil.example",
        "null",
        "http://localhost:3000",
        "http://localhost",
        "https://localhost:10077",
        "http://localhost:10077.evil.example",
        "localhost:10077",
        "",
    ] {
        assert_eq!(push(&[("origin", origin)]).await, StatusCode::FORBIDDEN, "{origin}");
    }
    for site in ["cross-site", "same-site"] {
        assert_eq!(push(&[("sec-fetch-site", site)]).await, StatusCode::FORBIDDEN, "{site}");
    }
    let mixed = [("origin", "http://localhost:10077"), ("origin", "https://evil.example")];
    assert_eq!(push(&mixed).await, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn reading_across_origins_gives_no_permission_to_the_page() {
    let headers =
        [("host", "localhost"), ("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")];
    let mut request = Request::get("/api/v1/sessions");
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let (status, headers, _) = ask(&guarded(false), request.body(Body::empty()).unwrap()).await;
    assert_eq!(status, StatusCode::OK);
    assert!(!headers.keys().any(|name| name.as_str().starts_with("access-control")));
}

#[tokio::test]
async fn the_own_origin_has_the_scheme_that_is_spoken() {
    let app = guarded(true);
    let push = async |origin| {
        status(&app, Method::POST, "/api/v1/events", &[("host", "localhost"), ("origin", origin)]).await
    };
    assert_eq!(push("https://localhost:443").await, StatusCode::ACCEPTED);
    assert_eq!(push("https://localhost").await, StatusCode::ACCEPTED);
    assert_eq!(push("http://localhost").await, StatusCode::FORBIDDEN);
}
