//! Turns requests from HTTP/1.1 to HTTP/2 and back. Requests are prepared for HTTP/1.1; which
//! version the upstream speaks may be known only once a connection to it is made.

use hyper::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::uri::{self, Authority, PathAndQuery, Scheme};
use hyper::{Request, Uri, Version};

use super::super::bodies::RequestBody;
use super::super::figures::UpstreamError;

/// Makes it a request of HTTP/1.1, if it is none.
pub(in super::super) fn to_http1(request: &mut Request<RequestBody>) {
    if request.version() == Version::HTTP_2
        && let Some(authority) = request.uri().authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        request.headers_mut().insert(HOST, host);
    }
    *request.version_mut() = Version::HTTP_11;
    if request.uri().authority().is_some() {
        *request.uri_mut() = origin_form(request.uri());
    }
}

/// The path and the query alone.
pub(super) fn origin_form(uri: &Uri) -> Uri {
    let path = uri.path_and_query().cloned();
    Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")))
}

/// Joins the lines into which HTTP/2 may split a cookie. HTTP/1.1 allows only one.
pub(in super::super) fn join_cookies(headers: &mut HeaderMap) {
    let lines: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// Makes it a request of HTTP/2, if it is none. `own` is the host of a request without one.
pub(super) fn to_http2(
    request: &mut Request<RequestBody>,
    tls: bool,
    own: &Authority,
) -> Result<(), UpstreamError> {
    if request.version() == Version::HTTP_2 {
        return Ok(());
    }
    let headers = request.headers_mut();
    // HTTP/2 has no upgrades, and frames tell where a body ends.
    for name in [CONNECTION, UPGRADE, TRANSFER_ENCODING, CONTENT_LENGTH] {
        headers.remove(name);
    }
    let host = headers.remove(HOST);
    let authority = host.as_ref().and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let mut uri = uri::Parts::default();
    uri.scheme = Some(if tls { Scheme::HTTPS } else { Scheme::HTTP });
    uri.authority = Some(authority.unwrap_or_else(|| own.clone()));
    uri.path_and_query = request.uri().path_and_query().cloned();
    *request.uri_mut() = Uri::from_parts(uri).map_err(|_| UpstreamError::Protocol)?;
    *request.version_mut() = Version::HTTP_2;
    Ok(())
}

#[cfg(test)]
mod tests {
    use hyper::body::Body as _;

    use super::*;

    #[test]
    fn a_request_can_be_turned_to_http2_and_back() {
        let own = Authority::from_static("upstream:3000");
        let mut request = Request::new(RequestBody::none());
        *request.uri_mut() = Uri::from_static("/a?b");
        let host = HeaderValue::from_static("a.example");
        request.headers_mut().insert(HOST, host.clone());
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        request.headers_mut().insert(UPGRADE, HeaderValue::from_static("x"));
        request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        to_http2(&mut request, true, &own).unwrap();
        assert_eq!(request.version(), Version::HTTP_2);
        assert_eq!(*request.uri(), "https://a.example/a?b");
        assert!(request.headers().is_empty(), "{:?}", request.headers());
        to_http1(&mut request);
        assert_eq!(
            (request.version(), request.uri().to_string()),
            (Version::HTTP_11, "/a?b".into())
        );
        assert_eq!(request.headers()[HOST], host);
        assert!(request.body().is_end_stream());
        request.headers_mut().remove(HOST);
        to_http2(&mut request, false, &own).unwrap();
        assert_eq!(*request.uri(), "http://upstream:3000/a?b");
    }
}
