//! The libzmq programs of a run: one file of C, compiled with the system's compiler and libzmq, so
//! that they are what a user of libzmq would write.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::servers::folder::Folder;

const SOURCE: &str = include_str!("peer.c");

/// The compiled programs; removed with the last of them.
pub(super) struct Peers {
    folder: Folder,
    program: PathBuf,
}

impl Peers {
    pub(super) fn compile() -> Result<Self> {
        let folder = Folder::new()?;
        let source = folder.write("peer.c", SOURCE)?;
        let program = folder.path("peer");
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-o"]).arg(&program).arg(&source).arg("-lzmq");
        let compiled = compiler.stdin(Stdio::null()).output();
        match compiled {
            Ok(output) if output.status.success() => Ok(Self { folder, program }),
            Ok(output) => bail!(
                "libzmq's programs cannot be compiled\n\
                 `make setup-bench` installs what they need: gcc and libzmq3-dev\n{}",
                String::from_utf8_lossy(&output.stderr)
            ),
            Err(error) => Err(error).context("there is no compiler; `make setup` installs one"),
        }
    }

    /// One of the programs, as its words say.
    pub(super) fn command<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).stdin(Stdio::null());
        command
    }

    /// Runs one of the programs to its end and returns the numbers that it printed.
    pub(super) fn numbers(&self, words: &[String]) -> Result<Vec<u64>> {
        let output = self.command(words).output().context("cannot start a libzmq program")?;
        if !output.status.success() {
            bail!("a libzmq program failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().map(|line| line.parse().context("that is no number")).collect()
    }

    /// Where a file of this name is, or would be.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }
}
