//! `POST /json` and `GET /healthcheck`, as envoyproxy/ratelimit has them: calls of Envoy's rate
//! limit service as proto3 JSON, decided as at the gRPC door, and whether they are answered.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, HeaderName, ORIGIN};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use tidegate_envoy::json::{parse_request, write_response};
use tidegate_envoy::proto::ratelimit::rate_limit_response::Code;

use super::router::HttpContext;
use crate::doors::http_server::body::read_up_to;
use crate::doors::http_server::json::respond_with;
use crate::doors::http_server::problem::{CountedReason, HttpProblem};
use crate::doors::io::held_bytes::ConnectionBytes;

/// The largest call. Clients of Envoy choose values of up to 60 KiB, several descriptors may have
/// the same one, and a call that is not read may be let pass.
pub(super) const CALL_BYTES_MAX: usize = 1 << 20;
/// What browsers put into the requests of web pages. A page of another site could send any of the
/// content types that are taken here, and no other program sends these headers.
const OF_BROWSERS: [HeaderName; 2] = [ORIGIN, HeaderName::from_static("sec-fetch-site")];

/// Decides on a call.
pub(super) async fn decide(
    State(context): State<Arc<HttpContext>>,
    request: Request<Body>,
) -> Result<Response, HttpProblem> {
    if OF_BROWSERS.iter().any(|name| request.headers().contains_key(name)) {
        let detail = "a web page sent this request, and this path is not for browsers";
        return Err(HttpProblem::new(StatusCode::FORBIDDEN, "origin", detail));
    }
    // An even share of the room is for each call that is being read.
    let held = ConnectionBytes::new(&context.held_calls).begin(0);
    let is_room = |bytes| held.as_ref().is_some_and(|held| held.take(bytes));
    let body = match read_up_to(CALL_BYTES_MAX, request, is_room).await {
        Ok(body) => body,
        Err(problem) => return Ok(bad_request(Some(problem.reason()))),
    };
    let Ok(call) = parse_request(&body) else { return Ok(bad_request(Some("json"))) };
    // `decide` has counted the error.
    let Ok(answer) = context.rate_limits.decide(&call).await else { return Ok(bad_request(None)) };
    let status = match answer.overall_code() {
        Code::Ok => StatusCode::OK,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Ok(respond_with(status, write_response(&answer)))
}

/// envoyproxy/ratelimit has one answer to whatever it cannot decide on.
fn bad_request(counted: Option<&'static str>) -> Response {
    let mut response =
        (StatusCode::BAD_REQUEST, [(CACHE_CONTROL, "no-store")], "Bad Request\n").into_response();
    if let Some(reason) = counted {
        response.extensions_mut().insert(CountedReason(reason));
    }
    response
}

/// Whether calls are answered: not before the start is over, nor once the process stops.
pub(super) async fn health(State(context): State<Arc<HttpContext>>) -> Response {
    let is_draining = context.gate.door.shutdown.is_set();
    let is_serving = context.gate.control.state().is_ready() && !is_draining;
    let (status, body) = match is_serving {
        true => (StatusCode::OK, "OK"),
        false => (StatusCode::INTERNAL_SERVER_ERROR, ""),
    };
    (status, [(CACHE_CONTROL, "no-store")], body).into_response()
}
