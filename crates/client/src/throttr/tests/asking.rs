//! Requests and their replies: every kind, many at once, cut anywhere, too long, given up.

use std::pin::pin;

use tidegate_wire::throttr::figures::padded;
use tidegate_wire::throttr::fragments::{
    ChannelRow, Fragments, KeyStat, Listed, ListingRow, count, head,
};
use tidegate_wire::throttr::reply;
use tokio::task::JoinSet;

use super::*;

#[tokio::test]
async fn records_at_every_size_over_both_transports() {
    for size in ValueSize::ALL {
        for door in [Door::tcp().await, Door::unix()] {
            let (mut peer, client) = door.connect(settings(size)).await;
            records(&mut peer, &client, size).await;
            assert!(!peer.heard_more());
        }
    }
}

async fn records(peer: &mut Peer, client: &ThrottrClient, size: ValueSize) {
    let yes = |out: &mut Vec<u8>| reply::status(out, true);
    let no = |out: &mut Vec<u8>| reply::status(out, false);
    let (key, value, unit) = (&b"k"[..], &b"v"[..], Unit::Seconds);

    let insert = Request::Insert { quota: 7, ttl: MINUTE, key };
    let (got, ()) = tokio::join!(client.insert(key, 7, MINUTE), peer.answer(insert, yes));
    assert!(got.unwrap());
    let write = |out: &mut Vec<u8>| reply::query(out, size, 7, unit, 59);
    let (got, ()) = tokio::join!(client.query(key), peer.answer(Request::Query { key }, write));
    assert_eq!(got.unwrap(), Some(CounterState { quota: 7, unit, left: 59 }));
    let (got, ()) = tokio::join!(client.query(b""), peer.answer(Request::Query { key: b"" }, no));
    assert_eq!(got.unwrap(), None);
    let (attribute, change) = (Attribute::Ttl, Change::Decrease);
    let update =
        Request::Update { attribute: Some(attribute), change: Some(change), value: 9, key };
    let (got, ()) = tokio::join!(client.update(key, attribute, change, 9), peer.answer(update, no));
    assert!(!got.unwrap());
    let (got, ()) = tokio::join!(client.purge(key), peer.answer(Request::Purge { key }, yes));
    assert!(got.unwrap());
    let set = Request::Set { ttl: MINUTE, key, value };
    let (got, ()) = tokio::join!(client.set(key, value, MINUTE), peer.answer(set, yes));
    assert!(got.unwrap());
    let write = |out: &mut Vec<u8>| reply::get(out, size, unit, 59, value);
    let (got, ()) = tokio::join!(client.get(key), peer.answer(Request::Get { key }, write));
    assert_eq!(got.unwrap(), Some(Buffer { value: value.to_vec(), unit, left: 59 }));
    let (got, ()) = tokio::join!(client.get(key), peer.answer(Request::Get { key }, no));
    assert_eq!(got.unwrap(), None);

    let consume = Request::Consume { cost: 1, quota: 7, ttl: MINUTE, key };
    let write = |out: &mut Vec<u8>| reply::consume(out, size, false, 0, 59);
    let (got, ()) = tokio::join!(client.consume(key, 1, 7, MINUTE), peer.answer(consume, write));
    assert_eq!(got.unwrap(), ConsumeResult { taken: false, remaining: 0, left: 59 });
    let takes = [Take { cost: 1, quota: 7, ttl: MINUTE, key }; 2];
    let many = Request::ConsumeMany { takes: Takes::new(&takes) };
    let write = |out: &mut Vec<u8>| reply::consume_many(out, size, true, [(6, 59), (5, 58)]);
    let (got, ()) = tokio::join!(client.consume_many(&takes), peer.answer(many, write));
    let counters = vec![Left { remaining: 6, left: 59 }, Left { remaining: 5, left: 58 }];
    assert_eq!(got.unwrap(), ConsumeManyResult { taken: true, counters });

    let event = Request::Event { channel: b"c", payload: &[2, 1, b'k'] };
    let write = |out: &mut Vec<u8>| {
        reply::status(out, true);
        reply::query(out, size, 6, unit, 58);
    };
    let query = Request::Query { key };
    let (got, ()) = tokio::join!(client.event(b"c", query), peer.answer(event, write));
    assert_eq!(got.unwrap(), Reply::Counter(CounterState { quota: 6, unit, left: 58 }));
}

