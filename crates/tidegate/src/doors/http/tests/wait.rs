//! Waiting over HTTP, on a clock that is moved by hand.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tidegate_core::time::SECOND;
use tokio::task::JoinHandle;

use super::super::wait::BOUNDS;
use super::{House, Reply, door, request};
use crate::config::Config;
use crate::control::Control;

async fn wait(house: &House, body: Value) -> Reply {
    let request = request("POST", "/v1/wait").header(CONTENT_TYPE, "application/json");
    house.send(request.body(Body::from(body.to_string())).unwrap()).await
}

/// Begins to wait, and comes back once it is in line.
async fn in_line(house: &Arc<House>, body: Value) -> JoinHandle<Reply> {
    let before = house.gate.waiting.len();
    let waiting = tokio::spawn({
        let house = house.clone();
        async move { wait(&house, body).await }
    });
    while house.gate.waiting.len() == before {
        assert!(!waiting.is_finished(), "{:?}", waiting.await.map(|reply| reply.text));
        tokio::task::yield_now().await;
    }
    waiting
}

#[tokio::test]
async fn what_may_go_goes_at_once_and_is_answered_as_a_check() {
    let house = door();
    let mut waited = wait(&house, json!({"key": "ws ip=a"})).await;
    let mut checked = house.check(json!({"key": "ws ip=b"})).await;
    assert_eq!((waited.status.as_u16(), checked.status.as_u16()), (200, 200));
    for reply in [&mut waited, &mut checked] {
        // The rate before and after the use is all that differs.
        reply.json["limits"][0]["key"] = Value::Null;
        reply.json["limits"][0]["rate"] = Value::Null;
    }
    assert_eq!(waited.json, checked.json);
    let free = wait(&house, json!({"key": "unlimited"})).await;
    assert_eq!((free.status.as_u16(), &free.json["limits"]), (200, &json!([])));
}

#[tokio::test]
async fn whoever_waits_is_answered_when_a_use_ends_in_the_order_of_arrival() {
    let house = Arc::new(door());
    let held = house.check(json!({"key": "both a", "hold_ms": 60_000})).await;
    let body = json!({"key": "both a", "hold_ms": 60_000});
    let first = in_line(&house, body.clone()).await;
    let second = in_line(&house, body).await;
    let end = |reply: &Reply| format!("/v1/uses/{}", reply.json["use"].as_str().unwrap());
    assert_eq!(house.ask("DELETE", &end(&held)).await.status, 204);
    let first = first.await.unwrap();
    assert_eq!((first.status.as_u16(), second.is_finished()), (200, false), "{}", first.text);
    assert_eq!(house.ask("DELETE", &end(&first)).await.status, 204);
    assert_eq!(second.await.unwrap().status, 200);
    assert_eq!(house.gate.waiting.len(), 0);
}

#[tokio::test]
async fn a_reset_frees_whoever_waits() {
    let house = Arc::new(door());
    assert_eq!(house.check(json!({"key": "ws ip=a", "cost": 3})).await.status, 200);
    let waiting = in_line(&house, json!({"key": "ws ip=a"})).await;
    assert_eq!(house.gate.limiter.forget(b"ws ip=a").await, Ok(true));
    assert_eq!(waiting.await.unwrap().status, 200);
}

#[tokio::test]
async fn when_the_time_is_over_it_is_a_refusal() {
    let house = Arc::new(door());
    let driver = std::thread::spawn({
        let (waiting, shutdown) = (house.gate.waiting.clone(), house.gate.door.shutdown.clone());
        move || waiting.keep_waking(&shutdown)
    });
    assert_eq!(house.check(json!({"key": "ws ip=a", "cost": 3})).await.status, 200);
    let late = in_line(&house, json!({"key": "ws ip=a", "max_wait_ms": 2_000})).await;
    let patient = in_line(&house, json!({"key": "ws ip=a"})).await;
    house.clock.advance(2 * SECOND);
    let late = late.await.unwrap();
    assert_eq!((late.status.as_u16(), late.header("retry-after")), (429, "2"));
    assert_eq!((&late.json["allowed"], &late.json["refused_by"]), (&json!(false), &json!("ws-ip")));
    assert_eq!(late.json["delay_ms"], 1_334);
    house.clock.advance(2 * SECOND);
    assert_eq!(patient.await.unwrap().status, 200);
    let hasty = wait(&house, json!({"key": "ws ip=a", "max_wait_ms": 0, "cost": 3})).await;
    assert_eq!(hasty.status, 429);
    house.gate.door.shutdown.set();
    driver.join().unwrap();
}

