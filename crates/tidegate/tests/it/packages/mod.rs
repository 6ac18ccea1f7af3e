//! What is in `packaging/`: each part is tried with the tools of those who will use it.

mod container;
mod debian;
mod monitoring;

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file or folder of the repository.
fn of_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Runs a tool to its end, which must be a good one, and returns all that it printed.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|error| {
        panic!("{command:?}: {error}; `make setup-test` installs what is missing")
    });
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{printed}", output.status);
    printed
}
