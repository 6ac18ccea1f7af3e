//! One client's connection: TLS if there is any, then HTTP/1 or HTTP/2, until the client closes it,
//! breaks a timeout, or the proxy stops.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio_rustls::TlsStream;

use super::client_activity::ClientActivity;
use super::exchange;
use super::headers::ForwardedClient;
use super::ticks::{Deadline, Tick};
use super::tunnel::Tunnel;
use super::worker::Worker;
use super::{H2, MaybeTls};
use crate::doors::io::activity::Cut;
use crate::doors::io::client_socket::{ClientSocket, CloseWatch};
use crate::doors::io::limits::ConnectionPlace;

/// What every HTTP/2 connection begins with, and no request of HTTP/1 does.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// The most requests of one HTTP/2 connection at a time.
const STREAMS_MAX: u32 = 250;
/// How many bytes of a body an HTTP/2 client may send before they are read.
pub(super) const STREAM_WINDOW: u32 = 256 << 10;
/// How often a silent HTTP/2 client is pinged, and how long it has to answer.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// How long an idle HTTP/2 client has to close the connection after GOAWAY: when it was idle for
/// too long, and when the proxy stops.
const GOAWAY_MAX: Duration = Duration::from_secs(1);
const GOAWAY_TICKS: Tick = 5;

/// What all requests of a connection share.
pub(super) struct ProxyClient {
    pub(super) worker: Rc<Worker>,
    pub(super) activity: Rc<ClientActivity>,
    pub(super) forwarded: ForwardedClient,
    /// Set by a request whose connection goes on as a tunnel once the response is sent.
    pub(super) tunnel: Cell<Option<Tunnel>>,
    /// The stall deadline of the HTTP/2 stream that is being polled, see [`Streams`].
    pub(super) stream_stall: Cell<Option<Rc<Deadline>>>,
    /// Absent over HTTP/2, where hyper drops the requests of a client that has left.
    pub(super) close_watch: Option<CloseWatch>,
}

/// Serves one client until the connection ends.
pub(super) async fn serve(
    worker: Rc<Worker>,
    stream: TcpStream,
    peer: IpAddr,
    place: ConnectionPlace,
) {
    let activity = ClientActivity::new(&worker.ticks, worker.client_timeouts, place);
    let served = serve_within_timeouts(&worker, &activity, stream, peer).await;
    if let Some(reason) = served.err().and_then(Cut::reason) {
        worker.door.acceptor.bad_input(reason);
    }
    if activity.has_tls_fault() {
        worker.door.acceptor.bad_input("tls");
    }
}

async fn serve_within_timeouts(
    worker: &Rc<Worker>,
    activity: &Rc<ClientActivity>,
    stream: TcpStream,
    peer: IpAddr,
) -> Result<(), Cut> {
    let acceptor = worker.door.acceptor.tls();
    if acceptor.is_some() {
        // The client is idle until it begins. From then on it has the time of a head for the
        // handshake.
        match activity.bounds(unless_draining(worker, stream.peek(&mut [0]))).await? {
            Some(Ok(1..)) => activity.has_read(),
            Some(_) | None => return Ok(()),
        }
    }
    let socket = ClientSocket::new(stream);
    let close_watch = socket.close_watch();
    let tls = acceptor.is_some();
    let (mut socket, agreed) = match acceptor {
        None => (MaybeTls::Left(socket), None),
        Some(acceptor) => {
            let accepting = unless_draining(worker, acceptor.accept(socket));
            let accepted = activity.bounds(accepting).await.map_err(Cut::in_handshake)?;
            let stream = match accepted {
                Some(Ok(stream)) => stream,
                Some(Err(error)) => {
                    activity.note_error(&error);
                    return Ok(());
                }
                None => return Ok(()),
            };
            activity.end_handshake();
            let agreed = stream.get_ref().1.alpn_protocol().map(|protocol| protocol == H2);
            (MaybeTls::Right(Box::new(TlsStream::Server(stream))), agreed)
        }
    };
    let (http2, early) = match agreed {
        Some(http2) => (http2, BytesMut::new()),
        None => match activity.bounds(unless_draining(worker, sniff(&mut socket, activity))).await?
        {
            Some(Ok(found)) => found,
            // The client left before it sent anything, or what it sent was no TLS.
            Some(Err(error)) => {
                activity.note_error(&error);
                return Ok(());
            }
            None => return Ok(()),
        },
    };
    let io = ClientStream { socket, activity: activity.clone(), early, is_http: true };
    let client = Rc::new(ProxyClient {
        worker: worker.clone(),
        activity: activity.clone(),
        forwarded: ForwardedClient::new(peer, worker.trusts(peer), tls),
        tunnel: Cell::new(None),
        stream_stall: Cell::new(None),
        close_watch: (!http2).then_some(close_watch),
    });
    if http2 { serve_http2(client, io).await } else { serve_http1(client, io).await }
}

