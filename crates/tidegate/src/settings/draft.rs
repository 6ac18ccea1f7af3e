//! From tables to rules: where a rule comes from, how that changes it, and whether the rules of a
//! file fit together.
//!
//! A door that has a limit of its own gives its `Config` a method that returns a [`Draft`], and the
//! file lists it behind every `[[rule]]`. This module checks names, compiles limits, splits them
//! among replicas and keeps the order.

use std::collections::HashMap;
use std::ops::Range;

use tidegate_core::Limit;
use tidegate_core::key::KEY_BYTES_MAX;
use tidegate_core::limit::AlgorithmName;
use tidegate_core::rules::{Pattern, Rule, RuleSet};

use super::limits::{self, Counting};
use super::problem::Problem;
use super::rule::{DEFAULT_NAME, DefaultTable, NAME_BYTES_MAX, RuleFields, RuleTable, Texts};

/// Where a rule comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleOrigin {
    /// A `[[rule]]`.
    Rule,
    /// A door's own limit, for the keys that the door composes.
    Door {
        /// What counts where no algorithm is named.
        usual: AlgorithmName,
        /// Whether the door can say when a use ends.
        can_end: bool,
    },
    /// Limits that come with the requests of a door, for keys that no rule matches.
    Given,
    /// `[default]`.
    Default,
}

/// A rule as it is written, before its limits are compiled.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    /// Its name; that of a door's own limit is `<door>:<what the door is for>`.
    pub(crate) name: String,
    /// Where the file gives it its name.
    pub(crate) at: Range<usize>,
    /// The keys that it is for.
    pub(crate) pattern: Pattern,
    /// Where it comes from.
    pub(crate) origin: RuleOrigin,
    /// Everything else. A door's own limit and the default have no name or match in it.
    pub(crate) table: RuleTable,
}

/// A draft and the rule that it makes.
#[derive(Clone, Debug)]
pub(crate) struct CompiledRule {
    pub(crate) draft: Draft,
    /// The limits before they were split among replicas.
    pub(crate) whole: Vec<Limit>,
    pub(crate) rule: Rule,
}

impl Draft {
    /// Of a `[[rule]]`; `None` if it has no match, which reading it has reported.
    pub(crate) fn of_rule(table: &RuleTable) -> Option<Self> {
        let found = table.r#match.as_ref()?;
        let (name, at) = match &table.name {
            Some(name) => (name.get_ref().clone(), name.span()),
            None => (found.get_ref().clone(), found.span()),
        };
        let pattern = Pattern::new(found.get_ref());
        Some(Self { name, at, pattern, origin: RuleOrigin::Rule, table: table.clone() })
    }

    /// Of `[default]`, or of what holds without one.
    pub(crate) fn of_default(table: Option<&DefaultTable>) -> Self {
        let DefaultTable { limit, fields } = table.cloned().unwrap_or_default();
        let table = RuleTable::new(limit, fields);
        let (name, pattern) = (DEFAULT_NAME.to_owned(), Pattern::new("*"));
        Self { name, at: 0..0, pattern, origin: RuleOrigin::Default, table }
    }

    /// Of a door whose requests bring their own limits. The name begins with the door's.
    pub(crate) fn of_given_limits(name: &str) -> Self {
        let table = RuleTable::new(Texts::unplaced("none"), RuleFields::default());
        let (name, pattern) = (name.to_owned(), Pattern::nothing());
        Self { name, at: 0..0, pattern, origin: RuleOrigin::Given, table }
    }

    /// Of a limit that a door finds by its name. No key matches it.
    pub(crate) fn of_limit(name: &str, limit: &Limit, shadow: bool) -> Self {
        let mut fields = RuleFields { shadow, ..RuleFields::default() };
        fields.fill_in(std::slice::from_ref(limit));
        let table = RuleTable::new(Texts::unplaced(limit.to_string()), fields);
        let origin = RuleOrigin::Door { usual: AlgorithmName::FixedWindow, can_end: true };
        let (name, pattern) = (name.to_owned(), Pattern::nothing());
        Self { name, at: 0..0, pattern, origin, table }
    }

    /// The rule that it makes; `source` is the text it comes from, for the places of what is wrong.
    pub(crate) fn write(self, source: &str, problems: &mut Vec<Problem>) -> CompiledRule {
        self.check_name(problems);
        if self.origin == RuleOrigin::Given {
            let rule = Rule::of_given_limits(&self.name);
            return CompiledRule { draft: self, whole: Vec::new(), rule };
        }
        let (usual, can_end) = match self.origin {
            RuleOrigin::Door { usual, can_end } => (usual, can_end),
            RuleOrigin::Rule | RuleOrigin::Given | RuleOrigin::Default => {
                (AlgorithmName::default(), true)
            }
        };
        let table = &self.table;
        let whole = limits::compile(source, &Counting { table, usual }, problems);
        if !can_end && whole.iter().any(Limit::ends) {
            let message = "this door cannot tell when a use ends, so it has no limits in flight";
            let remedy = "write a limit on uses in a period: limit = \"100 per 1s\"";
            problems.push(Problem::new(table.limit.span(), message, remedy));
        }
        if !can_end && whole.iter().any(Limit::denies) {
            let message = "this door delays callers and cannot refuse them";
            let remedy = "write a limit such as \"1 per 60s\", or remove the table";
            problems.push(Problem::new(table.limit.span(), message, remedy));
        }
        let fields = &table.fields;
        let share = limits::share(fields, &whole, problems);
        let rule = Rule {
            name: self.name.as_str().into(),
            pattern: self.pattern.clone(),
            limits: whole.iter().map(|limit| share.of_limit(limit)).collect(),
            shared: fields.shared,
            shadow: fields.shadow,
            consistency: fields.consistency.into(),
            on_store_error: fields.on_store_error.into(),
            on_full: fields.on_full.into(),
        };
        CompiledRule { draft: self, whole, rule }
    }

