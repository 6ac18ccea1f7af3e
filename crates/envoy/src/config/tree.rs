//! The tree of descriptors, checked and indexed.
//!
//! Keys and values are compared one by one, not joined by `_` as envoyproxy/ratelimit does: there a
//! client that chooses the value of `a` could meet the rule of `a_b`. That two descriptors of one
//! level must not look alike when joined stays an error, for its own tools print them so.
//!
//! The file is text; entries are bytes, since clients choose them.

use std::collections::{HashMap, HashSet};
use std::fmt;

use tidegate_core::rules::Pattern;

use super::DEPTH_MAX;
use super::error::Problem;
use super::rule::Rule;
use super::source::DescriptorNode;

/// The descriptors at one place of the tree.
#[derive(Clone, Debug, Default)]
pub(super) struct Level {
    /// In the order of the file.
    pub(super) nodes: Vec<Descriptor>,
    keys: HashMap<Box<[u8]>, Places>,
    /// The places of descriptors with a star, in the order of the file.
    wildcards: Vec<usize>,
    /// `key` or `key_value` of every descriptor.
    composites: HashSet<Box<str>>,
}

/// Where the descriptors of one key are.
#[derive(Clone, Debug, Default)]
struct Places {
    /// The one without a value.
    bare: Option<usize>,
    values: HashMap<Box<[u8]>, usize>,
}

/// One descriptor.
#[derive(Clone, Debug)]
pub(super) struct Descriptor {
    pub(super) key: Box<str>,
    /// Empty for any value.
    pub(super) value: Box<str>,
    /// Patterns of key and value, if there is a star in either.
    wildcard: Option<(Pattern, Option<Pattern>)>,
    pub(super) rule: Option<Box<Rule>>,
    pub(super) value_to_metric: bool,
    pub(super) share_threshold: bool,
    pub(super) children: Level,
}

/// How an entry was matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    /// By key and value.
    Exact,
    /// By a pattern.
    Wildcard,
    /// By the key alone.
    Key,
}

/// The descriptor that one entry leads to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'a> {
    pub(super) node: &'a Descriptor,
    pub(super) via: Via,
}

impl<'a> Step<'a> {
    /// The pattern that stands for the value where all values have one count.
    pub(super) fn shared(&self) -> Option<&'a [u8]> {
        let shares = self.via == Via::Wildcard && self.node.share_threshold;
        shares.then_some(if self.node.value.is_empty() { b"*" } else { self.node.value.as_bytes() })
    }
}

impl Descriptor {
    /// Whether a star is in its key, so that it stands for several keys.
    pub(super) fn key_is_pattern(&self) -> bool {
        self.key.contains('*')
    }

    /// Whether it is found by a pattern.
    pub(super) fn is_wildcard(&self) -> bool {
        self.wildcard.is_some()
    }

    fn matches(&self, key: &[u8], value: &[u8]) -> bool {
        self.wildcard.as_ref().is_some_and(|(keys, values)| {
            keys.matches(key) && values.as_ref().is_none_or(|values| values.matches(value))
        })
    }
}

impl Level {
    /// The descriptor for an entry: the exact one, else the first pattern that matches, else the
    /// one of the key alone. There is no way back from a choice that leads nowhere.
    pub(super) fn step(&self, key: &[u8], value: &[u8]) -> Option<Step<'_>> {
        let places = self.keys.get(key);
        let exact = places.and_then(|places| places.values.get(value));
        let (at, via) = if let Some(at) = exact {
            (*at, Via::Exact)
        } else if let Some(at) =
            self.wildcards.iter().find(|at| self.nodes[**at].matches(key, value))
        {
            (*at, Via::Wildcard)
        } else {
            (places?.bare?, Via::Key)
        };
        Some(Step { node: &self.nodes[at], via })
    }

    /// Adds descriptors below `parent`.
    pub(super) fn load(
        &mut self,
        parent: &Path<'_>,
        nodes: &[DescriptorNode],
    ) -> Result<(), Problem> {
        if parent.depth >= DEPTH_MAX && !nodes.is_empty() {
            return Err(Problem::TooDeep);
        }
        for node in nodes {
            if node.key.is_empty() {
                return Err(Problem::EmptyKey);
            }
            let composite = composite(&node.key, &node.value);
            if self.composites.contains(composite.as_str()) {
                return Err(Problem::DuplicateDescriptor(parent.below(&composite).to_string()));
            }
            let rule = node.rate_limit.as_ref().map(|rate| Rule::new(node, rate)).transpose()?;
            let is_wildcard = composite.contains('*');
            if node.share_threshold && !is_wildcard {
                return Err(Problem::ShareWithoutWildcard(composite));
            }
            let mut children = Level::default();
            children.load(&parent.below(&composite), &node.descriptors)?;
            self.composites.insert(composite.into());
            self.add(Descriptor {
                key: node.key.as_str().into(),
                value: node.value.as_str().into(),
                wildcard: is_wildcard.then(|| patterns(&node.key, &node.value)),
                rule: rule.map(Box::new),
                value_to_metric: node.value_to_metric,
                share_threshold: node.share_threshold,
                children,
            });
        }
        Ok(())
    }

    fn add(&mut self, descriptor: Descriptor) {
        let at = self.nodes.len();
        let places = self.keys.entry(descriptor.key.as_bytes().into()).or_default();
        if descriptor.value.is_empty() {
            places.bare = Some(at);
        } else {
            places.values.insert(descriptor.value.as_bytes().into(), at);
        }
        if descriptor.is_wildcard() {
            self.wildcards.push(at);
        }
        self.nodes.push(descriptor);
    }
}

/// A place in the tree as envoyproxy/ratelimit prints it: `domain.k_v.k2`. It is put together only
/// where it is shown, since paths together may be far longer than the file.
#[derive(Clone, Copy)]
pub(super) struct Path<'a> {
    above: Option<&'a Path<'a>>,
    name: &'a str,
    depth: usize,
}

impl<'a> Path<'a> {
    pub(super) fn of_domain(name: &'a str) -> Self {
        Self { above: None, name, depth: 0 }
    }

    pub(super) fn below(&'a self, name: &'a str) -> Self {
        Self { above: Some(self), name, depth: self.depth + 1 }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(above) = self.above {
            write!(f, "{above}.")?;
        }
        f.write_str(self.name)
    }
}

/// Key and value as envoyproxy/ratelimit joins them.
pub(super) fn composite(key: &str, value: &str) -> String {
    if value.is_empty() { key.to_owned() } else { format!("{key}_{value}") }
}

fn patterns(key: &str, value: &str) -> (Pattern, Option<Pattern>) {
    // A backslash has no meaning there, and every star is one.
    let pattern = |text: &str| Pattern::new(&text.replace('\\', r"\\"));
    (pattern(key), (!value.is_empty()).then(|| pattern(value)))
}
