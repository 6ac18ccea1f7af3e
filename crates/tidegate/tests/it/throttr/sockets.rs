//! Connections: pipelines in any pieces, half-close, Unix sockets, start and stop.

use rustix::process::Signal;
use tidegate_wire::throttr::{Attribute, Request, Ttl, Unit, UpdateChange};

use super::{Client, DOOR, MINUTE, u64_at, until, written};
use crate::program::Program;

/// One of each that clients send by the million, which leaves nothing behind.
fn pipeline() -> (Vec<u8>, Vec<u8>) {
    let (key, hour) = (&b"counter"[..], Ttl::new(1, Unit::Hours));
    let update = |attribute, change, value| Request::Update {
        attribute: Some(attribute),
        change: Some(change),
        value,
        key,
    };
    let requests = [
        Request::Insert { quota: 7, ttl: MINUTE, key },
        Request::Query { key },
        update(Attribute::Quota, UpdateChange::Decrease, 3),
        update(Attribute::Quota, UpdateChange::Decrease, 5),
        Request::Query { key },
        Request::Set { ttl: hour, key: b"", value: b"value" },
        Request::Get { key: b"" },
        update(Attribute::Ttl, UpdateChange::Patch, 100),
        Request::Query { key },
        Request::Consume { cost: 1, quota: 9, ttl: MINUTE, key: b"own" },
        Request::Purge { key },
        Request::Purge { key: b"" },
        Request::Purge { key: b"own" },
        Request::Query { key },
    ];
    let replies: &[&[u8]] = &[
        &[1],
        &[1, 7, 0, 4, 59, 0],
        &[1],
        &[0],
        &[1, 4, 0, 4, 59, 0],
        &[1],
        b"\x01\x06\x00\x00\x05\x00value",
        &[1],
        &[1, 4, 0, 4, 99, 0],
        &[1, 8, 0, 59, 0],
        &[1],
        &[1],
        &[1],
        &[0],
    ];
    (written(&requests), replies.concat())
}

#[test]
fn a_pipeline_may_come_in_any_two_pieces() {
    let program = Program::serve(DOOR);
    let (requests, replies) = pipeline();
    let mut observer = Client::new(&program);
    for split in 0..=requests.len() {
        let mut client = Client::new(&program);
        let id = client.id();
        client.send(&requests[..split]);
        // The second piece leaves when the first was read, so that it is read on its own.
        until(|| {
            let record = observer.ask(&Request::Connection { id }, 238);
            u64_at(&record, 1 + 45) == 1 + split as u64
        });
        client.send(&requests[split..]);
        assert_eq!(client.read(replies.len()), replies, "split at {split}");
    }
}

#[test]
fn any_number_of_requests_may_come_at_once() {
    let program = Program::serve(DOOR);
    let (requests, replies) = pipeline();
    let mut client = Client::new(&program);
    let mut half = client.0.try_clone().expect("a second handle");
    let rounds = 5_000;
    let writer = std::thread::spawn(move || {
        use std::io::Write as _;
        half.write_all(&requests.repeat(rounds)).expect("the door takes it");
    });
    for round in 0..rounds {
        assert_eq!(client.read(replies.len()), replies, "round {round}");
    }
    writer.join().expect("all was written");
}

#[test]
fn the_replies_to_one_read_leave_in_one_write() {
    use std::io::Read as _;
    let program = Program::serve(DOOR);
    let (requests, replies) = pipeline();
    let (requests, replies) = (requests.repeat(20), replies.repeat(20));
    let mut client = Client::new(&program);
    let mut bytes = vec![0; 64 << 10];
    for _ in 0..50 {
        client.send(&requests);
        let count = client.0.read(&mut bytes).expect("an answer");
        assert_eq!(bytes[..count], replies, "all that was sent at once is answered at once");
    }
}

