//! `/healthz`, `/readyz`, `/metrics` and `/v1/proxies`: what watches the server asks.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::json::respond;
use super::router::Context;
use crate::proxies::ProxySummary;

/// What the metrics are encoded as.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Serialize)]
struct ProxiesJson {
    proxies: Vec<ProxySummary>,
}

#[derive(Serialize)]
struct ReadyJson<'a> {
    ready: bool,
    draining: bool,
    last_reload_error: Option<&'a str>,
    /// Why the store is not asked, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_away: Option<String>,
}

/// The process lives and answers.
pub(super) async fn healthz() -> Response {
    ([(CACHE_CONTROL, "no-store")], "ok\n").into_response()
}

/// Whether work should be sent here. A reload that failed changed nothing: still ready.
pub(super) async fn readyz(State(context): State<Arc<Context>>) -> Response {
    let draining = context.gate.shutdown.is_set();
    let ready = context.gate.admin.is_ready() && !draining;
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let reload_error = context.gate.admin.reload_error();
    let last_reload_error = reload_error.as_ref().map(|text| text.as_str());
    // A store that is away is no reason to send nobody: the rules say what is done without it.
    let store_away = context.gate.limiter.store_away();
    respond(status, &ReadyJson { ready, draining, last_reload_error, store_away })
}

/// Every series, for Prometheus.
pub(super) async fn metrics(State(context): State<Arc<Context>>) -> Response {
    let text =
        context.gate.metrics.encode(context.gate.limiter.size(), context.gate.records.size());
    ([(CONTENT_TYPE, OPENMETRICS), (CACHE_CONTROL, "no-store")], text).into_response()
}

/// What each proxy has measured: overhead and waits with their quantiles, answers and failures.
pub(super) async fn proxies(State(context): State<Arc<Context>>) -> Response {
    let proxies = context.gate.proxies.summaries();
    respond(StatusCode::OK, &ProxiesJson { proxies })
}
