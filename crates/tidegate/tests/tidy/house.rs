//! What belongs together across files: doors and their pages, crates and lints, records' parts.

use crate::code::lines;
use crate::tree::{DOORS, Fault, File, Tree};

const VECTORS: &str = "crates/tidegate/tests/vectors";
const FUZZ_TARGETS: &str = "fuzz/fuzz_targets";
const CANARIES: &str = "crates/tidegate/tests/adversary/canary";

/// Each door has a page, a row in the README's table, a canary and, where it has a codec of its
/// own, golden vectors and a fuzz target.
pub(crate) fn doors(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for door in tree.doors() {
        let mut want = |held: bool, what: String| {
            if !held {
                let path = format!("{DOORS}/{door}");
                faults.push(Fault { path, line: 1, what });
            }
        };
        let page = format!("docs/doors/{door}.md");
        want(tree.has(&page), format!("the door has no page {page}"));
        let row = |line: &str| line.starts_with('|') && line.contains(&page);
        let named = tree.find("README.md").is_some_and(|readme| readme.text.lines().any(row));
        want(named, format!("no row of a table in README.md links to {page}"));

        let canary = format!("{CANARIES}/{door}.rs");
        want(tree.has(&canary), format!("the adversary has no honest client {canary}"));

        let codec = format!("crates/wire/src/{door}");
        if !tree.has(&codec) && !tree.has(&format!("{codec}.rs")) {
            continue;
        }
        let below = |folder: &str, end: &str| {
            tree.files.iter().any(|file| file.path.starts_with(folder) && file.path.ends_with(end))
        };
        let vectors = format!("{VECTORS}/{door}/");
        want(below(&vectors, ".txt"), format!("the codec has no vectors {vectors}*.txt"));
        let target = format!("{FUZZ_TARGETS}/{door}");
        let fuzzed = !tree.has("fuzz") || below(&target, ".rs");
        want(fuzzed, format!("the codec has no fuzz target {target}*.rs"));
    }
    faults
}

/// Every source file is a module of its parent: one that no `mod` names is not compiled, and so
/// says nothing.
pub(crate) fn orphans(tree: &Tree) -> Vec<Fault> {
    let is_orphan = |file: &&File| {
        let inside = file.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"));
        let module = file.path.strip_suffix(".rs").filter(|_| inside.is_some());
        let module = module.map(|path| path.strip_suffix("/mod").unwrap_or(path));
        let Some((folder, name)) = module.and_then(|path| path.rsplit_once('/')) else {
            return false;
        };
        let parents = ["/mod.rs", "/lib.rs", "/main.rs", ".rs"];
        let mut parents = parents.iter().filter_map(|end| tree.find(&format!("{folder}{end}")));
        let declared = format!("mod {name};");
        !matches!(name, "lib" | "main") && !parents.any(|parent| parent.text.contains(&declared))
    };
    let fault = |file: &File| file.fault(1, "no `mod` names this file: it is not compiled");
    tree.files.iter().filter(is_orphan).map(fault).collect()
}

/// Every crate obeys the workspace's lints, and the lints that other rules lean on are there.
pub(crate) fn lints(tree: &Tree) -> Vec<Fault> {
    const LEANED_ON: [(&str, &str); 6] = [
        ("Cargo.toml", "too_many_lines = \"deny\""),
        ("Cargo.toml", "disallowed_methods = \"deny\""),
        ("Cargo.toml", "unsafe_code = \"deny\""),
        ("clippy.toml", "too-many-lines-threshold = 70"),
        ("clippy.toml", "std::time::Instant::now"),
        ("clippy.toml", "std::process::exit"),
    ];
    let mut faults = Vec::new();
    for (path, setting) in LEANED_ON {
        if !tree.find(path).is_some_and(|file| file.text.contains(setting)) {
            let what = format!("`{setting}` is gone, and the house rules lean on it");
            faults.push(Fault { path: path.to_owned(), line: 1, what });
        }
    }
    for file in &tree.files {
        let member = file.path.strip_prefix("crates/").and_then(|path| path.split_once('/'));
        if member.is_some_and(|(_, rest)| rest == "Cargo.toml")
            && !file.text.contains("[lints]\nworkspace = true")
        {
            faults.push(file.fault(1, "the crate does not inherit the workspace's lints"));
        }
    }
    faults
}

