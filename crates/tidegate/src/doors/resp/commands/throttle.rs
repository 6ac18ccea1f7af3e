//! CL.THROTTLE of redis-cell and THROTTLE of throttlecrab: limits that come with each request.
//!
//! A rule that matches the key decides alone, and the request's limit is checked for its form only.
//! Requests that follow each other are decided together.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::key::KEY_BYTES_MAX;
use tidegate_core::limit::{AMOUNT_MAX, Algorithm, PERIOD_MAX};
use tidegate_core::time::SECOND;
use tidegate_core::{Limit, Nanos, Now};
use tidegate_wire::resp::{Arguments, number, reply};

use super::{COMMANDS, Call, Flow};
use crate::doors::io::handler::Context;
use crate::doors::resp::handler::RespHandler;
use crate::doors::resp::pending::ReplyLater;
use crate::doors::resp::session::RespClient;
use crate::limiter::{
    Decision, InvalidRequest, Key, KeyOp, Limiter, LimiterHandle, Outcome, Request, Rows, Verdict,
};
use crate::metrics::Door;

/// Requests that are decided together.
const BATCH_MAX: usize = 64;
/// The largest parameter.
const NUMBER_MAX: i64 = AMOUNT_MAX as i64;
/// The longest period, in seconds.
const PERIOD_SECONDS_MAX: i64 = (PERIOD_MAX / SECOND) as i64;

pub(super) const OUT_OF_RANGE: &str = "ERR value is not an integer or out of range";
const ZERO_RATE: &str = "Cell error: Store error: Zero rates are not supported";
const USAGE: &str = "Cell error: Store error: Usage: cl.throttle <key> <max_burst> \
    <count per period> <period> [<quantity>]";
const THROTTLECRAB_INVALID: &str = "ERR invalid rate limit parameters";

/// The program that a command comes from: the form of its parameters and replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::doors::resp) enum Shape {
    /// redis-cell: 0 means allowed.
    Cell,
    /// throttlecrab: 1 means allowed, and the burst is the limit itself.
    Throttlecrab,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Wanted {
    shape: Shape,
    limit: Limit,
    quantity: i64,
    /// A rule has the last word, and can never grant so much.
    is_impossible: bool,
    /// Uses to be given back do not fit, as the bucket would owe more than it may: how long until
    /// they do, else 0.
    until_it_fits: Nanos,
}

/// Why parameters are wrong: the reason that is counted, and the reply.
struct Wrong {
    reason: &'static str,
    text: Vec<u8>,
}

impl Wrong {
    fn new(reason: &'static str, text: impl Into<Vec<u8>>) -> Self {
        Self { reason, text: text.into() }
    }

    fn number(text: &str) -> Self {
        Self::new("number", text)
    }
}

impl Shape {
    /// Reads the parameters behind the key.
    #[inline]
    fn read(self, arguments: &Arguments<'_>) -> Result<Wanted, Wrong> {
        if !(5..=6).contains(&arguments.len()) {
            return Err(match self {
                Shape::Cell => Wrong::new("arity", USAGE),
                Shape::Throttlecrab => {
                    Wrong::new("arity", "ERR wrong number of arguments for 'throttle' command")
                }
            });
        }
        let number = |at: usize| self.number(arguments, at);
        let (burst, count, period) = (number(2)?, number(3)?, number(4)?);
        let quantity = if arguments.len() == 6 { number(5)? } else { 1 };
        let burst = match self {
            Shape::Cell => check_cell(burst, count, period, quantity)? + 1,
            Shape::Throttlecrab => check_throttlecrab(burst, count, period, quantity)?,
        };
        let algorithm = Algorithm::Throttle { burst: burst.unsigned_abs() };
        let period = period.unsigned_abs() * SECOND;
        let limit = Limit { amount: count.unsigned_abs(), period, algorithm };
        Ok(Wanted { shape: self, limit, quantity, is_impossible: false, until_it_fits: 0 })
    }

    #[inline]
    fn number(self, arguments: &Arguments<'_>, at: usize) -> Result<i64, Wrong> {
        let text = arguments.get(at).unwrap_or_default();
        number::lenient(text).ok_or_else(|| self.wrong_number(text, at))
    }

    #[cold]
    fn wrong_number(self, text: &[u8], at: usize) -> Wrong {
        match self {
            Shape::Cell => {
                let told = b"Cell error: Store error: Couldn't parse as integer: ";
                Wrong::new("number", [told.as_slice(), text].concat())
            }
            Shape::Throttlecrab => {
                let names = ["max_burst", "count_per_period", "period", "quantity"];
                let name = names.get(at - 2).unwrap_or(&"quantity");
                Wrong::number(&format!("ERR invalid {name}"))
            }
        }
    }

