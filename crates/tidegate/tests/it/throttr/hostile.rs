//! Hostile input: every byte, every length, and clients that do not behave.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::doors::throttr::{Conversation, ThrottrState};
use tidegate::metrics::Metrics;
use tidegate::records::{Records, Settings};
use tidegate_core::Now;
use tidegate_wire::throttr::{
    Attribute, Request, RequestKind, Take, Takes, Ttl, Unit, UpdateChange, ValueSize,
};

use super::{Client, DOOR, MINUTE, bad_input, u64_at, until, written};
use crate::program::{Program, binary};

/// One request of each kind.
fn one_of_each() -> Vec<Vec<u8>> {
    let (attribute, change) = (Some(Attribute::Quota), Some(UpdateChange::Increase));
    let take = Take { cost: 1, quota: 5, ttl: MINUTE, key: b"take" };
    let takes = [take, take];
    let requests = [
        Request::Insert { quota: 3, ttl: MINUTE, key: b"key" },
        Request::Query { key: b"key" },
        Request::Update { attribute, change, value: 2, key: b"key" },
        Request::Purge { key: b"key" },
        Request::Set { ttl: MINUTE, key: b"key", value: b"value" },
        Request::Get { key: b"key" },
        Request::List,
        Request::Info,
        Request::Stat { key: b"key" },
        Request::Stats,
        Request::Subscribe { channel: b"channel" },
        Request::Unsubscribe { channel: b"channel" },
        Request::Publish { channel: b"channel", payload: b"payload" },
        Request::Connections,
        Request::Connection { id: [7; 16] },
        Request::Channels,
        Request::Channel { channel: b"channel" },
        Request::Whoami,
        Request::Event { channel: b"", payload: b"\x18" },
        Request::Consume { cost: 1, quota: 5, ttl: MINUTE, key: b"key" },
        Request::ConsumeMany { takes: Takes::new(&takes) },
    ];
    assert_eq!(requests.len(), RequestKind::COUNT);
    requests.iter().map(|request| written(&[*request])).collect()
}

fn conversation(size: ValueSize) -> (Conversation, Now) {
    let records = Records::new(Settings { max_records: 1000, max_bytes: 1 << 24 });
    let clock = Clock::system();
    let state = ThrottrState::new(clock.clone());
    let metrics = Arc::new(Metrics::new());
    let now = clock.now();
    (Conversation::open(records, state, metrics, size, 1000, now).expect("a client"), now)
}

#[test]
fn any_byte_at_any_place() {
    for size in ValueSize::ALL {
        let (mut client, now) = conversation(size);
        let mut replies = Vec::new();
        for request in one_of_each() {
            for at in 0..request.len() {
                for byte in 0..=u8::MAX {
                    let mut changed = request.clone();
                    changed[at] = byte;
                    if !client.say(&changed, now, &mut replies) {
                        client = conversation(size).0;
                    }
                    // Whatever it waits for, the next one starts anew.
                    client.hang_up();
                }
            }
            replies.clear();
        }
    }
}

#[test]
fn any_type_and_any_length_over_a_socket() {
    let program = Program::serve(DOOR);
    let known: Vec<u8> = RequestKind::ALL.iter().map(|kind| kind.type_byte()).collect();
    for kind in 0..=u8::MAX {
        let mut client = Client::new(&program);
        client.send(&[kind]);
        if known.contains(&kind) {
            client.end();
        }
        // Unknown types are refused without waiting for anything else.
        client.rest();
        let mut client = Client::new(&program);
        // Without an answer to them all, it may be closed before all of it is written.
        let _ = client.0.write_all(&[&[kind][..], &[0; 700]].concat());
        client.end();
        client.rest();
    }
    for request in one_of_each() {
        for length in 0..request.len() {
            let mut client = Client::new(&program);
            client.send(&request[..length]);
            client.end();
            assert_eq!(client.rest(), b"", "{request:?} cut at {length}");
        }
    }
    assert!(bad_input(&program, "unknown_type") >= 256 - known.len() as u64);
    assert!(bad_input(&program, "cut_short") > 100);
    Client::new(&program).id();
}

