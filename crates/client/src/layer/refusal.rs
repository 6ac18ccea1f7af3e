//! The response to a request that the gatekeeper rejects.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderValue, Response, StatusCode};

/// A request that is rejected.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RefusedRequest {
    /// Its client may come back after so long.
    pub after: Duration,
}

/// Makes the response to a request that is rejected. Closures do.
pub trait Refuse<A> {
    /// The response.
    fn refuse(&self, refused: &RefusedRequest) -> Response<A>;
}

/// A response with an empty body: 503 with Retry-After.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainRefusal;

impl<A: Default> Refuse<A> for PlainRefusal {
    fn refuse(&self, refused: &RefusedRequest) -> Response<A> {
        let mut response = Response::new(A::default());
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response.headers_mut().insert(RETRY_AFTER, retry_after(refused.after));
        response
    }
}

impl<A, F: Fn(&RefusedRequest) -> Response<A>> Refuse<A> for F {
    fn refuse(&self, refused: &RefusedRequest) -> Response<A> {
        self(refused)
    }
}

/// A Retry-After of whole seconds, rounded up, so that no client comes back too early.
#[must_use]
pub fn retry_after(after: Duration) -> HeaderValue {
    let started = u64::from(after.subsec_nanos() > 0);
    HeaderValue::from(after.as_secs().saturating_add(started).max(1))
}
