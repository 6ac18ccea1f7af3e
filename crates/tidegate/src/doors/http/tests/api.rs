//! What each path answers when it is asked properly.

use std::sync::Arc;

use serde_json::{Value, json};
use tidegate_core::time::{MILLISECOND, SECOND};

use super::super::router::router;
use super::{House, Reply, door};
use crate::metrics::Door;

fn names(object: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn a_check_answers_with_the_whole_contract() {
    let house = door();
    let reply = house.check(json!({"key": "ws ip=1.2.3.4"})).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), "application/json");
    assert_eq!(names(&reply.json), ["allowed", "delay_ms", "limits", "refused_by"]);
    assert_eq!(reply.json["allowed"], true);
    assert_eq!(reply.json["delay_ms"], 0);
    assert_eq!(reply.json["refused_by"], Value::Null);
    let limit = &reply.json["limits"][0];
    let expected = [
        "amount",
        "key",
        "limit",
        "period_ms",
        "rate",
        "remaining",
        "reset_ms",
        "retry_after_ms",
        "rule",
    ];
    assert_eq!(names(limit), expected);
    assert_eq!(limit["key"], "ws ip=1.2.3.4");
    assert_eq!(limit["rule"], "ws-ip");
    assert_eq!(limit["limit"], "3 per 10s");
    assert_eq!(limit["amount"], 3);
    assert_eq!(limit["period_ms"], 10_000);
    assert_eq!(limit["remaining"], 2);
    assert_eq!(limit["retry_after_ms"], 0);
    assert_eq!(limit["reset_ms"], 3_334);
    assert!(limit["rate"].is_f64());
}

#[tokio::test]
async fn a_refusal_names_the_rule_and_when_to_come_back() {
    let house = door();
    for _ in 0..3 {
        assert_eq!(house.check(json!({"key": "ws ip=a"})).await.status, 200);
    }
    house.clock.advance(MILLISECOND);
    let reply = house.check(json!({"key": "ws ip=a"})).await;
    assert_eq!(reply.status, 429);
    assert_eq!(reply.json["allowed"], false);
    assert_eq!(reply.json["refused_by"], "ws-ip");
    assert_eq!(reply.header("content-type"), "application/problem+json");
    let kind = "https://iana.org/assignments/http-problem-types#quota-exceeded";
    assert_eq!((&reply.json["type"], &reply.json["status"]), (&json!(kind), &json!(429)));
    assert_eq!(reply.json["violated-policies"], json!(["ws-ip"]));
    // A use comes back every 3,333.3 ms, and one has passed: both figures are rounded up.
    assert_eq!(reply.json["limits"][0]["retry_after_ms"], 3_333);
    assert_eq!(reply.header("retry-after"), "4");
    house.clock.advance(3_333 * MILLISECOND);
    assert_eq!(house.check(json!({"key": "ws ip=a"})).await.status, 200);
}

