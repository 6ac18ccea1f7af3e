//! TG.HOLD and TG.RELEASE: uses in flight that a client ends later, through this door or HTTP.

use tidegate_core::Nanos;
use tidegate_core::limit::PERIOD_MAX;
use tidegate_core::time::MILLISECOND;

use super::verbs::{ask, last_cost, natural};
use super::{Call, Flow};
use crate::doors::resp::handler::LaterParts;
use crate::limiter::{HeldKey, Key, Request};
use crate::uses::{HoldError, KeyUse, UseId};

/// The longest that a use may be held.
const HOLD_MS_MAX: u64 = PERIOD_MAX / MILLISECOND;

/// What is to be held if it is granted.
pub(super) struct Hold {
    key: Vec<u8>,
    cost: u64,
    lapses_at: Nanos,
}

impl Hold {
    /// Registers the use that was taken, if it is one in flight, so that the client can end it or
    /// it lapses.
    pub(super) fn register(
        &self,
        later: &LaterParts,
        held: &[HeldKey],
    ) -> Result<Option<UseId>, HoldError> {
        let Some(&HeldKey { from, started, .. }) = held.first() else { return Ok(None) };
        let key_use = KeyUse { key: self.key.clone(), from, started };
        let registered = later.uses.hold(vec![key_use], self.cost, self.lapses_at);
        if registered.is_err() {
            // Others have filled the register since: a use that cannot be ended is given back.
            later.limiter.release_uses(&self.key, self.cost, started, from);
        }
        registered.map(Some)
    }
}

/// `TG.HOLD key hold_ms [cost]`
pub(super) fn hold(call: &mut Call<'_>) -> Flow {
    let Some(cost) = last_cost(call, 3) else { return Flow::Done };
    let Some(hold_ms) = natural(call, 2, 1, HOLD_MS_MAX) else { return Flow::Done };
    let (key, now) = (call.argument(1), call.now());
    let uses = &call.handler.parts.later.uses;
    uses.lapse(now);
    if let Err(error) = uses.room_for(&[key.to_vec()]) {
        return call.error(&format!("ERR {error}"));
    }
    let lapses_at = now.mono.saturating_add(hold_ms * MILLISECOND);
    let hold = Hold { key: key.to_vec(), cost, lapses_at };
    let keys = [Key::take(key, cost)];
    ask(call, &Request::all_or_nothing(&keys).with_end(), cost, Some(hold))
}

/// `TG.RELEASE id`
pub(super) fn release(call: &mut Call<'_>) -> Flow {
    let uses = &call.handler.parts.later.uses;
    uses.lapse(call.now());
    let id = std::str::from_utf8(call.argument(1)).ok().and_then(|text| text.parse().ok());
    let has_ended = id.is_some_and(|id: UseId| uses.end(id));
    call.integer(has_ended.into())
}
