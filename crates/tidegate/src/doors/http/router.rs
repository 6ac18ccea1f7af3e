//! Which path leads where, and what every request passes on its way in and out.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::X_CONTENT_TYPE_OPTIONS;
use axum::http::{HeaderValue, Request, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post};
use tokio::sync::Semaphore;

use super::{authorize, check, keys, local, records, rules, wait};
use crate::doors::Gate;
use crate::doors::http_server::health;
use crate::doors::http_server::host::{self, Local};
use crate::doors::http_server::problem::{Counted, Problem};
use crate::limiter::Desk;
use crate::metrics::Door;
use crate::waiting::Crowd;

/// How many scans of the whole table run at once.
const SCANS_MAX: usize = 2;

/// Paths that are answered while the process starts: all others are held until then, because
/// without the store's first answer nothing is known of any key.
const EARLY: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// What every handler sees.
pub(super) struct Context {
    pub(super) gate: Gate,
    pub(super) desk: Desk,
    pub(super) scans: Semaphore,
    /// Those who wait.
    pub(super) crowd: Arc<Crowd>,
}

impl Context {
    pub(super) fn new(gate: Gate) -> Arc<Self> {
        let desk = gate.limiter.desk(Door::Http);
        let crowd = Crowd::new(&gate.metrics, Door::Http, wait::BOUNDS);
        Arc::new(Self { gate, desk, scans: Semaphore::new(SCANS_MAX), crowd })
    }
}

/// All paths of this floor.
pub(super) fn router(context: Arc<Context>) -> Router {
    let key = get(keys::show).delete(keys::reset);
    let record = get(records::show).delete(records::purge);
    let rule = get(rules::show).put(rules::set).delete(rules::restore);
    let rules = Router::new()
        .route("/v1/rules", get(rules::list))
        .route("/v1/rules/{*name}", rule)
        .route_layer(from_fn(local::only));
    Router::new()
        .route("/v1/check", post(check::check))
        .route("/v1/wait", post(wait::wait))
        // Envoy keeps the method that it was asked with, and adds the path to ours.
        .route("/v1/authorize/{*name}", any(authorize::authorize))
        // The empty key is a key; a slash in a key need not be encoded.
        .route("/v1/keys/", key.clone())
        .route("/v1/keys/{*key}", key)
        .route("/v1/uses/{id}", delete(check::end))
        // A record may be called "consume", too.
        .route("/v1/records/consume", record.clone().post(records::consume))
        .route("/v1/records/", record.clone())
        .route("/v1/records/{*key}", record)
        .route("/v1/top", get(keys::top))
        .merge(health::router(&context.gate))
        .merge(rules)
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(from_fn_with_state(context.clone(), pass))
        .with_state(context)
}

/// Checks the Host on the way in; counts what was bad on the way out.
async fn pass(State(context): State<Arc<Context>>, request: Request<Body>, next: Next) -> Response {
    let local = request.extensions().get::<Local>().copied();
    let names = context.gate.admin.host_names();
    let checked = match host::check(request.headers(), request.uri(), local, &names) {
        Ok(()) => until_started(&context, request.uri().path()).await,
        Err(problem) => Err(problem),
    };
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    if let Some(Counted(reason)) = response.extensions_mut().remove::<Counted>() {
        context.gate.metrics.bad_input(Door::Http, reason);
    }
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Holds a request until the process has started. How many are held is bounded by the door's
/// connections; a client that leaves takes its request along.
async fn until_started(context: &Context, path: &str) -> Result<(), Problem> {
    if context.gate.admin.has_started() || EARLY.contains(&path) {
        return Ok(());
    }
    tokio::select! {
        () = context.gate.admin.started() => Ok(()),
        () = context.gate.shutdown.wait() => Err(Problem::stopping()),
    }
}

async fn unknown_path() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "path", "there is nothing at this path")
}

async fn unknown_method() -> Problem {
    let detail = "this path does not take that method; see the Allow header";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method", detail)
}
