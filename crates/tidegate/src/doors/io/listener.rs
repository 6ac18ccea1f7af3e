//! Listening sockets of event loops: opening them, and accepting clients.
//!
//! An IP address has one listening socket for each loop, all sharing its port. A Unix socket has
//! one file and so one socket. Nothing here reads or writes a byte.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::{SocketAddrAny, SocketFlags, acceptfrom_with};

use super::tcp;

/// A listening socket of either kind. It does not block.
pub(crate) enum StreamListener {
    /// One of the siblings at an IP address.
    Tcp(TcpListener),
    /// The one socket at a path.
    Unix(UnixListener),
}

/// Where a client comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Over TCP, from this address.
    Tcp(SocketAddr),
    /// Through a Unix socket.
    Unix,
}

impl Peer {
    /// The address that an allow list judges, if there is one.
    pub(crate) fn ip(self) -> Option<IpAddr> {
        match self {
            Peer::Tcp(address) => Some(address.ip()),
            Peer::Unix => None,
        }
    }
}

impl StreamListener {
    /// The client that has waited longest. A connection that stays for long is given the options
    /// for that.
    pub(crate) fn accept(&self, is_long: bool) -> io::Result<(OwnedFd, Peer)> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match self {
            StreamListener::Tcp(listener) => {
                let (socket, from) = acceptfrom_with(listener, flags)?;
                let from = from.and_then(|from| peer(&from)).ok_or(io::ErrorKind::InvalidData)?;
                if is_long {
                    tcp::set_stream_options(&socket)?;
                }
                Ok((socket, Peer::Tcp(from)))
            }
            StreamListener::Unix(listener) => Ok((acceptfrom_with(listener, flags)?.0, Peer::Unix)),
        }
    }

    /// What epoll watches.
    pub(crate) fn socket(&self) -> impl AsFd + '_ {
        match self {
            StreamListener::Tcp(listener) => listener.as_fd(),
            StreamListener::Unix(listener) => listener.as_fd(),
        }
    }
}

fn peer(from: &SocketAddrAny) -> Option<SocketAddr> {
    SocketAddr::try_from(from.clone()).ok()
}

/// Binds `count` sockets to `address`, or none. Port 0 takes a free port, the same for all.
pub(crate) fn bind_tcp(
    address: SocketAddr,
    count: usize,
) -> io::Result<(SocketAddr, Vec<StreamListener>)> {
    let (taken, listeners) = tcp::bind(address, count)?;
    Ok((taken, listeners.into_iter().map(StreamListener::Tcp).collect()))
}

/// The file of a Unix socket, removed when the door has closed.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and number: by now the path may lead to another process' socket.
    identity: (u64, u64),
}

impl SocketFile {
    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Binds the socket at `path`. What a crashed process left behind is removed; a socket on which
/// a process answers, or a file that is no socket, is not.
pub(crate) fn bind_unix(path: &Path) -> io::Result<(StreamListener, SocketFile)> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
            fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    let file = SocketFile { path: path.to_owned(), identity: identity(path)? };
    listener.set_nonblocking(true)?;
    Ok((StreamListener::Unix(listener), file))
}

fn is_stale(path: &Path) -> bool {
    let socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let answer = || UnixStream::connect(path).map_err(|error| error.kind());
    socket && matches!(answer(), Err(io::ErrorKind::ConnectionRefused))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_file_is_taken_over_only_if_nobody_answers() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("gate");
        let first = bind_unix(&path).expect("a free path");
        let second = bind_unix(&path).err().expect("somebody answers there");
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(!path.exists(), "a closed door leaves nothing behind");

        // A process that crashes closes its socket and leaves the file.
        drop(UnixListener::bind(&path).expect("a free path"));
        assert!(path.exists());
        let heir = bind_unix(&path).expect("nobody answers there");
        fs::remove_file(&path).expect("it is there");
        let other = UnixListener::bind(&path).expect("a free path");
        drop(heir);
        assert!(path.exists(), "a socket that is not ours stays");
        drop(other);

        fs::remove_file(&path).expect("it is there");
        fs::write(&path, "precious").expect("a file");
        assert!(bind_unix(&path).is_err());
        assert_eq!(fs::read(&path).expect("still there"), b"precious");
    }
}
