//! One client's socket, with or without TLS: reads and writes that do not block.
//!
//! It knows no protocol above TLS. Ciphertext passes through a buffer of the loop.

use std::io::{self, IoSlice, Read as _, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, send, sendmsg, shutdown,
};
use rustls::ServerConnection;

/// Bytes that one read takes from the socket.
pub(super) const READ_BYTES: usize = 32 << 10;
/// Room that a read needs: a TLS record that was begun before may end in it.
pub(super) const READ_ROOM: usize = READ_BYTES + (18 << 10);
/// Calls in one turn that throw input away.
const DISCARDS_MAX: usize = 8;

/// One client's socket.
pub(super) struct ClientStream {
    socket: OwnedFd,
    tls: Option<Box<Tls>>,
}

struct Tls {
    connection: ServerConnection,
    /// The client has said that it sends no more.
    ended: bool,
}

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// The client sends no more.
    End,
    /// The connection is broken.
    Dead,
    /// What the client sent is not TLS, or it is not one that may come in.
    NotTls,
}

impl ClientStream {
    pub(super) fn new(socket: OwnedFd, tls: Option<ServerConnection>) -> Self {
        let tls = tls.map(|connection| Box::new(Tls { connection, ended: false }));
        Self { socket, tls }
    }

    /// Whether the client has yet to agree on TLS.
    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.connection.is_handshaking())
    }

    /// Whether the client has said that it sends no more, and nothing of what it sent is left.
    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.ended)
    }

    /// Whether everything that was written has gone to the socket.
    #[inline]
    pub(super) fn is_flushed(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| !tls.connection.wants_write())
    }

    /// Reads once. With TLS, `buffer` needs room for [`READ_ROOM`].
    pub(super) fn read(&mut self, buffer: &mut [u8], ciphertext: &mut [u8]) -> Read {
        let Self { socket, tls } = self;
        let Some(tls) = tls else {
            let most = buffer.len().min(READ_BYTES);
            return match rustix::io::read(&*socket, &mut buffer[..most]) {
                Ok(0) => Read::End,
                Ok(bytes) => Read::Bytes(bytes),
                Err(Errno::AGAIN | Errno::INTR) => Read::Nothing,
                Err(_) => Read::Dead,
            };
        };
        if tls.ended {
            return Read::End;
        }
        let most = ciphertext.len().min(READ_BYTES);
        let read = match rustix::io::read(&*socket, &mut ciphertext[..most]) {
            Ok(0) => return Read::End,
            Ok(bytes) => tls.decrypt(&ciphertext[..bytes], buffer),
            Err(Errno::AGAIN | Errno::INTR) => return Read::Nothing,
            Err(_) => return Read::Dead,
        };
        // Handshakes, alerts and other messages of TLS itself.
        match self.flush(SendFlags::empty()) {
            Err(_) if read != Read::NotTls => Read::Dead,
            _ => read,
        }
    }

    /// Writes as much as the socket takes; `None` if the connection is dead. With TLS some of it
    /// may have to be [flushed](Self::flush). `last` says that [`Self::finish`] follows.
    pub(super) fn write(&mut self, bytes: &[u8], last: bool) -> Option<usize> {
        let flags = if last { SendFlags::MORE } else { SendFlags::empty() };
        let mut taken = 0;
        loop {
            self.flush(flags).ok()?;
            let Some(tls) = &mut self.tls else {
                return send_once(&self.socket, bytes, flags).ok();
            };
            if tls.connection.wants_write() || taken == bytes.len() {
                return Some(taken);
            }
            taken += tls.connection.writer().write(&bytes[taken..]).ok()?;
        }
    }

    /// Hands what TLS has still to send to the socket, as far as that takes it.
    pub(super) fn flush(&mut self, flags: SendFlags) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        let mut writer = SocketWriter { socket: self.socket.as_fd(), flags };
        while tls.connection.wants_write() {
            match tls.connection.write_tls(&mut writer) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Ends TLS, as far as the socket takes that. Nothing must be written behind it.
    pub(super) fn end_tls(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.connection.send_close_notify();
            let _ = self.flush(SendFlags::empty());
        }
    }

    /// Tells the client that nothing more will come; `false` if it cannot be told.
    pub(super) fn finish(&mut self) -> bool {
        self.end_tls();
        shutdown(&self.socket, Shutdown::Write).is_ok()
    }

    /// Throws away what the client has sent, without copying it where the system can; adds to
    /// `bytes`. `false` if the client has left or `bytes` exceeds `max`.
    pub(super) fn discard(&self, bytes: &mut usize, max: usize, sink: &mut [u8]) -> bool {
        for _ in 0..DISCARDS_MAX {
            match recv(&self.socket, &mut *sink, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                Ok((_, 0)) => return false,
                Ok((_, count)) => *bytes = bytes.saturating_add(count),
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
            if *bytes > max {
                return false;
            }
        }
        true
    }

    /// Whether the client sent something that was not read yet, or its end.
    pub(super) fn has_input(&self) -> bool {
        recv(&self.socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok()
    }
}

impl AsFd for ClientStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Tls {
    /// Decrypts everything: nothing readable stays behind, since no readiness would tell of it.
    fn decrypt(&mut self, mut ciphertext: &[u8], plain: &mut [u8]) -> Read {
        let mut filled = 0;
        while !ciphertext.is_empty() && !self.ended {
            let read = self.connection.read_tls(&mut ciphertext);
            if read.is_err() || self.connection.process_new_packets().is_err() {
                return Read::NotTls;
            }
            loop {
                match self.connection.reader().read(&mut plain[filled..]) {
                    Ok(0) => {
                        self.ended = true;
                        break;
                    }
                    Ok(bytes) => filled += bytes,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) => return Read::Dead,
                }
            }
        }
        match filled {
            0 if self.ended => Read::End,
            0 => Read::Nothing,
            bytes => Read::Bytes(bytes),
        }
    }
}

fn send_once(socket: impl AsFd, bytes: &[u8], flags: SendFlags) -> Result<usize, Errno> {
    loop {
        match send(socket.as_fd(), bytes, SendFlags::NOSIGNAL | flags) {
            Err(Errno::AGAIN) => return Ok(0),
            Err(Errno::INTR) => {}
            sent => return sent,
        }
    }
}

/// The socket as rustls writes to it.
struct SocketWriter<'a> {
    socket: BorrowedFd<'a>,
    flags: SendFlags,
}

impl Write for SocketWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | self.flags;
        Ok(sendmsg(self.socket, parts, &mut SendAncillaryBuffer::default(), flags)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
