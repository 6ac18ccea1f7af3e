//! A peer of the Throttr door: sends every byte back as it came. One loop for each core, one read
//! and one write for each socket that is ready, and nothing else. What it costs is what any such
//! door must cost.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, read, write};

use super::{listen, on_threads};

/// Sockets that one wait tells of, and bytes that one read takes.
const EVENTS_MAX: usize = 256;
const READ_BYTES_MAX: usize = 64 << 10;

/// Serves until the process is killed.
pub(super) fn serve() -> io::Result<()> {
    let listeners = listen()?;
    on_threads(listeners[0].local_addr()?, listeners, |listener| run(&listener))
}

fn run(listener: &TcpListener) -> io::Result<()> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    let name = |socket: &dyn AsRawFd| EventData::new_u64(socket.as_raw_fd() as u64);
    epoll::add(&epoll, listener, name(listener), EventFlags::IN)?;
    let mut streams: Vec<Option<TcpStream>> = Vec::new();
    let mut events = Vec::with_capacity(EVENTS_MAX);
    let mut buffer = vec![0; READ_BYTES_MAX];
    loop {
        events.clear();
        match epoll::wait(&epoll, spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => (),
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let at = event.data.u64() as usize;
            if at == listener.as_raw_fd() as usize {
                let Ok((stream, _)) = listener.accept() else { continue };
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                epoll::add(&epoll, &stream, name(&stream), EventFlags::IN)?;
                let at = stream.as_raw_fd() as usize;
                streams.resize_with(streams.len().max(at + 1), || None);
                streams[at] = Some(stream);
            } else if let Some(place) = streams.get_mut(at)
                && place.as_ref().is_some_and(|stream| !echo(stream, &mut buffer))
            {
                *place = None;
            }
        }
    }
}

/// Sends back what is there. Returns whether the connection goes on.
fn echo(stream: &TcpStream, buffer: &mut [u8]) -> bool {
    let count = match read(stream, &mut *buffer) {
        Ok(0) => return false,
        Ok(count) => count,
        Err(Errno::AGAIN | Errno::INTR) => return true,
        Err(_) => return false,
    };
    let mut rest = &buffer[..count];
    while !rest.is_empty() {
        match write(stream, rest) {
            Ok(count) => rest = &rest[count..],
            Err(Errno::INTR) => (),
            // Rare, since no load sends more than fits: the other clients wait meanwhile.
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::OUT)], None);
            }
            Err(_) => return false,
        }
    }
    true
}
