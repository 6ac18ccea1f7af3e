//! One request from its head to its response: it is checked, admitted, forwarded and answered.
//!
//! What goes upstream is written anew from what was parsed, so that the upstream cannot understand
//! it in another way.

use std::convert::Infallible;
use std::future::{Future, pending, poll_fn};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use hyper::http::uri::Authority;
use hyper::{Method, Request, Response, StatusCode, Version};
use tidegate_client::gatekeeper::Delay;
use tidegate_client::layer::LogInfo;
use tidegate_core::{Nanos, Now};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::access::AccessRecord;
use super::bodies::{Finish, RequestBody, ResponseBody, UploadError};
use super::config::OnLimit;
use super::connection::{ProxyClient, STREAM_WINDOW};
use super::figures::UpstreamError;
use super::headers::{self, Survey};
use super::not_forwarded::NotForwarded;
use super::ticks::Deadline;
use super::tunnel::Tunnel;
use super::upstream::{self, UpstreamBody};
use super::worker::Worker;
use crate::doors::ratelimit::Standing;
use crate::doors::template;
use crate::limiter::{self, Key, Rows};
use crate::waiting::{Admitted, Arrival, Began, WaitFuture};

/// The most KiB that bodies over HTTP/2 may take up while their requests wait. Such a client sends
/// as much as the window of its stream lets it, whether or not that is read.
const PARKED_KIB_MAX: usize = 256 << 10;
static PARKED: Semaphore = Semaphore::const_new(PARKED_KIB_MAX);

/// Answers one request.
pub(super) fn respond(
    client: Rc<ProxyClient>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> {
    // Before the future is polled: what hyper reads from here on comes behind a request.
    let mut finish = Finish::new(client.clone());
    async move {
        finish.take_stream_deadline();
        let worker = &client.worker;
        let (parts, body) = request.into_parts();
        let mut request = Request::from_parts(parts, RequestBody::none());
        let response = match forward(&client, &mut request, body, &mut finish).await {
            Ok((response, _)) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                let (head, body) = response.into_parts();
                if let UpstreamBody::Http1(connection) = body {
                    let upstream = connection.into_socket();
                    client.tunnel.set(upstream.map(|upstream| Tunnel::new(upstream, finish)));
                }
                Response::from_parts(head, ResponseBody::whole(Bytes::new()))
            }
            Ok((response, deadline)) => {
                let timeout = worker.upstream.timeout();
                let relay = |body| ResponseBody::relay(body, deadline, timeout).finishing(finish);
                response.map(relay)
            }
            Err(why) => {
                if why.is_bad_input() {
                    worker.door.acceptor.bad_input(why.reason());
                }
                let response = why.response();
                let (status, reason) = (response.status().as_u16(), why.reason());
                tracing::debug!(proxy = %worker.door.name(), status, reason, "not forwarded");
                if let Some(record) = &mut finish.record {
                    record.status = status;
                }
                response.map(|body| body.finishing(finish))
            }
        };
        worker.figures.answered(response.status().as_u16());
        Ok(response)
    }
}

