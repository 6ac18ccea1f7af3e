//! `/v1/authorize/{name}`: another server asks whether a request of its client may go on.
//!
//! All servers that ask get the same answer: nginx (`auth_request`), Traefik (`ForwardAuth`), Caddy
//! (`forward_auth`) and Envoy (`ext_authz` over HTTP). 200 lets the request go; Envoy accepts no
//! other status. Envoy puts the client's path behind the name in ours; the others send
//! `X-Forwarded-Uri` and `X-Forwarded-Method`.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, RETRY_AFTER};
use axum::http::{self, HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::asking::Authorize;
use super::check::CheckRequest;
use super::router::HttpContext;
use super::wait;
use crate::doors::forwarded::{self, X_FORWARDED_FOR};
use crate::doors::http_server::connections::PeerAddress;
use crate::doors::http_server::json::respond_with_problem;
use crate::doors::http_server::problem::HttpProblem;
use crate::doors::io::client_socket::CloseWatch;
use crate::doors::ratelimit::{Standing, printable, retry_after_s};
use crate::doors::template::{Asked, Scratch};
use crate::limiter::{InvalidRequest, Key, Request, Rows, Verdict};
use crate::waiting::NotAdmitted;

const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
/// Which rule refused, for the server's log.
const REFUSED_BY: HeaderName = HeaderName::from_static("x-tidegate-refused-by");

/// The body of a refusal, which most servers hand on to their client.
#[derive(Serialize)]
struct RefusalJson<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'static str,
    reason: &'static str,
    refused_by: Option<&'a str>,
}

/// What becomes of a request.
enum Word {
    Go(Rows),
    OverLimit(Verdict, Rows),
    /// Too many wait already.
    Crowded,
}

/// Answers whether the request may go on.
pub(super) async fn authorize(
    State(context): State<Arc<HttpContext>>,
    request: http::Request<Body>,
) -> Result<Response, HttpProblem> {
    let tables = context.live.authorize.load_full();
    let behind = request.uri().path().strip_prefix("/v1/authorize/").unwrap_or_default();
    let end = behind.find('/').unwrap_or(behind.len());
    let (name, rest) = behind.split_at(end);
    let Some(table) = tables.iter().find(|table| table.name == name) else {
        let detail = "no [[http.authorize]] table has this name";
        return Err(HttpProblem::new(StatusCode::NOT_FOUND, "authorize", detail));
    };
    let client = request.extensions().get::<CloseWatch>().cloned();
    let word = match key(table, rest, &request) {
        Ok(key) => decide(&context, table, key, client).await,
        Err(problem) => Err(problem),
    };
    let refused = table.refuse.status();
    match word {
        Ok(Word::Go(rows)) => Ok(go(&rows)),
        Ok(Word::OverLimit(verdict, rows)) => Ok(over_limit(refused, &verdict, &rows)),
        Ok(Word::Crowded) => {
            let detail = "too many requests wait already";
            Ok(refusal(refused, "crowded", detail, None, Some(1)))
        }
        // A server that understands nothing but 403 gets the client's mistakes by 403, too.
        Err(problem) if refused == StatusCode::FORBIDDEN && problem.is_clients_fault() => {
            Err(problem.told_as(refused))
        }
        Err(problem) => Err(problem),
    }
}

/// The key of what the client has asked the server for.
fn key(
    table: &Authorize,
    rest: &str,
    request: &http::Request<Body>,
) -> Result<Vec<u8>, HttpProblem> {
    let headers = request.headers();
    let (method, uri) = match rest {
        "" => (told_method(headers)?, told_uri(headers)?),
        path => (None, Some(read_uri(path.as_bytes())?)),
    };
    if uri.is_none() && table.key.asks_for_path() {
        let detail = "the request's path is missing: send X-Forwarded-Uri, or add the path after \
                      the name in the URL";
        return Err(HttpProblem::bad_request("no_uri", detail));
    }
    let peer = request.extensions().get::<PeerAddress>();
    let peer = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |PeerAddress(address)| *address);
    if table.key.asks_for_client()
        && table.trusted_proxies.permits(peer)
        && !headers.contains_key(X_FORWARDED_FOR)
    {
        // Counted as the server itself, all its clients would share one count.
        let detail = "the client's address is missing: send X-Forwarded-For";
        return Err(HttpProblem::bad_request("no_client", detail));
    }
    let asked = Asked {
        method: method.as_ref().unwrap_or(request.method()),
        uri: &uri.unwrap_or_default(),
        headers,
        client: forwarded::client(peer, headers, &table.trusted_proxies),
    };
    let mut scratch = Scratch::default();
    let key = table.key.fill(&table.name, &asked, &mut scratch);
    key.map(<[u8]>::to_vec).map_err(|_| InvalidRequest::KeyTooLong.into())
}

