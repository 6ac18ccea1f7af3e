//! What doors over TCP have in common: listening sockets for loops of their own, one for each loop,
//! all of one address sharing its port; and how a client is seen to leave that nobody reads.
//!
//! Nothing here accepts a client.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

/// Clients that wait to be accepted, as far as the system allows.
const BACKLOG_MAX: i32 = 4096;

/// Binds `count` sockets to `address`, or none. Port 0 takes a free port, the same for all. They
/// do not block.
///
/// The first binds alone, so that an address which another process has is refused even if that
/// process shares it; only then does it agree to share with its siblings.
pub(crate) fn bind(
    address: SocketAddr,
    count: usize,
) -> io::Result<(SocketAddr, Vec<TcpListener>)> {
    let first = open(address)?;
    first.bind(&address.into())?;
    first.set_reuse_port(true)?;
    let bound = first.local_addr()?;
    let taken = bound.as_socket().ok_or(io::ErrorKind::InvalidData)?;
    let mut listeners = vec![listen(first)?];
    for _ in 1..count {
        let sibling = open(address)?;
        sibling.set_reuse_port(true)?;
        sibling.bind(&bound)?;
        listeners.push(listen(sibling)?);
    }
    Ok((taken, listeners))
}

/// Whether the other side has closed, even if there is something left to read.
pub(crate) fn left(socket: &impl AsFd) -> bool {
    let mut asked = [PollFd::new(socket, PollFlags::RDHUP)];
    let polled = poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled.is_ok_and(|count| count > 0)
}

fn open(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // So that a restart at once is not kept out by connections that are still winding down.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // So that both wildcards can be listed side by side.
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

fn listen(socket: Socket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG_MAX)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_share_one_port_and_nobody_else_does() {
        for ip in ["127.0.0.1:0", "[::1]:0"] {
            let (address, ours) = bind(ip.parse().unwrap(), 3).expect("three siblings bind");
            assert_eq!(ours.len(), 3);
            assert!(ours.iter().all(|listener| listener.local_addr().unwrap() == address));
            let second = bind(address, 1).expect_err("another door must not share the port");
            assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
            drop(ours);
            bind(address, 2).expect("the port is free again at once");
        }
    }
}
