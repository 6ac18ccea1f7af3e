//! Why a command could not do what it was asked, and the code that says so.

use std::io::{self, IsTerminal as _, Write as _};

use super::{Code, FAILED, USAGE};
use crate::server::ServeError;
use crate::settings::problem::Problems;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// What was asked makes no sense, or can never be had.
    #[error("{0}")]
    Usage(String),
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] Problems),
    /// Nobody answers.
    #[error("{0}")]
    Unreachable(String),
    /// The world did not play along.
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

    /// Tells it on standard error.
    pub fn show(&self) {
        let mut stderr = io::stderr().lock();
        // If standard error is closed, nobody wants to know.
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
