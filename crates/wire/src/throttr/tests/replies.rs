//! Replies: what a server writes a client reads, cut anywhere, at every value size.

use proptest::prelude::*;
use proptest::sample::select;

use super::super::ask::{
    BrokenReply, Expected, Fragment, Incoming, Piece, ReadRow, ReplyReader, reply_bytes_max,
};
use super::super::figures::{
    CONNECTION_BYTES, ConnectionRecord, CountRate, INFO_BYTES, Info, Transport, padded,
};
use super::super::fragments::{
    ChannelRow, FRAGMENT_WHOLE_BYTES_MAX, Fragments, KeyStat, Listed, ListingRow, RecordKind,
    count, head,
};
use super::super::reply::{self, ChannelSubscriber, DoesNotFit, Stat};
use super::super::*;
use super::bytes;

const VALUE_MAX: usize = 70_000;

fn expected(request: Request<'_>, size: ValueSize) -> Option<Expected> {
    Some(Expected::of(&request, size))
}

/// Reads `bytes` as one reply of one piece, and every truncation as incomplete.
#[track_caller]
fn whole(bytes: &[u8], size: ValueSize, request: Request<'_>, piece: Piece<'_>) {
    let expected = expected(request, size);
    for len in 0..bytes.len() {
        let mut reader = ReplyReader::new(size, VALUE_MAX);
        assert_eq!(reader.next(&bytes[..len], expected), Incoming::Incomplete, "{len} bytes");
    }
    let mut reader = ReplyReader::new(size, VALUE_MAX);
    let read = reader.next(bytes, expected);
    assert_eq!(read, Incoming::Piece { piece, bytes: bytes.len(), last: true });
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

const QUERY: Request<'_> = Request::Query { key: b"" };
const GET: Request<'_> = Request::Get { key: b"" };
const CONSUME: Request<'_> =
    Request::Consume { cost: 0, quota: 0, ttl: Ttl::new(0, Unit::Seconds), key: b"" };

#[test]
fn numbers_saturate() {
    for size in ValueSize::ALL {
        let n = size.bytes();
        let most = vec![0xff; n];
        let query = written(|out| reply::query(out, size, u64::MAX, Unit::Hours, u64::MAX));
        assert_eq!(query, [&[1][..], &most, &[6], &most].concat());
        let over = size.max().saturating_add(1);
        assert_eq!(written(|out| reply::query(out, size, over, Unit::Hours, over)), query);
        let get = written(|out| reply::get(out, size, Unit::Nanoseconds, u64::MAX, b""));
        assert_eq!(get, [&[1, 1][..], &most, &vec![0; n]].concat());
        let consume = written(|out| reply::consume(out, size, false, over, over));
        assert_eq!(consume, [&[0][..], &most, &most].concat());
        let many = written(|out| reply::consume_many(out, size, true, [(over, 0)]));
        assert_eq!(many, [&[1][..], &most, &vec![0; n]].concat());
    }
}

#[test]
fn what_does_not_fit() {
    let size = ValueSize::Bits8;
    let value = [b'x'; 256];
    assert_eq!(written(|out| reply::get(out, size, Unit::Hours, 1, &value)), [0]);
    assert_eq!(written(|out| reply::get(out, size, Unit::Hours, 1, &value[1..])).len(), 259);
    let mut out = vec![b'#'];
    assert_eq!(reply::event(&mut out, size, b"c", &value), Err(DoesNotFit));
    assert_eq!(reply::event(&mut out, ValueSize::Bits64, &value, b""), Err(DoesNotFit));
    assert_eq!(out, [b'#']);
}

fn figures() -> (ConnectionRecord, Info) {
    // Every field has a number of its own, so that no two can be exchanged unseen.
    let mut next = 0;
    let mut number = || {
        next += 1;
        0x0102_0304_0506_0700 + next
    };
    let record = ConnectionRecord {
        id: *b"0123456789abcdef",
        transport: Transport::Unix,
        ip_version: 6,
        address: padded("2001:db8::1:2:3:4"),
        port: 0x1234,
        connected_at_ns: number(),
        read_bytes: number(),
        written_bytes: number(),
        published_bytes: number(),
        received_bytes: number(),
        allocated_bytes: number(),
        consumed_bytes: number(),
        requests: RequestKind::ALL.map(|kind| shown(kind, number())),
    };
    let mut rate = || CountRate { total: number(), per_minute: number() };
    let info = Info {
        requests: rate(),
        kinds: RequestKind::ALL.map(|kind| {
            let CountRate { total, per_minute } = rate();
            CountRate { total: shown(kind, total), per_minute: shown(kind, per_minute) }
        }),
        read_bytes: rate(),
        written_bytes: rate(),
        now_s: number(),
        keys: number(),
        counters: number(),
        buffers: number(),
        counter_bytes: number(),
        buffer_bytes: number(),
        subscriptions: number(),
        channels: number(),
        started_at_ns: number(),
        connections: number(),
        version: padded("7.3.2"),
    };
    (record, info)
}

/// The kinds that the protocol's figures leave out read as nought.
fn shown(kind: RequestKind, number: u64) -> u64 {
    match kind {
        RequestKind::Event | RequestKind::Consume | RequestKind::ConsumeMany => 0,
        _ => number,
    }
}

#[test]
fn figures_go_round() {
    let (record, info) = figures();
    let bytes = written(|out| reply::connection(out, &record));
    assert_eq!(bytes.len(), 1 + CONNECTION_BYTES);
    let body = bytes[1..].first_chunk().unwrap();
    assert_eq!(ConnectionRecord::read(body), record);
    let connection = Request::Connection { id: [0; ID_BYTES] };
    whole(&bytes, ValueSize::Bits16, connection, Piece::Connection(body));

    let bytes = written(|out| reply::info(out, &info));
    assert_eq!(bytes.len(), 1 + INFO_BYTES);
    let body = bytes[1..].first_chunk().unwrap();
    assert_eq!(Info::read(body), info);
    whole(&bytes, ValueSize::Bits8, Request::Info, Piece::Info(body));
}

/// The kinds that a line of the protocol page names, in its order.
fn kinds(words: &str) -> impl Iterator<Item = RequestKind> {
    let named =
        |word: &str| RequestKind::ALL.into_iter().find(|kind| kind.name() == word.to_lowercase());
    words.split(' ').map(move |word| named(word).unwrap())
}

/// Places of fields, counted by hand from the protocol page.
#[test]
fn figures_stand_where_the_page_says() {
    let (record, info) = figures();
    let bytes = written(|out| reply::connection(out, &record));
    let body = &bytes[1..];
    let number = |body: &[u8], at: usize| u64::from_le_bytes(body[at..at + 8].try_into().unwrap());
    assert_eq!(&body[..19], b"0123456789abcdef\x00\x01\x06");
    assert_eq!(&body[19..37], b"2001:db8::1:2:3:\x34\x12");
    assert_eq!(number(body, 37), record.connected_at_ns);
    assert_eq!(number(body, 45), record.read_bytes);
    assert_eq!(number(body, 85), record.consumed_bytes);
    let order = "INSERT SET QUERY GET UPDATE PURGE LIST INFO STAT STATS PUBLISH SUBSCRIBE \
        UNSUBSCRIBE CONNECTIONS CONNECTION CHANNELS CHANNEL WHOAMI";
    for (at, kind) in (93..).step_by(8).zip(kinds(order)) {
        assert_eq!(number(body, at), record.requests[kind.index()], "{kind:?}");
    }

    let bytes = written(|out| reply::info(out, &info));
    let body = &bytes[1..];
    assert_eq!(number(body, 0), info.now_s);
    assert_eq!(number(body, 16), info.requests.per_minute);
    let order = "INSERT QUERY UPDATE PURGE GET SET LIST INFO STATS STAT SUBSCRIBE UNSUBSCRIBE \
        PUBLISH CHANNEL CHANNELS WHOAMI CONNECTION CONNECTIONS";
    for (at, kind) in (24..).step_by(16).zip(kinds(order)) {
        let CountRate { total, per_minute } = info.kinds[kind.index()];
        assert_eq!((number(body, at), number(body, at + 8)), (total, per_minute), "{kind:?}");
    }
    assert_eq!(number(body, 312), info.read_bytes.total);
    assert_eq!(number(body, 344), info.keys);
    assert_eq!(number(body, 408), info.connections);
    assert_eq!(&body[416..], b"7.3.2\0\0\0\0\0\0\0\0\0\0\0");
}

proptest! {
    #[test]
    fn short_replies_go_round(
        size in select(&ValueSize::ALL[..]), success: bool, numbers: [u64; 4], id: [u8; ID_BYTES],
        unit in select(&Unit::ALL[..]), value in prop::collection::vec(any::<u8>(), 0..=255),
        takes in prop::collection::vec((any::<u64>(), any::<u64>()), 0..=TAKES_MAX),
    ) {
        let [quota, left, ..] = numbers.map(|number| number & size.max());
        let bytes = written(|out| reply::query(out, size, quota, unit, left));
        whole(&bytes, size, QUERY, Piece::Counter { quota, unit, left });
        let bytes = written(|out| reply::get(out, size, unit, left, &value));
        whole(&bytes, size, GET, Piece::Buffer { unit, left, value: &value });
        let bytes = written(|out| reply::consume(out, size, success, quota, left));
        whole(&bytes, size, CONSUME, Piece::Consumed { taken: success, remaining: quota, left });
        let [reads_per_minute, writes_per_minute, reads, writes] = numbers;
        let stat = Stat { reads_per_minute, writes_per_minute, reads, writes };
        let bytes = written(|out| reply::stat(out, &stat));
        whole(&bytes, size, Request::Stat { key: b"" }, Piece::Stat(stat));
        let bytes = written(|out| reply::whoami(out, &id));
        whole(&bytes, size, Request::Whoami, Piece::Whoami(id));
        for request in [
            Request::Purge { key: b"" },
            Request::Subscribe { channel: b"" },
            Request::Publish { channel: b"", payload: b"" },
        ] {
            let bytes = written(|out| reply::status(out, success));
            whole(&bytes, size, request, Piece::Status(success));
        }
        for request in [QUERY, GET, Request::Connection { id }, Request::Channel { channel: b"" }] {
            whole(&[0], size, request, Piece::Status(false));
        }

        let given: Vec<Take<'_>> = takes
            .iter()
            .map(|_| Take { cost: 0, quota: 0, ttl: Ttl::new(0, unit), key: b"" })
            .collect();
        let request = Request::ConsumeMany { takes: Takes::new(&given) };
        let takes: Vec<_> = takes.iter().map(|(a, b)| (a & size.max(), b & size.max())).collect();
        let bytes = written(|out| reply::consume_many(out, size, success, takes.iter().copied()));
        let read = ReplyReader::new(size, 0).next(&bytes, expected(request, size));
        let Incoming::Piece { piece, bytes: used, last: true } = read else {
            return Err(TestCaseError::fail(format!("{read:?}")));
        };
        prop_assert_eq!(used, bytes.len());
        let Piece::ConsumedMany { taken, takes: left } = piece else { panic!("{piece:?}") };
        prop_assert_eq!(taken, success);
        prop_assert!(left.iter().eq(takes.iter().copied()));
    }

    /// An event is seen between replies whether or not a reply is expected, and never inside one.
    #[test]
    fn events_come_between_replies(
        size in select(&ValueSize::ALL[..]),
        channel in prop::collection::vec(any::<u8>(), 0..=255),
        payload in prop::collection::vec(any::<u8>(), 0..=255),
        asked: bool,
    ) {
        let expected = expected(Request::Whoami, size).filter(|_| asked);
        let bytes = written(|out| reply::event(out, size, &channel, &payload).unwrap());
        let mut reader = ReplyReader::new(size, VALUE_MAX);
        for len in 0..bytes.len() {
            prop_assert_eq!(reader.next(&bytes[..len], expected), Incoming::Incomplete);
        }
        let event = Incoming::Event { channel: &channel, payload: &payload, bytes: bytes.len() };
        prop_assert_eq!(reader.next(&bytes, expected), event);
    }

    #[test]
    fn lists_go_round(
        size in select(&ValueSize::ALL[..]),
        rows in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..=255), any::<[u64; 4]>(), 0usize..6), 0..60
        ),
    ) {
        let listed: Vec<Listed<'_>> = rows
            .iter()
            .map(|(key, [expires_at_ns, bytes_used, ..], unit)| Listed {
                key,
                kind: if bytes_used % 2 == 0 { RecordKind::Counter } else { RecordKind::Buffer },
                unit: Unit::ALL[*unit],
                expires_at_ns: *expires_at_ns,
                bytes_used: bytes_used & size.max(),
            })
            .collect();
        list_goes_round(size, Request::List, &listed)?;
        let stats: Vec<KeyStat<'_>> = rows
            .iter()
            .map(|(key, numbers, _)| {
                let [reads_per_minute, writes_per_minute, reads, writes] = *numbers;
                KeyStat { key, stat: Stat { reads_per_minute, writes_per_minute, reads, writes } }
            })
            .collect();
        list_goes_round(size, Request::Stats, &stats)?;
        let channels: Vec<ChannelRow<'_>> = rows
            .iter()
            .map(|(channel, [read_bytes, written_bytes, connections, _], _)| ChannelRow {
                channel,
                read_bytes: *read_bytes,
                written_bytes: *written_bytes,
                connections: *connections,
            })
            .collect();
        list_goes_round(size, Request::Channels, &channels)?;
        let connections: Vec<ConnectionRecord> = rows
            .iter()
            .map(|(_, [read_bytes, ..], _)| ConnectionRecord {
                read_bytes: *read_bytes,
                ..figures().0
            })
            .collect();
        list_goes_round(size, Request::Connections, &connections)?;
    }

    /// Whatever a server sends: no panic, nothing consumed that is not there.
    #[test]
    fn any_bytes(
        parts in super::requests::parts(), size in select(&ValueSize::ALL[..]),
        mut bytes in prop::collection::vec(prop_oneof![3 => 0u8..=2, 1 => any::<u8>()], 0..400),
        first in 0u8..=1, value_max in 0usize..300,
    ) {
        if let Some(byte) = bytes.first_mut() {
            *byte = first;
        }
        let mut reader = ReplyReader::new(size, value_max);
        let expected = parts.with(|request| Some(Expected::of(&request, size)));
        let mut rest = &bytes[..];
        loop {
            match reader.next(rest, expected) {
                Incoming::Piece { bytes, .. } | Incoming::Event { bytes, .. } => {
                    prop_assert!(0 < bytes && bytes <= rest.len());
                    rest = &rest[bytes..];
                }
                Incoming::Incomplete => {
                    prop_assert!(rest.len() < reply_bytes_max(size, value_max));
                    break;
                }
                Incoming::Broken(_) => break,
            }
        }
    }
}

