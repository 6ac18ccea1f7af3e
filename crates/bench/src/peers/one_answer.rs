//! Peers of the JARL door: every client is told the same. One loop for each core, as few system
//! calls as the way to close allows, and nothing else. What the careful one costs is what any such
//! door must cost; the abrupt one shows the price of being careful.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, accept_with, recv, send, shutdown};
use rustix::time::Timespec;
use tidegate_core::Nanos;
use tidegate_core::time::MILLISECOND;

use super::{listen, on_threads};
use crate::clock;

/// What everybody is told.
const ANSWER: &[u8] = b"0.000";
/// Clients that are accepted in one turn.
const ACCEPTS_MAX: usize = 64;
/// How long a client is given to leave.
const LINGER_MAX: Nanos = 5 * MILLISECOND;
const LINGER: Timespec = Timespec { tv_sec: 0, tv_nsec: LINGER_MAX as i64 };

/// How a connection is closed.
#[derive(Clone, Copy)]
pub(super) enum Close {
    /// The end of the stream leaves with the answer; the socket is closed when the client left.
    Careful,
    /// At once.
    Abrupt,
}

/// Serves until the process is killed.
pub(super) fn serve(close: Close) -> io::Result<()> {
    let listeners = listen()?;
    on_threads(listeners[0].local_addr()?, listeners, move |listener| run(&listener, close))
}

fn run(listener: &TcpListener, close: Close) -> io::Result<()> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, listener, EventData::new_u64(0), EventFlags::IN)?;
    let mut events = Vec::with_capacity(1);
    let mut leaving: VecDeque<(OwnedFd, Nanos)> = VecDeque::new();
    let mut accepts = 1;
    loop {
        events.clear();
        let longest = (!leaving.is_empty()).then_some(&LINGER);
        match epoll::wait(&epoll, spare_capacity(&mut events), longest) {
            Ok(_) | Err(Errno::INTR) => (),
            Err(error) => return Err(error.into()),
        }
        let now = clock::now();
        if !events.is_empty() {
            let mut found = 0;
            while found < accepts
                && let Ok(socket) =
                    accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)
            {
                found += 1;
                if let Some(socket) = tell(socket, close) {
                    leaving.push_back((socket, now));
                }
            }
            let more = if found == accepts { 2 * accepts } else { found };
            accepts = more.clamp(1, ACCEPTS_MAX);
        }
        while leaving.front().is_some_and(|(_, since)| now >= since + LINGER_MAX) {
            if let Some((socket, _)) = leaving.pop_front() {
                // Nothing, if it has left; otherwise it is closed as well, there is no table here.
                let _ = recv(&socket, &mut [0; 64], RecvFlags::DONTWAIT);
            }
        }
    }
}

/// Writes the answer; the socket, if it must stay for a while.
fn tell(socket: OwnedFd, close: Close) -> Option<OwnedFd> {
    match close {
        Close::Abrupt => {
            let _ = send(&socket, ANSWER, SendFlags::NOSIGNAL);
            None
        }
        Close::Careful => {
            let sent = send(&socket, ANSWER, SendFlags::MORE | SendFlags::NOSIGNAL).is_ok();
            (sent && shutdown(&socket, Shutdown::Write).is_ok()).then_some(socket)
        }
    }
}
