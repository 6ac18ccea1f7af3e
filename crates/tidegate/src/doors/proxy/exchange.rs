//! One request's way: looked at, admitted, forwarded, answered.
//!
//! What goes upstream is written anew from what was understood, so that nobody can understand it
//! in another way.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;

use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::uri::{self, Authority, PathAndQuery, Scheme};
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use tidegate_client::gatekeeper::Delay;
use tidegate_client::layer::LogInfo;
use tidegate_core::{Nanos, Now};

use super::access::Record;
use super::bodies::{Fault, Reply, Upload};
use super::client::Client;
use super::config::OnLimit;
use super::figures::UpstreamError;
use super::finish::Finish;
use super::headers::{self, Survey};
use super::holding;
use super::problem::Problem;
use super::ticks::Deadline;
use super::tunnel::Tunnel;
use super::upstream::{Answer, Exchange, Failure};
use super::worker::Worker;
use crate::doors::ratelimit::Standing;
use crate::doors::template;
use crate::limiter::{self, Key, Rows};
use crate::metrics::Door;
use crate::waiting::{Admitted, Arrival, Began, WaitFuture};

/// Answers one request, whatever becomes of it.
pub(super) fn answer(
    client: Rc<Client>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Reply>, Infallible>> {
    let (parts, body) = request.into_parts();
    let mut exchange = Exchange::new(Request::from_parts(parts, Upload::none()));
    // Begun before hyper looks further: what the client does from here on is behind a request.
    let mut finish = Finish::new(client.clone());
    async move {
        let worker = &client.worker;
        finish.on_stream();
        let response = match pursue(&client, &mut exchange, body, &mut finish).await {
            Ok(Outcome::Answer(deadline)) => {
                let patience = worker.upstream.patience();
                let relay = |body| Reply::relay(body, deadline, patience).finishing(finish);
                exchange.into_answer().map(relay)
            }
            Ok(Outcome::Tunnel) => {
                let (head, answer) = exchange.into_answer().into_parts();
                let tunnel = answer.into_socket().map(|upstream| Tunnel::new(upstream, finish));
                client.tunnel.set(tunnel);
                Response::from_parts(head, Reply::whole(Bytes::new()))
            }
            Err(problem) => {
                if let Some(reason) = problem.bad_input() {
                    worker.metrics.bad_input(Door::Proxy, reason);
                }
                let response = problem.response();
                let (status, reason) = (response.status().as_u16(), problem.reason());
                tracing::debug!(proxy = %worker.name, status, reason, "not forwarded");
                if let Some(record) = finish.record() {
                    record.status = response.status().as_u16();
                    record.bytes = response.body().size_hint().lower();
                }
                response.map(|reply| reply.finishing(finish))
            }
        };
        worker.lane.answered(response.status().as_u16());
        Ok(response)
    }
}

/// What becomes of an answer that has crossed.
enum Outcome {
    /// It is relayed, and its body has this deadline.
    Answer(Deadline),
    /// It ends HTTP on the connection.
    Tunnel,
}

async fn pursue(
    client: &Rc<Client>,
    exchange: &mut Exchange,
    body: Incoming,
    finish: &mut Finish,
) -> Result<Outcome, Problem> {
    let worker = &client.worker;
    let start = worker.clock.now();
    let request = exchange.request();
    if !worker.access.is_off() {
        let caller = client.introduction.borrow().client(request.headers(), &worker.trusted);
        finish.log(Record::new(start.unix, caller, request.method(), request.uri().path()));
    }
    let Asked { caller, upgrade, turn } =
        ask(client, request, body.size_hint().exact(), start, finish)?;
    let (admitted, standing) = match turn {
        Turn::Now(admitted, standing) => (admitted, standing),
        turn => {
            let _parked = holding::park(client, &body)?;
            // A request that may not wait for its limit only waits for its store.
            let waits = worker.on_limit == OnLimit::Wait || !matches!(turn, Turn::Own { .. });
            // Few requests wait; the others need no room for it in their futures.
            let waited = Box::pin(wait(client, turn, caller, finish)).await;
            let now = worker.clock.now().mono;
            let in_vain = if waits { now.saturating_sub(start.mono) } else { 0 };
            waited.inspect_err(|_| note_wait(worker, finish, in_vain))?
        }
    };
    note_wait(worker, finish, admitted.waited);
    let (upload, progress) = Upload::new(body, &client.pulse, &worker.ticks, worker.body_max);
    *request.body_mut() = upload;
    // As far as is known now: over HTTP/2 nobody can be asked.
    if let Some(protocol) = upgrade.as_ref().filter(|_| !worker.upstream.http2()) {
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        request.headers_mut().insert(UPGRADE, protocol.clone());
    }
    let deadline = worker.ticks.deadline();
    let mut sent_at = 0;
    let forwarding = || sent_at = worker.clock.now().mono;
    let sent = worker.upstream.send(exchange, progress.as_ref(), &deadline, forwarding).await;
    if sent_at > 0 {
        worker.lane.overhead(sent_at.saturating_sub(admitted.due));
    }
    sent.map_err(|Failure(error)| {
        failed(client, error, progress.as_ref().and_then(|progress| progress.fault()))
    })?;
    let response = exchange.answer();
    if let Some(record) = finish.record() {
        record.status = response.status().as_u16();
        record.upstream = Some(worker.clock.now().mono.saturating_sub(sent_at));
    }
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return switch(response, upgrade).map(|()| Outcome::Tunnel).ok_or_else(|| {
            worker.failures.count(UpstreamError::Protocol);
            Problem::BadAnswer
        });
    }
    tidy(response).inspect_err(|_| worker.failures.count(UpstreamError::Protocol))?;
    if let Some(standing) = standing {
        standing.write(response.headers_mut());
    }
    Ok(Outcome::Answer(deadline))
}

