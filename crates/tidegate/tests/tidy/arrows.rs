//! Which module of the server may use which: arrows point down the list of ARCHITECTURE.md, and
//! there is no way round in a circle.
//!
//! A module is a file or folder directly in `crates/tidegate/src`. An arrow is any path in its code
//! that begins with `crate::`, alone or in a group, or that leaves the module by `super::`. Tests
//! may look anywhere.

use std::collections::{BTreeMap, BTreeSet};

use crate::code::{code, is_test_file, without_tests};
use crate::tree::{Fault, File, Tree};

const SOURCE: &str = "crates/tidegate/src/";

/// Top to bottom. A module may use those of its own row, in no circle, and of all rows below.
const LAYERS: [&[&str]; 9] = [
    &["main", "lib"],
    &["cli"],
    &["server"],
    &["config"],
    &["doors"],
    &["snapshot", "waiting", "uses", "records"],
    &["limiter"],
    &["stores", "table"],
    &["settings", "completions", "control", "clock", "metrics", "budget", "shutdown", "logs"],
];

/// An arrow between two modules, and where it was found first.
type Arrows<'a> = BTreeMap<(String, String), (&'a File, usize)>;

/// Arrows that point up, modules without a place, and circles.
pub(crate) fn arrows(tree: &Tree) -> Vec<Fault> {
    let arrows = found(tree);
    let mut faults = Vec::new();
    let mut placeless = BTreeSet::new();
    for ((from, to), (file, line)) in &arrows {
        match (layer(from), layer(to)) {
            (Some(above), Some(below)) if above > below => {
                let what = format!("`{from}` lies below `{to}` and must not use it");
                faults.push(file.fault(*line, what));
            }
            (Some(_), Some(_)) => {}
            (None, _) => _ = placeless.insert((from, file.path.as_str(), 1)),
            (_, None) => _ = placeless.insert((to, file.path.as_str(), *line)),
        }
    }
    for (module, path, line) in placeless {
        let what = format!("`{module}` has no place in LAYERS of tests/tidy/arrows.rs");
        faults.push(Fault { path: path.to_owned(), line, what });
    }
    faults.extend(circles(&arrows));
    faults
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// One fault for each set of modules that use each other in a circle, with its arrows.
fn circles(arrows: &Arrows) -> Vec<Fault> {
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in arrows.keys() {
        reached.entry(from).or_default().insert(to);
    }
    let modules: Vec<&str> = reached.keys().copied().collect();
    // What each module reaches, by way of one more module at a time.
    for through in &modules {
        let beyond = reached[through].clone();
        for module in &modules {
            if reached[module].contains(through) {
                reached.entry(module).or_default().extend(&beyond);
            }
        }
    }
    let reaches = |from: &str, to: &str| reached.get(from).is_some_and(|all| all.contains(to));
    let mut faults = Vec::new();
    let mut told: BTreeSet<&str> = BTreeSet::new();
    for module in modules.iter().copied().filter(|module| reaches(module, module)) {
        if told.contains(module) {
            continue;
        }
        let within = |other: &str| reaches(module, other) && reaches(other, module);
        told.extend(modules.iter().copied().filter(|other| within(other)));
        let edges: Vec<_> =
            arrows.iter().filter(|((from, to), _)| within(from) && within(to)).collect();
        let shown = edges.iter().map(|((from, to), (file, line))| {
            let place = file.path.trim_start_matches(SOURCE);
            format!("{from} -> {to} ({place}:{line})")
        });
        let what = format!("modules in a circle: {}", shown.collect::<Vec<_>>().join(", "));
        if let Some((_, (file, line))) = edges.first() {
            faults.push(file.fault(*line, what));
        }
    }
    faults
}

/// All arrows between modules.
fn found(tree: &Tree) -> Arrows<'_> {
    let mut arrows = Arrows::new();
    for file in tree.files.iter().filter(|file| file.is("rs") && !is_test_file(&file.path)) {
        let Some(path) = file.path.strip_prefix(SOURCE) else { continue };
        let home: Vec<&str> = path.trim_end_matches(".rs").split('/').collect();
        let from = home[0];
        // The names of modules between the crate and this file's own items.
        let depth = home.len() - usize::from(home.last() == Some(&"mod") || home == ["lib"]);
        let text = without_tests(&code(&file.text));
        for (at, names) in paths(&text, depth) {
            let line = text[..at].matches('\n').count() + 1;
            for to in names.into_iter().filter(|to| to != from) {
                arrows.entry((from.to_owned(), to)).or_insert((file, line));
            }
        }
    }
    arrows
}

