//! `tidegate config`: check, show, example and schema.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;

use super::output::{print, print_line, warn};
use super::{CliError, Code, OK};
use crate::config::{self, ConfigSource};

/// The arguments of `tidegate config`.
#[derive(Debug, clap::Args)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Say whether a configuration is right, and if not, all that is wrong with it.
    Check(FileArg),
    /// Print what would run, every default filled in.
    Show(FileArg),
    /// Print a commented example with every setting.
    Example,
    /// Print the JSON schema, for editors.
    Schema,
}

#[derive(Debug, clap::Args)]
struct FileArg {
    /// The configuration file; without it ./tidegate.toml, else the built-in default.
    #[arg(env = "TIDEGATE_CONFIG")]
    file: Option<PathBuf>,
}

pub(super) fn run(args: &ConfigArgs) -> Result<Code, CliError> {
    match &args.what {
        What::Check(FileArg { file }) => {
            let source = ConfigSource::find(file.as_deref());
            let config = source.check()?;
            config.warnings.iter().for_each(|warning| warn(warning));
            print_line(&format!("{}: ok", source.name()))?;
        }
        What::Show(FileArg { file }) => {
            let config = ConfigSource::find(file.as_deref()).load()?;
            let shown = config.show().context("cannot write the configuration as TOML")?;
            print(shown.as_bytes())?;
        }
        What::Example => print(config::EXAMPLE.as_bytes())?,
        What::Schema => print_line(&format!("{:#}", config::schema().to_value()))?,
    }
    Ok(OK)
}
