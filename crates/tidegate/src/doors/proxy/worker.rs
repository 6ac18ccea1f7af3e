//! One loop of a proxy: a thread with a runtime of its own, and all that its clients share there.
//!
//! Nothing here is shared with another loop but counters that are summed when somebody asks, and
//! the limiter. Connections stay on the loop that accepted them.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use tidegate_client::gatekeeper::Delay;
use tidegate_client::layer::LogInfo;
use tidegate_core::Nanos;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::access::{Access, Record};
use super::config::OnLimit;
use super::connection::converse;
use super::failures::Failures;
use super::figures::Lane;
use super::gatekeeper::ProxyGatekeeper;
use super::leaving::Leaving;
use super::problem::Problem;
use super::streams::Patience;
use super::ticks::{TICK_SPAN, Ticks, ticks_in};
use super::upstream::Upstream;
use super::{Door as ProxyDoor, Loop};
use crate::clock::Clock;
use crate::doors::io::accept::Acceptor;
use crate::doors::io::limits::Place;
use crate::doors::io::tcp;
use crate::doors::template::{Scratch, Template};
use crate::limiter::LimiterHandle;
use crate::metrics::{Door, Metrics};
use crate::settings::listen::Allow;
use crate::settings::units::Span;
use crate::waiting::{WaitRequest, WaiterLimit, Waiting};

/// How long a proxy takes to stop that was not told how long it has.
const GRACE_USUAL: Duration = Duration::from_secs(10);
/// The end of the grace, in which those that still wait are told to come back: a tenth, but no
/// more than this.
const LAST_CALL_MAX: Duration = Duration::from_secs(1);
/// How often idle connections to the upstream are looked through, in ticks.
const SWEEP_EVERY: u64 = 10;

/// All that the clients of one loop share.
pub(super) struct Worker {
    pub(super) name: Arc<str>,
    pub(super) template: Template,
    pub(super) clock: Clock,
    pub(super) ticks: Rc<Ticks>,
    pub(super) leaving: Rc<Leaving>,
    pub(super) scratch: RefCell<Scratch>,
    pub(super) handle: LimiterHandle,
    pub(super) waiting: Arc<Waiting>,
    pub(super) waiter_limit: Arc<WaiterLimit>,
    /// How long a request may wait; nothing where requests are not to wait.
    max_wait: Option<Nanos>,
    gatekeeper: Option<ProxyGatekeeper>,
    pub(super) on_limit: OnLimit,
    pub(super) tells_limits: bool,
    pub(super) body_max: Option<u64>,
    pub(super) upstream: Rc<Upstream>,
    pub(super) trusted: Allow,
    pub(super) patience: Patience,
    pub(super) access: Access,
    pub(super) lane: Arc<Lane>,
    pub(super) failures: Failures,
    pub(super) metrics: Arc<Metrics>,
    pub(super) acceptor: Acceptor,
    draining: Cell<bool>,
    last_call: Cell<bool>,
    connections: Cell<usize>,
    empty: Notify,
}

