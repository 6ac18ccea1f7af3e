//! `tidegate wait` and `tidegate exec`: take a use of a key, sleeping until it may be had.
//!
//! The server does the waiting: it answers one request when the use is taken, however long that
//! takes, so that the request keeps its place in the queue.

use std::time::Duration;

use clap::ValueEnum;

use super::check::outcome;
use super::child;
use super::client::{ApiClient, ServerArgs, WaitBody};
use super::output::warn;
use super::{CliError, Code, OK, REFUSED, cost};
use crate::settings::units::Span;

/// What an unreachable server means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnError {
    /// Continue as if the use had been taken.
    Allow,
    /// Give up.
    Fail,
}

#[derive(Debug, clap::Args)]
struct Waiting {
    /// How many uses to take.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = cost)]
    cost: u64,
    /// Give up after this time, with code 3. Without it, wait for as long as it takes.
    #[arg(long, value_name = "SPAN")]
    max_wait: Option<Span>,
    /// What to do if the server cannot be reached.
    #[arg(long, value_name = "WHAT", default_value = "fail")]
    on_error: OnError,
    #[command(flatten)]
    server: ServerArgs,
}

/// The arguments of `tidegate wait`.
#[derive(Debug, clap::Args)]
pub(super) struct WaitArgs {
    /// The key.
    key: String,
    #[command(flatten)]
    waiting: Waiting,
}

/// The arguments of `tidegate exec`.
#[derive(Debug, clap::Args)]
pub(super) struct ExecArgs {
    /// The key.
    key: String,
    /// The command to run once the use is taken.
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<std::ffi::OsString>,
    /// For keys that limit uses in flight: the longest time that the use is held. It is given back
    /// earlier when the command ends.
    #[arg(long, value_name = "SPAN", default_value = "1h")]
    hold: Span,
    #[command(flatten)]
    waiting: Waiting,
}

pub(super) fn wait(args: &WaitArgs) -> Result<Code, CliError> {
    let client = args.waiting.server.client()?;
    Ok(match args.waiting.take(&client, &args.key, None)? {
        Taken::Yes(_) => OK,
        Taken::NotInTime => REFUSED,
    })
}

pub(super) fn exec(args: &ExecArgs) -> Result<Code, CliError> {
    let client = args.waiting.server.client()?;
    let hold_ms = u64::try_from(args.hold.0.as_millis()).unwrap_or(u64::MAX);
    let use_id = match args.waiting.take(&client, &args.key, Some(hold_ms))? {
        Taken::Yes(use_id) => use_id,
        Taken::NotInTime => return Ok(REFUSED),
    };
    let ended = child::run(&args.command);
    if let Some(use_id) = use_id
        && let Err(error) = client.end(&use_id)
    {
        // The command has run; its code matters more than a use that lapses by itself.
        warn(&format!("the use was not given back; it lapses after {}: {error}", args.hold));
    }
    ended
}

/// How the waiting ended.
enum Taken {
    /// Taken, with what must be given back, if anything.
    Yes(Option<String>),
    /// The time was up.
    NotInTime,
}

impl Waiting {
    fn take(&self, client: &ApiClient, key: &str, hold_ms: Option<u64>) -> Result<Taken, CliError> {
        match self.try_take(client, key, hold_ms) {
            Err(CliError::Unreachable(error)) if self.on_error == OnError::Allow => {
                warn(&format!("{error}; going on without it"));
                Ok(Taken::Yes(None))
            }
            taken => taken,
        }
    }

    fn try_take(
        &self,
        client: &ApiClient,
        key: &str,
        hold_ms: Option<u64>,
    ) -> Result<Taken, CliError> {
        let max_wait_ms = self.max_wait.map(|span| whole_millis(span.0));
        let verdict = client.wait(&WaitBody { key, cost: self.cost, max_wait_ms, hold_ms })?;
        if verdict.allowed {
            return Ok(Taken::Yes(verdict.use_id));
        }
        let within = self.max_wait.map_or(String::new(), |span| format!(" within {span}"));
        warn(&format!("no use of \"{key}\" was taken{within}: {}", outcome(&verdict)));
        Ok(Taken::NotInTime)
    }
}

/// Whole milliseconds, rounded up, so that no request is given up early.
fn whole_millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
