//! What the integration scripts of envoyproxy/ratelimit ask through its example of an Envoy, with
//! windows of a year where it has minutes, so that nothing depends on when it runs.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_envoy::proto::ratelimit::rate_limit_response::Code;

use super::super::{Client, DOORS, call};
use super::{APP, clusters, config, filter_route, header, limiter, listener, route, typed, with};
use crate::engines::until;
use crate::envoy::Envoy;
use crate::http::Reply;
use crate::program::Program;
use crate::upstream::Upstream;

const RL: &str = "
domain: rl
descriptors:
- key: source_cluster
  value: proxy
  descriptors:
  - {key: destination_cluster, value: mock, rate_limit: {unit: year, requests_per_unit: 1}}
  - key: destination_cluster
    value: override
    rate_limit: {unit: year, requests_per_unit: 2, replaces: [{name: banned}]}
  - key: destination_cluster
    value: bkthomps
    rate_limit: {unit: year, requests_per_unit: 2, replaces: [{name: bkthomps}]}
  - key: destination_cluster
    value: fake
    rate_limit: {unit: year, requests_per_unit: 2, name: fake}
- key: foo
  rate_limit: {unit: year, requests_per_unit: 2}
  descriptors:
  - {key: bar, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: bar, value: banned, rate_limit: {unit: year, requests_per_unit: 0, name: banned}}
  - {key: bar, value: bkthomps, rate_limit: {unit: year, requests_per_unit: 1, name: bkthomps}}
  - {key: baz, value: not-so-shady, rate_limit: {unit: year, requests_per_unit: 3}}
  - key: baz
    value: shady
    rate_limit: {unit: year, requests_per_unit: 3}
    shadow_mode: true
- key: category
  value: account
  rate_limit: {unit: year, requests_per_unit: 4, replaces: [{name: bkthomps}, {name: fake}]}
";

/// Quotas: a call is over if all of its descriptors are.
const QUOTAS: &str = "
- key: service
  value: service_1
  quota_mode: true
  metadata: {name: service_1}
  rate_limit: {unit: year, requests_per_unit: 1}
- key: service
  value: service_2
  quota_mode: true
  metadata: {name: service_2}
  rate_limit: {unit: year, requests_per_unit: 2}
";

fn program() -> (Program, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let quotas = |domain: &str| format!("domain: {domain}\ndescriptors:{QUOTAS}");
    let files = [("rl", RL), ("quota", &quotas("quota")), ("tokens", &quotas("tokens"))];
    for (name, text) in files {
        fs::write(folder.path().join(format!("{name}.yaml")), text).expect("a file");
    }
    let folder_of = folder.path().display();
    let table = format!("envoy_config = '{folder_of}'\nmetadata = true\n[http]");
    (Program::serve(&DOORS.replace("[http]", &table)), folder)
}

/// Descriptors of one entry for each of these headers, or of both where there are two.
fn headers(descriptors: &[&[&str]]) -> Value {
    let actions = |names: &&[&str]| {
        let actions: Vec<Value> = names.iter().map(|name| header(name, name)).collect();
        json!({"actions": actions})
    };
    descriptors.iter().map(actions).collect()
}

/// A descriptor of a service, with what it counts.
fn service(name: &str, more: Value) -> Value {
    let entry = super::fixed("service", name);
    with(json!({"actions": [entry]}), more)
}

fn start(program: &Program, app: &Upstream) -> Envoy {
    let (two, clusters_too) = (&["foo", "bar"][..], &["source_cluster", "destination_cluster"][..]);
    let (third, category) = (&["foo", "baz"][..], &["category"][..]);
    let routes = [
        route("/twoheader", headers(&[two, third])),
        route("/fourheader", headers(&[two, clusters_too])),
        route("/fiveheader", headers(&[two, clusters_too, category])),
    ];
    let told = json!({"enable_x_ratelimit_headers": "DRAFT_VERSION_03"});
    let both = json!([service("service_1", json!({})), service("service_2", json!({}))]);
    let look = json!({"hits_addend": {"number": 0}});
    let done = json!({"hits_addend": {"number": 1}, "apply_on_stream_done": true});
    let token = json!([service("service_2", look.clone()), service("service_2", done.clone())]);
    let listeners = [
        listener("rl", &[limiter("rl", told)], &routes),
        listener("quota", &[limiter("quota", json!({}))], &[route("/", both)]),
        listener("token", &[limiter("tokens", json!({}))], &[filter_route("/", APP, token)]),
        listener("services", &asks_and_writes(), &[by_service(&look, &done)]),
    ];
    Envoy::start(&config(&listeners, &clusters(app.address(), program)))
}

