//! Taking from records through the HTTP door.

use serde_json::{Value, json};
use tidegate_core::time::{MILLISECOND, SECOND};

use super::{House, Reply, door};
use crate::records::{Life, Unit};

impl House {
    async fn consume(&self, body: Value) -> Reply {
        self.send_json("POST", "/v1/records/consume", body).await
    }
}

#[tokio::test]
async fn a_quota_is_taken_until_it_is_gone_and_comes_back() {
    let house = door();
    let ask = || house.consume(json!({"key": "é", "cost": 2, "quota": 5, "ttl_ms": 2_500}));
    let reply = ask().await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), "application/json");
    assert_eq!(reply.json, json!({"taken": true, "remaining": 3, "ttl_ms": 2_500}));
    assert_eq!(ask().await.json["remaining"], 1);
    house.clock.advance(MILLISECOND / 2);
    let reply = ask().await;
    assert_eq!(reply.status, 429);
    assert_eq!(reply.json, json!({"taken": false, "remaining": 1, "ttl_ms": 2_500}));
    assert_eq!(reply.header("retry-after"), "3");
    let single = house.consume(json!({"key": "é", "quota": 5, "ttl_ms": 1})).await;
    assert_eq!(single.json, json!({"taken": true, "remaining": 0, "ttl_ms": 2_500}));
    house.clock.advance(2_500 * MILLISECOND);
    assert_eq!(ask().await.json, json!({"taken": true, "remaining": 3, "ttl_ms": 2_500}));
}

#[tokio::test]
async fn a_buffer_of_another_door_is_not_taken_from() {
    let house = door();
    let records = &house.gate.records;
    let life = Life { unit: Unit::Hours, amount: u64::MAX };
    assert!(records.set(b"b", records.probe(b"b"), b"", life, house.clock.now()));
    let reply = house.consume(json!({"key": "b", "quota": 1, "ttl_ms": 1})).await;
    assert_eq!((reply.status.as_u16(), &reply.json["reason"]), (409, &"buffer".into()));
    assert_eq!(reply.header("content-type"), "application/problem+json");
}

#[tokio::test]
async fn a_full_table_is_told_apart_from_a_refusal() {
    let house = door();
    let ask = |n: u64| house.consume(json!({"key": n.to_string(), "quota": 2, "ttl_ms": 1_000}));
    for n in 0..4 {
        assert_eq!(ask(n).await.status, 200);
    }
    let reply = ask(4).await;
    assert_eq!((reply.status.as_u16(), &reply.json["reason"]), (503, &"records_full".into()));
    assert_eq!(reply.header("retry-after"), "1");
    assert_eq!(house.bad_input("records_full"), 0, "nothing is wrong with the request");
    assert_eq!(ask(0).await.status, 200, "those that are there live on");
    house.clock.advance(SECOND);
    assert_eq!(ask(4).await.status, 200);
    let page = house.ask("GET", "/metrics").await.text;
    assert!(page.contains("\ntidegate_records "), "{page}");
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused_and_counted() {
    let house = door();
    let whole = json!({"key": "k", "cost": 1, "quota": 5, "ttl_ms": 1_000});
    let check = async |changes: &[(&str, Option<Value>)], reason: &str, part: &str| {
        let mut body = whole.clone();
        for (name, value) in changes {
            match value {
                Some(value) => body[*name] = value.clone(),
                None => drop(body.as_object_mut().unwrap().remove(*name)),
            }
        }
        let before = house.bad_input(reason);
        let reply = house.consume(body.clone()).await;
        assert_eq!((reply.status.as_u16(), &reply.json["reason"]), (400, &reason.into()), "{body}");
        assert!(reply.json["detail"].as_str().unwrap().contains(part), "{}", reply.text);
        assert_eq!(house.bad_input(reason), before + 1);
    };
    check(&[("key", None)], "field", "key").await;
    check(&[("quota", None)], "field", "quota").await;
    check(&[("ttl_ms", None)], "field", "ttl_ms").await;
    check(&[("ttl_ms", Some(json!(0)))], "field", "ttl_ms").await;
    check(&[("ttl_ms", Some(json!(-1)))], "field", "ttl_ms").await;
    check(&[("quota", Some(json!(1.5)))], "field", "quota").await;
    check(&[("keys", Some(json!([])))], "field", "keys").await;
    check(&[("cost", Some(json!(0)))], "cost_zero", "at least 1").await;
    check(&[("cost", Some(json!(6)))], "cost_above_limit", "5").await;
    check(&[("key", Some(json!("k".repeat(256))))], "key_too_long", "255").await;
    let long = "k".repeat(255);
    assert_eq!(
        house.consume(json!({"key": long, "quota": 1, "ttl_ms": u64::MAX})).await.status,
        200
    );
    assert_eq!(house.ask("POST", "/v1/records/consume").await.status, 415);
}