/// Forwards a request as soon as its limit lets it start. Returns the response of the upstream, and
/// the deadline for its body.
async fn forward(
    client: &ProxyClient,
    request: &mut Request<RequestBody>,
    body: Incoming,
    finish: &mut Finish,
) -> Result<(Response<UpstreamBody>, Deadline), NotForwarded> {
    let worker = &client.worker;
    let config = &worker.door.config;
    let start = worker.handle.now();
    let address = client.forwarded.address(request.headers(), &config.trusted_proxies);
    if !worker.door.access.is_off() {
        let (method, path) = (request.method(), request.uri().path());
        finish.record = Some(AccessRecord::new(start.unix, address, method, path));
    }
    let length = body.size_hint().exact();
    let Asked { upgrade, key, turn } = ask(client, request, length, address, start, finish)?;
    let admitted = match turn {
        Turn::Now(admitted) => admitted,
        turn => {
            let _parked = park(client, &body)?;
            // A request that may not wait for its limit waits only for its store.
            let waits = config.on_limit == OnLimit::Wait || !matches!(turn, Turn::Limit { .. });
            // Boxed: few requests wait, and the others need no room for it.
            let waited = Box::pin(wait(client, turn, &key, address, finish)).await;
            let in_vain = worker.handle.now().mono.saturating_sub(start.mono);
            waited.inspect_err(|_| record_wait(worker, finish, if waits { in_vain } else { 0 }))?
        }
    };
    record_wait(worker, finish, admitted.waited);
    let standing = match config.ratelimit_headers && !admitted.degraded {
        true => standing(worker, &key).await,
        false => None,
    };
    let (upload, progress) =
        RequestBody::new(body, &client.activity, &worker.ticks, config.max_body.map(|max| max.0));
    *request.body_mut() = upload;
    if let Some(protocol) = &upgrade {
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        request.headers_mut().insert(UPGRADE, protocol.clone());
    }
    let deadline = worker.ticks.deadline();
    let mut sent_at = 0;
    let forwarding = || sent_at = worker.handle.now().mono;
    let sent = worker.upstream.send(request, progress.as_ref(), &deadline, forwarding).await;
    if sent_at > 0 {
        worker.figures.overhead(sent_at.saturating_sub(admitted.due));
    }
    let mut response = sent.map_err(|error| match progress.and_then(|upload| upload.error()) {
        Some(UploadError::TooLong) => NotForwarded::BodyTooLong,
        Some(UploadError::Broken) => NotForwarded::Malformed("the body ended early"),
        None => upstream_failed(worker, error),
    })?;
    if let Some(record) = &mut finish.record {
        record.status = response.status().as_u16();
        record.upstream = Some(worker.handle.now().mono.saturating_sub(sent_at));
    }
    prepare_response(&mut response, upgrade.is_some())
        .map_err(|error| upstream_failed(worker, error))?;
    if let Some(standing) = standing {
        standing.write(response.headers_mut());
    }
    Ok((response, deadline))
}

fn upstream_failed(worker: &Worker, error: UpstreamError) -> NotForwarded {
    worker.upstream_failed(error);
    NotForwarded::Upstream(error)
}

/// Records how long a request has waited, also in vain.
fn record_wait(worker: &Worker, finish: &mut Finish, waited: Nanos) {
    if waited > 0 {
        worker.figures.wait(waited);
    }
    if let Some(record) = &mut finish.record {
        record.waited = waited;
    }
}

/// What has become of a request that was checked.
struct Asked {
    /// The protocol that it asks to switch to.
    upgrade: Option<HeaderValue>,
    /// Its key, where that is still needed.
    key: Box<[u8]>,
    turn: Turn,
}

/// What a request waits for.
enum Turn {
    /// Nothing.
    Now(Admitted),
    /// Its own limit, and after that the delay of the master, if there is one.
    Limit { arrival: Arrival, log_info: Option<Box<LogInfo>> },
    /// The delay of the master alone: its limit has admitted it.
    Master(Admitted, Delay),
}

/// Checks the request and asks the limiter: it is admitted, refused, or must wait. `length` is that
/// of its body, if it is known.
fn ask(
    client: &ProxyClient,
    request: &mut Request<RequestBody>,
    length: Option<u64>,
    address: IpAddr,
    start: Now,
    finish: &mut Finish,
) -> Result<Asked, NotForwarded> {
    let worker = &client.worker;
    let survey = check(worker, request, length)?;
    let asked = template::Asked {
        method: request.method(),
        uri: request.uri(),
        headers: request.headers(),
        client: address,
    };
    let mut scratch = worker.scratch.borrow_mut();
    let key = worker.template.fill(worker.door.name(), &asked, &mut scratch);
    let key = key.map_err(|_| NotForwarded::KeyTooLong)?;
    let upgrade = upgrade_of(request, survey);
    let log_info = worker.door.gatekeeper.as_ref().map(|_| LogInfo::of(request));
    let turn =
        match worker.door.gate.waiting.begin(&worker.handle, &worker.wait_request(key), start) {
            Began::Done(result) => {
                let admitted = result?;
                finish.admitted(key, &admitted);
                match ask_master(worker, key, address, log_info.as_ref())? {
                    None => Turn::Now(admitted),
                    Some(delay) => Turn::Master(admitted, delay),
                }
            }
            Began::Waits(arrival) => Turn::Limit { arrival, log_info: log_info.map(Box::new) },
        };
    let needs_key = matches!(turn, Turn::Limit { .. }) || worker.door.config.ratelimit_headers;
    let key = if needs_key { key.into() } else { Box::default() };
    prepare_request(client, request, survey);
    Ok(Asked { upgrade, key, turn })
}

