//! The limits of one rule: the grammar's words and the algorithm's needs, fitted together.
//!
//! `tidegate-core` says what a limit may be; this module adds the places in the file.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tidegate_core::limit::{AlgorithmName, GrammarError, REPLICAS_MAX, ReplicaShare, Spec};
use tidegate_core::rules::LIMITS_MAX;
use tidegate_core::{Algorithm, Limit};
use toml::Spanned;

use super::names;
use super::problem::Problem;
use super::rule::{RuleFields, RuleTable, Texts};

/// The word in the file for an algorithm. In flight is chosen by the wording of the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlgorithmWord(pub AlgorithmName);

impl<'de> Deserialize<'de> for AlgorithmWord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        AlgorithmName::parse(&text).map(Self).map_err(|_| {
            let names = AlgorithmName::ALL.into_iter().map(AlgorithmName::name);
            let foreign = AlgorithmName::foreign_name(&text).map(str::to_owned);
            let remedy = foreign.unwrap_or_else(|| names::meant(&text, names));
            de::Error::custom(format!("\"{text}\" is not the name of an algorithm\n{remedy}"))
        })
    }
}

impl Serialize for AlgorithmWord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.name())
    }
}

impl JsonSchema for AlgorithmWord {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Algorithm".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "enum": AlgorithmName::ALL.map(AlgorithmName::name) })
    }
}

/// What a table says about counting.
pub(super) struct Counting<'a> {
    pub(super) table: &'a RuleTable,
    /// What counts where no algorithm is named.
    pub(super) usual: AlgorithmName,
}

impl Counting<'_> {
    fn algorithm(&self) -> AlgorithmName {
        self.table.fields.algorithm.as_ref().map_or(self.usual, |word| word.get_ref().0)
    }

    /// A setting, if it is of the algorithm that it belongs to.
    fn setting(&self, of: AlgorithmName, value: &Option<Spanned<bool>>) -> Option<bool> {
        value.as_ref().filter(|_| self.algorithm() == of).map(|value| *value.get_ref())
    }

    fn limit(&self, spec: &Spec) -> Result<Option<Limit>, GrammarError> {
        let strict = self.setting(AlgorithmName::Average, &self.table.fields.strict);
        let exact = self.setting(AlgorithmName::Jarl, &self.table.fields.exact);
        spec.with(Some(self.algorithm()), strict, exact)
    }
}

/// The limits; empty for "none". Reports what is wrong with them.
pub(super) fn compile(
    source: &str,
    counting: &Counting,
    problems: &mut Vec<Problem>,
) -> Vec<Limit> {
    let whole = counting.table.limit.span();
    let texts: Vec<(&str, Range<usize>)> = match counting.table.limit.get_ref() {
        Texts::One(text) => vec![(text, whole.clone())],
        Texts::Many(texts) => texts.iter().map(|t| (t.get_ref().as_str(), t.span())).collect(),
    };
    let before = problems.len();
    if texts.is_empty() {
        let remedy = "write a limit like \"22 per 20s\", or \"none\"";
        problems.push(Problem::new(whole, "the list of limits is empty", remedy));
    } else if texts.len() > LIMITS_MAX {
        let message = format!("{} limits are more than a rule may have", texts.len());
        let remedy = format!("keep at most {LIMITS_MAX}, or make several rules");
        problems.push(Problem::new(whole, message, remedy));
    }
    let alone = texts.len() == 1;
    let mut limits = Vec::new();
    for (text, span) in texts {
        match Spec::parse(text).and_then(|spec| counting.limit(&spec)) {
            Ok(None) if alone => {}
            Ok(Some(limit)) if alone || !limit.denies() => limits.push(limit),
            Ok(limit) => {
                let word = limit.map_or("none", |_| "deny");
                let message = format!("\"{word}\" cannot be combined with other limits");
                let remedy = format!("remove it from the list, or write limit = \"{word}\" alone");
                problems.push(Problem::new(span, message, remedy));
            }
            Err(error) => {
                let span = within(source, text, &span, error.span);
                let remedy = as_list(text).unwrap_or(error.remedy);
                problems.push(Problem::new(span, error.message, remedy));
            }
        }
    }
    // Advice about the settings around a limit that was not understood would be a guess.
    if problems.len() == before {
        check_settings(counting, &limits, problems);
    }
    limits
}

