//! `GET` and `DELETE /v1/keys/{key}`, and `GET /v1/top`: look at keys, or forget one.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};

use super::router::AdminContext;
use crate::doors::http_server::json::{AnswerJson, TopJson, percent_decoded, respond};
use crate::doors::http_server::problem::HttpProblem;
use crate::limiter::{InvalidRequest, Key, Request, Rows, TopBy};

/// How many keys `/v1/top` lists by default.
const TOP_COUNT_DEFAULT: usize = 20;
/// The most keys that `/v1/top` lists.
const TOP_COUNT_MAX: usize = 1_000;

/// The key in the path.
fn key_in(uri: &Uri) -> Result<Vec<u8>, HttpProblem> {
    let key = key_behind("/v1/keys/", uri)?;
    if key.len() > tidegate_core::key::KEY_BYTES_MAX {
        return Err(InvalidRequest::KeyTooLong.into());
    }
    Ok(key)
}

/// What stands in a path behind `prefix`: any bytes at all, percent-encoded.
pub(super) fn key_behind(prefix: &str, uri: &Uri) -> Result<Vec<u8>, HttpProblem> {
    if uri.query().is_some() {
        // The client forgot to encode a `?`: without the rest, the path would name another key.
        let detail = "this path takes no query; write a ? in a key as %3F";
        return Err(HttpProblem::bad_request("query", detail));
    }
    let encoded = uri.path().strip_prefix(prefix).unwrap_or_default();
    percent_decoded(encoded).ok_or_else(|| {
        HttpProblem::bad_request("key_encoding", "a % in the path needs two hexadecimal digits")
    })
}

/// Peeks at one key. Never refused: the verdict is in the body.
pub(super) async fn show(
    State(context): State<Arc<AdminContext>>,
    uri: Uri,
) -> Result<Response, HttpProblem> {
    let key = key_in(&uri)?;
    let now = context.handle.now();
    context.gate.uses.lapse(now);
    let (keys, mut rows) = ([Key::peek(&key, 1)], Rows::default());
    let request = Request::all_or_nothing(&keys).with_end();
    let verdict = context.handle.decide_async(&request, now, &mut rows).await?;
    let stats = context.gate.limiter.stats(&key, now);
    let shown = [&key];
    let mut json = AnswerJson::new(&shown, &verdict, &rows).with_stats(stats);
    // What CL.THROTTLE has counted for a key that no rule matches.
    let (bucket, rule) =
        (context.given.look_at_bucket_async(&key, now), context.given.given_rule());
    if let (Ok(Some(left)), Some(rule)) = (bucket.await, &rule) {
        json = json.with_bucket(&key, rule, left);
    }
    Ok(respond(StatusCode::OK, &json))
}

/// Forgets one key. A key that was never used counts as forgotten.
pub(super) async fn reset(
    State(context): State<Arc<AdminContext>>,
    uri: Uri,
) -> Result<Response, HttpProblem> {
    let key = key_in(&uri)?;
    let store_away = |why| HttpProblem::new(StatusCode::SERVICE_UNAVAILABLE, "store", why);
    context.gate.limiter.forget(&key).await.map_err(store_away)?;
    let emptied = context.given.empty_bucket_async(&key, context.given.now()).await;
    emptied.map_err(|why| store_away(why.to_string()))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Lists the busiest or the most refused keys.
pub(super) async fn top(
    State(context): State<Arc<AdminContext>>,
    uri: Uri,
) -> Result<Response, HttpProblem> {
    let (name, by, count) = top_query(uri.query().unwrap_or_default())?;
    // A scan reads the whole table: off the loops that answer, and a few at a time.
    let Ok(_place) = context.scans.acquire().await else {
        return Err(scan_failed());
    };
    let limiter = context.gate.limiter.clone();
    let scan = tokio::task::spawn_blocking(move || limiter.top(by, count));
    let keys = scan.await.map_err(|_| scan_failed())?;
    Ok(respond(StatusCode::OK, &TopJson::new(name, &keys)))
}

fn scan_failed() -> HttpProblem {
    let detail = "the keys could not be listed";
    HttpProblem::new(StatusCode::INTERNAL_SERVER_ERROR, "scan", detail)
}

fn top_query(query: &str) -> Result<(&'static str, TopBy, usize), HttpProblem> {
    let (mut name, mut by, mut count) = ("used", TopBy::Used, TOP_COUNT_DEFAULT);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("by", "used")) => (name, by) = ("used", TopBy::Used),
            Some(("by", "refused")) => (name, by) = ("refused", TopBy::Refused),
            Some(("by", _)) => {
                return Err(HttpProblem::bad_request("query", "by: used or refused"));
            }
            Some(("count", text)) => {
                let number =
                    text.parse().ok().filter(|number| (1..=TOP_COUNT_MAX).contains(number));
                count = number.ok_or_else(|| {
                    HttpProblem::bad_request("query", format!("count: 1 to {TOP_COUNT_MAX}"))
                })?;
            }
            _ => {
                let detail = format!("{pair}: only by and count are known here");
                return Err(HttpProblem::bad_request("query", detail));
            }
        }
    }
    Ok((name, by, count))
}
