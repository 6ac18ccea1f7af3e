//! What the door tells of itself is true: connections, channels, counts, and lists of any length.

use tidegate_wire::throttr::{Request, RequestKind};

use super::{Client, DOOR, MINUTE, metric, u64_at, until, written};
use crate::program::Program;

/// The places of figures in a connection's record behind its status byte.
const READ: usize = 1 + 45;
const WRITTEN: usize = READ + 8;
const PUBLISHED: usize = READ + 16;
const RECEIVED: usize = READ + 24;
const COUNTS: usize = READ + 48;

#[test]
fn a_connection_is_told_as_it_is() {
    let program = Program::serve(DOOR);
    let (mut client, mut observer) = (Client::new(&program), Client::new(&program));
    let id = client.id();
    assert_eq!((id[6] >> 4, id[8] >> 6), (4, 2), "a random UUID");
    let insert = Request::Insert { quota: 9, ttl: MINUTE, key: b"k" };
    let sent = written(&[insert, Request::Query { key: b"k" }, Request::Query { key: b"x" }]);
    client.send(&sent);
    client.read(1 + 6 + 1);
    // Bytes are counted when they have been written, which may be a moment after they arrived.
    let mut record = Vec::new();
    until(|| {
        record = observer.ask(&Request::Connection { id }, 238);
        u64_at(&record, WRITTEN) == 17 + 8
    });
    assert_eq!(record[0], 1);
    assert_eq!(record[1..17], id);
    assert_eq!(record[17..20], [0, 0, 4]);
    assert_eq!(&record[20..36], b"127.0.0.1\0\0\0\0\0\0\0");
    let port = client.0.local_addr().expect("connected").port();
    assert_eq!(record[36..38], port.to_le_bytes());
    assert_eq!(u64_at(&record, READ), 1 + sent.len() as u64);
    let counts: Vec<u64> = (0..18).map(|place| u64_at(&record, COUNTS + 8 * place)).collect();
    let mut expected = vec![0; 18];
    (expected[0], expected[2], expected[17]) = (1, 2, 1);
    assert_eq!(counts, expected);

    assert!(client.does(&Request::Subscribe { channel: b"c" }));
    assert!(observer.does(&Request::Publish { channel: b"c", payload: b"12345" }));
    client.event();
    let record = observer.ask(&Request::Connection { id }, 238);
    assert_eq!((u64_at(&record, PUBLISHED), u64_at(&record, RECEIVED)), (0, 5));
    let channel = observer.ask(&Request::Channel { channel: b"c" }, 9 + 40);
    assert_eq!((channel[0], u64_at(&channel, 1)), (1, 1));
    assert_eq!(channel[9..25], id);
    assert_eq!((u64_at(&channel, 33), u64_at(&channel, 41)), (5, 0));
    drop(client);
    until(|| {
        observer.ask(&Request::Connection { id }, 1) == [0] || {
            observer.read(237);
            false
        }
    });
    assert_eq!(observer.ask(&Request::Channel { channel: b"c" }, 1), [0]);
}

#[test]
fn connections_and_channels_are_listed_whole() {
    let program = Program::serve(DOOR);
    let mut clients: Vec<_> = (0..30).map(|_| Client::new(&program)).collect();
    let ids: Vec<_> = clients.iter_mut().map(Client::id).collect();
    clients[0].send(&written(&[Request::Connections]));
    let rows = fragments(&mut clients[0], 237, |_| 0);
    let mut listed: Vec<[u8; 16]> =
        rows.iter().map(|(row, _)| row[..16].try_into().expect("an id")).collect();
    listed.sort_unstable();
    let mut expected = ids.clone();
    expected.sort_unstable();
    assert_eq!(listed, expected);
    clients[0].send(&written(&[Request::Channels]));
    let rows = fragments(&mut clients[0], 25, |row| row[0].into());
    assert_eq!(rows.len(), 31, "everybody's, and one for each");
    let everybody = rows.iter().find(|(_, name)| name == b"*").expect("everybody's channel");
    assert_eq!(u64_at(&everybody.0, 17), 30);
    clients[0].send(&written(&[Request::Channel { channel: b"*" }]));
    let head = clients[0].read(9);
    assert_eq!(u64_at(&head, 1), 30);
    clients[0].read(30 * 40);
    clients[0].id();
}

