//! Clients that mean harm, or know no better: half requests, no reading, too many connections.

use std::io::Write as _;
use std::net::Shutdown;

use tidegate_wire::resp::request::request;

use super::ways::guarded;
use super::{Client, DOOR, bad_input, metric};
use crate::engines::until;
use crate::program::{PATIENCE, Program};

#[test]
fn a_whole_pipeline_is_written_before_a_reply_is_read() {
    let program = Program::serve(DOOR);
    let mut client = Client::new(&program);
    let message = "x".repeat(100);
    let one = format!("*2\r\n$4\r\nECHO\r\n$100\r\n{message}\r\n");
    let count = 100_000;
    // A door that stops reading would never take all of it.
    client.0.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    client.send(one.repeat(count).as_bytes());
    let reply = format!("$100\r\n{message}\r\n");
    let replies = client.read(reply.len() * count);
    assert!(replies.chunks(reply.len()).all(|one| one == reply.as_bytes()));
}

#[test]
fn a_client_that_never_reads_is_closed() {
    let program = Program::serve(DOOR);
    let mut client = Client::new(&program);
    client.0.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    let message = "x".repeat(60_000);
    let one = format!("*2\r\n$4\r\nECHO\r\n$60000\r\n{message}\r\n");
    // Far more than 32 MiB and what the kernel holds.
    let refused = (0..4_000).find_map(|_| client.0.write_all(one.as_bytes()).err());
    refused.expect("the door closes the connection");
    assert_eq!(bad_input(&program, "slow_reader"), 1);
    Client::new(&program).ask("PING", "+PONG\r\n");
}

/// However much longer than requests their replies are, a client that reads has all of them.
#[test]
fn a_client_that_reads_is_not_closed_for_long_replies() {
    let program = Program::serve(DOOR);
    let mut client = Client::new(&program);
    let value = "x".repeat(60_000);
    client.ask(&format!("SET long {value}"), "+OK\r\n");
    let one = format!("$60000\r\n{value}\r\n");
    let (count, last) = (2_000, "+PONG\r\n");
    client.send(("GET long\r\n".repeat(count) + "PING\r\n").as_bytes());
    client.0.shutdown(Shutdown::Write).expect("half a close");
    for number in 0..count {
        assert!(client.read(one.len()) == one.as_bytes(), "reply {number}");
    }
    assert_eq!(client.rest(), last.as_bytes());

    // The replies to one transaction, too.
    let mut client = Client::new(&program);
    client.send(("MULTI\r\n".to_owned() + &"GET long\r\n".repeat(1_000) + "EXEC\r\n").as_bytes());
    client.read_until(b"*1000\r\n");
    for number in 0..1_000 {
        assert!(client.read(one.len()) == one.as_bytes(), "reply {number}");
    }
    client.ask("PING", last);
    assert_eq!(bad_input(&program, "slow_reader"), 0);
    assert_eq!(bad_input(&program, "cut_short"), 0);
}

#[test]
fn clients_that_take_most_of_the_room_give_way() {
    let program = Program::serve(DOOR);
    let message = "x".repeat(60_000);
    let one = format!("*2\r\n$4\r\nECHO\r\n$60000\r\n{message}\r\n");
    // Each leaves 28 MiB of replies unread, until the door closes its connection.
    let hostile: Vec<Client> = (0..12)
        .map(|_| {
            let mut client = Client::new(&program);
            client.0.set_write_timeout(Some(PATIENCE)).expect("a timeout");
            let _ = (0..470).try_for_each(|_| client.0.write_all(one.as_bytes()));
            client
        })
        .collect();
    let mut honest = Client::new(&program);
    let count = 100;
    honest.send(one.repeat(count).as_bytes());
    let reply = format!("$60000\r\n{message}\r\n");
    let replies = honest.read(reply.len() * count);
    assert!(replies.chunks(reply.len()).all(|one| one == reply.as_bytes()));
    assert!(bad_input(&program, "slow_reader") > 0);
    drop(hostile);
}

#[test]
fn a_client_that_half_closes_has_its_replies() {
    let program = Program::serve(DOOR);
    for cut in ["", "*2\r\n$4\r\nEC", "PIN"] {
        let mut client = Client::new(&program);
        client.send("PING\r\n".repeat(1_000).as_bytes());
        client.send(cut.as_bytes());
        client.0.shutdown(Shutdown::Write).expect("half a close");
        assert_eq!(client.rest(), "+PONG\r\n".repeat(1_000).as_bytes(), "{cut:?}");
    }
    assert_eq!(bad_input(&program, "cut_short"), 2);
}

