//! Which path leads where.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use tokio::sync::Semaphore;

use super::{fence, keys, proxies, rate_limits, records, rules};
use crate::doors::Gate;
use crate::doors::envoy::page::ErlPages;
use crate::doors::envoy::settings::EnvoyState;
use crate::doors::http_server::guard::{guarded, unknown_path};
use crate::doors::http_server::health;
use crate::limiter::LimiterHandle;
use crate::metrics::Door;

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
        .fallback(unknown_path)
        .with_state(context);
    guarded(routes, Door::Admin, gate, fence::check)
}
