//! An event loop that a test turns by hand, on a manual clock.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Nanos;

use super::epoll::Ready;
use super::event_loop::{Entrance, EventLoop, LoopSettings};
use super::handler::{ConnectionId, Handler};
use super::inbox::InboxOf;
use super::limits::{Admission, Bounds, Limits};
use super::listener::{Listener, Peer};
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
        listener: Option<Listener>,
        (clock, metrics): (Clock, Arc<Metrics>),
        connections: u32,
    ) -> Self {
        let trusted = Allow::default();
        let bounds =
            Bounds { connections, per_source: None, trusted, keeps_descriptors_back: false };
        let settings = LoopSettings {
            limits: Limits::new(H::DOOR, bounds, &Arc::default(), clock.clone()),
            allow: Arc::default(),
            metrics,
            clock,
            idle_max: Duration::from_secs(60),
            lingering_max: connections as usize,
        };
        let entrance = Entrance { listener, deal_to: Vec::new(), certificates: None };
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
        event_loop.seat(ours.into(), Peer::Unix, Admission::Place(place));
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
        event_loop.see_out();
        event_loop.look_around();
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

    /// Answers the first connection.
    pub(crate) fn answer_first(&mut self, answer: H::Answer) {
        self.inbox.answer(ConnectionId { slot: 0, generation: 0 }, answer);
        self.turn();
    }
}
