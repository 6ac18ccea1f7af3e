//! One loop of the door: accepts, answers, and sees its clients out.
//!
//! A client gets its answer and the end of the stream in one segment. Its socket must not be closed
//! yet: bytes that it sent, or sends now, would make a reset of it, and a reset may take an unread
//! answer along. So a client is given time to leave. Most have left when they are looked at for the
//! first time, and cost no more than that look; the others are watched, drained within bounds, and
//! closed when their time is over. Whatever a client sends and whatever the kernel says, the loop
//! goes on. It never waits for a remote store: the socket of a client travels with the question and
//! comes back with the answer.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendFlags, Shutdown as Side, SocketFlags, accept_with, acceptfrom_with, recv, send,
    shutdown as shut,
};
use rustix::time::Timespec;
use tidegate_core::time::{MILLISECOND, SECOND};
use tidegate_core::{Nanos, Now};

use super::corridor::Corridor;
use super::linger::{Lingering, Ticket};
use crate::doors::io::descriptors::Descriptors;
use crate::doors::io::limits::AllDoors;
use crate::doors::io::sources::{Share, Sources};
use crate::doors::mailbox::Mailbox;
use crate::limiter::Delay;
use crate::metrics::{Door, Metrics};
use crate::settings::listen::Allow;
use crate::shutdown::Shutdown;

/// How long a loop sleeps in the kernel before it looks whether the door is closing.
const NOTICE_SHUTDOWN: Nanos = 200 * MILLISECOND;
/// Clients that are accepted in one turn.
const ACCEPTS_MAX: usize = 64;
/// Clients that wait already when the door closes, and are answered.
const LATE_ACCEPTS_MAX: usize = 4096;
/// How long to wait before accepting again when that failed, say for want of file descriptors.
const ACCEPT_PAUSE: Nanos = 50 * MILLISECOND;
/// When an answered client is looked at for the first time: most have left by then.
const FRESH_MAX: Nanos = 5 * MILLISECOND;
/// How long an answered client may stay.
const LINGER_MAX: Nanos = SECOND;
/// How long answered clients may stay when the door closes.
const DRAIN_MAX: Nanos = 250 * MILLISECOND;
/// Clients that one loop keeps while a remote store is asked. Those beyond it are told what their
/// rule's `on_store_error` says.
const PENDING_MAX: usize = 4096;
/// How long clients may wait for a remote store when the door closes. The store has a say of its
/// own in how long that takes; this is for one whose time is set very long.
const LAST_ANSWERS_MAX: Nanos = 3 * SECOND;
/// Bytes that a client may send, which nobody wants.
const INPUT_BYTES_MAX: usize = 16 << 20;
/// Bytes that are thrown away in one call, and calls for one client in one turn.
const SINK_BYTES: usize = 64 << 10;
const SINKS_MAX: usize = 8;
/// Clients that one wait tells of.
const EVENTS_MAX: usize = 256;
/// The pause after an error of epoll itself, so that a lasting one does not burn a core.
const ERROR_PAUSE: Duration = Duration::from_millis(10);
/// How the listener is called in what a wait tells.
const LISTENER: u64 = u64::MAX;
/// And how the mailbox is. Places are far fewer than 2^32, so that no client is taken for either.
const BELL: u64 = u64::MAX - 1;

/// One loop.
pub(super) struct Loop {
    corridor: Corridor,
    listener: Option<TcpListener>,
    epoll: OwnedFd,
    allow: Arc<ArcSwap<Allow>>,
    sources: Arc<Sources>,
    /// Whether callers at this address are counted by source.
    counts_sources: bool,
    descriptors: Descriptors,
    all_doors: Arc<AllDoors>,
    metrics: Arc<Metrics>,
    lingering: Lingering<Caller>,
    /// Clients that were accepted and are booked together.
    arrived: Vec<Caller>,
    pending: Option<Pending>,
    /// As many as came at once the last time: one more try would find nobody.
    accepts: usize,
    /// When accepting goes on after a failure.
    accept_at: Option<Nanos>,
    /// The time, read once in each turn.
    now: Now,
    /// Whether accepting failed the last time, which is told once.
    refusing: bool,
    sink: Box<[u8]>,
}

/// Clients whose calls are booked in a remote store, if counts lie in one.
struct Pending {
    mailbox: Arc<Mailbox<(Caller, Delay)>>,
    /// Those of whom it is known how long they must wait.
    booked: Vec<(Caller, Delay)>,
}

