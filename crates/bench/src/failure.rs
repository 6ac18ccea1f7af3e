//! Why a load could not run, the code that says so, and printing to a pipe that may be closed.

use std::io::{self, ErrorKind, Write as _};

use anyhow::Context as _;

/// Why a load did not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The flags do not fit together.
    #[error("{0}")]
    Usage(String),
    /// A server, a peer or the system failed.
    #[error("{0:#}")]
    Other(#[from] anyhow::Error),
}

impl Failure {
    /// The code to exit with.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Other(_) => 1,
        }
    }

    /// Tells it on standard error.
    pub(crate) fn show(&self) {
        // If standard error is closed, there is no place to tell it.
        let _ = writeln!(io::stderr().lock(), "tidegate-bench: {self}");
    }
}

/// Prints `text` to standard output. A reader that has closed it is no error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output").map_err(Failure::from)
        }
        _ => Ok(()),
    }
}
