//! `/healthz`, `/readyz` and `/metrics`, for whatever watches the server.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;

use super::json::respond;
use crate::doors::Gate;

/// What the metrics are encoded as.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Serialize)]
struct ReadyJson<'a> {
    ready: bool,
    draining: bool,
    last_reload_error: Option<&'a str>,
    /// Why the store is not asked, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_away: Option<String>,
    /// Why the last snapshot was not written.
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot_error: Option<&'a str>,
    /// What counts come from, if the newest snapshot could not be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot_restored_from: Option<&'static str>,
}

/// The paths of this file.
pub(crate) fn router<S>(gate: &Gate) -> Router<S> {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Arc::new(gate.clone()))
}

/// The process lives and answers.
async fn healthz() -> Response {
    ([(CACHE_CONTROL, "no-store")], "ok\n").into_response()
}

/// Whether work should be sent here. A reload that failed changed nothing: still ready.
async fn readyz(State(gate): State<Arc<Gate>>) -> Response {
    let draining = gate.door.shutdown.is_set();
    let state = gate.control.state();
    let ready = state.is_ready() && !draining;
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let reload_error = state.reload_error();
    let last_reload_error = reload_error.as_ref().map(|text| text.as_str());
    // A store that is away does not make the node unready: `on_store_error` decides without it.
    let store_away = gate.limiter.store_away();
    let snapshot_error = state.snapshot_error();
    let ready = ReadyJson {
        ready,
        draining,
        last_reload_error,
        store_away,
        snapshot_error: snapshot_error.as_ref().map(|text| text.as_str()),
        snapshot_restored_from: state.snapshot_restored_from(),
    };
    respond(status, &ready)
}

/// Every series, for Prometheus.
async fn metrics(State(gate): State<Arc<Gate>>) -> Response {
    let text = gate.metrics_page();
    ([(CONTENT_TYPE, OPENMETRICS), (CACHE_CONTROL, "no-store")], text).into_response()
}
