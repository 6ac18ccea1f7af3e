//! Which limits apply to a key: rules in order, the first match decides.
//!
//! Exact matches are found by one hash look-up, whatever their number; patterns with a `*` are
//! tried in order, each behind a comparison of its literal prefix.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::key::same;
use crate::limit::{Algorithm, Limit};
use crate::time::SECOND;

/// The most limits that a rule may have.
pub const LIMITS_MAX: usize = 8;

/// What a failing remote store means for a rule's keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreError {
    /// Let the request pass.
    #[default]
    Allow,
    /// Refuse it.
    Deny,
    /// Decide on this node's own count.
    Local,
}

impl OnStoreError {
    /// The word in configuration files and labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            OnStoreError::Allow => "allow",
            OnStoreError::Deny => "deny",
            OnStoreError::Local => "local",
        }
    }
}

/// Where the counts of a rule live if there is a remote store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// In the remote store: all nodes together keep to the limit.
    #[default]
    Exact,
    /// In the memory of each node: every node has the whole limit for itself.
    Local,
}

/// What a table full of live keys means for a new key of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// All new keys share one count; one that later gets a slot starts from it.
    #[default]
    Share,
    /// Refuse it.
    Deny,
    /// Let it pass, uncounted.
    Allow,
}

/// One rule: what it matches and what that means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Identity across reloads; shown in verdicts and metrics.
    pub name: Arc<str>,
    /// Which keys it is for.
    pub pattern: Pattern,
    /// All must hold. Empty: never limited, never remembered.
    pub limits: Vec<Limit>,
    /// Whether every key that matches shares one count.
    pub shared: bool,
    /// Whether refusals are only counted and reported.
    pub shadow: bool,
    /// Where the counts live.
    pub consistency: Consistency,
    /// What a failing store means.
    pub on_store_error: OnStoreError,
    /// What a full table means.
    pub on_full: OnFull,
}

impl Rule {
    /// A rule for keys whose limit comes with the request, where no other rule is for them. Its own
    /// limit only says how they are counted. A full table refuses new keys: such keys cannot share
    /// a count, since their limits differ.
    #[must_use]
    pub fn of_given_limits(name: &str) -> Self {
        let algorithm = Algorithm::Throttle { burst: 1 };
        let limit = Limit { amount: 1, period: SECOND, algorithm };
        let rule = Self::new(name, "", vec![limit]);
        Self { pattern: Pattern::nothing(), on_full: OnFull::Deny, ..rule }
    }

    /// A rule of which nothing is said but whom it is for and what it limits.
    #[must_use]
    pub fn new(name: &str, pattern: &str, limits: Vec<Limit>) -> Self {
        Self {
            name: name.into(),
            pattern: Pattern::new(pattern),
            limits,
            shared: false,
            shadow: false,
            consistency: Consistency::default(),
            on_store_error: OnStoreError::default(),
            on_full: OnFull::default(),
        }
    }
}

/// A match: literal bytes with `*` for any run of bytes; `\*` is a star, `\\` a backslash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The literal runs between the stars; one run alone is an exact match.
    parts: Vec<Box<[u8]>>,
}

impl Pattern {
    /// Compiles a pattern as it is written in configuration files.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut parts = vec![Vec::new()];
        let mut bytes = text.bytes().peekable();
        while let Some(byte) = bytes.next() {
            let escaped = byte == b'\\' && matches!(bytes.peek(), Some(b'*' | b'\\'));
            let literal = if escaped { bytes.next().unwrap_or(byte) } else { byte };
            if byte == b'*' {
                parts.push(Vec::new());
            } else if let Some(run) = parts.last_mut() {
                run.push(literal);
            }
        }
        Self { parts: parts.into_iter().map(Vec::into_boxed_slice).collect() }
    }

    /// A pattern that no key matches.
    #[must_use]
    pub fn nothing() -> Self {
        Self { parts: Vec::new() }
    }

    /// Whether no key matches it.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.parts.is_empty()
    }

    /// A pattern that matches exactly `key`, stars and all.
    #[must_use]
    pub fn exact(key: &[u8]) -> Self {
        Self { parts: vec![key.into()] }
    }

    /// The one key that it matches, if it has no star.
    #[must_use]
    pub fn literal(&self) -> Option<&[u8]> {
        if let [only] = self.parts.as_slice() { Some(only) } else { None }
    }

    /// What every key that it matches begins with.
    #[must_use]
    pub fn beginning(&self) -> &[u8] {
        self.parts.first().map_or(&[], |first| first)
    }

    /// Whether the whole of `key` matches.
    #[must_use]
    pub fn matches(&self, key: &[u8]) -> bool {
        let [first, middle @ .., last] = self.parts.as_slice() else {
            return self.literal() == Some(key);
        };
        if key.len() < first.len() || !same(&key[..first.len()], first) {
            return false;
        }
        let mut rest = &key[first.len()..];
        for part in middle {
            // The leftmost fit leaves the most for what follows, so it never has to be undone.
            let Some(at) = find(rest, part) else { return false };
            rest = &rest[at + part.len()..];
        }
        // Most patterns end with a star. Comparing nothing with nothing through the library cost
        // a third of a decision: it looks, masked, at the address that an empty slice makes up.
        rest.len() >= last.len() && same(&rest[rest.len() - last.len()..], last)
    }
}

