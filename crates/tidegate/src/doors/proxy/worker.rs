//! One loop of a proxy: a thread with a tokio runtime, and what the connections on it share.
//!
//! Connections stay on the loop that accepted them. Loops share only the limiter, and counters that
//! are added up when they are read.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Nanos;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::ProxyDoor;
use super::client_activity::ClientTimeouts;
use super::config::OnLimit;
use super::connection;
use super::figures::{LoopFigures, UPSTREAM_ERRORS, UpstreamError};
use super::ticks::{TICK_SPAN, Tick, Ticks, ticks_in};
use super::upstream::Upstream;
use crate::doors::io::limits::ConnectionPlace;
use crate::doors::io::tcp;
use crate::doors::template::{Scratch, Template};
use crate::limiter::LimiterHandle;
use crate::metrics::Door;
use crate::waiting::WaitRequest;

/// How long a proxy may take to stop if nothing else is said.
const GRACE_DEFAULT: Duration = Duration::from_secs(10);
/// The last part of the grace, in which requests that still wait are answered with 503: a tenth of
/// it, but no more than this.
const LAST_CALL_MAX: Duration = Duration::from_secs(1);
/// How often idle connections to the upstream are checked, in ticks.
const SWEEP_EVERY: Tick = 10;
/// The least number of ticks between two log lines about one kind of failure.
const LOG_EVERY: Tick = 100;

/// What the connections of one loop share.
pub(super) struct Worker {
    pub(super) door: Arc<ProxyDoor>,
    pub(super) template: Template,
    pub(super) ticks: Rc<Ticks>,
    pub(super) scratch: RefCell<Scratch>,
    pub(super) handle: LimiterHandle,
    pub(super) client_timeouts: ClientTimeouts,
    pub(super) upstream: Rc<Upstream>,
    pub(super) figures: Arc<LoopFigures>,
    /// How long a request may wait; 0 where requests are rejected instead.
    max_wait: Option<Nanos>,
    failures: [LogThrottle; UPSTREAM_ERRORS.len()],
    draining: Cell<bool>,
    last_call: Cell<bool>,
    connections: Cell<usize>,
    /// Notified when the last connection ends.
    empty: Notify,
}

impl Worker {
    fn new(door: &Arc<ProxyDoor>) -> Rc<Self> {
        let ProxyDoor { config, gate, figures, .. } = &**door;
        let ticks = Rc::new(Ticks::default());
        ticks.advance(Ticks::of(gate.clock().now().mono));
        let loop_figures = figures.for_loop();
        let (tls, of_loop) = (door.upstream_tls.clone(), loop_figures.clone());
        let upstream = Upstream::new(config, tls, ticks.clone(), of_loop, figures.clone());
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Rc::new(Self {
            door: door.clone(),
            template: config.key.clone().unwrap_or_default(),
            ticks,
            scratch: RefCell::default(),
            handle: gate.limiter.handle(Door::Proxy),
            client_timeouts: ClientTimeouts {
                head: ticks_in(config.head_timeout.0),
                idle: ticks_in(config.idle_timeout.0),
                stall: ticks_in(config.stall_timeout.0),
                tunnel: ticks_in(config.tunnel_timeout.0),
            },
            upstream,
            figures: loop_figures,
            max_wait: match config.on_limit {
                OnLimit::Wait => config.max_wait.map(|span| nanos(span.0)),
                OnLimit::Reject => Some(0),
            },
            failures: Default::default(),
            draining: Cell::new(false),
            last_call: Cell::new(false),
            connections: Cell::new(0),
            empty: Notify::new(),
        })
    }

