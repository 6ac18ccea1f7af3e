//! Which room may use which: the arrows of ARCHITECTURE.md point one way.

use crate::code::{code, lines, says, tests_from};
use crate::tree::{DOORS, Fault, File, Tree};

/// Faults of `file` wherever its code, tests left out, says one of `phrases`.
fn spoken<'a>(
    file: &File,
    phrases: impl IntoIterator<Item = &'a str>,
    why: impl Fn(&str) -> String,
) -> Vec<Fault> {
    let tests = tests_from(&file.path, &file.text);
    let code = code(&file.text);
    let mut faults = Vec::new();
    for phrase in phrases {
        for (number, line) in lines(&code).filter(|(number, _)| *number < tests) {
            if says(line, phrase) {
                faults.push(file.fault(number, why(phrase)));
            }
        }
    }
    faults
}

/// Core, wire and envoy do no I/O, read no clock, start nothing.
pub(crate) fn purity(file: &File) -> Vec<Fault> {
    const IMPURE: [&str; 10] = [
        "std::net",
        "std::fs",
        "std::env",
        "std::thread",
        "std::process",
        "tokio",
        "async",
        "Instant",
        "SystemTime",
        "UdpSocket",
    ];
    let pure = ["crates/core/src/", "crates/wire/src/", "crates/envoy/src/"];
    if !file.is("rs") || !pure.iter().any(|room| file.path.starts_with(room)) {
        return Vec::new();
    }
    spoken(file, IMPURE, |what| format!("`{what}` in a room without I/O and clock"))
}

/// Core is at the bottom, wire and envoy above it, the client above wire, the program on top. The
/// load generators stand beside the program and know it from outside.
pub(crate) fn crates(file: &File) -> Vec<Fault> {
    // The package's name in manifests and the crate's name in code.
    let above: &[&str] = match file.path.split('/').collect::<Vec<_>>().as_slice() {
        ["crates", "core", ..] => {
            &["tidegate_wire", "tidegate_envoy", "tidegate_client", "tidegate"]
        }
        ["crates", "wire", ..] => &["tidegate_envoy", "tidegate_client", "tidegate"],
        ["crates", "envoy", ..] => &["tidegate_wire", "tidegate_client", "tidegate"],
        ["crates", "client", ..] => &["tidegate_envoy", "tidegate"],
        ["crates", "bench", ..] => &["tidegate_client", "tidegate"],
        _ => return Vec::new(),
    };
    let rooms = |name: &str| format!("`{name}` lies above this crate");
    if file.path.ends_with("/Cargo.toml") {
        return lines(&file.text)
            .filter_map(|(number, line)| {
                let name = line.split(['=', '.']).next()?.trim().replace('-', "_");
                above.contains(&name.as_str()).then(|| file.fault(number, rooms(&name)))
            })
            .collect();
    }
    if !file.is("rs") {
        return Vec::new();
    }
    let paths: Vec<String> = above.iter().map(|name| format!("{name}::")).collect();
    spoken(file, paths.iter().map(String::as_str), |path| rooms(path.trim_end_matches("::")))
}

/// A door sees the gate and its codec: neither the store nor another door.
pub(crate) fn doors(tree: &Tree) -> Vec<Fault> {
    let doors = tree.doors();
    let mut faults = Vec::new();
    for door in &tree.folders(DOORS) {
        let others = || doors.iter().filter(|other| other != &door);
        let mut phrases =
            vec!["stores::".to_owned(), "crate::stores".into(), "crate::table".into()];
        for other in others() {
            phrases.push(format!("doors::{other}"));
            phrases.push(format!("super::super::{other}"));
            phrases.push(format!("tidegate_wire::{other}"));
        }
        let folder = format!("{DOORS}/{door}/");
        for file in tree.files.iter().filter(|file| file.path.starts_with(&folder)) {
            let beside = others().map(|other| format!("super::{other}"));
            let top = file.path == format!("{folder}mod.rs");
            let mut phrases = phrases.clone();
            phrases.extend(beside.filter(|_| top));
            phrases.sort();
            let why = |what: &str| format!("the {door} door must not know `{what}`");
            faults.extend(spoken(file, phrases.iter().map(String::as_str), why));
        }
    }
    faults
}

/// The most parts of the house that a door sees.
const GATE_FIELDS_MAX: usize = 8;

/// A gate is the same for all doors: it has few fields and names none of them.
pub(crate) fn gate(tree: &Tree) -> Vec<Fault> {
    let path = format!("{DOORS}/gate.rs");
    let Some(file) = tree.find(&path) else {
        return vec![Fault { path, line: 1, what: "`Gate` lies here".to_owned() }];
    };
    let text = code(&file.text);
    let start = text.find("pub struct Gate {").unwrap_or(text.len());
    let body = text[start..].split("\n}").next().unwrap_or_default();
    let fields = body.lines().filter(|line| line.trim_start().starts_with("pub ")).skip(1).count();
    let mut faults = Vec::new();
    if !(1..=GATE_FIELDS_MAX).contains(&fields) {
        let what = format!("`Gate` has {fields} fields, of {GATE_FIELDS_MAX}");
        faults.push(file.fault(text[..start].matches('\n').count() + 1, what));
    }
    let doors = tree.doors();
    let phrases: Vec<String> =
        doors.iter().flat_map(|door| [format!("{door}::"), format!("doors::{door}")]).collect();
    let phrases = phrases.iter().map(String::as_str).chain(["Door::"]);
    faults.extend(spoken(file, phrases, |what| format!("the gate must not know `{what}`")));
    faults
}

