//! Hides the secrets of a file before its lines are shown: passwords that stand where a reference
//! to one belongs, and the logins of URLs.
//!
//! It hides too much rather than too little: a file with a mistake may have a secret anywhere near.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::secret;

/// `text` with a star for each byte of a secret: places in it stay the same.
pub(super) fn masked(text: &str) -> String {
    let (document, errors) = DeTable::parse_recoverable(text);
    let mut hidden = logins(text);
    in_table(document.get_ref(), false, &mut hidden);
    if !errors.is_empty() {
        // The reader guesses where values end, and may be wrong.
        in_lines(text, &mut hidden);
    }
    let mut is_hidden = vec![false; text.len()];
    for range in hidden {
        is_hidden[range].fill(true);
    }
    let mut masked = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        match is_hidden[at] && c != '\n' {
            true => masked.extend(std::iter::repeat_n('*', c.len_utf8())),
            false => masked.push(c),
        }
    }
    masked
}

/// Whether a setting of this name has secrets, also if the name is misspelt.
pub(super) fn names_a_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["pass", "pwd", "secret", "users"].iter().any(|word| name.contains(word))
}

fn in_table(table: &DeTable, is_secret: bool, hidden: &mut Vec<Range<usize>>) {
    for (name, value) in table {
        let name = name.get_ref();
        // A domain has any name, and a limit.
        if name != "domains" {
            in_value(value, is_secret || names_a_secret(name), hidden);
        }
    }
}

fn in_value(value: &Spanned<DeValue>, is_secret: bool, hidden: &mut Vec<Range<usize>>) {
    let span = value.span();
    match value.get_ref() {
        DeValue::Table(table) => in_table(table, is_secret, hidden),
        DeValue::Array(list) => {
            list.iter().for_each(|element| in_value(element, is_secret, hidden));
        }
        DeValue::String(text) if is_secret && !secret::is_reference(text) => {
            hidden.push(span.start + 1..(span.end - 1).max(span.start + 1));
        }
        DeValue::String(_) => {}
        _ if is_secret => hidden.push(span),
        _ => {}
    }
}

/// The logins of URLs, also of URLs without a scheme: what stands before the last `@` of a word.
fn logins(text: &str) -> Vec<Range<usize>> {
    let mut hidden = Vec::new();
    let mut start = 0;
    for word in text.split_inclusive(|c: char| c.is_whitespace() || "\"'".contains(c)) {
        if let Some((login, _)) = word.rsplit_once('@')
            && login.contains(':')
        {
            let begin = login.find("://").map_or(0, |scheme| scheme + 3);
            hidden.push(start + begin..start + login.len());
        }
        start += word.len();
    }
    hidden
}

/// By the look of the lines, for a text that is not TOML.
fn in_lines(text: &str, hidden: &mut Vec<Range<usize>>) {
    let (mut start, mut in_secrets) = (0, false);
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with('[') {
            in_secrets = names_a_secret(line);
        }
        let is_secret = |at: &usize| {
            let name = line[..*at].trim_end().rsplit([' ', '\t', ',', '{']).next();
            let value = line[at + 1..].trim_start().trim_start_matches(['"', '\'']);
            (in_secrets || name.is_some_and(names_a_secret)) && !secret::is_reference(value)
        };
        if let Some(at) = line.match_indices('=').map(|(at, _)| at).find(is_secret) {
            hidden.push(start + at + 1..start + line.len());
        }
        start += line.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_stars_and_everything_else_stays() {
        for (text, shown) in [
            ("password = \"hunter2\" # x", "password = \"*******\" # x"),
            ("[resp]\npassword = 'hü'\nlisten = 5", "[resp]\npassword = '***'\nlisten = 5"),
            ("passwort = 12", "passwort = **"),
            ("password = \"env:A\"\nuser = \"me\"", "password = \"env:A\"\nuser = \"me\""),
            ("password = \"env:\"", "password = \"****\""),
            (
                "[resp.users]\nanna = \"a\"\nb = \"file:c\"",
                "[resp.users]\nanna = \"*\"\nb = \"file:c\"",
            ),
            ("users = { anna = ['a', 5] }", "users = { anna = ['*', *] }"),
            ("url = ['redis://me:p/a@b', 'http://c']", "url = ['redis://******@b', 'http://c']"),
            ("url = 'me:p@b'\nmatch = 'a@b'", "url = '****@b'\nmatch = 'a@b'"),
            ("[smockron.domains]\npassport = '5/s'", "[smockron.domains]\npassport = '5/s'"),
            ("password = \"\"\"\nhunter2\"\"\"", "password = \"**\n*********\""),
            ("", ""),
        ] {
            assert_eq!(masked(text), shown);
        }
    }

    #[test]
    fn secrets_in_a_text_that_is_no_toml_are_stars() {
        for text in [
            "password = hunter2",
            "password = \"hunter2\nlisten = 1",
            "a = { password = hunter2 }",
            "[resp.users]\nanna = hunter2",
            "users.anna = hunter2",
            "password = “hunter2”",
            "url = redis://me:hunter2@a",
            "password = \"hunter2\"\n[",
            "password = \"hunter2\"\npassword = \"hunter2\"",
        ] {
            let shown = masked(text);
            assert!(!shown.contains("hunter2") && shown.len() == text.len(), "{shown}");
        }
        assert_eq!(masked("[http\npassword = \"env:A\""), "[http\npassword = \"env:A\"");
    }
}
