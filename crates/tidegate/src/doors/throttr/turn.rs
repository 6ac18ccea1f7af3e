//! One loop of the door: waits for its sockets, lets each connection go as far as it can.
//!
//! A loop owns its connections, their buffers and its corridor, and shares with other loops only
//! what lies in the hall. Whatever a client sends and whatever the kernel says, the loop goes on.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate_core::Nanos;
use tidegate_core::time::{MILLISECOND, SECOND};
use tidegate_wire::throttr::reply;

use super::channels::Event;
use super::clerk::{Answer, Errand, Question};
use super::connection::{Bench, Connection, Next};
use super::counts::Figure;
use super::guest::Guest;
use super::poll::{Interest, Poll, Ready, Token};
use super::post::{GiveWay, Letter, Post};
use super::room::Connections;
use super::socket::{Listener, Peer, SocketFile};
use crate::doors::io::limits::{Limits, Place};
use crate::doors::io::tcp;
use crate::metrics::Door;
use crate::settings::listen::Allow;
use crate::shutdown::Shutdown;

/// How long a loop sleeps in the kernel before it looks whether the door is closing.
const NOTICE_SHUTDOWN: Duration = Duration::from_millis(200);
/// How often idle and stuck connections are looked for.
const LOOK_EVERY: Nanos = SECOND;
/// Clients that are accepted in one turn.
const ACCEPTS_MAX: usize = 64;
/// How long to wait before accepting again when that failed, say for want of file descriptors.
const ACCEPT_PAUSE: Nanos = 50 * MILLISECOND;
/// Events handed to subscribers in one turn, about.
const HANDED_MAX: usize = 4096;
/// Connections that had events to send and are served in one turn.
const FLUSHED_MAX: usize = 256;
/// How long a client that was told to go may take to read what it was sent.
const LINGER_MAX: Nanos = 2 * SECOND;
/// How long a closing door waits for clients to read, unless the process ends before.
const DRAIN_MAX: Nanos = 30 * SECOND;
/// Reads from one connection after the door began to close, if there is something.
const DRAIN_READS_MAX: usize = 64;
/// The pause after an error of epoll itself, so that a lasting one does not burn a core.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// What a loop is made of.
pub(super) struct Parts {
    pub(super) bench: Bench,
    /// Where clients come in; a loop may have none and be dealt its clients.
    pub(super) listener: Option<Listener>,
    /// The loops among which accepted clients are dealt out; empty to keep all.
    pub(super) deal_to: Vec<Arc<Post>>,
    pub(super) limits: Arc<Limits>,
    pub(super) allow: Arc<ArcSwap<Allow>>,
    pub(super) idle_max: Duration,
}

/// One loop.
pub(super) struct Loop {
    bench: Bench,
    poll: Poll,
    post: Arc<Post>,
    listener: Option<Listener>,
    deal_to: Vec<Arc<Post>>,
    dealt: usize,
    limits: Arc<Limits>,
    allow: Arc<ArcSwap<Allow>>,
    idle_max: Nanos,
    connections: Connections,
    /// Connections that go on when the others had their turn.
    again: VecDeque<u32>,
    /// Connections that have events to send.
    fresh: VecDeque<u32>,
    /// When accepting goes on after a failure.
    accept_at: Option<Nanos>,
    /// Whether accepting failed the last time, which is told once.
    refusing: bool,
    look_at: Nanos,
    turns: usize,
    encoded: Vec<u8>,
}

impl Loop {
    /// Takes its sockets in hand.
    pub(super) fn new(parts: Parts) -> io::Result<Self> {
        let Parts { bench, listener, deal_to, limits, allow, idle_max } = parts;
        let post = bench.corridor.floor.post.clone();
        let poll = Poll::new()?;
        poll.watch(post.bell(), Token::Bell, Interest::IN)?;
        if let Some(listener) = &listener {
            poll.watch(listener.socket(), Token::Listener, Interest::IN)?;
        }
        let idle_max = Nanos::try_from(idle_max.as_nanos()).unwrap_or(Nanos::MAX);
        Ok(Self {
            bench,
            poll,
            post,
            listener,
            deal_to,
            dealt: 0,
            limits,
            allow,
            idle_max,
            connections: Connections::default(),
            again: VecDeque::new(),
            fresh: VecDeque::new(),
            accept_at: None,
            refusing: false,
            look_at: 0,
            turns: 0,
            encoded: Vec::new(),
        })
    }

