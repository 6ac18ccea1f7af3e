//! One request's way: looked at, admitted, forwarded, answered.
//!
//! What goes upstream is written anew from what was understood, so that nobody can understand it
//! in another way.

use std::convert::Infallible;
use std::rc::Rc;

use hyper::body::{Body as _, Incoming};
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::http::uri::{self, Authority, PathAndQuery, Scheme};
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use tidegate_client::gatekeeper::Delay;
use tidegate_core::Now;

use super::access::Record;
use super::admission::not_passed;
use super::bodies::{Early, Fault, Reply, Upload};
use super::client::Client;
use super::config::OnLimit;
use super::finish::Finish;
use super::floor::Floor;
use super::headers::{self, Survey};
use super::holding::{self, Ended};
use super::problem::Problem;
use super::tunnel::Tunnel;
use super::upstream::{Answered, Failure};
use crate::doors::ratelimit::Standing;
use crate::doors::template::Asked;
use crate::metrics::Door;
use crate::proxies::UpstreamError;
use crate::waiting::Pass;

/// Answers one request, whatever becomes of it.
pub(super) async fn answer(
    client: Rc<Client>,
    request: Request<Incoming>,
) -> Result<Response<Reply>, Infallible> {
    let floor = client.floor.clone();
    let start = floor.clock.now();
    let (parts, body) = request.into_parts();
    let record = (!floor.access.is_off()).then(|| {
        let caller = client.introduction.borrow().client(&parts.headers, &floor.trusted);
        Record::new(start.unix, caller, &parts.method, parts.uri.path())
    });
    let mut finish = Finish::new(client.clone(), record);
    let response = match pursue(&client, parts, body, start, &mut finish).await {
        Ok(Outcome::Answer(response)) => response.map(|reply| reply.finishing(finish)),
        Ok(Outcome::Tunnel(response, upgrade)) => {
            client.tunnel.set(Some(Tunnel::new(upgrade, finish)));
            response
        }
        Err(problem) => {
            if let Some(reason) = problem.bad_input() {
                floor.metrics.bad_input(Door::Proxy, reason);
            }
            let response = problem.response();
            if let Some(record) = finish.record() {
                record.status = response.status().as_u16();
                record.bytes = response.body().size_hint().lower();
            }
            response.map(|reply| reply.finishing(finish))
        }
    };
    floor.lane.answered(response.status().as_u16());
    Ok(response)
}

enum Outcome {
    Answer(Response<Reply>),
    Tunnel(Response<Reply>, hyper::upgrade::OnUpgrade),
}

async fn pursue(
    client: &Rc<Client>,
    mut parts: Parts,
    body: Incoming,
    start: Now,
    finish: &mut Finish,
) -> Result<Outcome, Problem> {
    let floor = &client.floor;
    let survey = Survey::of(&parts.headers);
    check(&parts, survey, body.size_hint().exact(), floor.body_max)?;
    settle_host(&mut parts, survey)?;
    let coming = Coming { body, expects: survey.expects() };
    let Admitted { pass, body, early, standing } =
        admit(client, &parts, coming, start, finish).await?;
    if pass.waited > 0 {
        floor.lane.wait(pass.waited);
    }
    if let Some(record) = finish.record() {
        record.waited = pass.waited;
    }
    let upgrade = upgrade_of(&parts, survey, floor.upstream.http2());
    let (upload, progress) = Upload::new(early, body, &client.pulse, &floor.ticks, floor.body_max);
    prepare(client, &mut parts, survey, &upload, upgrade.as_ref())?;
    let request = Request::from_parts(parts, upload);
    let deadline = floor.ticks.deadline();
    let mut sent_at = 0;
    let forwarding = || sent_at = floor.clock.now().mono;
    let sent = floor.upstream.send(request, progress.as_ref(), &deadline, forwarding).await;
    if sent_at > 0 {
        floor.lane.overhead(sent_at.saturating_sub(pass.due));
    }
    let Answered { response, line } = sent.map_err(|Failure(error)| {
        failed(client, error, progress.as_ref().and_then(|progress| progress.fault()))
    })?;
    if let Some(record) = finish.record() {
        record.status = response.status().as_u16();
        record.upstream = Some(floor.clock.now().mono.saturating_sub(sent_at));
    }
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return switch(response, upgrade).ok_or_else(|| {
            floor.lane.failed(UpstreamError::Protocol);
            Problem::BadAnswer
        });
    }
    let mut response = response;
    tidy(&mut response).inspect_err(|_| floor.lane.failed(UpstreamError::Protocol))?;
    if let Some(standing) = standing {
        standing.write(response.headers_mut());
    }
    if let Some(line) = line {
        finish.keep(line, progress);
    }
    let patience = floor.upstream.patience();
    Ok(Outcome::Answer(response.map(|body| Reply::relay(body, deadline, patience))))
}