/// Notes how long a request has waited, also in vain.
fn note_wait(worker: &Worker, finish: &mut Finish, waited: Nanos) {
    if waited > 0 {
        worker.lane.wait(waited);
    }
    if let Some(record) = finish.record() {
        record.waited = waited;
    }
}

fn failed(client: &Client, error: UpstreamError, fault: Option<Fault>) -> Problem {
    match fault {
        Some(Fault::TooLong) => return Problem::BodyTooLong,
        Some(Fault::Broken) => return Problem::Malformed("the body broke off"),
        None => {}
    }
    client.worker.failures.count(error);
    match error {
        UpstreamError::Connect | UpstreamError::BackingOff => Problem::Unreachable,
        UpstreamError::Timeout => Problem::TooSlow,
        UpstreamError::Closed | UpstreamError::Body | UpstreamError::Protocol => Problem::BadAnswer,
    }
}

/// Sees that the message means one thing, and one that this proxy does.
fn check(
    request: &Request<Upload>,
    survey: Survey,
    length: Option<u64>,
    body_max: Option<u64>,
) -> Result<(), Problem> {
    if *request.method() == Method::CONNECT {
        return Err(Problem::Connect);
    }
    let path = request.uri().path();
    let everything = path == "*" && *request.method() == Method::OPTIONS;
    if !path.starts_with('/') && !everything {
        return Err(Problem::Malformed("the target of the request is no path"));
    }
    if survey.is_coded() {
        let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
        let chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
        if !codings.next().is_some_and(chunked) || codings.next().is_some() {
            return Err(Problem::Malformed("no transfer coding is known but chunked, once"));
        }
    }
    if length.zip(body_max).is_some_and(|(length, max)| length > max) {
        return Err(Problem::BodyTooLong);
    }
    match survey.hosts() {
        1 => Ok(()),
        0 if request.version() < Version::HTTP_11 => Ok(()),
        0 => Err(Problem::Malformed("the request has no Host")),
        _ => Err(Problem::Malformed("the request has more than one Host")),
    }
}

/// Puts the target's host under `Host`, if the target has one.
fn settle_host(request: &mut Request<Upload>) -> Result<(), Problem> {
    let Some(authority) = request.uri().authority() else { return Ok(()) };
    let text = authority.as_str();
    if text.contains('@') {
        return Err(Problem::Malformed("the target of the request names a user"));
    }
    if request.headers().get(HOST).is_none_or(|host| host.as_bytes() != text.as_bytes()) {
        let host = HeaderValue::from_str(text);
        let host = host.map_err(|_| Problem::Malformed("the host is no host"))?;
        request.headers_mut().insert(HOST, host);
    }
    Ok(())
}

/// What has become of a request that was looked at.
struct Asked {
    /// Who sent it.
    caller: IpAddr,
    /// The protocol that it asks to go on with.
    upgrade: Option<HeaderValue>,
    turn: Turn,
}