#[test]
fn a_client_that_half_closes_has_its_answers() {
    let program = Program::serve(DOOR);
    let (requests, replies) = pipeline();
    // Also with the beginning of one more request behind them.
    for cut in [&b""[..], b"\x02", b"\x02\x05abc", b"\x05\x04\x01\x00\x01\xff\xffk"] {
        let mut client = Client::new(&program);
        client.send(&[&requests, cut].concat());
        client.end();
        assert_eq!(client.rest(), replies, "{cut:?}");
    }
    let mut silent = Client::new(&program);
    silent.end();
    assert_eq!(silent.rest(), b"");
    assert_eq!(super::bad_input(&program, "cut_short"), 3);
}

#[test]
fn long_answers_come_before_the_end_too() {
    let program = Program::serve(DOOR);
    let mut client = Client::new(&program);
    client.send(&written(&[Request::List, Request::Whoami, Request::Stats, Request::Whoami]));
    client.end();
    let rest = client.rest();
    assert_eq!(rest.len(), 9 + 17 + 9 + 17);
    assert_eq!(&rest[..9], &[1, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(&rest[9..26], &rest[35..]);
}

#[test]
fn what_cannot_be_understood_ends_the_connection_behind_its_answers() {
    let program = Program::serve(DOOR);
    let (requests, replies) = pipeline();
    // What follows must not make the system take the answers back.
    let noise = [0xff; 100_000];
    let mut client = Client::new(&program);
    client.send(&[&requests[..], &noise].concat());
    assert_eq!(client.rest(), replies);
    assert_eq!(super::bad_input(&program, "unknown_type"), 1);
    assert!(Client::new(&program).does(&Request::Insert { quota: 1, ttl: MINUTE, key: b"k" }));
}

#[test]
fn several_value_sizes_share_the_records() {
    let program = Program::serve(
        "[[throttr]]\nlisten = '127.0.0.1:0'\nvalue_size = 8\n\
         [[throttr]]\nlisten = ['127.0.0.1:0', '[::1]:0']\nvalue_size = 64\n",
    );
    let told: Vec<_> = program.listening().iter().map(|(door, at)| (&**door, *at)).collect();
    assert_eq!(told.len(), 3);
    assert!(told.iter().all(|(door, at)| *door == "throttr" && at.port() != 0));
    let connect = |at: usize| Client(std::net::TcpStream::connect(told[at].1).expect("open"));
    let (mut small, mut large, mut sixth) = (connect(0), connect(1), connect(2));
    large.send(b"\x01\x10\x27\0\0\0\0\0\0\x04\x3c\0\0\0\0\0\0\0\x01k");
    assert_eq!(large.read(1), [1]);
    small.send(b"\x02\x01k");
    assert_eq!(small.read(4), [1, 255, 4, 59]);
    sixth.send(b"\x02\x01k");
    assert_eq!(sixth.read(18), b"\x01\x10\x27\0\0\0\0\0\0\x04\x3b\0\0\0\0\0\0\0");
}

#[test]
fn two_clients_lose_no_update_of_one_key() {
    const UPDATES: usize = 20_000;
    let program = Program::serve(DOOR);
    let mut client = Client::new(&program);
    assert!(client.does(&Request::Insert { quota: 50_000, ttl: MINUTE, key: b"k" }));
    let update = Request::Update {
        attribute: Some(Attribute::Quota),
        change: Some(UpdateChange::Decrease),
        value: 1,
        key: b"k",
    };
    let batch = written(&[update; 100]);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let mut client = Client::new(&program);
            let batch = &batch;
            scope.spawn(move || {
                for _ in 0..UPDATES / 100 {
                    client.send(batch);
                    assert_eq!(client.read(100), [1; 100]);
                }
            });
        }
    });
    let left = client.ask(&Request::Query { key: b"k" }, 6);
    assert_eq!(u16::from_le_bytes([left[1], left[2]]), 50_000 - 2 * UPDATES as u16);
}

const UNIX: &str = "[[throttr]]\nunix = 'gate.sock'\n[http]\nlisten = '127.0.0.1:0'\n";

