//! The command line: one definition that feeds parser, help, man page and completions.
//!
//! A command prints to standard output and returns the code to exit with. Only `main.rs` exits.

mod bench;
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
use std::path::Path;

use clap::{CommandFactory as _, Parser, Subcommand};

pub use self::failure::Failure;

/// A code to exit with.
pub type Code = u8;

/// Everything went as asked, or the use was allowed.
const OK: Code = 0;
/// The server cannot be reached, or an address cannot be had.
const FAILED: Code = 1;
/// The command line or the configuration is wrong.
const USAGE: Code = 2;
/// The use was refused.
const REFUSED: Code = 3;

/// Names of links to the program, and the command that each of them stands for.
const LINKS: [(&str, &str); 2] = [("jarl", "jarl"), ("rate", "proxy")];

/// The words of the command line, with the command that the program's own name stands for.
pub fn words(given: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = given.into_iter().collect();
    let name = words.first().and_then(|first| Path::new(first).file_name());
    let link = LINKS.iter().find(|(link, _)| name.is_some_and(|name| name == *link));
    if let Some((_, command)) = link {
        words.insert(1, command.into());
    }
    words
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
    /// Run the server: every door of the configuration.
    Serve(serve::Args),
    /// Tell callers of one service how long to wait, over TCP (also as a link named `jarl`).
    Jarl(jarl::Args),
    /// Hold requests to one upstream until each path's limit lets them go (also as a link named
    /// `rate`).
    Proxy(proxy::Args),
    /// Ask a running server for a use of one or several keys; exit 0 if allowed, 3 if refused.
    Check(check::Args),
    /// Take a use of a key, sleeping until it may be had.
    Wait(waiting::WaitArgs),
    /// Take a use of a key, sleeping until it may be had, then run a command and return its code.
    Exec(waiting::ExecArgs),
    /// Look at one key without using it.
    Peek(keys::PeekArgs),
    /// Forget one key.
    Reset(keys::ResetArgs),
    /// Send one raw line to the text door and print the reply.
    Request(request::Args),
    /// Check, show and explain configurations.
    Config(config::Args),
    /// Put a door under load and report throughput, latency and the server's CPU time.
    Bench(bench::Args),
    /// Exit 0 if the server is ready (for containers); ask its HTTP door or its admin listener.
    Healthcheck(client::ServerArgs),
    /// Print completions for a shell.
    Completions(completions::Args),
    /// Print the manual page, or that of one command.
    Man(man::Args),
}

/// Runs the command and returns the code to exit with.
pub fn run(cli: Cli) -> Result<Code, Failure> {
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
        Command::Bench(args) => bench::run(&args),
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

    #[test]
    fn a_link_stands_for_its_command() {
        let check = |given: &[&str], expected: &[&str]| {
            assert_eq!(words(given.iter().map(OsString::from)), expected);
        };
        check(&["/usr/bin/jarl", "--port", "1"], &["/usr/bin/jarl", "jarl", "--port", "1"]);
        check(&["jarl"], &["jarl", "jarl"]);
        check(&["./rate", "http://a"], &["./rate", "proxy", "http://a"]);
        check(&["./tidegate", "jarl"], &["./tidegate", "jarl"]);
        check(&["jarl/tidegate"], &["jarl/tidegate"]);
        check(&[], &[]);
        for (_, command) in LINKS {
            assert!(Cli::command().find_subcommand(command).is_some(), "{command}");
        }
    }
}
