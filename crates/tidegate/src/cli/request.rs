//! `tidegate request LINE`: one raw datagram to the text door, and its reply.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::ffi::OsStrExt as _;

use super::output::print;
use super::{CliError, Code, OK, address};
use crate::settings::units::Span;

/// The largest reply that is read.
const REPLY_BYTES_MAX: usize = 65_536;

/// The arguments of `tidegate request`.
#[derive(Debug, clap::Args)]
pub(super) struct RequestArgs {
    /// The line, as it goes over the wire: "over_limit ws ip=1.2.3.4".
    line: OsString,
    /// The address of the text door.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:2000", value_parser = address)]
    text: SocketAddr,
    /// How long to wait for a reply. Malformed requests get none.
    #[arg(long, value_name = "SPAN", default_value = "1s")]
    timeout: Span,
}

pub(super) fn run(args: &RequestArgs) -> Result<Code, CliError> {
    if args.timeout.0.is_zero() {
        return Err(CliError::Usage(
            "the timeout must be longer than zero: --timeout 1s".to_owned(),
        ));
    }
    let mut reply = exchange(args).map_err(|error| {
        let waited = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        CliError::Unreachable(if waited {
            let RequestArgs { text, timeout, .. } = args;
            format!(
                "no reply from {text} within {timeout}; no server is there, or the request is \
                 malformed"
            )
        } else {
            format!("no text door at {}: {error}", args.text)
        })
    })?;
    reply.push(b'\n');
    print(&reply)?;
    Ok(OK)
}

fn exchange(args: &RequestArgs) -> std::io::Result<Vec<u8>> {
    let any_port = match args.text {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any_port)?;
    // Connected: the socket takes only the door's own reply, and reports a closed port.
    socket.connect(args.text)?;
    socket.set_read_timeout(Some(args.timeout.0))?;
    socket.send(args.line.as_bytes())?;
    let mut buffer = vec![0; REPLY_BYTES_MAX];
    let length = socket.recv(&mut buffer)?;
    buffer.truncate(length);
    Ok(buffer)
}
