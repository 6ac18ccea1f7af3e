//! One loop of the door: receive a batch, answer it, send the replies.
//!
//! A loop owns its socket, its buffers and its place at the limiter, and shares nothing with the
//! other loops. Whatever a datagram holds and whatever the kernel says, the loop goes on. It never
//! waits for a remote store: what the store tells comes beside the datagrams.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidegate_core::Nanos;
use tidegate_core::time::SECOND;

use super::corridor::{Replies, answer_batch};
use super::elsewhere::{Pending, Whom};
use super::grouping::{Grouping, Parcel};
use super::mmsg::{Address, BATCH, Inbox, Local, Message, Outbox};
use super::socket::{NOTICE_SHUTDOWN, Wire};
use crate::config::listen::Allow;
use crate::limiter::Desk;
use crate::metrics::Door;
use crate::shutdown::Shutdown;

/// Batches that are still answered after the door began to close, if they are already there.
const DRAIN_TURNS_MAX: usize = 1024;

/// The pause after an error of the socket itself, so that a lasting one does not burn a core.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// How long the door stays to tell what a remote store is still to say, once it is closing. The
/// store has a say of its own in how long that takes; this is for one whose time is set very long.
const LAST_ANSWERS_MAX: Nanos = 3 * SECOND;

/// One loop.
pub(crate) struct Loop {
    wire: Wire,
    desk: Desk,
    allow: Arc<ArcSwap<Allow>>,
    inbox: Inbox,
    replies: Replies,
    post: Post,
    /// Who waits for a remote store, if counts lie in one.
    pending: Option<Pending>,
}

impl Loop {
    /// Allocates all that the loop will need.
    pub(crate) fn new(wire: Wire, desk: Desk, allow: Arc<ArcSwap<Allow>>) -> io::Result<Self> {
        let inbox = Inbox::new(wire.locals);
        let post = Post { grouping: Grouping::new(), outbox: Outbox::new() };
        let pending = if desk.is_remote() { Some(Pending::new()?) } else { None };
        Ok(Self { wire, desk, allow, inbox, replies: Replies::new(), post, pending })
    }

