//! One state for several keys: it never allows what one of them alone would not.

use proptest::prelude::*;
use tidegate_core::algorithms::{apply, join};
use tidegate_core::{Algorithm, JointOutcome, Op};

use crate::common::{Key, Step, config, steps};
use crate::promises::{limits, walk};

fn follows_the_wall(key: &Key) -> bool {
    matches!(key.limit.algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow)
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn a_joined_state_holds_for_each_of_its_keys(
        limit in limits().prop_filter("given back", |limit| !limit.ends()),
        before in steps(true, false),
        after in steps(true, false),
    ) {
        let mut keys = vec![Key::new(limit.amount, limit.period, limit.algorithm); 3];
        let mut walk = walk(&limit);
        let cost = |step: &Step| step.cost.min(limit.capacity());
        for step in &before {
            let now = walk.step(step);
            keys[usize::from(step.kind % 3)].take(cost(step), now);
        }
        let mut joined = keys[0].clone();
        joined.state.share();
        keys[1..].iter().for_each(|key| join(&limit, &mut joined.state, &key.state));
        for step in &after {
            let now = walk.step(step);
            let op = Op::Take(cost(step));
            let allowed = joined.take(cost(step), now).allowed;
            joined.state.share();
            // One key asks; the others learn nothing of it.
            let key = &mut keys[usize::from(step.kind % 3)];
            let judgement = key.judge(op, now);
            prop_assert!(judgement.allowed || !allowed, "{key:?} at {now:?}");
            if allowed {
                apply(&limit, &mut key.state, op, &judgement, JointOutcome::Granted, now);
            } else if follows_the_wall(key) {
                apply(&limit, &mut key.state, op, &judgement, JointOutcome::Refused, now);
            }
        }
    }
}
