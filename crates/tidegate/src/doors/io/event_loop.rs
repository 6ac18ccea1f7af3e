//! One event loop: a thread that waits for its sockets and lets each connection go as far as it
//! can. Accepting, back-off, limits, TLS, buffers, idle clients, slow readers, draining and
//! lingering happen here; what the bytes mean is the [`Handler`]'s business.
//!
//! A loop owns its connections, their buffers and its handler. Whatever a client sends and whatever
//! the kernel says, the loop goes on.
//!
//! The loop does not close a connection right after its last reply: if bytes of the client lie
//! unread, or still come, the kernel resets the connection, and the client may lose replies that it
//! has not read. So the connection lingers. Most clients have left when the loop first looks at it,
//! and it is closed. Otherwise the loop watches it, throws its input away within bounds, and closes
//! it when its time is over.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustls::ServerConnection;
use tidegate_core::Nanos;
use tidegate_core::time::{MILLISECOND, SECOND};

use super::certificates::Certificates;
use super::connection::{Connection, Next};
use super::connection_places::ConnectionPlaces;
use super::epoll::{Epoll, Interest, Ready, Token};
use super::handler::Handler;
use super::inbox::{GiveWay, InboxOf, Item};
use super::limits::ConnectionAdmission;
use super::linger::Lingering;
use super::listener::{Peer, SocketFile, StreamListener};
use super::listeners::LoopSettings;
use super::pushes::Pushes;
use super::shared::Shared;
use super::stream::ClientStream;
use super::tcp;
use crate::shutdown::Shutdown;

/// How long a loop sleeps in the kernel before it looks whether the door is closing.
const NOTICE_SHUTDOWN: Nanos = 200 * MILLISECOND;
/// How often idle and stuck connections are looked for.
const LOOK_EVERY: Nanos = SECOND;
/// Clients that are accepted in one turn.
const ACCEPTS_MAX: usize = 64;
/// Clients that wait already when the door closes, and are let in.
const LATE_ACCEPTS_MAX: usize = 4096;
/// How long to wait before accepting again when that failed, say for want of file descriptors.
pub(crate) const ACCEPT_PAUSE: Nanos = 50 * MILLISECOND;
/// What of the inbox is handled in one turn, by the work that it is.
const INBOX_WORK_MAX: usize = 4096;
/// The work of an answer: its connection may go on with many requests.
const ANSWER_WORK: usize = 16;
/// Connections that were pushed something and are served in one turn.
const FLUSHED_MAX: usize = 256;
/// When a lingering connection is looked at for the first time: most clients have left by then.
pub(crate) const FRESH_MAX: Nanos = 5 * MILLISECOND;
/// Reads from one connection after the door began to close, if there is something.
const DRAIN_READS_MAX: usize = 64;
/// The pause after an error of epoll itself, so that a lasting one does not burn a core.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// One loop.
pub(crate) struct EventLoop<H: Handler> {
    pub(super) shared: Shared<H>,
    pub(super) settings: LoopSettings,
    certificates: Option<Arc<Certificates>>,
    pub(super) epoll: Epoll,
    inbox: Arc<InboxOf<H>>,
    /// Where clients come in; a loop may have none and be dealt its clients.
    pub(super) listener: Option<StreamListener>,
    /// The loops among which accepted clients are dealt out; empty to keep all.
    deal_to: Vec<Arc<InboxOf<H>>>,
    dealt: usize,
    idle_max: Nanos,
    pub(super) connections: ConnectionPlaces<H>,
    pub(super) lingering: Lingering,
    /// Connections that were accepted and are opened together.
    arrived: Vec<u32>,
    /// Connections that go on when the others had their turn.
    again: VecDeque<u32>,
    /// Connections that were pushed something.
    pushed: VecDeque<u32>,
    /// How many to accept in one turn: as many as came the last time. One more try would find none.
    accepts: usize,
    /// When accepting goes on after a failure.
    pub(super) accept_at: Option<Nanos>,
    /// Whether accepting failed the last time, which is logged once.
    is_refusing: bool,
    look_at: Nanos,
}

/// How a loop is entered.
pub(super) struct Entrance<H: Handler> {
    pub(super) listener: Option<StreamListener>,
    pub(super) deal_to: Vec<Arc<InboxOf<H>>>,
    pub(super) certificates: Option<Arc<Certificates>>,
}