/// The one value of a header, if it is there.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a [u8]>, HttpProblem> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(HeaderValue::as_bytes);
    if values.next().is_some() {
        // The client sent one of them itself, and the server cannot tell which.
        let detail = format!("{name} is present more than once");
        return Err(HttpProblem::bad_request("forwarded_twice", detail));
    }
    Ok(first)
}

fn told_method(headers: &HeaderMap) -> Result<Option<Method>, HttpProblem> {
    let Some(told) = only(headers, &X_FORWARDED_METHOD)? else { return Ok(None) };
    let method = Method::from_bytes(told);
    method
        .map(Some)
        .map_err(|_| HttpProblem::bad_request("method", "X-Forwarded-Method is not a method"))
}

fn told_uri(headers: &HeaderMap) -> Result<Option<Uri>, HttpProblem> {
    only(headers, &X_FORWARDED_URI)?.map(read_uri).transpose()
}

/// A target as the client has sent it: a path, as a rule with a query behind it.
fn read_uri(text: &[u8]) -> Result<Uri, HttpProblem> {
    let uri = Uri::try_from(text).ok().filter(|uri| uri.path().starts_with('/'));
    uri.ok_or_else(|| HttpProblem::bad_request("uri", "the client's request target is not a path"))
}

async fn decide(
    context: &HttpContext,
    table: &Authorize,
    key: Vec<u8>,
    client: Option<CloseWatch>,
) -> Result<Word, HttpProblem> {
    let Some(max_wait) = table.max_wait else {
        let (keys, mut rows) = ([Key::take(&key, 1)], Rows::default());
        let (request, now) = (Request::all_or_nothing(&keys), context.handle.now());
        let verdict = context.handle.decide_async(&request, now, &mut rows).await?;
        return Ok(match verdict.is_allowed() {
            true => Word::Go(rows),
            false => Word::OverLimit(verdict, rows),
        });
    };
    let max_wait = u64::try_from(max_wait.0.as_nanos()).unwrap_or(u64::MAX);
    let check = CheckRequest::one(key);
    match wait::pass(context, &check, Some(max_wait), client).await? {
        (Ok(admitted), rows) => {
            let key = &check.keys[0];
            Ok(Word::Go(admitted.look(&context.handle, key, check.cost, rows).await.1))
        }
        (Err(NotAdmitted::TooLate(refusal)), _) => {
            Ok(Word::OverLimit(refusal.verdict, refusal.rows))
        }
        (Err(NotAdmitted::TooManyWaiters { .. }), _) => Ok(Word::Crowded),
        (Err(NotAdmitted::Invalid(invalid)), _) => Err(invalid.into()),
    }
}

fn go(rows: &Rows) -> Response {
    let mut response = StatusCode::OK.into_response();
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Standing::of(rows).write(headers);
    response
}

fn over_limit(status: StatusCode, verdict: &Verdict, rows: &Rows) -> Response {
    let refused_by = rows.refused_by.as_deref();
    let detail = "the limit of this resource is reached";
    let mut response =
        refusal(status, "over_limit", detail, refused_by, retry_after_s(verdict, rows));
    let headers = response.headers_mut();
    Standing::of(rows).write(headers);
    let rule = refused_by.map(printable);
    if let Some(rule) = rule.and_then(|rule| HeaderValue::try_from(rule).ok()) {
        headers.insert(REFUSED_BY, rule);
    }
    response
}

fn refusal(
    status: StatusCode,
    reason: &'static str,
    detail: &'static str,
    refused_by: Option<&str>,
    retry_after_s: Option<u64>,
) -> Response {
    let mut response = respond_with_problem(
        status,
        &RefusalJson {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail,
            reason,
            refused_by,
        },
    );
    let headers = response.headers_mut();
    if let Some(seconds) = retry_after_s {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
