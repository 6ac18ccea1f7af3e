//! What a proxy says when it does not hand a request on: `application/problem+json` (RFC 9457),
//! with what the client needs to come back at the right time.

use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde::Serialize;

use super::bodies::Reply;
use super::gatekeeper::seconds_up;
use crate::doors::ratelimit::{Standing, retry_after_s};
use crate::limiter::InvalidRequest;
use crate::waiting::{NotAdmitted, Refusal};

/// Why a request is not handed on, or has no answer from its upstream.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Problem {
    /// The message could be read in more than one way, or not at all; the connection is closed.
    Malformed(&'static str),
    /// The client left while it waited; nobody reads this.
    Left,
    /// A tunnel was asked for.
    Connect,
    /// The key would be too long.
    KeyTooLong,
    /// The body is longer than it may be.
    BodyTooLong,
    /// Over its limit, and not to wait or to wait any longer.
    OverLimit(Box<Refusal>),
    /// A master wants its client to come back later.
    Delayed(Duration),
    /// Too many wait already.
    Crowded,
    /// Its limit can never be had: the cost of a request is above it.
    Never,
    /// The proxy is about to stop.
    Stopping,
    /// The upstream cannot be reached.
    Unreachable,
    /// The upstream broke off, or spoke no HTTP.
    BadAnswer,
    /// The upstream took too long.
    TooSlow,
}

impl From<NotAdmitted> for Problem {
    fn from(why: NotAdmitted) -> Self {
        match why {
            NotAdmitted::TooLate(refusal) => Problem::OverLimit(refusal),
            NotAdmitted::TooManyWaiters { .. } => Problem::Crowded,
            NotAdmitted::Invalid(InvalidRequest::KeyTooLong) => Problem::KeyTooLong,
            NotAdmitted::Invalid(_) => Problem::Never,
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

impl Problem {
    fn status(&self) -> StatusCode {
        match self {
            Problem::Malformed(_) | Problem::Left => StatusCode::BAD_REQUEST,
            Problem::Connect => StatusCode::METHOD_NOT_ALLOWED,
            Problem::KeyTooLong => StatusCode::URI_TOO_LONG,
            Problem::BodyTooLong => StatusCode::PAYLOAD_TOO_LARGE,
            Problem::OverLimit(_) | Problem::Never => StatusCode::TOO_MANY_REQUESTS,
            Problem::Delayed(_) | Problem::Crowded | Problem::Stopping => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Problem::Unreachable | Problem::BadAnswer => StatusCode::BAD_GATEWAY,
            Problem::TooSlow => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// The word under which it is counted, or told.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Problem::Malformed(_) => "malformed",
            Problem::Left => "left",
            Problem::Connect => "connect",
            Problem::KeyTooLong => "key_too_long",
            Problem::BodyTooLong => "body_too_long",
            Problem::OverLimit(_) | Problem::Never => "over_limit",
            Problem::Delayed(_) => "delayed",
            Problem::Crowded => "crowded",
            Problem::Stopping => "stopping",
            Problem::Unreachable => "upstream_unreachable",
            Problem::BadAnswer => "upstream_bad_answer",
            Problem::TooSlow => "upstream_timeout",
        }
    }

    /// The reason, if the client is to blame.
    pub(super) fn bad_input(&self) -> Option<&'static str> {
        match self {
            Problem::Malformed(_)
            | Problem::Connect
            | Problem::KeyTooLong
            | Problem::BodyTooLong => Some(self.reason()),
            _ => None,
        }
    }

    fn detail(&self) -> &'static str {
        match self {
            Problem::Malformed(what) => what,
            Problem::Left => "the client left while its request waited",
            Problem::Connect => "this proxy opens no tunnels",
            Problem::KeyTooLong => "the path makes a key of more than 1024 bytes",
            Problem::BodyTooLong => "the body is longer than this proxy takes",
            Problem::OverLimit(_) => "the limit of this resource is reached",
            Problem::Never => "the limit of this resource lets no request through",
            Problem::Delayed(_) => "the master of this domain lets this client come back later",
            Problem::Crowded => "too many requests wait already",
            Problem::Stopping => "the proxy is stopping",
            Problem::Unreachable => "the upstream cannot be reached",
            Problem::BadAnswer => "the upstream broke off or did not speak HTTP",
            Problem::TooSlow => "the upstream did not answer in time",
        }
    }

    /// After how many seconds it is worth coming back, if that can be said.
    fn retry_after_s(&self) -> Option<u64> {
        match self {
            Problem::OverLimit(refusal) => retry_after_s(&refusal.verdict, &refusal.rows),
            Problem::Delayed(after) => Some(seconds_up(*after)),
            Problem::Crowded | Problem::Stopping => Some(1),
            _ => None,
        }
    }

    /// The answer to the client.
    pub(super) fn response(&self) -> Response<Reply> {
        let status = self.status();
        let refused_by = match self {
            Problem::OverLimit(refusal) => refusal.rows.refused_by.as_deref(),
            _ => None,
        };
        let body = serde_json::to_vec(&Json {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: self.detail(),
            reason: self.reason(),
            refused_by,
        });
        // A struct of numbers and strings always encodes.
        let mut response = Response::new(Reply::whole(Bytes::from(body.unwrap_or_default())));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = self.retry_after_s() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        match self {
            Problem::OverLimit(refusal) => Standing::of(&refusal.rows).write(headers),
            // What follows in the stream cannot be told from a body.
            Problem::Malformed(_) | Problem::Left => {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Problem::Connect => {
                // What a client sends into a tunnel that it believes open is no request.
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
                let methods = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, TRACE";
                headers.insert(ALLOW, HeaderValue::from_static(methods));
            }
            _ => {}
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::time::{MINUTE, SECOND};
    use tidegate_core::{Algorithm, Limit, LimitVerdict, Now};

    use super::*;
    use crate::limiter::{Basis, Outcome, Row, Rows, Verdict};

    #[test]
    fn a_refusal_tells_when_to_come_back() {
        let delay = 29 * SECOND + 1;
        let limit = Row {
            key: 0,
            rule: "proxy:ä\"pi".into(),
            limit: Limit { amount: 100, period: MINUTE, algorithm: Algorithm::FixedWindow },
            verdict: LimitVerdict { allowed: false, remaining: 0, rate: 1.0, delay, reset: delay },
            basis: Basis::Counts,
        };
        let refused = Verdict::unlimited(Outcome::Refused, 0, Now::default());
        let rows =
            Rows {
                refused_by: Some("proxy:ä\"pi".into()), limits: vec![limit], ..Rows::default()
            };
        let verdict = Verdict { delay, ..refused };
        let problem = Problem::OverLimit(Box::new(Refusal { verdict, rows }));
        let response = problem.response();
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(response.status(), 429);
        assert_eq!(header("retry-after"), "30");
        assert_eq!(header("ratelimit-policy"), r#""proxy:?\"pi";q=100;w=60"#);
        assert_eq!(header("ratelimit"), r#""proxy:?\"pi";r=0;t=30"#);
        assert_eq!(header("content-type"), "application/problem+json");
    }
}
