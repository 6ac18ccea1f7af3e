//! One client's connection: TLS if there is any, then the HTTP that it speaks, until it ends, is
//! cut, or has been drained.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use super::client::Client;
use super::exchange;
use super::headers::Introduction;
use super::stalled::Streams;
use super::streams::{Cut, Felt, Pulse, Socket};
use super::ticks::Tick;
use super::tls::H2;
use super::worker::Worker;
use crate::doors::io::limits::Place;
use crate::metrics::Door;

/// What every HTTP/2 connection begins with, and no request of HTTP/1 does.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// The most requests of one HTTP/2 connection at a time.
const STREAMS_MAX: u32 = 250;
/// How many bytes of a body an HTTP/2 client may send before they are read.
pub(super) const STREAM_WINDOW: u32 = 256 << 10;
/// How often a silent HTTP/2 client is asked whether it still lives, and how long it has.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_PATIENCE: Duration = Duration::from_secs(20);
/// How long an idle HTTP/2 client has to take its leave, when it has been idle for too long and
/// when the proxy stops.
const GOODBYE_MAX: Duration = Duration::from_secs(1);
const GOODBYE_TICKS: Tick = 5;

/// Speaks with one client until the end.
pub(super) async fn converse(worker: Rc<Worker>, stream: TcpStream, peer: IpAddr, place: Place) {
    let pulse = Pulse::new(&worker.ticks, worker.patience, place);
    if let Err(cut) = greet(&worker, &pulse, stream, peer).await {
        let reason = match cut {
            // Nobody's fault.
            Cut::Idle | Cut::Left => return,
            Cut::SlowHead => "head_slow",
            Cut::SlowBody => "body_slow",
            Cut::SlowReader => "reader_slow",
            Cut::GaveWay => "gave_way",
        };
        worker.metrics.bad_input(Door::Proxy, reason);
    }
}

async fn greet(
    worker: &Rc<Worker>,
    pulse: &Rc<Pulse>,
    stream: TcpStream,
    peer: IpAddr,
) -> Result<(), Cut> {
    let (mut socket, agreed) = match worker.acceptor.tls() {
        None => (Socket::Plain(stream), None),
        Some(acceptor) => {
            // Idle until it begins: from then on it has the time of a head for the handshake.
            match pulse.bounds(before_end(worker, stream.peek(&mut [0]))).await? {
                Some(Ok(1..)) => pulse.has_read(),
                Some(_) | None => return Ok(()),
            }
            let Some(accepted) = pulse.bounds(before_end(worker, acceptor.accept(stream))).await?
            else {
                return Ok(());
            };
            let Ok(stream) = accepted else {
                worker.metrics.bad_input(Door::Proxy, "tls");
                return Ok(());
            };
            pulse.greeted();
            let agreed = stream.get_ref().1.alpn_protocol().map(|protocol| protocol == H2);
            (Socket::Tls(Box::new(TlsStream::Server(stream))), agreed)
        }
    };
    let (http2, early) = match agreed {
        Some(http2) => (http2, Vec::new()),
        None => match pulse.bounds(before_end(worker, sniff(&mut socket, pulse))).await? {
            Some(Ok(found)) => found,
            // Gone before it said anything, or too late to say it.
            Some(Err(_)) | None => return Ok(()),
        },
    };
    let tls = matches!(socket, Socket::Tls(_));
    let socket = Rc::new(RefCell::new(socket));
    let io = Felt::new(socket.clone(), pulse.clone(), early);
    let trusted = worker.trusts(peer);
    let client = Rc::new(Client {
        worker: worker.clone(),
        pulse: pulse.clone(),
        introduction: Introduction::new(peer, trusted, tls).into(),
        tunnel: Cell::new(None),
        stream: Cell::new(None),
        socket: (!http2).then_some(socket),
    });
    if http2 { speak_http2(client, io).await } else { speak_http1(client, io).await }
}

/// Waits for a client to begin; `None` if the proxy stops before it has: what it may have begun to
/// say is no request yet.
async fn before_end<F: Future>(worker: &Worker, beginning: F) -> Option<F::Output> {
    let mut beginning = pin!(beginning);
    poll_fn(|context| match beginning.as_mut().poll(context) {
        Poll::Pending if worker.is_draining() => Poll::Ready(None),
        polled => polled.map(Some),
    })
    .await
}