    /// Serves until `shutdown`, then answers what has already arrived.
    pub(super) fn run(mut self, shutdown: &Shutdown, file: Option<SocketFile>) {
        let mut ready = Ready::new();
        while !shutdown.is_set() {
            self.turn(&mut ready);
        }
        // Nobody finds the way in any more.
        self.listener = None;
        drop(file);
        self.drain(&mut ready);
        let Bench { corridor, .. } = self.bench;
        corridor.hall.leave_lane(corridor.lane);
    }

    fn turn(&mut self, ready: &mut Ready) {
        let busy = !self.again.is_empty() || !self.fresh.is_empty() || self.post.is_rung();
        let longest = if busy { Duration::ZERO } else { NOTICE_SHUTDOWN };
        if let Err(error) = self.poll.wait(longest, ready) {
            tracing::debug!(%error, "throttr: waiting failed");
            thread::sleep(ERROR_PAUSE);
        }
        // Events go out before this turn's replies: some clients misread one that lies behind a
        // reply, and what is written apart may still be read together.
        let rung = self.post.is_rung();
        if rung {
            self.read_letters();
        }
        for _ in 0..FLUSHED_MAX {
            let Some(slot) = self.fresh.pop_front() else { break };
            self.with(slot, |connection, bench| {
                connection.fresh = false;
                connection.flush(bench)
            });
        }
        for position in 0..ready.len() {
            match ready.at(position) {
                (Token::Connection { slot, generation }, flags) => {
                    self.stir(slot, generation, flags);
                }
                (Token::Listener, _) => self.accept(),
                // Who rings may be late with the bell itself: the letter was read, and the bell
                // would go on for ever.
                (Token::Bell, _) if !rung => self.read_letters(),
                (Token::Bell, _) => {}
            }
        }
        for _ in 0..self.again.len() {
            let Some(slot) = self.again.pop_front() else { break };
            self.with(slot, |connection, bench| {
                connection.again = false;
                connection.go_on(bench)
            });
        }
        // A clock is read for that in quiet turns, and in one of many busy ones.
        self.turns = self.turns.wrapping_add(1);
        if ready.len() == 0 || self.turns.is_multiple_of(64) {
            self.look_around();
        }
    }

    /// A connection's socket is ready.
    #[inline]
    fn stir(&mut self, slot: u32, generation: u32, flags: Interest) {
        let Some(connection) = self.connections.same(slot, generation) else { return };
        let next = if connection.watched.is_empty() {
            // It waits for nothing of its socket: this is the end of it.
            Next::Close
        } else if connection.watched.contains(Interest::OUT) {
            connection.writable(&mut self.bench)
        } else {
            connection.readable(&mut self.bench)
        };
        debug_assert!(!flags.is_empty(), "something is ready");
        self.follow(slot, next);
    }

    /// Does something with a connection that may be gone by now.
    fn with(&mut self, slot: u32, work: impl FnOnce(&mut Connection, &mut Bench) -> Next) {
        let Some(connection) = self.connections.at(slot) else { return };
        let next = work(connection, &mut self.bench);
        self.follow(slot, next);
    }

