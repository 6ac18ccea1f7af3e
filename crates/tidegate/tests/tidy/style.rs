//! What a single file must look like: sizes, headers, names, and nothing left lying about.

use crate::code::{code, lines, says, tests_from};
use crate::tree::{Fault, File};

/// A file has fewer lines than this.
const LINES_MAX: usize = 600;
/// The README has at most so many: it is a shop window.
const README_LINES_MAX: usize = 160;
/// A line has at most so many characters.
const COLUMNS_MAX: usize = 100;
/// An opening with fewer words than this says nothing.
const OPENING_WORDS_MIN: usize = 4;

/// The files that may hold `unsafe`, each for a measurement that pays for it and with its proof
/// beside it, or because the trait it implements asks for it.
const UNSAFE_ALLOWED: [&str; 9] = [
    // A counting allocator for the test that the text path does not allocate.
    "crates/tidegate/tests/allocations.rs",
    // The table's own memory under a model checker.
    "crates/tidegate/tests/table_races.rs",
    // sendmmsg and recvmmsg with buffers that live as long as the loop.
    "crates/tidegate/src/doors/text/mmsg.rs",
    // The slots of all shards in one mapping, and prefetching, which has no safe form.
    "crates/tidegate/src/table/probe.rs",
    "crates/tidegate/src/table/arena.rs",
    "crates/tidegate/src/table/cells.rs",
    // A lock that is freed by a plain store.
    "crates/tidegate/src/table/lock.rs",
    "crates/tidegate/src/table/mod.rs",
    "crates/tidegate/src/table/locked.rs",
];

pub(crate) fn short(file: &File) -> Vec<Fault> {
    let count = file.text.lines().count();
    if !file.is("rs") || count < LINES_MAX {
        return Vec::new();
    }
    vec![file.fault(count, format!("{count} lines; which idea moves out? (under {LINES_MAX})"))]
}

pub(crate) fn shop_window(file: &File) -> Vec<Fault> {
    let count = file.text.lines().count();
    if file.path != "README.md" || count <= README_LINES_MAX {
        return Vec::new();
    }
    vec![file.fault(count, format!("{count} lines, of {README_LINES_MAX}: which page has room?"))]
}

pub(crate) fn opening(file: &File) -> Vec<Fault> {
    if !file.is("rs") {
        return Vec::new();
    }
    let first = file.text.lines().next().unwrap_or_default();
    match first.strip_prefix("//!") {
        Some(words) if words.split_whitespace().count() >= OPENING_WORDS_MIN => Vec::new(),
        _ => vec![file.fault(1, "opens without a `//!` sentence on what this room is for")],
    }
}

pub(crate) fn narrow(file: &File) -> Vec<Fault> {
    if !file.is("rs") {
        return Vec::new();
    }
    let wide = lines(&file.text).map(|(number, line)| (number, line.chars().count()));
    wide.filter(|&(_, columns)| columns > COLUMNS_MAX)
        .map(|(number, columns)| file.fault(number, format!("{columns} columns, of {COLUMNS_MAX}")))
        .collect()
}

pub(crate) fn names(file: &File) -> Vec<Fault> {
    const VAGUE: [&str; 4] = ["utils", "util", "helpers", "misc"];
    // A codec names what it encodes by the protocol's own word.
    const WIRE_WORDS: [&str; 2] = ["get_stats", "get_size"];
    if !file.is("rs") {
        return Vec::new();
    }
    let mut faults = Vec::new();
    let folders_and_stem = file.path.trim_end_matches(".rs").split('/');
    for vague in folders_and_stem.filter(|part| VAGUE.contains(part)) {
        faults.push(file.fault(1, format!("`{vague}` says nothing: name the idea")));
    }
    let tests = tests_from(&file.path, &file.text);
    for (number, line) in lines(&code(&file.text)) {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_').peekable();
        while let Some(word) = words.next() {
            let next = words.peek().copied().unwrap_or_default();
            let declares = ["struct", "enum", "trait", "type"].contains(&word);
            if declares && (next.ends_with("Manager") || next.ends_with("Impl")) {
                faults.push(file.fault(number, format!("`{next}`: name what it is")));
            }
            let getter = next.starts_with("get_") && !WIRE_WORDS.contains(&next);
            if word == "fn" && getter && number < tests {
                faults.push(file.fault(number, format!("`{next}`: drop `get_`")));
            }
        }
    }
    faults
}

/// Marks of unfinished work in any text. Put together here so that this file has none itself.
const MARKS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
/// What must not stay in Rust code.
const UNFINISHED: [&str; 4] = ["dbg!", "todo!", "unimplemented!", "#[ignore"];
/// Files that an editor, a merge or a run leaves behind.
const LEFTOVERS: [&str; 8] = [".orig", ".rej", ".bak", ".log", ".tmp", ".swp", ".pyc", "~"];

