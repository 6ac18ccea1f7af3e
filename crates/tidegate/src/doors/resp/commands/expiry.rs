//! How long a record lives: EXPIRE and its kin, PERSIST.

use tidegate_core::{Nanos, Now};
use tidegate_wire::resp::number;

use super::counters::{
    NOT_AN_INTEGER, invalid_expire, life, milliseconds_left, milliseconds_until, record_key,
};
use super::{Call, Flow};
use crate::records::{Life, RecordEdit};

/// `EXPIRE key seconds [NX|XX|GT|LT]`
pub(super) fn expire(call: &mut Call<'_>) -> Flow {
    change(call, "expire", 1000, false)
}

/// `PEXPIRE key milliseconds [NX|XX|GT|LT]`
pub(super) fn pexpire(call: &mut Call<'_>) -> Flow {
    change(call, "pexpire", 1, false)
}

/// `EXPIREAT key unix-seconds [NX|XX|GT|LT]`
pub(super) fn expireat(call: &mut Call<'_>) -> Flow {
    change(call, "expireat", 1000, true)
}

/// `PEXPIREAT key unix-milliseconds [NX|XX|GT|LT]`
pub(super) fn pexpireat(call: &mut Call<'_>) -> Flow {
    change(call, "pexpireat", 1, true)
}

fn change(call: &mut Call<'_>, command: &str, unit_ms: i64, is_moment: bool) -> Flow {
    let Some(key) = record_key(call) else { return Flow::Done };
    let condition = match Condition::read(call) {
        Ok(condition) => condition,
        Err(text) => return call.error(&text),
    };
    let Some(number) = number::strict(call.argument(2)) else {
        return call.bad_input("number", NOT_AN_INTEGER);
    };
    let Some(time) = number.checked_mul(unit_ms) else { return invalid_expire(call, command) };
    let now = call.now();
    let span = if is_moment { milliseconds_until(time, now) } else { time };
    let edit = life(span).map_or(RecordEdit::Remove, RecordEdit::Expire);
    let records = &call.handler.parts.records;
    let done = records.edit(key, records.probe(key), now, |seen| match seen {
        Some(seen) if condition.holds(span, seen.left) => (edit, true),
        _ => (RecordEdit::Keep, false),
    });
    call.integer(done.unwrap_or(false).into())
}

/// `PERSIST key`
pub(super) fn persist(call: &mut Call<'_>) -> Flow {
    let Some(key) = record_key(call) else { return Flow::Done };
    let (records, now): (_, Now) = (&call.handler.parts.records, call.now());
    let done = records.edit(key, records.probe(key), now, |seen| match seen {
        Some(seen) if seen.left < Nanos::MAX => (RecordEdit::Expire(Life::FOREVER), true),
        _ => (RecordEdit::Keep, false),
    });
    call.integer(done.unwrap_or(false).into())
}

/// When an expiry is changed.
#[derive(Clone, Copy, Debug, Default)]
struct Condition {
    /// Only where there is none.
    nx: bool,
    /// Only where there is one.
    xx: bool,
    /// Only to a later one. A record that never expires has the latest.
    gt: bool,
    /// Only to an earlier one.
    lt: bool,
}

impl Condition {
    fn read(call: &Call<'_>) -> Result<Self, String> {
        let mut condition = Self::default();
        for at in 3..call.arguments.len() {
            let option = match () {
                () if call.is_word(at, "nx") => &mut condition.nx,
                () if call.is_word(at, "xx") => &mut condition.xx,
                () if call.is_word(at, "gt") => &mut condition.gt,
                () if call.is_word(at, "lt") => &mut condition.lt,
                () => {
                    let option =
                        String::from_utf8_lossy(super::super::handler::cut(call.argument(at), 128));
                    return Err(format!("ERR Unsupported option {option}"));
                }
            };
            *option = true;
        }
        let Self { nx, xx, gt, lt } = condition;
        if nx && (xx || gt || lt) {
            let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
            return Err(text.to_owned());
        }
        if gt && lt {
            let text = "ERR GT and LT options at the same time are not compatible";
            return Err(text.to_owned());
        }
        Ok(condition)
    }

    /// Whether a record with so much time left gets a life of so many milliseconds.
    fn holds(self, span: i64, left: Nanos) -> bool {
        let (is_endless, left) = (left == Nanos::MAX, milliseconds_left(left));
        let Self { nx, xx, gt, lt } = self;
        !(nx && !is_endless
            || xx && is_endless
            || gt && (is_endless || span <= left)
            || lt && !is_endless && span >= left)
    }
}
