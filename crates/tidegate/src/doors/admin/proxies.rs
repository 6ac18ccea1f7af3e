//! `GET /v1/proxies`: what each proxy has measured.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::router::AdminContext;
use crate::doors::http_server::json::respond_with;
use crate::metrics::Door;

/// Lists overhead and waits with their quantiles, answers and failures.
pub(super) async fn list(State(context): State<Arc<AdminContext>>) -> Response {
    let report = context.gate.shared.report(Door::Proxy);
    let rows = report.map_or("[]".to_owned(), |report| report.rows());
    respond_with(StatusCode::OK, format!("{{\"proxies\":{rows}}}"))
}
