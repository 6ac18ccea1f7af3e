//! The proxy door: a reverse proxy. Requests pass on to an upstream, at most as many as their
//! limit lets start; the others wait.
//!
//! - [`config`], [`target`]: the `[[proxy]]` tables and their upstreams
//! - [`worker`]: one loop and what its clients share; [`ticks`]: its coarse time; [`streams`]:
//!   sockets and their pulse
//! - [`connection`], [`client`]: one client; [`tunnel`]: one that goes on as something else;
//!   [`stalled`]: streams that it does not read
//! - [`exchange`]: one request's way; [`holding`]: while it waits; [`leaving`]: if its client
//!   leaves meanwhile; [`finish`]: when it is over; [`gatekeeper`]: a master that is obeyed
//! - [`upstream`], [`bodies`], [`headers`], [`tls`]: the other side, and what goes between
//! - [`problem`]: what clients are told; [`access`], [`failures`]: what is logged;
//!   [`figures`]: what is measured
//!
//! There is one loop for each core, each on a thread of its own with a listener of its own at
//! every address and connections of its own to the upstream. The bytes of HTTP are hyper's
//! business, but for HTTP/1.1 to the upstream, which is written and read in [`upstream`].

mod access;
mod bodies;
mod client;
mod config;
mod connection;
mod exchange;
mod failures;
mod figures;
mod finish;
mod gatekeeper;
mod headers;
mod holding;
mod leaving;
mod problem;
mod stalled;
mod streams;
mod target;
mod ticks;
mod tls;
mod tunnel;
mod upstream;
mod worker;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use self::access::Access;
pub use self::config::{AccessLog, Config, OnLimit};
use self::figures::{Proxies, ProxyFigures};
pub use self::gatekeeper::GatekeeperConfig;
use self::gatekeeper::ProxyGatekeeper;
pub use self::target::Target;
use super::io::accept::Acceptor;
use super::io::certificates::Certificates;
use super::io::tcp;
pub use super::template::Template;
use super::{BoundDoor, DoorConfig, Gate, Serving, Shutdown, table_of};
use crate::metrics;
use crate::settings::listen::{Allow, ListenAddress};
use crate::waiting::{Bounds, WaiterLimit};

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

    fn wrong_files(&self) -> Vec<(&'static str, String)> {
        tls::wrong_files(self)
    }

    fn bind(&self) -> io::Result<Box<dyn BoundDoor>> {
        Ok(Box::new(bind(self)?))
    }

    fn boxed(&self) -> Box<dyn DoorConfig> {
        Box::new(self.clone())
    }
}

/// A door whose addresses are taken and that answers nobody yet.
pub struct Bound {
    /// For each address, its sockets: one for each loop.
    listeners: Vec<(SocketAddr, Vec<TcpListener>)>,
    config: Config,
    certificates: Option<Arc<Certificates>>,
    upstream_tls: Option<Arc<rustls::ClientConfig>>,
    access: Access,
    gatekeeper: Option<ProxyGatekeeper>,
}

/// Takes every address of `config`, or none, and reads its certificates.
///
/// # Errors
/// The address that cannot be had, or the file that is no use, and why.
pub fn bind(config: &Config) -> io::Result<Bound> {
    let gatekeeper = gatekeeper::open(config)?;
    let certificates = Certificates::read(config.tls.as_ref(), &[tls::H2, tls::HTTP_1_1])?;
    let upstream_tls = tls::for_upstream(config)?;
    let access = Access::open(&config.access_log)?;
    let bind_one = |&address: &SocketAddr| tcp::bind(address, loops());
    let listeners = config.listen.addresses().iter().map(bind_one).collect::<io::Result<_>>()?;
    Ok(Bound { listeners, config: config.clone(), certificates, upstream_tls, access, gatekeeper })
}

/// One loop for each core.
fn loops() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// What all loops of a door are made from.
struct Door {
    config: Config,
    gate: Gate,
    waiter_limit: Arc<WaiterLimit>,
    figures: Arc<ProxyFigures>,
    acceptor: Acceptor,
    upstream_tls: Option<Arc<rustls::ClientConfig>>,
    access: Access,
    gatekeeper: Option<ProxyGatekeeper>,
    /// Loops that still listen.
    listening: AtomicUsize,
    released: Shutdown,
}

impl Door {
    /// One loop listens no more.
    fn release(&self) {
        if self.listening.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.released.set();
        }
    }
}

/// One loop that is yet to run.
struct Loop {
    door: Arc<Door>,
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
        let bounds = Bounds {
            per_key: config.max_waiters as usize,
            total: config.max_waiters_total as usize,
        };
        let connections = config.connections();
        let acceptor = Acceptor::of(metrics::Door::Proxy, &gate, connections, certificates);
        let door = Arc::new(Door {
            waiter_limit: WaiterLimit::new(&gate.metrics, metrics::Door::Proxy, bounds),
            figures: Proxies::of(&gate).figures(config.name.get_ref()),
            acceptor,
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
            let turning = Loop { door: door.clone() };
            thread::Builder::new()
                .name("proxy".to_owned())
                .spawn(move || turning.run(listeners))
                .expect("the system has threads left at start-up")
        };
        let threads = of_loops.into_iter().map(start).collect();
        Serving::threads(threads).releasing(door.released.clone())
    }
}
