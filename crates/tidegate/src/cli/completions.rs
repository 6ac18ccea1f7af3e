//! `tidegate completions SHELL`: the script that a shell needs to complete our commands.

use clap_complete::Shell;

use super::output::print;
use super::{Code, Failure, OK};

/// The arguments of `tidegate completions`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The shell.
    shell: Shell,
}

pub(super) fn run(args: &Args, mut command: clap::Command) -> Result<Code, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "tidegate", &mut script);
    print(&script)?;
    Ok(OK)
}
