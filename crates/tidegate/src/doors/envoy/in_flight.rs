//! Uses in flight of descriptors: Envoy takes one when a request begins and gives it back when the
//! request ends. One that Envoy does not give back lapses.
//!
//! The limiter has counted each use, refused or not, before it comes here: Envoy reports the end of
//! refused ones, too.

use std::future::poll_fn;
use std::sync::Arc;

use tidegate_core::Now;
use tokio::task::JoinHandle;

use crate::limiter::{Key, KeyOp, PendingVerdict, Rows};
use crate::uses::UsesInFlight;

/// Remembers the use that `rows` are the answer to, if it is one in flight. If the register is
/// full, the use is refused.
pub(super) fn hold(uses: &UsesInFlight, key: &Key<'_>, rows: &mut Rows) {
    let is_in_flight = rows.limits.iter().any(|row| row.limit.ends());
    let is_use = matches!(key.op, KeyOp::TakeOrRecord(_));
    if is_use && is_in_flight && uses.hold_unnamed(key, rows.held.first()).is_err() {
        rows.limits.iter_mut().for_each(|row| row.verdict.allowed = false);
    }
}

/// The same once a remote store has answered. A task waits for that even if the client has left,
/// because the client reports the end of the use all the same.
pub(super) fn hold_when_answered(
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
