//! What web pages and proxies could send reaches no handler.

use std::net::Ipv4Addr;
use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use axum::http::header::{CONTENT_TYPE, HOST};
use serde_json::json;

use super::super::router::router;
use super::door;
use crate::doors::DoorConfig as _;
use crate::doors::http::Config as Http;
use crate::doors::http_server::host::LocalAddress;
use crate::doors::http_server::tests::{House, Reply, request};
use crate::metrics::Door;

/// Something of every kind, and nowhere.
const ASKED: [(&str, &str); 9] = [
    ("GET", "/healthz"),
    ("GET", "/metrics"),
    ("GET", "/v1/rules"),
    ("GET", "/v1/top"),
    ("GET", "/v1/proxies"),
    ("DELETE", "/v1/keys/ws%20ip=a"),
    ("PUT", "/v1/rules/a"),
    ("DELETE", "/v1/records/a"),
    ("POST", "/nowhere"),
];

async fn ask_with(house: &House, (method, path): (&str, &str), header: (&str, &str)) -> Reply {
    let asked = request(method, path).header(header.0, header.1);
    house.send(asked.body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn a_host_of_somebody_else_reaches_no_handler() {
    for (method, path) in ASKED {
        for host in ["evil.example:8090", "10.0.0.1", "127.0.0.1.evil.example"] {
            let house = door();
            let ask = Request::builder().method(method).uri(path).header(HOST, host);
            let reply = house.send(ask.body(Body::empty()).unwrap()).await;
            house.assert_problem(&reply, 403, "host");
        }
        // Names are for the HTTP door.
        let house = door();
        toml::from_str::<Http>("names = ['limits.example']").unwrap().renew(&house.gate);
        let ask = Request::builder().method(method).uri(path).header(HOST, "limits.example");
        let reply = house.send(ask.body(Body::empty()).unwrap()).await;
        house.assert_problem(&reply, 403, "host");
    }
}

#[tokio::test]
async fn with_tls_the_own_origin_is_that_of_https() {
    for (tls, origin, status) in [
        (true, "https://localhost:8080", 200),
        (true, "http://localhost:8080", 403),
        (false, "http://localhost:8080", 200),
        (false, "https://localhost:8080", 403),
    ] {
        let mut asked = request("GET", "/healthz").header("origin", origin).body(Body::empty());
        let local = LocalAddress { ip: Ipv4Addr::LOCALHOST.into(), tls };
        asked.as_mut().unwrap().extensions_mut().insert(local);
        let reply = door().send(asked.unwrap()).await;
        assert_eq!(reply.status, status, "{origin}, TLS: {tls}");
    }
}

#[tokio::test]
async fn a_page_of_somebody_else_reaches_no_handler() {
    for asked in ASKED {
        for header in [
            ("origin", "http://evil.example"),
            ("origin", "null"),
            ("origin", ""),
            ("origin", "https://localhost:8080"),
            ("origin", "http://localhost:3000"),
            ("origin", "http://localhost"),
            ("origin", "http://127.0.0.1:8080"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            let house = door();
            let reply = ask_with(&house, asked, header).await;
            house.assert_problem(&reply, 403, "origin");
        }
    }
    let house = door();
    let twice = request("GET", "/healthz")
        .header("origin", "http://localhost:8080")
        .header("origin", "http://evil.example");
    let reply = house.send(twice.body(Body::empty()).unwrap()).await;
    house.assert_problem(&reply, 403, "origin");
}

#[tokio::test]
async fn its_own_pages_and_typed_addresses_are_answered() {
    let house = door();
    for header in [
        ("origin", "http://localhost:8080"),
        ("origin", "http://LOCALHOST:8080"),
        ("sec-fetch-site", "same-origin"),
        ("sec-fetch-site", "none"),
    ] {
        let reply = ask_with(&house, ("GET", "/v1/rules"), header).await;
        assert_eq!(reply.status, 200, "{header:?}");
        let reply = ask_with(&house, ("DELETE", "/v1/keys/a"), header).await;
        assert_eq!(reply.status, 204, "{header:?}");
    }
}

#[tokio::test]
async fn no_page_is_given_leave_to_ask() {
    let house = door();
    let preflight = request("OPTIONS", "/v1/keys/a")
        .header("access-control-request-method", "DELETE")
        .body(Body::empty());
    let reply = house.send(preflight.unwrap()).await;
    assert_eq!(reply.status, 405);
    assert!(reply.headers.keys().all(|name| !name.as_str().starts_with("access-control-")));
}

#[tokio::test]
async fn what_a_form_can_send_changes_nothing() {
    for (method, path) in ASKED.into_iter().filter(|(method, _)| *method != "GET") {
        for form in [
            "text/plain",
            "Text/Plain; charset=utf-8",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=a",
        ] {
            let house = door();
            house.take("ws ip=a", 1);
            let asked = request(method, path).header(CONTENT_TYPE, form);
            let body = Body::from(r#"{"match":"*","limit":"none"}"#);
            let reply = house.send(asked.body(body).unwrap()).await;
            house.assert_problem(&reply, 415, "content_type");
            let shown = house.ask("GET", "/v1/keys/ws%20ip=a").await;
            assert_eq!(shown.json["stats"]["requests"], 1);
            assert_eq!(house.ask("GET", "/v1/rules/a").await.status, 404);
        }
    }
}

#[tokio::test]
async fn what_a_proxy_forwards_reaches_no_handler() {
    for asked in ASKED {
        for header in [
            ("forwarded", "for=_a"),
            ("via", "1.1 a"),
            ("x-forwarded-for", "127.0.0.1"),
            ("x-forwarded-host", "localhost"),
            ("x-forwarded-proto", "http"),
            ("x-real-ip", "127.0.0.1"),
        ] {
            let house = door();
            let reply = ask_with(&house, asked, header).await;
            house.assert_problem(&reply, 403, "forwarded");
        }
    }
}

#[tokio::test]
async fn all_but_health_is_held_until_the_start_is_over() {
    let house = Arc::new(House::starting(Door::Admin, router));
    let held = tokio::spawn({
        let house = house.clone();
        async move { house.ask("GET", "/v1/keys/a").await }
    });
    for (path, status) in [("/healthz", 200), ("/readyz", 503), ("/metrics", 200)] {
        assert_eq!(house.ask("GET", path).await.status, status, "{path}");
    }
    tokio::task::yield_now().await;
    assert!(!held.is_finished());
    house.process.state.set_ready(true);
    assert_eq!(held.await.unwrap().status, 200);
}

#[tokio::test]
async fn readiness_and_metrics_are_here_too_and_asking_is_not() {
    let house = door();
    assert_eq!(house.ask("GET", "/healthz").await.text, "ok\n");
    assert_eq!(house.ask("GET", "/readyz").await.json["ready"], true);
    let page = house.ask("GET", "/metrics").await;
    assert!(page.text.ends_with("# EOF\n"), "{}", page.text);
    let check = house.send_json("POST", "/v1/check", json!({"key": "ws ip=a"})).await;
    assert_eq!((check.status.as_u16(), &check.json["reason"]), (404, &json!("path")));
}
