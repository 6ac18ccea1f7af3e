//! A peer of the HTTP door: hyper on tokio, as the door is, without a router, limits and a limiter.
//! It reads each request whole and answers with the same JSON.

use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// Serves until the process is killed.
pub(super) fn serve(body: &str) -> io::Result<()> {
    let body = Bytes::copy_from_slice(body.as_bytes());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async move {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        eprintln!("listening door=peer addr={}", listener.local_addr()?);
        eprintln!("ready");
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let body = body.clone();
            let service = service_fn(move |request| answer(request, body.clone()));
            // A client that leaves in the middle is no concern of this server.
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    })
}

async fn answer(
    request: Request<Incoming>,
    body: Bytes,
) -> Result<Response<Full<Bytes>>, Infallible> {
    // A body that breaks off ends the connection anyway.
    let _ = request.into_body().collect().await;
    let mut response = Response::new(Full::new(body));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    Ok(response)
}
