//! Requests without a socket: what starts a write of its own, how much one write holds, and counts.

use std::net::{Ipv4Addr, SocketAddr};

use tidegate_wire::throttr::Unit;

use super::*;
use crate::clock::Clock;
use crate::doors::io::inbox::LoopInbox;
use crate::doors::io::listener::Peer;

const NOW: Now = Now { mono: 1 << 60, unix: 1 << 60 };
const SIZE: ValueSize = ValueSize::Bits32;

fn open(value_max: usize) -> (ThrottrHandler, Session) {
    let clock = Clock::manual(NOW);
    let settings = records::Settings { max_records: 100, max_bytes: 64 << 20 };
    let (records, state) = (Records::new(settings), ThrottrState::new(clock));
    let local = LocalSubscriptions::new(LoopInbox::new().expect("an eventfd"));
    let metrics = Arc::new(Metrics::new());
    let mut handler = ThrottrHandler::new(records, state, local, metrics, SIZE, value_max);
    let peer = Peer::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
    let session = Session::open(peer, 0, &handler.state, &mut handler.local, NOW);
    (handler, session.expect("randomness"))
}

fn written(requests: &[Request<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for request in requests {
        request.encode(SIZE, &mut bytes).expect("it can be written");
    }
    bytes
}

#[test]
fn an_event_to_the_publisher_starts_a_write_of_its_own() {
    let (mut handler, mut session) = open(100);
    let query = written(&[Request::Query { key: b"k" }]);
    let publish = written(&[Request::Publish { channel: b"*", payload: b"hi" }]);
    let inner = [Request::Event { channel: b"", payload: &publish }];
    let cases = [(publish.clone(), &b"*hi\x01\x00"[..]), (written(&inner), b"*hi\x01\x01\x00")];
    for (event, replies) in cases {
        let input = [&query[..], &event, &query].concat();
        let mut out = Vec::new();
        let first = handler.execute(&mut session, &input, NOW, &mut out);
        assert_eq!((first, &out[..]), ((query.len(), Pause::Flush), &[0][..]));
        out.clear();
        let rest = &input[query.len()..];
        let second = handler.execute(&mut session, rest, NOW, &mut out);
        assert_eq!(second, (rest.len(), Pause::NeedsInput));
        assert!(out[0] == 0x19 && out.ends_with(replies), "{out:?}");
    }
    // To others it is a status like any other.
    let nobody = Request::Publish { channel: b"nobody", payload: b"hi" };
    let input = written(&[Request::Query { key: b"k" }, nobody]);
    let mut out = Vec::new();
    let done = handler.execute(&mut session, &input, NOW, &mut out);
    assert_eq!((done, &out[..]), ((input.len(), Pause::NeedsInput), &[0, 0][..]));
}

#[test]
fn replies_of_one_write_are_bounded() {
    const VALUE: usize = 50_000;
    let (mut handler, mut session) = open(VALUE);
    let ttl = Ttl::new(9, Unit::Hours);
    let set = written(&[Request::Set { ttl, key: b"k", value: &[7; VALUE] }]);
    let mut out = Vec::new();
    handler.execute(&mut session, &set, NOW, &mut out);
    let get = written(&[Request::Get { key: b"k" }]);
    let input = get.repeat(1000);
    let (mut at, mut replies, mut writes) = (0, 0, 0);
    while at < input.len() {
        out.clear();
        let (taken, pause) = handler.execute(&mut session, &input[at..], NOW, &mut out);
        assert!(taken > 0 && out.len() < OUTPUT_BYTES_MAX + VALUE + 100);
        assert_eq!(pause == Pause::Full, at + taken < input.len());
        (at, replies, writes) = (at + taken, replies + out.len(), writes + 1);
    }
    assert_eq!(replies, 1000 * (VALUE + 10));
    assert!(writes <= 334, "as few writes as fit: {writes}");
}

#[test]
fn requests_are_counted_by_kind_for_the_loop_and_the_connection() {
    let (mut handler, mut session) = open(100);
    let query = Request::Query { key: b"k" };
    let input = written(&[query, query, Request::Whoami, query]);
    // Half a request more, which does not count.
    let input = [&input[..], &[2]].concat();
    let mut out = Vec::new();
    let (taken, pause) = handler.execute(&mut session, &input, NOW, &mut out);
    assert_eq!((taken, pause), (input.len() - 1, Pause::NeedsInput));
    let kinds = handler.state.sum().kinds();
    assert_eq!(kinds[RequestKind::Query.index()].total, 3);
    assert_eq!(kinds[RequestKind::Whoami.index()].total, 1);
    assert_eq!(session.stats.record().requests[RequestKind::Query.index()], 3);
}