#[test]
fn a_unix_socket_is_a_door_like_any_other() {
    let mut program = Program::serve(UNIX);
    let path = program.folder().join("gate.sock");
    assert_eq!(program.paths(), std::slice::from_ref(&path));
    let (requests, replies) = pipeline();
    // Several, so that every loop has some.
    let mut clients: Vec<_> = (0..5).map(|_| Client::unix(&path)).collect();
    for client in &mut clients {
        client.send(&requests);
        assert_eq!(client.read(replies.len()), replies);
    }
    let id = clients[0].id();
    let record = clients[4].ask(&Request::Connection { id }, 238);
    assert_eq!(&record[..20], &[&[1], &id[..], &[0, 1, 4]].concat()[..]);
    let mut second = Program::start(&format!("[[throttr]]\nunix = '{}'\n", path.display()));
    assert_eq!(second.exit_status().code(), Some(1), "somebody answers there");
    assert!(path.exists());
    program.signal(Signal::TERM);
    assert_eq!(program.exit_status().code(), Some(0));
    assert!(!path.exists(), "nothing is left behind");
}

#[test]
fn the_socket_of_a_crashed_process_is_taken_over() {
    let program = Program::serve(UNIX).crash_and_restart();
    let mut client = Client::unix(&program.paths()[0]);
    assert_eq!(client.ask(&Request::Query { key: b"" }, 1), [0]);
}

#[test]
fn another_process_does_not_share_the_port() {
    let program = Program::serve(DOOR);
    let address = program.address("throttr");
    let mut second = Program::start(&format!("[[throttr]]\nlisten = '{address}'\n"));
    assert_eq!(second.exit_status().code(), Some(1));
}

#[test]
fn what_has_arrived_is_answered_before_the_end() {
    let mut program = Program::serve(DOOR);
    let (requests, replies) = pipeline();
    let mut clients: Vec<_> = (0..8).map(|_| Client::new(&program)).collect();
    for client in &mut clients {
        client.id();
    }
    for (at, client) in clients.iter_mut().enumerate() {
        // One at a time, so that the counters of one are no business of the others.
        client.send(&written(&[Request::Query { key: &[at as u8] }]));
    }
    clients[0].send(&requests);
    program.signal(Signal::TERM);
    assert_eq!(program.exit_status().code(), Some(0));
    assert_eq!(clients[0].rest(), [&[0][..], &replies].concat());
    for client in &mut clients[1..] {
        assert_eq!(client.rest(), [0]);
    }
}

#[test]
fn a_reload_keeps_changes_and_closes_the_door() {
    let config = |settings: &str, address: &str| {
        format!("[[throttr]]\nlisten = '{address}'\n{settings}\n[http]\nlisten = '127.0.0.1:0'\n")
    };
    let reloaded = |line: &str| line.contains("configuration reloaded");
    let mut program = Program::serve(&config("", "127.0.0.1:0"));
    let address = program.address("throttr").to_string();
    let mut client = Client::new(&program);
    assert!(client.does(&Request::Insert { quota: 300, ttl: MINUTE, key: b"k" }));
    // Another allow list leaves the connection alone and keeps newcomers out.
    program.write_config(&config("allow = ['10.0.0.0/8']", "127.0.0.1:0"));
    program.wait_for_line(reloaded);
    assert_eq!(client.ask(&Request::Query { key: b"k" }, 6)[..3], [1, 44, 1]);
    assert_eq!(Client::new(&program).rest(), b"");
    // Another value size is another door, here on the same port.
    program.write_config(&config("value_size = 8", &address));
    program.wait_for_line(reloaded);
    assert_eq!(client.rest(), b"", "the old door has closed");
    let mut small = Client::new(&program);
    small.send(b"\x02\x01k");
    assert_eq!(small.read(4), [1, 255, 4, 59]);
    program.write_config("[http]\nlisten = '127.0.0.1:0'\n");
    program.wait_for_line(reloaded);
    assert_eq!(small.rest(), b"");
    // Its loops close one by one.
    until(|| std::net::TcpStream::connect(&address).is_err());
}