#[test]
fn a_value_over_the_cap_is_refused_by_its_header() {
    let config = "[[throttr]]\nlisten = '127.0.0.1:0'\nvalue_size = 64\n\
                  [http]\nlisten = '127.0.0.1:0'\n";
    let program = Program::serve(config);
    for length in [65_537_u64, 1 << 32, 1 << 40, u64::MAX] {
        let mut client = Client::new(&program);
        client.send(b"\x02\x00");
        client.send(&[&b"\x05\x04\x01\0\0\0\0\0\0\0\x01"[..], &length.to_le_bytes()].concat());
        assert_eq!(client.rest(), [0], "{length}");
    }
    assert_eq!(bad_input(&program, "value_too_long"), 4);
    let mut client = Client::new(&program);
    let head = b"\x05\x04\x01\0\0\0\0\0\0\0\x01\0\0\x01\0\0\0\0\0k";
    client.send(&[&head[..], &[9; 65_536]].concat());
    assert_eq!(client.read(1), [1], "the longest that is allowed");
}

#[test]
fn slow_senders_hold_up_nobody() {
    let program = Program::serve(DOOR);
    let set = written(&[Request::Set { ttl: MINUTE, key: b"slow", value: &[5; 60_000] }]);
    let mut slow: Vec<_> = (0..20).map(|_| Client::new(&program)).collect();
    for (at, client) in slow.iter_mut().enumerate() {
        client.send(&set[..1 + at * 3_000]);
    }
    let mut other = Client::new(&program);
    assert!(other.does(&Request::Insert { quota: 1, ttl: MINUTE, key: b"quick" }));
    for (at, client) in slow.iter_mut().enumerate() {
        for piece in set[1 + at * 3_000..].chunks(1_000) {
            client.send(piece);
        }
        assert_eq!(client.read(1), [1]);
    }
    let got = other.ask(&Request::Get { key: b"slow" }, 6 + 60_000);
    assert_eq!(got[6..], [5; 60_000]);
}

/// Kilobytes of memory that the program has had in use at most.
fn peak_kb(program: &Program) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.pid()));
    let status = status.expect("the program lives");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("its memory");
    line.split_ascii_whitespace().nth(1).and_then(|kb| kb.parse().ok()).expect("a number")
}

#[test]
fn a_client_that_does_not_read_is_held_back() {
    const ASKED: usize = 4_000;
    let program = Program::serve(DOOR);
    let mut other = Client::new(&program);
    let key = [b'k'; 255];
    let value = [3; 60_000];
    // However slow the machine is, the hour that has begun is the same to the end.
    let day = Ttl { unit: Some(Unit::Hours), amount: 24 };
    assert!(other.does(&Request::Set { ttl: day, key: &key, value: &value }));
    let before = peak_kb(&program);
    // 240 MB of answers are asked for by a megabyte of requests, and not read.
    let mut greedy = Client::new(&program);
    let mut half = greedy.0.try_clone().expect("a second handle");
    let asked = written(&[Request::Get { key: &key }]).repeat(ASKED);
    let writer = std::thread::spawn(move || half.write_all(&asked).expect("it takes all of it"));
    for round in 0..500u16 {
        let insert = Request::Insert { quota: 1, ttl: MINUTE, key: &round.to_le_bytes() };
        assert!(other.does(&insert), "others are served");
    }
    for _ in 0..ASKED {
        let answer = greedy.read(6 + value.len());
        assert_eq!(answer[..4], [1, 6, 23, 0]);
        assert_eq!(answer[6..], value);
    }
    writer.join().expect("all was written");
    greedy.id();
    let grown = peak_kb(&program).saturating_sub(before);
    assert!(grown < 32 * 1024, "{grown} kB more");
}

#[test]
fn replies_to_clients_that_left_reach_nobody_else() {
    let config = format!("{DOOR}[[throttr]]\nunix = 'gate.sock'\n");
    let program = Program::serve(&config);
    let path = program.folder().join("gate.sock");
    // Several at each socket, so that every loop has some.
    let mut tcp: Vec<_> = (0..8).map(|_| Client::new(&program)).collect();
    let mut unix: Vec<_> = (0..8).map(|_| Client::unix(&path)).collect();
    let ids: Vec<_> =
        tcp.iter_mut().map(Client::id).chain(unix.iter_mut().map(Client::id)).collect();
    let asked = written(&[Request::Info; 50]);
    for round in 0..60 {
        match round % 3 {
            0 => {
                let mut reset = Client::new(&program);
                socket2::SockRef::from(&reset.0).set_linger(Some(Duration::ZERO)).expect("linger");
                reset.send(&asked);
            }
            1 => Client::new(&program).send(&asked),
            _ => Client::unix(&path).send(&asked),
        }
        let told: Vec<_> =
            tcp.iter_mut().map(Client::id).chain(unix.iter_mut().map(Client::id)).collect();
        assert_eq!(told, ids, "round {round}: each has its own reply");
    }
}

