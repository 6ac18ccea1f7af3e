//! Commands that see a key's record and its ad-hoc bucket: DEL, EXISTS, TTL and their kin. They do
//! not see counts of rules: TG.RESET does.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::Nanos;
use tidegate_core::key::KEY_BYTES_MAX;
use tidegate_wire::resp::reply;

use super::counters::milliseconds_left;
use super::{Call, Flow};
use crate::doors::resp::pending::ReplyLater;
use crate::limiter::{Bucket, BucketLeft, Limiter, StoreAway, left_of};
use crate::metrics::Door;
use crate::records::{self, RecordEdit};

/// `TTL key`
pub(super) fn ttl(call: &mut Call<'_>) -> Flow {
    tell_left(call, |left| (milliseconds_left(left) + 500) / 1000)
}

/// `PTTL key`
pub(super) fn pttl(call: &mut Call<'_>) -> Flow {
    tell_left(call, milliseconds_left)
}

fn tell_left(call: &mut Call<'_>, shown: fn(Nanos) -> i64) -> Flow {
    let (key, now) = (call.argument(1), call.now());
    if key.len() > KEY_BYTES_MAX {
        return refuse_key(call);
    }
    match record_left(call, key) {
        Some(Nanos::MAX) => return call.integer(-1),
        Some(left) => return call.integer(shown(left)),
        None => {}
    }
    let tell = move |out: &mut Vec<u8>, left: BucketLeft| match left {
        Ok(left) => reply::integer(out, left.map_or(-2, shown)),
        Err(StoreAway) => reply::error(out, STORE_AWAY),
    };
    match call.handler.parts.limiter.look_at_bucket(key, now) {
        Bucket::Seen(left) => {
            tell(call.out, left);
            Flow::Done
        }
        Bucket::Asked(pending) => {
            let later = call.reply_later();
            pending.0.forward(move |answered| {
                later.send(move |out| tell(out, left_of(&answered.verdict)));
            });
            Flow::Pending
        }
    }
}

/// `EXISTS key [key ...]`. A repeated key counts each time.
pub(super) fn exists(call: &mut Call<'_>) -> Flow {
    let Some(keys) = short_keys(call) else { return refuse_key(call) };
    let mut count = KeyCount::default();
    for key in keys {
        if record_left(call, key).is_some() {
            count.ready.add(Ok(true));
            continue;
        }
        match call.handler.parts.limiter.look_at_bucket(key, call.now()) {
            Bucket::Seen(left) => count.ready.add(left.map(|left| left.is_some())),
            Bucket::Asked(pending) => count.add(call, |shared| {
                pending.0.forward(move |answered| {
                    shared.add(left_of(&answered.verdict).map(|left| left.is_some()));
                });
            }),
        }
    }
    count.answer(call)
}

/// `DEL key [key ...]` and `UNLINK`. A repeated key counts once: when the store is asked for the
/// second, it has not emptied the first yet.
pub(super) fn del(call: &mut Call<'_>) -> Flow {
    let Some(mut keys) = short_keys(call) else { return refuse_key(call) };
    keys.sort_unstable();
    keys.dedup();
    let mut count = KeyCount::default();
    for key in keys {
        let had_record = remove_record(call, key);
        let limiter = &call.handler.parts.limiter;
        match limiter.look_at_bucket(key, call.now()) {
            Bucket::Seen(left) => {
                if let Ok(Some(_)) = left {
                    // A count that was seen at once is changed at once.
                    limiter.empty_bucket(key, call.now());
                }
                count.ready.add(was_there(had_record, left));
            }
            Bucket::Asked(pending) => {
                let (limiter, key) = (limiter.limiter().clone(), key.to_vec());
                count.add(call, |shared| {
                    pending.0.forward(move |answered| {
                        let left = left_of(&answered.verdict);
                        shared.add(was_there(had_record, left));
                        if let Ok(Some(_)) = left {
                            empty_later(&limiter, &key, had_record, shared);
                        }
                    });
                });
            }
        }
    }
    count.answer(call)
}

