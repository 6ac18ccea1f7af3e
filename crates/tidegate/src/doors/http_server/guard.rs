//! What every request of a listener passes on its way in and out, and what leads nowhere.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::header::X_CONTENT_TYPE_OPTIONS;
use axum::http::{HeaderValue, Request, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;

use super::problem::{CountedReason, HttpProblem};
use crate::control::ProcessState;
use crate::doors::Gate;
use crate::metrics::{Door, Metrics};
use crate::shutdown::Shutdown;

/// Paths that are answered while the process starts: all others are held until then, because
/// without the store's first answer nothing is known of any key.
const EARLY: [&str; 4] = ["/healthz", "/readyz", "/metrics", "/healthcheck"];

/// Puts `check` before `routes` and the fallback, and counts bad input when its answer leaves.
pub(crate) fn guarded(
    routes: Router,
    door: Door,
    gate: &Gate,
    check: impl Fn(&Request<Body>) -> Result<(), HttpProblem> + Clone + Send + Sync + 'static,
) -> Router {
    let guard = Arc::new(Guard {
        metrics: gate.metrics.clone(),
        process: gate.control.state().clone(),
        shutdown: gate.door.shutdown.clone(),
    });
    let pass = move |request: Request<Body>, next: Next| {
        let checked = check(&request);
        let guard = guard.clone();
        async move {
            let checked = match checked {
                Ok(()) => guard.until_started(request.uri().path()).await,
                Err(problem) => Err(problem),
            };
            let mut response = match checked {
                Ok(()) => next.run(request).await,
                Err(problem) => problem.into_response(),
            };
            if let Some(CountedReason(reason)) = response.extensions_mut().remove::<CountedReason>()
            {
                guard.metrics.bad_input(door, reason);
            }
            let nosniff = HeaderValue::from_static("nosniff");
            response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, nosniff);
            response
        }
    };
    routes.method_not_allowed_fallback(unknown_method).layer(from_fn(pass))
}

/// What every request looks at.
struct Guard {
    metrics: Arc<Metrics>,
    process: Arc<ProcessState>,
    shutdown: Shutdown,
}

impl Guard {
    /// Holds a request until the process has started. How many are held is bounded by the door's
    /// connections; a client that leaves takes its request along.
    async fn until_started(&self, path: &str) -> Result<(), HttpProblem> {
        if self.process.has_started() || EARLY.contains(&path) {
            return Ok(());
        }
        tokio::select! {
            () = self.process.started() => Ok(()),
            () = self.shutdown.wait() => Err(HttpProblem::stopping()),
        }
    }
}

/// The answer at a path that leads nowhere.
pub(crate) async fn unknown_path() -> HttpProblem {
    HttpProblem::new(StatusCode::NOT_FOUND, "path", "there is nothing at this path")
}

async fn unknown_method() -> HttpProblem {
    let detail = "this path does not take that method; see the Allow header";
    HttpProblem::new(StatusCode::METHOD_NOT_ALLOWED, "method", detail)
}
