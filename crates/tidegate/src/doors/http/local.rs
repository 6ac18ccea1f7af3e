//! Which requests come from this machine. Only those may look at the rules and change them, for as
//! long as the door cannot tell by other means who asks.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::doors::http_server::connections::Peer;
use crate::doors::http_server::problem::Problem;

/// What proxies add to what they forward: such a request comes from this machine only as far as the
/// socket can tell.
const FORWARDED: [&str; 4] = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];

/// Lets requests of this machine pass and answers all others with 403.
pub(super) async fn only(request: Request<Body>, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>();
    // An IPv4 client of an IPv6 socket has its address inside of one of IPv6.
    let near = peer.is_some_and(|Peer(address)| address.to_canonical().is_loopback());
    if !near || FORWARDED.iter().any(|name| request.headers().contains_key(*name)) {
        let detail = "rules are shown to and changed by this machine alone: ask from there, over \
                      loopback and not through a proxy";
        return Problem::new(StatusCode::FORBIDDEN, "not_local", detail).into_response();
    }
    next.run(request).await
}
