//! Commands that see a key's record and its ad-hoc bucket: DEL, EXISTS, TTL and their kin. The
//! counts of rules are not theirs: TG.RESET is for those.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use tidegate_core::key::KEY_BYTES_MAX;
use tidegate_core::limit::{AMOUNT_MAX, Algorithm, PERIOD_MAX};
use tidegate_core::{Limit, Nanos, Now};
use tidegate_wire::resp::reply;

use super::counters::milliseconds_left;
use super::{Call, Flow};
use crate::doors::resp::pending::ReplyLater;
use crate::limiter::{Decision, Key, KeyOp, Limiter, LimiterHandle, Outcome, Request, Verdict};
use crate::metrics::Door;
use crate::records::{self, RecordEdit};

/// A limit to look at buckets by: what a bucket owes does not depend on it.
const ANY_LIMIT: Limit =
    Limit { amount: 1, period: PERIOD_MAX, algorithm: Algorithm::Throttle { burst: AMOUNT_MAX } };

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
    if refuses_key(call, key) {
        return Flow::Done;
    }
    match record_left(call, key) {
        Some(Nanos::MAX) => return call.integer(-1),
        Some(left) => return call.integer(shown(left)),
        None => {}
    }
    let shown = move |left: Option<Nanos>| left.map_or(-2, shown);
    match look(&call.handler.parts.limiter, key, now) {
        Bucket::Seen(left) => call.integer(shown(left)),
        Bucket::Asked(pending) => {
            let later = call.reply_later();
            pending.0.forward(move |answered| {
                let left = shown(left_of(&answered.verdict));
                later.send(move |out| reply::integer(out, left));
            });
            Flow::Pending
        }
    }
}

/// `EXISTS key [key ...]`
pub(super) fn exists(call: &mut Call<'_>) -> Flow {
    let keys: Vec<&[u8]> = call.arguments.iter().skip(1).collect();
    let mut count = KeyCount::default();
    for key in keys {
        if refuses_key(call, key) {
            return Flow::Done;
        }
        if record_left(call, key).is_some() {
            count.ready += 1;
            continue;
        }
        match look(&call.handler.parts.limiter, key, call.now()) {
            Bucket::Seen(left) => count.ready += i64::from(left.is_some()),
            Bucket::Asked(pending) => count.add(call, |shared| {
                pending.0.forward(move |answered| {
                    shared.count(left_of(&answered.verdict).is_some());
                });
            }),
        }
    }
    count.answer(call)
}

/// `DEL key [key ...]` and `UNLINK`
pub(super) fn del(call: &mut Call<'_>) -> Flow {
    let keys: Vec<&[u8]> = call.arguments.iter().skip(1).collect();
    if keys.iter().any(|key| key.len() > KEY_BYTES_MAX) {
        return refuse_key(call);
    }
    let mut count = KeyCount::default();
    for key in keys {
        let had_record = remove_record(call, key);
        let limiter = &call.handler.parts.limiter;
        match look(limiter, key, call.now()) {
            Bucket::Seen(None) => count.ready += i64::from(had_record),
            Bucket::Seen(Some(_)) => {
                count.ready += 1;
                // A count that was seen at once is changed at once.
                let _ = empty(limiter, key, call.now());
            }
            Bucket::Asked(pending) => {
                let (limiter, key) = (limiter.limiter().clone(), key.to_vec());
                count.add(call, |shared| {
                    pending.0.forward(move |answered| {
                        let had_bucket = left_of(&answered.verdict).is_some();
                        shared.count(had_record || had_bucket);
                        if had_bucket {
                            empty_later(&limiter, &key, shared);
                        }
                    });
                });
            }
        }
    }
    count.answer(call)
}

/// The keys that a command found, of which some may be told by a remote store.
#[derive(Default)]
struct KeyCount {
    ready: i64,
    shared: Option<Arc<SharedCount>>,
}

/// Answers when the last of those who count lets go of it.
struct SharedCount {
    count: AtomicI64,
    later: Option<ReplyLater>,
}

impl KeyCount {
    fn add(&mut self, call: &mut Call<'_>, ask: impl FnOnce(Arc<SharedCount>)) {
        let shared = self.shared.get_or_insert_with(|| {
            Arc::new(SharedCount { count: AtomicI64::new(0), later: Some(call.reply_later()) })
        });
        ask(shared.clone());
    }

    fn answer(self, call: &mut Call<'_>) -> Flow {
        let Some(shared) = self.shared else { return call.integer(self.ready) };
        shared.count.fetch_add(self.ready, Relaxed);
        Flow::Pending
    }
}

impl SharedCount {
    fn count(&self, found: bool) {
        self.count.fetch_add(found.into(), Relaxed);
    }
}

impl Drop for SharedCount {
    fn drop(&mut self) {
        let count = *self.count.get_mut();
        if let Some(later) = self.later.take() {
            later.send(move |out| reply::integer(out, count));
        }
    }
}

/// What is known of a key's ad-hoc bucket.
enum Bucket {
    /// The time until it is empty, if there is one.
    Seen(Option<Nanos>),
    /// Its store was asked.
    Asked(crate::limiter::PendingVerdict),
}

/// Looks at a key's ad-hoc bucket. A key that a rule matches has none.
fn look(limiter: &LimiterHandle, key: &[u8], now: Now) -> Bucket {
    if limiter.limiter().rules().find_matching(key).is_some() {
        return Bucket::Seen(None);
    }
    let keys = [Key::new(key, KeyOp::Peek(0)).limited_by(&ANY_LIMIT)];
    match limiter.decide(&Request::all_or_nothing(&keys), now, None) {
        Ok(Decision::Ready(verdict)) => Bucket::Seen(left_of(&verdict)),
        Ok(Decision::Pending(pending)) => Bucket::Asked(pending),
        Err(_) => Bucket::Seen(None),
    }
}

fn left_of(verdict: &Verdict) -> Option<Nanos> {
    let is_known = verdict.outcome != Outcome::NoRule && verdict.capacity > 0;
    (is_known && !verdict.no_room && verdict.reset > 0).then_some(verdict.reset)
}

/// Empties a bucket: gives back more than any bucket owes.
fn empty(limiter: &LimiterHandle, key: &[u8], now: Now) -> Option<Decision> {
    let refund = KeyOp::Refund { cost: AMOUNT_MAX, taken: now, in_flight: true };
    let keys = [Key::new(key, refund).limited_by(&ANY_LIMIT)];
    limiter.decide(&Request::all_or_nothing(&keys), now, None).ok()
}

/// The same from the thread of a store; `shared` answers when it is done.
fn empty_later(limiter: &Arc<Limiter>, key: &[u8], shared: Arc<SharedCount>) {
    let limiter = limiter.handle(Door::Resp);
    if let Some(Decision::Pending(pending)) = empty(&limiter, key, limiter.now()) {
        pending.0.forward(move |_| drop(shared));
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

/// Whether a key is longer than any can be; then the client is told.
fn refuses_key(call: &mut Call<'_>, key: &[u8]) -> bool {
    let is_too_long = key.len() > KEY_BYTES_MAX;
    if is_too_long {
        refuse_key(call);
    }
    is_too_long
}

fn refuse_key(call: &mut Call<'_>) -> Flow {
    call.bad_input("key_too_long", &format!("ERR key is longer than {KEY_BYTES_MAX} bytes"))
}
