//! Opening this door's sockets: one for each loop, all of one address sharing its port.
//!
//! Nothing here receives or sends.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use socket2::{Domain, Protocol, Socket, Type};

use super::mmsg;
use crate::doors::io::tcp::bind_siblings;

/// How long a loop sleeps in the kernel before it looks whether the door is closing.
pub(super) const NOTICE_SHUTDOWN: Duration = Duration::from_millis(200);

/// How long one send may wait for room. Datagrams may be lost; loops may not hang.
const SEND_MAX: Duration = Duration::from_millis(100);

/// Bytes of datagrams that wait in the kernel for each loop, as far as the system allows.
const BACKLOG_BYTES: usize = 4 << 20;

/// More datagrams than this do not fit into the backlog: what comes later is not discarded.
const QUEUED_MAX: usize = BACKLOG_BYTES / 64;

/// The bound socket of one loop, and what the kernel can do for it.
#[derive(Debug)]
pub(super) struct LoopSocket {
    /// The socket, blocking, with timeouts.
    pub(super) udp: UdpSocket,
    /// Whether datagrams say which of our addresses they came to.
    pub(super) locals: bool,
    /// Whether one send can become several datagrams.
    pub(super) segments: bool,
}

/// Binds `count` sockets to `address`, or none. Port 0 takes a free port, the same for all.
pub(super) fn bind(address: SocketAddr, count: usize) -> io::Result<Vec<LoopSocket>> {
    let sockets = bind_siblings(address, count, open)?;
    sockets.into_iter().map(|socket| configure(socket, address)).collect()
}

/// Drops the datagrams that wait in the kernel, and returns how many they were.
pub(super) fn discard_queued(socket: &UdpSocket) -> usize {
    let is_there = |_: &usize| match recv(socket, &mut [0_u8; 1][..], RecvFlags::DONTWAIT) {
        // What does not fit is dropped by the kernel, too.
        Ok(_) | Err(Errno::INTR) => true,
        Err(_) => false,
    };
    (0..QUEUED_MAX).take_while(is_there).count()
}

fn open(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        // So that both wildcards can be listed side by side.
        socket.set_only_v6(true)?;
    }
    // The system may grant less; that is no reason to stay closed.
    let _ = socket.set_recv_buffer_size(BACKLOG_BYTES);
    Ok(socket)
}

fn configure(socket: Socket, address: SocketAddr) -> io::Result<LoopSocket> {
    socket.set_read_timeout(Some(NOTICE_SHUTDOWN))?;
    socket.set_write_timeout(Some(SEND_MAX))?;
    let locals = address.ip().is_unspecified();
    if locals {
        mmsg::report_locals(socket.as_fd(), address.is_ipv6())?;
    }
    let segments = mmsg::can_segment(socket.as_fd());
    Ok(LoopSocket { udp: socket.into(), locals, segments })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loopback() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    #[test]
    fn siblings_share_one_port_and_nobody_else_does() {
        let ours = bind(loopback(), 3).expect("three siblings bind");
        let address = ours[0].udp.local_addr().expect("bound");
        for socket in &ours {
            assert_eq!(socket.udp.local_addr().expect("bound"), address);
        }
        let second = bind(address, 1).expect_err("another door must not share the port");
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
        drop(ours);
        bind(address, 2).expect("the port is free again at once");
    }

    #[test]
    fn both_wildcards_stand_side_by_side() {
        // A port that is free for one may be taken for the other, so try several.
        let beside = (0..100).any(|_| {
            let v6 = bind("[::]:0".parse().expect("an address"), 2).expect("IPv6 wildcard");
            let port = v6[0].udp.local_addr().expect("bound").port();
            bind(SocketAddr::from(([0, 0, 0, 0], port)), 2).is_ok()
        });
        assert!(beside, "no port can be had for both");
    }
}