/// A decision record is dated and has a context, a choice and a price.
pub(crate) fn records(file: &File) -> Vec<Fault> {
    const PARTS: [&str; 3] = ["## Context", "## Choice", "## What we gave up"];
    const LINES_MAX: usize = 80;
    let Some(name) = file.path.strip_prefix("docs/decisions/") else { return Vec::new() };
    let mut faults = Vec::new();
    let date = name.get(..11).unwrap_or_default();
    let dated = date.char_indices().all(|(at, c)| match at {
        4 | 7 | 10 => c == '-',
        _ => c.is_ascii_digit(),
    });
    if !dated || date.is_empty() || !file.is("md") {
        faults.push(file.fault(1, "a record is named YYYY-MM-DD-what-it-decides.md"));
    }
    let mut headings = lines(&file.text).filter(|(_, line)| line.starts_with("## "));
    for part in PARTS {
        match headings.next() {
            Some((_, heading)) if heading == part => {}
            Some((number, _)) => faults.push(file.fault(number, format!("expected `{part}`"))),
            None => faults.push(file.fault(1, format!("`{part}` is missing"))),
        }
    }
    if file.text.lines().count() > LINES_MAX {
        faults.push(file.fault(LINES_MAX, "a record is one page"));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doors_without_their_things_are_caught() {
        let whole: [(&str, &str); 7] = [
            ("crates/tidegate/src/doors/text/mod.rs", ""),
            ("docs/doors/text.md", ""),
            ("README.md", "| [text](docs/doors/text.md) | UDP |"),
            ("crates/wire/src/text.rs", ""),
            ("crates/tidegate/tests/vectors/text/a.txt", ""),
            ("fuzz/fuzz_targets/text_request.rs", ""),
            ("crates/tidegate/tests/adversary/canary/text.rs", ""),
        ];
        assert!(doors(&Tree::of(&whole)).is_empty());
        let caught = |without: &str| {
            let mut left = whole.to_vec();
            left.retain(|(path, _)| *path != without);
            left.push(("fuzz/Cargo.toml", ""));
            doors(&Tree::of(&left)).len()
        };
        assert_eq!(caught("docs/doors/text.md"), 1);
        assert_eq!(caught("README.md"), 1);
        assert_eq!(caught("crates/tidegate/tests/vectors/text/a.txt"), 1);
        assert_eq!(caught("fuzz/fuzz_targets/text_request.rs"), 1);
        assert_eq!(caught("crates/tidegate/tests/adversary/canary/text.rs"), 1);
        // Without a codec of its own there is nothing to record or to fuzz.
        assert_eq!(caught("crates/wire/src/text.rs"), 0);
        let prose = [whole[0], whole[1], whole[6], ("README.md", "see docs/doors/text.md")];
        assert_eq!(doors(&Tree::of(&prose)).len(), 1);
    }

    #[test]
    fn files_that_are_not_compiled_are_caught() {
        let whole = [
            ("crates/a/src/lib.rs", "mod b;\npub mod c;"),
            ("crates/a/src/b.rs", "mod d;"),
            ("crates/a/src/b/d.rs", ""),
            ("crates/a/src/c/mod.rs", "mod tests;"),
            ("crates/a/src/c/tests.rs", ""),
            ("crates/a/tests/it/main.rs", ""),
            ("crates/a/tests/it/alone.rs", ""),
        ];
        assert!(orphans(&Tree::of(&whole)).is_empty());
        for (path, caught) in [("crates/a/src/lib.rs", 2), ("crates/a/src/b.rs", 1)] {
            let mut planted = whole;
            for file in planted.iter_mut().filter(|file| file.0 == path) {
                file.1 = "";
            }
            assert_eq!(orphans(&Tree::of(&planted)).len(), caught, "{path}");
        }
    }

    #[test]
    fn missing_lints_are_caught() {
        let root =
            "too_many_lines = \"deny\"\ndisallowed_methods = \"deny\"\nunsafe_code = \"deny\"";
        let clippy = "too-many-lines-threshold = 70\nstd::time::Instant::now std::process::exit";
        let check = |clippy: &str, member: &str, expected: usize| {
            let files =
                [("Cargo.toml", root), ("clippy.toml", clippy), ("crates/a/Cargo.toml", member)];
            assert_eq!(lints(&Tree::of(&files)).len(), expected, "{clippy} {member}");
        };
        check(clippy, "[lints]\nworkspace = true\n", 0);
        check(clippy, "[package]", 1);
        check("", "[lints]\nworkspace = true\n", 3);
    }

    #[test]
    fn records_out_of_shape_are_caught() {
        let check = |path: &str, text: &str, expected: usize| {
            assert_eq!(records(&File::new(path, text)).len(), expected, "{path}: {text}");
        };
        let parts = "# T\n## Context\n## Choice\n## What we gave up\n";
        check("docs/decisions/2026-11-15-table.md", parts, 0);
        check("docs/decisions/table.md", parts, 1);
        check("docs/decisions/2026-11-15-table.txt", parts, 1);
        check("docs/decisions/2026-11-15-table.md", "# T\n## Context\n## Choice\n", 1);
        check("docs/decisions/2026-11-15-table.md", "## Choice\n## Context\n", 3);
        check("docs/decisions/2026-11-15-table.md", &format!("{parts}{}", "x\n".repeat(90)), 1);
        check("docs/other.md", "", 0);
    }
}
