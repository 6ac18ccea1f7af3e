//! Random conversations beside a model of redis-cell: the replies are the same wherever redis-cell
//! cuts nothing off, which is at whole milliseconds and with intervals of whole milliseconds.

use proptest::prelude::*;
use tidegate::clock::Clock;
use tidegate::doors::resp::RespConversation;
use tidegate::records::Records;
use tidegate_core::time::MILLISECOND;
use tidegate_wire::resp::request::request;

use crate::golden;

/// One request, so many milliseconds after the last.
#[derive(Clone, Copy, Debug)]
struct Step {
    pause_ms: u64,
    /// One of [`RATES`].
    rate: usize,
    max_burst: i64,
    quantity: i64,
}

/// Count and period in seconds: an interval has 1 ms to 30 s, all whole.
const RATES: [(i64, i64); 6] = [(30, 60), (8, 1), (1000, 1), (1, 30), (3, 60), (125, 4)];

/// What redis-cell remembers of a key: when its bucket is empty, in milliseconds. It forgets that
/// when the time has come.
#[derive(Default)]
struct Cell {
    tat_ms: i64,
}

impl Cell {
    /// The five numbers of the reply, as its source computes them.
    fn throttle(&mut self, step: Step, now_ms: i64) -> [i64; 5] {
        let (count, period_s) = RATES[step.rate];
        let interval_ms = period_s * 1000 / count;
        let tolerance_ms = interval_ms * (step.max_burst + 1);
        let increment_ms = interval_ms * step.quantity;
        let tat_ms = self.tat_ms.max(now_ms);
        let new_tat_ms = tat_ms + increment_ms;
        let early_ms = new_tat_ms - tolerance_ms - now_ms;
        let limited = early_ms > 0;
        let mut retry_ms = None;
        let ttl_ms = if limited {
            retry_ms = (increment_ms <= tolerance_ms).then_some(early_ms);
            tat_ms - now_ms
        } else {
            self.tat_ms = new_tat_ms;
            new_tat_ms - now_ms
        };
        let next_ms = tolerance_ms - ttl_ms;
        let remaining = if next_ms > -interval_ms { next_ms / interval_ms } else { 0 };
        let seconds = |ms: i64| (ms + 999).div_euclid(1000);
        let retry = retry_ms.map_or(-1, seconds);
        [limited.into(), step.max_burst + 1, remaining, retry, seconds(ttl_ms)]
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pause = prop_oneof![3 => Just(0_u64), 1 => Just(1), 3 => 0..3_000_u64, 1 => 0..90_000_u64];
    let quantity = prop_oneof![4 => Just(1_i64), 1 => Just(0), 2 => 2..8_i64, 2 => -9..0_i64];
    // Parameters change now and then.
    let rate = prop_oneof![3 => Just(0), 2 => 0..RATES.len()];
    let max_burst = prop_oneof![3 => Just(4_i64), 2 => 0..9_i64];
    let step =
        (pause, rate, max_burst, quantity).prop_map(|(pause_ms, rate, max_burst, quantity)| Step {
            pause_ms,
            rate,
            max_burst,
            quantity,
        });
    prop::collection::vec(step, 1..60)
}

proptest! {
    #[test]
    fn replies_are_those_of_redis_cell(steps in steps()) {
        let clock = Clock::manual(golden::START);
        let config = golden::config("[resp]\nlisten = '127.0.0.1:0'");
        let limiter = golden::limiter(config.rules.clone(), &clock);
        let records = Records::beside(&limiter, 10);
        let table = config.file.resp.as_ref().expect("a [resp] table");
        let mut client =
            RespConversation::open(&limiter, records, table, clock.now()).expect("a client");
        let (mut cell, mut now_ms) = (Cell::default(), 0_i64);
        for mut step in steps {
            clock.advance(step.pause_ms * MILLISECOND);
            now_ms += step.pause_ms as i64;
            let (count, period_s) = RATES[step.rate];
            // To give back more than is owed is an error in redis-cell.
            let owed = (cell.tat_ms - now_ms).max(0) / (period_s * 1000 / count);
            step.quantity = step.quantity.max(-owed);
            let numbers = [step.max_burst, count, period_s, step.quantity];
            let numbers = numbers.map(|number| number.to_string());
            let mut words: Vec<&[u8]> = vec![b"CL.THROTTLE", b"key"];
            words.extend(numbers.iter().map(|number| number.as_bytes()));
            let (mut sent, mut reply) = (Vec::new(), Vec::new());
            request(&mut sent, &words);
            prop_assert!(client.say(&sent, clock.now(), &mut reply));
            let expected = cell.throttle(step, now_ms).map(|number| format!(":{number}\r\n"));
            let expected = "*5\r\n".to_owned() + &expected.concat();
            prop_assert_eq!(String::from_utf8_lossy(&reply), expected, "{:?}", step);
        }
    }
}