/// Where a path into the crate stands, and the modules that it names. `depth` is how many modules
/// deep the code is.
fn paths(text: &str, depth: usize) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    for start in ["crate", "super"] {
        for (at, _) in text.match_indices(start) {
            let before = text[..at].trim_end();
            let within = text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            if within || before.ends_with("::") {
                continue;
            }
            let mut rest = &text[at..];
            let mut up = 0;
            while let Some(next) = step(rest, "super") {
                (rest, up) = (next, up + 1);
            }
            let top = match step(rest, "crate") {
                Some(next) if up == 0 => next,
                // Inline modules are not counted: they would only make a path end deeper.
                _ if up > 0 && up == depth => rest,
                _ => continue,
            };
            found.push((at, heads(top)));
        }
    }
    found
}

/// What follows `name ::`.
fn step<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.strip_prefix(name)?.trim_start().strip_prefix("::").map(str::trim_start)
}

/// The first names of a path: one, or those of a group in braces.
fn heads(text: &str) -> Vec<String> {
    let word = |text: &str| {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        text[..end].to_owned()
    };
    let Some(group) = text.strip_prefix('{') else { return vec![word(text)] };
    let (mut depth, mut names, mut fresh) = (0, Vec::new(), true);
    for (at, c) in group.char_indices() {
        match c {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            c if c.is_whitespace() => {}
            _ if depth == 0 && fresh => {
                names.push(word(&group[at..]));
                fresh = false;
            }
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(files: &[(&str, &str)], expected: &[&str]) {
        let files: Vec<(String, &str)> =
            files.iter().map(|(path, text)| (format!("{SOURCE}{path}"), *text)).collect();
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let told: Vec<String> = arrows(&Tree::of(&files))
            .iter()
            .map(|fault| fault.to_string().replace(SOURCE, ""))
            .collect();
        assert_eq!(told, expected);
    }

    #[test]
    fn arrows_that_point_down_are_fine() {
        check(
            &[
                ("server/mod.rs", "use crate::doors::Gate;\nuse crate::{clock, metrics::Door};"),
                ("doors/text/mod.rs", "use super::Gate;\nuse super::super::limiter::Limiter;"),
                ("limiter/mod.rs", "use self::handle::LimiterHandle; use tidegate_core::crate_of;"),
                ("clock.rs", "//! Not crate::doors.\nconst A: &str = \"crate::doors\";"),
                ("table/mod.rs", "#[cfg(test)]\nmod tests {\n    use crate::server::Server;\n}"),
                ("table/tests.rs", "use crate::server::Server;"),
            ],
            &[],
        );
    }

    #[test]
    fn an_arrow_that_points_up_is_caught_however_it_is_written() {
        let above = |line| {
            format!("limiter/handle.rs:{line}: `limiter` lies below `doors` and must not use it")
        };
        let caught = |text: &str, line: usize| {
            check(&[("limiter/handle.rs", text)], &[above(line).as_str()]);
        };
        caught("use crate::doors::Gate;", 1);
        caught("\nuse crate::{\n    clock::Clock,\n    doors::{Gate, io},\n};", 2);
        caught("use crate::{clock::{Clock, doors}, doors};", 1);
        caught("fn f(gate: &crate::doors::Gate) {}", 1);
        caught("use super::super::doors::Gate;", 1);
        caught("use super::super::{clock, doors::Gate};", 1);
        check(&[("limiter/handle.rs", "use super::doors::Gate;")], &[]);
        check(
            &[("limiter/mod.rs", "use super::doors;")],
            &[above(1).replace("handle", "mod").as_str()],
        );
        check(
            &[("uses.rs", "use super::doors;")],
            &["uses.rs:1: `uses` lies below `doors` and must not use it"],
        );
    }

    #[test]
    fn a_circle_is_told_with_its_arrows() {
        check(
            &[
                ("snapshot/mod.rs", "use crate::records::Records;"),
                ("records/mod.rs", "\nuse crate::uses::UsesInFlight;"),
                ("uses.rs", "use crate::{clock, snapshot::Snapshot};"),
            ],
            &["records/mod.rs:2: modules in a circle: records -> uses (records/mod.rs:2), \
               snapshot -> records (snapshot/mod.rs:1), uses -> snapshot (uses.rs:1)"],
        );
    }

    #[test]
    fn a_module_needs_a_place() {
        check(
            &[("clock.rs", "use crate::newcomer::New;")],
            &["clock.rs:1: `newcomer` has no place in LAYERS of tests/tidy/arrows.rs"],
        );
    }
}
