//! TG.CHECK, TG.MCHECK, TG.PEEK and TG.RESET: the limiter by configured rules, and the reply that
//! TG.WAIT and TG.HOLD have in common with them.

use std::future::poll_fn;
use std::mem;

use smallvec::SmallVec;
use tidegate_core::Nanos;
use tidegate_core::key::KEY_BYTES_MAX;
use tidegate_core::limit::AMOUNT_MAX;
use tidegate_wire::resp::{ProtocolVersion, number, reply};

use super::hold::Hold;
use super::keys::STORE_AWAY;
use super::throttle::{OUT_OF_RANGE, signed, text_of};
use super::{Call, Flow};
use crate::doors::http_server::json::millis;
use crate::doors::resp::handler::LaterParts;
use crate::doors::resp::pending::LateWork;
use crate::limiter::{
    Answered, Basis, Decision, InvalidRequest, Key, LimitRow, LimiterHandle, PendingVerdict,
    Request, Rows, Verdict,
};
use crate::uses::UseId;

/// `TG.CHECK key [cost]`
pub(super) fn check(call: &mut Call<'_>) -> Flow {
    let Some(cost) = last_cost(call, 2) else { return Flow::Done };
    let keys = [Key::take(call.argument(1), cost)];
    ask(call, &Request::all_or_nothing(&keys), cost, None)
}

/// `TG.MCHECK cost key [key ...]`
pub(super) fn mcheck(call: &mut Call<'_>) -> Flow {
    let Some(cost) = natural(call, 1, 1, AMOUNT_MAX) else { return Flow::Done };
    let keys = call.arguments.iter().skip(2).map(|key| Key::take(key, cost));
    let keys: SmallVec<[Key<'_>; 4]> = keys.collect();
    ask(call, &Request::all_or_nothing(&keys), cost, None)
}

/// `TG.PEEK key [cost]`
pub(super) fn peek(call: &mut Call<'_>) -> Flow {
    let Some(cost) = last_cost(call, 2) else { return Flow::Done };
    call.handler.parts.later.uses.lapse(call.now());
    let keys = [Key::peek(call.argument(1), cost)];
    // A look has no end to tell, so keys that limit uses in flight are fine.
    ask(call, &Request::all_or_nothing(&keys).with_end(), cost, None)
}

/// `TG.RESET key`
pub(super) fn reset(call: &mut Call<'_>) -> Flow {
    let key = call.argument(1).to_vec();
    if key.len() > KEY_BYTES_MAX {
        return invalid(call, InvalidRequest::KeyTooLong);
    }
    let limiter = call.handler.parts.limiter.limiter().clone();
    call.reply_by(LateWork::new(async move {
        let mut out = Vec::new();
        match limiter.forget(&key).await {
            Ok(was_there) => reply::integer(&mut out, was_there.into()),
            Err(_) => reply::error(&mut out, STORE_AWAY),
        }
        out
    }))
}

/// The number at `index`, if it lies in a range; otherwise the client is told.
pub(super) fn natural(call: &mut Call<'_>, index: usize, least: u64, most: u64) -> Option<u64> {
    let read = number::strict(call.argument(index)).and_then(|number| u64::try_from(number).ok());
    let number = read.filter(|number| (least..=most).contains(number));
    if number.is_none() {
        call.bad_input("number", OUT_OF_RANGE);
    }
    number
}

/// The cost, which stands at `index` and last, or is 1; otherwise the client is told.
pub(super) fn last_cost(call: &mut Call<'_>, index: usize) -> Option<u64> {
    if call.arguments.len() == index { Some(1) } else { natural(call, index, 1, AMOUNT_MAX) }
}

/// Answers that a request cannot be decided.
fn invalid(call: &mut Call<'_>, invalid: InvalidRequest) -> Flow {
    call.bad_input(invalid.reason(), &text_of(invalid))
}

/// Asks the limiter, holds what is to be held, and answers now or later.
pub(super) fn ask(
    call: &mut Call<'_>,
    request: &Request<'_>,
    cost: u64,
    hold: Option<Hold>,
) -> Flow {
    let (version, now) = (call.version(), call.now());
    let mut rows = mem::take(&mut call.handler.rows);
    let decided = call.handler.parts.limiter.decide_or_refuse(request, now, Some(&mut rows));
    let later = &call.handler.parts.later;
    let flow = match decided {
        Ok((Decision::Ready(verdict), is_impossible)) => {
            let answer = Answer { verdict: &verdict, rows: &rows, cost, is_impossible };
            answer.write(call.out, version, later, hold.as_ref());
            Flow::Done
        }
        Ok((Decision::Pending(pending), is_impossible)) => {
            let later = later.clone();
            call.reply_by(LateWork::new(async move {
                let Answered { verdict, rows, .. } = answered(pending, &later.limiter).await;
                let mut out = Vec::new();
                let answer = Answer { verdict: &verdict, rows: &rows, cost, is_impossible };
                answer.write(&mut out, version, &later, hold.as_ref());
                out
            }))
        }
        Err(why) => invalid(call, why),
    };
    call.handler.rows = rows;
    flow
}

/// The verdict of a store that was asked.
async fn answered(mut pending: PendingVerdict, limiter: &LimiterHandle) -> Answered {
    poll_fn(|cx| pending.poll_answer(limiter.now(), cx)).await
}

/// What is told of a decision.
pub(super) struct Answer<'a> {
    pub(super) verdict: &'a Verdict,
    pub(super) rows: &'a Rows,
    pub(super) cost: u64,
    /// The cost can never be had.
    pub(super) is_impossible: bool,
}

