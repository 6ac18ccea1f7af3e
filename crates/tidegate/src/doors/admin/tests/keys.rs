//! Keys shown, forgotten and listed.

use serde_json::{Value, json};

use super::door;
use crate::doors::http_server::tests::House;

fn names(object: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn a_key_is_shown_with_its_statistics_and_forgotten() {
    let house = door();
    house.take("ws ip=é/?", 5);
    let path = "/v1/keys/ws%20ip=%C3%A9/%3F";
    let reply = house.ask("GET", path).await;
    assert_eq!(reply.status, 200, "a key over its limit is shown, not refused");
    assert_eq!(names(&reply.json), ["allowed", "delay_ms", "limits", "refused_by", "stats"]);
    assert_eq!(reply.json["allowed"], false);
    assert_eq!(reply.json["limits"][0]["key"], "ws ip=é/?");
    assert_eq!(reply.json["stats"], json!({"requests": 5, "over": 2, "last_max_rate": 0}));
    let again = house.ask("GET", path).await;
    assert_eq!(again.json["stats"], reply.json["stats"], "a look is not a use");

    let reset = house.ask("DELETE", path).await;
    assert_eq!((reset.status.as_u16(), reset.text.as_str()), (204, ""));
    let reply = house.ask("GET", path).await;
    assert_eq!(
        (&reply.json["allowed"], &reply.json["stats"]["requests"]),
        (&json!(true), &json!(0))
    );
    assert_eq!(house.ask("DELETE", path).await.status, 204, "and once more");
}

#[tokio::test]
async fn keys_are_any_bytes() {
    let house = door();
    let reply = house.ask("GET", "/v1/keys/ws%20ip=%FF%00%25").await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.json["limits"][0]["key"], "ws%20ip=%FF%00%25");
    assert_eq!(house.ask("GET", "/v1/keys/").await.json["limits"], json!([]));
    let longest = format!("/v1/keys/{}", "%41".repeat(1024));
    assert_eq!(house.ask("GET", &longest).await.status, 200);
}

#[tokio::test]
async fn keys_in_paths_are_checked() {
    let long = format!("/v1/keys/{}", "%41".repeat(1025));
    for (path, reason) in [
        ("/v1/keys/a%zz", "key_encoding"),
        ("/v1/keys/a%4", "key_encoding"),
        ("/v1/keys/a?b", "query"),
        (&*long, "key_too_long"),
    ] {
        for method in ["GET", "DELETE"] {
            let house = door();
            house.assert_problem(&house.ask(method, path).await, 400, reason);
        }
    }
}

async fn top(house: &House, query: &str) -> Value {
    let reply = house.ask("GET", &format!("/v1/top{query}")).await;
    assert_eq!(reply.status, 200);
    reply.json
}

#[tokio::test]
async fn the_top_lists_are_ordered_and_cut() {
    let house = door();
    for (key, times) in [("ws ip=a", 2), ("ws ip=b", 5), ("ws ip=c", 4)] {
        house.take(key, times);
    }
    let used = top(&house, "").await;
    let b =
        json!({"key": "ws ip=b", "rule": "ws-ip", "requests": 5, "over": 2, "last_max_rate": 0});
    assert_eq!((&used["by"], &used["keys"][0]), (&json!("used"), &b));
    assert_eq!(used["keys"].as_array().unwrap().len(), 3);
    let refused = top(&house, "?by=refused&count=2").await;
    let keys = refused["keys"].as_array().unwrap();
    assert_eq!(refused["by"], "refused");
    assert_eq!(keys.iter().map(|row| &row["key"]).collect::<Vec<_>>(), ["ws ip=b", "ws ip=c"]);
}

#[tokio::test]
async fn top_takes_two_settings_and_no_others() {
    for query in ["by=name", "by", "count=0", "count=1001", "count=x", "cuont=3", "by=used&x=1"] {
        let house = door();
        let reply = house.ask("GET", &format!("/v1/top?{query}")).await;
        house.assert_problem(&reply, 400, "query");
    }
}
