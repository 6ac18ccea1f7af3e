//! `tidegate-bench http`: load on the HTTP door, alone or in turns with peers that answer the same
//! bytes without deciding.
//!
//! - [`speech`]: the requests

mod speech;

use std::io;
use std::net::SocketAddr;

use anyhow::Context as _;
use clap::ValueEnum;

use self::speech::Check;
use crate::failure::Failure;
use crate::frame::Contender;
use crate::frame::flags::{Programs, Report, Running};
use crate::servers::Server;
use crate::stream::{Flags, Speech as _, StreamLoad, ask_once, http1};

/// The arguments of `tidegate-bench http`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("connections", |connections| connections.default_value("64")))]
#[command(mut_arg("seconds", |seconds| seconds.default_value("1")))]
#[command(mut_arg("rounds", |rounds| rounds.default_value("15")))]
pub(crate) struct Args {
    #[command(flatten)]
    programs: Programs,
    #[command(flatten)]
    running: Running,
    #[command(flatten)]
    stream: Flags,
    /// Compare with a peer: the same load on both, in turns. May be given several times.
    #[arg(long, value_enum)]
    peer: Vec<Peer>,
    #[command(flatten)]
    report: Report,
}

/// A server to measure beside ours. It answers what ours answered first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// hyper on tokio, as our door is, which reads each request and answers always the same.
    Hyper,
    /// nginx with one worker, which answers always the same.
    Nginx,
}

/// What our server is started with: a limit that is looked at and never reached.
const CONFIG: &str = r#"
[[rule]]
name = "bench"
match = "bench *"
limit = "1000000 per minute"

[http]
listen = "127.0.0.1:0"
"#;

/// Runs the load once, or the comparison.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let frame = args.running.frame("http", "request", &args.programs, &args.report)?;
    frame.run(
        |program| {
            let server = program.serve(CONFIG)?;
            let load = args.load(server.address())?;
            Ok(Contender::ours(server, load))
        },
        &args.peer,
        |peer, ours| {
            let body = body(ours.server.address()).context("cannot ask for one key")?;
            let (name, server) = match peer {
                Peer::Hyper => ("hyper", Server::peer(&["hyper", &body])?),
                Peer::Nginx => ("nginx", Server::nginx(|address| nginx(address, &body))?),
            };
            let load = args.load(server.address())?;
            Ok(Contender { name, server, load })
        },
    )
}

/// nginx with one answer. No answer of ours has a quote or a dollar sign that it would read.
fn nginx(address: SocketAddr, body: &str) -> String {
    format!(
        "server {{ listen {address}; location / {{\n\
         default_type application/json;\nreturn 200 '{body}';\n}} }}"
    )
}

/// What our server answers about one key.
fn body(server: SocketAddr) -> io::Result<String> {
    let mut request = Vec::new();
    Check.ask(0, &mut request);
    let (_, body) = ask_once(server, &request, |bytes| {
        let answer = http1::first(bytes)?;
        let body =
            |answer: http1::Answer| String::from_utf8_lossy(&bytes[answer.head..answer.bytes]);
        Ok(answer.map(|answer| body(answer).into_owned()))
    })?;
    Ok(body)
}

impl Args {
    /// The load on a server that has seen every key.
    fn load(&self, server: SocketAddr) -> anyhow::Result<StreamLoad<Check>> {
        let load = self.stream.load(server, Check);
        load.every_key_once(Check).context("cannot ask for every key")?;
        Ok(load)
    }
}
