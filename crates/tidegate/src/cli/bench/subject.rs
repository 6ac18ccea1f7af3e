//! The server under load: one that is running, or one started here in a process of its own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};

/// What our server is started with: the seed's rule for the keys that the load asks for.
const CONFIG: &str = r#"
[[rule]]
match = "ws ip=*"
limit = "22 per 20s"
algorithm = "average"
strict = true

[text]
listen = "127.0.0.1:0"
"#;

/// A server under load. One that was started here ends with it.
pub(super) struct Subject {
    address: SocketAddr,
    pid: Option<u32>,
    child: Option<Child>,
    config: Option<PathBuf>,
}

impl Subject {
    /// A server that somebody else started.
    pub(super) fn running(address: SocketAddr, pid: Option<u32>) -> Self {
        Self { address, pid, child: None, config: None }
    }

    /// Starts our server on a free port.
    pub(super) fn ours() -> Result<Self> {
        let name = format!("tidegate-bench-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, CONFIG).with_context(|| format!("cannot write {}", path.display()))?;
        let mut command = program()?;
        command.arg("serve").arg("-c").arg(&path);
        let mut subject = Self::start(command);
        match &mut subject {
            Ok(subject) => subject.config = Some(path),
            Err(_) => drop(fs::remove_file(path)),
        }
        subject
    }

    /// Starts the echo server on a free port.
    pub(super) fn echo() -> Result<Self> {
        let mut command = program()?;
        command.args(["bench", "echo"]);
        Self::start(command)
    }

    /// Starts a server that tells its address as all our servers do.
    fn start(mut command: Command) -> Result<Self> {
        command.env("RUST_LOG", "warn").stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start the server")?;
        let pipe = child.stderr.take().context("the server's standard error is lost")?;
        let mut said = String::new();
        let mut lines = BufReader::new(pipe).lines().map_while(Result::ok);
        let mut address = None;
        for line in lines.by_ref() {
            if line == "ready" {
                break;
            }
            address = line.split_once(" addr=").and_then(|(_, a)| a.parse().ok()).or(address);
            said.push_str(&line);
            said.push('\n');
        }
        let Some(address) = address else {
            let _ = child.kill();
            let _ = child.wait();
            bail!("the server did not start:\n{said}");
        };
        // What it says later must not fill the pipe.
        thread::spawn(move || lines.for_each(drop));
        Ok(Self { address, pid: Some(child.id()), child: Some(child), config: None })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Nanoseconds that all its threads were on a CPU so far.
    pub(super) fn cpu(&self) -> Option<u64> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid?)).ok()?;
        let on_cpu = |task: fs::DirEntry| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_ascii_whitespace().next()?.parse::<u64>().ok()
        };
        Some(tasks.flatten().filter_map(on_cpu).sum())
    }
}

fn program() -> Result<Command> {
    Ok(Command::new(std::env::current_exe().context("cannot find this program's own file")?))
}

impl Drop for Subject {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(path) = &self.config {
            let _ = fs::remove_file(path);
        }
    }
}
