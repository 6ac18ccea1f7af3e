//! A real Envoy asks the real program.
//!
//! Here is how its configuration is written: an application, the program as a rate limit service,
//! and listeners whose routes have actions. Envoy lets requests pass on errors and after 20 ms;
//! here it waits as long as a test does, and answers 500 if there is an error.

mod answers;
mod descriptors;
mod failures;
mod hits;
mod in_flight;
mod many_keys;
mod overrides;
mod page;
mod quotas;
mod reloads;
mod scripts;
mod ways;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

use crate::http;
use crate::program::Program;

/// The cluster of the application, and that of the program.
const APP: &str = "app";
const TIDEGATE: &str = "tidegate";

/// The configuration of an Envoy.
fn config(listeners: &[Value], clusters: &[Value]) -> String {
    let admin = json!({"address": address(([127, 0, 0, 1], 0).into())});
    let resources = json!({"listeners": listeners, "clusters": clusters});
    json!({"admin": admin, "static_resources": resources}).to_string()
}

fn address(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}

fn pipe(path: &Path) -> Value {
    json!({"pipe": {"path": path}})
}

/// Of an extension, the type that Envoy finds it by.
fn typed(name: &str, fields: Value) -> Value {
    with(json!({"@type": format!("type.googleapis.com/envoy.{name}")}), fields)
}

/// An object with fields that take the place of its own.
fn with(mut object: Value, fields: Value) -> Value {
    let more = fields.as_object().expect("an object").clone();
    object.as_object_mut().expect("an object").extend(more);
    object
}

/// Servers that speak HTTP/1.1.
fn cluster(name: &str, at: Value) -> Value {
    let endpoints = json!([{"lb_endpoints": [{"endpoint": {"address": at}}]}]);
    json!({
        "name": name,
        "connect_timeout": "60s",
        "load_assignment": {"cluster_name": name, "endpoints": endpoints},
    })
}

/// Servers that speak gRPC.
fn service(name: &str, at: Value) -> Value {
    let http2 = json!({"explicit_http_config": {"http2_protocol_options": {}}});
    let options = typed("extensions.upstreams.http.v3.HttpProtocolOptions", http2);
    let name_of_options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let options = json!({"typed_extension_protocol_options": {name_of_options: options}});
    with(cluster(name, at), options)
}

/// The clusters of an application and of the program.
fn clusters(app: SocketAddr, program: &Program) -> [Value; 2] {
    [cluster(APP, address(app)), service(TIDEGATE, address(program.address("grpc")))]
}

/// What a filter needs to ask a cluster about a domain.
fn asks(cluster: &str, domain: &str) -> Value {
    json!({
        "domain": domain,
        "timeout": "60s",
        "failure_mode_deny": true,
        "rate_limit_service": {
            "transport_api_version": "V3",
            "grpc_service": {"envoy_grpc": {"cluster_name": cluster}},
        },
    })
}

/// The rate limit filter of a domain.
fn limiter(domain: &str, fields: Value) -> Value {
    limiter_of(TIDEGATE, domain, fields)
}

/// The rate limit filter that asks a cluster.
fn limiter_of(cluster: &str, domain: &str, fields: Value) -> Value {
    let fields = with(asks(cluster, domain), fields);
    let filter = typed("extensions.filters.http.ratelimit.v3.RateLimit", fields);
    json!({"name": "envoy.filters.http.ratelimit", "typed_config": filter})
}

/// A listener for HTTP.
fn listener(name: &str, filters: &[Value], routes: &[Value]) -> Value {
    let router = typed("extensions.filters.http.router.v3.Router", json!({}));
    let mut filters = filters.to_vec();
    filters.push(json!({"name": "envoy.filters.http.router", "typed_config": router}));
    let hosts = json!([{"name": "all", "domains": ["*"], "routes": routes}]);
    let manager = "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let manager = typed(
        manager,
        json!({
            "stat_prefix": name,
            "http_filters": filters,
            "route_config": {"virtual_hosts": hosts},
        }),
    );
    let filter = json!({"name": "http", "typed_config": manager});
    tcp_listener(name, &[filter])
}

/// A listener with filters of connections.
fn tcp_listener(name: &str, filters: &[Value]) -> Value {
    json!({
        "name": name,
        "address": address(([127, 0, 0, 1], 0).into()),
        "filter_chains": [{"filters": filters}],
    })
}

/// A route to the application, each of whose requests makes these descriptors.
fn route(prefix: &str, rate_limits: Value) -> Value {
    let action = json!({"cluster": APP, "rate_limits": rate_limits});
    json!({"match": {"prefix": prefix}, "route": action})
}

/// As [`route`], with descriptors that the filter makes. Envoy obeys `hits_addend` and
/// `apply_on_stream_done` only there, and leaves them out of account on a route without a word.
fn filter_route(prefix: &str, cluster: &str, rate_limits: Value) -> Value {
    let fields = json!({"rate_limits": rate_limits});
    let per_route = typed("extensions.filters.http.ratelimit.v3.RateLimitPerRoute", fields);
    json!({
        "match": {"prefix": prefix},
        "route": {"cluster": cluster},
        "typed_per_filter_config": {"envoy.filters.http.ratelimit": per_route},
    })
}

/// The action that makes an entry of a request's header.
fn header(name: &str, key: &str) -> Value {
    json!({"request_headers": {"header_name": name, "descriptor_key": key}})
}

/// The action that makes the same entry of every request.
fn fixed(key: &str, value: &str) -> Value {
    json!({"generic_key": {"descriptor_key": key, "descriptor_value": value}})
}

/// All keys that were asked for, and how often.
fn asked(program: &Program) -> BTreeMap<String, u64> {
    let page = administer(program, "/v1/top?count=1000");
    let rows = page["keys"].as_array().expect("keys").iter();
    let row = |row: &Value| {
        let key = row["key"].as_str().expect("a key").to_owned();
        (key, row["requests"].as_u64().expect("a number"))
    };
    rows.map(row).collect()
}

/// How many uses of its only limit a key has left.
fn left(program: &Program, key: &str) -> u64 {
    let page = administer(program, &format!("/v1/keys/{}", key.replace(' ', "%20")));
    page["limits"][0]["remaining"].as_u64().expect("a number")
}

fn administer(program: &Program, path: &str) -> Value {
    http::send_to(program.address("admin"), "GET", path, "Host: localhost\r\n", "").json()
}
