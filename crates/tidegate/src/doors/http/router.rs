//! Which path leads where.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, Uri};
use axum::routing::{any, delete, get, post};

use super::{Live, authorize, check, rate_limit, records, wait};
use crate::doors::Gate;
use crate::doors::envoy::rate_limit::RateLimits;
use crate::doors::http_server::guard::{guarded, unknown_path};
use crate::doors::http_server::health;
use crate::doors::http_server::host::{self, LocalAddress};
use crate::doors::http_server::problem::HttpProblem;
use crate::doors::io::held_bytes::HeldBytes;
use crate::limiter::LimiterHandle;
use crate::metrics::Door;
use crate::waiting::WaiterLimit;

/// What paths of administration begin with.
const ADMINISTRATION: [&str; 5] =
    ["/v1/keys", "/v1/top", "/v1/rules", "/v1/proxies", "/v1/records"];

/// What every handler sees.
pub(super) struct HttpContext {
    pub(super) gate: Gate,
    pub(super) handle: LimiterHandle,
    /// The requests that wait at this door.
    pub(super) waiter_limit: Arc<WaiterLimit>,
    pub(super) live: Arc<Live>,
    pub(super) rate_limits: RateLimits,
    /// The bytes of Envoy's calls that are being read or decided on.
    pub(super) held_calls: Arc<HeldBytes>,
}

impl HttpContext {
    fn new(gate: Gate) -> Arc<Self> {
        let handle = gate.limiter.handle(Door::Http);
        let waiter_limit = WaiterLimit::new(&gate.metrics, Door::Http, wait::BOUNDS);
        let live = Live::of(&gate);
        let rate_limits = RateLimits::new(&gate, Door::Http);
        let held_calls = Arc::default();
        Arc::new(Self { gate, handle, waiter_limit, live, rate_limits, held_calls })
    }
}

/// All paths of the door.
pub(super) fn router(gate: &Gate) -> Router {
    let routes = Router::new()
        .route("/v1/check", post(check::check))
        .route("/v1/wait", post(wait::wait))
        // Envoy keeps the method that it was asked with, and adds the path to ours.
        .route("/v1/authorize/{*name}", any(authorize::authorize))
        .route("/v1/uses/{id}", delete(check::end))
        .route("/v1/records/consume", post(records::consume))
        .route("/json", post(rate_limit::decide))
        .route("/healthcheck", get(rate_limit::health))
        .merge(health::router(gate))
        .fallback(other_path)
        .with_state(HttpContext::new(gate.clone()));
    let live = Live::of(gate);
    let check = move |request: &Request<Body>| {
        let local = request.extensions().get::<LocalAddress>().copied();
        host::check(request.headers(), request.uri(), local, &live.host_names.load())
    };
    guarded(routes, Door::Http, gate, check)
}

/// The answer at every other path.
async fn other_path(uri: Uri) -> HttpProblem {
    let below = |prefix: &&str| {
        let rest = uri.path().strip_prefix(*prefix);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if !ADMINISTRATION.iter().any(below) {
        return unknown_path().await;
    }
    let detail = "administration has a listener of its own: ask [admin], by default \
                  http://127.0.0.1:8090";
    HttpProblem::new(StatusCode::NOT_FOUND, "administration", detail)
}
