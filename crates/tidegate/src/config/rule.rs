//! Rules: from their tables to what the law takes, checked one against the other.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use schemars::JsonSchema;
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tidegate_core::key::KEY_BYTES_MAX;
use tidegate_core::limit::AlgorithmName;
use tidegate_core::rules::{self, Pattern, Rule, RuleSet};
use toml::Spanned;

use super::implicit::ImplicitRule;
use super::limits::{self, AlgorithmWord, Counting};
use super::problem::Problem;

/// The name of the rule that `[default]` makes.
pub const DEFAULT_NAME: &str = "default";
/// The longest name of a rule; it is a label in metrics.
pub const NAME_BYTES_MAX: usize = 256;

/// One `[[rule]]`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleTable {
    /// Identity across reloads, shown in verdicts and metrics. Absent: the match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub name: Option<Spanned<String>>,
    /// The keys it is for: `*` matches any run of bytes, `\*` is a star.
    #[schemars(with = "String")]
    pub r#match: Spanned<String>,
    /// A limit like "22 per 20s", or a list of limits that must all hold.
    #[schemars(with = "TextsSchema")]
    pub limit: Spanned<Texts>,
    /// How uses are counted. Absent: gcra, or in flight where the limit says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<AlgorithmWord>")]
    pub algorithm: Option<Spanned<AlgorithmWord>>,
    /// For `average`: whether refused attempts are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<bool>")]
    pub strict: Option<Spanned<bool>>,
    /// For `jarl`: whether starts are booked instead of arrivals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<bool>")]
    pub exact: Option<Spanned<bool>>,
    /// Whether every key that matches shares one count.
    #[serde(default)]
    pub shared: bool,
    /// Whether refusals are only counted and reported.
    #[serde(default)]
    pub shadow: bool,
    /// What a failing store means.
    #[serde(default)]
    pub on_store_error: OnStoreError,
    /// What a table full of live keys means for a new key.
    #[serde(default)]
    pub on_full: OnFull,
}

/// `[default]`: keys that no rule matches.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DefaultTable {
    /// A limit like "22 per 20s", a list of limits, or "none".
    #[schemars(with = "TextsSchema")]
    pub limit: Spanned<Texts>,
    /// How uses are counted. Absent: gcra, or in flight where the limit says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<AlgorithmWord>")]
    pub algorithm: Option<Spanned<AlgorithmWord>>,
    /// For `average`: whether refused attempts are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<bool>")]
    pub strict: Option<Spanned<bool>>,
    /// For `jarl`: whether starts are booked instead of arrivals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<bool>")]
    pub exact: Option<Spanned<bool>>,
    /// Whether every such key shares one count.
    #[serde(default)]
    pub shared: bool,
    /// Whether refusals are only counted and reported.
    #[serde(default)]
    pub shadow: bool,
    /// What a failing store means.
    #[serde(default)]
    pub on_store_error: OnStoreError,
    /// What a table full of live keys means for a new key.
    #[serde(default)]
    pub on_full: OnFull,
}

impl DefaultTable {
    /// What holds where the file has no `[default]`.
    #[must_use]
    pub fn none() -> Self {
        Self {
            limit: Spanned::new(0..0, Texts::One("none".to_owned())),
            algorithm: None,
            strict: None,
            exact: None,
            shared: false,
            shadow: false,
            on_store_error: OnStoreError::default(),
            on_full: OnFull::default(),
        }
    }
}

/// What a failing store means for a rule's keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnStoreError {
    /// Let the request pass.
    #[default]
    Allow,
    /// Refuse it.
    Deny,
    /// Decide on this node's own count.
    Local,
}

impl From<OnStoreError> for rules::OnStoreError {
    fn from(word: OnStoreError) -> Self {
        match word {
            OnStoreError::Allow => Self::Allow,
            OnStoreError::Deny => Self::Deny,
            OnStoreError::Local => Self::Local,
        }
    }
}

/// What a table full of live keys means for a new key of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnFull {
    /// All new keys share one count.
    #[default]
    Share,
    /// Refuse it.
    Deny,
    /// Let it pass, uncounted.
    Allow,
}

impl From<OnFull> for rules::OnFull {
    fn from(word: OnFull) -> Self {
        match word {
            OnFull::Share => Self::Share,
            OnFull::Deny => Self::Deny,
            OnFull::Allow => Self::Allow,
        }
    }
}

/// One text, or a list that keeps the place of each.
#[derive(Clone, Debug, PartialEq)]
pub enum Texts {
    /// A text on its own.
    One(String),
    /// A list of texts.
    Many(Vec<Spanned<String>>),
}

