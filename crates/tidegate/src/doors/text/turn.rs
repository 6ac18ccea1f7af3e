//! One loop of the door: receive a batch, answer it, send the replies.
//!
//! A loop owns its socket, its buffers and its place at the limiter, and shares nothing with the
//! other loops. Whatever a datagram holds and whatever the kernel says, the loop goes on. It never
//! waits for a remote store: what the store tells comes beside the datagrams.

use std::io;
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
use super::grouping::Parcel;
use super::mmsg::{Address, BATCH, Inbox, Local, receive_joined};
use super::post::Post;
use super::socket::{NOTICE_SHUTDOWN, Wire};
use crate::limiter::Desk;
use crate::metrics::Door;
use crate::settings::listen::Allow;
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
        // An old kernel gives them one by one.
        let joined = receive_joined(wire.socket.as_fd()).is_ok();
        let inbox = Inbox::new(wire.locals, joined);
        let pending = if desk.is_remote() { Some(Pending::new()?) } else { None };
        Ok(Self { wire, desk, allow, inbox, replies: Replies::new(), post: Post::new(), pending })
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
        let Self { wire, desk, allow, inbox, replies, post, .. } = self;
        let count = inbox.receive(wire.socket.as_fd(), wait)?;
        let allow = allow.load();
        each_batch(inbox, count, &allow, desk, |packets, places| {
            let trusted = |packet: usize| trusted(&allow, inbox.sender(places[packet].into()));
            answer_batch(desk, desk.now(), packets, trusted, replies);
            send(post, wire, replies, |packet| {
                let place = usize::from(places[packet]);
                (inbox.sender(place), inbox.local(place))
            });
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
        let allow = allow.load();
        each_batch(inbox, count, &allow, desk, |packets, places| {
            let now = desk.now();
            let whom = |packet: usize| {
                let place = usize::from(places[packet]);
                (inbox.sender(place), inbox.local(place))
            };
            replies.clear();
            for (at, bytes) in packets.iter().enumerate() {
                let (to, from) = whom(at);
                let trusted = || trusted(&allow, to);
                pending.take(desk, now, (at, bytes), Whom { to: *to, from }, trusted, replies);
            }
            send(post, wire, replies, whom);
        });
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
            send(post, wire, replies, |at| (&whom[at].to, whom[at].from));
        });
    }
}