/// Reads an answer in fragments: the fixed parts of its rows, and their keys.
fn fragments(
    client: &mut Client,
    fixed: usize,
    key_len: impl Fn(&[u8]) -> usize,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let head = client.read(9);
    assert_eq!(head[0], 1);
    let mut rows = Vec::new();
    for index in 1..=u64_at(&head, 1) {
        let head = client.read(16);
        assert_eq!(u64_at(&head, 0), index);
        let count = u64_at(&head, 8) as usize;
        let parts = client.read(fixed * count);
        let mut bytes = parts.len();
        for part in parts.chunks(fixed) {
            let key = client.read(key_len(part));
            bytes += key.len();
            rows.push((part.to_vec(), key));
        }
        assert!(count > 0 && bytes <= 2048, "{bytes} bytes in fragment {index}");
    }
    rows
}

#[test]
fn records_are_listed_in_the_order_of_insertion() {
    const RECORDS: u32 = 60_000;
    let program = Program::serve(DOOR);
    let mut client = Client::new(&program);
    let mut other = Client::new(&program);
    let keys: Vec<String> = (0..RECORDS).map(|n| format!("record {n}")).collect();
    for batch in keys.chunks(500) {
        let insert = |key: &'_ String| {
            written(&[Request::Insert { quota: 1, ttl: MINUTE, key: key.as_bytes() }])
        };
        client.send(&batch.iter().flat_map(insert).collect::<Vec<_>>());
        assert!(client.read(batch.len()).iter().all(|status| *status == 1));
    }
    client.send(&written(&[Request::Query { key: b"record 7" }, Request::List, Request::Stats]));
    // Others are served while the long answers are written.
    assert!(other.does(&Request::Insert { quota: 1, ttl: MINUTE, key: b"late" }));
    client.read(6);
    let listed = fragments(&mut client, 13, |row| row[0].into());
    let stats = fragments(&mut client, 33, |row| row[0].into());
    let names = |rows: &[(Vec<u8>, Vec<u8>)]| {
        let keys = rows.iter().map(|(_, key)| String::from_utf8_lossy(key).into_owned());
        keys.filter(|key| key != "late").collect::<Vec<_>>()
    };
    assert_eq!(names(&listed), keys);
    assert_eq!(names(&stats), keys);
    assert_eq!((u64_at(&stats[7].0, 17), u64_at(&stats[7].0, 25)), (1, 0));
    client.id();
}

#[test]
fn info_and_metrics_say_the_same() {
    let program = Program::serve(DOOR);
    let (mut client, mut other) = (Client::new(&program), Client::new(&program));
    other.id();
    for round in 0..10u8 {
        assert!(client.does(&Request::Insert { quota: 9, ttl: MINUTE, key: &[round] }));
        client.ask(&Request::Query { key: &[round] }, 6);
    }
    assert!(client.does(&Request::Set { ttl: MINUTE, key: b"buffer", value: b"12345" }));
    assert!(client.does(&Request::Subscribe { channel: b"c" }));
    // What was written is counted a moment after the client has it.
    let written = "tidegate_throttr_bytes_total{direction=\"written\"}";
    until(|| metric(&program, written) == 17 + 10 * (1 + 6) + 1 + 1);
    let info = client.ask(&Request::Info, 433);
    // Behind the status, the time and the totals there are 18 pairs.
    let pair = |place: usize| u64_at(&info, 1 + 24 + 16 * place);
    assert_eq!((pair(0), pair(1), pair(5), pair(7), pair(10), pair(15)), (10, 10, 1, 1, 1, 1));
    assert_eq!(u64_at(&info, 9), 24, "all requests");
    let figure = |place: usize| u64_at(&info, 1 + 24 + 16 * 18 + 8 * place);
    assert_eq!([figure(4), figure(5), figure(6)], [11, 10, 1], "keys, counters, buffers");
    assert!(figure(7) >= 10 && figure(8) >= 5, "bytes in them");
    assert_eq!([figure(9), figure(10), figure(12)], [5, 4, 2], "subscriptions and connections");
    assert_eq!(&info[417..], b"0.1.0\0\0\0\0\0\0\0\0\0\0\0");
    for (name, place) in [("insert", 0), ("query", 1), ("set", 5), ("subscribe", 10)] {
        let series = format!("tidegate_throttr_requests_total{{type=\"{name}\"}}");
        assert_eq!(metric(&program, &series), pair(place), "{name}");
    }
    assert!(RequestKind::ALL.iter().all(|kind| !kind.name().is_empty()));
    assert_eq!(metric(&program, "tidegate_throttr_connections"), 2);
    assert_eq!(metric(&program, "tidegate_throttr_channels"), 4);
    assert_eq!(metric(&program, "tidegate_records"), 11);
    let read = metric(&program, "tidegate_throttr_bytes_total{direction=\"read\"}");
    assert_eq!(read, figure(0), "nothing was read since");
    until(|| metric(&program, written) == figure(2) + 433);
}
