//! One event loop of the door: receive a batch, answer it, send the replies. Replies of one length
//! to one client leave joined, in one send.
//!
//! A loop owns its socket, its buffers and its handle on the limiter, and shares nothing with the
//! other loops. No datagram and no error of the kernel ends it. It never waits for a remote store
//! alone: the store's answers wake it as datagrams do.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;
use tidegate_core::Nanos;
use tidegate_core::time::SECOND;
use tidegate_wire::text::Ignored;

use super::handler::TextHandler;
use super::mmsg::{
    BATCH, OwnAddress, RawAddress, ReceiveBuffers, SendHeaders, Transmit, receive_joined,
};
use super::socket::{LoopSocket, NOTICE_SHUTDOWN};
use crate::limiter::LimiterHandle;
use crate::settings::listen::Allow;
use crate::shutdown::Shutdown;

/// Batches that are still answered after the door began to close, if they are already there.
const DRAIN_TURNS_MAX: usize = 1024;

/// The pause after an error of the socket itself, so that a lasting one does not burn a core.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// How long a door that closes waits for the answers of a remote store. The store's own timeout is
/// shorter, unless the operator has set a very long one.
const LAST_ANSWERS_MAX: Nanos = 3 * SECOND;

/// The most bytes that one send may carry; the kernel's own bound is 64 KiB with headers.
const SEND_BYTES_MAX: usize = 60_000;

/// Datagrams longer than this leave alone: a segment must fit the path's packets, and longer ones
/// may have to be fragmented.
const SEGMENT_MAX: usize = 1200;

/// Slots of the hash table of groups: a power of two, well above [`BATCH`], so that probes are
/// short.
const SLOTS: usize = 256;

const NONE: u8 = u8::MAX;

/// Where a reply goes.
#[derive(Clone, Copy)]
struct ReplyPath {
    /// The client.
    to: RawAddress,
    /// Our address that the client asked.
    from: OwnAddress,
}

/// One loop.
pub(super) struct TextLoop {
    socket: LoopSocket,
    allow: Arc<ArcSwap<Allow>>,
    received: ReceiveBuffers,
    handler: TextHandler<ReplyPath>,
    sender: Sender,
}

impl TextLoop {
    /// Allocates all that the loop will need.
    pub(super) fn new(
        socket: LoopSocket,
        handle: LimiterHandle,
        allow: Arc<ArcSwap<Allow>>,
    ) -> io::Result<Self> {
        // An old kernel gives datagrams one by one.
        let joined = receive_joined(socket.udp.as_fd()).is_ok();
        let received = ReceiveBuffers::new(socket.locals, joined);
        let handler = TextHandler::new(handle)?;
        Ok(Self { socket, allow, received, handler, sender: Sender::new() })
    }

    /// Serves until `shutdown`, then answers what has already arrived.
    pub(super) fn run(mut self, shutdown: &Shutdown) {
        while !shutdown.is_set() {
            self.turn_or_pause(true);
        }
        for _ in 0..DRAIN_TURNS_MAX {
            if self.turn_or_pause(false) == 0 {
                break;
            }
        }
        let until = self.handler.now().mono + LAST_ANSWERS_MAX;
        while self.handler.has_pending() && self.handler.now().mono < until {
            self.wait(false);
            self.send_answers();
        }
    }

    fn turn_or_pause(&mut self, wait: bool) -> usize {
        match self.turn(wait) {
            Ok(count) => count,
            Err(error) if is_quiet(&error) => 0,
            Err(error) => {
                tracing::debug!(%error, "text: receiving failed");
                thread::sleep(ERROR_PAUSE);
                0
            }
        }
    }

    /// One batch from socket to socket; returns how many buffers it filled. Before it come the
    /// replies to earlier requests whose verdicts have come since.
    fn turn(&mut self, wait: bool) -> io::Result<usize> {
        // While no request waits for a store, only the socket can have news: one system call waits
        // for it and receives.
        let pending = self.handler.has_pending();
        if pending {
            if wait {
                self.wait(true);
            }
            self.send_answers();
        }
        let Self { socket, allow, received, handler, sender } = self;
        let count = received.receive(socket.udp.as_fd(), wait && !pending)?;
        let (allow, received) = (allow.load(), &*received);
        // Answers at most BATCH datagrams, each with the number of its buffer.
        let mut answer =
            |handler: &mut TextHandler<ReplyPath>, datagrams: &[&[u8]], buffers: &[u8]| {
                let path = |number: usize| {
                    let buffer = usize::from(buffers[number]);
                    (received.sender(buffer), received.local(buffer))
                };
                let replies = handler.on_datagrams(
                    datagrams,
                    |number| ReplyPath { to: *path(number).0, from: path(number).1 },
                    |peer| is_trusted(&allow, &peer.to),
                );
                let bytes = replies.bytes();
                let outgoing = replies.places().iter().map(|(number, place)| {
                    let (to, from) = path(*number);
                    Outgoing { to, from, start: place.start, end: place.end }
                });
                sender.send(socket.udp.as_fd(), socket.segments, bytes, outgoing);
            };
        let mut datagrams: [&[u8]; BATCH] = [&[]; BATCH];
        let mut buffers = [0; BATCH];
        let mut filled = 0;
        for buffer in 0..count {
            let source = received.sender(buffer);
            let reason = if source.port() == 0 {
                "no_source_port"
            } else if !allow.is_open() && !source.ip().is_some_and(|ip| allow.permits(ip)) {
                "not_allowed"
            } else if let Some(whole) = received.datagrams(buffer) {
                for datagram in whole {
                    datagrams[filled] = datagram;
                    buffers[filled] = buffer as u8;
                    filled += 1;
                    if filled == BATCH {
                        answer(handler, &datagrams, &buffers);
                        filled = 0;
                    }
                }
                continue;
            } else {
                // Longer than its buffer is longer than any request.
                Ignored::TooLong.reason()
            };
            for _ in 0..received.datagrams(buffer).map_or(1, Iterator::count) {
                handler.ignore(reason);
            }
        }
        if filled > 0 {
            answer(handler, &datagrams[..filled], &buffers[..filled]);
        }
        Ok(count)
    }

