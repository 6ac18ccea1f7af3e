//! Reads one table, and says everything that is wrong with it and not only the first thing.
//!
//! A setting that does not fit is reported and taken out, and the rest is read again: a table with
//! three mistakes in it needs one look, not three.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue, ValueDeserializer};

use super::mask;
use super::names;
use super::problem::Problem;
use super::rule::{MakesRule, RuleTable};

/// Reads `text` as the table of one rule. The second half of what it returns is the place of each
/// name and its value, by name.
pub(super) fn rule(
    text: &str,
    problems: &mut Vec<Problem>,
) -> (Option<RuleTable>, Vec<(String, Range<usize>)>) {
    let mut table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(error) => {
            problems.push(from_toml(&error, 0..text.len()));
            return (None, Vec::new());
        }
    };
    let place = |(name, value): (&Spanned<DeString>, &Spanned<DeValue>)| {
        (name.get_ref().to_string(), name.span().start..value.span().end)
    };
    let places = table.get_ref().iter().map(place).collect();
    names::check_rule(&mut table, problems);
    let whole = Spanned::new(table.span(), DeValue::Table(table.into_inner()));
    (rule_table(whole, problems), places)
}

/// Reads a table that makes a rule.
pub(crate) fn rule_table<T: MakesRule>(
    mut value: Spanned<DeValue>,
    problems: &mut Vec<Problem>,
) -> Option<T> {
    let mut fields = DeTable::new();
    if let DeValue::Table(table) = value.get_mut() {
        let (of_rule, others): (DeTable, DeTable) = std::mem::take(table)
            .into_iter()
            .partition(|(name, _)| names::is_rule_field(name.get_ref()));
        (fields, *table) = (of_rule, others);
    }
    let fields = read(Spanned::new(value.span(), DeValue::Table(fields)), problems);
    let mut table: T = read(value, problems)?;
    *table.rule_fields() = fields.unwrap_or_default();
    Some(table)
}

/// A table some of whose settings depend on each other.
pub(crate) trait CompletedTable: DeserializeOwned {
    /// Fills in what was left out, once all settings are read.
    ///
    /// # Errors
    /// What does not fit together, and on a line of its own what would be right.
    fn complete(&mut self) -> Result<(), String>;
}

/// Reads such a table.
pub(crate) fn completed_table<T: CompletedTable>(
    value: Spanned<DeValue>,
    problems: &mut Vec<Problem>,
) -> Option<T> {
    let span = value.span();
    let mut table: T = read(value, problems)?;
    if let Err(message) = table.complete() {
        let (wrong, remedy) = message.split_once('\n').unwrap_or((&message, ""));
        problems.push(Problem::new(span, wrong, remedy));
    }
    Some(table)
}

/// Reads one table. Reports each setting that does not fit, and leaves it out.
pub(crate) fn read<T: DeserializeOwned>(
    mut value: Spanned<DeValue>,
    problems: &mut Vec<Problem>,
) -> Option<T> {
    let mut left_out = Vec::new();
    loop {
        let error = match T::deserialize(ValueDeserializer::from(value.clone())) {
            Ok(table) => return Some(table),
            Err(error) => error,
        };
        if missing_field(&error).is_some_and(|name| left_out.contains(&name)) {
            return None;
        }
        let mut problem = from_toml(&error, value.span());
        let at = problem.span.clone();
        let holds = |v: &Spanned<DeValue>| v.span().start <= at.start && at.end <= v.span().end;
        let culprit = match value.get_ref() {
            DeValue::Table(table) => table.iter().find(|(_, v)| holds(v)).map(|(name, _)| name),
            _ => None,
        };
        let culprit = culprit.cloned();
        if let Some(name) = &culprit {
            problem = of_setting(problem, name.get_ref(), error.message());
        }
        // The check of the names may have reported what is missing.
        if !problems.contains(&problem) {
            problems.push(problem);
        }
        let (Some(culprit), DeValue::Table(table)) = (culprit, value.get_mut()) else {
            return None;
        };
        table.remove(&culprit);
        left_out.push(culprit.into_inner().into_owned());
    }
}

