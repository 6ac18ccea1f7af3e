//! Other projects' servers: Redis, etcd and nginx, on free ports of loopback.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::Server;
use super::folder::Folder;

impl Server {
    /// Starts a Redis server on a free port, with a module if there is one; it keeps everything in
    /// memory.
    pub(crate) fn redis(module: Option<&Path>) -> Result<Self> {
        let address = free_address()?;
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        if let Some(module) = module {
            command.arg("--loadmodule").arg(module);
        }
        Self::start_other("redis-server", command, address, answers_ping)
    }

    /// Starts an etcd of one member on a free port, with its files in a folder of its own.
    pub(crate) fn etcd() -> Result<Self> {
        let (address, peer, folder) = (free_address()?, free_address()?, Folder::new()?);
        let (clients, peers) = (format!("http://{address}"), format!("http://{peer}"));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(folder.path("data"));
        command.args(["--name", "bench", "--initial-cluster", &format!("bench={peers}")]);
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--logger", "zap", "--log-outputs", "stdout", "--log-level", "error"]);
        let mut server = Self::start_other("etcd-server", command, address, accepts)?;
        server.folder = Some(folder);
        Ok(server)
    }

    /// Starts an nginx with one worker on a free port; `http` is given the address and writes the
    /// body of its `http` block.
    pub(crate) fn nginx(http: impl FnOnce(SocketAddr) -> String) -> Result<Self> {
        let (address, folder) = (free_address()?, Folder::new()?);
        let config = folder.write("nginx.conf", &nginx_config(&http(address)))?;
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder.root()).arg("-c").arg(config).args(["-e", "stderr"]);
        let mut server = Self::start_other("nginx", command, address, accepts)?;
        server.folder = Some(folder);
        Ok(server)
    }
}

fn accepts(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_ok()
}

/// Redis accepts connections before it loads its module, which may end it.
fn answers_ping(address: SocketAddr) -> bool {
    let mut pong = [0; 7];
    let answer = TcpStream::connect(address).and_then(|mut redis| {
        redis.write_all(b"PING\r\n")?;
        redis.read_exact(&mut pong)
    });
    answer.is_ok() && pong == *b"+PONG\r\n"
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

/// A free address, for servers that cannot tell which port they were given.
fn free_address() -> Result<SocketAddr> {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
    free.local_addr().context("no port is free")
}
