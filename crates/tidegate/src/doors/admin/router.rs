//! Which path leads where.

use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, Uri};
use axum::routing::get;
use tokio::sync::Semaphore;

use super::{fence, keys, proxies, rate_limits, records, rules};
use crate::doors::Gate;
use crate::doors::envoy::page::ErlPages;
use crate::doors::envoy::settings::EnvoyState;
use crate::doors::http_server::guard::{guarded, unknown_path};
use crate::doors::http_server::health;
use crate::doors::http_server::problem::HttpProblem;
use crate::limiter::LimiterHandle;
use crate::metrics::Door;

/// Paths of the HTTP door, for clients that were given the wrong listener.
const DECISIONS: [&str; 2] = ["/v1/check", "/v1/wait"];
/// How many scans of the whole table run at once.
const SCANS_MAX: usize = 2;

/// What every handler sees.
pub(super) struct AdminContext {
    pub(super) gate: Gate,
    pub(super) handle: LimiterHandle,
    /// For keys whose limits come with requests.
    pub(super) given: LimiterHandle,
    pub(super) scans: Semaphore,
    /// What envoyproxy/ratelimit tells of itself.
    pub(super) envoy: ErlPages,
}

/// All paths of administration.
pub(super) fn router(gate: &Gate) -> Router {
    let context = Arc::new(AdminContext {
        gate: gate.clone(),
        handle: gate.limiter.handle(Door::Admin),
        given: gate.limiter.handle(Door::Resp),
        scans: Semaphore::new(SCANS_MAX),
        envoy: ErlPages::new(&EnvoyState::of(gate), &gate.metrics),
    });
    let key = get(keys::show).delete(keys::reset);
    let record = get(records::show).delete(records::purge);
    let rule = get(rules::show).put(rules::set).delete(rules::restore);
    let routes = Router::new()
        // The empty key is a key; a slash in a key need not be encoded.
        .route("/v1/keys/", key.clone())
        .route("/v1/keys/{*key}", key)
        .route("/v1/top", get(keys::top))
        .route("/v1/rules", get(rules::list))
        .route("/v1/rules/{*name}", rule)
        .route("/v1/records/", record.clone())
        .route("/v1/records/{*key}", record)
        .route("/v1/proxies", get(proxies::list))
        .route("/stats", get(rate_limits::statistics))
        .route("/rlconfig", get(rate_limits::configuration))
        .merge(health::router(gate))
        .fallback(other_path)
        .with_state(context);
    guarded(routes, Door::Admin, gate, fence::check)
}

/// The answer at every other path.
async fn other_path(uri: Uri) -> HttpProblem {
    if !DECISIONS.contains(&uri.path()) {
        return unknown_path().await;
    }
    let detail = "this is [admin], which decides nothing: ask the [http] door, by default \
                  http://127.0.0.1:8080";
    HttpProblem::new(StatusCode::NOT_FOUND, "path", detail)
}
