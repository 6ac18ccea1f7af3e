//! The proxy's own responses, to requests that it does not forward or that the upstream does not
//! answer: `application/problem+json` (RFC 9457), with the time to come back where it is known.

use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde::Serialize;

use super::bodies::ResponseBody;
use super::figures::UpstreamError;
use crate::doors::ratelimit::{Standing, retry_after_s};
use crate::limiter::InvalidRequest;
use crate::waiting::{NotAdmitted, WaitRefusal};

/// Why a request is not forwarded, or has no response from its upstream.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NotForwarded {
    /// The message can be read in more than one way, or not at all; the connection is closed.
    Malformed(&'static str),
    /// The client left while its request waited; no client reads the response.
    Left,
    /// The method is CONNECT.
    Connect,
    /// The key would be too long.
    KeyTooLong,
    /// The body is longer than it may be.
    BodyTooLong,
    /// The request is over its limit, and may not wait or wait any longer.
    OverLimit(Box<WaitRefusal>),
    /// The Smockron master lets this client come back later.
    Delayed(Duration),
    /// Too many requests wait already.
    Crowded,
    /// The limit can never be met: the cost of a request is above it.
    Never,
    /// The proxy is about to stop.
    Stopping,
    /// The upstream failed.
    Upstream(UpstreamError),
}

impl From<NotAdmitted> for NotForwarded {
    fn from(why: NotAdmitted) -> Self {
        match why {
            NotAdmitted::TooLate(refusal) => NotForwarded::OverLimit(refusal),
            NotAdmitted::TooManyWaiters { .. } => NotForwarded::Crowded,
            NotAdmitted::Invalid(InvalidRequest::KeyTooLong) => NotForwarded::KeyTooLong,
            NotAdmitted::Invalid(_) => NotForwarded::Never,
        }
    }
}

#[derive(Serialize)]
struct Json<'a> {
    r#type: &'static str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_by: Option<&'a str>,
}

impl NotForwarded {
    /// The status, the word under which it is counted and shown, and a sentence.
    fn words(&self) -> (StatusCode, &'static str, &'static str) {
        use StatusCode as S;
        match self {
            NotForwarded::Malformed(what) => (S::BAD_REQUEST, "malformed", what),
            NotForwarded::Left => {
                (S::BAD_REQUEST, "left", "the client disconnected while its request waited")
            }
            NotForwarded::Connect => {
                (S::METHOD_NOT_ALLOWED, "connect", "this proxy does not open tunnels")
            }
            NotForwarded::KeyTooLong => {
                let detail = "the path makes a key of more than 1024 bytes";
                (S::URI_TOO_LONG, "key_too_long", detail)
            }
            NotForwarded::BodyTooLong => {
                let detail = "the body is longer than this proxy allows";
                (S::PAYLOAD_TOO_LARGE, "body_too_long", detail)
            }
            NotForwarded::OverLimit(_) => {
                (S::TOO_MANY_REQUESTS, "over_limit", "the limit of this resource is reached")
            }
            NotForwarded::Never => {
                let detail = "the limit of this resource lets no request through";
                (S::TOO_MANY_REQUESTS, "over_limit", detail)
            }
            NotForwarded::Delayed(_) => {
                let detail = "the master of this domain told this client to retry later";
                (S::SERVICE_UNAVAILABLE, "delayed", detail)
            }
            NotForwarded::Crowded => {
                (S::SERVICE_UNAVAILABLE, "crowded", "too many requests wait already")
            }
            NotForwarded::Stopping => (S::SERVICE_UNAVAILABLE, "stopping", "the proxy is stopping"),
            NotForwarded::Upstream(UpstreamError::Connect | UpstreamError::BackingOff) => {
                (S::BAD_GATEWAY, "upstream_unreachable", "the upstream cannot be reached")
            }
            NotForwarded::Upstream(UpstreamError::Timeout) => {
                (S::GATEWAY_TIMEOUT, "upstream_timeout", "the upstream did not answer in time")
            }
            NotForwarded::Upstream(_) => {
                let detail = "the upstream closed the connection early or did not speak HTTP";
                (S::BAD_GATEWAY, "upstream_bad_answer", detail)
            }
        }
    }