    /// Waits until a remote store has answered, or with `both` until a datagram is there, but no
    /// longer than it may take to notice that the door is closing.
    fn wait(&self, both: bool) {
        let (notifier, socket) = (self.handler.notifier(), self.socket.udp.as_fd());
        let mut fds = [PollFd::new(&notifier, PollFlags::IN), PollFd::new(&socket, PollFlags::IN)];
        let fds = &mut fds[..if both { 2 } else { 1 }];
        let longest = Timespec { tv_sec: 0, tv_nsec: NOTICE_SHUTDOWN.subsec_nanos().into() };
        if let Err(error) = poll(fds, Some(&longest))
            && error != rustix::io::Errno::INTR
        {
            tracing::debug!(%error, "text: waiting failed");
            thread::sleep(ERROR_PAUSE);
        }
    }

    /// Sends the replies to requests whose verdicts have come.
    fn send_answers(&mut self) {
        let Self { socket, handler, sender, .. } = self;
        handler.on_answers(|paths, replies| {
            let outgoing = replies.places().iter().map(|(number, place)| {
                let ReplyPath { to, from } = &paths[*number];
                Outgoing { to, from: *from, start: place.start, end: place.end }
            });
            sender.send(socket.udp.as_fd(), socket.segments, replies.bytes(), outgoing);
        });
    }
}

/// A timeout or a signal: nothing arrived, nothing is wrong.
fn is_quiet(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// Whether a source may have a reply that is much longer than its request: loopback, which no other
/// machine can pretend to be, and the networks that the operator has named.
fn is_trusted(allow: &Allow, source: &RawAddress) -> bool {
    source.ip().is_some_and(|ip| ip.to_canonical().is_loopback() || allow.names(ip))
}

/// A datagram to send: where it goes, and where its bytes lie among those of its batch.
#[derive(Clone, Copy, Debug)]
struct Outgoing<'a> {
    /// The receiver.
    to: &'a RawAddress,
    /// Our address to leave from: the one that the client asked.
    from: OwnAddress,
    /// Where its bytes begin.
    start: usize,
    /// Where its bytes end.
    end: usize,
}

impl Outgoing<'_> {
    /// Bytes of the datagram.
    fn length(&self) -> usize {
        self.end - self.start
    }

    /// Whether both can leave in one send.
    fn suits(&self, other: &Self) -> bool {
        self.length() == other.length() && self.to == other.to && self.from == other.from
    }
}

#[derive(Clone, Copy, Default)]
struct Group {
    /// A member that stands for all.
    sample: u8,
    count: u8,
    start: u8,
}

/// The groups of one batch. Made once and used again.
struct Grouping {
    slots: [u8; SLOTS],
    groups: [Group; BATCH],
    count: usize,
    /// The group of each datagram.
    of: [u8; BATCH],
    /// Datagrams, group by group.
    order: [u8; BATCH],
}

impl Grouping {
    fn new() -> Self {
        Self {
            slots: [NONE; SLOTS],
            groups: [Group::default(); BATCH],
            count: 0,
            of: [0; BATCH],
            order: [0; BATCH],
        }
    }