#[tokio::test]
async fn a_limit_that_is_raised_over_the_api_frees_whoever_waits_at_once() {
    let house = door();
    let file = "[[rule]]\nname = 'daily'\nmatch = 'k *'\nlimit = '2 per day'\n[http]\n";
    house.process.install(Config::parse("t", file).unwrap().written);
    let house = Arc::new(house);
    let body = json!({"key": "k 1"});
    for _ in 0..2 {
        assert_eq!(wait(&house, body.clone()).await.status, 200);
    }
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(in_line(&house, body.clone()).await);
    }
    let set = |limit: &str| {
        let fields = json!({"limit": limit}).as_object().unwrap().clone();
        house.process.set_rule("daily", fields, None).is_ok()
    };
    // The clock stands still, and nobody looks at it: the change alone lets them go, in order.
    assert!(set("4 per day"));
    let last = waiting.pop().unwrap();
    for first in waiting {
        assert_eq!(first.await.unwrap().status, 200);
    }
    assert_eq!((last.is_finished(), house.gate.waiting.len()), (false, 1));
    assert!(set("none"));
    assert_eq!((last.await.unwrap().status.as_u16(), house.gate.waiting.len()), (200, 0));
}

#[tokio::test]
async fn a_door_that_closes_lets_nobody_wait_on() {
    let house = Arc::new(door());
    assert_eq!(house.check(json!({"key": "ws ip=a", "cost": 3})).await.status, 200);
    let waiting = in_line(&house, json!({"key": "ws ip=a"})).await;
    house.gate.door.shutdown.set();
    let reply = waiting.await.unwrap();
    assert_eq!((reply.status.as_u16(), reply.header("retry-after")), (503, "1"));
    assert_eq!((&reply.json["reason"], house.gate.waiting.len()), (&json!("draining"), 0));
}

#[tokio::test]
async fn whoever_leaves_has_left() {
    let house = Arc::new(door());
    assert_eq!(house.check(json!({"key": "ws ip=a", "cost": 3})).await.status, 200);
    let waiting = in_line(&house, json!({"key": "ws ip=a"})).await;
    waiting.abort();
    assert!(waiting.await.is_err());
    assert_eq!(house.gate.waiting.len(), 0);
}

#[tokio::test]
async fn what_makes_no_sense_is_bad_input() {
    let house = door();
    for (body, reason) in [
        (json!({}), "field"),
        (json!({"keys": ["a"]}), "field"),
        (json!({"key": "a", "peek": true}), "field"),
        (json!({"key": "a", "max_wait_ms": -1}), "field"),
        (json!({"key": "a", "hold_ms": 0}), "field"),
        (json!({"key": "ws ip=a", "cost": 0}), "cost_zero"),
        (json!({"key": "ws ip=a", "cost": 4}), "cost_above_limit"),
        (json!({"key": "jobs"}), "in_flight_key"),
        (json!({"key": "k".repeat(1025)}), "key_too_long"),
    ] {
        let before = house.bad_input(reason);
        let reply = wait(&house, body.clone()).await;
        assert_eq!((reply.status.as_u16(), &reply.json["reason"]), (400, &json!(reason)), "{body}");
        assert_eq!(house.bad_input(reason), before + 1);
    }
}

#[tokio::test]
async fn no_more_may_wait_than_there_is_room_for() {
    let house = Arc::new(door());
    let body = json!({"key": "both a", "hold_ms": 60_000});
    assert_eq!(house.check(body.clone()).await.status, 200);
    let mut waiting = Vec::new();
    while waiting.len() < BOUNDS.per_key {
        waiting.push(in_line(&house, body.clone()).await);
    }
    let reply = wait(&house, body).await;
    assert_eq!(
        (reply.status.as_u16(), &reply.json["reason"]),
        (503, &json!("crowded")),
        "{}",
        reply.text
    );
    waiting.into_iter().for_each(|waiting| waiting.abort());
}
