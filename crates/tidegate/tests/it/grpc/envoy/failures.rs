//! What becomes of requests while the program is away, silent or ending.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::super::DOORS;
use super::{
    APP, TIDEGATE, address, asked, cluster, config, fixed, header, left, limiter, listener, route,
    service, with,
};
use crate::engines::redis::Server;
use crate::engines::{until, until_stopped};
use crate::envoy::Envoy;
use crate::program::Program;
use crate::remote::store;
use crate::upstream::Upstream;

/// Periods are long, so that no test depends on how fast it runs.
const RULES: &str = "
[[rule]]
match = 'web once=*'
limit = '1 per 366d'
[[rule]]
match = 'web all=*'
limit = '1000000 per 366d'
algorithm = 'fixed-window'
";

/// How many clients ask at a time where several do.
const AT_ONCE: u64 = 8;

/// Does it at several threads, and waits for all.
fn several(ask: impl Fn() + Sync) {
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(&ask);
        }
    });
}

/// Stops all threads of the program, and returns when none of them runs any more.
fn stop(program: &Program) {
    program.signal(Signal::STOP);
    until_stopped(program.pid());
}

/// Requests that are refused when they come again.
fn routes() -> Vec<Value> {
    vec![
        route("/once", json!([{"actions": [header("x-user", "once")]}])),
        route("/all", json!([{"actions": [fixed("all", "1")]}])),
    ]
}

/// Envoy's own time for an answer is 20 ms, and a limiter that does not answer lets requests pass.
fn impatient(fields: Value) -> Value {
    with(json!({"timeout": "0.020s"}), fields)
}

#[test]
fn a_limiter_that_does_not_answer_is_as_the_operator_says() {
    let mut program = Program::serve(&[RULES, DOORS].concat());
    let app = Upstream::start();
    let deny = impatient(json!({"status_on_error": {"code": "ServiceUnavailable"}}));
    let listeners = [
        listener("patient", &[limiter("web", json!({}))], &routes()),
        listener("plain", &[limiter("web", impatient(json!({})))], &routes()),
        listener("deny", &[limiter("web", deny)], &routes()),
        listener(
            "allow",
            &[limiter("web", impatient(json!({"failure_mode_deny": false})))],
            &routes(),
        ),
    ];
    let clusters =
        [cluster(APP, address(app.address())), service(TIDEGATE, address(program.address("grpc")))];
    let envoy = Envoy::start(&config(&listeners, &clusters));
    let ask = |listener: &str| envoy.get(listener, "/once", "X-User: a\r\n").status;
    let away = || {
        assert_eq!((ask("deny"), ask("plain"), ask("allow")), (503, 500, 204));
    };
    assert_eq!((ask("patient"), ask("patient")), (204, 429));
    // It is there, and says nothing.
    stop(&program);
    away();
    program.signal(Signal::CONT);
    assert_eq!(ask("patient"), 429, "it answers again, and has forgotten nothing");
    // It is gone.
    program.signal(Signal::KILL);
    program.exit_status();
    away();
    assert_eq!(envoy.figure("cluster.app.ratelimit.failure_mode_allowed"), 2);
}

#[test]
fn while_the_store_is_away_each_rule_says_what_becomes_of_requests() {
    let rules = "
[[rule]]
match = 'web all=1'
limit = '2 per 366d'
[[rule]]
match = 'web once=deny'
limit = '2 per 366d'
on_store_error = 'deny'
[[rule]]
match = 'web once=local'
limit = '2 per 366d'
on_store_error = 'local'
";
    let mut redis = Server::start(&[]);
    let mut program = Program::serve(&[rules, DOORS, &*store(&redis.url(), "1m")].concat());
    let app = Upstream::start();
    let web = listener("web", &[limiter("web", json!({}))], &routes());
    let envoy = Envoy::start(&config(&[web], &super::clusters(app.address(), &program)));
    let all = || envoy.get("web", "/all", "").status;
    let of = |user: &str| envoy.get("web", "/once", format!("X-User: {user}\r\n")).status;
    assert_eq!((all(), of("deny"), of("local")), (204, 204, 204));
    assert_eq!((all(), all(), of("deny"), of("deny")), (204, 429, 204, 429));
    redis.kill();
    program.wait_for_line(|line| line.contains("the store is away"));
    for _ in 0..3 {
        assert_eq!((all(), of("deny")), (204, 429));
    }
    // A new count in this node.
    assert_eq!((of("local"), of("local"), of("local")), (204, 204, 429));
    assert_eq!(envoy.figure("cluster.app.ratelimit.error"), 0);
}

