//! The way out: datagrams of one length to one receiver leave joined, in one send.
//!
//! Nothing here knows a byte of the protocol.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use super::grouping::{Grouping, Parcel};
use super::mmsg::{Address, BATCH, Message, Outbox};

/// What sending needs, allocated once.
pub(crate) struct Post {
    grouping: Grouping,
    outbox: Outbox,
}

impl Post {
    /// Allocates all buffers.
    pub(crate) fn new() -> Self {
        Self { grouping: Grouping::new(), outbox: Outbox::new() }
    }

    /// Sends `parcels`, [`BATCH`] at most, which lie in `bytes`; joined where they can be, if
    /// `join`. Datagrams may be lost, and one that the kernel refuses is.
    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        join: bool,
        bytes: &[u8],
        parcels: &[Parcel<'_>],
    ) {
        self.grouping.group(parcels, join);
        let mut parts = [IoSlice::new(&[]); BATCH];
        let mut ends = [0; BATCH];
        let mut used = 0;
        for (group, end) in self.grouping.groups().zip(&mut ends) {
            used += gather(group, bytes, parcels, &mut parts[used..]);
            *end = used;
        }
        let nobody = Address::default();
        let mut messages = [Message::new(&nobody, &[]); BATCH];
        let mut start = 0;
        let mut sends = 0;
        for (group, &end) in self.grouping.groups().zip(&ends) {
            let parcel = &parcels[usize::from(group[0])];
            let segment = (group.len() > 1).then_some(parcel.length() as u16);
            let parts = &parts[start..end];
            messages[sends] = Message { to: parcel.to, from: parcel.from, segment, parts };
            start = end;
            sends += 1;
        }
        self.deliver(socket, &messages[..sends]);
    }

    /// Sends; a joined send that the kernel or the device refuses goes out one by one.
    fn deliver(&mut self, socket: BorrowedFd<'_>, messages: &[Message<'_>]) {
        let mut refused = [0; BATCH];
        let mut refusals = 0;
        self.outbox.send(socket, messages, |at, error| {
            if messages[at].segment.is_some() {
                refused[refusals] = at;
                refusals += 1;
            } else {
                tracing::debug!(%error, "text: a datagram was lost");
            }
        });
        for &at in &refused[..refusals] {
            self.deliver_apart(socket, &messages[at]);
        }
    }

    /// Sends what was joined as the datagrams that it is made of.
    fn deliver_apart(&mut self, socket: BorrowedFd<'_>, joined: &Message<'_>) {
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
        self.outbox.send(socket, &messages[..count], |_, error| {
            tracing::debug!(%error, "text: a datagram was lost");
        });
    }
}

/// Lists the bytes of a group in `parts`, in as few pieces as they lie in; returns how many.
/// Replies to one client often lie end to end, and the kernel copies one piece more quickly.
fn gather<'a>(
    group: &[u8],
    bytes: &'a [u8],
    parcels: &[Parcel<'_>],
    parts: &mut [IoSlice<'a>],
) -> usize {
    let mut used = 0;
    let (mut start, mut end) = (0, 0);
    for &at in group {
        let parcel = &parcels[usize::from(at)];
        if used == 0 || parcel.start != end {
            start = parcel.start;
            used += 1;
        }
        end = parcel.end;
        parts[used - 1] = IoSlice::new(&bytes[start..end]);
    }
    used
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::super::mmsg::{self, Inbox, Local};
    use super::super::socket;
    use super::*;

    fn deliver(segment: u16, parts: &[&[u8]], expected: usize) -> Vec<Vec<u8>> {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let wire = socket::bind(loopback, 1).expect("a free port").remove(0);
        let client = UdpSocket::bind(loopback).expect("a free port");
        client.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let to = Address::from(client.local_addr().expect("bound"));
        let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut post = Post::new();
        // The message behind shows that one refused does not hold up the next.
        let last = [IoSlice::new(b"last")];
        let joined = Message { segment: Some(segment), ..Message::new(&to, &slices) };
        post.deliver(wire.socket.as_fd(), &[joined, Message::new(&to, &last)]);
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
    /// On wildcards, so that the kernel says two things of each buffer.
    #[test]
    fn what_came_joined_is_told_apart() {
        let v6 = IpAddr::from(Ipv6Addr::LOCALHOST);
        for (wildcard, loopback, local) in [
            ("0.0.0.0:0", [127, 0, 0, 1].into(), Local::V4([127, 0, 0, 1])),
            ("[::]:0", v6, Local::V6(Ipv6Addr::LOCALHOST.octets(), 0)),
        ] {
            let wildcard = wildcard.parse().expect("an address");
            let wire = socket::bind(wildcard, 1).expect("a free port").remove(0);
            mmsg::receive_joined(wire.socket.as_fd()).expect("a kernel that joins");
            let port = wire.socket.local_addr().expect("bound").port();
            let client = UdpSocket::bind((loopback, 0)).expect("a free port");
            send_joined(&client, &SocketAddr::from((loopback, port)).into());

            let mut inbox = Inbox::new(wire.locals, true);
            let mut came = Vec::new();
            while came.len() < 5 {
                let count = inbox.receive(wire.socket.as_fd(), true).expect("datagrams");
                for at in 0..count {
                    assert_eq!(inbox.local(at), local);
                    assert_eq!(inbox.sender(at), &client.local_addr().expect("bound").into());
                    let datagrams: Vec<_> = inbox.datagrams(at).expect("not cut").collect();
                    assert!(datagrams.len() == 3 || !came.is_empty(), "{datagrams:?}");
                    came.extend(datagrams.into_iter().map(<[u8]>::to_vec));
                }
            }
            assert_eq!(came, [&b"one"[..], b"two", b"si", b"", b"alone"]);
        }
    }

    /// Three joined, of which the last is shorter, an empty one and one alone.
    fn send_joined(client: &UdpSocket, to: &Address) {
        let [joined, empty, alone] =
            [&b"onetwosi"[..], b"", b"alone"].map(|part| [IoSlice::new(part)]);
        let joined = Message { segment: Some(3), ..Message::new(to, &joined) };
        let rest = [Message::new(to, &empty), Message::new(to, &alone)];
        Post::new().deliver(client.as_fd(), &[joined, rest[0], rest[1]]);
    }
}
