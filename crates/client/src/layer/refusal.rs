//! What whoever is turned away is told.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderValue, Response, StatusCode};

/// A request that is turned away.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Refused {
    /// After so long its client may come back.
    pub after: Duration,
}

/// Makes the answer to a request that is turned away. Closures do.
pub trait Refuse<A> {
    /// The answer.
    fn refuse(&self, refused: &Refused) -> Response<A>;
}

/// An answer with an empty body: 503 with Retry-After.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl<A: Default> Refuse<A> for Plain {
    fn refuse(&self, refused: &Refused) -> Response<A> {
        let mut response = Response::new(A::default());
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response.headers_mut().insert(RETRY_AFTER, retry_after(refused.after));
        response
    }
}

impl<A, F: Fn(&Refused) -> Response<A>> Refuse<A> for F {
    fn refuse(&self, refused: &Refused) -> Response<A> {
        self(refused)
    }
}

/// A Retry-After of whole seconds, rounded up: nobody is told to come back too early.
#[must_use]
pub fn retry_after(after: Duration) -> HeaderValue {
    let started = u64::from(after.subsec_nanos() > 0);
    HeaderValue::from(after.as_secs().saturating_add(started).max(1))
}
