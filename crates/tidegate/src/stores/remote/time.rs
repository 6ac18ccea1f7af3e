//! The store's time: the one that all nodes share, whatever their own clocks say.
//!
//! Every answer that tells the time bounds how far the store's clock is from ours: it was read
//! after we asked and before we heard. The distance moves only as far as a bound forces it, so
//! time goes on evenly between answers and does not jitter with the network. Pure.

use tidegate_core::{Nanos, Now};

/// How far the store's clock is ahead of our monotonic one. Modulo 2^64: it may stand behind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoreTime {
    ahead: Option<u64>,
}

impl StoreTime {
    /// What the store told in an exchange that began at `asked` and ended at `heard`, ours.
    pub(super) fn learn(&mut self, told: Nanos, asked: Nanos, heard: Nanos) {
        let least = told.wrapping_sub(heard);
        let room = heard.saturating_sub(asked);
        let ahead = match self.ahead {
            // The middle is the best guess where there is no other.
            None => least.wrapping_add(room / 2),
            Some(ahead) => {
                let over = ahead.wrapping_sub(least) as i64;
                least.wrapping_add(over.clamp(0, i64::try_from(room).unwrap_or(i64::MAX)) as u64)
            }
        };
        self.ahead = Some(ahead);
    }

    /// The store's time. One that tells none follows our wall clock.
    pub(super) fn at(&self, now: Now) -> Now {
        let unix = self.ahead.map_or(now.unix, |ahead| now.mono.wrapping_add(ahead));
        Now { mono: unix, unix }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the network does, the time is never outside of what the last answer allows.
        #[test]
        fn it_keeps_within_what_was_told(
            skew in -1_000_000_000_i64..1_000_000_000,
            exchanges in prop::collection::vec((1_u64..1_000, 0_u64..1_000, 0_u64..1_000), 1..50),
        ) {
            let mut time = StoreTime::default();
            let mut now = 5_000_000_000_u64;
            for (pause, out, back) in exchanges {
                let asked = now + pause;
                let told = (asked + out).saturating_add_signed(skew);
                now = asked + out + back;
                time.learn(told, asked, now);
                let at = time.at(Now { mono: now, unix: 0 }).unix;
                prop_assert!(at >= told && at <= told + out + back);
            }
        }

        /// Exact answers leave nothing to guess.
        #[test]
        fn a_fast_answer_is_believed(skew in -1_000_000_i64..1_000_000, slow in 0_u64..100_000) {
            let mut time = StoreTime::default();
            let true_at = |mono: u64| mono.saturating_add_signed(skew);
            time.learn(true_at(2_000_000 + slow), 2_000_000, 2_000_000 + 2 * slow);
            time.learn(true_at(5_000_000), 5_000_000, 5_000_000);
            prop_assert_eq!(time.at(Now { mono: 6_000_000, unix: 0 }).mono, true_at(6_000_000));
        }
    }

    #[test]
    fn a_store_without_a_clock_follows_ours() {
        let now = Now { mono: 5, unix: 77 };
        assert_eq!(StoreTime::default().at(now), Now { mono: 77, unix: 77 });
    }
}
