//! From a descriptor to its rule, the key of its count and the name of its statistics.
//!
//! It allocates nothing but what the caller's buffers need. Whether a rule that is found counts, or
//! is replaced by that of another descriptor of the request, is for the caller to see.

use tidegate_core::limit::Limit;

use super::rule::{self, Rule};
use super::tree::{Level, Step, Via};
use super::unit::Unit;
use super::{Configuration, key};

/// A limit that comes with a descriptor and replaces its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// How many requests each unit may have; 0 is always over.
    pub requests_per_unit: u32,
    /// The unit; see [`Unit::of_override`].
    pub unit: Unit,
}

impl Override {
    /// The limit, in windows of its unit; `None` if it has no unit.
    #[must_use]
    pub fn limit(self) -> Option<Limit> {
        rule::windows(self.requests_per_unit, self.unit)
    }
}

/// What the configuration says of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Found<'a> {
    /// Nothing: no file has the domain.
    UnknownDomain,
    /// Nothing: the tree has no rule for it.
    Nothing,
    /// The rule of the tree. The key is written if it has a limit.
    Rule(&'a Rule),
    /// The limit that came with it, and its unit. It has no name and no modes. Each unit has a
    /// count of its own.
    Override(Limit, Unit),
}

impl Configuration {
    /// Looks a descriptor up, and writes the key of its count, if it has one, behind what `key`
    /// holds. An override without a unit is ignored: the caller must have refused it.
    pub fn find<'e>(
        &self,
        domain: &str,
        entries: impl Iterator<Item = (&'e [u8], &'e [u8])> + Clone,
        given: Option<Override>,
        key: &mut Vec<u8>,
    ) -> Found<'_> {
        let Some(root) = self.level(domain) else { return Found::UnknownDomain };
        if let Some(given) = given
            && let Some(limit) = given.limit()
        {
            key::write(key, domain, entries, Some(given.unit.name()));
            return Found::Override(limit, given.unit);
        }
        let (rule, shares) = root.rule(entries.clone());
        let Some(rule) = rule else { return Found::Nothing };
        if rule.limit.is_none() {
            return Found::Rule(rule);
        }
        if shares {
            let counted = root.walk(entries).map(|((name, value), step)| {
                (name, step.and_then(|step| step.shared()).unwrap_or(value))
            });
            key::write(key, domain, counted, None);
        } else {
            key::write(key, domain, entries, None);
        }
        Found::Rule(rule)
    }

    /// Writes the name of a descriptor's statistics, as envoyproxy/ratelimit forms it, into `out`:
    /// `<domain>.<k_v>.<k2>`, with `\u{fffd}` for bytes that are not UTF-8. Empty if the tree has
    /// no rule for the descriptor; overrides have no statistics.
    pub fn write_statistic<'e>(
        &self,
        domain: &str,
        entries: impl Iterator<Item = (&'e [u8], &'e [u8])> + Clone,
        out: &mut String,
    ) {
        out.clear();
        let Some(root) = self.level(domain) else { return };
        let (Some(rule), shares) = root.rule(entries.clone()) else { return };
        out.push_str(domain);
        for ((key, value), step) in root.walk(entries) {
            let Some(step) = step else { return };
            out.push('.');
            push_lossily(out, key);
            let shown = match step.shared() {
                Some(pattern) => pattern,
                None if rule.detailed_metric => value,
                None => shown_value(step, value),
            };
            // All values in a name is the older way, in which an empty value leaves its mark.
            if !shown.is_empty() || rule.detailed_metric && !shares {
                out.push('_');
                push_lossily(out, shown);
            }
        }
        sanitise(out);
    }
}

/// The part of a value in the name of statistics: what the file says, or what the request says.
fn shown_value<'a>(step: Step<'a>, value: &'a [u8]) -> &'a [u8] {
    match step.via {
        Via::Exact => value,
        _ if step.node.value_to_metric => value,
        Via::Wildcard if step.node.value.is_empty() => step.node.key.as_bytes(),
        Via::Wildcard => step.node.value.as_bytes(),
        Via::Key => b"",
    }
}

/// Adds text that may be no UTF-8, as `String::from_utf8_lossy` would, without allocating it first.
fn push_lossily(out: &mut String, text: &[u8]) {
    for chunk in text.utf8_chunks() {
        out.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

impl Level {
    /// The entries, each with what it leads to; all are `None` after the first that leads nowhere.
    fn walk<'a, 'e>(
        &'a self,
        entries: impl Iterator<Item = (&'e [u8], &'e [u8])> + Clone,
    ) -> impl Iterator<Item = ((&'e [u8], &'e [u8]), Option<Step<'a>>)> + Clone {
        let mut level = Some(self);
        entries.map(move |(key, value)| {
            let step = level.and_then(|level| level.step(key, value));
            level = step.map(|step| &step.node.children);
            ((key, value), step)
        })
    }

    /// The rule at the end of the entries, and whether a pattern stands for one of their values.
    fn rule<'a, 'e>(
        &'a self,
        entries: impl Iterator<Item = (&'e [u8], &'e [u8])> + Clone,
    ) -> (Option<&'a Rule>, bool) {
        let (mut last, mut shares) = (None, false);
        for (_, step) in self.walk(entries) {
            shares |= step.is_some_and(|step| step.shared().is_some());
            last = step;
        }
        (last.and_then(|step| step.node.rule.as_deref()), shares)
    }
}

/// A domain as the names of statistics have it.
#[must_use]
pub fn sanitised(domain: &str) -> String {
    let mut name = domain.to_owned();
    sanitise(&mut name);
    name
}

/// Replaces what has a meaning in the names of statistics: `:`, `|`, and the dots of IPv4
/// addresses, which would part a name.
fn sanitise(name: &mut String) {
    let mut bytes = std::mem::take(name).into_bytes();
    for byte in &mut bytes {
        if matches!(byte, b':' | b'|') {
            *byte = b'_';
        }
    }
    let mut at = 0;
    while at < bytes.len() {
        let Some(end) = address_end(&bytes, at) else {
            at += 1;
            continue;
        };
        bytes[at..end].iter_mut().filter(|byte| **byte == b'.').for_each(|byte| *byte = b'_');
        at = end;
    }
    // Only characters of ASCII were replaced, by others.
    *name = String::from_utf8(bytes).unwrap_or_default();
}

/// Where four groups of one to three digits, parted by dots, end.
fn address_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    for group in 0..4 {
        let digits = bytes[at..].iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
        at += digits;
        if digits == 0 || group < 3 && bytes.get(at) != Some(&b'.') {
            return None;
        }
        at += usize::from(group < 3);
    }
    Some(at)
}
