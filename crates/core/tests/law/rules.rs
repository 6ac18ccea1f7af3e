//! Patterns against a slow recursive matcher, and look-up against trying every rule in order.

use proptest::prelude::*;
use tidegate_core::rules::{Consistency, OnFull, OnStoreError, Pattern, Rule, RuleSet};

use crate::common::config;

/// The pattern as it is written, read one character at a time.
fn slow(pattern: &[u8], key: &[u8]) -> bool {
    match pattern {
        [] => key.is_empty(),
        [b'\\', escaped @ (b'*' | b'\\'), rest @ ..] => {
            key.first() == Some(escaped) && slow(rest, &key[1..])
        }
        [b'*', rest @ ..] => (0..=key.len()).any(|skip| slow(rest, &key[skip..])),
        [byte, rest @ ..] => key.first() == Some(byte) && slow(rest, &key[1..]),
    }
}

fn rule(text: &str) -> Rule {
    Rule {
        name: text.into(),
        pattern: Pattern::new(text),
        limits: Vec::new(),
        shared: false,
        shadow: false,
        consistency: Consistency::default(),
        on_store_error: OnStoreError::default(),
        on_full: OnFull::default(),
    }
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn patterns_match_as_written(pattern in r"[ab*\\]{0,8}", key in r"[ab*\\]{0,10}") {
        let expected = slow(pattern.as_bytes(), key.as_bytes());
        prop_assert_eq!(Pattern::new(&pattern).matches(key.as_bytes()), expected);
        prop_assert_eq!(Pattern::exact(key.as_bytes()).matches(pattern.as_bytes()), key == pattern);
    }

    /// Keys that come from the pattern itself match far more often than random ones.
    #[test]
    fn filled_patterns_match(
        parts in prop::collection::vec("[ab]{0,3}", 1..5),
        fill in "[ab]{0,3}",
    ) {
        let pattern = Pattern::new(&parts.join("*"));
        prop_assert!(pattern.matches(parts.join(&fill).as_bytes()));
    }

    /// Patterns begin with more or less of what the key begins with: shorter than a word of the
    /// machine, as long, and longer.
    #[test]
    fn the_first_match_decides(
        beginning in "[ab]{0,10}",
        patterns in prop::collection::vec((0..=10_usize, r"[ab]{0,2}[*]?[ab]{0,2}"), 0..12),
        default in any::<bool>(),
        rest in "[ab]{0,4}",
    ) {
        let key = format!("{beginning}{rest}");
        let begin = |length: usize| &beginning[..length.min(beginning.len())];
        let patterns: Vec<String> =
            patterns.iter().map(|(length, text)| format!("{}{text}", begin(*length))).collect();
        let rules: Vec<Rule> = patterns.iter().map(|text| rule(text)).collect();
        let count = rules.len();
        let set = RuleSet::new(rules, default.then(|| rule("*")));
        let first = patterns.iter().position(|text| slow(text.as_bytes(), key.as_bytes()));
        prop_assert_eq!(set.find(key.as_bytes()), first.or(default.then_some(count)));
    }
}