impl Worker {
    fn new(door: &ProxyDoor, leaving: Rc<Leaving>) -> Rc<Self> {
        let ProxyDoor { config, gate, waiter_limit, figures, .. } = door;
        let ticks = Rc::new(Ticks::default());
        ticks.advance(Ticks::of(gate.clock().now().mono));
        let lane = figures.lane();
        let nanos = |span: Span| u64::try_from(span.0.as_nanos()).unwrap_or(u64::MAX);
        let max_wait = match config.on_limit {
            OnLimit::Wait => config.max_wait.map(nanos),
            OnLimit::Reject => Some(0),
        };
        let upstream = Upstream::new(
            config,
            door.upstream_tls.clone(),
            ticks.clone(),
            lane.clone(),
            figures.clone(),
        );
        let name: Arc<str> = config.name.get_ref().as_str().into();
        Rc::new(Self {
            failures: Failures::new(name.clone(), lane.clone(), ticks.clone()),
            name,
            template: config.key.clone().unwrap_or_default(),
            clock: gate.clock().clone(),
            ticks,
            leaving,
            scratch: RefCell::default(),
            handle: gate.limiter.handle(Door::Proxy),
            waiting: gate.waiting.clone(),
            waiter_limit: waiter_limit.clone(),
            max_wait,
            gatekeeper: door.gatekeeper.clone(),
            on_limit: config.on_limit,
            tells_limits: config.ratelimit_headers,
            body_max: config.max_body.map(|size| size.0),
            upstream,
            trusted: config.trusted_proxies.clone(),
            patience: Patience {
                head: ticks_in(config.head_timeout.0),
                idle: ticks_in(config.idle_timeout.0),
                stall: ticks_in(config.stall_timeout.0),
                tunnel: ticks_in(config.tunnel_timeout.0),
            },
            access: door.access.clone(),
            lane,
            metrics: gate.metrics.clone(),
            acceptor: door.acceptor.clone(),
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

    /// What the proxy's master is to be told of a request, if there is one.
    pub(super) fn log_info<B>(&self, request: &Request<B>) -> Option<LogInfo> {
        self.gatekeeper.as_ref().map(|_| LogInfo::of(request))
    }

    /// What the proxy's master makes of a request, if there is one.
    pub(super) fn ask_master(
        &self,
        key: &[u8],
        client: IpAddr,
        info: Option<&LogInfo>,
    ) -> Result<Option<Delay>, Problem> {
        match &self.gatekeeper {
            Some(gatekeeper) => gatekeeper.ask(key, client, info.map_or(&[], LogInfo::as_bytes)),
            None => Ok(None),
        }
    }

    /// Whether what `peer` says about whom it speaks for is taken.
    pub(super) fn trusts(&self, peer: IpAddr) -> bool {
        !self.trusted.is_open() && self.trusted.permits(peer)
    }

    /// Whether connections are to end with the request that they are at.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Whether those that wait are to be told to come back.
    pub(super) fn is_last_call(&self) -> bool {
        self.last_call.get()
    }

    /// Writes a line of the access log.
    pub(super) fn write(&self, record: &Record, whole: bool) {
        self.access.write(&self.name, record, whole);
    }

    /// Accepts until shutdown.
    async fn accept(self: Rc<Self>, listener: tokio::net::TcpListener) {
        let welcome = |stream, peer, place| self.welcome(stream, peer, place);
        self.acceptor.run(listener, welcome).await;
    }

    fn welcome(self: &Rc<Self>, stream: tokio::net::TcpStream, peer: SocketAddr, place: Place) {
        if tcp::set_stream_options(&stream).is_err() {
            return;
        }
        let here = Here::new(self.clone());
        let worker = self.clone();
        spawn_local(async move {
            converse(worker, stream, peer.ip(), place).await;
            drop(here);
        });
    }

    /// Moves the coarse clock on.
    async fn keep_ticking(self: Rc<Self>) {
        let mut timer = interval(TICK_SPAN);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            timer.tick().await;
            let now = Ticks::of(self.clock.now().mono);
            self.ticks.advance(now);
            self.leaving.look();
            if now.is_multiple_of(SWEEP_EVERY) {
                self.upstream.sweep();
            }
        }
    }

    /// Lets every connection end with the request that it is at, tells those that still wait near
    /// the end of the grace, and returns when nobody is left or the grace is over.
    async fn drain(&self) {
        let grace = self.acceptor.shutdown.grace().unwrap_or(GRACE_USUAL);
        let last_call = (grace / 10).min(LAST_CALL_MAX);
        self.draining.set(true);
        self.upstream.close_idle();
        self.ticks.wake_all();
        let empty = async {
            while self.connections.get() > 0 {
                self.empty.notified().await;
            }
            self.upstream.all_left().await;
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

/// A client that is here until this is dropped.
struct Here(Rc<Worker>);

impl Here {
    fn new(worker: Rc<Worker>) -> Self {
        worker.connections.set(worker.connections.get() + 1);
        worker.lane.connections(1);
        Self(worker)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        let Self(worker) = self;
        worker.lane.connections(-1);
        worker.connections.set(worker.connections.get() - 1);
        if worker.connections.get() == 0 {
            worker.empty.notify_one();
        }
    }
}

impl Loop {
    /// Serves until shutdown, on the thread that calls it.
    ///
    /// # Panics
    /// If the system refuses an epoll at start-up.
    pub(super) fn run(self, listeners: Vec<TcpListener>) {
        let runtime =
            Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
        let runtime = runtime.expect("the system has file descriptors left at start-up");
        runtime.block_on(async {
            let leaving = Leaving::new();
            let leaving = leaving.expect("the system has file descriptors left at start-up");
            let worker = Worker::new(&self.door, leaving);
            spawn_local(worker.clone().keep_ticking());
            let mut accepting = Vec::new();
            for listener in listeners {
                let listener = tokio::net::TcpListener::from_std(listener);
                let listener = listener.expect("a listener can be watched at start-up");
                accepting.push(spawn_local(worker.clone().accept(listener)));
            }
            worker.acceptor.shutdown.wait().await;
            for loop_of_one in accepting {
                let _ = loop_of_one.await;
            }
            self.door.release();
            worker.drain().await;
        });
    }
}