    /// Serves until `shutdown`, then answers what has already arrived.
    pub(crate) fn run(mut self, shutdown: &Shutdown) {
        while !shutdown.is_set() {
            self.turn_or_pause(true);
        }
        for _ in 0..DRAIN_TURNS_MAX {
            if self.turn_or_pause(false) == 0 {
                break;
            }
        }
        let until = self.desk.now().mono + LAST_ANSWERS_MAX;
        while self.pending.as_ref().is_some_and(Pending::is_owed) && self.desk.now().mono < until {
            self.wait(false);
            self.settle();
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

    /// One batch from socket to socket; returns how many datagrams it had.
    fn turn(&mut self, wait: bool) -> io::Result<usize> {
        if self.pending.is_some() {
            return self.turn_elsewhere(wait);
        }
        let count = self.inbox.receive(self.wire.socket.as_fd(), wait)?;
        let now = self.desk.now();
        let allow = self.allow.load();
        let mut packets: [&[u8]; BATCH] = [&[]; BATCH];
        let mut places = [0; BATCH];
        let mut admitted = 0;
        for place in 0..count {
            match screen(&self.inbox, place, &allow) {
                Ok(bytes) => {
                    packets[admitted] = bytes;
                    places[admitted] = place;
                    admitted += 1;
                }
                Err(reason) => self.desk.limiter().metrics().bad_input(Door::Text, reason),
            }
        }
        answer_batch(&self.desk, now, &packets[..admitted], &mut self.replies);
        let Self { wire, inbox, replies, post, .. } = self;
        post.send(wire, replies, |packet| {
            let place = places[packet];
            (inbox.sender(place), inbox.local(place))
        });
        Ok(count)
    }

    /// As [`Self::turn`], where counts lie in a remote store: asks it, and tells what it said.
    fn turn_elsewhere(&mut self, wait: bool) -> io::Result<usize> {
        if wait {
            self.wait(true);
        }
        self.settle();
        let count = match self.inbox.receive(self.wire.socket.as_fd(), false) {
            Err(error) if is_quiet(&error) => 0,
            received => received?,
        };
        let Self { wire, desk, allow, inbox, replies, post, pending: Some(pending) } = self else {
            return Ok(count);
        };
        let (now, allow) = (desk.now(), allow.load());
        replies.clear();
        for place in 0..count {
            let whom = Whom { to: *inbox.sender(place), from: inbox.local(place) };
            match screen(inbox, place, &allow) {
                Ok(bytes) => pending.take(desk, now, (place, bytes), whom, replies),
                Err(reason) => desk.limiter().metrics().bad_input(Door::Text, reason),
            }
        }
        post.send(wire, replies, |place| (inbox.sender(place), inbox.local(place)));
        // Of a store that is known to be away, all is said by now.
        self.settle();
        Ok(count)
    }

    /// Waits until the store has told something, or with `both` until a datagram is there, as long
    /// as it takes to notice that the door is closing.
    fn wait(&self, both: bool) {
        let Some(pending) = &self.pending else { return };
        let (bell, socket) = (pending.bell(), self.wire.socket.as_fd());
        let mut fds = [PollFd::new(&bell, PollFlags::IN), PollFd::new(&socket, PollFlags::IN)];
        let fds = &mut fds[..if both { 2 } else { 1 }];
        let longest = Timespec { tv_sec: 0, tv_nsec: NOTICE_SHUTDOWN.subsec_nanos().into() };
        if let Err(error) = poll(fds, Some(&longest))
            && error != rustix::io::Errno::INTR
        {
            tracing::debug!(%error, "text: waiting failed");
            thread::sleep(ERROR_PAUSE);
        }
    }

    /// Tells those who asked what the store has told.
    fn settle(&mut self) {
        let Self { wire, desk, replies, post, pending: Some(pending), .. } = self else { return };
        pending.settle(desk, desk.now(), replies, |whom, replies| {
            post.send(wire, replies, |at| (&whom[at].to, whom[at].from));
        });
    }
}

/// A timeout or a signal: nothing arrived, nothing is wrong.
fn is_quiet(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// The bytes of a datagram that may be looked at, or why this one may not.
fn screen<'a>(inbox: &'a Inbox, place: usize, allow: &Allow) -> Result<&'a [u8], &'static str> {
    let sender = inbox.sender(place);
    if sender.port() == 0 {
        return Err("no_source_port");
    }
    if !allow.is_open() && !sender.ip().is_some_and(|ip| allow.permits(ip)) {
        return Err("not_allowed");
    }
    // Longer than its buffer is longer than any request; the codec says so of the rest.
    inbox.bytes(place).ok_or(tidegate_wire::text::Ignored::TooLong.reason())
}

/// The way out.
struct Post {
    grouping: Grouping,
    outbox: Outbox,
}

impl Post {
    /// Sends every reply to where its request came from; `whom` says where, and which of our
    /// addresses it came to.
    #[inline(always)]
    fn send<'a>(
        &mut self,
        wire: &Wire,
        replies: &Replies,
        whom: impl Fn(usize) -> (&'a Address, Local),
    ) {
        let nobody = Address::default();
        let nowhere = Parcel { to: &nobody, from: Local::Bound, length: 0 };
        let mut parcels = [nowhere; BATCH];
        let count = replies.iter().len();
        for (parcel, (packet, reply)) in parcels.iter_mut().zip(replies.iter()) {
            let (to, from) = whom(packet);
            *parcel = Parcel { to, from, length: reply.len() };
        }
        let parcels = &parcels[..count];
        self.grouping.group(parcels, wire.segments);

        let mut parts = [IoSlice::new(&[]); BATCH];
        let mut ends = [0; BATCH];
        let mut used = 0;
        for (group, end) in self.grouping.groups().zip(&mut ends) {
            used += gather(group, replies, &mut parts[used..]);
            *end = used;
        }
        let mut messages = [Message::new(&nobody, &[]); BATCH];
        let mut start = 0;
        let mut sends = 0;
        for (group, &end) in self.grouping.groups().zip(&ends) {
            let Parcel { to, from, length } = parcels[usize::from(group[0])];
            let segment = (group.len() > 1).then_some(length as u16);
            messages[sends] = Message { to, from, segment, parts: &parts[start..end] };
            start = end;
            sends += 1;
        }
        self.deliver(wire, &messages[..sends]);
    }

    /// Sends; a joined send that the kernel or the device refuses goes out one by one.
    fn deliver(&mut self, wire: &Wire, messages: &[Message<'_>]) {
        let socket = wire.socket.as_fd();
        let mut refused = [0; BATCH];
        let mut refusals = 0;
        self.outbox.send(socket, messages, |at, error| {
            if messages[at].segment.is_some() {
                refused[refusals] = at;
                refusals += 1;
            } else {
                tracing::debug!(%error, "text: a reply was lost");
            }
        });
        for &at in &refused[..refusals] {
            self.deliver_apart(wire, &messages[at]);
        }
    }

    /// Sends what was joined as the datagrams that it is made of.
    fn deliver_apart(&mut self, wire: &Wire, joined: &Message<'_>) {
        let length = usize::from(joined.segment.unwrap_or(u16::MAX)).max(1);
        let mut parts = [IoSlice::new(&[]); BATCH];
        let mut count = 0;
        let datagrams = joined.parts.iter().flat_map(|part| part.chunks(length));
        for (part, datagram) in parts.iter_mut().zip(datagrams) {
            *part = IoSlice::new(datagram);
            count += 1;
        }
        let mut messages = [Message::new(joined.to, &[]); BATCH];
        for (message, part) in messages.iter_mut().zip(&parts) {
            message.from = joined.from;
            message.parts = std::slice::from_ref(part);
        }
        self.outbox.send(wire.socket.as_fd(), &messages[..count], |_, error| {
            tracing::debug!(%error, "text: a reply was lost");
        });
    }
}

/// Lists the bytes of a group's replies in `parts`, in as few pieces as they lie in; returns how
/// many. Replies to one client often lie end to end, and the kernel copies one piece more quickly.
fn gather<'a>(group: &[u8], replies: &'a Replies, parts: &mut [IoSlice<'a>]) -> usize {
    let mut used = 0;
    let mut piece = 0..0;
    for &at in group {
        let place = replies.place(usize::from(at));
        if used > 0 && place.start == piece.end {
            piece.end = place.end;
        } else {
            piece = place;
            used += 1;
        }
        parts[used - 1] = IoSlice::new(&replies.bytes()[piece.clone()]);
    }
    used
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};

    use super::super::socket;
    use super::*;

    fn deliver(segment: u16, parts: &[&[u8]], expected: usize) -> Vec<Vec<u8>> {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let wire = socket::bind(loopback, 1).expect("a free port").remove(0);
        let client = UdpSocket::bind(loopback).expect("a free port");
        client.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let to = Address::from(client.local_addr().expect("bound"));
        let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut post = Post { grouping: Grouping::new(), outbox: Outbox::new() };
        // The message behind shows that one refused does not hold up the next.
        let last = [IoSlice::new(b"last")];
        let joined = Message { segment: Some(segment), ..Message::new(&to, &slices) };
        post.deliver(&wire, &[joined, Message::new(&to, &last)]);
        let mut buffer = [0; 2000];
        (0..expected)
            .map(|_| {
                let length = client.recv(&mut buffer).expect("a datagram comes");
                buffer[..length].to_vec()
            })
            .collect()
    }

    #[test]
    fn a_joined_send_arrives_as_several_datagrams() {
        let arrived = deliver(3, &[b"onetwo", b"six"], 4);
        assert_eq!(arrived, [&b"one"[..], b"two", b"six", b"last"]);
    }

    #[test]
    fn a_joined_send_that_is_refused_goes_out_one_by_one() {
        // A joined send must be shorter than 64 KiB; this one is not.
        let half = vec![b'a'; 35_200];
        let mut arrived = deliver(1100, &[&half, &half], 65);
        arrived.retain(|datagram| *datagram != [b'a'; 1100]);
        assert_eq!(arrived, [b"last"], "64 replies and the one behind them");
    }
}
