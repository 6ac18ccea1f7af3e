//! The table of a rule: in the file, of a door's own limit, and over the API.
//! [`draft`](super::draft) makes a rule of it.

use std::fmt;

use schemars::JsonSchema;
use serde::de::{self, DeserializeOwned, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tidegate_core::limit::{AlgorithmName, REPLICAS_MAX};
use tidegate_core::{Algorithm, Limit, rules};
use toml::Spanned;

use super::limits::{self, AlgorithmWord};

/// The name of the rule that `[default]` makes.
pub const DEFAULT_NAME: &str = "default";
/// The longest name of a rule; it is a label in metrics.
pub const NAME_BYTES_MAX: usize = 256;

/// What can be said of a rule: in a `[[rule]]`, in `[default]`, of a door's own limit, and over the
/// API.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleTable {
    /// The name in verdicts and metrics, and the rule's identity across reloads. Absent: the text
    /// of `match`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub name: Option<Spanned<String>>,
    /// The keys that the rule applies to: `*` matches any run of bytes, `\*` is a star.
    // The schema requires it and says so where it is missing; a door's own rule goes without.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub r#match: Option<Spanned<String>>,
    /// A limit such as "22 per 20s", a list of limits that must all hold, "none" (no limit), or
    /// "deny" (nothing passes).
    #[schemars(with = "TextsSchema")]
    pub limit: Spanned<Texts>,
    /// Everything else.
    #[serde(flatten, skip_deserializing)]
    #[schemars(!skip_deserializing)]
    pub fields: RuleFields,
}

impl RuleTable {
    /// The table of a rule without a name and a match.
    #[must_use]
    pub fn new(limit: Spanned<Texts>, fields: RuleFields) -> Self {
        Self { name: None, r#match: None, limit, fields }
    }
}

/// The settings of a rule that every table has which makes one: a `[[rule]]`, `[default]`, and that
/// of a door with a limit of its own. A table flattens them, and `read::rule_table` reads them:
/// serde's own flattening would lose the places of settings.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleFields {
    /// How uses are counted. Absent: jarl in `[[jarl]]`, fixed-window in `[[proxy]]`, gcra
    /// elsewhere. A limit in flight has no algorithm; without another limit the setting is an
    /// error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<AlgorithmWord>")]
    pub algorithm: Option<Spanned<AlgorithmWord>>,
    /// For `average`: whether refused attempts count, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<bool>")]
    pub strict: Option<Spanned<bool>>,
    /// For `jarl`: whether a call is booked for the time when it may start, not when its caller
    /// arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<bool>")]
    pub exact: Option<Spanned<bool>>,
    /// The number of replicas of this server that divide the limits among them. Absent: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u64>", range(min = 1, max = REPLICAS_MAX))]
    pub replicas: Option<Spanned<i64>>,
    /// The number of this replica, from 1. The first ones get the remainder of a limit that cannot
    /// be divided evenly. Absent: the remainder is left unused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u64>", range(min = 1, max = REPLICAS_MAX))]
    pub replica: Option<Spanned<i64>>,
    /// Whether all keys that match share one count.
    #[serde(default)]
    pub shared: bool,
    /// Whether the rule only counts and reports what it would refuse.
    #[serde(default)]
    pub shadow: bool,
    /// Where counts are kept if there is a remote store.
    #[serde(default)]
    pub consistency: ConsistencyWord,
    /// What is decided while the store does not answer.
    #[serde(default)]
    pub on_store_error: OnStoreErrorWord,
    /// What happens to a new key while the table is full of keys in use.
    #[serde(default)]
    pub on_full: OnFullWord,
}

impl RuleFields {
    /// Writes out what the limits are counted by, where that was left to the default.
    pub(crate) fn fill_in(&mut self, limits: &[Limit]) {
        let Some(algorithm) = limits::chosen(limits) else { return };
        let word = AlgorithmName::parse(algorithm.name()).map(AlgorithmWord).unwrap_or_default();
        self.algorithm.get_or_insert_with(|| Spanned::new(0..0, word));
        match algorithm {
            Algorithm::Average { strict } => self.strict = Some(Spanned::new(0..0, strict)),
            Algorithm::Jarl { exact } => self.exact = Some(Spanned::new(0..0, exact)),
            _ => {}
        }
    }
}

/// A table that makes a rule.
pub(crate) trait MakesRule: DeserializeOwned {
    /// Where the settings of the rule go.
    fn rule_fields(&mut self) -> &mut RuleFields;
}

impl MakesRule for RuleTable {
    fn rule_fields(&mut self) -> &mut RuleFields {
        &mut self.fields
    }
}

impl MakesRule for DefaultTable {
    fn rule_fields(&mut self) -> &mut RuleFields {
        &mut self.fields
    }
}

/// `[default]`: keys that no rule matches.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DefaultTable {
    /// A limit such as "22 per 20s", a list of limits that must all hold, "none" (no limit), or
    /// "deny" (nothing passes).
    #[schemars(with = "TextsSchema")]
    pub limit: Spanned<Texts>,
    /// Everything else.
    #[serde(flatten, skip_deserializing)]
    #[schemars(!skip_deserializing)]
    pub fields: RuleFields,
}

impl Default for DefaultTable {
    /// What holds where the file has no `[default]`.
    fn default() -> Self {
        Self { limit: Texts::unplaced("none"), fields: RuleFields::default() }
    }
}

/// Where the counts of a rule live if there is a remote store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Consistency")]
pub enum ConsistencyWord {
    /// In the remote store: the limit holds for all nodes together.
    #[default]
    Exact,
    /// In the memory of each node: the limit holds for each node.
    Local,
}

impl From<ConsistencyWord> for rules::Consistency {
    fn from(word: ConsistencyWord) -> Self {
        match word {
            ConsistencyWord::Exact => Self::Exact,
            ConsistencyWord::Local => Self::Local,
        }
    }
}

/// What a failing store means for a rule's keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "OnStoreError")]
pub enum OnStoreErrorWord {
    /// Let the request pass.
    #[default]
    Allow,
    /// Refuse it.
    Deny,
    /// Decide on this node's own count.
    Local,
}

impl From<OnStoreErrorWord> for rules::OnStoreError {
    fn from(word: OnStoreErrorWord) -> Self {
        match word {
            OnStoreErrorWord::Allow => Self::Allow,
            OnStoreErrorWord::Deny => Self::Deny,
            OnStoreErrorWord::Local => Self::Local,
        }
    }
}

/// What a table full of live keys means for a new key of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "OnFull")]
pub enum OnFullWord {
    /// All new keys share one count.
    #[default]
    Share,
    /// Refuse it.
    Deny,
    /// Let it pass, uncounted.
    Allow,
}

impl From<OnFullWord> for rules::OnFull {
    fn from(word: OnFullWord) -> Self {
        match word {
            OnFullWord::Share => Self::Share,
            OnFullWord::Deny => Self::Deny,
            OnFullWord::Allow => Self::Allow,
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

impl Texts {
    /// A text that stands in no file.
    pub(crate) fn unplaced(text: impl Into<String>) -> Spanned<Self> {
        Spanned::new(0..0, Texts::One(text.into()))
    }
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
