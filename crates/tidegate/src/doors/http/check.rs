//! `POST /v1/check` and `DELETE /v1/uses/{id}`: take a use, or give one back.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, Request, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tidegate_core::limit::{AMOUNT_MAX, PERIOD_MAX};
use tidegate_core::time::MILLISECOND;
use tidegate_core::{Nanos, Now, Op};

use super::router::Context;
use crate::doors::http_server::body::read_json;
use crate::doors::http_server::json::{AnswerJson, respond};
use crate::doors::http_server::problem::Problem;
use crate::doors::ratelimit::retry_after_s;
use crate::limiter::Answer;
use crate::uses::UseId;

/// The longest that a use may be held.
const HOLD_MS_MAX: u64 = PERIOD_MAX / MILLISECOND;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckJson {
    pub(super) key: Option<String>,
    pub(super) keys: Option<Vec<String>>,
    pub(super) cost: Option<u64>,
    pub(super) peek: Option<bool>,
    pub(super) hold_ms: Option<u64>,
}

/// What is asked for, once the fields are known to fit together.
pub(super) struct Check {
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) cost: u64,
    peek: bool,
    pub(super) hold: Option<Nanos>,
}

impl Check {
    /// A use of one key.
    pub(super) fn one(key: Vec<u8>) -> Self {
        Self { keys: vec![key], cost: 1, peek: false, hold: None }
    }
}

impl TryFrom<CheckJson> for Check {
    type Error = Problem;

    fn try_from(json: CheckJson) -> Result<Self, Problem> {
        let keys = match (json.key, json.keys) {
            (Some(key), None) => vec![key.into_bytes()],
            (None, Some(keys)) if !keys.is_empty() => {
                keys.into_iter().map(String::into_bytes).collect()
            }
            (None, Some(_)) => return Err(field("keys: at least one key is needed")),
            (None, None) => return Err(field("one of \"key\" and \"keys\" is needed")),
            (Some(_), Some(_)) => return Err(field("send \"key\" or \"keys\", not both")),
        };
        let cost = json.cost.unwrap_or(1);
        if cost > AMOUNT_MAX {
            let detail = format!("cost: at most {AMOUNT_MAX}, the largest amount of any limit");
            return Err(Problem::bad_request("cost_above_limit", detail));
        }
        let peek = json.peek.unwrap_or(false);
        let hold = match json.hold_ms {
            None => None,
            Some(_) if peek => return Err(field("a peek holds nothing: leave out \"hold_ms\"")),
            Some(hold_ms @ 1..=HOLD_MS_MAX) => Some(hold_ms * MILLISECOND),
            Some(_) => {
                let detail = format!("hold_ms: 1 to {HOLD_MS_MAX} milliseconds");
                return Err(Problem::bad_request("field", detail));
            }
        };
        Ok(Self { keys, cost, peek, hold })
    }
}

fn field(detail: &'static str) -> Problem {
    Problem::bad_request("field", detail)
}

/// Takes, or only looks at, a use of one or several keys.
pub(super) async fn check(
    State(context): State<Arc<Context>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let check = Check::try_from(read_json::<CheckJson>(request).await?)?;
    let now = context.desk.now();
    context.gate.uses.lapse(now);
    let Some(hold) = check.hold else {
        let answer = take(&context, &check, now).await?;
        return Ok(answered(&check, &answer, None));
    };
    // In a task of its own where an answer is awaited: a client that leaves in between must not
    // take along the only one who knows of the use. Otherwise nothing awaits.
    let remote = context.desk.is_remote();
    let holding = async move {
        let held = take_and_hold(&context, &check, hold, now).await;
        held.map(|(answer, held)| answered(&check, &answer, held))
    };
    match remote {
        false => holding.await,
        true => {
            tokio::spawn(holding).await.unwrap_or_else(|_| Err(field("the server is stopping")))
        }
    }
}

/// The answer as the client sees it: 200 or 429, with all that can be said.
pub(super) fn answered(check: &Check, answer: &Answer, held: Option<UseId>) -> Response {
    let mut json = AnswerJson::new(&check.keys, answer);
    if check.hold.is_some() {
        json = json.with_use(held);
    }
    if answer.allowed {
        return respond(StatusCode::OK, &json);
    }
    let mut response = respond(StatusCode::TOO_MANY_REQUESTS, &json);
    if let Some(seconds) = retry_after_s(answer) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

async fn take(context: &Context, check: &Check, now: Now) -> Result<Answer, Problem> {
    let keys: Vec<&[u8]> = check.keys.iter().map(Vec::as_slice).collect();
    let op = if check.peek { Op::Peek(check.cost) } else { Op::Take(check.cost) };
    // A peek has no end to say, so keys that count uses in flight are fine.
    Ok(context.desk.decided(&keys, op, check.peek, now).await?)
}

async fn take_and_hold(
    context: &Context,
    check: &Check,
    hold: Nanos,
    now: Now,
) -> Result<(Answer, Option<UseId>), Problem> {
    let uses = &context.gate.uses;
    uses.room_for(&check.keys)?;
    let keys: Vec<&[u8]> = check.keys.iter().map(Vec::as_slice).collect();
    let answer = context.desk.decided(&keys, Op::Take(check.cost), true, now).await?;
    if answer.held.is_empty() {
        return Ok((answer, None));
    }
    let held = answer.held.iter().map(|held| (check.keys[held.key].clone(), held.from)).collect();
    let lapses_at = now.mono.saturating_add(hold);
    match uses.hold(held, check.cost, answer.at, lapses_at) {
        Ok(id) => Ok((answer, Some(id))),
        Err(error) => {
            // The room was taken by somebody else in between: what cannot be ended is not kept.
            let held: Vec<_> = answer.held.iter().map(|held| (keys[held.key], held.from)).collect();
            context.desk.release(&held, check.cost, answer.at, now);
            Err(error.into())
        }
    }
}

/// Gives a use back.
pub(super) async fn end(
    State(context): State<Arc<Context>>,
    uri: Uri,
) -> Result<Response, Problem> {
    context.gate.uses.lapse(context.desk.now());
    let id = uri.path().strip_prefix("/v1/uses/").unwrap_or_default();
    let ended = id.parse::<UseId>().is_ok_and(|id| context.gate.uses.end(id));
    if ended {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let detail = "no such use is held; it may have ended or lapsed already";
    Err(Problem::new(StatusCode::NOT_FOUND, "unknown_use", detail))
}
