//! Which requests administration answers: those of programs on this machine, and of its own pages.
//!
//! There is no authentication yet, so every client that reaches the listener is an admin. It
//! listens on loopback alone. What remains are web pages in a browser on this machine, and
//! proxies on it:
//!
//! - a foreign name that points here (DNS rebinding) shows in the Host header;
//! - a page of another site shows in Origin, or in Sec-Fetch-Site where a browser sends no Origin,
//!   as with images and links;
//! - a form needs no permission of the server to send its few content types, so a request that
//!   changes something is refused with one of these;
//! - a proxy that forwards the requests of others shows in the headers that it adds. A proxy that
//!   adds none passes this check, so nothing relies on it alone.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, FORWARDED, HOST, HeaderName, ORIGIN, VIA};
use axum::http::{HeaderMap, Method, Request, StatusCode};

use crate::doors::http_server::host::{self, LocalAddress};
use crate::doors::http_server::problem::HttpProblem;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// What proxies add to what they forward.
const FORWARDING: [HeaderName; 6] = [
    FORWARDED,
    VIA,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-real-ip"),
];
/// What a form of a web page can send without asking the server first.
const FORM_TYPES: [&str; 3] =
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"];

/// Refuses what a page of another site, or a proxy, could have sent.
pub(super) fn check(request: &Request<Body>) -> Result<(), HttpProblem> {
    let headers = request.headers();
    let local = request.extensions().get::<LocalAddress>().copied();
    host::check(headers, request.uri(), local, &[])?;
    check_origin(headers, local.is_some_and(|local| local.tls))?;
    check_type(request.method(), headers)?;
    if FORWARDING.iter().any(|name| headers.contains_key(name)) {
        let detail = "administration is only for this machine, and a proxy has forwarded this \
                      request: send it to [admin] directly";
        return Err(forbidden("forwarded", detail));
    }
    Ok(())
}

/// A page has its own origin in its requests; only pages of this listener may ask.
fn check_origin(headers: &HeaderMap, tls: bool) -> Result<(), HttpProblem> {
    let scheme: &[u8] = if tls { b"https://" } else { b"http://" };
    let host = headers.get(HOST).map_or(&b""[..], |host| host.as_bytes());
    let is_own = |origin: &[u8]| {
        let name = origin.strip_prefix(scheme);
        name.is_some_and(|name| name.eq_ignore_ascii_case(host))
    };
    if !headers.get_all(ORIGIN).iter().all(|origin| is_own(origin.as_bytes())) {
        return Err(forbidden("origin", "the Origin header names another site"));
    }
    // "none": a user has typed the address.
    let is_own = |site: &[u8]| site == b"same-origin" || site == b"none";
    if !headers.get_all(SEC_FETCH_SITE).iter().all(|site| is_own(site.as_bytes())) {
        return Err(forbidden(
            "origin",
            "a page of another site sent this request (Sec-Fetch-Site)",
        ));
    }
    Ok(())
}

fn check_type(method: &Method, headers: &HeaderMap) -> Result<(), HttpProblem> {
    if [Method::GET, Method::HEAD].contains(method) {
        return Ok(());
    }
    let is_form = |value: &str| {
        let essence = value.split(';').next().unwrap_or_default().trim();
        FORM_TYPES.iter().any(|form| essence.eq_ignore_ascii_case(form))
    };
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    if types.any(|value| value.to_str().map_or(true, is_form)) {
        let detail =
            "requests that change something need Content-Type: application/json, or no body";
        return Err(HttpProblem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type", detail));
    }
    Ok(())
}

fn forbidden(reason: &'static str, detail: &'static str) -> HttpProblem {
    HttpProblem::new(StatusCode::FORBIDDEN, reason, detail)
}
