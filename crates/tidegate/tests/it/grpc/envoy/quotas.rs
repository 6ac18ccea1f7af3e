//! Real Envoys that are told how much they may let pass (RLQS).
//!
//! Here is how their filter is configured: one bucket for each value of `x-user`, and whatever has
//! no assignment is denied.

mod division;
mod load;
mod long_values;
mod oracle;
mod rows;
mod scripted;

use std::io::{BufReader, Write as _};
use std::path::Path;

use serde_json::{Value, json};

use super::super::DOORS;
use super::{APP, cluster, clusters, config, listener, pipe, service, typed};
use crate::engines::until;
use crate::envoy::Envoy;
use crate::message::Message;
use crate::program::Program;
use crate::upstream::Upstream;

/// The cluster that is asked for quotas.
const QUOTAS: &str = "quotas";

/// What Envoy does with requests that have no assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unassigned {
    Denied,
    /// Its default.
    Allowed,
    /// The default, and it is told to obey assignments that have expired.
    Reused,
}

impl Unassigned {
    fn settings(self) -> Value {
        let denied = json!({"fallback_rate_limit": {"blanket_rule": "DENY_ALL"}});
        let expired = |behavior: Value| json!({"expired_assignment_behavior": behavior});
        match self {
            Unassigned::Denied => super::with(
                expired(with_timeout(&denied)),
                json!({"no_assignment_behavior": denied}),
            ),
            Unassigned::Allowed => json!({}),
            Unassigned::Reused => expired(json!({"reuse_last_assignment": {}})),
        }
    }
}

/// The filter that asks a cluster for the quotas of a domain.
fn quota_filter(domain: &str, unassigned: Unassigned) -> Value {
    let of_header =
        typed("type.matcher.v3.HttpRequestHeaderMatchInput", json!({"header_name": "x-user"}));
    let of_header = json!({"name": "header", "typed_config": of_header});
    let bucket = json!({
        "bucket_id_builder": {"bucket_id_builder": {
            "user": {"custom_value": of_header},
            "kind": {"string_value": "web"},
        }},
        "reporting_interval": "5s",
    });
    let bucket = super::with(bucket, unassigned.settings());
    let package = "extensions.filters.http.rate_limit_quota.v3";
    let bucket = typed(&format!("{package}.RateLimitQuotaBucketSettings"), bucket);
    let all = json!({"on_no_match": {"action": {"name": "bucket", "typed_config": bucket}}});
    let fields = json!({
        "rlqs_server": {"envoy_grpc": {"cluster_name": QUOTAS}},
        "domain": domain,
        "bucket_matchers": all,
    });
    let filter = typed(&format!("{package}.RateLimitQuotaFilterConfig"), fields);
    json!({"name": "envoy.filters.http.rate_limit_quota", "typed_config": filter})
}

/// What holds for so long after an assignment has expired.
fn with_timeout(behavior: &Value) -> Value {
    super::with(behavior.clone(), json!({"expired_assignment_behavior_timeout": "60s"}))
}

/// An Envoy that asks the server at `quotas`, and an application at `app`.
fn start(app: Value, quotas: Value) -> Envoy {
    start_with(Unassigned::Denied, app, quotas)
}

fn start_with(unassigned: Unassigned, app: Value, quotas: Value) -> Envoy {
    let route = json!({"match": {"prefix": "/"}, "route": {"cluster": APP}});
    let web = listener("web", &[quota_filter("web", unassigned)], &[route]);
    Envoy::start(&config(&[web], &[cluster(APP, app), service(QUOTAS, quotas)]))
}

/// As [`start`], with the program at a Unix socket, which is the same after a restart.
fn start_beside(app: std::net::SocketAddr, socket: &Path, unassigned: Unassigned) -> Envoy {
    start_with(unassigned, super::address(app), pipe(socket))
}

/// The head of a request of this user.
fn of(user: &str) -> String {
    format!("X-User: {user}\r\n")
}

/// Asks with these lines of a head. Where Envoy is to close the connection, it waits for the client
/// for a second after a refusal of its own; so the client closes it.
fn ask(envoy: &Envoy, head: &str) -> Message {
    let mut stream = BufReader::new(envoy.connect("web"));
    let request = format!("GET / HTTP/1.1\r\nHost: a.example\r\n{head}\r\n");
    stream.get_mut().write_all(request.as_bytes()).expect("Envoy reads");
    Message::read(&mut stream).expect("an answer")
}

#[test]
fn envoys_obey_the_rules_of_the_server() {
    let rules = "
[[rule]]
match = 'web kind=web user=denied'
limit = 'deny'
[[rule]]
match = 'web kind=web user=quiet'
limit = '1 per 300d'
shadow = true
[[rule]]
match = 'web kind=web user=window'
limit = '3 per 366d'
algorithm = 'fixed-window'
";
    let program = Program::serve(&[rules, DOORS].concat());
    let app = Upstream::start();
    let [_, service] = clusters(app.address(), &program);
    let at = service["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
        .clone();
    let envoy = start(super::address(app.address()), at);
    let as_user = |user: &str| ask(&envoy, &of(user));
    // Denied until there is an assignment.
    for user in ["free", "quiet"] {
        until(|| as_user(user).status() == 204);
        (0..20).for_each(|_| assert_eq!(as_user(user).status(), 204, "{user}"));
    }
    let denied = as_user("denied");
    assert_eq!((denied.status(), denied.text().as_str()), (429, ""));
    assert_eq!(denied.header("x-envoy-ratelimited"), None);
    // Before its first slices a server waits for those of the one before to end.
    app.more();
    let mut passed = 0;
    until(|| {
        passed += u32::from(as_user("window").status() == 204);
        passed == 3
    });
    (0..50).for_each(|_| assert_eq!(as_user("window").status(), 429));
    assert_eq!(app.more(), 3);
    // A request without the header belongs to no bucket.
    assert_eq!(ask(&envoy, "").status(), 204);
    // With an empty one its entry is left out of the bucket's id.
    until(|| ask(&envoy, "X-User:\r\n").status() == 204);
}
