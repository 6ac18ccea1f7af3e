//! `GET /stats` and `GET /rlconfig`, as envoyproxy/ratelimit has them: its statistics and its
//! configuration, as plain lines.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CACHE_CONTROL;
use axum::response::{IntoResponse, Response};

use super::router::AdminContext;
use crate::doors::http_server::problem::HttpProblem;

/// What was counted by the names of envoyproxy/ratelimit.
pub(super) async fn statistics(
    State(context): State<Arc<AdminContext>>,
) -> Result<Response, HttpProblem> {
    let hint = "nothing is counted by the names of envoyproxy/ratelimit: set `erl_metrics = true` \
                in [grpc], or see /metrics";
    lines(context.envoy.statistics(), hint)
}

/// The rules of the configuration in force.
pub(super) async fn configuration(
    State(context): State<Arc<AdminContext>>,
) -> Result<Response, HttpProblem> {
    let hint = "there is no configuration of envoyproxy/ratelimit: set `envoy_config` or `xds` in \
                [grpc], or see /v1/rules";
    lines(context.envoy.configuration(), hint)
}

fn lines(page: Option<String>, hint: &'static str) -> Result<Response, HttpProblem> {
    let page = page.ok_or_else(|| HttpProblem::new(StatusCode::NOT_FOUND, "not_set_up", hint))?;
    Ok(([(CACHE_CONTROL, "no-store")], page).into_response())
}
