//! One event loop of the door: receive a batch, answer it, send the replies.
//!
//! A loop owns its socket, its buffers and its handle on the limiter, and shares nothing with the
//! other loops. No datagram and no error of the kernel ends it. It never waits for a remote store
//! alone: the store's answers wake it as datagrams do.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidegate_core::Nanos;
use tidegate_core::time::SECOND;

use super::handler::{Replies, TextHandler};
use super::mmsg::{Address, BATCH, Local, ReceiveBuffers, receive_joined};
use super::sender::{Outgoing, Sender};
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

/// Where a reply goes.
#[derive(Clone, Copy)]
struct ReplyPath {
    /// The client.
    to: Address,
    /// Our address that the client asked.
    from: Local,
}

/// One loop.
pub(super) struct EventLoop {
    socket: LoopSocket,
    allow: Arc<ArcSwap<Allow>>,
    received: ReceiveBuffers,
    handler: TextHandler<ReplyPath>,
    sender: Sender,
}

impl EventLoop {
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
        while self.handler.is_owed() && self.handler.now().mono < until {
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
        let owed = self.handler.is_owed();
        if owed {
            if wait {
                self.wait(true);
            }
            self.send_answers();
        }
        let Self { socket, allow, received, handler, sender } = self;
        let count = received.receive(socket.udp.as_fd(), wait && !owed)?;
        let (allow, received) = (allow.load(), &*received);
        each_batch(received, count, &allow, handler, |handler, datagrams, buffers| {
            let path = |number: usize| {
                let buffer = usize::from(buffers[number]);
                (received.sender(buffer), received.local(buffer))
            };
            let replies = handler.on_datagrams(
                datagrams,
                |number| ReplyPath { to: *path(number).0, from: path(number).1 },
                |peer| is_trusted(&allow, &peer.to),
            );
            send(sender, socket, replies, path);
        });
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
            send(sender, socket, replies, |number| (&paths[number].to, paths[number].from));
        });
    }
}

/// A timeout or a signal: nothing arrived, nothing is wrong.
fn is_quiet(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// Passes on the datagrams of the first `count` buffers, at most [`BATCH`] at a time, each with its
/// buffer. Those whose source is not allowed are counted.
#[inline(always)]
fn each_batch<'a>(
    received: &'a ReceiveBuffers,
    count: usize,
    allow: &Allow,
    handler: &mut TextHandler<ReplyPath>,
    mut answer: impl FnMut(&mut TextHandler<ReplyPath>, &[&'a [u8]], &[u8]),
) {
    let mut datagrams: [&[u8]; BATCH] = [&[]; BATCH];
    let mut buffers = [0; BATCH];
    let mut filled = 0;
    for buffer in 0..count {
        match screen(received, buffer, allow) {
            Ok(screened) => {
                for datagram in screened {
                    datagrams[filled] = datagram;
                    buffers[filled] = buffer as u8;
                    filled += 1;
                    if filled == BATCH {
                        answer(handler, &datagrams, &buffers);
                        filled = 0;
                    }
                }
            }
            Err(reason) => {
                for _ in 0..received.datagrams(buffer).map_or(1, Iterator::count) {
                    handler.ignore(reason);
                }
            }
        }
    }
    if filled > 0 {
        answer(handler, &datagrams[..filled], &buffers[..filled]);
    }
}

/// The datagrams of a buffer if their source is allowed, or why they get no reply.
fn screen<'a>(
    received: &'a ReceiveBuffers,
    buffer: usize,
    allow: &Allow,
) -> Result<impl Iterator<Item = &'a [u8]>, &'static str> {
    let sender = received.sender(buffer);
    if sender.port() == 0 {
        return Err("no_source_port");
    }
    if !allow.is_open() && !sender.ip().is_some_and(|ip| allow.permits(ip)) {
        return Err("not_allowed");
    }
    // Longer than its buffer is longer than any request; the codec says so of the rest.
    received.datagrams(buffer).ok_or(tidegate_wire::text::Ignored::TooLong.reason())
}

/// Whether a source may have a reply that is much longer than its request: loopback, which no other
/// machine can pretend to be, and the networks that the operator has named.
fn is_trusted(allow: &Allow, source: &Address) -> bool {
    source.ip().is_some_and(|ip| ip.to_canonical().is_loopback() || allow.names(ip))
}

/// Sends every reply to the source of its request, from the address that the request came to.
/// `path` says both.
#[inline(always)]
fn send<'a>(
    sender: &mut Sender,
    socket: &LoopSocket,
    replies: &Replies,
    path: impl Fn(usize) -> (&'a Address, Local),
) {
    let unset = Address::default();
    let mut outgoing = [Outgoing { to: &unset, from: Local::Bound, start: 0, end: 0 }; BATCH];
    let mut count = 0;
    for (number, place) in replies.places() {
        let (to, from) = path(*number);
        outgoing[count] = Outgoing { to, from, start: place.start, end: place.end };
        count += 1;
    }
    let bytes = replies.bytes();
    sender.send(socket.udp.as_fd(), socket.segments, bytes, &outgoing[..count]);
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
    use crate::metrics::{Door, Metrics};

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
                let datagram =
                    |at| Outgoing { to: &self.1, from: Local::Bound, start: at, end: at + 16 };
                let list: Vec<_> = (0..requests.len()).map(|at| datagram(16 * at)).collect();
                Sender::new().send(self.0.as_fd(), true, requests.concat().as_bytes(), &list);
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
            assert_eq!(
                is_trusted(&list(networks), &sender.into()),
                expected,
                "{networks} {sender}"
            );
        }
    }

    #[test]
    fn joined_requests_are_each_answered_or_each_counted() {
        let config = Config::parse("t", FILE).expect("a sound file");
        let memory = config.file.memory.settings();
        let limiter = Limiter::new(Clock::system(), Metrics::new().into(), config.rules, memory);
        let ours =
            socket::bind(SocketAddr::from(([127, 0, 0, 1], 0)), 1).expect("a port").remove(0);
        let server = ours.udp.local_addr().expect("bound");
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let client = Client(socket, server.into());
        let allow = Arc::new(ArcSwap::from_pointee(Allow::default()));
        let handle = limiter.handle(Door::Text);
        let mut own = EventLoop::new(ours, handle, Arc::clone(&allow)).expect("a loop");

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
        let page = limiter.metrics().encode(Default::default());
        let counted = "tidegate_bad_input_total{door=\"text\",reason=\"not_allowed\"} 70";
        assert!(page.contains(counted), "{page}");
    }
}