/// What a request waits for.
enum Turn {
    /// For nothing.
    Now(Admitted, Option<Box<Standing>>),
    /// For its own limit, and perhaps for the master then.
    Own { key: Box<[u8]>, arrival: Arrival, log_info: Option<Box<LogInfo>> },
    /// For the master alone: its limit has admitted it.
    Masters(Admitted, Option<Box<Standing>>, Delay),
}

/// Looks at the request, and admits it at once if it may go, turns it away, or says what it waits
/// for. `length` is that of its body, if it is known.
fn ask(
    client: &Rc<Client>,
    request: &mut Request<Upload>,
    length: Option<u64>,
    start: Now,
    finish: &mut Finish,
) -> Result<Asked, Problem> {
    let worker = &client.worker;
    settle_host(request)?;
    let caller = client.introduction.borrow().client(request.headers(), &worker.trusted);
    let asked = template::Asked {
        method: request.method(),
        uri: request.uri(),
        headers: request.headers(),
        client: caller,
    };
    let mut scratch = worker.scratch.borrow_mut();
    let key = worker.template.fill(&worker.name, &asked, &mut scratch);
    // What is counted for it comes while the head is looked at.
    if let Ok(key) = key {
        worker.handle.prefetch(key);
    }
    let survey = Survey::of(request.headers());
    check(request, survey, length, worker.body_max)?;
    let Ok(key) = key else { return Err(Problem::KeyTooLong) };
    let upgrade = upgrade_of(request, survey);
    // Of the request as it came: it is about to be changed.
    let log_info = worker.log_info(request);
    // Where almost all pass sooner or later, the request is made ready while memory answers; where
    // many may be turned away, that is to cost little.
    let early = worker.on_limit == OnLimit::Wait;
    if early {
        survey.strip(request.headers_mut());
        prepare(client, request, survey)?;
    }
    let turn = match worker.waiting.begin(&worker.handle, &worker.wait_request(key), start) {
        Began::Done(result) => {
            let admitted = result?;
            finish.admitted(key, &admitted);
            let standing = standing(worker, key, &admitted);
            match worker.ask_master(key, caller, log_info.as_ref())? {
                None => Turn::Now(admitted, standing),
                Some(delay) => Turn::Masters(admitted, standing, delay),
            }
        }
        Began::Waits(arrival) => {
            Turn::Own { key: key.into(), arrival, log_info: log_info.map(Box::new) }
        }
    };
    if !early {
        survey.strip(request.headers_mut());
        prepare(client, request, survey)?;
    }
    Ok(Asked { caller, upgrade, turn })
}

/// Holds a request until it may go.
async fn wait(
    client: &Rc<Client>,
    turn: Turn,
    caller: IpAddr,
    finish: &mut Finish,
) -> Result<(Admitted, Option<Box<Standing>>), Problem> {
    let worker = &client.worker;
    let (mut admitted, standing, delay) = match turn {
        Turn::Now(admitted, standing) => (admitted, standing, None),
        Turn::Masters(admitted, standing, delay) => (admitted, standing, Some(delay)),
        Turn::Own { key, arrival, log_info } => {
            let Worker { waiting, handle, waiter_limit, .. } = &**worker;
            let request = worker.wait_request(&key);
            let waiting = pin!(waiting.resume(handle, waiter_limit, request, arrival));
            let admitted = holding::hold(client, waiting, WaitFuture::is_in_line).await??;
            finish.admitted(&key, &admitted);
            let standing = match worker.tells_limits && !admitted.degraded {
                true => standing_async(worker, &key).await,
                false => None,
            };
            (admitted, standing, worker.ask_master(&key, caller, log_info.as_deref())?)
        }
    };
    if let Some(delay) = delay {
        let before = worker.clock.now().mono;
        holding::hold(client, pin!(delay.wait()), |_| true).await?;
        admitted.due = worker.clock.now().mono;
        admitted.waited += admitted.due.saturating_sub(before);
    }
    Ok((admitted, standing))
}

/// How a key stands with its limits that was admitted at once.
fn standing(worker: &Worker, key: &[u8], admitted: &Admitted) -> Option<Box<Standing>> {
    if !worker.tells_limits {
        return None;
    }
    let keys = [Key::peek(key, 1)];
    let request = limiter::Request::all_or_nothing(&keys).with_end();
    let mut rows = Rows::default();
    let decision = worker.handle.decide(&request, admitted.started, Some(&mut rows)).ok()?;
    decision.ready().map(|_| Box::new(Standing::of(&rows)))
}

