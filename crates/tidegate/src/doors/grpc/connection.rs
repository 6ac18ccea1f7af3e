//! One client's connection: TLS if there is any, then HTTP/2, until the client closes it, it is too
//! old or idle, or the door closes.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tidegate_core::Nanos;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::time::{sleep, timeout};
use tonic::body::Body;
use tonic::service::Routes;
use tower::ServiceExt as _;

use super::call_body::CallBody;
use super::call_counts::{CallCounts, Method, Sends};
use super::health_askers::{HealthAsker, HealthAskers};
use crate::clock::Clock;
use crate::doors::io::accept::{Acceptor, is_tls_fault};
use crate::doors::io::held_bytes::ConnectionBytes;
use crate::doors::io::limits::ConnectionPlace;
use crate::doors::io::tcp;

/// How long a client may take for its TLS handshake and the first bytes of HTTP/2.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// What every HTTP/2 connection begins with has so many bytes.
const PREFACE_BYTES: usize = 24;
/// The most calls of one connection at a time.
const CALLS_MAX: u32 = 1_000;
/// The most calls of one connection that are cancelled before the server has seen them. An Envoy
/// has one connection for many clients, and cancels the calls of all that leave in one write. Where
/// it sends more, the connection ends with all calls on it, which Envoy then lets pass.
const CANCELLED_MAX: usize = 4_000;
/// The most bytes of a call's headers.
const HEADER_BYTES_MAX: u32 = 64 << 10;
/// How often a silent client is pinged, and how long it has to answer.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// How long streams may go on when a connection is too old.
const AGE_GRACE: Duration = Duration::from_secs(60);
/// How long a connection must be without a call before it is closed when the door closes.
const REST_AT_END: Duration = Duration::from_millis(250);
/// How often the door looks whether all clients know that it closes.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The paths of the health service begin with this. A client that calls `Check` must ask again to
/// hear that the door closes; one that calls `Watch` is told by the service.
const HEALTH_PATH: &str = "/grpc.health.";
const HEALTH_CHECK_PATH: &str = "/grpc.health.v1.Health/Check";

/// How long a connection lasts.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionTimes {
    /// Without a call. `None`: for ever.
    pub(super) idle_max: Option<Duration>,
    pub(super) age_max: Duration,
}

/// What the connections of the door share.
pub(super) struct GrpcServer {
    pub(super) acceptor: Acceptor,
    pub(super) routes: Routes,
    pub(super) times: ConnectionTimes,
    pub(super) clock: Clock,
    pub(super) counts: Arc<CallCounts>,
    /// When the last call came, on the monotonic clock. Calls of the health service do not count.
    pub(super) called_at: AtomicU64,
    pub(super) health: Arc<HealthAskers>,
}

impl GrpcServer {
    /// Waits until clients ask another server: until all that check health have heard that the door
    /// closes, and no call has come for a moment; at most half of `grace`. An Envoy whose
    /// connection ends before it has heard connects anew, and lets requests pass when it cannot.
    pub(super) async fn wait_until_clients_left(&self, grace: Option<Duration>) {
        let quiet = async {
            let mut told_at = 0;
            loop {
                let now = self.clock.now().mono;
                if !self.health.all_know() {
                    told_at = now;
                    sleep(LOOK_EVERY).await;
                    continue;
                }
                let since = now.saturating_sub(self.called_at.load(Relaxed).max(told_at));
                match REST_AT_END.checked_sub(Duration::from_nanos(since)) {
                    None | Some(Duration::ZERO) => return,
                    Some(left) => sleep(left).await,
                }
            }
        };
        let _ = timeout(grace.unwrap_or_default() / 2, quiet).await;
    }

    /// Accepts over TCP until the door closes.
    pub(super) async fn accept(self: Arc<Self>, listener: std::net::TcpListener) {
        let Ok(listener) = TcpListener::from_std(listener) else {
            return tracing::error!(door = "grpc", "cannot listen");
        };
        let welcome = |stream, _, place| {
            if tcp::set_stream_options(&stream).is_ok() {
                let server = self.clone();
                tokio::spawn(async move { server.converse(stream, place, true).await });
            }
        };
        self.acceptor.run(listener, welcome).await;
    }

    /// Accepts at a Unix socket until the door closes.
    pub(super) async fn accept_unix(self: Arc<Self>, listener: std::os::unix::net::UnixListener) {
        let listener = match listener.set_nonblocking(true) {
            Ok(()) => UnixListener::from_std(listener),
            Err(error) => Err(error),
        };
        let Ok(listener) = listener else {
            return tracing::error!(door = "grpc", "cannot listen");
        };
        let welcome = |stream, place| {
            let server = self.clone();
            tokio::spawn(async move { server.converse(stream, place, false).await });
        };
        self.acceptor.run_unix(listener, welcome).await;
    }