pub(crate) fn debris(file: &File) -> Vec<Fault> {
    let mut faults = Vec::new();
    if LEFTOVERS.iter().any(|end| file.path.ends_with(end)) || file.path.ends_with(".DS_Store") {
        faults.push(file.fault(1, "a leftover; remove it"));
    }
    if is_prose_or_source(file) {
        for (number, line) in lines(&file.text) {
            for mark in MARKS.iter().filter(|mark| says(line, mark)) {
                faults.push(file.fault(number, format!("`{mark}`: do it, or open an issue")));
            }
        }
    }
    if file.is("rs") {
        for (number, line) in lines(&code(&file.text)) {
            for word in UNFINISHED.iter().filter(|word| says(line, word)) {
                faults.push(file.fault(number, format!("`{word}` does not stay")));
            }
        }
    }
    faults
}

fn is_prose_or_source(file: &File) -> bool {
    ["rs", "md", "toml", "yml", "yaml", "sh"].iter().any(|extension| file.is(extension))
        || ["Makefile", ".ci/run"].contains(&file.path.as_str())
}

pub(crate) fn machine_paths(file: &File) -> Vec<Fault> {
    const PLACES: [&str; 3] = [concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/ho", "me/")];
    if !is_prose_or_source(file) {
        return Vec::new();
    }
    let starts = |line: &str, place: &str| {
        line.match_indices(place).any(|(at, _)| {
            // Inside a longer path or an address it is only a name.
            !line[..at].ends_with(|c: char| c.is_alphanumeric() || "_-.})".contains(c))
        })
    };
    let mut faults = Vec::new();
    for (number, line) in lines(&file.text) {
        for place in PLACES.iter().filter(|place| starts(line, place)) {
            faults.push(file.fault(number, format!("`{place}` is a path of one machine")));
        }
    }
    faults
}

pub(crate) fn unsafe_places(file: &File) -> Vec<Fault> {
    if !file.is("rs") || UNSAFE_ALLOWED.contains(&file.path.as_str()) {
        return Vec::new();
    }
    lines(&code(&file.text))
        .filter(|(_, line)| says(line, "unsafe"))
        .map(|(number, _)| file.fault(number, "`unsafe` outside the files of UNSAFE_ALLOWED"))
        .collect()
}

/// Ways to let time pass. What a test waits for has a watchdog of minutes, by its name.
const SLEEPS: [&str; 4] = ["sleep(", "interval(", "park_timeout(", "recv_timeout(Duration"];
/// The one clock of tests: the adversary looks for servers that hang, spin or hold on to things,
/// and those can only be seen in time.
const CLOCK_OF_TESTS: &str = "crates/tidegate/tests/adversary/clock.rs";

pub(crate) fn sleeping_tests(file: &File) -> Vec<Fault> {
    if !file.is("rs") || file.path == CLOCK_OF_TESTS {
        return Vec::new();
    }
    let tests = tests_from(&file.path, &file.text);
    lines(&code(&file.text))
        .filter(|&(number, line)| number >= tests && SLEEPS.iter().any(|call| says(line, call)))
        .map(|(number, _)| file.fault(number, "a test that sleeps: move the manual clock"))
        .collect()
}

pub(crate) fn exceptions(file: &File) -> Vec<Fault> {
    if !file.is("rs") {
        return Vec::new();
    }
    let plain: Vec<&str> = file.text.lines().collect();
    let code = code(&file.text);
    let mut faults = Vec::new();
    for (number, line) in lines(&code) {
        let opens = ["#[allow(", "#![allow(", "#[expect(", "#![expect("];
        let Some(open) = opens.iter().find(|open| line.contains(*open)) else { continue };
        let attribute: String = code.lines().skip(number - 1).collect::<Vec<_>>().join("\n");
        let attribute = attribute.split(']').next().unwrap_or_default();
        if attribute.contains("too_many_lines") {
            faults.push(file.fault(number, "a long function is split, not excused"));
        }
        let above = number.checked_sub(2).and_then(|at| plain.get(at)).copied().unwrap_or_default();
        let commented = above.trim_start().starts_with("//") || plain[number - 1].contains("//");
        if !attribute.contains("reason") && !commented {
            faults.push(file.fault(number, format!("`{open}…` without a reason")));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sees that `check` finds a fault at each of `expected`, and nothing else.
    #[track_caller]
    fn planted(check: fn(&File) -> Vec<Fault>, path: &str, text: &str, expected: &[usize]) {
        let found: Vec<usize> = check(&File::new(path, text)).iter().map(|f| f.line).collect();
        assert_eq!(found, expected, "{path}: {text}");
    }

    #[test]
    fn long_files_are_caught() {
        planted(short, "a.rs", &"x\n".repeat(599), &[]);
        planted(short, "a.rs", &"x\n".repeat(600), &[600]);
        planted(short, "a.md", &"x\n".repeat(600), &[]);
    }

    #[test]
    fn a_long_readme_is_caught() {
        planted(shop_window, "README.md", &"x\n".repeat(160), &[]);
        planted(shop_window, "README.md", &"x\n".repeat(161), &[161]);
        planted(shop_window, "clients/go/README.md", &"x\n".repeat(161), &[]);
    }

    #[test]
    fn silent_openings_are_caught() {
        planted(opening, "a.rs", "//! What this room is for.\n", &[]);
        planted(opening, "a.rs", "use std::fmt;\n", &[1]);
        planted(opening, "a.rs", "//! x\n", &[1]);
        planted(opening, "a.rs", "", &[1]);
    }

    #[test]
    fn wide_lines_are_caught() {
        planted(narrow, "a.rs", &"é".repeat(100), &[]);
        planted(narrow, "a.rs", &format!("x\n{}", "é".repeat(101)), &[2]);
    }

    #[test]
    fn vague_names_are_caught() {
        planted(names, "src/utils.rs", "", &[1]);
        planted(names, "src/helpers/mod.rs", "", &[1]);
        planted(names, "a.rs", "struct KeyManager;", &[1]);
        planted(names, "a.rs", "\npub(crate) struct StoreImpl<T>(T);", &[2]);
        planted(names, "a.rs", "impl X {\n    pub fn get_key(&self) {}\n}", &[2]);
        planted(names, "a.rs", "#[cfg(test)]\nmod tests {\n    fn get_stats_counts() {}\n}", &[]);
        planted(names, "a.rs", "map.get_mut(x); // fn get_\nlet x = \"fn get_key\";", &[]);
    }

    #[test]
    fn leftovers_are_caught() {
        for mark in MARKS {
            planted(debris, "a.rs", &format!("x\n// {mark}: later"), &[2]);
            planted(debris, "a.md", &format!("{mark} later"), &[1]);
        }
        planted(debris, "a.md", "mktemp /tmp/XXXXXX", &[]);
        planted(debris, "a.rs", "x\ndbg!(y);\n#[ignore = \"slow\"]\ntodo!()", &[2, 3, 4]);
        planted(debris, "a.rs", "let x = \"dbg!\";", &[]);
        planted(debris, "src/a.rs.orig", "", &[1]);
        planted(debris, "run.log", "", &[1]);
        planted(debris, "src/login.rs", "", &[]);
    }

    #[test]
    fn machine_paths_are_caught() {
        planted(machine_paths, "a.md", concat!("x\nsee /wo", "rk/main"), &[2]);
        planted(machine_paths, "a.rs", concat!("\"/ro", "ot/x\""), &[1]);
        planted(machine_paths, "a.md", concat!("https://a.example/wo", "rk/x"), &[]);
    }

    #[test]
    fn stray_unsafe_is_caught() {
        planted(unsafe_places, "a.rs", "x\nunsafe { y() }", &[2]);
        planted(unsafe_places, "a.rs", "unsafe impl X for Y {}", &[1]);
        planted(unsafe_places, "a.rs", "// unsafe\n#![deny(unsafe_code)]\n\"unsafe\"", &[]);
        planted(unsafe_places, UNSAFE_ALLOWED[0], "unsafe { y() }", &[]);
    }

    #[test]
    fn sleeping_tests_are_caught() {
        planted(sleeping_tests, "crates/a/tests/b.rs", "x\nthread::sleep(SECOND);", &[2]);
        planted(sleeping_tests, "a/tests/b.rs", "recv_timeout(Duration::from_millis(1))", &[1]);
        planted(sleeping_tests, "a/tests/b.rs", "x\ntokio::time::interval(x)", &[2]);
        planted(sleeping_tests, "a/tests/b.rs", "recv_timeout(PATIENCE)", &[]);
        planted(sleeping_tests, CLOCK_OF_TESTS, "thread::sleep(SECOND);", &[]);
        planted(sleeping_tests, "a.rs", "sleep(x);\n#[cfg(test)]\nmod tests {\nsleep(x)\n}", &[4]);
    }

    #[test]
    fn bare_exceptions_are_caught() {
        planted(exceptions, "a.rs", "x\n#[allow(dead_code)]\ny", &[2]);
        planted(exceptions, "a.rs", "#[allow(dead_code, reason = \"why\")]", &[]);
        planted(exceptions, "a.rs", "#![expect(\n    dead_code,\n    reason = \"why\"\n)]", &[]);
        planted(exceptions, "a.rs", "// This is why.\n#[allow(dead_code)]", &[]);
        planted(exceptions, "a.rs", "// Why.\n#[allow(clippy::too_many_lines)]", &[2]);
    }
}
