//! Sends replies: datagrams of one length to one receiver leave joined, in one send.
//!
//! Datagrams have no order, so those to one receiver may be gathered from all over the batch.
//! Nothing here knows a byte of the protocol.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use super::mmsg::{Address, BATCH, Local, SendHeaders, Transmit};

/// The most bytes that one send may carry; the kernel's own bound is 64 KiB with headers.
const SEND_MAX: usize = 60_000;

/// Datagrams longer than this leave alone: a segment must fit the path's packets, and longer ones
/// may have to be fragmented.
const SEGMENT_MAX: usize = 1200;

/// Slots of the little hash table; a power of two, well above [`BATCH`] so that probes are short.
const SLOTS: usize = 256;

const NONE: u8 = u8::MAX;

/// A datagram to send: where it goes, and where its bytes lie among those of its batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing<'a> {
    /// The receiver.
    pub(super) to: &'a Address,
    /// Our address to leave from: the one that the client asked.
    pub(super) from: Local,
    /// Where its bytes begin.
    pub(super) start: usize,
    /// Where its bytes end.
    pub(super) end: usize,
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
    /// Room for one batch.
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
            let room = (usize::from(count) + 1) * length <= SEND_MAX;
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
pub(super) struct Sender {
    grouping: Grouping,
    headers: SendHeaders,
}

impl Sender {
    /// Allocates all buffers.
    pub(super) fn new() -> Self {
        Self { grouping: Grouping::new(), headers: SendHeaders::new() }
    }

    /// Sends `datagrams`, [`BATCH`] at most, which lie in `bytes`; joined where they can be, if
    /// `join`. Datagrams may be lost, and one that the kernel refuses is.
    #[inline(always)]
    pub(super) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        join: bool,
        bytes: &[u8],
        datagrams: &[Outgoing<'_>],
    ) {
        self.grouping.group(datagrams, join);
        let mut parts = [IoSlice::new(&[]); BATCH];
        let mut ends = [0; BATCH];
        let mut used = 0;
        for (group, end) in self.grouping.groups().zip(&mut ends) {
            used += gather(group, bytes, datagrams, &mut parts[used..]);
            *end = used;
        }
        let unset = Address::default();
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
        self.deliver(socket, &messages[..sends]);
    }

    /// Sends; a joined send that the kernel or the device refuses goes out one by one.
    fn deliver(&mut self, socket: BorrowedFd<'_>, messages: &[Transmit<'_>]) {
        let mut refused = [0; BATCH];
        let mut refusals = 0;
        self.headers.send(socket, messages, |at, error| {
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
    fn deliver_apart(&mut self, socket: BorrowedFd<'_>, joined: &Transmit<'_>) {
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
mod tests {
    use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
    use std::os::fd::AsFd;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::mmsg::{self, ReceiveBuffers};
    use super::super::socket;
    use super::*;

    fn address(client: u16) -> Address {
        SocketAddr::from(([10, 0, 0, 1], 1000 + client)).into()
    }

    proptest! {
        #[test]
        fn groups_are_a_partition_by_client_and_length(
            kinds in prop::collection::vec((0_u16..4, 0_usize..4, any::<bool>()), 0..=BATCH),
            join: bool,
        ) {
            let addresses: Vec<_> = (0..4).map(address).collect();
            let lengths = [0, 30, 31, SEGMENT_MAX + 1];
            let datagrams: Vec<_> = kinds
                .iter()
                .map(|&(client, length, other)| Outgoing {
                    to: &addresses[usize::from(client)],
                    from: if other { Local::V4([10, 0, 0, 2]) } else { Local::Bound },
                    start: 0,
                    end: lengths[length],
                })
                .collect();
            let mut grouping = Grouping::new();
            grouping.group(&datagrams, join);
            let mut seen = Vec::new();
            for group in grouping.groups() {
                let first = datagrams[usize::from(group[0])];
                prop_assert!(group.iter().all(|&at| datagrams[usize::from(at)].suits(&first)));
                let alone = !join || first.length() == 0 || first.length() > SEGMENT_MAX;
                let like = datagrams.iter().filter(|datagram| datagram.suits(&first)).count();
                prop_assert_eq!(group.len(), if alone { 1 } else { like });
                seen.extend(group.iter().map(|&at| usize::from(at)));
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..datagrams.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_send_never_exceeds_what_the_kernel_takes() {
        let to = address(0);
        let datagram = Outgoing { to: &to, from: Local::Bound, start: 0, end: SEGMENT_MAX };
        let mut grouping = Grouping::new();
        grouping.group(&[datagram; BATCH], true);
        let sizes: Vec<_> = grouping.groups().map(<[u8]>::len).collect();
        assert_eq!(sizes.iter().sum::<usize>(), BATCH);
        assert!(sizes.iter().all(|size| size * SEGMENT_MAX <= SEND_MAX), "{sizes:?}");
        assert_eq!(sizes.len(), 2, "as few sends as fit");
    }

    fn deliver(segment: u16, parts: &[&[u8]], expected: usize) -> Vec<Vec<u8>> {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let ours = socket::bind(loopback, 1).expect("a free port").remove(0);
        let client = UdpSocket::bind(loopback).expect("a free port");
        client.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let to = Address::from(client.local_addr().expect("bound"));
        let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut post = Sender::new();
        // The message behind shows that one refused does not hold up the next.
        let last = [IoSlice::new(b"last")];
        let joined = Transmit { segment: Some(segment), ..Transmit::new(&to, &slices) };
        post.deliver(ours.udp.as_fd(), &[joined, Transmit::new(&to, &last)]);
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
            let ours = socket::bind(wildcard, 1).expect("a free port").remove(0);
            mmsg::receive_joined(ours.udp.as_fd()).expect("a kernel that joins");
            let port = ours.udp.local_addr().expect("bound").port();
            let client = UdpSocket::bind((loopback, 0)).expect("a free port");
            send_joined(&client, &SocketAddr::from((loopback, port)).into());

            let mut inbox = ReceiveBuffers::new(ours.locals, true);
            let mut came = Vec::new();
            while came.len() < 5 {
                let count = inbox.receive(ours.udp.as_fd(), true).expect("datagrams");
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
        let joined = Transmit { segment: Some(3), ..Transmit::new(to, &joined) };
        let rest = [Transmit::new(to, &empty), Transmit::new(to, &alone)];
        Sender::new().deliver(client.as_fd(), &[joined, rest[0], rest[1]]);
    }
}
