//! Small servers that show what a door must cost at least. Each runs in a process of its own, as a
//! hidden command of this program, and tells its address as the server does.
//!
//! - [`udp_echo`]: sends datagrams back, beside the text door
//! - [`tcp_echo`]: sends bytes back, beside the Throttr door
//! - [`one_answer`]: accepts, writes and closes, beside the JARL door
//! - [`hyper`]: answers every request with the same JSON, beside the HTTP door
//! - [`tonic`]: answers every call with OK, beside the gRPC door
//! - `limitador`: the same service, which lets the library of that name decide; with the feature
//!   `limitador`

mod hyper;
#[cfg(feature = "limitador")]
mod limitador;
mod one_answer;
mod tcp_echo;
mod tonic;
mod udp_echo;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;

use anyhow::Context as _;
use socket2::{Domain, Protocol, Socket, Type};

use self::one_answer::Close;
use crate::failure::Failure;
use crate::frame::tally::cores;

/// Clients that wait to be accepted.
const BACKLOG_MAX: i32 = 4096;

/// The peers.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Sends every datagram back as it came.
    UdpEcho,
    /// Sends every byte back as it came.
    TcpEcho,
    /// Accepts, writes and closes as the JARL door does.
    Plain,
    /// Accepts, writes and closes at once.
    Abrupt,
    /// Reads requests and answers each with the same JSON.
    Hyper {
        /// The answer.
        body: String,
    },
    /// Reads calls of Envoy's rate limit service and answers each with OK.
    Tonic,
    /// Reads the same calls and lets Limitador decide.
    #[cfg(feature = "limitador")]
    Limitador {
        /// Counters that it may have.
        keys: u64,
    },
}

impl Command {
    /// Serves until the process is killed.
    pub(crate) fn serve(&self) -> Result<(), Failure> {
        let served = match self {
            Command::UdpEcho => udp_echo::serve(),
            Command::TcpEcho => tcp_echo::serve(),
            Command::Plain => one_answer::serve(Close::Careful),
            Command::Abrupt => one_answer::serve(Close::Abrupt),
            Command::Hyper { body } => hyper::serve(body),
            Command::Tonic => tonic::serve(),
            #[cfg(feature = "limitador")]
            Command::Limitador { keys } => limitador::serve(*keys),
        };
        Ok(served.context("cannot serve")?)
    }
}

/// One socket for each core, all on one free port.
fn bind(kind: Type, protocol: Protocol) -> io::Result<Vec<Socket>> {
    let mut address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut sockets = Vec::new();
    for _ in 0..cores() {
        let socket = Socket::new(Domain::IPV4, kind, Some(protocol))?;
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        address = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidData)?;
        sockets.push(socket);
    }
    Ok(sockets)
}

/// The same, listening. They do not block.
fn listen() -> io::Result<Vec<TcpListener>> {
    let ready = |socket: Socket| {
        socket.listen(BACKLOG_MAX)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    bind(Type::STREAM, Protocol::TCP)?.into_iter().map(ready).collect()
}

/// Tells the address and runs `work` with each socket on a thread of its own.
fn on_threads<S: Send + 'static>(
    address: SocketAddr,
    sockets: Vec<S>,
    work: impl Fn(S) -> io::Result<()> + Clone + Send + 'static,
) -> io::Result<()> {
    eprintln!("listening door=peer addr={address}");
    eprintln!("ready");
    let start = |socket| {
        let work = work.clone();
        thread::spawn(move || work(socket))
    };
    let threads: Vec<_> = sockets.into_iter().map(start).collect();
    for thread in threads {
        thread.join().map_err(|_| io::Error::other("a panic"))??;
    }
    Ok(())
}