/// Rooms return errors that say what the caller can do; only the binaries may shrug.
pub(crate) fn anyhow(file: &File) -> Vec<Fault> {
    let binary = ["crates/tidegate/src/main.rs", "crates/tidegate/src/cli", "crates/bench/src"];
    let room = file.path.starts_with("crates/") && file.path.contains("/src/") && file.is("rs");
    if !room || binary.iter().any(|place| file.path.starts_with(place)) {
        return Vec::new();
    }
    spoken(file, ["anyhow"], |_| "`anyhow` outside the binary: give the error its variants".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn planted(check: fn(&File) -> Vec<Fault>, path: &str, text: &str, expected: &[usize]) {
        let found: Vec<usize> = check(&File::new(path, text)).iter().map(|f| f.line).collect();
        assert_eq!(found, expected, "{path}: {text}");
    }

    #[test]
    fn a_gate_that_knows_a_door_or_too_much_is_caught() {
        let check = |text: &str, expected: &[&str]| {
            let path = format!("{DOORS}/gate.rs");
            let tree = Tree::of(&[(&path, text), (&format!("{DOORS}/text/mod.rs"), "")]);
            let told: Vec<String> = gate(&tree).into_iter().map(|fault| fault.what).collect();
            assert_eq!(told, expected, "{text}");
        };
        check("pub struct Gate {\n    pub limiter: Limiter,\n}\nfn f(text: &str) {}", &[]);
        let fields = "    pub a: A,\n".repeat(9);
        check(&format!("pub struct Gate {{\n{fields}}}"), &["`Gate` has 9 fields, of 8"]);
        check("pub struct Other {}", &["`Gate` has 0 fields, of 8"]);
        check(
            "pub struct Gate {\n    pub text: super::text::State,\n}",
            &["the gate must not know `text::`"],
        );
        check(
            "pub struct Gate {\n    pub a: A,\n}\nconst D: Door = Door::Text;",
            &["the gate must not know `Door::`"],
        );
        assert_eq!(gate(&Tree::of(&[])).len(), 1);
    }

    #[test]
    fn impurity_is_caught() {
        planted(purity, "crates/core/src/a.rs", "x\nuse std::net::IpAddr;", &[2]);
        planted(purity, "crates/wire/src/a.rs", "let t = Instant::now();", &[1]);
        planted(purity, "crates/wire/src/a.rs", "async fn f() {}", &[1]);
        planted(purity, "crates/core/src/a.rs", "//! No tokio.\nconst INSTANT: u64 = 1;", &[]);
        planted(purity, "crates/core/src/a.rs", "#[cfg(test)]\nmod tests {\nstd::fs\n}", &[]);
        planted(purity, "crates/tidegate/src/a.rs", "use tokio::net;", &[]);
    }

    #[test]
    fn arrows_that_point_up_are_caught() {
        planted(crates, "crates/core/src/a.rs", "use tidegate_wire::text;", &[1]);
        planted(
            crates,
            "crates/core/Cargo.toml",
            "x = \"1\"\ntidegate-wire.workspace = true",
            &[2],
        );
        planted(crates, "crates/wire/src/a.rs", "\nuse tidegate_client::x;", &[2]);
        planted(crates, "crates/wire/src/a.rs", "use tidegate::limiter;", &[1]);
        planted(crates, "crates/client/Cargo.toml", "tidegate = { path = \"../tidegate\" }", &[1]);
        planted(crates, "crates/client/src/a.rs", "use tidegate_wire::text;", &[]);
        planted(crates, "crates/envoy/src/a.rs", "use tidegate_wire::text;", &[1]);
        planted(crates, "crates/envoy/Cargo.toml", "tidegate-core.workspace = true", &[]);
        planted(crates, "crates/client/src/a.rs", "use tidegate_envoy::proto;", &[1]);
        planted(crates, "crates/bench/Cargo.toml", "tidegate.workspace = true", &[1]);
        planted(crates, "crates/bench/src/a.rs", "use tidegate_wire::text;", &[]);
        planted(crates, "crates/tidegate/src/a.rs", "use tidegate_core::Limit;", &[]);
    }

    #[test]
    fn doors_that_know_too_much_are_caught() {
        let check = |path: &str, text: &str, expected: usize| {
            let other = "crates/tidegate/src/doors/http/mod.rs";
            let faults = doors(&Tree::of(&[(path, text), (other, "//! The HTTP door.")]));
            assert_eq!(faults.len(), expected, "{path}: {text}: {faults:?}");
        };
        let text = "crates/tidegate/src/doors/text/mod.rs";
        check(text, "use crate::doors::Gate;", 0);
        check(text, "use tidegate_wire::text;", 0);
        check(text, "use crate::doors::http::Config;", 1);
        check(text, "use super::http;", 1);
        check(text, "use crate::{clock, stores::memory};", 1);
        check(text, "use crate::table::Table;", 1);
        check("crates/tidegate/src/doors/text/loops.rs", "use super::super::http;", 1);
        check("crates/tidegate/src/doors/text/loops.rs", "use tidegate_wire::http;", 1);
        check(text, "#[cfg(test)]\nmod tests {\nuse crate::stores::memory;\n}", 0);
    }

    #[test]
    fn shrugged_errors_are_caught() {
        planted(anyhow, "crates/tidegate/src/limiter.rs", "x\nuse anyhow::Result;", &[2]);
        planted(anyhow, "crates/tidegate/src/cli/mod.rs", "use anyhow::Result;", &[]);
        planted(anyhow, "crates/tidegate/src/main.rs", "use anyhow::Result;", &[]);
        planted(anyhow, "crates/bench/src/servers/mod.rs", "use anyhow::Result;", &[]);
    }
}
