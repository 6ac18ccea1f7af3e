//! What hostile clients say at the Throttr door: every request, and pipelines of answers that are
//! never read.

use tidegate_wire::throttr::{Attribute, Request, Take, Takes, Ttl, Unit, UpdateChange, ValueSize};

use super::Target;
use crate::server::Doors;

const LIFE: Ttl = Ttl { unit: Some(Unit::Seconds), amount: 60 };
/// Answers that are asked for and not read.
const UNREAD: usize = 200;

pub(super) fn add(doors: &Doors, targets: &mut Vec<Target>) {
    for listener in &doors.throttr {
        let scripts = scripts(listener.size);
        let burdens = scripts.iter().map(|script| script.repeat(UNREAD)).collect();
        targets.push(Target { address: listener.address.clone(), scripts, burdens });
    }
}

fn scripts(size: ValueSize) -> Vec<Vec<u8>> {
    let (attribute, change) = (Some(Attribute::Quota), Some(UpdateChange::Increase));
    let take = Take { cost: 1, quota: 5, ttl: LIFE, key: b"hostile" };
    let takes = [take, take];
    // As long as the listener's lengths can say.
    let long = vec![0x55; if size == ValueSize::Bits8 { 255 } else { 20_000 }];
    let requests = [
        Request::Insert { quota: 3, ttl: LIFE, key: b"hostile" },
        Request::Query { key: b"hostile" },
        Request::Update { attribute, change, value: 2, key: b"hostile" },
        Request::Purge { key: b"nobody's" },
        Request::Set { ttl: LIFE, key: b"long", value: &long },
        Request::Get { key: b"long" },
        Request::List,
        Request::Info,
        Request::Stat { key: b"hostile" },
        Request::Stats,
        Request::Subscribe { channel: b"hostile" },
        Request::Unsubscribe { channel: b"hostile" },
        Request::Publish { channel: b"hostile", payload: b"payload" },
        Request::Connections,
        Request::Connection { id: [7; 16] },
        Request::Channels,
        Request::Channel { channel: b"hostile" },
        Request::Whoami,
        Request::Event { channel: b"", payload: b"\x18" },
        Request::Consume { cost: 1, quota: 5, ttl: LIFE, key: b"hostile" },
        Request::ConsumeMany { takes: Takes::new(&takes) },
    ];
    let encoded = requests.iter().map(|request| {
        let mut bytes = Vec::new();
        request.encode(size, &mut bytes).expect("a request that can be written");
        bytes
    });
    encoded.collect()
}