/// A client on its socket, counted for as long as it is there.
struct Caller {
    socket: OwnedFd,
    _share: Option<Share>,
}

impl AsFd for Caller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What became of a client that was looked at.
enum Seen {
    /// It is still there.
    Staying,
    /// It has left, or its connection is broken.
    Gone,
    /// It sent more than anybody has to bear.
    TooMuch,
}

impl Loop {
    /// Takes its listener in hand; `max` clients linger at most.
    pub(super) fn new(
        corridor: Corridor,
        listener: TcpListener,
        allow: Arc<ArcSwap<Allow>>,
        max: usize,
        sources: Arc<Sources>,
        all_doors: Arc<AllDoors>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        let metrics = corridor.desk().limiter().metrics().clone();
        let mut pending = None;
        if corridor.desk().is_remote() {
            let mailbox = Mailbox::new(PENDING_MAX)?;
            epoll::add(&epoll, mailbox.bell(), EventData::new_u64(BELL), EventFlags::IN)?;
            pending = Some(Pending { mailbox, booked: Vec::new() });
        }
        Ok(Self {
            now: corridor.desk().now(),
            corridor,
            counts_sources: sources.counts_at(listener.local_addr()?.ip()),
            sources,
            descriptors: Descriptors::of_process(),
            all_doors,
            listener: Some(listener),
            epoll,
            allow,
            metrics,
            lingering: Lingering::new(max),
            arrived: Vec::with_capacity(ACCEPTS_MAX),
            pending,
            accepts: 1,
            accept_at: None,
            refusing: false,
            sink: vec![0; SINK_BYTES].into(),
        })
    }

