//! What nginx, Traefik, Caddy and Envoy ask, as they ask it, on a clock that stands still.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::HeaderName;
use serde_json::json;
use tidegate_core::time::SECOND;

use super::super::Config;
use super::{House, Reply, request};
use crate::doors::DoorConfig as _;
use crate::doors::http_server::connections::PeerAddress;

/// `ws ip=*` has 3 per 10 s; see the house's rules.
const TABLES: &str = "
    [[authorize]]
    name = 'ws'
    key = 'ip={client}'
    trusted_proxies = ['10.0.0.0/8']
    [[authorize]]
    name = 'nginx'
    key = 'path={path}'
    refuse = 403
    [[authorize]]
    name = 'ask'
    key = '{method} path={path} who={header:X-Who}'
    [[authorize]]
    name = 'both'
    key = 'path={path}'
    refuse = 403
";

fn house(tables: &str) -> House {
    let house = super::door();
    toml::from_str::<Config>(tables).unwrap().renew(&house.gate);
    house
}

/// Asks from `peer`; each line of `head` is a header.
async fn ask(house: &House, peer: &str, method: &str, path: &str, head: &str) -> Reply {
    let mut request = request(method, path);
    for line in head.lines() {
        let (name, value) = line.split_once(": ").unwrap();
        request = request.header(name.parse::<HeaderName>().unwrap(), value);
    }
    let peer: IpAddr = peer.parse().unwrap();
    house.send(request.extension(PeerAddress(peer)).body(Body::empty()).unwrap()).await
}

/// The requests that a key has had.
fn counted(house: &House, key: &str) -> u64 {
    house.gate.limiter.stats(key.as_bytes(), house.clock.now()).requests
}

#[tokio::test]
async fn clients_are_let_go_up_to_their_limit_and_told_the_rest() {
    let house = house(TABLES);
    for left in [2, 1, 0] {
        let reply = ask(&house, "10.1.1.1", "GET", "/v1/authorize/ws", "x-forwarded-for: 6.6.6.6");
        let reply = reply.await;
        assert_eq!((reply.status.as_u16(), reply.text.as_str()), (200, ""));
        assert_eq!(reply.header("ratelimit-policy"), "\"ws-ip\";q=3;w=10");
        assert!(reply.header("ratelimit").starts_with(&format!("\"ws-ip\";r={left};t=")));
        assert_eq!(reply.header("cache-control"), "no-store");
    }
    let lie = "x-forwarded-for: 1.1.1.1, 6.6.6.6, 10.9.9.9";
    let reply = ask(&house, "10.1.1.1", "GET", "/v1/authorize/ws", lie).await;
    assert_eq!((reply.status.as_u16(), reply.header("retry-after")), (429, "4"));
    assert_eq!(reply.header("ratelimit"), "\"ws-ip\";r=0;t=4");
    assert_eq!(reply.header("content-type"), "application/problem+json");
    assert_eq!(reply.header("x-tidegate-refused-by"), "ws-ip");
    let said = json!({"type": "about:blank", "title": "Too Many Requests", "status": 429,
        "detail": "the limit of this resource is reached", "reason": "over_limit",
        "refused_by": "ws-ip"});
    assert_eq!(reply.json, said);
    // A stranger speaks for itself alone, whatever it says.
    let reply = ask(&house, "11.1.1.1", "GET", "/v1/authorize/ws", lie).await;
    assert_eq!(reply.status, 200);
    assert_eq!(counted(&house, "ws ip=11.1.1.1"), 1);
    assert_eq!(counted(&house, "ws ip=6.6.6.6"), 4);
    assert_eq!(house.bad_input("over_limit"), 0, "a refusal is no bad input");
}