    /// Groups `datagrams`, [`BATCH`] at most. Without `join` every datagram is a group of its own.
    fn group(&mut self, datagrams: &[Outgoing<'_>], join: bool) {
        self.count = 0;
        self.slots.fill(NONE);
        for (at, datagram) in datagrams.iter().enumerate() {
            let group = self.find(datagrams, datagram, join).unwrap_or_else(|slot| {
                let group = self.count;
                self.groups[group] = Group { sample: at as u8, count: 0, start: 0 };
                self.count += 1;
                self.slots[slot] = group as u8;
                group
            });
            self.groups[group].count += 1;
            self.of[at] = group as u8;
        }
        let mut start = 0;
        for group in &mut self.groups[..self.count] {
            group.start = start;
            start += group.count;
        }
        let mut next = self.groups.map(|group| group.start);
        for at in 0..datagrams.len() {
            let place = &mut next[usize::from(self.of[at])];
            self.order[usize::from(*place)] = at as u8;
            *place += 1;
        }
    }

    /// The group that `datagram` can join, or the free slot for one of its own.
    fn find(
        &self,
        datagrams: &[Outgoing<'_>],
        datagram: &Outgoing<'_>,
        join: bool,
    ) -> Result<usize, usize> {
        let length = datagram.length();
        let bits = datagram.to.mix() ^ ((length as u64) << 48);
        let mut slot = (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % SLOTS;
        let join = join && length > 0 && length <= SEGMENT_MAX;
        loop {
            let group = usize::from(self.slots[slot]);
            if group == usize::from(NONE) {
                return Err(slot);
            }
            let Group { sample, count, .. } = self.groups[group];
            let room = (usize::from(count) + 1) * length <= SEND_BYTES_MAX;
            if join && room && datagrams[usize::from(sample)].suits(datagram) {
                return Ok(group);
            }
            slot = (slot + 1) % SLOTS;
        }
    }

    /// The groups: positions of datagrams that can leave together.
    fn groups(&self) -> impl Iterator<Item = &[u8]> {
        self.groups[..self.count].iter().map(|group| {
            let start = usize::from(group.start);
            &self.order[start..start + usize::from(group.count)]
        })
    }
}

/// What sending needs, allocated once.
struct Sender {
    grouping: Grouping,
    headers: SendHeaders,
}

impl Sender {
    fn new() -> Self {
        Self { grouping: Grouping::new(), headers: SendHeaders::new() }
    }

    /// Sends `datagrams`, [`BATCH`] at most, which lie in `bytes`; joined where they can be, if
    /// `join`. Datagrams have no order, so those to one receiver may be gathered from all over the
    /// batch. They may be lost, too, and one that the kernel refuses is.
    #[inline(always)]
    fn send<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        join: bool,
        bytes: &[u8],
        datagrams: impl Iterator<Item = Outgoing<'a>>,
    ) {
        let datagrams: SmallVec<[_; BATCH]> = datagrams.collect();
        self.grouping.group(&datagrams, join);
        let mut parts = [IoSlice::new(&[]); BATCH];
        let mut ends = [0; BATCH];
        let mut used = 0;
        for (group, end) in self.grouping.groups().zip(&mut ends) {
            used += gather(group, bytes, &datagrams, &mut parts[used..]);
            *end = used;
        }
        let unset = RawAddress::default();
        let mut messages = [Transmit::new(&unset, &[]); BATCH];
        let mut start = 0;
        let mut sends = 0;
        for (group, &end) in self.grouping.groups().zip(&ends) {
            let datagram = &datagrams[usize::from(group[0])];
            let segment = (group.len() > 1).then_some(datagram.length() as u16);
            let parts = &parts[start..end];
            messages[sends] = Transmit { to: datagram.to, from: datagram.from, segment, parts };
            start = end;
            sends += 1;
        }
        // A joined send that the kernel or the device refuses goes out one by one.
        let mut refused: SmallVec<[usize; BATCH]> = SmallVec::new();
        self.headers.send(socket, &messages[..sends], |at, error| {
            if messages[at].segment.is_some() {
                refused.push(at);
            } else {
                tracing::debug!(%error, "text: a datagram was lost");
            }
        });
        for at in refused {
            self.send_apart(socket, &messages[at]);
        }
    }

    /// Sends what was joined as the datagrams that it is made of.
    fn send_apart(&mut self, socket: BorrowedFd<'_>, joined: &Transmit<'_>) {
        let length = usize::from(joined.segment.unwrap_or(u16::MAX)).max(1);
        let mut parts = [IoSlice::new(&[]); BATCH];
        let mut count = 0;
        let datagrams = joined.parts.iter().flat_map(|part| part.chunks(length));
        for (part, datagram) in parts.iter_mut().zip(datagrams) {
            *part = IoSlice::new(datagram);
            count += 1;
        }
        let mut messages = [Transmit::new(joined.to, &[]); BATCH];
        for (message, part) in messages.iter_mut().zip(&parts) {
            message.from = joined.from;
            message.parts = std::slice::from_ref(part);
        }
        self.headers.send(socket, &messages[..count], |_, error| {
            tracing::debug!(%error, "text: a datagram was lost");
        });
    }
}

/// Lists the bytes of a group in `parts`, in as few pieces as they lie in; returns how many.
/// Replies to one client often lie end to end, and the kernel copies one piece more quickly.
fn gather<'a>(
    group: &[u8],
    bytes: &'a [u8],
    datagrams: &[Outgoing<'_>],
    parts: &mut [IoSlice<'a>],
) -> usize {
    let mut used = 0;
    let (mut start, mut end) = (0, 0);
    for &at in group {
        let datagram = &datagrams[usize::from(at)];
        if used == 0 || datagram.start != end {
            start = datagram.start;
            used += 1;
        }
        end = datagram.end;
        parts[used - 1] = IoSlice::new(&bytes[start..end]);
    }
    used
}

#[cfg(test)]
mod tests;
