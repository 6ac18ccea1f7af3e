//! Servers that ask before they answer: nginx and Caddy in front of an application, and what Envoy
//! and Traefik send as they send it.

mod raw;
mod servers;

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use tempfile::TempDir;

use crate::http::{Reply, send_to};
use crate::program::Program;
use crate::upstream::Upstream;

/// The file of the nginx example, on free ports and with a limit that no test outlives.
fn program(settings: &str) -> Program {
    let refuse = "refuse          = 403             # nginx accepts only 401 or 403 as a refusal\n";
    let limit = "limit = \"2 per 1d\"\nalgorithm = \"sliding-log\"";
    let file = include_str!("../../../../../examples/nginx-auth.toml")
        .replace("127.0.0.1:8080", "127.0.0.1:0")
        .replace("limit = \"10/s burst 20\"", limit)
        .replace(refuse, settings);
    assert!(file.contains(limit) && file.contains(settings), "the example has changed");
    Program::serve(&format!("{file}[admin]\nlisten = '127.0.0.1:0'\n"))
}

/// A server that somebody else wrote. It ends with the test.
struct Server {
    address: SocketAddr,
    child: Child,
    _files: TempDir,
}

impl Server {
    /// Starts one that listens where it is told. `config` writes its file for that address, and
    /// `command` is what runs with the path of that file and of its folder.
    fn start(
        config: impl FnOnce(SocketAddr) -> String,
        install: &str,
        command: impl FnOnce(&Path, &Path) -> Command,
    ) -> Self {
        // None of them can tell which port it was given, so one is found for it.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = free.local_addr().expect("an address");
        drop(free);
        let files = tempfile::tempdir().expect("a folder");
        let path = files.path().join("server.conf");
        fs::write(&path, config(address)).expect("its configuration");
        let mut command = command(&path, files.path());
        // Debian keeps servers out of the way of people who are not root.
        let sbin = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
        command.env("PATH", sbin).env("HOME", files.path()).stdin(Stdio::null());
        let mut child = command.spawn().unwrap_or_else(|error| {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            panic!("{command:?} is missing: `make setup-test` or `{install}` installs it")
        });
        while TcpStream::connect(address).is_err() {
            assert_eq!(child.try_wait().expect("a process"), None, "{command:?} ended");
            thread::yield_now();
        }
        Self { address, child, _files: files }
    }

    /// Asks it as a client that lies about itself.
    fn get(&self, path: &str) -> Reply {
        let head = "Host: localhost\r\nX-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Uri: /lie\r\n";
        send_to(self.address, "GET", path, head, "")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How often a client has asked, whatever became of it.
fn asked(program: &Program, key: &str) -> u64 {
    let path = format!("/v1/keys/{}", key.replace(' ', "%20"));
    let head = "Host: localhost\r\n";
    let reply = send_to(program.address("admin"), "GET", &path, head, "");
    reply.json()["stats"]["requests"].as_u64().expect("a number")
}

/// Two requests reach the application and the third does not.
fn two_of_three(server: &Server, application: &Upstream) -> Reply {
    for path in ["/a?b=c", "/d"] {
        let reply = server.get(path);
        assert_eq!(reply.status, 204, "{}", reply.body);
        assert_eq!(application.next(), format!("GET {path} HTTP/1.1"));
    }
    let reply = server.get("/e");
    assert_eq!((reply.status, application.more()), (429, 0), "{}", reply.body);
    let retry_after = reply.header("retry-after").parse::<u64>();
    assert!(retry_after.is_ok_and(|seconds| (1..=86_400).contains(&seconds)), "{}", reply.body);
    reply
}
