//! The troubleshooting page: the source still says what it quotes, and it has every warning and
//! error that the server logs.

use crate::code::{lines, tests_from};
use crate::tree::{Fault, File, Tree};

const PAGE: &str = "docs/troubleshooting.md";
/// What stands for the parts of a message that differ from case to case.
const ANYTHING: char = '…';
/// What the page is about, of the source.
const SERVER: &str = "crates/tidegate/src/";
/// What begins a warning or an error of the log.
const LOGGED: [&str; 2] = ["tracing::warn!(", "tracing::error!("];

/// Messages that are not on the page, each with the reason.
const NOT_ON_PAGE: [(&str, &str); 10] = [
    ("{warning}", "warnings about the configuration: `config check` prints them with their place"),
    ("{what}", "mistakes of an upstream, of which clients are told with 502 and 504"),
    ("no reflection", "a defect of the build: the descriptors are part of the program"),
    ("cannot listen", "the system refuses a socket that it has just made"),
    ("cannot serve", "the system refuses a socket that it has just made"),
    ("a door's task failed", "a defect: a task has panicked"),
    ("a door's thread failed", "a defect: a thread has panicked"),
    ("throttr: cannot start the thread for listings", "the system refuses a thread"),
    ("smockron: the accounting socket ended", "a defect of the ZeroMQ library"),
    ("the format of log lines could not be changed", "a defect: the log is there before"),
];

/// Faults of every quoted message that no line of the source has. A message is a code span at the
/// beginning of a table's row.
pub(crate) fn quotes(tree: &Tree) -> Vec<Fault> {
    let Some(page) = tree.find(PAGE) else { return Vec::new() };
    let source = tree.files.iter().filter(|file| is_said_to_users(file));
    let source: Vec<String> = source.map(literals).collect();
    let mut faults = Vec::new();
    for (number, message) in rows(page) {
        if !source.iter().any(|text| text.lines().any(|line| says_in_order(line, &message))) {
            faults.push(page.fault(number, format!("no source says `{message}`")));
        }
    }
    faults
}

/// Faults of every warning and error of the server that is neither on the page nor listed, and of
/// what is listed in vain.
pub(crate) fn logged(tree: &Tree, not_on_page: &[(&str, &str)]) -> Vec<Fault> {
    let Some(page) = tree.find(PAGE) else { return Vec::new() };
    let rows: Vec<String> = rows(page).map(|(_, message)| message).collect();
    let mut faults = Vec::new();
    let mut unused: Vec<&str> = not_on_page.iter().map(|(message, _)| *message).collect();
    let server = |file: &&File| file.path.starts_with(SERVER) && is_said_to_users(file);
    for file in tree.files.iter().filter(server) {
        for (number, message) in log_messages(file) {
            let is_listed = not_on_page.iter().any(|(listed, _)| *listed == message);
            unused.retain(|listed| *listed != message);
            if !is_listed && !rows.iter().any(|row| says_in_order(&message, row)) {
                faults.push(file.fault(number, format!("{PAGE} has no row for `{message}`")));
            }
        }
    }
    let vain = |message| page.fault(1, format!("listed, but no source logs `{message}`"));
    faults.extend(unused.into_iter().map(vain));
    faults
}

/// The messages that the page quotes, with their lines.
fn rows(page: &File) -> impl Iterator<Item = (usize, String)> {
    lines(&page.text).filter_map(|(number, line)| {
        let (message, _) = line.strip_prefix("| `")?.split_once('`')?;
        Some((number, message.replace("\\|", "|")))
    })
}

/// The messages of the warnings and errors that a file logs, with their lines: the last string of
/// each call.
fn log_messages(file: &File) -> Vec<(usize, String)> {
    let before_tests = tests_from(&file.path, &file.text).saturating_sub(1);
    let mut text = String::new();
    for line in file.text.lines().take(before_tests) {
        text.extend([line, "\n"]);
    }
    let calls = LOGGED.iter().flat_map(|call| text.match_indices(call));
    let message = |(at, call): (usize, &str)| {
        let number = text[..at].lines().count();
        Some((number, last_string(&text[at + call.len()..])?))
    };
    calls.filter_map(message).collect()
}

