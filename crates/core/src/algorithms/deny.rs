//! The limit `deny`: every use is refused, and nothing is remembered.

use super::{Law, judge_room, until_allowed};
use crate::limit::Limit;
use crate::state::State;
use crate::time::{Nanos, Now};
use crate::verdict::{JointOutcome, Judgement, LimitVerdict, Op};

/// What is remembered.
pub(crate) struct Nothing;

/// The algorithm.
pub(crate) struct Deny;

impl Law for Deny {
    type Memory = Nothing;

    fn read(_: &State) -> Option<&Nothing> {
        None
    }

    fn unwrap(_: State) -> Option<Nothing> {
        None
    }

    fn wrap(_: Nothing) -> State {
        State::None
    }

    fn judge(_: &Limit, _: Option<&Nothing>, op: Op, _: Now) -> Judgement {
        judge_room(op, 0, 0.0)
    }

    fn apply(
        _: &Limit,
        _: Option<Nothing>,
        _: Op,
        _: &Judgement,
        _: JointOutcome,
        _: Now,
    ) -> Option<Nothing> {
        None
    }

    fn explain(
        _: &Limit,
        _: Option<&Nothing>,
        op: Op,
        judgement: &Judgement,
        _: Now,
    ) -> LimitVerdict {
        let delay = until_allowed(op, judgement, |_| Nanos::MAX);
        let Judgement { allowed, rate, .. } = *judgement;
        LimitVerdict { allowed, remaining: 0, rate, delay, reset: Nanos::MAX }
    }

    fn forgotten(_: &Limit, _: &Nothing, _: Now) -> bool {
        true
    }

    fn join(_: &Limit, _: &Nothing, _: &Nothing) -> Nothing {
        Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms;
    use crate::time::DAY;

    #[test]
    fn nothing_passes_and_nothing_is_remembered() {
        let mut state = State::None;
        for at in [0, 1, DAY, Nanos::MAX] {
            let now = Now { mono: at, unix: at };
            for op in [Op::Peek(1), Op::Take(1), Op::Take(u64::MAX), Op::TakeUpTo(7)] {
                let judgement = algorithms::judge(&Limit::DENY, &state, op, now);
                assert!(!judgement.allowed && judgement.granted == 0, "{op:?}");
                algorithms::apply(
                    &Limit::DENY,
                    &mut state,
                    op,
                    &judgement,
                    JointOutcome::Refused,
                    now,
                );
                let verdict = algorithms::explain(&Limit::DENY, &state, op, &judgement, now);
                assert_eq!((verdict.allowed, verdict.remaining), (false, 0), "{op:?}");
                assert_eq!((verdict.delay, verdict.reset), (Nanos::MAX, Nanos::MAX), "{op:?}");
                assert_eq!(state, State::None);
            }
            assert!(!algorithms::take(&Limit::DENY, &mut state, 1, now).allowed);
            assert_eq!(algorithms::record(&Limit::DENY, &mut state, 1, at, now).next, Nanos::MAX);
            assert_eq!(state, State::None);
        }
    }
}
