//! Requests that were made for one version of HTTP, and go out over another.

use hyper::header::{CONNECTION, HOST, TRANSFER_ENCODING, UPGRADE};
use hyper::http::uri::{self, Authority, Scheme};
use hyper::{Request, Uri, Version};

use super::super::bodies::Upload;
use super::super::exchange;
use super::Failure;
use crate::doors::proxy::figures::UpstreamError;

/// Makes it one for HTTP/1.1, if it is not.
pub(super) fn to_http1(request: &mut Request<Upload>) {
    if request.version() == Version::HTTP_2 {
        exchange::to_http1(request);
    }
}

/// Makes it one for HTTP/2, if it is not. `own` is the host where it names none.
pub(super) fn to_http2(
    request: &mut Request<Upload>,
    tls: bool,
    own: &Authority,
) -> Result<(), Failure> {
    if request.version() == Version::HTTP_2 {
        return Ok(());
    }
    let headers = request.headers_mut();
    // There are no upgrades there, and a body needs no coding.
    [CONNECTION, UPGRADE, TRANSFER_ENCODING].into_iter().for_each(|name| {
        headers.remove(name);
    });
    let host = headers.remove(HOST);
    let authority = host.as_ref().and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let mut uri = uri::Parts::default();
    uri.scheme = Some(if tls { Scheme::HTTPS } else { Scheme::HTTP });
    uri.authority = Some(authority.unwrap_or_else(|| own.clone()));
    uri.path_and_query = request.uri().path_and_query().cloned();
    *request.uri_mut() = Uri::from_parts(uri).map_err(|_| Failure(UpstreamError::Protocol))?;
    *request.version_mut() = Version::HTTP_2;
    Ok(())
}

#[cfg(test)]
mod tests {
    use hyper::body::Body as _;
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn what_was_made_for_one_version_goes_over_the_other_and_back() {
        let own = Authority::from_static("upstream:3000");
        let mut request = Request::new(Upload::none());
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