impl<H: Handler> EventLoop<H> {
    /// A loop of `handler`, to which other threads speak through `inbox`.
    pub(super) fn new(
        handler: H,
        inbox: Arc<InboxOf<H>>,
        entrance: Entrance<H>,
        settings: LoopSettings,
    ) -> io::Result<Self> {
        let Entrance { listener, deal_to, certificates } = entrance;
        let epoll = Epoll::new()?;
        epoll.watch(inbox.wake_fd(), Token::Inbox, Interest::IN)?;
        if let Some(listener) = &listener {
            epoll.watch(listener.socket(), Token::Listener, Interest::IN)?;
        }
        let (metrics, now) = (settings.metrics.clone(), settings.clock.now());
        Ok(Self {
            shared: Shared::new(handler, metrics, now, certificates.is_some()),
            certificates,
            epoll,
            inbox,
            listener,
            deal_to,
            dealt: 0,
            idle_max: Nanos::try_from(settings.idle_max.as_nanos()).unwrap_or(Nanos::MAX),
            connections: ConnectionPlaces::new(),
            lingering: Lingering::new(settings.lingering_max),
            settings,
            arrived: Vec::with_capacity(ACCEPTS_MAX),
            again: VecDeque::new(),
            pushed: VecDeque::new(),
            accepts: 1,
            accept_at: None,
            is_refusing: false,
            look_at: 0,
        })
    }

    /// Serves until `shutdown`, then answers what has already arrived.
    pub(super) fn run(mut self, shutdown: &Shutdown, file: Option<SocketFile>) {
        let mut ready = Ready::new();
        while !shutdown.is_set() {
            self.turn(&mut ready);
        }
        self.accept(LATE_ACCEPTS_MAX);
        // From here on no client can connect.
        self.listener = None;
        self.accept_at = None;
        drop(file);
        self.drain(&mut ready);
        self.shared.handler.on_end();
    }

    pub(super) fn turn(&mut self, ready: &mut Ready) {
        if let Err(error) = self.epoll.wait(self.sleep_for(), ready) {
            tracing::debug!(door = H::DOOR.name(), %error, "waiting failed");
            thread::sleep(ERROR_PAUSE);
        }
        self.read_clock();
        // What is pushed goes out before this turn's replies: some clients misread it behind a
        // reply, and what is written apart may still be read together.
        let woken = self.inbox.is_woken();
        if woken {
            self.read_inbox();
        }
        for _ in 0..FLUSHED_MAX {
            let Some(slot) = self.pushed.pop_front() else { break };
            // The place may have a new connection by now.
            self.with(slot, |connection, shared| {
                match std::mem::take(&mut connection.has_pushed) {
                    true => connection.flush_pushed(shared),
                    false => Next::Wait,
                }
            });
        }
        for position in 0..ready.len() {
            if position > 0 {
                self.read_clock();
            }
            match ready.at(position) {
                Token::Connection(id) => {
                    let Some(connection) = self.connections.same(id) else { continue };
                    let next = connection.ready(&mut self.shared);
                    self.follow(id.slot, next);
                }
                Token::Listener => self.accept_some(),
                // A thread that leaves something sets the flag first and then writes the wake-up.
                // The inbox may have been read between both: the wake-up must be taken, too, or the
                // loop would be woken for ever.
                Token::Inbox if !woken => self.read_inbox(),
                Token::Inbox => {}
            }
        }
        for _ in 0..self.again.len() {
            let Some(slot) = self.again.pop_front() else { break };
            self.read_clock();
            self.with(slot, |connection, shared| match std::mem::take(&mut connection.again) {
                true => connection.go_on(shared),
                false => Next::Wait,
            });
        }
        self.run_timers();
        self.close_overdue();
    }

    fn read_clock(&mut self) {
        self.shared.now = self.settings.clock.now();
    }

