//! Requests: what a client writes a server reads, cut anywhere, at every value size.

use proptest::prelude::*;
use proptest::sample::select;

use super::super::*;
use super::bytes;

const VALUE_MAX: usize = 300;

/// What any request can be made of, with owners for what it borrows.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    kind: RequestKind,
    size: ValueSize,
    numbers: [u64; 3],
    unit: Option<Unit>,
    attribute: Option<Attribute>,
    change: Option<UpdateChange>,
    id: [u8; ID_BYTES],
    key: Vec<u8>,
    value: Vec<u8>,
    keys: Vec<(u64, Vec<u8>)>,
}

fn some_bytes(len: usize) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..=20),
        1 => prop::collection::vec(any::<u8>(), len..=len),
    ]
}

prop_compose! {
    pub(super) fn parts()(
        kind in select(&RequestKind::ALL[..]),
        size in select(&ValueSize::ALL[..]),
        numbers: [u64; 3],
        unit in prop::option::of(select(&Unit::ALL[..])),
        attribute in prop::option::of(select(&[Attribute::Quota, Attribute::Ttl][..])),
        change in prop::option::of(
            select(&[UpdateChange::Patch, UpdateChange::Increase, UpdateChange::Decrease][..])
        ),
        id: [u8; ID_BYTES],
        key in some_bytes(KEY_BYTES_MAX),
        value in some_bytes(VALUE_MAX),
        keys in prop::collection::vec((any::<u64>(), some_bytes(KEY_BYTES_MAX)), 0..=4),
    ) -> Parts {
        Parts { kind, size, numbers, unit, attribute, change, id, key, value, keys }
    }
}

