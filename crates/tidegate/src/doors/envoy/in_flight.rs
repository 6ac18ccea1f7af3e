//! Uses in flight of descriptors: what Envoy takes with a request and gives back when it ends, or
//! what lapses because that was lost.
//!
//! The limiter has counted them already, refused ones, too: their end comes all the same.

use std::future::poll_fn;
use std::sync::Arc;

use tidegate_core::Now;
use tokio::task::JoinHandle;

use crate::limiter::{Key, KeyOp, PendingVerdict, Rows};
use crate::uses::UsesInFlight;

/// Remembers the use that `rows` are the answer to, if it is one in flight. Without room for it, it
/// is refused.
pub(super) fn hold(uses: &UsesInFlight, key: &Key<'_>, rows: &mut Rows) {
    let is_in_flight = rows.limits.iter().any(|row| row.limit.ends());
    let is_use = matches!(key.op, KeyOp::TakeOrRecord(_));
    if is_use && is_in_flight && uses.hold_unnamed(key, rows.held.first()).is_err() {
        rows.limits.iter_mut().for_each(|row| row.verdict.allowed = false);
    }
}

/// The same once a remote store has answered, whether the call waits for that or not: a client that
/// leaves tells the end of the use, too.
pub(super) fn hold_answered(
    uses: Arc<UsesInFlight>,
    key: &Key<'_>,
    mut pending: PendingVerdict,
    now: Now,
) -> JoinHandle<Rows> {
    let (bytes, op) = (key.bytes.to_vec(), key.op);
    let rule = key.rule().map(str::to_owned);
    tokio::spawn(async move {
        let mut rows = poll_fn(|context| pending.poll_answer(now, context)).await.rows;
        let key = Key::new(&bytes, op);
        let key = rule.as_deref().map_or(key, |rule| key.under(rule, None));
        hold(&uses, &key, &mut rows);
        rows
    })
}
