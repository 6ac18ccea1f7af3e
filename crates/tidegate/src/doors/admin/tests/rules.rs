//! Rules, shown and changed over HTTP.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use serde_json::{Value, json};

use crate::config::Config;
use crate::doors::http_server::connections::PeerAddress;
use crate::doors::http_server::tests::{House, Reply, request};

const FILE: &str = "[[rule]]\nname = 'ws ip=*'\nmatch = 'ws ip=*'\nlimit = '3 per 10s'\n\
                    algorithm = 'average'\nstrict = true\n[http]\n";

fn house() -> House {
    let house = super::door();
    house.process.install(Config::parse("t", FILE).unwrap().written);
    house
}

impl House {
    async fn rule(&self, method: &str, path: &str, body: Option<Value>) -> Reply {
        self.rule_if("*", method, path, body).await
    }

    async fn rule_if(&self, tag: &str, method: &str, path: &str, body: Option<Value>) -> Reply {
        let asked = request(method, path)
            .header(CONTENT_TYPE, "application/json")
            .header("if-match", tag)
            .extension(PeerAddress("127.0.0.1".parse().unwrap()));
        let body = body.map_or(Body::empty(), |body| Body::from(body.to_string()));
        self.send(asked.body(body).unwrap()).await
    }

    /// The one limit of a key.
    async fn limit_of(&self, key: &str) -> Value {
        let reply = self.ask("GET", &format!("/v1/keys/{key}")).await;
        reply.json["limits"][0].clone()
    }
}

#[tokio::test]
async fn rules_are_listed_with_everything_written_out() {
    let house = house();
    let reply = house.rule("GET", "/v1/rules", None).await;
    assert_eq!(reply.status, 200);
    let expected = json!([
        {
            "name": "ws ip=*", "match": "ws ip=*", "limit": "3 per 10s", "algorithm": "average",
            "strict": true, "replicas": 1, "shared": false, "shadow": false,
            "consistency": "exact", "on_store_error": "allow", "on_full": "share",
            "in_force": ["3 per 10s"], "from": "rule", "changed": false,
        },
        {
            "name": "default", "match": "*", "limit": "none", "replicas": 1, "shared": false,
            "shadow": false, "consistency": "exact", "on_store_error": "allow",
            "on_full": "share", "in_force": [], "from": "default", "changed": false,
        },
    ]);
    assert_eq!(reply.json["rules"], expected);
    assert_eq!(reply.header("etag"), format!("\"{}\"", reply.json["version"]));
    let one = house.rule("GET", "/v1/rules/ws%20ip=*", None).await;
    assert_eq!((one.status.as_u16(), &one.json), (200, &expected[0]));
    assert_eq!(one.header("etag"), reply.header("etag"));
}

#[tokio::test]
async fn a_rule_is_changed_in_force_at_once_and_restored() {
    let house = house();
    let path = "/v1/rules/ws%20ip=*";
    let changed = house.rule("PUT", path, Some(json!({"limit": "7 per 10s", "replicas": 2}))).await;
    assert_eq!(changed.status, 200);
    assert_eq!(changed.json["strict"], true, "what is not named stays");
    assert_eq!(
        (&changed.json["changed"], &changed.json["in_force"]),
        (&json!(true), &json!(["3 per 10s"]))
    );
    assert_eq!(house.rule("GET", path, None).await.json, changed.json);
    // What was read can be sent back.
    let again = house.rule("PUT", path, Some(changed.json.clone())).await;
    assert_eq!((again.status.as_u16(), &again.json), (200, &changed.json));
    assert_eq!(house.limit_of("ws%20ip=1").await["limit"], "3 per 10s");
    house.rule("PUT", path, Some(json!({"replicas": null}))).await;
    assert_eq!(house.limit_of("ws%20ip=1").await["limit"], "7 per 10s");
    assert_eq!(house.rule("DELETE", path, None).await.status, 204);
    assert_eq!(house.rule("GET", path, None).await.json["changed"], false);
    let text = house.ask("GET", "/metrics").await.text;
    assert!(text.contains("tidegate_rule_changes_total{action=\"set\"} 3\n"), "{text}");
    assert!(text.contains("tidegate_rule_changes_total{action=\"restored\"} 1\n"), "{text}");
}

