//! What a listener answers when it cannot do as asked: `application/problem+json` (RFC 9457).
//!
//! A problem that is the client's fault carries the reason under which it is counted; `guard`
//! counts it once, when the response leaves.

use std::borrow::Cow;

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::limiter::InvalidRequest;
use crate::records::KEY_BYTES_MAX;
use crate::settings::change::FieldError;
use crate::uses::HoldError;

/// The reason under which bad input is counted; the response carries it to `guard`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountedReason(pub(crate) &'static str);

/// An answer that is not what the client asked for.
#[derive(Debug)]
pub(crate) struct HttpProblem {
    status: StatusCode,
    reason: &'static str,
    detail: Cow<'static, str>,
    header: Option<(HeaderName, &'static str)>,
    /// What is wrong with single fields, where there is more to say of each.
    errors: Vec<FieldError>,
}

impl HttpProblem {
    pub(crate) fn new(
        status: StatusCode,
        reason: &'static str,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { status, reason, detail: detail.into(), header: None, errors: Vec::new() }
    }

    pub(crate) fn bad_request(reason: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, reason, detail)
    }

    /// The key of a record is longer than records have room for.
    pub(crate) fn record_key_too_long() -> Self {
        let detail = format!("the key of a record has at most {KEY_BYTES_MAX} bytes");
        Self::bad_request(InvalidRequest::KeyTooLong.reason(), detail)
    }

    /// Fields that do not fit, each with its remedy.
    pub(crate) fn fields(errors: Vec<FieldError>) -> Self {
        let told =
            errors.iter().map(|FieldError { field, message, remedy }| match field.as_str() {
                "" => format!("{message}; {remedy}"),
                field => format!("{field}: {message}; {remedy}"),
            });
        let detail = told.collect::<Vec<_>>().join("\n");
        Self { errors, ..Self::bad_request("field", detail) }
    }

    /// The process is stopping.
    pub(crate) fn stopping() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "draining", "the server is stopping")
            .with(RETRY_AFTER, "1")
    }

    /// The same, with another status.
    pub(crate) fn told_as(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// The reason under which it is counted.
    pub(crate) fn reason(&self) -> &'static str {
        self.reason
    }

    /// Whether the client is to blame.
    pub(crate) fn is_clients_fault(&self) -> bool {
        self.status.is_client_error()
    }

    pub(crate) fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.header = Some((name, value));
        self
    }
}

impl From<InvalidRequest> for HttpProblem {
    fn from(invalid: InvalidRequest) -> Self {
        if invalid == InvalidRequest::NeedsEnd {
            let detail = "this key limits uses in flight: send \"hold_ms\", and end the use with \
                          DELETE /v1/uses/{id}";
            return Self::bad_request(invalid.reason(), detail);
        }
        Self::bad_request(invalid.reason(), invalid.to_string())
    }
}

impl From<HoldError> for HttpProblem {
    fn from(error: HoldError) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "uses_full", error.to_string())
            .with(RETRY_AFTER, "1")
    }
}

#[derive(Serialize)]
struct ProblemJson<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    reason: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<ErrorJson<'a>>,
}

#[derive(Serialize)]
struct ErrorJson<'a> {
    field: &'a str,
    detail: &'a str,
    remedy: &'a str,
}

impl<'a> ErrorJson<'a> {
    fn new(wrong: &'a FieldError) -> Self {
        Self { field: &wrong.field, detail: &wrong.message, remedy: &wrong.remedy }
    }
}

impl IntoResponse for HttpProblem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&ProblemJson {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
            reason: self.reason,
            errors: self.errors.iter().map(ErrorJson::new).collect(),
        })
        // A struct of numbers and strings always encodes.
        .unwrap_or_default();
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some((name, value)) = self.header {
            headers.insert(name, HeaderValue::from_static(value));
        }
        if self.status.is_client_error() {
            response.extensions_mut().insert(CountedReason(self.reason));
        }
        response
    }
}
