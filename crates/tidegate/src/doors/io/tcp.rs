//! Sockets of doors with loops of their own, one for each loop, all of one address sharing its
//! port; and the options of TCP connections.
//!
//! Nothing here accepts a client.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZero;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// Clients that wait to be accepted, as far as the system allows.
const BACKLOG_MAX: i32 = 4096;
/// A peer that is gone without a word is noticed after about two minutes.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;
/// Bytes that are read of a client that finds no place: its first request, most often.
const REFUSED_BYTES_MAX: usize = 1 << 10;

/// Binds one socket to each address, or none at all. They do not block.
pub(crate) fn bind_each(addresses: &[SocketAddr]) -> io::Result<Vec<TcpListener>> {
    let bind_one = |address: &SocketAddr| {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    addresses.iter().map(bind_one).collect()
}

/// Loops for each address: one for each core.
pub(crate) fn loops() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Binds `count` sockets to `address`, or none. They do not block.
pub(crate) fn bind(
    address: SocketAddr,
    count: usize,
) -> io::Result<(SocketAddr, Vec<TcpListener>)> {
    let sockets = bind_siblings(address, count, open)?;
    let taken = sockets[0].local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidData)?;
    Ok((taken, sockets.into_iter().map(listen).collect::<io::Result<_>>()?))
}

/// Binds one socket and `count - 1` siblings of it to `address`, or none. Port 0 takes a free port,
/// the same for all.
///
/// The first binds alone, so that an address which another process has is refused even if that
/// process shares it; only then does it agree to share with its siblings.
pub(crate) fn bind_siblings(
    address: SocketAddr,
    count: usize,
    open: impl Fn(SocketAddr) -> io::Result<Socket>,
) -> io::Result<Vec<Socket>> {
    let first = open(address)?;
    first.bind(&address.into())?;
    first.set_reuse_port(true)?;
    let bound = first.local_addr()?;
    let mut sockets = vec![first];
    for _ in 1..count {
        let sibling = open(address)?;
        sibling.set_reuse_port(true)?;
        sibling.bind(&bound)?;
        sockets.push(sibling);
    }
    Ok(sockets)
}

/// Bytes leave at once, and a peer that vanished does not stay for ever.
pub(crate) fn set_stream_options(socket: &impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)
}

/// Whether a client was gone before it was accepted: no reason to pause.
pub(crate) fn left_early(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// Tells a client why its connection is closed, as far as the socket takes that at once. What it
/// has sent already is thrown away: bytes that lie unread would make a reset of the end.
pub(super) fn refuse(socket: &impl AsFd, text: &[u8]) {
    if text.is_empty() {
        return;
    }
    let sent = send(socket, text, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    if sent.is_ok() && shutdown(socket, Shutdown::Write).is_ok() {
        let _ = recv(socket, &mut [0; REFUSED_BYTES_MAX], RecvFlags::DONTWAIT);
    }
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
