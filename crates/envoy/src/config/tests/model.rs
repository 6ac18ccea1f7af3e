//! Lookups, compared with a slow and obvious model over small random trees.

use proptest::prelude::*;

use super::Options;
use crate::config::source::{DescriptorNode, DomainNode, RateLimitNode};
use crate::config::{Configuration, Found, load_nodes};

/// A tree of few keys and values, so that they often meet.
pub(super) fn descriptor_trees() -> impl Strategy<Value = Vec<DescriptorNode>> {
    let leaf = (
        prop::sample::select(vec!["a", "b", "a_b"]),
        prop::sample::select(vec!["", "", "x", "y", "x y", "x*", "*y", "x*y", "*"]),
        prop::option::of(1..5000_u32),
        any::<bool>(),
    )
        .prop_map(|(key, value, amount, share)| DescriptorNode {
            key: key.to_owned(),
            value: value.to_owned(),
            share_threshold: share && value.contains('*'),
            rate_limit: amount.map(|requests_per_unit| RateLimitNode {
                unit: "minute".to_owned(),
                requests_per_unit,
                ..RateLimitNode::default()
            }),
            ..DescriptorNode::default()
        });
    let level = prop::collection::vec(leaf, 0..6).prop_map(unique);
    level.prop_recursive(3, 60, 6, |inner| {
        prop::collection::vec((inner.clone(), inner), 0..3).prop_map(|parts| {
            let mut nodes = Vec::new();
            for (mut outer, inner) in parts {
                if let Some(first) = outer.first_mut() {
                    first.descriptors = inner;
                }
                nodes.extend(outer);
            }
            unique(nodes)
        })
    })
}

fn unique(nodes: Vec<DescriptorNode>) -> Vec<DescriptorNode> {
    let mut seen = std::collections::HashSet::new();
    { nodes.into_iter() }
        .filter(|node| seen.insert(super::super::tree::composite(&node.key, &node.value)))
        .collect()
}

pub(super) fn descriptors() -> impl Strategy<Value = Vec<(String, String)>> {
    let key = prop::sample::select(vec!["a", "b", "a_b", "c"]).prop_map(str::to_owned);
    let value = prop::sample::select(vec!["", "x", "y", "xy", "x y", "xzy", "yx", "x=y", "x%"]);
    prop::collection::vec((key, value.prop_map(str::to_owned)), 0..4)
}

pub(super) fn loaded(descriptors: Vec<DescriptorNode>) -> Configuration {
    let node = DomainNode { domain: "d".to_owned(), descriptors };
    load_nodes(&[("f".to_owned(), node)], Options::default()).unwrap()
}

pub(super) fn pairs(entries: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> + Clone {
    entries.iter().map(|(key, value)| (key.as_str(), value.as_str()))
}

/// Whether a pattern matches: by trying everything that its first star may stand for.
fn star_matches(pattern: &str, text: &str) -> bool {
    match pattern.chars().next() {
        None => text.is_empty(),
        Some('*') => {
            let rest = &pattern[1..];
            (0..=text.len()).any(|at| text.is_char_boundary(at) && star_matches(rest, &text[at..]))
        }
        Some(first) => {
            text.starts_with(first) && {
                let len = first.len_utf8();
                star_matches(&pattern[len..], &text[len..])
            }
        }
    }
}

/// The amount of the rule and the values that are counted.
fn model(nodes: &[DescriptorNode], entries: &[(String, String)]) -> Option<(u32, Vec<String>)> {
    let ((key, value), rest) = entries.split_first()?;
    let of_key = |node: &&DescriptorNode| node.key == *key;
    let exact =
        { nodes.iter().filter(of_key) }.find(|node| !value.is_empty() && node.value == *value);
    let pattern = { nodes.iter().filter(of_key) }
        .find(|node| node.value.contains('*') && star_matches(&node.value, value));
    let bare = nodes.iter().filter(of_key).find(|node| node.value.is_empty());
    let node = exact.or(pattern).or(bare)?;
    let shares = exact.is_none() && pattern.is_some() && node.share_threshold;
    let counted = if shares { node.value.clone() } else { value.clone() };
    if rest.is_empty() {
        return Some((node.rate_limit.as_ref()?.requests_per_unit, vec![counted]));
    }
    let (amount, mut values) = model(&node.descriptors, rest)?;
    values.insert(0, counted);
    Some((amount, values))
}

fn encoded(text: &str) -> String {
    text.replace('%', "%25").replace(' ', "%20")
}

proptest! {
    #[test]
    fn lookups_agree_with_the_model(tree in descriptor_trees(), entries in descriptors()) {
        let config = loaded(tree.clone());
        let mut key = Vec::new();
        let found = config.find("d", pairs(&entries), None, &mut key);
        match model(&tree, &entries) {
            None => prop_assert_eq!((found, key.len()), (Found::Nothing, 0)),
            Some((amount, values)) => {
                let Found::Rule(rule) = found else { panic!("{found:?}") };
                prop_assert_eq!(rule.requests_per_unit, amount);
                let names = entries.iter().map(|(name, _)| name);
                let wanted: String = { names.zip(&values) }
                    .map(|(name, value)| format!(" {}={}", encoded(name), encoded(value)))
                    .collect();
                prop_assert_eq!(String::from_utf8(key).unwrap(), format!("d{wanted}"));
            }
        }
    }
}