impl Parts {
    /// Hands the request that the parts make to `see`.
    pub(super) fn with<T>(&self, see: impl FnOnce(Request<'_>) -> T) -> T {
        let max = self.size.max();
        let [first, second, third] = self.numbers.map(|number| number & max);
        let key = &self.key[..];
        let value = &self.value[..self.value.len().min(usize::try_from(max).unwrap_or(usize::MAX))];
        let ttl = Ttl { unit: self.unit, amount: third };
        let takes: Vec<Take<'_>> = self
            .keys
            .iter()
            .map(|(cost, key)| Take { cost: cost & max, quota: second, ttl, key })
            .collect();
        let mut payload = Vec::new();
        see(match self.kind {
            RequestKind::Insert => Request::Insert { quota: first, ttl, key },
            RequestKind::Query => Request::Query { key },
            RequestKind::Update => {
                let Self { attribute, change, .. } = *self;
                Request::Update { attribute, change, value: first, key }
            }
            RequestKind::Purge => Request::Purge { key },
            RequestKind::Set => Request::Set { ttl, key, value },
            RequestKind::Get => Request::Get { key },
            RequestKind::List => Request::List,
            RequestKind::Info => Request::Info,
            RequestKind::Stat => Request::Stat { key },
            RequestKind::Stats => Request::Stats,
            RequestKind::Subscribe => Request::Subscribe { channel: key },
            RequestKind::Unsubscribe => Request::Unsubscribe { channel: key },
            RequestKind::Publish => Request::Publish { channel: key, payload: value },
            RequestKind::Connections => Request::Connections,
            RequestKind::Connection => Request::Connection { id: self.id },
            RequestKind::Channels => Request::Channels,
            RequestKind::Channel => Request::Channel { channel: key },
            RequestKind::Whoami => Request::Whoami,
            RequestKind::Event => {
                let key = &value[..value.len().min(200)];
                Request::Get { key }.encode(self.size, &mut payload).unwrap();
                Request::Event { channel: &self.key, payload: &payload }
            }
            RequestKind::Consume => Request::Consume { cost: first, quota: second, ttl, key },
            RequestKind::ConsumeMany => Request::ConsumeMany { takes: Takes::new(&takes) },
        })
    }

    fn encoded(&self, size: ValueSize) -> Vec<u8> {
        let mut out = Vec::new();
        self.with(|request| request.encode(size, &mut out)).unwrap();
        out
    }
}

/// Every request in `bytes`, each written anew, up to what is no whole request.
fn requests(bytes: &[u8], size: ValueSize) -> (Vec<Vec<u8>>, usize) {
    let mut at = 0;
    let mut found = Vec::new();
    while let Front::Request { request, bytes } = parse(&bytes[at..], size, VALUE_MAX) {
        let mut out = Vec::new();
        request.encode(size, &mut out).unwrap();
        found.push(out);
        at += bytes;
    }
    (found, at)
}

proptest! {
    #[test]
    fn requests_go_round(parts in parts(), behind: Vec<u8>) {
        let mut buffer = parts.encoded(parts.size);
        let len = buffer.len();
        prop_assert!(len <= request_bytes_max(parts.size, VALUE_MAX));
        buffer.extend_from_slice(&behind);
        parts.with(|request| {
            let expected = Front::Request { request, bytes: len };
            prop_assert_eq!(parse(&buffer, parts.size, VALUE_MAX), expected);
            prop_assert_eq!(request.kind(), parts.kind);
            Ok(())
        })?;
        prop_assert_eq!(buffer[0], parts.kind.type_byte());
    }

    #[test]
    fn every_truncation_is_incomplete(parts in parts()) {
        let bytes = parts.encoded(parts.size);
        for len in 0..bytes.len() {
            prop_assert_eq!(parse(&bytes[..len], parts.size, VALUE_MAX), Front::Incomplete);
        }
    }

    /// Whatever arrives: no panic, nothing consumed that is not there, and what is called
    /// incomplete fits the buffer that is meant for it.
    #[test]
    fn any_bytes(
        kind: u8, small in any::<bool>(), mut bytes in prop::collection::vec(any::<u8>(), 0..600),
        size in select(&ValueSize::ALL[..]), value_max in 0usize..400,
    ) {
        if let Some(first) = bytes.first_mut() {
            *first = if small { kind % 0x1a } else { kind };
        }
        match parse(&bytes, size, value_max) {
            Front::Request { request, bytes: used } => {
                prop_assert!(0 < used && used <= bytes.len());
                let mut again = Vec::new();
                request.encode(size, &mut again).unwrap();
                let expected = Front::Request { request, bytes: used };
                prop_assert_eq!(parse(&again, size, value_max), expected);
            }
            Front::Incomplete => prop_assert!(bytes.len() < request_bytes_max(size, value_max)),
            Front::Broken(_) => {}
        }
    }

    /// A pipeline means the same wherever it is cut.
    #[test]
    fn pipelines_split_at_every_byte(
        several in prop::collection::vec(parts(), 1..5), size in select(&ValueSize::ALL[..]),
    ) {
        let several: Vec<_> = several.into_iter().map(|parts| Parts { size, ..parts }).collect();
        let whole: Vec<Vec<u8>> = several.iter().map(|parts| parts.encoded(size)).collect();
        let stream = whole.concat();
        for cut in 0..=stream.len() {
            let (mut found, used) = requests(&stream[..cut], size);
            prop_assert!(used <= cut);
            let (rest, used_later) = requests(&stream[used..], size);
            found.extend(rest);
            prop_assert_eq!(&found, &whole);
            prop_assert_eq!(used + used_later, stream.len());
        }
    }
}

#[test]
fn every_first_byte() {
    for byte in 0..=255 {
        let known = RequestKind::ALL.into_iter().find(|kind| kind.type_byte() == byte);
        let bytes = [byte];
        let front = parse(&bytes, ValueSize::Bits16, VALUE_MAX);
        match known {
            None => assert_eq!(front, Front::Broken(BrokenRequest::UnknownType(byte))),
            Some(kind) => match front {
                Front::Request { request, bytes } => assert_eq!((request.kind(), bytes), (kind, 1)),
                Front::Incomplete => {}
                Front::Broken(broken) => panic!("{kind:?}: {broken:?}"),
            },
        }
    }
    for (at, kind) in RequestKind::ALL.into_iter().enumerate() {
        assert_eq!(kind.index(), at);
    }
}

#[track_caller]
fn broken(hex: &str, size: ValueSize, expected: BrokenRequest) {
    let bytes = bytes(hex);
    assert_eq!(parse(&bytes, size, 100), Front::Broken(expected));
    for len in 0..bytes.len() {
        assert_eq!(parse(&bytes[..len], size, 100), Front::Incomplete, "{len} bytes");
    }
}

/// The last byte of the header is enough, and is needed.
#[test]
fn too_long_values_are_refused_from_the_header() {
    use ValueSize::{Bits8, Bits16, Bits32, Bits64};
    let too_long = |bytes| BrokenRequest::ValueTooLong { bytes };
    broken("05 04 1e 03 65", Bits8, too_long(101));
    broken("05 04 1e 00 03 65 00", Bits16, too_long(101));
    broken("05 04 1e 00 00 00 03 00 00 01 00", Bits32, too_long(65536));
    let most = "ff ff ff ff ff ff ff ff";
    broken(&format!("05 04 {most} 03 {most}"), Bits64, too_long(u64::MAX));
    broken("13 ff ff ff", Bits16, too_long(65535));
    broken("19 00 65", Bits8, too_long(101));
    let exactly = bytes("05 04 1e 03 64");
    assert_eq!(parse(&exactly, Bits8, 100), Front::Incomplete);
    let whole = [&exactly[..], &[b'x'; 103]].concat();
    assert!(matches!(parse(&whole, Bits8, 100), Front::Request { bytes: 108, .. }));
    assert!(matches!(parse(&whole, Bits8, 99), Front::Broken(_)));
    // Where everything is allowed, a length that no memory can hold still is refused.
    let huge = bytes(&format!("05 04 {most} 03 {most}"));
    let front = parse(&huge, Bits64, usize::MAX);
    assert_eq!(front, Front::Broken(too_long(u64::MAX)));
}

#[test]
fn events_that_are_not_one_request() {
    let size = ValueSize::Bits8;
    broken("19 01 05 63 19 01 00 63 18", size, BrokenRequest::NestedEvent);
    broken("19 01 00 63", size, BrokenRequest::UnevenEvent);
    broken("19 01 02 63 18 18", size, BrokenRequest::UnevenEvent);
    broken("19 01 02 63 06 01", size, BrokenRequest::UnevenEvent);
    broken("19 01 01 63 7f", size, BrokenRequest::UnknownType(0x7f));
    broken("19 01 05 63 05 04 01 01 65", size, BrokenRequest::ValueTooLong { bytes: 101 });
    broken("19 00 02 41 21", size, BrokenRequest::TooManyTakes(0x21));
    let request = Request::Event { channel: b"c", payload: &[0x18] };
    let front = parse(&[0x19, 1, 1, b'c', 0x18], size, 100);
    assert_eq!(front, Front::Request { request, bytes: 5 });
}

#[test]
fn takes_of_a_consume_many() {
    let hex = "41 02 01 05 04 3c 01  02 06 03 3d 02  61 62 62";
    let ttl = Ttl::new(60, Unit::Seconds);
    let later = Ttl::new(61, Unit::Milliseconds);
    let given = [
        Take { cost: 1, quota: 5, ttl, key: b"a" },
        Take { cost: 2, quota: 6, ttl: later, key: b"bb" },
    ];
    let bytes = bytes(hex);
    let front = parse(&bytes, ValueSize::Bits8, 0);
    let Front::Request { request: Request::ConsumeMany { takes }, bytes: 15 } = front else {
        panic!("{front:?}");
    };
    assert_eq!((takes.len(), takes.is_empty()), (2, false));
    assert!(takes.iter().eq(given));
    assert_ne!(takes, Takes::new(&given[..1]));
    broken("41 21", ValueSize::Bits8, BrokenRequest::TooManyTakes(33));
    assert_eq!(parse(&[0x41, 32], ValueSize::Bits8, 0), Front::Incomplete);
    assert!(matches!(parse(&[0x41, 0], ValueSize::Bits8, 0), Front::Request { bytes: 2, .. }));
}

#[test]
fn requests_that_cannot_be_written() {
    use Unwritable::{KeyTooLong, NumberTooLarge, TooManyTakes, ValueTooLong};
    let check = |request: Request<'_>, size: ValueSize, expected| {
        let mut out = vec![b'#'];
        assert_eq!(request.encode(size, &mut out), expected, "{request:?}");
        assert_eq!(out == [b'#'], expected.is_err());
    };
    let ttl = |amount| Ttl::new(amount, Unit::Hours);
    let key = &[b'k'; 256];
    check(Request::Get { key: &key[..255] }, ValueSize::Bits8, Ok(()));
    check(Request::Get { key }, ValueSize::Bits64, Err(KeyTooLong));
    check(Request::Subscribe { channel: key }, ValueSize::Bits8, Err(KeyTooLong));
    for size in ValueSize::ALL {
        let fits = Request::Insert { quota: size.max(), ttl: ttl(size.max()), key: b"" };
        check(fits, size, Ok(()));
        let Some(over) = size.max().checked_add(1) else { continue };
        let insert = Request::Insert { quota: over, ttl: ttl(0), key: b"" };
        check(insert, size, Err(NumberTooLarge));
        let insert = Request::Insert { quota: 0, ttl: ttl(over), key: b"" };
        check(insert, size, Err(NumberTooLarge));
        let consume = Request::Consume { cost: over, quota: 0, ttl: ttl(0), key: b"" };
        check(consume, size, Err(NumberTooLarge));
    }
    let set = |value| Request::Set { ttl: ttl(1), key: b"k", value };
    check(set(&key[..255]), ValueSize::Bits8, Ok(()));
    check(set(key), ValueSize::Bits8, Err(ValueTooLong));
    check(set(key), ValueSize::Bits16, Ok(()));
    let publish = Request::Publish { channel: b"c", payload: key };
    check(publish, ValueSize::Bits8, Err(ValueTooLong));
    let takes = [Take { cost: 1, quota: 1, ttl: ttl(1), key: b"k" }; TAKES_MAX + 1];
    let many = |takes| Request::ConsumeMany { takes: Takes::new(takes) };
    check(many(&takes[1..]), ValueSize::Bits8, Ok(()));
    check(many(&takes), ValueSize::Bits8, Err(TooManyTakes));
}

#[test]
fn sizes_and_units() {
    let sizes = ValueSize::ALL.map(|size| (size.bytes(), size.max()));
    assert_eq!(sizes, [(1, 255), (2, 65535), (4, (1 << 32) - 1), (8, u64::MAX)]);
    for bits in 0..=255 {
        let expected = ValueSize::ALL.into_iter().find(|size| size.bytes() * 8 == bits as usize);
        assert_eq!(ValueSize::try_from(bits).ok(), expected);
        let unit = Unit::from_byte(bits);
        assert_eq!(unit.is_some(), (1..=6).contains(&bits));
        assert!(unit.is_none_or(|unit| unit.byte() == bits));
    }
    let nanos = Unit::ALL.map(Unit::nanos);
    assert_eq!(nanos, [1, 1000, 1_000_000, 1_000_000_000, 60_000_000_000, 3_600_000_000_000]);
}
