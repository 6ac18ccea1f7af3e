//! One rule changed while the server runs: the fields of a JSON object, laid over its table.
//!
//! The result is written as TOML and read by the code that reads files. So both accept the same,
//! and report a mistake in the same words. `server/process.rs` puts the rule in force.

use serde_json::{Map, Value};
use tidegate_core::rules::Pattern;
use toml::Spanned;

use super::draft::{CompiledRule, Draft, RuleOrigin};
use super::problem::Problem;
use super::rule::RuleTable;
use super::{names, read};

/// The fields of a JSON object.
pub(crate) type JsonFields = Map<String, Value>;

/// What is shown of a rule and cannot be set. It may be sent back, so that what was read can be.
const SHOWN_ONLY: [&str; 3] = ["from", "in_force", "changed"];

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    pub(crate) field: String,
    pub(crate) message: String,
    pub(crate) remedy: String,
}

impl FieldError {
    fn new(field: &str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { field: field.to_owned(), message: message.into(), remedy: remedy.into() }
    }

    pub(crate) fn of(field: &str, problem: Problem) -> Self {
        Self::new(field, problem.message, problem.remedy)
    }
}

/// A new rule. It needs a match and a limit.
pub(crate) fn create(name: &str, fields: JsonFields) -> Result<CompiledRule, Vec<FieldError>> {
    lay(name, RuleOrigin::Rule, None, JsonFields::new(), fields)
}

/// The rule with `fields` laid over it. What is not named stays as it is; `null` takes a setting
/// back to its default.
pub(crate) fn change(
    written: &CompiledRule,
    fields: JsonFields,
) -> Result<CompiledRule, Vec<FieldError>> {
    let Draft { name, pattern, origin, table, .. } = &written.draft;
    if *origin == RuleOrigin::Given {
        let remedy = "add a rule with another name that matches their keys: it takes precedence";
        return Err(vec![FieldError::new(
            "limit",
            "the limits of this rule come with requests",
            remedy,
        )]);
    }
    let Ok(Value::Object(mut base)) = serde_json::to_value(table) else {
        // A table always encodes as an object.
        return Err(Vec::new());
    };
    base.insert("match".to_owned(), pattern.to_string().into());
    if let Some(algorithm) = fields.get("algorithm")
        && *algorithm != serde_json::json!(shown(written).fields.algorithm)
    {
        // They belonged to the algorithm that was.
        base.remove("strict");
        base.remove("exact");
    }
    lay(name, *origin, Some(pattern), base, fields)
}

/// The table of a rule with everything written out that was left to a default.
pub(crate) fn shown(written: &CompiledRule) -> RuleTable {
    let mut table = written.draft.table.clone();
    table.name = None;
    table.r#match = Some(Spanned::new(0..0, written.draft.pattern.to_string()));
    table.fields.replicas.get_or_insert(Spanned::new(0..0, 1));
    table.fields.fill_in(&written.whole);
    table
}

