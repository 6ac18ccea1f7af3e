//! Native rules that decide as the configuration does, for `tidegate config import`.
//!
//! The first native rule that matches decides, and its `*` takes in further entries. So the rules
//! come by their number of entries, the most first, each number behind a rule that lets all longer
//! keys pass: a rule is then reached only by keys with as many entries as it has. What has no
//! native words becomes a comment and is reported.

use std::collections::HashMap;
use std::fmt::Write;

use tidegate_core::key::{KEY_BYTES_MAX, KeyBuilder};
use tidegate_core::rules::Pattern;

use super::Configuration;
use super::rule::Rule;
use super::tree::{Descriptor, Level};

/// Something that native rules cannot say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The match of the rule.
    pub rule: String,
    /// What is lost, as a sentence.
    pub reason: &'static str,
}

const REPLACES: &str = "`replaces` has no native form: the other limits count as well";
const QUOTA: &str = "`quota_mode` has no native form: the limit is left out";
const SHARE: &str = "`share_threshold` beside values that have counts of their own has no native \
                     form: every value has a count of its own";
const METADATA: &str = "`metadata` has no native form";
const TOO_LONG: &str = "the key is too long for a rule";
const NAME: &str =
    "the `name` is left out: it is that of several limits, and names of rules differ";

/// A native rule, before it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NativeRule {
    pub(super) pattern: String,
    /// `none` where nothing is said.
    pub(super) limit: Option<String>,
    pub(super) algorithm: Option<&'static str>,
    name: String,
    pub(super) shared: bool,
    pub(super) shadow: bool,
    losses: Vec<&'static str>,
}

/// The rules as TOML, and what they do not say; and that their domains are counted as before.
#[must_use]
pub fn to_toml(configuration: &Configuration) -> (String, Vec<Unsupported>) {
    let mut rules = native_rules(configuration);
    let mut uses: HashMap<String, usize> = HashMap::new();
    for name in rules.iter().map(|rule| &rule.name).filter(|name| !name.is_empty()) {
        *uses.entry(name.clone()).or_default() += 1;
    }
    let (mut text, mut unsupported) = (HEAD.to_owned(), Vec::new());
    for rule in &mut rules {
        // Names of rules differ; without one a rule is named by its match.
        if uses.get(&rule.name).is_some_and(|uses| *uses > 1) {
            rule.name.clear();
            rule.losses.push(NAME);
        }
        write_rule(rule, &mut text);
        unsupported.extend(
            rule.losses.iter().map(|reason| Unsupported { rule: rule.pattern.clone(), reason }),
        );
    }
    write_counting(configuration, &mut text);
    (text, unsupported)
}

/// Of each domain that has rules, that it is counted as envoyproxy/ratelimit counts.
fn write_counting(configuration: &Configuration, out: &mut String) {
    let with_rules = configuration.domains.iter().filter(|(_, level)| height(level) > 0);
    for (at, (domain, _)) in with_rules.enumerate() {
        out.push_str(if at == 0 { COUNTING } else { "\n" });
        let _ = writeln!(out, "[grpc.domains.{}]\ncounting = \"envoy\"", quoted(domain));
    }
}

const HEAD: &str = "# Rules of envoyproxy/ratelimit. They are ordered: the first match decides.\n";

const COUNTING: &str = "\n# As in envoyproxy/ratelimit: each descriptor is counted separately, \
     and refused calls count.\n";

fn write_rule(rule: &NativeRule, out: &mut String) {
    out.push_str("\n[[rule]]\n");
    for loss in &rule.losses {
        let _ = writeln!(out, "# {loss}.");
    }
    let mut field = |name: &str, value: &str| {
        let _ = writeln!(out, "{name} = {value}");
    };
    if !rule.name.is_empty() {
        field("name", &quoted(&rule.name));
    }
    field("match", &quoted(&rule.pattern));
    field("limit", &quoted(rule.limit.as_deref().unwrap_or("none")));
    if let Some(algorithm) = rule.algorithm {
        field("algorithm", &quoted(algorithm));
    }
    if rule.shared {
        field("shared", "true");
    }
    if rule.shadow {
        field("shadow", "true");
    }
}

/// A text as a basic string of TOML.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            control if control.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

/// The rules in the order in which they are tried.
pub(super) fn native_rules(configuration: &Configuration) -> Vec<NativeRule> {
    let mut rules = Vec::new();
    for (domain, level) in &configuration.domains {
        let prefix = literal(|out| KeyBuilder::new(out, domain.as_bytes()));
        for depth in (1..=height(level)).rev() {
            let longer = format!("{prefix}{}", " *=*".repeat(depth + 1));
            rules.push(NativeRule { pattern: longer, ..NativeRule::default() });
            let place = Place { prefix: prefix.clone(), shares: false, varies: false };
            add_rules(level, &place, depth, &mut rules);
        }
    }
    rules
}

