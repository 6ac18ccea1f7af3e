//! `GET /v1/proxies`: what each proxy has measured.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;

use super::router::Context;
use crate::doors::http_server::json::respond;
use crate::proxies::ProxySummary;

#[derive(Serialize)]
struct ProxiesJson {
    proxies: Vec<ProxySummary>,
}

/// Lists overhead and waits with their quantiles, answers and failures.
pub(super) async fn list(State(context): State<Arc<Context>>) -> Response {
    let proxies = context.gate.proxies.summaries();
    respond(StatusCode::OK, &ProxiesJson { proxies })
}
