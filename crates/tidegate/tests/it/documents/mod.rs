//! The README and the guides, done by the test as a reader would do them, with the real programs.
//!
//! `TIDEGATE_PAGE=limit-logins` runs the pages whose path has that in it, and no other.

mod elsewhere;
mod page;
mod picture;
mod session;

use std::path::{Path, PathBuf};
use std::thread;

use page::Step;

/// Blocks that no test can run, over all pages; each has its reason above it.
const NOT_RUN_MAX: usize = 1;

fn of_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The pages that are run: path from the root, and text.
fn pages() -> Vec<(String, String)> {
    let root = of_repository("");
    let guides = std::fs::read_dir(root.join("docs/guides")).expect("the guides are there");
    let mut paths: Vec<PathBuf> = guides.map(|entry| entry.expect("a guide").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.push(root.join("README.md"));
    paths.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a page can be read");
        let name = path.strip_prefix(&root).expect("a page of this repository");
        (name.display().to_string(), text)
    };
    paths.into_iter().map(read).collect()
}

/// Runs a page on its own.
fn faults(text: &str) -> Vec<String> {
    let page = page::read(text);
    let mut faults = page.faults.clone();
    if !page.steps.is_empty() {
        faults.extend(session::run(&page));
    }
    faults
}

#[test]
fn every_page_shows_what_its_commands_say() {
    let mut pages = pages();
    if let Ok(chosen) = std::env::var("TIDEGATE_PAGE") {
        pages.retain(|(name, _)| name.contains(&chosen));
    }
    assert!(!pages.is_empty(), "there is no such page");
    let all: Vec<String> = thread::scope(|scope| {
        let start = |(name, text)| (name, scope.spawn(move || faults(text)));
        let running: Vec<_> = pages.iter().map(|(name, text)| start((name, text))).collect();
        let end = |(name, page): (&String, thread::ScopedJoinHandle<Vec<String>>)| {
            let faults = page.join().expect("a page ends");
            faults.into_iter().map(|fault| format!("{name}, {fault}")).collect::<Vec<_>>()
        };
        running.into_iter().flat_map(end).collect()
    });
    assert!(all.is_empty(), "pages show what is not so:\n{}", all.join("\n"));
}

#[test]
fn few_blocks_cannot_run() {
    let reasons: Vec<String> = pages()
        .into_iter()
        .flat_map(|(name, text)| {
            let reasons = page::read(&text).not_run;
            reasons.into_iter().map(move |why| format!("{name}: {why}"))
        })
        .collect();
    assert!(reasons.len() <= NOT_RUN_MAX, "{NOT_RUN_MAX} at most: {reasons:#?}");
}

/// A reader may have a Redis or an etcd already. At its port a page would count in it, or stop it.
#[test]
fn no_page_touches_a_store_of_its_reader() {
    for (name, text) in pages() {
        for step in page::read(&text).steps {
            let text = match step {
                Step::Write { text, .. } => text,
                Step::Run(typed) => typed.command,
            };
            for port in ["6379", "2379", "2380"] {
                assert!(!text.contains(port), "{name}: a store's usual port: {text}");
            }
            let at_usual_port = text.contains("redis-cli") && !text.contains(" -p ");
            assert!(!at_usual_port, "{name}: redis-cli without a port: {text}");
            let starts = text.starts_with("redis-server") && !text.contains(" --port ")
                || text.starts_with("etcd ") && !text.contains(" --config-file ");
            assert!(!starts, "{name}: a store at its usual port: {text}");
        }
    }
}

#[test]
fn a_page_that_is_right_has_no_faults() {
    let text = "Save `a b.txt`:\n\n```\nit's\n```\n\n```console\n$ cat 'a b.txt'\nit's\n$ x=1\n\
        $ printf '%s' \"$x\" >&2\n1\n$ { echo one; echo ready; exec tail -f /dev/null; } &\n…\n\
        ready\n$ kill %1\n$ tidegate --version\ntidegate …\n```\n";
    assert_eq!(faults(text), Vec::<String>::new());
}

#[test]
fn a_page_that_is_wrong_is_caught() {
    let check = |block: &str, expected: &str| {
        let found = faults(&format!("```console\n{block}\n```\n"));
        assert_eq!(found.len(), 1, "{block}: {found:#?}");
        assert!(found[0].contains(expected), "{block}: {found:#?}");
    };
    check("$ echo two\none", "it says\n    two");
    check("$ echo more", "it says\n    more");
    check("$ false", "fails with 1");
    check("$ no-such-program", "not found");
    check("$ echo early; true &\nearly\nready", "it says\n    early");
    check("$ exit\n$ true", "does not end");
}
