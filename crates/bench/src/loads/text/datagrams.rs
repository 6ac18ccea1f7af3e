//! Datagrams, many in one system call: batched, or joined by the kernel (UDP_SEGMENT, UDP_GRO).
//!
//! It knows neither a request nor a reply.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;

use nix::errno::Errno;
use nix::sys::socket::sockopt::UdpGroSegment;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, MultiHeaders, recvmmsg, recvmsg, sendmmsg,
    sendmsg, setsockopt,
};

/// Datagrams that one system call takes or sends.
pub(super) const BATCH: usize = 64;
/// Bytes of a buffer for one datagram. No reply is nearly as long.
const BUFFER_BYTES: usize = 1024;
/// Bytes of replies that wait in the kernel for each client, as far as the system allows.
const BACKLOG_BYTES: usize = 1 << 20;

/// Opens a client's socket. It does not block, and takes replies joined if `join`.
pub(super) fn open(server: SocketAddr, join: bool) -> io::Result<UdpSocket> {
    let socket = if server.is_ipv4() {
        UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?
    } else {
        UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?
    };
    // The system may grant less.
    let _ = socket2::SockRef::from(&socket).set_recv_buffer_size(BACKLOG_BYTES);
    socket.connect(server)?;
    socket.set_nonblocking(true)?;
    if join {
        setsockopt(&socket, UdpGroSegment, &true)?;
    }
    Ok(socket)
}

/// Buffers to receive into, made once.
pub(super) struct Inbox {
    join: bool,
    /// One for each datagram of a batch; or, all together, one for what came joined.
    buffers: Box<[u8]>,
    headers: MultiHeaders<()>,
    control: Vec<u8>,
}

impl Inbox {
    /// Buffers for batches, or for joined datagrams.
    pub(super) fn new(join: bool) -> Self {
        Self {
            join,
            buffers: vec![0; BATCH * BUFFER_BYTES].into(),
            headers: MultiHeaders::preallocate(BATCH, None),
            control: nix::cmsg_space!(i32),
        }
    }

    /// Gives the datagrams that are there to `each`. Returns whether there may be more.
    pub(super) fn receive(&mut self, socket: &UdpSocket, each: impl FnMut(&[u8])) -> bool {
        // A refusal by the other side is noticed by replies that do not come.
        let received = if self.join { self.joined(socket, each) } else { self.batch(socket, each) };
        received.unwrap_or(false)
    }

    fn batch(&mut self, socket: &UdpSocket, each: impl FnMut(&[u8])) -> Result<bool, Errno> {
        let mut chunks = self.buffers.chunks_exact_mut(BUFFER_BYTES);
        let mut slices: [_; BATCH] =
            std::array::from_fn(|_| [IoSliceMut::new(chunks.next().unwrap_or_default())]);
        let (socket, headers) = (socket.as_raw_fd(), &mut self.headers);
        let received = recvmmsg(socket, headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None)?;
        let mut count = 0;
        let datagrams = received.inspect(|_| count += 1);
        datagrams.filter_map(|datagram| datagram.iovs().next()).for_each(each);
        Ok(count == BATCH)
    }

    fn joined(&mut self, socket: &UdpSocket, each: impl FnMut(&[u8])) -> Result<bool, Errno> {
        let mut slices = [IoSliceMut::new(&mut self.buffers)];
        let (control, flags) = (Some(&mut self.control[..]), MsgFlags::MSG_DONTWAIT);
        let received = recvmsg::<()>(socket.as_raw_fd(), &mut slices, control, flags)?;
        let segment = received.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::UdpGroSegments(bytes) => usize::try_from(bytes).ok(),
            _ => None,
        });
        let length = received.bytes;
        self.buffers[..length].chunks(segment.unwrap_or(length).max(1)).for_each(each);
        Ok(true)
    }
}

/// Datagrams that are to leave at once, [`BATCH`] at most.
pub(super) struct Outbox {
    join: bool,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    headers: MultiHeaders<()>,
}

impl Outbox {
    /// With `join`, datagrams of one length leave in one send.
    pub(super) fn new(join: bool) -> Self {
        let headers = MultiHeaders::preallocate(BATCH, None);
        Self { join, bytes: Vec::new(), ends: Vec::new(), headers }
    }

    /// Adds the datagram that `write` appends.
    pub(super) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    /// Sends all of them. One that the kernel refuses is lost.
    pub(super) fn send(&mut self, socket: &UdpSocket) {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let datagram = |(start, end): (usize, &usize)| [IoSlice::new(&self.bytes[start..*end])];
        let mut datagrams: Vec<_> = starts.zip(&self.ends).map(datagram).collect();
        if self.join {
            datagrams.sort_by_key(|[datagram]| datagram.len());
            for equal in datagrams.chunk_by(|[one], [other]| one.len() == other.len()) {
                send_joined(socket, equal.as_flattened());
            }
        } else {
            send_batch(socket, &mut self.headers, &datagrams);
        }
        self.bytes.clear();
        self.ends.clear();
    }
}

/// Sends datagrams of one length to be cut apart by the kernel.
fn send_joined(socket: &UdpSocket, datagrams: &[IoSlice<'_>]) {
    let segment = datagrams.first().map_or(0, |first| first.len() as u16);
    let cut = [ControlMessage::UdpGsoSegments(&segment)];
    let control = if datagrams.len() > 1 { &cut[..] } else { &[] };
    let _ = sendmsg::<()>(socket.as_raw_fd(), datagrams, control, MsgFlags::empty(), None);
}

fn send_batch(
    socket: &UdpSocket,
    headers: &mut MultiHeaders<()>,
    mut datagrams: &[[IoSlice<'_>; 1]],
) {
    // The sockets are connected.
    let addresses = [None; BATCH];
    while !datagrams.is_empty() {
        let flags = MsgFlags::empty();
        let sent = sendmmsg(socket.as_raw_fd(), headers, datagrams, addresses, [], flags);
        // The first of the rest is the one that was refused.
        let done = sent.map_or(1, |sent| sent.count().max(1));
        datagrams = &datagrams[done.min(datagrams.len())..];
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    #[test]
    fn datagrams_arrive_joined_or_apart() {
        for join in [false, true] {
            let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
            let client = open(server.local_addr().expect("bound"), join).expect("a socket");
            server.connect(client.local_addr().expect("bound")).expect("connected");
            let (mut inbox, mut outbox) = (Inbox::new(join), Outbox::new(join));
            for text in ["one", "two", "three", "six"] {
                outbox.push(|out| out.extend_from_slice(text.as_bytes()));
            }
            outbox.send(&client);
            let mut buffer = [0; 64];
            let mut arrived: Vec<Vec<u8>> = (0..4)
                .map(|_| {
                    let length = server.recv(&mut buffer).expect("a datagram");
                    buffer[..length].to_vec()
                })
                .collect();
            arrived.sort();
            assert_eq!(arrived, [&b"one"[..], b"six", b"three", b"two"], "{join}");

            for text in ["a", "bc"] {
                server.send(text.as_bytes()).expect("sent");
            }
            let mut received = Vec::new();
            while received.len() < 2 {
                poll(&mut [PollFd::new(&client, PollFlags::IN)], None).expect("a datagram");
                while inbox.receive(&client, |datagram| received.push(datagram.to_vec())) {}
            }
            assert_eq!(received, [&b"a"[..], b"bc"], "{join}");
        }
    }
}
