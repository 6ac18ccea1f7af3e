//! The load: clients spread over threads, sending in a closed or an open loop.
//!
//! Closed: each client keeps a window of requests outstanding, so a slow server is asked less.
//! Open: requests leave on a schedule whatever comes back, and latency counts from when a request
//! was to leave, so that a stall shows in full.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidegate_core::Nanos;
use tidegate_core::time::{MILLISECOND, SECOND};

use super::client::{Client, Shared};
use super::datagrams::{self, BATCH, Inbox, Outbox};
use crate::clock;
use crate::frame::Load;
use crate::frame::keys::{Choice, Keys};
use crate::frame::tally::{Tally, Until, on_threads};

/// How often a thread looks for replies that will not come.
const GIVE_UP_EVERY: Nanos = 100 * MILLISECOND;

/// The longest sleep while nothing happens.
const POLL_MAX: Nanos = 20 * MILLISECOND;

/// Requests that one client of an open loop can have outstanding. Beyond it they count as lost.
const OPEN_WINDOW: usize = 4096;

/// When requests leave.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// When earlier ones were answered.
    Closed { window: usize },
    /// On schedule.
    Open { per_second: u64 },
}

/// A load to put on a server.
#[derive(Clone, Debug)]
pub(crate) struct TextLoad {
    pub(crate) server: SocketAddr,
    pub(crate) clients: usize,
    pub(crate) threads: usize,
    pub(crate) burst: usize,
    /// Whether what a client sends at once leaves joined, and replies may come joined.
    pub(crate) join: bool,
    pub(crate) pace: Pace,
    pub(crate) keys: u64,
    pub(crate) choice: Choice,
    pub(crate) until: Until,
    /// A reply that has not come after this long will not come.
    pub(crate) lost_after: Nanos,
}

impl Load for TextLoad {
    fn title(&self) -> String {
        let pace = match self.pace {
            Pace::Closed { window } => format!("closed loop, window {window}"),
            Pace::Open { per_second } => format!("open loop, {per_second} per second"),
        };
        let joined = if self.join { " joined" } else { "" };
        let Self { clients, burst, keys, .. } = self;
        format!("{clients} clients, {pace}, burst {burst}{joined}, {keys} keys")
    }

    fn run(&self, progress: &dyn Fn(u64, Nanos)) -> io::Result<Tally> {
        on_threads(self.threads, progress, |number, answered| self.work(number, answered))
    }
}

impl TextLoad {
    /// Makes the server remember every key, so that none is new when it is measured.
    pub(crate) fn touch_every_key(&self) -> io::Result<()> {
        let touch = TextLoad {
            clients: 8,
            threads: 1,
            burst: BATCH / 2,
            pace: Pace::Closed { window: BATCH },
            choice: Choice::InTurn,
            until: Until { span: Nanos::MAX / 2, count: self.keys },
            ..self.clone()
        };
        touch.run(&|_, _| ()).map(drop)
    }

    /// The work of one thread.
    fn work(&self, number: usize, answered: &AtomicU64) -> io::Result<Tally> {
        let share = |whole: usize| (whole + self.threads - 1 - number) / self.threads;
        let sockets = (0..share(self.clients))
            .map(|_| datagrams::open(self.server, self.join))
            .collect::<io::Result<Vec<_>>>()?;
        let window = match self.pace {
            Pace::Closed { window } => window,
            Pace::Open { .. } => OPEN_WINDOW,
        };
        let shared = Shared {
            inbox: Inbox::new(self.join),
            outbox: Outbox::new(self.join),
            keys: Keys::new(self.keys, self.choice, number as u64),
            tally: Tally::new(),
            lost_after: self.lost_after,
        };
        let mut worker = Worker {
            load: self,
            clients: sockets.iter().map(|_| Client::new(window)).collect(),
            sockets: &sockets,
            ready: sockets.iter().map(|s| PollFd::new(s, PollFlags::IN)).collect(),
            shared,
            quota: self.until.count.div_ceil(self.threads as u64),
            next: 0,
        };
        let elapsed = worker.run(answered)?;
        Ok(Tally { elapsed, ..worker.shared.tally })
    }
}