/// As [`standing`], wherever the counts lie.
async fn standing_async(worker: &Worker, key: &[u8]) -> Option<Box<Standing>> {
    let keys = [Key::peek(key, 1)];
    let request = limiter::Request::all_or_nothing(&keys).with_end();
    let mut rows = Rows::default();
    let now = worker.clock.now();
    worker.handle.decide_async(&request, now, &mut rows).await.ok()?;
    Some(Box::new(Standing::of(&rows)))
}

/// The protocol that the client asks to go on with.
fn upgrade_of(request: &Request<Upload>, survey: Survey) -> Option<HeaderValue> {
    if !survey.may_upgrade() || request.version() != Version::HTTP_11 {
        return None;
    }
    // To HTTP/2 on the same connection nobody is taken: what is inside would pass unlimited.
    headers::upgrade(request.headers()).filter(|to| !to.as_bytes().eq_ignore_ascii_case(b"h2c"))
}

/// Makes of the client's request, once what was meant for this hop is taken out, the one that is
/// sent.
fn prepare(client: &Client, request: &mut Request<Upload>, survey: Survey) -> Result<(), Problem> {
    let worker = &client.worker;
    request.extensions_mut().clear();
    let headers = request.headers_mut();
    let host = headers.get(HOST).cloned();
    client.introduction.borrow_mut().introduce(headers, host.as_ref());
    if worker.upstream.http2() {
        return to_http2(request, worker.upstream.tls(), host, worker.upstream.authority());
    }
    if host.is_none() {
        let own = HeaderValue::from_str(worker.upstream.authority().as_str());
        headers.insert(HOST, own.map_err(|_| Problem::BadAnswer)?);
    }
    if survey.cookies() > 1 {
        join_cookies(headers);
    }
    *request.version_mut() = Version::HTTP_11;
    if request.uri().authority().is_some() {
        *request.uri_mut() = origin_form(request.uri());
    }
    Ok(())
}

/// The path and the query alone.
pub(super) fn origin_form(uri: &Uri) -> Uri {
    let path = uri.path_and_query().cloned();
    Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")))
}

/// HTTP/2 may split a cookie into several lines; nothing else may.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let lines: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

fn to_http2(
    request: &mut Request<Upload>,
    tls: bool,
    host: Option<HeaderValue>,
    own: &Authority,
) -> Result<(), Problem> {
    let authority = match host {
        Some(host) => Authority::try_from(host.as_bytes())
            .map_err(|_| Problem::Malformed("the host is no host"))?,
        None => own.clone(),
    };
    request.headers_mut().remove(HOST);
    let mut uri = uri::Parts::default();
    uri.scheme = Some(if tls { Scheme::HTTPS } else { Scheme::HTTP });
    uri.authority = Some(authority);
    uri.path_and_query = request.uri().path_and_query().cloned();
    *request.uri_mut() =
        Uri::from_parts(uri).map_err(|_| Problem::Malformed("the target is no path"))?;
    *request.version_mut() = Version::HTTP_2;
    Ok(())
}

/// Turns back what was made for HTTP/2, for an upstream that turns out not to speak it.
pub(super) fn to_http1(request: &mut Request<Upload>) {
    if let Some(authority) = request.uri().authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        request.headers_mut().insert(HOST, host);
    }
    *request.uri_mut() = origin_form(request.uri());
    *request.version_mut() = Version::HTTP_11;
    join_cookies(request.headers_mut());
}

/// Makes of the upstream's answer the one that the client gets.
fn tidy(response: &mut Response<Answer>) -> Result<(), Problem> {
    *response.version_mut() = Version::HTTP_11;
    let headers = response.headers_mut();
    let survey = Survey::of(headers);
    if survey.is_coded()
        && let Some(coding) = headers.get(TRANSFER_ENCODING)
    {
        // What else is in it would reach the client without its name.
        if !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
            return Err(Problem::BadAnswer);
        }
        headers.remove(CONTENT_LENGTH);
    }
    if survey.lengths() > 1
        && let Some(length) = headers.get(CONTENT_LENGTH).cloned()
    {
        headers.insert(CONTENT_LENGTH, length);
    }
    survey.strip(headers);
    Ok(())
}

/// Makes of the answer one that ends HTTP on this connection, if that is what was asked for.
fn switch(response: &mut Response<Answer>, asked: Option<HeaderValue>) -> Option<()> {
    asked.filter(|_| response.body().may_switch())?;
    let protocol = response.headers().get(UPGRADE)?.clone();
    tidy(response).ok()?;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(UPGRADE, protocol);
    Some(())
}
