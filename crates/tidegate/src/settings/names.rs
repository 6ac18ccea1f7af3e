//! Which names a table may use, and which known one was probably meant.
//!
//! The names come from the JSON schema, so there is one list of them: the structs themselves.

use std::ops::Range;
use std::sync::LazyLock;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::problem::Problem;
use super::read;
use super::rule::{RuleFields, RuleTable};

/// What the table of all tables is called in messages.
pub(crate) const THE_FILE: &str = "the file";

static RULE_SCHEMA: LazyLock<Value> = LazyLock::new(inline_schema::<RuleTable>);
static RULE_FIELDS: LazyLock<Value> = LazyLock::new(inline_schema::<RuleFields>);

/// A schema with every definition in its place, so that a walk needs no references.
pub(crate) fn inline_schema<T: JsonSchema>() -> Value {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// Takes every name out of `table` that `schema` does not know and reports it, and reports each
/// name that is missing. `place` is what the table is called in messages. A name that is missing
/// because it is misspelt gets its value, so that the value is checked as well.
pub(crate) fn check(
    table: &mut Spanned<DeTable>,
    schema: &Value,
    place: &str,
    problems: &mut Vec<Problem>,
) {
    let span = table.span();
    walk(table.get_mut(), span, schema, place, problems);
}

/// The same for the table of one rule on its own.
pub(super) fn check_rule(table: &mut Spanned<DeTable>, problems: &mut Vec<Problem>) {
    check(table, &RULE_SCHEMA, "a rule", problems);
}

/// Whether this name is of the settings that all tables have which make a rule.
pub(super) fn is_rule_field(name: &str) -> bool {
    RULE_FIELDS["properties"].get(name).is_some()
}

/// Whether the table of a rule may have this name.
pub(super) fn in_a_rule(name: &str) -> bool {
    RULE_SCHEMA["properties"].get(name).is_some()
}

fn walk(
    table: &mut DeTable,
    span: Range<usize>,
    schema: &Value,
    place: &str,
    problems: &mut Vec<Problem>,
) {
    let Some((properties, required)) = names(schema) else { return };
    let mut missing: Vec<&str> = required.filter(|name| !table.contains_key(*name)).collect();
    let mut unknown = Vec::new();
    for (name, value) in table.iter_mut() {
        let text = name.get_ref().as_ref();
        let Some(schema) = properties.get(text) else {
            problems.push(unknown_name(name, value.get_ref(), place, properties));
            let meant = nearest(text, properties.keys().map(String::as_str));
            let meant = missing.iter().position(|name| Some(*name) == meant);
            unknown.push((name.clone(), meant.map(|at| missing.remove(at))));
            continue;
        };
        let span = value.span();
        match value.get_mut() {
            DeValue::Table(_) if place != THE_FILE && is_list_of_tables(schema) => {
                let path = format!("{}.{text}", place.trim_matches(['[', ']']));
                let message = format!("\"{text}\" must be a list of tables");
                let remedy = format!("write [[{path}]] with two brackets");
                problems.push(Problem::new(span, message, remedy));
                unknown.push((name.clone(), None));
            }
            DeValue::Table(inner) => walk(inner, span, schema, &format!("[{text}]"), problems),
            DeValue::Array(elements) => {
                let schema = schema.get("items").unwrap_or(&Value::Null);
                for element in elements.iter_mut() {
                    let span = element.span();
                    if let DeValue::Table(inner) = element.get_mut() {
                        walk(inner, span, schema, &format!("[[{text}]]"), problems);
                    }
                }
            }
            _ => {}
        }
    }
    problems.extend(missing.into_iter().map(|name| read::missing(span.clone(), name)));
    for (name, meant) in unknown {
        let value = table.remove(&name);
        if let (Some(value), Some(meant)) = (value, meant) {
            table.insert(Spanned::new(name.span(), meant.to_owned().into()), value);
        }
    }
}

fn is_list_of_tables(schema: &Value) -> bool {
    schema.get("items").is_some_and(|items| names(items).is_some())
}

/// The names that a table of this schema may have, and those that it must have; `None` if it may
/// have any.
fn names(schema: &Value) -> Option<(&Map<String, Value>, impl Iterator<Item = &str>)> {
    // An optional table is written as "this or null".
    let choices = schema.get("anyOf").and_then(Value::as_array).into_iter().flatten();
    std::iter::once(schema).chain(choices).find_map(|choice| {
        let required = choice.get("required").and_then(Value::as_array).into_iter().flatten();
        Some((choice.get("properties")?.as_object()?, required.filter_map(Value::as_str)))
    })
}

fn unknown_name(
    name: &Spanned<DeString>,
    value: &DeValue,
    place: &str,
    known: &Map<String, Value>,
) -> Problem {
    let (span, name) = (name.span(), name.get_ref().as_ref());
    let message = format!("unknown name \"{name}\" in {place}");
    let remedy = elsewhere(name, value, place, known);
    let remedy = remedy.unwrap_or_else(|| meant(name, known.keys().map(String::as_str)));
    Problem::new(span, message, remedy)
}

/// The remedy for a name that stands in the wrong table, or is a part of another setting.
fn elsewhere(
    name: &str,
    value: &DeValue,
    place: &str,
    known: &Map<String, Value>,
) -> Option<String> {
    let number = |otherwise| match value {
        DeValue::Integer(number) => number.as_str().to_owned(),
        _ => String::from(otherwise),
    };
    Some(match name {
        "burst" if known.contains_key("limit") => {
            format!("write it in the limit: \"5/min burst {}\"", number("3"))
        }
        "port" if known.contains_key("listen") => {
            format!("write listen = \"127.0.0.1:{}\"", number("8080"))
        }
        "address" | "bind" | "host" if known.contains_key("listen") => {
            "write listen = \"127.0.0.1:8080\"".to_owned()
        }
        "listen" if place == THE_FILE => {
            "it belongs in the table of a door: write it below [http]".to_owned()
        }
        _ if place == THE_FILE && in_a_rule(name) => {
            "it belongs in a rule: write it below [[rule]]".to_owned()
        }
        _ => return None,
    })
}

/// A remedy that suggests the nearest of the known words, or lists them if none is near.
pub(crate) fn meant<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    match nearest(word, known.iter().copied()) {
        Some(name) => format!("did you mean \"{name}\"?"),
        None => format!("known here: {}", known.join(", ")),
    }
}

/// The nearest of the known words, if it is near.
fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let likeness = |name: &'a str| (strsim::jaro_winkler(&word, name), name);
    let nearest = known.map(likeness).max_by(|(a, _), (b, _)| a.total_cmp(b));
    nearest.filter(|(likeness, _)| *likeness >= 0.75).map(|(_, name)| name)
}
