//! With room for every key the limiter says exactly what the plain law says, in both directions,
//! and the same whichever way it is asked.

use super::*;

#[derive(Clone, Debug)]
struct Step {
    keys: Vec<u8>,
    op: Op,
    wait: Nanos,
}

fn step() -> impl Strategy<Value = Step> {
    let op = prop_oneof![
        6 => Just(Op::Take(1)),
        1 => (1..3u64).prop_map(Op::Take),
        1 => (1..3u64).prop_map(Op::Peek),
        1 => (1..9u64).prop_map(Op::TakeUpTo),
    ];
    let keys = prop::collection::vec(0..5u8, 1..5);
    (keys, op, wait()).prop_map(|(keys, op, wait)| Step { keys, op, wait })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..120)
}

fn fits(limits: &[Limit], op: Op) -> bool {
    matches!(op, Op::TakeUpTo(_)) || limits.iter().all(|limit| op.cost() <= limit.capacity())
}

/// What a short answer shows: whether the request may go, and the rate, amount and period of the
/// first limit that refuses, else of the one nearest its amount.
fn shown_of(limits: &[Limit], judged: &[Judgement]) -> (bool, f64, u64, Nanos) {
    let refusing = judged.iter().position(|judged| !judged.allowed);
    let mut shown = 0;
    for (at, (limit, judged_here)) in limits.iter().zip(judged).enumerate() {
        let share = |limit: &Limit, judged: &Judgement| judged.rate / limit.amount as f64;
        if share(limit, judged_here) > share(&limits[shown], &judged[shown]) {
            shown = at;
        }
    }
    let shown = refusing.unwrap_or(shown);
    let Limit { amount, period, .. } = limits[shown];
    (refusing.is_none(), judged[shown].rate, amount, period)
}

proptest! {
    #![proptest_config(many_cases())]

    #[test]
    fn a_request_of_several_keys_is_decided_as_the_law_says(
        limits in prop::collection::vec(any_limit(), 1..4),
        steps in steps(),
    ) {
        let desk = desk(vec![rule("k", limits.clone())]);
        let mut model = Model::new(&limits);
        for Step { keys, op, wait } in steps {
            desk.limiter().clock().advance(wait);
            let now = desk.now();
            let names = names(&keys);
            let answer = desk.answer(&borrowed(&names), op, now);
            if !fits(&limits, op) {
                let unfit = matches!(answer, Err(Unfit::CostAboveLimit { .. }));
                prop_assert!(unfit, "{:?}", answer);
                continue;
            }
            let answer = answer.expect("fit");
            let (allowed, judged) = model.decide(&keys, op, now);
            prop_assert_eq!(answer.allowed, allowed);
            prop_assert_eq!(answer.refused_by.is_none(), allowed);
            prop_assert_eq!(answer.limits.len(), judged.len() * limits.len());
            let said = answer.limits.chunks(limits.len());
            for ((key, judged), said) in judged.iter().zip(said) {
                let states = &model.states[key];
                for (at, (judgement, said)) in judged.iter().zip(said).enumerate() {
                    let verdict =
                        algorithms::explain(&limits[at], &states[at], op, judgement, now);
                    prop_assert_eq!(keys[said.key], *key);
                    prop_assert_eq!(said.verdict, verdict);
                }
            }
        }
    }

    #[test]
    fn a_key_a_batch_and_a_request_with_rows_say_the_same(
        limits in prop::collection::vec(any_limit(), 1..4),
        steps in steps(),
    ) {
        let limiters: [Desk; 3] = [0, 1, 2].map(|_| desk(vec![rule("k", limits.clone())]));
        let [single, batch, whole] = &limiters;
        let mut model = Model::new(&limits);
        for Step { keys, op, wait } in steps {
            limiters.iter().for_each(|desk| desk.limiter().clock().advance(wait));
            let now = single.now();
            let names = names(&keys);
            let verdicts = decide_each(batch, &borrowed(&names), op, now);
            prop_assert_eq!(verdicts.len(), keys.len());
            for ((key, name), verdict) in keys.iter().zip(&names).zip(verdicts) {
                prop_assert_eq!(decide_one(single, name, op, now), verdict);
                let answer = whole.answer(&[name], op, now);
                if !fits(&limits, op) {
                    prop_assert_eq!(answer.err(), verdict.err());
                    continue;
                }
                let (allowed, judged) = model.decide(&[*key], op, now);
                let verdict = verdict.expect("fit");
                let shown = (verdict.is_allowed(), verdict.rate, verdict.amount, verdict.period);
                prop_assert_eq!(shown, shown_of(&limits, &judged[0].1));
                prop_assert_eq!(answer.expect("fit").allowed, allowed);
            }
            for key in (0..5).filter(|_| statistics_stay(now)) {
                let stats = single.limiter().stats(&name(key), now);
                prop_assert_eq!(batch.limiter().stats(&name(key), now), stats);
                prop_assert_eq!(whole.limiter().stats(&name(key), now), stats);
            }
        }
    }
}