fn lay(
    name: &str,
    origin: RuleOrigin,
    pattern: Option<&Pattern>,
    mut base: JsonFields,
    fields: JsonFields,
) -> Result<CompiledRule, Vec<FieldError>> {
    let mut wrong = Vec::new();
    for (field, value) in fields {
        match field.as_str() {
            "name" if value != name => {
                let remedy = "leave it out; a rule's name is in the path";
                wrong.push(FieldError::new("name", "a rule cannot be given another name", remedy));
            }
            "match" if origin != RuleOrigin::Rule && base.get("match") != Some(&value) => {
                let remedy = "leave it out; add a rule with another name for other keys";
                wrong.push(FieldError::new("match", "the keys of this rule are fixed", remedy));
            }
            "name" => {}
            known if SHOWN_ONLY.contains(&known) => {}
            known if value.is_null() && names::in_a_rule(known) => {
                base.remove(known);
            }
            _ => {
                // Reading the table reports unknown names. TOML has no null for the value.
                let value = if value.is_null() { Value::Bool(false) } else { value };
                base.insert(field, value);
            }
        }
    }
    base.insert("name".to_owned(), name.into());
    for field in ["match", "limit"].into_iter().filter(|field| !base.contains_key(*field)) {
        wrong.push(FieldError::of(field, read::missing(0..0, field)));
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let mut table = toml::Table::new();
    for (field, value) in base {
        match toml::Value::try_from(&value) {
            Ok(value) => drop(table.insert(field, value)),
            Err(error) => {
                let remedy = "see the commented example: tidegate config example";
                wrong.push(FieldError::new(&field, error.to_string(), remedy));
            }
        }
    }
    if wrong.is_empty() { write(name, origin, pattern, &table.to_string()) } else { Err(wrong) }
}

/// Reads the table and makes a rule of it.
fn write(
    name: &str,
    origin: RuleOrigin,
    pattern: Option<&Pattern>,
    text: &str,
) -> Result<CompiledRule, Vec<FieldError>> {
    let mut problems = Vec::new();
    let (table, fields) = read::rule(text, &mut problems);
    let draft = table.and_then(|mut table| match (origin, pattern) {
        (RuleOrigin::Door { .. } | RuleOrigin::Default, Some(pattern)) => {
            (table.name, table.r#match) = (None, None);
            let (name, pattern) = (name.to_owned(), pattern.clone());
            Some(Draft { name, at: 0..0, pattern, origin, table })
        }
        _ => Draft::of_rule(&table),
    });
    let written = draft.map(|draft| draft.write(text, &mut problems));
    match written {
        Some(written) if problems.is_empty() => Ok(written),
        _ => Err(problems.into_iter().map(|problem| located(problem, &fields)).collect()),
    }
}

/// A problem by the name of the field whose text it is in.
fn located(problem: Problem, fields: &[(String, std::ops::Range<usize>)]) -> FieldError {
    let holds =
        |at: &std::ops::Range<usize>| at.start <= problem.span.start && problem.span.end <= at.end;
    let field = fields.iter().find(|(_, at)| holds(at)).map_or("", |(field, _)| field);
    FieldError::of(field, problem)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Config;

    /// The rule `r`, as a file has it.
    fn rule(settings: &str) -> CompiledRule {
        let text = format!("[[rule]]\nname = 'r'\nmatch = 'k *'\n{settings}\n[http]\n");
        Config::parse("t", &text).unwrap_or_else(|wrong| panic!("{wrong}")).written.remove(0)
    }

    fn fields(json: Value) -> JsonFields {
        json.as_object().unwrap().clone()
    }

    fn check(settings: &str, json: Value, expected: &str) {
        let written = change(&rule(settings), fields(json.clone()));
        let written = written.unwrap_or_else(|wrong| panic!("{json}: {wrong:?}"));
        let limits: Vec<String> =
            written.rule.limits.iter().map(|l| format!("{l} {:?}", l.algorithm)).collect();
        assert_eq!(limits.join(", "), expected, "{settings} {json}");
        assert_eq!((&*written.rule.name, written.draft.pattern.to_string().as_str()), ("r", "k *"));
    }

    fn check_wrong(written: Result<CompiledRule, Vec<FieldError>>, expected: &[&str]) {
        let wrong = written.map(|written| written.rule).unwrap_err();
        let told = wrong.iter().map(|w| format!("{}: {}; {}", w.field, w.message, w.remedy));
        assert_eq!(told.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_is_not_named_stays() {
        let strict = "limit = '5 per 10s'\nalgorithm = 'average'\nstrict = true\nshadow = true";
        check(strict, json!({"limit": "7 per 10s"}), "7 per 10s Average { strict: true }");
        check(strict, json!({"strict": null}), "5 per 10s Average { strict: false }");
        check(strict, json!({"algorithm": "sliding-log"}), "5 per 10s SlidingLog");
        check(strict, json!({"algorithm": "average"}), "5 per 10s Average { strict: true }");
        check(
            strict,
            json!({"algorithm": null, "limit": ["2 in flight", "3/s"]}),
            "2 in flight InFlight { per_window: false }, 3 per second Gcra { burst: 3 }",
        );
        assert!(change(&rule(strict), fields(json!({"limit": "1/s"}))).unwrap().rule.shadow);
    }

    #[test]
    fn limits_are_split_and_joined_again() {
        let split = "limit = ['10 per 10s burst 7', '4 in flight']\nreplicas = 3\nreplica = 1";
        check(
            split,
            json!({}),
            "4 per 10s burst 3 Gcra { burst: 3 }, 2 in flight InFlight { per_window: false }",
        );
        check(
            split,
            json!({"replica": 3}),
            "3 per 10s burst 2 Gcra { burst: 2 }, 1 in flight InFlight { per_window: false }",
        );
        check("limit = '10/s'\nreplicas = 3", json!({}), "3 per second Gcra { burst: 3 }");
        check(
            "limit = '10/s'\nreplicas = 3",
            json!({"replicas": 1}),
            "10 per second Gcra { burst: 10 }",
        );
        check("limit = '2/s'", json!({"replicas": 3, "replica": 3}), "0 per second FixedWindow");
    }

    #[test]
    fn what_was_shown_can_be_sent_back() {
        for settings in ["limit = '2/s'", "limit = ['10/s', '4 in flight']\nreplicas = 2"] {
            let written = rule(settings);
            let mut json = fields(serde_json::to_value(shown(&written)).unwrap());
            json.insert("changed".to_owned(), json!(true));
            json.insert("name".to_owned(), json!("r"));
            let again = change(&written, json).unwrap_or_else(|wrong| panic!("{wrong:?}"));
            assert_eq!((&again.rule, shown(&again)), (&written.rule, shown(&written)));
        }
    }

    #[test]
    fn a_mistake_names_the_field_and_the_remedy() {
        let gcra = rule("limit = '5 per 10s'");
        let changed = |json| change(&gcra, fields(json));
        check_wrong(
            changed(json!({"limt": "1/s", "shadow": 1, "gone": null})),
            &[
                "gone: unknown name \"gone\" in a rule; known here: algorithm, consistency, exact, \
                 limit, match, name, on_full, on_store_error, replica, replicas, shadow, shared, \
                 strict",
                "limt: unknown name \"limt\" in a rule; did you mean \"limit\"?",
                "shadow: invalid type: integer `1`; expected a boolean",
            ],
        );
        check_wrong(
            changed(json!({"limit": ["1/s", "5 per x"], "algorithm": "gcrra"})),
            &[
                "algorithm: \"gcrra\" is not the name of an algorithm; did you mean \"gcra\"?",
                "limit: `x` is not a unit of time; units are ns, us, ms, msec, s, sec, \
                 second(s), m, min, minute(s), h, hr, hour(s), d, day(s)",
            ],
        );
        check_wrong(
            changed(json!({"replicas": 6})),
            &["replicas: a limit of this rule is too small for 6 replicas; raise the \
               limit, write it for a longer period, or give each replica its number (replica = 1, \
               2, ...), so that only the first ones have a part"],
        );
        check_wrong(
            changed(json!({"replicas": 2, "replica": 3})),
            &["replica: `replica` must be from 1 to 2; \
               write the number of this replica, or change `replicas`"],
        );
        check_wrong(
            changed(json!({"replicas": 0, "replica": 1})),
            &["replicas: 0 is not a valid number of replicas; \
                 write a whole number from 1 to 10000"],
        );
        check_wrong(
            changed(json!({"limit": null, "name": "other"})),
            &[
                "name: a rule cannot be given another name; \
                 leave it out; a rule's name is in the path",
                "limit: `limit` is missing here; \
                 add a limit: limit = \"22 per 20s\", or limit = \"none\"",
            ],
        );
    }

    #[test]
    fn a_new_rule_is_checked_like_one_of_the_file() {
        let new = create("n", fields(json!({"match": "a*", "limit": "1/s"}))).unwrap();
        assert_eq!(&*new.rule.name, "n");
        assert!(new.rule.pattern.matches(b"ab"));
        check_wrong(
            create("n", fields(json!({"limit": "1/s"}))),
            &["match: `match` is missing here; say which keys it is for: match = \"ws ip=*\""],
        );
        check_wrong(
            create("a\u{7}", fields(json!({"match": "a", "limit": "1/s"}))),
            &["name: a name has at most 256 bytes and no control characters; \
               add a short, readable name to the rule: name = \"...\""],
        );
        assert!(create("n", fields(json!({"match": "a", "limit": u64::MAX}))).is_err());
        assert!(create("n", fields(json!({"match": "a", "limit": {"a": [null]}}))).is_err());
    }
}