    /// Doors check the names that they make of their own.
    fn check_name(&self, problems: &mut Vec<Problem>) {
        if self.origin != RuleOrigin::Rule {
            return;
        }
        let (name, at) = (self.name.as_str(), self.at.clone());
        if name == DEFAULT_NAME {
            let message = format!("\"{DEFAULT_NAME}\" is the name of the [default] rule");
            problems.push(Problem::new(at, message, "give the rule another name"));
        } else if name.is_empty() && self.table.name.is_some() {
            let remedy = "add a name to the rule: name = \"...\"";
            problems.push(Problem::new(at, "a rule must have a name", remedy));
        } else if name.len() > NAME_BYTES_MAX || name.contains(char::is_control) {
            let message =
                format!("a name has at most {NAME_BYTES_MAX} bytes and no control characters");
            let remedy = "add a short, readable name to the rule: name = \"...\"";
            problems.push(Problem::new(at, message, remedy));
        }
        if let Some(found) = &self.table.r#match
            && found.get_ref().is_empty()
        {
            let remedy = "say which keys it is for: match = \"ws ip=*\"";
            problems.push(Problem::new(found.span(), "`match` is empty: it names no key", remedy));
        }
        if let Some(found) = &self.table.r#match
            && found.get_ref().len() > 2 * KEY_BYTES_MAX
        {
            let message = format!(
                "this match is longer than any key, which has {KEY_BYTES_MAX} bytes at most"
            );
            problems.push(Problem::new(found.span(), message, "shorten the match"));
        }
    }
}

/// Writes all rules of a file, in order.
pub(crate) fn write_all(
    source: &str,
    drafts: Vec<Draft>,
    problems: &mut Vec<Problem>,
) -> Vec<CompiledRule> {
    let mut taken: HashMap<String, Range<usize>> = HashMap::new();
    let mut written = Vec::new();
    for draft in drafts {
        let (name, at) = (draft.name.clone(), draft.at.clone());
        let default = draft.origin == RuleOrigin::Default;
        written.push(draft.write(source, problems));
        // `write` reports a rule that takes the default's name.
        if !default && let Some(first) = taken.insert(name.clone(), at.clone()) {
            let line = source[..first.start].matches('\n').count() + 1;
            let message = format!("another rule, in line {line}, already has the name \"{name}\"");
            problems.push(Problem::new(at, message, "give each rule a name of its own"));
        }
    }
    written
}

/// Rules that decide nothing, because one before them matches all their keys. The limits of doors
/// are left out: a rule before one is how it is changed.
pub(crate) fn never_matched(written: &[CompiledRule], source: &str) -> Vec<Problem> {
    // By what their keys begin with: another pattern covers only what begins with the same.
    let mut before: HashMap<&[u8], Vec<&Draft>> = HashMap::new();
    let mut problems = Vec::new();
    for CompiledRule { draft, .. } in written {
        let at = match draft.origin {
            RuleOrigin::Rule => draft.table.r#match.as_ref().map_or(0..0, |found| found.span()),
            RuleOrigin::Default if !draft.table.limit.span().is_empty() => draft.table.limit.span(),
            RuleOrigin::Default | RuleOrigin::Given | RuleOrigin::Door { .. } => continue,
        };
        let beginning = draft.pattern.beginning();
        let earlier = (0..=beginning.len()).filter_map(|length| before.get(&beginning[..length]));
        let covering = earlier.flatten().find(|earlier| earlier.pattern.covers(&draft.pattern));
        if let Some(covering) = covering {
            let line = source[..covering.at.start].matches('\n').count() + 1;
            let Draft { name, .. } = covering;
            let message = format!(
                "this rule never decides: \"{name}\", in line {line}, matches all its keys"
            );
            let remedy = "put it before that rule, or remove it";
            problems.push(Problem::new(at, format!("warning: {message}"), remedy));
        }
        before.entry(beginning).or_default().push(draft);
    }
    problems
}

/// The rules as the law takes them: those with a place in the order, and the default last.
pub(crate) fn rule_set<'a>(written: impl Iterator<Item = &'a CompiledRule>) -> RuleSet {
    let (default, rules): (Vec<_>, Vec<_>) =
        written.partition(|written| written.draft.origin == RuleOrigin::Default);
    let rule = |written: &CompiledRule| written.rule.clone();
    // Without a limit the default would only cost a look-up.
    let default = default.into_iter().map(rule).find(|rule| !rule.limits.is_empty());
    RuleSet::new(rules.into_iter().map(rule).collect(), default)
}
