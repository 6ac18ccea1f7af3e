//! The server under load: one that is running, or one started here in a process of its own.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// How often, and after how long each time, it is tried whether Redis listens: ten seconds.
const REDIS_TRIES: u32 = 500;
const REDIS_RETRY: Duration = Duration::from_millis(20);

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

    /// Starts our server with this configuration, which opens one door on a free port.
    pub(super) fn ours(config: &str) -> Result<Self> {
        let name = format!("tidegate-bench-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, config).with_context(|| format!("cannot write {}", path.display()))?;
        let mut command = program()?;
        command.arg("serve").arg("-c").arg(&path);
        let mut subject = Self::start(command);
        match &mut subject {
            Ok(subject) => subject.config = Some(path),
            Err(_) => drop(fs::remove_file(path)),
        }
        subject
    }

    /// Starts an echo server on a free port: the peer of this name among our own commands.
    pub(super) fn echo(name: &str) -> Result<Self> {
        let mut command = program()?;
        command.args(["bench", name]);
        Self::start(command)
    }

    /// Starts a Redis server on a free port; it keeps everything in memory.
    pub(super) fn redis() -> Result<Self> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
        let address = free.local_addr().context("no port is free")?;
        drop(free);
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
                "redis-server is not installed\n\
                 install it with `make setup-bench`, or with `apt-get install redis-server`"
            ),
            child => child.context("cannot start redis-server")?,
        };
        let pid = Some(child.id());
        let mut subject = Self { address, pid, child: Some(child), config: None };
        for _ in 0..REDIS_TRIES {
            if TcpStream::connect(address).is_ok() {
                return Ok(subject);
            }
            if let Some(status) = subject.child.as_mut().and_then(|child| child.try_wait().ok()?) {
                bail!("redis-server did not start: {status}");
            }
            thread::sleep(REDIS_RETRY);
        }
        bail!("redis-server does not answer at {address}")
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