/// A row's fixed part and key: what is compared.
type Flat = (Vec<u8>, Vec<u8>);

fn flat<R: ListingRow>(row: &R, size: ValueSize) -> Flat {
    let key = row.key();
    (written(|out| row.append_fixed(size, key.len() as u8, out)), key.to_vec())
}

fn read_flat(fragment: Fragment<'_>, kind: RequestKind, size: ValueSize) -> Vec<Flat> {
    fn rows<'a, R: ReadRow<'a>>(fragment: Fragment<'a>, size: ValueSize) -> Vec<Flat> {
        fragment.rows::<R>().map(|row| flat(&row.unwrap(), size)).collect()
    }
    match kind {
        RequestKind::List => rows::<Listed<'_>>(fragment, size),
        RequestKind::Stats => rows::<KeyStat<'_>>(fragment, size),
        RequestKind::Channels => rows::<ChannelRow<'_>>(fragment, size),
        _ => rows::<ConnectionRecord>(fragment, size),
    }
}

/// Writes the rows as a list and reads them back from every beginning.
fn list_goes_round<R: ListingRow + Copy>(
    size: ValueSize,
    request: Request<'_>,
    rows: &[R],
) -> Result<(), TestCaseError> {
    let fragments = count::<R>(size, rows.iter().map(|row| row.key().len()));
    let mut bytes = written(|out| head(out, fragments));
    let mut writing = Fragments::new(size, rows.iter().copied());
    let mut starts = vec![0, bytes.len()];
    while writing.append(&mut bytes) {
        let len = bytes.len() - starts.last().unwrap();
        prop_assert!(len <= FRAGMENT_WHOLE_BYTES_MAX);
        starts.push(bytes.len());
    }
    prop_assert!(!writing.append(&mut bytes));
    prop_assert_eq!(starts.len() as u64, fragments + 2);

    let expected = expected(request, size);
    let mut reader = ReplyReader::new(size, 0);
    let mut found = Vec::new();
    for (at, piece_of) in starts.windows(2).enumerate() {
        let piece_bytes = &bytes[piece_of[0]..piece_of[1]];
        for len in [0, 1, 8, 9, 15, 16, 17, piece_bytes.len() / 2, piece_bytes.len() - 1] {
            let cut = &piece_bytes[..len.min(piece_bytes.len() - 1)];
            prop_assert_eq!(reader.next(cut, expected), Incoming::Incomplete);
        }
        let read = reader.next(&bytes[piece_of[0]..], expected);
        let Incoming::Piece { piece, bytes: used, last } = read else {
            return Err(TestCaseError::fail(format!("{read:?}")));
        };
        prop_assert_eq!(used, piece_bytes.len());
        prop_assert_eq!(last, at as u64 == fragments);
        match piece {
            Piece::Fragments(of) => prop_assert!(at == 0 && of == fragments),
            Piece::Fragment(fragment) => found.extend(read_flat(fragment, request.kind(), size)),
            other => return Err(TestCaseError::fail(format!("{other:?}"))),
        }
    }
    prop_assert!(found.into_iter().eq(rows.iter().map(|row| flat(row, size))));
    Ok(())
}

