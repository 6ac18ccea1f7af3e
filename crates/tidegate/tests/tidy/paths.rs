//! The ways of requests in `scripts/request_paths.txt`, which `scripts/shape.py` counts: every
//! function that they name is there, and is named in a file before it on the way.

use std::collections::BTreeMap;

use crate::code::{code, lines, says};
use crate::tree::{Fault, Tree};

const PATHS: &str = "scripts/request_paths.txt";

/// Steps that name no function of the tree, or one that nothing before them can lead to.
pub(crate) fn stale(tree: &Tree) -> Vec<Fault> {
    let Some(list) = tree.find(PATHS) else {
        let what = "the ways of requests are listed here".to_owned();
        return vec![Fault { path: PATHS.to_owned(), line: 1, what }];
    };
    let mut faults = Vec::new();
    let mut before: BTreeMap<&str, String> = BTreeMap::new();
    for (number, line) in lines(&list.text) {
        let step = line.split('#').next().unwrap_or_default().trim();
        if step.starts_with('[') {
            before.clear();
        }
        let Some((path, function)) = step.split_once(':') else { continue };
        let (path, function) = (path.trim(), function.trim());
        let Some(file) = tree.find(path) else {
            faults.push(list.fault(number, format!("there is no file {path}")));
            continue;
        };
        let is_first = before.is_empty();
        let leads = before.values().any(|text| says(text, function));
        let text = before.entry(path).or_insert_with(|| code(&file.text));
        if !says(text, &format!("fn {function}")) {
            faults.push(list.fault(number, format!("{path} has no function `{function}`")));
        }
        if !is_first && !leads {
            let what = format!("`{function}` is named in no file before it on this way");
            faults.push(list.fault(number, what));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(list: &str, expected: &[&str]) {
        let tree = Tree::of(&[
            (PATHS, list),
            ("a.rs", "fn turn() { receive(); self.answer() } // leave"),
            ("b.rs", "fn receive() {}\nfn answer<T>() {}\nfn leave() {}"),
        ]);
        let told: Vec<String> = stale(&tree).iter().map(ToString::to_string).collect();
        let expected: Vec<String> = expected.iter().map(|what| format!("{PATHS}:{what}")).collect();
        assert_eq!(told, expected);
    }

    #[test]
    fn a_way_that_is_there_is_fine() {
        check(
            "# Ways.\n[one]\na.rs: turn\nb.rs: receive # reads\nb.rs: answer\n[two]\nb.rs: leave",
            &[],
        );
    }

    #[test]
    fn what_is_gone_is_told() {
        check("[one]\na.rs: turn\nc.rs: turn", &["3: there is no file c.rs"]);
        check("[one]\na.rs: turn\na.rs: answer", &["3: a.rs has no function `answer`"]);
        check(
            "[one]\na.rs: turn\nb.rs: leave",
            &["3: `leave` is named in no file before it on this way"],
        );
    }

    #[test]
    fn the_list_itself_must_be_there() {
        assert_eq!(stale(&Tree::of(&[])).len(), 1);
    }
}
