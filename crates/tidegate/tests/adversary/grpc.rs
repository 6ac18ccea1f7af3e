//! What hostile clients of the gRPC door may make the server hold, and for how long: messages that
//! come in slowly on many streams, calls that never end, and the end of the server among them.

use std::collections::HashSet;
use std::io::{self, Read as _, Write as _};
use std::thread;

use rustix::process::Signal;

use crate::canary::Flock;
use crate::clock::{Moment, WATCHDOG};
use crate::hostile::grpc::{burdens, open_rate_limit, prefix, question};
use crate::hostile::http2::{
    DATA, FRAME_BYTES_MAX, FRAME_HEAD_BYTES, HEADERS, RST_STREAM, WINDOW_UPDATE, frame, greeting,
    streams,
};
use crate::net::{Address, Stream};
use crate::quiet;
use crate::rounds::open_many_files;
use crate::seed::Seed;
use crate::server::Server;

/// Connections whose messages never end, the streams of each, and the bytes that each sends if it
/// may: together several times what the server may take.
const CONNECTIONS: usize = 6;
const STREAMS: u32 = 1_000;
const SENT_BYTES_MAX: usize = 160 << 20;
/// What the server may take for them: three times the bytes that the door may hold.
const TAKEN_KIB_MAX: u64 = 400 << 10;
/// The window of a connection until the server opens it further.
const FIRST_WINDOW: usize = 65_535;
/// The longest message that the door takes.
const MESSAGE_BYTES_MAX: u32 = 4 << 20;

/// A client that keeps to the windows of its connection, and knows which streams were answered.
struct Client {
    stream: Stream,
    /// Bytes of a frame that is not whole.
    inbox: Vec<u8>,
    window: usize,
    answered: HashSet<u32>,
}

impl Client {
    fn connect(address: &Address) -> io::Result<Self> {
        let mut stream = Stream::connect(address)?;
        stream.write_all(&greeting(&[]))?;
        Ok(Self { stream, inbox: Vec::new(), window: FIRST_WINDOW, answered: HashSet::new() })
    }

    /// Sends a piece of a call's message as soon as there is room for it.
    fn data(&mut self, stream: u32, piece: &[u8]) -> io::Result<()> {
        while self.window < piece.len() {
            self.read()?;
        }
        self.window -= piece.len();
        self.stream.write_all(&frame(DATA, 0, stream, piece))
    }

    /// Takes in what the server says.
    fn read(&mut self) -> io::Result<()> {
        let mut bytes = [0; 65_536];
        let count = self.stream.read(&mut bytes)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.inbox.extend_from_slice(&bytes[..count]);
        let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        while let Some(head) = self.inbox.get(..FRAME_HEAD_BYTES) {
            let (kind, stream) = (head[3], number(&head[5..]));
            let end = FRAME_HEAD_BYTES + number(&head[..3]) as usize;
            let Some(body) = self.inbox.get(FRAME_HEAD_BYTES..end) else { break };
            match kind {
                WINDOW_UPDATE if stream == 0 => self.window += number(body) as usize,
                HEADERS | RST_STREAM => drop(self.answered.insert(stream)),
                _ => {}
            }
            self.inbox.drain(..end);
        }
        Ok(())
    }
}

/// Sends a little of each of a thousand long messages, again and again, until it has sent enough
/// or the server will have no more.
fn send_slowly(address: &Address) -> io::Result<(Client, usize)> {
    let mut client = Client::connect(address)?;
    for stream in streams(STREAMS) {
        client.stream.write_all(&open_rate_limit(stream))?;
        client.data(stream, &prefix(0, MESSAGE_BYTES_MAX))?;
    }
    let (piece, mut sent) = (vec![b'm'; FRAME_BYTES_MAX], 0);
    while sent < SENT_BYTES_MAX && client.answered.len() < STREAMS as usize {
        for stream in streams(STREAMS) {
            if !client.answered.contains(&stream) {
                client.data(stream, &piece)?;
                sent += piece.len();
            }
        }
    }
    Ok((client, sent))
}

#[test]
fn slow_messages_take_no_more_than_their_share() {
    open_many_files();
    let seed = Seed::new();
    let server = Server::start("");
    let flock = Flock::start(&server.doors, &mut seed.random(5));
    flock.answers(10);
    flock.pause();
    let (before, holdings) = (quiet::peak_kib(&server), quiet::holdings(&server));
    flock.resume();
    let sent: usize = thread::scope(|scope| {
        let address = |number: usize| &server.doors.grpc[number % server.doors.grpc.len()];
        let senders: Vec<_> = (0..CONNECTIONS)
            .map(|number| scope.spawn(move || send_slowly(address(number))))
            .collect();
        let told: Vec<_> = senders.into_iter().map(|one| one.join().expect("no panic")).collect();
        // All that was taken is still held, and honest clients are served nevertheless.
        flock.answers(10);
        let sent = |told: &io::Result<(Client, usize)>| told.as_ref().map_or(0, |(_, sent)| *sent);
        told.iter().map(sent).sum()
    });
    let taken = quiet::peak_kib(&server) - before;
    eprintln!("{} KiB were sent, {taken} KiB were taken", sent >> 10);
    assert!(taken < TAKEN_KIB_MAX, "messages that are not whole take {taken} KiB");
    flock.answers(10);
    flock.pause();
    quiet::returns_to(&server, &holdings);
    flock.resume();
    flock.end();
}

/// A call whose message never comes, or comes without an end, is answered after a while.
#[test]
fn calls_without_an_end_are_ended() {
    let server = Server::start("");
    let asked = question("full", "slow");
    let length = u32::try_from(asked.len()).expect("a short message");
    let whole = [prefix(0, length), asked].concat();
    for address in &server.doors.grpc {
        let mut client = Client::connect(address).expect("the door is open");
        for (stream, part) in streams(4).zip([&whole[..0], &whole[..3], &whole[..9], &whole]) {
            client.stream.write_all(&open_rate_limit(stream)).expect("the door reads");
            client.data(stream, part).expect("the door reads");
        }
        let begun = Moment::now();
        while client.answered.len() < 4 {
            client.read().expect("an answer");
            assert!(!begun.is_overdue(), "only {:?} were answered", client.answered);
        }
    }
}

/// The server ends in its grace, whatever clients are in the middle of.
#[test]
fn the_end_waits_for_no_hostile_client() {
    let mut server = Server::start("");
    let mut clients = Vec::new();
    for address in &server.doors.grpc {
        for burden in burdens() {
            let mut stream = Stream::connect(address).expect("the door is open");
            stream.patience(std::time::Duration::from_millis(20)).expect("a socket");
            let _ = stream.write_all(&burden);
            clients.push(stream);
        }
    }
    let begun = Moment::now();
    server.program.signal(Signal::TERM);
    assert!(server.program.exit_status().success());
    assert!(begun.elapsed() < WATCHDOG, "stopping takes {:?}", begun.elapsed());
    eprintln!("ended after {:?}", begun.elapsed());
}
