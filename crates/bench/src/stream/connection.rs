//! One connection: what is yet to be written, what has been read, and since when it waits.
//!
//! When to send is the business of `load`.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use rustix::event::PollFlags;
use tidegate_core::Nanos;

use super::Speech;
use crate::frame::tally::Tally;

/// Bytes that one read takes at most. No answer is nearly as long.
const READ_BYTES_MAX: usize = 64 << 10;

/// One connection.
pub(super) struct Connection<S> {
    pub(super) stream: TcpStream,
    speech: S,
    out: Vec<u8>,
    written: usize,
    inbox: Box<[u8]>,
    held: usize,
    /// Requests that were not answered yet.
    outstanding: u64,
    sent: Nanos,
}

impl<S: Speech> Connection<S> {
    /// Connects; after that nothing blocks.
    pub(super) fn open(server: SocketAddr, speech: S) -> io::Result<Self> {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            speech,
            out: Vec::new(),
            written: 0,
            inbox: vec![0; READ_BYTES_MAX].into(),
            held: 0,
            outstanding: 0,
            sent: 0,
        })
    }

    /// Whether every request was answered.
    pub(super) fn is_idle(&self) -> bool {
        self.outstanding == 0
    }

    /// What it waits for.
    pub(super) fn interest(&self) -> PollFlags {
        if self.written < self.out.len() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    }

    /// Sends a request for each of these keys. Only for an idle connection.
    pub(super) fn send(&mut self, keys: impl Iterator<Item = u64>, now: Nanos) -> io::Result<()> {
        self.out.clear();
        self.written = 0;
        self.sent = now;
        for key in keys {
            self.speech.ask(key, &mut self.out);
            self.outstanding += 1;
        }
        self.write()
    }

    /// Writes what can be written.
    pub(super) fn write(&mut self) -> io::Result<()> {
        while self.written < self.out.len() {
            match (&self.stream).write(&self.out[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if is_not_now(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes the answers that are there.
    pub(super) fn receive(&mut self, tally: &mut Tally, now: Nanos) -> io::Result<()> {
        let count = match (&self.stream).read(&mut self.inbox[self.held..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if is_not_now(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let held = self.held + count;
        let answers = self.speech.read(&self.inbox[..held])?;
        self.inbox.copy_within(answers.bytes..held, 0);
        self.held = held - answers.bytes;
        self.outstanding = self
            .outstanding
            .checked_sub(answers.count)
            .ok_or_else(|| io::Error::other("more answers than requests"))?;
        tally.answered += answers.count;
        *tally.refused.get_or_insert(0) += answers.refused;
        let waited = now.saturating_sub(self.sent).max(1);
        tally.latency.saturating_record_n(waited, answers.count);
        Ok(())
    }
}

fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