    /// Does what a connection wants next.
    #[inline]
    fn follow(&mut self, slot: u32, next: Next) {
        let Some(connection) = self.connections.at(slot) else { return };
        match next {
            Next::Wait => {}
            Next::Again => {
                connection.again = true;
                self.again.push_back(slot);
            }
            Next::Ask(question) => {
                let generation = connection.generation;
                if !self.ask(slot, generation, question) {
                    return self.close(slot);
                }
            }
            Next::Linger => match connection.linger(&mut self.bench) {
                Next::Wait => {}
                _ => return self.close(slot),
            },
            Next::Close => return self.close(slot),
        }
        let Some(connection) = self.connections.at(slot) else { return };
        connection.tell_place(connection.stirred);
        let interest = connection.interest();
        if interest != connection.watched {
            connection.watched = interest;
            let token = Token::Connection { slot, generation: connection.generation };
            if self.poll.change(connection.socket(), token, interest).is_err() {
                self.close(slot);
            }
        }
    }

    fn close(&mut self, slot: u32) {
        // Closing the socket takes it out of epoll.
        if let Some(mut connection) = self.connections.remove(slot) {
            connection.leave(&mut self.bench);
        }
    }

    fn ask(&self, slot: u32, generation: u32, question: Question) -> bool {
        let corridor = &self.bench.corridor;
        corridor.hall.clerk.run(Errand {
            question,
            slot,
            generation,
            size: corridor.size,
            hall: corridor.hall.clone(),
            records: corridor.records.clone(),
            clock: self.bench.clock.clone(),
            post: self.post.clone(),
        })
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_MAX {
            let Some(listener) = &self.listener else { return };
            match listener.accept() {
                Ok((socket, peer)) => {
                    self.refusing = false;
                    self.welcome(socket, peer);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if tcp::left_early(&error) => {}
                Err(error) => {
                    if !self.refusing {
                        tracing::warn!(%error, "throttr: cannot accept, trying again");
                    }
                    self.refusing = true;
                    // Level-triggered, it would be told of the same client again and again.
                    if self.poll.forget(listener.socket()).is_ok() {
                        self.accept_at = Some(self.bench.clock.now().mono + ACCEPT_PAUSE);
                    }
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, socket: OwnedFd, peer: Peer) {
        let metrics = &self.bench.corridor.metrics;
        if peer.ip().is_some_and(|ip| !self.allow.load().permits(ip)) {
            return metrics.bad_input(Door::Throttr, "not_allowed");
        }
        let place = match self.limits.admit(peer.ip(), &socket) {
            Ok(place) => place,
            Err(refused) => return metrics.bad_input(Door::Throttr, refused.reason()),
        };
        if self.deal_to.is_empty() {
            return self.seat(socket, peer, place);
        }
        let post = &self.deal_to[self.dealt % self.deal_to.len()];
        self.dealt = self.dealt.wrapping_add(1);
        post.leave(Letter::Client(socket, peer, place));
    }

    fn seat(&mut self, socket: OwnedFd, peer: Peer, place: Place) {
        let now = self.bench.clock.now();
        let bench = &mut self.bench;
        let seated = self.connections.add(|slot, generation| {
            let corridor = &mut bench.corridor;
            let guest = Guest::enter(peer, slot, &corridor.hall, &mut corridor.floor, now)?;
            Ok::<_, getrandom::Error>(Connection::new(socket, generation, guest, place, now))
        });
        let Ok(slot) = seated else {
            return tracing::error!("throttr: the system has no randomness for an id");
        };
        let Some(connection) = self.connections.at(slot) else { return };
        let generation = connection.generation;
        let token = Token::Connection { slot, generation };
        if self.poll.watch(connection.socket(), token, connection.watched).is_err() {
            return self.close(slot);
        }
        let owner = GiveWay { post: self.post.clone(), slot, generation };
        connection.place.set_owner(Arc::new(owner).into());
    }

    /// Reads what other loops and the clerk left, up to a number of events.
    fn read_letters(&mut self) {
        self.post.hush();
        let mut handed = 0;
        while let Some(letter) = self.post.take() {
            match letter {
                Letter::Event(event) => handed += self.hand_out(&event),
                Letter::Client(socket, peer, place) => self.seat(socket, peer, place),
                Letter::Answer(answer) => self.answered(answer),
                Letter::GaveWay { slot, generation } => self.gave_way(slot, generation),
            }
            if handed >= HANDED_MAX {
                // The rest in the next turn, after the sockets.
                self.post.ring();
                return;
            }
        }
    }

    fn answered(&mut self, answer: Answer) {
        let Answer { slot, generation, bytes, permit } = answer;
        let now = self.bench.clock.now().mono;
        if let Some(connection) = self.connections.same(slot, generation) {
            connection.answered(bytes, permit, now);
            let next = connection.writable(&mut self.bench);
            self.follow(slot, next);
        }
    }

    /// Closes a connection whose place another one has.
    fn gave_way(&mut self, slot: u32, generation: u32) {
        if self.connections.same(slot, generation).is_some() {
            self.bench.corridor.metrics.bad_input(Door::Throttr, "gave_way");
            self.close(slot);
        }
    }

    /// Hands an event to the subscribers in this loop; returns how many they are.
    fn hand_out(&mut self, event: &Event) -> usize {
        let Self { bench, connections, fresh, encoded, .. } = self;
        let corridor = &bench.corridor;
        encoded.clear();
        let fits = reply::event(encoded, corridor.size, &event.name, &event.payload).is_ok();
        let (mut delivered, mut lost) = (0, 0);
        for (slot, member) in corridor.floor.audience(event) {
            let Some(connection) = connections.at(slot) else { continue };
            if !fits || !connection.hand(event, member, encoded) {
                lost += 1;
                continue;
            }
            delivered += 1;
            if !connection.fresh {
                connection.fresh = true;
                fresh.push_back(slot);
            }
        }
        corridor.lane.add(Figure::Delivered, delivered);
        corridor.lane.add(Figure::Lost, lost);
        (delivered + lost) as usize
    }

    /// Now and then: accepts again after a failure, and closes who has been silent for too long.
    fn look_around(&mut self) {
        let now = self.bench.clock.now();
        if self.accept_at.is_some_and(|at| now.mono >= at) {
            self.accept_at = None;
            if let Some(listener) = &self.listener
                && self.poll.watch(listener.socket(), Token::Listener, Interest::IN).is_err()
            {
                self.accept_at = Some(now.mono + ACCEPT_PAUSE);
            }
        }
        if now.mono < self.look_at {
            return;
        }
        self.look_at = now.mono + LOOK_EVERY;
        for slot in 0..self.connections.places() {
            let idle_max = self.idle_max;
            let Some(connection) = self.connections.at(slot) else { continue };
            connection.tell_place(now.mono);
            let silent = now.mono.saturating_sub(connection.stirred);
            let reason = if connection.is_lingering() {
                (silent > LINGER_MAX).then_some("slow_to_leave")
            } else if connection.loses_permit(now.mono) || connection.is_stuck(now.mono, idle_max) {
                Some("slow_reader")
            } else {
                let idle = connection.place.idle_since().is_some() && silent > idle_max;
                idle.then_some("idle")
            };
            if let Some(reason) = reason {
                self.bench.corridor.metrics.bad_input(Door::Throttr, reason);
                self.close(slot);
            }
        }
    }

    /// Accepts nobody any more, answers what has arrived, and waits until all have read it.
    fn drain(&mut self, ready: &mut Ready) {
        for slot in 0..self.connections.places() {
            for _ in 0..DRAIN_READS_MAX {
                let Some(connection) = self.connections.at(slot) else { break };
                if !connection.is_done() || !connection.has_input() {
                    break;
                }
                let next = connection.readable(&mut self.bench);
                self.follow(slot, next);
            }
        }
        let until = self.bench.clock.now().mono + DRAIN_MAX;
        loop {
            for slot in 0..self.connections.places() {
                let Some(connection) = self.connections.at(slot) else { continue };
                // Who was told to go has had its answers, and had time to read them.
                if connection.is_done() || connection.is_lingering() {
                    self.close(slot);
                }
            }
            if self.connections.len() == 0 || self.bench.clock.now().mono >= until {
                break;
            }
            self.turn(ready);
        }
        for slot in 0..self.connections.places() {
            self.close(slot);
        }
    }
}

#[cfg(test)]
mod tests;
