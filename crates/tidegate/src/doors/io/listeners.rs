//! The sockets of a door of event loops, and how its loops are started: for each address one loop
//! for each core, each on a thread of its own.
//!
//! The kernel spreads TCP clients over the loops of an address; the clients of a Unix socket are
//! dealt out.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arc_swap::ArcSwap;

use super::certificates::Certificates;
use super::event_loop::{Entrance, EventLoop};
use super::handler::Handler;
use super::inbox::{InboxOf, LoopInbox};
use super::limits::{ConnectionLimits, DoorLimits};
use super::listener::{self, SocketFile, StreamListener};
use super::tcp::loops;
use crate::clock::Clock;
use crate::doors::Gate;
use crate::metrics::Metrics;
use crate::settings::listen::{Allow, ListenAddress};
use crate::settings::tls::Tls;
use crate::shutdown::Shutdown;

/// The settings of all loops of a door.
#[derive(Clone)]
pub(crate) struct LoopSettings {
    pub(crate) limits: Arc<ConnectionLimits>,
    pub(crate) allow: Arc<ArcSwap<Allow>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
    pub(crate) idle_max: Duration,
    /// How many connections may linger: of the door, then of one loop.
    pub(crate) lingering_max: usize,
}

impl LoopSettings {
    /// The settings of the loops of a door that serves `gate`.
    pub(crate) fn of<H: Handler>(gate: &Gate, bounds: DoorLimits, idle_max: Duration) -> Self {
        Self {
            lingering_max: bounds.connections as usize,
            limits: ConnectionLimits::of(H::DOOR, bounds, gate),
            allow: gate.door.allow.clone(),
            metrics: gate.metrics.clone(),
            clock: gate.clock().clone(),
            idle_max,
        }
    }
}

/// Sockets that are bound and that no loop serves yet.
pub(crate) struct Listeners {
    /// For each address, its sockets: one for each loop.
    tcp: Vec<(SocketAddr, Vec<StreamListener>)>,
    unix: Option<(StreamListener, SocketFile)>,
    certificates: Option<Arc<Certificates>>,
}

impl Listeners {
    /// Takes every address, or none, and reads the certificates for those of TCP.
    pub(crate) fn bind<'a>(
        addresses: impl IntoIterator<Item = &'a SocketAddr>,
        unix: Option<&Path>,
        tls: Option<&Tls>,
    ) -> io::Result<Self> {
        let certificates = Certificates::read(tls, &[])?;
        let tcp = addresses.into_iter().map(|&address| listener::bind_tcp(address, loops()));
        Ok(Self {
            tcp: tcp.collect::<io::Result<_>>()?,
            unix: unix.map(listener::bind_unix).transpose()?,
            certificates,
        })
    }

    /// The addresses, with the ports that were taken, then the path.
    pub(crate) fn addresses(&self) -> Vec<ListenAddress> {
        let tcp = self.tcp.iter().map(|(address, _)| ListenAddress::Ip(*address));
        let unix = self.unix.iter().map(|(_, file)| ListenAddress::Unix(file.path().to_owned()));
        tcp.chain(unix).collect()
    }

    pub(crate) fn certificates(&self) -> Option<Arc<Certificates>> {
        self.certificates.clone()
    }

    /// Begins to serve. `handler` makes a handler for the loop of an inbox.
    ///
    /// # Panics
    /// If the system refuses a thread, an epoll or an eventfd.
    pub(crate) fn serve<H>(
        self,
        mut settings: LoopSettings,
        shutdown: &Shutdown,
        mut handler: impl FnMut(&Arc<InboxOf<H>>) -> H,
    ) -> Vec<JoinHandle<()>>
    where
        H: Handler + Send + 'static,
        H::Session: Send,
    {
        let Self { tcp, unix, certificates } = self;
        let unix_loops = if unix.is_some() { loops() } else { 0 };
        let count = tcp.iter().map(|(_, listeners)| listeners.len()).sum::<usize>() + unix_loops;
        // Rounded up, so that one may linger at each loop.
        settings.lingering_max = settings.lingering_max.div_ceil(count.max(1));
        let mut begin = |inbox: Arc<InboxOf<H>>, entrance, file: Option<SocketFile>| {
            let made = EventLoop::new(handler(&inbox), inbox, entrance, settings.clone());
            let event_loop = made.expect("the system has file descriptors left at start-up");
            let shutdown = shutdown.clone();
            thread::Builder::new()
                .name(H::DOOR.name().to_owned())
                .spawn(move || event_loop.run(&shutdown, file))
                .expect("the system has threads left at start-up")
        };
        let open_inbox = || LoopInbox::new().expect("the system has eventfds left at start-up");
        let mut threads = Vec::new();
        for listener in tcp.into_iter().flat_map(|(_, listeners)| listeners) {
            let certificates = certificates.clone();
            let entrance = Entrance { listener: Some(listener), deal_to: Vec::new(), certificates };
            threads.push(begin(open_inbox(), entrance, None));
        }
        if let Some(door) = unix {
            let inboxes: Vec<Arc<InboxOf<H>>> = (0..loops()).map(|_| open_inbox()).collect();
            let mut door = Some(door);
            for inbox in &inboxes {
                // The first one accepts for all, and its end takes the file away.
                let (listener, file) = door.take().unzip();
                let deal_to = if listener.is_some() { inboxes.clone() } else { Vec::new() };
                let entrance = Entrance { listener, deal_to, certificates: None };
                threads.push(begin(inbox.clone(), entrance, file));
            }
        }
        threads
    }
}