#[test]
fn a_newcomer_at_a_full_door_is_told_so() {
    let config = format!("{DOOR}\n").replace("[admin]", "max_connections = 2\n[admin]");
    let program = Program::serve(&config);
    let mut clients = [Client::new(&program), Client::new(&program)];
    clients.iter_mut().for_each(|client| client.ask("PING", "+PONG\r\n"));
    let mut third = Client::new(&program);
    assert_eq!(third.rest(), b"-ERR max number of clients reached\r\n");
    assert_eq!(bad_input(&program, "too_many_connections"), 1);
    // Idle connections of pools do not give way.
    clients.iter_mut().for_each(|client| client.ask("PING", "+PONG\r\n"));
}

#[test]
fn an_idle_client_is_closed_silently() {
    let config = DOOR.replace("[admin]", "idle_timeout = '1s'\n[admin]");
    let program = Program::serve(&config);
    let mut client = Client::new(&program);
    assert_eq!(client.rest(), b"");
    assert_eq!(bad_input(&program, "idle"), 1);
}

#[test]
fn a_request_may_be_cut_at_every_byte() {
    let program = Program::serve(DOOR);
    let request = b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$1\r\n5\r\n$1\r\n1\r\n$3\r\n600\r\n";
    for cut in 1..request.len() {
        let mut client = Client::new(&program);
        client.send(&request[..cut]);
        client.0.shutdown(Shutdown::Write).expect("half a close");
        assert_eq!(client.rest(), b"", "cut at {cut}");
    }
    assert_eq!(bad_input(&program, "cut_short"), request.len() as u64 - 1);
    // None of them has counted.
    Client::new(&program).ask("EXISTS k", ":0\r\n");
}

#[test]
fn the_tenth_wrong_password_closes_this_connection_and_no_other() {
    let program = guarded("[admin]\nlisten = '127.0.0.1:0'\n");
    let mut honest = Client::new(&program);
    honest.ask("AUTH s3cret", "+OK\r\n");
    let mut hostile = Client::new(&program);
    let refused = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    for command in ["AUTH s3cre", "AUTH app s3cret", "HELLO 3 AUTH default s3cret!"] {
        (0..3).for_each(|_| hostile.ask(command, refused));
    }
    hostile.ask("AUTH 10", refused);
    assert_eq!(hostile.rest(), b"");
    assert_eq!(bad_input(&program, "bad_password"), 10);
    honest.ask("PING", "+PONG\r\n");
    Client::new(&program).ask("AUTH s3cret", "+OK\r\n");
}

#[test]
fn large_headers_take_no_memory() {
    let config = DOOR.replace("[admin]", "max_value = '16MiB'\n[admin]");
    let program = Program::serve(&config);
    for (header, what) in
        [("*2\r\n$4\r\nECHO\r\n$1073741824\r\n", "bulk"), ("*1073741824\r\n", "multibulk")]
    {
        let mut client = Client::new(&program);
        client.send(header.as_bytes());
        let expected = format!("-ERR Protocol error: invalid {what} length\r\n");
        assert_eq!(String::from_utf8_lossy(&client.rest()), expected);
    }
    // Together they declare 1 GiB.
    let mut clients: Vec<Client> = (0..64).map(|_| Client::new(&program)).collect();
    clients.iter_mut().for_each(|client| client.ask("PING", "+PONG\r\n"));
    let before_kib = memory_kib(&program, "VmPeak");
    for client in &mut clients {
        client.send(b"PING\r\n*2\r\n$4\r\nECHO\r\n$16777216\r\nx");
        assert_eq!(client.read(7), b"+PONG\r\n");
    }
    let taken_kib = memory_kib(&program, "VmPeak") - before_kib;
    assert!(taken_kib < 256 << 10, "{taken_kib} KiB");
}

/// A figure of the program's memory: `VmPeak`, the most that it has asked for, used or not;
/// `VmRSS`, what it has.
fn memory_kib(program: &Program, figure: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.pid()));
    let status = status.expect("the program runs");
    let figure = format!("{figure}:");
    let told = status.lines().find_map(|line| line.strip_prefix(&figure)).expect("its memory");
    told.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// What clients have left unread is given back to the system while the door is idle.
