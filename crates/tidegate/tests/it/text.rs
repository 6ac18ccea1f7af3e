//! The text door of the real program: addresses, who may ask, bursts and hostile input.
//!
//! Silence is never waited for: a datagram that must not be answered is followed by two pings, one
//! after the other, on the same socket. Whatever the door had to say to it would have come before
//! the second pong.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};

use tidegate_wire::text::{self, CheckLimit, TextCommand};

use crate::program::{DOORS, PATIENCE, Program};

/// Datagrams that are in flight at once: few enough for every socket's buffer.
const CHUNK: usize = 32;

/// A client with a socket of its own.
pub(crate) struct Client {
    socket: UdpSocket,
    server: SocketAddr,
    barriers: u64,
}

impl Client {
    pub(crate) fn new(server: SocketAddr) -> Self {
        let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        Self::bound(any, server)
    }

    fn bound(local: &str, server: SocketAddr) -> Self {
        let socket = UdpSocket::bind(local).expect("a free port");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self { socket, server, barriers: 0 }
    }

    pub(crate) fn send(&self, request: &[u8]) {
        self.socket.send_to(request, self.server).expect("the datagram leaves");
    }

    /// The next reply, which must come from the address that was asked.
    pub(crate) fn reply(&self) -> Vec<u8> {
        let mut buffer = [0; 65_536];
        let (length, from) = self.socket.recv_from(&mut buffer).expect("a reply comes");
        assert_eq!(from, self.server, "a reply leaves from the address asked");
        buffer[..length].to_vec()
    }

    pub(crate) fn ask(&self, request: &str) -> String {
        self.send(request.as_bytes());
        String::from_utf8(self.reply()).expect("text")
    }

    /// All replies to what was sent so far.
    fn replies(&mut self) -> Vec<Vec<u8>> {
        let mut replies = Vec::new();
        for _ in 0..2 {
            self.barriers += 1;
            // Longer than any id that the tests make by chance.
            let id = format!("{:040}", self.barriers);
            self.send(format!("{id} ping").as_bytes());
            let pong = format!("{id} pong").into_bytes();
            loop {
                match self.reply() {
                    reply if reply == pong => break,
                    reply => replies.push(reply),
                }
            }
        }
        replies
    }
}

/// The value of `tidegate_bad_input_total` for one reason.
fn bad_input(program: &Program, reason: &str) -> u64 {
    let mut stream = TcpStream::connect(program.address("http")).expect("the HTTP door is open");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let ask = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(ask).expect("the request leaves");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("a page");
    page.lines()
        .filter(|line| line.starts_with("tidegate_bad_input_total{"))
        .filter(|line| line.contains("door=\"text\""))
        .filter(|line| line.contains(&format!("reason=\"{reason}\"")))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok())
        .sum()
}

#[test]
fn every_kind_of_address_answers_from_where_it_was_asked() {
    let program = Program::serve(
        "[text]\nlisten = [\"127.0.0.1:0\", \"[::1]:0\", \"0.0.0.0:0\", \"[::]:0\"]\n",
    );
    let addresses: Vec<SocketAddr> = program.listening().iter().map(|(_, a)| *a).collect();
    let [v4, v6, any_v4, any_v6] = addresses[..] else { panic!("four lines: {addresses:?}") };
    let ports = [any_v4.port(), any_v6.port()];
    for server in [
        v4,
        v6,
        SocketAddr::from(([127, 0, 0, 1], ports[0])),
        // Another address of this machine: a reply from the usual one would be wrong.
        SocketAddr::from(([127, 0, 0, 77], ports[0])),
        SocketAddr::new("::1".parse().expect("an address"), ports[1]),
    ] {
        let client = Client::new(server);
        assert_eq!(client.ask("1 ping"), "1 pong", "{server}");
        assert_eq!(client.ask("2 over_limit nobody's"), "2 ok N 0.0 1.0 1", "{server}");
    }
}

#[test]
fn many_clients_are_answered_whichever_loop_they_meet() {
    let program = Program::serve(DOORS);
    for number in 0..50 {
        let client = Client::new(program.address("text"));
        assert_eq!(client.ask(&format!("{number} ping")), format!("{number} pong"));
    }
}

#[test]
fn who_is_not_allowed_gets_no_answer() {
    let program = Program::serve(
        "[text]\nlisten = \"127.0.0.1:0\"\nallow = [\"127.0.0.2\"]\n\
         [http]\nlisten = \"127.0.0.1:0\"\n",
    );
    let server = program.address("text");
    let stranger = Client::bound("127.0.0.3:0", server);
    stranger.send(b"ping");
    while bad_input(&program, "not_allowed") == 0 {
        std::thread::yield_now();
    }
    let friend = Client::bound("127.0.0.2:0", server);
    assert_eq!(friend.ask("ping"), "pong");
    stranger.socket.set_nonblocking(true).expect("a mode");
    assert!(stranger.socket.recv(&mut [0; 16]).is_err(), "a stranger was answered");
    assert_eq!(bad_input(&program, "not_allowed"), 1);
}

#[test]
fn too_long_datagrams_are_ignored_and_counted() {
    let program = Program::serve(DOORS);
    let mut client = Client::new(program.address("text"));
    let mut request = b"over_limit ".to_vec();
    request.resize(1000, b'k');
    client.send(&request);
    assert_eq!(client.replies(), [b"ok N 0.0 1.0 1".to_vec()], "1000 bytes are a request");
    for length in [1001, 1002, 1024, 1025, 5000, 65_507] {
        request.resize(length, b'k');
        client.send(&request);
        assert_eq!(client.replies(), Vec::<Vec<u8>>::new(), "{length} bytes");
    }
    assert_eq!(bad_input(&program, "too_long"), 6);
}

