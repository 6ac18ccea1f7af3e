//! The Smockron door of the real program, with gatekeepers that others wrote.
//!
//! Limits are per hour, so that no test depends on how fast it runs.

mod crowds;
mod doors;
mod gatekeeper;
mod hostile;
mod late;
mod peer;
mod remote;
mod restarts;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use self::peer::{Endpoints, Peer};
use crate::engines::until as eventually;
use crate::program::{PATIENCE, Program};

/// A master at free ports whose domain `web` delays everybody after one request.
const MASTER: &str = r#"
[smockron]
accounting = "tcp://127.0.0.1:0"
control = "tcp://127.0.0.1:0"
[smockron.domains]
web = "1/hour burst 1"
other = "1/hour burst 1"
[http]
listen = "127.0.0.1:0"
"#;

/// An accounting message of `web`.
fn accepted(identifier: &str) -> String {
    format!("send web\\0|ACCEPTED|{identifier}|now||test")
}

/// Lets a gatekeeper tell of a client until it hears that the client must wait.
#[track_caller]
fn delays(gatekeeper: &mut Peer, identifier: &str) {
    let start = format!("web\\0|DELAY_UNTIL|{identifier}|");
    let line = gatekeeper.tell_until(&accepted(identifier), |line| line.starts_with(&start));
    let at = &line[start.len()..];
    assert!(at.len() == 13 && at.bytes().all(|byte| byte.is_ascii_digit()), "{line}");
}

/// The value of one series of the program, 0 if it is not there.
fn metric(program: &Program, series: &str) -> u64 {
    let mut stream = TcpStream::connect(program.address("http")).expect("the door is open");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .expect("the door reads");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("a page");
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    line.map_or(0, |value| value.trim().parse().expect("a number"))
}

fn bad_input(program: &Program, reason: &str) -> u64 {
    let series = format!("tidegate_bad_input_total{{door=\"smockron\",reason=\"{reason}\"}}");
    metric(program, &series)
}

/// Two masters with a domain each, and a proxy of libzmq before them.
struct Split {
    web: Program,
    other: Program,
    /// The proxy's.
    endpoints: Endpoints,
    proxy: Peer,
}

impl Split {
    fn new() -> Self {
        let master = |domain: &str, other: &str| {
            let own = format!("subscribe = ['{domain}']\n[smockron.domains]");
            let config = MASTER.replace("[smockron.domains]", &own);
            Program::serve(&config.replace(&format!("{other} = \"1/hour burst 1\"\n"), ""))
        };
        let (web, other) = (master("web", "other"), master("other", "web"));
        let (one, two) = (Endpoints::of(&web), Endpoints::of(&other));
        let both = |a: &str, b: &str| format!("{a},{b}");
        let mut proxy = Peer::python(&[
            "proxy",
            &both(&one.accounting, &two.accounting),
            &both(&one.control, &two.control),
        ]);
        let line = proxy.line();
        let (accounting, control) = line.split_once(' ').expect("two endpoints");
        let endpoints =
            Endpoints { accounting: accounting.to_owned(), control: control.to_owned() };
        Self { web, other, endpoints, proxy }
    }
}

/// A master and one gatekeeper in Python that serves `web`.
fn pair() -> (Program, Peer) {
    let program = Program::serve(MASTER);
    let gatekeeper = Peer::gatekeeper(&Endpoints::of(&program), &["web"]);
    (program, gatekeeper)
}