    pub(super) fn reason(&self) -> &'static str {
        self.words().1
    }

    /// Whether it is counted as the client's bad input.
    pub(super) fn is_bad_input(&self) -> bool {
        use NotForwarded::{BodyTooLong, Connect, KeyTooLong, Malformed};
        matches!(self, Malformed(_) | Connect | KeyTooLong | BodyTooLong)
    }

    /// After how many seconds it is worth coming back, if that can be said.
    fn retry_after_s(&self) -> Option<u64> {
        match self {
            NotForwarded::OverLimit(refusal) => retry_after_s(&refusal.verdict, &refusal.rows),
            NotForwarded::Delayed(after) => Some(seconds_up(*after)),
            NotForwarded::Crowded | NotForwarded::Stopping => Some(1),
            _ => None,
        }
    }

    /// The response to the client.
    pub(super) fn response(&self) -> Response<ResponseBody> {
        let (status, reason, detail) = self.words();
        let refused_by = match self {
            NotForwarded::OverLimit(refusal) => refusal.rows.refused_by.as_deref(),
            _ => None,
        };
        let title = status.canonical_reason().unwrap_or("Error");
        let status_code = status.as_u16();
        let r#type = "about:blank";
        let json = Json { r#type, title, status: status_code, detail, reason, refused_by };
        // A struct of numbers and strings always encodes.
        let body = Bytes::from(serde_json::to_vec(&json).unwrap_or_default());
        let mut response = Response::new(ResponseBody::whole(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = self.retry_after_s() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let NotForwarded::OverLimit(refusal) = self {
            Standing::of(&refusal.rows).write(headers);
        }
        if let NotForwarded::Connect = self {
            let methods = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, TRACE";
            headers.insert(ALLOW, HeaderValue::from_static(methods));
        }
        // What follows in the stream may be a body, or what a client sends into a tunnel that it
        // believes open. It must not be read as a request.
        use NotForwarded::{Connect, Left, Malformed};
        if matches!(self, Malformed(_) | Left | Connect) {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Whole seconds until it is worth coming back: at least one, and never too early.
fn seconds_up(after: Duration) -> u64 {
    (after.as_secs() + u64::from(after.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use tidegate_core::time::{MINUTE, SECOND};
    use tidegate_core::{Algorithm, Limit, LimitVerdict, Now};

    use super::*;
    use crate::limiter::{Basis, LimitRow, Outcome, Rows, Verdict};

    #[test]
    fn a_refusal_tells_when_to_come_back() {
        let delay = 29 * SECOND + 1;
        let limit = LimitRow {
            key: 0,
            rule: "proxy:ä\"pi".into(),
            limit: Limit { amount: 100, period: MINUTE, algorithm: Algorithm::FixedWindow },
            verdict: LimitVerdict { allowed: false, remaining: 0, rate: 1.0, delay, reset: delay },
            basis: Basis::Counts,
            shadow: false,
        };
        let refused = Verdict::unlimited(Outcome::Refused, 0, Now::default());
        let rows =
            Rows {
                refused_by: Some("proxy:ä\"pi".into()), limits: vec![limit], ..Rows::default()
            };
        let verdict = Verdict { delay, ..refused };
        let refusal = NotForwarded::OverLimit(Box::new(WaitRefusal { verdict, rows }));
        let response = refusal.response();
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(response.status(), 429);
        assert_eq!(header("retry-after"), "30");
        assert_eq!(header("ratelimit-policy"), r#""proxy:?\"pi";q=100;w=60"#);
        assert_eq!(header("ratelimit"), r#""proxy:?\"pi";r=0;t=30"#);
        assert_eq!(header("content-type"), "application/problem+json");
    }

    #[test]
    fn no_client_comes_back_too_early() {
        for (ms, expected) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2)] {
            assert_eq!(seconds_up(Duration::from_millis(ms)), expected, "{ms}");
        }
    }
}
