//! `POST /v1/records/consume`: takes from a counter with a time to live.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, Request, StatusCode};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tidegate_core::time::SECOND;

use super::router::HttpContext;
use crate::doors::http_server::body::read_json;
use crate::doors::http_server::json::{millis, respond};
use crate::doors::http_server::problem::HttpProblem;
use crate::limiter::InvalidRequest;
use crate::records::{ConsumeRefusal, KEY_BYTES_MAX, Life, Unit};

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

impl ConsumeJson {
    /// Sees that the fields fit together; the cost is 1 unless said.
    fn check(&self) -> Result<u64, HttpProblem> {
        if self.key.len() > KEY_BYTES_MAX {
            return Err(HttpProblem::record_key_too_long());
        }
        let cost = self.cost.unwrap_or(1);
        if cost == 0 {
            return Err(InvalidRequest::CostZero.into());
        }
        if cost > self.quota {
            return Err(InvalidRequest::CostAboveLimit { limit: self.quota }.into());
        }
        if self.ttl_ms == 0 {
            return Err(HttpProblem::bad_request("field", "ttl_ms: at least 1 millisecond"));
        }
        Ok(cost)
    }
}

/// Takes a cost from a counter, which is made first where there is none.
pub(super) async fn consume(
    State(context): State<Arc<HttpContext>>,
    request: Request<Body>,
) -> Result<Response, HttpProblem> {
    let asked: ConsumeJson = read_json(request).await?;
    let cost = asked.check()?;
    let records = &context.gate.records;
    let key = asked.key.as_bytes();
    let life = Life { unit: Unit::Milliseconds, amount: asked.ttl_ms };
    let now = context.handle.now();
    let consumed = records.consume(key, records.probe(key), cost, asked.quota, life, now);
    let json = ConsumedJson {
        taken: consumed.taken,
        remaining: consumed.remaining,
        ttl_ms: millis(consumed.left_nanos),
    };
    match consumed.refusal {
        None => Ok(respond(StatusCode::OK, &json)),
        Some(ConsumeRefusal::Short) => {
            // The whole quota is there again once the record has expired.
            let seconds = consumed.left_nanos.div_ceil(SECOND).max(1);
            let mut response = respond(StatusCode::TOO_MANY_REQUESTS, &json);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
            Ok(response)
        }
        Some(ConsumeRefusal::Buffer) => {
            let detail = "this key holds a buffer, not a counter";
            Err(HttpProblem::new(StatusCode::CONFLICT, "buffer", detail))
        }
        Some(ConsumeRefusal::Full) => {
            let detail = "the number of records, or the memory they take, is at its bound";
            let problem = HttpProblem::new(StatusCode::SERVICE_UNAVAILABLE, "records_full", detail);
            Err(problem.with(RETRY_AFTER, "1"))
        }
    }
}