impl Answer<'_> {
    /// Holds what is to be held, and appends the reply.
    fn write(
        &self,
        out: &mut Vec<u8>,
        version: ProtocolVersion,
        later: &LaterParts,
        hold: Option<&Hold>,
    ) {
        match hold.map(|hold| hold.register(later, &self.rows.held)).transpose() {
            Ok(held) => self.reply(out, version, held),
            Err(error) => reply::error(out, format!("ERR {error}").as_bytes()),
        }
    }

    /// Appends the reply. `held` is there if the client asked to hold.
    pub(super) fn reply(
        &self,
        out: &mut Vec<u8>,
        version: ProtocolVersion,
        held: Option<Option<UseId>>,
    ) {
        let row = self.shown();
        let remaining = row.filter(|row| row.basis != Basis::Policy);
        let delay = if self.is_impossible { Nanos::MAX } else { self.verdict.delay };
        let mut pairs = Pairs { out, version };
        reply::map(pairs.out, version, 8 + usize::from(held.is_some()));
        pairs.boolean("allowed", self.is_allowed());
        pairs.number("limit", row.map(|row| signed(row.limit.capacity())));
        pairs.number("remaining", remaining.map(|row| signed(row.verdict.remaining)));
        pairs.number("retry_ms", self.retry_ms());
        pairs.number("reset_ms", millis(row.map_or(0, |row| row.verdict.reset)).map(signed));
        pairs.number("delay_ms", millis(delay).map(signed));
        pairs.text("rule", row.map(|row| row.rule.as_bytes()));
        if let Some(held) = held {
            let id = held.map(|id| id.to_string());
            pairs.text("use", id.as_ref().map(|id| id.as_bytes()));
        }
        pairs.boolean("degraded", self.verdict.degraded);
    }

    fn is_allowed(&self) -> bool {
        self.verdict.is_allowed() && !self.is_impossible
    }

    /// The row of the limit that refused, else of the limit with the least left.
    fn shown(&self) -> Option<&LimitRow> {
        let share = |row: &LimitRow| row.verdict.rate / row.limit.amount.max(1) as f64;
        let refuses = |row: &&LimitRow| match self.is_impossible {
            true => row.limit.capacity() < self.cost,
            false => !row.verdict.allowed && self.rows.refused_by.as_ref() == Some(&row.rule),
        };
        let mut refusing = self.rows.limits.iter().filter(|_| !self.is_allowed());
        // Of equals the first.
        let nearest = || {
            let rows = self.rows.limits.iter().rev();
            rows.max_by(|one, other| share(one).total_cmp(&share(other)))
        };
        refusing.find(refuses).or_else(nearest)
    }

    /// In how many milliseconds another try can succeed; -1: never; `None`: it is not known when a
    /// use in flight ends, or the requests in line have gone.
    fn retry_ms(&self) -> Option<i64> {
        if self.is_allowed() {
            return Some(0);
        }
        if self.is_impossible || self.rows.is_denied() {
            return Some(-1);
        }
        let ends = |row: &LimitRow| !row.verdict.allowed && row.limit.ends();
        match millis(self.verdict.delay) {
            // There is room, and others are in line for it.
            Some(0) => None,
            Some(delay) => Some(signed(delay)),
            None if self.rows.limits.iter().any(ends) => None,
            None => Some(-1),
        }
    }
}

/// Appends the pairs of a map.
struct Pairs<'a> {
    out: &'a mut Vec<u8>,
    version: ProtocolVersion,
}

impl Pairs<'_> {
    fn boolean(&mut self, name: &str, value: bool) {
        reply::bulk(self.out, name.as_bytes());
        reply::boolean(self.out, self.version, value);
    }

    fn number(&mut self, name: &str, value: Option<i64>) {
        reply::bulk(self.out, name.as_bytes());
        match value {
            Some(number) => reply::integer(self.out, number),
            None => reply::null(self.out, self.version),
        }
    }

    fn text(&mut self, name: &str, value: Option<&[u8]>) {
        reply::bulk(self.out, name.as_bytes());
        match value {
            Some(text) => reply::bulk(self.out, text),
            None => reply::null(self.out, self.version),
        }
    }
}
