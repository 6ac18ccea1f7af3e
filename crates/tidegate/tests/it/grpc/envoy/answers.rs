//! What clients of Envoy see of an answer: statuses, headers, bodies.

use serde_json::{Value, json};

use super::super::DOORS;
use super::{clusters, config, fixed, limiter, listener, route};
use crate::engines::until;
use crate::envoy::Envoy;
use crate::http::Reply;
use crate::program::Program;
use crate::upstream::Upstream;

/// One rule for each unit, whose count no test outlives, or whose uses come back at once.
const RULES: &str = "
[[rule]]
name = 'second'
match = 'web unit=second'
limit = '1000 per second'
[[rule]]
name = 'minute'
match = 'web unit=minute'
limit = '1000 per minute'
[[rule]]
name = 'hour'
match = 'web unit=hour'
limit = '1000 per hour'
[[rule]]
name = 'day'
match = 'web unit=day'
limit = '1000 per day'
[[rule]]
name = 'week'
match = 'web unit=week'
limit = '1000 per 7d'
[[rule]]
name = 'month'
match = 'web unit=month'
limit = '1000 per 30d'
[[rule]]
name = 'year'
match = 'web unit=year'
limit = '1000 per 365d'
[[rule]]
name = 'odd'
match = 'web unit=odd'
limit = '1000 per 90s'
[[rule]]
name = 'once'
match = 'web once=*'
limit = '1 per 366d'
[[rule]]
name = 'brief'
match = 'web brief=*'
limit = '2 per second burst 1'
[[rule]]
name = 'few'
match = 'web few=*'
limit = '2 per 365d'
";

const UNITS: [(&str, &str); 8] = [
    ("second", "1000, 1000;w=1;name=\"second\""),
    ("minute", "1000, 1000;w=60;name=\"minute\""),
    ("hour", "1000, 1000;w=3600;name=\"hour\""),
    ("day", "1000, 1000;w=86400;name=\"day\""),
    ("week", "1000, 1000;w=604800;name=\"week\""),
    ("month", "1000, 1000;w=2592000;name=\"month\""),
    ("year", "1000, 1000;w=31536000;name=\"year\""),
    // Envoy has no word for this period, and tells the number alone.
    ("odd", "1000"),
];

/// Routes whose only descriptor is their name.
fn once(prefix: &str, key: &str) -> Value {
    let name = prefix.trim_start_matches('/');
    route(prefix, json!([{"actions": [fixed(key, name)]}]))
}

fn program(settings: &str) -> Program {
    let doors = DOORS.replace("[http]", &format!("{settings}\n[http]"));
    Program::serve(&[RULES, &doors].concat())
}

fn start(program: &Program, app: &Upstream, listeners: &[(&str, Value)]) -> Envoy {
    let mut routes: Vec<Value> = { UNITS.iter() }
        .map(|(unit, _)| route(&format!("/{unit}"), json!([{"actions": [fixed("unit", unit)]}])))
        .collect();
    routes.extend([once("/once", "once"), once("/brief", "brief")]);
    let both = json!([
        {"actions": [fixed("unit", "minute")]},
        {"actions": [fixed("few", "1")]},
        {"actions": [fixed("unlimited", "1")]},
    ]);
    routes.push(route("/two", both));
    let listeners: Vec<Value> = { listeners.iter() }
        .map(|(name, fields)| listener(name, &[limiter("web", fields.clone())], &routes))
        .collect();
    Envoy::start(&config(&listeners, &clusters(app.address(), program)))
}

/// Answers of Envoy's own bring the rule that refused, as an access log would show it.
fn shows_who_refused(mut listener: Value) -> Value {
    let refused = json!({"status_code_filter": {"comparison": {
        "op": "EQ",
        "value": {"default_value": 429, "runtime_key": "none"},
    }}});
    let value = "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:refused_by)% \
                 %DYNAMIC_METADATA(envoy.filters.http.ratelimit:domain)%";
    let header = json!({"header": {"key": "x-refused-by", "value": value}});
    let mappers = json!([{"filter": refused, "headers_to_add": [header]}]);
    let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
    manager["local_reply_config"] = json!({"mappers": mappers});
    listener
}

#[test]
fn envoy_can_log_which_rule_refused() {
    let program = program("metadata = true");
    let app = Upstream::start();
    let both = json!([{"actions": [fixed("unit", "day")]}, {"actions": [fixed("once", "1")]}]);
    let web = listener("web", &[limiter("web", json!({}))], &[route("/", both)]);
    let clusters = clusters(app.address(), &program);
    let envoy = Envoy::start(&config(&[shows_who_refused(web)], &clusters));
    assert_eq!(envoy.get("web", "/", "").status, 204);
    let reply = envoy.get("web", "/", "");
    assert_eq!((reply.status, reply.header("x-refused-by")), (429, "once web"));
}