#[tokio::test]
async fn a_rule_is_added_and_removed() {
    let house = house();
    let rule = json!({"match": "ws ip=6.6.6.6", "limit": "1 per hour"});
    let added = house.rule("PUT", "/v1/rules/block%2F6", Some(rule)).await;
    assert_eq!((added.status.as_u16(), &added.json["name"]), (201, &json!("block/6")));
    assert_eq!((&added.json["from"], &added.json["changed"]), (&json!("api"), &json!(true)));
    assert_eq!(house.limit_of("ws%20ip=6.6.6.6").await["rule"], "block/6");
    assert_eq!(house.rule("DELETE", "/v1/rules/block/6", None).await.status, 204);
    let gone = house.rule("DELETE", "/v1/rules/block/6", None).await;
    assert_eq!((gone.status.as_u16(), &gone.json["reason"]), (404, &json!("unknown_rule")));
    assert_eq!(house.rule("GET", "/v1/rules/%ff", None).await.status, 404);
}

#[tokio::test]
async fn a_mistake_is_told_by_field_with_its_remedy() {
    let house = house();
    let body = json!({"limit": "7 pr 10s", "shadw": true});
    let reply = house.rule("PUT", "/v1/rules/ws%20ip=*", Some(body)).await;
    assert_eq!(reply.status, 400);
    assert_eq!(reply.header("content-type"), "application/problem+json");
    assert_eq!(reply.json["reason"], "field");
    let errors = reply.json["errors"].as_array().unwrap();
    let fields: Vec<_> = errors.iter().map(|error| error["field"].as_str().unwrap()).collect();
    assert_eq!(fields, ["shadw", "limit"]);
    assert_eq!(errors[0]["remedy"], "did you mean \"shadow\"?");
    assert!(reply.json["detail"].as_str().unwrap().contains("limit: a period is missing; write"));
    assert_eq!(house.bad_input("field"), 1);
    assert_eq!(house.rule("GET", "/v1/rules/ws%20ip=*", None).await.json["changed"], false);
    let twice = request("PUT", "/v1/rules/a").header(CONTENT_TYPE, "application/json");
    let twice = twice.extension(PeerAddress("::1".parse().unwrap()));
    let body = r#"{"limit":"1/s","limit":"2/s","match":"a"}"#;
    let reply = house.send(twice.body(Body::from(body)).unwrap()).await;
    assert_eq!(reply.status, 400);
    assert!(reply.text.contains("limit: given twice"), "{}", reply.text);
}

#[tokio::test]
async fn a_version_that_is_no_longer_is_not_changed() {
    let house = house();
    let path = "/v1/rules/ws%20ip=*";
    let tag = house.rule("GET", path, None).await.header("etag").to_owned();
    let put = async |tag: &str| {
        let body = Some(json!({"shadow": true}));
        house.rule_if(tag, "PUT", path, body).await
    };
    let changed = put(&tag).await;
    assert_eq!(changed.status, 200);
    let late = put(&tag).await;
    assert_eq!((late.status.as_u16(), &late.json["reason"]), (412, &json!("outdated")));
    assert_eq!(put("W/\"1\"").await.status, 412);
    assert_eq!(put(changed.header("etag")).await.status, 200);
    assert_eq!(put("*").await.status, 200);
}

#[tokio::test]
async fn rules_are_not_posted() {
    let house = house();
    let reply = house.rule("POST", "/v1/rules", Some(json!({"limit": "9 per 10s"}))).await;
    house.assert_problem(&reply, 405, "method");
}
