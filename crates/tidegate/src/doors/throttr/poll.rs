//! Waiting for many sockets at once: a thin wrapper around epoll, level-triggered.
//!
//! It knows tokens and readiness, and nothing of what happens on a socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData};
use rustix::io::Errno;
use rustix::time::Timespec;

pub(super) use rustix::event::epoll::EventFlags as Interest;

/// The most sockets that one wait tells of.
const EVENTS_MAX: usize = 256;

/// What a socket is called in what a wait tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// Clients wait to be accepted.
    Listener,
    /// Somebody left a letter.
    Bell,
    /// A connection; the generation tells it from an earlier one at the same place.
    Connection { slot: u32, generation: u32 },
}

const LISTENER: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;

impl From<Token> for EventData {
    fn from(token: Token) -> Self {
        EventData::new_u64(match token {
            Token::Listener => LISTENER,
            Token::Bell => BELL,
            Token::Connection { slot, generation } => u64::from(slot) << 32 | u64::from(generation),
        })
    }
}

impl From<EventData> for Token {
    fn from(data: EventData) -> Self {
        match data.u64() {
            LISTENER => Token::Listener,
            BELL => Token::Bell,
            // Places are far fewer than 2^32, so that no connection is taken for the two above.
            bits => Token::Connection { slot: (bits >> 32) as u32, generation: bits as u32 },
        }
    }
}

/// What one loop waits with.
pub(super) struct Poll {
    epoll: OwnedFd,
}

/// The sockets that a wait told of.
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

    /// The socket at this position, and what it is ready for.
    pub(super) fn at(&self, position: usize) -> (Token, Interest) {
        let event = self.0[position];
        (event.data.into(), event.flags)
    }
}

impl Poll {
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
    pub(super) fn wait(&self, longest: Duration, ready: &mut Ready) -> io::Result<()> {
        let longest = Timespec {
            tv_sec: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: longest.subsec_nanos().into(),
        };
        ready.0.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut ready.0), Some(&longest)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
