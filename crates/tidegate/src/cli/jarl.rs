//! `tidegate jarl`, also as `jarl`: one service on one address.

use std::net::{IpAddr, SocketAddr};

use clap::builder::RangedU64ValueParser;
use serde_json::json;
use tidegate_core::limit::{JARL_STAMPS_MAX, PERIOD_MAX};
use tidegate_core::time::SECOND;

use super::{CliError, Code, OK};
use crate::config::Config;
use crate::doors::jarl::check_service;
use crate::logs::Logs;
use crate::server;

/// The most bookings that the algorithm keeps.
const REQUESTS_MAX: u64 = JARL_STAMPS_MAX;
/// The longest period of a limit.
const PERIOD_SECONDS_MAX: u64 = PERIOD_MAX / SECOND;
/// There is one key.
const KEYS_MAX: u64 = 1024;

/// The arguments of `tidegate jarl`.
#[derive(Debug, clap::Args)]
pub(super) struct JarlArgs {
    /// Name of the service to rate-limit; other doors know it as the key `jarl service=<SERVICE>`.
    #[arg(long, value_parser = service)]
    service: String,
    /// Maximum number of requests to allow within the period.
    #[arg(long, value_parser = RangedU64ValueParser::<u64>::new().range(1..=REQUESTS_MAX))]
    requests: u64,
    /// Period to enforce rate over, in seconds.
    #[arg(long, value_parser = RangedU64ValueParser::<u64>::new().range(1..=PERIOD_SECONDS_MAX))]
    period: u64,
    /// Interface to bind to, normally 0.0.0.0, or :: for IPv6.
    #[arg(long)]
    ip: IpAddr,
    /// Port to bind to.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Book the moment at which each call will start, so that callers who obey never exceed the
    /// limit and get all of it. Recommended.
    #[arg(long)]
    exact: bool,
}

fn service(name: &str) -> Result<String, String> {
    check_service(name).map_err(|wrong| wrong.replace('\n', "; "))?;
    Ok(name.to_owned())
}

pub(super) fn run(args: &JarlArgs) -> Result<Code, CliError> {
    let listen = SocketAddr::new(args.ip, args.port);
    let limit = format!("{} per {}s", args.requests, args.period);
    let JarlArgs { service, exact, .. } = args;
    let tables = json!({
        "jarl": [{ "service": service, "listen": listen, "limit": limit, "exact": exact }],
        "memory": { "max_keys": KEYS_MAX },
    });
    server::serve_fixed(Config::of(&tables)?, Logs::start())?;
    Ok(OK)
}