    /// How long the loop may sleep if no socket becomes ready: until its next timer.
    fn sleep_for(&self) -> Nanos {
        if !self.again.is_empty() || !self.pushed.is_empty() || self.inbox.is_woken() {
            return 0;
        }
        let now = self.shared.now.mono;
        // Not when the oldest of them is due: under load one always is in a moment, and a timer for
        // each would wake the loop as often as clients do.
        let fresh = self.lingering.fresh_since().map(|_| now + FRESH_MAX);
        let oldest = self.lingering.oldest().map(|(_, since)| since + H::POLICY.linger.span);
        let due = [fresh, oldest, self.accept_at].into_iter().flatten().min();
        due.map_or(NOTICE_SHUTDOWN, |due| due.saturating_sub(now).min(NOTICE_SHUTDOWN))
    }

    /// Does something with a connection that may be gone by now.
    fn with(&mut self, slot: u32, work: impl FnOnce(&mut Connection<H>, &mut Shared<H>) -> Next) {
        let Some(connection) = self.connections.at(slot) else { return };
        let next = work(connection, &mut self.shared);
        self.follow(slot, next);
    }

    /// Does what a connection wants next.
    #[inline]
    fn follow(&mut self, slot: u32, next: Next) {
        let Some(connection) = self.connections.at(slot) else { return };
        match next {
            Next::Wait if connection.has_ended() => {
                if connection.is_cut_short() {
                    self.shared.bad_input("cut_short");
                }
                return self.close(slot);
            }
            Next::Wait => {}
            Next::Again => {
                connection.again = true;
                self.again.push_back(slot);
            }
            Next::Open => {
                self.arrived.push(slot);
                return self.open_arrived();
            }
            Next::Linger => return self.linger(slot),
            Next::Close => return self.close(slot),
            Next::CloseSlow => {
                self.shared.bad_input("slow_reader");
                return self.close(slot);
            }
        }
        connection.update_place(&self.shared.handler, None);
        self.watch(slot);
    }

    /// Watches a connection's socket for what it waits for.
    #[inline]
    fn watch(&mut self, slot: u32) {
        let Some(connection) = self.connections.at(slot) else { return };
        let interest = connection.interest();
        if connection.watched == Some(interest) {
            return;
        }
        let token = Token::Connection(connection.id);
        let done = match connection.watched.replace(interest) {
            Some(_) => self.epoll.change(connection.socket(), token, interest),
            None => self.epoll.watch(connection.socket(), token, interest),
        };
        if done.is_err() {
            self.close(slot);
        }
    }

    fn close(&mut self, slot: u32) {
        self.lingering.remove(slot);
        // Closing the socket takes it out of epoll.
        if let Some(mut connection) = self.connections.remove(slot) {
            connection.close(&mut self.shared);
        }
    }

    fn accept_some(&mut self) {
        let most = self.accepts;
        let found = self.accept(most);
        self.accepts = if found == most { 2 * most } else { found }.clamp(1, ACCEPTS_MAX);
    }

    /// Accepts and opens up to `most` connections; returns how many there were.
    pub(super) fn accept(&mut self, most: usize) -> usize {
        let mut found = 0;
        while found < most {
            let (batch, all) = self.accept_batch((most - found).min(ACCEPTS_MAX));
            self.open_arrived();
            found += batch;
            if all {
                break;
            }
        }
        found
    }

