//! The load: connections spread over threads, each with as many calls under way as it has streams.
//! When a call is answered the next begins.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidegate_core::Nanos;

use super::http2::{Answer, Http2};
use crate::clock;
use crate::frame::Load;
use crate::frame::keys::{Choice, Keys};
use crate::frame::tally::{Tally, Until, on_threads};

/// A server that says nothing for so long will not answer.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// Bytes that one read takes at most. No answer is nearly as long.
const READ_BYTES_MAX: usize = 64 << 10;
/// Streams while every key is used once.
const ONCE_STREAMS: usize = 512;

/// A load to put on a server.
#[derive(Clone)]
pub(super) struct CallLoad {
    pub(super) server: SocketAddr,
    pub(super) connections: usize,
    pub(super) threads: usize,
    /// Of each connection.
    pub(super) streams: usize,
    pub(super) keys: u64,
    pub(super) choice: Choice,
    pub(super) until: Until,
}

impl CallLoad {
    /// Uses every key once, so that none is new when the server is measured.
    pub(super) fn every_key_once(&self) -> io::Result<()> {
        let until = Until { span: Nanos::MAX / 2, count: self.keys };
        let (streams, choice) = (ONCE_STREAMS, Choice::InTurn);
        // One thread: what is in turn begins anew in each.
        let once = Self { connections: 1, threads: 1, streams, choice, until, ..self.clone() };
        once.run(&|_, _| ()).map(drop)
    }

    /// The work of one thread; `claimed` counts what all of them will have sent.
    fn work(&self, number: usize, claimed: &AtomicU64, answered: &AtomicU64) -> io::Result<Tally> {
        let share = (self.connections + self.threads - 1 - number) / self.threads;
        let connections = (0..share).map(|_| Connection::open(self.server));
        let mut worker = Worker {
            load: self,
            connections: connections.collect::<io::Result<_>>()?,
            keys: Keys::new(self.keys, self.choice, number as u64),
            claimed,
            end: clock::now().saturating_add(self.until.span),
            tally: Tally::new(),
        };
        worker.run(answered)?;
        Ok(worker.tally)
    }
}

impl Load for CallLoad {
    fn title(&self) -> String {
        let Self { connections, streams, keys, .. } = self;
        format!("{connections} connections, {streams} streams, {keys} keys")
    }

    fn run(&self, progress: &dyn Fn(u64, Nanos)) -> io::Result<Tally> {
        let claimed = AtomicU64::new(0);
        on_threads(self.threads, progress, |number, answered| self.work(number, &claimed, answered))
    }
}

/// One thread with its share of the connections.
struct Worker<'a> {
    load: &'a CallLoad,
    connections: Vec<Connection>,
    keys: Keys,
    claimed: &'a AtomicU64,
    end: Nanos,
    tally: Tally,
}

impl Worker<'_> {
    fn run(&mut self, answered: &AtomicU64) -> io::Result<()> {
        let start = clock::now();
        let mut told = 0;
        for at in 0..self.connections.len() {
            self.refill(at)?;
        }
        while self.connections.iter().any(|connection| connection.speech.open() > 0) {
            for (at, ready) in self.wait()?.into_iter().enumerate() {
                if ready.contains(PollFlags::OUT) {
                    self.connections[at].write()?;
                }
                if ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                    self.connections[at].receive(&mut self.tally)?;
                    self.refill(at)?;
                }
            }
            answered.fetch_add(self.tally.answered - told, Relaxed);
            told = self.tally.answered;
        }
        self.tally.elapsed = (clock::now() - start).max(1);
        Ok(())
    }

    /// Begins a call on each free stream, unless the end has come.
    fn refill(&mut self, at: usize) -> io::Result<()> {
        let (now, connection) = (clock::now(), &mut self.connections[at]);
        let free = self.load.streams.saturating_sub(connection.speech.open()) as u64;
        if now >= self.end || free == 0 {
            return Ok(());
        }
        let before = self.claimed.fetch_add(free, Relaxed);
        let count = self.load.until.count.saturating_sub(before).min(free);
        for _ in 0..count {
            connection.speech.ask(self.keys.draw(), now, &mut connection.out);
        }
        self.tally.sent += count;
        // A server that closes the connection may have said why.
        connection.write().or_else(|error| connection.receive(&mut self.tally).and(Err(error)))
    }

    /// What each connection is ready for.
    fn wait(&self) -> io::Result<Vec<PollFlags>> {
        let watched = |one: &Connection| {
            let out = if one.out.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            PollFlags::IN | out
        };
        let all = self.connections.iter();
        let mut ready: Vec<_> = all.map(|one| PollFd::new(&one.stream, watched(one))).collect();
        match poll(&mut ready, Some(&PATIENCE)) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not answer")),
            Ok(_) => Ok(ready.iter().map(PollFd::revents).collect()),
            Err(rustix::io::Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}

/// One connection.
struct Connection {
    stream: TcpStream,
    speech: Http2,
    /// What is yet to be written.
    out: Vec<u8>,
    inbox: Box<[u8]>,
    held: usize,
}

impl Connection {
    /// Connects; after that nothing blocks.
    fn open(server: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let inbox = vec![0; READ_BYTES_MAX].into();
        Ok(Self { stream, speech: Http2::new(), out: Vec::new(), inbox, held: 0 })
    }

    /// Writes what can be written.
    fn write(&mut self) -> io::Result<()> {
        let mut written = 0;
        while written < self.out.len() {
            match (&self.stream).write(&self.out[written..]) {
                Ok(count) => written += count,
                Err(error) if is_not_now(&error) => break,
                Err(error) => return Err(error),
            }
        }
        self.out.drain(..written);
        Ok(())
    }

    /// Takes the answers that are there.
    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        let count = match (&self.stream).read(&mut self.inbox[self.held..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if is_not_now(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let (held, now) = (self.held + count, clock::now());
        let read = self.speech.read(&self.inbox[..held], |Answer { asked_at, refused }| {
            tally.answered += 1;
            *tally.refused.get_or_insert(0) += u64::from(refused);
            tally.latency.saturating_record(now.saturating_sub(asked_at).max(1));
        })?;
        self.inbox.copy_within(read..held, 0);
        self.held = held - read;
        Ok(())
    }
}

fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