/// How many entries the longest descriptor with a rule has.
fn height(level: &Level) -> usize {
    let below = |node: &Descriptor| match height(&node.children) {
        0 => usize::from(node.rule.is_some()),
        more => more + 1,
    };
    level.nodes.iter().map(below).max().unwrap_or(0)
}

/// Whether a rule is so many entries below.
fn has_rules(node: &Descriptor, depth: usize) -> bool {
    if depth == 1 {
        return node.rule.is_some();
    }
    node.children.nodes.iter().any(|child| has_rules(child, depth - 1))
}

/// What is above a level.
#[derive(Clone)]
struct Place {
    /// The pattern so far.
    prefix: String,
    /// Whether the values of an entry share a count.
    shares: bool,
    /// Whether each value of an entry has a count of its own.
    varies: bool,
}

/// Adds the rules of descriptors that are `depth` entries below.
fn add_rules(level: &Level, place: &Place, depth: usize, rules: &mut Vec<NativeRule>) {
    // The order of the lookup: exact, patterns, the key alone.
    let rank = |node: &&Descriptor| match (node.is_wildcard(), node.value.is_empty()) {
        (false, false) => 0,
        (true, _) => 1,
        (false, true) => 2,
    };
    let mut nodes: Vec<&Descriptor> = level.nodes.iter().collect();
    nodes.sort_by_key(rank);
    for (at, node) in nodes.iter().enumerate() {
        let shares = node.share_threshold;
        let below = Place {
            prefix: format!("{}{}", place.prefix, entry_pattern(node)),
            shares: place.shares || shares,
            varies: place.varies || !shares && (node.is_wildcard() || node.value.is_empty()),
        };
        if depth > 1 {
            add_rules(&node.children, &below, depth - 1, rules);
        } else if let Some(rule) = &node.rule {
            rules.push(native(rule, &below));
            continue;
        }
        // Keys that come this far do not fall back to a later descriptor.
        let later = &nodes[at + 1..];
        if later.iter().any(|other| may_meet(node, other) && has_rules(other, depth)) {
            let pattern = format!("{}{}", below.prefix, " *=*".repeat(depth - 1));
            rules.push(NativeRule { pattern, ..NativeRule::default() });
        }
    }
}

fn may_meet(one: &Descriptor, other: &Descriptor) -> bool {
    one.key == other.key || one.key_is_pattern() || other.key_is_pattern()
}

fn native(rule: &Rule, place: &Place) -> NativeRule {
    let mut native = NativeRule {
        pattern: place.prefix.clone(),
        name: rule.name.to_string(),
        ..NativeRule::default()
    };
    let mut loses = |is_lost: bool, reason| native.losses.extend(is_lost.then_some(reason));
    loses(place.prefix.len() > KEY_BYTES_MAX, TOO_LONG);
    loses(!rule.replaces.is_empty(), REPLACES);
    loses(rule.quota, QUOTA);
    loses(place.shares && place.varies, SHARE);
    loses(rule.metadata.is_some(), METADATA);
    if let Some(limit) = rule.limit.filter(|_| !rule.quota) {
        native.shared = place.shares && !place.varies;
        native.shadow = rule.shadow;
        if limit.amount == 0 {
            native.limit = Some("deny".to_owned());
        } else {
            native.limit = Some(limit.to_string());
            native.algorithm = (!limit.ends()).then(|| limit.algorithm.name());
        }
    }
    native
}

/// ` key=value` with the stars of the descriptor, or one for any value.
fn entry_pattern(node: &Descriptor) -> String {
    let with_stars = |text: &str, encode: fn(&str) -> String| {
        text.split('*').map(encode).collect::<Vec<_>>().join("*")
    };
    let name = with_stars(&node.key, |run| {
        let entry = literal(|out| KeyBuilder::new(out, b"").entry(run.as_bytes(), b""));
        entry.strip_prefix(' ').and_then(|it| it.strip_suffix('=')).unwrap_or(&entry).to_owned()
    });
    let value = match &*node.value {
        "" => "*".to_owned(),
        value => with_stars(value, |run| literal(|out| KeyBuilder::new(out, run.as_bytes()))),
    };
    format!(" {name}={value}")
}

/// A part of a key as a pattern that matches it alone. What is too long for a key comes out longer
/// than any key, so that the rule is reported.
fn literal(build: impl FnOnce(&mut Vec<u8>) -> KeyBuilder<'_>) -> String {
    let mut out = Vec::new();
    match build(&mut out).finish() {
        Ok(key) => Pattern::exact(key).to_string(),
        Err(_) => "?".repeat(KEY_BYTES_MAX + 1),
    }
}