/// Whether DEL has removed something. A key that had a record is taken for that alone while the
/// store is away, so that users of plain counters do not notice it.
fn was_there(had_record: bool, left: BucketLeft) -> Result<bool, StoreAway> {
    if had_record { Ok(true) } else { left.map(|left| left.is_some()) }
}

/// The keys that a command found, of which some may be told by a remote store.
#[derive(Default)]
struct KeyCount {
    ready: Found,
    shared: Option<Arc<SharedCount>>,
}

/// How many keys were found so far.
#[derive(Clone, Copy, Default)]
struct Found {
    keys: i64,
    /// Of some key it cannot be said.
    is_unknown: bool,
}

impl Found {
    fn add(&mut self, found: Result<bool, StoreAway>) {
        match found {
            Ok(found) => self.keys += i64::from(found),
            Err(StoreAway) => self.is_unknown = true,
        }
    }

    fn reply(self, out: &mut Vec<u8>) {
        match self.is_unknown {
            true => reply::error(out, STORE_AWAY),
            false => reply::integer(out, self.keys),
        }
    }
}

/// The count of one request. It answers when it is dropped: when every key was counted.
struct SharedCount {
    found: Mutex<Found>,
    later: Option<ReplyLater>,
}

impl KeyCount {
    fn add(&mut self, call: &mut Call<'_>, ask: impl FnOnce(Arc<SharedCount>)) {
        let shared = self.shared.get_or_insert_with(|| {
            let later = Some(call.reply_later());
            Arc::new(SharedCount { found: Mutex::default(), later })
        });
        ask(shared.clone());
    }

    fn answer(self, call: &mut Call<'_>) -> Flow {
        let Some(shared) = self.shared else {
            self.ready.reply(call.out);
            return Flow::Done;
        };
        let mut found = shared.found.lock();
        found.keys += self.ready.keys;
        found.is_unknown |= self.ready.is_unknown;
        Flow::Pending
    }
}

impl SharedCount {
    fn add(&self, found: Result<bool, StoreAway>) {
        self.found.lock().add(found);
    }
}

impl Drop for SharedCount {
    fn drop(&mut self) {
        let found = *self.found.get_mut();
        if let Some(later) = self.later.take() {
            later.send(move |out| found.reply(out));
        }
    }
}

pub(super) const STORE_AWAY: &[u8] = b"ERR the store is away";

/// Empties a bucket from the thread of a store; `shared` answers when it is done.
fn empty_later(limiter: &Arc<Limiter>, key: &[u8], had_record: bool, shared: Arc<SharedCount>) {
    let limiter = limiter.handle(Door::Resp);
    if let Some(pending) = limiter.empty_bucket(key, limiter.now()) {
        pending.0.forward(move |answered| {
            if answered.verdict.degraded && !had_record {
                shared.add(Err(StoreAway));
            }
        });
    }
}

fn record_left(call: &Call<'_>, key: &[u8]) -> Option<Nanos> {
    let records = &call.handler.parts.records;
    let is_short = key.len() <= records::KEY_BYTES_MAX;
    is_short.then(|| records.left(key, records.probe(key), call.now())).flatten()
}

fn remove_record(call: &Call<'_>, key: &[u8]) -> bool {
    let records = &call.handler.parts.records;
    let remove = || {
        records
            .edit(key, records.probe(key), call.now(), |seen| (RecordEdit::Remove, seen.is_some()))
    };
    key.len() <= records::KEY_BYTES_MAX && remove().unwrap_or(false)
}

/// All arguments, which are keys; `None` if one is longer than any key can be. They are checked
/// before the store is asked for the first: an error must be the only reply.
fn short_keys<'a>(call: &Call<'a>) -> Option<Vec<&'a [u8]>> {
    let keys = call.arguments.iter().skip(1);
    keys.map(|key| (key.len() <= KEY_BYTES_MAX).then_some(key)).collect()
}

/// Tells the client that a key is longer than any can be.
fn refuse_key(call: &mut Call<'_>) -> Flow {
    call.bad_input("key_too_long", &format!("ERR key is longer than {KEY_BYTES_MAX} bytes"))
}
