//! The socket of a client: TCP or Unix, with the same few operations.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{Interest, Ready};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

/// Where a server is.
#[derive(Clone, Debug)]
pub(super) enum ServerAddress {
    /// `HOST:PORT`
    Tcp(String),
    Unix(PathBuf),
}

#[derive(Debug)]
pub(super) enum ClientSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl ClientSocket {
    pub(super) async fn open(address: &ServerAddress, within: Duration) -> io::Result<Self> {
        let opening = async {
            match address {
                ServerAddress::Tcp(server) => {
                    let stream = TcpStream::connect(server).await?;
                    // A request that waits for the acknowledgement of another's bytes is late.
                    stream.set_nodelay(true)?;
                    Ok(ClientSocket::Tcp(stream))
                }
                ServerAddress::Unix(path) => {
                    Ok(ClientSocket::Unix(UnixStream::connect(path).await?))
                }
            }
        };
        let late = || io::Error::new(io::ErrorKind::TimedOut, "no connection in time");
        timeout(within, opening).await.unwrap_or_else(|_| Err(late()))
    }

    pub(super) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match self {
            ClientSocket::Tcp(stream) => stream.ready(interest).await,
            ClientSocket::Unix(stream) => stream.ready(interest).await,
        }
    }

    /// Reads what is there; `None` says that nothing is.
    pub(super) fn read(&self, room: &mut [u8]) -> io::Result<Option<usize>> {
        unless_blocked(match self {
            ClientSocket::Tcp(stream) => stream.try_read(room),
            ClientSocket::Unix(stream) => stream.try_read(room),
        })
    }

    /// Writes what there is room for; `None` says that there is none.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        unless_blocked(match self {
            ClientSocket::Tcp(stream) => stream.try_write(bytes),
            ClientSocket::Unix(stream) => stream.try_write(bytes),
        })
    }
}

fn unless_blocked(done: io::Result<usize>) -> io::Result<Option<usize>> {
    match done {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        // A signal came between; readiness is asked for again.
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}
