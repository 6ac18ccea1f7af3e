//! `tidegate serve`: every door of the configuration.

use std::path::PathBuf;

use super::{CliError, Code, OK};
use crate::logs::Logs;
use crate::server;

/// The arguments of `tidegate serve`.
#[derive(Debug, clap::Args)]
pub(super) struct ServeArgs {
    /// The configuration file; without it ./tidegate.toml, else the built-in default.
    #[arg(short, long, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    config: Option<PathBuf>,
}

pub(super) fn run(args: ServeArgs) -> Result<Code, CliError> {
    server::serve(args.config, Logs::start())?;
    Ok(OK)
}