/// By the usual `timeout` of a store, so that the answer comes before Envoy's own 20 ms are over.
/// How long it takes is not looked at: this Envoy is patient.
#[test]
fn a_silent_store_makes_no_error_at_envoy() {
    let rule = "
[[rule]]
match = 'web once=*'
limit = '1000000 per 366d'
on_store_error = 'deny'
[store]
kind = 'redis'
";
    let redis = Server::start(&[]);
    let url = format!("url = '{}'\n", redis.url());
    let program = Program::serve(&[DOORS, rule, &*url].concat());
    let app = Upstream::start();
    let web = listener("web", &[limiter("web", json!({}))], &routes());
    let envoy = Envoy::start(&config(&[web], &super::clusters(app.address(), &program)));
    let ask = || envoy.get("web", "/once", "X-User: a\r\n").status;
    until(|| ask() == 204);
    redis.halt();
    for _ in 0..20 {
        assert_eq!(ask(), 429);
    }
    redis.go_on();
    until(|| ask() == 204);
    assert_eq!(envoy.figure("cluster.app.ratelimit.error"), 0);
}

#[test]
fn envoy_hears_that_the_program_ends_and_asks_another() {
    let ending = "[server]\nshutdown_grace = '60s'\n";
    let mut first = Program::serve(&[RULES, DOORS, ending].concat());
    let second = Program::serve(&[RULES, DOORS].concat());
    let app = Upstream::start();
    let check = json!({
        "health_checks": [{
            "timeout": "60s",
            "interval": "0.010s",
            // Otherwise a cluster that was not used yet is looked at every minute.
            "no_traffic_interval": "0.010s",
            "unhealthy_threshold": 1,
            "healthy_threshold": 1,
            "grpc_health_check": {"service_name": "ratelimit"},
        }],
        // While one is well, the other is not asked, however few are well.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
    });
    let endpoint = |at| json!({"endpoint": {"address": address(at)}});
    let endpoints = json!([
        {"priority": 0, "lb_endpoints": [endpoint(first.address("grpc"))]},
        {"priority": 1, "lb_endpoints": [endpoint(second.address("grpc"))]},
    ]);
    let assignment = json!({"cluster_name": TIDEGATE, "endpoints": endpoints});
    let both = with(service(TIDEGATE, json!({})), check);
    let both = with(both, json!({"load_assignment": assignment}));
    let web = listener("web", &[limiter("web", json!({}))], &routes());
    let envoy = Envoy::start(&config(&[web], &[cluster(APP, address(app.address())), both]));
    let healthy = || envoy.figure("cluster.tidegate.membership_healthy");
    let ask = || envoy.get("web", "/all", "").status;
    until(|| healthy() == 2);
    assert_eq!(ask(), 204);
    assert_eq!(left(&first, "web all=1"), 999_999);
    assert!(asked(&second).is_empty());
    // From now on it says that it is not well, and whatever comes to it is answered.
    first.signal(Signal::TERM);
    let after = AtomicU64::new(0);
    until(|| {
        several(|| {
            assert_eq!(ask(), 204);
            after.fetch_add(1, Relaxed);
        });
        asked(&second).contains_key("web all=1")
    });
    until(|| healthy() == 1);
    assert!(first.exit_status().success());
    for _ in 0..20 {
        assert_eq!(ask(), 204);
    }
    assert_eq!(envoy.figure("cluster.app.ratelimit.error"), 0);
    assert_eq!(envoy.figure("cluster.app.ratelimit.ok"), 21 + after.load(Relaxed));
}

#[test]
fn no_request_is_lost_when_connections_are_too_old() {
    let young = DOORS.replace("[http]", "max_connection_age = '20ms'\n[http]");
    let program = Program::serve(&[RULES, &young].concat());
    let app = Upstream::start();
    let web = listener("web", &[limiter("web", json!({}))], &routes());
    let clusters = super::clusters(app.address(), &program);
    let envoy = Envoy::start(&config(&[web], &clusters));
    let mut requests = 0;
    // Several at a time, so that some are under way whenever a connection is too old.
    until(|| {
        several(|| assert_eq!(envoy.get("web", "/all", "").status, 204));
        requests += AT_ONCE;
        envoy.figure("cluster.tidegate.upstream_cx_total") > 20
    });
    assert_eq!(envoy.figure("cluster.app.ratelimit.error"), 0);
    assert_eq!(left(&program, "web all=1"), 1_000_000 - requests, "each counts once");
}
