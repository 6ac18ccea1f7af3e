//! Messages that the troubleshooting page quotes: the source still says them.

use crate::code::{lines, tests_from};
use crate::tree::{Fault, File, Tree};

const PAGE: &str = "docs/troubleshooting.md";
/// What stands for the parts of a message that differ from case to case.
const ANYTHING: char = '…';

/// Faults of every quoted message that no line of the source has. A message is a code span at the
/// beginning of a table's row.
pub(crate) fn quotes(tree: &Tree) -> Vec<Fault> {
    let Some(page) = tree.find(PAGE) else { return Vec::new() };
    let source = tree.files.iter().filter(|file| is_said_to_users(file));
    let source: Vec<String> = source.map(literals).collect();
    let mut faults = Vec::new();
    for (number, line) in lines(&page.text) {
        let Some((message, _)) = line.strip_prefix("| `").and_then(|row| row.split_once('`'))
        else {
            continue;
        };
        let message = message.replace("\\|", "|");
        if !source.iter().any(|text| text.lines().any(|line| says_in_order(line, &message))) {
            faults.push(page.fault(number, format!("no source says `{message}`")));
        }
    }
    faults
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
