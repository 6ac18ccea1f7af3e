//! The command line: one definition that feeds parser, help, man page and completions.
//!
//! A command prints to standard output and returns the code to exit with. Only `main.rs` exits.

mod check;
mod child;
mod client;
mod completions;
mod config;
mod failure;
mod jarl;
mod keys;
mod man;
mod output;
mod proxy;
mod request;
mod serve;
mod tls;
mod waiting;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

pub use self::failure::CliError;
use crate::settings::listen::socket_address;

/// A code to exit with.
pub type Code = u8;

/// Everything went as asked, or the use was allowed.
const OK: Code = 0;
/// The server cannot be reached, or an address is unavailable.
const FAILED: Code = 1;
/// The command line or the configuration is wrong.
const USAGE: Code = 2;
/// The use was refused.
const REFUSED: Code = 3;

/// Names of links to the program, and the command that each of them stands for.
const LINKS: [(&str, &str); 2] = [("jarl", "jarl"), ("rate", "proxy")];

/// Reads the command line. Called through a link, the program is the command that the link stands
/// for, under the link's name.
///
/// # Errors
/// What is wrong with it, or the help that was asked for.
pub fn parse(given: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let given: Vec<OsString> = given.into_iter().collect();
    let name = given.first().and_then(|first| Path::new(first).file_name());
    let link = LINKS.iter().find(|(link, _)| name.is_some_and(|name| name == *link));
    let whole = with_negative_numbers(Cli::command());
    let Some((link, name)) = link else {
        return Cli::from_arg_matches(&whole.try_get_matches_from(given)?);
    };
    let found = whole.find_subcommand(name).cloned().unwrap_or_default();
    let matches = found.name(*link).bin_name(*link).try_get_matches_from(given)?;
    let command = match *name {
        "jarl" => Command::Jarl(jarl::JarlArgs::from_arg_matches(&matches)?),
        _ => Command::Proxy(proxy::ProxyArgs::from_arg_matches(&matches)?),
    };
    Ok(Cli { command })
}

/// Takes `-1` behind a flag for its value and not for another flag: so what is said of it names
/// the flag.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes_value = |arg: &clap::Arg| !arg.is_positional() && arg.get_action().takes_values();
    let allow = |arg: clap::Arg| {
        let takes_value = takes_value(&arg);
        if takes_value { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(allow).mut_subcommands(with_negative_numbers)
}

/// Where a server is: an address and a port.
fn address(text: &str) -> Result<SocketAddr, String> {
    let wrong = || "write an IP address, or localhost, and a port: 127.0.0.1:2000".to_owned();
    socket_address(text).ok_or_else(wrong)
}

/// How many uses to take.
fn cost(text: &str) -> Result<u64, String> {
    let cost = text.parse().ok().filter(|cost| *cost >= 1);
    cost.ok_or_else(|| "write a whole number from 1".to_owned())
}

/// One rate limiter behind many doors.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server with every door of the configuration.
    Serve(serve::ServeArgs),
    /// Tell callers of one service how long to wait, over TCP (also as a link named `jarl`).
    Jarl(jarl::JarlArgs),
    /// Hold requests to one upstream until the limit of their path allows them (also as a link
    /// named `rate`).
    Proxy(proxy::ProxyArgs),
    /// Take a use of one or several keys; exit 0 if allowed, 3 if refused.
    Check(check::CheckArgs),
    /// Wait until a use of a key is allowed, and take it.
    Wait(waiting::WaitArgs),
    /// Wait until a use of a key is allowed, take it, run a command, and return its exit code.
    Exec(waiting::ExecArgs),
    /// Show the limits of one key without using it.
    Peek(keys::PeekArgs),
    /// Forget the counts of one key.
    Reset(keys::ResetArgs),
    /// Send one raw line to the text door and print the reply.
    Request(request::RequestArgs),
    /// Check, show and import configurations, and print every setting.
    Config(config::ConfigArgs),
    /// Exit 0 if the server is ready (for containers); ask its HTTP door or its admin listener.
    Healthcheck(client::ServerArgs),
    /// Print completions for a shell.
    Completions(completions::CompletionsArgs),
    /// Print the manual page, or that of one command.
    Man(man::ManArgs),
}

/// Runs the command and returns the code to exit with.
pub fn run(cli: Cli) -> Result<Code, CliError> {
    match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Jarl(args) => jarl::run(&args),
        Command::Proxy(args) => proxy::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Wait(args) => waiting::wait(&args),
        Command::Exec(args) => waiting::exec(&args),
        Command::Peek(args) => keys::peek(&args),
        Command::Reset(args) => keys::reset(&args),
        Command::Request(args) => request::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Healthcheck(args) => keys::healthcheck(&args),
        Command::Completions(args) => completions::run(&args, Cli::command()),
        Command::Man(args) => man::run(&args, Cli::command()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    fn told(given: &[&str]) -> String {
        let error = parse(given.iter().map(OsString::from)).expect_err("help or a mistake");
        error.render().to_string()
    }

    #[test]
    fn a_link_stands_for_its_command() {
        let jarl = ["--service", "s", "--requests", "1", "--period", "1", "--ip", "::1"];
        let jarl = [&["/usr/bin/jarl"], &jarl[..], &["--port", "1"]].concat();
        let cli = parse(jarl.iter().map(OsString::from)).expect("a jarl");
        assert!(matches!(cli.command, Command::Jarl(_)));
        let cli = parse(["./rate", "http://a"].map(OsString::from)).expect("a proxy");
        assert!(matches!(cli.command, Command::Proxy(_)));
        assert!(parse(["jarl/tidegate", "http://a"].map(OsString::from)).is_err());
        assert!(parse([]).is_err());
        for (link, command) in LINKS {
            let usage = |given: &[&str]| {
                let page = told(given);
                page.lines().find(|line| line.starts_with("Usage: ")).expect("a usage").to_owned()
            };
            let ours = usage(&[link, "--help"]);
            assert!(ours.starts_with(&format!("Usage: {link} [OPTIONS]")), "{ours}");
            let theirs = usage(&["tidegate", command, "--help"]);
            assert!(
                theirs.starts_with(&format!("Usage: tidegate {command} [OPTIONS]")),
                "{theirs}"
            );
        }
    }

    #[test]
    fn a_negative_number_is_told_with_its_flag() {
        for given in [
            &["jarl", "--requests", "-1"][..],
            &["rate", "--rpm", "-1", "http://a"],
            &["tidegate", "check", "k", "--cost", "-1"],
        ] {
            let flag = given.iter().find(|word| word.starts_with("--")).expect("a flag");
            let told = told(given);
            assert!(told.contains("invalid value '-1'") && told.contains(flag), "{told}");
        }
    }

    #[test]
    fn localhost_is_an_address() {
        assert_eq!(address("localhost:2000"), Ok(SocketAddr::from(([127, 0, 0, 1], 2000))));
        assert_eq!(address("[::1]:2").map(|address| address.port()), Ok(2));
        for wrong in ["localhost", "example.net:1", "127.0.0.1", ""] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}