    /// Serves one client.
    async fn converse<T>(&self, stream: T, _place: ConnectionPlace, may_be_tls: bool)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let reason = match self.acceptor.tls().filter(|_| may_be_tls) {
            None => self.serve_http2(stream).await,
            Some(tls) => {
                let shaken = tokio::select! {
                    shaken = timeout(HANDSHAKE_MAX, tls.accept(stream)) => shaken,
                    () = self.acceptor.shutdown.wait() => return,
                };
                match shaken {
                    Ok(Ok(stream)) => self.serve_http2(stream).await,
                    Ok(Err(error)) => is_tls_fault(&error).then_some("tls"),
                    Err(_) => Some("handshake_slow"),
                }
            }
        };
        if let Some(reason) = reason {
            self.acceptor.bad_input(reason);
        }
    }

    /// Serves HTTP/2 until the connection ends. If that is the client's fault, returns the reason
    /// by which it is counted.
    async fn serve_http2<T>(&self, stream: T) -> Option<&'static str>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let calls = Arc::new(Calls::new(&self.clock, &self.health));
        let held = ConnectionBytes::new(&self.counts.held);
        let service = service_fn(|request| self.answer(request, &calls, &held));
        let stream = CountingStream { stream, calls: calls.clone() };
        let mut connection = pin!(
            http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(PING_EVERY)
                .keep_alive_timeout(PING_TIMEOUT)
                .max_concurrent_streams(CALLS_MAX)
                .max_pending_accept_reset_streams(CANCELLED_MAX)
                .max_header_list_size(HEADER_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service)
        );
        let ended = tokio::select! {
            ended = connection.as_mut() => return fault(ended),
            why = self.wait_for_end(&calls) => why,
        };
        if ended == End::NoPreface {
            return Some("handshake_slow");
        }
        // GOAWAY tells the client which calls are answered; it connects anew for the next.
        connection.as_mut().graceful_shutdown();
        let rest = async {
            match ended {
                End::Shutdown => calls.rests().await,
                _ => tokio::select! {
                    () = sleep(AGE_GRACE) => {}
                    () = self.acceptor.shutdown.wait() => calls.rests().await,
                },
            }
        };
        tokio::select! {
            _ = connection => {}
            () = rest => {}
        }
        None
    }

    /// Answers a call, if there is room for it. Its bytes are given back when the client has taken
    /// the answer.
    fn answer(
        &self,
        mut request: Request<Incoming>,
        calls: &Arc<Calls>,
        held: &Arc<ConnectionBytes>,
    ) -> impl Future<Output = Result<Response<Body>, Infallible>> + Send + use<> {
        let answering = Answering::begin(calls);
        let path = request.uri().path();
        if !path.starts_with(HEALTH_PATH) {
            self.called_at.store(self.clock.now().mono, Relaxed);
        }
        let health = (path == HEALTH_CHECK_PATH).then(|| calls.health.is_closing());
        let (number, method) = Method::of(path);
        let counts = self.counts.clone();
        let begun = held.begin(head_bytes(&request)).map(|held| {
            if method.sends == Sends::Reports {
                // Answers that are not taken are held, too.
                request.extensions_mut().insert(held.clone());
            }
            let body = |body| CallBody::new(body, held.clone(), counts.clone(), method.sends);
            (self.routes.clone().oneshot(request.map(body)), held)
        });
        async move {
            let response = match begun {
                None => counts.overload().into_http(),
                Some((answer, held)) => {
                    let open = OpenCall::begin(&answering.0);
                    answer.await?.map(|body| {
                        Body::new(body.map_frame(move |frame| {
                            let _until_taken = (&held, &open);
                            frame
                        }))
                    })
                }
            };
            counts.answered(number, response.headers());
            if let Some(was_closing) = health {
                answering.0.health.answered(was_closing);
            }
            drop(answering);
            Ok(response)
        }
    }

    /// Waits until the server has a reason to end a connection.
    async fn wait_for_end(&self, calls: &Calls) -> End {
        let slow = async {
            sleep(HANDSHAKE_MAX).await;
            if calls.read.load(Relaxed) >= PREFACE_BYTES {
                std::future::pending::<()>().await;
            }
        };
        let end = tokio::select! {
            () = slow => End::NoPreface,
            () = sleep(jittered(self.times.age_max, self.clock.now().mono)) => End::Age,
            () = calls.idle_for(self.times.idle_max) => End::Idle,
            () = self.acceptor.shutdown.wait() => return End::Shutdown,
        };
        // A client that has not begun to speak HTTP/2 has no calls that could be answered.
        if calls.read.load(Relaxed) < PREFACE_BYTES { End::NoPreface } else { end }
    }
}