    /// Appends the five numbers.
    #[inline]
    fn reply(self, out: &mut Vec<u8>, numbers: &Numbers) {
        let Numbers { allowed, limit, remaining, retry, reset } = *numbers;
        match self {
            Shape::Cell => {
                let retry = if allowed { -1 } else { retry };
                reply::integers(out, [i64::from(!allowed), limit, remaining, retry, reset]);
            }
            Shape::Throttlecrab => {
                let retry = if allowed { 0 } else { retry };
                reply::integers(out, [i64::from(allowed), limit, remaining, reset, retry]);
            }
        }
    }
}

fn check_cell(burst: i64, count: i64, period: i64, quantity: i64) -> Result<i64, Wrong> {
    if count == 0 || period == 0 {
        return Err(Wrong::number(ZERO_RATE));
    }
    let fits = (0..NUMBER_MAX).contains(&burst)
        && (1..=NUMBER_MAX).contains(&count)
        && (1..=PERIOD_SECONDS_MAX).contains(&period)
        && (-NUMBER_MAX..=NUMBER_MAX).contains(&quantity);
    if fits { Ok(burst) } else { Err(Wrong::number(OUT_OF_RANGE)) }
}

fn check_throttlecrab(burst: i64, count: i64, period: i64, quantity: i64) -> Result<i64, Wrong> {
    if quantity < 0 {
        return Err(Wrong::number(&format!("ERR negative quantity: {quantity}")));
    }
    let fits = (1..=NUMBER_MAX).contains(&burst)
        && (1..=NUMBER_MAX).contains(&count)
        && (1..=PERIOD_SECONDS_MAX).contains(&period)
        && quantity <= NUMBER_MAX;
    if fits { Ok(burst) } else { Err(Wrong::number(THROTTLECRAB_INVALID)) }
}

/// What is answered, in seconds and uses.
struct Numbers {
    allowed: bool,
    limit: i64,
    remaining: i64,
    /// -1: never.
    retry: i64,
    reset: i64,
}

/// Whole seconds, rounded up, so that a client that waits as told is let in. -1: never, or it is
/// not known.
fn seconds(span: Nanos) -> i64 {
    match span {
        Nanos::MAX => -1,
        span => span.div_ceil(SECOND) as i64,
    }
}

/// A number as the protocol has it.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Wanted {
    /// Has the limiter decide.
    fn ask(
        &self,
        limiter: &LimiterHandle,
        key: &[u8],
        op: KeyOp,
        now: Now,
    ) -> Result<Decision, InvalidRequest> {
        let keys = [Key::new(key, op).limited_by(&self.limit)];
        limiter.decide(&Request::all_or_nothing(&keys), now, None)
    }

    /// What is wanted, after uses were given back with this verdict.
    fn given_back(self, verdict: &Verdict) -> Self {
        let until_it_fits = if verdict.degraded { 0 } else { verdict.delay };
        Self { until_it_fits, ..self }
    }

    /// Looks at a key, and answers by what is seen. Called by the thread of the store.
    fn look(self, limiter: &Arc<Limiter>, key: &[u8], later: ReplyLater) {
        let limiter = limiter.handle(Door::Resp);
        match self.ask(&limiter, key, KeyOp::Peek(0), limiter.now()) {
            Ok(Decision::Ready(verdict)) => later.send(move |out| self.reply(out, &verdict)),
            Ok(Decision::Pending(pending)) => pending.0.forward(move |answered| {
                later.send(move |out| self.reply(out, &answered.verdict));
            }),
            Err(invalid) => later.send(move |out| reply::error(out, text_of(invalid).as_bytes())),
        }
    }

    #[inline]
    fn numbers(&self, verdict: &Verdict) -> Numbers {
        let denies = verdict.amount == 0;
        let allowed = match self.quantity {
            // What looks or gives back is not refused by a rule that lets nothing pass, and the
            // store gets what is given back when it is there again.
            ..1 if denies => true,
            ..0 if verdict.degraded => true,
            _ => verdict.is_allowed() && !self.is_impossible && self.until_it_fits == 0,
        };
        let retry = match self.until_it_fits {
            _ if self.is_impossible || denies => -1,
            0 => seconds(verdict.delay),
            span => seconds(span),
        };
        if verdict.capacity == 0 && !denies {
            // Nothing limits the key, or the process ends.
            let limit = signed(self.limit.capacity());
            let (remaining, reset) = if allowed { (limit, 0) } else { (0, retry) };
            return Numbers { allowed, limit, remaining, retry, reset };
        }
        Numbers {
            allowed,
            limit: signed(verdict.capacity),
            remaining: signed(verdict.remaining),
            retry,
            reset: if denies { 0 } else { seconds(verdict.reset) },
        }
    }

    /// What is told of a quantity that can never be had: of several limits, the first that never
    /// grants so much is shown.
    fn shown(&self, verdict: &Verdict, rows: &Rows) -> Verdict {
        let cost = self.quantity.unsigned_abs();
        let Some(row) = rows.limits.iter().find(|row| row.limit.capacity() < cost) else {
            return *verdict;
        };
        let (remaining, reset) = row.left();
        Verdict { capacity: row.limit.capacity(), remaining, reset, ..*verdict }
    }

    /// Appends the reply to a request that was decided.
    #[inline]
    fn reply(&self, out: &mut Vec<u8>, verdict: &Verdict) {
        if verdict.no_room {
            return reply::error(out, b"OOM no room for a new key");
        }
        if verdict.outcome == Outcome::NoRule {
            return reply::error(out, b"ERR no rule matches this key");
        }
        self.shape.reply(out, &self.numbers(verdict));
    }
}