#[tokio::test]
async fn every_answer_tells_the_state_of_its_limits_in_headers() {
    let house = door();
    let told = |reply: &Reply| {
        let header = |name| reply.header(name).to_owned();
        (header("ratelimit-policy"), header("ratelimit"))
    };
    let expected = |policy: &str, state: &str| (policy.to_owned(), state.to_owned());
    let policy = "\"ws-ip\";q=3;w=10";
    let reply = house.check(json!({"key": "ws ip=a", "cost": 2})).await;
    assert_eq!(told(&reply), expected(policy, "\"ws-ip\";r=1;t=7"));
    for peek in [true, false, true] {
        let reply = house.check(json!({"key": "ws ip=a", "peek": peek})).await;
        assert_eq!(reply.status, if reply.json["allowed"] == true { 200 } else { 429 });
        let limit = &reply.json["limits"][0];
        let wait = if reply.status == 200 { &limit["reset_ms"] } else { &limit["retry_after_ms"] };
        let seconds = wait.as_u64().unwrap().div_ceil(1000);
        let state = format!("\"ws-ip\";r={};t={seconds}", limit["remaining"]);
        assert_eq!(told(&reply), expected(policy, &state), "{peek}");
    }
    let reply = house.check(json!({"key": "ws ip=a"})).await;
    assert_eq!(reply.status, 429);
    assert_eq!(told(&reply), expected(policy, "\"ws-ip\";r=0;t=4"));

    // Limits of one rule have names of their own; a key without a limit has nothing to tell.
    let reply = house.check(json!({"keys": ["ws ip=b", "free", "ws ip=c"]})).await;
    assert_eq!(reply.status, 200);
    let policies = "\"ws-ip#1\";q=3;w=10, \"ws-ip#2\";q=3;w=10";
    assert_eq!(told(&reply), expected(policies, "\"ws-ip#1\";r=2;t=4, \"ws-ip#2\";r=2;t=4"));
    assert_eq!(told(&house.check(json!({"key": "free"})).await), expected("", ""));

    let wait = json!({"key": "ws ip=b", "max_wait_ms": 0});
    let reply = house.send_json("POST", "/v1/wait", wait).await;
    assert_eq!((reply.status.as_u16(), told(&reply).0), (200, policy.to_owned()));
}

#[tokio::test]
async fn several_keys_are_all_or_nothing() {
    let house = door();
    house.check(json!({"key": "ws ip=a", "cost": 3})).await;
    let reply = house.check(json!({"keys": ["ws ip=b", "ws ip=a", "free"]})).await;
    assert_eq!(reply.status, 429);
    let keys: Vec<_> =
        reply.json["limits"].as_array().unwrap().iter().map(|limit| &limit["key"]).collect();
    assert_eq!(keys, ["ws ip=b", "ws ip=a"]);
    let looked = house.check(json!({"key": "ws ip=b", "cost": 3, "peek": true})).await;
    assert_eq!(looked.status, 200, "nothing was taken of the other key");
}

#[tokio::test]
async fn a_peek_takes_nothing_and_may_be_refused() {
    let house = door();
    for _ in 0..9 {
        let reply = house.check(json!({"key": "ws ip=a", "cost": 3, "peek": true})).await;
        assert_eq!(
            (reply.status.as_u16(), &reply.json["limits"][0]["remaining"]),
            (200, &json!(3))
        );
    }
    house.check(json!({"key": "ws ip=a"})).await;
    let reply = house.check(json!({"key": "ws ip=a", "cost": 3, "peek": true})).await;
    assert_eq!((reply.status.as_u16(), reply.header("retry-after")), (429, "4"));
}

#[tokio::test]
async fn keys_without_a_rule_have_no_limits() {
    let house = door();
    let reply = house.check(json!({"key": "free", "cost": 1_000_000})).await;
    assert_eq!((reply.status.as_u16(), &reply.json["limits"]), (200, &json!([])));
}

#[tokio::test]
async fn a_held_use_is_given_back_once() {
    let house = door();
    let held = house.check(json!({"key": "jobs", "cost": 2, "hold_ms": 60_000})).await;
    assert_eq!(held.status, 200);
    let id = held.json["use"].as_str().unwrap().to_owned();
    assert_eq!(id.len(), 32);
    assert_eq!(held.json["limits"][0]["period_ms"], Value::Null);

    let refused = house.check(json!({"key": "jobs", "hold_ms": 60_000})).await;
    assert_eq!((refused.status.as_u16(), &refused.json["use"]), (429, &Value::Null));
    assert_eq!(refused.header("retry-after"), "1", "nobody can tell when a use ends");

    let path = format!("/v1/uses/{id}");
    assert_eq!(house.ask("DELETE", &path).await.status, 204);
    assert_eq!(house.ask("DELETE", &path).await.status, 404);
    let reply = house.check(json!({"key": "jobs", "peek": true})).await;
    assert_eq!(reply.json["limits"][0]["remaining"], 2);
}

