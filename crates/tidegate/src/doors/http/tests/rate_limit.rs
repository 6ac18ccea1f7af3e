//! `/json` and `/healthcheck` without sockets.

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, EXPECT};

use super::super::rate_limit::CALL_BYTES_MAX;
use super::super::router::router;
use super::door;
use crate::doors::http_server::tests::{House, request};
use crate::metrics::Door;

const CALL: &str = r#"{"domain":"ws","descriptors":[{"entries":[{"key":"ip","value":"a"}]}]}"#;

#[tokio::test]
async fn health_is_told_from_the_start_to_the_stop() {
    let house = House::starting(Door::Http, router);
    assert_eq!(house.ask("GET", "/healthcheck").await.status, 500);
    house.process.state.set_ready(true);
    let reply = house.ask("GET", "/healthcheck").await;
    assert_eq!((reply.status.as_u16(), &*reply.text), (200, "OK"));
    // The server stops: it says so from the signal on, before doors close.
    house.process.state.set_ready(false);
    assert_eq!(house.ask("GET", "/healthcheck").await.status, 500);
    assert_eq!(house.ask("POST", "/healthcheck").await.status, 405);
}

#[tokio::test]
async fn a_rule_decides_on_calls() {
    let house = door();
    for (status, left) in [(200, Some(2)), (200, Some(1)), (200, None), (429, None)] {
        let reply = house.send_json("POST", "/json", CALL).await;
        assert_eq!(reply.status, status, "{}", reply.text);
        let told = &reply.json["statuses"][0];
        assert_eq!(told["limitRemaining"].as_u64(), left, "{}", reply.text);
        assert_eq!(told["currentLimit"]["name"], "ws-ip");
    }
}

#[tokio::test]
async fn calls_are_bounded() {
    let house = door();
    let padded = |length: usize| format!("{CALL}{}", " ".repeat(length - CALL.len()));
    assert_eq!(house.send_json("POST", "/json", padded(CALL_BYTES_MAX)).await.status, 200);
    let reply = house.send_json("POST", "/json", padded(CALL_BYTES_MAX + 1)).await;
    assert_eq!((reply.status.as_u16(), &*reply.text), (400, "Bad Request\n"));
    assert_eq!(house.bad_input("body_too_large"), 1);
    // Two descriptors with one value of a client, which is as long as Envoy takes it.
    let value = "x".repeat(60 << 10);
    let entry = format!(r#"{{"entries":[{{"key":"ip","value":"{value}"}}]}}"#);
    let long = format!(r#"{{"domain":"ws","descriptors":[{entry},{entry}]}}"#);
    let statuses: Vec<u16> = vec![200, 200, 200, 429];
    for status in statuses {
        assert_eq!(house.send_json("POST", "/json", long.clone()).await.status, status);
    }
    // A length that is refused unseen: the body that is really there would pass.
    let declared = request("POST", "/json")
        .header(CONTENT_LENGTH, (CALL_BYTES_MAX + 1).to_string())
        .header(EXPECT, "100-continue");
    let reply = house.send(declared.body(Body::from(CALL)).unwrap()).await;
    assert_eq!(reply.status, 400);
    // A page of a browser.
    let page = request("POST", "/json").header("origin", "http://localhost:8080");
    let reply = house.send(page.body(Body::from(CALL)).unwrap()).await;
    house.assert_problem(&reply, 403, "origin");
}
