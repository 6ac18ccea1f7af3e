//! A peer of the text door: sends every datagram back as it came, with batched calls, one loop for
//! each core, and nothing else. What it costs is what any such door must cost.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, sendmmsg};
use socket2::{Protocol, Type};

use super::{bind, on_threads};

/// Datagrams that one call takes or sends.
const BATCH: usize = 64;
/// Bytes of a buffer. No request of the load is nearly as long.
const BUFFER_BYTES: usize = 1024;
/// Bytes of datagrams that wait in the kernel, as far as the system allows.
const BACKLOG_BYTES: usize = 4 << 20;

/// Serves until the process is killed.
pub(super) fn serve() -> io::Result<()> {
    let mut sockets = Vec::new();
    for socket in bind(Type::DGRAM, Protocol::UDP)? {
        // The system may grant less.
        let _ = socket.set_recv_buffer_size(BACKLOG_BYTES);
        sockets.push(UdpSocket::from(socket));
    }
    on_threads(sockets[0].local_addr()?, sockets, |socket| run(&socket))
}

fn run(socket: &UdpSocket) -> io::Result<()> {
    let mut buffers = vec![0; BATCH * BUFFER_BYTES];
    let mut received = MultiHeaders::<SockaddrIn>::preallocate(BATCH, None);
    let mut sending = MultiHeaders::<SockaddrIn>::preallocate(BATCH, None);
    loop {
        let mut chunks = buffers.chunks_exact_mut(BUFFER_BYTES);
        let mut slices: [_; BATCH] =
            std::array::from_fn(|_| [IoSliceMut::new(chunks.next().unwrap_or_default())]);
        let flags = MsgFlags::MSG_WAITFORONE;
        let datagrams =
            match recvmmsg(socket.as_raw_fd(), &mut received, slices.iter_mut(), flags, None) {
                Ok(datagrams) => datagrams,
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
        let mut senders = [None; BATCH];
        let mut replies = [[IoSlice::new(&[])]; BATCH];
        let mut count = 0;
        for datagram in datagrams {
            senders[count] = datagram.address;
            replies[count] = [IoSlice::new(datagram.iovs().next().unwrap_or_default())];
            count += 1;
        }
        let (replies, senders) = (&replies[..count], &senders[..count]);
        // A reply that the kernel refuses is lost.
        let flags = MsgFlags::empty();
        let _ = sendmmsg(socket.as_raw_fd(), &mut sending, replies, senders, [], flags);
    }
}
