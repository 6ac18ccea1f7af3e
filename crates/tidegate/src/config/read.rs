//! Text of a file to its tables, telling all that is wrong and not only the first.
//!
//! One table is read at a time. Whatever a table does not accept is told, taken out, and the
//! rest is read again: a file with three slips in it needs one look, not three.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue, ValueDeserializer};

use super::file::File;
use super::names;
use super::problem::Problem;
use super::rule::RuleTable;

/// Reads the tables of `text`, of the file `name`. What could not be read is in `problems`, and
/// its default in its place.
pub(super) fn file(name: &str, text: &str, problems: &mut Vec<Problem>) -> File {
    let (mut document, syntax) = DeTable::parse_recoverable(text);
    if let Some(problem) = in_another_language(name, text).filter(|_| !syntax.is_empty()) {
        problems.push(problem);
        return File::default();
    }
    if !syntax.is_empty() {
        // What recovery made of the rest would be told as errors that nobody made.
        problems.extend(syntax.iter().map(|error| from_toml(error, 0..text.len())));
        return File::default();
    }
    names::check(&mut document, problems);
    let mut tables = Tables { tables: by_name(document.into_inner()), problems };
    File {
        rules: tables.list("rule"),
        default: tables.one("default"),
        text: tables.one("text"),
        throttr: tables.list("throttr"),
        jarl: tables.list("jarl"),
        smockron: tables.one("smockron"),
        proxy: tables.list("proxy"),
        http: tables.one("http"),
        admin: tables.one("admin"),
        store: tables.one("store").unwrap_or_default(),
        memory: tables.one("memory").unwrap_or_default(),
        snapshot: tables.one("snapshot"),
        server: tables.one("server").unwrap_or_default(),
    }
}

/// The place of a setting in `text`, such as `proxy.0.tls.cert`, or of the innermost table around
/// it that is there. The number of a table that stands alone means nothing.
pub(super) fn place(text: &str, setting: &str) -> Range<usize> {
    let (document, _) = DeTable::parse_recoverable(text);
    let whole = Spanned::new(0..0, DeValue::Table(document.into_inner()));
    let mut found = &whole;
    for word in setting.split('.') {
        let number = word.parse::<usize>();
        found = match (found.get_ref(), number) {
            (DeValue::Table(_), Ok(_)) => found,
            (DeValue::Array(list), Ok(at)) => list.get(at).unwrap_or(found),
            (DeValue::Table(table), Err(_)) => match table.get(word) {
                Some(inner) => inner,
                None => break,
            },
            _ => break,
        };
    }
    found.span()
}

/// What is said of a file in another language; `None` if it may be TOML.
fn in_another_language(name: &str, text: &str) -> Option<Problem> {
    let begins = |line: &str| {
        let word = line.split_once(':').map_or("", |(word, _)| word);
        !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "_-".contains(c))
    };
    let mut lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let first = lines.next().unwrap_or_default();
    let ends = |end: &str| name.to_ascii_lowercase().ends_with(end);
    let language = if ends(".json") || first.trim_start().starts_with('{') {
        "JSON"
    } else if ends(".yaml") || ends(".yml") || first.starts_with("---") || begins(first) {
        "YAML"
    } else {
        return None;
    };
    let remedy = "write it as TOML; tidegate config example prints one";
    Some(Problem::new(
        0..0,
        format!("this looks like {language}, but the configuration file must be TOML"),
        remedy,
    ))
}

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
    (read(whole, problems), places)
}

fn by_name(tables: DeTable) -> BTreeMap<String, Spanned<DeValue>> {
    tables.into_iter().map(|(name, value)| (name.into_inner().into_owned(), value)).collect()
}

struct Tables<'t, 'p> {
    tables: BTreeMap<String, Spanned<DeValue<'t>>>,
    problems: &'p mut Vec<Problem>,
}

impl Tables<'_, '_> {
    /// The table `[name]`, if the file has one.
    fn one<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        let value = self.tables.remove(name)?;
        if !matches!(value.get_ref(), DeValue::Table(_)) {
            let remedy = format!("write it once, as [{name}]");
            self.wrong(value.span(), format!("\"{name}\" must be one table"), remedy);
            return None;
        }
        read(value, self.problems)
    }

    /// The tables `[[name]]`, in file order.
    fn list<T: DeserializeOwned>(&mut self, name: &str) -> Vec<T> {
        let Some(value) = self.tables.remove(name) else { return Vec::new() };
        let span = value.span();
        match value.into_inner() {
            DeValue::Array(list) => {
                list.into_iter().filter_map(|value| read(value, self.problems)).collect()
            }
            _ => {
                let message = format!("\"{name}\" must be a list of tables");
                self.wrong(span, message, format!("write [[{name}]] with two brackets"));
                Vec::new()
            }
        }
    }

    fn wrong(&mut self, span: Range<usize>, message: String, remedy: String) {
        self.problems.push(Problem::new(span, message, remedy));
    }
}

/// Reads one table; each setting that does not fit is told and left out.
fn read<T: DeserializeOwned>(
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
        let problem = from_toml(&error, value.span());
        let at = problem.span.clone();
        // What is missing may have been told when the names were checked.
        if !problems.contains(&problem) {
            problems.push(problem);
        }
        let DeValue::Table(table) = value.get_mut() else { return None };
        let holds = |v: &Spanned<DeValue>| v.span().start <= at.start && at.end <= v.span().end;
        let culprit = table.iter().find(|(_, v)| holds(v)).map(|(name, _)| name.clone())?;
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
fn from_toml(error: &toml::de::Error, otherwise: Range<usize>) -> Problem {
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

/// Serde's ``unknown variant `a`, expected one of `b`, `c` `` in our own words.
fn unknown_word(span: Range<usize>, rest: &str) -> Problem {
    let mut words = rest.split('`').skip(1).step_by(2);
    let word = words.next().unwrap_or_default();
    let message = format!("unknown value \"{word}\"");
    Problem::new(span, message, names::meant(word, words))
}