#[test]
fn answers_that_nobody_reads_take_bounded_memory() {
    const DEAF: usize = 200;
    let program = Program::serve(DOOR);
    // With so many channels, CHANNELS answers with more than a megabyte.
    let mut subscribers: Vec<_> = (0..4).map(|_| Client::new(&program)).collect();
    for (number, subscriber) in subscribers.iter_mut().enumerate() {
        for channel in 0..1_000 {
            let name = format!("{number}/{channel:0>250}");
            assert!(subscriber.does(&Request::Subscribe { channel: name.as_bytes() }));
        }
    }
    let before = peak_kb(&program);
    let mut deaf: Vec<_> = (0..DEAF).map(|_| Client::new(&program)).collect();
    // The kernel takes the first answers; the rest stays with the server.
    deaf.iter_mut().for_each(|client| client.send(&written(&[Request::Channels; 16])));
    until(|| bad_input(&program, "slow_reader") > 0);
    // An honest client gets its answer, since those who do not read lose theirs.
    let mut honest = Client::new(&program);
    let head = honest.ask(&Request::Channels, 9);
    assert!(head[0] == 1 && u64_at(&head, 1) > 400, "{head:?}");
    let grown = peak_kb(&program).saturating_sub(before);
    // Without permits it would be more than 220 MB. The allocator keeps some of what it gets back.
    assert!(grown < (64 + 64) * 1024, "{grown} kB more");
}

#[test]
fn connections_beyond_the_cap_are_closed() {
    let config = "[[throttr]]\nlisten = '127.0.0.1:0'\nmax_connections = 3\n\
                  [http]\nlisten = '127.0.0.1:0'\n";
    let program = Program::serve(config);
    let mut clients: Vec<_> = (0..3).map(|_| Client::new(&program)).collect();
    for client in &mut clients {
        client.id();
    }
    assert_eq!(Client::new(&program).rest(), b"");
    assert_eq!(bad_input(&program, "too_many_connections"), 1);
    drop(clients.pop());
    until(|| {
        let mut client = Client::new(&program);
        let _ = client.0.write_all(b"\x18");
        client.end();
        client.rest().len() == 17
    });
    clients[0].id();
}

#[test]
fn strangers_are_kept_out() {
    let config = "[[throttr]]\nlisten = '127.0.0.1:0'\nallow = ['10.0.0.0/8']\n\
                  [http]\nlisten = '127.0.0.1:0'\n";
    let program = Program::serve(config);
    assert_eq!(Client::new(&program).rest(), b"");
    assert_eq!(bad_input(&program, "not_allowed"), 1);
}

#[test]
fn idle_connections_are_closed_where_the_file_says_so() {
    let config = "[[throttr]]\nlisten = '127.0.0.1:0'\nidle_timeout = '10ms'\n\
                  [http]\nlisten = '127.0.0.1:0'\n";
    let program = Program::serve(config);
    let mut client = Client::new(&program);
    assert_eq!(client.rest(), b"");
    assert_eq!(bad_input(&program, "idle"), 1);
}

#[test]
fn as_many_connections_as_the_process_may_open() {
    const FILES: usize = 80;
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("tidegate.toml"), DOOR).expect("a file");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &format!("ulimit -n {FILES} && exec {} serve", binary())]);
    shell.current_dir(folder.path()).env_remove("RUST_LOG");
    let mut program = Program::spawn(shell, folder);
    program.wait_until_ready();
    let mut first = Client::new(&program);
    first.id();
    // More than it can have: the rest is closed.
    let clients: Vec<TcpStream> = (0..2 * FILES)
        .map(|_| TcpStream::connect(program.address("throttr")).expect("queued at least"))
        .collect();
    program.wait_for_line(|line| line.contains("too few file descriptors"));
    // Who came in before is served.
    for _ in 0..100 {
        first.id();
    }
    // When they have left, others get in.
    drop(clients);
    until(|| {
        let mut client = Client::new(&program);
        let _ = client.0.write_all(b"\x18");
        client.end();
        client.rest().len() == 17
    });
    first.id();
}
