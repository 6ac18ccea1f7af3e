//! Whether uses stayed within a limit. Envoy let a use pass at some moment between its sending and
//! its arrival: only what must have passed within a span counts in it, so a busy machine makes no
//! use look like two.

use std::time::Duration;

/// A request that passed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    pub(super) sent: Duration,
    pub(super) arrived: Duration,
}

/// The most that passed in any span t beyond `burst + per_s * t`.
pub(super) fn overshoot(uses: &[Use], per_s: f64, burst: f64) -> f64 {
    let mut by_arrival = uses.to_vec();
    by_arrival.sort_by_key(|one| one.arrived);
    let mut worst = f64::MIN;
    for first in uses {
        let mut count = 0.0;
        for one in by_arrival.iter().filter(|one| one.sent >= first.sent) {
            count += 1.0;
            let span = (one.arrived - first.sent).as_secs_f64();
            worst = worst.max(count - burst - per_s * span);
        }
    }
    worst
}

/// The most that passed in any window of the wall clock, where the start was at `began`.
pub(super) fn busiest_window(uses: &[Use], began: Duration, window: Duration) -> usize {
    let of = |at: Duration| (began + at).as_nanos() / window.as_nanos();
    let within = uses.iter().filter(|one| of(one.sent) == of(one.arrived));
    let mut windows = std::collections::BTreeMap::new();
    within.for_each(|one| *windows.entry(of(one.sent)).or_insert(0_usize) += 1);
    windows.into_values().max().unwrap_or(0)
}

#[test]
fn an_oracle_sees_what_is_too_much() {
    let at = |ms: u64| {
        let sent = Duration::from_millis(ms);
        Use { sent, arrived: sent + Duration::from_millis(1) }
    };
    // Ten at once and then ten each second: the eleventh of the first millisecond is too much.
    let paced = |first: u64| (0..first).map(|_| at(0)).chain((1..50).map(|n| at(n * 100)));
    assert!(overshoot(&paced(10).collect::<Vec<_>>(), 10.0, 10.0) <= 0.0);
    assert!(overshoot(&paced(11).collect::<Vec<_>>(), 10.0, 10.0) > 0.9);
    let began = Duration::from_millis(500);
    assert_eq!(busiest_window(&[at(0), at(499), at(501)], began, Duration::from_secs(1)), 1);
    assert_eq!(busiest_window(&[at(501), at(600)], began, Duration::from_secs(1)), 2);
}
