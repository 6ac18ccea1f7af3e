//! How long a record lives: EXPIRE and its kin, PERSIST.

use tidegate_core::time::MILLISECOND;
use tidegate_core::{Nanos, Now};
use tidegate_wire::resp::number;

use super::counters::{NOT_AN_INTEGER, invalid_expire, record_key};
use super::{Call, Flow};
use crate::records::{Life, RecordEdit, Unit};

/// `EXPIRE key seconds [NX|XX|GT|LT]`
pub(super) fn expire(call: &mut Call<'_>) -> Flow {
    change(call, "expire", EX)
}

/// `PEXPIRE key milliseconds [NX|XX|GT|LT]`
pub(super) fn pexpire(call: &mut Call<'_>) -> Flow {
    change(call, "pexpire", PX)
}

/// `EXPIREAT key unix-seconds [NX|XX|GT|LT]`
pub(super) fn expireat(call: &mut Call<'_>) -> Flow {
    change(call, "expireat", EXAT)
}

/// `PEXPIREAT key unix-milliseconds [NX|XX|GT|LT]`
pub(super) fn pexpireat(call: &mut Call<'_>) -> Flow {
    change(call, "pexpireat", PXAT)
}

fn change(call: &mut Call<'_>, command: &str, form: ExpiryForm) -> Flow {
    let Some(key) = record_key(call) else { return Flow::Done };
    let condition = match Condition::read(call) {
        Ok(condition) => condition,
        Err(WrongCondition::Unknown(option)) => {
            return call.error_about("ERR Unsupported option ", option, "");
        }
        Err(WrongCondition::Contradicts(text)) => return call.error(text),
    };
    let Some(number) = number::strict(call.argument(2)) else {
        return call.bad_input("number", NOT_AN_INTEGER);
    };
    let now = call.now();
    let Some(expiry) = form.read(number, now) else { return invalid_expire(call, command) };
    let edit = expiry.life(now).map_or(RecordEdit::Remove, RecordEdit::Expire);
    let records = &call.handler.parts.records;
    let done = records.edit(key, records.probe(key), now, |seen| match seen {
        Some(seen) if condition.holds(expiry, seen.left, now) => (edit, true),
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

/// Why the options of an EXPIRE say nothing.
enum WrongCondition<'a> {
    Unknown(&'a [u8]),
    Contradicts(&'static str),
}

impl Condition {
    fn read<'a>(call: &Call<'a>) -> Result<Self, WrongCondition<'a>> {
        let mut condition = Self::default();
        for at in 3..call.arguments.len() {
            let option = match () {
                () if call.is_word(at, "nx") => &mut condition.nx,
                () if call.is_word(at, "xx") => &mut condition.xx,
                () if call.is_word(at, "gt") => &mut condition.gt,
                () if call.is_word(at, "lt") => &mut condition.lt,
                () => return Err(WrongCondition::Unknown(call.argument(at))),
            };
            *option = true;
        }
        let Self { nx, xx, gt, lt } = condition;
        if nx && (xx || gt || lt) {
            let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
            return Err(WrongCondition::Contradicts(text));
        }
        if gt && lt {
            let text = "ERR GT and LT options at the same time are not compatible";
            return Err(WrongCondition::Contradicts(text));
        }
        Ok(condition)
    }

    /// Whether a record with so much time left gets this expiry.
    fn holds(self, expiry: Expiry, left: Nanos, now: Now) -> bool {
        let is_endless = left == Nanos::MAX;
        let (new, old) = (expiry.unix_ms(now), nearest_ms(now.unix.saturating_add(left)));
        let Self { nx, xx, gt, lt } = self;
        !(nx && !is_endless
            || xx && is_endless
            || gt && (is_endless || new <= old)
            || lt && !is_endless && new >= old)
    }
}

/// How a command or an option says when a record expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExpiryForm {
    unit_ms: i64,
    /// Of the wall clock; otherwise from now on.
    is_moment: bool,
}

pub(super) const EX: ExpiryForm = ExpiryForm { unit_ms: 1000, is_moment: false };
pub(super) const PX: ExpiryForm = ExpiryForm { unit_ms: 1, is_moment: false };
pub(super) const EXAT: ExpiryForm = ExpiryForm { unit_ms: 1000, is_moment: true };
pub(super) const PXAT: ExpiryForm = ExpiryForm { unit_ms: 1, is_moment: true };

impl ExpiryForm {
    /// The expiry of a number; `None` if it is beyond all time, as Redis counts it.
    pub(super) fn read(self, number: i64, now: Now) -> Option<Expiry> {
        let time = number.checked_mul(self.unit_ms)?;
        if self.is_moment {
            return Some(Expiry::At(time));
        }
        time.checked_add(nearest_ms(now.unix)).map(|_| Expiry::After(time))
    }
}

/// When a record shall expire, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// From now on.
    After(i64),
    /// Of the wall clock.
    At(i64),
}

impl Expiry {
    /// The life of a record that begins now; `None` if it is over before it begins.
    pub(super) fn life(self, now: Now) -> Option<Life> {
        let (unit, amount) = match self {
            Self::After(span) => (Unit::Milliseconds, u64::try_from(span).ok()?),
            // To the nanosecond, so that the same moment is the same expiry whenever it is said.
            Self::At(moment) => {
                let moment = u64::try_from(moment).ok()?.saturating_mul(MILLISECOND);
                (Unit::Nanoseconds, moment.saturating_sub(now.unix))
            }
        };
        let amount = amount.min(LIFE_MAX / unit.nanos());
        (amount > 0).then_some(Life { unit, amount })
    }

    /// On the wall clock.
    fn unix_ms(self, now: Now) -> i64 {
        match self {
            Self::After(span) => nearest_ms(now.unix).saturating_add(span),
            Self::At(moment) => moment,
        }
    }
}

/// The longest life that ends: longer ones are cut, since the longest of all has no end.
const LIFE_MAX: Nanos = i64::MAX as Nanos;

/// Two reads of the clocks differ by less than a millisecond.
fn nearest_ms(time: Nanos) -> i64 {
    (time.saturating_add(MILLISECOND / 2) / MILLISECOND).cast_signed()
}
