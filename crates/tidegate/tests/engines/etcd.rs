//! An etcd, alone or three members of one.

use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use super::{Process, STARTS_MAX, free_port};

/// A running member of an etcd. It ends when the test lets go of it.
pub(crate) struct Member {
    process: Process,
    folder: TempDir,
    port: u16,
    arguments: Vec<String>,
    scheme: &'static str,
}

impl Member {
    /// Starts one that is alone, with further settings: `--name`, `value`.
    pub(crate) fn start(settings: &[&str]) -> Self {
        for _ in 0..STARTS_MAX {
            let mut members = prepare(1, settings);
            let member = members.remove(0);
            if member.process.says(is_serving) {
                return member;
            }
        }
        panic!("etcd ends as soon as it is started");
    }

    /// Its address for clients.
    pub(crate) fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    /// Kills it, as a power cut would.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again where it was, with what it kept, and waits until it serves.
    pub(crate) fn start_again(&mut self) {
        for _ in 0..STARTS_MAX {
            self.process = launch(&self.folder, &self.arguments);
            if self.process.says(is_serving) {
                return;
            }
        }
        panic!("etcd cannot be started again on its port");
    }

    /// Halts it: it is there, and answers nothing.
    pub(crate) fn halt(&self) {
        self.process.halt();
    }

    /// Lets it go on.
    pub(crate) fn go_on(&self) {
        self.process.signal(Signal::CONT);
    }

    /// What it answers to a command of `etcdctl`.
    #[track_caller]
    pub(crate) fn ask(&self, command: &[&str]) -> String {
        let mut ctl = Command::new("etcdctl");
        ctl.env("ETCDCTL_API", "3").args(["--endpoints", &self.url()]).args(command);
        let output = ctl.output().expect("etcdctl can be started: see `make setup-test`");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "etcdctl {command:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The number of every lease that there is.
    pub(crate) fn leases(&self) -> Vec<String> {
        // A heading, then one in each line.
        self.ask(&["lease", "list"]).lines().skip(1).map(str::to_owned).collect()
    }

    /// Whether the others follow it.
    pub(crate) fn leads(&self) -> bool {
        // Endpoint, id, version, size, whether it leads, …
        self.ask(&["endpoint", "status"]).split(", ").nth(4) == Some("true")
    }
}

/// Three members of one etcd.
pub(crate) fn three(settings: &[&str]) -> Vec<Member> {
    for _ in 0..STARTS_MAX {
        let members = prepare(3, settings);
        if members.iter().all(|member| member.process.says(is_serving)) {
            return members;
        }
    }
    panic!("three members of an etcd cannot be started");
}

/// Starts some that know each other. They serve when a majority of them is there.
fn prepare(count: usize, settings: &[&str]) -> Vec<Member> {
    let ports: Vec<(u16, u16)> = (0..count).map(|_| (free_port(), free_port())).collect();
    let peer = |number: usize| format!("http://127.0.0.1:{}", ports[number].1);
    let all: Vec<_> = (0..count).map(|number| format!("m{number}={}", peer(number))).collect();
    let scheme = if settings.contains(&"--cert-file") { "https" } else { "http" };
    let member = |number: usize| {
        let url = format!("{scheme}://127.0.0.1:{}", ports[number].0);
        let own = [
            ("--name", format!("m{number}")),
            ("--listen-client-urls", url.clone()),
            ("--advertise-client-urls", url),
            ("--listen-peer-urls", peer(number)),
            ("--initial-advertise-peer-urls", peer(number)),
            ("--initial-cluster", all.join(",")),
        ];
        let mut arguments: Vec<String> =
            own.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
        arguments.extend(settings.iter().map(|&setting| setting.to_owned()));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let process = launch(&folder, &arguments);
        Member { process, folder, port: ports[number].0, arguments, scheme }
    };
    (0..count).map(member).collect()
}

fn launch(folder: &TempDir, arguments: &[String]) -> Process {
    let mut server = Command::new("etcd");
    server.current_dir(folder.path()).args(["--data-dir", "data"]).args(arguments);
    server.args(["--logger", "zap", "--log-outputs", "stdout"]);
    Process::start(&mut server)
}

fn is_serving(line: &str) -> bool {
    line.contains("serving client traffic")
}
