//! The limiter on a manual clock, against a slow and obvious model of each key alone.

mod attempts;
mod consistency;
mod exactness;
mod forgiveness;
mod given;
mod in_flight;
mod late;
mod records;
mod reloads;
mod remote;
mod requests;
mod statistics;
mod stores;
mod threads;
mod wall_clock;

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use tidegate_core::limit::{Algorithm, Limit};
use tidegate_core::rules::{OnFull, Pattern, Rule, RuleSet};
use tidegate_core::time::{DAY, SECOND};
use tidegate_core::{JointOutcome, Judgement, Nanos, Now, Op, State, algorithms};

use super::*;

const START: Now = Now { mono: 500 * DAY, unix: 20_000 * DAY };
/// The period of the limits that histories are made for.
const PERIOD: Nanos = 10 * SECOND;
/// Room for every key that a test makes.
const ROOMY: memory::Settings = memory::Settings { max_keys: 10_000, max_bytes: 1 << 28 };

fn limit(amount: u64, period: Nanos, algorithm: Algorithm) -> Limit {
    Limit { amount, period, algorithm }
}

fn fixed(amount: u64) -> Limit {
    limit(amount, DAY, Algorithm::FixedWindow)
}

/// A rule for all keys that begin with its name.
fn rule(name: &str, limits: Vec<Limit>) -> Rule {
    Rule::new(name, &format!("{name} *"), limits)
}

fn limiter(rules: Vec<Rule>, settings: memory::Settings) -> Arc<Limiter> {
    let rules = RuleSet::new(rules, None);
    Limiter::new(Clock::manual(START), Arc::new(Metrics::new()), rules, settings)
}

fn handle(rules: Vec<Rule>) -> LimiterHandle {
    limiter(rules, ROOMY).handle(Door::Http)
}

/// The name of a numbered key of the rule `k`: every third is too long for its slot.
fn name(key: u8) -> Vec<u8> {
    let tail = if key.is_multiple_of(3) { " with a name that is far too long" } else { "" };
    format!("k {key}{tail}").into_bytes()
}

fn names(keys: &[u8]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| name(*key)).collect()
}

fn borrowed(names: &[Vec<u8>]) -> Vec<&[u8]> {
    names.iter().map(Vec::as_slice).collect()
}

/// What was said to a request.
#[derive(Clone, Debug, PartialEq)]
struct Said {
    verdict: Verdict,
    rows: Rows,
}

impl Said {
    fn is_allowed(&self) -> bool {
        self.verdict.is_allowed()
    }

    fn refused_by(&self) -> Option<&str> {
        self.rows.refused_by.as_deref()
    }
}

/// The operation of a door that algorithms know as this one.
fn key_op(op: Op) -> KeyOp {
    match op {
        Op::Peek(cost) => KeyOp::Peek(cost),
        Op::Take(cost) => KeyOp::Take(cost),
        Op::TakeUpTo(cost) => KeyOp::TakeUpTo(cost),
        other => panic!("{other:?} needs more than a cost"),
    }
}

fn keys_of<'a>(keys: &[&'a [u8]], op: Op) -> Vec<Key<'a>> {
    keys.iter().map(|key| Key::new(key, key_op(op))).collect()
}

/// Asks for rows, which the general path fills, of counts in memory.
fn decide_keys(
    handle: &LimiterHandle,
    keys: &[&[u8]],
    op: Op,
    can_end: bool,
    now: Now,
) -> Result<Said, InvalidRequest> {
    let (keys, mut rows) = (keys_of(keys, op), Rows::default());
    let request = Request { can_end, ..Request::all_or_nothing(&keys) };
    let verdict = handle.decide(&request, now, Some(&mut rows))?.ready().expect("in memory");
    Ok(Said { verdict, rows })
}

/// Asks for all keys or none, as a door that cannot tell the end of a use.
fn decide_all(
    handle: &LimiterHandle,
    keys: &[&[u8]],
    op: Op,
    now: Now,
) -> Result<Said, InvalidRequest> {
    decide_keys(handle, keys, op, false, now)
}

/// As [`decide_all`], by a door that tells when the uses end.
fn decide_held(
    handle: &LimiterHandle,
    keys: &[&[u8]],
    op: Op,
    now: Now,
) -> Result<Said, InvalidRequest> {
    decide_keys(handle, keys, op, true, now)
}

/// Asks for one key and no rows: the fast path decides where it can.
fn decide_one(
    handle: &LimiterHandle,
    key: &[u8],
    op: Op,
    now: Now,
) -> Result<Verdict, InvalidRequest> {
    let keys = [Key::new(key, key_op(op))];
    let decision = handle.decide(&Request::all_or_nothing(&keys), now, None)?;
    Ok(decision.ready().expect("in memory"))
}

/// Asks for each key by itself, in one batch.
fn decide_each(
    handle: &LimiterHandle,
    keys: &[&[u8]],
    op: Op,
    now: Now,
) -> Vec<Result<Verdict, InvalidRequest>> {
    let mut decisions = Vec::new();
    handle.decide_batch(&keys_of(keys, op), now, &mut decisions);
    let ready = |decision: Decision| decision.ready().expect("in memory");
    decisions.into_iter().map(|decided| decided.map(ready)).collect()
}