/// How [`Texts`] look in the schema.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum TextsSchema {
    One(String),
    Many(Vec<String>),
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Texts;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a limit like \"22 per 20s\" or a list of limits")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Texts, E> {
                Ok(Texts::One(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Texts, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = list.next_element()? {
                    texts.push(text);
                }
                Ok(Texts::Many(texts))
            }
        }
        deserializer.deserialize_any(OneOrMany)
    }
}

impl Serialize for Texts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Texts::One(text) => text.serialize(serializer),
            Texts::Many(texts) => texts.serialize(serializer),
        }
    }
}

/// Compiles all rules of a file, those of its doors last; `source` is its text, for the places of
/// what is wrong.
pub(super) fn compile(
    source: &str,
    tables: &[RuleTable],
    implicit: &[ImplicitRule],
    default: Option<&DefaultTable>,
    problems: &mut Vec<Problem>,
) -> RuleSet {
    let mut names = Names { source, taken: HashMap::new() };
    let mut compiled = Vec::new();
    for table in tables {
        let (name, at) = match &table.name {
            Some(name) => (name.get_ref(), name.span()),
            None => (table.r#match.get_ref(), table.r#match.span()),
        };
        check_name(name, &at, table, problems);
        names.take(name, at, problems);
        let counting = Counting {
            limit: &table.limit,
            algorithm: table.algorithm.as_ref(),
            strict: table.strict.as_ref(),
            exact: table.exact.as_ref(),
            usual: AlgorithmName::default(),
        };
        compiled.push(Rule {
            name: name.as_str().into(),
            pattern: Pattern::new(table.r#match.get_ref()),
            limits: limits::compile(source, &counting, problems),
            shared: table.shared,
            shadow: table.shadow,
            on_store_error: table.on_store_error.into(),
            on_full: table.on_full.into(),
        });
    }
    for rule in implicit {
        names.take(&rule.name, rule.at.clone(), problems);
        compiled.push(rule.compile(source, problems));
    }
    let default = default.map(|table| compile_default(source, table, problems));
    // Without a limit the default would only cost a look-up.
    RuleSet::new(compiled, default.filter(|rule| !rule.limits.is_empty()))
}

/// The names of rules, each at its place.
struct Names<'a> {
    source: &'a str,
    taken: HashMap<String, Range<usize>>,
}

impl Names<'_> {
    fn take(&mut self, name: &str, at: Range<usize>, problems: &mut Vec<Problem>) {
        if let Some(first) = self.taken.insert(name.to_owned(), at.clone()) {
            let line = self.source[..first.start].matches('\n').count() + 1;
            let message = format!("another rule, in line {line}, already has the name \"{name}\"");
            problems.push(Problem::new(at, message, "give each rule a name of its own"));
        }
    }
}

fn compile_default(source: &str, table: &DefaultTable, problems: &mut Vec<Problem>) -> Rule {
    let counting = Counting {
        limit: &table.limit,
        algorithm: table.algorithm.as_ref(),
        strict: table.strict.as_ref(),
        exact: table.exact.as_ref(),
        usual: AlgorithmName::default(),
    };
    Rule {
        name: DEFAULT_NAME.into(),
        pattern: Pattern::new("*"),
        limits: limits::compile(source, &counting, problems),
        shared: table.shared,
        shadow: table.shadow,
        on_store_error: table.on_store_error.into(),
        on_full: table.on_full.into(),
    }
}

fn check_name(name: &str, at: &Range<usize>, table: &RuleTable, problems: &mut Vec<Problem>) {
    let mut wrong = |span: Range<usize>, message: String, remedy: &str| {
        problems.push(Problem::new(span, message, remedy));
    };
    if name == DEFAULT_NAME {
        let remedy = "give the rule another name";
        wrong(at.clone(), format!("\"{DEFAULT_NAME}\" is the name of the [default] rule"), remedy);
    } else if name.is_empty() {
        let remedy = "add a name to the rule: name = \"...\"";
        wrong(at.clone(), "a rule must have a name".to_owned(), remedy);
    } else if name.len() > NAME_BYTES_MAX || name.contains(char::is_control) {
        let remedy = "add a short, readable name to the rule: name = \"...\"";
        let message =
            format!("a name has at most {NAME_BYTES_MAX} bytes and no control characters");
        wrong(at.clone(), message, remedy);
    }
    let pattern = table.r#match.get_ref();
    if pattern.len() > 2 * KEY_BYTES_MAX {
        let message = format!("no key is as long as this match: keys end at {KEY_BYTES_MAX} bytes");
        wrong(table.r#match.span(), message, "shorten the match");
    }
}
