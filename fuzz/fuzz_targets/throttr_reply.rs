//! Any bytes at a client of the Throttr protocol: pieces of replies, events, or a broken stream.
//!
//! The first byte chooses the value size, the second what was asked. What is read is written again
//! by the server's side where it has a short form, and must come out the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_wire::throttr::ask::{Expected, Incoming, Piece, ReplyReader, reply_bytes_max};
use tidegate_wire::throttr::figures::{ConnectionRecord, Info};
use tidegate_wire::throttr::fragments::{ChannelRow, KeyStat, Listed};
use tidegate_wire::throttr::{
    ID_BYTES, Request, RequestKind, Take, Takes, Ttl, Unit, ValueSize, reply,
};

const VALUE_MAX: usize = 300;

const TTL: Ttl = Ttl::new(1, Unit::Seconds);
const TAKES: [Take<'_>; 3] = [Take { cost: 1, quota: 1, ttl: TTL, key: b"" }; 3];

fn request(choice: u8) -> Request<'static> {
    match RequestKind::ALL[usize::from(choice) % RequestKind::COUNT] {
        RequestKind::Insert => Request::Insert { quota: 1, ttl: TTL, key: b"" },
        RequestKind::Query => Request::Query { key: b"" },
        RequestKind::Update => {
            Request::Update { attribute: None, change: None, value: 1, key: b"" }
        }
        RequestKind::Purge => Request::Purge { key: b"" },
        RequestKind::Set => Request::Set { ttl: TTL, key: b"", value: b"" },
        RequestKind::Get => Request::Get { key: b"" },
        RequestKind::List => Request::List,
        RequestKind::Info => Request::Info,
        RequestKind::Stat => Request::Stat { key: b"" },
        RequestKind::Stats => Request::Stats,
        RequestKind::Subscribe => Request::Subscribe { channel: b"" },
        RequestKind::Unsubscribe => Request::Unsubscribe { channel: b"" },
        RequestKind::Publish => Request::Publish { channel: b"", payload: b"" },
        RequestKind::Connections => Request::Connections,
        RequestKind::Connection => Request::Connection { id: [0; ID_BYTES] },
        RequestKind::Channels => Request::Channels,
        RequestKind::Channel => Request::Channel { channel: b"" },
        RequestKind::Whoami => Request::Whoami,
        // A QUERY of the empty key, in an EVENT.
        RequestKind::Event => Request::Event { channel: b"", payload: &[2, 0] },
        RequestKind::Consume => Request::Consume { cost: 1, quota: 1, ttl: TTL, key: b"" },
        RequestKind::ConsumeMany => Request::ConsumeMany { takes: Takes::new(&TAKES) },
    }
}

/// The server's own writing of a piece.
fn written(piece: &Piece<'_>, size: ValueSize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match *piece {
        Piece::Status(success) => reply::status(&mut out, success),
        Piece::Executed => reply::status(&mut out, true),
        Piece::Counter { quota, unit, left } => reply::query(&mut out, size, quota, unit, left),
        Piece::Buffer { unit, left, value } => reply::get(&mut out, size, unit, left, value),
        Piece::Consumed { taken, remaining, left } => {
            reply::consume(&mut out, size, taken, remaining, left);
        }
        Piece::ConsumedMany { taken, takes } => {
            reply::consume_many(&mut out, size, taken, takes.iter());
        }
        Piece::Stat(stat) => reply::stat(&mut out, &stat),
        Piece::Info(body) => reply::info(&mut out, &Info::read(body)),
        Piece::Whoami(id) => reply::whoami(&mut out, &id),
        Piece::Subscribers(count) => reply::channel(&mut out, count),
        Piece::Subscriber(subscriber) => reply::subscriber(&mut out, &subscriber),
        // Its type and transport are read as what they can be, so the bytes may differ.
        Piece::Connection(body) => {
            let _ = ConnectionRecord::read(body);
            return None;
        }
        Piece::Fragments(_) => return None,
        Piece::Fragment(fragment) => {
            let _ = fragment.rows::<Listed<'_>>().count();
            let _ = fragment.rows::<KeyStat<'_>>().count();
            let _ = fragment.rows::<ChannelRow<'_>>().count();
            let _ = fragment.rows::<ConnectionRecord>().count();
            return None;
        }
    }
    Some(out)
}

fuzz_target!(|input: &[u8]| {
    let [size, choice, rest @ ..] = input else { return };
    let mut rest = rest;
    let size = ValueSize::ALL[usize::from(size % 4)];
    let expected = Some(Expected::of(&request(*choice), size));
    let mut reader = ReplyReader::new(size, VALUE_MAX);
    loop {
        match reader.next(rest, expected) {
            Incoming::Piece { piece, bytes, .. } => {
                let again = written(&piece, size);
                assert!(again.is_none_or(|again| again == rest[..bytes]));
                rest = &rest[bytes..];
            }
            Incoming::Event { channel, payload, bytes } => {
                let mut again = Vec::new();
                reply::event(&mut again, size, channel, payload).expect("it was read at this size");
                assert_eq!(again, rest[..bytes]);
                rest = &rest[bytes..];
            }
            Incoming::Incomplete => {
                assert!(rest.len() < reply_bytes_max(size, VALUE_MAX));
                return;
            }
            Incoming::Broken(_) => return,
        }
    }
});
