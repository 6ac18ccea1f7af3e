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

type Entry = (Vec<u8>, Vec<u8>);

pub(super) fn descriptors() -> impl Strategy<Value = Vec<Entry>> {
    let key: [&[u8]; 5] = [b"a", b"b", b"a_b", b"c", b"a\xff"];
    let value: [&[u8]; 11] =
        [b"", b"x", b"y", b"xy", b"x y", b"xzy", b"yx", b"x=y", b"x%", b"\xff", b"x\xff\xc3y"];
    let any_of =
        |texts: &[&'static [u8]]| prop::sample::select(texts.to_vec()).prop_map(<[u8]>::to_vec);
    prop::collection::vec((any_of(&key), any_of(&value)), 0..4)
}

pub(super) fn loaded(descriptors: Vec<DescriptorNode>) -> Configuration {
    let node = DomainNode { domain: "d".to_owned(), descriptors };
    load_nodes(&[("f".to_owned(), node)], Options::default()).unwrap()
}

pub(super) fn pairs(entries: &[Entry]) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
    entries.iter().map(|(key, value)| (key.as_slice(), value.as_slice()))
}

/// Whether a pattern matches: by trying everything that its first star may stand for.
fn star_matches(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', rest @ ..] => (0..=text.len()).any(|at| star_matches(rest, &text[at..])),
        [first, rest @ ..] => text.first() == Some(first) && star_matches(rest, &text[1..]),
    }
}

/// The amount of the rule and the values that are counted.
fn model(nodes: &[DescriptorNode], entries: &[Entry]) -> Option<(u32, Vec<Vec<u8>>)> {
    let ((key, value), rest) = entries.split_first()?;
    let of_key = |node: &&DescriptorNode| node.key.as_bytes() == key;
    let exact = { nodes.iter().filter(of_key) }
        .find(|node| !value.is_empty() && node.value.as_bytes() == value);
    let pattern = { nodes.iter().filter(of_key) }
        .find(|node| node.value.contains('*') && star_matches(node.value.as_bytes(), value));
    let bare = nodes.iter().filter(of_key).find(|node| node.value.is_empty());
    let node = exact.or(pattern).or(bare)?;
    let shares = exact.is_none() && pattern.is_some() && node.share_threshold;
    let counted = if shares { node.value.clone().into_bytes() } else { value.clone() };
    if rest.is_empty() {
        return Some((node.rate_limit.as_ref()?.requests_per_unit, vec![counted]));
    }
    let (amount, mut values) = model(&node.descriptors, rest)?;
    values.insert(0, counted);
    Some((amount, values))
}

fn encoded(text: &[u8]) -> Vec<u8> {
    let encode = |byte: &u8| match byte {
        b'%' => b"%25".to_vec(),
        b' ' => b"%20".to_vec(),
        other => vec![*other],
    };
    text.iter().flat_map(encode).collect()
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
                let mut wanted = b"d".to_vec();
                for (name, value) in names.zip(&values) {
                    wanted.extend([b" ", &*encoded(name), b"=", &*encoded(value)].concat());
                }
                prop_assert_eq!(key, wanted);
            }
        }
    }
}
