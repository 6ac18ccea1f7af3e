//! Standard output that may be closed: `tidegate … | head -1` is no error.

use std::io::{self, ErrorKind, Write as _};

use anyhow::Context as _;

use super::CliError;

/// Prints `bytes` as they are.
pub(super) fn print(bytes: &[u8]) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output").map_err(CliError::from)
        }
        _ => Ok(()),
    }
}

/// Prints one line.
pub(super) fn print_line(line: &str) -> Result<(), CliError> {
    print(format!("{line}\n").as_bytes())
}

/// A warning on standard error.
pub(super) fn warn(line: &str) {
    // A closed standard error is no error.
    let _ = writeln!(io::stderr().lock(), "tidegate: {line}");
}