#[tokio::test]
async fn a_held_use_lapses() {
    let house = door();
    let held = house.check(json!({"keys": ["jobs", "both x"], "hold_ms": 5_000})).await;
    let path = format!("/v1/uses/{}", held.json["use"].as_str().unwrap());
    let request = json!({"key": "both x", "hold_ms": 1});
    house.clock.advance(5 * SECOND - 1);
    let refused = house.check(&request).await;
    assert_eq!((refused.status.as_u16(), &refused.json["refused_by"]), (429, &json!("both")));
    house.clock.advance(1);
    assert_eq!(house.check(&request).await.status, 200);
    assert_eq!(house.ask("DELETE", &path).await.status, 404);
    assert_eq!(house.bad_input("unknown_use"), 1);
}

#[tokio::test]
async fn there_is_no_use_where_nothing_is_in_flight() {
    let house = door();
    let reply = house.check(json!({"key": "ws ip=a", "hold_ms": 1_000})).await;
    assert_eq!((reply.status.as_u16(), &reply.json["use"]), (200, &Value::Null));
    assert!(house.gate.uses.is_empty());
}

#[tokio::test]
async fn readiness_tells_why() {
    let house = door();
    let reply = house.ask("GET", "/readyz").await;
    let expected = json!({"ready": true, "draining": false, "last_reload_error": null});
    assert_eq!((reply.status.as_u16(), reply.json), (200, expected));

    house.process.state.set_reload_error(Some("line 3".to_owned()));
    let reply = house.ask("GET", "/readyz").await;
    assert_eq!((reply.status.as_u16(), &reply.json["last_reload_error"]), (200, &json!("line 3")));

    house.process.state.set_snapshot_error(Some("no space left".to_owned()));
    house.process.state.set_snapshot_restored_from("previous");
    let reply = house.ask("GET", "/readyz").await;
    assert_eq!(
        (reply.status.as_u16(), &reply.json["snapshot_error"]),
        (200, &json!("no space left"))
    );
    assert_eq!(reply.json["snapshot_restored_from"], "previous");

    house.process.state.set_ready(false);
    let reply = house.ask("GET", "/readyz").await;
    assert_eq!((reply.status.as_u16(), &reply.json["ready"]), (503, &json!(false)));
    assert_eq!(house.ask("GET", "/healthz").await.status, 200, "alive all the same");

    house.process.state.set_ready(true);
    house.gate.door.shutdown.set();
    let reply = house.ask("GET", "/readyz").await;
    assert_eq!((reply.status.as_u16(), &reply.json["draining"]), (503, &json!(true)));
}

#[tokio::test]
async fn all_but_health_is_held_until_the_start_is_over() {
    for stops in [false, true] {
        let house = Arc::new(House::starting(Door::Http, router));
        let held = tokio::spawn({
            let house = house.clone();
            async move { house.check(json!({"key": "ws ip=a"})).await }
        });
        for (path, status) in [("/healthz", 200), ("/readyz", 503), ("/metrics", 200)] {
            assert_eq!(house.ask("GET", path).await.status.as_u16(), status, "{path}");
        }
        tokio::task::yield_now().await;
        assert!(!held.is_finished());
        match stops {
            false => house.process.state.set_ready(true),
            true => house.gate.door.shutdown.set(),
        }
        let reply = held.await.unwrap();
        let expected = if stops { (503, &json!("draining")) } else { (200, &Value::Null) };
        assert_eq!((reply.status.as_u16(), &reply.json["reason"]), expected, "{}", reply.text);
    }
}

#[tokio::test]
async fn metrics_say_what_they_are() {
    let house = door();
    let reply = house.ask("GET", "/metrics").await;
    assert_eq!(reply.status, 200);
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(reply.header("content-type"), content_type);
    assert!(reply.text.ends_with("# EOF\n"));
}
