//! The part of a limit that one of several replicas has.
//!
//! Each replica decides alone, without asking the others; so the parts are cut in such a way that
//! together they never allow more than the whole. Nothing here knows where the replicas are.

use super::{Algorithm, Limit};

/// The most replicas among which a limit can be split.
pub const REPLICAS_MAX: u64 = 10_000;

/// One of several replicas, as far as it matters for its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaShare {
    replicas: u64,
    /// Which of them, from 1; `None` where the configuration does not say.
    replica: Option<u64>,
}

impl ReplicaShare {
    /// All of it: there is one replica.
    pub const WHOLE: ReplicaShare = ReplicaShare { replicas: 1, replica: None };

    /// The share of one of `replicas`; `None` where there is no such replica. Replicas are counted
    /// from 1.
    #[must_use]
    pub fn new(replicas: u64, replica: Option<u64>) -> Option<Self> {
        let known = replica.is_none_or(|replica| (1..=replicas).contains(&replica));
        ((1..=REPLICAS_MAX).contains(&replicas) && known).then_some(Self { replicas, replica })
    }

    /// Its part of an amount. The first replicas have one more each where the amount cannot be
    /// divided evenly; one that does not know which it is goes without.
    #[must_use]
    pub fn of(&self, amount: u64) -> u64 {
        let left_over = amount % self.replicas;
        let one_more = self.replica.is_some_and(|replica| replica <= left_over);
        amount / self.replicas + u64::from(one_more)
    }

    /// Its part of a limit, burst and all. Where nothing is left for it, the amount is 0: a limit
    /// that never allows a use, whatever the algorithm was.
    #[must_use]
    pub fn of_limit(&self, limit: &Limit) -> Limit {
        let algorithm = match limit.algorithm {
            Algorithm::Deny => return *limit,
            Algorithm::Gcra { burst } => Algorithm::Gcra { burst: self.of(burst) },
            Algorithm::Smockron { burst } => Algorithm::Smockron { burst: self.of(burst) },
            other @ (Algorithm::FixedWindow
            | Algorithm::SlidingWindow
            | Algorithm::SlidingLog
            | Algorithm::Average { .. }
            | Algorithm::Jarl { .. }
            | Algorithm::InFlight { .. }
            | Algorithm::Throttle { .. }) => other,
        };
        let part = Limit { amount: self.of(limit.amount), algorithm, ..*limit };
        match part.amount.min(part.capacity()) {
            0 if part.ends() => Limit { amount: 0, ..part },
            // Other algorithms divide by their amount, or let a first use pass whatever it is.
            0 => Limit { amount: 0, algorithm: Algorithm::FixedWindow, ..part },
            _ => part,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{AMOUNT_MAX, AlgorithmName, Spec};
    use crate::{Now, Op, State, algorithms};

    fn shares(replicas: u64) -> Vec<ReplicaShare> {
        (1..=replicas).map(|replica| ReplicaShare::new(replicas, Some(replica)).unwrap()).collect()
    }

    #[test]
    fn replicas_are_counted_from_one() {
        assert_eq!(ReplicaShare::new(3, Some(0)), None);
        assert_eq!(ReplicaShare::new(3, Some(4)), None);
        assert_eq!(ReplicaShare::new(0, None), None);
        assert_eq!(ReplicaShare::new(REPLICAS_MAX + 1, None), None);
        assert_eq!(ReplicaShare::new(1, None), Some(ReplicaShare::WHOLE));
        assert_eq!(shares(3).iter().map(|share| share.of(100)).collect::<Vec<_>>(), [34, 33, 33]);
        assert_eq!(ReplicaShare::new(3, None).unwrap().of(100), 33);
    }

    #[test]
    fn what_is_left_with_nothing_allows_nothing() {
        let now = Now { mono: 1, unix: 1 };
        for name in AlgorithmName::ALL {
            for text in ["2 per 20s", "2 in flight", "2 in flight per minute"] {
                let whole = Spec::parse(text).unwrap().with(Some(name), None, None);
                let part =
                    ReplicaShare::new(3, Some(3)).unwrap().of_limit(&whole.unwrap().unwrap());
                assert_eq!(part.amount, 0, "{name} {text}");
                let judgement = algorithms::judge(&part, &State::default(), Op::Take(1), now);
                assert!(!judgement.allowed, "{name} {text}");
                let state = State::default();
                let verdict = algorithms::explain(&part, &state, Op::Take(1), &judgement, now);
                assert_eq!((verdict.remaining, verdict.delay), (0, u64::MAX), "{name} {text}");
            }
        }
    }

    #[test]
    fn a_burst_without_a_part_leaves_nothing() {
        let whole = Spec::parse("5/s burst 1").unwrap().with(None, None, None).unwrap().unwrap();
        let [first, second] =
            [1, 2].map(|k| ReplicaShare::new(2, Some(k)).unwrap().of_limit(&whole));
        assert_eq!(first.to_string(), "3 per second burst 1");
        assert_eq!(second.to_string(), "0 per second");
    }

    proptest::proptest! {
        #[test]
        fn the_parts_are_even_and_their_sum_is_the_whole(
            amount in proptest::prop_oneof![0u64..200, 1..=AMOUNT_MAX],
            replicas in proptest::prop_oneof![1u64..20, 1..=REPLICAS_MAX],
        ) {
            let parts: Vec<u64> = shares(replicas).iter().map(|share| share.of(amount)).collect();
            // The obvious model: deal the amount out one by one, as far as that is quick.
            if amount < 200 {
                let mut dealt = vec![0; parts.len()];
                (0..amount).zip((0..parts.len()).cycle()).for_each(|(_, to)| dealt[to] += 1);
                assert_eq!(parts, dealt);
            }
            assert_eq!(parts.iter().sum::<u64>(), amount);
            assert!(parts.iter().max().unwrap() - parts.iter().min().unwrap() <= 1);
            // Without knowing which is which, all take the smallest part.
            let unknown = ReplicaShare::new(replicas, None).unwrap().of(amount);
            assert_eq!(unknown, *parts.iter().min().unwrap());
        }

        #[test]
        fn no_part_of_a_limit_is_ever_more_than_the_whole(
            amount in 1u64..1_000,
            burst in 1u64..1_000,
            replicas in 1u64..50,
            known in proptest::bool::ANY,
        ) {
            for algorithm in [Algorithm::Gcra { burst }, Algorithm::Smockron { burst }] {
                let whole = Limit { amount, period: 1_000_000, algorithm };
                let share = |k| ReplicaShare::new(replicas, known.then_some(k)).unwrap();
                let part = |k| share(k).of_limit(&whole);
                let parts: Vec<Limit> = (1..=replicas).map(part).collect();
                assert!(parts.iter().map(|part| part.amount).sum::<u64>() <= amount);
                assert!(parts.iter().map(Limit::capacity).sum::<u64>() <= burst.max(amount));
                let bursts = parts.iter().filter(|part| part.amount > 0).map(Limit::capacity);
                assert!(bursts.sum::<u64>() <= burst);
            }
        }
    }
}
