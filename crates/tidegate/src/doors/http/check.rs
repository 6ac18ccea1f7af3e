//! `POST /v1/check` and `DELETE /v1/uses/{id}`: take a use, or give one back.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tidegate_core::limit::{AMOUNT_MAX, PERIOD_MAX};
use tidegate_core::time::MILLISECOND;
use tidegate_core::{Nanos, Now};

use super::router::HttpContext;
use crate::doors::http_server::body::read_json;
use crate::doors::http_server::json::{AnswerJson, respond, respond_with_problem};
use crate::doors::http_server::problem::HttpProblem;
use crate::doors::ratelimit::{Standing, retry_after_s};
use crate::limiter::{HeldKey, Key, KeyOp, Request, Rows, Together, Verdict};
use crate::uses::{KeyUse, UseId};

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
pub(super) struct CheckRequest {
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) cost: u64,
    peek: bool,
    pub(super) hold: Option<Nanos>,
}

impl CheckRequest {
    /// A use of one key.
    pub(super) fn one(key: Vec<u8>) -> Self {
        Self { keys: vec![key], cost: 1, peek: false, hold: None }
    }

    /// Its keys, with what is to be done with each.
    pub(super) fn keys(&self, op: KeyOp) -> Vec<Key<'_>> {
        self.keys.iter().map(|key| Key::new(key, op)).collect()
    }
}

impl TryFrom<CheckJson> for CheckRequest {
    type Error = HttpProblem;

    fn try_from(json: CheckJson) -> Result<Self, HttpProblem> {
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
            return Err(HttpProblem::bad_request("cost_above_limit", detail));
        }
        let peek = json.peek.unwrap_or(false);
        let hold = match json.hold_ms {
            None => None,
            Some(_) if peek => return Err(field("a peek holds nothing: leave out \"hold_ms\"")),
            Some(hold_ms @ 1..=HOLD_MS_MAX) => Some(hold_ms * MILLISECOND),
            Some(_) => {
                let detail = format!("hold_ms: 1 to {HOLD_MS_MAX} milliseconds");
                return Err(HttpProblem::bad_request("field", detail));
            }
        };
        Ok(Self { keys, cost, peek, hold })
    }
}

fn field(detail: &'static str) -> HttpProblem {
    HttpProblem::bad_request("field", detail)
}

/// Takes, or only looks at, a use of one or several keys.
pub(super) async fn check(
    State(context): State<Arc<HttpContext>>,
    request: axum::http::Request<Body>,
) -> Result<Response, HttpProblem> {
    let check = CheckRequest::try_from(read_json::<CheckJson>(request).await?)?;
    let now = context.handle.now();
    let uses = &context.gate.uses;
    uses.lapse(now);
    if check.hold.is_some() {
        uses.room_for(&check.keys)?;
    }
    let keys = check.keys(match check.peek {
        true => KeyOp::Peek(check.cost),
        false => KeyOp::Take(check.cost),
    });
    // A peek has no end to tell, so keys that limit uses in flight are fine.
    let can_end = check.peek || check.hold.is_some();
    let request = Request { keys: &keys, together: Together::AllOrNothing, can_end };
    let mut rows = Rows::default();
    let verdict = context.handle.decide_async(&request, now, &mut rows).await?;
    // From the verdict until the use is held nothing awaits. So if the client leaves, either the
    // pending verdict gives the use back, or the register knows of it.
    let held = hold(&context, &check, &rows.held, now)?;
    Ok(answered(&check, &verdict, &rows, held))
}

/// The answer as the client sees it: 200 or 429, with all that can be said.
pub(super) fn answered(
    check: &CheckRequest,
    verdict: &Verdict,
    rows: &Rows,
    held: Option<UseId>,
) -> Response {
    let mut json = AnswerJson::new(&check.keys, verdict, rows);
    if check.hold.is_some() {
        json = json.with_use(held);
    }
    if verdict.is_allowed() {
        let mut response = respond(StatusCode::OK, &json);
        Standing::of(rows).write(response.headers_mut());
        return response;
    }
    let mut response = respond_with_problem(StatusCode::TOO_MANY_REQUESTS, &json.with_problem());
    let headers = response.headers_mut();
    if let Some(seconds) = retry_after_s(verdict, rows) {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    Standing::of(rows).write(headers);
    response
}

/// Registers the uses in flight that were taken, so that the client can end them or they lapse.
pub(super) fn hold(
    context: &HttpContext,
    check: &CheckRequest,
    held: &[HeldKey],
    now: Now,
) -> Result<Option<UseId>, HttpProblem> {
    let Some(span) = check.hold.filter(|_| !held.is_empty()) else { return Ok(None) };
    let key_use = |&HeldKey { key, from, started }: &HeldKey| KeyUse {
        key: check.keys[key].clone(),
        from,
        started,
    };
    let key_uses = held.iter().map(key_use).collect();
    let lapses_at = now.mono.saturating_add(span);
    context.gate.uses.hold(key_uses, check.cost, lapses_at).map(Some).map_err(|error| {
        // Other requests have filled the register since: a use that cannot be ended is given back.
        for &HeldKey { key, from, started } in held {
            context.handle.release_uses(&check.keys[key], check.cost, started, from);
        }
        error.into()
    })
}

/// Gives a use back.
pub(super) async fn end(
    State(context): State<Arc<HttpContext>>,
    uri: Uri,
) -> Result<Response, HttpProblem> {
    context.gate.uses.lapse(context.handle.now());
    let id = uri.path().strip_prefix("/v1/uses/").unwrap_or_default();
    let ended = id.parse::<UseId>().is_ok_and(|id| context.gate.uses.end(id));
    if ended {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let detail = "no such use is held; it may have ended or lapsed already";
    Err(HttpProblem::new(StatusCode::NOT_FOUND, "unknown_use", detail))
}