/// The list that is right where one text has several limits.
fn as_list(text: &str) -> Option<String> {
    let limits: Vec<&str> = text.split([',', ';']).map(str::trim).collect();
    let all = limits.len() > 1 && limits.iter().all(|limit| Spec::parse(limit).is_ok());
    all.then(|| format!("write a list: [\"{}\"]", limits.join("\", \"")))
}

fn check_settings(counting: &Counting, limits: &[Limit], problems: &mut Vec<Problem>) {
    // A rule that is blocked for a while keeps its settings.
    if let Some(word) = &counting.table.fields.algorithm
        && !limits.iter().any(|limit| is_chosen(limit) || limit.denies())
    {
        let message =
            format!("`{}` has no effect: it counts no limit of this rule", word.get_ref().0);
        let remedy = "remove the setting; in flight is chosen by the wording, and \"none\" counts \
                      nothing";
        problems.push(Problem::new(word.span(), message, remedy));
    }
    let mut belongs = |name: &str, setting: &Option<Spanned<bool>>, home: AlgorithmName| {
        if let Some(setting) = setting
            && counting.algorithm() != home
        {
            let message = format!("`{name}` belongs to the algorithm `{home}`");
            let remedy = format!("remove it, or write algorithm = \"{home}\"");
            problems.push(Problem::new(setting.span(), message, remedy));
        }
    };
    belongs("strict", &counting.table.fields.strict, AlgorithmName::Average);
    belongs("exact", &counting.table.fields.exact, AlgorithmName::Jarl);
}

/// The share of this replica, as the table says. Reports what is wrong with it.
pub(super) fn share(
    fields: &RuleFields,
    whole: &[Limit],
    problems: &mut Vec<Problem>,
) -> ReplicaShare {
    let number = |value: &Spanned<i64>| u64::try_from(*value.get_ref()).unwrap_or(0);
    let replicas = fields.replicas.as_ref().map_or(1, number);
    if let Some(place) =
        fields.replicas.as_ref().filter(|_| !(1..=REPLICAS_MAX).contains(&replicas))
    {
        let message = format!("{} is not a valid number of replicas", place.get_ref());
        let remedy = format!("write a whole number from 1 to {REPLICAS_MAX}");
        problems.push(Problem::new(place.span(), message, remedy));
        return ReplicaShare::WHOLE;
    }
    let Some(share) = ReplicaShare::new(replicas, fields.replica.as_ref().map(number)) else {
        let place = fields.replica.as_ref().map_or(0..0, Spanned::span);
        let message = match replicas {
            1 => "`replica` must be 1, since there is one replica".to_owned(),
            _ => format!("`replica` must be from 1 to {replicas}"),
        };
        let remedy = "write the number of this replica, or change `replicas`";
        problems.push(Problem::new(place, message, remedy));
        return ReplicaShare::WHOLE;
    };
    let counted = whole.iter().filter(|limit| !limit.denies());
    let smallest = counted.map(|limit| limit.amount.min(limit.capacity())).min();
    if fields.replica.is_none() && smallest.is_some_and(|amount| amount < replicas) {
        let place = fields.replicas.as_ref().map_or(0..0, Spanned::span);
        let message = format!("a limit of this rule is too small for {replicas} replicas");
        let remedy = "raise the limit, write it for a longer period, or give each replica its \
                      number (replica = 1, 2, ...), so that only the first ones have a part";
        problems.push(Problem::new(place, message, remedy));
    }
    share
}

/// Whether the limit is counted by the algorithm that the rule names.
fn is_chosen(limit: &Limit) -> bool {
    !matches!(limit.algorithm, Algorithm::InFlight { .. } | Algorithm::Deny)
}

/// The place in the file of `inner`, a place inside the text that the file holds at `outer`.
///
/// Exact where the text stands in the file as it is; a text with escapes is marked as a whole.
fn within(source: &str, text: &str, outer: &Range<usize>, inner: Range<usize>) -> Range<usize> {
    let first = outer.start + 1;
    let verbatim = source.get(first..outer.end.saturating_sub(1)) == Some(text);
    if verbatim { first + inner.start..first + inner.end } else { outer.clone() }
}

/// What the limits are counted by, where that can be chosen.
pub(super) fn chosen(limits: &[Limit]) -> Option<Algorithm> {
    limits.iter().find(|limit| is_chosen(limit)).map(|limit| limit.algorithm)
}