/// The last string before the bracket that ends a call, in one line.
fn last_string(call: &str) -> Option<String> {
    let (mut depth, mut open, mut last) = (1, None::<String>, None);
    let mut chars = call.chars();
    while let (Some(c), 1..) = (chars.next(), depth) {
        match (&mut open, c) {
            (Some(_), '"') => last = open.take(),
            (Some(text), '\\') => text.extend(chars.next()),
            (Some(text), c) => text.push(c),
            (None, '"') => open = Some(String::new()),
            (None, '(') => depth += 1,
            (None, ')') => depth -= 1,
            (None, _) => {}
        }
    }
    last.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn is_said_to_users(file: &File) -> bool {
    let inside = file.path.strip_prefix("crates/").is_some_and(|path| path.contains("/src/"));
    inside && file.is("rs") && !file.path.contains("/tests")
}

/// The code of a file as its strings read: without escaped quotes and ends of lines, and without
/// its tests.
fn literals(file: &File) -> String {
    let before_tests = tests_from(&file.path, &file.text).saturating_sub(1);
    let mut text = String::new();
    let mut goes_on = false;
    for line in file.text.lines().take(before_tests) {
        let line = if goes_on { line.trim_start() } else { line };
        goes_on = line.ends_with('\\');
        text.push_str(&line.strip_suffix('\\').unwrap_or(line).replace("\\\"", "\""));
        if !goes_on {
            text.push('\n');
        }
    }
    text
}

/// Whether all that is no placeholder stands in the line, in order.
fn says_in_order(line: &str, message: &str) -> bool {
    let mut left = line;
    message.split(ANYTHING).map(str::trim).all(|piece| {
        let behind = left.split_once(piece).map(|(_, behind)| behind);
        left = behind.unwrap_or_default();
        behind.is_some()
    })
}

#[test]
fn messages_that_nobody_says_are_caught() {
    let source = "fn f() {\n    warn(\"the \\\"store\\\" is \\\n        away: {error}\");\n}\n\
        #[cfg(test)]\nmod tests {\n    \"only a test\"\n}\n";
    let check = |row: &str, expected: usize| {
        let page = format!("| message | cause |\n|---|---|\n{row}\n");
        let tree = Tree::of(&[("crates/a/src/b.rs", source), (PAGE, &page)]);
        assert_eq!(quotes(&tree).len(), expected, "{row}");
    };
    check("| `the \"store\" is away: …` | x |", 0);
    check("| `the … away` | x |", 0);
    check("| `the store is away` | x |", 1);
    check("| `away … the` | x |", 1);
    check("| `only a test` | x |", 1);
    check("| no message | `x` |", 0);
}

#[test]
fn every_warning_of_the_server_is_explained() {
    crate::hold(logged(&Tree::load(), &NOT_ON_PAGE));
}

#[test]
fn warnings_without_a_row_are_caught() {
    let check = |source: &str, expected: usize| {
        let page = "| message |\n|---|\n| `the store failed: …` |\n";
        let path = "crates/tidegate/src/b.rs";
        let tree = Tree::of(&[(path, source), (PAGE, page)]);
        let faults = logged(&tree, &[("a \"defect\"", "a test")]);
        assert_eq!(faults.len(), expected, "{source}");
    };
    let listed = "tracing::error!(\"a \\\"defect\\\"\");\n";
    check(listed, 0);
    check("", 1);
    check(&format!("{listed}tracing::warn!(%error, \"the store failed: {{why}}\");"), 0);
    let two_lines = "tracing::warn!(at = f(\"x\"), \"the store \\\n    failed: {a}\");";
    check(&format!("{listed}{two_lines}"), 0);
    let unknown = "tracing::warn!(%error, \"the disk failed\"); say(\"the store failed: \");";
    check(&format!("{listed}{unknown}"), 1);
    check(&format!("{listed}#[cfg(test)]\nmod tests {{\n    tracing::warn!(\"x\");\n}}"), 0);
}
