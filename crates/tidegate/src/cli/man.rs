//! `tidegate man [COMMAND]`: manual pages, written from the same definition as the help.

use anyhow::Context as _;
use clap_mangen::Man;

use super::output::print;
use super::{CliError, Code, OK};

/// The arguments of `tidegate man`.
#[derive(Debug, clap::Args)]
pub(super) struct ManArgs {
    /// The command to explain; without it the program as a whole.
    command: Option<String>,
}

pub(super) fn run(args: &ManArgs, mut command: clap::Command) -> Result<Code, CliError> {
    command.build();
    let page = match &args.command {
        None => command,
        Some(name) => {
            let found = command.find_subcommand(name).cloned();
            let unknown = || CliError::Usage(format!("there is no command \"{name}\""));
            found.ok_or_else(unknown)?
        }
    };
    let mut roff = Vec::new();
    Man::new(page).render(&mut roff).context("cannot write the manual page")?;
    print(&roff)?;
    Ok(OK)
}
