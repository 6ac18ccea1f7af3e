//! `POST /v1/records/consume`, and `GET` and `DELETE /v1/records/{key}`: counters with a life.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, Request, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tidegate_core::time::SECOND;

use super::keys::key_behind;
use super::router::Context;
use crate::doors::http_server::body::read_json;
use crate::doors::http_server::json::{millis, respond, shown};
use crate::doors::http_server::problem::Problem;
use crate::limiter::Unfit;
use crate::records::{KEY_BYTES_MAX, Kind, Life, Listed, Refusal, Stat, Unit};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConsumeJson {
    key: String,
    cost: Option<u64>,
    quota: u64,
    ttl_ms: u64,
}

#[derive(Serialize)]
struct ConsumedJson {
    taken: bool,
    remaining: u64,
    ttl_ms: Option<u64>,
}

#[derive(Serialize)]
struct RecordJson<'a> {
    key: Cow<'a, str>,
    kind: &'static str,
    /// There only for a counter.
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<u64>,
    /// There only for a buffer.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<usize>,
    ttl_ms: Option<u64>,
    stats: StatJson,
}

#[derive(Serialize)]
struct StatJson {
    reads_per_minute: u64,
    writes_per_minute: u64,
    reads: u64,
    writes: u64,
}

impl From<Stat> for StatJson {
    fn from(stat: Stat) -> Self {
        let Stat { reads_per_minute, writes_per_minute, reads, writes } = stat;
        Self { reads_per_minute, writes_per_minute, reads, writes }
    }
}

impl<'a> RecordJson<'a> {
    fn new(record: &'a Listed) -> Self {
        let counter = record.kind == Kind::Counter;
        Self {
            key: shown(record.key()),
            kind: if counter { "counter" } else { "buffer" },
            quota: counter.then_some(record.quota),
            bytes: (!counter).then_some(record.value_bytes),
            ttl_ms: millis(record.left_nanos),
            stats: record.stat.into(),
        }
    }
}

impl ConsumeJson {
    /// Sees that the fields fit together; the cost is 1 unless said.
    fn check(&self) -> Result<u64, Problem> {
        check_key(self.key.as_bytes())?;
        let cost = self.cost.unwrap_or(1);
        if cost == 0 {
            return Err(Unfit::CostZero.into());
        }
        if cost > self.quota {
            return Err(Unfit::CostAboveLimit { limit: self.quota }.into());
        }
        if self.ttl_ms == 0 {
            return Err(Problem::bad_request("field", "ttl_ms: at least 1 millisecond"));
        }
        Ok(cost)
    }
}

fn check_key(key: &[u8]) -> Result<(), Problem> {
    if key.len() <= KEY_BYTES_MAX {
        return Ok(());
    }
    let detail = format!("the key of a record has at most {KEY_BYTES_MAX} bytes");
    Err(Problem::bad_request(Unfit::KeyTooLong.reason(), detail))
}

fn key_in(uri: &Uri) -> Result<Vec<u8>, Problem> {
    let key = key_behind("/v1/records/", uri)?;
    check_key(&key).map(|()| key)
}

/// Takes a cost from a counter, which is made first where there is none.
pub(super) async fn consume(
    State(context): State<Arc<Context>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let asked: ConsumeJson = read_json(request).await?;
    let cost = asked.check()?;
    let records = &context.gate.records;
    let key = asked.key.as_bytes();
    let life = Life { unit: Unit::Milliseconds, amount: asked.ttl_ms };
    let now = context.desk.now();
    let consumed = records.consume(key, records.aim(key), cost, asked.quota, life, now);
    let json = ConsumedJson {
        taken: consumed.taken,
        remaining: consumed.remaining,
        ttl_ms: millis(consumed.left_nanos),
    };
    match consumed.refusal {
        None => Ok(respond(StatusCode::OK, &json)),
        Some(Refusal::Short) => {
            // The whole quota is there again once the record has expired.
            let seconds = consumed.left_nanos.div_ceil(SECOND).max(1);
            let mut response = respond(StatusCode::TOO_MANY_REQUESTS, &json);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
            Ok(response)
        }
        Some(Refusal::Buffer) => {
            let detail = "this key holds a buffer, and there is nothing to take from it";
            Err(Problem::new(StatusCode::CONFLICT, "buffer", detail))
        }
        Some(Refusal::Full) => {
            let detail = "there are as many records as there may be, or they take too much memory";
            let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "records_full", detail);
            Err(problem.with(RETRY_AFTER, "1"))
        }
    }
}

/// Looks at one record. That counts as no use of it.
pub(super) async fn show(
    State(context): State<Arc<Context>>,
    uri: Uri,
) -> Result<Response, Problem> {
    let key = key_in(&uri)?;
    let records = &context.gate.records;
    match records.look(&key, records.aim(&key), context.desk.now()) {
        Some(record) => Ok(respond(StatusCode::OK, &RecordJson::new(&record))),
        None => {
            let detail = "there is no such record; it may have expired";
            Err(Problem::new(StatusCode::NOT_FOUND, "unknown_record", detail))
        }
    }
}

/// Removes one record. One that was not there is as good as removed.
pub(super) async fn purge(
    State(context): State<Arc<Context>>,
    uri: Uri,
) -> Result<Response, Problem> {
    let key = key_in(&uri)?;
    let records = &context.gate.records;
    records.purge(&key, records.aim(&key), context.desk.now());
    Ok(StatusCode::NO_CONTENT.into_response())
}