fn failed(client: &Client, error: UpstreamError, fault: Option<Fault>) -> Problem {
    match fault {
        Some(Fault::TooLong) => return Problem::BodyTooLong,
        Some(Fault::Broken) => return Problem::Malformed("the body broke off"),
        None => {}
    }
    client.floor.lane.failed(error);
    match error {
        UpstreamError::Connect | UpstreamError::BackingOff => Problem::Unreachable,
        UpstreamError::Timeout => Problem::TooSlow,
        UpstreamError::Closed | UpstreamError::Body | UpstreamError::Protocol => Problem::BadAnswer,
    }
}

/// Sees that the message means one thing, and one that this proxy does.
fn check(
    parts: &Parts,
    survey: Survey,
    length: Option<u64>,
    body_max: Option<u64>,
) -> Result<(), Problem> {
    if parts.method == Method::CONNECT {
        return Err(Problem::Connect);
    }
    let path = parts.uri.path();
    let everything = path == "*" && parts.method == Method::OPTIONS;
    if !path.starts_with('/') && !everything {
        return Err(Problem::Malformed("the target of the request is no path"));
    }
    if survey.is_coded() {
        let mut codings = parts.headers.get_all(TRANSFER_ENCODING).iter();
        let chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
        if !codings.next().is_some_and(chunked) || codings.next().is_some() {
            return Err(Problem::Malformed("no transfer coding is known but chunked, once"));
        }
    }
    if length.zip(body_max).is_some_and(|(length, max)| length > max) {
        return Err(Problem::BodyTooLong);
    }
    Ok(())
}

/// Sees that there is one host, under `Host`: the target's, if the target has one.
fn settle_host(parts: &mut Parts, survey: Survey) -> Result<(), Problem> {
    let mut hosts = survey.hosts();
    if let Some(authority) = parts.uri.authority() {
        let text = authority.as_str();
        if text.contains('@') {
            return Err(Problem::Malformed("the target of the request names a user"));
        }
        if parts.headers.get(HOST).is_none_or(|host| host.as_bytes() != text.as_bytes()) {
            let host = HeaderValue::from_str(text);
            let host = host.map_err(|_| Problem::Malformed("the host is no host"))?;
            parts.headers.insert(HOST, host);
            hosts = 1;
        }
    }
    match hosts {
        1 => Ok(()),
        0 if parts.version < Version::HTTP_11 => Ok(()),
        0 => Err(Problem::Malformed("the request has no Host")),
        _ => Err(Problem::Malformed("the request has more than one Host")),
    }
}

/// A body that has not been asked for yet.
struct Coming {
    body: Incoming,
    /// The client waits to be asked.
    expects: bool,
}

struct Admitted {
    pass: Pass,
    body: Incoming,
    early: Early,
    /// What the client is told of its limits, if it is.
    standing: Option<Box<Standing>>,
}

/// Lets the request pass at once if it may; otherwise it waits, or is turned away.
async fn admit(
    client: &Rc<Client>,
    parts: &Parts,
    Coming { body, expects }: Coming,
    start: Now,
    finish: &mut Finish,
) -> Result<Admitted, Problem> {
    let floor = &client.floor;
    let caller = client.introduction.borrow().client(&parts.headers, &floor.trusted);
    let turn = {
        let asked = Asked {
            method: &parts.method,
            uri: &parts.uri,
            headers: &parts.headers,
            client: caller,
        };
        let mut scratch = floor.scratch.borrow_mut();
        let key = floor.template.fill(&floor.name, &asked, &mut scratch);
        let key = key.map_err(|_| Problem::KeyTooLong)?;
        if let Some(pass) = floor.admission.try_pass(key, start)? {
            finish.hold(floor.admission.held(key, &pass));
            let standing = standing(floor, key, &pass);
            match floor.ask_master(key, caller)? {
                None => return Ok(Admitted { pass, body, early: Early::default(), standing }),
                Some(delay) => Turn::Masters(pass, standing, delay),
            }
        } else if floor.on_limit == OnLimit::Reject && !floor.admission.is_remote() {
            return Err(floor.admission.refuse(key, start));
        } else {
            Turn::Own(key.into())
        }
    };
    let mut held = holding::Holding::new(body, expects);
    let (mut pass, standing, delay) = match turn {
        Turn::Masters(pass, standing, delay) => (pass, standing, Some(delay)),
        Turn::Own(key) => {
            let passing = match floor.on_limit {
                OnLimit::Wait => floor.admission.pass(&key),
                OnLimit::Reject => floor.admission.pass_or_not(&key),
            };
            let passed = ended(holding::hold(client, &mut held, passing).await)?;
            let pass = passed.map_err(not_passed)?;
            finish.hold(floor.admission.held(&key, &pass));
            let standing =
                if floor.tells_limits { floor.admission.stands(&key).await } else { None };
            (pass, standing, floor.ask_master(&key, caller)?)
        }
    };
    if let Some(delay) = delay {
        let before = floor.clock.now().mono;
        ended(holding::hold(client, &mut held, delay.wait()).await)?;
        pass.due = floor.clock.now().mono;
        pass.waited += pass.due.saturating_sub(before);
    }
    let (body, early) = held.into_parts();
    Ok(Admitted { standing, pass, body, early })
}

