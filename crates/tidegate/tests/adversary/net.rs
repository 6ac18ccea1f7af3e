//! Sockets of clients, honest or not: TCP or Unix, and every way to leave.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use socket2::SockRef;

use crate::clock::WATCHDOG;

/// Where a stream door listens.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

/// A connection of either kind.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Connects; reading and writing give up when the watchdog does.
    pub(crate) fn connect(address: &Address) -> io::Result<Self> {
        let stream = match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, WATCHDOG)?;
                stream.set_nodelay(true)?;
                Self::Tcp(stream)
            }
            Address::Unix(path) => Self::Unix(UnixStream::connect(path)?),
        };
        stream.patience(WATCHDOG)?;
        Ok(stream)
    }

    /// How long reading and writing may take from now on.
    pub(crate) fn patience(&self, patience: Duration) -> io::Result<()> {
        let socket = self.socket();
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))
    }

    /// Room for so few bytes that have come and are not read.
    pub(crate) fn read_little(&self) {
        let _ = self.socket().set_recv_buffer_size(4096);
    }

    /// Leaves by a reset, where the kind of socket has one.
    pub(crate) fn reset(self) {
        let _ = self.socket().set_linger(Some(Duration::ZERO));
    }

    /// Says that nothing more will be sent.
    pub(crate) fn half_close(&self) {
        let _ = self.socket().shutdown(Shutdown::Write);
    }

    fn socket(&self) -> SockRef<'_> {
        match self {
            Self::Tcp(stream) => SockRef::from(stream),
            Self::Unix(stream) => SockRef::from(stream),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(out),
            Self::Unix(stream) => stream.read(out),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
