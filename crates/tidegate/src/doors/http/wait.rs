//! `POST /v1/wait`: takes a use as soon as it may be had, in the order of arrival.
//!
//! A client that leaves is out of its line at once: the handler looks out for that.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use tidegate_core::time::MILLISECOND;
use tidegate_core::{Nanos, Op};
use tokio::time::sleep;

use super::check::{Check, CheckJson, answered};
use super::router::Context;
use crate::doors::http_server::body::read_json;
use crate::doors::http_server::problem::Problem;
use crate::doors::http_server::shared::Shared;
use crate::limiter::{Answer, Basis, Desk, TakenFrom};
use crate::uses::UseId;
use crate::waiting::{Admitted, Bounds, NotAdmitted, WaitRequest};

/// How many may wait: three quarters of all connections, so that others still get in.
pub(super) const BOUNDS: Bounds = Bounds { per_key: WAITERS_MAX, total: WAITERS_MAX };
const WAITERS_MAX: usize = 3_072;
/// How long a client that has closed its sending side may have to wait for a store's answer.
const STORE_PATIENCE: Duration = Duration::from_secs(1);

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
    State(context): State<Arc<Context>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let client = request.extensions().get::<Shared>().cloned();
    let WaitJson { key, cost, max_wait_ms, hold_ms } = read_json(request).await?;
    let json = CheckJson { key: Some(key), keys: None, cost, peek: None, hold_ms };
    let check = Check::try_from(json)?;
    let max_wait = max_wait_ms.map(|span| span.saturating_mul(MILLISECOND));
    let passed = pass(&context, &check, max_wait, client).await?;
    // Until a use is held nothing awaits: a client that leaves cannot lose it in between.
    match passed {
        Ok(pass) => {
            let held = hold(&context, &check, &pass)?;
            Ok(answered(&check, &taken(&context.desk, &check, &pass).await, held))
        }
        Err(NotAdmitted::TooLate(refusal)) => {
            let answer = Answer::of(&refusal.verdict, refusal.rows);
            Ok(answered(&check, &answer, None))
        }
        Err(NotAdmitted::Invalid(unfit)) => Err(unfit.into()),
        Err(NotAdmitted::TooManyWaiters { per_key }) => {
            let where_ = if per_key { "for this key" } else { "at this door" };
            let detail = format!("too many wait {where_}; try again when some have gone");
            let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "crowded", detail);
            Err(problem.with(RETRY_AFTER, "1"))
        }
    }
}

/// Waits until the use is taken, the door closes, or the client has closed its sending side:
/// whether it still reads cannot be told, and others are in line behind it.
pub(super) async fn pass(
    context: &Context,
    check: &Check,
    max_wait: Option<Nanos>,
    client: Option<Shared>,
) -> Result<Result<Admitted, NotAdmitted>, Problem> {
    if check.hold.is_some() {
        context.gate.uses.room_for(&check.keys)?;
    }
    let key = check.keys.first().map_or(&b""[..], Vec::as_slice);
    let ask = WaitRequest { key, cost: check.cost, max_wait, can_end: check.hold.is_some() };
    let left = async {
        let Some(client) = client else { return pending().await };
        client.closed().await;
        if context.desk.is_remote() {
            // It may not wait at all, but for the store.
            sleep(STORE_PATIENCE).await;
        }
    };
    tokio::select! {
        biased;
        passed = context.gate.waiting.admit(&context.desk, &context.waiter_limit, ask) => Ok(passed),
        () = context.gate.door.shutdown.wait() => Err(Problem::stopping()),
        () = left => {
            let detail = "the client has closed its sending side while its request waited";
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "left", detail))
        }
    }
}

/// Remembers a use in flight, so that somebody can end it or it lapses.
fn hold(context: &Context, check: &Check, pass: &Admitted) -> Result<Option<UseId>, Problem> {
    let (Some(from), Some(hold)) = (pass.held, check.hold) else { return Ok(None) };
    let held: Vec<(Vec<u8>, TakenFrom)> =
        check.keys.iter().map(|key| (key.clone(), from)).collect();
    let now = context.desk.now();
    let lapses_at = now.mono.saturating_add(hold);
    context.gate.uses.hold(held, check.cost, pass.started, lapses_at).map(Some).map_err(|error| {
        // The room was taken by somebody else meanwhile: what cannot be ended is not kept.
        let held: Vec<_> = check.keys.iter().map(|key| (key.as_slice(), from)).collect();
        context.desk.release(&held, check.cost, pass.started, now);
        error.into()
    })
}

/// What a check that was allowed would have answered, once the use is taken.
pub(super) async fn taken(desk: &Desk, check: &Check, pass: &Admitted) -> Answer {
    let keys: Vec<&[u8]> = check.keys.iter().map(Vec::as_slice).collect();
    let peek = desk.decided(&keys, Op::Peek(check.cost), true, desk.now()).await;
    // New rules may have made a second such use unfit; this one was not.
    let limits = peek.map(|answer| answer.limits).unwrap_or_default();
    let mut answer = Answer {
        allowed: true,
        at: desk.now(),
        delay: 0,
        firm: false,
        refused_by: None,
        held: Vec::new(),
        limits,
    };
    for limit in &mut answer.limits {
        limit.verdict.allowed = true;
        limit.verdict.delay = 0;
        if pass.degraded && !limit.is_degraded() {
            // The store is back by now; it has not counted this use.
            limit.basis = Basis::Policy;
        }
    }
    answer
}
