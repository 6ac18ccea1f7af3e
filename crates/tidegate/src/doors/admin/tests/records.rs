//! Records shown and removed.

use serde_json::{Value, json};

use super::door;
use crate::records::{Life, Unit};

#[tokio::test]
async fn a_record_is_shown_and_removed() {
    let house = door();
    for key in ["a/b ?", "consume", ""] {
        let path = format!("/v1/records/{}", key.replace(' ', "%20").replace('?', "%3F"));
        let missing = house.ask("GET", &path).await;
        assert_eq!(
            (missing.status.as_u16(), &missing.json["reason"]),
            (404, &"unknown_record".into())
        );
        let records = &house.gate.records;
        let life = Life { unit: Unit::Milliseconds, amount: 60_000 };
        let (probe, now) = (records.probe(key.as_bytes()), house.clock.now());
        assert!(records.consume(key.as_bytes(), probe, 1, 7, life, now).taken);
        let stats = json!({"reads_per_minute": 0, "writes_per_minute": 0, "reads": 0, "writes": 0});
        for _ in 0..2 {
            let reply = house.ask("GET", &path).await;
            assert_eq!(reply.status, 200);
            let expected = json!({
                "key": key, "kind": "counter", "quota": 6, "ttl_ms": 60_000, "stats": stats
            });
            assert_eq!(reply.json, expected, "a look is not a use");
        }
        for _ in 0..2 {
            let reply = house.ask("DELETE", &path).await;
            assert_eq!((reply.status.as_u16(), reply.text.as_str()), (204, ""));
        }
        assert_eq!(house.ask("GET", &path).await.status, 404);
    }
    assert_eq!(house.bad_input("unknown_record"), 6);
}

#[tokio::test]
async fn a_buffer_is_shown_without_its_bytes() {
    let house = door();
    let records = &house.gate.records;
    let life = Life { unit: Unit::Hours, amount: u64::MAX };
    assert!(records.set(b"b\xff", records.probe(b"b\xff"), b"EHLO", life, house.clock.now()));
    let reply = house.ask("GET", "/v1/records/b%FF").await;
    assert_eq!((&reply.json["key"], &reply.json["kind"]), (&"b%FF".into(), &"buffer".into()));
    assert_eq!((&reply.json["bytes"], &reply.json["ttl_ms"]), (&json!(4), &Value::Null));
    assert!(reply.json.get("quota").is_none());
}

#[tokio::test]
async fn keys_of_records_are_checked() {
    for (path, reason) in [
        (format!("/v1/records/{}", "k".repeat(256)), "key_too_long"),
        ("/v1/records/%2".into(), "key_encoding"),
        ("/v1/records/a?b".into(), "query"),
    ] {
        for method in ["GET", "DELETE"] {
            let house = door();
            house.assert_problem(&house.ask(method, &path).await, 400, reason);
        }
    }
    for (method, path) in [("PUT", "/v1/records/k"), ("POST", "/v1/records/consume")] {
        let house = door();
        house.assert_problem(&house.ask(method, path).await, 405, "method");
    }
}