/// One byte of a pattern, or `None` for a star.
type Symbol = Option<u8>;

impl Pattern {
    /// Whether every key that `other` matches is matched by this pattern, too.
    #[must_use]
    pub fn covers(&self, other: &Pattern) -> bool {
        let mut symbols: Vec<Symbol> = Vec::new();
        for (at, run) in other.parts.iter().enumerate() {
            // A star of the other stands for anything: only a star of this one takes it in.
            symbols.extend((at > 0).then_some(None));
            symbols.extend(run.iter().copied().map(Some));
        }
        let is = |part: &[u8], symbols: &[Symbol]| {
            part.iter().zip(symbols).all(|(byte, symbol)| *symbol == Some(*byte))
        };
        let [first, middle @ .., last] = self.parts.as_slice() else {
            return self == other;
        };
        if symbols.len() < first.len() || !is(first, &symbols) {
            return false;
        }
        let mut rest = &symbols[first.len()..];
        for part in middle {
            let mut places = 0..=rest.len().saturating_sub(part.len());
            let fits = |at: &usize| rest.len() >= part.len() && is(part, &rest[*at..]);
            let Some(at) = places.find(fits) else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.len() >= last.len() && is(last, &rest[rest.len() - last.len()..])
    }
}

/// The pattern as configuration files have it.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, run) in self.parts.iter().enumerate() {
            if at > 0 {
                f.write_str("*")?;
            }
            let literal = String::from_utf8_lossy(run);
            f.write_str(&literal.replace('\\', r"\\").replace('*', r"\*"))?;
        }
        Ok(())
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    if needle.is_empty() {
        return Some(0);
    }
    haystack.windows(needle.len()).position(|window| window == needle)
}

/// A pattern with a star, prepared so that a comparison of the key's first eight bytes mostly
/// decides whether it matches.
#[derive(Clone, Debug)]
struct Glance {
    /// Up to eight bytes that keys begin with, and which bits of them count.
    word: u64,
    mask: u64,
    /// Whether that is all there is to it: a few bytes and a star.
    whole: bool,
    /// The place of its rule.
    position: usize,
}

impl Glance {
    fn new(pattern: &Pattern, position: usize) -> Self {
        let beginning = pattern.beginning();
        let (word, mask) = { beginning.iter().take(8).enumerate() }
            .fold((0, 0), |(w, m), (at, b)| (w | u64::from(*b) << (8 * at), m | 0xff << (8 * at)));
        let whole =
            beginning.len() <= 8 && matches!(&pattern.parts[..], [_, end] if end.is_empty());
        Self { word, mask, whole, position }
    }

    /// Whether the whole of `key` matches, where the first word is enough to tell.
    #[inline(always)]
    fn matches(&self, key: &[u8]) -> Option<bool> {
        let start = u64::from_le_bytes(*key.first_chunk()?);
        if start & self.mask != self.word {
            return Some(false);
        }
        self.whole.then_some(true)
    }
}

/// The rules of one configuration, compiled for look-up.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    rules: Vec<Rule>,
    exact: HashMap<Box<[u8]>, usize, foldhash::fast::RandomState>,
    /// The rules with a star, in order.
    patterns: Vec<Glance>,
    default: Option<usize>,
}

impl RuleSet {
    /// Compiles `rules` in order; `default` is for keys that none of them matches.
    #[must_use]
    pub fn new(mut rules: Vec<Rule>, default: Option<Rule>) -> Self {
        let mut exact = HashMap::default();
        let mut patterns = Vec::new();
        for (position, rule) in rules.iter().enumerate() {
            match rule.pattern.literal() {
                Some(key) => {
                    exact.entry(key.into()).or_insert(position);
                }
                None if rule.pattern.is_nothing() => {}
                None => patterns.push(Glance::new(&rule.pattern, position)),
            }
        }
        let fallback = default.map(|rule| {
            rules.push(rule);
            rules.len() - 1
        });
        Self { rules, exact, patterns, default: fallback }
    }