/// Requests that were read and are decided together.
#[derive(Default)]
pub(in crate::doors::resp) struct ThrottleBatch {
    wanted: Vec<PutOff>,
    decisions: Vec<Result<Decision, InvalidRequest>>,
}

/// A request that was read and is yet to be decided.
struct PutOff {
    /// Where its key lies in the input.
    key: Range<usize>,
    wanted: Wanted,
}

impl ThrottleBatch {
    pub(in crate::doors::resp) fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    pub(in crate::doors::resp) fn is_full(&self) -> bool {
        self.wanted.len() >= BATCH_MAX
    }
}

impl RespHandler {
    /// Puts a request off, to be decided with those behind it, if it is one that can be. It begins
    /// at `start` in the input.
    #[inline]
    pub(in crate::doors::resp) fn put_off(
        &mut self,
        client: &RespClient,
        command: Option<usize>,
        arguments: &Arguments<'_>,
        start: usize,
    ) -> bool {
        let Some(shape) = command.and_then(|position| COMMANDS[position].batch) else {
            return false;
        };
        if !client.is_authenticated || client.transaction.is_some() {
            return false;
        }
        let Some(key) = arguments.place(1) else { return false };
        // What is wrong, looks or gives back is done by itself.
        let Ok(wanted) = shape.read(arguments) else { return false };
        if wanted.quantity < 1 {
            return false;
        }
        // So is what can never be had: a look answers it, which must not see uses behind it.
        let cost = wanted.quantity.unsigned_abs();
        let asked = Key::take(arguments.get(1).unwrap_or_default(), cost);
        if cost > 1 && self.parts.limiter.is_too_much(&asked.limited_by(&wanted.limit)) {
            return false;
        }
        self.counts.count(command, 1);
        let key = start + key.start..start + key.end;
        self.throttles.wanted.push(PutOff { key, wanted });
        true
    }