/// One thread with its share of the clients.
struct Worker<'a> {
    load: &'a TextLoad,
    sockets: &'a [UdpSocket],
    clients: Vec<Client>,
    ready: Vec<PollFd<'a>>,
    shared: Shared,
    quota: u64,
    /// The client whose turn it is in an open loop.
    next: usize,
}

impl<'a> Worker<'a> {
    fn run(&mut self, answered: &AtomicU64) -> io::Result<Nanos> {
        let start = clock::now();
        let end = start.saturating_add(self.load.until.span);
        let mut look = start + GIVE_UP_EVERY;
        let mut told = 0;
        for at in 0..self.clients.len() {
            self.refill(at);
        }
        loop {
            let now = clock::now();
            if now >= end || self.shared.tally.sent >= self.quota {
                break;
            }
            let due = self.send_due(start, now);
            self.wait(due.min(end).saturating_sub(now).min(POLL_MAX))?;
            for at in 0..self.clients.len() {
                if self.ready[at].revents().contains(PollFlags::IN) {
                    self.take(at);
                    self.refill(at);
                }
            }
            if now >= look {
                look = now + GIVE_UP_EVERY;
                self.give_up(now);
            }
            answered.fetch_add(self.shared.tally.answered - told, Relaxed);
            told = self.shared.tally.answered;
        }
        let elapsed = clock::now() - start;
        self.drain()?;
        Ok(elapsed)
    }

    fn socket(&self, at: usize) -> &'a UdpSocket {
        &self.sockets[at]
    }

    fn take(&mut self, at: usize) {
        let socket = self.socket(at);
        while self.clients[at].receive(&mut self.shared, socket) {}
    }

    /// Closed loop: fills the window of client `at`, in whole bursts.
    fn refill(&mut self, at: usize) {
        let Pace::Closed { .. } = self.load.pace else { return };
        let socket = self.socket(at);
        while self.clients[at].room() >= self.load.burst && self.shared.tally.sent < self.quota {
            let room = self.clients[at].room().min(BATCH);
            let count = if self.load.burst > 1 { self.load.burst } else { room };
            let left = self.quota - self.shared.tally.sent;
            let count = count.min(usize::try_from(left).unwrap_or(usize::MAX));
            let now = clock::now();
            self.clients[at].send(&mut self.shared, socket, count, now);
        }
    }

    /// Open loop: sends what is due; returns when the next is.
    fn send_due(&mut self, start: Nanos, now: Nanos) -> Nanos {
        let Pace::Open { per_second } = self.load.pace else { return Nanos::MAX };
        let threads = self.load.threads as u128;
        let burst = self.load.burst as u64;
        loop {
            let nanos = u128::from(self.shared.tally.sent) * u128::from(SECOND) * threads;
            let due = start + (nanos / u128::from(per_second)) as u64;
            if due > now || self.shared.tally.sent >= self.quota {
                return due;
            }
            let at = self.next;
            self.next = (at + 1) % self.clients.len();
            let socket = self.socket(at);
            let room = self.clients[at].room() as u64;
            self.clients[at].send(&mut self.shared, socket, burst as usize, due);
            let unsent = burst.saturating_sub(room);
            self.shared.tally.sent += unsent;
            self.shared.tally.lost += unsent;
        }
    }

    fn wait(&mut self, span: Nanos) -> io::Result<()> {
        let timeout = Timespec { tv_sec: (span / SECOND) as i64, tv_nsec: (span % SECOND) as _ };
        match poll(&mut self.ready, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn give_up(&mut self, now: Nanos) {
        for client in &mut self.clients {
            client.give_up(&mut self.shared, now);
        }
    }

    /// Waits for the last replies.
    fn drain(&mut self) -> io::Result<()> {
        while !self.clients.iter().all(Client::is_idle) {
            self.wait(POLL_MAX)?;
            for at in 0..self.clients.len() {
                self.take(at);
            }
            let now = clock::now();
            self.give_up(now);
        }
        Ok(())
    }
}
