//! The load: connections spread over threads. Each sends a pipeline of requests in one write,
//! waits for all the answers, and sends the next.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidegate_core::Nanos;

use super::Speech;
use super::connection::Connection;
use crate::clock;
use crate::frame::Load;
use crate::frame::keys::{Choice, Keys};
use crate::frame::tally::{Tally, Until, on_threads};

/// A server that says nothing for so long will not answer.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Requests in one write, and connections, while every key is used once.
const ONCE_PIPELINE: usize = 512;
const ONCE_CONNECTIONS: usize = 4;

/// A load to put on a server.
pub(crate) struct StreamLoad<S> {
    pub(crate) server: SocketAddr,
    pub(crate) speech: S,
    pub(crate) connections: usize,
    pub(crate) threads: usize,
    pub(crate) pipeline: usize,
    pub(crate) keys: u64,
    /// If every request uses a key that none before it used: how many were used in earlier runs.
    pub(crate) new_keys: Option<AtomicU64>,
    pub(crate) until: Until,
}

impl<S: Speech> StreamLoad<S> {
    /// Uses every key once, so that none is new when the server is measured.
    pub(crate) fn every_key_once(&self, speech: S) -> io::Result<()> {
        Self::once(self.server, speech, 0, self.keys).all_new()
    }

    /// A request for each of `count` keys, from this one on.
    pub(crate) fn once(server: SocketAddr, speech: S, first: u64, count: u64) -> Self {
        Self {
            server,
            speech,
            connections: ONCE_CONNECTIONS,
            threads: 1,
            pipeline: ONCE_PIPELINE,
            keys: count,
            new_keys: Some(AtomicU64::new(first)),
            until: Until { span: Nanos::MAX / 2, count },
        }
    }

    /// Runs unmeasured.
    pub(crate) fn all_new(&self) -> io::Result<()> {
        self.run(&|_, _| ()).map(drop)
    }

    /// The work of one thread; `claimed` counts what all of them will have sent.
    fn work(&self, number: usize, claimed: &AtomicU64, answered: &AtomicU64) -> io::Result<Tally> {
        let share = (self.connections + self.threads - 1 - number) / self.threads;
        let open = || Connection::open(self.server, self.speech.clone());
        let connections = (0..share).map(|_| open()).collect::<io::Result<_>>()?;
        let mut worker = Worker {
            load: self,
            connections,
            keys: Keys::new(self.keys, Choice::Skewed(0.0), number as u64),
            first_new: self.new_keys.as_ref().map(|used| used.load(Relaxed)),
            claimed,
            end: clock::now().saturating_add(self.until.span),
            tally: Tally::new(),
        };
        worker.run(answered)?;
        Ok(worker.tally)
    }
}

impl<S: Speech> Load for StreamLoad<S> {
    fn title(&self) -> String {
        let Self { connections, pipeline, keys, .. } = self;
        format!("{connections} connections, pipeline {pipeline}, {keys} keys")
    }

    fn run(&self, progress: &dyn Fn(u64, Nanos)) -> io::Result<Tally> {
        let claimed = AtomicU64::new(0);
        let tally = on_threads(self.threads, progress, |number, answered| {
            self.work(number, &claimed, answered)
        })?;
        if let Some(used) = &self.new_keys {
            used.fetch_add(tally.sent, Relaxed);
        }
        Ok(tally)
    }
}

/// One thread with its share of the connections.
struct Worker<'a, S> {
    load: &'a StreamLoad<S>,
    connections: Vec<Connection<S>>,
    keys: Keys,
    /// The first key of this run, if none may be used twice.
    first_new: Option<u64>,
    claimed: &'a AtomicU64,
    end: Nanos,
    tally: Tally,
}

impl<S: Speech> Worker<'_, S> {
    fn run(&mut self, answered: &AtomicU64) -> io::Result<()> {
        let start = clock::now();
        let mut told = 0;
        for at in 0..self.connections.len() {
            self.refill(at)?;
        }
        while self.connections.iter().any(|connection| !connection.is_idle()) {
            for (at, ready) in self.wait()?.into_iter().enumerate() {
                if ready.contains(PollFlags::OUT) {
                    self.connections[at].write()?;
                }
                if ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                    let now = clock::now();
                    self.connections[at].receive(&mut self.tally, now)?;
                    self.refill(at)?;
                }
            }
            answered.fetch_add(self.tally.answered - told, Relaxed);
            told = self.tally.answered;
        }
        self.tally.elapsed = (clock::now() - start).max(1);
        Ok(())
    }

    /// Sends the next pipeline of an idle connection, unless the end has come.
    fn refill(&mut self, at: usize) -> io::Result<()> {
        let now = clock::now();
        if now >= self.end || !self.connections[at].is_idle() {
            return Ok(());
        }
        let pipeline = self.load.pipeline as u64;
        let from = self.claimed.fetch_add(pipeline, Relaxed);
        let count = self.load.until.count.saturating_sub(from).min(pipeline);
        let (keys, first_new) = (&mut self.keys, self.first_new);
        let keys = (from..from + count).map(|number| match first_new {
            Some(first) => first + number,
            None => keys.draw(),
        });
        self.connections[at].send(keys, now)?;
        self.tally.sent += count;
        Ok(())
    }

    /// What each connection is ready for.
    fn wait<'a>(&'a self) -> io::Result<Vec<PollFlags>> {
        let watched = |one: &'a Connection<S>| PollFd::new(&one.stream, one.interest());
        let mut ready: Vec<_> = self.connections.iter().map(watched).collect();
        match poll(&mut ready, Some(&PATIENCE)) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not answer")),
            Ok(_) => Ok(ready.iter().map(PollFd::revents).collect()),
            Err(rustix::io::Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}
