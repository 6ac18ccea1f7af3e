//! How much a request counts, and what is given back when it ends.

use std::net::TcpListener;

use serde_json::{Value, json};

use super::super::{Client, DOORS, call};
use super::{
    APP, address, cluster, clusters, config, filter_route, fixed, left, limiter, listener, route,
    typed,
};
use crate::engines::until;
use crate::envoy::Envoy;
use crate::program::Program;
use crate::upstream::Upstream;

/// Periods are long, so that no test depends on how fast it runs.
const RULES: &str = "
[[rule]]
match = '*'
limit = '12 per 366d'
algorithm = 'fixed-window'
";

/// As envoyproxy/ratelimit counts, in the domain of requests that are given back.
const DOMAINS: &str = "
[grpc.domains]
held = { counting = 'envoy' }
tokens = { counting = 'envoy' }
";

/// A route with one descriptor that counts this.
fn costs(prefix: &str, hits: Value) -> Value {
    let name = prefix.trim_start_matches('/');
    let cost = json!([{"actions": [fixed("cost", name)], "hits_addend": hits}]);
    filter_route(prefix, APP, cost)
}

/// The filter that tells the rate limit filter how much a request counts.
fn hits_of_header(name: &str) -> Value {
    let hits = json!({
        "object_key": "envoy.ratelimit.hits_addend",
        "format_string": {"text_format_source": {"inline_string": format!("%REQ({name})%")}},
        "skip_if_empty": true,
    });
    let fields = json!({"on_request_headers": [hits]});
    let filter = typed("extensions.filters.http.set_filter_state.v3.Config", fields);
    json!({"name": "envoy.filters.http.set_filter_state", "typed_config": filter})
}

#[test]
fn a_request_counts_what_its_route_or_a_filter_says() {
    let program = Program::serve(&[RULES, DOORS, DOMAINS].concat());
    let app = Upstream::start();
    let plain = json!([{"actions": [fixed("cost", "state")]}]);
    let format = json!([
        {"actions": [fixed("cost", "format")], "hits_addend": {"format": "%REQ(x-cost)%"}},
        {"actions": [fixed("cost", "beside")]},
    ]);
    let routes = [
        costs("/five", json!({"number": 5})),
        costs("/none", json!({"number": 0})),
        costs("/much", json!({"number": 13})),
        filter_route("/format", APP, format),
        route("/state", plain),
    ];
    let filters = [hits_of_header("x-state"), limiter("web", json!({}))];
    let web = listener("web", &filters, &routes);
    let envoy = Envoy::start(&config(&[web], &clusters(app.address(), &program)));
    let check = |path: &str, head: &str, status: u16, key: &str, remaining: u64| {
        let reply = envoy.get("web", path, head);
        let found = (reply.status, left(&program, &format!("web cost={key}")));
        assert_eq!(found, (status, remaining), "{path} {head}");
    };
    check("/five", "", 204, "five", 7);
    check("/five", "", 204, "five", 2);
    check("/five", "", 429, "five", 2);
    check("/none", "", 204, "none", 12);
    // More than the limit ever allows is refused, and no error.
    check("/much", "", 429, "much", 12);
    check("/format", "X-Cost: 10\r\n", 204, "format", 2);
    check("/format", "X-Cost: 3\r\n", 429, "format", 2);
    // Without a number only the descriptor that wants one is left out.
    check("/format", "", 204, "format", 2);
    check("/format", "X-Cost: much\r\n", 204, "format", 2);
    assert_eq!(left(&program, "web cost=beside"), 9, "a refusal has counted nothing");
    check("/state", "X-State: 4\r\n", 204, "state", 8);
    check("/state", "", 204, "state", 7);
    // Envoy sends 0 as though there were no number: it is one use.
    check("/state", "X-State: 0\r\n", 204, "state", 6);
}

#[test]
fn what_is_given_back_at_the_end_of_a_request_is_had_again() {
    const KEY: &str = "held slot=1";
    let program = Program::serve(&[RULES, DOORS, DOMAINS].concat());
    let app = Upstream::start();
    // Takes connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent_at = silent.local_addr().expect("an address");
    let slot = json!([
        {"actions": [fixed("slot", "1")]},
        {
            "actions": [fixed("slot", "1")],
            "hits_addend": {"number": 1, "is_negative_hits": true},
            "apply_on_stream_done": true,
        },
    ]);
    let routes =
        [filter_route("/slot", APP, slot.clone()), filter_route("/silent", "silent", slot)];
    let web = listener("web", &[limiter("held", json!({}))], &routes);
    let [app_cluster, service] = clusters(app.address(), &program);
    let silent_cluster = cluster("silent", address(silent_at));
    let envoy = Envoy::start(&config(&[web], &[app_cluster, service, silent_cluster]));
    let mut client = Client::new(&program);
    let mut change = |hits: u64, is_negative_hits: bool| {
        let mut request = call("held", &["slot=1"]);
        request.descriptors[0].hits_addend = Some(hits);
        request.descriptors[0].is_negative_hits = is_negative_hits;
        client.ask(request);
    };
    change(10, false);
    for _ in 0..5 {
        // Answered.
        assert_eq!(envoy.get("web", "/slot", "").status, 204);
        until(|| left(&program, KEY) == 2);
        // The client hangs up.
        let waiting = envoy.send("web", "/silent", "");
        until(|| left(&program, KEY) == 1);
        drop(waiting);
        until(|| left(&program, KEY) == 2);
    }
    // Refused: it counts, too, until it is given back.
    change(2, false);
    for _ in 0..5 {
        assert_eq!(envoy.get("web", "/slot", "").status, 429);
    }
    // Five are given back by Envoy, and twelve here, in any order.
    change(6, true);
    until(|| left(&program, KEY) == 6);
    change(6, true);
    until(|| left(&program, KEY) == 12);
}

#[test]
fn what_a_request_has_cost_is_told_at_its_end() {
    const KEY: &str = "tokens user=1";
    let program = Program::serve(&[RULES, DOORS, DOMAINS].concat());
    let app = Upstream::start();
    // Looks before the request, and counts what its answer has cost.
    let budget = json!([
        {"actions": [fixed("user", "1")], "hits_addend": {"number": 0}},
        {
            "actions": [fixed("user", "1")],
            "hits_addend": {"format": "%REQ(x-cost)%"},
            "apply_on_stream_done": true,
        },
    ]);
    let web = listener("web", &[limiter("tokens", json!({}))], &[filter_route("/", APP, budget)]);
    let envoy = Envoy::start(&config(&[web], &clusters(app.address(), &program)));
    let ask = || envoy.get("web", "/", "X-Cost: 7\r\n").status;
    assert_eq!(ask(), 204);
    until(|| left(&program, KEY) == 5);
    // There is something left, so it goes, and counts more than there is.
    assert_eq!(ask(), 204);
    until(|| left(&program, KEY) == 0);
    assert_eq!(ask(), 429);
}
