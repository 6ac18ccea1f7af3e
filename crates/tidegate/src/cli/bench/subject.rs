//! The server under load: one that is running, or one started here in a process of its own.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// How often, and after how long each time, it is tried whether a peer listens: ten seconds.
const PEER_TRIES: u32 = 500;
const PEER_RETRY: Duration = Duration::from_millis(20);

/// A server under load. One that was started here ends with it.
pub(super) struct Subject {
    /// In the order in which they were told; the last is the one under load.
    addresses: Vec<SocketAddr>,
    pid: Option<u32>,
    child: Option<Child>,
    /// What lies on disk for it.
    folder: Option<Folder>,
}

/// A folder for the files of one server, removed with it.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), MADE.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(format!("tidegate-bench-{process}-{number}"));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    /// Where a file of this name is, or would be.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Subject {
    /// A server that somebody else started.
    pub(super) fn running(address: SocketAddr, pid: Option<u32>) -> Self {
        Self { addresses: vec![address], pid, child: None, folder: None }
    }

    /// Starts our server with this configuration. It opens the door under load last.
    pub(super) fn ours(config: &str) -> Result<Self> {
        let folder = Folder::new()?;
        let mut command = program()?;
        command.arg("serve").arg("-c").arg(folder.write("tidegate.toml", config)?);
        let mut subject = Self::start(command)?;
        subject.folder = Some(folder);
        Ok(subject)
    }

    /// Starts an echo server on a free port: the peer of this name among our own commands.
    pub(super) fn echo(name: &str) -> Result<Self> {
        let mut command = program()?;
        command.args(["bench", name]);
        Self::start(command)
    }

    /// Starts a Redis server on a free port; it keeps everything in memory.
    pub(super) fn redis() -> Result<Self> {
        let address = free_address()?;
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        Self::start_peer("redis-server", command, address)
    }

    /// Starts an etcd of one member on a free port, with its files in a folder of its own.
    pub(super) fn etcd() -> Result<Self> {
        let (address, peer, folder) = (free_address()?, free_address()?, Folder::new()?);
        let (clients, peers) = (format!("http://{address}"), format!("http://{peer}"));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(folder.path("data"));
        command.args(["--name", "bench", "--initial-cluster", &format!("bench={peers}")]);
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--logger", "zap", "--log-outputs", "stdout", "--log-level", "error"]);
        let mut subject = Self::start_peer("etcd-server", command, address)?;
        subject.folder = Some(folder);
        Ok(subject)
    }

    /// Starts an nginx with one worker on a free port; `http` is given the address and writes the
    /// body of its `http` block.
    pub(super) fn nginx(http: impl FnOnce(SocketAddr) -> String) -> Result<Self> {
        let (address, folder) = (free_address()?, Folder::new()?);
        let config = folder.write("nginx.conf", &nginx_config(&http(address)))?;
        let mut command = Command::new("nginx");
        command.arg("-p").arg(&folder.0).arg("-c").arg(config).args(["-e", "stderr"]);
        let mut subject = Self::start_peer("nginx", command, address)?;
        subject.folder = Some(folder);
        Ok(subject)
    }

    /// Starts another project's server, which is named as its Debian package is.
    fn start_peer(name: &str, mut command: Command, address: SocketAddr) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
                "{name} is not installed\n\
                 install it with `make setup-bench`, or with `apt-get install {name}`"
            ),
            child => child.with_context(|| format!("cannot start {name}"))?,
        };
        let pid = Some(child.id());
        let addresses = vec![address];
        let mut subject = Self { addresses, pid, child: Some(child), folder: None };
        for _ in 0..PEER_TRIES {
            if TcpStream::connect(address).is_ok() {
                return Ok(subject);
            }
            if let Some(status) = subject.child.as_mut().and_then(|child| child.try_wait().ok()?) {
                bail!("{name} did not start: {status}");
            }
            thread::sleep(PEER_RETRY);
        }
        bail!("{name} does not answer at {address}")
    }

    /// Starts a server that tells its address as all our servers do.
    pub(super) fn start(mut command: Command) -> Result<Self> {
        command.env("RUST_LOG", "warn").stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start the server")?;
        let pipe = child.stderr.take().context("the server's standard error is lost")?;
        let mut said = String::new();
        let mut lines = BufReader::new(pipe).lines().map_while(Result::ok);
        let mut addresses = Vec::new();
        for line in lines.by_ref() {
            if line == "ready" {
                break;
            }
            let told = line.split_once(" addr=");
            addresses.extend(told.and_then(|(_, address)| address.parse::<SocketAddr>().ok()));
            said.push_str(&line);
            said.push('\n');
        }
        if addresses.is_empty() {
            let _ = child.kill();
            let _ = child.wait();
            bail!("the server did not start:\n{said}");
        }
        // What it says later must not fill the pipe.
        thread::spawn(move || lines.for_each(drop));
        Ok(Self { addresses, pid: Some(child.id()), child: Some(child), folder: None })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        // Nobody is started or named without an address.
        self.addresses[self.addresses.len() - 1]
    }

    /// Everywhere it listens, in the order in which it told.
    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Bytes of memory that it has in use.
    pub(super) fn memory(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid?)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kibibytes << 10)
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

/// The parts of a configuration that every nginx here shares: one process, nothing on disk that
/// can be avoided, connections that stay open.
fn nginx_config(http: &str) -> String {
    format!(
        "daemon off;\nmaster_process off;\nworker_processes 1;\npid nginx.pid;\n\
         error_log stderr error;\nevents {{ worker_connections 16384; }}\nhttp {{\n\
         access_log off;\nkeepalive_requests 1000000000;\nkeepalive_timeout 1h;\n\
         client_body_temp_path body;\nproxy_temp_path proxy;\nfastcgi_temp_path fastcgi;\n\
         uwsgi_temp_path uwsgi;\nscgi_temp_path scgi;\n{http}\n}}\n"
    )
}

/// An address that nobody listens at, for servers that cannot tell which port they were given.
fn free_address() -> Result<SocketAddr> {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
    free.local_addr().context("no port is free")
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
    }
}