    /// The position of the rule that decides `key`, or `None` where it is not limited.
    #[inline(always)]
    #[must_use]
    pub fn find(&self, key: &[u8]) -> Option<usize> {
        self.find_matching(key).or(self.default)
    }

    /// The position of the first rule that matches `key`; the default matches nothing.
    #[inline(always)]
    #[must_use]
    pub fn find_matching(&self, key: &[u8]) -> Option<usize> {
        let exact = if self.exact.is_empty() { None } else { self.exact.get(key).copied() };
        for glance in &self.patterns {
            if exact.is_some_and(|exact| exact < glance.position) {
                break;
            }
            let whole = || self.rules[glance.position].pattern.matches(key);
            if glance.matches(key).unwrap_or_else(whole) {
                return Some(glance.position);
            }
        }
        exact
    }

    /// The rules in order; the default, if any, is the last.
    #[inline]
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(pattern: &str) -> Rule {
        Rule::new(pattern, pattern, Vec::new())
    }

    fn check(patterns: &[&str], key: &str, expected: Option<&str>) {
        let set = RuleSet::new(patterns.iter().map(|p| rule(p)).collect(), None);
        let found = set.find(key.as_bytes()).map(|at| &*set.rules()[at].name);
        assert_eq!(found, expected, "{patterns:?} on {key:?}");
    }

    #[test]
    fn first_match_wins_whatever_its_kind() {
        check(&["ws *", "ws global"], "ws global", Some("ws *"));
        check(&["ws global", "ws *"], "ws global", Some("ws global"));
        check(&["ws global", "ws global"], "ws global", Some("ws global"));
        check(&["a", "b"], "c", None);
    }

    #[test]
    fn stars_match_any_run() {
        check(&["ws ip=*"], "ws ip=1.2.3.4 and more", Some("ws ip=*"));
        check(&["ws ip=*"], "ws ip=", Some("ws ip=*"));
        check(&["*"], "", Some("*"));
        check(&["a*b*c"], "abc", Some("a*b*c"));
        check(&["a*b*c"], "a--b--b--c", Some("a*b*c"));
        check(&["a*b*c"], "acb", None);
        check(&["ab*ba"], "aba", None);
        check(&["*a"], "ab", None);
    }

    #[test]
    fn escapes_are_literal() {
        check(&[r"a\*"], "a*", Some(r"a\*"));
        check(&[r"a\*"], "ab", None);
        check(&[r"a\\*"], r"a\b", Some(r"a\\*"));
        check(&[r"a\b"], r"a\b", Some(r"a\b"));
    }

    #[test]
    fn what_is_shown_is_the_same_pattern() {
        for text in ["ws ip=*", "", "*", r"a\*b\\*", r"a\b", "é * é"] {
            let pattern = Pattern::new(text);
            assert_eq!(Pattern::new(&pattern.to_string()), pattern, "{text} is {pattern}");
        }
        let key = br"a*b\c";
        assert_eq!(Pattern::new(&Pattern::exact(key).to_string()), Pattern::exact(key));
        assert_eq!(Pattern::new("ws ip=*").to_string(), "ws ip=*");
    }

    #[test]
    fn a_pattern_covers_what_matches_nothing_else() {
        let covers = |one: &str, other: &str| Pattern::new(one).covers(&Pattern::new(other));
        for (one, other) in [
            ("*", ""),
            ("*", "a*b"),
            ("a*", "a"),
            ("a*", "a*"),
            ("a*", "ab*c*"),
            ("*b*", "ab*"),
            ("a*c", "a*b*c"),
            ("a", "a"),
            (r"a\*", r"a\*"),
        ] {
            assert!(covers(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("a", "*"),
            ("a*", "*"),
            ("a*", "b*"),
            ("ab*", "a*"),
            ("*b*", "a*"),
            ("a*b", "a*"),
            ("ab*ba", "aba"),
            ("a*b*c", "a*c"),
            (r"a\*", "a*"),
            (r"a\*", "ab"),
        ] {
            assert!(!covers(one, other), "{one} {other}");
        }
    }

    #[test]
    fn the_default_takes_what_is_left() {
        let set = RuleSet::new(vec![rule("a")], Some(rule("rest")));
        assert_eq!(set.find(b"a"), Some(0));
        assert_eq!(set.find(b"b"), Some(1));
    }
}