/// Whether a verdict shows a key that nothing limits.
fn is_unlimited(verdict: &Verdict) -> bool {
    let Verdict { rate, amount, period, .. } = *verdict;
    verdict.is_allowed() && (rate, amount, period) == (0.0, 1, SECOND)
}

fn take(handle: &LimiterHandle, keys: &[&str]) -> Said {
    let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
    decide_held(handle, &keys, Op::Take(1), handle.now()).expect("a valid request")
}

fn remaining(handle: &LimiterHandle, key: &str) -> u64 {
    let peek = decide_held(handle, &[key.as_bytes()], Op::Peek(1), handle.now());
    let rows = peek.expect("a valid request").rows;
    rows.limits.iter().map(|row| row.verdict.remaining).min().expect("a limit")
}

/// How often each outcome was counted, by door and rule.
fn counted(handle: &LimiterHandle) -> Vec<String> {
    let page = handle.limiter().metrics().encode(Default::default());
    let lines = page.lines().filter(|line| line.starts_with("tidegate_decisions_total"));
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// More histories than usual, and as many as a soak asks for.
fn many_cases() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases.max(500), ..usual }
}

/// Every algorithm that a use is taken from for good.
fn any_limit() -> impl Strategy<Value = Limit> {
    let algorithm = prop_oneof![
        (1..6u64).prop_map(|burst| Algorithm::Gcra { burst }),
        Just(Algorithm::FixedWindow),
        Just(Algorithm::SlidingWindow),
        Just(Algorithm::SlidingLog),
        any::<bool>().prop_map(|strict| Algorithm::Average { strict }),
        any::<bool>().prop_map(|exact| Algorithm::Jarl { exact }),
        (1..6u64).prop_map(|burst| Algorithm::Smockron { burst }),
    ];
    (1..6u64, prop_oneof![Just(PERIOD), Just(PERIOD / 3)], algorithm)
        .prop_map(|(amount, period, algorithm)| Limit { amount, period, algorithm })
}

/// Mostly short, now and then long enough for everything to be forgotten.
fn wait() -> impl Strategy<Value = Nanos> {
    prop_oneof![
        4 => Just(0),
        1 => Just(1),
        4 => 0..PERIOD / 2,
        1 => Just(PERIOD),
        1 => 0..5 * PERIOD,
        1 => Just(30 * PERIOD),
    ]
}

/// Whether no key that was used since the start can have lost its statistics to a sweep, which
/// comes by when the hash says so.
fn statistics_stay(now: Now) -> bool {
    now.mono < START.mono + 600 * SECOND
}

/// What each key would say if it were alone, in an unbounded map.
struct Model {
    limits: Vec<Limit>,
    states: HashMap<u8, Vec<State>>,
}

impl Model {
    fn new(limits: &[Limit]) -> Self {
        Self { limits: limits.to_vec(), states: HashMap::new() }
    }

    fn judge(&mut self, key: u8, op: Op, now: Now) -> Vec<Judgement> {
        let states = self.states.entry(key).or_insert_with(|| vec![State::None; self.limits.len()]);
        let limits = self.limits.iter().zip(states);
        limits.map(|(limit, state)| algorithms::judge(limit, state, op, now)).collect()
    }

    fn apply(&mut self, key: u8, op: Op, judged: &[Judgement], outcome: JointOutcome, now: Now) {
        let states = self.states.get_mut(&key).expect("judged before");
        for ((limit, state), judgement) in self.limits.iter().zip(states).zip(judged) {
            algorithms::apply(limit, state, op, judgement, outcome, now);
        }
    }

    /// Lets the limits that follow the wall clock see a request that was refused: they learn
    /// from it where the clock stands.
    fn refuse(&mut self, key: u8, op: Op, now: Now) {
        let judged = self.judge(key, op, now);
        let states = self.states.get_mut(&key).expect("judged before");
        for ((limit, state), judged) in self.limits.iter().zip(states).zip(&judged) {
            if matches!(limit.algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow) {
                algorithms::apply(limit, state, op, judged, JointOutcome::Refused, now);
            }
        }
    }

    /// The whole law of a request: all keys agree, or nothing is taken.
    fn decide(&mut self, keys: &[u8], op: Op, now: Now) -> (bool, Vec<(u8, Vec<Judgement>)>) {
        let mut judged: Vec<(u8, Vec<Judgement>)> = Vec::new();
        for &key in keys {
            if judged.iter().all(|(seen, _)| *seen != key) {
                let judgements = self.judge(key, op, now);
                judged.push((key, judgements));
            }
        }
        let all = || judged.iter().flat_map(|(_, judged)| judged);
        let allowed = all().all(|judged| judged.allowed);
        let mut op = op;
        // Of what may be taken in part, all limits grant the same: what the least of them has.
        if let (true, Op::TakeUpTo(_)) = (allowed, op) {
            op = Op::TakeUpTo(all().map(|judged| judged.granted).min().unwrap_or(0));
            for (key, judgements) in &mut judged {
                *judgements = self.judge(*key, op, now);
            }
        }
        for (key, judgements) in &judged {
            // A key's own limits are all or nothing with the others.
            let outcome = if allowed { JointOutcome::Granted } else { JointOutcome::Refused };
            self.apply(*key, op, judgements, outcome, now);
        }
        (allowed, judged)
    }
}