    /// Decides the requests that were put off.
    pub(in crate::doors::resp) fn decide_throttles(
        &mut self,
        client: &mut RespClient,
        input: &[u8],
        out: &mut Vec<u8>,
        context: &Context,
    ) -> Flow {
        let ThrottleBatch { mut wanted, mut decisions } = std::mem::take(&mut self.throttles);
        let keys: SmallVec<[Key<'_>; BATCH_MAX]> = wanted
            .iter()
            .map(|PutOff { key, wanted }| {
                let cost = wanted.quantity.unsigned_abs();
                Key::take(&input[key.clone()], cost).limited_by(&wanted.limit)
            })
            .collect();
        self.parts.limiter.decide_batch(&keys, context.now, &mut decisions);
        for (put_off, decided) in wanted.iter().zip(&mut decisions) {
            // Nearly all are ready, and are not moved.
            if let (Ok(Decision::Ready(verdict)), true) = (&*decided, client.pending.is_empty()) {
                put_off.wanted.reply(out, verdict);
                continue;
            }
            let decided = std::mem::replace(decided, Err(InvalidRequest::CostZero));
            let key = &input[put_off.key.clone()];
            self.answer(&put_off.wanted, key, decided, client, out, context);
        }
        drop(keys);
        wanted.clear();
        decisions.clear();
        self.throttles = ThrottleBatch { wanted, decisions };
        if client.pending.is_empty() { Flow::Done } else { Flow::Pending }
    }

    /// Decides a request by itself: one that takes nothing, or that came as an inline command.
    fn decide_throttle(
        &mut self,
        mut wanted: Wanted,
        key: &[u8],
        client: &mut RespClient,
        out: &mut Vec<u8>,
        context: &Context,
    ) -> Flow {
        let now = context.now;
        let cost = wanted.quantity.unsigned_abs();
        let decided = match wanted.quantity {
            0 => wanted.ask(&self.parts.limiter, key, KeyOp::Peek(0), now),
            1.. => wanted.ask(&self.parts.limiter, key, KeyOp::Take(cost), now),
            _ => {
                let refund = KeyOp::Refund { cost, taken: now, in_flight: true };
                match wanted.ask(&self.parts.limiter, key, refund, now) {
                    // What was given back shows in a look behind it.
                    Ok(Decision::Ready(verdict)) => {
                        wanted = wanted.given_back(&verdict);
                        wanted.ask(&self.parts.limiter, key, KeyOp::Peek(0), now)
                    }
                    Ok(Decision::Pending(pending)) => {
                        let later =
                            ReplyLater::new(&self.parts.inbox, context.id, &mut client.pending);
                        let limiter = self.parts.limiter.limiter().clone();
                        let key = key.to_vec();
                        pending.0.forward(move |answered| {
                            wanted.given_back(&answered.verdict).look(&limiter, &key, later);
                        });
                        return Flow::Pending;
                    }
                    wrong => wrong,
                }
            }
        };
        self.answer(&wanted, key, decided, client, out, context);
        if client.pending.is_empty() { Flow::Done } else { Flow::Pending }
    }

    /// Answers one request now, or when its store has answered.
    fn answer(
        &mut self,
        wanted: &Wanted,
        key: &[u8],
        decided: Result<Decision, InvalidRequest>,
        client: &mut RespClient,
        out: &mut Vec<u8>,
        context: &Context,
    ) {
        let mut wanted = *wanted;
        let mut decided = decided;
        if let Err(InvalidRequest::CostAboveLimit { .. }) = decided {
            wanted.is_impossible = true;
            let keys = [Key::new(key, KeyOp::Refuse(1)).limited_by(&wanted.limit)];
            let look = Request::all_or_nothing(&keys);
            let looked = self.parts.limiter.decide(&look, context.now, Some(&mut self.rows));
            decided = looked.map(|decision| match decision {
                Decision::Ready(verdict) => Decision::Ready(wanted.shown(&verdict, &self.rows)),
                pending => pending,
            });
        }
        // Replies stand in the order of their requests: behind one that is missing, all wait.
        let mut behind = (!client.pending.is_empty()).then(Vec::new);
        let out = behind.as_mut().unwrap_or(out);
        match decided {
            Ok(Decision::Ready(verdict)) => wanted.reply(out, &verdict),
            Ok(Decision::Pending(pending)) => {
                let later = ReplyLater::new(&self.parts.inbox, context.id, &mut client.pending);
                return pending.0.forward(move |answered| {
                    let verdict = match wanted.is_impossible {
                        true => wanted.shown(&answered.verdict, &answered.rows),
                        false => answered.verdict,
                    };
                    later.send(move |out| wanted.reply(out, &verdict));
                });
            }
            Err(invalid) => {
                self.bad_input(invalid.reason());
                reply::error(out, text_of(invalid).as_bytes());
            }
        }
        if let Some(reply) = behind {
            client.pending.add(reply);
        }
    }
}

/// What is said to a request that cannot be decided.
pub(super) fn text_of(invalid: InvalidRequest) -> String {
    match invalid {
        InvalidRequest::KeyTooLong => format!("ERR key is longer than {KEY_BYTES_MAX} bytes"),
        InvalidRequest::NeedsEnd => "ERR this key limits uses in flight: use TG.HOLD".to_owned(),
        InvalidRequest::Books => "ERR this key books callers: use TG.WAIT".to_owned(),
        other => format!("ERR {other}"),
    }
}

/// `CL.THROTTLE key max_burst count period [quantity]`
pub(super) fn cl_throttle(call: &mut Call<'_>) -> Flow {
    decide(call, Shape::Cell)
}

/// `THROTTLE key max_burst count period [quantity]`
pub(super) fn throttle(call: &mut Call<'_>) -> Flow {
    decide(call, Shape::Throttlecrab)
}

fn decide(call: &mut Call<'_>, shape: Shape) -> Flow {
    match shape.read(&call.arguments) {
        Ok(wanted) => {
            let key = call.argument(1);
            let Call { handler, client, out, context, .. } = call;
            handler.decide_throttle(wanted, key, client, out, context)
        }
        Err(Wrong { reason, text }) => {
            call.handler.bad_input(reason);
            reply::error(call.out, &text);
            Flow::Done
        }
    }
}
