//! What is refused before anything is counted against a key.

use axum::body::Body;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, HOST};
use axum::http::{Method, Request};
use serde_json::{Value, json};

use super::super::Config;
use super::{door, request};
use crate::doors::DoorConfig as _;
use crate::doors::http_server::body::BODY_BYTES_MAX;
use crate::limiter::TopBy;

async fn refused(body: &str, reason: &str, detail: &str) {
    let house = door();
    let reply = house.check(body).await;
    house.assert_problem(&reply, 400, reason);
    let said = reply.json["detail"].as_str().unwrap();
    assert!(said.contains(detail), "{body}: {said}");
    assert!(house.gate.limiter.top(TopBy::Used, 9).is_empty(), "nothing was counted");
}

#[tokio::test]
async fn bodies_that_are_not_one_json_object() {
    for body in ["", " ", "null", "3", "\"a\"", "[\"a\"]", "[]"] {
        refused(body, "json", "one JSON object").await;
    }
    for body in ["{", "{\"key\":\"a\"", "{key:1}", "{\"key\":\"\u{1}\"}", "{\"key\":\"\\ud800\"}"] {
        refused(body, "json", "not JSON").await;
    }
    refused("{\"key\":\"ws ip=a\"} {}", "json", "after the JSON object").await;
}

#[tokio::test]
async fn fields_that_do_not_fit() {
    refused(r#"{"key":"ws ip=a","tries":1}"#, "field", "tries").await;
    refused(r#"{"key":"ws ip=a","key":"b"}"#, "field", "duplicate field `key`").await;
    refused(r#"{"key":7}"#, "field", "key: ").await;
    refused(r#"{"keys":"a"}"#, "field", "keys: ").await;
    refused(r#"{"keys":["a",2]}"#, "field", "keys[1]: ").await;
    refused("{}", "field", "one of \"key\" and \"keys\"").await;
    refused(r#"{"keys":[]}"#, "field", "at least one").await;
    refused(r#"{"key":"a","keys":["b"]}"#, "field", "not both").await;
    for (cost, found) in [
        ("-1", "invalid value: integer `-1`"),
        ("1.5", "invalid type: floating point `1.5`"),
        ("\"1\"", "invalid type: string \"1\""),
        ("1e3", "invalid type: floating point `1000.0`"),
        ("18446744073709551616", "invalid type: floating point `1.8446744073709552e+19`"),
    ] {
        let told = format!("cost: {found}, expected a whole number from 1");
        refused(&format!("{{\"key\":\"ws ip=a\",\"cost\":{cost}}}"), "field", &told).await;
    }
    refused(r#"{"key":"a","peek":1}"#, "field", "peek: ").await;
    refused(r#"{"key":"jobs","hold_ms":0}"#, "field", "hold_ms: 1 to").await;
    refused(r#"{"key":"jobs","hold_ms":31622400001}"#, "field", "hold_ms: 1 to").await;
    refused(r#"{"key":"jobs","hold_ms":1,"peek":true}"#, "field", "holds nothing").await;
}

#[tokio::test]
async fn requests_that_no_limit_can_judge() {
    refused(r#"{"key":"ws ip=a","cost":0}"#, "cost_zero", "").await;
    refused(r#"{"key":"ws ip=a","cost":4}"#, "cost_above_limit", "at most 3").await;
    refused(r#"{"key":"free","cost":9007199254740993}"#, "cost_above_limit", "").await;
    refused(r#"{"key":"jobs"}"#, "in_flight_key", "hold_ms").await;
    refused(&json!({"key": "a".repeat(1025)}).to_string(), "key_too_long", "1024").await;
    let many: Vec<String> = (0..33).map(|n| format!("ws ip={n}")).collect();
    refused(&json!({"keys": many}).to_string(), "too_many_keys", "32").await;
}

#[tokio::test]
async fn only_json_is_read() {
    for (content_type, passes) in [
        ("application/json", true),
        ("Application/JSON; charset=utf-8", true),
        ("text/plain", false),
        ("application/x-www-form-urlencoded", false),
        ("application/jsonp", false),
        ("", false),
    ] {
        let house = door();
        let ask = request("POST", "/v1/check").header(CONTENT_TYPE, content_type);
        let reply = house.send(ask.body(Body::from(r#"{"key":"ws ip=a"}"#)).unwrap()).await;
        if passes {
            assert_eq!(reply.status, 200, "{content_type}");
        } else {
            house.assert_problem(&reply, 415, "content_type");
        }
    }
    let house = door();
    let bare = request("POST", "/v1/check").body(Body::from("{}")).unwrap();
    house.assert_problem(&house.send(bare).await, 415, "content_type");
    let house = door();
    let zipped = request("POST", "/v1/check")
        .header(CONTENT_TYPE, "application/json")
        .header(CONTENT_ENCODING, "gzip");
    let reply = house.send(zipped.body(Body::from("{}")).unwrap()).await;
    house.assert_problem(&reply, 415, "content_type");
}

#[tokio::test]
async fn bodies_are_bounded() {
    let padded = |length: usize| {
        let object = r#"{"key":"ws ip=a"}"#;
        format!("{object}{}", " ".repeat(length - object.len()))
    };
    let house = door();
    assert_eq!(house.check(padded(BODY_BYTES_MAX)).await.status, 200);
    let reply = house.check(padded(BODY_BYTES_MAX + 1)).await;
    house.assert_problem(&reply, 413, "body_too_large");

    // Lengths that are refused unseen: the body that is really there would pass.
    for (length, expect) in [(BODY_BYTES_MAX + 1, "100-continue"), (1 << 30, "")] {
        let house = door();
        let mut declared = request("POST", "/v1/check")
            .header(CONTENT_TYPE, "application/json")
            .header("content-length", length.to_string());
        if !expect.is_empty() {
            declared = declared.header("expect", expect);
        }
        let reply = house.send(declared.body(Body::from(r#"{"key":"a"}"#)).unwrap()).await;
        house.assert_problem(&reply, 413, "body_too_large");
    }
}

#[tokio::test]
async fn paths_and_methods_that_do_not_exist() {
    for path in ["/", "/v1", "/v1/check/", "/v1/topmost", "/v1/uses/", "/healthz/", "/v2/check"] {
        let house = door();
        house.assert_problem(&house.ask("GET", path).await, 404, "path");
    }
    for (method, path, allow) in [
        ("GET", "/v1/check", "POST"),
        ("GET", "/v1/records/consume", "POST"),
        ("POST", "/metrics", "GET,HEAD"),
        ("GET", "/v1/uses/0", "DELETE"),
        ("OPTIONS", "/v1/check", "POST"),
        ("BREW", "/healthz", "GET,HEAD"),
    ] {
        let house = door();
        let reply = house.ask(method, path).await;
        house.assert_problem(&reply, 405, "method");
        let mut methods: Vec<&str> = reply.header("allow").split(',').collect();
        methods.sort_unstable();
        assert_eq!(methods.join(","), allow, "{method} {path}");
    }
}

#[tokio::test]
async fn administration_is_at_a_listener_of_its_own() {
    for path in [
        "/v1/keys",
        "/v1/keys/",
        "/v1/keys/ws%20ip=a",
        "/v1/top?by=used",
        "/v1/rules",
        "/v1/rules/a/b",
        "/v1/proxies",
        "/v1/records",
        "/v1/records/a",
        "/v1/records/consume/a",
    ] {
        for method in ["GET", "DELETE", "PUT", "POST"] {
            let house = door();
            house.check(json!({"key": "ws ip=a"})).await;
            let reply = house.send_json(method, path, r#"{"match":"*","limit":"none"}"#).await;
            house.assert_problem(&reply, 404, "administration");
            assert!(reply.json["detail"].as_str().unwrap().contains("[admin]"), "{}", reply.text);
            let top = house.gate.limiter.top(TopBy::Used, 9);
            assert_eq!(top[0].stats.requests, 1, "{method} {path} changed nothing");
        }
    }
}

#[tokio::test]
async fn unknown_uses_are_not_found() {
    for id in ["0", "zz", &"0".repeat(32), &"F".repeat(32), "%20"] {
        let house = door();
        let reply = house.ask("DELETE", &format!("/v1/uses/{id}")).await;
        house.assert_problem(&reply, 404, "unknown_use");
    }
}

#[tokio::test]
async fn a_host_that_is_not_ours_reaches_no_handler() {
    for path in ["/healthz", "/metrics", "/v1/uses/0", "/v1/keys/a", "/nowhere"] {
        let house = door();
        let ask = Request::builder().method(Method::DELETE).uri(path);
        let ask = ask.header(HOST, "evil.example:8080").body(Body::empty()).unwrap();
        house.assert_problem(&house.send(ask).await, 403, "host");
    }
    let house = door();
    let bare = Request::builder().uri("/healthz").body(Body::empty()).unwrap();
    house.assert_problem(&house.send(bare).await, 400, "host");

    let house = door();
    toml::from_str::<Config>("names = ['limits.example']").unwrap().renew(&house.gate);
    let named = Request::builder().uri("/healthz").header(HOST, "limits.example");
    let reply = house.send(named.body(Body::empty()).unwrap()).await;
    assert_eq!((reply.status.as_u16(), reply.json), (200, Value::Null));
}
