//! A redis-server, alone or three of them as a Cluster.

use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use super::{Process, STARTS_MAX, free_port, until};

/// A running redis-server. It ends when the test lets go of it.
pub(crate) struct Server {
    process: Process,
    folder: TempDir,
    port: u16,
    arguments: Vec<String>,
}

impl Server {
    /// Starts one that keeps nothing on disk, with further settings: `--name`, `value`.
    pub(crate) fn start(settings: &[&str]) -> Self {
        Self::start_with(|port| {
            let mut arguments = vec!["--port".to_owned(), port.to_string()];
            arguments.extend(settings.iter().map(|&setting| setting.to_owned()));
            arguments
        })
    }

    /// Starts one whose settings are made for its port.
    pub(crate) fn start_with(settings: impl Fn(u16) -> Vec<String>) -> Self {
        for _ in 0..STARTS_MAX {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let port = free_port();
            let arguments = settings(port);
            if let Some(process) = launch(&folder, &arguments) {
                return Self { process, folder, port, arguments };
            }
        }
        panic!("redis-server ends as soon as it is started");
    }

    /// Where it listens.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Its address for clients, without TLS.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Kills it, as a power cut would.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again where it was, with what it kept.
    pub(crate) fn start_again(&mut self) {
        let process = (0..STARTS_MAX).find_map(|_| launch(&self.folder, &self.arguments));
        self.process = process.expect("redis-server can be started again on its port");
    }

    /// Halts it: it is there, and answers nothing.
    pub(crate) fn halt(&self) {
        self.process.halt();
    }

    /// Lets it go on.
    pub(crate) fn go_on(&self) {
        self.process.signal(Signal::CONT);
    }

    /// What it answers to a command.
    pub(crate) fn ask(&self, command: &[&str]) -> String {
        let mut cli = Command::new("redis-cli");
        cli.args(["-p", &self.port.to_string()]).args(command);
        let output = cli.output().expect("redis-cli can be started");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn launch(folder: &TempDir, arguments: &[String]) -> Option<Process> {
    let mut server = Command::new("redis-server");
    server.current_dir(folder.path()).args(["--bind", "127.0.0.1", "--save", ""]).args(arguments);
    let process = Process::start(&mut server);
    process.says(|line| line.contains("Ready to accept connections")).then_some(process)
}

/// Three primaries that share the slots.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Server>,
}

/// The slots of each node: first and last.
const SLOTS: [(&str, &str); 3] = [("0", "5460"), ("5461", "10922"), ("10923", "16383")];

impl Cluster {
    /// Starts three and waits until all of them agree.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with more settings.
    pub(crate) fn start_with(settings: &[&str]) -> Self {
        let mut buses = Vec::new();
        let nodes: Vec<Server> = SLOTS
            .iter()
            .map(|(first, last)| {
                let (node, bus) = cluster_node(settings);
                assert_eq!(node.ask(&["cluster", "addslotsrange", first, last]).trim(), "OK");
                buses.push(bus);
                node
            })
            .collect();
        for (number, (node, bus)) in nodes.iter().zip(&buses).enumerate() {
            // Each has an epoch of its own, as if they had been made one after another.
            node.ask(&["cluster", "set-config-epoch", &(number + 1).to_string()]);
            let (port, bus) = (node.port().to_string(), bus.to_string());
            assert_eq!(nodes[0].ask(&["cluster", "meet", "127.0.0.1", &port, &bus]).trim(), "OK");
        }
        let cluster = Self { nodes };
        cluster.until_well();
        cluster
    }

    /// Waits until every node finds the whole well.
    pub(crate) fn until_well(&self) {
        for node in &self.nodes {
            until(|| {
                let info = node.ask(&["cluster", "info"]);
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
            });
        }
    }

    /// The addresses of all.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }
}

/// A node without slots, and the port of its bus.
fn cluster_node(more: &[&str]) -> (Server, u16) {
    let chosen = std::cell::Cell::new(0);
    let node = Server::start_with(|port| {
        // The usual one, ten thousand above, is often past the last port there is.
        chosen.set(free_port());
        let settings = [
            ("--port", port.to_string()),
            ("--cluster-enabled", "yes".to_owned()),
            ("--cluster-port", chosen.get().to_string()),
            ("--cluster-node-timeout", "2000".to_owned()),
        ];
        let settings = settings.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
        settings.chain(more.iter().map(|&more| more.to_owned())).collect()
    });
    (node, chosen.get())
}
