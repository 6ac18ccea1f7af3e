//! Why a command failed, and the code that it exits with.

use std::io::{self, IsTerminal as _, Write as _};

use super::{Code, FAILED, USAGE};
use crate::server::ServeError;
use crate::settings::problem::Problems;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The command line is wrong, or asks for what cannot be had.
    #[error("{0}")]
    Usage(String),
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] Problems),
    /// The server does not answer.
    #[error("{0}")]
    Unreachable(String),
    /// The system failed.
    #[error("{0:#}")]
    Other(#[from] anyhow::Error),
}

impl CliError {
    /// The code to exit with.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            CliError::Usage(_) | CliError::Config(_) => USAGE,
            CliError::Unreachable(_) | CliError::Other(_) => FAILED,
        }
    }

    /// Writes it to standard error.
    pub fn show(&self) {
        let mut stderr = io::stderr().lock();
        // A closed standard error is no error.
        let _ = match self {
            CliError::Config(problems) => {
                let colour = stderr.is_terminal()
                    && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
                write!(stderr, "{}", problems.drawn(colour))
            }
            other => writeln!(stderr, "tidegate: {other}"),
        };
    }
}

impl From<ServeError> for CliError {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Config(problems) => CliError::Config(problems),
            ServeError::Snapshot(_) => CliError::Usage(error.to_string()),
            other => CliError::Other(other.into()),
        }
    }
}
