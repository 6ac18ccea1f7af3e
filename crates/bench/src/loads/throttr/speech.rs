//! The bytes that are sent, and how many answers came back.
//!
//! Every server is asked for the same keys. No sockets here.

use std::io;

use clap::ValueEnum;
use tidegate_wire::throttr::ask::{Expected, Incoming, Piece, ReplyReader};
use tidegate_wire::throttr::{Attribute, Request, Ttl, Unit, UpdateChange, ValueSize};

use crate::stream::{self, Answers, key_of, resp};

/// Counters live long enough for any run that a person waits for.
const LIFE: Ttl = Ttl { unit: Some(Unit::Hours), amount: 24 };

/// What the Throttr door is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Asked {
    /// QUERY: reads a counter.
    Query,
    /// UPDATE: adds 1 to a counter.
    Update,
    /// INSERT: makes a counter.
    Insert,
    /// CONSUME: takes 1 from a counter.
    Consume,
    /// INSERT: makes a counter that lives for so many seconds.
    #[value(skip)]
    Brief(u64),
}

impl Asked {
    fn request(self, size: ValueSize, key: &[u8]) -> Request<'_> {
        match self {
            Asked::Query => Request::Query { key },
            Asked::Update => Request::Update {
                attribute: Some(Attribute::Quota),
                change: Some(UpdateChange::Increase),
                value: 1,
                key,
            },
            Asked::Insert => Request::Insert { quota: 0, ttl: LIFE, key },
            Asked::Brief(seconds) => {
                Request::Insert { quota: 0, ttl: Ttl::new(seconds, Unit::Seconds), key }
            }
            Asked::Consume => Request::Consume { cost: 1, quota: size.max(), ttl: LIFE, key },
        }
    }
}

/// What is spoken with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speech {
    /// The Throttr protocol.
    Throttr { asked: Asked, size: ValueSize },
    /// The same requests, of so many bytes, which come back as they are.
    Echoed { asked: Asked, size: ValueSize, bytes: usize },
    /// INCR.
    Redis,
}

impl Speech {
    /// What an echo server is sent and sends back.
    pub(super) fn echoed(asked: Asked, size: ValueSize) -> Self {
        let mut one = Vec::new();
        stream::Speech::ask(&mut Speech::Throttr { asked, size }, 0, &mut one);
        Speech::Echoed { asked, size, bytes: one.len() }
    }
}

impl stream::Speech for Speech {
    fn ask(&mut self, number: u64, out: &mut Vec<u8>) {
        let key = key_of(number);
        match *self {
            Speech::Throttr { asked, size } | Speech::Echoed { asked, size, .. } => {
                let written = asked.request(size, &key).encode(size, out);
                written.expect("its numbers and its key are short enough for every size");
            }
            Speech::Redis => resp::incr(number, out),
        }
    }

    fn read(&mut self, bytes: &[u8]) -> io::Result<Answers> {
        match *self {
            Speech::Throttr { asked, size } => throttr(asked, size, bytes),
            Speech::Echoed { bytes: each, .. } => {
                let count = bytes.len() / each;
                Ok(Answers { count: count as u64, refused: 0, bytes: count * each })
            }
            Speech::Redis => resp::read(bytes),
        }
    }
}

fn throttr(asked: Asked, size: ValueSize, bytes: &[u8]) -> io::Result<Answers> {
    let expected = Expected::of(&asked.request(size, &[]), size);
    let mut reader = ReplyReader::new(size, 0);
    let mut answers = Answers::default();
    loop {
        match reader.next(&bytes[answers.bytes..], Some(expected)) {
            Incoming::Piece { piece, bytes, .. } => {
                let refused = [Piece::Status(false)].contains(&piece)
                    || matches!(piece, Piece::Consumed { taken: false, .. });
                answers.count += 1;
                answers.refused += u64::from(refused);
                answers.bytes += bytes;
            }
            Incoming::Incomplete => return Ok(answers),
            Incoming::Event { .. } => {
                return Err(io::Error::other("an EVENT arrived without a request"));
            }
            Incoming::Broken(broken) => return Err(io::Error::other(broken)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_wire::throttr::{Front, parse};

    use super::*;
    use crate::stream::Speech as _;

    fn asked(mut speech: Speech, key: u64) -> Vec<u8> {
        let mut out = Vec::new();
        speech.ask(key, &mut out);
        out
    }

    #[test]
    fn requests_name_their_keys() {
        for size in ValueSize::ALL {
            for asked_for in Asked::value_variants() {
                let bytes = asked(Speech::Throttr { asked: *asked_for, size }, 1_234_567);
                let expected = asked_for.request(size, b"k00001234567");
                let whole = Front::Request { request: expected, bytes: bytes.len() };
                assert_eq!(parse(&bytes, size, 0), whole);
                let mut echoed = Speech::echoed(*asked_for, size);
                assert_eq!(asked(echoed, 1_234_567), bytes);
                let answers = Answers { count: 1, refused: 0, bytes: bytes.len() };
                assert_eq!(echoed.read(&[&bytes[..], &bytes[1..]].concat()).unwrap(), answers);
            }
        }
    }

    #[test]
    fn whole_answers_are_counted() {
        let check = |mut speech: Speech, bytes: &[u8], count, refused, whole| {
            let expected = Answers { count, refused, bytes: whole };
            assert_eq!(speech.read(bytes).unwrap(), expected, "{speech:?}");
        };
        let size = ValueSize::Bits16;
        let throttr = |asked| Speech::Throttr { asked, size };
        check(throttr(Asked::Query), &[1, 5, 0, 6, 23, 0, 0, 1, 5], 2, 1, 7);
        check(throttr(Asked::Update), &[1, 0, 1], 3, 1, 3);
        check(throttr(Asked::Insert), &[], 0, 0, 0);
        check(throttr(Asked::Consume), &[0, 0, 0, 9, 0, 1, 4, 0, 9, 0, 1], 2, 1, 10);
        assert!(throttr(Asked::Update).read(&[7]).is_err());
    }
}
