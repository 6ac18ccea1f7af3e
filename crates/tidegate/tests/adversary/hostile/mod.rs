//! Hostile clients: they say whatever a door understands, cut anywhere, or nonsense; they read all,
//! some or nothing of the answers; and they leave in every way, at every point.

mod admin;
pub(crate) mod datagrams;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod http2;
pub(crate) mod jarl;
pub(crate) mod proxy;
mod resp;
pub(crate) mod smockron;
pub(crate) mod stopped;
pub(crate) mod throttr;

use std::io::{Read as _, Write as _};
use std::sync::Mutex;
use std::time::Duration;

use crate::net::{Address, Stream};
use crate::seed::Random;
use crate::server::Doors;

/// How long a hostile client tries to write, and how long it reads.
const HASTE: Duration = Duration::from_millis(20);
/// Requests that one client sends one behind the other, at most.
const PIPELINE_MAX: usize = 6;
/// A client that has sent more than this leaves by a reset. The end of a stream stands behind all
/// bytes in front of it: where the server does not read them, because the request waits, and the
/// socket has no room for them, it cannot see that end.
const SEEN_LEAVING_MAX: usize = 32 << 10;

/// A listener, and what can be said there: whole requests, or whole conversations where a door has
/// a handshake.
pub(crate) struct Target {
    pub(crate) address: Address,
    pub(crate) scripts: Vec<Vec<u8>>,
    /// What ends up waiting there, or asks for more than its client will read.
    pub(crate) burdens: Vec<Vec<u8>>,
}

/// Every listener for streams.
pub(crate) fn targets(doors: &Doors) -> Vec<Target> {
    let mut targets = Vec::new();
    throttr::add(doors, &mut targets);
    jarl::add(doors, &mut targets);
    smockron::add(doors, &mut targets);
    proxy::add(doors, &mut targets);
    resp::add(doors, &mut targets);
    grpc::add(doors, &mut targets);
    http::add(doors, &mut targets);
    admin::add(doors, &mut targets);
    targets
}

/// How a client leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leave {
    Reset,
    Close,
    HalfClose,
    /// It stays until the end of the round and says nothing.
    Silence,
}

pub(crate) const LEAVES: [Leave; 4] =
    [Leave::Reset, Leave::Close, Leave::HalfClose, Leave::Silence];

/// Clients that stay until the end of the round.
#[derive(Default)]
pub(crate) struct Held(Mutex<Vec<Stream>>);

impl Held {
    fn keep(&self, stream: Stream) {
        self.0.lock().expect("no panic").push(stream);
    }

    /// All of them leave.
    pub(crate) fn release(self) {
        self.0.into_inner().expect("no panic").into_iter().for_each(Stream::reset);
    }
}

/// What a client reads before it leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reads {
    Nothing,
    Some,
    All,
}

pub(crate) const READS: [Reads; 3] = [Reads::Nothing, Reads::Some, Reads::All];

/// Connects, says `bytes`, reads and leaves. A door may refuse any of it: that is its right.
pub(crate) fn visit(target: &Target, bytes: &[u8], reads: Reads, leave: Leave, held: &Held) {
    let Ok(mut stream) = Stream::connect(&target.address) else { return };
    let _ = stream.patience(HASTE);
    let _ = stream.write_all(bytes);
    if let Leave::HalfClose = leave {
        stream.half_close();
    }
    match reads {
        Reads::Nothing => {}
        Reads::Some => drop(stream.read(&mut [0; 3])),
        Reads::All => while stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {},
    }
    match leave {
        Leave::Silence => held.keep(stream),
        Leave::Reset => stream.reset(),
        _ if bytes.len() > SEEN_LEAVING_MAX => stream.reset(),
        Leave::Close | Leave::HalfClose => {}
    }
}

/// A visit with a random pipeline, cut anywhere, and at times damaged.
pub(crate) fn random_visit(targets: &[Target], random: &mut Random, held: &Held) {
    let target = random.pick(targets);
    let count = 1 + random.below(PIPELINE_MAX);
    let mut bytes: Vec<u8> =
        (0..count).flat_map(|_| random.pick(&target.scripts).clone()).collect();
    if random.one_in(2) {
        bytes.truncate(random.below(bytes.len() + 1));
    }
    if random.one_in(4) && !bytes.is_empty() {
        let at = random.below(bytes.len());
        bytes[at] = random.next() as u8;
    }
    if random.one_in(10) {
        let count = random.below(3_000);
        bytes = random.bytes(count);
    }
    let reads = *random.pick(&READS);
    // Silence is rare, or a round would end with thousands of connections.
    let leave = if random.one_in(10) { Leave::Silence } else { LEAVES[random.below(3)] };
    visit(target, &bytes, reads, leave, held);
}

/// Clients that bring burdens, all at once. They stay until they are told to leave.
pub(crate) fn burden(
    targets: &[Target],
    random: &mut Random,
    times: usize,
) -> Vec<(Stream, usize)> {
    let mut streams = Vec::new();
    for target in targets {
        for burden in &target.burdens {
            for _ in 0..times {
                let Ok(mut stream) = Stream::connect(&target.address) else { continue };
                let _ = stream.patience(HASTE);
                if random.one_in(2) {
                    stream.read_little();
                }
                let _ = stream.write_all(burden);
                streams.push((stream, burden.len()));
            }
        }
    }
    streams
}

/// All of them leave, each in its way; some read a little before. With each stream comes how much
/// was said on it.
pub(crate) fn leave_all(streams: Vec<(Stream, usize)>, random: &mut Random) {
    for (mut stream, said) in streams {
        match random.below(4) {
            _ if said > SEEN_LEAVING_MAX => stream.reset(),
            0 => stream.reset(),
            1 => {
                let _ = stream.read(&mut [0; 1000]);
                stream.reset();
            }
            2 => {
                stream.half_close();
                let _ = stream.read(&mut [0; 1000]);
            }
            _ => drop(stream),
        }
    }
}

/// So many connections to one listener at the same time, most of them silent.
pub(crate) fn flood(target: &Target, count: usize, random: &mut Random) {
    let mut streams = Vec::new();
    for _ in 0..count {
        let Ok(mut stream) = Stream::connect(&target.address) else { continue };
        let _ = stream.patience(HASTE);
        let speaks = random.one_in(3);
        let said = if speaks { random.pick(&target.scripts).as_slice() } else { &[] };
        let _ = stream.write_all(said);
        streams.push((stream, said.len()));
    }
    for (stream, said) in streams {
        if said > SEEN_LEAVING_MAX || random.one_in(2) {
            stream.reset();
        }
    }
}