#[test]
fn fragments_are_filled_to_the_last_byte() {
    let size = ValueSize::Bits16;
    let row = |key| KeyStat { key, stat: Stat::default() };
    let key = [b'k'; KEY_BYTES_MAX + 1];
    // Seven rows of 288 bytes, and 32 are left: a fixed part is 33.
    let mut rows = vec![row(&key[..255]); 7];
    let lens = |rows: &[KeyStat<'_>]| rows.iter().map(|row| row.key.len()).collect::<Vec<_>>();
    rows.push(row(b""));
    assert_eq!(count::<KeyStat<'_>>(size, lens(&rows)), 2);
    rows[0].key = &key[..254];
    assert_eq!(count::<KeyStat<'_>>(size, lens(&rows)), 1);
    let mut out = Vec::new();
    let mut fragments = Fragments::new(size, rows);
    assert!(fragments.append(&mut out) && !fragments.append(&mut out));
    assert_eq!(out.len(), FRAGMENT_WHOLE_BYTES_MAX);
    assert_eq!(count::<ConnectionRecord>(size, [0; 8]), 1);
    assert_eq!(count::<ConnectionRecord>(size, [0; 9]), 2);
    assert_eq!(count::<Listed<'_>>(size, []), 0);
    // A key that no request can have made is cut rather than told wrong.
    let mut out = Vec::new();
    assert_eq!(count::<KeyStat<'_>>(size, [256]), 1);
    assert!(Fragments::new(size, [row(&key)]).append(&mut out));
    assert_eq!(out.len(), 16 + 33 + 255);
}

#[test]
fn a_list_of_the_page() {
    let row = Listed {
        key: b"abc",
        kind: RecordKind::Buffer,
        unit: Unit::Seconds,
        expires_at_ns: 0x0102_0304_0506_0708,
        bytes_used: 4,
    };
    let mut out = written(|out| head(out, count::<Listed<'_>>(ValueSize::Bits16, [3, 0])));
    let mut fragments = Fragments::new(ValueSize::Bits16, [row, Listed { key: b"", ..row }]);
    assert!(fragments.append(&mut out));
    let number = |n: u8| format!("{n:02x} 00 00 00 00 00 00 00");
    let fixed = "01 04 08 07 06 05 04 03 02 01 04 00";
    let (one, two) = (number(1), number(2));
    assert_eq!(out, bytes(&format!("01 {one} {one} {two} 03 {fixed} 00 {fixed} 61 62 63")));
}

#[test]
fn channels_and_their_subscribers() {
    let size = ValueSize::Bits32;
    let subscribers = [1, 2].map(|id| ChannelSubscriber {
        id: [id; ID_BYTES],
        subscribed_at_ns: 3,
        read_bytes: 4,
        written_bytes: u64::MAX,
    });
    let bytes = written(|out| {
        reply::channel(out, 2);
        subscribers.iter().for_each(|each| reply::subscriber(out, each));
    });
    assert_eq!(bytes.len(), 9 + 2 * 40);
    let expected = expected(Request::Channel { channel: b"c" }, size);
    let mut reader = ReplyReader::new(size, 0);
    let mut at = 0;
    for (piece, len, last) in [
        (Piece::Subscribers(2), 9, false),
        (Piece::Subscriber(subscribers[0]), 40, false),
        (Piece::Subscriber(subscribers[1]), 40, true),
    ] {
        assert_eq!(reader.next(&bytes[at..at + len - 1], expected), Incoming::Incomplete);
        assert_eq!(
            reader.next(&bytes[at..], expected),
            Incoming::Piece { piece, bytes: len, last }
        );
        at += len;
    }
}

/// A status comes first, then the payload's own reply; a failure is all there is.
#[test]
fn replies_to_events() {
    let size = ValueSize::Bits8;
    let request = Request::Event { channel: b"", payload: &[2, 1, b'k'] };
    let expected = expected(request, size);
    assert_eq!(
        expected.map(|expected| (expected.kind(), expected.in_event())),
        Some((RequestKind::Query, true))
    );
    let mut reader = ReplyReader::new(size, 0);
    let executed = Incoming::Piece { piece: Piece::Executed, bytes: 1, last: false };
    assert_eq!(reader.next(&[1, 1, 7, 4, 9], expected), executed);
    let pushed = Incoming::Event { channel: b"c", payload: b"", bytes: 4 };
    assert_eq!(reader.next(&[0x19, 1, 0, b'c', 1], expected), pushed);
    let piece = Piece::Counter { quota: 7, unit: Unit::Seconds, left: 9 };
    assert_eq!(
        reader.next(&[1, 7, 4, 9], expected),
        Incoming::Piece { piece, bytes: 4, last: true }
    );
    let failed = Incoming::Piece { piece: Piece::Status(false), bytes: 1, last: true };
    assert_eq!(reader.next(&[0], expected), failed);
}

#[test]
fn broken_replies() {
    let size = ValueSize::Bits8;
    let check = |bytes: &[u8], request: Option<Request<'_>>, broken| {
        let expected = request.map(|request| Expected::of(&request, size));
        let read = ReplyReader::new(size, 10).next(bytes, expected);
        assert_eq!(read, Incoming::Broken(broken), "{bytes:?} to {request:?}");
    };
    check(&[1], None, BrokenReply::Unasked(1));
    check(&[2], Some(Request::Purge { key: b"" }), BrokenReply::Status(2));
    check(&[2], Some(CONSUME), BrokenReply::Status(2));
    check(&[7], Some(Request::Event { channel: b"", payload: &[0x18] }), BrokenReply::Status(7));
    for never_fails in [
        Request::List,
        Request::Info,
        Request::Stats,
        Request::Connections,
        Request::Channels,
        Request::Whoami,
    ] {
        check(&[0], Some(never_fails), BrokenReply::Status(0));
    }
    check(&[1, 7, 0, 1], Some(QUERY), BrokenReply::Unit(0));
    check(&[1, 7, 1, 1], Some(GET), BrokenReply::Unit(7));
    check(&[1, 1, 1, 11], Some(GET), BrokenReply::ValueTooLong(11));
    check(&[0x19, 0, 11], None, BrokenReply::ValueTooLong(11));
    let mut reader = ReplyReader::new(size, 10);
    let longest = [1, 1, 1, 10, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
    let read = reader.next(&longest, expected(GET, size));
    assert!(matches!(read, Incoming::Piece { bytes: 14, last: true, .. }));

    let list = expected(Request::List, size);
    let after_head = |fragment: &str| {
        let mut reader = ReplyReader::new(size, 10);
        reader.next(&bytes("01 02 00 00 00 00 00 00 00"), list);
        reader.next(&bytes(fragment), list) == Incoming::Broken(BrokenReply::Fragment)
    };
    assert!(after_head("02 00 00 00 00 00 00 00  01 00 00 00 00 00 00 00"));
    assert!(after_head("01 00 00 00 00 00 00 00  ff ff ff ff ff ff ff ff"));
    // 5461 rows of 12 bytes are just below the bound of 64 KiB.
    assert!(after_head("01 00 00 00 00 00 00 00  56 15 00 00 00 00 00 00"));
    assert!(!after_head("01 00 00 00 00 00 00 00  55 15 00 00 00 00 00 00"));
    assert!(!after_head("01 00 00 00 00 00 00 00  01 00 00 00 00 00 00 00"));
}
