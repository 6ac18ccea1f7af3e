//! The peer: sends every datagram back as it came, with the same batched calls as the text door,
//! one loop for each core, and nothing else. What it costs is what any such door must cost.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::thread;

use crate::doors::text::loops;
use crate::doors::text::mmsg::{Address, BATCH, Inbox, Message, Outbox};
use crate::doors::text::socket::{self, Wire};

/// Serves until the process is killed.
pub(super) fn serve(address: SocketAddr) -> io::Result<()> {
    let wires = socket::bind(address, loops())?;
    let bound = wires[0].socket.local_addr()?;
    eprintln!("listening door=echo addr={bound}");
    eprintln!("ready");
    let threads: Vec<_> = wires.into_iter().map(|wire| thread::spawn(move || run(&wire))).collect();
    for thread in threads {
        let _ = thread.join();
    }
    Ok(())
}

fn run(wire: &Wire) {
    let mut inbox = Inbox::new(wire.locals, false);
    let mut outbox = Outbox::new();
    loop {
        // Timeouts and errors alike: there is nothing to send back.
        let Ok(count) = inbox.receive(wire.socket.as_fd(), true) else { continue };
        let nobody = Address::default();
        let mut parts = [IoSlice::new(&[]); BATCH];
        let mut messages = [Message::new(&nobody, &[]); BATCH];
        for (at, part) in parts.iter_mut().enumerate().take(count) {
            *part = IoSlice::new(inbox.bytes(at).unwrap_or_default());
        }
        for (at, part) in parts.iter().enumerate().take(count) {
            messages[at] = Message {
                from: inbox.local(at),
                ..Message::new(inbox.sender(at), std::slice::from_ref(part))
            };
        }
        outbox.send(wire.socket.as_fd(), &messages[..count], |_, _| ());
    }
}