#[tokio::test]
async fn each_server_tells_in_its_own_way_what_was_asked_for() {
    let house = house(TABLES);
    let all = "[default]\nlimit = '100 per 1d'\n[http]";
    house.process.install(crate::config::Config::parse("t", all).unwrap().written);
    let forwarded = "x-forwarded-method: PUT\nx-forwarded-uri: /a%20b?c=d\nx-forwarded-proto: \
                     https\nx-forwarded-host: api.example\nx-forwarded-for: 192.0.2.1\nx-who: me";
    let rows = [
        // Traefik and Caddy, and nginx where it is told to: all in headers.
        ("GET", "/v1/authorize/ask", forwarded, "ask PUT path=/a%20b who=me"),
        ("GET", "/v1/authorize/ask?x", forwarded, "ask PUT path=/a%20b who=me"),
        // Envoy: the method is the client's, and its path follows ours.
        ("PUT", "/v1/authorize/ask/a%20b?c=d", "x-who: me", "ask PUT path=/a%20b who=me"),
        ("HEAD", "/v1/authorize/ask/", "", "ask HEAD path=/ who="),
        ("OPTIONS", "/v1/authorize/ask//x/../y", "", "ask OPTIONS path=/y who="),
        // What a client adds to a path that was told says nothing.
        ("DELETE", "/v1/authorize/ask/e", "x-forwarded-uri: /f", "ask DELETE path=/e who="),
        ("DELETE", "/v1/authorize/ask/e", "x-forwarded-method: GET", "ask DELETE path=/e who="),
        // Whoever tells no method asks by it.
        ("GET", "/v1/authorize/ask", "x-forwarded-uri: /g", "ask GET path=/g who="),
        ("GET", "/v1/authorize/ask", "x-forwarded-uri: http://h/i", "ask GET path=/i who="),
    ];
    for (method, path, head, key) in rows {
        let before = counted(&house, key);
        let reply = ask(&house, "127.0.0.1", method, path, head).await;
        assert_eq!((reply.status.as_u16(), reply.text.as_str()), (200, ""), "{method} {path}");
        assert_eq!(counted(&house, key), before + 1, "{method} {path} {head}");
    }
}

#[tokio::test]
async fn what_cannot_be_understood_is_bad_input_by_its_reason() {
    let house = house(TABLES);
    let long = format!("x-forwarded-uri: /{}", "x".repeat(1100));
    let twice = "x-forwarded-uri: /a\nx-forwarded-uri: /b";
    for (name, head, status, reason) in [
        ("none", "", 404, "authorize"),
        ("", "", 404, "path"),
        ("ws", "", 400, "no_client"),
        ("ask", "", 400, "no_uri"),
        ("ask", twice, 400, "forwarded_twice"),
        ("ask", "x-forwarded-uri: a b", 400, "uri"),
        ("ask", "x-forwarded-uri: example.com:443", 400, "uri"),
        ("ask", "x-forwarded-uri: /a\nx-forwarded-method: a b", 400, "method"),
        ("ask", &long, 400, "key_too_long"),
        // To nginx all of these would be failures, and its client is refused instead.
        ("nginx", &long, 403, "key_too_long"),
        ("nginx", "", 403, "no_uri"),
        ("both", "x-forwarded-uri: /a", 403, "in_flight_key"),
    ] {
        let before = house.bad_input(reason);
        let path = format!("/v1/authorize/{name}");
        let reply = ask(&house, "10.1.1.1", "GET", &path, head).await;
        assert_eq!((reply.status.as_u16(), &reply.json["reason"]), (status, &json!(reason)));
        assert_eq!(house.bad_input(reason), before + 1, "{name} {head}");
    }
    // The Host that a client asked for is no name of this door unless the file says so.
    let named = axum::http::Request::builder().uri("/v1/authorize/nginx/a").header("host", "x.y");
    assert_eq!(house.send(named.body(Body::empty()).unwrap()).await.status, 403);
    assert_eq!(house.bad_input("host"), 1);
}

#[tokio::test]
async fn a_request_over_its_limit_may_wait_for_its_turn() {
    let tables = TABLES.replacen("trusted", "max_wait = '5s'\n    trusted", 1);
    let house = Arc::new(house(&tables));
    let driver = std::thread::spawn({
        let (waiting, shutdown) = (house.gate.waiting.clone(), house.gate.door.shutdown.clone());
        move || waiting.keep_waking(&shutdown)
    });
    let one = |house: Arc<House>| async move {
        ask(&house, "10.1.1.1", "GET", "/v1/authorize/ws", "x-forwarded-for: 6.6.6.6").await
    };
    for _ in 0..3 {
        assert_eq!(one(house.clone()).await.status, 200);
    }
    let first = tokio::spawn(one(house.clone()));
    let second = tokio::spawn(one(house.clone()));
    while house.gate.waiting.len() < 2 {
        tokio::task::yield_now().await;
    }
    house.clock.advance(4 * SECOND);
    let first = first.await.unwrap();
    assert_eq!(first.status, 200);
    assert!(first.header("ratelimit").starts_with("\"ws-ip\";r=0;"));
    house.clock.advance(SECOND);
    let second = second.await.unwrap();
    assert_eq!((second.status.as_u16(), second.header("retry-after")), (429, "2"));
    house.gate.door.shutdown.set();
    driver.join().unwrap();
}
