//! The durable form of states: what is read is what was written, and garbage is refused.

use proptest::prelude::*;
use tidegate_core::state::DecodeError;
use tidegate_core::{LimitVerdict, Now, State};

use crate::common::{Key, config, steps};
use crate::promises::{limits, op, walk};

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn states_are_read_back(limit in limits(), steps in steps(true, false), cut in any::<u16>()) {
        let mut key = Key::new(limit.amount, limit.period, limit.algorithm);
        let mut walk = walk(&limit);
        for step in &steps {
            let now = walk.step(step);
            key.ask(op(&limit, step, now), now);
        }
        let mut bytes = b"before".to_vec();
        key.state.encode(&mut bytes);
        let bytes = &bytes[6..];
        prop_assert_eq!(State::decode(bytes), Ok(key.state.clone()));
        // A log cut between two runs is a shorter log, and a bucket without its last word is one
        // that was never busy. All else is refused.
        let cut = usize::from(cut) % bytes.len();
        if let Ok(shorter) = State::decode(&bytes[..cut]) {
            prop_assert!(shorter != key.state);
            let lost = bytes.len() - cut;
            let is_calm_bucket = matches!(key.state, State::Gcra(_)) && lost == 8;
            prop_assert!(lost.is_multiple_of(16) || is_calm_bucket, "{lost} bytes");
        }
    }

    #[test]
    fn garbage_never_panics(
        version in 0..3_u8,
        tag in 0..12_u8,
        rest in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut bytes = vec![version, tag];
        bytes.extend(rest);
        if let Ok(state) = State::decode(&bytes) {
            let mut again = Vec::new();
            state.encode(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }

    /// Moved to another boot, a state answers as it did, if the clock is moved with it.
    #[test]
    fn a_shift_moves_the_state_with_the_clock(
        limit in limits(),
        steps in steps(false, false),
        offset in -70_000_000_000..1_i64 << 60,
    ) {
        let mut key = Key::new(limit.amount, limit.period, limit.algorithm);
        let mut walk = walk(&limit);
        let half = steps.len() / 2;
        for step in &steps[..half] {
            let now = walk.step(step);
            key.ask(op(&limit, step, now), now);
        }
        let mut moved = key.clone();
        moved.state.shift(offset);
        for step in &steps[half..] {
            let now = walk.step(step);
            let there = Now { mono: now.mono.saturating_add_signed(offset), unix: now.unix };
            let one = key.ask(op(&limit, step, now), now);
            let other = moved.ask(op(&limit, step, there), there);
            // What lies beyond the end of time is cut off there, on whichever clock.
            let cut = |verdict: LimitVerdict| LimitVerdict {
                delay: verdict.delay.min(1 << 62),
                reset: verdict.reset.min(1 << 62),
                ..verdict
            };
            prop_assert_eq!(cut(one), cut(other));
        }
    }
}

#[test]
fn errors_say_what_is_wrong() {
    assert_eq!(State::decode(&[]), Err(DecodeError::Length));
    assert_eq!(State::decode(&[1]), Err(DecodeError::Length));
    assert_eq!(State::decode(&[1, 0]), Ok(State::None));
    assert_eq!(State::decode(&[1, 0, 0]), Err(DecodeError::Length));
    assert_eq!(State::decode(&[2, 0]), Err(DecodeError::Version(2)));
    assert_eq!(State::decode(&[1, 99]), Err(DecodeError::Algorithm(99)));
    assert_eq!(State::decode(&[1, 1, 0]), Err(DecodeError::Length));
    let mut not_a_number = vec![1, 5];
    not_a_number.extend([0; 8]);
    not_a_number.extend(f64::NAN.to_le_bytes());
    assert_eq!(State::decode(&not_a_number), Err(DecodeError::Value));
    // A run without uses.
    let mut empty_run = vec![1, 4];
    empty_run.extend([0; 16]);
    assert_eq!(State::decode(&empty_run), Err(DecodeError::Value));
}