/// A timeout or a signal: nothing arrived, nothing is wrong.
fn is_quiet(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// Hands over the datagrams of a receive that may be looked at, [`BATCH`] at most at a time, each
/// with the buffer that it lies in. Those that may not are counted.
#[inline(always)]
fn each_batch<'a>(
    inbox: &'a Inbox,
    count: usize,
    allow: &Allow,
    desk: &Desk,
    mut answer: impl FnMut(&[&'a [u8]], &[u8]),
) {
    let mut packets: [&[u8]; BATCH] = [&[]; BATCH];
    let mut places = [0; BATCH];
    let mut filled = 0;
    for place in 0..count {
        match screen(inbox, place, allow) {
            Ok(datagrams) => {
                for packet in datagrams {
                    packets[filled] = packet;
                    places[filled] = place as u8;
                    filled += 1;
                    if filled == BATCH {
                        answer(&packets, &places);
                        filled = 0;
                    }
                }
            }
            Err(reason) => {
                for _ in 0..inbox.datagrams(place).map_or(1, Iterator::count) {
                    desk.limiter().metrics().bad_input(Door::Text, reason);
                }
            }
        }
    }
    if filled > 0 {
        answer(&packets[..filled], &places[..filled]);
    }
}

/// The datagrams of a buffer if they may be looked at, or why they may not.
fn screen<'a>(
    inbox: &'a Inbox,
    place: usize,
    allow: &Allow,
) -> Result<impl Iterator<Item = &'a [u8]>, &'static str> {
    let sender = inbox.sender(place);
    if sender.port() == 0 {
        return Err("no_source_port");
    }
    if !allow.is_open() && !sender.ip().is_some_and(|ip| allow.permits(ip)) {
        return Err("not_allowed");
    }
    // Longer than its buffer is longer than any request; the codec says so of the rest.
    inbox.datagrams(place).ok_or(tidegate_wire::text::Ignored::TooLong.reason())
}

/// Whether a sender may have a reply that is much longer than its request: loopback, which no other
/// machine can pretend to be, and those that the operator has named.
fn trusted(allow: &Allow, sender: &Address) -> bool {
    sender.ip().is_some_and(|ip| ip.to_canonical().is_loopback() || allow.names(ip))
}

/// Sends every reply to where its request came from; `whom` says where, and which of our addresses
/// it came to.
#[inline(always)]
fn send<'a>(
    post: &mut Post,
    wire: &Wire,
    replies: &Replies,
    whom: impl Fn(usize) -> (&'a Address, Local),
) {
    let nobody = Address::default();
    let mut parcels = [Parcel { to: &nobody, from: Local::Bound, start: 0, end: 0 }; BATCH];
    let mut count = 0;
    for (packet, place) in replies.places() {
        let (to, from) = whom(packet);
        parcels[count] = Parcel { to, from, start: place.start, end: place.end };
        count += 1;
    }
    post.send(wire.socket.as_fd(), wire.segments, replies.bytes(), &parcels[..count]);
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};
    use std::time::Duration;

    use super::super::socket;
    use super::*;
    use crate::clock::Clock;
    use crate::config::Config;
    use crate::limiter::Limiter;
    use crate::metrics::Metrics;

    const FILE: &str = "
        [text]
        listen = '127.0.0.1:0'
        [[rule]]
        match = 'k'
        limit = '100/d'
        algorithm = 'fixed-window'
    ";

    /// A client of a loop, and how it sends requests: joined, as many as one send takes.
    struct Client(UdpSocket, Address);

    impl Client {
        fn send(&self, requests: &[String]) {
            for requests in requests.chunks(BATCH) {
                let parcel =
                    |at| Parcel { to: &self.1, from: Local::Bound, start: at, end: at + 16 };
                let parcels: Vec<_> = (0..requests.len()).map(|at| parcel(16 * at)).collect();
                Post::new().send(self.0.as_fd(), true, requests.concat().as_bytes(), &parcels);
            }
        }

        fn receive(&self) -> String {
            let mut buffer = [0; 100];
            let length = self.0.recv(&mut buffer).expect("a reply");
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        }
    }

    #[test]
    fn loopback_and_those_that_the_list_names_are_trusted() {
        let list = |networks: &str| {
            let file = format!("[text]\nlisten = '127.0.0.1:0'\n{networks}");
            Config::parse("t", &file).expect("a sound file").file.text.expect("a door").allow
        };
        for (networks, sender, expected) in [
            ("", "127.0.0.1:7", true),
            ("", "[::1]:7", true),
            ("", "[::ffff:127.0.0.9]:7", true),
            ("", "192.0.2.1:7", false),
            ("", "[::ffff:192.0.2.1]:7", false),
            ("", "[2001:db8::1]:7", false),
            ("allow = ['192.0.2.0/24']", "192.0.2.1:7", true),
            ("allow = ['192.0.2.0/24']", "[::ffff:192.0.2.1]:7", true),
            ("allow = ['192.0.2.0/24']", "192.0.3.1:7", false),
            ("allow = ['0.0.0.0/0']", "203.0.113.9:7", true),
        ] {
            let sender: SocketAddr = sender.parse().expect("an address");
            assert_eq!(trusted(&list(networks), &sender.into()), expected, "{networks} {sender}");
        }
    }

    #[test]
    fn joined_requests_are_each_answered_or_each_counted() {
        let config = Config::parse("t", FILE).expect("a sound file");
        let memory = config.file.memory.settings();
        let limiter = Limiter::new(Clock::system(), Metrics::new().into(), config.rules, memory);
        let wire =
            socket::bind(SocketAddr::from(([127, 0, 0, 1], 0)), 1).expect("a port").remove(0);
        let server = wire.socket.local_addr().expect("bound");
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let client = Client(socket, server.into());
        let allow = Arc::new(ArcSwap::from_pointee(Allow::default()));
        let mut own =
            Loop::new(wire, limiter.desk(Door::Text), Arc::clone(&allow)).expect("a loop");

        let requests: Vec<_> = (100..250).map(|id| format!("{id} over_limit k")).collect();
        client.send(&requests);
        assert_eq!(own.turn(true).expect("requests"), 3, "150 datagrams in three buffers");
        let mut replies: Vec<_> = requests.iter().map(|_| client.receive()).collect();
        replies.sort_unstable();
        let over = replies.iter().position(|reply| reply.contains("ok Y"));
        assert_eq!(over, Some(100), "in the order in which they were sent");
        assert!(replies.iter().zip(&requests).all(|(reply, asked)| reply[..3] == asked[..3]));

        let nobody = "[text]\nlisten = '127.0.0.1:0'\nallow = ['10.0.0.0/8']";
        let strict = Config::parse("t", nobody).expect("a sound file").file.text.expect("a door");
        allow.store(Arc::new(strict.allow));
        client.send(&requests[..70]);
        assert_eq!(own.turn(true).expect("requests"), 2);
        let told = limiter.metrics().encode(Default::default());
        let counted = "tidegate_bad_input_total{door=\"text\",reason=\"not_allowed\"} 70";
        assert!(told.contains(counted), "{told}");
    }
}
