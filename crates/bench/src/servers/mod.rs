//! The processes under load: started here, or already running.
//!
//! - [`ours`]: the program `tidegate`, and where it is found
//! - [`others`]: other projects' servers
//! - [`folder`]: what lies on disk for one of them
//! - [`metrics`]: what our server counts

pub(crate) mod folder;
pub(crate) mod metrics;
mod others;
mod ours;

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use self::folder::Folder;
pub(crate) use self::ours::Program;

/// How often, and after how long each time, it is tried whether a server listens: ten seconds.
const TRIES_MAX: u32 = 500;
const RETRY: Duration = Duration::from_millis(20);

/// A server. One that was started here ends with this value.
pub(crate) struct Server {
    /// The doors and their addresses, in the order in which the server told them.
    doors: Vec<(String, SocketAddr)>,
    pid: Option<u32>,
    child: Option<Child>,
    /// What lies on disk for it.
    folder: Option<Folder>,
}

impl Server {
    /// A server that was not started here.
    fn running(address: SocketAddr, pid: Option<u32>) -> Self {
        Self { doors: vec![(String::new(), address)], pid, child: None, folder: None }
    }

    /// Starts another project's server, which is named as its Debian package is.
    fn start_other(
        name: &str,
        mut command: Command,
        address: SocketAddr,
        is_up: fn(SocketAddr) -> bool,
    ) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
                "{name} is not installed\n\
                 install it with `make setup-bench`, or with `apt-get install {name}`"
            ),
            child => child.with_context(|| format!("cannot start {name}"))?,
        };
        let pid = Some(child.id());
        let doors = vec![(String::new(), address)];
        let mut server = Self { doors, pid, child: Some(child), folder: None };
        for _ in 0..TRIES_MAX {
            if is_up(address) {
                return Ok(server);
            }
            if let Some(status) = server.child.as_mut().and_then(|child| child.try_wait().ok()?) {
                bail!("{name} did not start: {status}");
            }
            thread::sleep(RETRY);
        }
        bail!("{name} does not answer at {address}")
    }

    /// Starts a server that tells its addresses as all servers of this project do.
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        command.env("RUST_LOG", "warn").stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start the server")?;
        let pipe = child.stderr.take().context("the server's standard error is lost")?;
        let mut said = String::new();
        let mut lines = BufReader::new(pipe).lines().map_while(Result::ok);
        let mut doors = Vec::new();
        for line in lines.by_ref() {
            if line == "ready" {
                break;
            }
            doors.extend(listening(&line));
            said.push_str(&line);
            said.push('\n');
        }
        if doors.is_empty() {
            let _ = child.kill();
            let _ = child.wait();
            bail!("the server did not start:\n{said}");
        }
        // What it says later must not fill the pipe.
        thread::spawn(move || lines.for_each(drop));
        Ok(Self { doors, pid: Some(child.id()), child: Some(child), folder: None })
    }

    /// Where it listens first.
    pub(crate) fn address(&self) -> SocketAddr {
        // No server is made without an address.
        self.doors[0].1
    }

    /// The addresses of one door, in the order in which the server told them.
    pub(crate) fn door<const N: usize>(&self, name: &str) -> Result<[SocketAddr; N]> {
        let of_door = self.doors.iter().filter(|(door, _)| door == name);
        let found: Vec<_> = of_door.map(|(_, address)| *address).collect();
        let count = found.len();
        found.try_into().map_err(|_| {
            anyhow::anyhow!("the server told {count} addresses of its {name} door, not {N}")
        })
    }

    /// Bytes of memory that it has in use.
    pub(crate) fn memory(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid?)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kibibytes << 10)
    }

    /// Nanoseconds that all its threads were on a CPU so far.
    pub(crate) fn cpu(&self) -> Option<u64> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid?)).ok()?;
        let on_cpu = |task: fs::DirEntry| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_ascii_whitespace().next()?.parse::<u64>().ok()
        };
        Some(tasks.flatten().filter_map(on_cpu).sum())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The door and the address of a line `listening door=NAME addr=ADDRESS`.
fn listening(line: &str) -> Option<(String, SocketAddr)> {
    let (door, address) = line.strip_prefix("listening door=")?.split_once(" addr=")?;
    Some((door.to_owned(), address.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::listening;

    #[test]
    fn a_listening_line_names_door_and_address() {
        let told = listening("listening door=text addr=127.0.0.1:2000").expect("a door");
        assert_eq!(told, ("text".to_owned(), ([127, 0, 0, 1], 2000).into()));
        assert_eq!(listening("listening door=throttr addr=/run/x.sock"), None);
        assert_eq!(listening("ready"), None);
    }
}
