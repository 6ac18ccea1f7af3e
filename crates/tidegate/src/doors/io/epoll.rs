//! Waiting for many sockets at once: a thin wrapper around epoll, level-triggered.
//!
//! It knows tokens and readiness, and nothing of what happens on a socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData};
use rustix::io::Errno;
use rustix::time::Timespec;
use tidegate_core::Nanos;
use tidegate_core::time::SECOND;

pub(super) use rustix::event::epoll::EventFlags as Interest;

use super::handler::ConnectionId;

/// The most sockets that one wait reports.
const EVENTS_MAX: usize = 256;

/// What a ready socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// Clients wait to be accepted.
    Listener,
    /// Something lies in the inbox.
    Inbox,
    /// A connection is ready.
    Connection(ConnectionId),
}

const LISTENER: u64 = u64::MAX;
const INBOX: u64 = u64::MAX - 1;

impl From<Token> for EventData {
    fn from(token: Token) -> Self {
        EventData::new_u64(match token {
            Token::Listener => LISTENER,
            Token::Inbox => INBOX,
            Token::Connection(ConnectionId { slot, generation }) => {
                u64::from(slot) << 32 | u64::from(generation)
            }
        })
    }
}

impl From<EventData> for Token {
    fn from(data: EventData) -> Self {
        match data.u64() {
            LISTENER => Token::Listener,
            INBOX => Token::Inbox,
            // Places are far fewer than 2^32, so that no connection is taken for the two above.
            bits => Token::Connection(ConnectionId {
                slot: (bits >> 32) as u32,
                generation: bits as u32,
            }),
        }
    }
}

/// What one loop waits with.
pub(super) struct Epoll {
    epoll: OwnedFd,
}

/// The sockets that a wait reported.
pub(super) struct Ready(Vec<Event>);

impl Ready {
    /// None yet.
    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(EVENTS_MAX))
    }

    /// How many they are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The socket at this position.
    pub(super) fn at(&self, position: usize) -> Token {
        let event = self.0[position];
        event.data.into()
    }
}

impl Epoll {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Watches a socket until it is closed or [`Self::forget`] is called.
    pub(super) fn watch(
        &self,
        socket: impl AsFd,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, token.into(), interest)?)
    }

    /// Changes what a socket is watched for.
    pub(super) fn change(
        &self,
        socket: impl AsFd,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, socket, token.into(), interest)?)
    }

    /// Stops watching a socket.
    pub(super) fn forget(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Waits until something can be done, for so long at most.
    pub(super) fn wait(&self, longest: Nanos, ready: &mut Ready) -> io::Result<()> {
        let longest =
            Timespec { tv_sec: (longest / SECOND) as i64, tv_nsec: (longest % SECOND) as i64 };
        ready.0.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut ready.0), Some(&longest)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
