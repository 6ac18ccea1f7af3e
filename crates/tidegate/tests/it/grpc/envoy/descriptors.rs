//! From actions to keys: what Envoy sends, and what is counted.

use std::io::{Read as _, Write as _};

use serde_json::json;

use super::super::DOORS;
use super::{
    APP, TIDEGATE, asked, asks, clusters, config, fixed, header, limiter, listener, route,
    tcp_listener, typed, with,
};
use crate::envoy::Envoy;
use crate::program::Program;
use crate::upstream::Upstream;
use crate::{http, text};

/// Periods are long, so that no test depends on how fast it runs.
const RULES: &str = "
[[rule]]
match = 'web once=*'
limit = '1 per 366d'
[[rule]]
match = 'web thrice=*'
limit = '3 per 366d'
[[rule]]
match = 'tcp *'
limit = '1 per 366d'
[[rule]]
match = '*'
limit = '1000 per 366d'
";

fn routes() -> Vec<serde_json::Value> {
    let five = [
        json!({"destination_cluster": {}}),
        header("x-user", "user"),
        json!({"remote_address": {}}),
        fixed("generic_key", "slow"),
        json!({"header_value_match": {
            "descriptor_value": "yes",
            "headers": [{"name": "x-user", "present_match": true}],
        }}),
    ];
    let per_route =
        typed("extensions.filters.http.ratelimit.v3.RateLimitPerRoute", json!({"domain": "own"}));
    vec![
        route("/five", json!([{"actions": five}])),
        route(
            "/user",
            json!([{"actions": [header("x-user", "user")]}, {"actions": [fixed("all", "1")]}]),
        ),
        route("/path", json!([{"actions": [header(":path", "path")]}])),
        route("/once", json!([{"actions": [header("x-user", "once")]}])),
        route("/thrice", json!([{"actions": [header("x-user", "thrice")]}])),
        with(
            route("/own", json!([{"actions": [fixed("all", "1")]}])),
            json!({"typed_per_filter_config": {"envoy.filters.http.ratelimit": per_route}}),
        ),
        route(
            "/stages",
            json!([
                {"stage": 0, "actions": [fixed("stage", "0")]},
                {"stage": 1, "actions": [fixed("stage", "1")]},
            ]),
        ),
    ]
}

/// An Envoy with the routes above, and a listener that relays connections to the application.
fn start(program: &Program, app: &Upstream) -> Envoy {
    let first = limiter("web", json!({}));
    let second = with(limiter("late", json!({"stage": 1})), json!({"name": "second"}));
    let web = listener("web", &[first, second], &routes());
    let entries = json!([{"entries": [{"key": "all", "value": "1"}]}]);
    let limit = with(asks(TIDEGATE, "tcp"), json!({"stat_prefix": "t", "descriptors": entries}));
    let limit = typed("extensions.filters.network.ratelimit.v3.RateLimit", limit);
    let relay = json!({"stat_prefix": "t", "cluster": APP});
    let relay = typed("extensions.filters.network.tcp_proxy.v3.TcpProxy", relay);
    let tcp = tcp_listener(
        "tcp",
        &[
            json!({"name": "envoy.filters.network.ratelimit", "typed_config": limit}),
            json!({"name": "envoy.filters.network.tcp_proxy", "typed_config": relay}),
        ],
    );
    Envoy::start(&config(&[web, tcp], &clusters(app.address(), program)))
}

#[test]
fn actions_become_keys() {
    let program = Program::serve(&[RULES, DOORS].concat());
    let app = Upstream::start();
    let envoy = start(&program, &app);
    let pass = |path: &str, head: &str| {
        let reply = envoy.get("web", path, head);
        assert_eq!(reply.status, 204, "{path}: {}", reply.body);
    };
    pass("/five", "X-User: anna\r\n");
    // Without its header a descriptor is left out; with an empty one it is not.
    pass("/user", "");
    pass("/user", "X-User:\r\n");
    pass("/user", "X-User: a b=c%\r\n");
    pass("/path%20a?b=c%20d", "");
    pass("/own", "");
    pass("/stages", "");
    let expected = [
        (
            "web destination_cluster=app user=anna remote_address=127.0.0.1 generic_key=slow \
             header_match=yes",
            1,
        ),
        ("web all=1", 3),
        ("web user=", 1),
        ("web user=a%20b=c%25", 1),
        ("web path=/path%2520a?b=c%2520d", 1),
        ("own all=1", 1),
        ("web stage=0", 1),
        ("late stage=1", 1),
    ];
    let expected = expected.map(|(key, requests)| (key.to_owned(), requests));
    assert_eq!(asked(&program), expected.into());
}

#[test]
fn no_header_makes_an_error_of_a_refusal() {
    let program = Program::serve(&[RULES, DOORS].concat());
    let app = Upstream::start();
    let envoy = start(&program, &app);
    let long = "x".repeat(50_000);
    let values: [&[u8]; 5] =
        [b"caf\xe9", b"\xff\xfe\x80", b"", long.as_bytes(), &[long.as_bytes(), b"y"].concat()];
    for value in values {
        let head = [b"X-User: ", value, b"\r\n"].concat();
        assert_eq!(envoy.get("web", "/once", &head).status, 204);
        assert_eq!(envoy.get("web", "/once", &head).status, 429);
        assert_eq!(envoy.get("web", "/once", &head).status, 429);
    }
    assert_eq!(envoy.figure("cluster.app.ratelimit.error"), 0);
    assert_eq!(envoy.figure("cluster.app.ratelimit.over_limit"), 10);
}

#[test]
fn a_key_has_one_count_at_all_doors() {
    let program = Program::serve(&[RULES, DOORS].concat());
    let app = Upstream::start();
    let envoy = start(&program, &app);
    assert_eq!(envoy.get("web", "/thrice", "X-User: a b\r\n").status, 204);
    let asker = text::Client::new(program.address("text"));
    assert_eq!(asker.ask("1 over_limit web thrice=a%20b"), "1 ok N 2.0 3.0 31622400");
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    let body = r#"{"key":"web thrice=a%20b"}"#;
    let reply = http::send_to(program.address("http"), "POST", "/v1/check", headers, body);
    assert_eq!(reply.json()["limits"][0]["remaining"], 0);
    assert_eq!(envoy.get("web", "/thrice", "X-User: a b\r\n").status, 429);
    assert_eq!(envoy.get("web", "/thrice", "X-User: c\r\n").status, 204);
}

#[test]
fn connections_are_limited_as_requests_are() {
    let program = Program::serve(&[RULES, DOORS].concat());
    let app = Upstream::start();
    let envoy = start(&program, &app);
    let mut first = envoy.connect("tcp");
    first.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("Envoy reads");
    assert_eq!(app.next(), "GET / HTTP/1.1");
    // The second is reset before a byte of it is relayed.
    let mut second = envoy.connect("tcp");
    let _ = second.write_all(b"GET / HTTP/1.1\r\n\r\n");
    let read = second.read(&mut [0]);
    assert!(!matches!(read, Ok(1..)), "{read:?}");
    assert_eq!(app.more(), 0);
    assert_eq!(asked(&program), [("tcp all=1".to_owned(), 2)].into());
}
