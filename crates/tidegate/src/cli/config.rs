//! `tidegate config`: check, show, example, schema, reference and import.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Subcommand;

use super::output::{print, print_line, warn};
use super::{CliError, Code, FAILED, OK};
use crate::config::{self, ConfigSource};
use crate::doors::grpc;

/// The arguments of `tidegate config`.
#[derive(Debug, clap::Args)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Check a configuration and report all mistakes in it.
    Check(FileArg),
    /// Print the configuration with every default filled in.
    Show(FileArg),
    /// Print a commented example with every setting.
    Example,
    /// Print the JSON schema, for editors.
    Schema,
    /// Print every setting with its default and meaning, as Markdown.
    Reference,
    /// Turn the configuration of another limiter into rules for this one.
    #[command(subcommand)]
    Import(Import),
}

#[derive(Debug, Subcommand)]
enum Import {
    /// A folder of envoyproxy/ratelimit's YAML files. What has no native form becomes a comment,
    /// and the exit code is 1.
    Ratelimit {
        /// The folder.
        folder: PathBuf,
        /// Let several files have one domain.
        #[arg(long)]
        merge_domains: bool,
    },
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
        What::Reference => print(config::reference().as_bytes())?,
        What::Import(Import::Ratelimit { folder, merge_domains }) => {
            return import_ratelimit(folder, *merge_domains);
        }
    }
    Ok(OK)
}

/// Prints native rules that decide as a folder of YAML does.
fn import_ratelimit(folder: &Path, merge_domains: bool) -> Result<Code, CliError> {
    let loaded = grpc::load_folder(folder, merge_domains).map_err(|why| anyhow::anyhow!(why))?;
    let (rules, unsupported) = grpc::native_rules(&loaded);
    print(rules.as_bytes())?;
    for (rule, reason) in &unsupported {
        warn(&format!("{rule}: {reason}"));
    }
    Ok(if unsupported.is_empty() { OK } else { FAILED })
}
