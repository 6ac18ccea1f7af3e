//! The figures that the protocols' documents give.

use tidegate_core::time::{MILLISECOND, SECOND};
use tidegate_core::{Algorithm, Nanos, Now, Op};

use crate::common::{Key, at};

/// `10.3 Y` for each use, at times in milliseconds.
fn check_average(strict: bool, amount: u64, period_s: u64, uses: &[(u64, &str)]) {
    let mut key = Key::new(amount, period_s * SECOND, Algorithm::Average { strict });
    for (index, &(at_ms, expected)) in uses.iter().enumerate() {
        let verdict = key.take(1, at(at_ms * MILLISECOND));
        let over = if verdict.allowed { 'N' } else { 'Y' };
        assert_eq!(format!("{over} {:.1}", verdict.rate), expected, "use {index} at {at_ms} ms");
    }
}

#[test]
fn average_with_gaps() {
    let readings = "0.0 1.0 1.9 2.8 3.7 4.6 5.5 6.3 7.2 8.0 8.8 9.5";
    let mut at_ms = 1000;
    let mut uses: Vec<(u64, String)> = Vec::new();
    for (index, reading) in readings.split(' ').enumerate() {
        at_ms += match index {
            0 => 0,
            1..=3 => 100,
            _ => 50,
        };
        uses.push((at_ms, format!("N {reading}")));
    }
    uses.push((at_ms + 50, "Y 10.3".into()));
    for (strict, last) in [(true, "Y 11.0"), (false, "Y 10.0")] {
        let mut uses: Vec<(u64, &str)> = uses.iter().map(|(at, text)| (*at, &**text)).collect();
        uses.push((at_ms + 100, last));
        check_average(strict, 10, 2, &uses);
    }
}

#[test]
fn average_at_one_instant() {
    let readings: Vec<String> =
        (0..26).map(|n| format!("{} {n}.0", if n < 22 { 'N' } else { 'Y' })).collect();
    let mut uses: Vec<(u64, &str)> = readings.iter().map(|text| (5000, &**text)).collect();
    uses.extend([(6000, "Y 24.8"), (16000, "N 15.8")]);
    check_average(true, 22, 20, &uses);
}

fn check_jarl(exact: bool, amount: u64, period_s: u64, arrivals_ms: &[u64], expected: &str) {
    let mut key = Key::new(amount, period_s * SECOND, Algorithm::Jarl { exact });
    let mut answers = Vec::new();
    for &arrival in arrivals_ms {
        let peeked = key.peek(1, at(arrival * MILLISECOND));
        let verdict = key.take(1, at(arrival * MILLISECOND));
        assert_eq!(peeked.delay, verdict.delay, "a peek tells what a booking would");
        assert_eq!(verdict.allowed, verdict.delay == 0);
        answers.push(format!("{:.3}", verdict.delay as f64 / SECOND as f64));
    }
    assert_eq!(answers.join(" "), expected);
}

#[test]
fn jarl_by_the_document() {
    check_jarl(
        false,
        3,
        2,
        &[100_000, 100_000, 100_000, 100_000, 100_500, 101_000, 102_000, 102_000, 102_600, 103_000],
        "0.000 0.000 0.000 2.667 2.833 3.000 0.000 1.167 1.733 3.000",
    );
    check_jarl(
        false,
        1,
        1,
        &[100_000, 100_000, 100_500, 101_500, 101_900],
        "0.000 2.000 2.500 0.000 1.600",
    );
}

#[test]
fn jarl_exact_books_starts() {
    check_jarl(
        true,
        2,
        1,
        &[100_000, 100_000, 100_000, 100_250, 100_250, 102_500, 104_000],
        "0.000 0.000 1.000 0.750 1.750 0.000 0.000",
    );
}

/// Each step is a moment in nanoseconds and the time of the next use after recording one then.
fn check_smockron(amount: u64, period: Nanos, burst: u64, steps: &[(Nanos, Option<Nanos>)]) {
    let mut key = Key::new(amount, period, Algorithm::Smockron { burst });
    for &(moment, expected) in steps {
        let verdict = key.ask(Op::Record { cost: 1, at: moment }, at(moment));
        let next = (verdict.delay > 0).then(|| moment + verdict.delay);
        assert_eq!(next, expected, "after a record at {moment}");
        let peeked = key.peek(1, at(moment));
        assert_eq!((peeked.allowed, peeked.delay), (expected.is_none(), verdict.delay));
    }
}

#[test]
fn smockron_is_not_gcra() {
    let s = |tenths: u64| 100 * SECOND + tenths * SECOND / 10;
    let steps = [(s(0), None), (s(15), Some(s(25))), (s(15), Some(s(25)))];
    check_smockron(1, SECOND, 2, &steps);
    let mut gcra = Key::new(1, SECOND, Algorithm::Gcra { burst: 2 });
    for (moment, _) in steps {
        assert!(gcra.take(1, at(moment)).allowed);
    }
}

#[test]
fn smockron_first_delay_follows_the_burst() {
    let now = 50 * SECOND;
    // A third of a second is not a whole number of milliseconds: the next nanosecond counts.
    let next = Some(now + 333_333_334);
    check_smockron(3, SECOND, 3, &[(now, None), (now, None), (now, next), (now, next)]);
}

#[test]
fn smockron_counts_delayed_uses_ahead_of_now() {
    let mut key = Key::new(1, SECOND, Algorithm::Smockron { burst: 1 });
    let now = at(10 * SECOND);
    assert_eq!(key.ask(Op::Record { cost: 1, at: now.mono }, now).delay, SECOND);
    assert_eq!(key.ask(Op::Record { cost: 1, at: now.mono + SECOND }, now).delay, 2 * SECOND);
    assert!(!key.take(1, now.after(2 * SECOND - 1)).allowed);
    assert!(key.take(1, now.after(2 * SECOND)).allowed);
}

#[test]
fn fixed_window_follows_the_wall_clock_but_not_back() {
    let minute = 60 * SECOND;
    let mut key = Key::new(2, minute, Algorithm::FixedWindow);
    let wall = |mono: Nanos, unix_s: u64| Now { mono: mono * SECOND, unix: unix_s * SECOND };
    // 1_000_020 is a whole number of minutes.
    assert!(key.take(2, wall(100, 1_000_050)).allowed);
    assert_eq!(key.take(1, wall(101, 1_000_051)).delay, 29 * SECOND);
    // Back by an hour: stays for what was left of the minute, then follows.
    assert_eq!(key.take(1, wall(102, 996_452)).delay, 28 * SECOND);
    assert!(!key.take(1, wall(129, 996_479)).allowed);
    assert!(key.take(1, wall(130, 996_480)).allowed);
    // Forward: the newer window opens.
    assert!(key.take(2, wall(131, 1_000_080)).allowed);
}
