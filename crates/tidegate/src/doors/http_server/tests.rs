//! For the tests of doors on HTTP: a router as a service, without sockets, on a clock that stands
//! still.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{HeaderMap, Request, StatusCode};
use serde_json::Value;
use tidegate_core::rules::{Rule, RuleSet};
use tidegate_core::time::{MINUTE, SECOND};
use tidegate_core::{Algorithm, Limit, Now};
use tower::ServiceExt;

use crate::clock::Clock;
use crate::doors::Gate;
use crate::limiter::Limiter;
use crate::metrics::{Door, Metrics};
use crate::records::Records;
use crate::server::Process;
use crate::stores::memory;

/// `ws ip=*` has 3 per 10 s, `jobs` 2 in flight, `both *` 5 per 10 s and 1 in flight; others none.
fn rules() -> RuleSet {
    let gcra = |amount| {
        let algorithm = Algorithm::Gcra { burst: amount };
        Limit { amount, period: 10 * SECOND, algorithm }
    };
    let algorithm = Algorithm::InFlight { per_window: false };
    let in_flight = |amount| Limit { amount, period: 0, algorithm };
    let rules = vec![
        Rule::new("ws-ip", "ws ip=*", vec![gcra(3)]),
        Rule::new("jobs", "jobs", vec![in_flight(2)]),
        Rule::new("both", "both *", vec![gcra(5), in_flight(1)]),
    ];
    RuleSet::new(rules, None)
}

/// A door and what stands behind it.
pub(crate) struct House {
    pub(crate) clock: Clock,
    pub(crate) gate: Gate,
    pub(crate) process: Arc<Process>,
    pub(crate) router: Router,
    door: Door,
}

/// What came back.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) json: Value,
    pub(crate) text: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl House {
    /// A door with the paths that `router` makes.
    pub(crate) fn of(door: Door, router: impl FnOnce(&Gate) -> Router) -> Self {
        let house = Self::starting(door, router);
        house.process.state.set_ready(true);
        house
    }

    /// The same before the start is over.
    pub(crate) fn starting(door: Door, router: impl FnOnce(&Gate) -> Router) -> Self {
        let clock = Clock::manual(Now { mono: MINUTE, unix: 1_000 * MINUTE });
        let metrics = Arc::new(Metrics::default());
        let settings = memory::Settings { max_keys: 10_000, max_bytes: 16 << 20 };
        let limiter = Limiter::new(clock.clone(), metrics.clone(), rules(), settings);
        let process = Process::new(limiter.clone());
        let records = Records::beside(&limiter, 4);
        let gate = Gate::new(limiter, records, metrics, process.clone());
        let router = router(&gate);
        Self { clock, gate, process, router, door }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, 1 << 20).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Reply { status: parts.status, headers: parts.headers, json, text }
    }

    pub(crate) async fn ask(&self, method: &str, path: &str) -> Reply {
        self.send(request(method, path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn send_json(&self, method: &str, path: &str, body: impl ToString) -> Reply {
        let request = request(method, path).header(CONTENT_TYPE, "application/json");
        self.send(request.body(Body::from(body.to_string())).unwrap()).await
    }

    /// How often bad input was counted under `reason`.
    pub(crate) fn bad_input(&self, reason: &str) -> u64 {
        let text = self.gate.metrics_page();
        let (door, label) = (self.door.name(), format!("reason=\"{reason}\""));
        let is_ours = |line: &&str| {
            line.starts_with("tidegate_bad_input_total{")
                && line.contains(&format!("door=\"{door}\""))
                && line.contains(&label)
        };
        let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
        text.lines().find(is_ours).map_or(0, count)
    }

    /// The reply is a problem of this status, for this reason, and was counted once.
    #[track_caller]
    pub(crate) fn assert_problem(&self, reply: &Reply, status: u16, reason: &str) {
        assert_eq!(reply.status, status, "{}", reply.text);
        assert_eq!(reply.header("content-type"), "application/problem+json");
        assert_eq!(reply.json["status"], status);
        assert_eq!(reply.json["reason"], reason, "{}", reply.text);
        assert!(reply.json["title"].is_string() && reply.json["detail"].is_string());
        assert_eq!(reply.json["type"], "about:blank");
        assert_eq!(self.bad_input(reason), 1, "{reason}");
    }
}

pub(crate) fn request(method: &str, path: &str) -> axum::http::request::Builder {
    Request::builder().method(method).uri(path).header(HOST, "localhost:8080")
}