/// Why the server ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    NoPreface,
    Age,
    Idle,
    Shutdown,
}

/// The bytes of a call's headers.
fn head_bytes(request: &Request<Incoming>) -> usize {
    let headers = request.headers().iter();
    headers.map(|(name, value)| name.as_str().len() + value.len()).sum()
}

/// What is counted of a connection that the client has ended.
fn fault(ended: hyper::Result<()>) -> Option<&'static str> {
    let error = ended.err()?;
    // A client that leaves is not at fault; one that speaks another protocol is.
    let source = std::error::Error::source(&error).and_then(|why| why.downcast_ref::<h2::Error>());
    source.is_some_and(|why| !why.is_io() && !why.is_remote()).then_some("http")
}

/// A tenth more or less, so that the clients of one start do not come back at one moment.
fn jittered(span: Duration, seed: Nanos) -> Duration {
    span.mul_f64(0.9 + 0.2 * (seed % 1_000) as f64 / 1_000.0)
}

/// The calls of one connection.
struct Calls {
    clock: Clock,
    /// Bytes that were read.
    read: AtomicUsize,
    answering: AtomicUsize,
    /// Calls whose answers have not ended, or are not taken: those of streams, too.
    open: AtomicUsize,
    /// When the last one was answered or ended, on the monotonic clock.
    answered_at: AtomicU64,
    health: HealthAsker,
}

impl Calls {
    fn new(clock: &Clock, health: &Arc<HealthAskers>) -> Self {
        let answered_at = AtomicU64::new(clock.now().mono);
        let [read, answering, open] = [0; 3].map(AtomicUsize::new);
        let health = HealthAsker::new(health);
        Self { clock: clock.clone(), read, answering, open, answered_at, health }
    }

    /// Waits until there was no open call for so long.
    async fn idle_for(&self, most: Option<Duration>) {
        match most {
            Some(most) => self.without(&self.open, most).await,
            None => std::future::pending().await,
        }
    }

    /// Waits until the last call was answered a moment ago. Streams are not waited for.
    async fn rests(&self) {
        sleep(REST_AT_END).await;
        self.without(&self.answering, REST_AT_END).await;
    }

    /// Waits until for so long there was none of these calls.
    async fn without(&self, these: &AtomicUsize, span: Duration) {
        loop {
            let since = match these.load(Relaxed) {
                0 => self.clock.now().mono.saturating_sub(self.answered_at.load(Relaxed)),
                _ => 0,
            };
            match span.checked_sub(Duration::from_nanos(since)) {
                None | Some(Duration::ZERO) => return,
                Some(left) => sleep(left).await,
            }
        }
    }
}

/// A call that is being answered.
struct Answering(Arc<Calls>);

impl Answering {
    fn begin(calls: &Arc<Calls>) -> Self {
        calls.answering.fetch_add(1, Relaxed);
        Self(calls.clone())
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.answered_at.store(self.0.clock.now().mono, Relaxed);
        self.0.answering.fetch_sub(1, Relaxed);
    }
}

/// A call whose answer has not ended, or is not taken.
struct OpenCall(Arc<Calls>);

impl OpenCall {
    fn begin(calls: &Arc<Calls>) -> Self {
        calls.open.fetch_add(1, Relaxed);
        Self(calls.clone())
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.0.answered_at.store(self.0.clock.now().mono, Relaxed);
        self.0.open.fetch_sub(1, Relaxed);
    }
}

/// A stream whose bytes are counted as they are read.
struct CountingStream<T> {
    stream: T,
    calls: Arc<Calls>,
}

impl<T: AsyncRead + Unpin> AsyncRead for CountingStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.calls.read.fetch_add(buffer.filled().len() - before, Relaxed);
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CountingStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Now;
    use tidegate_core::time::{HOUR, SECOND};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_only_without_streams() {
        let clock = Clock::manual(Now { mono: HOUR, unix: HOUR });
        let calls = Arc::new(Calls::new(&clock, &Arc::default()));
        let is_idle = || async {
            let idle = calls.idle_for(Some(Duration::from_secs(1)));
            timeout(Duration::from_secs(60), idle).await.is_ok()
        };
        let stream = OpenCall::begin(&calls);
        clock.advance(HOUR);
        assert!(!is_idle().await, "the stream is open");
        calls.rests().await;
        drop(stream);
        assert!(!is_idle().await, "the stream was open a moment ago");
        clock.advance(SECOND);
        assert!(is_idle().await);
    }
}
