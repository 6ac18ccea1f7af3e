//! Every setting of the file as Markdown, made of the JSON schema: `tidegate config reference`.
//!
//! It says nothing of its own: what a setting means is the comment of its field.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::Value;

const OPENING: &str = "# Settings of the configuration file

`tidegate config reference` prints this page. A setting without a default is unset unless you
give it; if that means more than its text says, `Absent: …` says what applies then. `must be given`
marks those that are required. [limits.md](limits.md) has the grammar of limits, and the pages of
the [doors](doors) say more about theirs.
";

/// The page.
#[must_use]
pub fn reference() -> String {
    let schema = super::schema().to_value();
    let text = OPENING.to_owned();
    let (named, values) = (BTreeSet::new(), BTreeMap::new());
    let mut page = Page { schema: &schema, text, named, values };
    let tables = properties(&schema);
    for (name, table) in &tables {
        let title = match is_list(table) {
            true => format!("[[{name}]]"),
            false => format!("[{name}]"),
        };
        page.table(&title, description(table), page.target(table));
    }
    // Tables inside of tables, as often as they name others.
    let mut written = BTreeSet::new();
    while let Some(name) = page.named.difference(&written).next().cloned() {
        let table = &page.schema["$defs"][&name];
        page.table(&title_of(&name), description(table), table);
        written.insert(name);
    }
    page.text.push_str("\n## Values\n\n| value | is |\n|---|---|\n");
    for (name, means) in page.values {
        let _ = writeln!(page.text, "| {name} | {} |", one_line(means));
    }
    page.text
}

struct Page<'s> {
    schema: &'s Value,
    text: String,
    /// Tables inside of tables that were named so far.
    named: BTreeSet<String>,
    /// Kinds of values that were named so far, and what they are.
    values: BTreeMap<String, &'s str>,
}

impl<'s> Page<'s> {
    /// One table with a row for each setting.
    fn table(&mut self, title: &str, means: &str, table: &'s Value) {
        let _ = write!(self.text, "\n## {title}\n\n{}\n", one_line(means));
        self.text.push_str("\n| setting | value | default | means |\n|---|---|---|---|\n");
        let required: Vec<&str> = strings(&table["required"]).collect();
        for (name, setting) in properties(table) {
            let value = self.value(setting);
            let default = match &setting["default"] {
                _ if required.contains(&name) => "must be given".to_owned(),
                Value::Null => String::new(),
                Value::Object(fields) if fields.is_empty() => String::new(),
                Value::Array(items) if items.is_empty() => String::new(),
                // Its own table tells them.
                Value::Object(_) => String::new(),
                default => format!("`{default}`"),
            };
            let means = one_line(description(setting)) + &self.choices(setting);
            let _ = writeln!(self.text, "| `{name}` | {value} | {default} | {means} |");
        }
    }

    /// What a setting refers to, or the setting itself.
    fn target(&self, setting: &'s Value) -> &'s Value {
        match self.reference(setting) {
            Some(name) => &self.schema["$defs"][name],
            None => setting,
        }
    }

    /// The name of what a setting, or each item of it, refers to.
    fn reference(&self, setting: &'s Value) -> Option<&'s str> {
        let within = || setting["anyOf"].as_array().into_iter().flatten();
        let list = [&setting["items"], &setting["additionalProperties"]];
        let all = std::iter::once(setting).chain(within()).chain(list);
        let name = all.filter_map(|it| it["$ref"].as_str()).next()?;
        name.strip_prefix("#/$defs/")
    }

    /// What may be written.
    fn value(&mut self, setting: &'s Value) -> String {
        let target = self.target(setting);
        if target["properties"].is_object() {
            let name = self.reference(setting).unwrap_or_default().to_owned();
            let title = title_of(&name);
            let title = title.to_lowercase();
            let link = format!("[{title}](#{})", title.replace(' ', "-"));
            self.named.insert(name);
            return format!("{}{link}", container(setting));
        }
        let constants = constants(target);
        if !constants.is_empty() {
            let each = constants.iter().map(|(it, _)| format!("`{it}`"));
            return each.collect::<Vec<_>>().join(", ");
        }
        let means = description(target);
        // What is written for the compiler alone is not told.
        if let Some(name) = self.reference(setting).filter(|_| !means.contains("[`")) {
            let name = title_of(name).to_lowercase();
            let link = format!("[{name}](#values)");
            self.values.insert(name, means);
            return format!("{}{link}", container(setting));
        }
        let kinds: Vec<&str> = match target["anyOf"].as_array() {
            Some(kinds) => kinds.iter().flat_map(kinds_of).collect(),
            None => kinds_of(target).collect(),
        };
        let range = match (&setting["minimum"], &setting["maximum"]) {
            (Value::Number(least), Value::Number(most)) => format!(", {least} to {most}"),
            (Value::Number(least), _) if least.as_u64() > Some(0) => format!(", {least} or more"),
            _ => String::new(),
        };
        let container = self.reference(setting).map_or("", |_| container(setting));
        format!("{container}{}{range}", kinds.join(" or "))
    }

    /// What each of the values to choose from means, if they say so.
    fn choices(&self, setting: &'s Value) -> String {
        let target = self.target(setting);
        let mut text = String::new();
        for (name, means) in constants(target) {
            if !means.is_empty() {
                let _ = write!(text, "<br>`{name}`: {}", one_line(means));
            }
        }
        text
    }
}

/// The settings of a table, by name.
fn properties(table: &Value) -> BTreeMap<&str, &Value> {
    let properties = table["properties"].as_object().into_iter().flatten();
    properties.map(|(name, setting)| (name.as_str(), setting)).collect()
}

/// The values that a setting has to choose from, each with what it means: numbers by size, words by
/// the alphabet.
fn constants(target: &Value) -> Vec<(String, &str)> {
    let each = target["oneOf"].as_array().into_iter().flatten();
    let described = each.map(|it| (&it["const"], description(it)));
    let plain = target["enum"].as_array().into_iter().flatten();
    let all = described.chain(plain.map(|it| (it, "")));
    let sorted: BTreeMap<(Option<u64>, String), &str> =
        all.map(|(it, means)| ((it.as_u64(), it.to_string()), means)).collect();
    sorted.into_iter().map(|((_, it), means)| (it, means)).collect()
}

fn kinds_of(target: &Value) -> impl Iterator<Item = &str> {
    let one = target["type"].as_str();
    let kinds = one.into_iter().chain(strings(&target["type"]));
    kinds.filter(|kind| *kind != "null").map(|kind| match kind {
        "integer" => "number",
        "array" => "list",
        "object" => "table",
        kind => kind,
    })
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn is_list(setting: &Value) -> bool {
    kinds_of(setting).any(|kind| kind == "list")
}

/// What holds the values that a setting refers to: a list, or a table with names of the user's.
fn container(setting: &Value) -> &'static str {
    match (is_list(setting), setting["additionalProperties"].is_object()) {
        (true, _) => "list of ",
        (false, true) => "table of ",
        (false, false) => "",
    }
}

fn description(it: &Value) -> &str {
    it["description"].as_str().unwrap_or_default()
}

/// `HeaderNames` as a title: `Header names`.
fn title_of(name: &str) -> String {
    let mut title = String::new();
    for letter in name.chars() {
        match letter.is_ascii_uppercase() && !title.is_empty() {
            true => title.extend([' ', letter.to_ascii_lowercase()]),
            false => title.push(letter),
        }
    }
    title
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