#[test]
fn an_idle_door_keeps_no_memory_of_clients_that_have_left() {
    let program = Program::serve(DOOR);
    let one = format!("*2\r\n$4\r\nECHO\r\n$60000\r\n{}\r\n", "x".repeat(60_000));
    let mut clients: Vec<Client> = (0..8).map(|_| Client::new(&program)).collect();
    clients.iter_mut().for_each(|client| client.ask("PING", "+PONG\r\n"));
    let before_kib = memory_kib(&program, "VmRSS");
    for client in &mut clients {
        client.0.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        client.send(one.repeat(300).as_bytes());
    }
    // Some of it is still on its way, and some lies in the kernel.
    until(|| memory_kib(&program, "VmRSS") > before_kib + (96 << 10));
    drop(clients);
    // Buffers that all connections share are kept.
    until(|| memory_kib(&program, "VmRSS") < before_kib + (64 << 10));
}

#[test]
fn a_request_may_come_byte_by_byte() {
    let program = Program::serve(DOOR);
    // An argument that comes byte by byte is answered like any other.
    let mut client = Client::new(&program);
    client.0.set_nodelay(true).expect("a socket");
    let request = b"*2\r\n$4\r\nECHO\r\n$300\r\n";
    for byte in request.iter().chain(&[b'y'; 300]).chain(b"\r\n") {
        client.send(&[*byte]);
    }
    let expected = format!("$300\r\n{}\r\n", "y".repeat(300));
    assert_eq!(client.read(expected.len()), expected.as_bytes());
}

#[test]
fn commands_and_bytes_are_counted() {
    let program = Program::serve(DOOR);
    let mut client = Client::new(&program);
    client.ask("PING", "+PONG\r\n");
    client.ask("CL.THROTTLE k 1 1 10", "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:10\r\n");
    client.ask("NOPE", "-ERR unknown command 'NOPE', with args beginning with: \r\n");
    for (series, expected) in [
        ("tidegate_resp_commands_total{command=\"ping\"}", 1),
        ("tidegate_resp_commands_total{command=\"cl.throttle\"}", 1),
        ("tidegate_resp_commands_total{command=\"other\"}", 1),
        ("tidegate_resp_connections", 1),
    ] {
        assert_eq!(metric(&program, series), expected, "{series}");
    }
    assert_eq!(bad_input(&program, "unknown_command"), 1);
    // Counted when the write is over: the client may have read it by then.
    until(|| metric(&program, "tidegate_resp_bytes_total{direction=\"written\"}") > 50);
}

#[test]
fn a_full_table_has_no_buckets_of_unknown_keys() {
    let program = Program::serve(&format!("[memory]\nmax_keys = 100\n{DOOR}"));
    let mut client = Client::new(&program);
    for number in 0..100 {
        client.ask(
            &format!("CL.THROTTLE k{number} 5 1 600"),
            "*5\r\n:0\r\n:6\r\n:5\r\n:-1\r\n:600\r\n",
        );
    }
    client.ask("CL.THROTTLE unknown 5 1 600", "-OOM no room for a new key\r\n");
    client.ask("EXISTS unknown k0", ":1\r\n");
    client.ask("TTL unknown", ":-2\r\n");
    client.ask("DEL unknown", ":0\r\n");
}

/// A rule that matches decides alone: its key is refused like any other, and a look is allowed.
#[test]
fn a_full_table_refuses_new_keys_of_rules() {
    let rule = "[[rule]]\nmatch = 'rule *'\nlimit = '3 per 600s'\non_full = 'deny'\n";
    let program = Program::serve(&format!("{rule}[memory]\nmax_keys = 1\n{DOOR}"));
    let mut client = Client::new(&program);
    client.ask("CL.THROTTLE other 5 1 600", "*5\r\n:0\r\n:6\r\n:5\r\n:-1\r\n:600\r\n");
    let mut ask = |quantity: &str, expected: &str| {
        let mut sent = Vec::new();
        let words = [b"CL.THROTTLE", &b"rule a"[..], b"1", b"1", b"1", quantity.as_bytes()];
        request(&mut sent, &words);
        client.send(&sent);
        let reply = client.read(expected.len());
        assert_eq!(String::from_utf8_lossy(&reply), expected, "{quantity}");
    };
    ask("1", "*5\r\n:1\r\n:3\r\n:0\r\n:600\r\n:600\r\n");
    ask("4", "*5\r\n:1\r\n:3\r\n:0\r\n:-1\r\n:600\r\n");
    ask("0", "*5\r\n:0\r\n:3\r\n:0\r\n:-1\r\n:0\r\n");
    ask("-1", "*5\r\n:0\r\n:3\r\n:0\r\n:-1\r\n:0\r\n");
}