    /// Serves until `shutdown`, then answers who is waiting already.
    pub(super) fn run(mut self, shutdown: &Shutdown) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while !shutdown.is_set() {
            self.turn(&mut events);
        }
        self.accept(LATE_ACCEPTS_MAX);
        self.answer_booked();
        // Nobody finds the way in any more.
        self.listener = None;
        self.accept_at = None;
        let until = self.now.mono + LAST_ANSWERS_MAX;
        while self.pending.as_ref().is_some_and(|pending| pending.mailbox.is_owed())
            && self.now.mono < until
        {
            self.turn(&mut events);
        }
        let until = self.now.mono + DRAIN_MAX;
        while !self.lingering.is_empty() && self.now.mono < until {
            self.turn(&mut events);
        }
        while self.dismiss_oldest() {}
    }

    fn turn(&mut self, events: &mut Vec<Event>) {
        events.clear();
        let longest = self.sleep_for();
        match epoll::wait(&self.epoll, spare_capacity(events), Some(&longest)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::debug!(%error, "jarl: waiting failed");
                thread::sleep(ERROR_PAUSE);
            }
        }
        self.now = self.corridor.desk().now();
        for event in events.iter() {
            match event.data.u64() {
                LISTENER => {
                    let most = self.accepts;
                    let found = self.accept(most);
                    let all = found == most;
                    self.accepts = if all { 2 * most } else { found }.clamp(1, ACCEPTS_MAX);
                }
                // Whoever was told of is seen off below.
                BELL => {}
                bits => self.look(Ticket { place: (bits >> 32) as u32, generation: bits as u32 }),
            }
        }
        if self.pending.is_some() {
            self.answer_booked();
        }
        self.see_out();
    }

    /// Until somebody must be looked at, whatever happens.
    fn sleep_for(&self) -> Timespec {
        // Not when the oldest of them is due: under load somebody always is in a moment, and a
        // timer for each would wake the loop as often as clients do.
        let fresh = self.lingering.fresh_since().map(|_| self.now.mono + FRESH_MAX);
        let oldest = self.lingering.oldest_since().map(|since| since + LINGER_MAX);
        let due = [fresh, oldest, self.accept_at].into_iter().flatten().min();
        let longest = match due {
            Some(due) => due.saturating_sub(self.now.mono).min(NOTICE_SHUTDOWN),
            None => NOTICE_SHUTDOWN,
        };
        Timespec { tv_sec: 0, tv_nsec: longest as i64 }
    }

    /// Accepts and answers up to `most` clients; returns how many there were.
    fn accept(&mut self, most: usize) -> usize {
        let mut found = 0;
        while found < most {
            let (batch, all) = self.take_in((most - found).min(ACCEPTS_MAX));
            self.answer_arrived();
            found += batch;
            if all {
                break;
            }
        }
        found
    }

    /// Accepts up to `most` clients; returns how many there were, and whether that is all.
    fn take_in(&mut self, most: usize) -> (usize, bool) {
        let allow = self.allow.load_full();
        for found in 0..most {
            let Some(listener) = &self.listener else { return (found, true) };
            match next_client(listener, self.counts_sources || !allow.is_open()) {
                Ok((socket, address)) => {
                    self.refusing = false;
                    let short = self.descriptors.are_short(&socket, 0) && !self.dismiss_oldest();
                    match self.share(&socket, address, &allow, short) {
                        Ok(share) => self.arrived.push(Caller { socket, _share: share }),
                        // Counted before the socket is closed: its caller finds it counted.
                        Err(reason) => self.metrics.bad_input(Door::Jarl, reason),
                    }
                    // Those who have arrived are answered first, and can make room then.
                    if short {
                        return (found + 1, false);
                    }
                }
                Err(Errno::AGAIN) => return (found, true),
                // The client was gone before it was accepted.
                Err(Errno::CONNABORTED | Errno::CONNRESET | Errno::PROTO | Errno::INTR) => {}
                Err(error) => {
                    // Whoever lingers longest makes room, if that is what is wanting.
                    if !self.dismiss_oldest() {
                        self.pause(error);
                        return (found, true);
                    }
                }
            }
        }
        (most, false)
    }

    /// Counts a client, or says why it is not answered. It is `short` if descriptors are and no
    /// client lingers that could make room.
    fn share(
        &self,
        socket: &OwnedFd,
        address: Option<IpAddr>,
        allow: &Allow,
        short: bool,
    ) -> Result<Option<Share>, &'static str> {
        if !allow.is_open() && !address.is_some_and(|address| allow.permits(address)) {
            return Err("not_allowed");
        }
        let counted = address.filter(|_| self.counts_sources);
        let share = counted.map(|address| self.sources.enter(Some(address))).transpose();
        let share = share.map_err(|_| "too_many_from_source")?.flatten();
        // This one needs its descriptor for a moment only: it is kept unless it is a last one.
        if short && !self.all_doors.let_one_go(self.now.mono) && self.descriptors.are_spent(socket)
        {
            return Err("no_descriptors");
        }
        Ok(share)
    }

    /// Stops accepting for a while: the listener would be told of the same client for ever.
    fn pause(&mut self, error: Errno) {
        if !self.refusing {
            tracing::warn!(%error, "jarl: cannot accept, trying again");
        }
        self.refusing = true;
        if let Some(listener) = &self.listener
            && epoll::delete(&self.epoll, listener).is_ok()
        {
            self.accept_at = Some(self.now.mono + ACCEPT_PAUSE);
        }
    }

    /// Books the calls of all who have arrived, and tells each.
    fn answer_arrived(&mut self) {
        if self.pending.is_some() {
            return self.ask_arrived();
        }
        let Self { corridor, arrived, lingering, metrics, sink, now, .. } = self;
        if arrived.is_empty() {
            return;
        }
        let calls = arrived.len();
        let mut clients = arrived.drain(..);
        let booked = corridor.answer(calls, *now, |answer| {
            let Some(socket) = clients.next() else { return };
            see_off(socket, answer, lingering, metrics, sink, *now);
        });
        if let Err(unfit) = booked {
            clients.for_each(|_| metrics.bad_input(Door::Jarl, unfit.reason()));
        }
    }

    /// As [`Self::answer_arrived`], where bookings lie in a remote store: it is asked.
    fn ask_arrived(&mut self) {
        let Self { corridor, arrived, pending: Some(pending), metrics, now, .. } = self else {
            return;
        };
        for socket in arrived.drain(..) {
            let asked = match pending.mailbox.envelope() {
                Some(envelope) => corridor.ask(*now, |delay| envelope.post((socket, delay))),
                None => corridor.answer_crowded(*now).map(|delay| {
                    pending.booked.push((socket, delay));
                }),
            };
            if let Err(unfit) = asked {
                metrics.bad_input(Door::Jarl, unfit.reason());
            }
        }
    }

    /// Tells those whose calls are booked.
    fn answer_booked(&mut self) {
        let Self { corridor, pending: Some(pending), lingering, metrics, sink, now, .. } = self
        else {
            return;
        };
        pending.mailbox.take(&mut pending.booked);
        for (socket, delay) in pending.booked.drain(..) {
            see_off(socket, corridor.words(delay), lingering, metrics, sink, *now);
        }
    }

    /// Looks at those whose time it is, and accepts again after a failure.
    fn see_out(&mut self) {
        let now = self.now.mono;
        while self.lingering.fresh_since().is_some_and(|since| now >= since + FRESH_MAX) {
            let Some(ticket) = self.lingering.watch_next() else { break };
            self.look(ticket);
            let name = u64::from(ticket.place) << 32 | u64::from(ticket.generation);
            if let Some(guest) = self.lingering.at(ticket)
                && epoll::add(&self.epoll, &guest.socket, EventData::new_u64(name), EventFlags::IN)
                    .is_err()
            {
                self.lingering.remove(ticket);
            }
        }
        while self.lingering.oldest_since().is_some_and(|since| now >= since + LINGER_MAX) {
            self.dismiss_oldest();
        }
        if self.accept_at.is_some_and(|at| now >= at) {
            let again = self.listener.as_ref().is_some_and(|listener| {
                let name = EventData::new_u64(LISTENER);
                epoll::add(&self.epoll, listener, name, EventFlags::IN).is_err()
            });
            self.accept_at = again.then_some(now + ACCEPT_PAUSE);
        }
    }

    /// Throws away what a client sent, and closes it if it has left.
    fn look(&mut self, ticket: Ticket) {
        let Some(guest) = self.lingering.at(ticket) else { return };
        let seen = drain(&guest.socket, &mut guest.bytes, &mut self.sink);
        if let Seen::TooMuch = seen {
            self.metrics.bad_input(Door::Jarl, "too_much_input");
        }
        if !matches!(seen, Seen::Staying) {
            // Closing the socket takes it out of epoll.
            self.lingering.remove(ticket);
        }
    }

    fn dismiss_oldest(&mut self) -> bool {
        dismiss_oldest(&mut self.lingering, &mut self.sink)
    }
}

