//! `tidegate peek`, `tidegate reset` and `tidegate healthcheck`.

use super::check::show;
use super::client::{AdminArgs, ServerArgs};
use super::output::print_line;
use super::{CliError, Code, FAILED, OK};

/// The arguments of `tidegate peek`.
#[derive(Debug, clap::Args)]
pub(super) struct PeekArgs {
    /// The key.
    key: String,
    /// Print the server's JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// The arguments of `tidegate reset`.
#[derive(Debug, clap::Args)]
pub(super) struct ResetArgs {
    /// The key.
    key: String,
    #[command(flatten)]
    admin: AdminArgs,
}

pub(super) fn peek(args: &PeekArgs) -> Result<Code, CliError> {
    let verdict = args.admin.client()?.peek(&args.key)?;
    show(&verdict, args.json)?;
    Ok(OK)
}

pub(super) fn reset(args: &ResetArgs) -> Result<Code, CliError> {
    args.admin.client()?.reset(&args.key)?;
    Ok(OK)
}

pub(super) fn healthcheck(args: &ServerArgs) -> Result<Code, CliError> {
    let (ready, details) = args.client()?.readiness()?;
    print_line(details.trim_end())?;
    Ok(if ready { OK } else { FAILED })
}
