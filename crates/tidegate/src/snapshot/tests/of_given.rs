//! Buckets whose limits come with each request: kept by a restart, though no rule says how many
//! uses they allow.

use super::*;

/// Three uses in seven hours, five at once: an interval is no whole number of nanoseconds.
const LIMIT: Limit =
    Limit { amount: 3, period: 7 * HOUR, algorithm: Algorithm::Throttle { burst: 5 } };

fn given(now: Now) -> LimiterHandle {
    let rules = vec![Rule::of_given_limits("resp:throttle")];
    handle(now, rules).limiter().handle(Door::Resp)
}

fn look(handle: &LimiterHandle, uses: usize) -> Said {
    decide(handle, Key::peek(format!("key {uses}").as_bytes(), 1).limited_by(&LIMIT))
}

/// A server in which the key numbered `n` has had `n` uses, of six that were asked for.
fn used() -> LimiterHandle {
    let handle = given(START);
    for uses in 0..7 {
        let key = format!("key {uses}");
        let take = || decide(&handle, Key::take(key.as_bytes(), 1).limited_by(&LIMIT)).allowed;
        let taken = (0..uses).filter(|_| take()).count();
        assert_eq!(taken, uses.min(5));
    }
    handle
}

#[test]
fn a_bucket_owes_as_much_after_a_restart() {
    let before = used();
    let (_folder, path) = written(&before);
    for away in [0, MINUTE, HOUR] {
        before.limiter().clock().advance(away);
        let after = given(before.now());
        let restored = Snapshot::read(after.limiter(), &records(), &path).expect("sound");
        assert_eq!((restored.keys, restored.dropped), (6, 0));
        (0..7).for_each(|uses| assert_eq!(look(&after, uses), look(&before, uses), "{uses}"));
    }
}

#[test]
fn a_bucket_ages_by_the_wall_clock_while_the_machine_is_off() {
    let before = used();
    let (_folder, path) = written(&before);
    as_of_another_boot(&path);
    for away in [0, SECOND, 5 * HOUR, 13 * HOUR] {
        let after = given(Now { mono: 401 * DAY, unix: START.unix + away });
        Snapshot::read(after.limiter(), &records(), &path).expect("sound");
        let expected = used();
        expected.limiter().clock().advance(away);
        (0..7).for_each(|uses| {
            assert_eq!(look(&after, uses), look(&expected, uses), "{uses} after {away}");
        });
    }
}
