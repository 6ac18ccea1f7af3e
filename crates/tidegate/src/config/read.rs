//! Text of a file to its tables, one after another; `settings/read.rs` reads each.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::file::File;
use super::names;
use crate::settings::problem::Problem;
use crate::settings::read::from_toml;

/// Reads the tables of `text`, of the file `name`. What could not be read is in `problems`, and
/// its default in its place.
pub(super) fn file(name: &str, text: &str, problems: &mut Vec<Problem>) -> File {
    let (mut document, syntax) = DeTable::parse_recoverable(text);
    if let Some(problem) = in_another_language(name, text).filter(|_| !syntax.is_empty()) {
        problems.push(problem);
        return File::default();
    }
    if !syntax.is_empty() {
        // Recovery guesses the rest of the file; errors in a guess would mislead.
        problems.extend(syntax_problems(text, &syntax));
        return File::default();
    }
    names::check(&mut document, problems);
    File::read(Tables { tables: by_name(document.into_inner()), problems })
}

/// What is wrong with a text that is not TOML.
fn syntax_problems(text: &str, errors: &[toml::de::Error]) -> Vec<Problem> {
    let mut problems = Vec::new();
    // Where the table begins that is there for the second time: all of its names are, too.
    let mut second = None;
    for error in errors {
        let problem = from_toml(error, 0..text.len());
        let marked = text.get(problem.span.clone()).unwrap_or_default();
        let begins = text[..problem.span.start].rfind("\n[");
        let is_table = begins.is_some_and(|at| !text[at + 1..problem.span.start].contains('\n'));
        if error.message() == "duplicate key" && is_table {
            second = begins;
            let message = format!("the table \"{marked}\" is there twice");
            let remedy = "put all of its settings into the first one; \
                          tables of which there may be several have two brackets, as [[rule]]";
            problems.push(Problem::new(problem.span, message, remedy));
        } else if error.message() == "duplicate key" && begins != second {
            let message = format!("\"{marked}\" is set twice in this table");
            problems.push(Problem::new(problem.span, message, "keep one of the two lines"));
        } else if error.message() != "duplicate key"
            && marked.starts_with(['“', '”', '„', '‘', '’'])
        {
            let message = "these are typographic quotes";
            problems.push(Problem::new(problem.span, message, "write \"...\""));
        } else if error.message() != "duplicate key" {
            problems.push(problem);
        }
    }
    problems
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

fn by_name(tables: DeTable) -> BTreeMap<String, Spanned<DeValue>> {
    tables.into_iter().map(|(name, value)| (name.into_inner().into_owned(), value)).collect()
}

/// How a table is read.
type Read<T> = fn(Spanned<DeValue>, &mut Vec<Problem>) -> Option<T>;

/// The tables of a file that have not been read yet.
pub(super) struct Tables<'t, 'p> {
    tables: BTreeMap<String, Spanned<DeValue<'t>>>,
    problems: &'p mut Vec<Problem>,
}

impl Tables<'_, '_> {
    /// The table `[name]`, if the file has one.
    pub(super) fn one<T>(&mut self, name: &str, read: Read<T>) -> Option<T> {
        let value = self.tables.remove(name)?;
        if !matches!(value.get_ref(), DeValue::Table(_)) {
            let remedy = format!("write it once, as [{name}]");
            self.wrong(value.span(), format!("\"{name}\" must be one table"), remedy);
            return None;
        }
        read(value, self.problems)
    }

    /// The tables `[[name]]`, in file order.
    pub(super) fn list<T>(&mut self, name: &str, read: Read<T>) -> Vec<T> {
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
