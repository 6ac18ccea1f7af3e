//! The loop over real sockets, and how replies are joined.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::ops::Range;
use std::os::fd::AsFd;

use proptest::prelude::*;

use super::super::{mmsg, socket};
use super::*;
use crate::clock::Clock;
use crate::config::Config;
use crate::limiter::Limiter;
use crate::metrics::{Door, Metrics};

const LOOPBACK: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));

const FILE: &str = "
    [text]
    listen = '127.0.0.1:0'
    [[rule]]
    match = 'k'
    limit = '100/d'
    algorithm = 'fixed-window'
";

/// A client of a loop, and how it sends requests: joined, as many as one send takes.
struct Client(UdpSocket, RawAddress);

impl Client {
    fn send(&self, requests: &[String]) {
        for requests in requests.chunks(BATCH) {
            let datagram =
                |at| Outgoing { to: &self.1, from: OwnAddress::Bound, start: at, end: at + 16 };
            let list = (0..requests.len()).map(|at| datagram(16 * at));
            let (socket, bytes) = (self.0.as_fd(), requests.concat());
            Sender::new().send(socket, true, bytes.as_bytes(), list);
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
        assert_eq!(is_trusted(&list(networks), &sender.into()), expected, "{networks} {sender}");
    }
}

#[test]
fn joined_requests_are_each_answered_or_each_counted() {
    let config = Config::parse("t", FILE).expect("a sound file");
    let memory = config.file.memory.settings();
    let limiter = Limiter::new(Clock::system(), Metrics::new().into(), config.rules, memory);
    let ours = socket::bind(LOOPBACK, 1).expect("a port").remove(0);
    let server = ours.udp.local_addr().expect("bound");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let client = Client(socket, server.into());
    let allow = Arc::new(ArcSwap::from_pointee(Allow::default()));
    let handle = limiter.handle(Door::Text);
    let mut own = TextLoop::new(ours, handle, Arc::clone(&allow)).expect("a loop");

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

fn address(client: u16) -> RawAddress {
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
                from: if other { OwnAddress::V4([10, 0, 0, 2]) } else { OwnAddress::Bound },
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
    let datagram = Outgoing { to: &to, from: OwnAddress::Bound, start: 0, end: SEGMENT_MAX };
    let mut grouping = Grouping::new();
    grouping.group(&[datagram; BATCH], true);
    let sizes: Vec<_> = grouping.groups().map(<[u8]>::len).collect();
    assert_eq!(sizes.iter().sum::<usize>(), BATCH);
    assert!(sizes.iter().all(|size| size * SEGMENT_MAX <= SEND_BYTES_MAX), "{sizes:?}");
    assert_eq!(sizes.len(), 2, "as few sends as fit");
}

/// What a client gets of datagrams that are sent to it at once.
fn arrived(ours: &LoopSocket, bytes: &[u8], places: &[Range<usize>]) -> Vec<Vec<u8>> {
    let client = UdpSocket::bind(LOOPBACK).expect("a free port");
    client.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let to = RawAddress::from(client.local_addr().expect("bound"));
    let outgoing = |place: &Range<usize>| {
        let Range { start, end } = *place;
        Outgoing { to: &to, from: OwnAddress::Bound, start, end }
    };
    Sender::new().send(ours.udp.as_fd(), true, bytes, places.iter().map(outgoing));
    let mut buffer = [0; 2000];
    let receive = |_| {
        let length = client.recv(&mut buffer).expect("a datagram comes");
        buffer[..length].to_vec()
    };
    places.iter().map(receive).collect()
}

#[test]
fn joined_replies_arrive_as_several_datagrams_also_where_joining_is_refused() {
    let ours = socket::bind(LOOPBACK, 1).expect("a free port").remove(0);
    assert!(ours.segments, "a kernel that joins");
    let (bytes, places) = (b"onetwo----sixlast", [0..3, 3..6, 10..13, 13..17]);
    let expected = [&b"one"[..], b"two", b"six", b"last"];
    assert_eq!(arrived(&ours, bytes, &places), expected);
    // Without checksums the kernel refuses to join. What is refused holds up nothing behind it.
    mmsg::set_option(ours.udp.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).expect("an option");
    let to = RawAddress::from(ours.udp.local_addr().expect("bound"));
    let parts = [IoSlice::new(b"onetwo")];
    let joined = Transmit { segment: Some(3), ..Transmit::new(&to, &parts) };
    let mut refused = 0;
    SendHeaders::new().send(ours.udp.as_fd(), &[joined], |_, _| refused += 1);
    assert_eq!(refused, 1);
    let mut came = arrived(&ours, bytes, &places);
    came.sort_by_key(|datagram| expected.iter().position(|one| one == datagram));
    assert_eq!(came, expected);
}

/// On wildcards, so that the kernel says two things of each buffer.
#[test]
fn what_came_joined_is_told_apart() {
    let v6 = IpAddr::from(Ipv6Addr::LOCALHOST);
    for (wildcard, loopback, local) in [
        ("0.0.0.0:0", [127, 0, 0, 1].into(), OwnAddress::V4([127, 0, 0, 1])),
        ("[::]:0", v6, OwnAddress::V6(Ipv6Addr::LOCALHOST.octets(), 0)),
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
fn send_joined(client: &UdpSocket, to: &RawAddress) {
    let [joined, empty, alone] = [&b"onetwosi"[..], b"", b"alone"].map(|part| [IoSlice::new(part)]);
    let joined = Transmit { segment: Some(3), ..Transmit::new(to, &joined) };
    let rest = [Transmit::new(to, &empty), Transmit::new(to, &alone)];
    SendHeaders::new().send(client.as_fd(), &[joined, rest[0], rest[1]], |_, error| {
        panic!("refused: {error}");
    });
}
