//! Limits that Envoy sends along with a descriptor.

use serde_json::{Value, json};

use super::super::DOORS;
use super::{clusters, config, fixed, limiter, listener, route, typed, with};
use crate::envoy::Envoy;
use crate::program::Program;
use crate::upstream::Upstream;

const RULES: &str = "
[[rule]]
match = 'web own=*'
limit = '9 per 366d'
";

/// The filter that tells the rate limit filter of limits, each by its name.
fn limits(limits: Value) -> Value {
    let metadata = json!([{"metadata_namespace": "limits", "value": limits}]);
    let filter =
        typed("extensions.filters.http.set_metadata.v3.Config", json!({"metadata": metadata}));
    json!({"name": "envoy.filters.http.set_metadata", "typed_config": filter})
}

/// A route whose only descriptor brings a limit.
fn brings(prefix: &str, key: &str, limit: &str) -> Value {
    let metadata = json!({"metadata_key": {"key": "limits", "path": [{"key": limit}]}});
    let descriptor = json!({"actions": [fixed(key, prefix.trim_start_matches('/'))]});
    route(prefix, json!([with(descriptor, json!({"limit": {"dynamic_metadata": metadata}}))]))
}

#[test]
fn a_limit_of_envoy_holds_in_place_of_the_rule() {
    let program = Program::serve(&[RULES, DOORS].concat());
    let app = Upstream::start();
    let of = |amount: u32, unit: &str| json!({"requests_per_unit": amount, "unit": unit});
    let given = json!({
        "hour": of(42, "HOUR"),
        "two": of(2, "YEAR"),
        "none": of(0, "MONTH"),
    });
    let routes = [
        brings("/hour", "own", "hour"),
        brings("/two", "own", "two"),
        brings("/none", "own", "none"),
        // Envoy sends none if its metadata has none.
        brings("/rule", "own", "unknown"),
    ];
    let told = json!({"enable_x_ratelimit_headers": "DRAFT_VERSION_03"});
    let web = listener("web", &[limits(given), limiter("web", told)], &routes);
    let envoy = Envoy::start(&config(&[web], &clusters(app.address(), &program)));
    let check = |path: &str, status: u16, limit: &str, left: &str| {
        let reply = envoy.get("web", path, "");
        let shown = (reply.header("x-ratelimit-limit"), reply.header("x-ratelimit-remaining"));
        assert_eq!((reply.status, shown), (status, (limit, left)), "{path}");
    };
    check("/hour", 204, "42, 42;w=3600", "41");
    for (status, left) in [(204, "1"), (204, "0"), (429, "0")] {
        check("/two", status, "2, 2;w=31536000", left);
    }
    check("/none", 429, "0, 0;w=2592000", "0");
    check("/rule", 204, "9", "8");
    assert_eq!(envoy.figure("cluster.app.ratelimit.error"), 0);
}
