//! A real Envoy, which `make setup-test` installs: started from a configuration whose listeners are
//! on port 0, asked where they are, and killed by its process id when the test lets go of it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::http::Reply;
use crate::peers;
use crate::program::PATIENCE;

/// What Envoy logs before the address of its administration, and when all listeners are served.
const ADMIN: &str = "admin address: ";
const READY: &str = "starting main dispatch loop";

/// A running Envoy.
pub(crate) struct Envoy {
    child: Child,
    admin: SocketAddr,
    listeners: Vec<(String, SocketAddr)>,
    _folder: TempDir,
}

impl Envoy {
    /// Starts one with `config`, which is JSON or YAML, and waits until it serves. Its
    /// administration must be on a port of loopback.
    pub(crate) fn start(config: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        // JSON is YAML, too.
        let path = folder.path().join("envoy.yaml");
        std::fs::write(&path, config).expect("the file can be written");
        let mut envoy = peers::envoy();
        envoy.arg("-c").arg(&path).args(["--concurrency", "1", "--disable-hot-restart"]);
        envoy.args(["--log-level", "info", "--log-format", "%v"]).current_dir(folder.path());
        envoy.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = envoy.spawn().expect("Envoy can be started");
        let pipe = child.stderr.take().expect("standard error is a pipe");
        let (sender, lines) = channel();
        thread::spawn(move || {
            // Read to the end even if nobody listens: a full pipe would stop Envoy.
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut envoy = Self {
            child,
            admin: ([127, 0, 0, 1], 0).into(),
            listeners: Vec::new(),
            _folder: folder,
        };
        envoy.admin = wait_until_ready(&lines);
        envoy.listeners = envoy.find_listeners();
        envoy
    }

    /// Where a listener is.
    pub(crate) fn address(&self, listener: &str) -> SocketAddr {
        let found = self.listeners.iter().find(|(name, _)| name == listener);
        found.unwrap_or_else(|| panic!("no listener {listener} in {:?}", self.listeners)).1
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process takes signals");
    }

    /// What its administration says.
    pub(crate) fn ask(&self, path: &str) -> String {
        let reply = ureq::get(format!("http://{}{path}", self.admin)).call();
        reply.expect("an answer").body_mut().read_to_string().expect("text")
    }

    /// One of its counters or gauges; 0 if there is none yet.
    pub(crate) fn figure(&self, name: &str) -> u64 {
        let page = self.ask(&format!("/stats?filter=^{name}$"));
        let value = page.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        value.map_or(0, |value| value.trim().parse().expect("a number"))
    }

    /// Asks a listener for a path over HTTP/1.1, with lines of a head that may be any bytes.
    pub(crate) fn get(&self, listener: &str, path: &str, head: impl AsRef<[u8]>) -> Reply {
        Reply::read(self.send(listener, path, head))
    }

    /// As [`Self::get`], without waiting for an answer.
    pub(crate) fn send(&self, listener: &str, path: &str, head: impl AsRef<[u8]>) -> TcpStream {
        let mut stream = self.connect(listener);
        let first = format!("GET {path} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n");
        let request = [first.as_bytes(), head.as_ref(), b"\r\n"].concat();
        stream.write_all(&request).expect("Envoy reads");
        stream
    }

    /// A connection to a listener.
    pub(crate) fn connect(&self, listener: &str) -> TcpStream {
        let stream = TcpStream::connect(self.address(listener)).expect("Envoy listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    }

    fn find_listeners(&self) -> Vec<(String, SocketAddr)> {
        let page: Value = serde_json::from_str(&self.ask("/listeners?format=json")).expect("JSON");
        let listener = |status: &Value| {
            let address = &status["local_address"]["socket_address"];
            let ip = address["address"].as_str()?.parse().ok()?;
            let port = u16::try_from(address["port_value"].as_u64()?).ok()?;
            Some((status["name"].as_str()?.to_owned(), SocketAddr::new(ip, port)))
        };
        let statuses = page["listener_statuses"].as_array().into_iter().flatten();
        statuses.filter_map(listener).collect()
    }
}

/// Reads the log until Envoy serves, and returns the address of its administration.
fn wait_until_ready(lines: &Receiver<String>) -> SocketAddr {
    let mut said = Vec::new();
    let mut admin = None;
    loop {
        match lines.recv_timeout(PATIENCE) {
            Ok(line) if line.starts_with(READY) => return admin.expect("an address"),
            Ok(line) => {
                admin = line.strip_prefix(ADMIN).map(|at| at.parse().expect("a port")).or(admin);
                said.push(line);
            }
            Err(RecvTimeoutError::Timeout) => panic!("Envoy is not ready: {said:#?}"),
            Err(RecvTimeoutError::Disconnected) => {
                // It begins with a long list of what is built in.
                let why = said.split_off(said.len().saturating_sub(5));
                panic!("Envoy ended: {why:#?}")
            }
        }
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
