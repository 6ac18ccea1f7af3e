//! A real balancer in front of several servers: haproxy, dealing requests out in turn.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd as _;
use std::process::{Child, Command, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};
use tempfile::TempDir;

/// Where it may be: administrators' programs are not on everybody's path.
const PROGRAMS: [&str; 2] = ["haproxy", "/usr/sbin/haproxy"];

/// A running haproxy. It ends when the test lets go of it.
pub(crate) struct Balancer {
    child: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Balancer {
    /// Starts one that gives each of `servers` a request in turn.
    pub(crate) fn start(servers: &[SocketAddr]) -> Self {
        // The port is taken here and handed over: clients may come before haproxy is there.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        fcntl_setfd(&listener, FdFlags::empty()).expect("a socket can be handed over");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("haproxy.cfg");
        std::fs::write(&path, config(&listener, servers)).expect("the file can be written");
        let start = |program: &&str| {
            let mut haproxy = Command::new(program);
            haproxy.arg("-db").arg("-f").arg(&path).stdin(Stdio::null()).stdout(Stdio::null());
            match haproxy.spawn() {
                Ok(child) => Some(child),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => panic!("haproxy cannot be started: {error}"),
            }
        };
        let Some(child) = PROGRAMS.iter().find_map(start) else {
            panic!("haproxy is missing: `make setup-test` or `apt-get install haproxy` installs it")
        };
        let address = listener.local_addr().expect("an address");
        Self { child, address, _folder: folder }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

fn config(listener: &TcpListener, servers: &[SocketAddr]) -> String {
    let mut text = format!(
        "defaults\n  mode http\n  timeout connect 60s\n  timeout client 60s\n  \
         timeout server 60s\nlisten front\n  bind fd@{}\n  balance roundrobin\n",
        listener.as_raw_fd(),
    );
    for (number, server) in servers.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  server s{number} {server}");
    }
    text
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