/// Sends an answer and the end of the stream; from then on the client lingers. One that has left
/// costs nothing more.
#[inline(always)]
fn see_off(
    socket: Caller,
    answer: &[u8],
    lingering: &mut Lingering<Caller>,
    metrics: &Metrics,
    sink: &mut [u8],
    now: Now,
) {
    // The answer is held back until the end of the stream can leave with it.
    let sent = send(&socket, answer, SendFlags::MORE | SendFlags::NOSIGNAL);
    if sent != Ok(answer.len()) || shut(&socket, Side::Write).is_err() {
        return;
    }
    if lingering.is_full() {
        metrics.bad_input(Door::Jarl, "too_many_connections");
        dismiss_oldest(lingering, sink);
    }
    lingering.add(socket, now.mono);
}

/// Closes the client that lingers longest; `false` if there is none.
fn dismiss_oldest(lingering: &mut Lingering<Caller>, sink: &mut [u8]) -> bool {
    let Some(mut guest) = lingering.remove_oldest() else { return false };
    // Bytes that lie unread would make a reset of the end.
    let _ = drain(&guest.socket, &mut guest.bytes, sink);
    true
}

/// The client that has waited longest, and where it comes from if that is wanted.
fn next_client(
    listener: &TcpListener,
    with_address: bool,
) -> Result<(OwnedFd, Option<IpAddr>), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    if !with_address {
        return Ok((accept_with(listener, flags)?, None));
    }
    let (socket, from) = acceptfrom_with(listener, flags)?;
    Ok((socket, from.and_then(|from| Some(SocketAddr::try_from(from).ok()?.ip()))))
}

/// Throws away what is there, without copying it.
fn drain(socket: &Caller, bytes: &mut usize, sink: &mut [u8]) -> Seen {
    for _ in 0..SINKS_MAX {
        match recv(socket, &mut *sink, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok((_, 0)) => return Seen::Gone,
            Ok((_, count)) => *bytes = bytes.saturating_add(count),
            Err(Errno::AGAIN) => return Seen::Staying,
            Err(Errno::INTR) => {}
            Err(_) => return Seen::Gone,
        }
        if *bytes > INPUT_BYTES_MAX {
            return Seen::TooMuch;
        }
    }
    Seen::Staying
}

#[cfg(test)]
mod tests;
