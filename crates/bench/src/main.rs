//! Load generators for every door, with peers in the same run and the server's CPU time.
//!
//! - [`loads`]: one module for each door: what is said to it, and what it is compared with
//! - [`frame`]: what all loads share: flags, rounds, peers, figures, progress, reports
//! - [`stream`]: load on doors that answer requests on a TCP connection
//! - [`servers`]: the processes under load, started here or already running
//! - [`peers`]: small servers that show what a door must cost at least
//! - [`clock`], [`failure`]: the time, and what is told when a load cannot run
//!
//! The server is the program `tidegate`, and this program knows nothing of its inside. Benchmarks
//! are not tests: nothing here passes or fails.

mod clock;
mod failure;
mod frame;
mod loads;
mod peers;
mod servers;
mod stream;

use std::process::ExitCode;

use clap::Parser;

use self::failure::Failure;

/// Put a door of Tidegate under load and report throughput, latency and the server's CPU time.
#[derive(Debug, Parser)]
#[command(name = "tidegate-bench", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    #[command(flatten)]
    Load(loads::Command),
    /// Run one of the servers that the loads compare with.
    #[command(hide = true, subcommand)]
    Peer(peers::Command),
}

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.show();
            ExitCode::from(failure.code())
        }
    }
}

fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Load(load) => load.run(),
        Command::Peer(peer) => peer.serve(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Cli;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
