//! The JSON that the HTTP door and administration answer with, field by field.
//!
//! Times are whole milliseconds, rounded up, so that a client that waits as long as it was told
//! is never early. No number is ever NaN or infinite.

use std::borrow::Cow;

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tidegate_core::Nanos;
use tidegate_core::time::MILLISECOND;
use tidegate_wire::percent;

use crate::limiter::{Basis, KeyStats, LimitRow, Rows, TopKey, Verdict};
use crate::uses::UseId;

/// A whole answer to `POST /v1/check` and `GET /v1/keys/{key}`.
#[derive(Serialize)]
pub(crate) struct AnswerJson<'a> {
    allowed: bool,
    delay_ms: Option<u64>,
    refused_by: Option<&'a str>,
    /// There only if it is so.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    degraded: bool,
    limits: Vec<LimitJson<'a>>,
    /// There only if the request asked to hold; null if nothing has to be given back.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    use_id: Option<Option<String>>,
    /// There only for `GET /v1/keys/{key}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<StatsJson>,
    /// There only if a use is refused.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    problem: Option<QuotaExceeded<'a>>,
}

/// The problem of a refused use, as draft-ietf-httpapi-ratelimit-headers has it.
#[derive(Serialize)]
struct QuotaExceeded<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    /// Their names, as in the headers; absent where no limit refused.
    #[serde(rename = "violated-policies", skip_serializing_if = "Option::is_none")]
    violated_policies: Option<[&'a str; 1]>,
}

#[derive(Serialize)]
struct LimitJson<'a> {
    key: Cow<'a, str>,
    rule: &'a str,
    /// Null if it comes with each request.
    limit: Option<String>,
    amount: Option<u64>,
    period_ms: Option<u64>,
    /// Null if nothing was counted.
    remaining: Option<u64>,
    rate: f64,
    retry_after_ms: Option<u64>,
    reset_ms: Option<u64>,
    /// There only if it is so.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    degraded: bool,
}

#[derive(Serialize)]
struct StatsJson {
    requests: u64,
    over: u64,
    last_max_rate: u64,
}

impl From<KeyStats> for StatsJson {
    fn from(stats: KeyStats) -> Self {
        let KeyStats { requests, over, last_max_rate } = stats;
        Self { requests, over, last_max_rate }
    }
}

/// An answer to `GET /v1/top`.
#[derive(Serialize)]
pub(crate) struct TopJson<'a> {
    by: &'static str,
    keys: Vec<TopKeyJson<'a>>,
}

#[derive(Serialize)]
struct TopKeyJson<'a> {
    key: Cow<'a, str>,
    rule: &'a str,
    #[serde(flatten)]
    stats: StatsJson,
}

impl<'a> AnswerJson<'a> {
    pub(crate) fn new<K: AsRef<[u8]>>(keys: &'a [K], verdict: &Verdict, rows: &'a Rows) -> Self {
        Self {
            allowed: verdict.is_allowed(),
            delay_ms: millis(verdict.delay),
            refused_by: rows.refused_by.as_deref(),
            degraded: verdict.degraded,
            limits: rows.limits.iter().map(|row| LimitJson::new(keys, row)).collect(),
            use_id: None,
            stats: None,
            problem: None,
        }
    }

    /// Adds the members of a problem: the use is refused.
    pub(crate) fn with_problem(mut self) -> Self {
        self.problem = Some(QuotaExceeded {
            r#type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
            title: "Request cannot be satisfied as assigned quota has been exceeded",
            status: StatusCode::TOO_MANY_REQUESTS.as_u16(),
            violated_policies: self.refused_by.map(|rule| [rule]),
        });
        self
    }

    pub(crate) fn with_use(mut self, id: Option<UseId>) -> Self {
        self.use_id = Some(id.map(|id| id.to_string()));
        self
    }

    /// Adds what a bucket says whose limit comes with each request: when it is empty.
    pub(crate) fn with_bucket(mut self, key: &'a [u8], rule: &'a str, left: Nanos) -> Self {
        self.limits.push(LimitJson {
            key: shown(key),
            rule,
            limit: None,
            amount: None,
            period_ms: None,
            remaining: None,
            rate: 0.0,
            retry_after_ms: None,
            reset_ms: millis(left),
            degraded: false,
        });
        self
    }

    pub(crate) fn with_stats(mut self, stats: KeyStats) -> Self {
        self.stats = Some(stats.into());
        self
    }
}

impl<'a> LimitJson<'a> {
    fn new<K: AsRef<[u8]>>(keys: &'a [K], row: &'a LimitRow) -> Self {
        let LimitRow { key, rule, limit, verdict, basis, .. } = row;
        Self {
            key: keys.get(*key).map_or(Cow::Borrowed(""), |key| shown(key.as_ref())),
            rule,
            limit: Some(limit.to_string()),
            amount: Some(limit.amount),
            period_ms: if limit.period == 0 { None } else { millis(limit.period) },
            remaining: (*basis != Basis::Policy).then_some(verdict.remaining),
            rate: finite(verdict.rate),
            retry_after_ms: if verdict.allowed { Some(0) } else { millis(verdict.delay) },
            reset_ms: millis(verdict.reset),
            degraded: row.is_degraded(),
        }
    }
}

impl<'a> TopJson<'a> {
    pub(crate) fn new(by: &'static str, keys: &'a [TopKey]) -> Self {
        let row = |top: &'a TopKey| TopKeyJson {
            key: shown(&top.key),
            rule: &top.rule,
            stats: top.stats.into(),
        };
        Self { by, keys: keys.iter().map(row).collect() }
    }
}

/// A response with a JSON body.
pub(crate) fn respond(status: StatusCode, body: &impl Serialize) -> Response {
    // Only maps with keys that are not strings can fail to encode, and there are none here.
    respond_with(status, serde_json::to_vec(body).unwrap_or_default())
}

/// A response with a JSON body that tells of a problem (RFC 9457).
pub(crate) fn respond_with_problem(status: StatusCode, body: &impl Serialize) -> Response {
    let mut response = respond(status, body);
    let problem = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(CONTENT_TYPE, problem);
    response
}

/// A response with a body that is JSON already.
pub(crate) fn respond_with(status: StatusCode, body: impl IntoResponse) -> Response {
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Whole milliseconds, rounded up; `None` for the end of time.
pub(crate) fn millis(span: Nanos) -> Option<u64> {
    (span != Nanos::MAX).then(|| span.div_ceil(MILLISECOND))
}

fn finite(rate: f64) -> f64 {
    if rate.is_nan() { 0.0 } else { rate.clamp(f64::MIN, f64::MAX) }
}

/// A key as it is shown: itself, or percent-encoded as for a path where it is not UTF-8.
pub(crate) fn shown(key: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(key) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(percent::encoded(key, b"-._~=:/")),
    }
}

/// The bytes that a percent-encoded path segment stands for; `None` if a `%` lacks its digits.
pub(crate) fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    percent::decode(text.as_bytes(), &mut bytes).map(|()| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_as_they_are_unless_json_cannot() {
        assert_eq!(shown("ws ip=é %".as_bytes()), "ws ip=é %");
        assert_eq!(shown(b"ws ip=\xff %"), "ws%20ip=%FF%20%25");
    }

    #[test]
    fn spans_are_rounded_up_and_numbers_are_finite() {
        assert_eq!(millis(0), Some(0));
        assert_eq!(millis(1), Some(1));
        assert_eq!(millis(MILLISECOND + 1), Some(2));
        assert_eq!(millis(Nanos::MAX), None);
        assert!(finite(f64::NAN) == 0.0 && finite(f64::INFINITY).is_finite());
    }
}