/// Asks the proxy's master about a request, if there is one.
fn ask_master(
    worker: &Worker,
    key: &[u8],
    address: IpAddr,
    log_info: Option<&LogInfo>,
) -> Result<Option<Delay>, NotForwarded> {
    let asked = worker.door.gatekeeper.as_ref().zip(log_info);
    asked.map_or(Ok(None), |(gatekeeper, info)| gatekeeper.ask(key, address, info.as_bytes()))
}

/// Checks that the message can be understood in one way only, and that the proxy can forward it.
/// `length` is that of its body, if it is known.
fn check(
    worker: &Worker,
    request: &mut Request<RequestBody>,
    length: Option<u64>,
) -> Result<Survey, NotForwarded> {
    if *request.method() == Method::CONNECT {
        return Err(NotForwarded::Connect);
    }
    let path = request.uri().path();
    let everything = path == "*" && *request.method() == Method::OPTIONS;
    if !path.starts_with('/') && !everything {
        return Err(NotForwarded::Malformed("the target of the request is not a path"));
    }
    // The host of the target counts, if it has one.
    if let Some(authority) = request.uri().authority() {
        if authority.as_str().contains('@') {
            return Err(NotForwarded::Malformed("the target of the request contains a user name"));
        }
        let host = HeaderValue::from_str(authority.as_str());
        let host = host.map_err(|_| NotForwarded::Malformed("the host is not valid"))?;
        if request.headers().get(HOST) != Some(&host) {
            request.headers_mut().insert(HOST, host);
        }
    }
    let survey = Survey::of(request.headers());
    if survey.transfer_encoding {
        let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
        let chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
        if !codings.next().is_some_and(chunked) || codings.next().is_some() {
            return Err(NotForwarded::Malformed(
                "the only transfer coding allowed is chunked, once",
            ));
        }
    }
    let body_max = worker.door.config.max_body;
    if length.zip(body_max).is_some_and(|(length, max)| length > max.0) {
        return Err(NotForwarded::BodyTooLong);
    }
    match survey.hosts {
        0 if request.version() < Version::HTTP_11 => Ok(survey),
        0 => Err(NotForwarded::Malformed("the request has no Host")),
        1 if worker.upstream.http2() => {
            let host = Authority::try_from(request.headers()[HOST].as_bytes());
            host.map(|_| survey).map_err(|_| NotForwarded::Malformed("the host is not valid"))
        }
        1 => Ok(survey),
        _ => Err(NotForwarded::Malformed("the request has more than one Host")),
    }
}

/// The protocol that the client asks to switch to.
fn upgrade_of(request: &Request<RequestBody>, survey: Survey) -> Option<HeaderValue> {
    if !survey.upgrade || request.version() != Version::HTTP_11 {
        return None;
    }
    // Not to HTTP/2: the requests inside would pass without a limit.
    headers::upgrade(request.headers()).filter(|to| !to.as_bytes().eq_ignore_ascii_case(b"h2c"))
}

/// Turns the client's request into the one that is sent.
fn prepare_request(client: &ProxyClient, request: &mut Request<RequestBody>, survey: Survey) {
    request.extensions_mut().clear();
    let headers = request.headers_mut();
    survey.strip(headers);
    let host = headers.get(HOST).cloned();
    client.forwarded.write(headers, host.as_ref());
    if host.is_none()
        && let Ok(own) = HeaderValue::from_str(client.worker.upstream.url().authority().as_str())
    {
        headers.insert(HOST, own);
    }
    if survey.cookies > 1 {
        upstream::join_cookies(headers);
    }
    upstream::to_http1(request);
}

