//! Rust text as the checks read it: without comments and strings, and split from its tests.

/// `text` with comments and the insides of strings and characters blanked, line by line.
pub(crate) fn code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let after_word = out.chars().next_back().is_some_and(is_word);
        let hidden = comment(rest).or_else(|| if after_word { None } else { raw_string(rest) });
        let hidden = hidden.or_else(|| quoted(rest));
        match hidden {
            Some(length) => {
                let span = &rest[..length];
                out.extend(span.chars().map(|c| if c == '\n' { c } else { ' ' }));
                rest = &rest[length..];
            }
            None => {
                out.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    out
}

fn comment(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    let inside = rest.strip_prefix("/*")?;
    Some(inside.find("*/").map_or(rest.len(), |end| end + 4))
}

fn raw_string(rest: &str) -> Option<usize> {
    let start = rest.strip_prefix('b').unwrap_or(rest).strip_prefix('r')?;
    let hashes = start.bytes().take_while(|&byte| byte == b'#').count();
    let inside = start[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let opened = rest.len() - inside.len();
    Some(inside.find(&close).map_or(rest.len(), |end| opened + end + close.len()))
}

/// A string, or a character: a quote that opens a lifetime is neither.
fn quoted(rest: &str) -> Option<usize> {
    if let Some(inside) = rest.strip_prefix('\'') {
        let mut chars = inside.chars();
        let first = chars.next()?;
        if first != '\\' {
            return chars.as_str().starts_with('\'').then(|| first.len_utf8() + 2);
        }
        let escaped = chars.next()?.len_utf8();
        return chars.as_str().find('\'').map(|end| 2 + escaped + end + 1);
    }
    let inside = rest.strip_prefix('"')?;
    let mut escaped = false;
    for (at, c) in inside.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(at + 2),
            _ => {}
        }
    }
    Some(rest.len())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `phrase` stands in `line`, not as a part of longer words.
pub(crate) fn says(line: &str, phrase: &str) -> bool {
    line.match_indices(phrase).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + phrase.len()..].chars().next();
        let longer_before = phrase.starts_with(is_word) && before.is_some_and(is_word);
        let longer_after = phrase.ends_with(is_word) && after.is_some_and(is_word);
        !longer_before && !longer_after
    })
}

/// Lines with their numbers, from 1.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(position, line)| (position + 1, line))
}

/// Whether the whole file is test code.
pub(crate) fn is_test_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    path.contains("/tests/") || name.ends_with("tests.rs") || name == "suite.rs"
}

/// `code` with every item blanked that is marked as a test's.
pub(crate) fn without_tests(code: &str) -> String {
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) =
        ["#[cfg(test)]", "#[cfg(all(test"].iter().filter_map(|m| rest.find(m)).min()
    {
        out.push_str(&rest[..at]);
        let length = item_length(&rest[at..]);
        let item = &rest[at..at + length];
        out.extend(item.chars().map(|c| if c == '\n' { c } else { ' ' }));
        rest = &rest[at + length..];
    }
    out.push_str(rest);
    out
}

/// Up to the semicolon or the closing brace that ends the item at the beginning of `code`.
fn item_length(code: &str) -> usize {
    let (mut braces, mut brackets) = (0, 0);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets -= 1,
            '{' => braces += 1,
            '}' if braces == 1 => return at + 1,
            '}' => braces -= 1,
            ';' if braces == 0 && brackets == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

/// The number of the line at which the tests of a file begin; past its end if it has none.
pub(crate) fn tests_from(path: &str, text: &str) -> usize {
    if is_test_file(path) {
        return 1;
    }
    let all: Vec<&str> = text.lines().collect();
    let opens = |pair: &[&str]| {
        pair[0].trim() == "#[cfg(test)]"
            && pair[1].trim_start().trim_start_matches("pub(crate) ").starts_with("mod ")
            && pair[1].trim_end().ends_with('{')
    };
    all.windows(2).position(opens).map_or(all.len() + 1, |position| position + 1)
}

#[test]
fn comments_and_strings_are_blanked() {
    let check = |text: &str, expected: &str| {
        let found = code(text);
        assert_eq!(found.split_whitespace().collect::<Vec<_>>().join(" "), expected, "{text}");
        assert_eq!(found.lines().count(), text.lines().count(), "{text}");
    };
    check("a // b\nc", "a c");
    check("a /* b\nb */ c", "a c");
    check(r#"f("unsafe \" x") + y"#, "f( ) + y");
    check("r#\"a \" b\"# + c", "+ c");
    check("br\"a\" + c", "+ c");
    check("'\"' + x + '\\'' + y + '\\u{22}'", "+ x + + y +");
    check("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)");
    check("\"several\nlines\" end", "end");
    check("for \"x\"", "for");
}

#[test]
fn phrases_stand_alone() {
    assert!(says("use std::net;", "std::net"));
    assert!(says("std::net::UdpSocket", "std::net"));
    assert!(!says("std::network", "std::net"));
    assert!(!says("const INSTANTS", "INSTANT"));
    assert!(says("x.sleep(1)", "sleep("));
    assert!(!says("no_sleep(1)", "sleep("));
}

#[test]
fn items_of_tests_are_blanked() {
    let check = |text: &str, expected: &str| {
        let found = without_tests(text);
        assert_eq!(found.split_whitespace().collect::<Vec<_>>().join(" "), expected, "{text}");
        assert_eq!(found.lines().count(), text.lines().count(), "{text}");
    };
    check("a\n#[cfg(test)]\nuse b;\nc", "a c");
    check("a\n#[cfg(test)]\nmod tests {\n fn f() { b }\n}\nc", "a c");
    check("#[cfg(all(test, not(loom)))]\nmod tests;\nc", "c");
}

#[test]
fn tests_are_told_from_code() {
    assert_eq!(tests_from("crates/a/tests/b.rs", "x"), 1);
    assert_eq!(tests_from("a.rs", "x\n#[cfg(test)]\nmod tests {\n}"), 2);
    assert_eq!(tests_from("a.rs", "x\n#[cfg(test)]\nmod tests;\ny"), 5);
    assert_eq!(tests_from("a.rs", "x"), 2);
}
