//! The program `tidegate`: where it is found, and how it is started.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::Server;
use super::folder::Folder;

/// The server to put a load on.
#[derive(Clone, Debug)]
pub(crate) enum Program {
    /// A program that is started for the run.
    At(PathBuf),
    /// A server that runs already.
    Running { address: SocketAddr, pid: Option<u32> },
}

impl Program {
    /// The program in this file.
    pub(crate) fn at(path: &Path) -> Self {
        Program::At(path.to_owned())
    }

    /// `tidegate` in the folder of this program.
    pub(crate) fn beside_this_one() -> Result<Self> {
        Ok(Program::At(this_one()?.with_file_name("tidegate")))
    }

    /// Starts it with this configuration, unless it runs already.
    pub(crate) fn serve(&self, config: &str) -> Result<Server> {
        let path = match self {
            Program::At(path) => path,
            Program::Running { address, pid } => return Ok(Server::running(*address, *pid)),
        };
        if !path.is_file() {
            bail!(
                "there is no server at {}\n\
                 build it with `make dist`, or name it with --server",
                path.display()
            );
        }
        let folder = Folder::new()?;
        let mut command = Command::new(path);
        command.arg("serve").arg("-c").arg(folder.write("tidegate.toml", config)?);
        let mut server = Server::start(command)?;
        server.folder = Some(folder);
        Ok(server)
    }
}

impl Server {
    /// Starts a peer of this program in a process of its own, on a free port.
    pub(crate) fn peer(words: &[&str]) -> Result<Self> {
        let mut command = Command::new(this_one()?);
        command.arg("peer").args(words);
        Self::start(command)
    }
}

fn this_one() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's own file")
}
