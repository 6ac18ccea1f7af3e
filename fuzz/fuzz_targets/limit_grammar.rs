//! Any text as a limit: an error that points into the text, or a limit within its bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_core::limit::{AMOUNT_MAX, AlgorithmName, PERIOD_MAX, PERIOD_MIN, Spec};

fuzz_target!(|text: &str| {
    let spec = match Spec::parse(text) {
        Ok(spec) => spec,
        Err(error) => {
            assert!(text.get(error.span).is_some(), "the place of the error is in the text");
            assert!(!error.message.is_empty() && !error.remedy.is_empty());
            return;
        }
    };
    for name in AlgorithmName::ALL {
        for flag in [None, Some(false), Some(true)] {
            match spec.with(Some(name), flag, flag) {
                Ok(Some(limit)) if limit.denies() => assert_eq!(limit.to_string(), "deny"),
                Ok(Some(limit)) => {
                    assert!((1..=AMOUNT_MAX).contains(&limit.amount));
                    assert!((1..=AMOUNT_MAX).contains(&limit.capacity()));
                    let in_flight = limit.algorithm.name() == "in-flight";
                    assert!(
                        (PERIOD_MIN..=PERIOD_MAX).contains(&limit.period)
                            || in_flight && limit.period == 0
                    );
                }
                Ok(None) => {}
                Err(error) => assert!(text.get(error.span).is_some()),
            }
        }
    }
});