/// Waits for a client's first bytes; `None` if the proxy stops first. What the client has sent by
/// then is no request yet.
async fn unless_draining<F: Future>(worker: &Worker, beginning: F) -> Option<F::Output> {
    let mut beginning = pin!(beginning);
    poll_fn(|context| match beginning.as_mut().poll(context) {
        Poll::Pending if worker.is_draining() => Poll::Ready(None),
        polled => polled.map(Some),
    })
    .await
}

/// Reads just enough to tell whether the client speaks HTTP/2. Returns what it read.
async fn sniff(
    socket: &mut MaybeTls<ClientSocket>,
    activity: &ClientActivity,
) -> io::Result<(bool, BytesMut)> {
    let mut early = BytesMut::with_capacity(PREFACE.len());
    while early.len() < PREFACE.len() && PREFACE.starts_with(&early) {
        let missing = PREFACE.len() - early.len();
        match (&mut *socket).take(missing as u64).read_buf(&mut early).await? {
            0 if early.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            0 => break,
            _ => activity.has_read(),
        }
    }
    Ok((early[..] == PREFACE[..], early))
}

async fn serve_http1(client: Rc<ProxyClient>, io: ClientStream) -> Result<(), Cut> {
    let worker = client.worker.clone();
    let service = service_fn(|request| exchange::respond(client.clone(), request));
    let mut connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(io), service);
    let mut draining = false;
    let serving = poll_fn(|context| {
        let mut connection = Pin::new(&mut connection);
        if worker.is_draining() && !draining {
            draining = true;
            connection.as_mut().graceful_shutdown();
        }
        match connection.poll(context) {
            // A part of a head is no request: the proxy does not wait for the rest.
            Poll::Pending if draining && !client.activity.is_busy() => Poll::Ready(Ok(())),
            polled => polled,
        }
    });
    let ended = client.activity.bounds(serving).await?;
    if let Err(error) = &ended
        && error.is_parse()
    {
        worker.door.acceptor.bad_input("http");
    }
    let Some(tunnel) = client.tunnel.take() else { return Ok(()) };
    if ended.is_ok() {
        client.activity.begin_tunnel();
        let parts = connection.into_parts();
        let mut io = parts.io.into_inner();
        io.early.extend_from_slice(&parts.read_buf);
        io.is_http = false;
        tunnel.run(io, &worker.ticks, worker.client_timeouts.tunnel).await;
    }
    Ok(())
}