fn listed<R: ListingRow + Copy>(size: ValueSize, rows: &[R]) -> Vec<u8> {
    let mut out = Vec::new();
    head(&mut out, count::<R>(size, rows.iter().map(|row| row.key().len())));
    let mut fragments = Fragments::new(size, rows.iter().copied());
    while fragments.append(&mut out) {}
    out
}

#[tokio::test]
async fn what_the_server_tells_about_itself() {
    let door = Door::tcp().await;
    let (mut peer, client) = door.connect(settings(SIZE)).await;
    let id = *b"0123456789abcdef";

    let info = Info { now_s: 1, version: padded("7.3.2"), ..Info::default() };
    let write = |out: &mut Vec<u8>| reply::info(out, &info);
    let (got, ()) = tokio::join!(client.info(), peer.answer(Request::Info, write));
    assert_eq!(got.unwrap(), info);
    let stat = Stat { reads_per_minute: 1, writes_per_minute: 2, reads: 3, writes: 4 };
    let write = |out: &mut Vec<u8>| reply::stat(out, &stat);
    let (got, ()) =
        tokio::join!(client.stat(b"k"), peer.answer(Request::Stat { key: b"k" }, write));
    assert_eq!(got.unwrap(), Some(stat));
    let write = |out: &mut Vec<u8>| reply::whoami(out, &id);
    let (got, ()) = tokio::join!(client.whoami(), peer.answer(Request::Whoami, write));
    assert_eq!(got.unwrap(), id);
    let record = ConnectionRecord { id, ip_version: 4, port: 9, ..ConnectionRecord::default() };
    let write = |out: &mut Vec<u8>| reply::connection(out, &record);
    let request = Request::Connection { id };
    let (got, ()) = tokio::join!(client.connection(id), peer.answer(request, write));
    assert_eq!(got.unwrap(), Some(record));
    let subscriber = Subscriber { id, subscribed_at_ns: 1, read_bytes: 2, written_bytes: 3 };
    let write = |out: &mut Vec<u8>| {
        reply::channel(out, 2);
        reply::subscriber(out, &subscriber);
        reply::subscriber(out, &subscriber);
    };
    let request = Request::Channel { channel: b"c" };
    let (got, ()) = tokio::join!(client.channel(b"c"), peer.answer(request, write));
    assert_eq!(got.unwrap(), Some(vec![subscriber; 2]));
    let write = |out: &mut Vec<u8>| reply::status(out, false);
    let (got, ()) = tokio::join!(client.channel(b"c"), peer.answer(request, write));
    assert_eq!(got.unwrap(), None);
}

#[tokio::test]
async fn lists_of_many_fragments() {
    let door = Door::tcp().await;
    let (mut peer, client) = door.connect(settings(SIZE)).await;
    let keys: Vec<String> = (0..5000).map(|n| format!("key {n}")).collect();
    let stat = Stat { reads: 1, ..Stat::default() };
    let (kind, unit) = (RecordKind::Counter, Unit::Hours);

    let rows: Vec<Listed<'_>> = keys
        .iter()
        .map(|key| Listed { key: key.as_bytes(), kind, unit, expires_at_ns: 5, bytes_used: 6 })
        .collect();
    let write = |out: &mut Vec<u8>| *out = listed(SIZE, &rows);
    let (got, ()) = tokio::join!(client.list(), peer.answer(Request::List, write));
    let expected = |key: &String| ListedRecord {
        key: key.clone().into_bytes(),
        kind,
        unit,
        expires_at_ns: 5,
        bytes_used: 6,
    };
    assert!(got.unwrap().into_iter().eq(keys.iter().map(expected)));

    let rows: Vec<_> = keys.iter().map(|key| KeyStat { key: key.as_bytes(), stat }).collect();
    let write = |out: &mut Vec<u8>| *out = listed(SIZE, &rows);
    let (got, ()) = tokio::join!(client.stats(), peer.answer(Request::Stats, write));
    let expected = |key: &String| RecordStats { key: key.clone().into_bytes(), stat };
    assert!(got.unwrap().into_iter().eq(keys.iter().map(expected)));

    let row = ChannelRow { channel: b"*", read_bytes: 1, written_bytes: 2, connections: 3 };
    let write = |out: &mut Vec<u8>| *out = listed(SIZE, &[row]);
    let (got, ()) = tokio::join!(client.channels(), peer.answer(Request::Channels, write));
    let expected = Channel { name: b"*".to_vec(), read_bytes: 1, written_bytes: 2, connections: 3 };
    assert_eq!(got.unwrap(), [expected]);

    let record = ConnectionRecord { port: 7, ..ConnectionRecord::default() };
    let write = |out: &mut Vec<u8>| *out = listed(SIZE, &[record; 20]);
    let (got, ()) = tokio::join!(client.connections(), peer.answer(Request::Connections, write));
    assert_eq!(got.unwrap(), [record; 20]);
    let write = |out: &mut Vec<u8>| *out = listed::<Listed<'_>>(SIZE, &[]);
    let (got, ()) = tokio::join!(client.list(), peer.answer(Request::List, write));
    assert_eq!(got.unwrap(), []);
}

