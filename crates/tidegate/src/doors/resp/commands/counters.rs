//! Plain counters and values: INCR, GET, SET and what belongs to them, on the records that the
//! Throttr door has, too.

use tidegate_core::time::MILLISECOND;
use tidegate_core::{Nanos, Now};
use tidegate_wire::resp::{ProtocolVersion, number, reply};

use super::expiry::{EX, EXAT, Expiry, ExpiryForm, PX, PXAT};
use super::{Call, Flow};
use crate::records::{AddRefusal, Content, KEY_BYTES_MAX, Life, RecordEdit, SeenRecord};

pub(super) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
pub(super) const SYNTAX: &str = "ERR syntax error";
const NO_ROOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// `INCR key`
pub(super) fn incr(call: &mut Call<'_>) -> Flow {
    add(call, 1)
}

/// `DECR key`
pub(super) fn decr(call: &mut Call<'_>) -> Flow {
    add(call, -1)
}

/// `INCRBY key number`
pub(super) fn incrby(call: &mut Call<'_>) -> Flow {
    match number::strict(call.argument(2)) {
        Some(number) => add(call, number),
        None => call.bad_input("number", NOT_AN_INTEGER),
    }
}

/// `DECRBY key number`
pub(super) fn decrby(call: &mut Call<'_>) -> Flow {
    let Some(number) = number::strict(call.argument(2)) else {
        return call.bad_input("number", NOT_AN_INTEGER);
    };
    match number.checked_neg() {
        Some(number) => add(call, number),
        None => call.bad_input("number", "ERR decrement would overflow"),
    }
}

fn add(call: &mut Call<'_>, number: i64) -> Flow {
    let Some(key) = record_key(call) else { return Flow::Done };
    let records = &call.handler.parts.records;
    match records.add_or_insert(key, records.probe(key), number, call.now()) {
        Ok(sum) => call.integer(sum.cast_signed()),
        Err(AddRefusal::Buffer) => call.error(NOT_AN_INTEGER),
        Err(AddRefusal::Above) => call.error("ERR increment or decrement would overflow"),
        Err(AddRefusal::Below) => call.error("ERR decrement would go below zero"),
        Err(AddRefusal::Full) => call.error(NO_ROOM),
    }
}

/// `GET key`
pub(super) fn get(call: &mut Call<'_>) -> Flow {
    let Some(key) = record_key(call) else { return Flow::Done };
    let now = call.now();
    let Call { handler, client, out, .. } = call;
    let records = &handler.parts.records;
    let is_there = records.read(key, records.probe(key), now, |seen| bulk(out, seen.content));
    if is_there.is_none() {
        reply::null(out, client.version);
    }
    Flow::Done
}

/// `SETEX key seconds value`
pub(super) fn setex(call: &mut Call<'_>) -> Flow {
    set_with_life(call, "setex", EX)
}

/// `PSETEX key milliseconds value`
pub(super) fn psetex(call: &mut Call<'_>) -> Flow {
    set_with_life(call, "psetex", PX)
}

fn set_with_life(call: &mut Call<'_>, command: &str, form: ExpiryForm) -> Flow {
    let Some(key) = record_key(call) else { return Flow::Done };
    match expiry(form, call.argument(2), call.now()) {
        Ok(expiry) => {
            let plan = SetPlan { life: SetLife::Until(expiry), ..SetPlan::default() };
            let value = call.argument(3);
            plan.run(call, key, value)
        }
        Err(error) => error.answer(call, command),
    }
}

/// `SETNX key value`
pub(super) fn setnx(call: &mut Call<'_>) -> Flow {
    let Some(key) = record_key(call) else { return Flow::Done };
    let (value, now) = (content(call.argument(2)), call.now());
    let records = &call.handler.parts.records;
    let set = records.edit(key, records.probe(key), now, |seen| match seen {
        Some(_) => (RecordEdit::Keep, false),
        None => (RecordEdit::Put(value, Some(Life::FOREVER)), true),
    });
    match set {
        Some(set) => call.integer(set.into()),
        None => call.error(NO_ROOM),
    }
}

/// `SET key value [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL] [NX|XX] [GET]`
pub(super) fn set(call: &mut Call<'_>) -> Flow {
    let Some(key) = record_key(call) else { return Flow::Done };
    match SetPlan::read(call) {
        Ok(plan) => {
            let value = call.argument(2);
            plan.run(call, key, value)
        }
        Err(error) => error.answer(call, "set"),
    }
}

pub(super) fn invalid_expire(call: &mut Call<'_>, command: &str) -> Flow {
    call.bad_input("number", &format!("ERR invalid expire time in '{command}' command"))
}

/// How long a value that is set lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SetLife {
    #[default]
    Forever,
    /// As long as the value before it.
    Kept,
    /// If that is over, nothing is left.
    Until(Expiry),
}

/// When a value is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SetIf {
    #[default]
    Always,
    Missing,
    There,
}

/// What the options of a SET say.
#[derive(Clone, Copy, Debug, Default)]
struct SetPlan {
    life: SetLife,
    only: SetIf,
    /// Answer with the value before.
    get: bool,
}

