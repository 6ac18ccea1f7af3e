//! Programs of libzmq that a test drives: started, told, heard, and ended by their process id.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::peers;
use crate::program::{PATIENCE, Program};

/// How long a message may take before it is sent again: nobody promises that one arrives.
const AGAIN: Duration = Duration::from_millis(100);

/// A running peer.
pub(super) struct Peer {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Peer {
    fn start(mut command: Command) -> Self {
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.expect("the peer starts; `make setup-test` installs it");
        let stdin = child.stdin.take().expect("a pipe");
        let stdout = child.stdout.take().expect("a pipe");
        let (tell, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, stdin, lines }
    }

    /// A program of `peer.py`.
    pub(super) fn python(arguments: &[&str]) -> Self {
        let mut command = peers::python("smockron/peer.py");
        command.args(arguments);
        Self::start(command)
    }

    /// A gatekeeper in Python.
    pub(super) fn gatekeeper(endpoints: &Endpoints, domains: &[&str]) -> Self {
        let both = ["gatekeeper", &endpoints.accounting, &endpoints.control];
        let mut peer = Self::python(&[&both[..], domains].concat());
        assert_eq!(peer.line(), "started");
        peer
    }

    /// A gatekeeper in JavaScript.
    pub(super) fn javascript(endpoints: &Endpoints, domains: &[&str]) -> Self {
        let mut command = peers::node("smockron/peer.js");
        command.args([&endpoints.accounting, &endpoints.control]).args(domains);
        let mut peer = Self::start(command);
        assert_eq!(peer.line(), "started");
        peer
    }

    /// The next line that it prints.
    pub(super) fn line(&mut self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("the peer says something in time")
    }

    /// Tells it to do something.
    pub(super) fn tell(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").expect("the peer listens");
    }

    /// Reads lines until one passes.
    pub(super) fn until(&mut self, passes: impl Fn(&str) -> bool) -> String {
        loop {
            let line = self.line();
            if passes(&line) {
                return line;
            }
        }
    }

    /// Tells it again and again until a line passes: what is published while nobody is connected
    /// is lost, and that is how it must be.
    pub(super) fn tell_until(&mut self, command: &str, passes: impl Fn(&str) -> bool) -> String {
        let Self { stdin, lines, .. } = self;
        let tell = || writeln!(stdin, "{command}").expect("the peer listens");
        heard(lines, tell, passes)
    }

    /// As above for one that only listens: `tell` is what makes it hear something.
    pub(super) fn hears(&mut self, tell: impl FnMut(), passes: impl Fn(&str) -> bool) -> String {
        heard(&self.lines, tell, passes)
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both endpoints of a master.
pub(super) struct Endpoints {
    pub(super) accounting: String,
    pub(super) control: String,
}

impl Endpoints {
    pub(super) fn of(program: &Program) -> Self {
        let [accounting, control] = addresses(program);
        Self { accounting: format!("tcp://{accounting}"), control: format!("tcp://{control}") }
    }

    /// The table that binds a master to them again.
    pub(super) fn table(&self) -> String {
        let Self { accounting, control } = self;
        format!("[smockron]\naccounting = '{accounting}'\ncontrol = '{control}'\n")
    }
}

/// The addresses told last: accounting, then control.
pub(super) fn addresses(program: &Program) -> [SocketAddr; 2] {
    let told = program.listening().iter().filter(|(door, _)| door == "smockron");
    let told: Vec<SocketAddr> = told.map(|(_, address)| *address).collect();
    *told.last_chunk().expect("both addresses are told")
}

/// Tells until a line passes, again after each silence.
fn heard(
    lines: &Receiver<String>,
    mut tell: impl FnMut(),
    passes: impl Fn(&str) -> bool,
) -> String {
    for _ in 0..PATIENCE.as_millis() / AGAIN.as_millis() {
        tell();
        loop {
            match lines.recv_timeout(AGAIN) {
                Ok(line) if passes(&line) => return line,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => panic!("the peer has ended"),
            }
        }
    }
    panic!("no such line in time");
}
