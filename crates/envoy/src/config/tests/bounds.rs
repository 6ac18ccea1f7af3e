//! No text panics or takes more memory than it may.

use proptest::prelude::*;

use super::{error_of, loaded};
use crate::config::{Options, load};

#[test]
fn aliases_and_nesting_are_bounded() {
    let mut bomb = "a0: &a0 [x, x]\n".to_owned();
    for at in 1..64 {
        bomb.push_str(&format!("a{at}: &a{at} [*a{0}, *a{0}]\n", at - 1));
    }
    assert!(error_of(&bomb).contains("with its aliases is too large"), "{}", error_of(&bomb));
    // Each alias is a level deeper, though the text is flat.
    let mut tower = "a0: &a0 [x]\n".to_owned();
    for at in 1..200 {
        tower.push_str(&format!("a{at}: &a{at} [*a{}]\n", at - 1));
    }
    assert!(error_of(&tower).contains("nested deeper than 100"), "{}", error_of(&tower));
    for deep in ["[".repeat(100_000), "- ".repeat(100_000), "{a: ".repeat(100_000)] {
        assert!(error_of(&deep).starts_with("test.yaml: error loading config file: yaml: line"));
    }
    assert!(error_of("a: &a [*a]").contains("contains itself"));
    let long = "#".repeat((4 << 20) + 1);
    assert!(error_of(&long).contains("longer than 4194304 bytes"));
}

#[test]
fn descriptors_are_as_deep_as_requests_can_be() {
    let nested = |depth: usize| {
        let inner = "{key: k, descriptors: [".repeat(depth - 1);
        format!("{{domain: d, descriptors: [{inner}{{key: k}}{}]}}", "]}".repeat(depth - 1))
    };
    loaded(&nested(32));
    assert_eq!(error_of(&nested(33)), "test.yaml: descriptors are nested deeper than 32");
}

#[test]
fn the_first_document_counts() {
    assert_eq!(loaded("domain: d\n---\ndomain: [").domains().collect::<Vec<_>>(), ["d"]);
    assert_eq!(loaded("--- # one\n{domain: d}\n...\n").domains().count(), 1);
}

/// Pieces that files are made of, so that random texts get past the first check.
fn piece() -> impl Strategy<Value = String> {
    let words = [
        "domain",
        "descriptors",
        "key",
        "value",
        "rate_limit",
        "unit",
        "requests_per_unit",
        "limit",
        "algorithm",
        "replaces",
        "metadata",
        "name",
        ": ",
        ":\n  ",
        "\n- ",
        "\n  - ",
        "{",
        "}",
        "[",
        "]",
        ", ",
        "*a",
        "&a ",
        "<<",
        "'",
        "\"",
        "|",
        ">",
        "!!str ",
        "~",
        "0x1F",
        "1.5",
        "-7",
        "true",
        "minute",
        "5/s",
        "gcra",
        "\n",
        "---",
        "#",
        "\t",
        "*",
    ];
    prop_oneof![
        8 => prop::sample::select(words.map(str::to_owned).to_vec()),
        1 => ".{0,3}",
    ]
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,200}") {
        let _ = load(&[("f", &text)], Options::default());
    }

    #[test]
    fn no_likely_text_panics(pieces in prop::collection::vec(piece(), 0..60)) {
        let _ = load(&[("f", &pieces.concat())], Options { merge_domains: true });
    }
}
