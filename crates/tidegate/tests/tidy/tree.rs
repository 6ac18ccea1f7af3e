//! The files of the repository, as git knows them, and the faults found in them.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the doors are.
pub(crate) const DOORS: &str = "crates/tidegate/src/doors";
/// Folders beside the doors that are none.
const SHARED_BY_DOORS: [&str; 3] = ["envoy", "http_server", "io"];

/// One file: its path from the root with `/`, and its text.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    pub(crate) fn is(&self, extension: &str) -> bool {
        self.path.rsplit('/').next().is_some_and(|name| name.ends_with(&format!(".{extension}")))
    }

    /// A fault in this file; lines count from 1.
    pub(crate) fn fault(&self, line: usize, what: impl Into<String>) -> Fault {
        Fault { path: self.path.clone(), line, what: what.into() }
    }
}

/// A broken rule: where, and what would be right.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// Every file of the repository.
pub(crate) struct Tree {
    pub(crate) files: Vec<File>,
}

impl Tree {
    /// The tree in which this test was built.
    pub(crate) fn load() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut paths = listed(&root);
        // An unpacked archive has no git, or lies in somebody else's repository.
        if !paths.iter().any(|path| path == "Cargo.toml") {
            paths.clear();
            walk(&root, &root, &mut paths);
        }
        paths.sort();
        let files = paths
            .into_iter()
            .filter_map(|path| {
                let bytes = fs::read(root.join(&path)).ok()?;
                Some(File { path, text: String::from_utf8_lossy(&bytes).into_owned() })
            })
            .collect();
        Self { files }
    }

    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        Self { files: files.iter().map(|(path, text)| File::new(path, text)).collect() }
    }

    pub(crate) fn find(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Whether `path` is a file or a folder with a file in it.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.files.iter().any(|file| {
            file.path
                .strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// The folders of the doors, without those that the doors share.
    pub(crate) fn doors(&self) -> Vec<String> {
        let mut doors = self.folders(DOORS);
        doors.retain(|name| !SHARED_BY_DOORS.contains(&name.as_str()));
        doors
    }

    /// The names of the folders that lie directly in `folder`.
    pub(crate) fn folders(&self, folder: &str) -> Vec<String> {
        let mut names: Vec<String> = self
            .files
            .iter()
            .filter_map(|file| file.path.strip_prefix(folder)?.strip_prefix('/')?.split_once('/'))
            .map(|(name, _)| name.to_owned())
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

/// What git tracks or would track, so that a new file is checked before it is added.
fn listed(root: &Path) -> Vec<String> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    match Command::new("git").args(arguments).current_dir(root).output() {
        Ok(output) => output
            .stdout
            .split(|&byte| byte == 0)
            .filter(|path| !path.is_empty())
            .map(|path| String::from_utf8_lossy(path).into_owned())
            .collect(),
        Err(_) => Vec::new(),
    }
}

/// What is built or fuzzed, which an archive's user may have beside the sources.
const NOT_OURS: [&str; 8] = [
    ".git",
    "target",
    "fuzz/target",
    "fuzz/corpus",
    "fuzz/artifacts",
    "clients/python/build",
    "clients/typescript/dist",
    "clients/typescript/node_modules",
];

fn walk(root: &Path, folder: &Path, paths: &mut Vec<String>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let full: PathBuf = entry.path();
        let Ok(relative) = full.strip_prefix(root) else { continue };
        let path = relative.to_string_lossy().replace('\\', "/");
        // Cargo marks what it builds, wherever CARGO_TARGET_DIR puts it.
        if NOT_OURS.contains(&path.as_str()) || full.join("CACHEDIR.TAG").exists() {
            continue;
        }
        if full.is_dir() {
            walk(root, &full, paths);
        } else {
            paths.push(path);
        }
    }
}

#[test]
fn a_tree_without_git_is_walked() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = Vec::new();
    walk(&root, &root, &mut paths);
    assert!(paths.iter().any(|path| path == "crates/core/src/lib.rs"));
    assert!(!paths.iter().any(|path| path.starts_with(".git/") || path.starts_with("target/")));
}

#[test]
fn folders_and_paths_are_found() {
    let tree = Tree::of(&[("a/b/c.rs", ""), ("a/d/e.rs", ""), ("a/f.rs", ""), ("ab/g/h.rs", "")]);
    assert_eq!(tree.folders("a"), ["b", "d"]);
    assert!(tree.has("a/b") && tree.has("a/f.rs") && !tree.has("a/b/c"));
}
