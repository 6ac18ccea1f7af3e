//! The limit grammar: what it reads, what it prints, and what it says when it cannot read.

use proptest::prelude::*;
use tidegate_core::limit::{
    AMOUNT_MAX, AlgorithmName, Duration, PERIOD_MAX, PERIOD_MIN, Spec, parse_duration,
};
use tidegate_core::time::{DAY, HOUR, MINUTE, SECOND};
use tidegate_core::{Algorithm, Limit};

use crate::common::config;

fn read(text: &str) -> Option<Limit> {
    Spec::parse(text).and_then(|spec| spec.with(None, None, None)).unwrap_or_else(|error| {
        panic!("{text:?}: {error:?}");
    })
}

fn check(text: &str, amount: u64, period: u64, algorithm: Algorithm) {
    assert_eq!(read(text), Some(Limit { amount, period, algorithm }), "{text:?}");
}

#[test]
fn the_contracts_forms() {
    let gcra = |burst| Algorithm::Gcra { burst };
    check("22 per 20s", 22, 20 * SECOND, gcra(22));
    check("100/min", 100, MINUTE, gcra(100));
    check("5/s burst 20", 5, SECOND, gcra(20));
    check("1000 per hour", 1000, HOUR, gcra(1000));
    check("  7 /  20 s  ", 7, 20 * SECOND, gcra(7));
    check("1/sec", 1, SECOND, gcra(1));
    check("10 per min", 10, MINUTE, gcra(10));
    check("9007199254740992 per 366 days", AMOUNT_MAX, PERIOD_MAX, gcra(AMOUNT_MAX));
    check("1 per 1000000ns", 1, PERIOD_MIN, gcra(1));
    check("100 in flight", 100, 0, Algorithm::InFlight { per_window: false });
    check("100 in flight per minute", 100, MINUTE, Algorithm::InFlight { per_window: true });
    check("100 in flight/20s", 100, 20 * SECOND, Algorithm::InFlight { per_window: true });
    check(" deny ", 0, 0, Algorithm::Deny);
    assert_eq!(read("none"), None);
}

#[test]
fn every_unit() {
    for (units, nanos) in [
        (&["ns"][..], 1),
        (&["us"], 1_000),
        (&["ms", "msec"], 1_000_000),
        (&["s", "sec", "second", "seconds"], SECOND),
        (&["m", "min", "minute", "minutes"], MINUTE),
        (&["h", "hr", "hour", "hours"], HOUR),
        (&["d", "day", "days"], DAY),
    ] {
        for unit in units {
            assert_eq!(parse_duration(&format!("3{unit}")), Ok(3 * nanos));
            assert_eq!(parse_duration(&format!(" 3 {unit} ")), Ok(3 * nanos));
        }
    }
    assert_eq!(parse_duration("0s"), Ok(0));
}

/// The text at fault, what is wrong with it, and a part of the remedy.
fn check_error(text: &str, at_fault: &str, message: &str, remedy: &str) {
    let error = Spec::parse(text).and_then(|spec| spec.with(None, None, None)).unwrap_err();
    assert_eq!(&text[error.span.clone()], at_fault, "{text:?}: {error:?}");
    assert!(error.message.contains(message), "{text:?}: {error:?}");
    assert!(error.remedy.contains(remedy), "{text:?}: {error:?}");
}

#[test]
fn errors_show_the_place_and_the_remedy() {
    check_error("", "", "the amount is missing", "22 per 20s");
    check_error("fast", "fast", "the amount is missing", "22 per 20s");
    check_error("1.5 per s", "1.5", "not a whole number", "`3 per 2s`");
    check_error("0.5/s", "0.5", "not a whole number", "write a whole amount: `1 per 2s`");
    check_error("0.25 per minute burst 3", "0.25", "not a whole number", "`1 per 4min`");
    check_error("2.50/s", "2.50", "not a whole number", "`5 per 2s`");
    check_error("0.0/s", "0.0", "not a whole number", "whole numbers from 1");
    check_error("0.5 in flight", "0.5", "not a whole number", "whole numbers from 1");
    check_error("0.1 per 366 days", "0.1", "not a whole number", "whole numbers from 1");
    check_error("1.2.3/s", "1.2.3", "not a whole number", "whole numbers from 1");
    check_error("5 per month", "month", "not a unit of time", "write days: `30d`");
    check_error("5 per 2 weeks", "weeks", "not a unit of time", "write days: `7d`");
    check_error("-1 per s", "-1", "not a whole number", "whole numbers from 1");
    check_error("0 per s", "0", "too small", "whole numbers from 1");
    check_error("9007199254740993/s", "9007199254740993", "too large", "9007199254740992");
    check_error("99999999999999999999/s", "99999999999999999999", "too large", "whole");
    check_error("100", "", "a period is missing", "100 per minute");
    check_error("100 burst 5", "burst", "a period is missing", "100/s");
    check_error("100 per", "", "a unit of time is missing", "20s");
    check_error("100 per 20", "", "a unit of time is missing", "20s");
    check_error("100 per 20 sek", "sek", "not a unit of time", "sec, second(s)");
    check_error("100 per 999us", "999us", "too short", "1ms to 366 days");
    check_error("100 per 0s", "0s", "too short", "1ms to 366 days");
    check_error("100 per 367 days", "367 days", "too long", "1ms to 366 days");
    check_error("100/s burst", "", "the number after `burst` is missing", "burst 20");
    check_error("100/s burst 0", "0", "too small", "whole numbers");
    check_error("100 in", "", "`flight` is missing", "100 in flight");
    check_error("100 in flight burst 5", "burst 5", "no meaning for uses in flight", "leave");
    check_error("none at all", "at all", "not expected", "must stand alone");
    check_error("deny 5/s", "5/s", "not expected", "`deny` must stand alone");
    check_error("100/s please", "please", "not expected", "22 per 20s");
    check_error("100 per Minute", "Minute", "not a unit", "minute(s)");
    check_error("100 € per s", "€", "a period is missing", "100 per minute");
}