#[test]
fn a_burst_from_one_client_is_answered_whole() {
    let program = Program::serve(DOORS);
    let client = Client::new(program.address("text"));
    for round in 0..20 {
        // Ids of several lengths, so that replies can be joined in part only.
        let ids: Vec<u64> = (0..64).map(|n| round * 64 + n * n * n).collect();
        for (at, id) in ids.iter().enumerate() {
            match at % 8 {
                7 => client.send(format!("{id} get_stats a key").as_bytes()),
                _ => client.send(format!("{id} over_limit a key").as_bytes()),
            }
        }
        let answered: BTreeSet<u64> = ids
            .iter()
            .map(|_| {
                let reply = String::from_utf8(client.reply()).expect("text");
                let (id, rest) = reply.split_once(' ').expect("an id");
                let stats = "n_req=0 n_over=0 last_max_rate=0 key=a key";
                assert!(rest == "ok N 0.0 1.0 1" || rest == stats, "{reply}");
                id.parse().expect("a number")
            })
            .collect();
        assert_eq!(answered, ids.into_iter().collect(), "each request has its reply");
    }
}

#[test]
fn a_second_server_does_not_share_the_port() {
    let first = Program::serve(DOORS);
    let taken = first.address("text");
    let mut second = Program::start(&format!("[text]\nlisten = \"{taken}\"\n"));
    let said = second.rest_of_stderr();
    assert_eq!(second.exit_status().code(), Some(1), "{said:?}");
    assert_eq!(Client::new(taken).ask("ping"), "pong");
}

/// Whether a datagram must be answered, by the codec's word.
fn answers(datagram: &[u8]) -> bool {
    match text::parse(datagram).map(|request| request.command) {
        Ok(TextCommand::CheckLimit(json)) => CheckLimit::parse(json).is_ok(),
        Ok(_) => true,
        Err(_) => false,
    }
}

/// Sends all datagrams and sees that exactly the well-formed ones are answered.
fn bombard(program: &Program, datagrams: impl Iterator<Item = Vec<u8>>) -> usize {
    let mut client = Client::new(program.address("text"));
    let mut sent = 0;
    let mut datagrams = datagrams.peekable();
    while datagrams.peek().is_some() {
        let chunk: Vec<Vec<u8>> = datagrams.by_ref().take(CHUNK).collect();
        for datagram in &chunk {
            client.send(datagram);
        }
        let replies = client.replies();
        let expected = chunk.iter().filter(|datagram| answers(datagram)).count();
        let lossy = |list: &[Vec<u8>]| -> Vec<String> {
            list.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
        };
        assert_eq!(replies.len(), expected, "{:#?}\n{:#?}", lossy(&chunk), lossy(&replies));
        sent += chunk.len();
    }
    sent
}

const WELL_FORMED: [&str; 8] = [
    "ping",
    "17 ping",
    "get_size",
    "9 over_limit ws ip=1.2.3.4",
    "over_limit key\n",
    "get_stats ws global",
    "check_limit {\"origin\":\"ws\",\"ip\":\"1.2.3.4\"}",
    "3 check_limit {}\n",
];

#[test]
fn every_byte_in_every_position_of_each_command() {
    let program = Program::serve(DOORS);
    let changed = WELL_FORMED.iter().flat_map(|request| {
        (0..request.len()).flat_map(move |at| {
            (0..=u8::MAX).map(move |byte| {
                let mut bytes = request.as_bytes().to_vec();
                bytes[at] = byte;
                bytes
            })
        })
    });
    let sent = bombard(&program, changed);
    assert_eq!(sent, WELL_FORMED.iter().map(|request| request.len() * 256).sum::<usize>());
    assert_eq!(Client::new(program.address("text")).ask("ping"), "pong");
}

/// Kilobytes of memory that the program has in use.
fn resident_kb(program: &Program) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.pid()));
    let status = status.expect("the program lives");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    line.split_ascii_whitespace().nth(1).and_then(|kb| kb.parse().ok()).expect("a number")
}

/// A small generator of bytes; the same seed gives the same bytes.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }

    /// Noise of any length, or a request with a few bytes changed, cut out or put in.
    fn datagram(&mut self) -> Vec<u8> {
        if self.below(4) == 0 {
            let length = self.below(1100);
            return (0..length).map(|_| self.below(256) as u8).collect();
        }
        let mut bytes = WELL_FORMED[self.below(WELL_FORMED.len())].as_bytes().to_vec();
        for _ in 0..self.below(4) {
            let at = self.below(bytes.len() + 1);
            match self.below(3) {
                0 => bytes.insert(at, self.below(256) as u8),
                1 if at < bytes.len() => bytes[at] = self.below(256) as u8,
                _ => bytes.truncate(bytes.len().saturating_sub(1)),
            }
        }
        bytes
    }
}

#[test]
fn random_datagrams() {
    // `make soak` sends them all; every run sends a share.
    let whole = std::env::var_os("TIDEGATE_SOAK").is_some();
    let count = if whole { 1_000_000 } else { 50_000 };
    let program = Program::serve(DOORS);
    let mut random = Random(0x7469_6465_6761_7465);
    bombard(&program, (0..2_000).map(|_| random.datagram()).collect::<Vec<_>>().into_iter());
    let before = resident_kb(&program);
    let sent = bombard(&program, std::iter::repeat_with(|| random.datagram()).take(count));
    assert_eq!(sent, count);
    let grown = resident_kb(&program).saturating_sub(before);
    assert!(grown < 32 * 1024, "{grown} kB more after {count} datagrams");
    assert_eq!(Client::new(program.address("text")).ask("ping"), "pong");
}
