//! What `make setup-test` installs beside what is built: Python and Node with the packages that the
//! Makefile names, and Envoy. Go is Debian's.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::binary;

/// Python, ready to run `script` of a test's folder, which is relative to `tests/it`.
pub(crate) fn python(script: &str) -> Command {
    let mut command = python_alone();
    command.arg(path(script));
    command
}

/// Python, ready to be told what to run.
pub(crate) fn python_alone() -> Command {
    let mut command = Command::new(folder().join("python/bin/python"));
    // Modules of scripts leave no compiled files in the source.
    command.arg("-B");
    command
}

/// Node, ready to run `script`, as above.
pub(crate) fn node(script: &str) -> Command {
    let mut command = node_alone();
    command.env("NODE_PATH", node_modules()).arg(path(script));
    command
}

/// Node, ready to be told what to run.
pub(crate) fn node_alone() -> Command {
    Command::new(folder().join("node/node"))
}

/// The packages of Node.
pub(crate) fn node_modules() -> PathBuf {
    folder().join("node/node_modules")
}

/// The go tool, which fetches nothing and keeps what it compiles beside what is built.
pub(crate) fn go() -> Command {
    let mut command = Command::new("go");
    command.env("GOCACHE", folder().join("go")).env("GOFLAGS", "").env("GOPROXY", "off");
    command
}

/// Envoy, ready to be given a configuration.
pub(crate) fn envoy() -> Command {
    let path = folder().join("python/envoy");
    assert!(path.exists(), "Envoy is missing: `make setup-test` installs it");
    Command::new(path)
}

/// A program of a Python package.
pub(crate) fn python_program(name: &str) -> Command {
    Command::new(installed(&format!("python/bin/{name}")))
}

/// A whole Debian of the release that the tests run on, as a tar file.
pub(crate) fn debian_root() -> PathBuf {
    installed("debian.tar")
}

/// Where the programs are that make packages.
pub(crate) fn tool_folder() -> PathBuf {
    installed("cargo-deb/bin")
}

fn installed(path: &str) -> PathBuf {
    let path = folder().join(path);
    assert!(path.exists(), "{} is missing: `make setup-test` installs it", path.display());
    path
}

/// Where `make setup-test` puts what it does not install for the whole machine.
pub(crate) fn folder() -> PathBuf {
    let mut folders = Path::new(binary()).ancestors().map(|folder| folder.join("peers"));
    let found = folders.find(|folder| folder.is_dir());
    found.expect("the clients are there; `make setup-test` installs them")
}

fn path(script: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it").join(script)
}
