//! The server's end. It says exactly what the test tells it to.

use std::path::PathBuf;

use tempfile::TempDir;
use tidegate_wire::throttr::{Front, parse};
use tokio::io::Interest;
use tokio::net::{TcpListener, UnixListener};

use super::super::socket::ClientSocket;
use super::*;

pub(super) enum Door {
    Tcp(TcpListener),
    /// The folder lives as long as the door.
    Unix(UnixListener, TempDir),
}

impl Door {
    pub(super) async fn tcp() -> Door {
        Door::Tcp(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(super) fn unix() -> Door {
        let folder = tempfile::tempdir().unwrap();
        Door::Unix(UnixListener::bind(path(&folder)).unwrap(), folder)
    }

    /// Stops listening; the place stays.
    pub(super) fn close(self) -> TempDir {
        let Door::Unix(listener, folder) = self else { panic!("a port cannot be kept") };
        drop(listener);
        std::fs::remove_file(path(&folder)).unwrap();
        folder
    }

    /// Listens again at the same place.
    pub(super) fn reopen(folder: TempDir) -> Door {
        Door::Unix(UnixListener::bind(path(&folder)).unwrap(), folder)
    }

    pub(super) async fn accept(&self, size: ValueSize) -> Peer {
        let socket = match self {
            Door::Tcp(listener) => ClientSocket::Tcp(listener.accept().await.unwrap().0),
            Door::Unix(listener, _) => ClientSocket::Unix(listener.accept().await.unwrap().0),
        };
        Peer { socket, size, read: Vec::new() }
    }

    pub(super) async fn connect(&self, settings: Settings) -> (Peer, ThrottrClient) {
        let client = match self {
            Door::Tcp(listener) => {
                let address = listener.local_addr().unwrap().to_string();
                ThrottrClient::connect_with(&address, settings).await.unwrap()
            }
            Door::Unix(_, folder) => {
                ThrottrClient::connect_unix(path(folder), settings).await.unwrap()
            }
        };
        (self.accept(settings.value_size).await, client)
    }
}

fn path(folder: &TempDir) -> PathBuf {
    folder.path().join("door")
}

/// One connection.
pub(super) struct Peer {
    pub(super) socket: ClientSocket,
    size: ValueSize,
    read: Vec<u8>,
}

impl Peer {
    /// Waits for the next request, which must be this one.
    pub(super) async fn hear(&mut self, expected: Request<'_>) {
        let len = loop {
            match parse(&self.read, self.size, 1000) {
                Front::Request { request, bytes } => {
                    assert_eq!(request, expected);
                    break bytes;
                }
                Front::Incomplete => assert!(self.read_some().await, "no {expected:?} came"),
                Front::Broken(broken) => panic!("{broken:?} instead of {expected:?}"),
            }
        };
        self.read.drain(..len);
    }

    /// The costs of all CONSUMEs that were heard, which are all whole requests so far.
    pub(super) fn costs(&self) -> Vec<u64> {
        let mut rest = &self.read[..];
        let mut costs = Vec::new();
        while let Front::Request { request: Request::Consume { cost, .. }, bytes } =
            parse(rest, self.size, 1000)
        {
            costs.push(cost);
            rest = &rest[bytes..];
        }
        costs
    }

    /// `false` once the client has closed.
    pub(super) async fn read_some(&mut self) -> bool {
        let mut room = [0; 4096];
        loop {
            self.socket.ready(Interest::READABLE).await.unwrap();
            if let Some(bytes) = self.socket.read(&mut room).unwrap() {
                self.read.extend_from_slice(&room[..bytes]);
                return bytes > 0;
            }
        }
    }

    pub(super) async fn say(&self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            self.socket.ready(Interest::WRITABLE).await.unwrap();
            rest = &rest[self.socket.write(rest).unwrap().unwrap_or(0)..];
        }
    }

    /// Answers the next request, which must be this one.
    pub(super) async fn answer(&mut self, request: Request<'_>, write: impl FnOnce(&mut Vec<u8>)) {
        self.hear(request).await;
        let mut bytes = Vec::new();
        write(&mut bytes);
        self.say(&bytes).await;
    }

    /// Whether anything was heard that no test asked for.
    pub(super) fn heard_more(&self) -> bool {
        !self.read.is_empty()
    }
}