#[test]
fn algorithms_take_what_is_theirs() {
    use AlgorithmName::*;
    let with = |text: &str, name, strict, exact| {
        Spec::parse(text).unwrap().with(Some(name), strict, exact)
    };
    for name in AlgorithmName::ALL {
        assert_eq!(AlgorithmName::parse(name.name()), Ok(name));
        let limit = with("5/s", name, None, None).unwrap().unwrap();
        assert_eq!(limit.algorithm.name(), name.name());
        let burst = with("5/s burst 6", name, None, None);
        assert_eq!(burst.is_ok(), matches!(name, Gcra | Smockron));
        if let Err(error) = burst {
            assert_eq!(error.span, 4..11);
        }
        assert_eq!(with("5/s", name, Some(true), None).is_ok(), name == Average);
        assert_eq!(with("5/s", name, None, Some(true)).is_ok(), name == Jarl);
        assert!(with("5 in flight", name, None, None).is_ok());
        assert_eq!(with("none", name, None, None), Ok(None));
        assert_eq!(with("deny", name, None, None).is_ok(), !matches!(name, Jarl | Smockron));
        let many = with("1000001/s", name, None, None);
        assert_eq!(many.is_ok(), !matches!(name, SlidingLog | Smockron));
        let more = with("10000001/s", name, None, None);
        assert_eq!(more.is_ok(), !matches!(name, SlidingLog | Smockron | Jarl));
        if let Err(error) = more {
            assert_eq!(error.span, 0..8);
        }
    }
    assert!(with("10000000/s", Jarl, None, Some(true)).is_ok());
    assert!(with("1/s burst 1000000", Smockron, None, None).is_ok());
    assert_eq!(with("1/s burst 1000001", Smockron, None, None).unwrap_err().span, 4..17);
    assert!(AlgorithmName::parse("in-flight").unwrap_err().remedy.contains("100 in flight"));
    assert!(AlgorithmName::parse("token").unwrap_err().remedy.contains("gcra, fixed-window"));
    assert!(AlgorithmName::parse("Token_Bucket").unwrap_err().remedy.contains("write `gcra`"));
}

#[test]
fn limits_are_shown_as_people_write_them() {
    for text in [
        "22 per 20s",
        "100 per minute",
        "5 per second burst 20",
        "1000 per hour",
        "1 per 7d",
        "3 per 1500ms",
        "100 in flight",
        "100 in flight per minute",
        "deny",
    ] {
        assert_eq!(read(text).unwrap().to_string(), text);
    }
}

proptest! {
    #![proptest_config(config(500))]

    #[test]
    fn what_is_shown_is_read_back(
        amount in prop_oneof![1..100_u64, 1..=AMOUNT_MAX],
        burst in prop_oneof![1..100_u64, 1..=AMOUNT_MAX],
        period in prop_oneof![
            PERIOD_MIN..=PERIOD_MAX,
            (1..=366_u64).prop_map(|days| days * DAY),
            (1..10_000_u64).prop_map(|seconds| seconds * SECOND),
        ],
        kind in 0..3,
    ) {
        let (period, algorithm) = match kind {
            0 => (period, Algorithm::Gcra { burst }),
            1 => (period, Algorithm::InFlight { per_window: true }),
            _ => (0, Algorithm::InFlight { per_window: false }),
        };
        let limit = Limit { amount, period, algorithm };
        prop_assert_eq!(read(&limit.to_string()), Some(limit));
        prop_assert_eq!(parse_duration(&Duration(period).to_string()), Ok(period));
    }

    /// Whatever the text, there is an answer, and an error points into the text.
    #[test]
    fn any_text_has_an_answer(
        text in prop_oneof![
            ".{0,20}",
            "[0-9 ./a-z+-]{0,20}",
            "[0-9]{0,4} ?(per|/|in|in flight|) ?[0-9]{0,22} ?(s|min|days|x|) ?(burst|) ?[0-9]{0,3}",
        ],
    ) {
        for error in [Spec::parse(&text).err(), parse_duration(&text).err()].into_iter().flatten() {
            prop_assert!(text.get(error.span.clone()).is_some());
            prop_assert!(!error.message.is_empty() && !error.remedy.is_empty());
        }
    }
}