async fn serve_http2(client: Rc<ProxyClient>, io: ClientStream) -> Result<(), Cut> {
    let worker = client.worker.clone();
    let service = {
        let client = client.clone();
        service_fn(move |request| exchange::respond(client.clone(), request))
    };
    let mut connection = pin!(
        http2::Builder::new(Streams(client.clone()))
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .max_concurrent_streams(STREAMS_MAX)
            .initial_stream_window_size(STREAM_WINDOW)
            .max_header_list_size(HEAD_BYTES_MAX as u32)
            .serve_connection(TokioIo::new(io), service)
    );
    client.activity.begin_multiplexing();
    let mut draining = false;
    let goaway = worker.ticks.deadline();
    let serving = poll_fn(|context| {
        if worker.is_draining() && !draining {
            draining = true;
            connection.as_mut().graceful_shutdown();
        }
        if let Poll::Ready(ended) = connection.as_mut().poll(context) {
            return Poll::Ready(ended);
        }
        // A client without a request that does not close the connection is not waited for.
        match draining && !client.activity.is_busy() {
            true => goaway.no_later(GOAWAY_TICKS),
            false => goaway.clear(),
        }
        goaway.poll(context).map(Ok)
    });
    match client.activity.bounds(serving).await {
        // How a connection ended says nothing about the requests that it carried.
        Ok(_) => Ok(()),
        Err(Cut::Idle) => {
            // A request may be on its way: GOAWAY tells the client which ones were seen.
            connection.as_mut().graceful_shutdown();
            let _ = tokio::time::timeout(GOAWAY_MAX, connection).await;
            Ok(())
        }
        Err(Cut::GaveWay) => {
            // The same, but another client has the place: one poll must send it.
            connection.as_mut().graceful_shutdown();
            poll_fn(|context| Poll::Ready(connection.as_mut().poll(context).is_ready())).await;
            Err(Cut::GaveWay)
        }
        Err(cut) => Err(cut),
    }
}

/// Runs the streams of one HTTP/2 client.
///
/// A client may close the window of one stream and go on with the others. hyper then stops polling
/// the body of that response, and nothing happens on the socket. So each stream has a deadline: the
/// body sets it when it hands out a part, and clears it when it is polled for the next. When the
/// deadline comes, the stream is dropped, which resets it alone.
#[derive(Clone)]
struct Streams(Rc<ProxyClient>);

impl<F> Executor<F> for Streams
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, stream: F) {
        let client = self.0.clone();
        spawn_local(async move {
            let stall = Rc::new(client.worker.ticks.deadline());
            let mut stream = pin!(stream);
            let stalled = poll_fn(|context| {
                // The request of this stream takes it when it is polled for the first time.
                client.stream_stall.set(Some(stall.clone()));
                let polled = stream.as_mut().poll(context);
                client.stream_stall.take();
                match polled {
                    Poll::Ready(_) => Poll::Ready(false),
                    Poll::Pending => stall.poll(context).map(|()| true),
                }
            });
            if stalled.await {
                client.worker.door.acceptor.bad_input("reader_slow");
            }
        });
    }
}

/// Reads from bytes that were taken off a stream before, if there are any left.
pub(super) fn read_early(early: &mut BytesMut, buffer: &mut ReadBuf<'_>) -> bool {
    let count = early.len().min(buffer.remaining());
    buffer.put_slice(&early[..count]);
    early.advance(count);
    count > 0
}

/// A client's socket as hyper reads and writes it. It reports to the client's activity.
struct ClientStream {
    socket: MaybeTls<ClientSocket>,
    activity: Rc<ClientActivity>,
    /// What was read before it was known what the client speaks.
    early: BytesMut,
    /// Whether it is HTTP, and no tunnel.
    is_http: bool,
}

impl ClientStream {
    fn wrote(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(polled, Poll::Ready(Ok(1..))) {
            self.activity.has_written();
        }
        self.flushed(polled)
    }

    fn flushed<T>(&self, polled: Poll<T>) -> Poll<T> {
        self.activity.set_write_blocked(polled.is_pending());
        polled
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if read_early(&mut self.early, buffer) {
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.socket).poll_read(context, buffer);
        if let Poll::Ready(Err(error)) = &polled {
            self.activity.note_error(error);
        }
        if buffer.filled().len() > before {
            self.activity.has_read();
        } else if matches!(polled, Poll::Ready(Ok(())))
            && buffer.remaining() > 0
            && self.is_http
            && self.activity.hides_end(context)
        {
            return Poll::Pending;
        }
        polled
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.wrote(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write_vectored(context, parts);
        self.wrote(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.socket).poll_flush(context);
        self.flushed(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.socket).poll_shutdown(context);
        self.flushed(polled)
    }
}