/// Reads just enough to tell which HTTP is spoken.
async fn sniff(socket: &mut Socket, pulse: &Pulse) -> io::Result<(bool, Vec<u8>)> {
    let mut early = [0; PREFACE.len()];
    let mut count = 0;
    while count < early.len() && early[..count] == PREFACE[..count] {
        let mut buffer = ReadBuf::new(&mut early[count..]);
        poll_fn(|context| Pin::new(&mut *socket).poll_read(context, &mut buffer)).await?;
        match buffer.filled().len() {
            0 if count == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            0 => break,
            more => {
                pulse.has_read();
                count += more;
            }
        }
    }
    Ok((early[..count] == PREFACE[..], early[..count].to_vec()))
}

async fn speak_http1(client: Rc<Client>, io: Felt) -> Result<(), Cut> {
    let worker = client.worker.clone();
    let service = {
        let client = client.clone();
        service_fn(move |request| exchange::answer(client.clone(), request))
    };
    let mut connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(io), service);
    let mut told = false;
    let conversation = poll_fn(|context| {
        let mut connection = Pin::new(&mut connection);
        if worker.is_draining() && !told {
            told = true;
            connection.as_mut().graceful_shutdown();
        }
        match connection.poll(context) {
            // What has come of a head is no request yet, and the end does not wait for one.
            Poll::Pending if told && !client.pulse.is_busy() => Poll::Ready(Ok(())),
            polled => polled,
        }
    });
    let ended = client.pulse.bounds(conversation).await?;
    if let Err(error) = &ended
        && error.is_parse()
    {
        worker.metrics.bad_input(Door::Proxy, "http");
    }
    let Some(tunnel) = client.tunnel.take() else { return Ok(()) };
    if ended.is_ok() {
        client.pulse.tunnel();
        let parts = connection.into_parts();
        let io = parts.io.into_inner().after(&parts.read_buf);
        tunnel.run(io, &worker.ticks, worker.patience.tunnel).await;
    }
    Ok(())
}

async fn speak_http2(client: Rc<Client>, io: Felt) -> Result<(), Cut> {
    let worker = client.worker.clone();
    let service = {
        let client = client.clone();
        service_fn(move |request| exchange::answer(client.clone(), request))
    };
    let mut connection = pin!(
        http2::Builder::new(Streams(client.clone()))
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_PATIENCE)
            .max_concurrent_streams(STREAMS_MAX)
            .initial_stream_window_size(STREAM_WINDOW)
            .max_header_list_size(HEAD_BYTES_MAX as u32)
            .serve_connection(TokioIo::new(io), service)
    );
    client.pulse.share();
    let mut told = false;
    let goodbye = worker.ticks.deadline();
    let conversation = poll_fn(|context| {
        if worker.is_draining() && !told {
            told = true;
            connection.as_mut().graceful_shutdown();
        }
        if let Poll::Ready(ended) = connection.as_mut().poll(context) {
            return Poll::Ready(ended);
        }
        // A client that is at nothing is not waited for if it does not take its leave.
        match told && !client.pulse.is_busy() {
            true => goodbye.no_later(GOODBYE_TICKS),
            false => goodbye.clear(),
        }
        goodbye.poll(context).map(Ok)
    });
    match client.pulse.bounds(conversation).await {
        // How a connection ended says nothing about the requests that it carried.
        Ok(_) => Ok(()),
        Err(Cut::Idle) => {
            // A request may be on its way: the client is told which ones were seen.
            connection.as_mut().graceful_shutdown();
            let _ = tokio::time::timeout(GOODBYE_MAX, connection).await;
            Ok(())
        }
        Err(Cut::GaveWay) => {
            // The same, but its place is taken: what leaves at once is all that it is told.
            connection.as_mut().graceful_shutdown();
            let last = |context: &mut Context<'_>| {
                let _ = connection.as_mut().poll(context);
                Poll::Ready(())
            };
            poll_fn(last).await;
            Err(Cut::GaveWay)
        }
        Err(cut) => Err(cut),
    }
}