/// A list that is too long is refused, and the connection lives on.
#[tokio::test]
async fn lists_that_are_too_long() {
    let door = Door::tcp().await;
    let (mut peer, client) = door.connect(Settings { rows_max: 20, ..settings(SIZE) }).await;
    for (rows, fits) in [(20, true), (21, false), (90, false)] {
        let record = ConnectionRecord::default();
        let write = |out: &mut Vec<u8>| *out = listed(SIZE, &vec![record; rows]);
        let (got, ()) =
            tokio::join!(client.connections(), peer.answer(Request::Connections, write));
        match got {
            Ok(list) => assert!(fits && list.len() == rows),
            Err(error) => assert!(!fits && matches!(error, ThrottrError::TooManyRows), "{error}"),
        }
        let write = |out: &mut Vec<u8>| {
            reply::channel(out, rows as u64);
            (0..rows).for_each(|_| reply::subscriber(out, &Subscriber::default()));
        };
        let request = Request::Channel { channel: b"c" };
        let (got, ()) = tokio::join!(client.channel(b"c"), peer.answer(request, write));
        match got {
            Ok(list) => assert!(fits && list.unwrap().len() == rows),
            Err(error) => assert!(!fits && matches!(error, ThrottrError::TooManyRows), "{error}"),
        }
    }
}

/// All requests of many callers are in flight before the first is answered.
#[tokio::test]
async fn many_callers_share_a_connection() {
    const CALLERS: u64 = 500;
    let door = Door::tcp().await;
    let (mut peer, client) = door.connect(settings(SIZE)).await;
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let client = client.clone();
        callers.spawn(async move {
            let takes = client.consume(b"k", caller, 7, MINUTE).await.unwrap();
            assert_eq!(takes.remaining, caller + 1);
        });
    }
    let mut costs = Vec::new();
    while costs.len() < CALLERS as usize {
        assert!(peer.read_some().await);
        costs = peer.costs();
    }
    // They are answered in the order in which they came, a byte at a time for a while.
    let mut replies = Vec::new();
    costs.iter().for_each(|cost| reply::consume(&mut replies, SIZE, true, cost + 1, 59));
    for byte in &replies[..100] {
        peer.say(&[*byte]).await;
    }
    peer.say(&replies[100..]).await;
    while let Some(done) = callers.join_next().await {
        done.unwrap();
    }
}

#[tokio::test]
async fn pipelines() {
    let door = Door::tcp().await;
    let (mut peer, client) = door.connect(settings(SIZE)).await;
    let requests = [Request::Whoami, Request::Purge { key: b"a" }, Request::Query { key: b"b" }];
    let answers = async {
        for request in requests {
            peer.hear(request).await;
        }
        let mut out = Vec::new();
        reply::whoami(&mut out, &[9; ID_BYTES]);
        reply::status(&mut out, false);
        reply::query(&mut out, SIZE, 1, Unit::Hours, 2);
        peer.say(&out).await;
    };
    let (got, ()) = tokio::join!(client.pipeline(&requests), answers);
    let counter = CounterState { quota: 1, unit: Unit::Hours, left: 2 };
    let expected = [Reply::Whoami([9; ID_BYTES]), Reply::Status(false), Reply::Counter(counter)];
    assert_eq!(got.unwrap(), expected);
    assert_eq!(client.pipeline(&[]).await.unwrap(), []);
    let long = vec![Request::Info; PIPELINE_MAX + 1];
    assert!(matches!(client.pipeline(&long).await, Err(ThrottrError::PipelineTooLong)));
    let unwritable = [Request::Info, Request::Get { key: &[0; 256] }];
    let refused = client.pipeline(&unwritable).await;
    assert!(matches!(refused, Err(ThrottrError::Unwritable(Unwritable::KeyTooLong))));
    let refused = client.insert(b"k", 65536, MINUTE).await;
    assert!(matches!(refused, Err(ThrottrError::Unwritable(Unwritable::NumberTooLarge))));
    // Nothing of all that was sent.
    let write = |out: &mut Vec<u8>| reply::status(out, true);
    let (got, ()) =
        tokio::join!(client.purge(b"k"), peer.answer(Request::Purge { key: b"k" }, write));
    assert!(got.unwrap());
}

