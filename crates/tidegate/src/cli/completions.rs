//! `tidegate completions SHELL`: the script that a shell needs to complete our commands.

use clap_complete::Shell;

use super::output::print;
use super::{CliError, Code, OK};

/// The arguments of `tidegate completions`.
#[derive(Debug, clap::Args)]
pub(super) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs, mut command: clap::Command) -> Result<Code, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "tidegate", &mut script);
    print(&script)?;
    Ok(OK)
}
