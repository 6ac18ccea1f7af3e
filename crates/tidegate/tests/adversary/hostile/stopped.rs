//! Clients that are stopped in the middle of what they do: real processes, each halted by a signal
//! while it writes to a door and reads from it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::Target;
use crate::net::Address;
use crate::seed::Random;

/// Reads lines of a kind of socket, an address and what to say in hex, connects to each, says it
/// again and again, and reads now and then.
const CLIENT: &str = r#"
import select, socket, struct, sys
clients = []
for line in sys.stdin:
    kind, host, port, said = line.rstrip("\n").split("\t")
    try:
        if kind == "tcp":
            s = socket.create_connection((host, int(port)))
        else:
            s = socket.socket(socket.AF_UNIX)
            s.connect(host)
    except OSError:
        continue
    # It is killed with more under way than the server reads: a reset is what arrives.
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.setblocking(False)
    clients.append((s, bytes.fromhex(said)))
print("going", flush=True)
while clients:
    for s, said in list(clients):
        try:
            s.send(said)
            if select.select([s], [], [], 0)[0] and not s.recv(100):
                raise ConnectionError
        except BlockingIOError:
            pass
        except OSError:
            clients.remove((s, said))
"#;

/// A process with a connection to each target, halted.
pub(crate) struct Stopped(Child);

impl Stopped {
    /// Starts it, and halts it while it is busy.
    pub(crate) fn start(targets: &[Target], random: &mut Random) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", CLIENT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("python3 is needed: install it with `make setup-test`");
        let mut stdin = child.stdin.take().expect("a pipe");
        for target in targets {
            let said: String =
                random.pick(&target.scripts).iter().map(|byte| format!("{byte:02x}")).collect();
            let line = match &target.address {
                Address::Tcp(at) => format!("tcp\t{}\t{}\t{said}", at.ip(), at.port()),
                Address::Unix(path) => format!("unix\t{}\t0\t{said}", path.display()),
            };
            writeln!(stdin, "{line}").expect("it reads");
        }
        drop(stdin);
        let stdout = child.stdout.take().expect("a pipe");
        let stopped = Self(child);
        let line = BufReader::new(stdout).lines().next();
        assert!(line.is_some_and(|line| line.is_ok_and(|line| line == "going")), "it goes");
        stopped.signal(Signal::STOP);
        stopped
    }

    /// Lets it go on, wherever it was.
    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("it takes signals");
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
