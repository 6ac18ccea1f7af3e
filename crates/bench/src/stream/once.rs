//! One question on a connection of its own, for what is asked beside a load.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A server that says nothing for so long will not answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// No answer to such a question is as long.
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// Sends a request on a new connection and reads until `answer` finds its answer in the bytes.
pub(crate) fn ask_once<T>(
    server: SocketAddr,
    request: &[u8],
    mut answer: impl FnMut(&[u8]) -> io::Result<Option<T>>,
) -> io::Result<(TcpStream, T)> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request)?;
    let (mut inbox, mut held) = ([0; ANSWER_BYTES_MAX], 0);
    loop {
        match stream.read(&mut inbox[held..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => held += count,
        }
        if let Some(answer) = answer(&inbox[..held])? {
            return Ok((stream, answer));
        }
    }
}