    /// Accepts up to `most` connections; returns how many there were, and whether that is all.
    pub(super) fn accept_batch(&mut self, most: usize) -> (usize, bool) {
        let allow = self.settings.allow.load_full();
        let is_brief = self.is_brief();
        for found in 0..most {
            let Some(listener) = &self.listener else { return (found, true) };
            match listener.accept(!is_brief) {
                Ok((socket, peer)) => {
                    self.is_refusing = false;
                    if peer.ip().is_some_and(|ip| !allow.permits(ip)) {
                        self.shared.bad_input("not_allowed");
                        continue;
                    }
                    self.admit(socket, peer);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return (found, true),
                Err(error) if tcp::left_early(&error) => {}
                // Descriptors may have run out: the one that has lingered longest makes room.
                Err(error) => {
                    if !self.make_room() {
                        self.pause(&error);
                        return (found, true);
                    }
                }
            }
        }
        (most, false)
    }

    /// Whether connections end with their first answer, which no handshake delays.
    fn is_brief(&self) -> bool {
        H::POLICY.brief && self.certificates.is_none()
    }

    /// Lets a client in, or closes its socket.
    fn admit(&mut self, socket: OwnedFd, peer: Peer) {
        let limits = self.settings.limits.clone();
        let admitted = if self.is_brief() {
            limits.admit_brief(peer.ip(), &socket, || self.make_room())
        } else {
            limits.admit(peer.ip(), &socket).map(ConnectionAdmission::Place)
        };
        match admitted {
            // Counted before the socket is closed: its client finds it counted.
            Err(refused) => {
                self.shared.bad_input(refused.reason());
                if self.certificates.is_none() {
                    tcp::refuse(&socket, H::POLICY.refusal);
                }
            }
            Ok(ConnectionAdmission::Place(place)) if !self.deal_to.is_empty() => {
                let inbox = &self.deal_to[self.dealt % self.deal_to.len()];
                self.dealt = self.dealt.wrapping_add(1);
                inbox.leave(Item::Client(socket, peer, place));
            }
            Ok(admission) => self.add_connection(socket, peer, admission),
        }
    }

    /// Closes the connection that has lingered longest; `false` if there is none. Those that have
    /// arrived are answered first: a loop that kept one more connection for each batch would take
    /// all descriptors in the end.
    fn make_room(&mut self) -> bool {
        if self.lingering.is_empty() {
            self.open_arrived();
        }
        self.close_oldest()
    }

    /// Gives a connection its place in this loop.
    pub(super) fn add_connection(
        &mut self,
        socket: OwnedFd,
        peer: Peer,
        admission: ConnectionAdmission,
    ) {
        let tls = match &self.certificates {
            None => None,
            Some(certificates) => match ServerConnection::new(certificates.current()) {
                Ok(tls) => Some(tls),
                Err(error) => {
                    return tracing::error!(door = H::DOOR.name(), %error, "cannot begin TLS");
                }
            },
        };
        let is_plain = tls.is_none();
        let now = self.shared.now.mono;
        let stream = ClientStream::new(socket, tls);
        let make = |id| Connection::new(stream, peer, id, admission, now);
        let id = self.connections.add(make);
        if let Some(connection) = self.connections.at(id.slot)
            && let ConnectionAdmission::Place(place) = &connection.admission
        {
            place.set_owner(Arc::new(GiveWay { inbox: self.inbox.clone(), id }).into());
        }
        if is_plain {
            self.arrived.push(id.slot);
        } else {
            self.watch(id.slot);
        }
    }

    /// Tells the handler of all that have arrived.
    pub(super) fn open_arrived(&mut self) {
        if self.arrived.is_empty() {
            return;
        }
        self.shared.handler.before_open(self.arrived.len(), self.shared.now);
        let mut arrived = std::mem::take(&mut self.arrived);
        for slot in arrived.drain(..) {
            self.with(slot, Connection::open);
        }
        self.arrived = arrived;
    }

    /// Stops accepting for a while: the listener would be ready for the same client for ever.
    fn pause(&mut self, error: &io::Error) {
        if !self.is_refusing {
            tracing::warn!(door = H::DOOR.name(), %error, "cannot accept, trying again");
        }
        self.is_refusing = true;
        if let Some(listener) = &self.listener
            && self.epoll.forget(listener.socket()).is_ok()
        {
            self.accept_at = Some(self.shared.now.mono + ACCEPT_PAUSE);
        }
    }

    /// Reads what other threads left, up to an amount of work.
    fn read_inbox(&mut self) {
        self.inbox.begin();
        let mut work = 0;
        while let Some(item) = self.inbox.take() {
            match item {
                Item::Message(message) => {
                    let Self { shared, connections, pushed, .. } = self;
                    let mut pushes = Pushes { connections, list: pushed };
                    work += shared.handler.on_message(message, &mut pushes);
                }
                Item::Client(socket, peer, place) => {
                    self.add_connection(socket, peer, ConnectionAdmission::Place(place));
                    self.open_arrived();
                }
                Item::Answer(id, answer) => {
                    work += ANSWER_WORK;
                    if let Some(connection) = self.connections.same(id) {
                        let next = connection.answered(answer, &mut self.shared);
                        self.follow(id.slot, next);
                    }
                }
                Item::GaveWay(id) => {
                    if self.connections.same(id).is_some() {
                        self.shared.bad_input("gave_way");
                        self.close(id.slot);
                    }
                }
            }
            if work >= INBOX_WORK_MAX {
                // The rest in the next turn, after the sockets.
                self.inbox.wake();
                return;
            }
        }
    }

    /// Sends the end of the stream; from then on the connection lingers. A client that has left
    /// costs nothing more.
    fn linger(&mut self, slot: u32) {
        let Some(connection) = self.connections.at(slot) else { return };
        if !connection.linger(&mut self.shared) {
            return self.close(slot);
        }
        connection.update_place(&self.shared.handler, None);
        let is_watched = connection.watched.is_some();
        if self.lingering.is_full() {
            self.shared.bad_input("too_many_connections");
            self.close_oldest();
        }
        self.lingering.add(slot, self.shared.now.mono);
        if is_watched {
            self.watch(slot);
        }
    }

    /// Closes the connection that has lingered longest; `false` if there is none.
    pub(super) fn close_oldest(&mut self) -> bool {
        let Some((slot, _)) = self.lingering.oldest() else { return false };
        if let Some(connection) = self.connections.at(slot) {
            // With unread bytes, closing would reset the connection.
            connection.discard(&mut self.shared);
        }
        self.close(slot);
        true
    }

    /// Looks at lingering connections whose time it is, and accepts again after a failure.
    pub(super) fn run_timers(&mut self) {
        let now = self.shared.now.mono;
        while self.lingering.fresh_since().is_some_and(|since| now >= since + FRESH_MAX) {
            let Some(slot) = self.lingering.watch_next() else { break };
            let Some(connection) = self.connections.at(slot) else { continue };
            match connection.discard(&mut self.shared) {
                Next::Close => self.close(slot),
                _ => self.watch(slot),
            }
        }
        let linger = &H::POLICY.linger;
        while self.lingering.oldest().is_some_and(|(_, since)| now >= since + linger.span) {
            if let Some(reason) = linger.slow {
                self.shared.bad_input(reason);
            }
            self.close_oldest();
        }
        if self.accept_at.is_some_and(|at| now >= at) {
            let failed = self.listener.as_ref().is_some_and(|listener| {
                self.epoll.watch(listener.socket(), Token::Listener, Interest::IN).is_err()
            });
            self.accept_at = failed.then_some(now + ACCEPT_PAUSE);
        }
    }

    /// Once a second: closes connections that have been idle or slow for too long.
    pub(super) fn close_overdue(&mut self) {
        let now = self.shared.now.mono;
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK_EVERY;
        for slot in 0..self.connections.places() {
            let Some(connection) = self.connections.at(slot) else { continue };
            if connection.is_lingering() {
                continue;
            }
            let handler = &self.shared.handler;
            connection.update_place(handler, Some(now));
            if let Some(reason) = connection.overdue(handler, now, self.idle_max) {
                self.shared.bad_input(reason);
                self.close(slot);
            }
        }
    }

    /// Answers what has arrived, and waits until all clients have read it.
    fn drain(&mut self, ready: &mut Ready) {
        self.read_clock();
        for slot in 0..self.connections.places() {
            for _ in 0..DRAIN_READS_MAX {
                let Some(connection) = self.connections.at(slot) else { break };
                let reads = !connection.is_lingering() && connection.is_done();
                if !reads || !connection.has_input() {
                    break;
                }
                let next = connection.readable(&mut self.shared);
                self.follow(slot, next);
            }
        }
        let until = self.shared.now.mono + H::POLICY.drain_max;
        while self.close_done() && self.shared.now.mono < until {
            self.turn(ready);
        }
        let until = self.shared.now.mono + H::POLICY.linger.span_at_end;
        while !self.lingering.is_empty() && self.shared.now.mono < until {
            self.turn(ready);
        }
        while self.close_oldest() {}
        for slot in 0..self.connections.places() {
            self.close(slot);
        }
    }

    /// Closes connections that have all their replies; `true` if some still wait for one.
    fn close_done(&mut self) -> bool {
        let mut some_wait = false;
        for slot in 0..self.connections.places() {
            let Some(connection) = self.connections.at(slot) else { continue };
            if connection.is_lingering() {
                continue;
            }
            if connection.is_done() {
                self.close(slot);
            } else {
                some_wait = true;
            }
        }
        some_wait
    }
}