/// Whom a request waits for.
enum Turn {
    /// For its own limit, and perhaps for the master then.
    Own(Box<[u8]>),
    /// For the master alone: its limit has let it pass.
    Masters(Pass, Option<Box<Standing>>, Delay),
}

fn ended<T>(ended: Ended<T>) -> Result<T, Problem> {
    match ended {
        Ended::Passed(passed) => Ok(passed),
        Ended::Stopping => Err(Problem::Stopping),
        Ended::Left => Err(Problem::Left),
    }
}

fn standing(floor: &Floor, key: &[u8], pass: &Pass) -> Option<Box<Standing>> {
    if !floor.tells_limits {
        return None;
    }
    floor.admission.standing(key, pass.started)
}

/// The protocol that the client asks to go on with, if the upstream can be asked.
fn upgrade_of(parts: &Parts, survey: Survey, upstream_http2: bool) -> Option<HeaderValue> {
    if !survey.may_upgrade() || parts.version != Version::HTTP_11 || upstream_http2 {
        return None;
    }
    // To HTTP/2 on the same connection nobody is taken: what is inside would pass unlimited.
    headers::upgrade(&parts.headers).filter(|to| !to.as_bytes().eq_ignore_ascii_case(b"h2c"))
}

/// Makes of the client's request the one that is sent.
fn prepare(
    client: &Client,
    parts: &mut Parts,
    survey: Survey,
    upload: &Upload,
    upgrade: Option<&HeaderValue>,
) -> Result<(), Problem> {
    let floor = &client.floor;
    survey.strip(&mut parts.headers);
    let host = parts.headers.get(HOST).cloned();
    client.introduction.borrow_mut().introduce(&mut parts.headers, host.as_ref());
    if let Some(protocol) = upgrade {
        parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(UPGRADE, protocol.clone());
    }
    parts.extensions.clear();
    if floor.upstream.http2() {
        return to_http2(parts, floor.upstream.tls(), host, floor.upstream.authority());
    }
    if host.is_none() {
        let own = HeaderValue::from_str(floor.upstream.authority().as_str());
        parts.headers.insert(HOST, own.map_err(|_| Problem::BadAnswer)?);
    }
    parts.version = Version::HTTP_11;
    if parts.uri.authority().is_some() {
        parts.uri = origin_form(&parts.uri);
    }
    let headers = &mut parts.headers;
    if survey.cookies() > 1 {
        join_cookies(headers);
    }
    if upload.is_none() {
        return Ok(());
    }
    if upload.size_hint().exact().is_none() {
        // Said outright, since a library may think that a GET has no body.
        headers.remove(CONTENT_LENGTH);
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    Ok(())
}

/// The path and the query alone.
fn origin_form(uri: &Uri) -> Uri {
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
    parts: &mut Parts,
    tls: bool,
    host: Option<HeaderValue>,
    own: &Authority,
) -> Result<(), Problem> {
    let authority = match host {
        Some(host) => Authority::try_from(host.as_bytes())
            .map_err(|_| Problem::Malformed("the host is no host"))?,
        None => own.clone(),
    };
    parts.headers.remove(HOST);
    let mut uri = uri::Parts::default();
    uri.scheme = Some(if tls { Scheme::HTTPS } else { Scheme::HTTP });
    uri.authority = Some(authority);
    uri.path_and_query = parts.uri.path_and_query().cloned();
    parts.uri = Uri::from_parts(uri).map_err(|_| Problem::Malformed("the target is no path"))?;
    parts.version = Version::HTTP_2;
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
    if !request.body().is_none() && request.body().size_hint().exact().is_none() {
        let chunked = HeaderValue::from_static("chunked");
        request.headers_mut().insert(TRANSFER_ENCODING, chunked);
    }
}

/// Makes of the upstream's answer the one that the client gets.
fn tidy(response: &mut Response<Incoming>) -> Result<(), Problem> {
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

/// The answer that ends HTTP on this connection, if that is what was asked for.
fn switch(mut response: Response<Incoming>, asked: Option<HeaderValue>) -> Option<Outcome> {
    asked?;
    let protocol = response.headers().get(UPGRADE)?.clone();
    let upgrade = hyper::upgrade::on(&mut response);
    tidy(&mut response).ok()?;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(UPGRADE, protocol);
    let response = response.map(|_| Reply::whole(hyper::body::Bytes::new()));
    Some(Outcome::Tunnel(response, upgrade))
}