/// Turns the upstream's response into the one that the client gets.
fn prepare_response(
    response: &mut Response<UpstreamBody>,
    upgrade_asked: bool,
) -> Result<(), UpstreamError> {
    let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let may_switch = matches!(response.body(), UpstreamBody::Http1(to) if to.may_switch());
    if switches && !(upgrade_asked && may_switch) {
        return Err(UpstreamError::Protocol);
    }
    *response.version_mut() = Version::HTTP_11;
    let headers = response.headers_mut();
    let survey = Survey::of(headers);
    if survey.transfer_encoding
        && let Some(coding) = headers.get(TRANSFER_ENCODING)
    {
        // The client would not learn of any other coding.
        if !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
            return Err(UpstreamError::Protocol);
        }
        headers.remove(CONTENT_LENGTH);
    }
    if survey.lengths > 1
        && let Some(length) = headers.get(CONTENT_LENGTH).cloned()
    {
        headers.insert(CONTENT_LENGTH, length);
    }
    let protocol = headers.get(UPGRADE).filter(|_| switches).cloned();
    survey.strip(headers);
    if switches {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol.ok_or(UpstreamError::Protocol)?);
    }
    Ok(())
}

/// How a key stands with its limits.
async fn standing(worker: &Worker, key: &[u8]) -> Option<Box<Standing>> {
    let keys = [Key::peek(key, 1)];
    let request = limiter::Request::all_or_nothing(&keys).with_end();
    let mut rows = Rows::default();
    worker.handle.decide_async(&request, worker.handle.now(), &mut rows).await.ok()?;
    Some(Box::new(Standing::of(&rows)))
}

/// Reserves memory for the body of a request that is about to wait, if it takes any.
fn park(
    client: &ProxyClient,
    body: &impl Body,
) -> Result<Option<SemaphorePermit<'static>>, NotForwarded> {
    if !client.activity.is_multiplexed() || body.is_end_stream() {
        return Ok(None);
    }
    let window = u64::from(STREAM_WINDOW);
    let bytes = body.size_hint().exact().unwrap_or(window).min(window);
    // At most a window: few enough KiB for 32 bits.
    let kib = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX);
    PARKED.try_acquire_many(kib).map(Some).map_err(|_| NotForwarded::Crowded)
}

/// Waits until the request may go.
async fn wait(
    client: &ProxyClient,
    turn: Turn,
    key: &[u8],
    address: IpAddr,
    finish: &mut Finish,
) -> Result<Admitted, NotForwarded> {
    let worker = &client.worker;
    let (mut admitted, delay) = match turn {
        Turn::Now(admitted) => (admitted, None),
        Turn::Master(admitted, delay) => (admitted, Some(delay)),
        Turn::Limit { arrival, log_info } => {
            let (waiting, limit) = (&worker.door.gate.waiting, &worker.door.waiter_limit);
            let request = worker.wait_request(key);
            let waiting = pin!(waiting.resume(&worker.handle, limit, request, arrival));
            let admitted = hold(client, waiting, WaitFuture::is_in_line).await??;
            finish.admitted(key, &admitted);
            (admitted, ask_master(worker, key, address, log_info.as_deref())?)
        }
    };
    if let Some(delay) = delay {
        let before = worker.handle.now().mono;
        hold(client, pin!(delay.wait()), |_| true).await?;
        admitted.due = worker.handle.now().mono;
        admitted.waited += admitted.due.saturating_sub(before);
    }
    Ok(admitted)
}

/// Waits for `turn`, unless the proxy stops or the client leaves. A client that has closed its
/// sending side counts as gone: the proxy cannot know whether it still reads before it sends
/// something, and others are in line behind it. It is given up only while `is_in_line` is true;
/// otherwise a store is about to answer.
async fn hold<F: Future>(
    client: &ProxyClient,
    mut turn: Pin<&mut F>,
    is_in_line: impl Fn(&F) -> bool,
) -> Result<F::Output, NotForwarded> {
    let worker = &client.worker;
    let mut closed = pin!(async {
        match &client.close_watch {
            Some(watch) => watch.closed().await,
            None => pending().await,
        }
    });
    let mut left = false;
    // Never set. The loop wakes all tasks that have a deadline when it stops.
    let wake_at_end = worker.ticks.deadline();
    poll_fn(|context| {
        if let Poll::Ready(done) = turn.as_mut().poll(context) {
            return Poll::Ready(Ok(done));
        }
        if worker.is_last_call() {
            return Poll::Ready(Err(NotForwarded::Stopping));
        }
        let _ = wake_at_end.poll(context);
        left = left || closed.as_mut().poll(context).is_ready();
        if left && is_in_line(&turn) {
            return Poll::Ready(Err(NotForwarded::Left));
        }
        Poll::Pending
    })
    .await
}