/// The longest pipeline goes through, though it is more than may be in flight at once besides.
#[tokio::test]
async fn the_longest_pipeline() {
    let door = Door::tcp().await;
    let (mut peer, client) = door.connect(settings(SIZE)).await;
    let requests = vec![Request::Purge { key: b"k" }; PIPELINE_MAX];
    let answers = async {
        for request in &requests {
            peer.hear(*request).await;
        }
        peer.say(&vec![1; PIPELINE_MAX]).await;
        let write = |out: &mut Vec<u8>| reply::status(out, false);
        peer.answer(Request::Purge { key: b"z" }, write).await;
    };
    let asks = async { tokio::join!(client.pipeline(&requests), client.purge(b"z")) };
    let ((all, last), ()) = tokio::join!(asks, answers);
    assert_eq!(all.unwrap(), vec![Reply::Status(true); PIPELINE_MAX]);
    assert!(!last.unwrap());
    // What was answered is no longer in flight.
    let write = |out: &mut Vec<u8>| reply::status(out, true);
    let request = Request::Purge { key: b"k" };
    let (got, ()) = tokio::join!(client.purge(b"k"), peer.answer(request, write));
    assert!(got.unwrap());
}

/// A value as long as the settings allow, far longer than the first buffer.
#[tokio::test]
async fn the_longest_value() {
    let door = Door::tcp().await;
    let size = ValueSize::Bits32;
    let limits = Settings { value_bytes_max: 300_000, ..settings(size) };
    let (mut peer, client) = door.connect(limits).await;
    let value: Vec<u8> = (0..300_000_u32).map(|n| n as u8).collect();
    let write = |out: &mut Vec<u8>| reply::get(out, size, Unit::Hours, 1, &value);
    let request = Request::Get { key: b"k" };
    let (got, ()) = tokio::join!(client.get(b"k"), peer.answer(request, write));
    assert!(got.unwrap().unwrap().value == value);
    let longer = [&value[..], b"x"].concat();
    let write = |out: &mut Vec<u8>| reply::get(out, size, Unit::Hours, 1, &longer);
    let (got, ()) = tokio::join!(client.get(b"k"), async {
        peer.hear(request).await;
        let mut out = Vec::new();
        write(&mut out);
        // The client hangs up on the header, so the rest cannot be said.
        peer.say(&out[..10]).await;
    });
    let broken = BrokenReply::ValueTooLong(300_001);
    assert!(matches!(got, Err(ThrottrError::Lost(Loss::Broken(found))) if found == broken));
}

/// A reply that comes late goes to nobody, and not to the next who asks.
#[tokio::test]
async fn requests_that_are_given_up() {
    let door = Door::tcp().await;
    let (mut peer, client) = door.connect(settings(SIZE)).await;
    {
        let asking = pin!(client.query(b"slow"));
        tokio::select! {
            biased;
            answer = asking => panic!("answered before it was asked: {answer:?}"),
            () = peer.hear(Request::Query { key: b"slow" }) => {}
        }
    }
    let answers = async {
        peer.hear(Request::Query { key: b"next" }).await;
        let mut out = Vec::new();
        reply::query(&mut out, SIZE, 1, Unit::Hours, 1);
        reply::query(&mut out, SIZE, 2, Unit::Hours, 2);
        peer.say(&out).await;
    };
    let (got, ()) = tokio::join!(client.query(b"next"), answers);
    assert_eq!(got.unwrap().unwrap().quota, 2);

    // Nobody waits for this one before it could be sent, so it is not.
    tokio::select! {
        biased;
        answer = client.purge(b"k") => panic!("answered before it was asked: {answer:?}"),
        () = std::future::ready(()) => {}
    }
    let write = |out: &mut Vec<u8>| reply::whoami(out, &[1; ID_BYTES]);
    let (got, ()) = tokio::join!(client.whoami(), peer.answer(Request::Whoami, write));
    assert_eq!(got.unwrap(), [1; ID_BYTES]);
}
