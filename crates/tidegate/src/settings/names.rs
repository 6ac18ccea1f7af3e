//! Which names a table may use, and which known one was probably meant.
//!
//! The names come from the JSON schema, so there is one list of them: the structs themselves.

use std::ops::Range;
use std::sync::LazyLock;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::Problem;
use super::read;
use super::rule::{RuleFields, RuleTable};

static RULE_SCHEMA: LazyLock<Value> = LazyLock::new(inline_schema::<RuleTable>);
static RULE_FIELDS: LazyLock<Value> = LazyLock::new(inline_schema::<RuleFields>);

/// A schema with every definition in its place, so that a walk needs no references.
pub(crate) fn inline_schema<T: JsonSchema>() -> Value {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// Takes every name out of `table` that `schema` does not know and reports it, and reports each
/// name that is missing. `place` is what the table is called in messages.
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
    for name in required.filter(|name| !table.contains_key(*name)) {
        problems.push(read::missing(span.clone(), name));
    }
    let mut unknown = Vec::new();
    for (name, value) in table.iter_mut() {
        let text = name.get_ref().as_ref();
        let Some(schema) = properties.get(text) else {
            problems.push(unknown_name(name.span(), text, place, properties));
            unknown.push(name.clone());
            continue;
        };
        let span = value.span();
        match value.get_mut() {
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
    for name in unknown {
        table.remove(&name);
    }
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
    span: Range<usize>,
    name: &str,
    place: &str,
    known: &Map<String, Value>,
) -> Problem {
    let message = format!("unknown name \"{name}\" in {place}");
    Problem::new(span, message, meant(name, known.keys().map(String::as_str)))
}

/// A remedy that suggests the nearest of the known words, or lists them if none is near.
pub(crate) fn meant<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    let likeness = |name: &str| strsim::jaro_winkler(&word.to_lowercase(), name);
    let nearest = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    match nearest {
        Some(name) if likeness(name) >= 0.75 => format!("did you mean \"{name}\"?"),
        _ => format!("known here: {}", known.join(", ")),
    }
}