#[test]
fn a_reload_changes_answers_while_envoy_stays_connected() {
    let program = program("shadow = true");
    let app = Upstream::start();
    let envoy = start(&program, &app, &[("web", json!({}))]);
    let ask = || envoy.get("web", "/once", "");
    assert_eq!((ask().status, ask().status), (204, 204));
    let file = std::fs::read_to_string(program.config_path()).expect("a file");
    program.write_config(&file.replace("shadow = true", "over_limit_body = 'slow down'"));
    until(|| ask().status == 429);
    assert_eq!(ask().body, "slow down");
    assert_eq!(envoy.figure("cluster.tidegate.upstream_cx_total"), 1, "the same connection");
}

fn seconds(reply: &Reply, header: &str) -> u64 {
    reply.header(header).parse().expect("seconds")
}

#[test]
fn headers_tell_each_limit() {
    let program = program("");
    let app = Upstream::start();
    let told = json!({
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
        "enable_retry_after_header": true,
    });
    let envoy = start(&program, &app, &[("web", told)]);
    for (unit, expected) in UNITS {
        let reply = envoy.get("web", &format!("/{unit}"), "");
        assert_eq!((reply.status, reply.header("x-ratelimit-limit")), (204, expected));
        assert_eq!(reply.header("x-ratelimit-remaining"), "999");
        assert!(seconds(&reply, "x-ratelimit-reset") > 0);
        assert_eq!(reply.header("retry-after"), "");
    }
    // Of two limits the one with fewer uses left comes first; what has no limit takes no part.
    let limits = "2, 1000;w=60;name=\"minute\", 2;w=31536000;name=\"few\"";
    for left in ["1", "0"] {
        let reply = envoy.get("web", "/two", "");
        assert_eq!((reply.status, reply.header("x-ratelimit-limit")), (204, limits));
        assert_eq!(reply.header("x-ratelimit-remaining"), left);
        assert_eq!(reply.header("x-envoy-ratelimited"), "");
    }
    let reply = envoy.get("web", "/two", "");
    assert_eq!((reply.status, reply.header("x-ratelimit-limit")), (429, limits));
    assert_eq!(reply.header("x-envoy-ratelimited"), "true");
    let half = 31_536_000 / 2;
    assert!((half - 100..=half).contains(&seconds(&reply, "retry-after")), "two in a year");
    assert_eq!(reply.body, "");
    // Half a second is a second, not none.
    loop {
        let reply = envoy.get("web", "/brief", "");
        if reply.status == 429 {
            assert_eq!(reply.header("retry-after"), "1");
            break;
        }
    }
}

#[test]
fn a_refusal_is_as_the_operator_wants_it() {
    let settings = "over_limit_body = '{\"error\":\"slow down\"}'
        over_limit_content_type = 'application/json'
        headers = true
        header_names = { reset = 'X-Reset' }";
    let program = program(settings);
    let app = Upstream::start();
    let forbidden = json!({
        "rate_limited_status": {"code": "Forbidden"},
        "disable_x_envoy_ratelimited_header": true,
    });
    let exhausted = json!({"rate_limited_as_resource_exhausted": true});
    let listeners = [("web", json!({})), ("forbidden", forbidden), ("exhausted", exhausted)];
    let envoy = start(&program, &app, &listeners);
    let reply = envoy.get("web", "/once", "");
    assert_eq!((reply.status, reply.header("ratelimit-limit")), (204, "1"));
    assert_eq!(reply.header("ratelimit-remaining"), "0");
    assert_eq!(reply.header("content-type"), "", "the body is that of refusals");
    let check = |listener: &str, status: u16, ratelimited: &str| {
        let reply = envoy.get(listener, "/once", "");
        assert_eq!((reply.status, reply.body.as_str()), (status, r#"{"error":"slow down"}"#));
        assert_eq!(reply.header("content-type"), "application/json");
        assert_eq!(reply.header("ratelimit-limit"), "1");
        assert_eq!(reply.header("ratelimit-remaining"), "0");
        assert!(seconds(&reply, "x-reset") > 31_000_000);
        assert_eq!(reply.header("x-envoy-ratelimited"), ratelimited);
    };
    check("web", 429, "true");
    check("forbidden", 403, "");
    // Clients of gRPC are told by their own status.
    for (listener, expected) in [("web", "14"), ("exhausted", "8")] {
        let reply = envoy.get(listener, "/once", "Content-Type: application/grpc\r\n");
        assert_eq!((reply.status, reply.header("grpc-status")), (200, expected));
    }
}
