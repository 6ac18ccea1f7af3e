//! Clients that `make setup-test` installs beside what is built: Python and Node with the packages
//! that the Makefile names, and Envoy.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::binary;

/// Python, ready to run `script` of a test's folder, which is relative to `tests/it`.
pub(crate) fn python(script: &str) -> Command {
    let mut command = Command::new(folder().join("python/bin/python"));
    // Modules of scripts leave no compiled files in the source.
    command.arg("-B").arg(path(script));
    command
}

/// Node, ready to run `script`, as above.
pub(crate) fn node(script: &str) -> Command {
    let folder = folder();
    let mut command = Command::new(folder.join("node/node"));
    command.env("NODE_PATH", folder.join("node/node_modules")).arg(path(script));
    command
}

/// Envoy, ready to be given a configuration.
pub(crate) fn envoy() -> Command {
    let path = folder().join("python/envoy");
    assert!(path.exists(), "Envoy is missing: `make setup-test` installs it");
    Command::new(path)
}

fn folder() -> PathBuf {
    let mut folders = Path::new(binary()).ancestors().map(|folder| folder.join("peers"));
    let found = folders.find(|folder| folder.is_dir());
    found.expect("the clients are there; `make setup-test` installs them")
}

fn path(script: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it").join(script)
}