enum SetError {
    Syntax,
    Number,
    Expire,
}

impl SetError {
    fn answer(self, call: &mut Call<'_>, command: &str) -> Flow {
        match self {
            SetError::Syntax => call.error(SYNTAX),
            SetError::Number => call.bad_input("number", NOT_AN_INTEGER),
            SetError::Expire => invalid_expire(call, command),
        }
    }
}

/// The options of SET that say when the value expires.
const EXPIRY_OPTIONS: [(&str, ExpiryForm); 4] =
    [("ex", EX), ("px", PX), ("exat", EXAT), ("pxat", PXAT)];

impl SetPlan {
    /// As Redis does: an option may be repeated, and numbers are read after all options.
    fn read(call: &Call<'_>) -> Result<Self, SetError> {
        let mut plan = Self::default();
        // How the last option says when the value expires, and where its number stands.
        let mut expires: Option<(ExpiryForm, usize)> = None;
        let mut at = 3;
        while at < call.arguments.len() {
            let is = |word| call.is_word(at, word);
            if let Some((_, form)) = EXPIRY_OPTIONS.into_iter().find(|(word, _)| is(word)) {
                let is_free = expires.is_none_or(|(before, _)| before == form);
                let has_number = at + 1 < call.arguments.len();
                if !is_free || !has_number || plan.life == SetLife::Kept {
                    return Err(SetError::Syntax);
                }
                expires = Some((form, at + 1));
                at += 2;
                continue;
            }
            match () {
                () if is("keepttl") && expires.is_none() => plan.life = SetLife::Kept,
                () if is("nx") && plan.only != SetIf::There => plan.only = SetIf::Missing,
                () if is("xx") && plan.only != SetIf::Missing => plan.only = SetIf::There,
                () if is("get") => plan.get = true,
                () => return Err(SetError::Syntax),
            }
            at += 1;
        }
        if let Some((form, at)) = expires {
            plan.life = SetLife::Until(expiry(form, call.argument(at), call.now())?);
        }
        Ok(plan)
    }

    fn run(self, call: &mut Call<'_>, key: &[u8], value: &[u8]) -> Flow {
        let (now, version) = (call.now(), call.version());
        let edit = match self.life {
            SetLife::Forever => RecordEdit::Put(content(value), Some(Life::FOREVER)),
            SetLife::Kept => RecordEdit::Put(content(value), None),
            SetLife::Until(expiry) => match expiry.life(now) {
                Some(life) => RecordEdit::Put(content(value), Some(life)),
                None => RecordEdit::Remove,
            },
        };
        let mut before = Vec::new();
        let records = &call.handler.parts.records;
        let done = records.edit(key, records.probe(key), now, |seen| {
            if self.get {
                bulk_or_null(&mut before, seen, version);
            }
            match (self.only, seen) {
                (SetIf::Missing, Some(_)) | (SetIf::There, None) => (RecordEdit::Keep, false),
                _ => (edit, true),
            }
        });
        match done {
            None => call.error(NO_ROOM),
            Some(_) if self.get => {
                call.out.extend_from_slice(&before);
                Flow::Done
            }
            Some(true) => call.ok(),
            Some(false) => {
                reply::null(call.out, version);
                Flow::Done
            }
        }
    }
}

/// When a value that is set expires.
fn expiry(form: ExpiryForm, number: &[u8], now: Now) -> Result<Expiry, SetError> {
    let number = number::strict(number).ok_or(SetError::Number)?;
    let number = Some(number).filter(|number| *number > 0);
    number.and_then(|number| form.read(number, now)).ok_or(SetError::Expire)
}

/// The first argument, if it is not too long for the key of a record; otherwise the client is told.
pub(super) fn record_key<'a>(call: &mut Call<'a>) -> Option<&'a [u8]> {
    let key = call.argument(1);
    if key.len() <= KEY_BYTES_MAX {
        return Some(key);
    }
    call.bad_input("key_too_long", &format!("ERR key is longer than {KEY_BYTES_MAX} bytes"));
    None
}

/// A number as Redis would write it is a counter, all else a buffer.
fn content(value: &[u8]) -> Content<'_> {
    let number = number::strict(value).and_then(|number| u64::try_from(number).ok());
    number.map_or(Content::Bytes(value), Content::Number)
}

fn bulk(out: &mut Vec<u8>, content: Content<'_>) {
    match content {
        Content::Bytes(bytes) => reply::bulk(out, bytes),
        Content::Number(number) => reply::bulk_number(out, number),
    }
}

fn bulk_or_null(out: &mut Vec<u8>, seen: Option<SeenRecord<'_>>, version: ProtocolVersion) {
    match seen {
        Some(seen) => bulk(out, seen.content),
        None => reply::null(out, version),
    }
}

/// What a client is told of the milliseconds until `left` is over: a begun one counts.
pub(super) fn milliseconds_left(left: Nanos) -> i64 {
    left.div_ceil(MILLISECOND).cast_signed()
}