fn missing_field(error: &toml::de::Error) -> Option<String> {
    let name = error.message().strip_prefix("missing field `")?.strip_suffix('`')?;
    Some(name.to_owned())
}

/// A problem out of what toml or a setting's own type says: the first line is what is wrong, a
/// second one the remedy.
pub(crate) fn from_toml(error: &toml::de::Error, otherwise: Range<usize>) -> Problem {
    let span = error.span().unwrap_or(otherwise);
    let message = error.message();
    if let Some(name) = missing_field(error) {
        return missing(span, &name);
    }
    if let Some((wrong, remedy)) = message.split_once('\n') {
        return Problem::new(span, wrong, remedy);
    }
    if let Some(rest) = message.strip_prefix("unknown variant ") {
        return unknown_word(span, rest);
    }
    if let Some((wrong, "struct Tls")) = message.split_once(", expected ") {
        return Problem::new(span, wrong, "write { cert = \"cert.pem\", key = \"key.pem\" }");
    }
    if let Some((wrong, "i64" | "u64" | "u32" | "u16" | "u8" | "usize")) =
        message.split_once(", expected ")
    {
        return Problem::new(span, wrong, "write a whole number: 1_000_000");
    }
    if let Some((wrong, expected)) = message.split_once(", expected ") {
        return Problem::new(span, wrong, format!("expected {expected}"));
    }
    Problem::new(span, message, "see the commented example: tidegate config example")
}

/// A name that a table must have and has not.
pub(super) fn missing(span: Range<usize>, name: &str) -> Problem {
    let remedy = match name {
        "match" => "say which keys it is for: match = \"ws ip=*\"",
        "service" => "name what callers wait for: service = \"PaymentGateway\"",
        "name" => "give the proxy a name: name = \"api\"",
        "upstream" => "say where requests go: upstream = \"http://127.0.0.1:3000\"",
        "listen" => "say where: listen = \"127.0.0.1:1234\"",
        "limit" => "add a limit: limit = \"22 per 20s\", or limit = \"none\"",
        _ => "see the commented example: tidegate config example",
    };
    Problem::new(span, format!("`{name}` is missing here"), remedy)
}

/// What toml says where a word in quotes belongs and something else is.
const NO_WORD: &str = "wanted string or table";

/// The problem as it is for this setting, where there is more to say than toml does.
fn of_setting(problem: Problem, name: &str, message: &str) -> Problem {
    if message == NO_WORD {
        return no_word(problem.span, name);
    }
    let is_type = message.starts_with("invalid type: ");
    if is_type && mask::names_a_secret(name) {
        // The message would show the value.
        let remedy = format!("write {name} = {{ anna = \"env:NAME\" }}: a reference for each name");
        return Problem::new(problem.span, format!("`{name}` must be a table"), remedy);
    }
    if message.starts_with("invalid type: sequence") && name == "match" {
        let remedy = "write one pattern here, and a second [[rule]] for the next";
        return Problem::new(problem.span, "`match` is one pattern, not a list", remedy);
    }
    problem
}

/// The same in our own words, for the setting `name`.
fn no_word(span: Range<usize>, name: &str) -> Problem {
    let remedy = match name {
        "consistency" => "write \"exact\" or \"local\"",
        "on_store_error" => "write \"allow\", \"deny\" or \"local\"",
        "on_full" => "write \"share\", \"deny\" or \"allow\"",
        _ => "see the commented example: tidegate config example",
    };
    Problem::new(span, format!("`{name}` takes a word in quotes"), remedy)
}

/// Serde's ``unknown variant `a`, expected one of `b`, `c` `` in our own words.
fn unknown_word(span: Range<usize>, rest: &str) -> Problem {
    let mut words = rest.split('`').skip(1).step_by(2);
    let word = words.next().unwrap_or_default();
    let message = format!("unknown value \"{word}\"");
    Problem::new(span, message, names::meant(word, words))
}