/// The filters that ask, and that write the service which is not over into a header.
fn asks_and_writes() -> [Value; 2] {
    let named = "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:name)%";
    let header = json!({"header": {"key": "x-service", "value": named}});
    let append =
        json!({"append": with(header, json!({"append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}))});
    let mutations = json!({"mutations": {"request_mutations": [append]}});
    let filter = typed("extensions.filters.http.header_mutation.v3.HeaderMutation", mutations);
    let writes = json!({"name": "envoy.filters.http.header_mutation", "typed_config": filter});
    [limiter("tokens", json!({})), writes]
}

/// A route that looks at both services, and counts the one that was taken at the end.
fn by_service(look: &Value, done: &Value) -> Value {
    let path = json!([{"key": "metadata"}, {"key": "name"}]);
    let taken = json!({"metadata": {
        "descriptor_key": "service",
        "metadata_key": {"key": "envoy.filters.http.ratelimit", "path": path},
        "source": "DYNAMIC",
    }});
    let taken = with(json!({"actions": [taken]}), done.clone());
    let limits =
        json!([service("service_1", look.clone()), service("service_2", look.clone()), taken]);
    let told = json!({"header": {"key": "x-served-by", "value": "%REQ(x-service)%"}});
    with(filter_route("/", APP, limits), json!({"response_headers_to_add": [told]}))
}

#[test]
fn requests_are_limited_as_the_scripts_say() {
    let (program, _folder) = program();
    let app = Upstream::start();
    let envoy = start(&program, &app);
    let ask = |path: &str, head: &[(&str, &str)]| {
        let line = |(name, value): &(&str, &str)| format!("{name}: {value}\r\n");
        envoy.get("rl", path, head.iter().map(line).collect::<String>())
    };
    let check = |path: &str, head: &[(&str, &str)], statuses: &[u16]| {
        let found: Vec<u16> = statuses.iter().map(|_| ask(path, head).status).collect();
        assert_eq!(found, statuses, "{path} {head:?}");
    };
    // simple-get
    check("/twoheader", &[("foo", "test"), ("baz", "shady")], &[204]);
    // trigger-ratelimit
    check("/twoheader", &[("foo", "pelle"), ("baz", "not-so-shady")], &[204, 204, 204, 429, 429]);
    // trigger-shadow-mode-key
    check("/twoheader", &[("foo", "pelle"), ("baz", "shady")], &[204; 5]);
    let reply: Reply = ask("/twoheader", &[("foo", "pelle"), ("baz", "shady")]);
    assert_eq!((reply.status, reply.header("x-ratelimit-remaining")), (204, "0"));
    // replaces: a limit is raised,
    let of = |foo, bar, source, destination| {
        [
            ("foo", foo),
            ("bar", bar),
            ("source_cluster", source),
            ("destination_cluster", destination),
        ]
    };
    let banned = |destination| of("bkthomps", "banned", "proxy", destination);
    check("/twoheader", &banned("")[..2], &[429]);
    check("/fourheader", &banned("mock"), &[429]);
    check("/fourheader", &banned("override"), &[204, 204, 429]);
    // and the one that it replaces counts nothing,
    let mine = |destination| of("my_foo", "bkthomps", "proxy", destination);
    check("/fourheader", &mine("bkthomps"), &[204, 204, 429]);
    check("/fourheader", &mine("not_bkthomps"), &[204, 429]);
    check("/fourheader", &mine("bkthomps"), &[429]);
    // and one limit may replace several.
    let five = [&mine("fake")[..], &[("category", "account")]].concat();
    check("/fiveheader", &five, &[204, 204, 204, 204, 429]);
    check("/twoheader", &[("foo", "foo_2"), ("bar", "bkthomps")], &[204, 429]);
    check("/fourheader", &of("foo_3", "bar_3", "proxy", "fake"), &[204, 204, 429]);
    check("/fiveheader", &five, &[429]);
    assert_eq!(envoy.figure("cluster.app.ratelimit.error"), 0);
}

#[test]
fn quotas_are_over_when_all_are() {
    let (program, _folder) = program();
    let app = Upstream::start();
    let envoy = start(&program, &app);
    let statuses: Vec<u16> = (0..3).map(|_| envoy.get("quota", "/", "").status).collect();
    assert_eq!(statuses, [204, 204, 429]);
}

/// Waits until a look at a service finds this.
fn until_found(client: &mut Client, service: &str, expected: (Code, u32)) {
    until(|| {
        let mut look = call("tokens", &[&format!("service={service}")]);
        look.descriptors[0].hits_addend = Some(0);
        client.ask(look).1 == [expected]
    });
}

/// What is left of two after each request. A look finds a quota over only beyond its amount.
const LEFT_OF_TWO: [(Code, u32); 3] = [(Code::Ok, 1), (Code::Ok, 0), (Code::OverLimit, 0)];

#[test]
fn tokens_are_counted_when_a_request_has_ended() {
    let (program, _folder) = program();
    let app = Upstream::start();
    let envoy = start(&program, &app);
    let mut client = Client::new(&program);
    for left in LEFT_OF_TWO {
        assert_eq!(envoy.get("token", "/", "").status, 204);
        until_found(&mut client, "service_2", left);
    }
    assert_eq!(envoy.get("token", "/", "").status, 429);
}

#[test]
fn another_service_is_taken_when_one_has_nothing_left() {
    let (program, _folder) = program();
    let app = Upstream::start();
    let envoy = start(&program, &app);
    let mut client = Client::new(&program);
    let first = LEFT_OF_TWO[1..].iter().map(|left| ("service_1", *left));
    let second = LEFT_OF_TWO.iter().map(|left| ("service_2", *left));
    for (service, left) in first.chain(second) {
        let reply = envoy.get("services", "/", "");
        assert_eq!((reply.status, reply.header("x-served-by")), (204, service));
        until_found(&mut client, service, left);
    }
    assert_eq!(envoy.get("services", "/", "").status, 429);
}
