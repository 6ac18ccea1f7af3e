//! A command run in our place: it gets the signals meant for it, and we return its code.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use super::output::warn;
use super::{CliError, Code};

/// As shells have it: the command was found and cannot be run.
const CANNOT_RUN: Code = 126;
/// As shells have it: there is no such command.
const NOT_FOUND: Code = 127;
/// As shells have it: added to the number of the signal that ended the command.
const BY_SIGNAL: i32 = 128;

/// Runs the command to its end and returns its code.
pub(super) fn run(words: &[OsString]) -> Result<Code, CliError> {
    let Some((program, arguments)) = words.split_first() else {
        return Err(CliError::Usage("no command to run".to_owned()));
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot wait for a command")?;
    runtime.block_on(async {
        let mut command = Command::new(program);
        match attend(command.args(arguments)).await {
            Ok(status) => Ok(code(status)),
            Err(error) => {
                warn(&format!("cannot run {}: {error}", program.display()));
                let missing = error.kind() == ErrorKind::NotFound;
                Ok(if missing { NOT_FOUND } else { CANNOT_RUN })
            }
        }
    })
}

/// Waits for the command. A terminal sends its own signals to the command too, so those are only
/// kept from ending us first; what is sent to us alone is handed on.
async fn attend(command: &mut Command) -> std::io::Result<ExitStatus> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut quit = signal(SignalKind::quit())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut child = command.spawn()?;
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let hand_on = |signal| {
        // It may just have ended by itself.
        pid.map(|pid| kill_process(pid, signal));
    };
    loop {
        tokio::select! {
            status = child.wait() => return status,
            _ = terminate.recv() => hand_on(Signal::TERM),
            _ = hang_up.recv() => hand_on(Signal::HUP),
            _ = interrupt.recv() => {}
            _ = quit.recv() => {}
        }
    }
}

fn code(status: ExitStatus) -> Code {
    let number = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => BY_SIGNAL + signal,
        (None, None) => 1,
    };
    Code::try_from(number).unwrap_or(Code::MAX)
}
