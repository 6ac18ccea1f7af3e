//! An event loop that a test turns by hand, on a manual clock.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Nanos;

use super::certificates::Certificates;
use super::epoll::{Interest, Ready, Token};
use super::event_loop::{Entrance, EventLoop};
use super::handler::{ConnectionId, Handler};
use super::inbox::InboxOf;
use super::limits::{ConnectionAdmission, ConnectionLimits, DoorLimits};
use super::listener::{Peer, StreamListener};
use super::listeners::LoopSettings;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::settings::listen::Allow;

/// A loop that turns when it is told to.
pub(crate) struct TestLoop<H: Handler> {
    pub(super) event_loop: EventLoop<H>,
    ready: Ready,
    inbox: Arc<InboxOf<H>>,
}

impl<H: Handler> TestLoop<H> {
    /// A loop with room for `connections`, idle ones of which are closed after a minute.
    pub(crate) fn new(
        handler: H,
        inbox: Arc<InboxOf<H>>,
        listener: Option<StreamListener>,
        (clock, metrics): (Clock, Arc<Metrics>),
        connections: u32,
    ) -> Self {
        Self::with_tls(handler, inbox, listener, (clock, metrics), connections, None)
    }

    /// The same, with TLS.
    pub(crate) fn with_tls(
        handler: H,
        inbox: Arc<InboxOf<H>>,
        listener: Option<StreamListener>,
        (clock, metrics): (Clock, Arc<Metrics>),
        connections: u32,
        certificates: Option<Arc<Certificates>>,
    ) -> Self {
        let trusted = Allow::default();
        let bounds = DoorLimits {
            connections,
            per_source: None,
            trusted,
            keeps_descriptors_back: false,
            idle_gives_way: true,
        };
        let settings = LoopSettings {
            limits: ConnectionLimits::new(H::DOOR, bounds, &Arc::default(), clock.clone()),
            allow: Arc::default(),
            metrics,
            clock,
            idle_max: Duration::from_secs(60),
            lingering_max: connections as usize,
        };
        let entrance = Entrance { listener, deal_to: Vec::new(), certificates };
        let event_loop = EventLoop::new(handler, inbox.clone(), entrance, settings);
        Self { event_loop: event_loop.expect("an epoll"), ready: Ready::new(), inbox }
    }

    /// A client of this loop.
    pub(crate) fn client(&mut self) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        ours.set_nonblocking(true).expect("a socket");
        theirs.set_nonblocking(true).expect("a socket");
        let event_loop = &mut self.event_loop;
        event_loop.shared.now = event_loop.settings.clock.now();
        let place = event_loop.settings.limits.admit(None, &ours).expect("a place");
        event_loop.add_connection(ours.into(), Peer::Unix, ConnectionAdmission::Place(place));
        event_loop.open_arrived();
        theirs
    }

    pub(crate) fn turn(&mut self) {
        self.event_loop.turn(&mut self.ready);
    }

    /// Moves the time, and does what is due then.
    pub(crate) fn advance(&mut self, span: Nanos) {
        let event_loop = &mut self.event_loop;
        event_loop.settings.clock.advance(span);
        event_loop.shared.now = event_loop.settings.clock.now();
        event_loop.run_timers();
        event_loop.close_overdue();
    }

    /// Moves the time alone.
    pub(crate) fn skip(&mut self, span: Nanos) {
        self.event_loop.settings.clock.advance(span);
    }

    /// How many connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.event_loop.connections.len()
    }

    pub(crate) fn inbox(&self) -> &InboxOf<H> {
        &self.inbox
    }

    /// Whether something is left in the inbox for the next turn.
    pub(crate) fn has_left(&self) -> bool {
        self.inbox.is_woken()
    }

    /// Answers the first connection, as though it were pending.
    pub(crate) fn answer_first(&mut self, answer: H::Answer) {
        let first = ConnectionId { slot: 0, generation: 0 };
        self.event_loop.connections.same(first).expect("a connection").is_pending = true;
        self.inbox.answer(first, answer);
        self.turn();
    }

    /// Accepts so many clients.
    pub(crate) fn accept(&mut self, count: usize) {
        let mut found = 0;
        while found < count {
            found += self.event_loop.accept(count - found);
        }
    }

    pub(crate) fn accept_batch(&mut self, most: usize) -> (usize, bool) {
        self.event_loop.accept_batch(most)
    }

    /// Puts a socket in the listener's place that is none: it stands for a system that is short of
    /// something.
    pub(crate) fn break_listener(&mut self) {
        let broken = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let broken = StreamListener::Tcp(TcpListener::from(OwnedFd::from(broken)));
        let watched = self.event_loop.epoll.watch(broken.socket(), Token::Listener, Interest::IN);
        watched.expect("room");
        self.event_loop.listener = Some(broken);
    }

    /// Whether accepting pauses.
    pub(crate) fn pauses(&self) -> bool {
        self.event_loop.accept_at.is_some()
    }

    /// Whether the listener is waited for. It is not from then on.
    pub(crate) fn waits_for_clients(&self) -> bool {
        let listener = self.event_loop.listener.as_ref().expect("a listener");
        self.event_loop.epoll.forget(listener.socket()).is_ok()
    }

    /// Whether a connection lingers that the loop has not looked at yet.
    pub(crate) fn has_fresh(&self) -> bool {
        self.event_loop.lingering.fresh_since().is_some()
    }

    /// Whether a client still waits for its reply.
    pub(crate) fn has_waiting(&mut self) -> bool {
        let places = &mut self.event_loop.connections;
        (0..places.places()).any(|slot| places.at(slot).is_some_and(|at| !at.is_lingering()))
    }

    /// Whether the first connection has sent something that was not read.
    pub(crate) fn first_has_input(&mut self) -> bool {
        self.event_loop.connections.at(0).expect("a connection").has_input()
    }

    /// Closes all connections that linger, and tells who they were, oldest first.
    pub(crate) fn dismiss_all(&mut self) -> Vec<SocketAddr> {
        let mut gone = Vec::new();
        while let Some((slot, _)) = self.event_loop.lingering.oldest() {
            let connection = self.event_loop.connections.at(slot).expect("it lingers");
            let socket = connection.socket().try_clone_to_owned().expect("a descriptor");
            gone.push(TcpStream::from(socket).peer_addr().expect("a client"));
            self.event_loop.close_oldest();
        }
        gone
    }
}
