//! The RESP door: a request and its reply are written as JSON, `["CL.THROTTLE","k","15","30","60"]`
//! and `[0,16,15,-1,2]`.
//!
//! `throttle.jsonl` has recorded conversations, one a line: `id`, and `steps` with a moment `at` in
//! nanoseconds after the beginning, `args` behind the key, and the reply `ours`. Where that is not
//! given, the reply is redis-cell's, `cell`.

use serde_json::{Value, json};
use tidegate::clock::Clock;
use tidegate::limiter::{Decision, Key, KeyOp, LimiterHandle, Request, Rows, Verdict};
use tidegate::metrics::Door;
use tidegate_core::rules::{Rule, RuleSet};
use tidegate_core::time::SECOND;
use tidegate_core::{Algorithm, Limit, Nanos};

use super::notation::compare;
use super::script::{Exchange, Line, Mismatch, Script, Step};
use super::{Adapter, limiter};

struct Throttle {
    handle: LimiterHandle,
    clock: Clock,
}

pub(super) fn open(_: Option<&str>, clock: &Clock) -> Box<dyn Adapter> {
    Box::new(Throttle { handle: handle(clock), clock: clock.clone() })
}

fn handle(clock: &Clock) -> LimiterHandle {
    limiter(RuleSet::new(vec![Rule::of_given_limits("resp:throttle")], None), clock)
        .handle(Door::Resp)
}

/// Reads recorded conversations. Errors and other commands are the door's affair.
pub(super) fn recorded(place: &str, text: &str) -> Script {
    let mut steps = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let vector: Value = serde_json::from_str(line).expect("JSON");
        let line = |text: String| Line { number: at + 1, text };
        let Some(recorded) = vector["steps"].as_array() else { continue };
        if vector.get("command").is_some() {
            continue;
        }
        steps.push(Step::Connect(line(vector["id"].as_str().expect("an id").to_owned())));
        let mut now = 0;
        for step in recorded {
            let reply = step.get("ours").unwrap_or(&step["cell"]);
            if !reply.is_array() {
                continue;
            }
            let moment = step["at"].as_u64().expect("a moment");
            steps.push(Step::Pass(line(format!("+{}ns", moment - now))));
            now = moment;
            let mut request = vec![json!("CL.THROTTLE"), json!("k")];
            request.extend_from_slice(step["args"].as_array().expect("arguments"));
            steps.push(Step::Exchange(Exchange {
                requests: vec![line(Value::from(request).to_string())],
                replies: vec![line(reply.to_string())],
            }));
        }
    }
    Script { place: place.to_owned(), settings: None, steps }
}

impl Adapter for Throttle {
    fn exchange(&mut self, exchange: &Exchange) -> Vec<Mismatch> {
        let replies: Vec<String> = exchange.requests.iter().map(|line| self.ask(line)).collect();
        compare(&exchange.replies, &replies)
    }

    /// A recorded conversation begins with an empty table.
    fn connect(&mut self, _: &str) {
        self.handle = handle(&self.clock);
    }
}

impl Throttle {
    fn ask(&self, line: &Line) -> String {
        let request: Vec<String> = serde_json::from_str(&line.text).expect("texts");
        let numbers: Vec<i64> = request[2..].iter().map(|n| n.parse().expect("a number")).collect();
        let [burst, amount, seconds, ref quantity @ ..] = numbers[..] else { panic!("arguments") };
        let limit = Limit {
            amount: amount as u64,
            period: seconds as u64 * SECOND,
            algorithm: Algorithm::Throttle { burst: burst as u64 + 1 },
        };
        let quantity = quantity.first().copied().unwrap_or(1);
        json!(five_numbers(&self.handle, request[1].as_bytes(), quantity, &limit)).to_string()
    }
}

/// The five numbers of a reply to `CL.THROTTLE`.
fn five_numbers(handle: &LimiterHandle, key: &[u8], quantity: i64, limit: &Limit) -> [i64; 5] {
    let cost = quantity.unsigned_abs();
    let op = match quantity {
        0 => KeyOp::Peek(0),
        1.. => KeyOp::Take(cost),
        _ => KeyOp::Refund { cost, taken: handle.now(), in_flight: true },
    };
    let (verdict, mut rows) = decide(handle, Key::new(key, op).limited_by(limit));
    if rows.limits.is_empty() || quantity < 0 {
        rows = decide(handle, Key::new(key, KeyOp::Peek(1)).limited_by(limit)).1;
    }
    let said = rows.limits[0].verdict;
    let limited = quantity >= 0 && !verdict.is_allowed();
    let seconds = |span: Nanos| span.div_ceil(SECOND) as i64;
    let retry = match limited {
        true if verdict.delay != Nanos::MAX => seconds(verdict.delay),
        _ => -1,
    };
    let capacity = limit.capacity() as i64;
    [limited.into(), capacity, said.remaining as i64, retry, seconds(said.reset)]
}

fn decide(handle: &LimiterHandle, key: Key<'_>) -> (Verdict, Rows) {
    let (keys, mut rows) = ([key], Rows::default());
    let request = Request::all_or_nothing(&keys).with_end();
    match handle.decide(&request, handle.now(), Some(&mut rows)) {
        Ok(Decision::Ready(verdict)) => (verdict, rows),
        other => panic!("{other:?}"),
    }
}
