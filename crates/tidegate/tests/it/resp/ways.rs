//! Every way to connect: plain, with a password, over TLS and through a Unix socket, each in RESP2
//! and RESP3.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Output, Stdio};

use super::DOOR;
use super::by_rule::{RULES, converse};
use crate::papers::Papers;
use crate::program::Program;

pub(super) const PASSWORD: &str = "s3cret";

/// Where to connect, and what to show there.
pub(super) struct Way {
    /// A URL, or the path of a Unix socket.
    pub(super) address: String,
    pub(super) protocol: &'static str,
    /// Empty: none.
    pub(super) password: &'static str,
    /// The file of the authority that signed the server's certificate; empty: no TLS.
    pub(super) authority: String,
}

impl Way {
    /// Runs a client's script with this way as its arguments. It must print what is expected, and
    /// then have the conversation about rules.
    #[track_caller]
    pub(super) fn check(&self, mut client: Command, expected: &str) {
        let Self { address, protocol, password, authority } = self;
        client.args([address, *protocol, *password, authority]);
        let mut child =
            client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a client");
        let mut input = child.stdin.take().expect("a pipe");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut line = || lines.next().map_or_else(String::new, |line| line.expect("text"));
        for expected in expected.lines() {
            assert_eq!(line(), expected, "{address}, RESP{protocol}");
        }
        converse(protocol, |command| {
            writeln!(input, "{command}").expect("the client reads");
            line()
        });
        drop(input);
        assert_eq!(line(), "", "nothing is left to be said");
        assert!(child.wait().expect("the client ends").success());
    }

    /// What redis-cli and redis-benchmark are given to come this way.
    pub(super) fn flags(&self) -> Vec<&str> {
        let mut flags = match self.address.rsplit_once("//") {
            None => vec!["-s", &self.address],
            Some((_, place)) => {
                let (host, port) = place.split_once(':').expect("a port");
                vec!["-h", host, "-p", port]
            }
        };
        if !self.password.is_empty() {
            flags.extend(["-a", self.password]);
        }
        if !self.authority.is_empty() {
            flags.extend(["--tls", "--cacert", &self.authority]);
        }
        if self.protocol == "3" {
            flags.push("-3");
        }
        flags
    }
}

/// What a client printed that must have ended well.
#[track_caller]
pub(super) fn said(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}\n{stdout}{stderr}", output.status);
    stdout
}

/// A server with a Unix socket, which asks for the password.
pub(super) fn guarded(more: &str) -> Program {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("password"), PASSWORD).expect("a file");
    let config = format!(
        "[resp]\nlisten = '127.0.0.1:0'\nunix = 'resp.sock'\npassword = 'file:password'\n{more}"
    );
    let mut program = Program::start_in(folder, &config, "");
    program.wait_until_ready();
    program
}

/// Takes every way in turn, each to servers that no other test has used.
pub(super) fn each(mut check: impl FnMut(&Way)) {
    let papers = Papers::new();
    papers.sign("server", "localhost");
    let file = |name: &str| papers.path(name).display().to_string();
    let tls =
        format!("tls = {{ cert = '{}', key = '{}' }}\n", file("server.pem"), file("server.key"));
    let open = Program::serve(&[DOOR, RULES].concat());
    let (shut, secure) = (guarded(RULES), guarded(&[&tls, RULES].concat()));
    let url = |program: &Program| format!("redis://{}", program.address("resp"));
    let secure_url = format!("rediss://localhost:{}", secure.address("resp").port());
    let path = shut.paths()[0].display().to_string();
    for (address, password, authority) in [
        (url(&open), "", String::new()),
        (url(&shut), PASSWORD, String::new()),
        (secure_url, PASSWORD, file("ca.pem")),
        (path, PASSWORD, String::new()),
    ] {
        for protocol in ["2", "3"] {
            let (address, authority) = (address.clone(), authority.clone());
            check(&Way { address, protocol, password, authority });
        }
    }
}