    /// What a request with this key asks of the limiter.
    pub(super) fn wait_request<'a>(&self, key: &'a [u8]) -> WaitRequest<'a> {
        WaitRequest { key, cost: 1, max_wait: self.max_wait, can_end: true }
    }

    /// Whether `peer` may say on whose behalf it sends a request.
    pub(super) fn trusts(&self, peer: IpAddr) -> bool {
        let trusted = &self.door.config.trusted_proxies;
        !trusted.is_open() && trusted.permits(peer)
    }

    /// Whether connections must end with the request that is in progress.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Whether requests that wait must be answered with 503.
    pub(super) fn is_last_call(&self) -> bool {
        self.last_call.get()
    }

    /// Counts a request that failed at the upstream, and logs a line now and then.
    pub(super) fn upstream_failed(&self, error: UpstreamError) {
        self.figures.failed(error);
        let what = match error {
            // Logged where connections are made, when that begins and when it ends.
            UpstreamError::Connect | UpstreamError::BackingOff => return,
            UpstreamError::Timeout => "the upstream did not answer in time",
            UpstreamError::Closed => "the upstream closed before it answered",
            UpstreamError::Body => "the upstream closed the connection within its answer",
            UpstreamError::Protocol => "the upstream's answer is not valid HTTP",
        };
        if let Some(requests) = self.failures[error as usize].count(self.ticks.now()) {
            tracing::warn!(proxy = %self.door.name(), requests, "{what}");
        }
    }

    fn welcome(self: &Rc<Self>, stream: TcpStream, peer: SocketAddr, place: ConnectionPlace) {
        if tcp::set_stream_options(&stream).is_err() {
            return;
        }
        let guard = ConnectionGuard::new(self.clone());
        let worker = self.clone();
        spawn_local(async move {
            connection::serve(worker, stream, peer.ip(), place).await;
            drop(guard);
        });
    }

    /// Moves the coarse clock on.
    async fn keep_ticking(self: Rc<Self>) {
        let mut timer = interval(TICK_SPAN);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            timer.tick().await;
            let now = Ticks::of(self.handle.now().mono);
            self.ticks.advance(now);
            if now.is_multiple_of(SWEEP_EVERY) {
                self.upstream.sweep();
            }
        }
    }

    /// Lets every connection end with the request that is in progress, and sends 503 to requests
    /// that still wait near the end of the grace. Returns when no connection is left or the grace
    /// is over.
    async fn drain(&self) {
        let grace = self.door.acceptor.shutdown.grace().unwrap_or(GRACE_DEFAULT);
        let last_call = (grace / 10).min(LAST_CALL_MAX);
        self.draining.set(true);
        self.upstream.close_idle();
        self.ticks.wake_all();
        let empty = async {
            while self.connections.get() > 0 {
                self.empty.notified().await;
            }
            self.upstream.all_sent().await;
        };
        let in_time = async {
            sleep(grace - last_call).await;
            self.last_call.set(true);
            self.ticks.wake_all();
            sleep(last_call).await;
        };
        tokio::select! {
            () = empty => {}
            () = in_time => {}
        }
    }
}

/// Counts a connection until it is dropped.
struct ConnectionGuard(Rc<Worker>);

impl ConnectionGuard {
    fn new(worker: Rc<Worker>) -> Self {
        worker.connections.set(worker.connections.get() + 1);
        worker.figures.connections(1);
        Self(worker)
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let Self(worker) = self;
        worker.figures.connections(-1);
        worker.connections.set(worker.connections.get() - 1);
        if worker.connections.get() == 0 {
            worker.empty.notify_one();
        }
    }
}

/// When a kind of failure was last logged, and how often it has happened since.
#[derive(Default)]
struct LogThrottle {
    at: Cell<Option<Tick>>,
    since: Cell<u64>,
}

impl LogThrottle {
    /// Counts one failure. Returns how many there were since the last line, if a line is due.
    fn count(&self, now: Tick) -> Option<u64> {
        let count = self.since.get() + 1;
        let due = self.at.get().is_none_or(|at| now >= at + LOG_EVERY);
        self.since.set(if due { 0 } else { count });
        if due {
            self.at.set(Some(now));
        }
        due.then_some(count)
    }
}

/// Serves until shutdown, on the thread that calls it.
///
/// # Panics
/// If the system refuses an epoll at start-up.
pub(super) fn run(door: &Arc<ProxyDoor>, listeners: Vec<TcpListener>) {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
    let runtime = runtime.expect("the system has file descriptors left at start-up");
    runtime.block_on(async {
        let worker = Worker::new(door);
        spawn_local(worker.clone().keep_ticking());
        let mut accepting = Vec::new();
        for listener in listeners {
            let listener = tokio::net::TcpListener::from_std(listener);
            let listener = listener.expect("a listener can be watched at start-up");
            let worker = worker.clone();
            accepting.push(spawn_local(async move {
                let welcome = |stream, peer, place| worker.welcome(stream, peer, place);
                worker.door.acceptor.run(listener, welcome).await;
            }));
        }
        door.acceptor.shutdown.wait().await;
        for task in accepting {
            let _ = task.await;
        }
        door.release_listener();
        worker.drain().await;
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_logged_at_once_and_the_others_with_the_next_line() {
        let throttle = LogThrottle::default();
        assert_eq!(throttle.count(1000), Some(1));
        assert_eq!((throttle.count(1000), throttle.count(1099)), (None, None));
        assert_eq!(throttle.count(1100), Some(3));
        assert_eq!(throttle.count(1101), None);
        assert_eq!(throttle.count(9000), Some(2));
    }
}
