//! `POST /v1/wait`: takes a use as soon as it may be had, in the order of arrival.
//!
//! The handler takes the request of a client that leaves out of its queue at once.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{self, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use tidegate_core::Nanos;
use tidegate_core::time::MILLISECOND;

use super::check::{CheckJson, CheckRequest, answered, hold};
use super::router::HttpContext;
use crate::doors::http_server::body::read_json;
use crate::doors::http_server::problem::HttpProblem;
use crate::doors::io::client_socket::CloseWatch;
use crate::limiter::{HeldKey, Rows};
use crate::waiting::{Admitted, NotAdmitted, WaitRequest, WaiterBounds};

/// How many may wait: three quarters of all connections, so that others still get in.
pub(super) const BOUNDS: WaiterBounds = WaiterBounds { per_key: WAITERS_MAX, total: WAITERS_MAX };
const WAITERS_MAX: usize = 3_072;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WaitJson {
    key: String,
    cost: Option<u64>,
    max_wait_ms: Option<u64>,
    hold_ms: Option<u64>,
}

/// Waits for a use of one key.
pub(super) async fn wait(
    State(context): State<Arc<HttpContext>>,
    request: http::Request<Body>,
) -> Result<Response, HttpProblem> {
    let client = request.extensions().get::<CloseWatch>().cloned();
    let WaitJson { key, cost, max_wait_ms, hold_ms } = read_json(request).await?;
    let json = CheckJson { key: Some(key), keys: None, cost, peek: None, hold_ms };
    let check = CheckRequest::try_from(json)?;
    let max_wait = max_wait_ms.map(|span| span.saturating_mul(MILLISECOND));
    let passed = pass(&context, &check, max_wait, client).await?;
    // Until a use is held nothing awaits: a client that leaves cannot lose it in between.
    match passed {
        (Ok(admitted), rows) => {
            let started = admitted.started;
            let held = admitted.held.map(|from| HeldKey { key: 0, from, started });
            let held = hold(&context, &check, held.as_slice(), context.handle.now())?;
            let (key, cost) = (&check.keys[0], check.cost);
            let (verdict, rows) = admitted.look(&context.handle, key, cost, rows).await;
            Ok(answered(&check, &verdict, &rows, held))
        }
        (Err(NotAdmitted::TooLate(refusal)), _) => {
            Ok(answered(&check, &refusal.verdict, &refusal.rows, None))
        }
        (Err(NotAdmitted::Invalid(invalid)), _) => Err(invalid.into()),
        (Err(NotAdmitted::TooManyWaiters { per_key }), _) => {
            let where_ = if per_key { "for this key" } else { "at this door" };
            let detail = format!("too many requests wait {where_}; try again later");
            let problem = HttpProblem::new(StatusCode::SERVICE_UNAVAILABLE, "crowded", detail);
            Err(problem.with(RETRY_AFTER, "1"))
        }
    }
}

/// Waits until the use is taken, the door closes, or the client has closed its sending side:
/// the door cannot know whether it still reads, and other requests wait behind it. With a use that
/// was taken comes what its limits said.
pub(super) async fn pass(
    context: &HttpContext,
    check: &CheckRequest,
    max_wait: Option<Nanos>,
    client: Option<CloseWatch>,
) -> Result<(Result<Admitted, NotAdmitted>, Option<Rows>), HttpProblem> {
    if check.hold.is_some() {
        context.gate.uses.room_for(&check.keys)?;
    }
    let key = check.keys.first().map_or(&b""[..], Vec::as_slice);
    let request = WaitRequest { key, cost: check.cost, max_wait, can_end: check.hold.is_some() };
    let passing = context.gate.waiting.admit(&context.handle, &context.waiter_limit, request);
    let mut passing = pin!(passing.with_rows());
    let mut closed = pin!(async {
        match client {
            Some(client) => client.closed().await,
            None => pending().await,
        }
    });
    let mut stopping = pin!(context.gate.door.shutdown.wait());
    let mut is_closed = false;
    poll_fn(|cx| {
        if let Poll::Ready(passed) = passing.as_mut().poll(cx) {
            return Poll::Ready(Ok((passed, passing.take_rows())));
        }
        if stopping.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(HttpProblem::stopping()));
        }
        is_closed = is_closed || closed.as_mut().poll(cx).is_ready();
        // A request that is in no line only waits for the answer of its store: it may go then.
        if is_closed && passing.is_in_line() {
            let detail = "the client has closed its sending side while its request waited";
            return Poll::Ready(Err(HttpProblem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "left",
                detail,
            )));
        }
        Poll::Pending
    })
    .await
}
