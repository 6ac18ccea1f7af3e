//! The limits of one rule: the grammar's words and the algorithm's needs, fitted together.
//!
//! What a limit may say is the law's; here it only gets its place in the file.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tidegate_core::limit::{AlgorithmName, GrammarError, Spec};
use tidegate_core::{Algorithm, Limit};
use toml::Spanned;

use super::names;
use super::problem::Problem;
use super::rule::Texts;
use crate::limiter::LIMITS_MAX;

/// The word in the file for an algorithm. In flight is chosen by the wording of the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlgorithmWord(pub AlgorithmName);

impl<'de> Deserialize<'de> for AlgorithmWord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        AlgorithmName::parse(&text).map(Self).map_err(|error| {
            let remedy = if text.replace(['-', '_', ' '], "") == "inflight" {
                error.remedy
            } else {
                names::meant(&text, AlgorithmName::ALL.into_iter().map(AlgorithmName::name))
            };
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

/// What a rule, `[default]` or a door's own limit says about counting.
pub(crate) struct Counting<'a> {
    pub(crate) limit: &'a Spanned<Texts>,
    pub(crate) algorithm: Option<&'a Spanned<AlgorithmWord>>,
    pub(crate) strict: Option<&'a Spanned<bool>>,
    pub(crate) exact: Option<&'a Spanned<bool>>,
    /// What counts where no algorithm is named.
    pub(crate) usual: AlgorithmName,
}

impl Counting<'_> {
    fn algorithm(&self) -> AlgorithmName {
        self.algorithm.map_or(self.usual, |word| word.get_ref().0)
    }

    /// A setting, if it is of the algorithm that it belongs to.
    fn setting(&self, of: AlgorithmName, value: Option<&Spanned<bool>>) -> Option<bool> {
        value.filter(|_| self.algorithm() == of).map(|value| *value.get_ref())
    }

    fn limit(&self, spec: &Spec) -> Result<Option<Limit>, GrammarError> {
        let strict = self.setting(AlgorithmName::Average, self.strict);
        let exact = self.setting(AlgorithmName::Jarl, self.exact);
        spec.with(Some(self.algorithm()), strict, exact)
    }
}

/// The limits; empty for "none". What is wrong with them is told.
pub(super) fn compile(
    source: &str,
    counting: &Counting,
    problems: &mut Vec<Problem>,
) -> Vec<Limit> {
    let whole = counting.limit.span();
    let texts: Vec<(&str, Range<usize>)> = match counting.limit.get_ref() {
        Texts::One(text) => vec![(text, whole.clone())],
        Texts::Many(texts) => texts.iter().map(|t| (t.get_ref().as_str(), t.span())).collect(),
    };
    let before = problems.len();
    if texts.is_empty() {
        let remedy = "write a limit like \"22 per 20s\", or \"none\"";
        problems.push(Problem::new(whole, "the list has no limit in it", remedy));
    } else if texts.len() > LIMITS_MAX {
        let message = format!("{} limits are more than a rule may have", texts.len());
        let remedy = format!("keep at most {LIMITS_MAX}, or make several rules");
        problems.push(Problem::new(whole, message, remedy));
    }
    let alone = texts.len() == 1;
    let mut limits = Vec::new();
    for (text, span) in texts {
        match Spec::parse(text).and_then(|spec| counting.limit(&spec)) {
            Ok(Some(limit)) => limits.push(limit),
            Ok(None) if alone => {}
            Ok(None) => {
                let remedy = "remove it from the list, or write limit = \"none\" alone";
                problems.push(Problem::new(span, "\"none\" stands beside other limits", remedy));
            }
            Err(error) => {
                let span = within(source, text, &span, error.span);
                problems.push(Problem::new(span, error.message, error.remedy));
            }
        }
    }
    // Advice about the settings around a limit that was not understood would be a guess.
    if problems.len() == before {
        check_settings(counting, &limits, problems);
    }
    limits
}

fn check_settings(counting: &Counting, limits: &[Limit], problems: &mut Vec<Problem>) {
    if let Some(word) = counting.algorithm
        && !limits.iter().any(is_chosen)
    {
        let message = format!("no limit of this rule is counted by `{}`", word.get_ref().0);
        let remedy = "remove the setting; in flight is chosen by the wording, and \"none\" counts \
                      nothing";
        problems.push(Problem::new(word.span(), message, remedy));
    }
    let mut belongs = |name: &str, setting: Option<&Spanned<bool>>, home: AlgorithmName| {
        if let Some(setting) = setting
            && counting.algorithm() != home
        {
            let message = format!("`{name}` belongs to the algorithm `{home}`");
            let remedy = format!("remove it, or write algorithm = \"{home}\"");
            problems.push(Problem::new(setting.span(), message, remedy));
        }
    };
    belongs("strict", counting.strict, AlgorithmName::Average);
    belongs("exact", counting.exact, AlgorithmName::Jarl);
}

/// Whether the limit is counted by the algorithm that the rule names.
fn is_chosen(limit: &Limit) -> bool {
    !matches!(limit.algorithm, Algorithm::InFlight { .. })
}

/// The place in the file of `inner`, a place inside the text that the file holds at `outer`.
///
/// Exact where the text stands in the file as it is; a text with escapes is marked as a whole.
fn within(source: &str, text: &str, outer: &Range<usize>, inner: Range<usize>) -> Range<usize> {
    let first = outer.start + 1;
    let verbatim = source.get(first..outer.end.saturating_sub(1)) == Some(text);
    if verbatim { first + inner.start..first + inner.end } else { outer.clone() }
}

/// Writes out what the limits are counted by, where the table left it to the default.
pub(crate) fn fill_in(
    limits: &[Limit],
    algorithm: &mut Option<Spanned<AlgorithmWord>>,
    strict: &mut Option<Spanned<bool>>,
    exact: &mut Option<Spanned<bool>>,
) {
    let Some(limit) = limits.iter().find(|limit| is_chosen(limit)) else { return };
    let word = AlgorithmName::parse(limit.algorithm.name()).map(AlgorithmWord).unwrap_or_default();
    algorithm.get_or_insert_with(|| Spanned::new(0..0, word));
    match limit.algorithm {
        Algorithm::Average { strict: value } => *strict = Some(Spanned::new(0..0, value)),
        Algorithm::Jarl { exact: value } => *exact = Some(Spanned::new(0..0, value)),
        _ => {}
    }
}
