//! The proxy door: a reverse proxy. It forwards at most as many requests to an upstream as their
//! limit lets start; the others wait.
//!
//! - [`config`], [`upstream_url`]: the `[[proxy]]` tables and their upstreams
//! - [`worker`]: one loop; [`ticks`]: its coarse clock and deadlines
//! - [`connection`]: one client's connection; [`client_activity`]: its timeouts; [`tunnel`]: what
//!   an upgraded connection becomes
//! - [`exchange`]: one request from its head to its response; [`headers`], [`bodies`]: what passes
//!   in both directions, and what happens when a request is over
//! - [`upstream`]: connections to the upstream; [`gatekeeper`]: a Smockron master that is obeyed
//! - [`not_forwarded`]: the proxy's own responses; [`access`]: the access log; [`figures`]: metrics
//!
//! There is one loop for each core, each on a thread of its own with a listener of its own at
//! every address and connections of its own to the upstream. hyper speaks HTTP on all connections
//! except HTTP/1.1 to the upstream, which is written and read in [`upstream`].

mod access;
mod bodies;
mod client_activity;
mod config;
mod connection;
mod exchange;
mod figures;
mod gatekeeper;
mod headers;
mod not_forwarded;
mod ticks;
mod tunnel;
mod upstream;
mod upstream_url;
mod worker;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio_rustls::TlsStream;
use tokio_util::either::Either;

use self::access::AccessLogger;
pub use self::config::{AccessLog, Config, OnLimit};
use self::figures::{Proxies, ProxyFigures};
pub use self::gatekeeper::GatekeeperConfig;
use self::gatekeeper::ProxyGatekeeper;
pub use self::upstream_url::UpstreamUrl;
use super::io::accept::Acceptor;
use super::io::certificates::Certificates;
use super::io::tcp;
pub use super::template::Template;
use super::{BoundDoor, DoorConfig, Gate, Serving, Shutdown, table_of};
use crate::metrics;
use crate::settings::listen::{Allow, ListenAddress};
use crate::settings::tls::Tls;
use crate::waiting::{WaiterBounds, WaiterLimit};

/// The names of HTTP/2 and HTTP/1.1 in a TLS handshake.
const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

/// A stream in the clear, or inside of TLS.
type MaybeTls<S> = Either<S, Box<TlsStream<S>>>;

impl DoorConfig for Config {
    fn door(&self) -> metrics::Door {
        metrics::Door::Proxy
    }

    fn listens_at(&self) -> Vec<(&'static str, ListenAddress)> {
        self.listen.places()
    }

    fn allow(&self) -> &Allow {
        &self.allow
    }

    fn same_sockets(&self, other: &dyn DoorConfig) -> bool {
        table_of::<Self>(other).is_some_and(|other| self.same_door(other))
    }

    fn waits_for_store(&self) -> bool {
        true
    }

    fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    fn wrong_files(&self) -> Vec<(&'static str, String)> {
        self.wrong_certificates()
    }

    fn bind(&self) -> io::Result<Box<dyn BoundDoor>> {
        Ok(Box::new(bind(self)?))
    }

    fn boxed(&self) -> Box<dyn DoorConfig> {
        Box::new(self.clone())
    }
}

/// A door whose addresses are bound and that serves no client yet.
pub struct Bound {
    /// For each address, its sockets: one for each loop.
    listeners: Vec<(SocketAddr, Vec<TcpListener>)>,
    config: Config,
    certificates: Option<Arc<Certificates>>,
    upstream_tls: Option<Arc<rustls::ClientConfig>>,
    access: AccessLogger,
    gatekeeper: Option<ProxyGatekeeper>,
}

/// Binds every address of `config`, or none, and reads its certificates.
///
/// # Errors
/// The address that cannot be bound, or the file that cannot be used, and why.
pub fn bind(config: &Config) -> io::Result<Bound> {
    let gatekeeper = gatekeeper::open(config)?;
    let certificates = Certificates::read(config.tls.as_ref(), &[H2, HTTP_1_1])?;
    let upstream_tls = upstream::tls_settings(config)?;
    let access = AccessLogger::open(&config.access_log)?;
    let bind_one = |&address: &SocketAddr| tcp::bind(address, loops());
    let listeners = config.listen.addresses().iter().map(bind_one).collect::<io::Result<_>>()?;
    Ok(Bound { listeners, config: config.clone(), certificates, upstream_tls, access, gatekeeper })
}

/// One loop for each core.
fn loops() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// What all loops of a door share.
struct ProxyDoor {
    config: Config,
    gate: Gate,
    waiter_limit: Arc<WaiterLimit>,
    figures: Arc<ProxyFigures>,
    acceptor: Acceptor,
    upstream_tls: Option<Arc<rustls::ClientConfig>>,
    access: AccessLogger,
    gatekeeper: Option<ProxyGatekeeper>,
    /// How many loops still listen.
    listening: AtomicUsize,
    /// Set when none does.
    released: Shutdown,
}

impl ProxyDoor {
    fn name(&self) -> &str {
        self.config.name.get_ref()
    }

    /// Notes that one loop has closed its listeners.
    fn release_listener(&self) {
        if self.listening.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.released.set();
        }
    }
}

impl BoundDoor for Bound {
    fn addresses(&self) -> Vec<ListenAddress> {
        self.listeners.iter().map(|(address, _)| ListenAddress::Ip(*address)).collect()
    }

    fn certificates(&self) -> Option<Arc<Certificates>> {
        self.certificates.clone()
    }

    fn serve(self: Box<Self>, gate: Gate) -> Serving {
        let Self { listeners, config, certificates, upstream_tls, access, gatekeeper } = *self;
        let bounds = WaiterBounds {
            per_key: config.max_waiters as usize,
            total: config.max_waiters_total as usize,
        };
        let connections = config.connections();
        let door = Arc::new(ProxyDoor {
            waiter_limit: WaiterLimit::new(&gate.metrics, metrics::Door::Proxy, bounds),
            figures: Proxies::of(&gate).figures(config.name.get_ref()),
            acceptor: Acceptor::of(metrics::Door::Proxy, &gate, connections, certificates),
            config,
            gate,
            upstream_tls,
            access,
            gatekeeper,
            listening: AtomicUsize::new(loops()),
            released: Shutdown::new(),
        });
        let mut of_loops: Vec<Vec<TcpListener>> = (0..loops()).map(|_| Vec::new()).collect();
        for (_, siblings) in listeners {
            of_loops.iter_mut().zip(siblings).for_each(|(own, sibling)| own.push(sibling));
        }
        let start = |listeners: Vec<TcpListener>| {
            let door = door.clone();
            thread::Builder::new()
                .name("proxy".to_owned())
                .spawn(move || worker::run(&door, listeners))
                .expect("the system has threads left at start-up")
        };
        let threads = of_loops.into_iter().map(start).collect();
        Serving::threads(threads).releasing(door.released.clone())
    }
}
